"""Risks, bands and bounds: closed forms, double sums, simulation."""

import math

import numpy as np
import pytest

from references import conformal_tail_risk as reference
from seedbed.estimators import berk_jones_bound, dkw_bound, tail_risk_p_value
from seedbed.estimators.distortion import (
    BOUNDS,
    CustomDistortion,
    CVaR,
    DistortionRisk,
    ExponentialDistortion,
    IntervalVaR,
    Mean,
    PowerDistortion,
    QuantileMixture,
    VaR,
    WangDistortion,
)
from seedbed.estimators.distribution_bands import (
    berk_jones_level,
    noncrossing_probability,
    order_statistic_rank,
)

TENTHS = np.arange(1, 11) / 10
SMOOTH = [
    Mean(),
    CVaR(0.5),
    CVaR(0.75),
    IntervalVaR(0.5, 0.9),
    PowerDistortion(0.7),
    ExponentialDistortion(3.0),
    WangDistortion(0.5),
    QuantileMixture([Mean(), CVaR(0.8)], [0.3, 0.7]),
    CustomDistortion(lambda u: u**2, lambda u: 2 * u),
]
EVERY = [*SMOOTH, VaR(0.75)]


# --- risks


@pytest.mark.parametrize("risk", EVERY, ids=lambda risk: type(risk).__name__)
def test_psi_runs_from_zero_to_one(risk):
    u = np.linspace(0, 1, 501)
    psi = risk.psi(u)
    assert psi[0] == pytest.approx(0, abs=1e-12)
    assert psi[-1] == pytest.approx(1, abs=1e-12)
    assert (np.diff(psi) >= -1e-12).all()
    if risk.smooth:
        inner = np.linspace(0.011, 0.989, 300)
        slopes = (risk.psi(inner + 1e-6) - risk.psi(inner - 1e-6)) / 2e-6
        kinks = [0.5, 0.75, 0.8, 0.9]
        away = np.min(np.abs(inner[:, None] - kinks), axis=1) > 1e-5
        np.testing.assert_allclose(risk.dpsi(inner)[away], slopes[away], rtol=1e-4, atol=1e-6)
        assert risk.dpsi(inner).max() <= risk.steepest + 1e-9


@pytest.mark.parametrize(
    ("risk", "plug_in", "l_statistic", "dkw", "berk_jones"),
    [
        (Mean(), 0.55, 0.666403, 0.813584, 0.811312),
        (CVaR(0.5), 0.8, 0.946119, 0.987861, 0.993739),
        (CVaR(0.75), 0.92, 1.0, 1.0, 1.0),
        (VaR(0.5), 0.5, None, 0.9, 0.9),
        (PowerDistortion(0.5), 0.710509, 0.803381, 0.894189, 0.894736),
    ],
)
def test_bounds_of_ten_losses(risk, plug_in, l_statistic, dkw, berk_jones):
    assert risk.plug_in(TENTHS) == pytest.approx(plug_in, abs=1e-6)
    assert risk.upper_bound(TENTHS, 0.1, "dkw") == pytest.approx(dkw, abs=1e-6)
    assert risk.upper_bound(TENTHS, 0.1, "berk_jones") == pytest.approx(berk_jones, abs=1e-6)
    if l_statistic is not None:
        assert risk.upper_bound(TENTHS, 0.1, "l_statistic") == pytest.approx(l_statistic, abs=1e-6)


def test_single_values():
    assert CVaR(0.8).plug_in(TENTHS) == pytest.approx(0.95)
    assert CVaR(0.8).variance(TENTHS) == pytest.approx(0.1025)
    assert Mean().variance(TENTHS) == pytest.approx(np.var(TENTHS))
    assert VaR(0.5).upper_bound(TENTHS, 0.1, "order_statistic") == pytest.approx(0.8)
    assert [order_statistic_rank(n, b, 0.1) for n, b in ((10, 0.5), (100, 0.75), (1000, 0.75))] == [
        8,
        81,
        768,
    ]
    assert order_statistic_rank(10, 0.99, 0.01) is None
    assert VaR(0.99).upper_bound(TENTHS, 0.01, "order_statistic", 2.0) == 2.0


