"""Where the changes are: least squares with a given number of changes, or the largest neighbouring jumps.

All functions work on many sessions at once: arrays have the shape (runs, arms).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seedbed.checks import check_number
from seedbed.estimators.change_point_bandit.thresholds import Floats

Ints = NDArray[np.int64]

BLOCK = 1 << 17
"""Numbers of a block: small enough for a processor's cache."""


def largest_jumps(means: Floats, n_change_points: int) -> Ints:
    """Return the boundaries with the largest jumps between neighbours, in order of place.

    Parameters
    ----------
    means : ndarray of shape (runs, arms)
        Mean of each arm.
    n_change_points : int
        How many.

    Returns
    -------
    ndarray of shape (runs, n_change_points)
        Ties go to the first.
    """
    jumps = np.abs(means[:, 1:] - means[:, :-1])
    if n_change_points == 1:
        return jumps.argmax(axis=1)[:, None]
    rows, found = np.arange(len(jumps)), np.empty((len(jumps), n_change_points), dtype=np.int64)
    for place in range(n_change_points):
        found[:, place] = jumps.argmax(axis=1)
        jumps[rows, found[:, place]] = -1.0
    return np.sort(found, axis=1)


def least_squares_changes(counts: Floats, sums: Floats, n_change_points: int) -> Ints:
    """Return the changes of the best piecewise constant fit, weighted by counts.

    Parameters
    ----------
    counts, sums : ndarray of shape (runs, arms)
        Number and sum of each arm's rewards; counts positive.
    n_change_points : int
        Number of changes.

    Returns
    -------
    ndarray of shape (runs, n_change_points)
        Boundaries in order; ties go to the first.
    """
    total = counts.sum(axis=1, keepdims=True)
    # Squares of sums are compared: without the mean they keep their digits.
    centred = sums - counts * (sums.sum(axis=1, keepdims=True) / total)
    if n_change_points == 1:
        weight = np.cumsum(counts[:, :-1], axis=1)
        part = np.cumsum(centred[:, :-1], axis=1)
        # The right part is the rest, whose centred sum is -part.
        return (part * part * (total / (weight * (total - weight)))).argmax(axis=1)[:, None]
    return _by_dynamic_programming(counts, centred, n_change_points)


def _by_dynamic_programming(counts: Floats, sums: Floats, n_change_points: int) -> Ints:
    """Best change sets; the last edge goes through blocks, so memory grows with arms, not with their square.

    Edge j stands before arm j, and a piece from edge i to edge j explains (its sum)^2 / (its count).
    """
    runs, arms = counts.shape
    weight, part = np.zeros((runs, arms + 1)), np.zeros((runs, arms + 1))
    np.cumsum(counts, axis=1, out=weight[:, 1:])
    np.cumsum(sums, axis=1, out=part[:, 1:])
    best = np.full((n_change_points + 1, runs, arms + 1), -np.inf)  # by number of changes so far
    came = np.zeros((n_change_points + 1, runs, arms + 1), dtype=np.int64)
    width = max(BLOCK // (runs * arms), 1)
    for start in range(1, arms + 1, width):
        stop = min(start + width, arms + 1)
        j, i = slice(start, stop), slice(0, stop - 1)
        span = weight[:, j, None] - weight[:, None, i]
        gain = part[:, j, None] - part[:, None, i]
        backward = ~np.tri(stop - start, stop - 1, start - 1, dtype=bool)
        span[:, backward] = 1.0
        gain *= gain
        gain /= span
        gain[:, backward] = -np.inf
        best[0, :, j] = gain[:, :, 0]
        for n in range(1, n_change_points + 1):
            options = gain + best[n - 1, :, None, i]
            came[n, :, j] = options.argmax(axis=2)
            best[n, :, j] = options.max(axis=2)
    rows, end = np.arange(runs), np.full(runs, arms)
    changes = np.empty((runs, n_change_points), dtype=np.int64)
    for place in reversed(range(n_change_points)):
        end = came[place + 1, rows, end]
        changes[:, place] = end - 1
    return changes


def segment_means(counts: ArrayLike, sums: ArrayLike, n_change_points: int) -> tuple[Ints, Floats]:
    """Fit a piecewise constant function by weighted least squares.

    Parameters
    ----------
    counts : array-like of shape (n_arms,)
        Number of rewards of each arm, positive.
    sums : array-like of shape (n_arms,)
        Their sums.
    n_change_points : int
        Number of changes, below the number of arms.

    Returns
    -------
    change_points : ndarray of shape (n_change_points,)
        Boundary b lies between arms b and b + 1.
    levels : ndarray of shape (n_change_points + 1,)
        Mean of each segment.

    Raises
    ------
    ValueError
        If shapes differ, a count is not positive, or there are too many changes.

    Examples
    --------
    >>> from seedbed.estimators import segment_means
    >>> segment_means([1, 1, 2, 1], [0.0, 0.2, 2.0, 1.0], 1)
    (array([1]), array([0.1, 1. ]))
    """
    weights, totals = np.asarray(counts, dtype=float), np.asarray(sums, dtype=float)
    if weights.ndim != 1 or weights.shape != totals.shape:
        raise ValueError(f"counts and sums must be 1-D and alike, got {weights.shape} and {totals.shape}")
    if not (np.isfinite(totals).all() and np.isfinite(weights).all() and (weights > 0).all()):
        raise ValueError("counts must be positive and finite, sums finite")
    check_number("n_change_points", n_change_points, low=0, high=len(weights) - 1, integer=True)
    if n_change_points == 0:
        changes = np.empty(0, dtype=np.int64)
    else:
        changes = least_squares_changes(weights[None], totals[None], n_change_points)[0]
    return changes, pooled_levels(weights, totals, changes)


def pooled_levels(counts: Floats, sums: Floats, changes: Any) -> Floats:
    """Return the mean of each segment between changes.

    Parameters
    ----------
    counts, sums : ndarray of shape (n_arms,)
        Number and sum of each arm's rewards.
    changes : array-like of int
        Boundaries in order.

    Returns
    -------
    ndarray of shape (n_changes + 1,)
        NaN where a segment has no reward.
    """
    starts = np.concatenate([[0], np.asarray(changes, dtype=np.int64) + 1])
    weight = np.add.reduceat(counts, starts)
    with np.errstate(invalid="ignore"):
        return np.add.reduceat(sums, starts) / np.where(weight > 0, weight, np.nan)
