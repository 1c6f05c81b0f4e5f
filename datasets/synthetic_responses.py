"""Synthetic answers of takers to items, with abilities, item parameters and item features known."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.utils import Bunch

from seedbed.checks import check_choice, check_number

Floats = NDArray[np.float64]
Model = Literal["rasch", "2pl", "3pl", "4pl"]
Missing = Literal["mcar", "block"]

LOG_SLOPE_STD = 0.3
"""Spread of the logarithms of the discriminations."""
GUESSING = (5.0, 17.0)
"""Parameters of the beta law of guessing, and of one minus the upper asymptote at a third of the mean."""


def make_irt_responses(
    n_takers: int = 200,
    n_items: int = 100,
    model: Model = "rasch",
    *,
    missing: Missing | None = None,
    missing_rate: float = 0.5,
    n_blocks: int = 2,
    selection: float = 2.0,
    feature_dim: int = 0,
    residual_std: float = 0.3,
    ability_std: float = 1.0,
    difficulty_std: float = 1.0,
    random_state: Any = None,
) -> Bunch:
    """Draw takers, items and answers from a model of item response theory.

    P(right) = c + (d - c) sigma(a (theta - b)), theta ~ N(0, ability_std^2).

    Parameters
    ----------
    n_takers, n_items : int
        Rows and columns, at least 2 each.
    model : {"rasch", "2pl", "3pl", "4pl"}, default="rasch"
        "rasch": a = 1, c = 0, d = 1; "2pl": log a ~ N(0, 0.3^2); "3pl": also c ~ Beta(5, 17); "4pl": also
        1 - d ~ Beta(5, 61).
    missing : {"mcar", "block"}, default=None
        None: every taker answers every item. "mcar": cells are missing independently. "block": items come in
        ``n_blocks`` groups, which takers meet or not as a whole; the probability depends on their ability, so
        that weak takers mostly meet the first groups, strong ones the last.
    missing_rate : float, default=0.5
        Probability that a cell ("mcar") or, at ability 0, a group ("block") is missing, in [0, 1). No taker
        and no item is left without an answer.
    n_blocks : int, default=2
        Number of groups of items, for "block".
    selection : float, default=2.0
        How much the logit of meeting a group changes per ``ability_std``, from -selection for the first group
        to selection for the last, for "block".
    feature_dim : int, default=0
        If positive, b = X w + e with X ~ N(0, I) of that dimension, w of length ``difficulty_std`` and
        e ~ N(0, ``residual_std``^2); if 0, b ~ N(0, ``difficulty_std``^2).
    residual_std : float, default=0.3
        Spread of what the features leave of the difficulties.
    ability_std, difficulty_std : float, default=1.0
        Spreads of the abilities and difficulties.
    random_state : int, Generator, RandomState or None, default=None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``data`` float64 (n_takers, n_items): 1, 0 or NaN; ``ability`` (n_takers,); ``difficulty``,
        ``discrimination``, ``guessing`` and ``upper`` (n_items,); ``probability`` (n_takers, n_items): of a
        right answer; ``item_features`` (n_items, feature_dim) and ``coef`` (feature_dim,), None without
        features; ``block`` int64 (n_items,): the group of each item, all 0 but for "block".

    Raises
    ------
    ValueError
        If a parameter is outside its range.
    TypeError
        If a number is of the wrong type.

    Examples
    --------
    >>> from seedbed.datasets import make_irt_responses
    >>> drawn = make_irt_responses(50, 20, missing="mcar", missing_rate=0.2, random_state=0)
    >>> drawn.data.shape, drawn.difficulty.shape
    ((50, 20), (20,))
    """
    check_number("n_takers", n_takers, low=2, integer=True)
    check_number("n_items", n_items, low=2, integer=True)
    check_choice("model", model, ("rasch", "2pl", "3pl", "4pl"))
    check_choice("missing", missing, (None, "mcar", "block"))
    check_number("missing_rate", missing_rate, low=0, high=1, closed="left")
    check_number("n_blocks", n_blocks, low=2, high=n_items, integer=True)
    check_number("selection", selection)
    check_number("feature_dim", feature_dim, low=0, integer=True)
    check_number("residual_std", residual_std, low=0)
    check_number("ability_std", ability_std, low=0)
    check_number("difficulty_std", difficulty_std, low=0)
    rng = _generator(random_state)
    theta = rng.standard_normal(n_takers)
    features, coef, b = _difficulties(rng, n_items, feature_dim, residual_std, difficulty_std)
    a, c, d = _curves(rng, n_items, model)
    right = c + (d - c) * expit(a * (ability_std * theta[:, None] - b))
    data = (rng.uniform(size=right.shape) < right).astype(np.float64)
    block = np.zeros(n_items, dtype=np.int64)
    if missing == "block":
        block = np.arange(n_items) * n_blocks // n_items
    if missing is not None:
        seen = (
            _met_blocks(rng, theta, block, missing_rate, selection)
            if missing == "block"
            else rng.uniform(size=right.shape) >= missing_rate
        )
        data[~_leave_none_out(rng, seen)] = np.nan
    return Bunch(
        data=data,
        ability=ability_std * theta,
        difficulty=b,
        discrimination=a,
        guessing=c,
        upper=d,
        probability=right,
        item_features=features,
        coef=coef,
        block=block,
    )


def _generator(random_state: Any) -> Any:
    """Source of randomness; None draws a fresh seed rather than from NumPy's global state."""
    if isinstance(random_state, np.random.RandomState):
        return random_state
    return np.random.default_rng(random_state)