@pytest.mark.parametrize(
    "risk", [r for r in SMOOTH if not isinstance(r, QuantileMixture)], ids=lambda risk: type(risk).__name__
)
def test_the_variance_is_the_double_sum(risk):
    rng = np.random.default_rng(0)
    for n in (2, 7, 23):
        losses = np.round(rng.uniform(size=n), 1)  # with ties
        expected = reference.variance(losses, lambda u: float(risk.dpsi(u)))
        assert risk.variance(losses) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [40, 41, 100])
def test_cvar_variance_as_released(n):
    losses = np.random.default_rng(n).beta(0.5, 2, n)
    tail = np.maximum(losses, np.sort(losses)[math.ceil(0.75 * n) - 1])
    assert CVaR(0.75).variance(losses) == pytest.approx(tail.var() / 0.25**2)


def test_limits():
    losses = np.random.default_rng(0).uniform(size=200)
    mean = losses.mean()
    for risk in (CVaR(0.0), PowerDistortion(1.0), ExponentialDistortion(1e-9), WangDistortion(0.0)):
        assert risk.plug_in(losses) == pytest.approx(mean, rel=1e-6)
        assert risk.variance(losses) == pytest.approx(losses.var(), rel=1e-6)
    assert CVaR(0.9999).plug_in(losses) == losses.max()
    assert IntervalVaR(0.0, 1.0).plug_in(losses) == pytest.approx(mean)
    assert VaR(0.0).plug_in(losses) == losses.min()
    tail = np.sort(losses)[-50:].mean()
    assert CVaR(0.75).plug_in(losses) == pytest.approx(tail)
    assert QuantileMixture([Mean(), CVaR(0.75)], [0.5, 0.5]).plug_in(losses) == pytest.approx(
        (mean + tail) / 2
    )


@pytest.mark.parametrize("risk", EVERY, ids=lambda risk: type(risk).__name__)
@pytest.mark.parametrize("bound", [b for b in BOUNDS if b != "plug_in"])
def test_bounds_are_bounds(risk, bound):
    fits = {
        "l_statistic": risk.smooth,
        "order_statistic": isinstance(risk, VaR),
        "bootstrap": isinstance(risk, VaR),
    }
    losses = np.random.default_rng(0).beta(1, 2, 300)
    if not fits.get(bound, True):
        with pytest.raises(ValueError, match="bound="):
            risk.upper_bound(losses, 0.1, bound)
        return
    found = [risk.upper_bound(losses, delta, bound) for delta in (0.4, 0.2, 0.1, 0.01, 1e-4)]
    assert found == sorted(found)
    assert found[0] >= risk.plug_in(losses) - (1e-12 if bound != "order_statistic" else 0.02)
    assert found[-1] <= 1
    if bound not in ("l_statistic", "bootstrap"):
        for place in (0, 150, 299):
            more = losses.copy()
            more[place] = min(more[place] + 0.1, 1.0)
            assert risk.upper_bound(more, 0.1, bound) >= found[2] - 1e-12


def test_the_bootstrap_is_exact():
    """The deviation of a quantile over bootstrap samples, without drawing them."""
    rng = np.random.default_rng(0)
    losses = np.sort(rng.uniform(size=40))
    draws = np.sort(losses[rng.integers(0, 40, (20_000, 40))], axis=1)[:, math.ceil(0.75 * 40) - 1]
    found = VaR(0.75).bootstrap_deviations(losses[None])[0]
    assert found == pytest.approx(draws.std(), rel=0.02)


# --- bands


@pytest.mark.parametrize(
    ("n", "delta", "level", "last"),
    [
        (10, 0.10, 0.017603836, 0.667668),
        (10, 0.05, 0.0079433761, 0.61659573),
        (100, 0.05, 0.0024609349, 0.9416966),
        (100, 0.10, 0.0057283692, 0.9496866),
        (500, 0.05, 0.0014557858, 0.98702055),
        (1000, 0.05, 0.0012169521, 0.99331107),
        (1000, 0.10, 0.0028805516, 0.994167),
        (2000, 0.05, 0.0010386246, 0.99657096),
        (6000, 0.05, 0.00083553229, 0.99881946),
        (6000, 0.10, 0.0019849037, 0.99896351),
    ],
)
def test_berk_jones_levels(n, delta, level, last):
    assert berk_jones_level(n, delta) == pytest.approx(level, rel=1e-6)
    assert berk_jones_bound(n, delta)[-1] == pytest.approx(last, abs=1e-6)


