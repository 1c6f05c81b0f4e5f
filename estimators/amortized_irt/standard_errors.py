"""Standard errors of item parameters, from the observed information.

With many takers for each parameter it is the sum over takers of the outer products of their expected scores.
With fewer, it is what answers would tell if abilities were known, less what is lost because they are not
(Louis, "Finding the observed information matrix when using the EM algorithm", JRSS B 44, 1982):

    I = H - sum_n w_n Var(score of the items | y_n).

The variance is taken from two points, one posterior standard deviation to either side of the mean. H is block
diagonal and the rest has rank n_takers at most, so that one of two small systems is solved.
"""

from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit

from seedbed.estimators.amortized_irt.expectation import Expectation
from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.responses import Responses

MOST_WORK = 4e10
"""Multiplications beyond which what is lost by not knowing abilities is left out of account."""
MANY = 10
"""Takers for each parameter from which on outer products of scores are enough."""
NODES = 7
TABLE = 1 << 21
"""Scores that are held at a time."""
SMALLEST = 1e-10


def item_covariances(
    responses: Responses, items: Items, expectation: Expectation, precision: Floats
) -> Floats:
    """Estimate the covariance of each item's estimates.

    Parameters
    ----------
    responses : Responses
        Answers.
    items : Items
        Estimates.
    expectation : Expectation
        E-step at them; its ``gradient`` tells the parameters.
    precision : ndarray of shape (n_items, p, p)
        Information from the priors.

    Returns
    -------
    ndarray of shape (n_items, p, p)
        In the parameters of the gradient.
    """
    n_items, p = expectation.gradient.shape
    blocks = expectation.curvature + precision + SMALLEST * np.eye(p)
    own: Floats = np.asarray(np.linalg.inv(blocks), dtype=float)
    rows, columns = responses.n_takers, n_items * p
    if min(rows, columns) ** 2 * float(max(rows, columns)) > MOST_WORK:
        return own
    if columns > rows:
        return _of_few_takers(responses, items, expectation, own)
    if responses.weight.sum() >= MANY * columns:
        information = _outer_products(responses, items, expectation)
        blocks = precision + SMALLEST * np.eye(p)
    else:
        information = -_outer_products(responses, items, expectation, lost=True)
    place = np.arange(n_items)
    information.reshape(n_items, p, n_items, p)[place, :, place, :] += blocks
    inverse = np.linalg.pinv(information, hermitian=True).reshape(n_items, p, n_items, p)
    return np.asarray(inverse[place, :, place, :])


def _outer_products(
    responses: Responses, items: Items, expectation: Expectation, *, lost: bool = False
) -> Floats:
    """Sum over takers of the outer products of their expected scores, or of what is lost of them."""
    n_items, p = expectation.gradient.shape
    total = np.zeros((n_items * p, n_items * p))
    whole = slice(None)
    for rows in _parts(responses.n_takers, n_items * p):
        of_taker = (_lost if lost else _expected_scores)(responses, items, expectation, rows, whole)
        flat = of_taker.reshape(len(of_taker), -1)
        total += flat.T @ flat
    return total


def _of_few_takers(responses: Responses, items: Items, expectation: Expectation, own: Floats) -> Floats:
    """Woodbury's identity: the inverse of a matrix as large as there are takers."""
    p = own.shape[1]
    n = responses.n_takers
    first, code, count = _alike(responses, items, own)
    items, own = items.take(first), own[first]
    inner, whole = np.eye(n), slice(None)
    for columns in _parts(len(items), n * p):
        lost = _lost(responses, items, expectation, whole, columns)
        scaled = _times(lost, own[columns] * count[columns, None, None])
        inner -= lost.reshape(n, -1) @ scaled.reshape(n, -1).T
    inverse = np.linalg.pinv(inner, hermitian=True)
    found = own.copy()
    for columns in _parts(len(items), n * p):
        scaled = _times(_lost(responses, items, expectation, whole, columns), own[columns])
        weighted = (inverse @ scaled.reshape(n, -1)).reshape(scaled.shape)
        found[columns] += np.einsum("nik,nil->ikl", scaled, weighted)
    return found[code]


def _alike(responses: Responses, items: Items, own: Floats) -> tuple[Any, Any, Floats]:
    """Distinct items, which of them each is, and how many of each there are.

    Rasch items of a complete table that were right as often are alike: what is lost does not
    depend on the answers.
    """
    everyone = np.arange(len(items))
    if own.shape[1] == 1 and responses.seen is None and _is_rasch(items):
        _, first, code, count = np.unique(
            items.difficulty, return_index=True, return_inverse=True, return_counts=True
        )
        if np.array_equal(own[first][code], own):
            return first, code, count.astype(float)
    return everyone, everyone, np.ones(len(items))


