"""The E-step where posteriors are narrow, priors beside the scale of ability, sparse tables, errors."""

import math
import time
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import expit

from references.amortized_irt import posterior_moments, taker_likelihood
from seedbed.datasets import load_lsat6, make_irt_responses
from seedbed.estimators import Items, RaschModel, TwoPLModel, responses_from_long
from seedbed.estimators.amortized_irt import expectation, standard_errors
from seedbed.estimators.amortized_irt.em import Expectation, FreeStep, Latent, expect, run_em
from seedbed.estimators.amortized_irt.responses import check_linked, components, read_responses
from seedbed.estimators.amortized_irt.standard_errors import item_covariances

PARTS = ("log_likelihood", "mean", "std", "gradient", "curvature")


def drawn(n_takers, n_items, model, layout="dense", **options):
    """Responses, true items and the data they are from."""
    data = make_irt_responses(n_takers, n_items, model, **options)
    items = Items.of(data.difficulty, data.discrimination, data.guessing, data.upper)
    return read(data.data, layout), items, data


def read(X, layout="dense", **options):
    if layout == "dense":
        return read_responses(X, **options)
    return read_responses(sparse.csr_array(np.nan_to_num(X)), mask=sparse.csr_array(~np.isnan(X)), **options)


# --- integrals


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize(("model", "p"), [("rasch", 1), ("2pl", 2), ("3pl", 3), ("4pl", 4)])
def test_polynomials_stand_for_the_curves(model, p, layout, monkeypatch):
    """With many items curves are worked out at fewer points than posteriors, and nothing is lost."""
    responses, items, _ = drawn(40, 2500, model, layout, missing="mcar", missing_rate=0.2, random_state=0)
    latent = Latent(np.array([0.0, 0.4]), 1.1, np.arange(40) % 2)
    near = expect(responses, items, latent, n_parameters=0)
    nodes = []
    original = expectation._Nodes.of.__func__
    monkeypatch.setattr(
        expectation._Nodes, "of", classmethod(lambda *a: nodes.append(original(*a)) or nodes[-1])
    )
    found = expect(responses, items, latent, n_parameters=p, start=near)
    assert nodes[0].carry is not None
    monkeypatch.setattr(expectation, "_n_chebyshev", lambda *_: None)
    plain = expect(responses, items, latent, n_parameters=p, start=near)
    assert nodes[1].carry is None
    for part in PARTS:
        assert_allclose(getattr(found, part), getattr(plain, part), rtol=1e-10, atol=2e-9, err_msg=part)


def test_narrow_posteriors_are_those_of_a_plain_reading():
    responses, items, data = drawn(3, 400, "2pl", random_state=1)
    rows = list(zip(items.discrimination, items.difficulty, strict=True))
    found = expect(responses, items, Latent(np.array([0.2]), 1.3, np.zeros(3, dtype=int)), n_parameters=0)
    for n in range(3):
        answers = data.data[n]
        value = math.log(taker_likelihood(answers, rows, 0.2, 1.3, nodes=401))
        assert found.log_likelihood[n] == pytest.approx(value, abs=1e-8)
        moments = posterior_moments(answers, rows, 0.2, 1.3, nodes=401)
        assert (found.mean[n], found.std[n]) == pytest.approx(moments, abs=1e-8)


def test_nodes_on_the_width_of_a_posterior_set_the_accuracy():
    responses, items, _ = drawn(50, 30, "2pl", random_state=2)
    latent = Latent.single(50)
    by_nodes = {n: expect(responses, items, latent, n_quadrature=n).log_likelihood for n in (3, 9, 41)}
    assert np.abs(by_nodes[9] - by_nodes[41]).max() < 1e-8
    assert np.abs(by_nodes[3] - by_nodes[41]).max() > 1e-4


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_a_start_from_elsewhere_does_not_mislead(layout):
    """The grid follows from where posteriors were; if they have left it, it is laid anew."""
    responses, items, _ = drawn(30, 300, "rasch", layout, random_state=3)
    away = Items.of(items.difficulty + 4.0)
    latent = Latent.single(30)
    before = expect(responses, items, latent)
    assert before.std.max() < 0.4  # so that the old grid ends far from the new posteriors
    for scale in (1.0, 0.05):  # with a narrow prior they are beyond the first grid, too
        prior = Latent(np.zeros(1), scale, latent.group)
        again, fresh = (expect(responses, away, prior, start=start) for start in (before, None))
        assert_allclose(again.log_likelihood, fresh.log_likelihood, atol=1e-6)
        assert_allclose(again.mean, fresh.mean, atol=1e-8)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("p", [0, 1, 2, 3])
