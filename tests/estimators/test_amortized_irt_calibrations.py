"""Moment, joint, conditional and Bayesian calibration beside plain readings of their definitions."""

import sys
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import gammaln
from sklearn.exceptions import ConvergenceWarning

from references import amortized_irt_calibrations as reference
from seedbed.datasets import load_lsat6, load_verbal_aggression, make_irt_responses
from seedbed.estimators.amortized_irt import conditional, joint, laplace, moment
from seedbed.estimators.amortized_irt.em import FreeStep, Latent, run_em
from seedbed.estimators.amortized_irt.gibbs import GibbsSampler, sample_posterior
from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.laplace import laplace_posterior
from seedbed.estimators.amortized_irt.posterior import Priors
from seedbed.estimators.amortized_irt.responses import Responses, read_responses

# Rasch fits of LSAT section 6 by marginal likelihood (R package ltm).
LSAT6_FREE = [-2.7301, -0.9986, -0.2399, -1.3065, -2.0995], 0.7553
LSAT6_UNIT = [-2.8719, -1.0630, -0.2576, -1.3880, -2.2187]


def draw(*arguments, **options):
    drawn = make_irt_responses(*arguments, **options)
    return drawn, read_responses(drawn.data)


def as_sparse(data):
    seen = ~np.isnan(data)
    return read_responses(sparse.csr_array(np.nan_to_num(data)), mask=sparse.csr_array(seen))


@pytest.fixture(scope="module")
def many_takers():
    return draw(2000, 10, random_state=0)


# Moments


def test_moment_roots_are_the_known_ones():
    share = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.924, 0.709])
    b, steps = moment.moment_roots(share, np.ones(7))
    assert_allclose(-b, [-2.564222, -1.314912, 0, 1.314912, 2.564222, 2.892808, 1.069656], atol=1e-6)
    assert steps <= 8


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_moment_roots_solve_their_equation(scale):
    # 31 nodes hold the integral of a curve that is not too steep beside the law of ability.
    share = np.array([0.002, 0.3, 0.5, 0.97])
    expected = [reference.moment_root(p, scale) for p in share]
    found = moment.moment_roots(1000 * share, np.full(4, 1000.0), scale)[0]
    assert_allclose(found, expected, atol={0.3: 1e-9, 1.0: 1e-7, 2.5: 2e-3}[scale])
    assert_allclose(moment.moment_roots(share, np.ones(4), scale, start=np.zeros(4))[0], found, atol=1e-9)


def test_moment_roots_minimise_the_monte_carlo_objective():
    draws = np.random.default_rng(0).standard_normal(20_000)
    draws = np.concatenate([draws, -draws])  # antithetic: the mean of the draws is no source of error
    share = np.array([0.1, 0.35, 0.5, 0.75, 0.9])
    expected = [reference.monte_carlo_minimiser(p, draws) for p in share]
    assert_allclose(moment.moment_roots(share, np.ones(5))[0], expected, atol=0.003)


def test_moment_roots_with_a_prior_maximise_the_posterior():
    right, seen = np.array([10.0, 3.0]), np.array([10.0, 9.0])
    b = moment.moment_roots(right, seen, prior_std=np.array([4.0, np.inf]))[0]
    e = 1e-5

    def posterior(difficulty):
        x, w = moment.normal_nodes(61)
        expected = (-np.logaddexp(0, x - difficulty)) @ w - (10 - 10) * difficulty - 1.0 * difficulty
        return 10 * expected - difficulty**2 / 32

    slope = (posterior(b[0] + e) - posterior(b[0] - e)) / (2 * e)
    assert abs(slope) < 1e-5
    assert b[1] == pytest.approx(reference.moment_root(3 / 9, 1.0), abs=1e-7)
    assert_array_equal(moment.moment_roots(np.array([0.0, 5.0]), np.array([5.0, 5.0]))[0], [np.inf, -np.inf])


