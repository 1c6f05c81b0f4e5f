"""RaschModel, TwoPLModel, ThreePLModel: published estimates, likelihood, recovery, gaps, errors."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from references.amortized_irt import log_likelihood, posterior_moments
from seedbed.datasets import (
    load_lsat6,
    load_lsat7,
    load_swedish_sat,
    load_verbal_aggression,
    make_irt_responses,
)
from seedbed.estimators import Items, RaschModel, ThreePLModel, TwoPLModel, estimate_ability
from seedbed.estimators.amortized_irt.em import FreeStep, Latent, expect, run_em
from seedbed.estimators.amortized_irt.responses import read_responses

# Published (R package ltm): log-likelihood, difficulties, s; log-likelihood and slopes of the 2PL.
PUBLISHED = {
    "lsat6": (
        load_lsat6,
        (-2466.938, [-2.7301, -0.9986, -0.2399, -1.3065, -2.0995], 0.7553),
        (-2466.653, [0.8257, 0.7228, 0.8909, 0.6884, 0.6569]),
    ),
    "lsat7": (
        load_lsat7,
        (-2664.901, [-1.8683, -0.7910, -1.4610, -0.5215, -1.9930], 1.0114),
        (-2658.805, [0.9876, 1.0808, 1.7075, 0.7650, 0.7357]),
    ),
}


def free(n_items, n_parameters, **priors):
    return FreeStep(n_parameters, (np.zeros(n_items), np.full(n_items, np.inf)), **priors)


def calibrated(X, n_parameters=1, **settings):
    """EM from zero difficulties."""
    responses = read_responses(X)
    return run_em(
        responses,
        Items.of(np.zeros(responses.n_items)),
        Latent.single(responses.n_takers),
        free(responses.n_items, n_parameters),
        slopes=n_parameters > 1,
        **settings,
    )


# --- published numbers


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_estimates(name):
    load, (value, difficulty, scale), (value_2pl, slopes) = PUBLISHED[name]
    X = load().data
    rasch = RaschModel(tol=1e-12).fit(X)
    np.testing.assert_allclose(rasch.difficulty_, difficulty, atol=2e-3)
    assert rasch.latent_scale_ == pytest.approx(scale, abs=2e-3)
    assert rasch.log_likelihood_ == pytest.approx(value, abs=0.01)
    two = TwoPLModel(tol=1e-12).fit(X)
    assert two.log_likelihood_ == pytest.approx(value_2pl, abs=0.01)
    np.testing.assert_allclose(two.discrimination_, slopes, atol=2e-3)


def test_published_estimates_at_a_fixed_scale():
    model = RaschModel(latent_scale=1.0, tol=1e-12).fit(load_lsat6().data)
    np.testing.assert_allclose(model.difficulty_, [-2.8719, -1.0630, -0.2576, -1.3880, -2.2187], atol=2e-3)
    assert model.log_likelihood_ == pytest.approx(-2473.054, abs=0.01)
    assert model.latent_scale_ == 1.0


def test_verbal_aggression():
    model = RaschModel(tol=1e-11).fit(load_verbal_aggression().data)
    assert model.latent_scale_ == pytest.approx(1.3852, abs=2e-3)
    assert model.log_likelihood_ == pytest.approx(-4036.905, abs=0.01)


@pytest.mark.parametrize(
    ("part", "scale", "value", "value_2pl"),
    [("quant", 0.9950, -231485.56, -228435.50), ("verb", 0.9037, -235347.23, -233143.92)],
)
def test_swedish_sat(part, scale, value, value_2pl):
    X = load_swedish_sat(part).data
    model = RaschModel().fit(X)
    assert model.latent_scale_ == pytest.approx(scale, abs=2e-3)
    assert model.log_likelihood_ == pytest.approx(value, abs=0.5)
    assert TwoPLModel().fit(X).log_likelihood_ == pytest.approx(value_2pl, abs=0.5)


# --- the likelihood


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("model", ["rasch", "2pl", "3pl", "4pl"])
def test_e_step_equals_a_plain_reading(model, layout):
    data = make_irt_responses(12, 6, model, missing="mcar", missing_rate=0.3, random_state=0)
    X, means = data.data, np.where(np.arange(12) < 5, 0.0, 0.7)
    items = Items.of(data.difficulty, data.discrimination, data.guessing, data.upper)
    latent = Latent(np.array([0.0, 0.7]), 0.9, (np.arange(12) >= 5).astype(int))
    responses = read_responses(X)
    if layout == "sparse":
        responses = read_responses(sparse.csr_array(np.nan_to_num(X)), mask=sparse.csr_array(~np.isnan(X)))
    found = expect(responses, items, latent, n_parameters=1, n_quadrature=41)
    rows = list(zip(items.discrimination, items.difficulty, items.guessing, items.upper, strict=True))
    assert found.log_likelihood.sum() == pytest.approx(log_likelihood(X, rows, means, 0.9), abs=1e-6)
    for n in (0, 7):
        mean, std = posterior_moments(X[n], rows, means[n], 0.9)
        assert (found.mean[n], found.std[n]) == pytest.approx((mean, std), abs=1e-6)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize(("model", "p"), [("rasch", 1), ("2pl", 2), ("3pl", 3), ("4pl", 4)])
def test_gradient_is_that_of_the_marginal_likelihood(model, p, layout):
    """Fisher's identity: the E-step's gradient is the derivative of the log-likelihood."""
    data = make_irt_responses(40, 5, model, missing="mcar", missing_rate=0.2, random_state=1)
    weight = np.random.default_rng(0).uniform(0.5, 2, 40)
    responses = read_responses(data.data, weight=weight)
    if layout == "sparse":
        cells, seen = np.nan_to_num(data.data), ~np.isnan(data.data)
        responses = read_responses(sparse.csr_array(cells), mask=sparse.csr_array(seen), weight=weight)
    latent = Latent.single(40, 1.1)

    def value(slope, intercept, low, high):
        items = Items.of(-intercept / slope, slope, low, high)
        found = expect(responses, items, latent, n_parameters=p, n_quadrature=41)
        return float(weight @ found.log_likelihood), found

    parts = [data.discrimination, -data.discrimination * data.difficulty, data.guessing, data.upper]
    gradient = value(*parts)[1].gradient
    step = 1e-5
    if p == 1:
        parts = [parts[0], parts[1], parts[2], parts[3]]
        for i in range(5):
            ahead, behind = (parts[1].copy(), parts[1].copy())
            ahead[i] -= step * parts[0][i]  # of b upward
            behind[i] += step * parts[0][i]
            slope = (value(parts[0], ahead, *parts[2:])[0] - value(parts[0], behind, *parts[2:])[0]) / (
                2 * step
            )
            assert gradient[i, 0] == pytest.approx(slope, abs=1e-4)
        return
    for k in range(p):
        for i in (0, 3):
            moved = []
            for sign in (1, -1):
                changed = [part.copy() for part in parts]
                changed[k][i] += sign * step
                moved.append(value(*changed)[0])
            assert gradient[i, k] == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-4)


@pytest.mark.parametrize("p", [1, 2])
def test_likelihood_never_falls_and_ends_at_a_stationary_point(p):
    X = make_irt_responses(250, 12, "2pl", missing="mcar", missing_rate=0.2, random_state=2).data
    fitted = calibrated(X, p, tol=1e-13, max_iter=2000)
    assert fitted.converged
    assert np.diff(fitted.history).min() > -1e-8
    assert len(fitted.history) > 3
    np.testing.assert_allclose(fitted.expectation.gradient, 0, atol=5e-4)


def test_priors_do_not_break_monotony():
    for seed in range(3):
        X = make_irt_responses(60, 8, "3pl", random_state=seed).data
        responses = read_responses(X)
        step = free(8, 3, discrimination_prior=(0.0, 0.5), guessing_prior=(5.0, 17.0))
        fitted = run_em(
            responses, Items.of(np.zeros(8), 1.0, 0.2), Latent.single(60), step, slopes=True, tol=1e-12
        )
        assert fitted.converged
        assert np.diff(fitted.history).min() > -1e-8


def test_more_fixed_nodes_agree_on_few_items_and_fail_on_many():
    X = load_lsat6().data
    adaptive = RaschModel(tol=1e-12).fit(X)
    fixed = RaschModel(tol=1e-12, quadrature="fixed", n_quadrature=61).fit(X)
    np.testing.assert_allclose(fixed.difficulty_, adaptive.difficulty_, atol=1e-4)
    assert fixed.log_likelihood_ == pytest.approx(adaptive.log_likelihood_, abs=1e-4)
    data = make_irt_responses(183, 500, random_state=1)
    model = RaschModel().fit(data.data)
    assert abs(model.latent_scale_ - data.ability.std()) < 0.03
    finer = read_responses(data.data)
    latent = Latent.single(183, model.latent_scale_)
    exact = expect(finer, model.items_, latent, quadrature="fixed", n_quadrature=2001)
    assert exact.log_likelihood.sum() == pytest.approx(model.log_likelihood_, abs=1e-6)
    with pytest.warns(ConvergenceWarning, match="nodes are .* apart"):
        wrong = RaschModel(quadrature="fixed", n_quadrature=21).fit(data.data)
    assert abs(wrong.log_likelihood_ - model.log_likelihood_) > 20


def test_re_centring_is_what_makes_it_quick():
    """Four iterations where plain EM takes hundreds: the direction in which all move together."""
    X = make_irt_responses(148, 600, missing="mcar", missing_rate=0.2, random_state=3).data
    fitted = calibrated(X, tol=1e-8)
    assert fitted.converged
    assert fitted.n_iter <= 8


# --- recovery


def test_recovery():
    errors = []
    for seed in range(3):
        data = make_irt_responses(2000, 40, "2pl", random_state=seed)
        model = TwoPLModel().fit(data.data)
        usual = np.abs(data.difficulty) < 2
        errors.append(np.sqrt(np.mean((model.difficulty_ - data.difficulty)[usual] ** 2)))
        assert np.corrcoef(model.discrimination_, data.discrimination)[0, 1] > 0.9
        assert np.corrcoef(model.ability_, data.ability)[0, 1] > 0.9
    assert np.mean(errors) < 0.095
    rasch = make_irt_responses(2000, 40, random_state=4)
    found = RaschModel().fit(rasch.data)
    assert np.sqrt(np.mean((found.difficulty_ - rasch.difficulty) ** 2)) < 0.075


def test_guessing_and_slips():
    data = make_irt_responses(3000, 30, "3pl", random_state=0)
    model = ThreePLModel().fit(data.data)
    assert np.corrcoef(model.difficulty_, data.difficulty)[0, 1] > 0.95
    two = TwoPLModel().fit(data.data)
    error = [np.sqrt(np.mean((one.difficulty_ - data.difficulty) ** 2)) for one in (model, two)]
    assert error[0] < 0.6 * error[1], "guessing is not modelled"
    four = ThreePLModel(upper_prior=(5, 61)).fit(make_irt_responses(1500, 20, "4pl", random_state=0).data)
    assert ((four.upper_ > 0.8) & (four.upper_ < 1)).all()
    assert (ThreePLModel().fit(data.data[:200]).upper_ == 1).all()


@pytest.mark.slow
def test_standard_errors_cover():
    """95 % intervals of difficulties and abilities, over 40 tables."""
    inside, total, able = 0, 0, []
    for seed in range(40):
        data = make_irt_responses(1000, 30, random_state=seed)
        model = RaschModel().fit(data.data)
        inside += (np.abs(model.difficulty_ - data.difficulty) < 1.96 * model.difficulty_std_).sum()
        total += 30
        able.append(np.mean(np.abs(model.ability_ - data.ability) < 1.96 * model.ability_std_))
    assert 0.92 < inside / total < 0.975
    assert 0.94 < np.mean(able) < 0.96


def test_standard_errors_are_those_of_the_observed_information():
    """Beside the inverse of a Hessian by differences of the marginal likelihood, s held."""
    X = make_irt_responses(300, 4, "2pl", random_state=5).data
    model = TwoPLModel(tol=1e-13).fit(X)
    responses, latent = read_responses(X), Latent.single(300)
    a, b = model.discrimination_.copy(), model.difficulty_.copy()

    def gradient(x):
        items = Items.of(-x[4:] / x[:4], x[:4])
        found = expect(responses, items, latent, n_parameters=2)
        return np.concatenate([found.gradient[:, 0], found.gradient[:, 1]])

    x, step = np.concatenate([a, -a * b]), 1e-5
    hessian = np.array(
        [(gradient(x + step * row) - gradient(x - step * row)) / (2 * step) for row in np.eye(8)]
    )
    covariance = np.linalg.inv(-hessian)
    for i in range(4):
        direction = np.zeros(8)
        direction[i], direction[4 + i] = -b[i] / a[i], -1 / a[i]
        exact = np.sqrt(direction @ covariance @ direction)
        assert model.difficulty_std_[i] == pytest.approx(exact, rel=0.12)
    complete = 1 / np.sqrt(np.diag(-hessian))
    assert (model.difficulty_std_ > 0.5 * complete[4:] / a).all()


# --- missing answers and groups


def test_a_missing_answer_is_no_wrong_answer():
    data = make_irt_responses(400, 30, missing="mcar", missing_rate=0.4, random_state=6)
    model = RaschModel().fit(data.data)
    wrong = RaschModel().fit(np.nan_to_num(data.data))
    assert np.sqrt(np.mean((model.difficulty_ - data.difficulty) ** 2)) < 0.2
    assert (wrong.difficulty_ - data.difficulty).mean() > 0.5
    marked = np.where(np.isnan(data.data), -1, data.data)
    np.testing.assert_allclose(RaschModel(missing_values=-1).fit(marked).difficulty_, model.difficulty_)
    with pytest.raises(ValueError, match=r"X\[\d+, \d+\] must be 0, 1 or missing \(nan\), got -1"):
        RaschModel().fit(marked)


@pytest.mark.parametrize("cls", [RaschModel, TwoPLModel])
def test_sparse_equals_dense(cls):
    data = make_irt_responses(200, 50, missing="mcar", missing_rate=0.6, random_state=7).data
    cells, seen = sparse.csr_array(np.nan_to_num(data)), sparse.csr_array(~np.isnan(data))
    dense = cls(tol=1e-11).fit(data)
    thin = cls(tol=1e-11, n_quadrature=15).fit(cells, mask=seen)
    np.testing.assert_allclose(thin.difficulty_, dense.difficulty_, atol=1e-5)
    np.testing.assert_allclose(thin.ability_, dense.ability_, atol=1e-5)
    assert thin.log_likelihood_ == pytest.approx(dense.log_likelihood_, abs=1e-5)
    np.testing.assert_allclose(thin.transform(cells, mask=seen), dense.transform(data), atol=1e-5)
    np.testing.assert_allclose(thin.score(cells, mask=seen), dense.score(data), atol=1e-7)
    without = cls().fit(cells)  # nothing is missing in a sparse matrix by itself
    np.testing.assert_allclose(without.difficulty_, cls().fit(np.nan_to_num(data)).difficulty_, atol=1e-4)


def two_groups(seed):
    """Two groups of 150, 100 items of their own each and 5 in common, one logit apart."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(["first", "second"], 150)
    ability = rng.standard_normal(300)
    for label, mean in (("first", 0.0), ("second", 1.0)):
        ability[labels == label] += mean - ability[labels == label].mean()
    difficulty = rng.standard_normal(205)
    X = (rng.random((300, 205)) < expit(ability[:, None] - difficulty)).astype(float)
    X[:150, 105:] = np.nan
    X[150:, 5:105] = np.nan
    return X, labels