def test_work_in_parts_is_the_same(p, layout, monkeypatch):
    responses, items, _ = drawn(
        60, 25, "rasch" if p < 2 else f"{p}pl", layout, missing="mcar", missing_rate=0.3, random_state=4
    )
    groups = Latent(np.linspace(-1, 1, 5), np.linspace(0.5, 1.2, 5), np.arange(60) % 5)
    alone = Latent(np.linspace(-1, 1, 60), 1.0, np.arange(60))
    for latent in (groups, alone):
        whole = expect(responses, items, latent, n_parameters=p)
        with monkeypatch.context() as patch:
            patch.setattr(expectation, "TABLE", 300)
            parts = expect(responses, items, latent, n_parameters=p)
        for part in PARTS:
            assert_allclose(getattr(parts, part), getattr(whole, part), atol=1e-10, err_msg=part)


def test_scale_may_differ_between_groups():
    responses, items, _ = drawn(20, 6, "rasch", random_state=5)
    group = np.arange(20) % 2
    both = expect(responses, items, Latent(np.array([0.0, 1.0]), np.array([0.6, 1.4]), group))
    for k, (mean, scale) in enumerate(((0.0, 0.6), (1.0, 1.4))):
        one = expect(responses, items, Latent(np.array([mean]), scale, np.zeros(20, dtype=int)))
        assert_allclose(both.mean[group == k], one.mean[group == k], atol=1e-9)


def test_alike_patterns_of_gaps_share_their_sums():
    """Two designs, many takers each: sums over items are taken once for each design."""
    data = make_irt_responses(80, 30, "2pl", random_state=6)
    X = data.data.copy()
    X[:50, 20:] = np.nan
    X[50:, :10] = np.nan
    items = Items.of(data.difficulty, data.discrimination)
    shared = {layout: read(X, layout) for layout in ("dense", "sparse")}
    assert all(responses._few_patterns for responses in shared.values())
    weight = np.random.default_rng(0).uniform(0.5, 2, 80)
    found = [
        expect(responses.weighted(weight), items, Latent.single(80), n_parameters=2)
        for responses in shared.values()
    ]
    rows = [expect(read(X[[n]]), items, Latent.single(1), n_parameters=2, n_quadrature=15) for n in range(80)]
    for one in found:
        assert_allclose(one.log_likelihood, [row.log_likelihood[0] for row in rows], atol=1e-8)
        total = sum(w * row.gradient for w, row in zip(weight, rows, strict=True))
        assert_allclose(one.gradient, total, atol=1e-7)