def test_moments_of_complete_data_are_close_to_marginal_likelihood():
    data = read_responses(load_lsat6().data)
    unit = moment.calibrate_moment(data)
    assert_allclose(unit.items.difficulty, LSAT6_UNIT, atol=0.03)
    free = moment.calibrate_moment(data, scale=None)
    assert free.scale == pytest.approx(LSAT6_FREE[1], abs=0.003)
    assert_allclose(free.items.difficulty, LSAT6_FREE[0], atol=0.003)


def test_the_free_scale_is_where_the_scores_spread_as_they_should():
    drawn, responses = draw(60, 7, ability_std=1.3, missing="mcar", missing_rate=0.3, random_state=3)
    b = np.linspace(-1, 1, 7)
    for scale in (0.5, 2.0):
        expected = reference.score_excess(drawn.data, b, scale)
        assert moment.score_excess(responses, b, scale) == pytest.approx(expected, abs=1e-9)
    found = moment.calibrate_moment(responses, scale=None, warn=False)
    assert reference.score_excess(drawn.data, found.items.difficulty, found.scale) == pytest.approx(
        0, abs=1e-5
    )


def test_the_free_scale_is_consistent():
    spread = []
    for seed in range(5):
        _, responses = draw(1000, 20, ability_std=1.5, missing="mcar", missing_rate=0.4, random_state=seed)
        spread.append(moment.calibrate_moment(responses, scale=None).scale)
    assert np.mean(spread) == pytest.approx(1.5, abs=0.05)
    assert 0 < np.std(spread) < 0.1


def test_without_ability_the_scale_is_the_least():
    _, responses = draw(500, 20, ability_std=0.0, random_state=2)
    assert moment.calibrate_moment(responses, scale=None).scale < 0.25
    alike = read_responses(np.tile([[1.0, 0.0]], (20, 1))[:, :2])
    assert moment.calibrate_moment(alike, scale=None).scale == moment.SCALES[0]


def test_moment_abilities_maximise_the_posterior():
    drawn, responses = draw(40, 30, missing="mcar", missing_rate=0.3, random_state=0)
    found = moment.calibrate_moment(responses, warn=False)
    curve = found.items.probability(found.ability)
    slope = np.nansum(drawn.data - curve, axis=1) - found.ability
    information = (np.where(np.isnan(drawn.data), 0, curve * (1 - curve))).sum(axis=1) + 1
    assert np.abs(slope / information).max() < 0.03  # interpolated between nodes
    assert np.corrcoef(found.ability, drawn.ability)[0, 1] > 0.85


def test_moments_mislead_where_respondents_differ_and_say_so():
    bias = []
    for seed in range(3):
        drawn, responses = draw(300, 200, missing="block", random_state=seed)
        with pytest.warns(ConvergenceWarning, match=r"mean ability.*taker_groups or latent_groups='pattern'"):
            found = moment.calibrate_moment(responses)
        error = found.items.difficulty - drawn.difficulty + drawn.ability.mean()
        bias.append([error[drawn.block == k].mean() for k in range(2)])
    first, last = np.mean(bias, axis=0)
    assert first > 0.5
    assert last < -0.5


@pytest.mark.parametrize(
    "design", [{"missing": "mcar", "missing_rate": 0.8}, {"missing": "block", "selection": 0.0}]
)
def test_moments_are_silent_where_respondents_are_alike(design):
    for seed in range(5):
        _, responses = draw(100, 60, random_state=seed, **design)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert moment.calibrate_moment(responses).unequal < 0.2
    assert moment.calibrate_moment(draw(100, 60, random_state=0)[1]).unequal == 0


@pytest.mark.parametrize(
    "calibrate", [moment.calibrate_moment, joint.calibrate_joint, conditional.calibrate_conditional]
)
def test_storage_and_weights_do_not_matter(calibrate):
    drawn, dense = draw(60, 8, missing="block", n_blocks=2, random_state=1, selection=0.3)
    found = calibrate(dense).items.difficulty
    assert_allclose(calibrate(as_sparse(drawn.data)).items.difficulty, found, atol=1e-7)
    doubled = read_responses(np.concatenate([drawn.data, drawn.data]))
    assert_allclose(
        calibrate(doubled).items.difficulty,
        calibrate(dense.weighted(np.full(60, 2.0))).items.difficulty,
        atol=1e-6,
    )
    order = np.random.default_rng(0).permutation(8)
    assert_allclose(
        calibrate(read_responses(drawn.data[::-1, order])).items.difficulty, found[order], atol=1e-7
    )
    flipped = calibrate(read_responses(1 - drawn.data)).items.difficulty
    assert_allclose(flipped, -found, atol=1e-7)