def test_berk_jones_band():
    expected = [
        0.001774,
        0.020914,
        0.058503,
        0.109651,
        0.171898,
        0.244311,
        0.327044,
        0.421478,
        0.531303,
        0.667668,
    ]
    np.testing.assert_allclose(berk_jones_bound(10, 0.1), expected, atol=1e-6)
    assert berk_jones_level(1000, 0.1, 750) == pytest.approx(0.0090418721, rel=1e-6)
    truncated = berk_jones_bound(100, 0.1, 75)
    assert (truncated[:75] == 0).all()
    assert (truncated[75:] > berk_jones_bound(100, 0.1)[75:]).all()


def test_the_probability_of_not_crossing():
    assert noncrossing_probability(np.array([0.02, 0.1, 0.2, 0.35, 0.5])) == pytest.approx(
        0.796584375, abs=1e-9
    )
    assert noncrossing_probability(np.array([0.3])) == pytest.approx(0.7, abs=1e-13)
    a, b = 0.1, 0.3
    assert noncrossing_probability(np.array([a, b])) == pytest.approx((1 - a) ** 2 - (b - a) ** 2, abs=1e-13)
    assert noncrossing_probability(np.zeros(5)) == pytest.approx(1, abs=1e-13)
    assert noncrossing_probability(np.array([0.5, 1.0])) == 0
    rng = np.random.default_rng(0)
    for n in (3, 6):
        lower = np.sort(rng.uniform(0, 0.5, n))
        draws = np.sort(rng.random((400_000, n)), axis=1)
        share = (draws >= lower).all(axis=1).mean()
        error = math.sqrt(share * (1 - share) / 400_000)
        assert abs(noncrossing_probability(lower) - share) < 4 * error


def test_the_narrow_band_of_states_loses_nothing():
    """Against the same recursion over all states."""
    n = 200
    lower = berk_jones_bound(n, 0.05)
    law, at = np.ones(1), 0.0
    from scipy.stats import poisson

    for i, bound in enumerate(lower, start=1):
        law = np.convolve(law, poisson.pmf(np.arange(n + 1), n * (bound - at)))[:i]
        at = bound
    whole = law @ poisson.pmf(n - np.arange(n), n * (1 - at)) / poisson.pmf(n, n)
    assert noncrossing_probability(lower) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("exact", [False, True])
def test_uniform_bands(exact):
    lower = dkw_bound(100, 0.1, exact=exact)
    assert (np.diff(lower) >= 0).all()
    if not exact:
        assert lower[-1] == pytest.approx(1 - math.sqrt(math.log(10) / 200))
    else:
        assert noncrossing_probability(lower) == pytest.approx(0.9, abs=1e-6)
        assert lower[-1] > dkw_bound(100, 0.1)[-1]


