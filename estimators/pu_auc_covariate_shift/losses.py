"""Losses of a pair of scores, ``l(z)`` with ``z = s(x) - s(x')`` for a positive x and another row x'."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairLoss:
    """A loss of the difference of two scores.

    Attributes
    ----------
    name : str
        Its name.
    symmetric : bool
        Whether ``l(z) + l(-z) = 1`` for all z: then pairs of two positives add a constant to the risk.
    value, slope : callable
        ``l`` and its derivative, elementwise.
    at_zero : float
        ``l(0)``.
    """

    name: str
    symmetric: bool
    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    at_zero: float


def _sigmoid_slope(z: Floats) -> Floats:
    s: Floats = expit(-z)
    return s * s - s


def _ramp_slope(z: Floats) -> Floats:
    return np.where(np.abs(z) < 1, -0.5, 0.0)


LOSSES: dict[str, PairLoss] = {
    loss.name: loss
    for loss in (
        PairLoss("sigmoid", True, lambda z: expit(-z), _sigmoid_slope, 0.5),
        PairLoss("ramp", True, lambda z: np.clip((1 - z) / 2, 0, 1), _ramp_slope, 0.5),
        PairLoss("logistic", False, lambda z: np.logaddexp(0, -z), lambda z: -expit(-z), float(np.log(2))),
        PairLoss(
            "squared_hinge",
            False,
            lambda z: np.maximum(1 - z, 0) ** 2,
            lambda z: -2 * np.maximum(1 - z, 0),
            1.0,
        ),
        PairLoss("squared", False, lambda z: (1 - z) ** 2, lambda z: -2 * (1 - z), 1.0),
    )
}
"""Losses that have a slope to follow, by name."""

SYMMETRIC = tuple(name for name, loss in LOSSES.items() if loss.symmetric)