EXTREME = np.array(
    [[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], dtype=float
)


@pytest.mark.parametrize(
    "calibrate", [moment.calibrate_moment, joint.calibrate_joint, conditional.calibrate_conditional]
)
def test_extreme_items(calibrate):
    responses = read_responses(EXTREME)
    held = calibrate(responses).items.difficulty
    assert np.isfinite(held).all()
    assert held[0] < held[1:3].min() - 1
    assert held[3] > held[1:3].max() + 1
    dropped = calibrate(responses, drop_extreme=True).items.difficulty
    assert_array_equal(dropped[[0, 3]], [-np.inf, np.inf])
    inner = calibrate(read_responses(EXTREME[:, 1:3]), drop_extreme=True).items.difficulty
    assert_allclose(dropped[1:3], inner, atol=1e-8)


# Joint likelihood


def test_joint_maximum_is_that_of_a_general_optimiser():
    drawn, _ = draw(12, 6, missing="mcar", missing_rate=0.2, random_state=5)
    takers, items = joint.ordinary(read_responses(drawn.data))
    data = drawn.data[np.ix_(takers, items)]
    theta, b, value = reference.joint_maximum(data)
    found = joint.calibrate_joint(read_responses(data), drop_extreme=True, max_iter=5000, tol=1e-12)
    assert found.converged
    assert_allclose(found.ability, theta, atol=1e-5)
    assert_allclose(found.items.difficulty, b, atol=1e-5)
    assert found.log_likelihood == pytest.approx(value, abs=1e-8)


def test_joint_likelihood_stretches_short_tests(many_takers):
    drawn, responses = many_takers
    found = joint.calibrate_joint(responses, drop_extreme=True)
    truth = drawn.difficulty - drawn.difficulty.mean()
    slope = np.polyfit(truth, found.items.difficulty, 1)[0]
    assert slope > 1.08
    assert slope == pytest.approx(10 / 9, abs=0.04)
    assert np.polyfit(truth, joint.calibrate_joint(responses).items.difficulty, 1)[0] > 1.08


def test_joint_likelihood_is_fine_for_long_tests():
    drawn, responses = draw(183, 500, missing="mcar", missing_rate=0.3, random_state=0)
    found = joint.calibrate_joint(responses)
    error = found.items.difficulty - drawn.difficulty + drawn.difficulty.mean()
    assert np.sqrt(np.mean(error**2)) < 0.24
    assert np.corrcoef(found.ability, drawn.ability)[0, 1] > 0.98
    assert found.n_iter < 40


def test_extreme_takers_and_items_leave_one_after_another():
    # Without taker 0 (all right), item 0 has wrong answers only; without it, taker 1 has none right.
    data = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 1, 1, 0]], dtype=float)
    takers, items = joint.ordinary(read_responses(data))
    assert takers.tolist() == [False, False, True, True, True]
    assert items.tolist() == [False, True, True, True]
    found = joint.calibrate_joint(read_responses(data), drop_extreme=True)
    assert_array_equal(found.ability[:2], [np.inf, -np.inf])
    assert found.items.difficulty[0] == np.inf
    for calibrate in (joint.calibrate_joint, conditional.calibrate_conditional):
        with pytest.raises(ValueError, match="none is left"):
            calibrate(read_responses(np.array([[1.0, 1.0], [0.0, 0.0]])), drop_extreme=True)


def test_joint_likelihood_says_when_it_is_not_done(many_takers):
    with pytest.warns(ConvergenceWarning, match="within 2 rounds"):
        assert not joint.calibrate_joint(many_takers[1], max_iter=2).converged