def _difficulties(
    rng: Any, n_items: int, feature_dim: int, residual_std: float, difficulty_std: float
) -> tuple[Floats | None, Floats | None, Floats]:
    """Features and weights, if any, and difficulties."""
    if feature_dim == 0:
        return None, None, difficulty_std * rng.standard_normal(n_items)
    features = rng.standard_normal((n_items, feature_dim))
    coef = rng.standard_normal(feature_dim)
    coef *= difficulty_std / np.linalg.norm(coef)
    return features, coef, features @ coef + residual_std * rng.standard_normal(n_items)


def _curves(rng: Any, n_items: int, model: Model) -> tuple[Floats, Floats, Floats]:
    """Discriminations and lower and upper asymptotes."""
    slope, lower, upper = np.ones(n_items), np.zeros(n_items), np.ones(n_items)
    if model != "rasch":
        slope = np.exp(LOG_SLOPE_STD * rng.standard_normal(n_items))
    if model in ("3pl", "4pl"):
        lower = rng.beta(*GUESSING, n_items)
    if model == "4pl":
        upper = 1 - rng.beta(GUESSING[0], 3 * sum(GUESSING) - GUESSING[0], n_items)
    return slope, lower, upper


def _met_blocks(
    rng: Any, theta: Floats, block: NDArray[np.int64], missing_rate: float, selection: float
) -> NDArray[np.bool_]:
    """Which items takers see, group by group; who meets no group is given the likeliest one."""
    tilt = selection * np.linspace(-1, 1, block[-1] + 1)
    chance = logit(1 - missing_rate) + theta[:, None] * tilt
    met = rng.uniform(size=chance.shape) < expit(chance)
    alone = np.flatnonzero(~met.any(axis=1))
    met[alone, np.argmax(chance[alone], axis=1)] = True
    return np.asarray(met[:, block])


def _leave_none_out(rng: Any, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Give each taker and each item that has no cell one at random."""
    rows = np.flatnonzero(~seen.any(axis=1))
    seen[rows, (seen.shape[1] * rng.uniform(size=len(rows))).astype(int)] = True
    columns = np.flatnonzero(~seen.any(axis=0))
    seen[(seen.shape[0] * rng.uniform(size=len(columns))).astype(int), columns] = True
    return seen
