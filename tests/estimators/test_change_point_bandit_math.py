"""Thresholds, characteristic times and segmentation against closed forms, brute force and the equations."""

import math
import tracemalloc
import warnings

import numpy as np
import pytest

from references import change_point_bandit as reference
from seedbed.estimators import (
    characteristic_time,
    optimal_allocation,
    segment_means,
    stopping_threshold,
)
from seedbed.estimators.change_point_bandit import segmentation
from seedbed.estimators.change_point_bandit.engine import Engine
from seedbed.estimators.change_point_bandit.segmentation import largest_jumps, least_squares_changes
from seedbed.estimators.change_point_bandit.single import Single
from seedbed.estimators.change_point_bandit.targets import cluster_program, cluster_shares, solved_shares
from seedbed.estimators.change_point_bandit.thresholds import calibration_function, log_e_value


def steps(levels, length):
    return np.repeat(np.asarray(levels, dtype=float), length)


# --- thresholds


@pytest.mark.parametrize(
    ("n", "expected"), [(1, 16.187068), (2, 11.079061), (10, 7.306604), (100, 7.302047), (1000, 8.317862)]
)
def test_paired_mixture(n, expected):
    assert float(stopping_threshold("mixture", n, n, 5, 10, 0.05)) == pytest.approx(expected, abs=1e-6)
    assert float(stopping_threshold("mixture", n, 3 * n, 5, 10, 0.05)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("pair", "expected"), [((1, 1), 11.772208), ((10, 10), 8.349937), ((100, 50), 9.655759)]
)
def test_pooled_mixture(pair, expected):
    found = stopping_threshold("mixture", *pair, 5, 10, 0.05, statistic="pooled")
    assert float(found) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("pair", "expected"), [((10, 10), 15.607245), ((100, 50), 18.385138)])
def test_kaufmann_koolen(pair, expected):
    assert float(stopping_threshold("kaufmann-koolen", *pair, 5, 10, 0.05)) == pytest.approx(
        expected, abs=1e-5
    )


def test_calibration_function():
    found = [calibration_function(x) for x in (0.5, 1, 2, 5, 10, 50)]
    assert found == pytest.approx([1.964124, 2.507095, 3.582930, 6.757320, 11.954646, 52.588880], abs=1e-5)


def test_uncertified_thresholds():
    assert float(stopping_threshold("garivier-kaufmann", 1, 1, 50, 10, 0.1)) == pytest.approx(math.log(9000))
    found = float(stopping_threshold("heuristic", 1, 1, 50, 10, 0.1))
    assert found == pytest.approx(math.log((1 + math.log(50)) / 0.1))
    assert stopping_threshold(lambda a, b, t, k, d: (a, b, t, k, d), 1, 2, 3, 4, 0.5) == (1, 2, 3, 4, 0.5)


@pytest.mark.parametrize("kappa", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_the_e_value_is_the_mixture_it_claims_to_be(kappa, sigma):
    rng = np.random.default_rng(0)
    left, right = rng.normal(0, sigma, 7), rng.normal(1, sigma, 11)
    n = 7
    z = n * (right[:n].mean() - left[:n].mean()) ** 2 / (4 * sigma**2)
    expected = reference.paired_log_e(left, right, sigma, kappa)
    assert float(log_e_value(z, n, n, kappa, "paired")) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("statistic", ["paired", "pooled"])
def test_threshold_and_e_value_agree(statistic):
    rng = np.random.default_rng(0)
    left, right = rng.integers(1, 40, 50), rng.integers(1, 40, 50)
    if statistic == "paired":
        left = right = np.minimum(left, right)
    level = stopping_threshold("mixture", left, right, 5, 7, 0.02, 0.7, statistic)
    np.testing.assert_allclose(
        log_e_value(level, left, right, 0.7, statistic), math.log(6 / 0.02), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope", 1, 1, 1, 5, 0.1), "name must be one of"),
        (("mixture", 1, 1, 1, 5, 0.0), "delta"),
        (("mixture", 1, 1, 1, 1, 0.1), "n_arms"),
        (("mixture", 1, 1, 1, 5, 0.1, 0.0), "kappa"),
        (("mixture", 1, 1, 1, 5, 0.1, 1.0, "both"), "statistic"),
    ],
)
def test_threshold_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        stopping_threshold(*arguments)


# --- characteristic times


def test_closed_forms():
    assert characteristic_time(steps([0, 1], 5)) == 8
    assert characteristic_time(steps([0, 1], 5), sigma=3.0) == pytest.approx(72)
    assert characteristic_time(steps([0, 1, 3], 4), objective="any") == 10
    assert characteristic_time(steps([0, 1, 3], 4), n_change_points=1, objective="any") == 2
    unequal = [1, 1, 1, 2, 2, 2]
    assert characteristic_time(steps([0, 1], 3), sigma=unequal) == pytest.approx(18)
    assert characteristic_time(steps([0, 1], 3), sigma=unequal, method="numeric") == pytest.approx(
        18, rel=1e-9
    )
    shares = optimal_allocation(steps([0, 1], 3), sigma=unequal)
    np.testing.assert_allclose(shares, [0, 0, 1 / 3, 2 / 3, 0, 0])


