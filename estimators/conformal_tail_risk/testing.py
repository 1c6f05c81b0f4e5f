"""P-values for "the risk exceeds alpha", to control several risks or thresholds in several dimensions."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from seedbed.checks import check_number
from seedbed.estimators.distortion import Bound, DistortionRisk, check_bound, upper_bounds

SMALLEST = 1e-12


def tail_risk_p_value(
    losses: ArrayLike,
    risk: DistortionRisk,
    alpha: float,
    bound: Bound = "l_statistic",
    *,
    upper: float = 1.0,
) -> float:
    """Return the smallest delta at which the upper bound of a risk is at most alpha.

    It is a p-value for the hypothesis that the risk exceeds alpha, as valid as the bound. Those of several
    risks, or of a grid of settings, go into ``mapie.risk_control.methods.control_fwer`` or any other
    procedure that controls the family-wise error.

    Parameters
    ----------
    losses : array-like of shape (n,)
        Losses, at most ``upper``.
    risk : DistortionRisk
        The risk.
    alpha : float
        Allowed risk, below ``upper``.
    bound : str
        Any bound but "plug_in", which has no delta.
    upper : float
        Largest possible loss.

    Returns
    -------
    float
        In [0, 1]; 1/2 or 1 where no smaller delta will do. Below 1e-12 it is given as 1e-12.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import tail_risk_p_value
    >>> from seedbed.estimators.distortion import CVaR
    >>> losses = np.random.default_rng(0).uniform(size=500)
    >>> [round(tail_risk_p_value(losses, CVaR(0.5), alpha), 3) for alpha in (0.8, 0.7)]
    [0.042, 1.0]
    """
    values = np.asarray(losses, dtype=float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(f"losses must be 1-D and finite, of one value or more, got shape {values.shape}")
    if values.max() > upper:
        raise ValueError(f"losses must be at most upper={upper!r}, got {values.max()!r}")
    check_number("alpha", alpha, high=upper, closed="left" if alpha == upper else "both")
    if alpha >= upper:
        raise ValueError(f"alpha must be below upper={upper!r}, got {alpha!r}")
    if bound == "plug_in":
        raise ValueError("bound='plug_in' has no delta, so no p-value")
    check_bound(risk, bound, len(values), 0.1)
    ordered = np.sort(values)[None]
    if bound == "l_statistic":
        estimate = float(ordered[0] @ risk.weights(len(values)))
        deviation = float(risk.deviations(ordered)[0])
        if deviation == 0:
            return SMALLEST if estimate <= alpha else 1.0
        return max(float(ndtr(math.sqrt(len(values)) * (estimate - alpha) / deviation)), SMALLEST)

    def holds(delta: float) -> Any:
        return upper_bounds(risk, ordered, delta, bound, upper)[0] <= alpha

    low, high = math.log(SMALLEST), math.log(0.5)
    if holds(SMALLEST):
        return SMALLEST
    if not holds(0.5):
        return 1.0
    while high - low > 1e-4:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)
