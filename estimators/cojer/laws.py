"""Exact laws of the p-values of one batch, and of the share of it that is miscovered.

Order the ``n + m`` scores of calibration and test points from the largest. For exchangeable scores without
ties every arrangement of the ``n`` calibration points and the ``m`` test points is equally likely. Write
``i_k`` for the number of calibration points before the ``k``-th test point: the ``k``-th smallest conformal
p-value of the batch is ``(1 + i_k) / (n + 1)`` (Gazin, Blanchard and Roquain, AISTATS 2024).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import dtbsv
from scipy.special import gammaln

from seedbed.checks import check_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOLERANCE = 1e-12
"""Slack of comparisons of probabilities: at m = 1 the achieved error equals delta exactly."""

_BLOCK = 1 << 21  # cells of a table held at once: 16 MiB of float64


def misses_allowed(alpha: ArrayLike, n_test: int) -> Ints:
    """Return the largest number of misses that keeps the FCP at most alpha: ``floor(alpha m)``.

    Parameters
    ----------
    alpha : array-like
        Shares in (0, 1).
    n_test : int
        Size of the batch m.

    Returns
    -------
    ndarray of int64
        Same shape as ``alpha``. 0.29 of 100 points is 29, whatever the binary form of 0.29 says.
    """
    return np.floor(np.asarray(alpha, dtype=float) * n_test + 1e-9).astype(np.int64)


def check_sizes(n_cal: Any, n_test: Any) -> None:
    """Raise unless both sizes are positive integers.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers of calibration and test points.

    Raises
    ------
    TypeError, ValueError
        Naming the parameter, its value and what is allowed.
    """
    check_number("n_cal", n_cal, low=1, integer=True)
    check_number("n_test", n_test, low=1, integer=True)


def rank_cdf_rows(n_cal: int, n_test: int, ks: Ints) -> Iterator[tuple[Ints, Floats]]:
    """Yield blocks of rows of ``F_k(i) = P(i_k <= i)``, i = 0..n.

    ``i_k`` is negative hypergeometric:
    ``P(i_k = i) = C(i+k-1, i) C(n-i+m-k, n-i) / C(n+m, n)``.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration and m of test points.
    ks : ndarray of int64 of shape (K,)
        Increasing positions k, 1 <= k <= m.

    Yields
    ------
    rows : ndarray of int64 of shape (b,)
        Indices into ``ks``.
    cdf : ndarray of shape (b, n + 1)
        Their distribution functions.
    """
    n, m = n_cal, n_test
    log_factorial = gammaln(np.arange(n + m + 1) + 1.0)
    # window[a, i] = log (a + i)!
    window = np.lib.stride_tricks.sliding_window_view(log_factorial, n + 1)
    per_column = log_factorial[: n + 1] + log_factorial[n::-1]
    total = log_factorial[n + m] - log_factorial[n] - log_factorial[m]
    step = max(1, _BLOCK // (n + 1))
    for start in range(0, len(ks), step):
        k = ks[start : start + step]
        log_pmf = window[k - 1] + window[m - k][:, ::-1] - per_column
        log_pmf -= (log_factorial[k - 1] + log_factorial[m - k] + total)[:, None]
        cdf = np.cumsum(np.exp(log_pmf, out=log_pmf), axis=1, out=log_pmf)
        yield np.arange(start, start + len(k)), np.minimum(cdf, 1.0, out=cdf)


def rank_cdf(n_cal: int, n_test: int, k: int) -> Floats:
    """Return ``F_k(i) = P(i_k <= i)`` for i = 0..n.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration and m of test points.
    k : int
        Position among the sorted p-values, 1 <= k <= m.

    Returns
    -------
    ndarray of shape (n + 1,)
        Probability that the k-th smallest p-value is at most ``(1 + i) / (n + 1)``.
    """
    check_sizes(n_cal, n_test)
    check_number("k", k, low=1, high=n_test, integer=True)
    _, cdf = next(rank_cdf_rows(n_cal, n_test, np.array([k])))
    return cdf[0]


def joint_error_rate(g: ArrayLike, n_cal: int, n_test: int) -> float:
    """Return the exact joint error rate of a family of thresholds.

    ``JER = P(there is a k <= K with p_(k) < g_k / (n + 1))`` (Blanchard, Neuvial and Roquain, AoS 2020,
    applied to conformal p-values), by a forward recursion over the sorted test points instead of simulation.

    Parameters
    ----------
    g : array-like of int of shape (K,)
        Thresholds in units of ``1 / (n + 1)``; K <= ``n_test``. ``g_k = 1`` leaves position k free.
    n_cal, n_test : int
        Numbers n of calibration and m of test points.

    Returns
    -------
    float
        In [0, 1], to about 1e-12 relative.

    Raises
    ------
    TypeError
        If ``g`` does not hold integers.
    ValueError
        If ``g`` is empty, longer than ``n_test`` or holds values below 1.

    Notes ----- The recursion runs on a Bernoulli walk (calibration point with probability ``n / (n + m)``,
    else test point) that is conditioned on ending at (n, m) only where mass leaves, so nothing overflows and
    all terms are positive. A path whose k-th test point lies beyond the last threshold can no longer err, so
    each row stops there. O(K max(g)) time.

    Examples
    --------
    >>> from seedbed.estimators import joint_error_rate
    >>> round(joint_error_rate([2, 3, 4], n_cal=4, n_test=3), 12)  # 21 of the 35 arrangements
    0.6
    """
    check_sizes(n_cal, n_test)
    thresholds = np.asarray(g)
    if thresholds.ndim != 1 or not 1 <= thresholds.size <= n_test:
        raise ValueError(
            f"g must be a vector of 1 to n_test={n_test} thresholds, got shape {thresholds.shape}"
        )
    if thresholds.dtype.kind not in "iu":
        raise TypeError(f"g must hold integers, got dtype {thresholds.dtype}")
    if thresholds.min() < 1:
        raise ValueError(f"g must be at least 1 everywhere, got {thresholds.min()}")
    n, m = n_cal, n_test
    # i_k is non-decreasing, so position k inherits every earlier threshold.
    needed = np.maximum.accumulate(thresholds.astype(np.int64) - 1)
    if needed[-1] > n:
        return 1.0
    previous = np.concatenate([[0], needed[:-1]])
    # Cells (k, i) where a path first errs: i_k = i with c_{k-1} <= i < c_k; together 0 .. c_K - 1.
    cell_i = np.arange(needed[-1])
    cell_k = np.repeat(np.arange(1, needed.size + 1), needed - previous)
    log_q, log_p = np.log(n / (n + m)), np.log(m / (n + m))
    log_weight = (
        gammaln(n - cell_i + m - cell_k + 1.0)
        - gammaln(n - cell_i + 1.0)
        - gammaln(m - cell_k + 1.0)
        - (gammaln(n + m + 1.0) - gammaln(n + 1.0) - gammaln(m + 1.0))
        - cell_i * log_q
        - cell_k * log_p
    )
    weight = np.exp(log_weight)
    # From one test point to the next, new(i) = p sum_{i' <= i} q^(i - i') old(i'): a solve with the lower
    # bidiagonal matrix that has 1 on and -q under the diagonal.
    band = np.empty((2, needed[-1]), order="F")
    band[0], band[1] = 1.0, -n / (n + m)
    p = m / (n + m)
    mass = np.zeros(needed[-1])
    mass[:1] = 1.0
    error = 0.0
    for before, now in zip(previous.tolist(), needed.tolist(), strict=True):
        if not mass.size:
            break
        mass = p * dtbsv(1, band[:, : mass.size], mass, lower=1, diag=1)
        if now > before:
            error += float(mass[: now - before] @ weight[before:now])
            mass = mass[now - before :]
    return min(error, 1.0)


def fcp_exceedance_probability(n_cal: int, n_test: int, level: int, alpha: float) -> float:
    """Return the exact probability that the FCP of one fixed level exceeds alpha.

    The number of misses is beta-binomial: ``m FCP ~ BetaBinomial(m, l, n + 1 - l)``, hence
    ``P(FCP > alpha) = F_k(l - 1)`` with ``k = floor(alpha m) + 1``.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration and m of test points.
    level : int
        Level l in 0..n: a point is missed when its p-value is at most ``l / (n + 1)``, i.e. the half-width is
        the ``(n + 1 - l)``-th smallest calibration score. Split conformal prediction has ``l = floor(alpha (n
        + 1))``.
    alpha : float
        Share in (0, 1).

    Returns
    -------
    float
        ``P(FCP > alpha)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> from seedbed.estimators import fcp_exceedance_probability
    >>> round(fcp_exceedance_probability(1000, 500, level=100, alpha=0.1), 4)  # split conformal
    0.4604
    """
    check_sizes(n_cal, n_test)
    check_number("level", level, low=0, high=n_cal, integer=True)
    check_number("alpha", alpha, low=0, high=1, closed="neither")
    k = int(misses_allowed(alpha, n_test)) + 1
    if level == 0 or k > n_test:
        return 0.0
    return float(rank_cdf(n_cal, n_test, k)[level - 1])


def sample_ranks(
    n_cal: int, n_test: int, n_draws: int, rng: np.random.Generator, *, sort: bool = True
) -> Ints:
    """Draw batches of p-values.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration and m of test points.
    n_draws : int
        Number of batches B.
    rng : numpy.random.Generator
        Source of randomness.
    sort : bool, default=True
        Whether each row is sorted.

    Returns
    -------
    ndarray of int64 of shape (B, m)
        ``i`` of each test point: its p-value is ``(1 + i) / (n + 1)``.
    """
    ranks = np.empty((n_draws, n_test), dtype=np.int64)
    step = max(1, _BLOCK // (n_cal + n_test))
    for start in range(0, n_draws, step):
        rows = min(step, n_draws - start)
        order = np.argsort(rng.random((rows, n_cal + n_test)), axis=1)
        is_test = order >= n_cal
        before = np.cumsum(~is_test, axis=1)[is_test].reshape(rows, n_test)
        if sort:
            ranks[start : start + rows] = before
        else:
            who = order[is_test].reshape(rows, n_test) - n_cal
            np.put_along_axis(ranks[start : start + rows], who, before, axis=1)
    return ranks


def false_coverage_proportion(y: ArrayLike, intervals: ArrayLike) -> Any:
    """Return the realised share of points outside their intervals.

    Parameters
    ----------
    y : array-like of shape (m,)
        True values.
    intervals : array-like of shape (m, 2) or (m, 2, n_alpha)
        Closed intervals, as :meth:`CoJERRegressor.predict_interval` and MAPIE return them.

    Returns
    -------
    float or ndarray of shape (n_alpha,)
        False coverage proportion of each level.

    Raises
    ------
    ValueError
        If the shapes do not match, the batch is empty or a value is NaN.

    Examples
    --------
    >>> from seedbed.estimators import false_coverage_proportion
    >>> false_coverage_proportion([0.0, 1.0, 5.0, 2.0], [[-1, 1], [0, 2], [1, 3], [2, 3]])
    0.25
    """
    true = np.asarray(y, dtype=float)
    bounds = np.asarray(intervals, dtype=float)
    if true.ndim != 1 or true.size == 0:
        raise ValueError(f"y must be a non-empty vector, got shape {true.shape}")
    if bounds.ndim not in (2, 3) or bounds.shape[:2] != (true.size, 2):
        raise ValueError(
            f"intervals must have shape ({true.size}, 2) or ({true.size}, 2, n_alpha), got {bounds.shape}"
        )
    if np.isnan(true).any() or np.isnan(bounds).any():
        raise ValueError("y and intervals must not contain NaN")
    target = true if bounds.ndim == 2 else true[:, None]
    share = np.mean((target < bounds[:, 0]) | (target > bounds[:, 1]), axis=0)
    return float(share) if bounds.ndim == 2 else share