def test_weights_follow_inverse_squares():
    shares = optimal_allocation(steps([0, 1, 3], 3))
    np.testing.assert_allclose(shares, np.array([0, 0, 4, 4, 0, 1, 1, 0, 0]) / 10)
    shared = optimal_allocation([0.0, 0.0, 1.0, 3.0, 3.0])  # the arm between both has the larger weight
    np.testing.assert_allclose(shared, np.array([0, 4, 4, 1, 0]) / 9)


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([0, 0, 1, 2, 2], 2 * (1 + math.sqrt(2)) ** 2),
        ([0, 0, 1, 3, 3], 8.571221),
        ([0, 0, 1, 2, 3, 3], 16.0),
        (steps([0, 1, 3], 4), 10.0),
    ],
)
def test_any_where_changes_share_arms(means, expected):
    found = characteristic_time(means, objective="any", method="numeric")
    assert found == pytest.approx(expected, abs=1e-5)
    shares = optimal_allocation(means, objective="any", method="numeric")
    jumps = np.diff(means)
    for b in np.flatnonzero(jumps):
        left, right = shares[b : b + 2]
        assert left * right / (left + right) * jumps[b] ** 2 / 2 >= (1 - 1e-6) / found


def test_adjacent_weights():
    shares = optimal_allocation([0, 0, 1, 2, 2], objective="any", method="numeric")
    np.testing.assert_allclose(shares[1:4] * 11.656854, [3.414214, 4.828427, 3.414214], atol=2e-4)


@pytest.mark.parametrize(("n", "expected"), [(1, 8), (2, 16), (3, 21.634793), (4, 27.803955), (8, 51.763435)])
def test_exact_with_many_changes(n, expected):
    means = steps(np.arange(n + 1) % 2, 4)
    assert characteristic_time(means, method="numeric") == pytest.approx(expected, abs=1e-4)
    assert characteristic_time(means) == pytest.approx(8 * n)


def test_exact_with_unequal_jumps():
    assert characteristic_time(steps([0, 1, 0.5, 1.5], 4), method="numeric") == pytest.approx(
        44.3207, abs=1e-4
    )


@pytest.mark.parametrize(
    "means", [steps([0, 1, 0.2, 1.4], 3), [0, 0, 1, 0, 0, 0, 2, 2, 2], steps([0, 1, 0], 3)]
)
def test_exact_against_all_alternatives(means):
    upper, lower = reference.exact_time(means, 1.3)
    found = characteristic_time(means, sigma=1.3, method="numeric")
    assert lower * (1 - 1e-9) <= found <= upper * (1 + 1e-9)
    assert upper / lower < 1.006


def test_what_is_known_beforehand_costs_nothing():
    assert characteristic_time([0, 1]) == 0
    assert characteristic_time([0, 1, 0], method="numeric") == 0
    assert characteristic_time([0, 1], objective="any") == 8


def test_units_and_scales_do_not_matter():
    for factor, offset in ((1e-4, 0.0), (1e4, 1e6)):
        means = factor * steps([0, 1, 0, 1], 4) + offset
        found = characteristic_time(means, sigma=factor, method="numeric")
        assert found == pytest.approx(21.634793, rel=1e-5)


@pytest.mark.parametrize(
    ("means", "options", "message"),
    [
        ([0.0], {}, "means"),
        ([0.0, np.nan], {}, "means"),
        ([1.0, 1.0], {}, "change"),
        ([0.0, 1.0], {"sigma": 0.0}, "sigma"),
        ([0.0, 1.0], {"sigma": [1.0, 1.0, 1.0]}, "sigma"),
        ([0.0, 0.0, 1.0], {"n_change_points": 2}, "n_change_points"),
        ([0.0, 0.0, 1.0, 2.0], {"n_change_points": 1}, "objective='exact'"),
        ([0.0, 1.0], {"objective": "all"}, "objective"),
        ([0.0, 1.0], {"method": "guess"}, "method"),
    ],
)
def test_instances_are_checked(means, options, message):
    with pytest.raises(ValueError, match=message):
        characteristic_time(means, **options)


# --- targets of the baselines


