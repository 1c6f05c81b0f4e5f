"""MultidimensionalIRT, method="mle", and the E-step on a device."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from references.amortized_irt_torch import best_joint_rasch, best_marginal, marginal, procrustes
from seedbed.datasets import load_lsat6, load_lsat7, make_irt_responses
from seedbed.estimators import Items, MultidimensionalIRT, RaschModel, ThreePLModel, TwoPLModel
from seedbed.estimators.amortized_irt import first_order
from seedbed.estimators.amortized_irt.axes import first_planes, orientation, varimax
from seedbed.estimators.amortized_irt.device_expectation import DeviceExpectation
from seedbed.estimators.amortized_irt.expectation import Latent, expect
from seedbed.estimators.amortized_irt.first_order import resolve_device
from seedbed.estimators.amortized_irt.multidimensional_em import (
    Planes,
    Rule,
    Step,
    integrate,
    run_em,
)
from seedbed.estimators.amortized_irt.responses import read_responses


def two_abilities(n_takers, n_items, seed, missing=0.0):
    """Answers of takers with two abilities, and the truth."""
    rng = np.random.default_rng(seed)
    loadings = rng.dirichlet([0.8, 0.8], n_items)
    slope = np.exp(rng.normal(0.6, 0.2, n_items))[:, None] * loadings
    intercept = rng.normal(size=n_items)
    ability = rng.normal(size=(n_takers, 2))
    chance = 1 / (1 + np.exp(-(ability @ slope.T + intercept)))
    table = (rng.random(chance.shape) < chance).astype(float)
    table[rng.random(table.shape) < missing] = np.nan
    return table, slope, intercept, ability


@pytest.fixture(scope="module")
def large():
    return two_abilities(2000, 40, seed=0)


@pytest.fixture(scope="module")
def small():
    return two_abilities(250, 12, seed=1, missing=0.15)


@pytest.fixture(scope="module")
def fitted(large):
    return {
        loadings: MultidimensionalIRT(loadings=loadings, n_quadrature=5).fit(large[0])
        for loadings in ("softmax", "free")
    }


# -- integrals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guessing", [None, 0.2])
@pytest.mark.parametrize("dims", [1, 2])
def test_posteriors_of_a_plain_reading(dims, guessing):
    rng = np.random.default_rng(dims)
    slope, intercept = rng.normal(0.3, 1, (7, dims)), rng.normal(size=7)
    table = rng.integers(0, 2, (4, 7)).astype(float)
    table[0, 2] = table[3, 5] = np.nan
    planes = Planes(slope, intercept, None if guessing is None else np.full(7, guessing))
    found = integrate(read_responses(table), planes, Rule.product("adaptive", 25, dims))
    for n in range(4):
        value, mean, covariance = marginal(
            table[n].tolist(), slope.tolist(), intercept.tolist(), [guessing or 0.0] * 7
        )
        assert found.log_likelihood[n] == pytest.approx(value, abs=1e-5)
        assert_allclose(found.mean[n], mean, atol=1e-4)
        assert_allclose(found.covariance[n], covariance, atol=5e-4)


@pytest.mark.parametrize("guessing", [None, 0.2])
@pytest.mark.parametrize("quadrature", ["adaptive", "fixed"])
def test_gradient_and_scores_of_the_items(small, guessing, quadrature):
    responses = read_responses(small[0][:60], weight=np.linspace(0.5, 2, 60))
    c = None if guessing is None else np.full(12, guessing)
    planes = Planes(small[1], small[2], c)
    rule = Rule.product(quadrature, 25 if quadrature == "fixed" else 13, 2)
    found = integrate(responses, planes, rule)

    def value(move):
        low = None if c is None else 1 / (1 + np.exp(-np.log(c / (1 - c)) - move[3] * (np.arange(12) == 4)))
        slope, intercept = small[1].copy(), small[2].copy()
        slope[4] += move[:2]
        intercept[4] += move[2]
        return responses.weight @ integrate(responses, Planes(slope, intercept, low), rule).log_likelihood

    for k in range(3 if c is None else 4):
        step = 1e-4 * np.eye(4)[k]
        assert found.gradient[4, k] == pytest.approx((value(step) - value(-step)) / 2e-4, abs=2e-3)
    assert np.linalg.eigvalsh(found.curvature).min() > 0
    # The two ways to sum over nodes agree, and scores of takers sum to the gradient.
    again = integrate(responses, planes, rule, products=True)
    for name in ("log_likelihood", "mean", "covariance", "gradient", "curvature"):
        assert_allclose(getattr(again, name), getattr(found, name), atol=1e-10)
    single = integrate(responses.take(slice(3, 4)), planes, rule, products=True)
    outer = single.gradient[:, :, None] * single.gradient[:, None, :] / responses.weight[3]
    assert_allclose(single.products, outer, atol=1e-10)


def test_fixed_nodes_that_are_too_far_apart(large):
    responses = read_responses(np.tile(large[0][:50], (1, 4)))
    planes = Planes(np.tile(large[1], (4, 1)), np.tile(large[2], 4))
    with pytest.warns(ConvergenceWarning, match="nodes are 0.5 apart"):
        integrate(responses, planes, Rule.product("fixed", 21, 2))


# -- the fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loadings", ["softmax", "free"])
def test_recovery(large, fitted, loadings):
    table, slope, intercept, ability = large
    model = fitted[loadings]
    assert model.converged_
    found = procrustes(model.slope_, slope)
    assert np.corrcoef(found.ravel(), slope.ravel())[0, 1] > 0.98
    assert np.sqrt(np.mean((found - slope) ** 2)) < 0.1
    assert_allclose(model.intercept_, intercept, atol=0.35)
    turned = procrustes(model.ability_, ability)
    assert min(np.corrcoef(turned[:, k], ability[:, k])[0, 1] for k in (0, 1)) > 0.87
    # Standard errors are of the size of the errors.
    length = slope.sum(axis=1) if loadings == "softmax" else np.linalg.norm(slope, axis=1)
    errors = (model.difficulty_ + intercept / length) / model.difficulty_std_
    assert 0.7 < np.sqrt(np.mean(errors**2)) < 1.35
    # The likelihood at the fit is above that of the truth by about half the number of parameters.
    truth = integrate(read_responses(table), Planes(slope, intercept), Rule.product("adaptive", 5, 2))
    gain = model.log_likelihood_ - truth.log_likelihood.sum()
    assert 25 < gain < 80


def test_axes(fitted):
    softmax, free = fitted["softmax"], fitted["free"]
    assert_allclose(softmax.loadings_.sum(axis=1), 1)
    assert (softmax.loadings_ > 0).all()
    assert_allclose(np.linalg.norm(free.loadings_, axis=1), 1)
    for model in (softmax, free):
        squares = (model.slope_**2).sum(axis=0)
        assert squares[0] > squares[1]
        assert_allclose(model.slope_, model.discrimination_[:, None] * model.loadings_)
        assert_allclose(model.intercept_, -model.discrimination_ * model.difficulty_)
    product = free.slope_.T @ free.slope_
    assert abs(product[0, 1]) < 1e-8 * product[0, 0]
    assert (free.slope_.sum(axis=0) > 0).all()
    # Any solution is turned the same way.
    angle = 1.1
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    again = free.slope_ @ turn
    assert_allclose(again @ orientation(again, positive=False), free.slope_, atol=1e-10)
    # Both kinds of loadings describe the same model here.
    assert abs(softmax.log_likelihood_ - free.log_likelihood_) < 1.0


def test_varimax_finds_simple_structure():
    simple = np.kron(np.eye(2), np.ones((5, 1))) * np.linspace(1, 2, 10)[:, None]
    turn = np.array([[0.8, -0.6], [0.6, 0.8]])
    found = np.abs(varimax(simple @ turn))
    found = found[:, np.argsort(-found[0])]
    assert_allclose(found, simple, atol=1e-6)


def test_value_never_falls(small):
    responses = read_responses(small[0])
    for positive in (True, False):
        step = Step(positive, np.full(12, np.inf), (np.zeros(12), np.full(12, 0.5)))
        start = first_planes(responses, 2, positive=positive)
        found = run_em(responses, start, step, Rule.product("adaptive", 7, 2), max_iter=60, tol=1e-10)
        assert len(found.history) > 5
        assert (np.diff(found.history) > -1e-6).all()
        gradient = step.scores(found.planes, found.posteriors)[0]
        assert np.abs(gradient).max() < 0.2


def test_the_maximum_is_that_of_a_general_optimiser():
    table = two_abilities(60, 5, seed=3, missing=0.1)[0]
    responses = read_responses(table)
    rule = Rule.product("fixed", 15, 2)
    step = Step(False, np.full(5, np.inf), (np.zeros(5), np.full(5, 0.5)))
    start = first_planes(responses, 2, positive=False)
    found = run_em(responses, start, step, rule, max_iter=500, tol=1e-11)
    x = np.concatenate([start.slope.ravel(), start.intercept])
    best = best_marginal(table, rule.nodes, rule.log_weights, 2, 0.5, x)
    assert found.history[-1] == pytest.approx(best, abs=0.01)


def test_one_dimension_is_the_two_parameter_model():
    X = load_lsat7().data
    for loadings in ("softmax", "free"):
        model = MultidimensionalIRT(1, loadings=loadings, n_quadrature=21, tol=1e-10).fit(X)
        other = TwoPLModel(discrimination_prior=None, tol=1e-10).fit(X)
        assert model.log_likelihood_ == pytest.approx(other.log_likelihood_, abs=1e-3)
        assert model.log_likelihood_ == pytest.approx(-2658.805, abs=0.01)
        assert_allclose(model.difficulty_, other.difficulty_, atol=5e-3)
        assert_allclose(model.ability_[:, 0], other.ability_, atol=5e-3)
        assert_allclose(model.difficulty_std_, other.difficulty_std_, rtol=0.25)


def test_guessing():
    drawn = make_irt_responses(1500, 20, "3pl", random_state=0)
    model = MultidimensionalIRT(1, guessing=True).fit(drawn.data)
    other = ThreePLModel().fit(drawn.data)
    assert model.log_likelihood_ == pytest.approx(other.log_likelihood_, abs=0.2)
    assert_allclose(model.guessing_, other.guessing_, atol=0.02)
    assert_allclose(model.difficulty_, other.difficulty_, atol=0.1)


def test_takers_and_items_in_another_order(small):
    table = small[0][:150]
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(table)), rng.permutation(12)
    settings = {"discrimination_prior": (0, 0.5), "loadings": "free", "tol": 1e-9}
    model = MultidimensionalIRT(**settings).fit(table)
    other = MultidimensionalIRT(**settings).fit(table[rows][:, columns])
    assert other.log_likelihood_ == pytest.approx(model.log_likelihood_, abs=1e-3)
    assert_allclose(other.slope_, model.slope_[columns], atol=0.02)
    assert_allclose(other.ability_, model.ability_[rows], atol=0.02)


def test_sparse_answers_and_weights(small):
    table = small[0][:80]
    settings = {"discrimination_prior": (0, 0.5), "max_iter": 400}
    model = MultidimensionalIRT(**settings).fit(table)
    thin = MultidimensionalIRT(**settings).fit(
        sparse.csr_array(np.nan_to_num(table)), mask=sparse.csr_array(~np.isnan(table))
    )
    assert_allclose(thin.slope_, model.slope_, atol=1e-8)
    marked = MultidimensionalIRT(**settings, missing_values=-1).fit(np.nan_to_num(table, nan=-1))
    assert_allclose(marked.slope_, model.slope_, atol=1e-8)
    weight = np.where(np.arange(80) < 30, 2.0, 1.0)
    weighted = MultidimensionalIRT(**settings).fit(table, sample_weight=weight)
    copies = MultidimensionalIRT(**settings).fit(np.concatenate([table, table[:30]]))
    assert weighted.log_likelihood_ == pytest.approx(copies.log_likelihood_, abs=1e-4)
    assert_allclose(weighted.slope_, copies.slope_, atol=1e-3)


def test_predictions(small, fitted, large):
    model = fitted["softmax"]
    table = large[0][:200]
    assert_allclose(model.transform(table), model.ability_[:200], atol=1e-6)
    chance = model.predict_proba(table)
    theta = model.transform(table)
    assert_allclose(chance, 1 / (1 + np.exp(-(theta @ model.slope_.T + model.intercept_))))
    assert_array_equal(model.predict(table), chance > 0.5)
    assert model.score(large[0]) == pytest.approx(model.log_likelihood_ / large[0].size)
    assert model.reliability_.shape == (2,)
    held = np.random.default_rng(0).random(table.shape) < 0.2
    two = model.score_items(table, held)
    one = TwoPLModel().fit(large[0]).score_items(table, held)
    assert two > one + 0.02
    assert model.get_feature_names_out().tolist() == ["multidimensionalirt0", "multidimensionalirt1"]
    # Information is the expected square of the score, d log P / d theta.
    point = np.array([[0.3, -0.5]])
    p = model._all_planes().probability(point)[0]
    assert_allclose(model.test_information(point)[0], (model.slope_.T * (p * (1 - p))) @ model.slope_)
    assert_allclose(model.item_information(point)[0], p * (1 - p) * (model.slope_**2).sum(axis=1))


def test_single_precision_and_extreme_items(small):
    table = small[0].copy()
    table[:, 3] = 1.0
    settings = {"discrimination_prior": (0, 0.5)}
    model = MultidimensionalIRT(**settings).fit(table.astype(np.float32))
    assert model.transform(table.astype(np.float32)).dtype == np.float32
    assert model.predict_proba(table.astype(np.float32)).dtype == np.float32
    assert_array_equal(model.extreme_items_, np.arange(12) == 3)
    assert 3 < model.intercept_[3] < 12
    dropped = MultidimensionalIRT(**settings, extreme_items="drop").fit(table)
    assert dropped.difficulty_[3] == -np.inf
    assert (dropped.predict_proba(table)[:, 3] == 1).all()
    rest = MultidimensionalIRT(**settings).fit(np.delete(table, 3, axis=1))
    assert_allclose(np.delete(dropped.slope_, 3, axis=0), rest.slope_, atol=1e-8)
    assert_allclose(dropped.transform(table), rest.transform(np.delete(table, 3, axis=1)), atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_dimensions": 4}, "n_dimensions must be at most 3"),
        ({"n_dimensions": 0}, "n_dimensions"),
        ({"n_quadrature": 2}, "n_quadrature"),
        ({"method": "jml"}, "method"),
        ({"method": "mle", "discrimination_prior": None}, "discrimination_prior must be given"),
        ({"method": "mle", "device": "tpu"}, "device must be 'auto', 'cpu' or 'cuda'"),
        ({"discrimination_prior": (0, -1)}, r"discrimination_prior\[1\]"),
        ({"guessing_prior": (1, 2)}, r"guessing_prior\[0\]"),
        ({"extreme_items": "error"}, "answers to item 3 are all alike"),
    ],
)
def test_settings_that_are_refused(small, settings, message):
    table = small[0].copy()
    table[:, 3] = 1.0
    with pytest.raises(ValueError, match=message):
        MultidimensionalIRT(**settings).fit(table)


def test_answers_that_are_refused(small):
    table = small[0]
    with pytest.raises(ValueError, match=r"X\[2, 1\] must be 0, 1"):
        wrong = table.copy()
        wrong[2, 1] = 0.5
        MultidimensionalIRT().fit(wrong)
    with pytest.raises(ValueError, match="none in column 0"):
        MultidimensionalIRT().fit(np.where(np.arange(12) == 0, np.nan, table))
    with pytest.raises(ValueError, match="fewer than 50 takers"):
        MultidimensionalIRT(guessing=True, guessing_prior=None).fit(table[:40])
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        model = MultidimensionalIRT(max_iter=2).fit(table)
    with pytest.raises(ValueError, match="12 features"):
        model.transform(table[:, :5])
    with pytest.raises(ValueError, match="theta must have shape"):
        model.item_information([0.0])
    with pytest.raises(AttributeError, match="slope_ and intercept_"):
        _ = model.items_


# -- first-order steps -------------------------------------------------------------------------------------


def test_first_order_rasch_is_at_the_joint_optimum():
    table = make_irt_responses(80, 12, random_state=0).data
    model = RaschModel(method="mle", max_iter=120, random_state=0).fit(table)
    assert model.converged_
    _, b = best_joint_rasch(table, 4.0, 4.0)
    # The scale's origin is where the population of abilities has its mean.
    assert_allclose(model.difficulty_ - model.difficulty_.mean(), b - b.mean(), atol=0.01)
    assert model.latent_mean_[0] == 0
    mml = RaschModel().fit(table)
    assert np.std(model.difficulty_) / np.std(mml.difficulty_) > 1.04  # joint estimates lie too far apart
    assert mml.log_likelihood_ - 3 < model.log_likelihood_ < mml.log_likelihood_
    assert_allclose(model.difficulty_.mean(), mml.difficulty_.mean(), atol=0.05)
    again = RaschModel(method="mle", max_iter=120, random_state=0).fit(table)
    assert_array_equal(again.difficulty_, model.difficulty_)


def test_first_order_with_slopes():
    drawn = make_irt_responses(600, 30, "2pl", missing="mcar", missing_rate=0.2, random_state=0)
    model = TwoPLModel(method="mle", max_iter=300, random_state=0).fit(drawn.data)
    other = TwoPLModel(discrimination_prior=(0, 0.5)).fit(drawn.data)
    assert model.latent_scale_ == 1
    assert np.corrcoef(model.discrimination_, other.discrimination_)[0, 1] > 0.95
    assert 0.9 < np.exp(np.mean(np.log(model.discrimination_ / other.discrimination_))) < 1.2
    assert np.corrcoef(model.difficulty_, other.difficulty_)[0, 1] > 0.99
    assert other.log_likelihood_ - 15 < model.log_likelihood_ < other.log_likelihood_ + 1
    assert_allclose(model.difficulty_std_.mean(), other.difficulty_std_.mean(), rtol=0.2)


def test_first_order_of_several_abilities(large):
    table, slope, _, _ = large
    model = MultidimensionalIRT(method="mle", max_iter=300, random_state=0).fit(table[:500])
    found = procrustes(model.slope_, slope)
    assert np.corrcoef(found.ravel(), slope.ravel())[0, 1] > 0.92
    assert_allclose(model.ability_.std(axis=0) ** 2 + (model.ability_std_**2).mean(axis=0), 1, atol=0.03)
    many = MultidimensionalIRT(4, method="mle", loadings="free", max_iter=30, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_iter=30"):
        many.fit(table[:150])
    assert many.transform(table[:5]).shape == (5, 4)
    assert_allclose(many.transform(table[:5]), many.ability_[:5], atol=1e-6)


def test_first_order_settings():
    table = load_lsat6().data[::5]
    with pytest.raises(ValueError, match="device must be"):
        RaschModel(method="mle", device="abacus").fit(table)
    with pytest.raises(ValueError, match="discrimination_prior must be given for method='mle'"):
        TwoPLModel(method="mle", discrimination_prior=None).fit(table)
    with pytest.raises(ValueError, match="no upper asymptote"):
        ThreePLModel(method="mle", upper_prior=(5, 61)).fit(table)
    with pytest.warns(ConvergenceWarning, match="max_iter=3 passes"):
        RaschModel(method="mle", max_iter=3, random_state=0).fit(table)


def test_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto").type == "cpu"
    assert resolve_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="finds no GPU"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto").type == "cuda"
    assert resolve_device("cuda:1").index == 1


# -- the E-step on a device --------------------------------------------------------------------------------


def cases_of_expectation():
    rng = np.random.default_rng(0)
    table = rng.integers(0, 2, (120, 30)).astype(float)
    gaps = np.where(rng.random(table.shape) < 0.3, np.nan, table)
    latent = Latent(np.array([0.0, 0.5]), 1.2, rng.integers(0, 2, 120))
    b, a = rng.normal(size=30), np.exp(0.3 * rng.normal(size=30))
    items = [Items.of(b), Items.of(b), Items.of(b, a), Items.of(b, a, 0.2), Items.of(b, a, 0.2, 0.95)]
    weight = rng.random(120)
    for answers in (table, gaps):
        for p, curves in enumerate(items):
            yield read_responses(answers, weight=weight), curves, latent, p


def assert_equal_expectations(device):
    for responses, items, latent, p in cases_of_expectation():
        step = DeviceExpectation(device)
        found, start = None, None
        for _ in range(2):  # the second from the first
            found = step(responses, items, latent, n_parameters=p, start=found)
            start = expect(responses, items, latent, n_parameters=p, start=start)
            for name in ("log_likelihood", "mean", "std", "gradient", "curvature"):
                assert_allclose(getattr(found, name), getattr(start, name), rtol=1e-5, atol=1e-5)


def test_expectation_with_torch_equals_numpy():
    assert_equal_expectations("cpu")


def test_expectation_of_sparse_answers_and_fixed_nodes():
    responses, items, latent, _ = next(iter(cases_of_expectation()))
    thin = read_responses(sparse.csr_array(responses.right))
    for answers, settings in ((thin, {}), (responses, {"quadrature": "fixed", "n_quadrature": 61})):
        found = DeviceExpectation("cpu")(answers, items, latent, **settings)
        assert_array_equal(found.mean, expect(answers, items, latent, **settings).mean)


def test_em_over_torch_equals_em_over_numpy(monkeypatch):
    """``device="cuda"`` takes PyTorch's E-step, here on the CPU, and comes to the same model."""
    X = make_irt_responses(300, 25, "2pl", missing="mcar", missing_rate=0.2, random_state=3).data
    with pytest.raises(ValueError, match="no GPU"):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        RaschModel(device="cuda").fit(X)
    made = []
    monkeypatch.setattr(
        first_order, "resolve_device", lambda device: made.append(device) or torch.device("cpu")
    )
    for cls in (RaschModel, TwoPLModel):
        ours, theirs = cls(tol=1e-11).fit(X), cls(tol=1e-11, device="cuda").fit(X)
        assert_allclose(theirs.difficulty_, ours.difficulty_, atol=1e-5)
        assert theirs.log_likelihood_ == pytest.approx(ours.log_likelihood_, abs=1e-6)
    assert made == ["cuda", "cuda"]


def test_a_posterior_off_the_grid_gets_a_longer_one():
    """One hard test that everybody passed lies far beyond the prior."""
    answers = read_responses(np.ones((3, 400)))
    items, latent = Items.of(np.full(400, 9.0)), Latent.single(3)
    found, expected = DeviceExpectation("cpu")(answers, items, latent), expect(answers, items, latent)
    assert_allclose(found.mean, expected.mean, atol=1e-6)
    assert found.mean[0] > 6


@pytest.mark.gpu
def test_expectation_on_a_gpu_equals_numpy():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    assert_equal_expectations("cuda")
