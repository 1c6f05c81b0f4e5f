"""Sessions: ask and tell, batches, resuming, data that are already there, and what is refused."""

import json
import math
import pickle
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from references.change_point_bandit import PlainMCPI
from seedbed.datasets import PiecewiseConstantBandit, load_nile_bandit, make_piecewise_constant_bandit
from seedbed.estimators import (
    ChangePointBandit,
    ChangePointBanditDisplay,
    noisy_binary_search,
    sequential_halving,
)
from seedbed.estimators.change_point_bandit import engine

mpl.use("agg")


def drive(model, bandit, limit=4000):
    """Ask and tell until done; the arms in order."""
    asked = []
    while not model.done and len(asked) < limit:
        x = model.ask()
        asked += x[:, 0].astype(int).tolist()
        model.tell(x, bandit(x))
    return asked


# --- the rule itself


@pytest.mark.parametrize(
    ("n", "settings"),
    [
        (1, {}),
        (1, {"estimator": "pairwise"}),
        (1, {"forced_exploration": 1.0}),
        (1, {"tracking": "C"}),
        (1, {"batch_size": 4}),
        (2, {"delta": 1e-4}),
        (2, {"delta": 1e-4, "tracking": "C", "forced_exploration": 0.0}),
        (2, {"delta": 1e-4, "estimator": "pairwise"}),
        (2, {"delta": 1e-4, "batch_size": 3, "tracking": "C"}),
    ],
)
def test_equals_the_plain_reading(n, settings):
    for seed in range(3):
        rewards = np.random.default_rng(seed).normal(size=(9, 2000)) + np.repeat([0, 1.2, 0], 3)[:, None]
        plain = PlainMCPI(
            9,
            n,
            settings.get("delta", 0.05),
            c=settings.get("forced_exploration", 0.25),
            estimator=settings.get("estimator", "segmentation"),
            tracking=settings.get("tracking", "D"),
            batch=settings.get("batch_size", 1),
        )
        model = ChangePointBandit(n, **settings).start(np.arange(9))
        for _ in range(120):
            arms = plain.round()
            assert model.done == (not arms)
            if model.done:
                break
            assert model.ask()[:, 0].tolist() == arms
            y = []
            for arm in arms:
                y.append(rewards[arm, len(plain.rewards[arm])])
                plain.rewards[arm].append(y[-1])
            model.tell(arms, y)
        for b in range(8):
            if plain.rewards[b] and plain.rewards[b + 1]:
                assert model.log_e_values_[b] == pytest.approx(plain.log_e(b), abs=1e-9)


def test_the_worked_example():
    counts, means = [3, 4, 6, 5, 4, 2], [0.1, -0.2, 1.3, 0.9, 1.1, -0.4]
    model = ChangePointBandit(2, delta=0.05).start(np.arange(6))
    for arm, (n, mean) in enumerate(zip(counts, means)):
        model.tell(np.full(n, arm), np.full(n, mean))
    assert model.change_points_.tolist() == [1, 4]
    np.testing.assert_allclose(model.sampling_weights_, [0, 0.25, 0.25, 0, 0.25, 0.25])
    assert model.ask().tolist() == [[5]]
    assert model.log_e_values_[1] == pytest.approx(0.950694, abs=1e-6)  # four pairs, difference 1.5
    assert model.p_values_[1] == 1.0
    assert model.characteristic_time_ == pytest.approx(16 / 2.25)
    pooled = ChangePointBandit(2, statistic="pooled").start(np.arange(6))
    for arm, (n, mean) in enumerate(zip(counts, means)):
        pooled.tell(np.full(n, arm), np.full(n, mean))
    z, left, right = pooled._engine._statistics(np.array([0, 0]), np.array([1, 4]))
    np.testing.assert_allclose(z, [2.7, 1.5])
    assert (left.tolist(), right.tolist()) == ([4, 4], [6, 2])


