"""Prior laws of the item models, and draws from the posterior."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seedbed.checks import check_number
from seedbed.estimators.amortized_irt.items import Items

Floats = NDArray[np.float64]

InverseGamma = tuple[float, float]
"""Shape and rate."""


@dataclass(frozen=True)
class Priors:
    """Prior laws.

    theta_n ~ N(mean of its group, s^2); b_i ~ N(mu, tau^2); log a_i ~ N; c_i ~ Beta.

    Attributes
    ----------
    scale : tuple of float or None
        Inverse gamma law, by shape and rate, of s^2; None for s = 1.
    difficulty : tuple of float or None
        mu and tau; None where they are learned.
    difficulty_mean_std : float
        mu ~ N(0, difficulty_mean_std^2), where it is learned.
    difficulty_variance : tuple of float
        Inverse gamma law of tau^2, where it is learned.
    log_discrimination : tuple of float
        Mean and standard deviation of log a.
    guessing : tuple of float
        Parameters of the beta law of c.
    """

    scale: InverseGamma | None = (1.0, 1.0)
    difficulty: tuple[float, float] | None = None
    difficulty_mean_std: float = 10.0
    difficulty_variance: InverseGamma = (1.0, 1.0)
    log_discrimination: tuple[float, float] = (0.0, 0.5)
    guessing: tuple[float, float] = (5.0, 17.0)

    def check(self) -> None:
        """Raise ValueError or TypeError if a parameter of a law is outside its range."""
        for name in ("scale", "difficulty_variance", "guessing"):
            for value in getattr(self, name) or ():
                check_number(name, value, low=0, closed="neither")
        for name in ("difficulty", "log_discrimination"):
            normal = getattr(self, name)
            if normal is not None:
                check_number(name, normal[0])
                check_number(name, normal[1], low=0, closed="neither")
        check_number("difficulty_mean_std", self.difficulty_mean_std, low=0, closed="neither")


@dataclass(frozen=True)
class Posterior:
    """Draws from a posterior.

    Attributes
    ----------
    difficulty, discrimination, guessing : ndarray of shape (n_draws, n_items)
        Item parameters.
    scale : ndarray of shape (n_draws,)
        s.
    mean : ndarray of shape (n_draws, n_groups)
        Mean ability of each group; that of group 0 is 0.
    difficulty_law : ndarray of shape (n_draws, 2)
        mu and tau.
    ability : ndarray of shape (n_takers,)
        Posterior means.
    ability_std : ndarray of shape (n_takers,)
        Posterior standard deviations.
    """

    difficulty: Floats
    discrimination: Floats
    guessing: Floats
    scale: Floats
    mean: Floats
    difficulty_law: Floats
    ability: Floats
    ability_std: Floats

    def items(self) -> Items:
        """Return the posterior means of the items' parameters, and the spread of the difficulties."""
        return Items.of(
            self.difficulty.mean(axis=0),
            self.discrimination.mean(axis=0),
            self.guessing.mean(axis=0),
            difficulty_std=self.difficulty.std(axis=0, ddof=1),
        )