def test_joint_work_in_parts_is_the_same(monkeypatch):
    drawn, whole = draw(40, 9, missing="mcar", missing_rate=0.2, random_state=1)
    complete = draw(40, 9, random_state=1)[1]
    expected = [joint.calibrate_joint(each).items.difficulty for each in (whole, complete)]
    monkeypatch.setattr(joint, "CELLS", 30)
    for each, before in zip((whole, complete, as_sparse(drawn.data)), [*expected, expected[0]]):
        assert_allclose(joint.calibrate_joint(each).items.difficulty, before, atol=1e-9)


# Conditional likelihood


def test_symmetric_functions_are_binomial_for_equal_items():
    k = 200
    log_gamma, last = conditional.log_symmetric(np.full(k, 0.7))
    r = np.arange(k + 1)
    assert_allclose(log_gamma, gammaln(k + 1) - gammaln(r + 1) - gammaln(k - r + 1) - 0.7 * r, atol=1e-10)
    assert_allclose(last[-1], r / k, atol=1e-12)
    spread = conditional.log_symmetric(np.linspace(-300, 300, k))[0]
    assert np.isfinite(spread).all()


def test_conditional_likelihood_is_that_over_all_patterns():
    drawn, responses = draw(30, 5, missing="mcar", missing_rate=0.25, random_state=0)
    b = np.random.default_rng(1).normal(size=5)
    value, gradient, information = conditional.conditional_log_likelihood(responses, b)
    assert value == pytest.approx(reference.conditional_log_likelihood(drawn.data, b), abs=1e-9)
    e = 1e-5
    for k, unit in enumerate(np.eye(5)):
        up, down = (reference.conditional_log_likelihood(drawn.data, b + sign * e * unit) for sign in (1, -1))
        assert gradient[k] == pytest.approx((up - down) / (2 * e), abs=1e-6)
        up, down = (
            conditional.conditional_log_likelihood(responses, b + sign * e * unit)[1] for sign in (1, -1)
        )
        assert_allclose(information[k], -(up - down) / (2 * e), atol=1e-6)
    assert_allclose(information.sum(axis=0), 0, atol=1e-10)


def test_conditional_maximum():
    drawn, responses = draw(80, 6, missing="block", n_blocks=3, random_state=0)
    found = conditional.calibrate_conditional(responses)
    assert found.converged
    assert found.items.difficulty.mean() == pytest.approx(0, abs=1e-12)
    _, gradient, information = conditional.conditional_log_likelihood(responses, found.items.difficulty)
    assert np.abs(gradient).max() < 1e-8
    assert found.log_likelihood == pytest.approx(
        reference.conditional_log_likelihood(drawn.data, found.items.difficulty)
    )
    # The generalised inverse: inside the space of mean 0 it undoes the information.
    assert_allclose(information @ found.covariance, np.eye(6) - 1 / 6, atol=1e-8)
    assert_allclose(found.items.difficulty_std**2, np.diag(found.covariance))


def test_conditional_and_marginal_likelihood_agree(many_takers):
    drawn, responses = many_takers
    b, _, _ = reference.marginal_rasch(drawn.data)
    found = conditional.calibrate_conditional(responses)
    assert np.abs(found.items.difficulty - (b - b.mean())).max() < 0.01


def test_conditional_likelihood_is_blind_to_groups():
    # Two groups far apart that share five items: difficulties still come out on one scale.
    rng = np.random.default_rng(0)
    b = rng.normal(size=25)
    theta = np.concatenate([rng.normal(-1, 1, 500), rng.normal(1, 1, 500)])
    data = (rng.uniform(size=(1000, 25)) < 1 / (1 + np.exp(b - theta[:, None]))).astype(float)
    data[:500, 15:], data[500:, :10] = np.nan, np.nan
    found = conditional.calibrate_conditional(read_responses(data))
    error = found.items.difficulty - (b - b.mean())
    z = error / found.items.difficulty_std
    assert abs(error[:10].mean() - error[15:].mean()) < 0.3
    assert 0.5 < np.mean(z**2) < 2.0