@pytest.mark.parametrize("tracking", ["D", "C"])
def test_counts_track_fixed_targets(tracking):
    """Estimates that do not move leave fixed targets; counts stay within K of them."""
    model = ChangePointBandit(
        2, objective="exact", tracking=tracking, forced_exploration=0.0, delta=1e-300
    ).start(np.arange(12))
    truth = np.repeat([0.0, 1.0, 3.0], 4)
    model.tell(np.arange(12), truth)
    for _ in range(400):
        x = model.ask()
        model.tell(x, truth[x[:, 0].astype(int)])
        if tracking == "D":
            assert np.abs(model.counts_ - model.n_evals_ * model.sampling_weights_).max() <= 12
    gap = model.counts_ - model.n_evals_ * model.sampling_weights_
    assert np.abs(gap).max() <= 12
    np.testing.assert_allclose(model.sampling_weights_[[3, 4, 7, 8]], [0.4, 0.4, 0.1, 0.1])


def test_c_tracking_follows_targets_that_move():
    """Counts stay within K of the sum of all targets so far, though the estimates wander."""
    rng = np.random.default_rng(0)
    model = ChangePointBandit(tracking="C", forced_exploration=0.0, delta=1e-300).start(np.arange(8))
    model.tell(np.arange(8), rng.normal(size=8))
    wanted = np.zeros(8)
    seen = set()
    for _ in range(300):
        wanted += model.sampling_weights_
        seen.add(int(model.change_points_[0]))
        x = model.ask()
        model.tell(x, rng.normal(size=1))
        assert np.abs(model.counts_ - 1 - wanted).max() <= 8
    assert len(seen) > 2


def test_invariances():
    def run(scale=1.0, offset=0.0, mirror=False):
        bandit = PiecewiseConstantBandit([0, 1.5, 0.4], [3, 8], 12, random_state=None)
        noise = np.random.default_rng(0).normal(size=(12, 3000))
        seen = np.zeros(12, dtype=int)
        model = ChangePointBandit(2, sigma=scale, delta=1e-3).start(np.arange(12))
        asked = []
        while not model.done:
            arm = int(model.ask()[0, 0])
            place = 11 - arm if mirror else arm
            y = bandit.means[place] + noise[place, seen[place]]
            seen[place] += 1
            asked.append(arm)
            model.tell([arm], [scale * y + offset])
        return asked, model.change_points_.tolist()

    plain = run()
    assert run(scale=7.0) == plain
    assert run(offset=100.0) == plain
    assert run(mirror=True)[1] == [10 - b for b in plain[1][::-1]]


# --- batches, order, resuming


def test_a_batch_spreads_over_equal_targets():
    model = ChangePointBandit(delta=1e-6).start(np.arange(10))
    assert model.ask(10)[:, 0].tolist() == list(range(10))
    model.tell(np.arange(10), np.repeat([0.0, 1.0], 5))
    batch = model.ask(6)[:, 0]
    assert sorted(set(batch.tolist())) == [4, 5]
    assert {batch.tolist().count(4), batch.tolist().count(5)} == {3}


def test_one_by_one_equals_batches_of_one():
    def run(**settings):
        return drive(
            ChangePointBandit(**settings).start(np.arange(20)), make_piecewise_constant_bandit(random_state=3)
        )

    assert run() == run(batch_size=1)
    assert len(run(batch_size=20)) >= len(run())


def test_pending_results_come_in_any_order():
    truth = np.repeat([0.0, 1.0], 5)
    one, other = (ChangePointBandit(delta=1e-6).start(np.arange(10)) for _ in range(2))
    x = one.ask(10)
    other.ask(10)
    y = truth + np.random.default_rng(0).normal(size=10)
    one.tell(x, y)
    order = np.random.default_rng(1).permutation(10)
    for part in (order[:4], order[4:]):
        other.tell(x[part], y[part])
    np.testing.assert_array_equal(one.counts_, other.counts_)
    np.testing.assert_allclose(one.means_, other.means_)
    np.testing.assert_allclose(one.log_e_values_, other.log_e_values_)
    assert one.ask().tolist() == other.ask().tolist()


def test_answers_that_nobody_asked_for():
    model = ChangePointBandit().start([0.0, 1.0, 2.0])
    model.tell([2.0, 2.0, 0.0], [1.0, 1.0, 0.0])
    assert model.ask().tolist() == [[1.0]]
    assert model.counts_.tolist() == [1, 0, 2]
    assert np.isnan(model.means_[1])
    assert len(model.change_points_) == 0
    assert model.confidence_ == 0