@pytest.mark.parametrize(("band", "at_least"), [("berk_jones", 0.085), ("ks", 0.085), ("dkw", 0.05)])
def test_bands_hold_as_often_as_they_should(band, at_least):
    lower = {
        "berk_jones": berk_jones_bound(100, 0.1),
        "ks": dkw_bound(100, 0.1, exact=True),
        "dkw": dkw_bound(100, 0.1),
    }[band]
    draws = np.sort(np.random.default_rng(0).random((40_000, 100)), axis=1)
    missed = (draws < lower).any(axis=1).mean()
    assert at_least < missed < 0.1 + 4 * math.sqrt(0.09 / 40_000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: berk_jones_bound(0, 0.1), "n must"),
        (lambda: berk_jones_bound(10, 0.0), "delta"),
        (lambda: berk_jones_bound(10, 0.1, 10), "k_min"),
        (lambda: dkw_bound(10, 0.6), "delta"),
        (lambda: CVaR(1.0), "beta"),
        (lambda: VaR(-0.1), "beta"),
        (lambda: IntervalVaR(0.9, 0.5), "beta_low"),
        (lambda: PowerDistortion(0.0), "rho"),
        (lambda: ExponentialDistortion(0.0), "k must"),
        (lambda: WangDistortion(-1.0), "theta"),
        (lambda: QuantileMixture([Mean()], [0.5]), "shares"),
        (lambda: QuantileMixture([], []), "risks"),
        (lambda: CustomDistortion(lambda u: 1 - u), "psi"),
        (lambda: CustomDistortion(lambda u: u / 2), "psi"),
        (lambda: CustomDistortion(lambda u: u - np.sin(2 * np.pi * u)), "psi"),
        (lambda: CustomDistortion(lambda u: "x"), "psi"),
        (lambda: CustomDistortion(lambda u: u).upper_bound([0.1, 0.2], 0.1, "l_statistic"), "derivative"),
        (lambda: Mean().plug_in([]), "losses"),
        (lambda: Mean().plug_in([np.nan]), "losses"),
        (lambda: Mean().upper_bound([2.0]), "upper"),
        (lambda: Mean().upper_bound([0.1, 0.2], 0.1, "hope"), "bound"),
        (lambda: VaR(0.5).variance([0.1, 0.2]), "derivative"),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_risks_compare_by_what_they_are():
    assert CVaR(0.5) == CVaR(0.5)
    assert CVaR(0.5) != CVaR(0.6)
    assert Mean() != VaR(0.5)
    assert len({CVaR(0.5), CVaR(0.5), Mean()}) == 2
    assert repr(IntervalVaR(0.1, 0.5)) == "IntervalVaR(beta_low=0.1, beta_high=0.5)"
    assert all(isinstance(risk, DistortionRisk) for risk in EVERY)


# --- p-values


@pytest.mark.parametrize("bound", ["l_statistic", "dkw", "ks", "berk_jones", "berk_jones_truncated"])
def test_p_values_invert_the_bound(bound):
    losses = np.random.default_rng(0).beta(1, 3, 200)
    risk = CVaR(0.5)
    alpha = risk.plug_in(losses) + 0.07
    p = tail_risk_p_value(losses, risk, alpha, bound)
    assert 0 < p < 0.5
    assert risk.upper_bound(losses, min(p * 1.001, 0.5), bound) <= alpha + 1e-9
    assert risk.upper_bound(losses, p * 0.98, bound) > alpha
    assert tail_risk_p_value(losses, risk, 0.05, bound) > 0.5 or bound == "l_statistic"


def test_p_values_of_quantiles_and_extremes():
    losses = np.random.default_rng(0).uniform(size=200)
    p = tail_risk_p_value(losses, VaR(0.5), 0.6, "order_statistic")
    rank = int((np.sort(losses) <= 0.6).sum())
    from scipy.stats import binom

    assert p == pytest.approx(binom.sf(rank - 1, 200, 0.5), rel=1e-3)
    assert tail_risk_p_value(np.zeros(50), Mean(), 0.1) == pytest.approx(1e-12)
    assert tail_risk_p_value(np.full(50, 0.5), Mean(), 0.1) == 1.0
    for call, message in (
        (lambda: tail_risk_p_value(losses, Mean(), 1.0), "alpha"),
        (lambda: tail_risk_p_value(losses, Mean(), 0.5, "plug_in"), "plug_in"),
        (lambda: tail_risk_p_value(losses * 2, Mean(), 0.5), "upper"),
        (lambda: tail_risk_p_value([], Mean(), 0.5), "losses"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_p_values_are_uniform_or_larger():
    """At the boundary alpha = R, a p-value below u comes with probability u at most."""
    rng = np.random.default_rng(0)
    p = np.array(
        [tail_risk_p_value(rng.uniform(size=100), VaR(0.8), 0.8, "order_statistic") for _ in range(1000)]
    )
    for u in (0.05, 0.1, 0.3):
        assert (p <= u).mean() <= u + 3 * math.sqrt(u * (1 - u) / 1000)