def test_standard_errors_of_conditional_likelihood_cover():
    z = []
    for seed in range(60):
        drawn, responses = draw(200, 8, random_state=seed)
        found = conditional.calibrate_conditional(responses)
        z.append(
            (found.items.difficulty - drawn.difficulty + drawn.difficulty.mean()) / found.items.difficulty_std
        )
    assert np.mean(np.square(z)) == pytest.approx(1, abs=0.2)


def test_conditional_likelihood_refuses_what_it_cannot_do():
    _, responses = draw(400, 600, missing="mcar", missing_rate=0.5, random_state=0)
    with pytest.raises(ValueError, match=r"method='cml' would take .* 400 patterns.*method='mml'"):
        conditional.calibrate_conditional(responses)


def test_conditional_likelihood_says_that_items_are_apart():
    # Whoever gets one of the last two right gets the first two right as well.
    data = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1], [1, 1, 1, 0]] * 5, dtype=float)
    with pytest.warns(ConvergenceWarning, match="nobody got one of the first wrong"):
        found = conditional.calibrate_conditional(read_responses(data))
    assert found.items.difficulty[:2].max() < found.items.difficulty[2:].min() - 2
    assert np.abs(found.items.difficulty).max() < 10
    # One taker the other way round is enough.
    found = conditional.calibrate_conditional(read_responses(np.vstack([data, [0, 1, 1, 1], [1, 0, 0, 1]])))
    assert found.converged
    assert conditional.separated(as_sparse(data), np.ones(4, dtype=bool))


# Posterior draws


def test_draws_have_the_exact_posterior_of_one_item():
    """Rasch and 2PL with one item, where the posterior is a sum over a grid; wrong constants show."""
    right, n = 5, 6
    responses = Responses((np.arange(n) < right).astype(float)[:, None], None, np.ones(n))
    for slopes, prior in ((False, (0.5, 1.2)), (True, (0.5, 0.8))):
        law = (0.2, 0.5) if slopes else None
        priors = Priors(scale=None, difficulty=prior, log_discrimination=(0.2, 0.5))
        drawn = sample_posterior(
            responses, slopes=slopes, priors=priors, n_draws=12_000, n_burn_in=200, random_state=0
        )
        exact = reference.posterior_of_one_item(right, n, prior, law)
        # The draws are worth a few thousand independent ones.
        assert drawn.difficulty.mean() == pytest.approx(exact[0][0], abs=0.06)
        assert drawn.difficulty.std() == pytest.approx(exact[0][1], rel=0.05)
        if slopes:
            assert drawn.discrimination.mean() == pytest.approx(exact[1][0], abs=0.03)
            assert drawn.discrimination.std() == pytest.approx(exact[1][1], rel=0.06)
        else:
            assert (drawn.discrimination == 1).all()


def test_abilities_of_the_posterior():
    """With difficulties pinned by their prior, abilities have the known law of a test of three items."""
    data = np.array([[1.0, 1.0, 0.0], [np.nan, np.nan, 1.0]])
    priors = Priors(scale=None, difficulty=(0.0, 1e-4))
    drawn = sample_posterior(read_responses(data), priors=priors, n_draws=8000, random_state=0)
    x, w = moment.normal_nodes(61)
    p = 1 / (1 + np.exp(-x))
    for k, likelihood in enumerate((p**2 * (1 - p), p)):
        weight = w * likelihood / (w @ likelihood)
        mean = x @ weight
        assert drawn.ability[k] == pytest.approx(mean, abs=0.05)
        assert drawn.ability_std[k] == pytest.approx(np.sqrt((x - mean) ** 2 @ weight), rel=0.04)


def lsat6_posterior(n_draws):
    priors = Priors(scale=(1.0, 1.0), difficulty=(0.0, 10.0))
    return sample_posterior(
        read_responses(load_lsat6().data),
        priors=priors,
        n_draws=n_draws,
        n_burn_in=n_draws // 5,
        random_state=0,
    )