RESUMED = {
    "default": ({}, 300),
    "C": ({"tracking": "C"}, 300),
    "two": ({"n_change_points": 2, "batch_size": 2}, 60),
    "pooled": ({"statistic": "pooled", "sampling": "elimination"}, 100),
    "all": ({"objective": "all", "min_jump": 0.8}, 100),
    "track-and-stop": ({"n_change_points": 2, "sampling": "track-and-stop"}, 60),
    "cluster": ({"sampling": "cluster"}, 60),
    "stale": ({"n_change_points": 2}, 150),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_session_equals_an_uninterrupted_one(name, tmp_path, monkeypatch):
    settings, steps = RESUMED[name]
    settings = {"delta": 1e-12, **settings}
    if name == "stale":
        monkeypatch.setattr(engine, "MANY_ARMS", 5)
        monkeypatch.setattr(engine, "GROWTH", 1.1)
    bandit = make_piecewise_constant_bandit(2, n_arms=12, random_state=None)
    noise = np.random.default_rng(0).normal(size=(steps, 2))
    whole, broken = (ChangePointBandit(**settings).start(bandit.domain) for _ in range(2))
    path = tmp_path / "session.json"
    for step in range(steps):
        if whole.done:
            break
        x = whole.ask()
        assert broken.ask().tolist() == x.tolist()
        if step % 3 == 0:  # with an answer outstanding
            broken.save(path)
            broken = ChangePointBandit(**settings).load(path)
        y = bandit.means[x[:, 0].astype(int)] + noise[step, : len(x)]
        whole.tell(x, y)
        broken.tell(x, y)
        broken = ChangePointBandit(**settings).load_state_dict(json.loads(json.dumps(broken.state_dict())))
    assert step > 40
    assert broken.done == whole.done
    for attribute in ("counts_", "means_", "log_e_values_", "p_values_", "change_points_", "history_",
                      "cleared_", "stopping_curve_", "jump_intervals_", "levels_"):  # fmt: skip
        mine, its = getattr(whole, attribute), getattr(broken, attribute)
        np.testing.assert_array_equal(mine, its, err_msg=attribute)


def test_a_resumed_session_knows_what_it_asked_for():
    bandit = make_piecewise_constant_bandit(n_arms=6, random_state=0)
    model = ChangePointBandit().start(bandit.domain)
    model.ask(4)
    twin = ChangePointBandit().load_state_dict(model.state_dict())
    assert twin.ask(3)[:, 0].tolist() == model.ask(3)[:, 0].tolist() == [4, 5, 0]
    twin.tell([0, 0, 0], [0.0, 0.0, 0.0])  # two of these were asked for
    assert twin.ask(2)[:, 0].tolist() == [1, 2]


def test_many_arms_are_segmented_now_and_then(monkeypatch):
    """Estimates are renewed as rewards have grown by one percent; nothing reported rests on them."""
    calls = []
    real = engine.least_squares_changes
    monkeypatch.setattr(
        engine, "least_squares_changes", lambda c, s, n: calls.append(c.sum()) or real(c, s, n)
    )
    bandit = make_piecewise_constant_bandit(2, n_arms=300, jump=6.0, random_state=0)
    model = ChangePointBandit(2).fit(bandit)
    assert model.change_points_.tolist() == bandit.change_points.tolist()
    assert len(calls) >= 2
    assert all(later >= 1.01 * before for before, later in pairwise(calls))
    calls.clear()
    ChangePointBandit(2).fit(make_piecewise_constant_bandit(2, n_arms=40, jump=4.0, random_state=0))
    assert any(later == before + 1 for before, later in pairwise(calls))


def test_states_of_others_are_refused(tmp_path):
    model = ChangePointBandit().start(np.arange(5)).tell([0.0, 1.0], [1.0, 2.0])
    state = model.state_dict()
    with pytest.raises(ValueError, match="other parameters"):
        ChangePointBandit(delta=0.1).load_state_dict(state)
    with pytest.raises(ValueError, match="version"):
        ChangePointBandit().load_state_dict({**state, "version": 99})
    with pytest.raises(ValueError, match="version"):
        ChangePointBandit().load_state_dict([])
    damages = {
        "arms": [0, 9],
        "rewards": [1.0, math.nan],
        "domain": [3, 2, 1, 0, 5],
        "pending": "x",
        "rounds": [1, 0],
        "tracked": [0.0] * 4 + [math.inf],
        "fitted": [2, [4]],
        "curve": [[1.0]],
    }
    pairs = [("arms", [0]), ("fitted", [2, [1, 2]]), ("fitted", [9, [1]]), ("pending", [0.5] + [0.0] * 4),
             ("rewards", [1.0, 1e200]), ("domain", [0, 1, 2, 3, math.inf])]  # fmt: skip
    for key, value in [*pairs, *damages.items()]:
        with pytest.raises(ValueError, match="damaged"):
            ChangePointBandit().load_state_dict({**state, key: value})
    with pytest.raises(ValueError, match="damaged"):
        ChangePointBandit().load_state_dict({k: v for k, v in state.items() if k != "domain"})
    path = tmp_path / "noise"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="no saved session"):
        ChangePointBandit().load(path)
    model.save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert ChangePointBandit(verbose=1, max_evals=7).load(path).counts_.tolist() == [1, 1, 0, 0, 0]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "session.json"
    model = ChangePointBandit().start(np.arange(5))
    model.save(path)
    before = path.read_text(encoding="utf-8")
    model.tell([0.0], [1.0])

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="disk full"):
        model.save(path)
    assert path.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


