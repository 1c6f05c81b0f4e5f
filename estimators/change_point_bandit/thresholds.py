"""When a boundary counts as a change: pair statistics, e-values and stopping thresholds.

Two neighbouring arms with ``n_left`` and ``n_right`` rewards and noise of standard deviation sigma give

    Z = h (difference of means)^2 / (2 sigma^2),    h = n_left n_right / (n_left + n_right).

The *paired* statistic uses the first n rewards of each alone, so that differences of the i-th rewards are
i.i.d. whatever rule chose the arms; then h = n / 2. The *pooled* one uses all. Under "no change here" both
give e-processes by mixing over the size of the change with a normal prior and Ville's inequality:

    paired:  log E = h / (h + kappa) Z - log(1 + h / kappa) / 2
    pooled:  log E = min_i T_i / (T_i + kappa) Z - sum_i log(1 + T_i / kappa) / 2

An error means that a boundary *without* a change passed, and there are K - 1 boundaries to choose from, so a
boundary passes at log((K - 1) / delta).
"""

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import zeta

from seedbed.checks import check_choice, check_number

Floats = NDArray[np.float64]
Statistic = Literal["paired", "pooled"]
Threshold = Literal["mixture", "kaufmann-koolen", "garivier-kaufmann", "heuristic"]
ThresholdFunction = Callable[[Any, Any, Any, int, float], Any]

THRESHOLDS = ("mixture", "kaufmann-koolen", "garivier-kaufmann", "heuristic")
CERTIFIED = ("mixture", "kaufmann-koolen")


def log_e_value(z: Any, n_left: Any, n_right: Any, kappa: float, statistic: Statistic) -> Any:
    """Return the logarithm of the e-value of a boundary.

    Parameters
    ----------
    z : array-like
        Pair statistic Z.
    n_left, n_right : array-like
        Rewards of both arms that went into it.
    kappa : float
        Prior of the mixture, in rewards.
    statistic : {"paired", "pooled"}
        Which it is.

    Returns
    -------
    ndarray
        log E; not above 0 where there is nothing to go by.
    """
    if statistic == "paired":
        pairs = 0.5 * n_left
        return pairs / (pairs + kappa) * z - 0.5 * np.log1p(pairs / kappa)
    fewer = np.minimum(n_left, n_right)
    return fewer / (fewer + kappa) * z - 0.5 * (np.log1p(n_left / kappa) + np.log1p(n_right / kappa))


def mixture_threshold(n_left: Any, n_right: Any, log_odds: float, kappa: float, statistic: Statistic) -> Any:
    """Return the Z at which the e-value of a boundary reaches ``exp(log_odds)``.

    Parameters
    ----------
    n_left, n_right : array-like
        Rewards of both arms.
    log_odds : float
        log((K - 1) / delta).
    kappa : float
        Prior of the mixture.
    statistic : {"paired", "pooled"}
        Which.

    Returns
    -------
    ndarray
        The threshold; infinite where an arm has no reward.
    """
    with np.errstate(divide="ignore"):
        if statistic == "paired":
            pairs = 0.5 * np.minimum(n_left, n_right)
            return (1.0 + kappa / pairs) * (log_odds + 0.5 * np.log1p(pairs / kappa))
        fewer = np.minimum(n_left, n_right)
        spent = 0.5 * (np.log1p(n_left / kappa) + np.log1p(n_right / kappa))
        return (1.0 + kappa / fewer) * (log_odds + spent)


@lru_cache(maxsize=4096)
def calibration_function(x: float) -> float:
    """Return C_G(x) of Kaufmann and Koolen (JMLR 22, 2021), for Gaussian rewards.

    ``C_G(x) = min over 1/2 < l <= 1 of (g(l) + x) / l`` with
    ``g(l) = 2 l - 2 l log(4 l) + log zeta(2 l) - log(1 - l) / 2``.

    Parameters
    ----------
    x : float
        Not negative.

    Returns
    -------
    float
        C_G(x).
    """

    def value(share: float) -> float:
        g = 2 * share - 2 * share * math.log(4 * share) + math.log(zeta(2 * share)) - 0.5 * math.log1p(-share)
        return (g + x) / share

    found = minimize_scalar(value, bounds=(0.5 + 1e-9, 1 - 1e-12), method="bounded", options={"xatol": 1e-12})
    return float(found.fun)


def stopping_threshold(
    name: Threshold | ThresholdFunction,
    n_left: Any,
    n_right: Any,
    t: Any,
    n_arms: int,
    delta: float,
    kappa: float = 1.0,
    statistic: Statistic = "paired",
) -> Any:
    """Return what the pair statistic Z of a boundary must exceed to count as a change.

    Parameters
    ----------
    name : {"mixture", "kaufmann-koolen", "garivier-kaufmann", "heuristic"} or callable
        "mixture" and "kaufmann-koolen" hold at all times for any sampling rule. "garivier-kaufmann",
        log(2 t (K - 1) / delta), and "heuristic", log((1 + log t) / delta), do not: the latter lacks the
        union over boundaries and errs far more often than delta. A callable gets
        ``(n_left, n_right, t, n_arms, delta)``.
    n_left, n_right : int or array-like
        Rewards of both arms.
    t : int or array-like
        Rewards of all arms.
    n_arms : int
        Number of arms K.
    delta : float
        Error probability.
    kappa : float
        Prior of the mixture, in rewards.
    statistic : {"paired", "pooled"}
        What Z is made of; the paired mixture takes the smaller of both counts.

    Returns
    -------
    float or ndarray
        The threshold.

    Raises
    ------
    ValueError
        If a name is unknown or a number out of its range.

    Examples
    --------
    >>> from seedbed.estimators import stopping_threshold
    >>> round(float(stopping_threshold("mixture", 10, 10, 100, 10, 0.05)), 6)
    7.306604
    """
    check_number("delta", delta, low=0, high=1, closed="neither")
    check_number("n_arms", n_arms, low=2, integer=True)
    check_number("kappa", kappa, low=0, closed="neither")
    check_choice("statistic", statistic, ("paired", "pooled"))
    if callable(name):
        return name(n_left, n_right, t, n_arms, delta)
    check_choice("name", name, THRESHOLDS)
    n_left, n_right = np.asarray(n_left, dtype=float), np.asarray(n_right, dtype=float)
    if name == "mixture":
        return mixture_threshold(n_left, n_right, math.log((n_arms - 1) / delta), kappa, statistic)
    if name == "kaufmann-koolen":
        # Before an arm has a reward its iterated logarithm counts as that of one.
        iterated = np.log1p(np.log(np.maximum(n_left, 1))) + np.log1p(np.log(np.maximum(n_right, 1)))
        return 3.0 * iterated + 2.0 * calibration_function(0.5 * math.log((n_arms - 1) / delta))
    if name == "garivier-kaufmann":
        return np.log(2.0 * np.asarray(t, dtype=float) * (n_arms - 1) / delta)
    return np.log((1.0 + np.log(np.maximum(np.asarray(t, dtype=float), 1.0))) / delta)


def warn_uncertified(threshold: Any) -> None:
    """Warn that a stopping rule has no proof.

    Parameters
    ----------
    threshold : str or callable
        The rule.
    """
    if threshold in ("garivier-kaufmann", "heuristic"):
        warnings.warn(
            f"threshold={threshold!r} is not proven to keep the error below delta here; "
            "'mixture' and 'kaufmann-koolen' are",
            UserWarning,
            stacklevel=4,
        )