# --- priors and the scale


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "priors",
    [
        {"discrimination_prior": (0.3, 0.2)},
        {"difficulty_prior": (1.0, 0.5)},
        {"difficulty_prior": (1.0, 0.5), "discrimination_prior": (0.3, 0.2)},
    ],
)
def test_priors_are_weighed_against_the_scale(priors, groups):
    """At the end the log posterior is flat in all directions, those in which the scale moves among them."""
    responses, _, _ = drawn(300, 12, "2pl", random_state=7)
    mean, std = priors.get("difficulty_prior", (0.0, np.inf))
    step = FreeStep(2, (np.full(12, mean), np.full(12, std)), priors.get("discrimination_prior"))
    latent = Latent(np.zeros(groups), 1.0, np.arange(300) % groups)
    fitted = run_em(responses, Items.of(np.zeros(12)), latent, step, slopes=True, tol=1e-9)
    assert fitted.converged
    assert fitted.n_iter <= 30
    assert fitted.latent.mean[0] == 0

    def value(a, b, means):
        items = Items.of(b, a)
        found = expect(responses, items, Latent(means, 1.0, latent.group), n_parameters=0)
        return found.log_likelihood.sum() + step.log_prior(items)

    at = [fitted.items.discrimination, fitted.items.difficulty, fitted.latent.mean]
    best = value(*at)
    assert fitted.history[-1] == pytest.approx(best, abs=1e-6)
    for change in (0.03, -0.03):
        assert value(at[0] * (1 + change), at[1] / (1 + change), at[2]) < best
        assert value(at[0], at[1] + change, at[2]) < best
        if groups == 2:
            assert value(at[0], at[1], at[2] + [0, change]) < best
    slope = value(at[0] * 1.001, at[1], at[2]) - value(at[0] * 0.999, at[1], at[2])
    assert abs(slope) / 0.002 < 0.05


def test_a_prior_of_difficulties_moves_the_origin():
    """Rasch: the origin goes where the abilities' prior and that of the difficulties agree."""
    X = make_irt_responses(40, 10, random_state=8).data
    responses = read_responses(X)
    step = FreeStep(1, (np.full(10, 2.0), np.full(10, 0.3)))
    fitted = run_em(responses, Items.of(np.zeros(10)), Latent.single(40), step, tol=1e-11)
    assert np.diff(fitted.history).min() > -1e-8

    def value(shift, scale):
        items = Items.of(fitted.items.difficulty + shift)
        found = expect(responses, items, Latent.single(40, scale), n_parameters=0)
        return found.log_likelihood.sum() + step.log_prior(items)

    scale = fitted.latent.scale
    for shift, other in ((0.03, 1.0), (-0.03, 1.0), (0.0, 1.03), (0.0, 0.97)):
        assert value(shift, scale * other) < value(0, scale)


def test_an_item_against_the_others_does_not_stop_them():
    """Its discrimination ends at the least there is, its share of right answers is kept."""
    X = make_irt_responses(600, 8, "2pl", random_state=9).data
    good = TwoPLModel(discrimination_prior=None).fit(X)
    rng = np.random.default_rng(0)
    against = (rng.random(600) < expit(-2 * good.ability_ + 1.0)).astype(float)
    model = TwoPLModel(discrimination_prior=None).fit(np.column_stack([X, against]))
    assert model.discrimination_[-1] == pytest.approx(1e-3)
    share = against.mean()
    alone = 600 * (share * np.log(share) + (1 - share) * np.log(1 - share))
    assert model.log_likelihood_ == pytest.approx(good.log_likelihood_ + alone, abs=0.2)
    assert_allclose(model.discrimination_[:-1], good.discrimination_, atol=0.02)
    assert expit(-model.discrimination_[-1] * model.difficulty_[-1]) == pytest.approx(share, abs=0.01)


def test_few_answers_to_an_item_call_for_a_prior_of_its_slope():
    """However many takers there are."""
    X = make_irt_responses(600, 12, "2pl", random_state=15).data
    gaps = X.copy()
    gaps[np.random.default_rng(0).random(X.shape) < 0.75] = np.nan
    with_gaps = TwoPLModel(allow_empty_takers=True).fit(gaps)
    weak = TwoPLModel(allow_empty_takers=True, discrimination_prior=(0, 0.5)).fit(gaps)
    assert_array_equal(with_gaps.discrimination_, weak.discrimination_)
    assert_array_equal(
        TwoPLModel().fit(X).discrimination_, TwoPLModel(discrimination_prior=None).fit(X).discrimination_
    )


def test_items_that_all_got_right_are_held_by_a_wide_prior():
    X = make_irt_responses(80, 10, random_state=16).data
    X[:, 3] = 1.0
    model = RaschModel(tol=1e-13).fit(X)
    found = expect(read_responses(X), model.items_, Latent.single(80, model.latent_scale_))
    assert found.gradient[3, 0] == pytest.approx(model.difficulty_[3] / 4.0**2, abs=1e-4)


