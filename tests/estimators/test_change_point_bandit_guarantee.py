"""What is promised, by simulation: errors, intervals, the limit of the stopping time; and what breaks it."""

import math

import numpy as np
import pytest

from seedbed.estimators import ChangePointBandit, characteristic_time, simulate_policy
from seedbed.estimators.change_point_bandit.engine import Engine
from seedbed.estimators.change_point_bandit.thresholds import log_e_value


def steps(levels, length):
    return np.repeat(np.asarray(levels, dtype=float), length)


def allowed(delta, runs, deviations=3):
    return delta * runs + deviations * math.sqrt(runs * delta * (1 - delta))


# --- errors


@pytest.mark.parametrize("c", [0.25, 1.0])
def test_errors_stay_below_delta(c):
    found = simulate_policy(
        steps([0, 0.4], 10), ChangePointBandit(delta=0.1, forced_exploration=c), n_runs=1000, random_state=0
    )
    assert found.stopped.all()
    assert found.wrong.sum() <= allowed(0.1, 1000)
    assert found.wrong.sum() > 3, "the rule could be far sharper, or nothing is simulated"
    low, high = found.error_interval
    assert low < found.error_rate < high


def test_what_breaks_it():
    """Without the union over boundaries, and with the rule of thumb, errors are far above delta."""
    instance = steps([0, 0.4], 10)
    lone = lambda left, right, t, n_arms, delta: (
        (1 + 2 / left) * (math.log(1 / delta) + 0.5 * np.log1p(left / 2))
    )
    for rule, statistic in ((lone, "paired"), ("heuristic", "pooled")):
        bandit = ChangePointBandit(delta=0.1, threshold=rule, statistic=statistic)
        if rule == "heuristic":
            with pytest.warns(UserWarning, match="not proven"):
                bandit.start(np.arange(20))
        found = simulate_policy(instance, bandit, n_runs=500, random_state=0)
        assert found.wrong.sum() > 0.15 * 500


@pytest.mark.parametrize(
    "settings",
    [
        {"statistic": "pooled"},
        {"statistic": "pooled", "threshold": "kaufmann-koolen"},
        {"estimator": "pairwise"},
        {"tracking": "C"},
        {"sampling": "elimination"},
        {"sampling": "uniform"},
        {"sampling": "cluster"},
        {"n_change_points": 1, "objective": "any"},
        {"batch_size": 10},
    ],
)
def test_every_certified_rule_keeps_it(settings):
    runs = 60 if settings.get("sampling") == "cluster" else 500
    bandit = ChangePointBandit(delta=0.1, **settings)
    found = simulate_policy(steps([0, 0.8], 6), bandit, n_runs=runs, random_state=1)
    assert found.stopped.all()
    assert found.wrong.sum() <= allowed(0.1, runs)


@pytest.mark.parametrize("sampling", ["track-and-stop", "cluster"])
def test_numeric_targets_with_two_changes(sampling):
    """They keep the promise too; solved targets cost what the closed form does, clusters far more."""
    instance = steps([0, 2, 0], 3)
    bandit = ChangePointBandit(2, sampling=sampling)
    found = simulate_policy(instance, bandit, n_runs=12, random_state=0)
    assert found.stopped.all()
    assert found.wrong.sum() <= allowed(0.05, 12)
    ours = simulate_policy(instance, ChangePointBandit(2), n_runs=200, random_state=0)
    ratio = found.mean_evals / ours.mean_evals
    assert (0.75 < ratio < 1.4) if sampling == "track-and-stop" else ratio > 1.5


@pytest.mark.parametrize(("noise", "means"), [("bernoulli", [0.3, 0.7]), ("uniform", [0.0, 0.6])])
def test_bounded_rewards(noise, means):
    found = simulate_policy(
        np.repeat(means, [8, 7]),
        ChangePointBandit(delta=0.1, sigma=0.5),
        n_runs=1000,
        noise=noise,
        noise_scale=0.5 / math.sqrt(3) if noise == "uniform" else None,
        random_state=0,
    )
    assert found.stopped.all()
    assert found.wrong.sum() <= allowed(0.1, 1000)


def test_unequal_noise():
    sigma = np.repeat([0.5, 1.5], 6)
    bandit = ChangePointBandit(delta=0.1, sigma=sigma, statistic="pooled")
    found = simulate_policy(steps([0, 1], 6), bandit, n_runs=500, random_state=0)
    assert found.stopped.all()
    assert found.wrong.sum() <= allowed(0.1, 500)


