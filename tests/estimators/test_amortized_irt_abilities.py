"""Abilities from known items: published values, plain readings, patterns without an estimate, coverage."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from references import amortized_irt_abilities as reference
from seedbed.estimators import (
    Items,
    estimate_ability,
    item_information,
    most_informative_ability,
    simulate_responses,
)
from seedbed.estimators.amortized_irt.answers import Answers, items_of

METHODS = ("eap", "map", "mle", "wle")
THREE = Items.of([-1.0, 0.0, 1.0])


def some_items(n_items=12, seed=0):
    rng = np.random.default_rng(seed)
    return Items.of(
        rng.normal(size=n_items),
        np.exp(0.3 * rng.normal(size=n_items)),
        rng.uniform(0, 0.3, n_items),
        rng.uniform(0.9, 1, n_items),
    )


@pytest.mark.parametrize(
    ("method", "ability", "std"),
    [
        ("mle", 0.802934, 1.309982),
        ("map", 0.304840, None),
        ("eap", 0.315435, 0.795630),
        ("wle", 0.638042, None),
    ],
)
def test_values_of_a_pattern_of_three(method, ability, std):
    found = estimate_ability([[1, 1, 0]], THREE, method=method)
    assert found.ability[0] == pytest.approx(ability, abs=1e-6)
    if std is not None:
        assert found.std[0] == pytest.approx(std, abs=1e-6)
    assert found.finite.all()


@pytest.mark.parametrize("logistic", [True, False])
def test_equals_the_plain_readings(logistic):
    items = some_items()
    if logistic:
        items = Items.of(items.difficulty, items.discrimination)
    theta = np.random.default_rng(1).normal(size=6)
    y = simulate_responses(theta, items, missing_share=0.2, random_state=2)
    y[:, :2] = [1, 0]
    parts = (items.discrimination, items.difficulty, items.guessing, items.upper)
    for row in y:
        eap, std = reference.eap(row, *parts, 0.3, 1.4)
        found = estimate_ability(row[None], items, latent_mean=0.3, latent_scale=1.4)
        assert found.ability[0] == pytest.approx(eap, abs=2e-4)  # 21 nodes against 4,001
        assert found.std[0] == pytest.approx(std, abs=1e-3)
        mode = estimate_ability(row[None], items, method="map", latent_mean=0.3, latent_scale=1.4).ability[0]
        assert mode == pytest.approx(reference.map_estimate(row, *parts, 0.3, 1.4), abs=1e-6)
        likely = estimate_ability(row[None], items, method="mle")
        if likely.finite[0]:
            assert likely.ability[0] == pytest.approx(reference.mle(row, *parts), abs=1e-5)
        warm = estimate_ability(row[None], items, method="wle").ability[0]
        assert warm == pytest.approx(reference.wle(row, *parts), abs=1e-5)


def test_eap_converges_with_the_nodes():
    items = some_items(30)
    y = simulate_responses(np.linspace(-2, 2, 9), items, random_state=0)
    few, many = (estimate_ability(y, items, n_quadrature=n) for n in (21, 81))
    np.testing.assert_allclose(few.ability, many.ability, atol=1e-4)
    np.testing.assert_allclose(few.std, many.std, atol=3e-4)


def test_patterns_of_one_kind_have_no_finite_maximum():
    y = [[1, 1, 1], [0, 0, 0], [1, 0, 0]]
    found = estimate_ability(y, THREE, method="mle")
    assert found.finite.tolist() == [False, False, True]
    assert found.ability[:2].tolist() == [np.inf, -np.inf]
    assert found.std[:2].tolist() == [np.inf, np.inf]
    kept = estimate_ability(y, THREE, method="mle", bounds=(-4, 4))
    assert kept.ability[:2].tolist() == [4.0, -4.0]
    assert kept.finite.tolist() == [False, False, True]
    np.testing.assert_allclose(kept.std[0], item_information(4.0, THREE).sum() ** -0.5)


def test_worse_than_guessing_has_no_finite_maximum():
    items = Items.of([0.0, 0.0, 3.0, 3.5], discrimination=2.0, guessing=0.25)
    found = estimate_ability([[0, 0, 1, 0], [1, 1, 0, 0]], items, method="mle")
    assert found.finite.tolist() == [False, True]
    assert found.ability[0] == -np.inf


@pytest.mark.parametrize("items", [THREE, Items.of([-1.0, 0.0, 1.0], [0.5, 1.0, 2.0], 0.2)])
def test_warm_is_finite_and_rises_with_the_score(items):
    found = estimate_ability([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]], items, method="wle")
    assert np.isfinite(found.ability).all()
    assert np.isfinite(found.std).all()
    assert (np.diff(found.ability) > 0).all()


def test_warm_of_many_items_all_right():
    b = np.random.default_rng(0).normal(size=2000)
    found = estimate_ability(np.ones((1, 2000)), Items.of(b), method="wle").ability[0]
    right = 1 / (1 + np.exp(b - found))
    spread = right * (1 - right)
    assert np.sum(1 - right) + np.sum(spread * (1 - 2 * right)) / (2 * spread.sum()) == pytest.approx(
        0, abs=1e-8
    )


def test_no_answer_leaves_the_prior():
    empty = np.full((1, 3), np.nan)
    for method in ("eap", "map"):
        found = estimate_ability(empty, THREE, method=method, latent_mean=0.5, latent_scale=1.3)
        assert found.ability[0] == pytest.approx(0.5, abs=1e-12)
        assert found.std[0] == pytest.approx(1.3, abs=1e-12)
    for method in ("mle", "wle"):
        with pytest.raises(ValueError, match=r"responses\[1\] has no answer"):
            estimate_ability(np.vstack([[1.0, 0, 1], empty]), THREE, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_the_sum_score_is_enough_for_rasch_only(method):
    items = Items.of([-1.0, 0.2, 0.7, 1.5])
    y = [[1, 1, 0, 0], [0, 0, 1, 1]]
    same = estimate_ability(y, items, method=method).ability
    assert same[0] == pytest.approx(same[1], abs=1e-9)
    other = estimate_ability(y, Items.of(items.difficulty, [0.5, 1, 1.5, 2]), method=method).ability
    assert other[1] > other[0] + 0.1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("guessing", [0.0, 0.2])
def test_sparse_dense_and_alone_agree(method, guessing):
    rng = np.random.default_rng(0)
    items = Items.of(rng.normal(size=60), np.exp(0.2 * rng.normal(size=60)), guessing)
    y = simulate_responses(rng.normal(size=20), items, missing_share=0.6, random_state=1)
    mask = ~np.isnan(y)
    dense = estimate_ability(y, items, method=method)
    thin = estimate_ability(
        sparse.csr_array(np.nan_to_num(y)), items, method=method, mask=sparse.csr_array(mask)
    )
    np.testing.assert_allclose(thin.ability, dense.ability, atol=1e-8)
    np.testing.assert_allclose(thin.std, dense.std, atol=1e-8)
    for row in range(0, 20, 5):
        alone = estimate_ability(y[row : row + 1], items, method=method)
        np.testing.assert_allclose(alone.ability[0], dense.ability[row], atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_turning_answers_and_signs_around_turns_abilities_around(method):
    rng = np.random.default_rng(0)
    items = Items.of(rng.normal(size=15), np.exp(0.3 * rng.normal(size=15)))
    y = simulate_responses(rng.normal(size=10), items, random_state=1)
    there = estimate_ability(y, items, method=method).ability
    back = estimate_ability(1 - y, Items.of(-items.difficulty, items.discrimination), method=method).ability
    np.testing.assert_allclose(there, -back, atol=1e-8)


def test_a_mean_per_taker():
    y = [[1, 0, 1], [1, 0, 1]]
    found = estimate_ability(y, THREE, latent_mean=[-2.0, 2.0]).ability
    for mean, ability in zip((-2.0, 2.0), found, strict=True):
        assert estimate_ability(y[:1], THREE, latent_mean=mean).ability[0] == pytest.approx(
            ability, abs=1e-12
        )


def test_intervals_from_predicted_difficulties_cover():
    """tau = 1, 400 items: naive intervals are too narrow, scaled ones right; so is the slope on the truth."""
    rng = np.random.default_rng(0)
    hits, slopes = {True: [], False: []}, {True: [], False: []}
    for _ in range(12):
        b = rng.normal(size=400)
        theta = rng.normal(size=150)
        predicted = Items.of(b, difficulty_std=1.0)
        true = Items.of(b + rng.standard_normal((400,)))
        y = simulate_responses(theta, true, random_state=rng)
        for scaled in (True, False):
            found = estimate_ability(y, predicted, difficulty_uncertainty=scaled)
            hits[scaled].append(np.abs(found.ability - theta) <= 1.959964 * found.std)
            slopes[scaled].append(np.polyfit(theta, found.ability, 1)[0])
    assert np.mean(hits[False]) < 0.87
    assert 0.93 <= np.mean(hits[True]) <= 0.97
    assert np.mean(slopes[True]) == pytest.approx(0.979, abs=0.03)
    assert np.mean(slopes[False]) == pytest.approx(0.871, abs=0.03)


def test_information_by_hand():
    items = Items.of([0.3, 0.3], discrimination=1.2, guessing=[0.2, 0.0])
    np.testing.assert_allclose(item_information(0.5, items), [0.245300, 0.354865], atol=1e-6)
    assert most_informative_ability(items.take([0]))[0] == pytest.approx(0.522618, abs=1e-6)


def test_information_is_minus_the_expected_second_derivative():
    items = some_items(8)
    for theta in (-1.5, 0.2, 1.7):
        for item in range(8):
            part = (items.discrimination, items.difficulty, items.guessing, items.upper)
            plain = reference.information(theta, *(values[item] for values in part))
            assert item_information(theta, items)[item] == pytest.approx(plain, abs=1e-6)


def test_the_most_informative_ability_is_a_maximum():
    items = Items.of([0.0, 1.0, -1.0], [0.7, 1.5, 1.0], [0.0, 0.3, 0.1])
    best = most_informative_ability(items)
    here = np.diagonal(item_information(best, items))
    for side in (-0.01, 0.01):
        assert (np.diagonal(item_information(best + side, items)) < here).all()
    with pytest.raises(ValueError, match=r"upper\[0\] must be 1"):
        most_informative_ability(Items.of([0.0], upper=0.9))


def test_slopes_are_derivatives():
    items = some_items(10)
    y = simulate_responses(np.zeros(4), items, random_state=0)
    answers = Answers(y, items.take(np.s_[None, :]))
    theta, step = np.array([-2.0, -0.3, 0.4, 1.9]), 1e-5
    slopes = answers.slopes(theta)
    up, down = answers.log_likelihood(theta + step), answers.log_likelihood(theta - step)
    np.testing.assert_allclose(slopes.score, (up - down) / (2 * step), atol=1e-6)
    up, down = answers.slopes(theta + step), answers.slopes(theta - step)
    np.testing.assert_allclose(slopes.curvature, -(up.score - down.score) / (2 * step), atol=1e-6)
    correction, rise = answers.warm(theta)
    above, below = answers.warm(theta + step)[0], answers.warm(theta - step)[0]
    np.testing.assert_allclose(rise, (above - below) / (2 * step), atol=1e-6)
    np.testing.assert_allclose(
        answers.on_grid(np.broadcast_to(theta, (2, 4)))[0][0], slopes.score, atol=1e-10
    )
    assert np.isfinite(correction).all()


def test_simulated_answers_follow_the_curves():
    items = Items.of([0.0, 1.0], [1.0, 2.0], [0.0, 0.25])
    y = simulate_responses(np.full(40_000, 0.5), items, random_state=0)
    np.testing.assert_allclose(y.mean(axis=0), items.probability([0.5])[0], atol=0.01)
    gaps = simulate_responses(np.zeros(1000), items, missing_share=0.3, random_state=0)
    assert np.isnan(gaps).mean() == pytest.approx(0.3, abs=0.03)
    unsure = Items.of(np.zeros(4000), difficulty_std=2.0)
    shares = simulate_responses(np.zeros(50), unsure, difficulty_uncertainty=True, random_state=0).mean(
        axis=0
    )
    assert shares.std() > 0.2  # 0.07 if the difficulties were known
    again = simulate_responses([0.0, 1.0], items, random_state=3)
    np.testing.assert_array_equal(again, simulate_responses([0.0, 1.0], items, random_state=3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "mode"}, "method must be one of"),
        ({"latent_scale": 0.0}, "latent_scale must be in"),
        ({"n_quadrature": 2}, "n_quadrature must be in"),
        ({"bounds": (1, 1)}, "bounds must rise"),
        ({"bounds": 3}, "bounds must be a pair"),
        ({"latent_mean": [0.0, 1.0]}, "latent_mean must be"),
        ({"responses": [[1, 2, 0]]}, r"responses\[0, 1\] must be 0, 1 or missing"),
        ({"responses": [[1, 0]]}, "responses must have one column per item, 3, got 2"),
        ({"responses": [1, 0, 1]}, "responses must have shape"),
        ({"items": Items.of([0.0, np.nan, 1.0])}, r"difficulty\[1\] must be finite"),
        ({"items": Items.of([0.0, 1.0, 2.0], [1.0, 1.0, 0.0])}, r"discrimination\[2\] must be in"),
        ({"items": Items.of([0.0, 1.0, 2.0], guessing=1.0)}, r"guessing\[0\] must be in"),
    ],
)
def test_errors_name_what_is_wrong(arguments, message):
    given = {"responses": [[1, 0, 1]], "items": THREE} | arguments
    with pytest.raises(ValueError, match=message):
        estimate_ability(given.pop("responses"), given.pop("items"), **given)


class Model(BaseEstimator):
    """What a fitted model shows of its items."""

    def fit(self):
        self.difficulty_ = np.array([0.0, 1.0])
        self.discrimination_ = 2.0
        self.difficulty_std_ = np.array([0.1, 0.2])
        return self


def test_items_of_a_model():
    items = items_of(Model().fit())
    assert items.discrimination.tolist() == [2.0, 2.0]
    assert items.guessing.tolist() == [0.0, 0.0]
    assert items.difficulty_std.tolist() == [0.1, 0.2]
    with pytest.raises(NotFittedError):
        items_of(Model())
    with pytest.raises(TypeError, match="fitted estimator or Items"):
        items_of([0.0, 1.0])
