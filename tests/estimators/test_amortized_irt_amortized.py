"""Difficulties from features: the likelihood's maximum and limits, new questions, scikit-learn's tools."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneOut,
    cross_val_predict,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from conformance.cases import no_global_generator
from references.amortized_irt_amortized import (
    difficulty_scores,
    joint_fit,
    log_likelihoods,
    made,
    residual_fit,
)
from seedbed.datasets import load_classifier_responses, load_verbal_aggression
from seedbed.estimators import (
    AmortizedIRT,
    ItemDifficultyRegressor,
    ItemFeatures,
    SentenceEncoder,
    estimate_ability,
)
from seedbed.estimators.amortized_irt.amortized_fitting import residual_std
from seedbed.estimators.amortized_irt.items import Items


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


@pytest.fixture(scope="module")
def verbal():
    return load_verbal_aggression()


@pytest.fixture(scope="module")
def classifiers():
    return load_classifier_responses()


@pytest.fixture(scope="module")
def small():
    """60 takers, 40 items, a quarter of the answers missing."""
    Y, X, b, theta, w = made(60, 40, 3, 0.4, 0.25, 0)
    return Y, X, b, theta, w


# --- the likelihood -----------------------------------------------------------------------------------------


def test_verbal_aggression_has_its_known_maximum(verbal):
    """The linear logistic test model with random abilities, as measured by several programs."""
    design = verbal.item_features[:, :4]
    model = AmortizedIRT(residual=None, l2=0, tol=1e-12).fit(verbal.data, item_features=design)
    np.testing.assert_allclose(model.coef_, [1.0549, 2.0418, 1.0277, 0.6715], atol=2e-3)
    assert model.intercept_ == pytest.approx(-1.7433, abs=2e-3)
    assert model.latent_scale_ == pytest.approx(1.3456, abs=2e-3)
    assert model.log_likelihood_ == pytest.approx(-4116.613, abs=0.01)
    assert model.converged_
    free = AmortizedIRT().fit(verbal.data).difficulty_
    assert np.corrcoef(free, model.difficulty_)[0, 1] == pytest.approx(0.943, abs=2e-3)
    # The constant among the features is no second intercept: the fit is the same.
    again = AmortizedIRT(residual=None, l2=0, tol=1e-12).fit(verbal.data, item_features=verbal.item_features)
    np.testing.assert_allclose(again.difficulty_, model.difficulty_, atol=1e-5)


@pytest.mark.parametrize("l2", [0.0, 5.0])
def test_joint_fit_is_the_maximum_of_the_marginal_likelihood(small, l2):
    Y, X, *_ = small
    intercept, w, s, found = joint_fit(Y, X, l2)
    model = AmortizedIRT(residual=None, l2=l2, n_quadrature=21, tol=1e-13).fit(Y, item_features=X)
    np.testing.assert_allclose(model.coef_, w, atol=2e-3)
    # Location is shared by abilities and difficulties: the reference fixes the mean of N(mean, s^2) at 0 too.
    assert model.intercept_ == pytest.approx(intercept, abs=2e-3)
    assert model.latent_scale_ == pytest.approx(s, abs=2e-3)
    assert model.log_likelihood_ == pytest.approx(found, abs=0.01)


def test_residual_fit_is_that_of_the_plain_loops(small):
    Y, X, *_ = small
    b, intercept, w, tau, s, v = residual_fit(Y, X, 0.3, 0.5, n_iter=40, grid=np.linspace(-6, 6, 61))
    model = AmortizedIRT(l2=0.3, n_quadrature=15, tol=1e-12).fit(Y, item_features=X)
    np.testing.assert_allclose(model.coef_, w, atol=5e-3)
    np.testing.assert_allclose(model.difficulty_, b, atol=5e-3)
    np.testing.assert_allclose(model.difficulty_std_**2, v, rtol=0.02)
    # The estimate that is reported allows for the four coefficients that were fitted.
    assert tau < model.residual_std_ < 1.2 * tau
    assert model.latent_scale_ == pytest.approx(s, abs=5e-3)
    assert model.intercept_ == pytest.approx(intercept, abs=5e-3)


def test_one_indicator_for_each_item_is_free_calibration(small):
    """Then f reaches every difficulty, and the gradient of the marginal likelihood in each is 0."""
    Y, *_ = small
    model = AmortizedIRT(residual=None, l2=0, n_quadrature=21, tol=1e-14).fit(Y, item_features=np.eye(40))
    gradient, curvature = difficulty_scores(Y, model.difficulty_, model.latent_scale_)
    np.testing.assert_allclose(gradient / curvature, 0, atol=2e-3)
    value = log_likelihoods(Y, model.difficulty_, model.latent_scale_)[0].sum()
    assert model.log_likelihood_ == pytest.approx(value, abs=0.01)
    wider, narrower = (
        log_likelihoods(Y, model.difficulty_, model.latent_scale_ * k)[0].sum() for k in (1.05, 0.95)
    )
    assert max(wider, narrower) < value


def test_residual_goes_from_the_joint_fit_to_free_calibration(small):
    from seedbed.estimators.amortized_irt import amortized_fitting as fitting
    from seedbed.estimators.amortized_irt.item_features import Design
    from seedbed.estimators.amortized_irt.item_steps import FeatureStep
    from seedbed.estimators.amortized_irt.predictors import LinearPredictor
    from seedbed.estimators.amortized_irt.responses import read_responses

    Y, X, *_ = small
    responses = read_responses(Y)

    def difficulties(tau):
        step = FeatureStep(
            Design(X, np.ones(40, dtype=bool)), LinearPredictor.zero(3, 1e-6), tau=tau, free_tau=False
        )
        items = step.start(fitting.first_items(responses))
        latent = fitting.Latent(np.zeros(1), 1.0, np.zeros(60, dtype=np.int64))
        return fitting.run_em(responses, items, latent, step, max_iter=2000, tol=1e-11).items.difficulty

    joint = AmortizedIRT(residual=None, l2=1e-6, tol=1e-13).fit(Y, item_features=X).difficulty_
    free = AmortizedIRT(residual=None, l2=0, tol=1e-13).fit(Y, item_features=np.eye(40)).difficulty_
    np.testing.assert_allclose(difficulties(1e3), free, atol=2e-3)
    # With a narrow residual EM creeps (steps of size tau^2 H), so the joint limit is taken at its maximum.
    near = [np.abs(difficulties(tau) - joint).max() for tau in (0.1, 0.03)]
    assert near[1] < 0.2 * near[0] < 0.05


def test_residual_halves_the_error_with_few_answers():
    """Nine tenths of the answers missing: about 18 for each item."""
    errors = []
    for seed in range(2):
        Y, X, b, *_ = made(183, 1000, 32, 0.3, 0.9, seed)
        residual = AmortizedIRT().fit(Y, item_features=X)
        free = AmortizedIRT(style="plugin", difficulty_regressor=DummyRegressor()).fit(Y, item_features=X)
        alone = AmortizedIRT().fit(Y)
        errors.append([rms(m.difficulty_ - b) for m in (residual, alone, free)])
        assert residual.residual_std_ == pytest.approx(0.27, abs=0.06)
    residual, alone, free = np.mean(errors, axis=0)
    assert residual <= 0.34
    assert min(alone, free) > 1.4 * residual


@pytest.mark.slow
@pytest.mark.parametrize(
    ("takers", "items", "missing", "cold", "warm", "tau"),
    [
        (183, 1000, 0.0, 0.324, 0.172, 0.292),
        (183, 1000, 0.9, 0.337, 0.286, 0.269),
        (183, 200, 0.9, 0.442, 0.356, 0.305),
    ],
)
def test_table_of_designs(takers, items, missing, cold, warm, tau):
    """Means over four seeds; 300 further items are cold."""
    rows = []
    for seed in range(4):
        Y, X, b, *_ = made(takers, items + 300, 32, 0.3, missing, seed)
        Y, new, truth = Y[:, :items], X[items:], b[items:]
        kept = np.flatnonzero((~np.isnan(Y)).any(axis=0))
        Y, X, b = Y[:, kept], X[kept], b[kept]
        joint = AmortizedIRT(residual=None).fit(Y, item_features=X)
        # With few answers the likelihood may be highest at tau = 0, which EM approaches slowly.
        residual = AmortizedIRT(max_iter=1000).fit(Y, item_features=X)
        plugin = AmortizedIRT(style="plugin").fit(Y, item_features=X)
        errors = [rms(m.predict_difficulty(new)[0] - truth) for m in (joint, residual, plugin)]
        rows.append([*errors, rms(residual.difficulty_ - b), residual.residual_std_])
    joint, both, plugin, near, found = np.mean(rows, axis=0)
    assert joint == pytest.approx(cold, abs=0.03)
    assert both == pytest.approx(joint, abs=0.01)
    assert plugin == pytest.approx(both, abs=0.03)
    assert near == pytest.approx(warm, abs=0.03)
    assert found == pytest.approx(tau, abs=0.05)


def test_discriminations_are_found_beside_difficulties(small):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2))
    b, a = X @ [0.8, -0.5] + 0.3 * rng.standard_normal(30), np.exp(0.5 * rng.standard_normal(30))
    Y = (rng.random((1500, 30)) < expit(a * (rng.standard_normal((1500, 1)) - b))).astype(float)
    model = AmortizedIRT("2pl").fit(Y, item_features=X)
    assert model.latent_scale_ == pytest.approx(1.0)
    assert rms(np.log(model.discrimination_ / a)) < 0.15
    assert rms(model.difficulty_ - b) < 0.15
    flat = AmortizedIRT().fit(Y, item_features=X)
    assert flat.score(Y) < model.score(Y) - 0.002
    exact = X @ [0.8, -0.5]
    Y = (rng.random((1500, 30)) < expit(a * (rng.standard_normal((1500, 1)) - exact))).astype(float)
    joint = AmortizedIRT("2pl", residual=None).fit(Y, item_features=X)
    np.testing.assert_allclose(joint.coef_, [0.8, -0.5], atol=0.08)
    assert joint.residual_std_ < 0.1
    np.testing.assert_allclose(joint.difficulty_, joint.intercept_ + X @ joint.coef_, atol=1e-6)


def test_two_stages(small):
    Y, X, b, *_ = small
    exact = AmortizedIRT(style="plugin", residual=None, difficulty_regressor=LinearRegression())
    exact.fit(Y, item_features=X)
    np.testing.assert_allclose(exact.difficulty_, exact.difficulty_regressor_.predict(X))
    np.testing.assert_allclose(exact.coef_, exact.difficulty_regressor_.coef_)
    np.testing.assert_allclose(exact.difficulty_std_, exact.residual_std_)
    shrunk = AmortizedIRT(style="plugin", difficulty_regressor=LinearRegression()).fit(Y, item_features=X)
    # The posterior lies between regression and calibration, nearer to what is less uncertain: with
    # 1 / std^2 = 1 / SE^2 + 1 / tau^2, the share of the calibration is 1 - std^2 / tau^2.
    free = AmortizedIRT(residual=None, l2=0).fit(Y, item_features=np.eye(40)).difficulty_
    far = np.abs(free - exact.difficulty_) > 0.3
    share = ((shrunk.difficulty_ - exact.difficulty_) / (free - exact.difficulty_))[far]
    expected = (1 - shrunk.difficulty_std_**2 / shrunk.residual_std_**2)[far]
    np.testing.assert_allclose(share, expected, atol=0.05)
    assert rms(shrunk.difficulty_ - b) < rms(free - b)
    # A regressor without weights does too.
    plain = AmortizedIRT(style="plugin", difficulty_regressor=make_pipeline(StandardScaler(), Ridge()))
    assert plain.fit(Y, item_features=X).predict_difficulty(X)[0].shape == (40,)


def test_spread_estimate_by_hand():
    """tau^2 such that sum left^2 / (tau^2 + v) is the degrees of freedom."""
    rng = np.random.default_rng(0)
    variance = rng.uniform(0.1, 2, 4000)
    left = rng.standard_normal(4000) * np.sqrt(0.25 + variance)
    tau = residual_std(left, variance, 3)
    assert (left**2 / (tau**2 + variance)).sum() == pytest.approx(3997)
    assert tau == pytest.approx(0.5, abs=0.06)
    assert residual_std(np.sqrt(variance) * 0.5, variance, 0) == 0


# --- new questions ------------------------------------------------------------------------------------------


def test_errors_of_predicted_difficulties_are_what_is_said():
    """Few items, many features: the coefficients' error counts as much as tau."""
    z = []
    for seed in range(6):
        Y, X, b, *_ = made(150, 360, 32, 0.3, 0.5, seed)
        model = AmortizedIRT(l2=1e-2).fit(Y[:, :60], item_features=X[:60])
        found, std = model.predict_difficulty(X[60:])
        z.append((found - b[60:]) / std)
        assert (std > model.residual_std_).all()
    assert np.sqrt(np.mean(np.square(z))) == pytest.approx(1, abs=0.2)


