"""CoJERRegressor as scikit-learn users meet it."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import Lasso, LinearRegression, QuantileRegressor, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from seedbed.estimators import (
    CoJERDisplay,
    CoJERRegressor,
    QuantileBand,
    cojer_confidence_level,
    cojer_level,
    cojer_thresholds,
    false_coverage_proportion,
    from_mapie,
)


@parametrize_with_checks(
    [
        CoJERRegressor(random_state=0),
        CoJERRegressor([("ridge", Ridge()), ("knn", KNeighborsRegressor(2))], random_state=0),
        QuantileBand(QuantileRegressor(alpha=0, solver="highs")),
    ]
)
def test_scikit_learn_conventions(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn's own tiny problems
        check(estimator)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4))
    y = X @ [1.0, 2.0, -1.0, 0.0] + rng.standard_t(5, size=1000)
    return X, y


def calibrated(data, estimator=None, **options):
    X, y = data
    options = {"alpha": 0.1, "delta": 0.2, "random_state": 0, **options}
    model = CoJERRegressor(estimator, **options)
    return model.fit(X[:300], y[:300], X_calibration=X[300:700], y_calibration=y[300:700])


def test_interval_by_hand(data):
    X, y = data
    model = calibrated(data, Ridge())
    points, intervals = model.predict_interval(X[700:])
    assert points.shape == (300,)
    assert intervals.shape == (300, 2, 1)
    ridge = Ridge().fit(X[:300], y[:300])
    scores = np.sort(np.abs(y[300:700] - ridge.predict(X[300:700])))
    level = cojer_level(400, 300, 0.1, 0.2)
    half = scores[400 - level]  # the (n + 1 - l)-th smallest
    np.testing.assert_array_equal(points, ridge.predict(X[700:]))
    np.testing.assert_allclose(intervals[:, :, 0], points[:, None] + [-half, half], rtol=0, atol=1e-12)
    assert model.n_calibration_ == 400
    np.testing.assert_array_equal(model.conformity_scores_[0], scores)
    levels = model.levels_[300]
    assert levels["k"].tolist() == list(range(1, 151))
    np.testing.assert_array_equal(levels["g"], cojer_thresholds(400, 300, 0.2))
    np.testing.assert_allclose(levels["t"], levels["g"] / 401)
    assert 0.19 < model.jer_ <= 0.2
    assert 0 < model.lambda_ < 0.2
    curve = model.coverage_curve_
    np.testing.assert_allclose(curve[:, 0], np.arange(150) / 300)
    np.testing.assert_array_equal(curve[:, 1], levels["t"])


def test_several_alpha_are_the_single_ones(data):
    X, y = data
    model = calibrated(data)
    alphas = [0.05, 0.1, 0.3]
    _, both = model.predict_interval(X[700:], alphas)
    for j, alpha in enumerate(alphas):
        np.testing.assert_array_equal(both[:, :, [j]], model.predict_interval(X[700:], alpha)[1])
    assert model.fcp_score(X[700:], y[700:], alphas).shape == (3,)
    assert isinstance(model.fcp_score(X[700:], y[700:]), float)
    vector = calibrated(data, alpha=alphas)
    np.testing.assert_array_equal(vector.predict_interval(X[700:])[1], both)
    tighter = model.predict_interval(X[700:], delta=0.5)[1]
    assert np.diff(tighter, axis=1).mean() < np.diff(both[:, :, [1]], axis=1).mean()


def test_level_curve_and_post_hoc_bound(data):
    X, y = data
    model = calibrated(data)
    _, intervals, fcp = model.predict_interval_all(X[700:])
    np.testing.assert_allclose(fcp, np.arange(150) / 300)
    np.testing.assert_array_equal(intervals[:, :, [30]], model.predict_interval(X[700:])[1])
    realised = false_coverage_proportion(y[700:], intervals)
    assert np.all(realised <= fcp)  # holds with probability .8; does for this seed
    g = model.levels_[300]["g"]
    assert model.fcp_bound(g[30] / 401) <= 0.1
    assert model.fcp_bound(g[30] / 401 + 1e-6) > 0.1
    assert model.fcp_bound(0.9) == 1.0
    grid = model.fcp_bound(np.linspace(0, 1, 100))
    assert np.all(np.diff(grid) >= 0)
    # fewer points: a looser bound for the same level
    assert model.fcp_bound(0.1, n_test=50) > model.fcp_bound(0.1, n_test=2000)


def test_pointwise(data):
    X, _ = data
    model = calibrated(data, simultaneous=False)
    width = np.diff(model.predict_interval(X[700:])[1], axis=1)[0, 0, 0]
    assert model.levels_[300].tolist() == [
        (
            31,
            cojer_level(400, 300, 0.1, 0.2, simultaneous=False) + 1,
            pytest.approx(model.levels_[300]["t"][0]),
        )
    ]
    assert width < np.diff(calibrated(data).predict_interval(X[700:])[1], axis=1)[0, 0, 0]
    assert calibrated(data, template="single").predict_interval(X[700:])[1].shape == (300, 2, 1)
    with pytest.warns(UserWarning, match="each alpha alone"):
        _, both = model.predict_interval(X[700:], [0.1, 0.2])
    assert len(model.levels_[300]) == 2
    np.testing.assert_allclose(np.diff(both[:, :, 0], axis=1), width)
    with pytest.raises(ValueError, match="simultaneous=True"):
        model.predict_interval_all(X[700:])
    assert model.fcp_bound(0.05) == pytest.approx(0.1)
    assert model.fcp_bound(0.5) == 1.0


@pytest.mark.parametrize("template", ["quantile", "learned", "linear", "beta"])
@pytest.mark.parametrize("calibration", ["exact", "monte_carlo"])
def test_templates(data, template, calibration):
    X, y = data
    model = calibrated(data, template=template, calibration=calibration, n_draws=500)
    first = model.predict_interval(X[700:])[1]
    assert model.fcp_score(X[700:], y[700:]) < 0.2
    np.testing.assert_array_equal(
        first,
        clone(model)
        .fit(X[:300], y[:300], X_calibration=X[300:700], y_calibration=y[300:700])
        .predict_interval(X[700:])[1],
    )
    assert model.jer_ < 0.27 if calibration == "monte_carlo" else model.jer_ <= 0.2


def test_splits_its_rows_itself(data):
    X, y = data
    model = CoJERRegressor(random_state=1).fit(X[:600], y[:600])
    assert model.n_calibration_ == 300
    assert CoJERRegressor(calibration_size=100, random_state=1).fit(X[:600], y[:600]).n_calibration_ == 100
    assert CoJERRegressor(calibration_size=0.25, random_state=1).fit(X[:600], y[:600]).n_calibration_ == 150
    again = CoJERRegressor(random_state=1).fit(X[:600], y[:600])
    np.testing.assert_array_equal(model.conformity_scores_, again.conformity_scores_)
    other = CoJERRegressor(random_state=2).fit(X[:600], y[:600])
    assert not np.array_equal(model.conformity_scores_, other.conformity_scores_)
    # calibration rows are not training rows
    perfect = CoJERRegressor(KNeighborsRegressor(1), random_state=1).fit(X[:600], y[:600])
    assert perfect.conformity_scores_.min() > 0
    assert model.score(X[600:], y[600:]) > 0.5


def test_verbs_of_mapie(data):
    X, y = data
    expected = calibrated(data, Ridge()).predict_interval(X[700:])[1]
    later = CoJERRegressor(Ridge(), delta=0.2, calibration_size=None).fit(X[:300], y[:300])
    assert later.predict(X[700:]).shape == (300,)
    with pytest.raises(NotFittedError, match="conformalize"):
        later.predict_interval(X[700:])
    with pytest.raises(NotFittedError, match="conformalize"):
        later.fcp_bound(0.1, n_test=10)
    np.testing.assert_array_equal(
        later.conformalize(X[300:700], y[300:700]).predict_interval(X[700:])[1], expected
    )
    ridge = Ridge().fit(X[:300], y[:300])
    for model in (
        CoJERRegressor(ridge, delta=0.2, prefit=True).conformalize(X[300:700], y[300:700]),
        CoJERRegressor(ridge, delta=0.2, prefit=True).fit(X[300:700], y[300:700]),
        CoJERRegressor(FrozenEstimator(ridge), delta=0.2, prefit=True).fit(X[300:700], y[300:700]),
        CoJERRegressor(ridge, delta=0.2, prefit=True).fit(
            X[:9], y[:9], X_calibration=X[300:700], y_calibration=y[300:700]
        ),
    ):
        np.testing.assert_array_equal(model.predict_interval(X[700:])[1], expected)
        assert model.estimators_[0].coef_ is ridge.coef_
    # calibrating again replaces
    model.conformalize(X[300:500], y[300:500])
    assert model.n_calibration_ == 200
    assert model.levels_ == {}
    # fitting again forgets the calibration
    later.fit(X[:300], y[:300])
    with pytest.raises(NotFittedError):
        later.predict_interval(X[700:])


def test_a_batch_in_pieces(data):
    X, _ = data
    whole = calibrated(data).predict_interval(X[700:])[1]
    piecewise = calibrated(data, n_test=300)
    parts = [piecewise.predict_interval(X[start : start + 100])[1] for start in (700, 800, 900)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    careless = calibrated(data)
    careless.predict_interval(X[700:])
    with pytest.warns(UserWarning, match="guarantee is per batch"):
        careless.predict_interval(X[700:800])
    assert set(careless.levels_) == {300, 100}


def test_second_batch_of_the_same_size_is_not_calibrated_again(data, monkeypatch):
    X, _ = data
    model = calibrated(data, delta=0.234)
    model.predict_interval(X[700:])
    from seedbed.estimators.cojer import thresholds

    def fail(*_):
        raise AssertionError("calibrated again")

    monkeypatch.setattr(thresholds, "rank_cdf_rows", fail)
    model.predict_interval(X[700:])
    with pytest.raises(AssertionError, match="calibrated again"):
        model.predict_interval(X[700:], delta=0.2345)


def test_infinite_intervals_warn_and_say_what_is_feasible(data):
    X, y = data
    model = CoJERRegressor(Ridge(), alpha=0.02, delta=0.05, random_state=0)
    model.fit(X[:300], y[:300], X_calibration=X[300:400], y_calibration=y[300:400])
    with pytest.warns(UserWarning, match="smallest feasible is") as caught:
        _, intervals = model.predict_interval(X[700:800])
    assert np.isinf(intervals).all()
    feasible = float(str(caught[0].message).rsplit(" ", 1)[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(model.predict_interval(X[700:800], feasible)[1]).all()
    with pytest.warns(UserWarning, match="infinite"):
        assert np.isinf(model.predict_interval(X[700:800], feasible - 0.01)[1]).all()
    assert model.fcp_bound(0.0) == 0.0
    few = calibrated(data, [Ridge(), Lasso(0.1)], delta=0.02, n_draws=20)
    with pytest.warns(UserWarning, match="use a larger n_draws"):
        few.predict_interval(X[700:])


# -- conformity scores -------------------------------------------------------------------------------------


def positive_data(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(1, 4, size=(900, 2))
    y = np.exp(0.5 * X[:, 0]) * (1 + 0.15 * X[:, 1] * rng.normal(size=900).clip(-2, 2)) + 5
    return X, y


def test_gamma_score_scales_with_the_prediction():
    X, y = positive_data()
    model = CoJERRegressor(Ridge(), conformity_score="gamma", random_state=0).fit(X[:700], y[:700])
    points, intervals = model.predict_interval(X[700:])
    relative = (intervals[:, 1, 0] - points) / points
    np.testing.assert_allclose(relative, relative[0])
    scores = model.conformity_scores_[0]
    level = cojer_level(350, 200, 0.1, 0.1)
    assert relative[0] == pytest.approx(scores[350 - level])
    model.fit(X[:300], y[:300], X_calibration=X[300:700], y_calibration=y[300:700])
    there = model.predict(X[300:700])
    np.testing.assert_allclose(model.conformity_scores_[0], np.sort(np.abs(y[300:700] - there) / there))
    with pytest.raises(ValueError, match="positive"):
        CoJERRegressor(Ridge(), conformity_score="gamma", random_state=0).fit(X, y - 40)


def test_residual_normalized_score_learns_in_training():
    X, y = positive_data()
    model = CoJERRegressor(Ridge(), conformity_score="residual_normalized", random_state=0).fit(
        X[:700], y[:700]
    )
    assert model.n_calibration_ == 350  # no calibration row is spent
    points, intervals = model.predict_interval(X[700:])
    half = np.diff(intervals[:, :, 0], axis=1)[:, 0] / 2
    assert np.corrcoef(half, np.exp(0.5 * X[700:, 0]))[0, 1] > 0.5
    np.testing.assert_allclose(intervals.mean(axis=1)[:, 0], points)
    assert model.fcp_score(X[700:], y[700:]) <= 0.1
    # prefit: a quarter of the calibration rows goes to the residual model
    ridge = Ridge().fit(X[:300], y[:300])
    prefit = CoJERRegressor(ridge, conformity_score="residual_normalized", prefit=True, random_state=0)
    assert prefit.conformalize(X[300:700], y[300:700]).n_calibration_ == 300


def test_std_normalized_score():
    X, y = positive_data()
    process = GaussianProcessRegressor(RBF(1.0) + WhiteKernel(1.0), optimizer=None, normalize_y=True)
    model = CoJERRegressor(process, conformity_score="std_normalized", random_state=0).fit(X[:300], y[:300])
    points, intervals = model.predict_interval(X[700:])
    _, std = model.estimators_[0].predict(X[700:], return_std=True)
    half = (intervals[:, 1, 0] - points) / std
    np.testing.assert_allclose(half, half[0])


@pytest.mark.parametrize(
    "inner",
    [QuantileRegressor(alpha=0, solver="highs"), HistGradientBoostingRegressor(loss="quantile", max_iter=20)],
)
def test_cqr_score_is_one_number_a_point(inner):
    X, y = positive_data()
    model = CoJERRegressor(
        make_pipeline(StandardScaler(), inner), conformity_score="cqr", alpha=0.2, random_state=0
    ).fit(X[:700], y[:700])
    band = model.estimators_[0]
    assert isinstance(band, QuantileBand)
    assert (band.low, band.high) == pytest.approx((0.1, 0.9))
    points, intervals = model.predict_interval(X[700:])
    np.testing.assert_array_equal(points, band.predict(X[700:]))
    ends = band.predict_band(X[700:])
    shift = ends[:, 0] - intervals[:, 0, 0]
    np.testing.assert_allclose(shift, shift[0])  # both sides moved by one quantile of one score
    np.testing.assert_allclose(intervals[:, 1, 0] - ends[:, 1], shift[0])
    assert shift[0] == pytest.approx(model.conformity_scores_[0][350 - cojer_level(350, 200, 0.2, 0.1)])
    assert model.fcp_score(X[700:], y[700:]) <= 0.2


def test_score_instances_of_mapie(data):
    from mapie.conformity_scores import (
        AbsoluteConformityScore,
        BaseRegressionScore,
        GammaConformityScore,
        ResidualNormalisedScore,
    )

    X, y = data
    expected = calibrated(data).predict_interval(X[700:])[1]
    model = calibrated(data, conformity_score=AbsoluteConformityScore())
    np.testing.assert_array_equal(model.predict_interval(X[700:])[1], expected)

    class Cubed(BaseRegressionScore):
        """|y - prediction| ** 3: the same order, so the same intervals."""

        def __init__(self):
            super().__init__(sym=True, consistency_check=False)

        def get_signed_conformity_scores(self, y, y_pred, **kwargs):
            return np.subtract(y, y_pred) ** 3

        def get_estimation_distribution(self, y_pred, conformity_scores, **kwargs):
            return np.add(y_pred, np.cbrt(conformity_scores))

    cubed = calibrated(data, conformity_score=Cubed())
    np.testing.assert_allclose(cubed.predict_interval(X[700:])[1], expected, rtol=0, atol=1e-12)
    pair = [Ridge(), KNeighborsRegressor()]
    options = {"aggregation_null": "single"}
    np.testing.assert_allclose(
        calibrated(data, pair, conformity_score=Cubed(), **options).predict_interval(X[700:])[1],
        calibrated(data, pair, **options).predict_interval(X[700:])[1],
        rtol=0,
        atol=1e-12,
    )
    with pytest.warns(UserWarning, match="infinite"):
        assert np.isinf(cubed.predict_interval(X[700:], 0.005)[1]).all()
    X, y = positive_data()
    named = CoJERRegressor(Ridge(), conformity_score="gamma", random_state=0).fit(X[:700], y[:700])
    instance = CoJERRegressor(Ridge(), conformity_score=GammaConformityScore(sym=True), random_state=0)
    np.testing.assert_array_equal(
        instance.fit(X[:700], y[:700]).predict_interval(X[700:])[1], named.predict_interval(X[700:])[1]
    )
    forest = ResidualNormalisedScore(residual_estimator=KNeighborsRegressor(30))
    model = CoJERRegressor(Ridge(), conformity_score=forest, random_state=0).fit(X[:700], y[:700])
    assert not hasattr(forest, "residual_estimator_")
    assert model.fcp_score(X[700:], y[700:]) <= 0.1
    for wrong in (AbsoluteConformityScore(sym=False), GammaConformityScore()):
        with pytest.raises(ValueError, match="symmetric"):
            CoJERRegressor(Ridge(), conformity_score=wrong).fit(X, y)


# -- other libraries ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(2000, 5))
    return X, 2 * X[:, 0] + np.sin(3 * X[:, 1]) + 0.7 * rng.standard_t(5, size=2000)


@pytest.mark.parametrize("level", [1, 13, 71])
def test_intervals_of_mapie_at_the_same_level(large, level):
    from mapie.regression import SplitConformalRegressor

    X, y = large
    ridge = Ridge().fit(X[:500], y[:500])
    confidence = 1 - (level + 0.5) / 1001
    split = SplitConformalRegressor(ridge, confidence_level=confidence, prefit=True)
    _, theirs = split.conformalize(X[500:1500], y[500:1500]).predict_interval(X[1500:])
    scores = np.sort(np.abs(y[500:1500] - ridge.predict(X[500:1500])))
    half = scores[1000 - level]
    np.testing.assert_allclose(theirs[:, :, 0], ridge.predict(X[1500:])[:, None] + [-half, half], atol=1e-12)
    if level == 71:
        assert cojer_confidence_level(1000, 500, 0.1, 0.2) == confidence
        model = CoJERRegressor(ridge, alpha=0.1, delta=0.2, prefit=True).conformalize(
            X[500:1500], y[500:1500]
        )
        np.testing.assert_allclose(model.predict_interval(X[1500:])[1], theirs, rtol=0, atol=1e-12)


def test_from_mapie(large):
    from mapie.regression import (
        ConformalizedQuantileRegressor,
        CrossConformalRegressor,
        SplitConformalRegressor,
    )

    X, y = large
    split = SplitConformalRegressor(Ridge(), prefit=False).fit(X[:500], y[:500])
    with pytest.raises(ValueError, match="conformalize"):
        from_mapie(split)
    split = split.conformalize(X[500:1500], y[500:1500])
    ours = CoJERRegressor(Ridge(), delta=0.2).fit(
        X[:500], y[:500], X_calibration=X[500:1500], y_calibration=y[500:1500]
    )
    model = from_mapie(split, delta=0.2)
    np.testing.assert_array_equal(model.predict_interval(X[1500:])[1], ours.predict_interval(X[1500:])[1])
    assert clone(model).get_params()["prefit"]
    assert from_mapie(split, n_test=1000, template="beta").n_test == 1000

    residual = SplitConformalRegressor(Ridge(), conformity_score="residual_normalized", prefit=False)
    residual = residual.fit(X[:500], y[:500]).conformalize(X[500:1500], y[500:1500])
    model = from_mapie(residual, delta=0.2)
    assert model.n_calibration_ == 750
    level = cojer_level(750, 500, 0.1, 0.2)
    half = np.diff(model.predict_interval(X[1500:])[1][:, :, 0], axis=1)[:, 0] / 2
    sigma = np.exp(residual._conformity_score.residual_estimator_.predict(X[1500:]))
    scores = np.sort(residual.conformity_scores[np.isfinite(residual.conformity_scores)])
    np.testing.assert_allclose(half, scores[750 - level] * sigma)

    cqr = ConformalizedQuantileRegressor(QuantileRegressor(alpha=0, solver="highs"), confidence_level=0.9)
    cqr = cqr.fit(X[:500], y[:500]).conformalize(X[500:1500], y[500:1500])
    model = from_mapie(cqr, delta=0.2)
    _, intervals = model.predict_interval(X[1500:])
    assert model.conformity_scores_[0][0] < 0  # some targets lie well inside of the band
    assert model.fcp_score(X[1500:], y[1500:]) <= 0.1
    assert np.diff(intervals, axis=1).min() > 0

    with pytest.raises(TypeError, match="not exchangeable"):
        from_mapie(CrossConformalRegressor(Ridge()).fit_conformalize(X[:300], y[:300]))
    gamma = SplitConformalRegressor(Ridge(), conformity_score="gamma", prefit=False)
    gamma = gamma.fit(X[:500], y[:500] + 50).conformalize(X[500:1500], y[500:1500] + 50)
    with pytest.raises(ValueError, match="symmetric"):
        from_mapie(gamma)


def test_classification_with_the_confidence_level():
    from mapie.classification import SplitConformalClassifier
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order] / 16, y[order]
    level = cojer_confidence_level(900, 400, 0.05, 0.1)
    classifier = SplitConformalClassifier(
        LogisticRegression(max_iter=300), confidence_level=level, prefit=False, conformity_score="lac"
    )
    classifier.fit(X[:400], y[:400]).conformalize(X[400:1300], y[400:1300])
    _, sets = classifier.predict_set(X[1300:1700])
    assert np.mean(~sets[np.arange(400), y[1300:1700], 0]) <= 0.05


# -- scikit-learn's machinery ------------------------------------------------------------------------------


def test_grid_search_tunes_the_model(data):
    X, y = data
    search = GridSearchCV(CoJERRegressor(Lasso(), random_state=0), {"estimator__alpha": [10.0, 0.1]}, cv=3)
    search.fit(X[:600], y[:600])
    assert search.best_params_ == {"estimator__alpha": 0.1}
    assert search.best_estimator_.predict_interval(X[600:])[1].shape == (400, 2, 1)
    named = CoJERRegressor([("lasso", Lasso()), ("knn", KNeighborsRegressor())], random_state=0)
    search = GridSearchCV(named, {"lasso__alpha": [10.0, 0.1]}, cv=3).fit(X[:300], y[:300])
    assert search.best_params_ == {"lasso__alpha": 0.1}
    assert named.set_params(knn__n_neighbors=3).estimator[1][1].n_neighbors == 3


def test_pipelines(data):
    X, y = data
    train, cal = slice(0, 300), slice(300, 700)
    inside = CoJERRegressor(make_pipeline(StandardScaler(), Ridge()), delta=0.2)
    inside.fit(X[train], y[train], X_calibration=X[cal], y_calibration=y[cal])
    with config_context(enable_metadata_routing=True):
        last = CoJERRegressor(Ridge(), delta=0.2).set_fit_request(X_calibration=True, y_calibration=True)
        outside = Pipeline([("scale", StandardScaler()), ("cojer", last)], transform_input=["X_calibration"])
        outside.fit(X[train], y[train], X_calibration=X[cal], y_calibration=y[cal])
        expected = inside.predict_interval(X[700:])[1]
        scaled = outside["scale"].transform(X[700:])
        np.testing.assert_allclose(outside["cojer"].predict_interval(scaled)[1], expected)
        search = GridSearchCV(last, {"estimator__alpha": [0.1, 1.0]}, cv=3)
        with pytest.raises(ValueError, match=r"inconsistent|X_calibration"):
            search.fit(X[train], y[train], X_calibration=X[cal])  # one array without the other
    plain = Pipeline([("scale", StandardScaler()), ("cojer", CoJERRegressor(Ridge(), random_state=0))])
    assert plain.fit(X, y)["cojer"].n_calibration_ == 500
    assert plain.predict(X[:5]).shape == (5,)


def test_calibration_rows_through_grid_search(data):
    """Rows for calibration that are routed through a search reach every fit, unsplit where sizes differ."""
    X, y = data
    with config_context(enable_metadata_routing=True):
        model = CoJERRegressor(Ridge()).set_fit_request(X_calibration=True, y_calibration=True)
        search = GridSearchCV(model, {"estimator__alpha": [0.1, 100.0]}, cv=3)
        search.fit(X[:300], y[:300], X_calibration=X[300:700], y_calibration=y[300:700])
    assert search.best_estimator_.n_calibration_ == 400
    assert search.best_params_ == {"estimator__alpha": 0.1}


def test_clone_and_pickle(data):
    X, _ = data
    model = calibrated(data, [("a", Ridge()), ("b", KNeighborsRegressor())], n_draws=200)
    expected = model.predict_interval(X[700:])[1]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_interval(X[700:])[1], expected)
    copy = clone(model)
    assert not hasattr(copy, "estimators_")
    assert copy.get_params(deep=False).keys() == model.get_params(deep=False).keys()
    again = copy.fit(
        data[0][:300], data[1][:300], X_calibration=data[0][300:700], y_calibration=data[1][300:700]
    )
    np.testing.assert_array_equal(again.predict_interval(X[700:])[1], expected)


def test_refit_is_reproducible_with_random_models(data):
    X, y = data
    model = CoJERRegressor(RandomForestRegressor(5), random_state=3)
    first = model.fit(X[:200], y[:200]).predict(X[700:])
    np.testing.assert_array_equal(model.fit(X[:200], y[:200]).predict(X[700:]), first)
    assert model.estimator.random_state is None
    fixed = CoJERRegressor(RandomForestRegressor(5, random_state=9), random_state=3).fit(X[:200], y[:200])
    assert fixed.estimators_[0].random_state == 9


def test_jobs_do_not_change_the_result(data):
    X, _ = data
    models = [RandomForestRegressor(5), Ridge(), KNeighborsRegressor()]
    one = calibrated(data, models, n_draws=200).predict_interval(X[700:])[1]
    two = calibrated(data, models, n_draws=200, n_jobs=2).predict_interval(X[700:])[1]
    np.testing.assert_array_equal(one, two)


def test_frames_lists_sparse_and_missing_values(data):
    X, y = data
    expected = calibrated(data, Ridge()).predict_interval(X[700:])[1]
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = calibrated((frame, pd.Series(y)), Ridge())
    assert model.feature_names_in_.tolist() == list("abcd")
    np.testing.assert_allclose(model.predict_interval(frame[700:])[1], expected)
    with pytest.raises(ValueError, match="feature names"):
        model.predict_interval(frame[700:][list("bacd")])
    model = calibrated((X.tolist(), y.tolist()), Ridge())
    np.testing.assert_allclose(model.predict_interval(X[700:].tolist())[1], expected)
    model = calibrated((sparse.csr_array(X), y), Lasso(0.01))
    assert model.predict_interval(sparse.csr_array(X[700:]))[1].shape == (300, 2, 1)
    for form in (sparse.coo_array, sparse.csc_array):
        assert CoJERRegressor(Ridge(), random_state=0).fit(form(X), y).n_calibration_ == 500
    holes = np.where(np.random.default_rng(0).uniform(size=X.shape) < 0.1, np.nan, X)
    trees = HistGradientBoostingRegressor(max_iter=10)
    assert np.isfinite(calibrated((holes, y), trees).predict_interval(holes[700:])[1]).all()
    assert get_tags(CoJERRegressor(trees)).input_tags.allow_nan
    assert not get_tags(CoJERRegressor(Ridge())).input_tags.allow_nan
    assert get_tags(CoJERRegressor(Ridge())).input_tags.sparse
    assert not get_tags(CoJERRegressor([Ridge(), trees])).input_tags.sparse


def test_text_rows():
    from sklearn.feature_extraction.text import CountVectorizer

    words = np.array(["red", "green", "blue", "grey"])
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 5)) for _ in range(300)]
    y = np.array([text.count("red") for text in texts]) + rng.normal(size=300) * 0.1
    model = CoJERRegressor(make_pipeline(CountVectorizer(), Ridge()), random_state=0).fit(
        texts[:200], y[:200]
    )
    assert model.fcp_score(texts[200:], y[200:]) <= 0.1


@pytest.mark.parametrize("estimator", [Ridge(), RandomForestRegressor(3), [Ridge(), KNeighborsRegressor()]])
def test_float32_in_float32_out(data, estimator):
    X, y = (rows.astype(np.float32) for rows in data)
    model = calibrated((X, y), estimator, n_draws=200)
    points, intervals = model.predict_interval(X[700:])
    assert model.predict(X[700:]).dtype == points.dtype == intervals.dtype == np.float32
    wide = model.predict_interval(X[700:].astype(float))[1]
    assert wide.dtype == np.float64
    if not isinstance(estimator, list):
        # rounding never cuts a point off
        low, high = model._calibrated.intervals(
            model._bands(X[700:]), model._cuts(300, np.array([0.1]), 0.2, "cojer")
        )
        assert np.all(intervals[:, 0] <= low)
        assert np.all(intervals[:, 1] >= high)
    frame = pd.DataFrame(X)
    assert model.predict(frame.to_numpy()[700:]).dtype == np.float32


def test_inputs_and_global_state_are_left_alone(data):
    X, y = (rows.copy() for rows in data)
    state = np.random.get_state()  # noqa: NPY002
    models = [RandomForestRegressor(3, random_state=0), Ridge()]
    model = CoJERRegressor(models, alpha=0.2, n_draws=300).fit(X[:600], y[:600])
    model.predict_interval(X[700:])
    model.predict_set(X[700:])
    np.testing.assert_array_equal(X, data[0])
    np.testing.assert_array_equal(y, data[1])
    np.testing.assert_array_equal(state[1], np.random.get_state()[1])  # noqa: NPY002
    assert state[2] == np.random.get_state()[2]  # noqa: NPY002
    assert not hasattr(models[1], "coef_")


def test_import_is_light():
    code = (
        "import sys; from seedbed.estimators import CoJERRegressor; "
        "heavy = {'torch', 'lightning', 'mapie', 'matplotlib', 'scipy.signal'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_doctests():
    import doctest
    from importlib import import_module

    for name in (
        "bridge",
        "competitors",
        "display",
        "laws",
        "quantile_band",
        "regressor",
        "thresholds",
        "aggregation",
    ):
        module = import_module(f"seedbed.estimators.cojer.{name}")
        assert doctest.testmod(module).failed == 0


# -- errors ------------------------------------------------------------------------------------------------


class Silent(RegressorMixin, BaseEstimator):
    """Predicts NaN."""

    def fit(self, X, y):
        self.fitted_ = True
        return self

    def predict(self, X):
        return np.full(len(X), np.nan)


class TwoColumns(Silent):
    def predict(self, X):
        return np.zeros((len(X), 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 1.0}, "alpha"),
        ({"alpha": [0.1, 1.2]}, "alpha"),
        ({"alpha": []}, "alpha"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"template": "simes"}, "template"),
        ({"calibration": "bootstrap"}, "calibration"),
        ({"aggregation": "median"}, "aggregation"),
        ({"aggregation_null": "dependent"}, "aggregation_null"),
        ({"quantile_gamma": 0.0}, "quantile_gamma"),
        ({"k_max": 0}, "k_max"),
        ({"n_test": 0}, "n_test"),
        ({"n_draws": 0}, "n_draws"),
        ({"calibration_size": 1.5}, "calibration_size"),
        ({"conformity_score": "squared"}, "conformity_score must be one of"),
        ({"conformity_score": 3}, "conformity_score"),
        ({"estimator": []}, "at least one"),
        ({"estimator": [("a", Ridge()), ("a", Lasso())]}, "distinct names"),
        ({"estimator": "ridge"}, "estimator"),
        ({"estimator": Silent()}, "must be finite"),
        ({"estimator": TwoColumns()}, "single output"),
        ({"calibration_size": 1}, "at least 2 calibration rows"),
        ({"conformity_score": "cqr", "estimator": Ridge()}, "quantile regressor"),
    ],
)
def test_bad_parameters(data, options, message):
    X, y = data
    with pytest.raises(ValueError, match=message):
        CoJERRegressor(**options).fit(X[:100], y[:100])


def test_bad_models(data):
    X, y = data
    with pytest.raises(TypeError, match="predict"):
        CoJERRegressor(StandardScaler()).fit(X, y)
    with pytest.raises(TypeError, match="predict"):
        CoJERRegressor([("a", Ridge()), ("b", StandardScaler())]).fit(X, y)
    with pytest.raises(NotFittedError, match="prefit"):
        CoJERRegressor(Ridge(), prefit=True).fit(X, y)
    with pytest.raises(NotFittedError, match="prefit"):
        CoJERRegressor(Ridge(), prefit=True).conformalize(X, y)
    fitted = Ridge().fit(X, y)
    with pytest.raises(TypeError, match="predict_band"):
        CoJERRegressor(fitted, prefit=True, conformity_score="cqr").fit(X, y)
    with pytest.raises(ValueError, match="low must be below high"):
        QuantileBand(QuantileRegressor(), low=0.9, high=0.1).fit(X, y)
    with pytest.raises(ValueError, match="loss='quantile'"):
        QuantileBand(HistGradientBoostingRegressor()).fit(X, y)


def test_bad_rows(data):
    X, y = data
    model = CoJERRegressor(Ridge(), random_state=0)
    with pytest.raises(ValueError, match="y_calibration is missing"):
        model.fit(X, y, X_calibration=X)
    with pytest.raises(ValueError, match="X_calibration is missing"):
        model.fit(X, y, y_calibration=y)
    with pytest.raises(ValueError, match="single output"):
        model.fit(X, np.stack([y, y], axis=1))
    with pytest.raises(ValueError, match="at least 2 calibration rows"):
        model.fit(X, y, X_calibration=X[:1], y_calibration=y[:1])
    bad = y.copy()
    bad[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, y, X_calibration=X, y_calibration=bad)
    bad[3] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        model.fit(X, y, X_calibration=X, y_calibration=bad)
    with pytest.raises(ValueError, match="inconsistent"):
        model.fit(X, y, X_calibration=X[:9], y_calibration=y[:8])
    with pytest.raises(ValueError, match="features"):
        model.fit(X, y, X_calibration=X[:, :2], y_calibration=y)
    for call in (model.predict, model.predict_interval, model.predict_set, model.predict_interval_all):
        with pytest.raises(NotFittedError):
            CoJERRegressor().__getattribute__(call.__name__)(X)


def test_bad_requests(data):
    X, _ = data
    model = calibrated(data)
    for alpha in (0.0, 1.0, -1, np.nan, [], [[0.1]]):
        with pytest.raises(ValueError, match="alpha"):
            model.predict_interval(X[700:], alpha)
    with pytest.raises(ValueError, match="delta"):
        model.predict_interval(X[700:], delta=0.0)
    with pytest.raises(ValueError, match="bound must be one of"):
        model.predict_interval(X[700:], bound="cantelli")
    with pytest.raises(ValueError, match="alpha too large for k_max"):
        model.predict_interval(X[700:], 0.6)
    with pytest.raises(ValueError, match="alpha too large for k_max"):
        calibrated(data, k_max=10).predict_interval(X[700:])
    with pytest.raises(ValueError, match="k_max must be at most"):
        calibrated(data, k_max=301).predict_interval(X[700:])
    with pytest.raises(ValueError, match="n_test must be at least"):
        calibrated(data, n_test=299).predict_interval(X[700:])
    with pytest.raises(ValueError, match="one number"):
        model.predict_set(X[700:], [0.1, 0.2])
    with pytest.raises(ValueError, match="level must be in"):
        model.fcp_bound(1.5)
    with pytest.raises(ValueError, match="n_test must be given"):
        calibrated(data).fcp_bound(0.1)
    with pytest.raises(AttributeError, match="predict_interval"):
        _ = calibrated(data).coverage_curve_
    with pytest.raises(ValueError, match="at least one row"):
        model.predict_interval(X[:0])
    with pytest.raises(ValueError, match="must be finite"):
        CoJERRegressor(Silent(), calibration_size=None).fit(X, X[:, 0]).predict(X)


# -- plots -------------------------------------------------------------------------------------------------


def test_display(data):
    import matplotlib.pyplot as plt

    X, y = data
    model = calibrated(data)
    display = CoJERDisplay.from_estimator(model, X[700:], y[700:], n_splits=20, random_state=0)
    assert np.all(display.fcp <= display.bounds)
    assert display.split_fcp.shape == (20,)
    assert display.violation_share <= 0.2
    np.testing.assert_array_equal(display.line_.get_ydata(), display.fcp)
    assert f"{display.violation_share:.1%}" in display.split_ax_.get_title()
    again = CoJERDisplay.from_estimator(model, X[700:], y[700:], n_splits=20, random_state=0)
    np.testing.assert_array_equal(again.split_fcp, display.split_fcp)
    _, ax = plt.subplots()
    alphas = [0.2, 0.05, 0.1]
    _, intervals = model.predict_interval(X[700:], alphas)
    display = CoJERDisplay.from_predictions(y[700:], intervals, alphas, ax=ax, name="ridge")
    assert display.ax_ is ax
    np.testing.assert_array_equal(display.bounds, [0.05, 0.1, 0.2])
    np.testing.assert_array_equal(
        display.fcp, [false_coverage_proportion(y[700:], intervals[:, :, j]) for j in (1, 2, 0)]
    )
    assert "ridge" in [text.get_text() for text in ax.get_legend().get_texts()]
    with pytest.raises(ValueError, match="K = 2"):
        CoJERDisplay.from_predictions(y[700:], intervals, [0.1, 0.2])
    with pytest.raises(ValueError, match="n_calibration"):
        CoJERDisplay.from_estimator(model, X[700:], y[700:], n_splits=2, n_calibration=300)
    with pytest.raises(ValueError, match="2 axes"):
        CoJERDisplay(bounds=display.bounds, fcp=display.fcp, split_fcp=display.fcp).plot(ax=ax)
    plt.close("all")


def test_default_model_and_real_rows():
    X, y = load_diabetes(return_X_y=True)
    model = CoJERRegressor(alpha=0.2, random_state=0).fit(X[:342], y[:342])
    assert isinstance(model.estimators_[0], LinearRegression)
    assert model.named_estimators_["linearregression-1"] is model.estimators_[0]
    assert model.fcp_score(X[342:], y[342:]) <= 0.2
