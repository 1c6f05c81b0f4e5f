"""Joint maximum likelihood of the Rasch model: abilities and difficulties alike are parameters."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.responses import Cells, Responses

Floats = NDArray[np.float64]

RIDGE_STD = 4.0
"""Spread of the prior that holds abilities and difficulties of equal answers finite."""
MAX_STEP = 1.5
CELLS = 1 << 21
"""About how many cells are worked on at a time."""


@dataclass(frozen=True)
class Joint:
    """Joint estimates.

    Attributes
    ----------
    items : Items
        Difficulties, of mean 0 over the items that are not extreme; all discriminations 1. Infinite where
        extreme items are dropped.
    ability : ndarray of shape (n_takers,)
        Abilities; infinite where all of a taker's answers are alike and extreme takers are dropped.
    log_likelihood : float
        Of the observed cells, without the ridge.
    n_iter : int
        Rounds of one Newton step on the abilities and one on the difficulties.
    converged : bool
        Whether the last round changed nothing by more than the tolerance.
    """

    items: Items
    ability: Floats
    log_likelihood: float
    n_iter: int
    converged: bool


def calibrate_joint(
    responses: Responses,
    *,
    drop_extreme: bool = False,
    ridge_std: float = RIDGE_STD,
    max_iter: int = 500,
    tol: float = 1e-8,
) -> Joint:
    """Maximise sum of y log P + (1 - y) log(1 - P), P = sigma(theta_n - b_i), over all theta and b.

    A round costs one or two passes over the cells. Inconsistent as takers grow and items do not: with I items
    the spread of the difficulties is too large by about I / (I - 1). Groups of takers that answered different
    items are not pulled together, since abilities have no common law.

    Parameters
    ----------
    responses : Responses
        The cells.
    drop_extreme : bool
        Leave out takers and items whose answers are all alike, again and again until none is left, rather
        than hold abilities and difficulties near their means by a penalty, (. - mean)^2 / (2 ridge_std^2).
    ridge_std : float
        Spread of that prior.
    max_iter : int
        Most rounds.
    tol : float
        Largest change of a parameter in the last round.

    Returns
    -------
    Joint
        The estimates.

    Raises
    ------
    ValueError
        If extreme takers and items are dropped and none is left.

    Warns
    -----
    ConvergenceWarning
        If ``max_iter`` rounds are not enough.
    """
    takers, items = np.ones(responses.n_takers, dtype=bool), np.ones(responses.n_items, dtype=bool)
    if drop_extreme:
        takers, items = ordinary(responses)
        if not takers.any():
            raise ValueError("every taker or item has answers that are all alike; none is left to compare")
    kept = responses.take(np.flatnonzero(takers)).items(items) if drop_extreme else responses
    theta, b, rounds, converged = _maximise(kept, 0.0 if drop_extreme else ridge_std**-2, max_iter, tol)
    if not converged:
        warnings.warn(
            f"joint maximum likelihood did not settle within {max_iter} rounds; increase max_iter or tol",
            ConvergenceWarning,
            stacklevel=2,
        )
    log_likelihood = _log_likelihood(kept, theta, b)
    ability = np.where(2 * responses.right_by_taker > responses.seen_by_taker, np.inf, -np.inf)
    difficulty = np.where(2 * responses.right_by_item > responses.seen_by_item, -np.inf, np.inf)
    ability[takers], difficulty[items] = theta, b
    return Joint(Items.of(difficulty), ability, log_likelihood, rounds, converged)


def ordinary(responses: Responses) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Find the takers and items that stay when those whose answers are all alike go, again and again.

    Parameters
    ----------
    responses : Responses
        The cells.

    Returns
    -------
    takers, items : ndarray of bool
        Which stay.
    """
    takers, items = responses.weight > 0, np.ones(responses.n_items, dtype=bool)
    while True:
        weight, chosen = takers.astype(float), items.astype(float)
        right = responses.right
        score = np.asarray(right @ chosen)
        count = np.asarray(responses.seen @ chosen) if responses.seen is not None else chosen.sum()
        right_by_item = np.asarray(right.T @ weight)
        seen_by_item = np.asarray(responses.seen.T @ weight) if responses.seen is not None else weight.sum()
        still = takers & (score > 0) & (score < count)
        those = items & (right_by_item > 0) & (right_by_item < seen_by_item)
        if (still == takers).all() and (those == items).all():
            return takers, items
        takers, items = still, those


