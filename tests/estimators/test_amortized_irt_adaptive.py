"""Adaptive tests: which item comes next, when it ends, sessions that go on, and measured lengths."""

import json
import math
import time

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from references import amortized_irt_abilities as reference
from seedbed.datasets import load_swedish_sat
from seedbed.estimators import (
    AdaptiveTest,
    Items,
    TwoPLModel,
    empirical_reliability,
    estimate_ability,
    simulate_responses,
)
from seedbed.estimators.amortized_irt.selection import SELECTIONS, Bank, uniforms

METHODS = ("map", "eap", "mle", "wle")


def bank(n_items=200, seed=0, kind="rasch"):
    rng = np.random.default_rng(seed)
    b, a, c = rng.normal(size=n_items), np.exp(0.3 * rng.normal(size=n_items)), rng.uniform(0, 0.3, n_items)
    return {"rasch": Items.of(b), "2pl": Items.of(b, a), "3pl": Items.of(b, a, c)}[kind]


def answers_of(items, theta=0.4, seed=1):
    return simulate_responses([theta], items, random_state=seed)[0]


def course(test):
    return test.trajectory_["item"].tolist()


@pytest.mark.parametrize("kind", ["rasch", "2pl", "3pl"])
def test_equals_the_plain_loop(kind):
    items = bank(60, kind=kind)
    y = answers_of(items)
    test = AdaptiveTest(items, max_items=12).run(lambda asked: y[asked])
    chosen, path = reference.adaptive_test(y, items.discrimination, items.difficulty, items.guessing, 1.0, 12)
    assert course(test) == chosen
    np.testing.assert_allclose(test.trajectory_["theta"], path, atol=1e-5)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("kind", ["rasch", "3pl"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_asking_one_by_one_equals_simulation_and_no_item_comes_twice(selection, kind, batch_size):
    items = bank(90, kind=kind)
    y = simulate_responses([0.4, -2.0, 1.0, 0.0, 2.5], items, random_state=1)
    test = AdaptiveTest(items, selection=selection, max_items=22, random_state=5, randomesque=3)
    many = test.simulate(y, batch_size=batch_size)
    assert (many.n_items == 22).all()
    for row in many.item:
        assert len(set(row.tolist())) == 22
    test.run(lambda asked: y[0, asked], batch_size=batch_size)
    assert course(test) == many.item[0].tolist()
    np.testing.assert_array_equal(test.trajectory_["theta"], many.theta[0])
    np.testing.assert_array_equal(test.trajectory_["se"], many.se[0])
    assert (test.ability_, test.ability_std_) == (many.ability[0], many.ability_std[0])


@pytest.mark.parametrize("estimator", METHODS)
def test_estimates_are_those_of_the_answers(estimator):
    items = bank(80, kind="2pl")
    y = answers_of(items)
    test = AdaptiveTest(items, estimator=estimator, max_items=25).run(lambda asked: y[asked])
    sparse = np.full((1, 80), np.nan)
    sparse[0, course(test)] = y[course(test)]
    found = estimate_ability(sparse, items, method=estimator)
    assert test.ability_ == pytest.approx(found.ability[0], abs=1e-8)
    assert test.ability_std_ == pytest.approx(found.std[0], abs=1e-8)


def test_rasch_asks_the_nearest_difficulty():
    items = bank(500)
    y = answers_of(items)
    test = AdaptiveTest(items, max_items=60)
    while not test.done:
        asked = test.ask()
        distance = np.abs(items.difficulty - test.ability_)
        distance[course(test)] = np.inf
        assert distance[asked[0]] == distance.min()
        test.tell(asked, y[asked])


def test_many_items_are_scanned_exactly():
    """Above a few thousand items the scan is made in single precision first."""
    for kind in ("2pl", "3pl"):
        items = bank(6000, kind=kind)
        test = AdaptiveTest(items, max_items=40)
        y = answers_of(items)
        while not test.done:
            information = items.information([test.ability_])[0]
            information[course(test)] = -1
            asked = test.ask()
            assert asked[0] == information.argmax()
            test.tell(asked, y[asked])
    few = Bank(bank(6000, kind="3pl")).best_single(0.3, np.ones(6000, dtype=bool), 5)
    best = np.argsort(-bank(6000, kind="3pl").information([0.3])[0])[:5]
    assert set(best) <= set(few)
    assert len(few) < 50


@pytest.mark.parametrize("estimator", ["mle", "map"])
@pytest.mark.parametrize("target", [0.3, 0.5])
def test_no_rasch_test_is_shorter_than_four_over_the_squared_error(estimator, target):
    items = Items.of(np.linspace(-3, 3, 2000))
    test = AdaptiveTest(items, estimator=estimator, se_target=target, random_state=0)
    tests = test.simulate(np.linspace(-2, 2, 40))
    bound = math.ceil(4 * (target**-2 - (0 if estimator == "mle" else 1)))
    assert tests.n_items.min() >= bound
    assert tests.n_items.mean() <= 1.25 * bound
    assert (tests.ability_std <= target).all()


def test_reliability_needs_as_many_items_as_it_must():
    """Mean reliability .95 at unit ability variance: 76 Rasch items at the least."""
    tests = AdaptiveTest(
        Items.of(np.linspace(-4, 4, 3000)), reliability_target=0.95, random_state=0
    ).simulate(np.linspace(-2, 2, 40))
    assert tests.n_items.min() >= 76
    assert tests.n_items.max() <= 90
    assert (tests.reliability >= 0.95).all()
    assert set(tests.done_reason) == {"reliability"}


@pytest.mark.parametrize("estimator", METHODS)
def test_reliability_of_one_taker(estimator):
    """With the posterior variance 1 - v / s^2; with the squared error s^2 / (s^2 + e^2)."""
    items = bank(60)
    test = AdaptiveTest(items, estimator=estimator, latent_scale=1.5, max_items=20)
    test.run(lambda asked: items.difficulty[asked] < 0.3)
    share = (test.ability_std_ / 1.5) ** 2
    expected = 1 - share if estimator in ("map", "eap") else 1 / (1 + share)
    assert test.reliability_ == pytest.approx(expected)


def lengths(mean, std, selection, n_repeats):
    """Items to empirical reliability .95, and to a mean standard error of .3."""
    found = []
    for seed in range(n_repeats):
        rng = np.random.default_rng(seed)
        items, theta = Items.of(rng.normal(mean, std, 1000)), rng.normal(size=200)
        test = AdaptiveTest(items, selection=selection, estimator="mle", max_items=230, random_state=seed)
        tests = test.simulate(theta)
        reliable = [empirical_reliability(tests.theta[:, t], tests.se[:, t]) >= 0.95 for t in range(230)]
        found.append((np.argmax(reliable) + 1, np.argmax(tests.se.mean(axis=0) <= 0.3) + 1))
    return np.mean(found, axis=0)


def test_measured_errors_on_one_bank():
    """Mean standard error .3 after 48 adaptive and 65 random items."""
    np.testing.assert_allclose(lengths(0, 1, "mfi", 1)[1], 48, rtol=0.1)
    np.testing.assert_allclose(lengths(0, 1, "random", 1)[1], 65, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mean", "std", "adaptive", "random"),
    [(0, 1, (77, 48), (103, 65)), (0, 2, (77, 49), (129, 80)), (-2, 2, (81, 49), (189, 114))],
)
def test_measured_lengths(mean, std, adaptive, random):
    np.testing.assert_allclose(lengths(mean, std, "mfi", 4), adaptive, rtol=0.1)
    np.testing.assert_allclose(lengths(mean, std, "random", 4), random, rtol=0.1)


@pytest.mark.parametrize(
    ("part", "adaptive", "random"),
    [("quant", (9, 13, 26), (20, 29, 46)), ("verb", (12, 18, 34), (25, 34, 54))],
)
def test_measured_lengths_on_real_answers(part, adaptive, random):
    """Items to reliability .8, .85 and .9 of 1000 takers of the Swedish Scholastic Aptitude Test."""
    X = load_swedish_sat(part).data
    model = TwoPLModel().fit(X)
    for selection, expected in (("mfi", adaptive), ("random", random)):
        test = AdaptiveTest(model, selection=selection, estimator="eap", max_items=60, random_state=0)
        tests = test.simulate(X[:1000])
        rows = ~np.isnan(tests.theta).any(axis=1)
        reliable = [empirical_reliability(tests.theta[rows, t], tests.se[rows, t]) for t in range(60)]
        found = [int(np.argmax(np.array(reliable) >= target)) + 1 for target in (0.8, 0.85, 0.9)]
        np.testing.assert_allclose(found, expected, rtol=0.1)


def test_every_rule_beats_or_equals_random():
    items, theta = bank(250, kind="3pl"), np.random.default_rng(0).normal(size=150)
    error = {}
    for selection in SELECTIONS:
        test = AdaptiveTest(items, selection=selection, estimator="eap", max_items=15, random_state=0)
        error[selection] = np.sqrt(np.mean((test.simulate(theta).ability - theta) ** 2))
    assert max(error["mfi"], error["kl"], error["mepv"]) < 0.9 * error["random"]
    assert error["urry"] < error["random"]


def test_kullback_leibler_and_expected_variance_by_hand():
    items = bank(5, kind="3pl")
    theta, n_answers = np.array([0.3]), 4
    found = Bank(items).kullback_leibler(theta, n_answers)[0]
    for item in range(5):
        plain = reference.kullback_leibler(
            0.3, items.discrimination[item], items.difficulty[item], items.guessing[item], 3 / math.sqrt(4)
        )
        assert found[item] == pytest.approx(plain, rel=1e-4)
    test = AdaptiveTest(bank(60, kind="3pl"), selection="mepv", max_items=6)
    asked = course(test.run(lambda chosen: np.ones(len(chosen)) * (chosen % 2)))
    all_items = bank(60, kind="3pl")
    before = asked[:5]
    y = np.array([item % 2 for item in before], dtype=float)
    past = all_items.take(before)
    values = np.full(60, np.inf)
    for item in range(60):
        if item not in before and (item == asked[5] or item % 6 == 0):
            new = (all_items.discrimination[item], all_items.difficulty[item], all_items.guessing[item])
            values[item] = reference.expected_variance(
                y, past.discrimination, past.difficulty, past.guessing, 0.0, 1.0, new
            )
    assert values[asked[5]] <= values.min() * 1.002  # fifteen nodes against thousands


def test_spanning_covers_the_difficulties_in_any_prefix():
    items = Items.of(np.random.default_rng(0).permutation(np.linspace(-2, 2, 64)))
    test = AdaptiveTest(items, selection="spanning", max_items=16)
    test.run(lambda asked: np.zeros(len(asked)))
    ranks = np.argsort(np.argsort(items.difficulty))[course(test)]
    assert sorted(ranks) == list(range(2, 64, 4))  # (k + 1/2) / 16 of 64 items
    assert sorted(ranks[:4] // 16) == list(range(4))


def test_random_order_is_reproducible_and_uniform():
    items = bank(20)
    tests = [AdaptiveTest(items, selection="random", max_items=5, random_state=seed) for seed in (3, 3, 4)]
    first, again, other = (test.simulate(np.zeros(4000)) for test in tests)
    np.testing.assert_array_equal(first.item, again.item)
    assert (first.item != other.item).any()
    assert len({tuple(row) for row in first.item[:50]}) == 50  # takers differ
    count = np.bincount(first.item.ravel(), minlength=20)
    assert np.abs(count - 1000).max() < 5 * math.sqrt(1000 * 0.75)


def test_uniform_numbers_are_uniform_and_not_correlated():
    grid = uniforms(7, 0, np.arange(300)[:, None], np.arange(300))
    assert np.histogram(grid, 10, (0, 1))[0] == pytest.approx(np.full(10, 9000), abs=5 * math.sqrt(8100))
    for shift in (
        grid[:, 1:] * grid[:, :-1],
        grid[1:] * grid[:-1],
        grid * uniforms(8, 0, np.arange(300)[:, None], np.arange(300)),
    ):
        assert shift.mean() == pytest.approx(0.25, abs=0.005)


def test_randomesque_draws_among_the_best():
    items = bank(300)
    first = (
        AdaptiveTest(items, randomesque=4, max_items=1, random_state=0).simulate(np.zeros(2000)).item[:, 0]
    )
    best = np.argsort(np.abs(items.difficulty))[:4]
    values, count = np.unique(first, return_counts=True)
    assert set(values) == set(best)
    assert count == pytest.approx(np.full(4, 500), abs=100)


def test_ceilings_and_shares_of_groups():
    items = bank(120)
    groups = np.array(["x", "y", "z"])[np.arange(120) % 3]
    capped = AdaptiveTest(items, groups=groups, quotas={"x": 2, "y": 0}, max_items=20, random_state=0)
    for row in capped.simulate(np.linspace(-1, 1, 6)).item:
        count = dict(zip(*np.unique(groups[row], return_counts=True), strict=True))
        assert count.get("x", 0) <= 2
        assert "y" not in count
    shares = AdaptiveTest(items, groups=groups, quotas={"x": 0.2, "y": 0.3, "z": 0.5}, max_items=20)
    for row in shares.simulate(np.linspace(-1, 1, 6)).item:
        assert groups[row[0]] == "z"  # the largest share comes first
        for length in range(1, 21):
            for name, share in (("x", 0.2), ("y", 0.3), ("z", 0.5)):
                assert abs((groups[row[:length]] == name).sum() - share * length) <= 1
    equal = AdaptiveTest(items, groups=groups, max_items=9).simulate([0.0]).item[0]
    assert np.unique(groups[equal], return_counts=True)[1].tolist() == [3, 3, 3]


def test_ceilings_end_a_test():
    test = AdaptiveTest(bank(10), groups=np.arange(10) % 2, quotas={0: 2, 1: 1})
    test.run(lambda asked: np.ones(len(asked)))
    assert (test.n_items_, test.done_reason_) == (3, "bank")


def test_a_batch_spreads_over_what_is_unknown():
    """At the start a batch of items at one difficulty would say less than one that covers the prior."""
    items = Items.of(np.linspace(-3, 3, 301), 3.0)
    batch = AdaptiveTest(items).ask(10)
    assert len(set(batch.tolist())) == 10
    assert np.ptp(items.difficulty[batch]) > 1.0
    points = np.random.default_rng(0).normal(size=4000)

    def gain(chosen):
        return np.log1p(items.take(chosen).information(points).sum(axis=1)).mean()

    nearest = np.argsort(np.abs(items.difficulty))[:10]
    assert gain(batch) > gain(nearest) + 0.08


def test_stopping_rules_say_why():
    items = bank(300)
    y = answers_of(items, 1.2)
    for arguments, reason in (
        ({"se_target": 0.5}, "se"),
        ({"reliability_target": 0.8}, "reliability"),
        ({"max_items": 7}, "length"),
        ({"change_target": 0.08}, "change"),
        ({"cut_score": 0.0}, "cut"),
        ({"cut_score": 0.0, "cut_rule": "interval"}, "cut"),
        ({"se_target": 0.01}, "bank"),
    ):
        test = AdaptiveTest(items, **arguments).run(lambda asked: y[asked])
        assert test.done_reason_ == reason, arguments
        assert len(test.ask()) == 0
        if "cut_score" in arguments:
            assert test.decision_ == "above"
        if reason == "change":
            assert np.abs(np.diff(test.trajectory_["theta"][-4:])).max() <= 0.08
            assert np.abs(np.diff(test.trajectory_["theta"][-5:-3]))[0] > 0.08
        if reason == "bank":
            assert test.n_items_ == 300
    late = AdaptiveTest(items, se_target=0.5, min_items=40).run(lambda asked: y[asked])
    assert late.n_items_ == 40


@pytest.mark.parametrize("rule", ["sprt", "interval"])
def test_cut_scores_err_as_rarely_as_asked(rule):
    items = Items.of(np.linspace(-2, 2, 2000))
    for theta, wrong in ((0.3, "below"), (-0.3, "above")):
        test = AdaptiveTest(
            items,
            cut_score=0.0,
            cut_rule=rule,
            cut_margin=0.3,
            cut_errors=(0.05, 0.05),
            min_items=15,
            max_items=400,
            latent_scale=3.0,
            estimator="mle",
            random_state=0,
        )
        tests = test.simulate(np.full(120, theta))
        assert (tests.decision == wrong).mean() < 0.08
        assert (tests.decision == None).mean() < 0.1  # noqa: E711


def test_sprt_stops_at_walds_bounds():
    items = Items.of(np.zeros(100))
    test = AdaptiveTest(items, cut_score=0.0, cut_margin=0.5, cut_errors=(0.1, 0.2))
    gain = math.log((1 / (1 + math.exp(-0.5))) / (1 / (1 + math.exp(0.5))))
    test.run(lambda asked: np.ones(len(asked)))
    assert test.n_items_ == math.ceil(math.log(0.8 / 0.1) / gain)
    test.reset().run(lambda asked: np.zeros(len(asked)))
    assert test.n_items_ == math.ceil(-math.log(0.2 / 0.9) / gain)
    assert test.decision_ == "below"


def test_missing_answers_are_not_asked_for():
    items = bank(30)
    y = simulate_responses(np.zeros(8), items, missing_share=0.5, random_state=0)
    tests = AdaptiveTest(items).simulate(y)
    np.testing.assert_array_equal(tests.n_items, (~np.isnan(y)).sum(axis=1))
    assert set(tests.done_reason) == {"bank"}
    for row, length in zip(range(8), tests.n_items, strict=True):
        asked = tests.item[row, :length]
        np.testing.assert_array_equal(tests.y[row, :length], y[row, asked])
        assert (tests.item[row, length:] == -1).all()
        assert np.isnan(tests.theta[row, length:]).all()


def test_batches_run_into_the_end_of_a_bank():
    items = bank(11)
    y = simulate_responses([0.0, 1.0, -1.0], items, missing_share=0.3, random_state=1)
    tests = AdaptiveTest(items).simulate(y, batch_size=4)
    np.testing.assert_array_equal(tests.n_items, (~np.isnan(y)).sum(axis=1))
    whole = AdaptiveTest(items, max_items=10)
    whole.run(lambda asked: np.ones(len(asked)), batch_size=4)
    assert whole.n_items_ == 10


def test_a_second_process_changes_nothing():
    items, theta = bank(100), np.linspace(-1, 1, 9)
    test = AdaptiveTest(items, selection="random", se_target=0.6, random_state=0)
    one, two = test.simulate(theta), test.simulate(theta, n_jobs=2)
    np.testing.assert_array_equal(one.item, two.item)
    np.testing.assert_array_equal(one.ability, two.ability)
    assert one.done_reason.tolist() == two.done_reason.tolist()


def test_difficulty_errors_soften_the_curves():
    b = np.linspace(-2, 2, 400)
    sure, unsure = Items.of(b), Items.of(b, difficulty_std=1.0)
    test = AdaptiveTest(sure, se_target=0.3, random_state=0)
    naive = AdaptiveTest(unsure, se_target=0.3, difficulty_uncertainty=False, random_state=0)
    scaled = AdaptiveTest(unsure, se_target=0.3, random_state=0)
    short, same, long = (each.simulate([0.0]).n_items[0] for each in (test, naive, scaled))
    assert short == same
    assert long > 1.25 * short


class Model(BaseEstimator):
    """What a fitted model shows of its items."""

    def fit(self):
        self.difficulty_, self.latent_scale_ = np.linspace(-3, 3, 50), 2.0
        return self


def test_takes_a_fitted_model():
    test = AdaptiveTest(Model().fit())
    assert test.ability_std_ == 2.0
    with pytest.raises(NotFittedError):
        AdaptiveTest(Model())


@pytest.mark.parametrize("selection", ["mfi", "random"])
@pytest.mark.parametrize("estimator", ["map", "mle"])
def test_a_saved_session_goes_on_as_it_would_have(selection, estimator):
    items = bank(120, kind="2pl")
    y = answers_of(items)
    arguments = {"selection": selection, "estimator": estimator, "randomesque": 3, "max_items": 30}
    whole = AdaptiveTest(items, random_state=9, **arguments)
    whole.run(lambda asked: y[asked], batch_size=3)
    half = AdaptiveTest(items, random_state=9, **arguments)
    for _ in range(4):
        asked = half.ask(3)
        half.tell(asked, y[asked])
    open_ = half.ask(3)
    state = json.loads(json.dumps(half.state_dict(), allow_nan=False))
    resumed = AdaptiveTest(items, random_state=1, **arguments).load_state_dict(state)
    np.testing.assert_array_equal(resumed.ask(3), open_)
    resumed.run(lambda asked: y[asked], batch_size=3)
    np.testing.assert_array_equal(resumed.trajectory_, whole.trajectory_)
    assert resumed.done_reason_ == whole.done_reason_


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"test": "0"},
        {"seed": -1},
        {"seed": 0.5},
        {"told": [[[0], [2]]]},
        {"told": [[[0, 0], [1, 1]]]},
        {"told": [[[0], [1]], [[0], [1]]]},
        {"told": [[[999], [1]]]},
        {"told": [[["__import__"], [1]]]},
        {"told": 3},
        {"pending": [0]},
        {"pending": [999]},
        {"pending": "x"},
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    test = AdaptiveTest(bank(20), random_state=0)
    test.tell([0, 3], [1, 0])
    before = test.trajectory_
    with pytest.raises(ValueError, match="state"):
        test.load_state_dict(test.state_dict() | damage)
    np.testing.assert_array_equal(test.trajectory_, before)
    with pytest.raises(ValueError, match="state"):
        test.load_state_dict({key: value for key, value in test.state_dict().items() if key != "told"})
    with pytest.raises(ValueError, match="other items or parameters"):
        AdaptiveTest(bank(21), random_state=0).load_state_dict(test.state_dict())


def test_asking_again_gives_the_same_and_answers_may_come_unasked():
    test = AdaptiveTest(bank(50))
    first = test.ask(2)
    np.testing.assert_array_equal(test.ask(2), first)
    np.testing.assert_array_equal(test.ask(3)[:2], first)
    test.tell(first[1], True)
    assert test.ask()[0] == first[0]
    spare = next(item for item in range(50) if item not in test.ask(3))
    test.tell([spare], [0])
    assert spare in course(test)
    assert test.reset().n_items_ == 0
    assert "going on" in repr(test)


def test_what_is_told_must_make_sense_and_nothing_is_kept_of_what_does_not():
    test = AdaptiveTest(bank(10))
    test.tell(3, 1)
    for items, answers, message in (
        (3, 1, "item 3 was told before"),
        (10, 1, r"items must be in \[0, 9\], got 10"),
        (-1, 1, "items must be in"),
        ([1, 1], [0, 1], "must not repeat"),
        ([1, 2], [0], "must go together"),
        ([1], [0.5], "responses must be 0 or 1"),
        ([1], [np.nan], "responses must be 0 or 1"),
        ([1.0], [1], "items must be integers"),
        ([], [], "must go together"),
        (["a"], [1], "items must be integers"),
    ):
        with pytest.raises(ValueError, match=message):
            test.tell(items, answers)
    assert course(test) == [3]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"se_target": 0.0}, ValueError, "se_target must be in"),
        ({"se_target": -1}, ValueError, "se_target must be in"),
        ({"reliability_target": 1.0}, ValueError, "reliability_target must be in"),
        ({"reliability_target": 0}, ValueError, "reliability_target must be in"),
        ({"change_target": 0.0}, ValueError, "change_target must be in"),
        ({"max_items": 0}, ValueError, "max_items must be in"),
        ({"max_items": 3, "min_items": 4}, ValueError, "max_items must be in"),
        ({"selection": "best"}, ValueError, "selection must be one of"),
        ({"estimator": "mean"}, ValueError, "estimator must be one of"),
        ({"cut_score": 0.0, "cut_rule": "t"}, ValueError, "cut_rule must be one of"),
        ({"cut_errors": (0.05, 0.6)}, ValueError, r"cut_errors\[1\] must be in"),
        ({"randomesque": 0}, ValueError, "randomesque must be in"),
        ({"first_item": 10}, ValueError, "first_item must be in"),
        ({"latent_scale": 0}, ValueError, "latent_scale must be in"),
        ({"groups": [1, 2]}, ValueError, "groups must have one label per item, 10"),
        ({"quotas": {"a": 1}}, ValueError, "quotas need groups"),
        ({"groups": list("aaaaabbbbb"), "quotas": {"c": 1}}, ValueError, "quotas must name groups"),
        ({"groups": list("aaaaabbbbb"), "quotas": {"a": 0.5}}, ValueError, "sum to 1"),
        ({"random_state": 1.5}, TypeError, "random_state must be an integer"),
    ],
)
def test_errors_name_what_is_wrong(arguments, error, message):
    with pytest.raises(error, match=message):
        AdaptiveTest(bank(10), **arguments)


