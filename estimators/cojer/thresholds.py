"""Threshold families and their calibration: the largest family whose joint error rate is at most delta.

Every template is a family ``g_k(lam)`` of integer thresholds (in units of ``1 / (n + 1)``) that grows with
``lam`` in
steps: ``g_k(lam) = 1 + #{j : v_kj < lam}`` with known jump points ``v_k1 <= v_k2 <= ...``. Calibration sorts
the jump points and searches over their ranks, so it ends on the exact optimum instead of on a tolerance in
``lam``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from seedbed.checks import check_choice, check_number
from seedbed.estimators.cojer.laws import (
    TOLERANCE,
    Floats,
    Ints,
    check_sizes,
    joint_error_rate,
    misses_allowed,
    rank_cdf,
    rank_cdf_rows,
    sample_ranks,
)

Template = Literal["quantile", "learned", "linear", "beta", "single"]
Calibration = Literal["exact", "monte_carlo"]
TEMPLATES: tuple[Template, ...] = ("quantile", "learned", "linear", "beta", "single")
CALIBRATIONS: tuple[Calibration, ...] = ("exact", "monte_carlo")


@dataclass(frozen=True)
class Thresholds:
    """A calibrated threshold family.

    Attributes
    ----------
    g : ndarray of int64 of shape (K,)
        Thresholds in units of ``1 / (n + 1)``, non-decreasing, read-only.
    parameter : float
        The family's parameter lambda: the largest one with JER <= delta.
    jer : float
        Exact joint error rate of ``g``.
    """

    g: Ints
    parameter: float
    jer: float


def _frozen(g: Ints, parameter: float, n_cal: int, n_test: int) -> Thresholds:
    g.setflags(write=False)
    return Thresholds(g, float(parameter), joint_error_rate(g, n_cal, n_test))


@dataclass(frozen=True)
class _Jumps:
    """Jump points of a template, sorted; the first ``ends[r]``, ties together, give the ``r``-th family."""

    base: Ints  # (K,) thresholds before any of the listed jumps
    values: Floats  # (N,) sorted
    owners: Ints  # (N,) position k - 1 that each jump raises by one
    ends: Ints  # 0, then the end of each run of equal values
    cap: float  # the first jump that was left out: no valid family reaches beyond it

    def family(self, rank: int) -> Ints:
        return self.base + np.bincount(self.owners[: self.ends[rank]], minlength=self.base.size)

    def parameter(self, rank: int) -> float:
        """Largest lambda of this family: families are left-continuous in lambda."""
        end = self.ends[rank]
        return float(self.values[end]) if end < self.values.size else self.cap


def _sorted_jumps(base: Ints, values: Floats, owners: Ints, cap: float) -> _Jumps:
    order = np.argsort(values, kind="stable")
    values = values[order]
    ends = np.concatenate([[0], np.flatnonzero(np.diff(values, append=np.inf)) + 1])
    return _Jumps(base, values, owners[order], ends, min(cap, 1.0))


def _quantile_jumps(n: int, m: int, delta: float, size: int) -> _Jumps:
    """Jumps of the quantile template: ``v_kj = F_k(j - 1)``.

    Below ``delta / K`` a family is valid by the union bound, and one with some ``P(p_(k) < t_k) > delta`` is
    not, so only jumps in between are searched.
    """
    low, high = delta / size * (1 - 1e-9), delta + TOLERANCE
    base = np.empty(size, dtype=np.int64)
    values, owners, cap = [], [], 1.0
    for rows, cdf in rank_cdf_rows(n, m, np.arange(1, size + 1)):
        base[rows] = 1 + np.sum(cdf < low, axis=1)
        inside = (cdf >= low) & (cdf <= high)
        values.append(cdf[inside])
        owners.append(rows[np.nonzero(inside)[0]])
        cap = min(cap, float(np.min(cdf, where=cdf > high, initial=1.0)))
    return _sorted_jumps(base, np.concatenate(values), np.concatenate(owners), cap)


def _explicit_jumps(n: int, m: int, delta: float, size: int, jump: Callable[[Ints, Ints], Floats]) -> _Jumps:
    """Jumps of a template with a closed form ``v_kj = jump(k, j)``, j = 1..n."""
    ks = np.arange(1, size + 1)
    # Raising g_k from j to j + 1 needs F_k(j - 1) <= delta: the first j that fails caps lambda.
    first_bad = np.empty(size, dtype=np.int64)
    for rows, cdf in rank_cdf_rows(n, m, ks):
        first_bad[rows] = 1 + np.sum(cdf <= delta + TOLERANCE, axis=1)
    bounded = first_bad <= n
    cap = float(np.min(jump(ks[bounded], first_bad[bounded]), initial=1.0))
    counts = np.minimum(first_bad - 1, n)
    owners = np.repeat(np.arange(size), counts)
    j = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    values = jump(owners + 1, j)
    keep = values < cap
    return _sorted_jumps(np.ones(size, dtype=np.int64), values[keep], owners[keep], cap)


def _search(last: int, valid: Callable[[int], bool]) -> int:
    """Largest rank in 0..last that is valid; validity is monotone and rank 0 is taken for granted."""
    low, high = 0, last
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if valid(middle) else (low, middle - 1)
    return low


def _simulated_error(draws: Ints, g: Ints) -> float:
    """Share of simulated batches (sorted ranks, shape (B, m)) that break a threshold."""
    return float(np.mean(np.any(draws[:, : g.size] < g - 1, axis=1)))


def _single(n: int, m: int, delta: float, size: int, draws: Ints | None) -> tuple[Ints, float]:
    """Constrain position K alone."""
    if draws is None:
        cdf = rank_cdf(n, m, size)
    else:
        counts = np.bincount(draws[:, size - 1], minlength=n + 1)
        cdf = np.cumsum(counts) / len(draws)
    level = int(np.sum(cdf <= delta + TOLERANCE))  # P(i_K < level) <= delta
    g = np.ones(size, dtype=np.int64)
    g[-1] = level + 1
    return g, float(cdf[min(level, n)])


def _learned(template: Ints, valid: Callable[[Ints], bool]) -> tuple[Ints, float]:
    """Rows of column-wise sorted draws as the family: row b is the empirical (b / B)-quantile curve."""
    curves = np.sort(template, axis=0) + 1
    row = _search(len(curves), lambda b: valid(curves[b - 1]))
    g = curves[row - 1].copy() if row else np.ones(template.shape[1], dtype=np.int64)
    return g, row / len(curves)


def _calibrate(
    n: int,
    m: int,
    delta: float,
    size: int,
    template: Template,
    calibration: Calibration,
    n_draws: int,
    seed: int,
) -> Thresholds:
    rng = np.random.default_rng(seed)
    curves = sample_ranks(n, m, n_draws, rng)[:, :size] if template == "learned" else None
    draws = sample_ranks(n, m, n_draws, rng) if calibration == "monte_carlo" else None

    def valid(g: Ints) -> bool:
        error = joint_error_rate(g, n, m) if draws is None else _simulated_error(draws, g)
        return error <= delta + TOLERANCE

    if template == "single":
        return _frozen(*_single(n, m, delta, size, draws), n, m)
    if curves is not None:
        return _frozen(*_learned(curves, valid), n, m)
    if template == "quantile":
        jumps = _quantile_jumps(n, m, delta, size)
    elif template == "linear":
        # t_k = lam k / m on the grid: p < t iff (n + 1) p < ceil((n + 1) t).
        jumps = _explicit_jumps(n, m, delta, size, lambda k, j: j * m / (k * (n + 1.0)))
    else:
        # t_k is the lam-quantile of Beta(k, m + 1 - k), the law of the k-th of m uniforms.
        jumps = _explicit_jumps(n, m, delta, size, lambda k, j: betainc(k, m + 1.0 - k, j / (n + 1.0)))
    rank = _search(jumps.ends.size - 1, lambda r: valid(jumps.family(r)))
    return _frozen(jumps.family(rank), jumps.parameter(rank), n, m)


_cached = lru_cache(maxsize=256)(_calibrate)


def check_delta(delta: Any) -> None:
    """Raise unless delta is a number in (0, 1).

    Parameters
    ----------
    delta : float
        Error probability.

    Raises
    ------
    TypeError, ValueError
        Naming the parameter, its value and what is allowed.
    """
    check_number("delta", delta, low=0, high=1, closed="neither")


def calibrate(
    n_cal: int,
    n_test: int,
    delta: float,
    *,
    template: Template = "quantile",
    k_max: int | None = None,
    calibration: Calibration = "exact",
    n_draws: int = 1000,
    seed: int = 0,
) -> Thresholds:
    """Return the largest family of a template with JER <= delta; cached.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration and m of test points.
    delta : float
        Allowed joint error rate, in (0, 1).
    template : {"quantile", "learned", "linear", "beta", "single"}
        The family, see :func:`cojer_thresholds`.
    k_max : int, optional
        Number of thresholds K; ``max(1, m // 2)`` if None.
    calibration : {"exact", "monte_carlo"}
        Whether JER is computed or simulated.
    n_draws : int
        Simulated batches B (twice: template and calibration).
    seed : int
        Seed of the simulation; unused where nothing is simulated.

    Returns
    -------
    Thresholds
        Thresholds, parameter and achieved (exact) JER.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.
    """
    check_sizes(n_cal, n_test)
    check_delta(delta)
    check_choice("template", template, TEMPLATES)
    check_choice("calibration", calibration, CALIBRATIONS)
    check_number("n_draws", n_draws, low=1, integer=True)
    size = max(1, n_test // 2) if k_max is None else k_max
    check_number("k_max", size, low=1, integer=True)
    if size > n_test:
        raise ValueError(f"k_max must be at most n_test={n_test}, got {size}")
    simulated = template == "learned" or calibration == "monte_carlo"
    key = (int(n_draws), int(seed)) if simulated else (0, 0)
    return _cached(int(n_cal), int(n_test), float(delta), int(size), template, calibration, *key)


def cojer_thresholds(
    n_cal: int,
    n_test: int,
    delta: float,
    *,
    template: Template = "quantile",
    k_max: int | None = None,
    calibration: Calibration = "exact",
    n_draws: int = 1000,
    random_state: int = 0,
) -> Ints:
    """Return CoJER's thresholds.

    With probability 1 - delta, for all k at once, at most k - 1 test points have a p-value below
    ``g_k / (n + 1)``.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration points and m of test points in the batch.
    delta : float
        Probability that the guarantee may fail, in (0, 1).
    template : {"quantile", "learned", "linear", "beta", "single"}, default="quantile"
        Family that is calibrated:

        - ``"quantile"``: g_k is the lambda-quantile of the k-th smallest p-value (the exact limit of
          "learned").
        - ``"learned"``: the paper's template, learned from ``n_draws`` simulated batches.
        - ``"linear"``: ``t_k = lambda k / m`` (Simes).
        - ``"beta"``: ``t_k`` is the lambda-quantile of ``Beta(k, m + 1 - k)``.
        - ``"single"``: position ``k_max`` alone is constrained; tightest for one alpha fixed in advance, and
          valid for that alpha only.
    k_max : int, optional
        Number of thresholds K, 1..m; ``max(1, m // 2)`` by default. A smaller K gives slightly larger
        thresholds.
    calibration : {"exact", "monte_carlo"}, default="exact"
        Whether the joint error rate is computed or estimated from ``n_draws`` simulated batches (the
        paper's).
    n_draws : int, default=1000
        Simulated batches, where something is simulated.
    random_state : int, default=0
        Seed of the simulation.

    Returns
    -------
    ndarray of int64 of shape (K,)
        Thresholds in units of ``1 / (n + 1)``, non-decreasing; read-only, as it is shared by all callers.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    See Also
    --------
    cojer_level : The level for one alpha.

    References
    ----------
    .. [1] A. Blain, B. Thirion, P. Neuvial, "False Coverage Proportion Control for Conformal Prediction",
    ICML 2025.

    Examples
    --------
    >>> from seedbed.estimators import cojer_thresholds
    >>> cojer_thresholds(1000, 500, 0.2)[:8]
    array([1, 1, 1, 2, 3, 4, 5, 6])
    """
    check_number("random_state", random_state, low=0, integer=True)
    return calibrate(
        n_cal,
        n_test,
        delta,
        template=template,
        k_max=k_max,
        calibration=calibration,
        n_draws=n_draws,
        seed=random_state,
    ).g


def default_k_max(alpha: float, n_test: int) -> int:
    """Return the default number of thresholds: half of the batch, and enough for alpha.

    Parameters
    ----------
    alpha : float
        Largest share asked for, in (0, 1).
    n_test : int
        Size of the batch.

    Returns
    -------
    int
        ``max(m // 2, floor(alpha m) + 1)``, at most m.
    """
    return min(n_test, max(n_test // 2, int(misses_allowed(alpha, n_test)) + 1))


def cojer_level(
    n_cal: int,
    n_test: int,
    alpha: float,
    delta: float,
    *,
    template: Template = "quantile",
    k_max: int | None = None,
    simultaneous: bool = True,
    calibration: Calibration = "exact",
    n_draws: int = 1000,
    random_state: int = 0,
) -> int:
    """Return the level l whose intervals have ``P(FCP <= alpha) >= 1 - delta``.

    A test point is missed when its p-value is at most ``l / (n + 1)``; with absolute residuals the half-width
    is the ``(n + 1 - l)``-th smallest calibration score.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration points and m of test points in the batch.
    alpha : float
        Allowed false coverage proportion, in (0, 1).
    delta : float
        Probability that the guarantee may fail, in (0, 1).
    template, k_max, calibration, n_draws, random_state
        As in :func:`cojer_thresholds`; ``k_max`` is at least ``floor(alpha m) + 1`` by default.
    simultaneous : bool, default=True
        Whether the guarantee covers all alpha at once. False selects the template "single": tighter, but
        alpha must have been fixed before looking at anything.

    Returns
    -------
    int
        Level l >= 0; 0 means that only infinite intervals carry the guarantee.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or alpha needs more than ``k_max`` thresholds.

    Examples
    --------
    >>> from seedbed.estimators import cojer_level
    >>> cojer_level(1000, 500, alpha=0.1, delta=0.2)  # split conformal has 100
    71
    >>> cojer_level(1000, 500, alpha=0.1, delta=0.2, simultaneous=False)
    88
    """
    check_sizes(n_cal, n_test)
    check_number("alpha", alpha, low=0, high=1, closed="neither")
    k = min(int(misses_allowed(alpha, n_test)) + 1, n_test)
    if not simultaneous or template == "single":
        template, size = "single", k
    else:
        size = default_k_max(alpha, n_test) if k_max is None else k_max
        if k > size:
            raise ValueError(
                f"alpha too large for k_max: alpha={alpha} of {n_test} points needs k_max >= {k}, got {size}"
            )
    g = cojer_thresholds(
        n_cal,
        n_test,
        delta,
        template=template,
        k_max=size,
        calibration=calibration,
        n_draws=n_draws,
        random_state=random_state,
    )
    return int(g[k - 1]) - 1


def cojer_confidence_level(n_cal: int, n_test: int, alpha: float, delta: float, **options: Any) -> float:
    """Return the confidence level to give to any split-conformal library.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration points and m of test points in the batch.
    alpha : float
        Allowed false coverage proportion, in (0, 1).
    delta : float
        Probability that the guarantee may fail, in (0, 1).
    **options
        Passed to :func:`cojer_level`.

    Returns
    -------
    float
        ``1 - (l + 1/2) / (n + 1)``. The half step keeps ``ceil(level (n + 1)) = n + 1 - l`` whatever the
        rounding. For l = 0 that rank does not exist, and libraries return infinite intervals or raise.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> from seedbed.estimators import cojer_confidence_level
    >>> round(cojer_confidence_level(1000, 500, alpha=0.1, delta=0.2), 4)
    0.9286
    """
    level = cojer_level(n_cal, n_test, alpha, delta, **options)
    return 1.0 - (level + 0.5) / (n_cal + 1)


def fcp_bounds(g: NDArray[Any], scaled: Floats, n_test: int) -> Floats:
    """Return the post-hoc FCP bound of each level.

    Parameters
    ----------
    g : ndarray of shape (K,)
        Non-decreasing thresholds.
    scaled : ndarray
        Levels t on the scale of ``g``.
    n_test : int
        Size m of the batch.

    Returns
    -------
    ndarray
        ``(min{k : g_k >= t} - 1) / m``, and 1 where no threshold reaches t.
    """
    position = np.searchsorted(g, scaled - 1e-9 * np.maximum(1.0, np.abs(scaled)), side="left")
    return np.where(position < len(g), position / n_test, 1.0)