def _maximise(
    responses: Responses, ridge: float, max_iter: int, tol: float
) -> tuple[Floats, Floats, int, bool]:
    """Alternate Newton steps on abilities and difficulties."""
    seen_n, right_n = responses.seen_by_taker, responses.right_by_taker
    theta = np.log((right_n + 0.5) / (seen_n - right_n + 0.5))
    right_i, seen_i = responses.right_by_item, responses.seen_by_item
    b = -np.log((right_i + 0.5) / (seen_i - right_i + 0.5))
    b -= b.mean()
    for rounds in range(1, max_iter + 1):
        expected, information = _sums(responses, theta, b, by_taker=True)
        step = (right_n - expected - ridge * (theta - theta.mean())) / (information + ridge)
        theta = theta + np.clip(step, -MAX_STEP, MAX_STEP)
        expected, information = _sums(responses, theta, b, by_taker=False)
        move = (expected - right_i - ridge * b) / (information + ridge)  # b has mean 0
        b = b + np.clip(move, -MAX_STEP, MAX_STEP)
        shift = b.mean()
        b, theta = b - shift, theta - shift
        if max(np.abs(step).max(), np.abs(move).max()) < tol:
            return theta, b, rounds, True
    return theta, b, max_iter, False


def joint_rounds(
    responses: Responses, theta: Floats, b: Floats, scale: float, rounds: int
) -> tuple[Floats, Floats]:
    """Take a few rounds of Newton steps on difficulties and abilities, both with normal priors.

    theta ~ N(0, scale^2), b ~ N(., RIDGE_STD^2).

    Parameters
    ----------
    responses : Responses
        The cells.
    theta : ndarray of shape (n_takers,)
        Abilities to start from.
    b : ndarray of shape (n_items,)
        Difficulties to start from.
    scale : float
        Spread of the prior of the abilities.
    rounds : int
        How many.

    Returns
    -------
    theta, b : ndarray
        Where they end.
    """
    right_i, right_n = responses.right_by_item, responses.right_by_taker
    for _ in range(rounds):
        expected, information = _sums(responses, theta, b, by_taker=False)
        b = b + np.clip((expected - right_i) / (information + RIDGE_STD**-2), -MAX_STEP, MAX_STEP)
        b = b - b.mean()
        expected, information = _sums(responses, theta, b, by_taker=True)
        step = (right_n - expected - theta / scale**2) / (information + scale**-2)
        theta = theta + np.clip(step, -MAX_STEP, MAX_STEP)
    return theta, b


def _sums(responses: Responses, theta: Floats, b: Floats, *, by_taker: bool) -> tuple[Floats, Floats]:
    """Sums over the observed cells of P and P (1 - P), by taker or weighted by item."""
    first = np.zeros(responses.n_takers if by_taker else responses.n_items)
    second = np.zeros_like(first)
    if responses.seen is None:
        return _complete_sums(responses, theta, b, by_taker, first, second)
    for rows, cells in responses.blocks(CELLS):
        p = expit(cells.from_takers(theta[rows]) - cells.from_items(b))
        q = p * (1 - p)
        if by_taker:
            first[rows], second[rows] = cells.by_taker(p), cells.by_taker(q)
        else:
            heavy = cells.from_takers(responses.weight[rows])
            first += cells.by_item(p * heavy)
            second += cells.by_item(q * heavy)
    return first, second


def _complete_sums(
    responses: Responses, theta: Floats, b: Floats, by_taker: bool, first: Floats, second: Floats
) -> tuple[Floats, Floats]:
    """Likewise where all saw all: takers with equal scores have equal abilities."""
    score, which = np.unique(responses.right_by_taker, return_inverse=True)
    shared = np.zeros(len(score))
    shared[which] = theta
    weight = np.bincount(which, responses.weight, minlength=len(score))
    size = max(1, CELLS // len(b))
    for start in range(0, len(score), size):
        chosen = slice(start, start + size)
        p = expit(shared[chosen, None] - b)
        if by_taker:
            first_here, second_here = p.sum(axis=1), (p * (1 - p)).sum(axis=1)
            inside = (which >= start) & (which < start + size)
            first[inside], second[inside] = (
                first_here[which[inside] - start],
                second_here[which[inside] - start],
            )
        else:
            first += weight[chosen] @ p
            second += weight[chosen] @ (p * (1 - p))
    return first, second


def _log_likelihood(responses: Responses, theta: Floats, b: Floats) -> float:
    """Sum of y (theta - b) - log(1 + exp(theta - b)) over the observed cells."""
    total = float(responses.weight @ (responses.right_by_taker * theta) - responses.right_by_item @ b)
    for rows, cells in responses.blocks(CELLS):
        logit = cells.from_takers(theta[rows]) - cells.from_items(b)
        total -= float(responses.weight[rows] @ _by_taker(cells, np.logaddexp(0, logit)))
    return total


def _by_taker(cells: Cells, values: Floats) -> Floats:
    """Sums by taker of values of the observed cells."""
    return cells.by_taker(np.broadcast_to(values, cells.shape) if cells.item is None else values)