def test_groups_that_share_few_items_keep_their_distance():
    single, grouped, pattern = [], [], []
    for seed in range(5):
        X, labels = two_groups(seed)
        with pytest.warns(UserWarning, match="taker_groups.*latent_groups='pattern'"):
            one = RaschModel(max_iter=1000).fit(X)
        two = RaschModel(max_iter=1000).fit(X, taker_groups=labels)
        by_pattern = RaschModel(max_iter=1000, latent_groups="pattern").fit(X)
        for found, model in ((single, one), (grouped, two), (pattern, by_pattern)):
            found.append(model.ability_[labels == "second"].mean() - model.ability_[labels == "first"].mean())
    assert np.mean(single) < 0.6
    assert np.mean(grouped) == pytest.approx(1.0, abs=0.2)
    np.testing.assert_allclose(pattern, grouped, atol=0.02)
    assert two.groups_.tolist() == ["first", "second"]
    assert two.latent_mean_[0] == 0
    # New takers are drawn to the mean of their own group.
    new = np.full((2, 205), np.nan)
    new[:, 0] = 1
    theta = two.transform(new, taker_groups=["first", "second"])[:, 0]
    assert theta[1] - theta[0] > 0.4
    # A taker of no known group could be of any: the prior is as wide as both together.
    silent, spread = np.full((1, 205), np.nan), np.hypot(two.latent_scale_, two.latent_mean_[1] / 2)
    assert two.transform(silent)[0, 0] == pytest.approx(two.latent_mean_.mean(), abs=1e-6)
    passed = silent.copy()
    passed[0, 0] = 1
    expected = estimate_ability(
        passed, Items.of(two.difficulty_), latent_mean=two.latent_mean_.mean(), latent_scale=spread
    )
    assert two.transform(passed)[0, 0] == pytest.approx(expected.ability[0], abs=1e-6)
    with pytest.raises(ValueError, match="taker_groups has 'third'"):
        two.transform(new, taker_groups=["first", "third"])


