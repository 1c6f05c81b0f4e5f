"""Distortion risk measures: averages of quantiles, with estimates and upper confidence bounds.

``R(F) = integral of F^{-1}(u) d psi(u)`` with psi growing from 0 to 1. The mean has psi(u) = u; CVaR_beta,
the mean of the worst ``1 - beta``, has ``(u - beta)_+ / (1 - beta)``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from seedbed.checks import check_choice, check_number
from seedbed.estimators.distribution_bands import (
    berk_jones_bound,
    check_band,
    dkw_bound,
    order_statistic_rank,
)

__all__ = [
    "BOUNDS",
    "CVaR",
    "CustomDistortion",
    "DistortionRisk",
    "ExponentialDistortion",
    "IntervalVaR",
    "Mean",
    "PowerDistortion",
    "QuantileMixture",
    "VaR",
    "WangDistortion",
]

Floats = NDArray[np.float64]
Bound = Literal[
    "l_statistic",
    "dkw",
    "ks",
    "berk_jones",
    "berk_jones_truncated",
    "order_statistic",
    "bootstrap",
    "plug_in",
]
BOUNDS = get_args(Bound)


class DistortionRisk:
    """A distortion risk measure; subclasses give ``psi`` and ``dpsi``.

    Attributes
    ----------
    tail : float
        Share of the distribution that it looks at, from the top.
    steepest : float
        Largest value of psi's derivative; infinite where it has none.
    """

    tail: float = 1.0
    steepest: float = math.inf
    smooth: ClassVar[bool] = True

    def psi(self, u: ArrayLike) -> Floats:
        """Distortion function.

        Parameters
        ----------
        u : array-like
            In [0, 1].

        Returns
        -------
        ndarray
            In [0, 1].
        """
        raise NotImplementedError

    def dpsi(self, u: ArrayLike) -> Floats:
        """Derivative of psi.

        Parameters
        ----------
        u : array-like
            In [0, 1].

        Returns
        -------
        ndarray
            Not negative.

        Raises
        ------
        ValueError
            If psi jumps.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name in self._shown())
        return f"{type(self).__name__}({values})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _shown(self) -> tuple[str, ...]:
        return ()

    # -- estimates of sorted losses, many rows at once ----------------------------------------------------

    def weights(self, n: int) -> Floats:
        """Weight of each order statistic in the estimate.

        Parameters
        ----------
        n : int
            Number of losses.

        Returns
        -------
        ndarray of shape (n,)
            ``psi(i / n) - psi((i - 1) / n)``.
        """
        return np.diff(self.psi(np.arange(n + 1) / n))

    def band_weights(self, lower: Floats) -> tuple[Floats, float]:
        """Weights of the order statistics, and of the largest loss, under a lower band.

        Parameters
        ----------
        lower : ndarray of shape (n,)
            ``F(r_(i)) >= lower[i - 1]``.

        Returns
        -------
        (ndarray, float)
            ``psi(L_i) - psi(L_{i-1})`` and ``1 - psi(L_n)``.
        """
        steps = self.psi(np.concatenate([[0.0], lower]))
        return np.diff(steps), float(1.0 - steps[-1])

    def deviations(self, ordered: Floats) -> Floats:
        """Asymptotic standard deviation, times the root of n, of each row's estimate.

        With spacings ``d_k`` it is the standard deviation of ``h_i = -sum_{k >= i} psi'(k / n) d_k``.

        Parameters
        ----------
        ordered : ndarray of shape (rows, n)
            Sorted losses.

        Returns
        -------
        ndarray of shape (rows,)
            Standard deviations.
        """
        n = ordered.shape[1]
        slopes = self.dpsi(np.arange(1, n) / n)
        influence = np.zeros_like(ordered)
        influence[:, :-1] = np.cumsum((slopes * np.diff(ordered, axis=1))[:, ::-1], axis=1)[:, ::-1]
        return influence.std(axis=1)

    # -- one sample -----------------------------------------------------------------------------------------

    def plug_in(self, losses: ArrayLike) -> float:
        """Estimate from a sample.

        Parameters
        ----------
        losses : array-like of shape (n,)
            Losses.

        Returns
        -------
        float
            ``sum r_(i) [psi(i / n) - psi((i - 1) / n)]``.

        Raises
        ------
        ValueError
            If losses are not 1-D and finite.
        """
        ordered = _ordered(losses)
        return float(ordered @ self.weights(len(ordered)))

    def variance(self, losses: ArrayLike) -> float:
        """Asymptotic variance of the estimate times n.

        Parameters
        ----------
        losses : array-like of shape (n,)
            Losses, two or more.

        Returns
        -------
        float
            Estimate of ``sigma^2``.

        Raises
        ------
        ValueError
            If losses are not 1-D and finite, or psi jumps.
        """
        return float(self.deviations(_ordered(losses)[None])[0] ** 2)

    def upper_bound(
        self, losses: ArrayLike, delta: float = 0.05, bound: Bound = "berk_jones", upper: float = 1.0
    ) -> float:
        """Upper confidence bound.

        Parameters
        ----------
        losses : array-like of shape (n,)
            Losses, at most ``upper``.
        delta : float
            Error probability.
        bound : str
            One of ``BOUNDS``.
        upper : float
            Largest possible loss.

        Returns
        -------
        float
            At most ``upper``.

        Raises
        ------
        ValueError
            If an argument is not allowed, or the bound does not go with the risk.
        """
        ordered = _ordered(losses)
        if ordered[-1] > upper:
            raise ValueError(f"losses must be at most upper={upper!r}, got {ordered[-1]!r}")
        return float(upper_bounds(self, ordered[None], delta, bound, upper)[0])


