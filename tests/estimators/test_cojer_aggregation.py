"""Aggregated intervals: exact breakpoints against a plain evaluation of h on grids."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor

from references import cojer as reference
from seedbed.estimators import CoJERRegressor
from seedbed.estimators.cojer.aggregation import (
    AGGREGATIONS,
    AffineRanks,
    TableRanks,
    aggregate_p_values,
    hulls,
    independent_thresholds,
    p_values,
    unions,
)

MEANS = ("harmonic", "arithmetic", "geometric")


def problem(seed, *, m=6, n=25, models=3, spread=1.0, decimals=None):
    """Point predictions (n_models, m) and sorted scores (n_models, n)."""
    rng = np.random.default_rng(seed)
    points = rng.normal(scale=spread, size=(models, m))
    scores = np.abs(rng.normal(scale=np.linspace(0.5, 1.5, models)[:, None], size=(models, n)))
    if decimals is not None:
        points, scores = np.round(points, decimals), np.round(scores, decimals)
    return points, np.sort(scores, axis=1)


def affine(points, scores):
    return [AffineRanks(mu, mu, np.ones(len(mu)), own) for mu, own in zip(points, scores, strict=True)]


def tables(points, scores):
    return [TableRanks(mu[:, None] - own, mu[:, None] + own) for mu, own in zip(points, scores, strict=True)]


def rule(aggregation, gamma=0.3):
    return lambda p: aggregate_p_values(p, aggregation, gamma)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_aggregates(aggregation):
    p = np.random.default_rng(0).uniform(size=(5, 40))
    expected = [reference.aggregated(list(column), aggregation) for column in p.T]
    np.testing.assert_allclose(aggregate_p_values(p, aggregation), expected, rtol=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("spread", [0.2, 4.0])
@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.6])
def test_union_is_where_h_reaches_the_threshold(aggregation, spread, threshold):
    points, scores = problem(3, m=4, spread=spread)
    if aggregation == "quantile" and threshold < 1 / (26 * 0.3):
        threshold = 0.2
    models = affine(points, scores)
    found = hulls(models, threshold, rule(aggregation))
    pieces = unions(models, threshold, rule(aggregation))
    grid = np.linspace(-16, 16, 1601)
    for j in range(points.shape[1]):
        h = np.array(reference.aggregate_on_grid(points[:, j], scores, grid, aggregation))
        np.testing.assert_array_equal(pieces[j][[0, -1], [0, 1]], found[j])
        in_union = np.any((grid[:, None] >= pieces[j][:, 0]) & (grid[:, None] <= pieces[j][:, 1]), axis=1)
        np.testing.assert_array_equal(in_union, h >= threshold)


def test_models_that_disagree_leave_gaps():
    scores = np.tile(np.linspace(0.1, 1.0, 19), (2, 1))
    models = affine(np.array([[-5.0], [5.0]]), scores)
    (pieces,) = unions(models, 0.09, rule("harmonic"))
    assert len(pieces) == 2
    assert np.all(pieces[1:, 0] > pieces[:-1, 1])
    np.testing.assert_allclose(hulls(models, 0.09, rule("harmonic"))[0], [pieces[0, 0], pieces[-1, 1]])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("decimals", [None, 1])
def test_edges_are_closed_and_just_outside_is_out(aggregation, decimals):
    """h reaches t at both ends, and no breakpoint further out does; equal scores and edges included."""
    for seed in range(8):
        points, scores = problem(seed, m=4, n=20, spread=0.7, decimals=decimals)
        threshold = 0.35
        found = hulls(affine(points, scores), threshold, rule(aggregation))
        for j in range(points.shape[1]):
            edges = np.concatenate([points[:, [j]] - scores, points[:, [j]] + scores]).ravel()

            def h(y, j=j, points=points, scores=scores):
                # against rounded edges: y is inside a score set if it is not beyond its ends
                ps = [
                    (1 + sum(mu - s <= y <= mu + s for s in own)) / 21
                    for mu, own in zip(points[:, j], scores, strict=True)
                ]
                return reference.aggregated(ps, aggregation)

            good = [y for y in edges if h(y) >= threshold - 1e-12]
            if good:
                assert (found[j, 0], found[j, 1]) == (min(good), max(good))
            else:
                best = max(h(y) for y in edges)
                assert found[j, 0] == found[j, 1] == min(y for y in edges if h(y) >= best - 1e-12)


def test_affine_and_tabulated_ranks_agree():
    points, scores = problem(5, m=40, n=60)
    for threshold in (0.05, 0.2, 0.5):
        one = hulls(affine(points, scores), threshold, rule("harmonic"))
        two = hulls(tables(points, scores), threshold, rule("harmonic"))
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-14)
        for a, b in zip(
            unions(affine(points, scores), threshold, rule("harmonic")),
            unions(tables(points, scores), threshold, rule("harmonic")),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-14)


def test_p_values_count_scores_at_least_as_large():
    points, scores = problem(6, m=4, n=30)
    y = np.random.default_rng(1).normal(size=(4, 15))
    for mu, own, model in zip(points, scores, affine(points, scores), strict=True):
        expected = [[reference.p_value(own, abs(v - c)) for v in row] for c, row in zip(mu, y, strict=True)]
        np.testing.assert_allclose(p_values(model, y), expected, rtol=1e-15)


def test_bands_with_negative_scores():
    """Quantile bands: the innermost score sets can be empty, their ends crossed."""
    rng = np.random.default_rng(2)
    low, high = np.sort(rng.normal(size=(2, 2, 5)), axis=0)
    scores = np.sort(rng.normal(scale=0.4, size=(2, 30)), axis=1)
    models = [AffineRanks(a, b, np.ones(5), own) for a, b, own in zip(low, high, scores, strict=True)]
    grid = np.linspace(-5, 5, 2001)
    for threshold in (0.1, 0.5, 0.9):
        found = hulls(models, threshold, rule("harmonic"))
        for j in range(5):
            h = [
                reference.aggregated(
                    [
                        reference.p_value(own, max(a[j] - y, y - b[j]))
                        for a, b, own in zip(low, high, scores, strict=True)
                    ],
                    "harmonic",
                )
                for y in grid
            ]
            inside = grid[np.array(h) >= threshold]
            if inside.size:
                np.testing.assert_allclose(found[j], inside[[0, -1]], atol=0.011)


def test_threshold_that_infinity_reaches_gives_the_line():
    points, scores = problem(7)
    assert np.isinf(hulls(affine(points, scores), 1 / 26, rule("harmonic"))).all()
    assert np.isfinite(hulls(affine(points, scores), 1.01 / 26, rule("harmonic"))).all()
    assert np.isinf(unions(affine(points, scores), 1 / 26, rule("arithmetic"))[0]).all()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_order_of_models_does_not_matter(aggregation):
    points, scores = problem(8, m=50, models=4)
    order = [2, 0, 3, 1]
    for threshold in (0.2, 0.5):
        one = hulls(affine(points, scores), threshold, rule(aggregation))
        two = hulls(affine(points[order], scores[order]), threshold, rule(aggregation))
        np.testing.assert_array_equal(one, two)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 3))
    y = X @ [1.0, 2.0, -1.0] + rng.standard_t(5, size=700)
    return X, y


def fit(models, data, **options):
    X, y = data
    model = CoJERRegressor(models, alpha=0.1, delta=0.2, random_state=0, **options)
    return model.fit(X[:200], y[:200], X_calibration=X[200:500], y_calibration=y[200:500])


def test_one_model_in_a_list_is_the_plain_interval(data):
    X = data[0][500:]
    expected = fit(Ridge(), data).predict_interval(X)
    for aggregation in AGGREGATIONS:
        for null in ("independent", "single", "split"):
            found = fit([Ridge()], data, aggregation=aggregation, aggregation_null=null).predict_interval(X)
            np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("aggregation", MEANS)
def test_copies_of_one_model_give_its_interval(data, aggregation):
    X = data[0][500:]
    expected = fit(Ridge(), data).predict_interval(X)[1]
    copies = fit([Ridge(), Ridge(), Ridge()], data, aggregation=aggregation, aggregation_null="single")
    np.testing.assert_array_equal(copies.predict_interval(X)[1], expected)
    pieces = copies.predict_set(X)
    assert all(len(piece) == 1 for piece in pieces)
    np.testing.assert_array_equal(np.concatenate(pieces), expected[:, :, 0])


@pytest.mark.filterwarnings("ignore:aggregation=")
@pytest.mark.parametrize("null", ["independent", "single", "split"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_combination_covers_and_agrees_with_its_sets(data, aggregation, null):
    X, y = (rows[:600] for rows in data)
    options = {"aggregation": aggregation, "aggregation_null": null, "n_draws": 300}
    models = [("ridge", Ridge()), ("knn", KNeighborsRegressor(15)), ("ols", LinearRegression())]
    model = fit(models, data, **options)
    points, intervals = model.predict_interval(X[500:])
    np.testing.assert_allclose(points, model.predict(X[500:]))
    ends = [[piece[0, 0], piece[-1, 1]] for piece in model.predict_set(X[500:])]
    np.testing.assert_array_equal(ends, intervals[:, :, 0])
    assert np.isfinite(intervals).all()
    assert model.fcp_score(X[500:], y[500:]) < 0.25
    bounds = model.fcp_bound(np.linspace(0, 1, 30))
    assert np.all(np.diff(bounds) >= 0)
    assert bounds[0] < 0.1
    assert bounds[-1] > 0.4  # 1, but for the quantile aggregate, which many p-values cut off at 1
    all_points, all_intervals, fcp = model.predict_interval_all(X[500:])
    np.testing.assert_array_equal(all_points, points)
    k = int(np.flatnonzero(fcp == 0.1)[0])
    np.testing.assert_array_equal(all_intervals[:, :, [k]], intervals)
    assert np.all(all_intervals[:, 0, 1:] >= all_intervals[:, 0, :-1])
    assert np.all(all_intervals[:, 1, 1:] <= all_intervals[:, 1, :-1])


def test_aggregates_of_dependent_models_warn(data):
    models = [Ridge(), Ridge()]
    with pytest.warns(UserWarning, match="aggregation_null='split'"):
        fit(models, data, aggregation="arithmetic")


def test_split_null_cuts_at_its_own_rank(data):
    """The second half's aggregates are one conformity score: the l-th smallest is the threshold."""
    model = fit([Ridge(), KNeighborsRegressor()], data, aggregation_null="split")
    model.predict_interval(data[0][500:])
    rule_ = model._calibrated
    assert model.conformity_scores_.shape == (2, 150)
    assert model.n_calibration_ == 300
    g = int(model.levels_[200]["g"][20])
    from seedbed.estimators import cojer_thresholds

    assert g == cojer_thresholds(150, 200, 0.2)[20]
    family = rule_.family(200, 0.2)
    assert rule_.cut(family, 21).t == rule_.split_aggregates[g - 2]
    # post hoc: cutting at exactly that aggregate is guaranteed what the threshold is
    assert model.fcp_bound(rule_.split_aggregates[g - 2]) == pytest.approx(0.1, abs=0.02)