def test_clusters_of_equal_size():
    """Equal halves: equal shares, and T = 2 (K + 2) for a unit distance."""
    for half in (2, 5, 20):
        time, shares = cluster_program((half, half), (0.0, 1.0))
        assert time == pytest.approx(2 * (2 * half + 2), rel=1e-6)
        np.testing.assert_allclose(shares, 1 / (2 * half), rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "centres"), [((2, 10), (0.0, 1.0)), ((1, 6), (0.0, 3.0)), ((3, 4, 5), (0.0, 1.0, 1.7))]
)
def test_clusters_against_a_search(sizes, centres):
    time, shares = cluster_program(sizes, centres)
    n = np.array(sizes)
    assert (n * shares).sum() == pytest.approx(1)
    best = reference.cluster_cost(np.array(shares), n, centres)
    assert 1 / time == pytest.approx(best, rel=1e-6)
    rng = np.random.default_rng(0)
    draws = rng.dirichlet(np.ones(len(n)), 3000) / n
    near = np.array(shares) * np.exp(rng.normal(0, 0.02, (3000, len(n))))
    near /= (near * n).sum(axis=1, keepdims=True)
    found = [reference.cluster_cost(w, n, centres) for w in (*draws, *near)]
    assert max(found) <= best * (1 + 1e-6)
    assert max(found) >= best * 0.98


def test_segments_of_one_level_are_one_cluster():
    counts, sigma = np.full(12, 50.0), np.ones(12)
    three = cluster_shares(counts, counts * steps([0, 1, 0], 4), np.array([3, 7]), sigma)
    _, (low, high) = cluster_program((8, 4), (0.0, 1.0))
    np.testing.assert_allclose(three, steps([low, high, low], 4))
    nothing = cluster_shares(counts, counts * 3.0, np.array([5]), sigma)
    np.testing.assert_allclose(nothing, 1 / 12)


def test_solved_shares_see_signs():
    """Levels 0, 1, 0 and 0, 1, 2 with the same sizes are different instances where only one may be left."""
    changes, jumps = np.array([2, 5]), np.array([1.0, -0.7])
    shares = solved_shares(changes, jumps, np.ones(9), "exact")
    np.testing.assert_allclose(shares, optimal_allocation(steps([0, 1, 0.3], 3), method="numeric"), atol=1e-9)
    np.testing.assert_allclose(
        solved_shares(changes, jumps, np.ones(9), "any"),
        optimal_allocation(steps([0, 1, 0.3], 3), objective="any"),
        atol=1e-4,
    )


# --- where the changes are


@pytest.mark.parametrize("n", [1, 2, 3])
def test_least_squares_equals_all_change_sets(n):
    rng = np.random.default_rng(n)
    counts = rng.integers(1, 30, (40, 9)).astype(float)
    sums = counts * rng.normal(5, 2, (40, 9))
    found = least_squares_changes(counts, sums, n)
    for row in range(40):
        assert tuple(found[row]) == reference.best_changes(counts[row], sums[row], n)
        changes, levels = segment_means(counts[row], sums[row], n)
        np.testing.assert_array_equal(changes, found[row])
        _, fitted = reference.residual(counts[row], sums[row] / counts[row], changes)
        starts = np.r_[0, changes + 1]
        np.testing.assert_allclose(levels, fitted[starts])


def test_blocks_do_not_matter(monkeypatch):
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, (3, 60)).astype(float)
    sums = counts * rng.normal(size=(3, 60))
    whole = least_squares_changes(counts, sums, 4)
    for block in (1, 3 * 60 * 7, 3 * 60 * 60):
        monkeypatch.setattr(segmentation, "BLOCK", block)
        np.testing.assert_array_equal(least_squares_changes(counts, sums, 4), whole)