def test_intervals_of_ability_with_predicted_difficulties():
    """tau = 1 and 400 items: about 95 % where the error counts, far less where it does not."""
    rng = np.random.default_rng(0)
    inside = {True: [], False: []}
    for _ in range(20):
        theta, predicted = rng.standard_normal(100), rng.standard_normal(400)
        truth = predicted + rng.standard_normal(400)
        Y = (rng.random((100, 400)) < expit(theta[:, None] - truth)).astype(float)
        items = Items.of(predicted, difficulty_std=1.0)
        for counts in (True, False):
            found = estimate_ability(Y, items, method="eap", difficulty_uncertainty=counts)
            inside[counts].append(np.abs(found.ability - theta) < 1.96 * found.std)
    assert 0.93 <= np.mean(inside[True]) <= 0.97
    assert np.mean(inside[False]) < 0.87


def test_model_of_more_items(small):
    Y, X, *_ = small
    model = AmortizedIRT().fit(Y[:, :30], item_features=X[:30])
    longer = model.extend(X[30:])
    b, std = model.predict_difficulty(X[30:])
    np.testing.assert_allclose(longer.difficulty_[30:], b)
    np.testing.assert_allclose(longer.difficulty_std_[30:], std)
    assert len(model.difficulty_) == 30
    nothing = np.column_stack([Y[:, :30], np.full((60, 10), np.nan)])
    np.testing.assert_allclose(longer.transform(nothing), model.transform(Y[:, :30]))
    assert longer.ability_std_.mean() == model.ability_std_.mean()
    found = longer.predict_proba(Y)
    assert found.shape == (60, 40)
    # What is said of new items: the response curve averaged over the error of b.
    p = model.predict_proba(Y[:, :30], item_features=X[30:])
    theta = model.transform(Y[:, :30])[:, 0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(21)
    exact = sum(
        wt * expit(theta[:, None] - b - std * x) for x, wt in zip(nodes, weights / weights.sum(), strict=True)
    )
    np.testing.assert_allclose(p, exact, atol=2e-3)
    assert np.abs(p - expit(theta[:, None] - b)).max() > 0.004
    np.testing.assert_array_equal(model.predict(Y[:, :30], item_features=X[30:]), p > 0.5)


def test_items_without_features_or_without_answers(small):
    Y, X, b, *_ = small
    Y = Y.copy()
    Y[:, 5] = np.nan
    features = ItemFeatures(np.where(np.arange(40)[:, None] == 7, np.nan, X), missing=np.arange(40) == 7)
    for residual in ("normal", None):
        model = AmortizedIRT(residual=residual).fit(Y, item_features=features)
        predicted, std = model.predict_difficulty(X)
        assert model.difficulty_[5] == pytest.approx(predicted[5], abs=1e-6)
        assert model.difficulty_std_[5] == pytest.approx(std[5], rel=0.2)
        assert model.difficulty_[7] != pytest.approx(predicted[7], abs=0.02)
        assert model.difficulty_[7] == pytest.approx(b[7], abs=1)
        assert np.isfinite(model.difficulty_).all()
    with pytest.raises(ValueError, match="none in column 5"):
        AmortizedIRT().fit(Y)


def test_network_bends_where_a_line_cannot():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 2))
    b = np.abs(X[:, 0]) * 1.5 - 1.5
    Y = (rng.random((100, 400)) < expit(rng.standard_normal((100, 1)) - b)).astype(float)
    new = rng.uniform(-2, 2, (200, 2))
    truth = np.abs(new[:, 0]) * 1.5 - 1.5
    settings = {"network": "mlp", "hidden_layer_sizes": (16,), "max_iter": 20, "learning_rate": 0.01}
    with no_global_generator(), pytest.warns(sklearn.exceptions.ConvergenceWarning):
        model = AmortizedIRT(**settings, residual=None, random_state=0).fit(Y, item_features=X)
    line = AmortizedIRT().fit(Y, item_features=X)
    assert rms(model.predict_difficulty(new)[0] - truth) < 0.3
    assert rms(line.predict_difficulty(new)[0] - truth) > 0.7
    assert model.residual_std_ < 0.3
    assert not hasattr(model, "coef_")


