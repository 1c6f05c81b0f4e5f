"""Reliability, fit, differences between groups, subsets, baselines, equating and plots."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.stats import kstest
from sklearn.base import BaseEstimator
from sklearn.metrics import roc_auc_score

from references import amortized_irt_abilities as reference
from seedbed.estimators import (
    AdaptiveTest,
    AdaptiveTestDisplay,
    ItemCharacteristicDisplay,
    Items,
    WrightMapDisplay,
    average_prediction,
    average_score,
    ctt_correlation,
    differential_item_functioning,
    empirical_reliability,
    equate,
    estimate_ability,
    goodness_of_fit,
    held_out_auc,
    infit_outfit,
    information_criteria,
    marginal_reliability,
    random_subset_score,
    reliability_interval,
    score_correlation,
    simulate_responses,
    subset_test,
)


@pytest.fixture(scope="module")
def rasch():
    rng = np.random.default_rng(0)
    theta, items = rng.normal(size=400), Items.of(rng.normal(size=60))
    return theta, items, simulate_responses(theta, items, random_state=1)


def test_reliability_by_hand():
    """Variance 5 / 3 of (-1, 0, 1, 2), mean squared error (.09 + .16 + .25 + .36) / 4."""
    noise = (0.09 + 0.16 + 0.25 + 0.36) / 4
    found = empirical_reliability([-1, 0, 1, 2], [0.3, 0.4, 0.5, 0.6])
    assert found == pytest.approx((5 / 3) / (5 / 3 + noise), abs=1e-12)
    assert found == pytest.approx(1 - noise / (5 / 3 + noise), abs=1e-12)
    assert empirical_reliability([1.0, 1.0], [0.0, 0.0]) == 0.0


def test_reliability_goes_to_one_with_the_items():
    rng = np.random.default_rng(0)
    theta, before = rng.normal(size=300), 0.0
    for n_items in (10, 50, 250, 2000):
        items = Items.of(rng.normal(size=n_items))
        found = estimate_ability(simulate_responses(theta, items, random_state=rng), items)
        empirical = empirical_reliability(found.ability, found.std)
        squared = np.corrcoef(theta, found.ability)[0, 1] ** 2
        assert empirical == pytest.approx(squared, abs=0.06)
        assert marginal_reliability(items) == pytest.approx(squared, abs=0.06)
        assert before < empirical
        before = empirical
    assert before > 0.99


def test_marginal_reliability_of_a_known_information():
    """Items so flat that the information is the same everywhere: n a^2 / 4."""
    items = Items.of(np.zeros(40_000), 0.01)
    information = 40_000 * 0.01**2 / 4
    assert marginal_reliability(items) == pytest.approx(1 - 1 / (1 + information), abs=1e-3)
    found = marginal_reliability(items, kind="mle", latent_scale=2.0)
    assert found == pytest.approx(4 / (4 + 1 / information), abs=1e-3)
    softer = Items.of(np.zeros(100), difficulty_std=2.0)
    assert marginal_reliability(softer) < marginal_reliability(Items.of(np.zeros(100))) - 0.02


def test_reliability_interval_covers():
    """The interval of samples of 80 takers holds the value of many takers as often as it says."""
    rng = np.random.default_rng(0)
    truth = 1 / (1 + 0.3**2)
    hits = []
    for seed in range(80):
        low, high = reliability_interval(
            rng.normal(size=80), np.full(80, 0.3), n_bootstrap=200, random_state=seed
        )
        hits.append(low <= truth <= high)
    assert 0.86 <= np.mean(hits) <= 0.99


@pytest.mark.parametrize(
    ("ability", "std", "message"),
    [
        ([0.0], [1.0], "two takers at least"),
        ([0.0, 1.0], [1.0], "shapes"),
        ([0.0, np.inf], [1.0, 1.0], r"ability\[1\] must be finite"),
        ([0.0, 1.0], [1.0, np.nan], r"std\[1\] must be finite"),
        ([0.0, 1.0], [1.0, -1.0], r"std\[1\] must not be negative"),
    ],
)
def test_reliability_needs_numbers(ability, std, message):
    with pytest.raises(ValueError, match=message):
        empirical_reliability(ability, std)


def test_fit_equals_the_plain_readings(rasch):
    theta, items, y = rasch
    gaps = np.where(np.random.default_rng(0).random(y.shape) < 0.2, np.nan, y)[:80, :7]
    few = items.take(slice(7))
    np.testing.assert_allclose(
        goodness_of_fit(gaps, theta[:80], few), reference.goodness_of_fit(gaps, theta[:80], few.difficulty, 6)
    )
    infit, outfit = reference.infit_outfit(gaps, theta[:80], few.difficulty)
    found = infit_outfit(gaps, theta[:80], few)
    np.testing.assert_allclose(found.infit, infit)
    np.testing.assert_allclose(found.outfit, outfit)
    turned = infit_outfit(gaps, theta[:80], few, of="takers")
    assert turned.infit.shape == (80,)
    assert turned.outfit[0] == pytest.approx(
        np.nanmean(
            (gaps[0] - few.probability(theta[:1])[0]) ** 2
            / (few.probability(theta[:1])[0] * (1 - few.probability(theta[:1])[0]))
        )
    )


def test_fit_finds_the_item_that_does_not(rasch):
    theta, items, y = rasch
    spoiled = y.copy()
    spoiled[:, 5] = np.random.default_rng(0).random(400) < 0.5
    found = infit_outfit(spoiled, theta, items)
    assert (
        found.infit.argmax() == found.outfit.argmax() == goodness_of_fit(spoiled, theta, items).argmin() == 5
    )
    others = np.delete(found.infit, 5)
    assert np.abs(others - 1).max() < 0.3
    steep = simulate_responses(
        theta, Items.of(items.difficulty, np.where(np.arange(60) == 9, 3.0, 1.0)), random_state=2
    )
    assert infit_outfit(steep, theta, items).infit.argmin() == 9
    assert goodness_of_fit(y, theta, items).min() > 0.85


def test_group_differences_are_found_and_false_ones_are_rare():
    rng = np.random.default_rng(0)
    items = Items.of(np.linspace(-1.5, 1.5, 20))
    p_values = []
    for _ in range(20):
        group = rng.integers(0, 3, 600)
        theta = rng.normal(size=600) + 0.5 * group
        y = simulate_responses(theta, items, random_state=rng)
        p_values.append(differential_item_functioning(y, theta, items, group).p_value)
    assert kstest(np.ravel(p_values), "uniform").pvalue > 0.001
    group = rng.integers(0, 2, 3000)
    theta = rng.normal(size=3000)
    shift = np.where(np.arange(20) == 7, 0.8, 0.0)
    y = np.where(
        group[:, None] == 1,
        simulate_responses(theta, Items.of(items.difficulty + shift), random_state=rng),
        simulate_responses(theta, items, random_state=rng),
    )
    found = differential_item_functioning(y, theta, items, np.array(["a", "b"])[group])
    assert found.groups.tolist() == ["a", "b"]
    assert found.p_adjusted.argmin() == 7
    assert found.p_adjusted[7] < 1e-6
    assert found.shift[1, 7] - found.shift[0, 7] == pytest.approx(0.8, abs=0.2)
    y[:10, 3] = np.nan
    y[group == 0, 3] = np.nan
    alone = differential_item_functioning(y, theta, items, group)
    assert alone.p_value[3] == 1.0
    assert np.isnan(alone.std[0, 3])
    with pytest.raises(ValueError, match="two labels at least"):
        differential_item_functioning(y, theta, items, np.zeros(3000))


def test_held_out_cells(rasch):
    theta, items, y = rasch
    chance = items.probability(theta)
    mask = np.random.default_rng(0).random(y.shape) < 0.2
    assert held_out_auc(y, chance, held_out=mask) == roc_auc_score(y[mask], chance[mask])
    assert held_out_auc(y, np.full(y.shape, 0.5)) == 0.5
    assert held_out_auc(y, 1 - chance) == pytest.approx(1 - held_out_auc(y, chance))
    means = [np.array([part[n, mask[n]].mean() for n in range(400)]) for part in (y, chance)]
    assert ctt_correlation(y, chance, held_out=mask) == pytest.approx(np.corrcoef(*means)[0, 1])
    assert score_correlation(theta, y) == pytest.approx(np.corrcoef(theta, y.mean(axis=1))[0, 1])
    order = [
        held_out_auc(y, average_prediction(np.where(mask, np.nan, y), kind), held_out=mask)
        for kind in ("constant", "taker", "item")
    ]
    assert order[0] == 0.5 < min(order[1:]) < max(order[1:]) < held_out_auc(y, chance, held_out=mask)
    with pytest.raises(ValueError, match="both right and wrong"):
        held_out_auc([[1.0, 1.0]], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="probability must have the shape"):
        held_out_auc([[1.0, 0.0]], [[0.5]])
    with pytest.raises(ValueError, match="must vary"):
        ctt_correlation([[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]])


def test_information_criteria_by_hand():
    aic, bic = information_criteria(-100.0, 5, 50)
    assert aic == 210.0
    assert bic == pytest.approx(200 + 5 * np.log(50))


def test_averages_depend_on_the_subset_and_abilities_do_not():
    """Rasch answers: averages on easy and hard subsets are .4 to .5 apart, abilities not at all."""
    rng = np.random.default_rng(0)
    items, theta = Items.of(rng.normal(size=2000)), rng.normal(size=200)
    y = simulate_responses(theta, items, random_state=1)
    scores = subset_test(y, items, n_items=100, n_repeats=8, random_state=0)
    assert scores.average_gap == pytest.approx(0.45, abs=0.06)
    assert abs(scores.ability_gap) < 0.05
    assert scores.logit_gap > 1.5
    assert scores.order_errors("ability") < 0.5 * scores.order_errors("average")
    assert 0.2 < scores.absolute_gap < 0.4  # two estimates from 100 items each: noise alone
    again = subset_test(y, items, n_items=100, n_repeats=8, random_state=0)
    np.testing.assert_array_equal(scores.ability_easy, again.ability_easy)
    with pytest.raises(ValueError, match="score must be one of"):
        scores.order_errors("rank")
    with pytest.raises(ValueError, match="n_items must be in"):
        subset_test(y, items, n_items=2000)


def test_order_errors_by_hand():
    scores = subset_test(np.eye(3)[[0, 1, 2, 2]], Items.of([-1.0, 0.0, 1.0]), n_items=2, n_repeats=1)
    fields = {"ability": np.array([0.0, 1.0]), "n_items": 2}
    for name, value in (("easy", [[0.0, 2.0]]), ("hard", [[-1.0, 0.0]])):
        fields |= {f"ability_{name}": np.array(value), f"average_{name}": np.array(value)}
    scores = type(scores)(**fields)
    assert scores.order_errors() == 0.25  # 0 on easy ties with 1 on hard, 1 on easy beats 0 on hard
    assert scores.ability_gap == 1.5


def test_averages():
    y = np.array([[1, 0, np.nan], [1, 1, 0]])
    np.testing.assert_allclose(average_score(y), [0.5, 2 / 3])
    np.testing.assert_allclose(average_prediction(y, "constant"), np.full((2, 3), 0.6))
    np.testing.assert_allclose(average_prediction(y, "item")[0], [1.0, 0.5, 0.0])
    np.testing.assert_allclose(average_prediction(np.array([[1, np.nan]]), "item"), [[1.0, 1.0]])
    with pytest.raises(ValueError, match=r"responses\[0\] has no answer"):
        average_score([[np.nan, np.nan]])
    with pytest.raises(ValueError, match=r"responses\[0\] has fewer"):
        random_subset_score(y, 3)
    with pytest.raises(ValueError, match=r"responses\[0, 0\] must be 0, 1 or NaN"):
        average_score([[2.0]])


def test_random_subsets_are_fair():
    y = np.tile((np.arange(40) < 10).astype(float), (3000, 1))
    found = random_subset_score(y, 8, random_state=0)
    assert found.mean() == pytest.approx(0.25, abs=0.01)
    assert found.var() == pytest.approx(0.25 * 0.75 / 8 * (32 / 39), rel=0.1)


@pytest.mark.parametrize("method", ["mean_sigma", "stocking_lord"])
@pytest.mark.parametrize("guessing", [0.0, 0.2])
def test_equating_recovers_a_known_line(method, guessing):
    rng = np.random.default_rng(0)
    first = Items.of(rng.normal(size=30), np.exp(0.3 * rng.normal(size=30)), guessing, 1.0, 0.2)
    slope, intercept = 1.3, -0.6
    second = Items.of(
        (first.difficulty - intercept) / slope, first.discrimination * slope, guessing, 1.0, 0.2 / slope
    )
    found = equate(first, second, method=method)
    assert (found.slope, found.intercept) == pytest.approx((slope, intercept), abs=1e-6)
    back = found.items(second)
    for name in ("difficulty", "discrimination", "difficulty_std"):
        np.testing.assert_allclose(getattr(back, name), getattr(first, name), atol=1e-5)
    theta = np.array([-1.0, 0.5])
    np.testing.assert_allclose(second.probability(theta), first.probability(found.ability(theta)), atol=1e-6)


def test_equating_by_curves_suffers_less_from_noise_in_flat_items():
    rng = np.random.default_rng(1)
    errors = {"mean_sigma": [], "stocking_lord": []}
    for _ in range(30):
        a = np.exp(0.8 * rng.normal(size=25))
        b = rng.normal(size=25)
        noise = 0.15 / a * rng.standard_normal((2, 25))
        for method, found in errors.items():
            line = equate(Items.of(b + noise[0], a), Items.of(b + noise[1], a), method=method)
            found.append((line.slope - 1) ** 2 + line.intercept**2)
    assert np.mean(errors["stocking_lord"]) < np.mean(errors["mean_sigma"])


class Named(BaseEstimator):
    """A fitted model with item names."""

    def __init__(self, names=(), difficulty=()):
        self.names = names
        self.difficulty = difficulty

    def fit(self):
        self.feature_names_in_ = np.array(self.names, dtype=object)
        self.difficulty_ = np.array(self.difficulty, dtype=float)
        return self


def test_equating_by_names_and_positions():
    first = Named(["a", "b", "c"], [0.0, 1.0, 9.0]).fit()
    second = Named(["b", "a", "d"], [3.0, 2.0, -5.0]).fit()
    found = equate(first, second, method="mean")
    assert (found.slope, found.intercept, found.n_common) == (1.0, -2.0, 2)
    by_place = equate(Items.of([0.0, 1.0, 9.0]), Items.of([3.0, 2.0]), common=([0, 1], [1, 0]))
    assert (by_place.slope, by_place.intercept) == pytest.approx((1.0, -2.0))
    for pair, arguments, message in (
        ((first, Items.of([0.0, 1.0, 2.0])), {}, "give common"),
        ((Items.of([0.0, 1.0]), Items.of([0.0])), {}, "give common"),
        ((first, Named(["x", "y", "z"], [0, 1, 2]).fit()), {}, "no item name in common"),
        ((first, second), {"common": ([0, 5], [0, 1])}, "distinct positions"),
        ((first, second), {"common": ([0, 0], [0, 1])}, "distinct positions"),
        ((first, second), {"common": ([0], [0, 1])}, "two lists of one length"),
        ((Items.of([1.0, 1.0]), Items.of([0.0, 1.0])), {}, "must differ in difficulty"),
        ((first, second), {"method": "line"}, "method must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            equate(*pair, **arguments)


def test_shapes_are_checked(rasch):
    theta, items, y = rasch
    for function in (goodness_of_fit, infit_outfit):
        with pytest.raises(ValueError, match="responses must have shape"):
            function(y[:, :5], theta, items)
        with pytest.raises(ValueError, match=r"ability\[0\] must be finite"):
            function(y, np.where(np.arange(400) == 0, np.inf, theta), items)
        with pytest.raises(ValueError, match="item 2 has no answer"):
            function(np.where(np.arange(60) == 2, np.nan, y), theta, items)
        with pytest.raises(ValueError, match=r"responses\[0, 0\] must be 0, 1 or NaN"):
            function(np.where(np.arange(60) == 0, 0.5, y), theta, items)


def test_displays(rasch):
    theta, items, y = rasch
    test = AdaptiveTest(items, max_items=20).run(lambda asked: y[0, asked])
    display = AdaptiveTestDisplay.from_estimator(test, ability=theta[0], name="model A")
    np.testing.assert_array_equal(display.line_.get_ydata(), test.trajectory_["theta"])
    assert display.ax_.get_legend() is not None
    with pytest.raises(ValueError, match="one answer at least"):
        AdaptiveTestDisplay.from_estimator(AdaptiveTest(items))
    curves = ItemCharacteristicDisplay.from_estimator(items, items=[3, 1], responses=y, ability=theta)
    assert [line.get_label() for line in curves.lines_] == ["item 3", "item 1"]
    np.testing.assert_allclose(curves.lines_[0].get_ydata(), items.take([3]).probability(curves.theta)[:, 0])
    centres, shares = curves.observed[0]
    assert len(centres) == 8
    np.testing.assert_allclose(shares, items.take([3]).probability(centres)[:, 0], atol=0.25)
    with pytest.raises(ValueError, match="items must be positions"):
        ItemCharacteristicDisplay.from_estimator(items, items=[60])
    with pytest.raises(ValueError, match="responses must have shape"):
        ItemCharacteristicDisplay.from_estimator(items, responses=y)
    wright = WrightMapDisplay.from_estimator(items, theta)
    assert wright.ax_.figure is wright.item_ax_.figure
    assert sum(bar.get_width() for bar in wright.item_ax_.patches) == 60
    with pytest.raises(ValueError, match="ability must be"):
        WrightMapDisplay.from_estimator(items)
    plt.close("all")
