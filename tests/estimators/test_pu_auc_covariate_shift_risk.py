"""The two risks: exact on finite populations, unbiased on samples, and their gradients."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from references.pu_auc_covariate_shift import LOSSES as PLAIN
from references.pu_auc_covariate_shift import SIX, Population, gaussian_grid, pu_auc, risk
from seedbed.datasets import make_pu_covariate_shift
from seedbed.estimators import auc_from_pu_auc, pu_auc_risk, weighted_pu_auc_score
from seedbed.estimators.pu_auc_covariate_shift.losses import LOSSES, SYMMETRIC
from seedbed.estimators.pu_auc_covariate_shift.risk import PURisk, Weighted, pair_sum
from seedbed.estimators.pu_auc_covariate_shift.threshold import (
    upper_share_threshold,
    youden_curve,
    youden_threshold,
)

EXACT = 1e-12
PI_TR, PI_TE = SIX.prior(SIX.p_tr), SIX.prior(SIX.p_te)
POSITIVE = SIX.positives(SIX.p_tr)
N = len(SIX.score)


def of_atoms(first, second, **options):
    """Risk of weighted points: their masses times n are what plain averages of n scores need."""
    return pu_auc_risk(SIX.score, SIX.score, first * N, second * N, normalize=False, **options)


def back(j):
    """From J to the AUC risk."""
    return (PI_TR / PI_TE * j - PI_TE / 2) / (1 - PI_TE)


# --- six points: every identity -----------------------------------------------------------------------------


def test_priors_and_mean_weight():
    assert pytest.approx(0.3405, abs=EXACT) == PI_TR
    assert pytest.approx(0.3475, abs=EXACT) == PI_TE
    assert POSITIVE @ SIX.w == pytest.approx(PI_TE / PI_TR, abs=EXACT)


def test_both_risks_equal_the_truth():
    truth = SIX.auc_risk(SIX.p_te, "sigmoid")
    j1 = of_atoms(POSITIVE * SIX.w, SIX.p_tr * SIX.w)
    j2 = of_atoms(POSITIVE * SIX.w, SIX.p_te)
    assert truth == pytest.approx(0.342990525112, abs=EXACT)
    assert j1 == pytest.approx(0.405724178791, abs=EXACT)
    assert j2 == pytest.approx(j1, abs=EXACT)
    assert back(j1) == pytest.approx(truth, abs=EXACT)
    assert of_atoms(POSITIVE, SIX.p_tr) == pytest.approx(0.382945706380, abs=EXACT)


@pytest.mark.parametrize("wrong", [SIX.w**0.5, SIX.w**2, 1 / SIX.w])
def test_wrong_weights_do_not(wrong):
    truth = SIX.auc_risk(SIX.p_te, "sigmoid")
    scale = PI_TE / PI_TR / (POSITIVE @ wrong)
    assert abs(back(scale * of_atoms(POSITIVE * wrong, SIX.p_te)) - truth) > 5e-3


@pytest.mark.parametrize("loss", ["ramp", "zero_one"])
def test_other_symmetric_losses(loss):
    truth = SIX.auc_risk(SIX.p_te, loss)
    for other in (SIX.p_tr * SIX.w, SIX.p_te):
        assert back(of_atoms(POSITIVE * SIX.w, other, loss=loss)) == pytest.approx(truth, abs=EXACT)
        normalised = pu_auc_risk(SIX.score, SIX.score, POSITIVE * SIX.w, other, loss=loss)
        assert (normalised - PI_TE / 2) / (1 - PI_TE) == pytest.approx(truth, abs=EXACT)


def test_auc():
    truth = 1 - SIX.auc_risk(SIX.p_te, "zero_one")
    assert truth == pytest.approx(0.768199233716, abs=EXACT)
    for other in (SIX.p_tr * SIX.w, SIX.p_te):
        found = weighted_pu_auc_score(SIX.score, SIX.score, POSITIVE * SIX.w, other)
        assert auc_from_pu_auc(found, PI_TE) == pytest.approx(truth, abs=EXACT)
    assert auc_from_pu_auc([found, 0.5], PI_TE) == pytest.approx([truth, 0.5], abs=EXACT)


@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in SYMMETRIC])
def test_losses_that_are_not_symmetric(loss):
    truth = SIX.auc_risk(SIX.p_te, loss)
    options = {"loss": loss, "class_prior_train": PI_TR, "self_pairs": True}
    for other in (SIX.p_tr * SIX.w, SIX.p_te):
        found = PI_TR / PI_TE / (1 - PI_TE) * of_atoms(POSITIVE * SIX.w, other, **options)
        assert found == pytest.approx(truth, abs=EXACT)
    # Normalised: masses are no weights, so the mean weight over p_tr is told. Means over atoms are sums / n.
    normalised = pu_auc_risk(SIX.score, SIX.score, POSITIVE * SIX.w, SIX.p_te, ratio_mean=1 / N, **options)
    assert normalised / (1 - PI_TE) == pytest.approx(truth, abs=EXACT)
    if loss == "squared_hinge":
        assert truth == pytest.approx(0.873009730147, abs=EXACT)
        plain = Population.pairs(SIX, POSITIVE * SIX.w, SIX.p_te, loss)
        assert back(plain) == pytest.approx(1.942597646021, abs=1e-9)


def test_any_weights_make_j1_the_risk_of_some_population():
    v = np.array([2, 0.5, 1, 3, 0.2, 4])
    q = v * SIX.p_tr / (v @ SIX.p_tr)
    prior = SIX.prior(q)
    assert prior == pytest.approx(0.356991385, abs=1e-9)
    j1 = pu_auc_risk(SIX.score, SIX.score, POSITIVE * v, SIX.p_tr * v)
    assert (j1 - prior / 2) / (1 - prior) == pytest.approx(SIX.auc_risk(q, "sigmoid"), abs=EXACT)
    assert SIX.auc_risk(q, "sigmoid") == pytest.approx(0.269340463045, abs=EXACT)


def test_relative_weights_part_j1_from_j2_and_target_weights_mend_it():
    alpha = 0.3
    w = SIX.p_te / (alpha * SIX.p_te + (1 - alpha) * SIX.p_tr)
    j1 = pu_auc_risk(SIX.score, SIX.score, POSITIVE * w, SIX.p_tr * w)
    j2 = pu_auc_risk(SIX.score, SIX.score, POSITIVE * w, SIX.p_te)
    mended = pu_auc_risk(SIX.score, SIX.score, POSITIVE * w, SIX.p_te * (1 - alpha * w) / (1 - alpha))
    assert j1 == pytest.approx(0.390486156985, abs=EXACT)
    assert j2 == pytest.approx(0.370776456790, abs=EXACT)
    assert mended == pytest.approx(j1, abs=EXACT)


def test_youden_needs_no_prior():
    cuts, tpr, share = youden_curve(SIX.score, SIX.score, POSITIVE * SIX.w, SIX.p_te)
    for t, value in ((0.0, 0.249640287770), (0.15, 0.211870503597)):
        place = np.flatnonzero(cuts >= t)[-1]
        above = SIX.score >= t
        youden = SIX.positives(SIX.p_te)[above].sum() - SIX.negatives(SIX.p_te)[above].sum()
        assert (1 - PI_TE) * youden == pytest.approx(value, abs=EXACT)
        assert tpr[place] - share[place] == pytest.approx(value, abs=EXACT)
    chosen = youden_threshold(SIX.score, SIX.score, POSITIVE * SIX.w, SIX.p_te)

    def j(t):
        above = SIX.score >= t
        return SIX.positives(SIX.p_te)[above].sum() - SIX.negatives(SIX.p_te)[above].sum()

    assert j(chosen) == max(j(t) for t in SIX.score)
    assert chosen not in SIX.score


def test_thresholds_at_the_ends():
    ones = np.ones(3)
    low, high = np.array([0.0, 1.0, 2.0]), np.array([3.0, 4.0, 5.0])
    assert 2 < youden_threshold(high, low, ones, ones) < 3
    assert youden_threshold(low, high, ones, ones) < 0  # ranked the wrong way round: all are positive
    flat = np.zeros(3)
    assert youden_threshold(flat, flat, ones, ones) < 0
    scores = np.arange(10.0)
    for share, above in ((0.3, 3), (0.5, 5), (0.05, 0), (0.96, 9)):
        assert (scores > upper_share_threshold(scores, np.ones(10), share)).sum() == above
    assert (scores > upper_share_threshold(scores, (scores > 4).astype(float), 0.4)).sum() == 2


# --- unbiased on samples ------------------------------------------------------------------------------------

DRAWS = 3000


def second_column(X):
    return X[:, 1]


def both_columns(X):
    return X[:, 0] + X[:, 1]


@pytest.fixture(scope="module")
def truth():
    """Class prior and risks on the target population, by quadrature: score, loss -> value."""
    x1, x2, _, p_te, eta = gaussian_grid()
    prior = p_te @ eta
    risks = {}
    for score in (second_column, both_columns):
        # Points of equal score are one point.
        values, place = np.unique(score(np.column_stack([x1, x2])).round(9), return_inverse=True)
        first = np.bincount(place, p_te * eta / prior)
        second = np.bincount(place, p_te * (1 - eta) / (1 - prior))
        gap = values[:, None] - values
        for loss in ("sigmoid", "logistic"):
            risks[score, loss] = float(first @ np.vectorize(PLAIN[loss])(gap) @ second)
    return float(prior), risks


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(20)
    return [make_pu_covariate_shift(50, 300, 300, n_test=0, random_state=rng) for _ in range(DRAWS)]


def estimates(draws, prior, weight, score=second_column, **options):
    """Back-transformed J1 and J2 of each draw, with these powers of the weights on both sides."""
    found = []
    for data in draws:
        a, b = data.weight_positive ** weight[0], data.weight_unlabeled ** weight[1]
        s = score(data.X_positive)
        options = {"normalize": False, **options}
        j1 = pu_auc_risk(s, score(data.X_unlabeled), a, b, **options)
        j2 = pu_auc_risk(s, score(data.X_target), a, **options)
        found.append((j1, j2))
    found = np.array(found)  # the priors of both populations are equal
    return found / (1 - prior) if "class_prior_train" in options else (found - prior / 2) / (1 - prior)


def errors(found, truth):
    """Distance of the means from the truth, in standard errors."""
    return np.abs(found.mean(axis=0) - truth) / (found.std(axis=0, ddof=1) / np.sqrt(len(found)))


@pytest.mark.parametrize("score", [second_column, both_columns])
def test_both_risks_are_unbiased(draws, truth, score):
    prior, risks = truth
    assert draws[0].class_prior == pytest.approx(prior, abs=1e-6)
    assert (errors(estimates(draws, prior, (1, 1), score), risks[score, "sigmoid"]) < 4).all()


def test_wrong_weights_are_found_out(draws, truth):
    prior, risks = truth
    right = risks[second_column, "sigmoid"]
    assert right == pytest.approx(0.6445, abs=0.002)
    plain = estimates(draws, prior, (0, 0))
    assert plain[:, 0].mean() == pytest.approx(0.3505, abs=0.004)
    assert errors(plain, right)[0] > 100
    few = draws[:800]
    assert errors(estimates(few, prior, (0, 1)), right)[0] > 6
    assert (errors(estimates(few, prior, (0.5, 0.5)), right) > 6).all()
    # x_2 is distributed alike in both populations; where it is not, unlabeled rows need their weights, too.
    found = estimates(few, prior, (1, 0), both_columns)
    assert errors(found, risks[both_columns, "sigmoid"])[0] > 6


def test_the_logistic_risk_is_unbiased_too(draws, truth):
    prior, risks = truth
    found = estimates(draws[:1000], prior, (1, 1), loss="logistic", class_prior_train=prior)
    right = risks[second_column, "logistic"]
    assert (errors(found, right) < 4).all()
    wrong = estimates(draws[:1000], prior, (1, 1), loss="logistic", class_prior_train=1.6 * prior)
    assert (errors(wrong, right) > 4).all()


def test_self_normalised_risks_vary_far_less(draws, truth):
    prior, risks = truth
    raw = estimates(draws[:1000], prior, (1, 1))
    calm = estimates(draws[:1000], prior, (1, 1), normalize=True)
    assert (calm.std(axis=0) < raw.std(axis=0) / 3).all()
    assert (np.abs(calm.mean(axis=0) - risks[second_column, "sigmoid"]) < 0.03).all()


def test_risks_order_scorers_as_the_truth_does():
    x1, x2, p_tr, p_te, eta = gaussian_grid(nodes=21)
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(25):
        a, b, c = rng.normal(size=3)
        population = Population(p_tr, p_te, eta, np.tanh(a * x1 + b * x2 + c * x1 * x2))
        s, positive = population.score, population.positives(p_tr)
        gap = 1 / (1 + np.exp(s[:, None] - s))
        rows.append(
            (
                population.positives(p_te) @ gap @ population.negatives(p_te),
                pu_auc_risk(s, s, positive * population.w, p_tr * population.w),
                pu_auc_risk(s, s, positive * population.w, p_te),
                pu_auc_risk(s, s, positive, p_tr),
            )
        )
    true, j1, j2, plain = np.array(rows).T
    assert spearmanr(j1, true).statistic == pytest.approx(1)
    assert spearmanr(j2, true).statistic == pytest.approx(1)
    assert spearmanr(plain, true).statistic < 0.5


# --- sums over pairs ----------------------------------------------------------------------------------------


@pytest.fixture
def sample():
    rng = np.random.default_rng(3)
    sizes = (5, 7, 6)
    scores = [rng.normal(size=n) for n in sizes]
    weights = [rng.uniform(0.2, 3, size=n) for n in sizes]
    return scores, weights


def build(weights, loss="sigmoid", gamma=0.3, **options):
    prior = None if loss in SYMMETRIC else 0.4
    parts = [Weighted(w, np.ones(len(w))) for w in weights]
    return PURisk(*parts, loss=LOSSES[loss], trade_off=gamma, class_prior_train=prior, **options)


CASES = [
    pytest.param(loss, gamma, normalize, single_set, id=f"{loss}-{gamma}-{normalize}-{single_set}")
    for loss in LOSSES
    for gamma in (0, 0.3, 1)
    for normalize in (True, False)
    for single_set in (True, False)
]


@pytest.mark.parametrize(("loss", "gamma", "normalize", "single_set"), CASES)
def test_equals_loops_and_differences(sample, loss, gamma, normalize, single_set):
    scores, weights = sample
    function = build(weights, loss, gamma, normalize=normalize, single_set=single_set)
    value, *gradients = function(*scores)
    prior = None if loss in SYMMETRIC else 0.4
    expected = risk(*scores, *weights, loss, gamma, normalize, prior, single_set)
    assert value == pytest.approx(expected, rel=1e-12)
    assert function(*scores, gradient=False)[0] == pytest.approx(expected, rel=1e-12)
    step = 1e-6
    for part, gradient in zip(scores, gradients, strict=True):
        for place in range(len(part)):
            kept = part[place]
            ends = []
            for shift in (step, -step):
                part[place] = kept + shift
                ends.append(function(*scores, gradient=False)[0])
            part[place] = kept
            assert gradient[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7)


def test_counts_are_repeated_rows(sample):
    (p, u, t), (a, b, c) = sample
    rng = np.random.default_rng(0)
    counts = [rng.integers(1, 4, size=len(part)) for part in (p, u, t)]
    for normalize in (True, False):
        counted = PURisk(
            *(Weighted(w, n.astype(float)) for w, n in zip((a, b, c), counts)), normalize=normalize
        )
        repeated = [np.repeat(part, n) for part, n in zip((a, b, c), counts)]
        value, *gradients = counted(p, u, t)
        expected, *others = build(repeated, gamma=0.5, normalize=normalize)(
            *(np.repeat(part, n) for part, n in zip((p, u, t), counts))
        )
        counted_half = PURisk(counted.positive, counted.unlabeled, counted.target, normalize=normalize)
        assert counted_half.trade_off == 0.5
        assert value == pytest.approx(expected, rel=1e-12)
        for gradient, other, n in zip(gradients, others, counts, strict=True):
            starts = np.concatenate([[0], np.cumsum(n)[:-1]])
            np.testing.assert_allclose(gradient, np.add.reduceat(other, starts), rtol=1e-10, atol=1e-15)


def test_reductions(sample):
    (p, u, _), (a, b, c) = sample
    ones = [np.ones_like(part) for part in (a, b, b)]
    plain = pu_auc_risk(p, u)
    for gamma in (0, 0.4, 1):
        assert build(ones, gamma=gamma)(p, u, u)[0] == pytest.approx(plain, rel=1e-12)
    # Without target rows gamma is 0; with gamma 0 target rows are of no account.
    parts = [Weighted(w, np.ones(len(w))) for w in (a, b)]
    assert PURisk(*parts)(p, u)[0] == pytest.approx(build((a, b, c), gamma=0)(p, u, sample[0][2])[0])
    # Order and a constant change nothing.
    function = build((a, b, c))
    t = sample[0][2]
    value = function(p, u, t)[0]
    order = np.random.default_rng(0).permutation(len(u))
    assert build((a, b[order], c))(p, u[order], t)[0] == pytest.approx(value, rel=1e-12)
    assert function(p + 3, u + 3, t + 3)[0] == pytest.approx(value, rel=1e-12)
    # So does the scale of normalised weights.
    assert build((5 * a, 2 * b, 7 * c))(p, u, t)[0] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("spread", [1.0, 100.0, 1e4, 1e200])
def test_quick_sigmoid_equals_the_general_one(spread):
    rng = np.random.default_rng(0)
    s, t = spread * rng.normal(size=300), spread * rng.normal(size=900)
    a, b = rng.uniform(size=300), rng.uniform(size=900)
    found = pair_sum(s, t, a, b, LOSSES["sigmoid"])
    with np.errstate(over="ignore"):
        gap = s[:, None] - t
        values, slopes = LOSSES["sigmoid"].value(gap), LOSSES["sigmoid"].slope(gap)
    np.testing.assert_allclose(found[0], a @ values @ b, rtol=1e-10)
    np.testing.assert_allclose(found[1], a * (slopes @ b), rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(found[2], -b * (a @ slopes), rtol=1e-8, atol=1e-11)


def test_blocks_do_not_matter(monkeypatch):
    rng = np.random.default_rng(0)
    s, t, a, b = rng.normal(size=50), rng.normal(size=70), rng.uniform(size=50), rng.uniform(size=70)
    whole = pair_sum(s, t, a, b, LOSSES["logistic"])
    monkeypatch.setattr("seedbed.estimators.pu_auc_covariate_shift.risk.CHUNK", 200)
    for one, other in zip(whole, pair_sum(s, t, a, b, LOSSES["logistic"])):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert pair_sum(s[:0], t, a[:0], b, LOSSES["sigmoid"])[0] == 0


def test_auc_by_ranks_equals_loops():
    rng = np.random.default_rng(0)
    s, t = rng.integers(0, 5, size=20).astype(float), rng.integers(0, 5, size=30).astype(float)
    a, b = rng.uniform(size=20), rng.uniform(size=30)
    assert weighted_pu_auc_score(s, t, a, b) == pytest.approx(pu_auc(s, t, a, b), rel=1e-12)
    assert pu_auc_risk(s, t, a, b, loss="zero_one") == pytest.approx(1 - pu_auc(s, t, a, b), rel=1e-12)
    raw = pu_auc_risk(s, t, a, b, loss="zero_one", normalize=False)
    assert raw == pytest.approx((1 - pu_auc(s, t, a, b)) * a.mean() * b.mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [1.0]), "scores_positive|minimum of 1"),
        (([1.0], [np.nan]), "scores_unlabeled"),
        (([1.0], [1.0], [1.0, 2.0]), "weight_positive must have one entry per score, 1; got 2"),
        (([1.0], [1.0], [-1.0]), "weight_positive must be non-negative"),
        (([1.0, 2.0], [1.0], None, [0.0]), "weight_unlabeled must be non-negative and not all zero"),
    ],
)
def test_bad_arrays(arguments, message):
    with pytest.raises(ValueError, match=message):
        pu_auc_risk(*arguments)


def test_bad_options():
    with pytest.raises(ValueError, match=r"loss must be one of 'sigmoid', .*'zero_one'; got 'hinge'"):
        pu_auc_risk([1.0], [1.0], loss="hinge")
    with pytest.raises(ValueError, match="class_prior_train must be given for loss='squared'"):
        pu_auc_risk([1.0], [1.0], loss="squared")
    with pytest.raises(ValueError, match="class_prior_train must be in"):
        pu_auc_risk([1.0], [1.0], loss="squared", class_prior_train=1.0)
    with pytest.raises(ValueError, match="at least 2 scores"):
        pu_auc_risk([1.0], [1.0], loss="squared", class_prior_train=0.5)
    with pytest.raises(ValueError, match="ratio_mean"):
        pu_auc_risk([1.0, 2.0], [1.0], loss="squared", class_prior_train=0.5, ratio_mean=0.0)
    for prior in (0, 1, np.nan):
        with pytest.raises(ValueError, match="class_prior"):
            auc_from_pu_auc(0.7, prior)
