"""Exact laws, calibrated thresholds and levels against enumeration and whole-number counting."""

import numpy as np
import pytest
from scipy import stats

from references import cojer as reference
from seedbed.estimators import (
    cojer_confidence_level,
    cojer_level,
    cojer_thresholds,
    dkw_fcp_level,
    dkw_fcp_margin,
    false_coverage_proportion,
    fcp_exceedance_probability,
    joint_error_rate,
)
from seedbed.estimators.cojer.competitors import scp_level
from seedbed.estimators.cojer.laws import misses_allowed, rank_cdf, sample_ranks
from seedbed.estimators.cojer.thresholds import calibrate, fcp_bounds

# n, m, alpha, delta: lambda, level, its violation, JER; levels of linear and beta; pointwise level, its
# violation; DKW level (before it is cut at 0); split conformal level, its violation.
# In the linear family all thresholds jump together at multiples of m / (n + 1): exactly, its levels are the
# 4 and 25 below; rounding on such a multiple splits the jump and suggests 5 and 26.
ORACLE = [
    ((100, 20, 0.2, 0.1), (0.02853, 7, 0.0187, 0.09897), 4, 7, (12, 0.0979), -13, (20, 0.3658)),
    ((200, 100, 0.1, 0.1), (0.01688, 8, 0.0120, 0.09985), 5, 8, (13, 0.0980), -14, (20, 0.4124)),
    ((500, 500, 0.1, 0.2), (0.02547, 33, 0.0193, 0.19994), 21, 33, (43, 0.1919), 11, (50, 0.4581)),
    ((1000, 100, 0.1, 0.1), (0.01240, 48, 0.0121, 0.09993), 13, 48, (69, 0.0935), -36, (100, 0.4161)),
    ((1000, 500, 0.1, 0.2), (0.02224, 71, 0.0217, 0.19994), 38, 71, (88, 0.1963), 33, (100, 0.4604)),
    ((1000, 500, 0.1, 0.1), (0.00897, 66, 0.0085, 0.09999), 25, 66, (81, 0.0934), 25, (100, 0.4604)),
    ((2000, 500, 0.05, 0.1), (0.00796, 57, 0.0073, 0.09646), 25, 57, (76, 0.0917), -35, (100, 0.4463)),
]


def test_jer_is_the_share_of_arrangements():
    assert reference.jer_by_enumeration((2, 3, 4), 4, 3) == pytest.approx(21 / 35)
    assert joint_error_rate([2, 3, 4], 4, 3) == pytest.approx(21 / 35, abs=1e-14)


@pytest.mark.parametrize("seed", range(20))
def test_jer_of_random_thresholds(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5))
    g = rng.integers(1, 7, size)  # in any order: later positions inherit earlier thresholds
    expected = float(reference.jer_by_enumeration(g, 5, 4))
    assert joint_error_rate(g, 5, 4) == pytest.approx(expected, abs=1e-14)
    assert float(reference.jer_by_counting(g, 5, 4)) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(("n", "m", "size"), [(60, 40, 20), (40, 60, 60), (200, 30, 30), (7, 90, 45)])
