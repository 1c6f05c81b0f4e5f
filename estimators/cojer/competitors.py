"""Levels of other bounds on the FCP, to compare with: what CoJER's users would have to use otherwise."""

import math

import numpy as np

from seedbed.checks import check_number
from seedbed.estimators.cojer.laws import check_sizes
from seedbed.estimators.cojer.thresholds import check_delta


def scp_level(n_cal: int, alpha: float) -> int:
    """Return the level of split conformal prediction, ``floor(alpha (n + 1))``.

    Parameters
    ----------
    n_cal : int
        Number n of calibration points.
    alpha : float
        Share of misses allowed *on average*, in (0, 1).

    Returns
    -------
    int
        Level l; the FCP of one batch exceeds alpha in about every second batch.
    """
    return math.floor(alpha * (n_cal + 1) + 1e-9)


def dkw_fcp_margin(n_cal: int, n_test: int, delta: float, *, n_iterations: int = 9) -> float:
    """Return the uniform deviation bound of the p-values' empirical distribution function.

    With ``tau = n m / (n + m)``, iterates from 1 ``lam <- min(1, sqrt((log(1 / delta) + log(1 + sqrt(2 pi) 2
    tau lam / sqrt(n + m))) / (2 tau)))``. The iterates decrease and each is valid (Gazin, Blanchard and
    Roquain, AISTATS 2024).

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration points and m of test points in the batch.
    delta : float
        Probability that the bound may fail, in (0, 1).
    n_iterations : int, default=9
        Number of iterations.

    Returns
    -------
    float
        Margin: with probability 1 - delta, FCP(C_t) <= t + margin for all t.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.
    """
    check_sizes(n_cal, n_test)
    check_delta(delta)
    check_number("n_iterations", n_iterations, low=1, integer=True)
    tau = n_cal * n_test / (n_cal + n_test)
    margin = 1.0
    for _ in range(n_iterations):
        union = math.log1p(math.sqrt(2 * math.pi) * 2 * tau * margin / math.sqrt(n_cal + n_test))
        margin = min(1.0, math.sqrt((math.log(1 / delta) + union) / (2 * tau)))
    return margin


def dkw_fcp_level(n_cal: int, n_test: int, alpha: float, delta: float) -> int:
    """Return the level of the DKW-type bound, valid for all alpha at once like CoJER's.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration points and m of test points in the batch.
    alpha : float
        Allowed false coverage proportion, in (0, 1).
    delta : float
        Probability that the guarantee may fail, in (0, 1).

    Returns
    -------
    int
        ``max(0, floor((n + 1) (alpha - margin)))``; 0 means infinite intervals.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> from seedbed.estimators import dkw_fcp_level
    >>> dkw_fcp_level(1000, 500, alpha=0.1, delta=0.2)  # CoJER has 71
    33
    """
    check_number("alpha", alpha, low=0, high=1, closed="neither")
    margin = dkw_fcp_margin(n_cal, n_test, delta)
    return max(0, int(np.floor((n_cal + 1) * (alpha - margin) + 1e-9)))