@pytest.mark.parametrize("n_draws", [1500, pytest.param(5000, marks=pytest.mark.slow)])
def test_lsat6(n_draws):
    drawn = lsat6_posterior(n_draws)
    assert_allclose(drawn.difficulty.mean(axis=0), [-2.743, -1.002, -0.240, -1.314, -2.108], atol=0.03)
    assert_allclose(drawn.difficulty.std(axis=0), [0.135, 0.080, 0.072, 0.085, 0.108], atol=0.03)
    assert drawn.scale.mean() == pytest.approx(0.769, abs=0.03)
    assert drawn.scale.std() == pytest.approx(0.069, abs=0.03)
    assert_allclose(drawn.items().difficulty_std, drawn.difficulty.std(axis=0, ddof=1))


def test_the_law_of_difficulties_is_learned():
    drawn, responses = draw(150, 60, difficulty_std=0.7, random_state=0)
    responses = read_responses(drawn.data)
    found = sample_posterior(responses, n_draws=300, n_burn_in=100, random_state=0)
    mu, tau = found.difficulty_law.mean(axis=0)
    assert mu == pytest.approx(drawn.difficulty.mean(), abs=0.25)
    assert tau == pytest.approx(drawn.difficulty.std(), abs=0.12)
    # With few answers the prior matters: estimates are drawn towards mu.
    few = sample_posterior(responses.take(np.arange(12)), n_draws=300, n_burn_in=100, random_state=0)
    assert (
        few.difficulty.mean(axis=0).std()
        < 0.9 * moment.calibrate_moment(responses.take(np.arange(12))).items.difficulty.std()
    )


def test_groups_have_means_of_their_own():
    rng = np.random.default_rng(1)
    group = np.repeat([0, 1], 120)
    b = rng.normal(size=30)
    theta = rng.normal(size=240) + 1.0 * group
    data = (rng.uniform(size=(240, 30)) < 1 / (1 + np.exp(b - theta[:, None]))).astype(float)
    data[group == 0, 20:], data[group == 1, :10] = np.nan, np.nan
    found = sample_posterior(read_responses(data), group=group, n_draws=400, n_burn_in=200, random_state=0)
    assert (found.mean[:, 0] == 0).all()
    assert found.mean[:, 1].mean() == pytest.approx(
        theta[group == 1].mean() - theta[group == 0].mean(), abs=0.3
    )


def test_draws_repeat_and_leave_numpy_alone():
    _, responses = draw(30, 6, missing="mcar", missing_rate=0.2, random_state=0)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    one, two, other = (sample_posterior(responses, n_draws=20, random_state=k) for k in (0, 0, 1))
    assert_array_equal(one.difficulty, two.difficulty)
    assert (one.difficulty != other.difficulty).any()
    assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_bayes_errors(monkeypatch):
    _, responses = draw(30, 6, random_state=0)
    with pytest.raises(ValueError, match="sample_weight must be 1"):
        GibbsSampler(responses.weighted(np.full(30, 2.0)), Priors())
    with pytest.raises(ValueError, match="scale must be in"):
        sample_posterior(responses, priors=Priors(scale=(0.0, 1.0)))
    with pytest.raises(ValueError, match="difficulty must be in"):
        sample_posterior(responses, priors=Priors(difficulty=(0.0, -1.0)))
    with pytest.raises(ValueError, match="n_draws must be in"):
        sample_posterior(responses, n_draws=1)
    monkeypatch.setitem(sys.modules, "polyagamma", None)
    with pytest.raises(
        ImportError,
        match=r"laplace_posterior does without\) needs polyagamma: pip install 'seedbed\[bayes\]'",
    ):
        sample_posterior(responses)


@pytest.mark.slow
@pytest.mark.parametrize("slopes", [False, True])
def test_intervals_cover(slopes):
    inside = []
    for seed in range(40):
        drawn, responses = draw(200, 10, "2pl" if slopes else "rasch", random_state=seed)
        priors = Priors(scale=None, difficulty=(0.0, 1.0), log_discrimination=(0.0, 0.3))
        found = sample_posterior(
            responses, slopes=slopes, priors=priors, n_draws=1000, n_burn_in=200, random_state=seed
        )
        low, high = np.quantile(found.difficulty, [0.025, 0.975], axis=0)
        inside.append((low <= drawn.difficulty) & (drawn.difficulty <= high))
    assert 0.92 <= np.mean(inside) <= 0.98


