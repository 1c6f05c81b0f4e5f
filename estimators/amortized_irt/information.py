"""Fisher information: what an answer is expected to say about ability."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seedbed.estimators.amortized_irt.answers import check_items, items_of
from seedbed.estimators.amortized_irt.items import Floats, Items


def item_information(theta: ArrayLike, items: Any) -> Floats:
    """Fisher information of each item about ability.

    I(theta) = P'^2 / (P (1 - P)), minus the expected second derivative of the log-likelihood: P (1 - P) for
    the Rasch model, a^2 P (1 - P) for the 2PL, a^2 ((1 - P) / P) ((P - c) / (1 - c))^2 for the 3PL.

    Parameters
    ----------
    theta : float or array-like of shape (n,)
        Abilities.
    items : Items or fitted estimator
        The items.

    Returns
    -------
    ndarray of shape (n, n_items), or (n_items,) for one ability
        Information.

    Raises
    ------
    ValueError
        If theta is not finite or no array of one axis at most.

    Examples
    --------
    >>> from seedbed.estimators import Items, item_information
    >>> items = Items.of([0.3, 0.3], discrimination=1.2, guessing=[0.2, 0.0])
    >>> item_information(0.5, items).round(6)
    array([0.2453  , 0.354865])
    """
    points = np.asarray(theta, dtype=float)
    if points.ndim > 1 or not np.isfinite(points).all():
        raise ValueError(f"theta must be a finite number or a list of them, got {theta!r}")
    return items_of(items).information(points)


def most_informative_ability(items: Items) -> Floats:
    """Ability at which each item says most.

    b + log((1 + sqrt(1 + 8 c)) / 2) / a, for items with an upper asymptote of 1.

    Parameters
    ----------
    items : Items
        The items.

    Returns
    -------
    ndarray of shape (n_items,)
        Abilities.

    Raises
    ------
    ValueError
        If an item has another upper asymptote.

    Examples
    --------
    >>> from seedbed.estimators import Items, most_informative_ability
    >>> most_informative_ability(Items.of([0.3], 1.2, 0.2)).round(6)
    array([0.522618])
    """
    check_items(items)
    if (items.upper != 1).any():
        wrong = int(np.argmax(items.upper != 1))
        raise ValueError(f"upper[{wrong}] must be 1, got {items.upper[wrong]!r}")
    return items.difficulty + np.log((1 + np.sqrt(1 + 8 * items.guessing)) / 2) / items.discrimination