# --- abilities from features --------------------------------------------------------------------------------


@pytest.mark.parametrize("residual", ["normal", None])
def test_abilities_follow_features(residual):
    rng = np.random.default_rng(1)
    flop = rng.uniform(20, 26, 200)
    theta = 0.6 * (flop - 23) + (0.5 * rng.standard_normal(200) if residual else 0)
    b = rng.standard_normal(60)
    Y = (rng.random((200, 60)) < expit(theta[:, None] - b)).astype(float)
    flop_known = np.where(np.arange(200) < 40, np.nan, flop)
    model = AmortizedIRT(ability_residual=residual).fit(Y, ability_features=flop_known)
    assert model.ability_coef_[0] == pytest.approx(0.6, abs=0.08)
    assert model.latent_scale_ == pytest.approx(0.5 if residual else 0.02, abs=0.1)
    mean, std = model.predict_ability(np.array([21.0, 25.0, np.nan]))
    assert mean[1] - mean[0] == pytest.approx(2.4, abs=0.3)
    assert std[2] > 0.8 > std[0]
    error = model.ability_ - theta
    assert rms(error[40:] - error.mean()) < (0.35 if residual else 0.12)
    assert np.corrcoef(model.ability_[:40], theta[:40])[0, 1] > 0.9
    informed = model.transform(Y, ability_features=flop_known)[:, 0]
    np.testing.assert_allclose(informed[40:], model.ability_[40:], atol=1e-6)
    few = np.where(np.arange(60) < 3, Y, np.nan)
    with_features = rms(model.transform(few, ability_features=flop)[:, 0] - theta)
    assert with_features < rms(model.transform(few)[:, 0] - theta)
    assert model.score(Y, ability_features=flop) > model.score(Y)