def test_any_reports_true_changes():
    instance = steps([0, 1, 0.4, 2], 4)
    for n in (1, 2):
        bandit = ChangePointBandit(n, objective="any", delta=0.1)
        found = simulate_policy(instance, bandit, n_runs=250, random_state=0)
        assert found.stopped.all()
        assert found.wrong.sum() <= allowed(0.1, 250)
        assert found.change_points.shape == (250, n)


def test_all_finds_every_large_jump():
    instance = np.repeat([0.0, 1.0, 2.5], 4)
    bandit = ChangePointBandit(objective="all", min_jump=0.8, delta=0.05)
    found = simulate_policy(instance, bandit, n_runs=300, random_state=0)
    assert found.stopped.all()
    assert found.wrong.sum() <= allowed(0.05, 300)
    assert 700 < found.mean_evals < 950
    nothing = simulate_policy(np.zeros(8), bandit, n_runs=50, random_state=0)
    assert not nothing.change_points.any()


def test_ville():
    """Over 2000 pairs and all boundaries of a flat function, crossings are rare, but not rarer than meant."""
    rng = np.random.default_rng(0)
    runs, n = 1000, np.arange(1, 2001)
    any_boundary = np.zeros(runs, dtype=bool)
    single = np.zeros(runs, dtype=bool)
    before = np.cumsum(rng.standard_normal((runs, 2000), dtype=np.float32), axis=1)
    for b in range(19):
        after = np.cumsum(rng.standard_normal((runs, 2000), dtype=np.float32), axis=1)
        gap = (after - before) / n
        value = log_e_value(n * gap**2 / 4, n, n, 1.0, "paired").max(axis=1)
        any_boundary |= value >= math.log(19 / 0.1)
        if b == 0:
            single = value >= math.log(1 / 0.1)
        before = after
    assert 0.03 <= any_boundary.mean() <= 0.1
    assert 0.03 <= single.mean() <= 0.1 + 3 * math.sqrt(0.09 / runs)


def test_jump_intervals_hold_at_all_times():
    rng = np.random.default_rng(0)
    runs, truth = 500, np.repeat([0.0, 1.0], 4)
    engine = Engine(ChangePointBandit(delta=0.1).rules(8), runs)
    broken = np.zeros(runs, dtype=bool)
    for _ in range(300):
        arms = engine.choose()
        engine.observe(arms, truth[arms] + rng.normal(size=runs))
        gap, radius = engine.jumps()
        broken |= (np.abs(gap - np.diff(truth)) > radius).any(axis=1)
    assert broken.sum() <= allowed(0.1, runs)
    assert broken.sum() > 0


# --- stopping times


def ratio(instance, n, delta, runs, c=0.25):
    bandit = ChangePointBandit(n, delta=delta, forced_exploration=c)
    found = simulate_policy(instance, bandit, n_runs=runs, random_state=0)
    assert found.stopped.all()
    return found.mean_evals / (characteristic_time(instance) * math.log(1 / delta))


@pytest.mark.parametrize(("n", "instance"), [(1, steps([0, 1], 5)), (2, steps([0, 1, 0], [3, 4, 3]))])
def test_stopping_times_approach_the_limit(n, instance):
    runs = 150 if n == 1 else 12
    found = [ratio(instance, n, delta, runs) for delta in (1e-2, 1e-10, 1e-50, 1e-300)]
    assert found == sorted(found, reverse=True)
    assert 1 <= found[-1] <= 1.05
    assert found[1] < 1.6


def test_three_changes_approach_the_limit_too():
    assert 1 <= ratio(steps([0, 1, 0, 1], 3), 3, 1e-300, 4) <= 1.05


def test_samples_go_where_they_should():
    """Jumps of 1 and 2: four arms, and four times the samples at the smaller jump."""
    bandit = ChangePointBandit(2, delta=1e-100)
    counts = simulate_policy(np.repeat([0.0, 1.0, 3.0], 4), bandit, n_runs=20, random_state=0).counts
    near = counts[:, [3, 4, 7, 8]]
    assert near.sum() / counts.sum() > 0.94
    assert 3.7 <= (near[:, :2].sum(axis=1) / near[:, 2:].sum(axis=1)).mean() <= 5.2