def _is_rasch(items: Items) -> bool:
    flat = (items.discrimination == items.discrimination[0]).all() and not items.guessing.any()
    return bool(flat and (items.upper == 1).all())


def _times(scores: Floats, blocks: Floats) -> Floats:
    return scores * blocks[:, 0] if blocks.shape[1] == 1 else np.einsum("ikl,nil->nik", blocks, scores)


def _parts(n: int, width: int) -> list[slice]:
    """Ranges of so many rows, or columns, that their table is not large."""
    size = max(1, TABLE // width)
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def _answers(responses: Responses, rows: slice, columns: slice) -> tuple[Floats, Any, Floats]:
    """A dense part of the answers, which of them there are, and the roots of the takers' weights."""
    parts: list[Any] = []
    for matrix in (responses.right, responses.seen):
        part = None if matrix is None else matrix[rows][:, columns]
        parts.append(part.toarray() if part is not None and responses.is_sparse else part)
    return parts[0], parts[1], np.sqrt(responses.weight[rows])


def _lost(
    responses: Responses, items: Items, expectation: Expectation, rows: slice, columns: slice
) -> Floats:
    """Half the difference of the scores at one posterior standard deviation above and below the mean.

    Its shape is (n_takers, n_items, p), the square of it counts each taker by its weight.
    """
    right, seen, root = _answers(responses, rows, columns)
    mean, std, chosen = expectation.mean[rows], expectation.std[rows], items.take(columns)
    p = expectation.gradient.shape[1]
    if p == 1 and not items.guessing.any() and (items.upper == 1).all():
        found = expit(chosen.logit(mean + std))
        found -= expit(chosen.logit(mean - std))
        found *= chosen.discrimination * (root[:, None] / 2)
        found = found[..., None]
    else:
        found = _scores(chosen, mean + std, right, p) - _scores(chosen, mean - std, right, p)
        found *= root[:, None, None] / 2
    return np.asarray(found if seen is None else found * seen[..., None])


def _expected_scores(
    responses: Responses, items: Items, expectation: Expectation, rows: slice, columns: slice
) -> Floats:
    """Posterior means of the scores, by nodes of Gauss and Hermite for each taker, shaped as ``_lost``."""
    right, seen, root = _answers(responses, rows, columns)
    mean, std, chosen = expectation.mean[rows], expectation.std[rows], items.take(columns)
    p = expectation.gradient.shape[1]
    nodes, weights = hermegauss(NODES)
    weights = weights / weights.sum()
    total: Any = 0.0
    if p <= 2 and not items.guessing.any() and (items.upper == 1).all():
        chance: Any = 0.0
        for node, weight in zip(nodes, weights, strict=True):
            curve = expit(chosen.logit(mean + node * std))
            curve *= weight
            chance, total = chance + curve, total + node * curve
        residual = right - chance
        if p == 1:
            total = (-chosen.discrimination * residual)[..., None]
        else:
            total = np.stack([mean[:, None] * residual - std[:, None] * total, residual], axis=-1)
    else:
        for node, weight in zip(nodes, weights, strict=True):
            total = total + weight * _scores(chosen, mean + node * std, right, p)
    total *= root[:, None, None]
    return np.asarray(total if seen is None else total * seen[..., None])


def _scores(items: Items, theta: Floats, right: Floats, p: int) -> Floats:
    """Derivative of every cell's log-likelihood in its item's parameters, (n_takers, n_items, p)."""
    curve = expit(items.logit(theta))
    gain = items.upper - items.guessing
    chance = np.clip(items.guessing + gain * curve, SMALLEST, 1 - SMALLEST)
    slope = gain * curve * (1 - curve)
    residual = (right - chance) / (chance * (1 - chance))
    if p == 1:
        return np.asarray((-items.discrimination * slope * residual)[..., None])
    parts = [slope * theta[:, None], slope, 1 - curve, curve][:p]
    return np.stack([residual * part for part in parts], axis=-1)


def difficulty_std(items: Items, covariance: Floats) -> Floats:
    """Standard errors of the difficulties, by the delta method from slope and intercept.

    Parameters
    ----------
    items : Items
        Estimates.
    covariance : ndarray of shape (n_items, p, p)
        From :func:`item_covariances`.

    Returns
    -------
    ndarray of shape (n_items,)
        Standard errors of b.
    """
    if covariance.shape[1] == 1:
        return np.sqrt(np.maximum(covariance[:, 0, 0], 0))
    direction = np.stack([-items.difficulty, -np.ones(len(items))], axis=1) / items.discrimination[:, None]
    found = np.einsum("ik,ikl,il->i", direction, covariance[:, :2, :2], direction)
    return np.sqrt(np.maximum(found, 0))
