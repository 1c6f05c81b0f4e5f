"""Every estimator of the catalog: scikit-learn's checks, and what they do not ask."""

import copy
import inspect
import pickle
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.metadata_routing import get_routing_for_object

from conformance.cases import (
    EXPECTED_FAILURES,
    PROBLEMS,
    answers,
    assert_same,
    cases,
    common,
    data,
    differs,
    digits_as_answers,
    expected_failures,
    expected_warnings,
    first_step,
    fit,
    no_global_generator,
)

ESTIMATORS = cases("estimator")
each = pytest.mark.parametrize("case", ESTIMATORS)
pytestmark = expected_warnings()


@parametrize_with_checks(
    [
        param.values[0].trained()
        for param in ESTIMATORS
        if "*" not in EXPECTED_FAILURES.get(param.values[0].name, {})
        # scikit-learn has no checks for estimators of a single column, its own IsotonicRegression included.
        and get_tags(param.values[0].trained()).input_tags.two_d_array
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    if PROBLEMS.get(type(estimator).__name__) == "responses":
        # The checks draw real numbers; see that they are read as answers.
        for module in {sys.modules[base.__module__] for base in type(estimator).__mro__}:
            if hasattr(module, "read_responses"):
                monkeypatch.setattr(module, "read_responses", digits_as_answers(module.read_responses))
    if "sample_weight_equivalence" in str(check) and "precision" in estimator.get_params():
        # It compares 7 digits of two trainings, which float32 does not have.
        estimator.set_params(precision="64-true")
    check(estimator)


@each
def test_constructor_stores_and_nothing_else(case):
    signature = inspect.signature(case.cls.__init__)
    for name, parameter in signature.parameters.items():
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD), name
    markers = {name: object() for name in case.cls._get_param_names()}
    stored = case.cls(**markers)
    assert {name: id(value) for name, value in vars(stored).items()} == {
        name: id(marker) for name, marker in markers.items()
    }
    assert set(case.cls._parameter_constraints) == set(markers), "each parameter has its constraint"
    assert repr(case.make()).startswith(case.name)


@each
def test_clone_and_copies(case):
    estimator = case.make()
    X, y = data(estimator, case.width)
    fresh = clone(estimator)
    assert fresh.get_params().keys() == estimator.get_params().keys()
    with pytest.raises(NotFittedError):
        answers(fresh, X)
    fit(estimator, X, y)
    learned = {name for name in vars(estimator) if name not in case.cls._get_param_names()}
    assert all(name.endswith("_") or name.startswith("_") for name in learned), learned
    expected = answers(estimator, X)
    assert expected
    for twin in (pickle.loads(pickle.dumps(estimator)), copy.deepcopy(estimator)):
        assert_same(answers(twin, X), expected)
    assert not learned & set(vars(clone(estimator)))


@each
def test_refit_gives_the_same(case):
    estimator = case.make()
    X, y = data(estimator, case.width)
    first = answers(fit(estimator, X, y), X)
    other = data(estimator, case.width, rows=150, seed=1)
    assert differs(first, answers(fit(estimator, *other), X)), "the data are of no account"
    assert_same(answers(fit(estimator, X, y), X), first)
    assert_same(answers(fit(case.make(), X, y), X), first)
    # ... and asking twice, too.
    assert_same(answers(estimator, X), answers(estimator, X))


@each
def test_float32_stays_float32(case):
    X, y = data(case.make(), case.width)
    for dtype in (np.float32, np.float64):
        target = y.astype(dtype) if y.dtype.kind == "f" else y
        found = answers(fit(case.make(), X.astype(dtype), target), X.astype(dtype))
        floats = {name: np.asarray(part).dtype for name, part in found.items()}
        wrong = {name: kind for name, kind in floats.items() if kind.kind == "f" and kind != dtype}
        assert not wrong, f"{np.dtype(dtype)} came in, {wrong} came out"


@each
def test_inputs_stay_as_they_were_in_any_memory_layout(case):
    X, y = data(case.make(), case.width)
    expected = answers(fit(case.make(), X.copy(), y.copy()), X.copy())

    padded = np.full((2 * len(X), 2 * X.shape[1]), 7.0)
    padded[::2, ::2] = X
    twice = np.repeat(y, 2, axis=0)
    locked_X, locked_y = X.copy(), y.copy()
    locked_X.flags.writeable = locked_y.flags.writeable = False
    layouts = {
        "C": (X.copy(), y.copy()),
        "Fortran": (np.asfortranarray(X), y.copy()),
        "strided": (padded[::2, ::2], twice[::2]),
        "reversed": (X[::-1].copy()[::-1], y[::-1].copy()[::-1]),
        "read-only": (locked_X, locked_y),
        "lists": (X.tolist(), y.tolist()),
    }
    for layout, (rows, targets) in layouts.items():
        before = copy.deepcopy((rows, targets))
        found = answers(fit(case.make(), rows, targets), rows)
        # Other layouts take other paths through BLAS; equal memory gives equal bits.
        exact = layout in ("C", "read-only", "lists")
        assert_same(found, expected, **({} if exact else {"rtol": 1e-4, "atol": 1e-4}))
        np.testing.assert_array_equal(np.asarray(rows), np.asarray(before[0]), err_msg=layout)
        np.testing.assert_array_equal(np.asarray(targets), np.asarray(before[1]), err_msg=layout)


@each
@pytest.mark.parametrize("seed", [0, None, "instance"])
def test_no_global_generator_is_moved(case, seed):
    if "random_state" not in case.cls._get_param_names():
        seeds = {}
    else:
        seeds = {"random_state": np.random.RandomState(3) if seed == "instance" else seed}
    estimator = case.make(**seeds)
    X, y = data(estimator, case.width)
    with no_global_generator():
        answers(fit(estimator, X, y), X)


@each
def test_frames(case):
    X, y = data(case.make(), case.width)
    names = [f"column {index}" for index in range(case.width)]
    frame = pd.DataFrame(X, columns=names)
    series = (
        pd.Series(y, name="target")
        if y.ndim == 1
        else pd.DataFrame(y, columns=[f"target {index}" for index in range(y.shape[1])])
    )
    before = frame.copy(), series.copy()
    estimator = fit(case.make(), frame, series)
    assert list(estimator.feature_names_in_) == names
    assert estimator.n_features_in_ == case.width
    assert_same(answers(estimator, frame), answers(fit(case.make(), X, y), X), rtol=1e-4, atol=1e-4)
    pd.testing.assert_frame_equal(frame, before[0])
    assert series.equals(before[1])
    for strange in (
        frame.rename(columns={names[0]: "another"}),
        *([frame[names[::-1]]] if names[1:] else []),
    ):
        with pytest.raises(ValueError, match="feature names"):
            answers(estimator, strange)
    # An odd index is no reason to fail, or to mix up rows.
    odd = np.random.default_rng(0).permutation(len(X)) + 1000
    shifted = fit(case.make(), frame.set_index(odd), series.set_axis(odd, axis=0))
    assert_same(answers(shifted, frame.set_index(odd)), answers(estimator, frame))


@each
def test_set_output(case):
    estimator = case.make()
    if not hasattr(estimator, "transform"):
        pytest.skip("no transform")
    X, y = data(estimator, case.width)
    frame = pd.DataFrame(X, index=np.arange(len(X))[::-1])
    frame.columns = [f"c{index}" for index in range(case.width)]
    plain = fit(estimator, frame, y).transform(frame)
    framed = fit(case.make().set_output(transform="pandas"), frame, y).transform(frame)
    assert isinstance(framed, pd.DataFrame)
    assert list(framed.columns) == list(estimator.get_feature_names_out())
    np.testing.assert_array_equal(framed.to_numpy(), plain)
    assert framed.index.equals(frame.index)


@each
def test_pipeline(case):
    estimator = case.make()
    X, y = data(estimator, case.width)
    steps = Pipeline([("scale", first_step(estimator)), ("model", case.make())])
    scaled = first_step(estimator).fit_transform(X)
    assert_same(*common(answers(fit(steps, X, y), X), answers(fit(estimator, scaled, y), scaled)))


@each
def test_grid_search(case):
    estimator = case.make()
    X, y = data(estimator, case.width)
    name = next(iter({**case.small, **estimator.get_params(deep=False)}))
    grid = {name: [estimator.get_params()[name]]}
    search = GridSearchCV(estimator, grid, cv=2, scoring=scoring(estimator), error_score="raise")
    search.fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert_same(*common(answers(search, X), answers(fit(case.make(), X, y), X)))


def scoring(estimator):
    return None if hasattr(estimator, "score") else lambda fitted, X, y=None: float(len(answers(fitted, X)))


# --- metadata routing ---------------------------------------------------------------------------------------


def extra_names(case):
    """Named fit parameters beyond X and y, grouped by what belongs together."""
    requests = get_routing_for_object(case.make()).fit.requests
    groups = {}
    for name in requests:
        stem = re.sub(r"^[Xy]_", "", name)
        groups.setdefault(stem, []).append(name)
    return groups


def extra_values(case, names, rows):
    """Values for named fit parameters, by the convention of their names."""
    rng = np.random.default_rng(5)
    X, y = data(case.make(), case.width, rows=41, seed=5)
    values = {}
    for name in names:
        if name.startswith("X_"):
            values[name] = X
        elif name.startswith("y_"):
            values[name] = y
        elif name == "sample_weight":
            values[name] = rng.uniform(0.1, 3.0, size=rows)
        elif name.startswith("groups"):
            values[name] = rng.integers(0, 4, size=rows)
        elif name == "taker_groups":
            values[name] = np.where(np.arange(rows) % 3, "a", "b")
        elif name == "item_groups":
            values[name] = np.arange(case.width) % 2
        elif name == "item_features":
            values[name] = rng.normal(size=(case.width, 2))
        elif name == "ability_features":
            values[name] = rng.normal(size=rows)
        elif name == "mask" and PROBLEMS[case.name] == "responses":
            values[name] = rng.random(size=(rows, case.width)) < 0.8
        elif name == "sample_domain":
            values[name] = np.where(np.arange(rows) % 3, 1, -1)
        elif name.startswith(("sensitive", "censored", "treatment", "mask")):
            values[name] = rng.integers(0, 2, size=rows)
        else:
            raise AssertionError(f"say here what {name} should be, so that its routing is tested")
    return values


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


ROUTED = [
    pytest.param(param.values[0], names, id=f"{param.id}-{stem}")
    for param in ESTIMATORS
    for stem, names in extra_names(param.values[0]).items()
]


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize(("case", "names"), ROUTED)
def test_named_fit_parameters_pass_through_a_pipeline(case, names):
    X, y = data(case.make(), case.width)
    values = extra_values(case, names, len(X))
    model = case.make().set_fit_request(**dict.fromkeys(names, True))
    rows = [name for name in names if name.startswith("X_")]
    unweighted = first_step(model)
    if isinstance(unweighted, StandardScaler):
        unweighted.set_fit_request(sample_weight=False)
    steps = Pipeline([("scale", unweighted), ("model", model)], transform_input=rows or None)
    scaler = first_step(model).fit(X)
    scaled = {name: scaler.transform(value) if name in rows else value for name, value in values.items()}
    expected = answers(fit(case.make(), scaler.transform(X), y, **scaled), scaler.transform(X))
    assert_same(*common(answers(fit(steps, X, y, **values), X), expected))
    without = answers(fit(case.make(), scaler.transform(X), y), scaler.transform(X))
    assert differs(expected, without), f"{names} are of no account"


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize(("case", "names"), ROUTED)
def test_named_fit_parameters_pass_through_a_grid_search(case, names):
    X, y = data(case.make(), case.width)
    values = extra_values(case, names, len(X))
    model = case.make().set_fit_request(**dict.fromkeys(names, True))
    scored = get_routing_for_object(model).score.requests
    if set(names) & set(scored):
        model.set_score_request(**{name: False for name in names if name in scored})
    name = next(iter(model.get_params(deep=False)))
    grid = {name: [model.get_params()[name]]}
    search = GridSearchCV(model, grid, cv=2, scoring=scoring(model), error_score="raise")
    search.fit(X, y, **values)
    assert_same(*common(answers(search, X), answers(fit(case.make(), X, y, **values), X)))


# --- imports ------------------------------------------------------------------------------------------------

ALONE = """
import re, sys
from pathlib import Path
import numpy as np
sys.path[:0] = {path!r}
from seedbed.catalog import load
cls = load({cls!r})
package = cls.__module__.rpartition(".")[0]
own = [module for name, module in sys.modules.items() if name.startswith(cls.__module__)
       or (package != "seedbed.estimators" and name.startswith(package))]
sources = [Path(one.__file__).read_text(encoding="utf-8") for one in own if getattr(one, "__file__", None)]
names_torch = any(re.search(r"(?m)^(import|from) (torch|lightning)", text) for text in sources)
if names_torch:
    print("needs torch")
else:
    heavy = [name for name in ("torch", "lightning", "matplotlib") if name in sys.modules]
    assert not heavy, f"importing it loads {{heavy}}"
    from conformance.cases import Case, answers, data, fit
    case = Case({cls!r}, {small!r})
    X, y = data(case.make(), case.width)
    answers(fit(case.make(), X, y), X)
    assert "torch" not in sys.modules, "fitting it loads torch"
    print("light")
"""


@each
def test_numpy_estimators_load_no_torch(case):
    if any(base.__name__ == "LightningEstimator" for base in case.cls.__mro__):
        pytest.skip("trained by Lightning")
    code = ALONE.format(path=sys.path[:4], cls=case.path, small=dict(case.small))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() in ("light", "needs torch")


def test_tags_say_what_is_true():
    for param in ESTIMATORS:
        tags = get_tags(param.values[0].make())
        special = PROBLEMS[param.values[0].name] != "table"
        assert tags.estimator_type is not None or hasattr(param.values[0].cls, "transform") or special