def test_far_fewer_queries_than_uniform():
    for k, share in ((20, 0.5), (50, 0.25)):
        instance = steps([0, 1], k // 2)
        ours = simulate_policy(instance, n_runs=200, random_state=0).mean_evals
        uniform = simulate_policy(
            instance, ChangePointBandit(sampling="uniform"), n_runs=200, random_state=0
        ).mean_evals
        assert ours < share * uniform


def test_the_number_of_points_matters_less_and_less():
    """Ten times the points cost 1.7 times the queries at delta = 1e-100, 1.35 times at 1e-300."""

    def more(delta, runs):
        bandit = ChangePointBandit(delta=delta)
        few, many = (
            simulate_policy(steps([0, 1], k // 2), bandit, n_runs=runs, random_state=0).mean_evals
            for k in (10, 100)
        )
        return many / few

    loose, strict = more(1e-30, 20), more(1e-100, 20)
    assert 1.5 < strict < 1.9
    assert strict < 0.8 * loose


def test_batches_cost_queries_and_save_rounds():
    instance = steps([0, 1], 10)
    found = {
        size: simulate_policy(instance, ChangePointBandit(batch_size=size), n_runs=200, random_state=0)
        for size in (1, 5, 20, 50)
    }
    queries = [found[size].mean_evals for size in found]
    rounds = [found[size].n_rounds.mean() for size in found]
    assert queries == sorted(queries)
    assert queries[-1] < 2 * queries[0]
    assert rounds == sorted(rounds, reverse=True)
    assert rounds[-1] < 6
    assert all((found[size].n_evals == size * found[size].n_rounds).all() for size in found)
    assert sum(int(one.wrong.sum()) for one in found.values()) <= allowed(0.05, 800)


def test_jobs_and_order_do_not_matter():
    """Two processes give what one does."""
    one = simulate_policy(steps([0, 1], 5), n_runs=600, n_jobs=1, random_state=7)
    two = simulate_policy(steps([0, 1], 5), n_runs=600, n_jobs=2, random_state=7)
    np.testing.assert_array_equal(one.n_evals, two.n_evals)
    np.testing.assert_array_equal(one.change_points, two.change_points)
    assert len(set(one.n_evals[:250].tolist()) - set(one.n_evals[250:500].tolist())) > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"n_change_points": 2},
        {"n_change_points": 2, "tracking": "C"},
        {"n_change_points": 2, "batch_size": 3, "tracking": "C"},
        {"n_change_points": 2, "estimator": "pairwise", "delta": 1e-5},
        {"objective": "any", "statistic": "pooled"},
        {"objective": "any", "statistic": "pooled", "threshold": "kaufmann-koolen"},
        {"objective": "all", "min_jump": 1.0},
        {"objective": "any", "sampling": "elimination"},
        {"n_change_points": 2, "sampling": "cluster"},
        {"n_change_points": 2, "sampling": "track-and-stop"},
    ],
)
def test_a_simulation_is_a_session(settings):
    """Every run of a simulation is what ChangePointBandit would have done with the same rewards."""
    truth = 1.5 * steps([0, 1, 0], 4)
    found = simulate_policy(truth, ChangePointBandit(**settings), n_runs=1, random_state=3)
    rng = np.random.default_rng(np.random.SeedSequence(3).spawn(1)[0])
    model = ChangePointBandit(**settings).start(np.arange(12))
    rounds = 0
    while not model.done:
        arms = model.ask()[:, 0].astype(int)
        model.tell(arms, truth[arms] + rng.standard_normal(len(arms)))
        rounds += 1
    assert (found.n_evals[0], found.n_rounds[0]) == (model.n_evals_, rounds)
    assert found.counts[0].tolist() == model.counts_.tolist()
    report = np.flatnonzero(found.change_points[0]) if "min_jump" in settings else found.change_points[0]
    assert report.tolist() == model.change_points_.tolist()


def test_runs_that_are_given_up():
    found = simulate_policy(steps([0, 0.01], 4), n_runs=10, max_evals=50, random_state=0)
    assert not found.stopped.any()
    assert not found.wrong.any()
    assert (found.n_evals == 50).all()
    bandit = ChangePointBandit(max_evals=30, batch_size=8)
    assert (simulate_policy(steps([0, 0.01], 4), bandit, n_runs=3, random_state=0).n_evals == 30).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n_runs": 0}, "n_runs"), ({"max_evals": 0}, "max_evals"), ({"noise": "loud"}, "noise")],
)
def test_simulations_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        simulate_policy(steps([0, 1], 4), **options)
    with pytest.raises(ValueError, match="means"):
        simulate_policy([np.nan, 0.0])
    with pytest.raises(ValueError, match="2 changes or more"):
        simulate_policy(steps([0, 1], 4), ChangePointBandit(2))
    with pytest.raises(ValueError, match="levels"):
        simulate_policy([0.0, 2.0], noise="bernoulli")