def test_takers_must_make_sense():
    test = AdaptiveTest(bank(3))
    for takers, message in (
        ([np.nan], "finite abilities"),
        ([[0, 1]], "answers to 3 items"),
        ([[0, 1, 2]], r"takers\[0, 2\] must be 0, 1 or NaN"),
        ([[np.nan] * 3], r"takers\[0\] has no answer"),
        ([], "answers to 3 items"),
    ):
        with pytest.raises(ValueError, match=message):
            test.simulate(takers)


def test_every_test_may_begin_with_the_same_item():
    tests = AdaptiveTest(bank(40), first_item=7, max_items=5).simulate(np.linspace(-2, 2, 5))
    assert (tests.item[:, 0] == 7).all()
    assert ((tests.item == 7).sum(axis=1) == 1).all()


def test_no_global_random_state_is_touched():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    AdaptiveTest(bank(20), selection="random", max_items=5).simulate([0.0])
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("kind", ["rasch", "2pl", "3pl"])
def test_a_hundred_thousand_items_take_milliseconds(kind):
    """Below 1 ms on an idle core; the bound leaves room for a busy one."""
    items = bank(100_000, kind=kind)
    test = AdaptiveTest(items)
    seconds = []
    for _ in range(40):
        begin = time.perf_counter()
        asked = test.ask()
        test.tell(asked, [items.difficulty[asked[0]] < 0.5])
        seconds.append(time.perf_counter() - begin)
    assert np.median(seconds) < 5e-3