def test_verbal_aggression_in_all_ways():
    responses = read_responses(load_verbal_aggression().data)
    b, scale, value = reference.marginal_rasch(load_verbal_aggression().data)
    assert (scale, value) == (pytest.approx(1.3852, abs=1e-3), pytest.approx(-4036.905, abs=0.01))
    ways = {
        "moment": (moment.calibrate_moment(responses, scale=None).items.difficulty, 0.1),
        "joint": (joint.calibrate_joint(responses).items.difficulty * 23 / 24, 0.1),
        "conditional": (conditional.calibrate_conditional(responses).items.difficulty, 0.08),
    }
    for name, (found, tolerance) in ways.items():
        assert np.abs(found - found.mean() - b + b.mean()).max() < tolerance, name


# The normal law at the mode


def test_the_gradient_is_that_of_the_log_posterior():
    """By differences, with priors of all kinds."""
    _, responses = draw(60, 4, random_state=0)
    group = (np.arange(60) % 2).astype(np.int64)
    priors = Priors(
        scale=(2.0, 1.5), difficulty=(0.3, 0.8), log_discrimination=(0.1, 0.4), guessing=(5.0, 17.0)
    )
    for p in (1, 2, 3):
        step = FreeStep(p, (np.full(4, 0.3), np.full(4, 0.8)), (0.1, 0.4), (5.0, 17.0) if p > 2 else None)
        problem = laplace._Problem(responses, p, step, priors, group, 2)
        rng = np.random.default_rng(0)
        x = rng.normal(scale=0.3, size=4 * p + 2)
        if p > 2:
            x[2:12:3] -= 1.5

        def log_posterior(x, problem=problem, step=step):
            items, latent = problem.unpack(x)
            theta, w = moment.normal_nodes(41)
            value = step.log_prior(items)
            for n in range(60):
                curve = items.probability(latent.mean[group[n]] + latent.scale * theta)
                y = responses.right[n]
                value += np.log(w @ np.prod(np.where(y == 1, curve, 1 - curve), axis=1))
            # s^2 ~ inverse gamma (2, 1.5), in log s
            return value - 2 * 2.0 * np.log(latent.scale) - 1.5 / latent.scale**2

        gradient = problem.gradient(x)[0]
        assert_allclose(problem.pack(*problem.unpack(x)), x, atol=1e-12)
        for k in range(len(x)):
            move = np.zeros(len(x))
            move[k] = 1e-5
            slope = (log_posterior(x + move) - log_posterior(x - move)) / 2e-5
            assert gradient[k] == pytest.approx(slope, abs=2e-4), (p, k)


def test_laplace_and_gibbs_agree():
    responses = read_responses(load_lsat6().data)
    priors = Priors(scale=(1.0, 1.0), difficulty=(0.0, 10.0))
    fitted, drawn = laplace_posterior(responses, priors=priors, n_draws=4000, random_state=0)
    assert_allclose(drawn.difficulty.mean(axis=0), [-2.743, -1.002, -0.240, -1.314, -2.108], atol=0.03)
    assert_allclose(drawn.difficulty.std(axis=0), [0.135, 0.080, 0.072, 0.085, 0.108], atol=0.01)
    assert drawn.scale.mean() == pytest.approx(0.769, abs=0.015)
    assert drawn.scale.std() == pytest.approx(0.069, abs=0.006)
    assert_allclose(fitted.items.difficulty_std, drawn.difficulty.std(axis=0, ddof=1))
    assert_allclose(fitted.items.difficulty, drawn.difficulty.mean(axis=0), atol=0.01)


def test_laplace_and_gibbs_agree_for_slopes():
    _, responses = draw(400, 8, "2pl", random_state=1)
    priors = Priors(scale=None, difficulty=(0.0, 1.0), log_discrimination=(0.0, 0.3))
    _, one = laplace_posterior(responses, n_parameters=2, priors=priors, n_draws=1500, random_state=0)
    two = sample_posterior(responses, slopes=True, priors=priors, n_draws=1500, random_state=0)
    assert_allclose(one.difficulty.mean(axis=0), two.difficulty.mean(axis=0), atol=0.1)
    assert_allclose(one.discrimination.mean(axis=0), two.discrimination.mean(axis=0), atol=0.1)
    assert_allclose(one.difficulty.std(axis=0), two.difficulty.std(axis=0), rtol=0.3)