# --- oracles


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_oracle_loses_nothing(error):
    bandit = make_piecewise_constant_bandit(random_state=0)

    def oracle(x):
        if bandit.n_queries == 30:
            raise error
        return bandit(x)

    model = ChangePointBandit()
    with pytest.raises(error):
        model.fit(bandit.domain, oracle=oracle)
    assert model.n_evals_ == 30
    assert not model.done
    asked = drive(model, bandit)
    assert model.done
    whole = ChangePointBandit().fit(make_piecewise_constant_bandit(random_state=0))
    assert len(asked) + 30 == whole.n_evals_
    np.testing.assert_array_equal(model.history_["arm"], whole.history_["arm"])
    np.testing.assert_array_equal(model.history_["y"], whole.history_["y"])


def test_an_environment_is_oracle_and_domain():
    bandit = load_nile_bandit(random_state=1)
    model = ChangePointBandit(sigma=bandit.sigma, forced_exploration=0.1).fit(bandit)
    assert model.stopped_
    assert model.certified_
    assert model.change_intervals_.tolist() == [[1898.0, 1899.0]]
    assert model.confidence_ >= 0.95
    low, high = model.jump_intervals_[0]
    assert low < bandit.means[-1] - bandit.means[0] < high
    assert model.predict([1870, 1898, 1898.5, 1899, 2000]).tolist() == pytest.approx(
        [model.levels_[0]] * 3 + [model.levels_[1]] * 2
    )


def test_the_last_query():
    bandit = make_piecewise_constant_bandit(jump=0.01, random_state=0)
    model = ChangePointBandit(max_evals=50, batch_size=8).fit(bandit)
    assert (model.n_evals_, bandit.n_queries) == (50, 50)
    assert not model.stopped_
    assert not model.certified_
    assert model.confidence_ < 0.95
    assert len(model.change_points_) == 1


@pytest.mark.parametrize("returned", ["text", [1.0, 2.0], [[1.0]], None, [object()]])
def test_oracles_that_return_something_else(returned):
    with pytest.raises(TypeError, match="oracle must return"):
        ChangePointBandit().fit([0.0, 1.0, 2.0], oracle=lambda _: returned)


def test_an_oracle_that_returns_nan():
    model = ChangePointBandit()
    with pytest.raises(ValueError, match="finite"):
        model.fit([0.0, 1.0, 2.0], oracle=lambda x: np.full(len(x), np.nan))
    assert model.n_evals_ == 0


# --- data that are there


