"""PUAUCClassifier: routes of target rows, cross-validation, scorers, errors, warnings, the claim."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch

from references.pu_auc_covariate_shift import pu_auc
from seedbed.datasets import make_pu_covariate_shift, make_pu_digits
from seedbed.estimators import (
    PUAUCClassifier,
    PUAUCDisplay,
    PUDomainStratifiedKFold,
    RuLSIF,
    pu_auc_risk,
    weighted_pu_auc_score,
)
from seedbed.estimators.pu_auc_covariate_shift.risk import PURisk


@pytest.fixture(scope="module")
def digits():
    return make_pu_digits(random_state=0)


@pytest.fixture(scope="module")
def small():
    """Two columns, little of everything."""
    return make_pu_covariate_shift(80, 240, 160, n_test=400, shift=0.4, random_state=1)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def stacked(model, data, **extra):
    return model.fit(data.X, data.y, sample_domain=data.sample_domain, **extra)


def apart(data):
    """Source rows and their labels, without the target rows."""
    source = data.sample_domain > 0
    return data.X[source], data.y[source]


def auc(model, data):
    return roc_auc_score(data.y_test, model.decision_function(data.X_test))


# --- where target rows come from ----------------------------------------------------------------------------


@pytest.mark.parametrize("scorer", ["linear", "kernel"])
def test_both_routes_give_the_same(digits, scorer):
    X, y = apart(digits)
    one = stacked(PUAUCClassifier(scorer, random_state=0, max_iter=30), digits)
    other = PUAUCClassifier(scorer, random_state=0, max_iter=30).fit(X, y, X_target=digits.X_target)
    halves = [digits.X_target[:70], digits.X_target[70:]]
    third = PUAUCClassifier(scorer, random_state=0, max_iter=30).fit(X, y, X_target=halves)
    for found in (other, third):
        np.testing.assert_array_equal(found.coef_, one.coef_)
        assert found.threshold_ == one.threshold_


def test_labels_of_target_rows_are_ignored(small):
    expected = stacked(PUAUCClassifier(random_state=0), small)
    for mask in (0, 1, 7, np.nan):
        y = small.y.astype(float)
        y[small.sample_domain < 0] = mask
        found = PUAUCClassifier(random_state=0).fit(small.X, y, sample_domain=3 * small.sample_domain)
        np.testing.assert_array_equal(found.coef_, expected.coef_)


def test_labels_may_be_anything(small):
    X, y = apart(small)
    expected = PUAUCClassifier(random_state=0).fit(X, y, X_target=small.X_target)
    for negative, positive in ((-1, 1), ("unlabeled", "yes"), (False, True)):
        labels = np.where(y == 1, positive, negative)
        found = PUAUCClassifier(random_state=0).fit(X, labels, X_target=small.X_target)
        np.testing.assert_array_equal(found.coef_, expected.coef_)
        assert set(found.predict(X)) == {negative, positive}
    turned = PUAUCClassifier(pos_label=0, random_state=0).fit(X, 1 - y, X_target=small.X_target)
    np.testing.assert_array_equal(turned.coef_, expected.coef_)
    assert turned.classes_.tolist() == [1, 0]
    np.testing.assert_array_equal(turned.predict(X), 1 - expected.predict(X))


def test_an_array_with_as_many_rows_as_X_is_never_sliced(small, routing):
    X, y = apart(small)
    target = make_pu_covariate_shift(1, 1, len(X), random_state=5).X_target
    model = PUAUCClassifier(random_state=0)
    with pytest.raises(
        ValueError, match=r"X_target has as many rows as X \(320\).*\[X_target\].*sample_domain"
    ):
        model.fit(X, y, X_target=target)
    # Inside cross-validation scikit-learn has sliced it by then: the same error, not a quiet result.
    search = GridSearchCV(model, {"trade_off": [0.0, 0.2]}, cv=3, error_score="raise")
    with pytest.raises(ValueError, match="X_target has as many rows as X"):
        search.fit(X, y, X_target=target)
    # In a list it stays whole.
    search = GridSearchCV(model, {"trade_off": [0.2]}, cv=3, error_score="raise").fit(X, y, X_target=[target])
    direct = clone(model).fit(X, y, X_target=[target])
    np.testing.assert_array_equal(search.best_estimator_.coef_, direct.coef_)
    folds = StratifiedKFold(3).split(X, y)
    expected = [clone(model).fit(X[a], y[a], X_target=[target]).score(X[b], y[b]) for a, b in folds]
    assert search.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(expected), abs=1e-12)


def test_an_array_of_another_length_reaches_every_fold_whole(small, routing):
    X, y = apart(small)
    model = PUAUCClassifier(random_state=0)
    search = GridSearchCV(model, {"trade_off": [0.2]}, cv=3, error_score="raise")
    search.fit(X, y, X_target=small.X_target)
    folds = StratifiedKFold(3).split(X, y)
    expected = [clone(model).fit(X[a], y[a], X_target=small.X_target).score(X[b], y[b]) for a, b in folds]
    assert search.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(expected), abs=1e-12)


def test_a_second_process_changes_nothing(small, routing):
    X, y = apart(small)
    model = PUAUCClassifier(random_state=0, n_restarts=4)
    alone = clone(model).fit(X, y, X_target=small.X_target)
    shared = clone(model).set_params(n_jobs=2).fit(X, y, X_target=small.X_target)
    np.testing.assert_array_equal(shared.coef_, alone.coef_)
    assert shared.loss_curve_ == alone.loss_curve_
    searches = [
        GridSearchCV(model, {"trade_off": [0.0, 0.2]}, cv=3, n_jobs=n, error_score="raise").fit(
            X, y, X_target=small.X_target
        )
        for n in (1, 2)
    ]
    np.testing.assert_array_equal(*[one.cv_results_["mean_test_score"] for one in searches])


def test_pipelines(small, routing):
    X, y = apart(small)
    model = PUAUCClassifier(random_state=0)
    scaler = StandardScaler().fit(X)
    manual = clone(model).fit(scaler.transform(X), y, X_target=scaler.transform(small.X_target))
    steps = Pipeline([("scale", StandardScaler()), ("rank", model)], transform_input=["X_target"])
    steps.fit(X, y, X_target=small.X_target)
    np.testing.assert_allclose(steps[-1].coef_, manual.coef_, rtol=1e-10)
    scaler = StandardScaler().fit(small.X)
    manual = stacked(clone(model), Bunch(**{**small, "X": scaler.transform(small.X)}))
    steps = make_pipeline(StandardScaler(), model).fit(small.X, small.y, sample_domain=small.sample_domain)
    np.testing.assert_allclose(steps[-1].coef_, manual.coef_, rtol=1e-10)
    assert steps.score(small.X, small.y, sample_domain=small.sample_domain) == pytest.approx(
        manual.score(scaler.transform(small.X), small.y, sample_domain=small.sample_domain), abs=1e-12
    )


def test_grid_search_over_stacked_rows(digits, routing):
    steps = make_pipeline(StandardScaler(), PUAUCClassifier(random_state=0, n_restarts=1))
    grid = {"puaucclassifier__trade_off": [0.0, 0.5], "puaucclassifier__l2": [1e-3, 1e-1]}
    cv = PUDomainStratifiedKFold(3, random_state=0)
    search = GridSearchCV(steps, grid, cv=cv, error_score="raise")
    search.fit(digits.X, digits.y, sample_domain=digits.sample_domain)
    scores = search.cv_results_["mean_test_score"]
    assert len(set(scores)) == 4
    assert search.best_index_ == np.argmax(scores)
    train, test = next(iter(cv.split(digits.X, digits.y, sample_domain=digits.sample_domain)))
    first = clone(steps).set_params(**search.cv_results_["params"][0])
    first.fit(digits.X[train], digits.y[train], sample_domain=digits.sample_domain[train])
    score = first.score(digits.X[test], digits.y[test], sample_domain=digits.sample_domain[test])
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(score, abs=1e-12)
    assert auc(search, digits) > 0.75


def test_without_routing_folds_are_split_beforehand(small):
    splits = list(
        PUDomainStratifiedKFold(3, random_state=0).split(small.X, small.y, sample_domain=small.sample_domain)
    )
    with pytest.warns(UserWarning, match="no target rows"):
        scores = cross_val_score(PUAUCClassifier(random_state=0), *apart(small), cv=3)
    assert np.isfinite(scores).all()
    search = GridSearchCV(
        PUAUCClassifier(random_state=0), {"trade_off": [0.2]}, cv=splits, error_score="raise"
    )
    search.fit(small.X, np.where(small.y == 1, 1, 0), sample_domain=small.sample_domain)
    assert hasattr(search, "best_estimator_")


def test_folds_keep_positives_and_target_rows():
    rng = np.random.default_rng(0)
    domain = rng.permutation(np.repeat([2, -1], [90, 30]))
    y = np.where(rng.uniform(size=120) < 0.3, 1, 0)
    y[domain < 0] = rng.integers(0, 9, size=30)
    splitter = PUDomainStratifiedKFold(5, random_state=0)
    assert splitter.get_n_splits() == 5
    seen = []
    for train, test in splitter.split(np.zeros((120, 1)), y, sample_domain=domain):
        assert (domain[test] < 0).sum() == 6
        positives = ((y == 1) & (domain > 0)).sum() / 5
        assert abs(((y[test] == 1) & (domain[test] > 0)).sum() - positives) < 1
        assert not set(train) & set(test)
        seen += test.tolist()
    assert sorted(seen) == list(range(120))
    again = list(PUDomainStratifiedKFold(5, random_state=0).split(y, y, sample_domain=domain))
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(again, splitter.split(y, y, sample_domain=domain)))
    ordered = PUDomainStratifiedKFold(5, shuffle=False).split(y, y, sample_domain=domain)
    assert next(iter(ordered))[1].max() < 60


def test_bad_folds():
    y, domain = np.array([1, 1, 0, 0, 0, -1, -1]), np.array([1, 1, 1, 1, 1, -1, -1])
    with pytest.raises(ValueError, match="n_splits=3 folds cannot all have target rows: there are 2"):
        next(PUDomainStratifiedKFold(3).split(y, y, sample_domain=domain))
    with pytest.raises(ValueError, match="source rows of label 1: there are 1"):
        next(PUDomainStratifiedKFold(2).split(y, np.array([1, 0, 0, 0, 0, 0, 0]), sample_domain=domain))
    with pytest.raises(ValueError, match="sample_domain must be given: enable metadata routing"):
        next(PUDomainStratifiedKFold(2).split(y, y))
    with pytest.raises(ValueError, match="sample_domain must be positive for source"):
        next(PUDomainStratifiedKFold(2).split(y, y, sample_domain=0 * domain))
    with pytest.raises(ValueError, match="inconsistent"):
        next(PUDomainStratifiedKFold(2).split(y, y, sample_domain=domain[:-1]))
    for n in (1, 2.5, "a"):
        with pytest.raises((ValueError, TypeError), match="n_splits"):
            PUDomainStratifiedKFold(n)


def test_a_fold_without_target_rows_is_an_error(small):
    bad = np.ones(len(small.X))
    with pytest.raises(ValueError, match=r"no negative \(target\) entry.*PUDomainStratifiedKFold"):
        PUAUCClassifier().fit(small.X, small.y, sample_domain=bad)
    model = stacked(PUAUCClassifier(random_state=0), small)
    rows = small.y != 1
    with pytest.raises(ValueError, match=r"no positives.*PUDomainStratifiedKFold"):
        model.score(small.X[rows], small.y[rows], sample_domain=small.sample_domain[rows])


# --- what is optimised --------------------------------------------------------------------------------------


def test_objective_is_the_risk_and_its_gradient_vanishes(digits):
    model = stacked(PUAUCClassifier(random_state=0, trade_off=0.3, l2=1e-2), digits)
    coef = model.coef_[0]
    scores = [rows @ coef for rows in (digits.X_positive, digits.X_unlabeled, digits.X_target)]
    w, v = model.importance_weights(digits.X_positive), model.importance_weights(digits.X_unlabeled)
    np.testing.assert_array_equal(model.weights_positive_, w)
    np.testing.assert_array_equal(model.weights_unlabeled_, v)
    value = 0.7 * pu_auc_risk(scores[0], scores[1], w, v) + 0.3 * pu_auc_risk(scores[0], scores[2], w)
    assert model.loss_curve_[-1] == pytest.approx(value + 0.5e-2 * coef @ coef, rel=1e-9)
    assert model.n_iter_ == len(model.loss_curve_)
    assert model.loss_curve_ == sorted(model.loss_curve_, reverse=True)

    def objective(c):
        s = [rows @ c for rows in (digits.X_positive, digits.X_unlabeled, digits.X_target)]
        return 0.7 * pu_auc_risk(s[0], s[1], w, v) + 0.3 * pu_auc_risk(s[0], s[2], w) + 0.5e-2 * c @ c

    rng = np.random.default_rng(0)
    for _ in range(5):
        step = 1e-3 * rng.normal(size=len(coef))
        assert objective(coef + step) > value + 0.5e-2 * coef @ coef


def test_effective_sample_size(digits):
    model = stacked(PUAUCClassifier(random_state=0), digits)
    w = model.weights_positive_
    assert model.effective_sample_size_["positive"] == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert 1 < model.effective_sample_size_["unlabeled"] < 400


def test_gamma_zero_needs_target_rows_for_the_weights_only(small):
    X, y = apart(small)
    weights = np.concatenate([small.weight_positive, small.weight_unlabeled])
    settings = {"density_ratio": "precomputed", "trade_off": 0.0, "threshold": 0.0, "random_state": 0}
    one = PUAUCClassifier(**settings).fit(X, y, X_target=small.X_target, sample_weight=weights)
    other = PUAUCClassifier(**settings).fit(X, y, X_target=small.X_target[:10] + 5, sample_weight=weights)
    third = PUAUCClassifier(**settings).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.coef_, third.coef_)
    np.testing.assert_array_equal(one.weights_positive_, small.weight_positive)
    with pytest.raises(ValueError, match="knows no weights of other rows"):
        one.importance_weights(X)
    assert one.density_ratio_ is None


def test_order_of_rows_changes_nothing(small):
    settings = {"density_ratio": "logistic", "random_state": 0}
    order = np.random.default_rng(0).permutation(len(small.X))
    one = stacked(PUAUCClassifier(**settings), small)
    other = PUAUCClassifier(**settings).fit(
        small.X[order], small.y[order], sample_domain=small.sample_domain[order]
    )
    np.testing.assert_allclose(other.coef_, one.coef_, rtol=1e-4)
    assert other.threshold_ == pytest.approx(one.threshold_, rel=1e-4)


def test_weight_two_is_the_row_twice(small):
    X, y = apart(small)
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 3, size=len(X))
    settings = {
        "density_ratio": FrozenEstimator(RuLSIF(random_state=0).fit(small.X_target, X)),
        "random_state": 0,
    }
    one = PUAUCClassifier(**settings).fit(X, y, X_target=small.X_target, sample_weight=counts)
    other = PUAUCClassifier(**settings).fit(
        np.repeat(X, counts, axis=0), np.repeat(y, counts), X_target=small.X_target
    )
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-6)
    assert one.threshold_ == pytest.approx(other.threshold_, rel=1e-6)


def test_single_set(small):
    model = stacked(PUAUCClassifier(scenario="single_set", density_ratio="logistic", random_state=0), small)
    expected = np.vstack([small.X_positive, small.X_unlabeled])
    default = stacked(PUAUCClassifier(density_ratio="logistic", random_state=0), small)
    ratio = clone(default.density_ratio_).fit(small.X_target, expected)
    np.testing.assert_allclose(model.weights_unlabeled_, np.maximum(ratio.predict(small.X_unlabeled), 1e-3))
    assert not np.allclose(model.coef_, default.coef_)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge", "squared"])
def test_losses_that_are_not_symmetric(small, loss):
    model = PUAUCClassifier(loss=loss, class_prior_train=small.class_prior, l2=0.1, random_state=0)
    stacked(model, small)
    assert np.isfinite(model.decision_function(small.X_test)).all()
    # The prior counts.
    other = stacked(clone(model).set_params(class_prior_train=0.05), small)
    assert not np.allclose(model.coef_, other.coef_)


def test_target_weights(digits):
    plain = stacked(PUAUCClassifier(random_state=0, trade_off=0.5), digits)
    relative = stacked(PUAUCClassifier(random_state=0, trade_off=0.5, target_weighting="relative"), digits)
    assert not np.allclose(plain.coef_, relative.coef_)
    w = relative.density_ratio_.predict(digits.X_target)
    expected = np.maximum(np.maximum(1 - 0.1 * w, 0) / 0.9, 1e-3)
    np.testing.assert_allclose(relative._target_ratio(digits.X_target), expected)


def test_clip_and_floor(digits):
    model = stacked(PUAUCClassifier(random_state=0, weight_floor=0.2, weight_clip=1.5), digits)
    assert model.weights_unlabeled_.min() == 0.2
    assert model.weights_unlabeled_.max() == 1.5


# --- scorers ------------------------------------------------------------------------------------------------


def test_linear_takes_sparse_rows(digits):
    X, y = apart(digits)
    dense = PUAUCClassifier(random_state=0).fit(X, y, X_target=digits.X_target)
    for kind in (sparse.csr_matrix, sparse.csc_array):
        found = PUAUCClassifier(random_state=0).fit(kind(X), y, X_target=kind(digits.X_target))
        np.testing.assert_allclose(found.coef_, dense.coef_, rtol=1e-3, atol=1e-4)
        answer = found.decision_function(kind(digits.X_test))
        np.testing.assert_allclose(answer, dense.decision_function(digits.X_test), atol=2e-3)
        stack = PUAUCClassifier(random_state=0).fit(
            kind(digits.X), digits.y, sample_domain=digits.sample_domain
        )
        np.testing.assert_array_equal(stack.coef_, found.coef_)
    kernel = PUAUCClassifier("kernel", random_state=0, max_iter=20, density_ratio="logistic")
    kernel.fit(sparse.csr_matrix(X), y, X_target=[sparse.csr_matrix(digits.X_target)])
    assert sparse.issparse(kernel.landmarks_)
    for refused in ({"scorer": "mlp"}, {"density_ratio": "neural"}, {"solver": "adam"}):
        with pytest.raises(TypeError, match=r"[Ss]parse"):
            PUAUCClassifier(**refused).fit(
                sparse.csr_matrix(X), y, X_target=sparse.csr_matrix(digits.X_target)
            )


def test_kernel(digits):
    model = stacked(PUAUCClassifier("kernel", n_components=60, random_state=0), digits)
    assert model.landmarks_.shape == (60, 64)
    assert model.coef_.shape == (1, 60)
    assert auc(model, digits) > 0.8
    gap = digits.X_test[:, None] - model.landmarks_
    gamma = model._kernel.gamma
    raw = np.exp(-gamma * (gap**2).sum(axis=2)) @ model.coef_[0]
    np.testing.assert_allclose(model.decision_function(digits.X_test), raw - model.threshold_, atol=1e-9)
    narrow = stacked(PUAUCClassifier("kernel", gamma=5.0, random_state=0), digits)
    assert narrow._kernel.gamma == 5.0
    # A refit with another scorer leaves nothing of the first behind.
    assert not hasattr(stacked(model.set_params(scorer="linear"), digits), "landmarks_")


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


@pytest.mark.parametrize("scorer", ["mlp", "module"])
@pytest.mark.parametrize("batch_size", [128, 4096])
def test_networks(digits, scorer, batch_size):
    given = network() if scorer == "module" else "mlp"
    before = [p.clone() for p in given.parameters()] if scorer == "module" else []
    settings = {"hidden_layer_sizes": [32], "max_iter": 25, "learning_rate": 0.01, "batch_size": batch_size}
    state = torch.get_rng_state()
    model = stacked(PUAUCClassifier(given, random_state=0, **settings), digits)
    assert torch.equal(state, torch.get_rng_state())
    assert auc(model, digits) > 0.75
    assert model.n_iter_ == len(model.loss_curve_) == 25
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert not hasattr(model, "coef_")
    again = stacked(clone(model), digits)
    found = model.decision_function(digits.X_test)
    np.testing.assert_array_equal(again.decision_function(digits.X_test), found)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).decision_function(digits.X_test), found)
    assert model.decision_function(digits.X_test.astype(np.float32)).dtype == np.float32
    for parameter, old in zip(given.parameters() if before else (), before):
        assert torch.equal(parameter, old)  # a copy was trained


@pytest.mark.parametrize("scorer", ["linear", "kernel"])
def test_adam_finds_what_lbfgs_finds(digits, scorer):
    settings = {"random_state": 0, "density_ratio": "logistic", "l2": 1e-2}
    batch = stacked(PUAUCClassifier(scorer, **settings), digits)
    adam = PUAUCClassifier(scorer, solver="adam", learning_rate=0.1, max_iter=150, **settings)
    stacked(adam, digits)
    assert adam.coef_.shape == batch.coef_.shape
    risk = adam.loss_curve_[-1], batch.loss_curve_[-1] - 0.5e-2 * (batch.coef_**2).sum()
    assert risk[0] == pytest.approx(risk[1], abs=0.02)
    correlation = np.corrcoef(adam.decision_function(digits.X_test), batch.decision_function(digits.X_test))
    assert correlation[0, 1] > 0.98
    minibatch = stacked(
        PUAUCClassifier(scorer, solver="adam", learning_rate=0.03, batch_size=200, max_iter=60, **settings),
        digits,
    )
    assert auc(minibatch, digits) == pytest.approx(auc(batch, digits), abs=0.05)


def test_early_stopping(digits):
    settings = {"hidden_layer_sizes": [32], "max_iter": 120, "learning_rate": 0.02, "random_state": 0}
    model = stacked(PUAUCClassifier("mlp", early_stopping=True, **settings), digits)
    assert model.n_iter_ < 120
    assert auc(model, digits) > 0.75
    tiny = {"early_stopping": True, "validation_fraction": 0.001}
    with pytest.raises(ValueError, match=r"validation_fraction=0.001 cannot split 60 positives"):
        stacked(PUAUCClassifier("mlp", **settings, **tiny), digits)


def test_networks_that_are_none(digits):
    with pytest.raises(ValueError, match=r"net must return shape \(n,\) or \(n, 1\), got \(\d+, 3\)"):
        stacked(PUAUCClassifier(torch.nn.Linear(64, 3), max_iter=1), digits)
    with pytest.raises(ValueError, match="hidden_layer_sizes must hold integers"):
        stacked(PUAUCClassifier("mlp", hidden_layer_sizes=[2.5], max_iter=1), digits)
    huge = digits.X.copy()
    huge[0, 0] = 1e300
    with pytest.raises(ValueError, match="scale"):
        PUAUCClassifier("mlp", density_ratio="none", max_iter=1).fit(
            huge, digits.y, sample_domain=digits.sample_domain
        )


@pytest.mark.parametrize("density_ratio", ["rulsif", "logistic", "neural", "object", "frozen"])
def test_density_ratios(density_ratio):
    small = make_pu_covariate_shift(100, 1000, 1000, random_state=2)
    given = density_ratio
    if density_ratio == "object":
        given = RuLSIF(alpha=0.3, random_state=0)
    elif density_ratio == "frozen":
        given = FrozenEstimator(RuLSIF(alpha=0.3, random_state=0).fit(small.X_target, small.X_unlabeled))
    model = stacked(PUAUCClassifier(density_ratio=given, random_state=0), small)
    w = small.weight_unlabeled
    alpha = 0.3 if density_ratio in ("object", "frozen") else 0.1
    assert np.corrcoef(model.weights_unlabeled_, w / (alpha * w + 1 - alpha))[0, 1] > 0.85
    assert model.weights_unlabeled_.max() <= 1 / alpha + 1e-6
    if density_ratio == "object":
        assert not hasattr(given, "dual_coef_")
    np.testing.assert_array_equal(stacked(clone(model), small).coef_, model.coef_)


def test_ratios_that_are_none(small):
    class Wrong(RuLSIF):
        def predict(self, X):
            return super().predict(X) - 100

    with pytest.raises(ValueError, match="density_ratio must predict one finite weight of at least 0"):
        stacked(PUAUCClassifier(density_ratio=Wrong()), small)


# --- answers ------------------------------------------------------------------------------------------------


def test_scores_without_negatives(digits):
    model = stacked(PUAUCClassifier(random_state=0, trade_off=0.3), digits)
    parts = [
        model.decision_function(rows) for rows in (digits.X_positive, digits.X_unlabeled, digits.X_target)
    ]
    w, v = model.weights_positive_, model.weights_unlabeled_
    source, target = pu_auc(parts[0], parts[1], w, v), pu_auc(parts[0], parts[2], w, np.ones(200))
    given = {"X": digits.X, "y": digits.y, "sample_domain": digits.sample_domain}
    assert model.score(**given) == model.pu_auc(**given) == pytest.approx(source, rel=1e-12)
    assert model.pu_auc(**given, method="target") == pytest.approx(target, rel=1e-12)
    both = model.score(**given, score_method="both")
    assert both == pytest.approx(0.7 * source + 0.3 * target, rel=1e-12)
    X, y = apart(digits)
    assert model.pu_auc(X, y) == pytest.approx(source, rel=1e-12)
    assert model.pu_auc(X, y, X_target=digits.X_target, method="target") == pytest.approx(target, rel=1e-12)
    with pytest.raises(ValueError, match="method='target' needs target rows"):
        model.pu_auc(X, y, method="target")
    with pytest.raises(ValueError, match="method must be one of"):
        model.pu_auc(X, y, method="best")
    with pytest.raises(ValueError, match="labels that are not among the classes"):
        model.score(X, np.where(y == 1, 5, 0))
    weight = np.random.default_rng(0).uniform(0.5, 2, size=len(X))
    expected = weighted_pu_auc_score(parts[0], parts[1], w * weight[:60], v * weight[60:])
    assert model.score(X, y, sample_weight=weight) == pytest.approx(expected, rel=1e-12)


def test_thresholds(small):
    model = stacked(PUAUCClassifier(random_state=0), small)
    raw = [rows @ model.coef_[0] for rows in (small.X_positive, small.X_target)]

    def youden(t):
        return model.weights_positive_ @ (raw[0] > t) / model.weights_positive_.sum() - np.mean(raw[1] > t)

    everywhere = np.concatenate(raw)
    assert youden(model.threshold_) == pytest.approx(max(youden(t) for t in everywhere - 1e-9))
    given = stacked(PUAUCClassifier(random_state=0, threshold=0.25), small)
    assert given.threshold_ == 0.25
    np.testing.assert_allclose(
        given.decision_function(small.X_test), small.X_test @ given.coef_[0] - 0.25, rtol=1e-12
    )
    share = stacked(PUAUCClassifier(random_state=0, threshold="prior", class_prior=0.2), small)
    assert share.predict(small.X_target).mean() == pytest.approx(0.2)
    np.testing.assert_array_equal(share.predict(small.X_test) == 1, share.decision_function(small.X_test) > 0)


def test_frames(small):
    X = pd.DataFrame(small.X, columns=["a", "b"])
    source = small.sample_domain > 0
    model = PUAUCClassifier(random_state=0).fit(X[source], small.y[source], X_target=X[~source])
    assert list(model.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        PUAUCClassifier().fit(X[source], small.y[source], X_target=X[~source].rename(columns={"a": "c"}))


def test_not_fitted(small):
    model = PUAUCClassifier()
    for call in (model.decision_function, model.predict, model.importance_weights):
        with pytest.raises(NotFittedError):
            call(small.X)
    with pytest.raises(NotFittedError):
        model.score(small.X, small.y)
    with pytest.raises(NotFittedError):
        PUAUCDisplay.from_estimator(model, small.X, small.y)
    assert not hasattr(model, "predict_proba")


# --- errors and warnings ------------------------------------------------------------------------------------


def bad(**changes):
    """Arguments of a fit on a few rows, with changes."""
    rng = np.random.default_rng(0)
    given = {"X": rng.normal(size=(30, 2)), "y": np.repeat([1, 0, -1], [8, 14, 8])}
    given["sample_domain"] = np.repeat([1, -1], [22, 8])
    return {**given, **changes}


ERRORS = {
    "no positives": (
        {"y": np.repeat([0, -1], [22, 8])},
        "y must hold positives and unlabeled rows, got 1 class",
    ),
    "no unlabeled": (
        {"y": np.repeat([1, -1], [22, 8])},
        "y must hold positives and unlabeled rows, got 1 class",
    ),
    "three labels": (
        {"y": np.repeat([0, 1, 2, -1], [8, 8, 6, 8])},
        "Only binary classification is supported. The type of the target is multiclass",
    ),
    "numbers": ({"y": np.linspace(0, 1, 30)}, "Unknown label type|continuous"),
    "no y": ({"y": None}, "requires y to be passed"),
    "zero domain": ({"sample_domain": np.repeat([1, 0, -1], [20, 2, 8])}, "got 2 zeros"),
    "no target": ({"sample_domain": np.ones(30)}, r"no negative \(target\) entry"),
    "no source": ({"sample_domain": -np.ones(30)}, r"no positive \(source\) entry"),
    "short domain": ({"sample_domain": np.ones(29)}, "inconsistent numbers of samples"),
    "NaN domain": ({"sample_domain": np.full(30, np.nan)}, "sample_domain must hold numbers"),
    "text domain": ({"sample_domain": np.full(30, "source")}, "sample_domain must hold numbers"),
    "both routes": ({"X_target": np.zeros((4, 2))}, "sample_domain and X_target both"),
    "other columns": (
        {"sample_domain": None, "y": np.repeat([1, 0], 15), "X_target": np.zeros((4, 3))},
        "3 features",
    ),
    "NaN in X": ({"X": np.full((30, 2), np.nan)}, "NaN"),
    "inf in X": ({"X": np.full((30, 2), np.inf)}, "infinity"),
    "NaN in X_target": (
        {"sample_domain": None, "y": np.repeat([1, 0], 15), "X_target": np.full((4, 2), np.nan)},
        "NaN",
    ),
    "one target row": (
        {"sample_domain": np.repeat([1, -1], [29, 1]), "y": np.repeat([1, 0], 15)},
        "at least 2 target rows, got 1",
    ),
    "one X_target row": (
        {"sample_domain": None, "y": np.repeat([1, 0], 15), "X_target": np.zeros((1, 2))},
        "at least 2 target rows, got 1",
    ),
    "negative weight": ({"sample_weight": np.repeat([1.0, -1.0], 15)}, "[Nn]egative values"),
    "zero weights": ({"sample_weight": np.zeros(30)}, "at least one non-zero number"),
    "no weight for positives": (
        {"sample_weight": np.repeat([0.0, 1.0], [8, 22])},
        "sample_weight leaves out all positives",
    ),
    "short weights": ({"sample_weight": np.ones(29)}, "sample_weight.shape"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_bad_arrays(name):
    changes, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        PUAUCClassifier().fit(**bad(**changes))


SETTINGS = {
    "trade_off above": ({"trade_off": 1.5}, "trade_off"),
    "trade_off below": ({"trade_off": -0.1}, "trade_off"),
    "relative_alpha of one": ({"relative_alpha": 1.0}, "relative_alpha"),
    "relative_alpha below": ({"relative_alpha": -0.1}, "relative_alpha"),
    "loss unknown": ({"loss": "hinge"}, "loss"),
    "no prior for logistic": ({"loss": "logistic"}, "class_prior_train must be given for loss='logistic'"),
    "no prior for squared": ({"loss": "squared"}, "class_prior_train must be given"),
    "no prior for squared_hinge": ({"loss": "squared_hinge"}, "class_prior_train must be given"),
    "class_prior of one": ({"class_prior": 1.0}, "class_prior"),
    "class_prior_train of zero": ({"class_prior_train": 0.0}, "class_prior_train"),
    "threshold without prior": ({"threshold": "prior"}, "class_prior must be given for threshold='prior'"),
    "scorer unknown": ({"scorer": "tree"}, "scorer"),
    "no precomputed weights": ({"density_ratio": "precomputed"}, "sample_weight must hold the weights"),
    "ratio unknown": ({"density_ratio": "kmm"}, "density_ratio"),
    "relative target of none": (
        {"target_weighting": "relative", "density_ratio": "none"},
        "target_weighting='relative' needs a density_ratio",
    ),
    "clip below floor": ({"weight_floor": 0.5, "weight_clip": 0.1}, "weight_clip must be at least"),
    "pos_label elsewhere": ({"pos_label": 5}, r"y has no positives: pos_label=5"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_bad_settings(name):
    settings, message = SETTINGS[name]
    with pytest.raises(ValueError, match=message):
        PUAUCClassifier(**settings).fit(**bad())


def test_scorer_of_a_wrong_type():
    with pytest.raises(TypeError, match="scorer"):
        PUAUCClassifier(scorer=3).fit(**bad())


def test_one_positive_makes_no_pair():
    y = np.repeat([1, 0, -1], [1, 21, 8])
    with pytest.raises(ValueError, match="needs at least 2 positives"):
        PUAUCClassifier(loss="squared", class_prior_train=0.2, density_ratio="none").fit(**bad(y=y))


def test_precomputed_weights_that_are_all_zero():
    for weight in (np.zeros(30), np.repeat([0.0, 1.0], [8, 22])):
        with pytest.raises(ValueError, match=r"sample_weight leaves out all positives|at least one non-zero"):
            PUAUCClassifier(density_ratio="precomputed").fit(**bad(sample_weight=weight))


def test_no_target_rows_is_warned_of_unless_meant(small):
    X, y = apart(small)
    with pytest.warns(UserWarning, match="no target rows: all weights are 1"):
        found = PUAUCClassifier(random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = PUAUCClassifier(density_ratio="none", trade_off=0, random_state=0).fit(X, y)
    scale = np.linalg.norm(plain.coef_)
    np.testing.assert_allclose(found.coef_ / scale, plain.coef_ / scale, atol=1e-5)
    np.testing.assert_array_equal(found.importance_weights(X), np.ones(len(X)))
    with pytest.warns(UserWarning, match="no target rows"):
        PUAUCClassifier(density_ratio="none", trade_off=0.5).fit(X, y)


def test_few_effective_positives_are_warned_of(small):
    X, y = apart(small)
    weight = np.full(len(X), 0.01)
    weight[[0, 1, 100]] = 5.0
    with pytest.warns(UserWarning, match=r"the weighted positives are worth 2\.\d of the 80"):
        PUAUCClassifier(density_ratio="precomputed", trade_off=0).fit(X, y, sample_weight=weight)


def test_weights_at_their_bound_are_warned_of():
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(300, 1)), rng.normal(4, 1, size=(300, 1))
    y = np.repeat([1, 0], [60, 240])
    source[:30] += 4.5  # half of the positives lie where only target rows are
    with pytest.warns(
        UserWarning, match=r"% of the positives have weights at the bound 1 / relative_alpha = 2"
    ):
        PUAUCClassifier(relative_alpha=0.5, density_ratio="logistic").fit(source, y, X_target=[target])


def test_too_few_iterations_are_warned_of(digits):
    with pytest.warns(ConvergenceWarning, match="did not converge in max_iter=3"):
        stacked(PUAUCClassifier(max_iter=3, random_state=0), digits)


# --- display ------------------------------------------------------------------------------------------------


def test_display(digits):
    import matplotlib.pyplot as plt

    model = stacked(PUAUCClassifier(random_state=0), digits)
    given = {"X": digits.X, "y": digits.y, "sample_domain": digits.sample_domain}
    display = PUAUCDisplay.from_estimator(model, **given, name="mine")
    assert display.pu_auc == pytest.approx(model.pu_auc(**given, method="target"))
    x, y = display.line_.get_data()
    assert np.trapezoid(y, x) == pytest.approx(display.pu_auc)
    assert display.line_.get_label().startswith("mine = 0.")
    assert len(display.scores_ax_.get_legend().get_texts()) == 4
    X, labels = apart(digits)
    alone = PUAUCDisplay.from_estimator(model, X, labels)
    assert alone.pu_auc == pytest.approx(model.pu_auc(X, labels))
    figure, axes = plt.subplots(1, 2)
    assert PUAUCDisplay.from_estimator(model, X, labels, ax=axes).figure_ is figure
    with pytest.raises(ValueError, match="ax must hold 2 axes, got 1"):
        alone.plot(ax=axes[0])
    plt.close("all")


# --- the claim ----------------------------------------------------------------------------------------------


def gains(settings, seeds):
    found = {name: [] for name in settings}
    for seed in range(seeds):
        data = make_pu_digits(random_state=seed)
        for name, options in settings.items():
            found[name].append(auc(stacked(PUAUCClassifier(random_state=seed, **options), data), data))
    return {name: np.array(values) for name, values in found.items()}


def test_weights_help_on_digits_of_another_mix():
    found = gains(
        {
            "plain": {"density_ratio": "none", "trade_off": 0.0},
            "J1": {"trade_off": 0.0},
            "default": {},
            "half": {"trade_off": 0.5},
        },
        seeds=20,
    )
    plain = found["plain"]
    gain = found["J1"] - plain
    assert gain.mean() > 0.015
    assert gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(20)
    assert (gain > 0).sum() >= 14
    assert (found["default"] - plain).mean() > 0.01
    assert (found["half"] - plain).mean() > -0.01


def test_weights_decide_where_no_linear_score_fits_both_populations():
    found = {"plain": [], "sum": [], "rulsif": []}
    for seed in range(6):
        data = make_pu_covariate_shift(100, 2000, 2000, random_state=seed)
        weight = np.concatenate([data.weight_positive, data.weight_unlabeled, np.ones(2000)])
        plain = PUAUCClassifier(density_ratio="none", trade_off=0, random_state=0)
        known = PUAUCClassifier(density_ratio="precomputed", trade_off=0.5, random_state=0)
        found["plain"].append(auc(stacked(plain, data), data))
        found["sum"].append(auc(stacked(known, data, sample_weight=weight), data))
        found["rulsif"].append(auc(stacked(PUAUCClassifier(random_state=0), data), data))
    assert np.mean(found["plain"]) < 0.35
    assert np.mean(found["sum"]) > 0.65
    assert np.mean(found["rulsif"]) > 0.6


def test_risk_defaults():
    assert PURisk.__dataclass_fields__["trade_off"].default == 0.5