# --- scikit-learn -------------------------------------------------------------------------------------------


def test_search_over_takers_keeps_item_features_whole(small):
    """As many items as takers: plain features would be cut to the takers of the fold."""
    Y, X, *_ = small
    Y = Y[:40]
    grid = {"l2": [1e-2, 1e3]}
    with sklearn.config_context(enable_metadata_routing=True):
        model = AmortizedIRT().set_fit_request(item_features=True)
        routed = GridSearchCV(model, grid, cv=KFold(4)).fit(Y, item_features=ItemFeatures(X))
        with pytest.raises(ValueError, match="one row for each of 40 items, got 30 rows"):
            GridSearchCV(model, grid, cv=KFold(4), error_score="raise").fit(Y, item_features=X)
    kept = GridSearchCV(AmortizedIRT().set_item_features(X), grid, cv=KFold(4)).fit(Y)
    np.testing.assert_allclose(routed.cv_results_["mean_test_score"], kept.cv_results_["mean_test_score"])
    by_hand = [
        AmortizedIRT().fit(Y[train], item_features=X).score(Y[test]) for train, test in KFold(4).split(Y)
    ]
    assert kept.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(by_hand))
    assert clone(kept.best_estimator_).item_features is kept.best_estimator_.item_features


def test_cross_validation_over_items(classifiers):
    take = slice(None, None, 6)
    X, y, groups = classifiers.item_features[take], classifiers.data[:, take].T, classifiers.label[take]
    model = make_pipeline(StandardScaler(), ItemDifficultyRegressor())
    scores = cross_val_score(model, X, y, cv=GroupKFold(3), groups=groups)
    assert scores.min() > 0.8
    search = GridSearchCV(model, {"itemdifficultyregressor__residual": ["normal", None]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.87
    found = search.predict(X)
    assert found.shape == (len(X),)
    train, test = next(GroupKFold(3).split(X, y, groups))
    model.fit(X[train], y[train])
    p = model.predict_proba(X[test])
    assert model.score(X[test], y[test]) == pytest.approx(roc_auc_score(y[test].ravel(), p.ravel()))
    holes = np.where(np.random.default_rng(0).random(y[test].shape) < 0.5, np.nan, y[test])
    seen = ~np.isnan(holes)
    assert model.score(X[test], holes) == pytest.approx(roc_auc_score(holes[seen], p[seen]))


def test_item_regressor_is_the_model_turned(small):
    Y, X, *_ = small
    rows = ItemDifficultyRegressor(l2=0.5, style="plugin").fit(X, Y.T)
    columns = AmortizedIRT(l2=0.5, style="plugin").fit(Y, item_features=X)
    np.testing.assert_allclose(rows.predict(X, return_std=True), columns.predict_difficulty(X))
    np.testing.assert_allclose(rows.ability_, columns.ability_)
    with pytest.raises(ValueError, match=r"y\[0, 1\] must be 0, 1 or NaN, got 2"):
        ItemDifficultyRegressor().fit(X[:2], [[0, 2], [1, 0]])
    with pytest.raises(ValueError, match="one row of answers for each item"):
        ItemDifficultyRegressor().fit(X, Y[0, :40])
    with pytest.raises(ValueError, match="requires y to be passed"):
        ItemDifficultyRegressor().fit(X, None)
    with pytest.raises(ValueError, match="inconsistent"):
        ItemDifficultyRegressor().fit(X, Y.T[:10])
    with pytest.raises(ValueError, match="a column for each of 60 takers"):
        rows.score(X, Y.T[:, :10])
    with pytest.raises(ValueError, match="right and wrong answers"):
        rows.score(X, np.ones((40, 60)))


def test_kinds_of_input(small):
    Y, X, *_ = small
    full = np.nan_to_num(Y)
    model = AmortizedIRT().fit(full, item_features=X)
    for other in (sparse.csr_array(full), full.astype(bool), full.tolist()):
        found = AmortizedIRT().fit(other, item_features=X)
        np.testing.assert_allclose(found.difficulty_, model.difficulty_, atol=1e-5)
    frame = pd.DataFrame(Y, columns=[f"q{k}" for k in range(40)])
    named = AmortizedIRT().fit(frame, item_features=pd.DataFrame(X, columns=list("abc")))
    assert list(named.feature_names_in_[:2]) == ["q0", "q1"]
    assert list(named.item_feature_names_in_) == list("abc")
    with pytest.raises(ValueError, match="feature names"):
        named.transform(frame.rename(columns={"q0": "other"}))
    marked = AmortizedIRT(missing_values=-1).fit(np.nan_to_num(Y, nan=-1).astype(int), item_features=X)
    np.testing.assert_allclose(marked.difficulty_, named.difficulty_, atol=1e-5)
    single = AmortizedIRT().fit(Y.astype(np.float32), item_features=X)
    for part in (single.difficulty_, single.ability_, single.transform(Y.astype(np.float32))):
        assert part.dtype == np.float32
    np.testing.assert_allclose(single.difficulty_, named.difficulty_, atol=1e-5)
    thin = AmortizedIRT().fit(Y, item_features=sparse.csr_array(X))
    np.testing.assert_allclose(thin.predict_difficulty(X), named.predict_difficulty(X), atol=1e-5)


def test_copies_and_permutations(small):
    Y, X, *_ = small
    before = Y.copy(), X.copy()
    model = AmortizedIRT(tol=1e-12).fit(Y, item_features=X)
    np.testing.assert_array_equal(Y, before[0])
    np.testing.assert_array_equal(X, before[1])
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.transform(Y), model.transform(Y))
    np.testing.assert_allclose(model.transform(Y)[:, 0], model.ability_)
    order, turn = np.random.default_rng(0).permutation(60), np.random.default_rng(1).permutation(40)
    other = AmortizedIRT(tol=1e-12).fit(Y[order][:, turn], item_features=X[turn])
    np.testing.assert_allclose(other.difficulty_, model.difficulty_[turn], atol=1e-6)
    np.testing.assert_allclose(other.ability_, model.ability_[order], atol=1e-6)
    mirrored = AmortizedIRT(tol=1e-12).fit(1 - Y, item_features=X)
    np.testing.assert_allclose(mirrored.difficulty_, -model.difficulty_, atol=1e-5)
    np.testing.assert_allclose(mirrored.ability_, -model.ability_, atol=1e-5)


def test_without_features_difficulties_are_shrunk_to_their_mean(small):
    Y, _, b, *_ = small
    model = AmortizedIRT().fit(Y)
    assert model.n_item_features_ == 0
    assert model.residual_std_ == pytest.approx(np.std(b), rel=0.25)
    free = AmortizedIRT(residual=None, l2=0).fit(Y, item_features=np.eye(40)).difficulty_
    assert np.std(model.difficulty_) < np.std(free)
    # Items that all got right have finite difficulties.
    Y = Y.copy()
    Y[:, 0] = 1
    model = AmortizedIRT().fit(Y)
    assert model.extreme_items_[0]
    assert -6 < model.difficulty_[0] == model.difficulty_.min()
    with pytest.raises(ValueError, match="fitted without item features"):
        model.predict_difficulty(np.zeros((2, 3)))


def test_texts_in_numbers_out(verbal):
    model = AmortizedIRT(feature_encoder=SentenceEncoder(), l2=0.1).fit(
        verbal.data, item_features=verbal.item_texts
    )
    b, _ = model.predict_difficulty(
        ["A bus fails to stop for me. I would want to curse.", verbal.item_texts[5]]
    )
    assert b[0] < b[1] - 1
    assert model.n_item_features_ == 384
    assert model.extend(["I miss a train. I would shout."]).difficulty_.shape == (25,)


def leave_one_out(X, answers, l2):
    model = ItemDifficultyRegressor(residual=None, l2=l2)
    predicted = cross_val_predict(model, X, answers.T, cv=LeaveOneOut())
    free = AmortizedIRT(residual=None, l2=0).fit(answers, item_features=np.eye(len(X))).difficulty_
    return 1 - ((predicted - free) ** 2).sum() / ((free - free.mean()) ** 2).sum()


def test_words_predict_better_than_the_design(verbal):
    """Difficulty of each of 24 sentences from the other 23: R^2."""
    design = leave_one_out(verbal.item_features[:, :4], verbal.data, 1e-2)
    assert design == pytest.approx(0.829, abs=0.01)
    words = SentenceEncoder().transform(verbal.item_texts)
    assert leave_one_out(words, verbal.data, 0.1) == pytest.approx(0.955, abs=0.01)


@pytest.mark.slow
def test_words_need_little_penalty(verbal):
    words = SentenceEncoder().transform(verbal.item_texts)
    assert leave_one_out(words, verbal.data, 1.0) == pytest.approx(0.875, abs=0.01)
    assert leave_one_out(words, verbal.data, 10.0) == pytest.approx(0.768, abs=0.01)


# --- real models, real items --------------------------------------------------------------------------------


def area(Y, P, cells):
    return roc_auc_score(Y[cells], np.broadcast_to(P, Y.shape)[cells])


def test_answers_of_classifiers_that_nobody_has_seen(classifiers):
    """A random fifth of the cells: a model of both beats averages of either."""
    Y = classifiers.data
    test = np.random.default_rng(0).random(Y.shape) < 0.2
    train = np.where(test, np.nan, Y)
    model = AmortizedIRT().fit(train, item_features=classifiers.item_features)
    both = area(Y, model.predict_proba(train), test)
    taker = area(Y, np.nanmean(train, axis=1, keepdims=True), test)
    item = area(Y, np.nanmean(train, axis=0), test)
    assert [taker, item, both] == pytest.approx([0.794, 0.701, 0.891], abs=0.01)


def test_new_items_are_predicted_nearly_as_well_as_calibrated_ones(classifiers):
    Y, X = classifiers.data, classifiers.item_features
    new = np.zeros(1797, dtype=bool)
    new[np.random.default_rng(0).choice(1797, 359, replace=False)] = True
    cells = np.zeros(Y.shape, dtype=bool)
    cells[:, new] = True
    model = AmortizedIRT().fit(Y[:, ~new], item_features=X[~new])
    cold = roc_auc_score(Y[:, new].ravel(), model.predict_proba(Y[:, ~new], item_features=X[new]).ravel())
    blind = area(Y, model.ability_[:, None], cells)
    pixels = AmortizedIRT(feature_encoder=StandardScaler()).fit(
        Y[:, ~new], item_features=classifiers.pixels[~new]
    )
    raw = roc_auc_score(
        Y[:, new].ravel(), pixels.predict_proba(Y[:, ~new], item_features=classifiers.pixels[new]).ravel()
    )
    assert [cold, raw, blind] == pytest.approx([0.888, 0.825, 0.788], abs=0.01)
    calibrated = AmortizedIRT().fit(Y).difficulty_[new]
    assert np.corrcoef(model.predict_difficulty(X[new])[0], calibrated)[0, 1] == pytest.approx(
        0.946, abs=0.01
    )


def test_order_of_takers_who_sat_different_tests(classifiers):
    """One of each pair is scored on 100 easy items, the other on 100 hard ones: which is the abler?"""
    Y = classifiers.data
    model = AmortizedIRT().fit(Y)
    order = np.argsort(model.difficulty_)
    rng = np.random.default_rng(0)
    tests = [rng.choice(part, 100, replace=False) for part in (order[:599], order[-599:])]
    scores = [Y[:, items].mean(axis=1) for items in tests]
    abilities = [
        estimate_ability(Y[:, items], model.items_.take(items), latent_scale=model.latent_scale_).ability
        for items in tests
    ]
    truth = Y.mean(axis=1)
    right = np.sign(truth[:, None] - truth)

    def errors(easy, hard):
        wrong = np.sign(easy[:, None] - hard) != right
        return wrong[right != 0].mean()

    assert errors(*scores) > 0.3
    assert errors(*abilities) < 0.6 * errors(*scores)


# --- bad input ----------------------------------------------------------------------------------------------


def test_bad_arguments(small):
    Y, X, *_ = small
    cases = [
        ({}, {"item_features": X[:10]}, "one row for each of 40 items, got 10 rows"),
        ({}, {"item_features": np.where(X[0, 0] == X, np.nan, X)}, "item_features must not contain NaN"),
        ({}, {"item_features": ["a"] * 40}, "set feature_encoder"),
        ({"network": "mlp"}, {"item_features": X}, "hidden_layer_sizes must have at least one width"),
        ({"ability_network": "mlp", "ability_hidden_layer_sizes": ()}, {}, "ability_hidden_layer_sizes must"),
        ({}, {"ability_features": np.zeros(3)}, "one row for each of 60 takers, got 3"),
        ({}, {"ability_features": np.full(60, np.nan)}, "known for at least one taker"),
        ({"n_quadrature": 2}, {}, "n_quadrature"),
        ({"residual": "laplace"}, {}, "residual"),
        ({"l2": -1.0}, {}, "l2"),
    ]
    for settings, extra, message in cases:
        with pytest.raises(ValueError, match=message):
            AmortizedIRT(**settings).fit(Y, **extra)
    with pytest.raises(ValueError, match=r"X\[0, 0\] must be 0, 1 or missing"):
        AmortizedIRT().fit(np.full((3, 3), 2.0))
    with pytest.raises(ValueError, match="minimum of 2"):
        AmortizedIRT().fit(Y[:1])
    with pytest.raises(ValueError, match="none in row 3"):
        AmortizedIRT().fit(np.where(np.arange(60)[:, None] == 3, np.nan, Y), item_features=X)
    model = AmortizedIRT().fit(Y, item_features=X)
    with pytest.raises(ValueError, match="3 features as in fit, got 2"):
        model.predict_difficulty(X[:, :2])
    with pytest.raises(ValueError, match="40 features"):
        model.transform(Y[:, :10])
    with pytest.raises(ValueError, match="fitted without"):
        model.transform(Y, ability_features=np.zeros(60))
    with pytest.raises(ValueError, match="one name for each of 5 items"):
        model.extend(X[:5], item_names=["a"])
    with pytest.raises(ValueError, match="not be missing for a new item"):
        model.predict_difficulty(ItemFeatures(X[:2], missing=[True, False]))


def test_parts_that_nothing_links(small):
    Y, X, *_ = small
    apart = Y.copy()
    apart[:30, :20], apart[30:, 20:] = np.nan, np.nan
    with pytest.raises(ValueError, match=r"2 parts .*30 x 20, 30 x 20"):
        AmortizedIRT().fit(apart)
    # Features link what answers do not.
    assert AmortizedIRT().fit(apart, item_features=X).converged_
    assert AmortizedIRT(allow_disconnected=True).fit(apart).converged_


def test_sparse_answers_with_a_mask(small):
    """What a mask leaves out is missing, in every method."""
    Y, X, *_ = small
    seen = (np.random.default_rng(0).random(Y.shape) < 0.7) & ~np.isnan(Y)
    holes = np.where(seen, Y, np.nan)
    cells, mask = sparse.csr_array(np.where(seen, Y, 0.0)), sparse.csr_array(seen)
    dense = AmortizedIRT().fit(holes, item_features=X)
    thin = AmortizedIRT().fit(cells, item_features=X, mask=mask)
    np.testing.assert_allclose(thin.difficulty_, dense.difficulty_, atol=1e-5)
    np.testing.assert_allclose(thin.transform(cells, mask=mask), dense.transform(holes), atol=1e-5)
    np.testing.assert_allclose(thin.predict_proba(cells, mask=mask), dense.predict_proba(holes), atol=1e-5)
    assert thin.score(cells, mask=mask) == pytest.approx(dense.score(holes), abs=1e-6)
    assert (thin.predict(cells, mask=mask) == dense.predict(holes)).all()
    assert not np.allclose(thin.transform(cells), thin.transform(cells, mask=mask))