def test_fit_equals_tell():
    rng = np.random.default_rng(0)
    x = rng.permutation(np.repeat(np.arange(8), 12)).astype(float)
    y = (x > 4) + rng.normal(size=len(x))
    fitted = ChangePointBandit().fit(x, y)
    told = ChangePointBandit().start(np.arange(8))
    for place in range(len(x)):
        told.tell(x[place : place + 1], y[place : place + 1])
    for name in ("counts_", "means_", "log_e_values_", "p_values_", "change_points_", "levels_"):
        np.testing.assert_array_equal(getattr(fitted, name), getattr(told, name), err_msg=name)
    streamed = ChangePointBandit().partial_fit(x[:40], y[:40]).partial_fit(x[40:], y[40:])
    np.testing.assert_array_equal(streamed.p_values_, fitted.p_values_)
    column = ChangePointBandit().fit(x[:, None], y)
    np.testing.assert_array_equal(column.p_values_, fitted.p_values_)
    series = ChangePointBandit().fit(pd.Series(x), pd.Series(y))
    np.testing.assert_array_equal(series.p_values_, fitted.p_values_)


def test_in_a_pipeline_and_a_grid_search():
    rng = np.random.default_rng(0)
    X = rng.permutation(np.repeat(np.arange(12.0), 20))[:, None]
    y = np.repeat([0.0, 3.0, 0.0], 4)[X[:, 0].astype(int)] + rng.normal(size=len(X))
    search = GridSearchCV(ChangePointBandit(), {"n_change_points": [1, 2]}, cv=3).fit(X, y)
    assert search.best_params_ == {"n_change_points": 2}
    assert search.best_estimator_.change_points_.tolist() == [3, 7]
    scaled = make_pipeline(StandardScaler(), ChangePointBandit(2)).fit(X, y)
    np.testing.assert_array_equal(scaled.predict(X), search.predict(X))
    assert scaled.score(X, y) == pytest.approx(search.score(X, y))


def test_copies_go_on_as_the_original():
    bandit = make_piecewise_constant_bandit(random_state=0)
    model = ChangePointBandit().start(bandit.domain)
    for _ in range(25):
        x = model.ask()
        model.tell(x, bandit(x))
    twin = pickle.loads(pickle.dumps(model))
    assert twin.ask().tolist() == model.ask().tolist()
    assert not hasattr(clone(model), "domain_")


# --- what is known beforehand, and what is refused


@pytest.mark.parametrize(("k", "n"), [(2, 1), (5, 4)])
def test_nothing_to_find_out(k, n):
    model = ChangePointBandit(n).start(np.arange(k))
    assert model.done
    assert model.certified_
    assert model.n_evals_ == 0
    assert model.change_points_.tolist() == list(range(n))
    assert model.confidence_ == 1
    assert ChangePointBandit(n).fit(np.arange(k), oracle=lambda x: 1 / 0).n_evals_ == 0
    with pytest.raises(NotFittedError, match="no reward yet"):
        model.predict([0.0])
    assert not ChangePointBandit(n, objective="any").start(np.arange(k)).done


def test_asking_when_done():
    model = ChangePointBandit().fit(make_piecewise_constant_bandit(jump=3.0, random_state=0))
    with pytest.raises(RuntimeError, match="done"):
        model.ask()
    assert model.ask(force=True).shape == (1, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"sigma": [1.0, 2.0]}, "sigma"),
        ({"sigma": [1.0, 1.0, 2.0, 1.0, 1.0]}, "statistic='paired'"),
        ({"n_change_points": 0}, "n_change_points"),
        ({"n_change_points": 5}, "n_change_points"),
        ({"objective": "all"}, "min_jump"),
        ({"min_jump": 1.0}, "min_jump"),
        ({"objective": "all", "min_jump": 0.0}, "min_jump"),
        ({"threshold": "hope"}, "threshold"),
        ({"sampling": "hope"}, "sampling"),
        ({"estimator": "hope"}, "estimator"),
        ({"kappa": 0.0}, "kappa"),
    ],
)
def test_parameters_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        ChangePointBandit(**settings).start(np.arange(5))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.ones((4, 2)), "one column"),
        ([0.0, 1.0, 1.0], "comes twice"),
        ([0.0, math.nan], "NaN"),
        ([0.0, math.inf], "infinity"),
        ([1.0], "minimum of 2"),
    ],
)
def test_candidate_points_are_checked(points, message):
    with pytest.raises(ValueError, match=message):
        ChangePointBandit().start(points)