def _ordered(losses: ArrayLike) -> Floats:
    values = np.asarray(losses, dtype=float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(f"losses must be 1-D and finite, of one value or more, got shape {values.shape}")
    return np.sort(values)


def check_bound(risk: DistortionRisk, bound: str, n: int, delta: float) -> None:
    """Raise unless a bound goes with a risk.

    Parameters
    ----------
    risk : DistortionRisk
        The risk.
    bound : str
        One of ``BOUNDS``.
    n : int
        Number of losses.
    delta : float
        Error probability.

    Raises
    ------
    ValueError
        If it does not.
    """
    check_choice("bound", bound, BOUNDS)
    check_band(n, delta)
    if bound == "dkw" and delta > 0.5:
        raise ValueError(f"delta must be in (0, 0.5] with bound='dkw', got {delta!r}")
    if bound in ("order_statistic", "bootstrap") and not isinstance(risk, VaR):
        raise ValueError(f"bound={bound!r} is for VaR, got {risk!r}")
    if bound == "l_statistic":
        if not risk.smooth:
            raise ValueError(f"bound='l_statistic' needs psi to have a derivative, {risk!r} has none")
        if n < 2:
            raise ValueError("bound='l_statistic' needs two losses or more")


def upper_bounds(risk: DistortionRisk, ordered: Floats, delta: float, bound: Bound, upper: float) -> Floats:
    """Upper confidence bounds of many samples of one size.

    Parameters
    ----------
    risk : DistortionRisk
        The risk.
    ordered : ndarray of shape (rows, n)
        Sorted losses.
    delta : float
        Error probability.
    bound : str
        One of ``BOUNDS``.
    upper : float
        Largest possible loss.

    Returns
    -------
    ndarray of shape (rows,)
        At most ``upper``.

    Raises
    ------
    ValueError
        If the bound does not go with the risk.
    """
    n = ordered.shape[1]
    check_bound(risk, bound, n, delta)
    if bound == "plug_in":
        found = ordered @ risk.weights(n)
    elif bound == "l_statistic":
        found = ordered @ risk.weights(n) - ndtri(delta) * risk.deviations(ordered) / math.sqrt(n)
    elif isinstance(risk, VaR) and bound == "order_statistic":
        rank = order_statistic_rank(n, risk.beta, delta)
        found = np.full(len(ordered), upper) if rank is None else ordered[:, rank - 1]
    elif isinstance(risk, VaR) and bound == "bootstrap":
        found = ordered @ risk.weights(n) - ndtri(delta) * risk.bootstrap_deviations(ordered)
    else:
        weights, rest = risk.band_weights(band(risk, n, delta, bound))
        found = ordered @ weights + upper * rest
    return np.minimum(found, upper)


def band(risk: DistortionRisk, n: int, delta: float, bound: Bound) -> Floats:
    """Return the lower band that a finite-sample bound stands on.

    Parameters
    ----------
    risk : DistortionRisk
        Its tail tells where a truncated band begins.
    n : int
        Number of losses.
    delta : float
        Error probability.
    bound : {"dkw", "ks", "berk_jones", "berk_jones_truncated"}
        Which.

    Returns
    -------
    ndarray of shape (n,)
        L_1, ..., L_n.
    """
    if bound in ("dkw", "ks"):
        return dkw_bound(n, delta, exact=bound == "ks")
    start = 0
    if bound == "berk_jones_truncated":
        start = min(math.floor((1.0 - risk.tail) * n + 1e-9), n - 1)
    return berk_jones_bound(n, delta, start)


class Mean(DistortionRisk):
    """The mean.

    Examples
    --------
    >>> from seedbed.estimators.distortion import Mean
    >>> Mean().plug_in([0.0, 1.0])
    0.5
    """

    steepest = 1.0

    def psi(self, u: ArrayLike) -> Floats:
        """``u``."""
        return np.asarray(u, dtype=float)

    def dpsi(self, u: ArrayLike) -> Floats:
        """1."""
        return np.ones_like(np.asarray(u, dtype=float))


class VaR(DistortionRisk):
    """Value at risk: the beta-quantile.

    Parameters
    ----------
    beta : float
        In [0, 1).

    Examples
    --------
    >>> from seedbed.estimators.distortion import VaR
    >>> VaR(0.75).plug_in([4.0, 1.0, 2.0, 3.0])
    3.0
    """

    smooth = False

    def __init__(self, beta: float = 0.75) -> None:
        check_number("beta", beta, low=0, high=1, closed="left")
        self.beta = float(beta)
        self.tail = 1.0 - self.beta

    def _shown(self) -> tuple[str, ...]:
        return ("beta",)

    def psi(self, u: ArrayLike) -> Floats:
        """1 from beta on; the least value counts for beta = 0."""
        values = np.asarray(u, dtype=float)
        # i / n and beta that mean the same number must not differ by rounding.
        return ((values >= self.beta - 1e-12) & (values > 0)).astype(float)

    def dpsi(self, u: ArrayLike) -> Floats:  # noqa: ARG002
        """Raise: psi jumps."""
        raise ValueError("VaR has no derivative of psi; use bound='order_statistic'")

    def bootstrap_deviations(self, ordered: Floats) -> Floats:
        """Standard deviation of each row's quantile over bootstrap samples, exactly.

        The m-th of n draws with replacement is at most ``r_(k)`` with probability ``P(Bin(n, k / n) >= m)``.

        Parameters
        ----------
        ordered : ndarray of shape (rows, n)
            Sorted losses.

        Returns
        -------
        ndarray of shape (rows,)
            Standard deviations.
        """
        n = ordered.shape[1]
        rank = max(math.ceil(n * self.beta - 1e-9), 1)
        reached = binom.sf(rank - 1, n, np.arange(n + 1) / n)
        shares = np.diff(reached)
        mean = ordered @ shares
        return np.sqrt(np.maximum((ordered - mean[:, None]) ** 2 @ shares, 0.0))


class CVaR(DistortionRisk):
    """Conditional value at risk: the mean of the worst ``1 - beta``.

    Parameters
    ----------
    beta : float
        In [0, 1); 0 is the mean.

    Examples
    --------
    >>> from seedbed.estimators.distortion import CVaR
    >>> CVaR(0.5).plug_in([4.0, 1.0, 2.0, 3.0])
    3.5
    """

    def __init__(self, beta: float = 0.75) -> None:
        check_number("beta", beta, low=0, high=1, closed="left")
        self.beta = float(beta)
        self.tail = 1.0 - self.beta
        self.steepest = 1.0 / self.tail

    def _shown(self) -> tuple[str, ...]:
        return ("beta",)

    def psi(self, u: ArrayLike) -> Floats:
        """``(u - beta)_+ / (1 - beta)``."""
        return np.maximum(np.asarray(u, dtype=float) - self.beta, 0.0) / self.tail

    def dpsi(self, u: ArrayLike) -> Floats:
        """``1 / (1 - beta)`` from beta on."""
        return (np.asarray(u, dtype=float) >= self.beta - 1e-12) / self.tail


class IntervalVaR(DistortionRisk):
    """Mean of the quantiles from beta_low to beta_high.

    Parameters
    ----------
    beta_low, beta_high : float
        ``0 <= beta_low < beta_high <= 1``.

    Examples
    --------
    >>> from seedbed.estimators.distortion import IntervalVaR
    >>> IntervalVaR(0.5, 0.75).plug_in([4.0, 1.0, 2.0, 3.0])
    3.0
    """

    def __init__(self, beta_low: float = 0.5, beta_high: float = 0.9) -> None:
        check_number("beta_high", beta_high, low=0, high=1, closed="right")
        check_number("beta_low", beta_low, low=0, high=beta_high, closed="left")
        self.beta_low, self.beta_high = float(beta_low), float(beta_high)
        self.tail = 1.0 - self.beta_low
        self.steepest = 1.0 / (self.beta_high - self.beta_low)

    def _shown(self) -> tuple[str, ...]:
        return ("beta_low", "beta_high")

    def psi(self, u: ArrayLike) -> Floats:
        """``(u - low) / (high - low)``, cut to [0, 1]."""
        return np.clip((np.asarray(u, dtype=float) - self.beta_low) * self.steepest, 0.0, 1.0)

    def dpsi(self, u: ArrayLike) -> Floats:
        """``1 / (high - low)`` in between."""
        values = np.asarray(u, dtype=float)
        inside = (values >= self.beta_low - 1e-12) & (values < self.beta_high - 1e-12)
        return np.where(inside, self.steepest, 0.0)


class PowerDistortion(DistortionRisk):
    """Proportional hazard: ``1 - (1 - u)^rho``.

    Parameters
    ----------
    rho : float
        In (0, 1]; 1 is the mean, less looks more at the tail.

    Examples
    --------
    >>> from seedbed.estimators.distortion import PowerDistortion
    >>> round(PowerDistortion(0.5).plug_in([0.0, 1.0]), 4)
    0.7071
    """

    def __init__(self, rho: float = 0.7) -> None:
        check_number("rho", rho, low=0, high=1, closed="right")
        self.rho = float(rho)
        self.steepest = 1.0 if self.rho == 1 else math.inf

    def _shown(self) -> tuple[str, ...]:
        return ("rho",)

    def psi(self, u: ArrayLike) -> Floats:
        """``1 - (1 - u)^rho``."""
        return 1.0 - (1.0 - np.asarray(u, dtype=float)) ** self.rho

    def dpsi(self, u: ArrayLike) -> Floats:
        """``rho (1 - u)^(rho - 1)``."""
        with np.errstate(divide="ignore"):
            return self.rho * (1.0 - np.asarray(u, dtype=float)) ** (self.rho - 1.0)


class ExponentialDistortion(DistortionRisk):
    """Exponential spectral risk: ``(e^(k u) - 1) / (e^k - 1)``.

    Parameters
    ----------
    k : float
        Positive; towards 0 it is the mean.

    Examples
    --------
    >>> from seedbed.estimators.distortion import ExponentialDistortion
    >>> round(ExponentialDistortion(2.0).plug_in([0.0, 1.0]), 4)
    0.7311
    """

    def __init__(self, k: float = 2.0) -> None:
        check_number("k", k, low=0, high=500, closed="right")
        self.k = float(k)
        self.steepest = self.k / -math.expm1(-self.k)

    def _shown(self) -> tuple[str, ...]:
        return ("k",)

    def psi(self, u: ArrayLike) -> Floats:
        """``(e^(k u) - 1) / (e^k - 1)``."""
        return np.expm1(self.k * np.asarray(u, dtype=float)) / math.expm1(self.k)

    def dpsi(self, u: ArrayLike) -> Floats:
        """``k e^(k u) / (e^k - 1)``."""
        return self.k * np.exp(self.k * (np.asarray(u, dtype=float) - 1.0)) / -math.expm1(-self.k)


class WangDistortion(DistortionRisk):
    """Wang's transform: ``1 - Phi(Phi^{-1}(1 - u) + theta)``.

    Parameters
    ----------
    theta : float
        Not negative; 0 is the mean.

    Examples
    --------
    >>> from seedbed.estimators.distortion import WangDistortion
    >>> round(WangDistortion(1.0).plug_in([0.0, 1.0]), 4)
    0.8413
    """

    def __init__(self, theta: float = 0.5) -> None:
        check_number("theta", theta, low=0)
        self.theta = float(theta)
        self.steepest = 1.0 if self.theta == 0 else math.inf

    def _shown(self) -> tuple[str, ...]:
        return ("theta",)

    def psi(self, u: ArrayLike) -> Floats:
        """``1 - Phi(Phi^{-1}(1 - u) + theta)``."""
        return ndtr(ndtri(np.asarray(u, dtype=float)) - self.theta)

    def dpsi(self, u: ArrayLike) -> Floats:
        """``exp(theta z - theta^2 / 2)`` with ``z = Phi^{-1}(u)``."""
        return np.exp(self.theta * ndtri(np.asarray(u, dtype=float)) - 0.5 * self.theta**2)


class QuantileMixture(DistortionRisk):
    """Convex combination of risks.

    Parameters
    ----------
    risks : sequence of DistortionRisk
        Parts.
    shares : sequence of float
        Their weights, not negative, with sum 1.

    Examples
    --------
    >>> from seedbed.estimators.distortion import CVaR, Mean, QuantileMixture
    >>> QuantileMixture([Mean(), CVaR(0.5)], [0.5, 0.5]).plug_in([0.0, 1.0])
    0.75
    """

    def __init__(self, risks: Sequence[DistortionRisk], shares: Sequence[float]) -> None:
        parts, weights = tuple(risks), tuple(float(share) for share in shares)
        if not parts or len(parts) != len(weights) or not all(isinstance(p, DistortionRisk) for p in parts):
            raise ValueError("risks must be distortion risks, one or more, with one share each")
        if min(weights) < 0 or not math.isclose(sum(weights), 1.0, abs_tol=1e-9):
            raise ValueError(f"shares must not be negative and sum to 1, got {weights}")
        self.risks, self.shares = parts, weights
        self.tail = max(part.tail for part in parts)
        self.steepest = sum(s * p.steepest for p, s in zip(parts, weights, strict=True) if s)
        self.smooth = all(part.smooth for part in parts)  # type: ignore[misc]

    def _shown(self) -> tuple[str, ...]:
        return ("risks", "shares")

    def psi(self, u: ArrayLike) -> Floats:
        """Weighted sum of the parts' psi."""
        parts = [share * risk.psi(u) for risk, share in zip(self.risks, self.shares, strict=True)]
        return np.asarray(sum(parts), dtype=float)

    def dpsi(self, u: ArrayLike) -> Floats:
        """Weighted sum of the parts' derivatives."""
        parts = [share * risk.dpsi(u) for risk, share in zip(self.risks, self.shares, strict=True)]
        return np.asarray(sum(parts), dtype=float)


class CustomDistortion(DistortionRisk):
    """Distortion by a function of one's own.

    Parameters
    ----------
    psi : callable
        Maps arrays in [0, 1] to [0, 1], not decreasing, from 0 to 1.
    dpsi : callable, optional
        Its derivative, which ``bound="l_statistic"`` needs.

    Raises
    ------
    ValueError
        If psi does not run from 0 to 1, or falls, on a fine grid.

    Examples
    --------
    >>> from seedbed.estimators.distortion import CustomDistortion
    >>> CustomDistortion(lambda u: u**2, lambda u: 2 * u).plug_in([0.0, 1.0])
    0.75
    """

    def __init__(self, psi: Callable[[Floats], Any], dpsi: Callable[[Floats], Any] | None = None) -> None:
        grid = np.linspace(0.0, 1.0, 2001)
        try:
            values = np.asarray(psi(grid), dtype=float)
        except Exception as error:
            raise ValueError(f"psi must map arrays in [0, 1] to numbers: {error}") from error
        if values.shape != grid.shape or not np.isfinite(values).all():
            raise ValueError(f"psi must map arrays to finite arrays of their shape, got {values.shape}")
        if abs(values[0]) > 1e-9 or abs(values[-1] - 1) > 1e-9 or (np.diff(values) < -1e-12).any():
            raise ValueError("psi must not decrease, with psi(0) = 0 and psi(1) = 1")
        self._psi, self._dpsi = psi, dpsi
        self.smooth = dpsi is not None  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"CustomDistortion({self._psi!r}, {self._dpsi!r})"

    def psi(self, u: ArrayLike) -> Floats:
        """As given."""
        return np.asarray(self._psi(np.asarray(u, dtype=float)), dtype=float)

    def dpsi(self, u: ArrayLike) -> Floats:
        """As given."""
        if self._dpsi is None:
            raise ValueError("this CustomDistortion was given no dpsi")
        return np.asarray(self._dpsi(np.asarray(u, dtype=float)), dtype=float)
