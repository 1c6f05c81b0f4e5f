"""What the conformance tests run on: every public class of the catalog, and data that suits it."""

import copy
import math
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import get_tags

from seedbed.catalog import Public, load, publics

# class name -> {sklearn check: why it cannot hold}. The run is strict: a check that passes after all fails.
# "*" excuses a class from all of them.
EXPECTED_FAILURES: dict[str, dict[str, str]] = {
    "ConformalTailRiskController": {
        "*": "its targets are losses in a known range, one per score; scikit-learn's checks draw labels"
    },
    "ItemDifficultyRegressor": {
        "*": "its targets are rows of right and wrong answers; scikit-learn's checks draw one number each"
    },
    **{
        name: {
            f"check_estimator_sparse_{kind}": "predictions are a table, one column for each item"
            for kind in ("array", "matrix")
        }
        for name in ("RaschModel", "TwoPLModel", "ThreePLModel", "MultidimensionalIRT", "AmortizedIRT")
    },
}
PROBLEMS = {public.name.rpartition(".")[2]: public.problem for _, public in publics("estimator")}


@dataclass(frozen=True)
class Case:
    """A public class and the settings of a small instance."""

    path: str
    small: Mapping[str, Any]
    data: str | None = None
    data_small: Mapping[str, Any] | None = None

    @property
    def cls(self) -> Any:
        return load(self.path)

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def make(self, **changes: Any) -> Any:
        """A new instance that need not learn well: few iterations."""
        if "max_iter" in self.small:
            changes = {"max_iter": min(2, self.small["max_iter"])} | changes
        return self.trained(**changes)

    def trained(self, **changes: Any) -> Any:
        """A new small instance as the catalog has it, seeded if it has a seed."""
        settings = copy.deepcopy(dict(self.small)) | changes
        if "random_state" not in settings and "random_state" in self.cls._get_param_names():
            settings["random_state"] = 0
        return self.cls(**settings)

    @property
    def width(self) -> int:
        """Columns of X that the small instance takes."""
        if get_tags(self.cls()).input_tags.one_d_array:
            return 1
        if PROBLEMS.get(self.name) == "responses":
            return 8
        return math.prod(self.small.get("image_shape") or (4,))


def cases(kind: str) -> list[Any]:
    """One pytest parameter for each public class of this kind."""

    def case(path: str, public: Public) -> Any:
        return pytest.param(Case(path, public.small, public.data, public.data_small), id=public.name)

    return [case(method.path(public), public) for method, public in publics(kind)]


def expected_warnings() -> list[pytest.MarkDecorator]:
    """Marks that let pass what estimators rightly say when they are given X and y alone."""
    return [
        pytest.mark.filterwarnings(f"ignore:{message}:UserWarning")
        for _, public in publics("estimator")
        for message in public.warns
    ]


def expected_failures(estimator: BaseEstimator) -> dict[str, str]:
    """Checks of scikit-learn that this estimator cannot pass, with the reason."""
    return EXPECTED_FAILURES.get(type(estimator).__name__, {})