def test_independent_null_is_the_law_of_independent_p_values():
    """With one draw's worth of structure left out: K = 1 model has the exact law of a single model."""
    t, parameter, jer = independent_thresholds(200, 100, 0.1, 50, 1, "harmonic", 0.3, 4000, 1, False)
    from seedbed.estimators import cojer_thresholds

    exact = cojer_thresholds(200, 100, 0.1) / 201
    assert np.abs(t - exact).max() <= 2.5 / 201
    assert 0 < parameter < 0.05
    assert jer <= 0.1
    two, _, _ = independent_thresholds(200, 100, 0.1, 50, 2, "arithmetic", 0.3, 1000, 1, False)
    assert two[-1] > t[-1]  # means of independent p-values concentrate


def test_competing_bounds(data):
    X = data[0][500:]
    models = [Ridge(), KNeighborsRegressor(15), LinearRegression()]
    model = fit(models, data, aggregation_null="single")
    width = {
        bound: np.diff(model.predict_interval(X, 0.2, bound=bound)[1], axis=1).mean()
        for bound in ("cojer", "dkw", "marginal", "bonferroni", "cv_plus_like")
    }
    assert width["marginal"] < width["cojer"] < width["dkw"]
    assert width["marginal"] < width["cv_plus_like"]
    # Bonferroni by hand: intersection at alpha / 3, l = floor(0.2 * 301 / 3) = 20
    halves = [np.sort(own)[300 - 20] for own in model.conformity_scores_]
    points = [one.predict(X) for one in model.estimators_]
    low = np.max([p - h for p, h in zip(points, halves, strict=True)], axis=0)
    high = np.min([p + h for p, h in zip(points, halves, strict=True)], axis=0)
    np.testing.assert_allclose(
        model.predict_interval(X, 0.2, bound="bonferroni")[1][:, :, 0], np.stack([low, high], axis=1)
    )
    # Twice the arithmetic mean above alpha, on a grid
    found = model.predict_interval(X, 0.2, bound="cv_plus_like")[1][0, :, 0]
    grid = np.linspace(found[0] - 0.5, found[1] + 0.5, 801)
    h = reference.aggregate_on_grid([p[0] for p in points], model.conformity_scores_, grid, "arithmetic")
    inside = grid[2 * np.array(h) > 0.2]
    np.testing.assert_allclose(found, inside[[0, -1]], atol=0.02)