def test_jer_of_larger_batches(n, m, size):
    g = np.sort(np.random.default_rng(n).integers(1, n // 2 + 1, size))
    assert joint_error_rate(g, n, m) == pytest.approx(float(reference.jer_by_counting(g, n, m)), rel=1e-11)


def test_jer_that_nothing_and_everything_breaks():
    assert joint_error_rate([1, 1, 1], 10, 5) == 0.0
    assert joint_error_rate([12], 10, 5) == 1.0
    assert joint_error_rate([11], 10, 1) == pytest.approx(10 / 11)  # p < 1


def test_jer_neither_overflows_nor_underflows():
    g = cojer_thresholds(8000, 2000, 0.1)  # C(10000, 2000) has 2172 digits
    assert joint_error_rate(g, 8000, 2000) == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize("k", [1, 2, 10, 20])
def test_rank_law(k):
    n, m = 50, 20
    cdf = rank_cdf(n, m, k)
    assert cdf[-1] == pytest.approx(1, abs=1e-12)
    exact = [float(f) for f in reference.rank_cdf(n, m, k)]
    np.testing.assert_allclose(cdf, exact, rtol=0, atol=1e-12)
    # i_k: calibration points seen before the k-th test point
    np.testing.assert_allclose(cdf, stats.nhypergeom(n + m, n, k).cdf(np.arange(n + 1)), rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        cdf, stats.betabinom(n, k, m + 1 - k).cdf(np.arange(n + 1)), rtol=0, atol=1e-10
    )


def test_smallest_p_value_is_the_smallest_possible_with_probability_m_over_n_plus_m():
    assert rank_cdf(80, 30, 1)[0] == pytest.approx(30 / 110, rel=1e-12)


def test_fcp_of_a_fixed_level_is_beta_binomial():
    for level in (1, 5, 20):
        expected = stats.betabinom(40, level, 61 - level).sf(8)
        assert fcp_exceedance_probability(60, 40, level, 0.2) == pytest.approx(expected, rel=1e-9)
    assert fcp_exceedance_probability(60, 40, 0, 0.2) == 0.0


@pytest.mark.parametrize("row", ORACLE, ids=lambda row: "-".join(map(str, row[0])))
def test_levels(row):
    (n, m, alpha, delta), (lam, level, violation, jer), linear, beta, pointwise, dkw, scp = row
    found = calibrate(n, m, delta, k_max=m // 2)
    assert found.parameter == pytest.approx(lam, abs=1.1e-5)
    assert found.jer == pytest.approx(jer, abs=1e-5)
    assert cojer_level(n, m, alpha, delta) == level
    assert fcp_exceedance_probability(n, m, level, alpha) == pytest.approx(violation, abs=1e-4)
    assert cojer_level(n, m, alpha, delta, template="linear") == linear
    assert cojer_level(n, m, alpha, delta, template="beta") == beta
    single = cojer_level(n, m, alpha, delta, simultaneous=False)
    assert (single, fcp_exceedance_probability(n, m, single, alpha)) == (
        pointwise[0],
        pytest.approx(pointwise[1], abs=1e-4),
    )
    assert single == cojer_level(n, m, alpha, delta, template="single")
    assert fcp_exceedance_probability(n, m, single + 1, alpha) > delta
    assert int(np.floor((n + 1) * (alpha - dkw_fcp_margin(n, m, delta)))) == dkw
    assert dkw_fcp_level(n, m, alpha, delta) == max(dkw, 0)
    assert scp_level(n, alpha) == scp[0]
    assert fcp_exceedance_probability(n, m, scp[0], alpha) == pytest.approx(scp[1], abs=1e-4)


def test_first_thresholds():
    assert cojer_thresholds(1000, 500, 0.2)[:8].tolist() == [1, 1, 1, 2, 3, 4, 5, 6]
    assert cojer_thresholds(200, 100, 0.1)[:8].tolist() == [1, 1, 1, 2, 2, 3, 4, 6]
    assert cojer_thresholds(100, 20, 0.1)[:8].tolist() == [1, 2, 3, 6, 8, 12, 15, 19]
    assert cojer_thresholds(300, 100, 0.1)[10] == 14


def test_fewer_thresholds_are_tighter():
    levels = [cojer_level(1000, 500, 0.1, 0.2, k_max=size) for size in (51, 250, 500)]
    assert levels == [75, 71, 67]


def test_dkw_margin():
    assert dkw_fcp_margin(300, 100, 0.1) == pytest.approx(0.15651126329807158, abs=1e-14)
    margins = [0.32646, 0.16761, 0.07765, 0.13586, 0.06668, 0.07496, 0.06717]
    for ((n, m, _, delta), *_), margin in zip(ORACLE, margins, strict=True):
        assert dkw_fcp_margin(n, m, delta) == pytest.approx(margin, abs=1e-5)
        assert dkw_fcp_margin(n, m, delta) == pytest.approx(reference.dkw_margin(n, m, delta), abs=1e-10)
    assert dkw_fcp_margin(300, 100, 0.1, n_iterations=3) > dkw_fcp_margin(300, 100, 0.1)


@pytest.mark.parametrize(("n", "m", "delta", "size"), [(12, 6, 0.3, 3), (20, 8, 0.2, 8), (30, 5, 0.1, 2)])
def test_calibration_finds_the_largest_family(n, m, delta, size):
    from fractions import Fraction

    expected = reference.calibrated_quantile(n, m, Fraction(delta).limit_denominator(), size)
    assert cojer_thresholds(n, m, delta, k_max=size).tolist() == expected


@pytest.mark.parametrize(("n", "m", "alpha", "delta"), [(30, 10, 0.25, 0.1), (50, 20, 0.1, 0.2)])
def test_pointwise_level_is_the_largest(n, m, alpha, delta):
    level = cojer_level(n, m, alpha, delta, simultaneous=False)
    assert level == reference.pointwise_level(n, m, alpha, delta)


@pytest.mark.parametrize("template", ["quantile", "linear", "beta"])
def test_no_larger_parameter_is_valid(template):
    n, m, delta, size = 120, 60, 0.15, 30
    found = calibrate(n, m, delta, template=template, k_max=size)
    k = np.arange(1, size + 1)

    def family(lam):
        if template == "linear":
            t = np.ceil(lam * k * (n + 1) / m * (1 - 1e-13))
        elif template == "beta":
            t = np.ceil(stats.beta.ppf(lam, k, m + 1 - k) * (n + 1) * (1 - 1e-12))
        else:
            t = reference.quantile_template(lam, n, m, size)
        return np.maximum(np.asarray(t).astype(int), 1)

    np.testing.assert_array_equal(found.g, family(found.parameter * (1 - 1e-9)))
    assert found.jer == joint_error_rate(found.g, n, m) <= delta + 1e-12
    assert joint_error_rate(family(found.parameter * (1 + 1e-9)), n, m) > delta


def test_one_test_point():
    assert cojer_level(99, 1, 0.5, 0.1) == 10  # JER equals delta: 10 / 100
    assert cojer_level(99, 1, 0.5, 0.1, simultaneous=False) == 10
    for delta in (0.05, 0.2, 0.35):
        assert cojer_level(99, 1, 0.5, delta) == int(np.floor(delta * 100 + 1e-9))


def test_many_test_points_give_the_training_conditional_level():
    level = max(i for i in range(1, 100) if stats.beta(i, 1001 - i).sf(0.1) <= 0.1)
    assert level == 88
    assert cojer_level(1000, 10**6, 0.1, 0.1, simultaneous=False) == level


def test_many_calibration_points_give_the_binomial_level():
    n, m = 10**6, 500
    share = cojer_level(n, m, 0.1, 0.1, simultaneous=False) / (n + 1)
    assert share == pytest.approx(0.084862, abs=2e-6)
    assert stats.binom(m, share).sf(50) == pytest.approx(0.1, abs=1e-4)


def test_monotone():
    for template in ("quantile", "linear", "beta", "learned"):
        g = cojer_thresholds(300, 100, 0.1, template=template)
        assert np.all(np.diff(g) >= 0)
        assert g[-1] > g[0]
    by_delta = [cojer_level(300, 100, 0.1, d) for d in (0.02, 0.05, 0.1, 0.2, 0.4)]
    by_alpha = [cojer_level(300, 100, a, 0.1) for a in (0.02, 0.1, 0.2, 0.4)]
    assert by_delta == sorted(set(by_delta))
    assert by_alpha == sorted(set(by_alpha))
    by_n = [cojer_level(n, 200, 0.1, 0.1) / (n + 1) for n in (100, 300, 1000, 3000)]
    by_m = [cojer_level(500, m, 0.1, 0.1, simultaneous=False) / 501 for m in (50, 200, 1000)]
    assert by_n == sorted(by_n)
    assert by_m == sorted(by_m)
    assert max(by_n + by_m) < 0.1


def test_counting_p_equal_to_t_as_missed_would_break_the_guarantee():
    assert joint_error_rate(cojer_thresholds(1000, 500, 0.2) + 1, 1000, 500) == pytest.approx(0.468, abs=5e-4)
    assert joint_error_rate(cojer_thresholds(200, 100, 0.1) + 1, 200, 100) == pytest.approx(0.402, abs=5e-4)


def test_learned_template_approaches_the_quantile_template():
    exact = cojer_thresholds(200, 100, 0.1)
    learned = cojer_thresholds(200, 100, 0.1, template="learned", n_draws=20000, random_state=1)
    assert np.abs(learned - exact).max() <= 2
    assert calibrate(200, 100, 0.1, template="learned", n_draws=20000, seed=1).jer <= 0.1


def test_monte_carlo_calibration_scatters_around_delta():
    found = [
        calibrate(200, 100, 0.1, template="learned", calibration="monte_carlo", n_draws=1000, seed=seed)
        for seed in range(8)
    ]
    jers = [one.jer for one in found]
    assert 0.06 < min(jers) < max(jers) < 0.14
    assert len(set(jers)) > 1
    assert {int(one.g[10]) for one in found} <= {7, 8, 9, 10, 11}
    for template in ("quantile", "beta"):
        rough = calibrate(200, 100, 0.1, template=template, calibration="monte_carlo", n_draws=4000)
        assert rough.jer == pytest.approx(0.1, abs=0.03)
    # The next linear family has a JER of .132, six standard errors of 4000 draws above .1.
    rough = cojer_thresholds(200, 100, 0.1, template="linear", calibration="monte_carlo", n_draws=4000)
    np.testing.assert_array_equal(rough, cojer_thresholds(200, 100, 0.1, template="linear"))
    rough = cojer_level(200, 100, 0.1, 0.1, simultaneous=False, calibration="monte_carlo", n_draws=20000)
    assert abs(rough - 13) <= 1


def test_simulation_is_reproducible_and_touches_no_global_state():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = cojer_thresholds(150, 40, 0.1, template="learned", random_state=3)
    calibrate.__globals__["_cached"].cache_clear()
    np.testing.assert_array_equal(first, cojer_thresholds(150, 40, 0.1, template="learned", random_state=3))
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_sampled_ranks_follow_the_law():
    rng = np.random.default_rng(0)
    rows = sample_ranks(3, 2, 20000, rng)
    assert np.all(np.diff(rows, axis=1) >= 0)
    counts = dict.fromkeys(map(tuple, reference.arrangements(3, 2)), 0)
    for row in map(tuple, rows.tolist()):
        counts[row] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    loose = sample_ranks(30, 4, 20000, rng, sort=False)
    np.testing.assert_allclose(loose.mean(axis=0), 15, atol=4 * 9 / np.sqrt(20000))  # exchangeable columns


def test_calibration_is_cached_and_read_only():
    assert cojer_thresholds(321, 50, 0.1) is cojer_thresholds(321, 50, 0.1)
    with pytest.raises(ValueError, match="read-only"):
        cojer_thresholds(321, 50, 0.1)[0] = 7


def test_floor_of_alpha_m_ignores_binary_rounding():
    assert int(0.29 * 100) == 28
    assert misses_allowed(0.29, 100) == 29
    assert misses_allowed([0.1, 0.999], 500).tolist() == [50, 499]


def test_confidence_level_reaches_the_right_rank_in_floating_point():
    for n in (19, 99, 100, 1000, 4999):
        for alpha in (0.1, 0.2):
            level = cojer_level(n, 100, alpha, 0.2)
            confidence = cojer_confidence_level(n, 100, alpha, 0.2)
            assert int(np.ceil(confidence * (n + 1))) == n + 1 - level


def test_post_hoc_bound():
    g = np.array([1, 1, 2, 5])
    assert fcp_bounds(g, np.array([0.0, 1.0, 1.5, 2.0, 2.1, 5.0, 5.1]), 10).tolist() == [
        0,
        0,
        0.2,
        0.2,
        0.3,
        0.3,
        1,
    ]


def test_fcp():
    y = [0.0, 1.0, 5.0, 2.0]
    intervals = np.array([[-1, 1], [1, 2], [1, 3], [2.1, 3.0]])  # closed: 1 is inside [1, 2]
    assert false_coverage_proportion(y, intervals) == 0.5
    both = false_coverage_proportion(y, np.stack([intervals, intervals * [-np.inf, np.inf]], axis=2))
    assert both.shape == (2,)
    assert both[0] == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cojer_thresholds(0, 10, 0.1), "n_cal"),
        (lambda: cojer_thresholds(10, 0, 0.1), "n_test"),
        (lambda: cojer_thresholds(10, 10, 1.0), "delta"),
        (lambda: cojer_thresholds(10, 10, float("nan")), "delta"),
        (lambda: cojer_thresholds(10, 10, 0.1, k_max=11), "k_max must be at most n_test=10"),
        (lambda: cojer_thresholds(10, 10, 0.1, k_max=0), "k_max"),
        (lambda: cojer_thresholds(10, 10, 0.1, template="simes"), "template must be one of"),
        (lambda: cojer_thresholds(10, 10, 0.1, calibration="bootstrap"), "calibration must be one of"),
        (lambda: cojer_thresholds(10, 10, 0.1, n_draws=0), "n_draws"),
        (lambda: cojer_thresholds(10, 10, 0.1, random_state=-1), "random_state"),
        (lambda: cojer_level(10, 10, 0.0, 0.1), "alpha"),
        (lambda: cojer_level(100, 50, 0.5, 0.1, k_max=20), "alpha too large for k_max"),
        (lambda: dkw_fcp_level(10, 10, 1.5, 0.1), "alpha"),
        (lambda: dkw_fcp_margin(10, 10, 0.0), "delta"),
        (lambda: fcp_exceedance_probability(10, 10, 11, 0.1), "level"),
        (lambda: joint_error_rate([], 10, 5), "g must be a vector"),
        (lambda: joint_error_rate([1] * 6, 10, 5), "g must be a vector"),
        (lambda: joint_error_rate([0], 10, 5), "at least 1"),
        (lambda: false_coverage_proportion([], np.empty((0, 2))), "non-empty"),
        (lambda: false_coverage_proportion([1.0], [[0.0, 1.0, 2.0]]), "shape"),
        (lambda: false_coverage_proportion([np.nan], [[0.0, 1.0]]), "NaN"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cojer_thresholds(10.0, 10, 0.1), "n_cal must be an integer"),
        (lambda: cojer_thresholds(10, True, 0.1), "n_test must be an integer"),
        (lambda: cojer_level(10, 10, "0.1", 0.1), "alpha must be a number"),
        (lambda: joint_error_rate([1.5], 10, 5), "integers"),
    ],
)
def test_bad_types(call, message):
    with pytest.raises(TypeError, match=message):
        call()