def test_holes_that_depend_on_ability():
    gap = []
    for seed in range(3):
        data = make_irt_responses(300, 200, missing="block", random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            b = RaschModel(max_iter=1000).fit(data.data).difficulty_ - data.difficulty
            quick = RaschModel(method="moment").fit(data.data).difficulty_ - data.difficulty
        gap.append([part[data.block == 1].mean() - part[data.block == 0].mean() for part in (b, quick)])
    mml, moment = np.abs(np.mean(gap, axis=0))
    assert mml < 0.4
    assert moment > 1.0


def test_disconnected_designs():
    X = make_irt_responses(20, 8, random_state=0).data
    X[:8, 5:] = np.nan
    X[8:, :5] = np.nan
    with pytest.raises(ValueError, match=r"2 parts of takers x items .*12 x 3, 8 x 5"):
        RaschModel().fit(X)
    assert np.isfinite(RaschModel(allow_disconnected=True).fit(X).difficulty_).all()


def test_data_sets_apart():
    data = make_irt_responses(150, 30, missing="mcar", missing_rate=0.2, random_state=1)
    X, sets = data.data, np.array(["a", "b", "c"] * 10)
    X[:5, sets == "b"] = np.nan
    model = RaschModel().fit(X, item_groups=sets)
    assert model.ability_.shape == model.transform(X).shape == (150, 3)
    for k, label in enumerate("abc"):
        rows = ~np.isnan(X[:, sets == label]).all(axis=1)
        alone = RaschModel().fit(X[np.ix_(rows, sets == label)])
        np.testing.assert_allclose(model.difficulty_[sets == label], alone.difficulty_, atol=1e-6)
        np.testing.assert_allclose(model.ability_[rows, k], alone.ability_, atol=1e-6)
    assert list(model.get_feature_names_out()) == [f"raschmodel{k}" for k in range(3)]
    again = RaschModel(n_jobs=2).fit(X, item_groups=sets)
    np.testing.assert_array_equal(again.difficulty_, model.difficulty_)
    assert model.predict_proba(X).shape == X.shape
    with pytest.raises(ValueError, match="item_groups must have one label for each item"):
        RaschModel().fit(X, item_groups=sets[:-1])
    with pytest.raises(ValueError, match="two items or more"):
        RaschModel().fit(X, item_groups=["a"] * 29 + ["b"])


# --- invariance


def test_order_flips_and_copies():
    data = make_irt_responses(120, 15, missing="mcar", missing_rate=0.2, random_state=8).data
    model = RaschModel(tol=1e-12).fit(data)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(120), rng.permutation(15)
    turned = RaschModel(tol=1e-12).fit(data[np.ix_(rows, columns)])
    np.testing.assert_allclose(turned.difficulty_, model.difficulty_[columns], atol=1e-5)
    np.testing.assert_allclose(turned.ability_, model.ability_[rows], atol=1e-5)
    flipped = RaschModel(tol=1e-12).fit(1 - data)
    np.testing.assert_allclose(flipped.difficulty_, -model.difficulty_, atol=1e-5)
    np.testing.assert_allclose(flipped.ability_, -model.ability_, atol=1e-5)
    twice = RaschModel(tol=1e-12).fit(data, sample_weight=np.full(120, 2.0))
    stacked = RaschModel(tol=1e-12).fit(np.concatenate([data, data]))
    np.testing.assert_allclose(twice.difficulty_, stacked.difficulty_, atol=1e-5)
    np.testing.assert_allclose(twice.difficulty_std_, stacked.difficulty_std_, rtol=1e-3)
    np.testing.assert_allclose(twice.difficulty_, model.difficulty_, atol=1e-5)


# --- the estimator


@pytest.mark.parametrize("ability", ["eap", "map", "mle", "wle"])
def test_abilities(ability):
    X = make_irt_responses(100, 20, missing="mcar", missing_rate=0.1, random_state=9).data
    model = RaschModel(ability=ability).fit(X)
    np.testing.assert_allclose(model.transform(X)[:, 0], model.ability_, atol=1e-6)
    found = estimate_ability(
        X,
        Items.of(model.difficulty_),
        method=ability,
        latent_scale=model.latent_scale_,
    )
    np.testing.assert_allclose(found.ability, model.ability_, atol=1e-6)
    np.testing.assert_allclose(found.std, model.ability_std_, atol=1e-6)
    assert 0.5 < model.reliability_ < 1


def test_scores_and_predictions():
    data = make_irt_responses(300, 40, random_state=10)
    X = data.data
    model = RaschModel().fit(X)
    assert model.score(X) == pytest.approx(model.log_likelihood_ / X.size, abs=1e-9)
    probability = model.predict_proba(X)
    np.testing.assert_allclose(probability, expit(model.ability_[:, None] - model.difficulty_), atol=1e-6)
    assert (model.predict(X) == (probability > 0.5)).all()
    held = np.random.default_rng(0).random(X.shape) < 0.2
    assert model.score_items(X, held) > 0.7
    with pytest.raises(ValueError, match="held_out must have the shape"):
        model.score_items(X, held[:-1])
    theta = np.array([-1.0, 0.5])
    expected = expit(theta[:, None] - model.difficulty_)
    np.testing.assert_allclose(model.item_information(theta), expected * (1 - expected))
    np.testing.assert_allclose(model.test_information(theta), (expected * (1 - expected)).sum(axis=1))
    search = GridSearchCV(RaschModel(), {"latent_scale": [0.2, 1.0, 4.0]}, cv=3).fit(X)
    assert search.best_params_ == {"latent_scale": 1.0}


def test_names():
    frame = pd.DataFrame(make_irt_responses(50, 4, random_state=0).data, columns=list("abcd"))
    model = RaschModel().set_output(transform="pandas").fit(frame)
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.transform(frame).columns.tolist() == ["raschmodel0"]
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame[list("dcba")])