def test_memory_grows_with_arms_alone():
    tracemalloc.start()
    least_squares_changes(np.ones((1, 3000)), np.random.default_rng(0).normal(size=(1, 3000)), 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6, "72 MB would hold one number for each pair of arms"


def test_the_largest_jumps():
    means = np.array([[0.0, 1.0, 0.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0, 5.0, 4.0]])
    assert largest_jumps(means, 1).tolist() == [[2], [4]]
    assert largest_jumps(means, 2).tolist() == [[0, 2], [0, 4]]
    assert largest_jumps(means, 3).tolist() == [[0, 1, 2], [0, 1, 4]]


def test_counts_weigh():
    means = np.array([0.0, 0.6, 1.0, 1.2])
    even, uneven = np.ones(4), np.array([1.0, 1.0, 1.0, 100.0])
    assert segment_means(even, even * means, 1)[0].tolist() == [0]
    assert segment_means(uneven, uneven * means, 1)[0].tolist() == [1]


def test_the_worked_example():
    counts = np.array([3.0, 4, 6, 5, 4, 2])
    means = np.array([0.1, -0.2, 1.3, 0.9, 1.1, -0.4])
    sums = counts * means
    assert least_squares_changes(counts[None], sums[None], 1).tolist() == [[1]]
    assert largest_jumps(means[None], 1).tolist() == [[1]]
    assert least_squares_changes(counts[None], sums[None], 2).tolist() == [[1, 4]]
    assert largest_jumps(means[None], 2).tolist() == [[1, 4]]
    assert segment_means(counts, sums, 0)[1].tolist() == pytest.approx([sums.sum() / 24])


def test_segments_far_from_zero_keep_their_digits():
    rng = np.random.default_rng(0)
    means = steps([0, 1e-3], 5) + 1e-5 * rng.normal(size=10)
    counts = np.full(10, 3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = least_squares_changes(counts[None], (counts * (means + 1e6))[None], 1)
    assert found.tolist() == [[4]]


@pytest.mark.parametrize(
    ("counts", "sums", "n", "message"),
    [
        ([1, 1], [0.0], 1, "alike"),
        ([1, 0], [0.0, 1.0], 1, "positive"),
        ([1, 1], [0.0, np.inf], 1, "finite"),
        ([1, 1], [0.0, 1.0], 2, "n_change_points"),
    ],
)
def test_segmentation_is_checked(counts, sums, n, message):
    with pytest.raises(ValueError, match=message):
        segment_means(counts, sums, n)


def test_estimated_jumps_have_signs_and_a_floor():
    """Equal means would get infinite weights; a single session and many agree to the last digit."""
    from seedbed.estimators import ChangePointBandit

    sigma = np.array([0.5, 2.0, 1.0, 0.3, 1.7, 1.1])
    rules = ChangePointBandit(3, sigma=sigma, statistic="pooled").rules(6)
    many, one = Engine(rules), Single(rules)
    rng = np.random.default_rng(0)
    for arm in [0, 1, 2, 3, 4, 5, 0, 3, 3]:
        y = 0.25 if arm in (1, 2) else float(rng.normal()) + 3.0 * (arm == 3)
        many.observe(np.array([arm]), np.array([y]))
        one.take(arm, y)
    changes = np.array([[0, 1, 3]])
    sizes = one._sizes(changes)
    np.testing.assert_array_equal(sizes, many._sizes(changes))
    means = many.sums[0] / many.counts[0]
    assert sizes[0, [0, 2]] == pytest.approx([means[1] - means[0], means[4] - means[3]])
    assert (sizes[0, [0, 2]] < 0).any()
    assert sizes[0, 1] == pytest.approx(0.05 * math.hypot(2.0, 1.0))  # a share of its standard error


def test_equal_means_ask_for_something():
    from seedbed.estimators import ChangePointBandit

    for sampling in ("mcpi", "track-and-stop", "cluster", "elimination"):
        model = ChangePointBandit(2, sampling=sampling).start(np.arange(6))
        for _ in range(20):
            x = model.ask()
            model.tell(x, [0.0])
        assert np.isfinite(model.counts_).all()
        assert not model.done
        assert model.characteristic_time_ == math.inf
        np.testing.assert_allclose(model.sampling_weights_, 1 / 6)


def test_every_statistic_is_kept_up_to_date():
    """Whatever the order of arms, paired sums and e-values are those of the first n rewards of both."""
    from seedbed.estimators import ChangePointBandit

    rng = np.random.default_rng(0)
    for statistic in ("paired", "pooled"):
        engine = Engine(ChangePointBandit(statistic=statistic, sigma=0.7).rules(5), n_runs=3)
        seen = [[[] for _ in range(5)] for _ in range(3)]
        order = []
        best = np.zeros((3, 4))
        for _ in range(200):
            arms, y = rng.choice(5, 3, p=[0.5, 0.2, 0.1, 0.1, 0.1]), rng.normal(size=3)
            engine.observe(arms, y)
            order.append(list(zip(arms.tolist(), y.tolist())))
            for run in range(3):
                seen[run][arms[run]].append(y[run])
                for b in range(4):
                    left, right = seen[run][b], seen[run][b + 1]
                    n = min(len(left), len(right))
                    if n == 0:
                        assert engine.log_e[run, b] <= 0
                        continue
                    if statistic == "paired":
                        gap = np.mean(right[:n]) - np.mean(left[:n])
                        expected = log_e_value(n * gap**2 / (4 * 0.49), n, n, 1.0, "paired")
                    else:
                        u, v = len(left), len(right)
                        z = u * v / (u + v) * (np.mean(right) - np.mean(left)) ** 2 / (2 * 0.49)
                        expected = log_e_value(z, u, v, 1.0, "pooled")
                    assert engine.log_e[run, b] == pytest.approx(expected, abs=1e-9)
                    best[run, b] = max(best[run, b], expected)
        np.testing.assert_allclose(engine.best_log_e, best, atol=1e-9)
        for run in range(3):
            session = Single(engine.rules)
            for place in range(200):
                session.take(*order[place][run])
            for name in ("counts", "sums", "differences", "log_e", "best_log_e"):
                np.testing.assert_array_equal(getattr(session, name)[0], getattr(engine, name)[run])