def test_points_are_sorted():
    assert ChangePointBandit().start([3.0, 1.0, 2.0]).domain_.tolist() == [1, 2, 3]


def test_what_is_told_is_checked():
    fresh = ChangePointBandit()
    for call in (fresh.ask, lambda: fresh.tell([0.0], [0.0]), lambda: fresh.done, fresh.state_dict):
        with pytest.raises(NotFittedError):
            call()
    model = ChangePointBandit().start(np.arange(5.0))
    with pytest.raises(ValueError, match=r"not in the domain; nearest are \[2.0, 3.0\]"):
        model.tell([2.4], [0.0])
    with pytest.raises(ValueError, match="finite"):
        model.tell([1.0, 2.0], [0.0, math.nan])
    with pytest.raises(ValueError, match="at most 1e"):
        model.tell([1.0], [1e200])
    with pytest.raises(ValueError, match="same length"):
        model.tell([1.0, 2.0], [0.0])
    with pytest.raises(ValueError, match="n_points"):
        model.ask(0)
    assert model.n_evals_ == 0
    with pytest.raises(ValueError, match="oracle"):
        ChangePointBandit().fit([0.0, 1.0], [0.0, 1.0], oracle=lambda x: x)
    with pytest.raises(TypeError, match="oracle must be callable"):
        ChangePointBandit().fit([0.0, 1.0, 2.0], oracle=3)
    with pytest.raises(ValueError, match="y must be given"):
        ChangePointBandit().fit([0.0, 1.0, 2.0])


@pytest.mark.parametrize("threshold", ["heuristic", "garivier-kaufmann"])
def test_rules_without_a_proof_say_so(threshold):
    bandit = make_piecewise_constant_bandit(jump=3.0, random_state=0)
    with pytest.warns(UserWarning, match="not proven"):
        model = ChangePointBandit(threshold=threshold, statistic="pooled").fit(bandit)
    assert model.stopped_
    assert not model.certified_


def test_a_threshold_of_ones_own():
    seen = []

    def rule(left, right, t, n_arms, delta):
        seen.append((t, n_arms, delta))
        return np.full(np.shape(left), 5.0)

    model = ChangePointBandit(threshold=rule, delta=0.2).fit(
        make_piecewise_constant_bandit(jump=3.0, random_state=0)
    )
    assert model.stopped_
    assert not model.certified_
    assert seen[-1][1:] == (20, 0.2)


def test_the_threshold_counts_for_every_jump_too():
    """With objective="all" the named rule accepts and clears; a rule without a proof certifies nothing."""

    def run(**settings):
        bandit = PiecewiseConstantBandit([0.0, 2.0], [3], 8, random_state=0)
        return ChangePointBandit(objective="all", min_jump=1.0, statistic="pooled", **settings).fit(bandit)

    plain, strict = run(), run(threshold="kaufmann-koolen")
    with pytest.warns(UserWarning, match="not proven"):
        loose = run(threshold="heuristic")
    assert loose.n_evals_ < plain.n_evals_ < strict.n_evals_
    assert (plain.certified_, strict.certified_, loose.certified_) == (True, True, False)
    assert strict.change_points_.tolist() == [3]
    assert strict.cleared_.tolist() == [True] * 3 + [False] + [True] * 3


# --- baselines, data, plot


def test_baselines_find_a_large_jump():
    for change in (0, 6, 14):
        rng = np.random.default_rng(change)
        oracle = lambda arms, change=change, rng=rng: 4.0 * (arms > change) + rng.normal(size=len(arms))
        assert noisy_binary_search(oracle, 16).change_point == change
        found = sequential_halving(oracle, 16, 640)
        assert found.change_point == change
        assert found.n_evals <= 640
    assert not noisy_binary_search(lambda arms: 0.0 * arms, 16, max_evals=100).stopped
    with pytest.raises(ValueError, match="budget"):
        sequential_halving(lambda arms: 0.0 * arms, 16, 20)
    with pytest.raises(ValueError, match="delta"):
        noisy_binary_search(lambda arms: 0.0 * arms, 16, delta=2.0)


