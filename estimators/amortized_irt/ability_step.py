"""The M-step of abilities that follow from features of the takers, such as the log of their training compute.

theta_n = g(z_n) + delta_n, delta_n ~ N(0, s^2): given posterior means m_n and standard deviations p_n of the
E-step, g is the regression on the m_n and s^2 = mean((m - g)^2 + p^2). Without a residual theta_n = g(z_n),
and g moves by Newton's step. Takers without features have abilities of their own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array

from seedbed.estimators.amortized_irt.ability import Method, estimate_ability
from seedbed.estimators.amortized_irt.em import Expectation, Latent
from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.predictors import NetworkPredictor, Predictor
from seedbed.estimators.amortized_irt.responses import Responses

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

POINT = 0.02
"""Standard deviation of the prior of an ability that is known to be g: next to no width."""


@dataclass(frozen=True)
class TakerDesign:
    """Features of takers.

    Attributes
    ----------
    matrix : ndarray of shape (n_takers, n_features)
        Features; zeros for takers that have none.
    known : ndarray of bool, shape (n_takers,)
        Which takers have features.
    """

    matrix: Floats
    known: Flags


def read_ability_features(features: Any, n_takers: int, n_features: int | None = None) -> TakerDesign:
    """Check features of takers.

    Parameters
    ----------
    features : array-like of shape (n_takers,) or (n_takers, n_features)
        Features; a row with a NaN belongs to a taker without.
    n_takers : int
        How many takers there must be.
    n_features : int, optional
        How many features there must be.

    Returns
    -------
    TakerDesign
        The features.

    Raises
    ------
    ValueError
        If there are others, all rows have a NaN, or a value is infinite.
    """
    found = np.asarray(features, dtype=float)
    if found.ndim == 1:
        found = found[:, None]
    found = check_array(
        found, ensure_all_finite="allow-nan", input_name="ability_features", ensure_min_samples=0
    )
    if len(found) != n_takers:
        raise ValueError(
            f"ability_features must have one row for each of {n_takers} takers, got {len(found)}"
        )
    if n_features is not None and found.shape[1] != n_features:
        raise ValueError(f"ability_features must have {n_features} columns as in fit, got {found.shape[1]}")
    known = ~np.isnan(found).any(axis=1)
    if n_features is None and not known.any():
        raise ValueError("ability_features must be known for at least one taker, got NaN in every row")
    return TakerDesign(np.where(known[:, None], found, 0.0), known)


@dataclass
class AbilityStep:
    """Means of ability that are a function of features.

    Attributes
    ----------
    design : TakerDesign
        Features of the takers.
    predictor : Predictor
        g.
    weight : ndarray of shape (n_takers,)
        How often each taker counts.
    residual : bool
        Whether abilities have a normal residual about g.
    free_scale : bool
        Whether the standard deviations are estimated.
    others : float
        Mean of the takers without features.
    scale : float
        s.
    spread : float
        Standard deviation of the takers without features.
    """

    design: TakerDesign
    predictor: Predictor
    weight: Floats
    residual: bool = True
    free_scale: bool = True
    others: float = 0.0
    scale: float = 1.0
    spread: float = 1.0

    def latent(self) -> Latent:
        """Return the distribution of ability, each taker a group of its own."""
        known = self.design.known
        mean = np.where(known, self.predictor.predict(self.design.matrix), self.others)
        about = self.scale if self.residual else POINT
        return Latent(
            mean, about if known.all() else np.where(known, about, self.spread), np.arange(len(known))
        )

    def update(self, latent: Latent, expectation: Expectation) -> Latent:
        """Take one M-step.

        Parameters
        ----------
        latent : Latent
            What the E-step was taken with.
        expectation : Expectation
            Posterior means and standard deviations.

        Returns
        -------
        Latent
            With new means and scale.
        """
        known, found, std = self.design.known, expectation.mean, expectation.std
        if not known.all():
            self.others = float(np.average(found[~known], weights=self.weight[~known]))
        if self.residual:
            precision = self.weight[known] / self.scale**2
            score = precision * found[known]
        else:
            # The narrow prior is a probe: what the posterior makes of it tells slope and curvature at g.
            at = latent.mean[known]
            slope = (found[known] - at) / POINT**2
            curve = np.maximum(1 / std[known] ** 2 - 1 / POINT**2, 0.0)
            precision = self.weight[known] * curve + 1e-9
            score = precision * at + self.weight[known] * slope
        self.predictor = self.predictor.refit(self.design.matrix[known], precision, score)
        if self.free_scale:
            squares = (found - self.latent().mean) ** 2 + std**2
            self.scale = self._root_mean(squares, known)
            self.spread = self._root_mean(squares, ~known)
        return self.latent()

    def _root_mean(self, squares: Floats, chosen: Flags) -> float:
        return (
            float(np.sqrt(np.average(squares[chosen], weights=self.weight[chosen]))) if chosen.any() else 1.0
        )

    def shift(self, mean: float, scale: float) -> Latent:
        """Move to the ability scale (theta - mean) / scale."""
        self.predictor = self.predictor.shifted(mean, scale)
        self.others = (self.others - mean) / scale
        self.scale, self.spread = self.scale / scale, self.spread / scale
        return self.latent()


@dataclass(frozen=True)
class Population:
    """Where abilities come from.

    Attributes
    ----------
    mean, scale : float
        Of a taker that nothing is known of.
    predictor : Predictor, optional
        g, where abilities are a function of features.
    about : float
        Standard deviation about g.
    n_features : int
        Columns of the features; 0 without.
    """

    mean: float
    scale: float
    predictor: Any = None
    about: float = 0.0
    n_features: int = 0

    @classmethod
    def of(cls, latent: Latent, step: AbilityStep | None) -> "Population":
        """Make the population that a fit has found."""
        mean = latent.mean[latent.group]
        if step is None:
            return cls(0.0, float(latent.scale))
        spread = float(np.sqrt(np.var(mean) + np.mean(np.square(latent.scale))))
        predictor: Any = step.predictor
        if isinstance(predictor, NetworkPredictor):
            predictor = predictor.frozen()
        about = step.scale if step.residual else POINT
        return cls(float(mean.mean()), spread, predictor, about, step.design.matrix.shape[1])

    def prior(self, features: Any, n_takers: int) -> tuple[Floats, Floats]:
        """Means and standard deviations of some takers.

        Parameters
        ----------
        features : array-like of shape (n_takers,) or (n_takers, n_features), or None
            What is known of them.
        n_takers : int
            How many they are.

        Returns
        -------
        mean, scale : ndarray of shape (n_takers,)
            Of each.

        Raises
        ------
        ValueError
            If there is no g for the features, or they are not like those in ``fit``.
        """
        mean, scale = np.full(n_takers, self.mean), np.full(n_takers, self.scale)
        if features is None:
            return mean, scale
        if self.predictor is None:
            raise ValueError("ability_features must be None for a model that was fitted without")
        design = read_ability_features(features, n_takers, self.n_features)
        found = self.predictor.predict(design.matrix)
        return np.where(design.known, found, mean), np.where(design.known, self.about, scale)


def estimate_abilities(
    responses: Responses, items: Items, method: Method, mean: Floats, scale: Floats
) -> tuple[Floats, Floats]:
    """Estimate abilities whose prior distributions differ.

    Parameters
    ----------
    responses : Responses
        Answers.
    items : Items
        Parameters of the items; their errors count.
    method : str
        As for :func:`~seedbed.estimators.estimate_ability`.
    mean, scale : ndarray of shape (n_takers,)
        Prior means and standard deviations.

    Returns
    -------
    ability, std : ndarray of shape (n_takers,)
        Estimates and their standard errors.
    """
    ability, std = np.empty(responses.n_takers), np.empty(responses.n_takers)
    for width in np.unique(scale):
        rows = np.flatnonzero(scale == width)
        found = estimate_ability(
            responses.take(rows), items, method=method, latent_mean=mean[rows], latent_scale=float(width)
        )
        ability[rows], std[rows] = found.ability, found.std
    return ability, std