def test_laplace_learns_the_law_of_difficulties():
    drawn, responses = draw(150, 60, difficulty_std=0.7, random_state=0)
    _, posterior = laplace_posterior(responses, n_draws=10, random_state=0)
    mu, tau = posterior.difficulty_law[0]
    assert mu == pytest.approx(drawn.difficulty.mean(), abs=0.2)
    assert tau == pytest.approx(drawn.difficulty.std(), abs=0.1)


def test_laplace_of_guessing():
    drawn, responses = draw(500, 8, "3pl", random_state=0)
    fitted, posterior = laplace_posterior(
        responses,
        n_parameters=3,
        priors=Priors(scale=None, difficulty=(0.0, 1.0)),
        n_draws=500,
        random_state=0,
    )
    assert fitted.converged
    assert np.corrcoef(fitted.items.difficulty, drawn.difficulty)[0, 1] > 0.75
    assert ((posterior.guessing > 0) & (posterior.guessing < 1)).all()
    z = (posterior.difficulty.mean(axis=0) - drawn.difficulty) / posterior.difficulty.std(axis=0)
    assert np.abs(z).max() < 4
    with pytest.raises(ValueError, match="n_parameters must be one of 1, 2, 3"):
        laplace_posterior(responses, n_parameters=4)


def test_laplace_of_many_items():
    drawn, responses = draw(150, laplace.MOST_PARAMETERS + 100, random_state=0)
    _, posterior = laplace_posterior(responses, n_draws=200, random_state=0)
    z = (
        posterior.difficulty.mean(axis=0) - drawn.difficulty + drawn.ability.mean()
    ) / posterior.difficulty.std(axis=0)
    assert np.mean(z**2) == pytest.approx(1, abs=0.25)


def test_laplace_works_with_weights():
    drawn, responses = draw(60, 5, random_state=0)
    double = read_responses(np.concatenate([drawn.data, drawn.data]))
    priors = Priors(difficulty=(0.0, 1.0))
    one = laplace_posterior(responses.weighted(np.full(60, 2.0)), priors=priors, random_state=0)[1]
    two = laplace_posterior(double, priors=priors, random_state=0)[1]
    assert_allclose(one.difficulty, two.difficulty, atol=1e-4)


# Beside marginal likelihood


def marginal(responses):
    n = responses.n_items
    free = FreeStep(1, (np.zeros(n), np.full(n, np.inf)))
    return run_em(responses, Items.of(np.zeros(n)), Latent.single(responses.n_takers), free)


def anchored(seed):
    """Two groups of 150 with 100 items each of their own, five in common; the second is better by one."""
    rng = np.random.default_rng(seed)
    group = np.repeat([0, 1], 150)
    b, theta = rng.normal(size=205), rng.normal(size=300) + group
    data = (rng.uniform(size=(300, 205)) < 1 / (1 + np.exp(b - theta[:, None]))).astype(float)
    data[:150, 105:], data[150:, :100] = np.nan, np.nan
    return read_responses(data), group, theta[150:].mean() - theta[:150].mean()


def test_joint_abilities_tell_groups_apart():
    errors = []
    for seed in range(5):
        responses, group, truth = anchored(seed)
        ability = joint.calibrate_joint(responses).ability
        errors.append(ability[group == 1].mean() - ability[group == 0].mean() - truth)
    assert abs(np.mean(errors)) < 0.2


def test_blocks_do_not_mislead_marginal_likelihood():
    bias = []
    for seed in range(3):
        drawn, responses = draw(300, 200, missing="block", random_state=seed)
        error = marginal(responses).items.difficulty - drawn.difficulty + drawn.ability.mean()
        bias.append([error[drawn.block == k].mean() for k in range(2)])
    assert np.abs(np.mean(bias, axis=0)).max() < 0.2