def test_the_spread_of_ability_is_found_at_once():
    """Where EM creeps: five items say little about any one taker (154 iterations without a jump)."""
    model = RaschModel(tol=1e-10).fit(load_lsat6().data)
    assert model.n_iter_ <= 16
    assert model.latent_scale_ == pytest.approx(0.75513, abs=2e-5)


# --- tables


def test_cells_of_a_sparse_table():
    X = make_irt_responses(15, 9, missing="mcar", missing_rate=0.5, random_state=10).data
    thin, dense = read(X, "sparse"), read(X)
    for a, b in zip(thin.long(), dense.long(), strict=True):
        assert_array_equal(a, b)
    taker, item, y = thin.long()
    assert_array_equal(X[taker, item], y)
    full = read_responses(sparse.csr_array(np.nan_to_num(X)))
    assert_array_equal(full.long()[2], np.nan_to_num(X).ravel())
    for columns in (slice(None), slice(2, 7)):
        table, takers = np.eye(9)[columns] * 2.0, np.diag(np.arange(15.0))
        seen, right = ~np.isnan(X), np.nan_to_num(X)
        for responses in (thin, dense):
            assert_allclose(responses.sum_seen(table, columns), seen[:, columns] @ table)
            assert_allclose(responses.sum_right(table, columns), right[:, columns] @ table)
            assert_allclose(responses.spread_seen(takers, columns), seen[:, columns].T @ takers)
            assert_allclose(responses.spread_right(takers, columns), right[:, columns].T @ takers)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_parts_that_no_answer_links(layout):
    rng = np.random.default_rng(11)
    X = rng.integers(0, 2, (12, 9)).astype(float)
    X[:5, 4:] = np.nan
    X[5:, :4] = np.nan
    with pytest.raises(ValueError, match=r"2 parts of takers x items .*\(7 x 5, 5 x 4\)"):
        check_linked(read(X, layout))
    X[3, 8] = 1.0  # one answer is a bridge
    assert components(read(X, layout)) == [(12, 9)]
    X[6] = np.nan  # a taker without answers is no part
    assert components(read(X, layout)) == [(11, 9)]
    X[:, 2] = np.nan  # an item without answers is one
    assert components(read(X, layout)) == [(11, 8), (0, 1)]


def test_one_answer_per_row():
    X = make_irt_responses(120, 10, missing="mcar", missing_rate=0.4, random_state=12).data
    taker, item = np.nonzero(~np.isnan(X))
    order = np.random.default_rng(0).permutation(len(taker))
    names = np.array([f"taker {n:03d}" for n in range(120)])
    long = responses_from_long(names[taker[order]], item[order], X[taker, item][order])
    assert_array_equal(long.taker_names, names)
    fitted = RaschModel().fit(long.X, mask=long.mask)
    assert_allclose(fitted.difficulty_, RaschModel().fit(X).difficulty_, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": [1, 0]}, "of one length"),
        ({"y": [1, 0, 2]}, r"y\[2\] must be 0 or 1, got 2"),
        ({"item": ["p", "p", "q"]}, "'a' answers item 'p' more than once"),
    ],
)
def test_rows_that_are_no_answers(change, words):
    rows = {"taker": ["a", "a", "b"], "item": ["p", "q", "q"], "y": [1, 0, 1]} | change
    with pytest.raises(ValueError, match=words):
        responses_from_long(**rows)


