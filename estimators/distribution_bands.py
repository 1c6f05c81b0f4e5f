"""Lower confidence bands for a distribution function at its order statistics.

With probability ``1 - delta``, ``F(r_(i)) >= L_i`` for all i together: for i.i.d. losses ``F(r_(i))`` are at
least the order statistics of n uniform draws.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, gammaln
from scipy.stats import binom, ksone

from seedbed.checks import check_number

Floats = NDArray[np.float64]


def check_band(n: int, delta: float) -> None:
    """Raise unless there can be a band.

    Parameters
    ----------
    n : int
        Number of losses.
    delta : float
        Error probability.

    Raises
    ------
    ValueError
        If n is below 1 or delta not between 0 and 1.
    """
    check_number("n", n, low=1, integer=True)
    check_number("delta", delta, low=0, high=1, closed="neither")


def noncrossing_probability(lower: Floats) -> float:
    """Return the probability that ``U_(i) >= L_i`` for all order statistics of n uniform draws.

    Equivalently, fewer than i draws lie below ``L_i``. The count below t is a Poisson process given its end;
    its law is carried from one ``L_i`` to the next, kept where the bridge can be (10 standard deviations), in
    O(n^1.5).

    Parameters
    ----------
    lower : ndarray of shape (n,)
        Not decreasing, in [0, 1].

    Returns
    -------
    float
        The probability.
    """
    n = len(lower)
    law, first = np.ones(1), 0  # of the count, from `first` on
    scale, at = 0.0, 0.0  # log of what was divided out; where we are
    for i, bound in enumerate(lower, start=1):
        if bound > at:
            mean = n * (bound - at)
            reach = int(mean + 12 * math.sqrt(mean) + 25)
            steps = np.arange(reach + 1)
            law = np.convolve(law, np.exp(steps * math.log(mean) - mean - gammaln(steps + 1)))
            at = float(bound)
        spread = 10 * math.sqrt(n * at * max(1 - at, 0.0)) + 20
        low, high = max(first, int(n * at - spread)), min(i - 1, int(n * at + spread))
        law, first = law[low - first : high + 1 - first], low
        total = law.sum()
        if total <= 0:
            return 0.0
        law = law / total
        scale += math.log(total)
    rest = n - first - np.arange(len(law))
    mean = n * (1 - at)
    if mean > 0:
        end = np.exp(rest * math.log(mean) - mean - gammaln(rest + 1))
    else:
        end = (rest == 0).astype(float)
    whole = n * math.log(n) - n - gammaln(n + 1)
    value = float(law @ end)
    return math.exp(scale + math.log(value) - whole) if value > 0 else 0.0


@lru_cache(maxsize=256)
def berk_jones_level(n: int, delta: float, k_min: int = 0) -> float:
    """Return the level c at which the Berk-Jones band holds with probability ``1 - delta``.

    Parameters
    ----------
    n : int
        Number of losses.
    delta : float
        Error probability.
    k_min : int
        ``L_i`` is 0 up to here, which makes the rest tighter.

    Returns
    -------
    float
        c, to 1e-10 of its size.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """
    check_band(n, delta)
    check_number("k_min", k_min, low=0, high=n - 1, integer=True)

    def excess(log_level: float) -> float:
        return noncrossing_probability(_quantiles(n, math.exp(log_level), k_min)) - (1 - delta)

    # One order statistic alone would have c = delta; n independent ones 1 - (1 - delta)^(1/n).
    low, high = math.log(delta / (n - k_min)) - 1, math.log(delta) + 1e-9
    while excess(low) < 0:
        low -= 2
    if n - k_min == 1:
        return delta
    return math.exp(brentq(excess, low, high, xtol=1e-10, rtol=1e-12))


def _quantiles(n: int, level: float, k_min: int) -> Floats:
    ranks = np.arange(1, n + 1)
    lower = betaincinv(ranks, n - ranks + 1, level)
    lower[:k_min] = 0.0
    return lower


def berk_jones_bound(n: int, delta: float, k_min: int = 0) -> Floats:
    """Berk-Jones band: ``L_i`` are beta quantiles at one level for all i.

    Parameters
    ----------
    n : int
        Number of losses.
    delta : float
        Error probability.
    k_min : int
        ``L_i`` is 0 for i up to here.

    Returns
    -------
    ndarray of shape (n,)
        L_1, ..., L_n.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> from seedbed.estimators import berk_jones_bound
    >>> berk_jones_bound(10, 0.1).round(3).tolist()
    [0.002, 0.021, 0.059, 0.11, 0.172, 0.244, 0.327, 0.421, 0.531, 0.668]
    """
    return _quantiles(n, berk_jones_level(int(n), float(delta), int(k_min)), int(k_min))


def dkw_bound(n: int, delta: float, *, exact: bool = False) -> Floats:
    """Band of constant width: ``L_i = max(i / n - epsilon, 0)``.

    Parameters
    ----------
    n : int
        Number of losses.
    delta : float
        Error probability; at most 1/2 for the inequality.
    exact : bool
        Whether epsilon is the quantile of the one-sided Kolmogorov statistic, in place of Dvoretzky, Kiefer,
        Wolfowitz and Massart's ``sqrt(log(1 / delta) / (2 n))``.

    Returns
    -------
    ndarray of shape (n,)
        L_1, ..., L_n.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> from seedbed.estimators import dkw_bound
    >>> dkw_bound(100, 0.05)[-1].round(4)
    np.float64(0.8776)
    """
    check_band(n, delta)
    if not exact and delta > 0.5:
        raise ValueError(f"delta must be in (0, 0.5] for the inequality, got {delta!r}")
    width = float(ksone.isf(delta, n)) if exact else math.sqrt(math.log(1 / delta) / (2 * n))
    return np.maximum(np.arange(1, n + 1) / n - width, 0.0)


def order_statistic_rank(n: int, beta: float, delta: float) -> int | None:
    """Return the rank k at which the k-th smallest loss bounds the beta-quantile from above.

    Parameters
    ----------
    n : int
        Number of losses.
    beta : float
        Quantile.
    delta : float
        Error probability.

    Returns
    -------
    int or None
        Smallest k with ``P(Bin(n, beta) >= k) <= delta``; None where n is too small.
    """
    ranks = np.arange(1, n + 1)
    enough = np.flatnonzero(binom.sf(ranks - 1, n, beta) <= delta)
    return int(ranks[enough[0]]) if len(enough) else None
