"""Bring the abilities and items of two fits onto one scale by the items that both hold."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from seedbed.checks import check_choice
from seedbed.estimators.amortized_irt.answers import items_of
from seedbed.estimators.amortized_irt.items import Floats, Items

N_NODES = 31


@dataclass(frozen=True)
class Equating:
    """A line from the second model's scale to the first's: theta = slope theta' + intercept.

    Attributes
    ----------
    slope : float
        A > 0.
    intercept : float
        B.
    n_common : int
        Items that both models hold.
    """

    slope: float
    intercept: float
    n_common: int

    def ability(self, theta: ArrayLike) -> Floats:
        """Put abilities of the second model onto the first's scale.

        Parameters
        ----------
        theta : array-like
            Abilities.

        Returns
        -------
        ndarray
            slope theta + intercept; standard errors grow by ``slope`` alone.
        """
        return self.slope * np.asarray(theta, dtype=float) + self.intercept

    def items(self, items: Any) -> Items:
        """Put items of the second model onto the first's scale.

        Parameters
        ----------
        items : Items or fitted estimator
            Of the second model.

        Returns
        -------
        Items
            With difficulties slope b + intercept and discriminations a / slope.
        """
        bank = items_of(items)
        return replace(
            bank,
            difficulty=self.ability(bank.difficulty),
            discrimination=bank.discrimination / self.slope,
            difficulty_std=bank.difficulty_std * self.slope,
        )


def equate(
    model_a: Any,
    model_b: Any,
    *,
    method: str = "mean_sigma",
    common: tuple[ArrayLike, ArrayLike] | None = None,
) -> Equating:
    """Find the line that puts the scale of one model onto that of another.

    Parameters
    ----------
    model_a : fitted estimator or Items
        Whose scale is kept.
    model_b : fitted estimator or Items
        Whose scale is changed.
    method : {"mean_sigma", "stocking_lord", "mean"}, default="mean_sigma"
        "mean_sigma": mean and standard deviation of the common items' difficulties agree. "stocking_lord":
        the two test characteristic curves of the common items differ least in squares, on average over a
        standard normal ability on the scale of a. "mean": means agree and the slope is 1, for two Rasch
        models with free latent scales.
    common : pair of array-like of int, optional
        Positions of the common items in either model. By default those with the same
        ``feature_names_in_``, or all, if neither model has names and both have equally many items.

    Returns
    -------
    Equating
        Slope, intercept, and methods that apply them.

    Raises
    ------
    ValueError
        If the common items are not known, too few, or do not differ in difficulty.

    References
    ----------
    Marco, "Item characteristic curve solutions to three intractable testing problems", 1977. Stocking and
    Lord, "Developing a common metric in item response theory", 1983.

    Examples
    --------
    >>> from seedbed.estimators import Items, equate
    >>> a, b = Items.of([1.0, 2.0, 5.0], 0.5), Items.of([0.0, 0.5, 2.0], 1.0)
    >>> found = equate(a, b)
    >>> round(found.slope, 9), round(found.intercept, 9), found.ability([0.0, 1.0])
    (2.0, 1.0, array([1., 3.]))
    """
    check_choice("method", method, ("mean_sigma", "stocking_lord", "mean"))
    first, second = _common(model_a, model_b, common)
    if method == "mean":
        shift = first.difficulty.mean() - second.difficulty.mean()
        return Equating(1.0, float(shift), len(first))
    spread_a, spread_b = float(np.std(first.difficulty)), float(np.std(second.difficulty))
    if len(first) < 2 or spread_a == 0 or spread_b == 0:
        raise ValueError(
            f"common items must differ in difficulty in both models, got {len(first)} with standard "
            f"deviations {spread_a:g} and {spread_b:g}"
        )
    slope = spread_a / spread_b
    intercept = float(first.difficulty.mean() - slope * second.difficulty.mean())
    if method == "stocking_lord":
        slope, intercept = _stocking_lord(first, second, slope, intercept)
    return Equating(slope, intercept, len(first))


def _stocking_lord(first: Items, second: Items, slope: float, intercept: float) -> tuple[float, float]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    root = np.sqrt(weights / weights.sum())
    target = first.probability(nodes).sum(axis=1)

    def distance(line: Floats) -> Floats:
        moved = Equating(float(np.exp(line[0])), float(line[1]), 0).items(second)
        return np.asarray(root * (moved.probability(nodes).sum(axis=1) - target))

    found = least_squares(distance, [np.log(slope), intercept], xtol=1e-12, ftol=1e-12, gtol=1e-12)
    return float(np.exp(found.x[0])), float(found.x[1])


def _common(model_a: Any, model_b: Any, common: Any) -> tuple[Items, Items]:
    """Return the items that both models hold, in the same order."""
    first, second = items_of(model_a), items_of(model_b)
    if common is not None:
        places = [np.asarray(part) for part in common]
        if len(places) != 2 or places[0].shape != places[1].shape or places[0].ndim != 1:
            raise ValueError("common must be two lists of one length")
        for part, bank in zip(places, (first, second), strict=True):
            if part.dtype.kind not in "iu" or len(part) == 0:
                raise ValueError(f"common must hold positions of items, got {part!r}")
            if part.min() < 0 or part.max() >= len(bank) or len(np.unique(part)) < len(part):
                raise ValueError(f"common must hold distinct positions in [0, {len(bank) - 1}], got {part!r}")
        return first.take(places[0]), second.take(places[1])
    names = [getattr(model, "feature_names_in_", None) for model in (model_a, model_b)]
    if names[0] is not None and names[1] is not None:
        shared, left, right = np.intersect1d(names[0], names[1], return_indices=True)
        if len(shared) == 0:
            raise ValueError("the models have no item name in common: give common, pairs of positions")
        return first.take(left), second.take(right)
    if names[0] is not None or names[1] is not None or len(first) != len(second):
        raise ValueError(
            f"items of the two models ({len(first)} and {len(second)}) cannot be told by name: give common, "
            "pairs of positions"
        )
    return first, second