@pytest.mark.parametrize("noise", ["gaussian", "bernoulli", "uniform"])
def test_the_environment(noise):
    bandit = PiecewiseConstantBandit([0.3, 0.7], [1], 4, sigma=0.5, noise=noise, random_state=0)
    y = bandit(np.repeat([0, 3], 20_000))
    assert y[:20_000].mean() == pytest.approx(0.3, abs=0.02)
    assert y[20_000:].mean() == pytest.approx(0.7, abs=0.02)
    spread = math.sqrt(0.21) if noise == "bernoulli" else 0.5
    assert y[:20_000].std() == pytest.approx(spread, rel=0.02)
    assert bandit.n_queries == 40_000
    with pytest.raises(ValueError, match="domain"):
        bandit([0.5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0], [1], 4), "levels"),
        (([0.0, 1.0], [3], 4), "change_points"),
        (([0.0, 1.0], [0.5], 4), "change_points"),
        (([0.0, 1.0, 0.0], [2, 1], 4), "increase"),
        (([1.0, 1.0], [1], 4), "differ"),
        (([0.0, 1.0], [1], 4, 0.0), "sigma"),
        (([0.0, 2.0], [1], 4, 1.0, "bernoulli"), "levels"),
        (([0.0, 1.0], [1], 4, 1.0, "loud"), "noise"),
    ],
)
def test_environments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        PiecewiseConstantBandit(*arguments)


def test_default_places():
    places = [make_piecewise_constant_bandit(n).change_points.tolist() for n in (1, 2, 3)]
    assert places == [[9], [4, 14], [2, 9, 15]]
    bandit = make_piecewise_constant_bandit(3, levels=[0, 1, 0, 0.5], n_arms=12)
    assert bandit.means.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0.5, 0.5]
    for n_arms in range(2, 30):
        for n in range(1, max(n_arms // 2, 1) + 1):
            assert len(set(make_piecewise_constant_bandit(n, n_arms=n_arms).change_points.tolist())) == n
    with pytest.raises(ValueError, match="n_change_points"):
        make_piecewise_constant_bandit(5, n_arms=8)
    with pytest.raises(ValueError, match="jump"):
        make_piecewise_constant_bandit(jump=0)
    with pytest.raises(ValueError, match="levels"):
        make_piecewise_constant_bandit(levels=[0, 1, 2])


def test_the_nile():
    nile = load_nile_bandit(random_state=0)
    assert nile.change_points.tolist() == [27]
    assert nile.means[[0, -1]] == pytest.approx([1097.75, 849.97], abs=0.01)
    assert nile.sigma == pytest.approx(127.67, abs=0.01)
    assert (nile.means[0] - nile.means[-1]) / nile.sigma == pytest.approx(1.9407, abs=1e-4)
    fitted = ChangePointBandit(sigma=nile.sigma).fit(nile.domain, nile.series)
    assert fitted.change_intervals_.tolist() == [[1898.0, 1899.0]]


def test_the_plot():
    import matplotlib.pyplot as plt

    model = ChangePointBandit(2).fit(make_piecewise_constant_bandit(2, jump=2.0, random_state=0))
    display = ChangePointBanditDisplay.from_estimator(model, name="found")
    assert len(display.levels_lines_) == 3
    np.testing.assert_allclose(display.points_.get_offsets()[:, 1], model.means_)
    np.testing.assert_array_equal(display.curve_ax_.lines[0].get_ydata(), model.stopping_curve_[:, 1])
    assert display.curve_ax_.lines[1].get_ydata()[0] == pytest.approx(math.log(19 / 0.05))
    assert display.ax_.get_title() == "found"
    plt.close("all")
    with pytest.raises(NotFittedError):
        ChangePointBanditDisplay.from_estimator(ChangePointBandit())