# --- standard errors


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize(
    ("n_takers", "n_items", "p"), [(15, 20, 1), (15, 21, 1), (15, 12, 2), (60, 20, 1), (500, 6, 3)]
)
def test_covariances_are_inverse_information(n_takers, n_items, p, layout, monkeypatch):
    """One small system or the other, in parts or not: the same as inverting the whole matrix."""
    weight = np.random.default_rng(1).uniform(0.5, 1.5, n_takers)
    model = "rasch" if p == 1 else f"{p}pl"
    missing = None if n_items == 21 else "mcar"
    data = make_irt_responses(n_takers, n_items, model, missing=missing, missing_rate=0.2, random_state=13)
    responses = read(data.data, layout, weight=weight)
    difficulty = data.difficulty.round(0 if missing is None else 8)  # some items of a whole table are alike
    items = Items.of(difficulty, data.discrimination, data.guessing)
    found = expect(responses, items, Latent.single(n_takers), n_parameters=p)
    precision = np.tile(0.1 * np.eye(p), (n_items, 1, 1))
    covariances = item_covariances(responses, items, found, precision)

    def scores(theta, n):
        """Derivatives of taker n's log-likelihood at an ability, (n_items, p)."""
        up = expit(items.discrimination * (theta - items.difficulty))
        chance = items.guessing + (1 - items.guessing) * up
        slope = (1 - items.guessing) * up * (1 - up)
        residual = np.where(np.isnan(data.data[n]), 0.0, np.nan_to_num(data.data[n]) - chance)
        residual /= chance * (1 - chance)
        parts = [-slope] if p == 1 else [slope * theta, slope, 1 - up][:p]
        return np.stack([residual * part for part in parts], axis=1).ravel()

    many = weight.sum() >= 10 * n_items * p
    total = np.zeros((n_items * p, n_items * p))
    place = np.arange(n_items)
    diagonal = total.reshape(n_items, p, n_items, p)
    diagonal[place, :, place, :] += precision + (0 if many else found.curvature)
    for n in range(n_takers):
        mean, std = found.mean[n], found.std[n]
        if many:
            nodes, weights = np.polynomial.hermite_e.hermegauss(7)
            mean_score = sum(
                w * scores(mean + std * x, n) for x, w in zip(nodes, weights / weights.sum(), strict=True)
            )
            total += weight[n] * np.outer(mean_score, mean_score)
        else:
            half = (scores(mean + std, n) - scores(mean - std, n)) / 2
            total -= weight[n] * np.outer(half, half)
    expected = np.linalg.inv(total).reshape(n_items, p, n_items, p)[place, :, place, :]
    assert_allclose(covariances, expected, rtol=1e-5)
    monkeypatch.setattr(standard_errors, "TABLE", 100)
    assert_allclose(item_covariances(responses, items, found, precision), covariances, rtol=1e-8)


def test_errors_without_what_is_lost_where_that_is_too_much_work(monkeypatch):
    responses, items, _ = drawn(30, 50, "rasch", random_state=14)
    found: Expectation = expect(responses, items, Latent.single(30))
    precision = np.zeros((50, 1, 1))
    whole = item_covariances(responses, items, found, precision)
    monkeypatch.setattr(standard_errors, "MOST_WORK", 1)
    less = item_covariances(responses, items, found, precision)
    assert_allclose(less, 1 / found.curvature, rtol=1e-6)
    assert (whole > less).all()


# --- scale


@pytest.mark.slow
@pytest.mark.parametrize("cls", [RaschModel, TwoPLModel])
def test_ten_million_answers(cls):
    """1000 takers, 100,000 items, one answer in ten: under a minute on two cores and a gigabyte."""
    rng = np.random.default_rng(0)
    n_takers, n_items = 1000, 100_000
    ability, difficulty = rng.normal(size=n_takers), rng.normal(size=n_items)
    mask = sparse.random_array((n_takers, n_items), density=0.1, format="csr", rng=rng, dtype=np.float64)
    mask.data[:] = 1
    taker = np.repeat(np.arange(n_takers), np.diff(mask.indptr))
    right = rng.random(mask.nnz) < expit(ability[taker] - difficulty[mask.indices])
    X = sparse.csr_array((right.astype(float), mask.indices, mask.indptr), shape=mask.shape)
    del taker, right
    tracemalloc.start()
    begin = time.perf_counter()
    model = cls().fit(X, mask=mask)
    seconds, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e9
    assert seconds < 120
    assert abs(np.corrcoef(model.ability_, ability)[0, 1]) > 0.999
    assert np.sqrt(np.mean((model.difficulty_ - difficulty) ** 2)) < (0.27 if cls is RaschModel else 0.36)