def data(estimator: Any, width: int, rows: int = 160, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets that an estimator of this kind learns from."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, width))
    if PROBLEMS.get(type(estimator).__name__) == "scores":
        return X, np.clip(0.5 + 0.2 * X + 0.1 * rng.normal(size=X.shape), 0.0, 1.0)
    if PROBLEMS.get(type(estimator).__name__) == "responses":
        ability, difficulty = rng.normal(size=(rows, 1)), np.linspace(-1.5, 1.5, width)
        return right_or_wrong(rng, ability - difficulty), np.zeros(rows)
    if PROBLEMS.get(type(estimator).__name__) == "items":
        return X, right_or_wrong(rng, rng.normal(size=30) - X[:, :1])
    if get_tags(estimator).input_tags.positive_only:
        X = np.abs(X)
    signal = X[:, 0] - X[:, -1] + 0.1 * rng.normal(size=rows)
    if is_classifier(estimator):
        return X, np.array(["no", "yes"])[(signal > np.median(signal)).astype(int)]
    return X, 10 + 5 * signal


def right_or_wrong(rng: np.random.Generator, logit: np.ndarray) -> np.ndarray:
    """Answers that are right with these log-odds."""
    return (rng.random(logit.shape) < 1 / (1 + np.exp(-logit))).astype(float)


def first_step(estimator: BaseEstimator) -> Any:
    """A transformer that may stand before the estimator: answers stay what they are."""
    if PROBLEMS.get(type(estimator).__name__) == "responses":
        return FunctionTransformer(feature_names_out="one-to-one")
    return StandardScaler()


def digits_as_answers(read: Any) -> Any:
    """Let a reader of answers take real numbers: what is right is told by a digit, row by row the same."""

    def reading(X: Any, **settings: Any) -> Any:
        cells = X.copy() if sparse.issparse(X) else np.array(X, dtype=float)
        values = cells.data if sparse.issparse(X) else cells
        known = ~np.isnan(values)
        values[known] = np.floor(np.abs(values[known]) * 7) % 2
        return read(cells, **settings)

    return reading


def wants_targets(estimator: Any) -> bool:
    """Whether the estimator learns from targets."""
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator  # whose tags do not pass on all
    return get_tags(last).target_tags.required or is_classifier(estimator) or is_regressor(estimator)


def fit(estimator: Any, X: Any, y: Any, **extra: Any) -> Any:
    """Fit with the targets if the estimator asks for some."""
    return estimator.fit(X, y, **extra) if wants_targets(estimator) else estimator.fit(X, **extra)


METHODS = (
    "predict", "predict_proba", "decision_function", "predict_interval", "predict_set", "transform",
    "score_samples",
)  # fmt: skip


def answers(estimator: Any, X: Any) -> dict[str, Any]:
    """All that a fitted estimator says about X, by method; several arrays of one method are numbered."""
    found: dict[str, Any] = {}
    for method in METHODS:
        if hasattr(estimator, method):
            answer = getattr(estimator, method)(X)
            parts = answer if isinstance(answer, tuple) else (answer,)
            found |= {f"{method}[{index}]": part for index, part in enumerate(parts)}
    return found


def assert_same(a: dict[str, Any], b: dict[str, Any], **tolerance: float) -> None:
    """Answers are equal, bit by bit unless a tolerance is given."""
    assert a.keys() == b.keys()
    for method, answer in a.items():
        left, right = np.asarray(answer), np.asarray(b[method])
        if tolerance and left.dtype.kind == "f":
            np.testing.assert_allclose(left, right, err_msg=method, **tolerance)
        else:
            np.testing.assert_array_equal(left, right, err_msg=method)


def common(a: dict[str, Any], b: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The methods that both have: a pipeline or a search forwards only some."""
    shared = a.keys() & b.keys()
    assert shared
    return {method: a[method] for method in shared}, {method: b[method] for method in shared}


def differs(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether any answer is another one."""
    return any(not np.array_equal(np.asarray(a[method]), np.asarray(b[method])) for method in a)


def generators() -> tuple[Any, ...]:
    """States of Python's, NumPy's and torch's global generators."""
    torch = sys.modules.get("torch")
    return (
        random.getstate(),
        np.random.get_state()[1].tobytes(),  # noqa: NPY002
        np.random.get_state()[2],  # noqa: NPY002
        b"" if torch is None else torch.get_rng_state().numpy().tobytes(),
    )


@contextmanager
def no_global_generator(*, but: str = "") -> Iterator[None]:
    """Fail if the body moves a global generator."""
    before = generators()
    yield
    after = generators()
    names = ("python", "numpy", "numpy", "torch")
    moved = [name for name, a, b in zip(names, before, after) if a != b and name != but]
    assert not moved, f"the global generator of {moved[0]} was moved"