@pytest.mark.parametrize("method", ["moment", "jml", "cml", "bayes"])
def test_other_methods_are_near(method):
    if method == "bayes":
        pytest.importorskip("polyagamma")
    data = make_irt_responses(600, 30, random_state=11)
    model = RaschModel(method=method, random_state=0).fit(data.data)
    reference = RaschModel().fit(data.data)
    b = model.difficulty_ - model.difficulty_.mean()
    np.testing.assert_allclose(b, reference.difficulty_ - reference.difficulty_.mean(), atol=0.2)
    ratio = model.difficulty_std_ / reference.difficulty_std_
    assert 0.7 < np.median(ratio) < 1.3
    assert hasattr(model, "posterior_") == (method == "bayes")
    assert np.isfinite(model.transform(data.data)).all()


def test_bayes_without_gibbs():
    data = make_irt_responses(200, 10, "3pl", random_state=0).data
    model = ThreePLModel(method="bayes", random_state=0).fit(data)
    assert model.posterior_.guessing.shape[1] == 10
    with pytest.warns(UserWarning, match="weights"):
        RaschModel(method="bayes", random_state=0).fit(data, sample_weight=np.full(200, 2.0))


def test_extreme_items():
    X = make_irt_responses(100, 10, random_state=12).data
    X[:, 3], X[:, 7] = 1.0, 0.0
    kept = RaschModel().fit(X)
    assert kept.extreme_items_.tolist() == [k in (3, 7) for k in range(10)]
    assert kept.difficulty_[3] < -3
    assert kept.difficulty_[7] > 3
    assert np.abs(kept.difficulty_).max() < 12
    dropped = RaschModel(extreme_items="drop").fit(X)
    assert dropped.difficulty_[[3, 7]].tolist() == [-np.inf, np.inf]
    others = np.delete(X, [3, 7], axis=1)
    np.testing.assert_allclose(np.delete(dropped.difficulty_, [3, 7]), RaschModel().fit(others).difficulty_)
    assert np.isfinite(dropped.transform(X)).all()
    assert np.isfinite(dropped.score(X))
    with pytest.raises(ValueError, match="answers to item 3 are all alike"):
        RaschModel(extreme_items="error").fit(X)


