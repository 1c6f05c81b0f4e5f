"""The guarantee, simulated: a constant, a rank or a strict inequality that is off by one fails here."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor

from seedbed.estimators import (
    CoJERRegressor,
    cojer_level,
    cojer_thresholds,
    dkw_fcp_level,
    joint_error_rate,
)
from seedbed.estimators.cojer.calibrated import Calibrated
from seedbed.estimators.cojer.competitors import scp_level
from seedbed.estimators.cojer.laws import misses_allowed

N, M, ALPHA, DELTA = 500, 500, 0.1, 0.2


@pytest.fixture(scope="module")
def draws():
    """20 000 batches: absolute residuals of n calibration and m test points."""
    return np.random.default_rng(0).exponential(size=(20000, N + M))


def missed_share(batch, level):
    """FCP of intervals whose half-width is the (n + 1 - l)-th smallest calibration score."""
    half = np.partition(batch[:, :N], N - level, axis=1)[:, N - level]
    return np.mean(batch[:, N:] > half[:, None], axis=1)


def binomial_error(p, repeats):
    return np.sqrt(p * (1 - p) / repeats)


def test_pointwise_and_split_conformal_violate_as_often_as_computed(draws):
    batch = draws[:4000]
    for level, expected in ((cojer_level(N, M, ALPHA, DELTA, simultaneous=False), 0.1919), (50, 0.4581)):
        share = np.mean(missed_share(batch, level) > ALPHA)
        assert abs(share - expected) < 4 * binomial_error(expected, 4000)


def test_a_rank_off_by_one_would_be_seen(draws):
    level = cojer_level(N, M, ALPHA, DELTA, simultaneous=False)
    share = np.mean(missed_share(draws, level) > ALPHA)
    error = binomial_error(0.1919, 20000)
    assert abs(share - 0.1919) < 3 * error
    for wrong, theirs in ((level - 1, 0.1624), (level + 1, 0.2241)):
        assert abs(np.mean(missed_share(draws, wrong) > ALPHA) - theirs) < 3 * error
        assert abs(theirs - 0.1919) > 6 * error


def test_all_thresholds_hold_together_as_often_as_computed(draws):
    g = cojer_thresholds(N, M, DELTA)
    batch = draws[:4000]
    calibration = np.sort(batch[:, :N], axis=1)
    wrong = wrong_if_closed = 0
    for own, scores in zip(calibration, batch[:, N:], strict=True):
        p = np.sort(1 + N - np.searchsorted(own, scores, side="left"))[: len(g)]  # times n + 1
        wrong += np.any(p < g)
        wrong_if_closed += np.any(p <= g)
    error = binomial_error(DELTA, 4000)
    assert abs(wrong / 4000 - 0.19994) < 4 * error
    assert wrong_if_closed / 4000 == pytest.approx(joint_error_rate(g + 1, N, M), abs=4 * error * 1.3)
    assert wrong_if_closed / 4000 > 0.4


def test_alpha_may_be_chosen_after_seeing_the_widths(draws):
    """Take the smallest alpha whose intervals are narrow enough; then check its own promise."""
    batch = draws[:2000]
    calibration = np.sort(batch[:, :N], axis=1)
    broken = {}
    for name, levels in (
        ("simultaneous", cojer_thresholds(N, M, DELTA) - 1),
        ("pointwise", [cojer_level(N, M, (k + 0.5) / M, DELTA, simultaneous=False) for k in range(M // 2)]),
    ):
        count = 0
        index = N - np.asarray(levels)
        for own, scores in zip(calibration, batch[:, N:], strict=True):
            half = np.append(own, np.inf)[index]
            missed = np.sum(scores[:, None] > half, axis=0)
            # the most tempting choice: where the promise looks best against what was asked
            narrow = np.flatnonzero(half < 2.2)
            k = narrow[0] if narrow.size else len(half) - 1
            count += missed[k] > k
        broken[name] = count / 2000
    assert broken["simultaneous"] <= DELTA
    assert broken["pointwise"] > broken["simultaneous"]


def test_estimator_misses_exactly_where_p_is_below_t():
    """A test score that equals the boundary score is covered: p = t is no miss."""
    scores = np.arange(1.0, 200.0)
    model = CoJERRegressor(Zero(), alpha=0.1, delta=0.2, prefit=True, n_test=100)
    model.conformalize(np.zeros((199, 1)), scores)
    _, interval = model.predict_interval(np.zeros((1, 1)))
    k = int(misses_allowed(0.1, 100)) + 1
    g = int(cojer_thresholds(199, 100, 0.2)[k - 1])
    assert model.levels_[100]["g"][k - 1] == g > 1
    edge = 200 - (g - 1)
    assert interval[0, 1, 0] == edge
    for y in (edge - 1e-9, edge, edge + 1e-9):
        p = 1 + np.sum(scores >= y)
        assert (p < g) == (y > interval[0, 1, 0])


class Zero:
    """A model without fit."""

    def predict(self, X):
        return np.zeros(len(X))


def test_ties_are_conservative():
    rng = np.random.default_rng(1)
    X = rng.integers(0, 4, (9000, 2)).astype(float)
    y = np.round(X[:, 0] + rng.normal(scale=1.5, size=9000))
    tree = DecisionTreeRegressor(max_depth=3, random_state=0).fit(X[:500], np.round(y[:500]))
    model = CoJERRegressor(tree, alpha=ALPHA, delta=DELTA, prefit=True, simultaneous=False)
    broken = 0
    for _ in range(400):
        rows = 500 + rng.permutation(8500)[:300]
        model.conformalize(X[rows[:200]], y[rows[:200]])
        broken += model.fcp_score(X[rows[200:]], y[rows[200:]]) > ALPHA + 1e-12
    assert broken / 400 <= DELTA


def correlated_errors(rng, rows, kind):
    """Errors of five models at each row."""
    scale = np.linspace(0.3, 1.5, 5)
    if kind == "shared":
        return rng.normal(size=(rows, 1)) + scale * rng.normal(size=(rows, 5))
    if kind == "identical":
        return np.repeat(rng.normal(size=(rows, 1)), 5, axis=1)
    return rng.normal(size=(rows, 5))


def aggregated_violation(kind, null, *, aggregation="harmonic", simultaneous=True, runs=600, seed=0):
    n, m, alpha, delta = 300, 100, 0.1, 0.1
    rng = np.random.default_rng(seed)
    broken = 0
    for _ in range(runs):
        scores = np.abs(correlated_errors(rng, n + m, kind)).T
        rule = Calibrated(
            scores[:, :n], alpha, "quantile", "exact", 2000, None, simultaneous, aggregation, null, 0.3, 7
        )
        ((k, family),) = rule.families(m, np.array([alpha]), delta)
        ranked = rule.ranked
        size = ranked.shape[1]
        p = np.stack(
            [
                (1 + size - np.searchsorted(own, s, side="left")) / (size + 1)
                for own, s in zip(ranked, scores[:, n:], strict=True)
            ]
        )
        missed = np.mean(rule.aggregate(p) < rule.cut(family, k).t * (1 - 1e-12))
        broken += missed > alpha + 1e-12
    return broken / runs


@pytest.mark.parametrize("kind", ["shared", "identical", "independent"])
def test_split_null_controls_the_aggregate_under_any_dependence(kind):
    for aggregation in ("harmonic", "arithmetic", "geometric", "quantile"):
        share = aggregated_violation(kind, "split", aggregation=aggregation, simultaneous=False, runs=400)
        assert 0.02 < share <= 0.1 + 3 * binomial_error(0.1, 400)


@pytest.mark.parametrize(
    ("kind", "null", "measured"),
    [
        ("shared", "single", 0.188),
        ("independent", "single", 0.191),
        ("identical", "single", 0.109),
        ("shared", "independent", 0.105),
        ("independent", "independent", 0.105),
        ("identical", "independent", 0.069),
    ],
)
def test_sharp_levels_of_the_other_nulls_without_simultaneity(kind, null, measured):
    share = aggregated_violation(kind, null, simultaneous=False)
    assert abs(share - measured) < 4 * binomial_error(measured, 600) + 0.01


@pytest.mark.parametrize("kind", ["shared", "identical", "independent"])
@pytest.mark.parametrize("null", ["single", "independent", "split"])
def test_simultaneous_thresholds_leave_slack_for_the_harmonic_mean(kind, null):
    assert aggregated_violation(kind, null, runs=300) <= 0.1


def test_other_means_need_the_split_null():
    assert aggregated_violation("identical", "independent", aggregation="arithmetic", runs=100) > 0.5


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1000, 500, 0.1, 0.2), (2.017, 2.118, 2.290, 2.931)),
        ((500, 500, 0.1, 0.2), (2.020, 2.141, 2.355, 3.322)),
        ((300, 100, 0.1, 0.1), (2.025, 2.355, 2.720, np.inf)),
    ],
)
def test_half_widths_with_t5_residuals(sizes, expected):
    """Split conformal, pointwise, CoJER and DKW, mean over draws."""
    n, m, alpha, delta = sizes
    scores = np.sort(np.abs(np.random.default_rng(0).standard_t(5, size=(1500, n))), axis=1)
    levels = (
        scp_level(n, alpha),
        cojer_level(n, m, alpha, delta, simultaneous=False),
        cojer_level(n, m, alpha, delta),
        dkw_fcp_level(n, m, alpha, delta),
    )
    for level, half in zip(levels, expected, strict=True):
        found = scores[:, n - level].mean() if level else np.inf
        assert found == pytest.approx(half, rel=0.01)


@pytest.mark.slow
def test_estimator_end_to_end_over_many_draws():
    rng = np.random.default_rng(5)
    runs, n, m = 1500, 200, 100
    level = cojer_level(n, m, ALPHA, DELTA, simultaneous=False)
    broken = {"pointwise": 0, "simultaneous": 0}
    for _ in range(runs):
        X = rng.normal(size=(60 + n + m, 2))
        y = X @ [1.0, -2.0] + rng.standard_t(5, size=len(X))
        for name in broken:
            model = CoJERRegressor(
                LinearRegression(),
                alpha=ALPHA,
                delta=DELTA,
                simultaneous=name == "simultaneous",
                random_state=0,
            )
            model.fit(X[:60], y[:60], X_calibration=X[60 : 60 + n], y_calibration=y[60 : 60 + n])
            broken[name] += model.fcp_score(X[60 + n :], y[60 + n :]) > ALPHA + 1e-12
            if name == "pointwise":
                assert int(model.levels_[m]["g"][0]) == level + 1
    from seedbed.estimators import fcp_exceedance_probability

    for name, own in (("pointwise", level), ("simultaneous", cojer_level(n, m, ALPHA, DELTA))):
        expected = fcp_exceedance_probability(n, m, own, ALPHA)
        assert abs(broken[name] / runs - expected) < 4 * binomial_error(expected, runs)
