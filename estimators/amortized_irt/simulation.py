"""Answers that a model would give."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seedbed.checks import check_number
from seedbed.estimators.amortized_irt.answers import items_of
from seedbed.estimators.amortized_irt.items import Floats

BLOCK = 1 << 22
"""Cells drawn at a time."""


def simulate_responses(
    ability: ArrayLike,
    items: Any,
    *,
    missing_share: float = 0.0,
    difficulty_uncertainty: bool = False,
    random_state: Any = None,
) -> Floats:
    """Draw answers of takers whose abilities are known.

    Parameters
    ----------
    ability : array-like of shape (n_takers,)
        Abilities.
    items : Items or fitted estimator
        The items.
    missing_share : float, default=0
        Share of the cells that are left out at random.
    difficulty_uncertainty : bool, default=False
        Draw each item's difficulty once from N(difficulty, difficulty_std^2) instead of taking it as known.
    random_state : int, Generator or None
        Source of randomness.

    Returns
    -------
    ndarray of shape (n_takers, n_items)
        1 for right, 0 for wrong, NaN where left out.

    Raises
    ------
    ValueError
        If an ability is not finite or a parameter is out of range.

    Examples
    --------
    >>> from seedbed.estimators import Items, simulate_responses
    >>> simulate_responses([-9.0, 9.0], Items.of([0.0, 1.0, -1.0]), random_state=0)
    array([[0., 0., 0.],
           [1., 1., 1.]])
    """
    check_number("missing_share", missing_share, low=0, high=1, closed="left")
    theta = np.asarray(ability, dtype=float)
    if theta.ndim != 1 or not np.isfinite(theta).all():
        raise ValueError(f"ability must be a list of finite numbers, got shape {theta.shape}")
    bank = items_of(items)
    rng = np.random.default_rng(random_state)
    if difficulty_uncertainty:
        shift = rng.standard_normal(len(bank)) * bank.difficulty_std
        bank = type(bank)(
            bank.difficulty + shift, bank.discrimination, bank.guessing, bank.upper, bank.difficulty_std
        )
    answers = np.empty((len(theta), len(bank)))
    size = max(1, BLOCK // len(bank))
    for first in range(0, len(theta), size):
        rows = slice(first, first + size)
        answers[rows] = rng.random((len(theta[rows]), len(bank))) < bank.probability(theta[rows])
        if missing_share > 0:
            answers[rows][rng.random((len(theta[rows]), len(bank))) < missing_share] = np.nan
    return answers