# --- bad input


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X: X[:1], "minimum of 2"),
        (lambda X: X[:, :1], "minimum of 2"),
        (lambda X: np.where(np.arange(X.size).reshape(X.shape) == 13, 0.5, X), r"X\[1, 3\] must be 0, 1"),
        (lambda X: np.where(np.arange(len(X))[:, None] == 4, np.nan, X), "got none in row 4"),
        (lambda X: np.where(np.arange(10) == 6, np.nan, X), "got none in column 6"),
    ],
)
def test_bad_answers(change, words):
    X = make_irt_responses(60, 10, random_state=0).data
    with pytest.raises(ValueError, match=words):
        RaschModel().fit(change(X))


def test_bad_parameters():
    X = make_irt_responses(30, 10, random_state=0).data
    with pytest.raises(ValueError, match="fewer than 50 takers"):
        ThreePLModel(guessing_prior=None).fit(X)
    for name, value in (("n_quadrature", 2), ("tol", -1), ("method", "ml"), ("latent_scale", 0)):
        with pytest.raises(ValueError, match=name):
            RaschModel(**{name: value}).fit(X)
    with pytest.raises(ValueError, match="method must be one of"):
        TwoPLModel(method="cml").fit(X)
    with pytest.raises(ValueError, match="device must be"):
        RaschModel(device="tpu").fit(X)
    for prior in ((0,), (0, -1), (0, 1, 2)):
        with pytest.raises(ValueError, match="item_prior"):
            RaschModel(item_prior=prior).fit(X)
    with pytest.raises(ValueError, match="guessing_prior"):
        ThreePLModel(guessing_prior=(0.5, 2)).fit(X)
    model = RaschModel().fit(X)
    with pytest.raises(ValueError, match="features"):
        model.transform(X[:, :5])
    with pytest.raises(ValueError, match="latent_groups must be None"):
        RaschModel(latent_groups="pattern").fit(X, item_groups=["a", "b"] * 5)
    silent = X.copy()
    silent[3] = np.nan
    model = RaschModel(allow_empty_takers=True).fit(silent)
    assert model.ability_[3] == pytest.approx(0, abs=1e-9)
    assert model.ability_std_[3] == pytest.approx(model.latent_scale_)
