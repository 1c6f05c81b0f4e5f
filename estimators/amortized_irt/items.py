"""Item parameters, and the response curves and information that follow from them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

Floats = NDArray[np.float64]

PROBIT = np.pi / 8
"""(1 + PROBIT tau^2)^(-1/2) is the slope left of a logistic curve whose place is known up to N(0, tau^2)."""


@dataclass(frozen=True)
class Items:
    """Items of the model P(y = 1 | theta) = c + (d - c) sigma(a (theta - b)).

    Parameters
    ----------
    difficulty : ndarray of shape (n_items,)
        b; the larger, the harder.
    discrimination : ndarray of shape (n_items,)
        a > 0.
    guessing : ndarray of shape (n_items,)
        c in [0, 1), the chance of a right answer without ability.
    upper : ndarray of shape (n_items,)
        d in (c, 1], the chance of a right answer with unlimited ability.
    difficulty_std : ndarray of shape (n_items,)
        Standard deviation of the error of b; 0 where it is taken as known.

    Examples
    --------
    >>> from seedbed.estimators import Items
    >>> items = Items.of([-1.0, 0.0, 1.0], discrimination=1.5)
    >>> items.probability([0.0]).round(2)
    array([[0.82, 0.5 , 0.18]])
    """

    difficulty: Floats
    discrimination: Floats
    guessing: Floats
    upper: Floats
    difficulty_std: Floats

    @classmethod
    def of(
        cls,
        difficulty: ArrayLike,
        discrimination: ArrayLike = 1.0,
        guessing: ArrayLike = 0.0,
        upper: ArrayLike = 1.0,
        difficulty_std: ArrayLike = 0.0,
    ) -> "Items":
        """Make items; a single number holds for all of them."""
        b = np.asarray(difficulty, dtype=float).ravel()
        rest = (discrimination, guessing, upper, difficulty_std)
        return cls(b, *(np.broadcast_to(np.asarray(part, dtype=float), b.shape).copy() for part in rest))

    def __len__(self) -> int:
        return len(self.difficulty)

    @property
    def intercept(self) -> Floats:
        """-a b of the form sigma(a theta + intercept)."""
        return -self.discrimination * self.difficulty

    def take(self, chosen: Any) -> "Items":
        """Keep some items."""
        return Items(
            *(
                part[chosen]
                for part in (
                    self.difficulty,
                    self.discrimination,
                    self.guessing,
                    self.upper,
                    self.difficulty_std,
                )
            )
        )

    def softened(self) -> "Items":
        """Return the items whose curves average over the errors of the difficulties.

        E sigma(a (theta - b - eps)), eps ~ N(0, tau^2), is close to sigma(k a (theta - b)) with
        k = (1 + pi a^2 tau^2 / 8)^(-1/2).
        """
        spread = self.discrimination * self.difficulty_std
        return replace(self, discrimination=self.discrimination / np.sqrt(1 + PROBIT * spread**2))

    def logit(self, theta: ArrayLike) -> Floats:
        """A (theta - b), of shape (len(theta), n_items)."""
        return self.discrimination * (np.asarray(theta, dtype=float)[..., None] - self.difficulty)

    def probability(self, theta: ArrayLike) -> Floats:
        """P(y = 1 | theta), of shape (len(theta), n_items)."""
        return self.guessing + (self.upper - self.guessing) * expit(self.logit(theta))

    def information(self, theta: ArrayLike) -> Floats:
        """Fisher information about theta, (dP/dtheta)^2 / (P (1 - P)), of shape (len(theta), n_items)."""
        curve = expit(self.logit(theta))
        slope = self.discrimination * (self.upper - self.guessing) * curve * (1 - curve)
        right = self.guessing + (self.upper - self.guessing) * curve
        wrong = 1 - right
        with np.errstate(divide="ignore", invalid="ignore"):
            found = slope**2 / (right * wrong)
        return np.where(right * wrong > 0, found, 0.0)
