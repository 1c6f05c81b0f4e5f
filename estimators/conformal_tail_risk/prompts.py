"""Losses of prompts as the threshold on machine scores rises."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Reduction = Literal["max", "first", "mean"]
CHUNK_BYTES = 64 * 2**20


def as_table(
    X: ArrayLike, y: ArrayLike | None, mask: ArrayLike | None, groups: ArrayLike | None
) -> tuple[Floats, Floats | None, Any]:
    """Bring scores and losses into tables of one row per prompt.

    Parameters
    ----------
    X : array-like of shape (n, N), or (rows,) with groups
        Machine scores; NaN where a prompt has no such candidate.
    y : array-like of the shape of X, or None
        Human losses.
    mask : array-like of bool of the shape of X, optional
        Which candidates there are.
    groups : array-like of shape (rows,), optional
        Prompt of each candidate, in long format.

    Returns
    -------
    (ndarray, ndarray or None, ndarray of bool)
        Scores, infinite where there is no candidate; losses; and which candidates there are.

    Raises
    ------
    ValueError
        If shapes differ, a score is infinite, or a prompt has no candidate.
    """
    scores = np.asarray(X, dtype=float)
    losses = None if y is None else np.asarray(y, dtype=float)
    if losses is not None and losses.shape != scores.shape:
        raise ValueError(
            f"X and y must have the same shape, one loss per score (inconsistent numbers of samples or "
            f"candidates), got {scores.shape} and {losses.shape}"
        )
    there = ~np.isnan(scores)
    if mask is not None:
        given = np.asarray(mask)
        if given.shape != scores.shape or given.dtype != bool:
            raise ValueError(f"mask must be boolean of shape {scores.shape}, got {given.dtype} {given.shape}")
        if np.isnan(scores[given]).any():
            raise ValueError("X must have a score where mask is True, got NaN")
        there &= given
    if groups is not None:
        scores, losses, there = _widen(scores, losses, there, np.asarray(groups))
    if scores.ndim != 2:
        raise ValueError(f"X must be 2-D, prompts by candidates, or 1-D with groups, got {scores.ndim}-D")
    if np.isinf(scores[there]).any():
        raise ValueError("X must be finite where there is a candidate, got infinity")
    if not there.any(axis=1).all():
        raise ValueError(f"prompt {int(np.flatnonzero(~there.any(axis=1))[0])} has no candidate")
    return np.where(there, scores, np.inf), losses, there


def _widen(
    scores: Floats, losses: Floats | None, there: Any, groups: Any
) -> tuple[Floats, Floats | None, Any]:
    if scores.ndim != 1 or groups.shape != scores.shape:
        raise ValueError(f"groups are for 1-D X of their length, got {groups.shape} and {scores.shape}")
    _, prompt = np.unique(groups, return_inverse=True)
    order = np.argsort(prompt, kind="stable")  # candidates of a prompt stay in their order
    counts = np.bincount(prompt)
    place = np.arange(len(scores)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (len(counts), int(counts.max()))

    def wide(values: Any, fill: Any) -> Any:
        table = np.full(shape, fill, dtype=values.dtype)
        table[prompt[order], place] = values[order]
        return table

    return wide(scores, np.nan), None if losses is None else wide(losses, np.nan), wide(there, False)


class Ladder:
    """Losses of prompts at each threshold of a grid.

    Parameters
    ----------
    scores : ndarray of shape (n, N)
        Machine scores, infinite where there is no candidate.
    losses : ndarray of shape (n, N)
        Human losses.
    grid : ndarray of shape (G,)
        Thresholds, increasing.
    reduction : {"max", "first", "mean"}
        Loss of a prompt: of the worst accepted candidate, of the first, or their mean.
    lowest : float
        Loss of a prompt without an accepted candidate.
    """

    def __init__(
        self, scores: Floats, losses: Floats, grid: Floats, reduction: Reduction, lowest: float
    ) -> None:
        self.grid, self.reduction, self.lowest = grid, reduction, lowest
        self.losses = np.where(np.isfinite(scores), losses, lowest)
        self.steps = np.searchsorted(grid, scores, side="left")  # a candidate is accepted from here on

    def __len__(self) -> int:
        return len(self.grid)

    @property
    def n_prompts(self) -> int:
        """Number of prompts."""
        return len(self.losses)

    @property
    def width(self) -> int:
        """How many thresholds fit into one block."""
        return max(CHUNK_BYTES // (8 * self.n_prompts), 1)

    def at(self, step: int) -> Floats:
        """Losses of all prompts at one threshold, (n,)."""
        accepted = self.steps <= step
        if self.reduction == "max":
            return np.where(accepted, self.losses, self.lowest).max(axis=1)
        some = accepted.any(axis=1)
        if self.reduction == "first":
            first = np.take_along_axis(self.losses, accepted.argmax(axis=1)[:, None], axis=1)[:, 0]
            return np.where(some, first, self.lowest)
        total = np.where(accepted, self.losses, 0.0).sum(axis=1)
        return np.where(some, total / np.maximum(accepted.sum(axis=1), 1), self.lowest)

    def block(self, start: int, stop: int) -> Floats:
        """Losses at thresholds from start to below stop, (stop - start, n)."""
        if self.reduction != "max":
            return np.stack([self.at(step) for step in range(start, stop)])
        found = np.full((stop - start, self.n_prompts), self.lowest)
        found[0] = self.at(start)
        row, column = np.nonzero((self.steps > start) & (self.steps < stop))
        np.maximum.at(found, (self.steps[row, column] - start, row), self.losses[row, column])
        return np.maximum.accumulate(found, axis=0)

    def abstention(self) -> Floats:
        """Share of prompts without an accepted candidate, at each threshold, (G,)."""
        first = np.bincount(self.steps.min(axis=1), minlength=len(self.grid) + 1)[: len(self.grid)]
        return 1.0 - np.cumsum(first) / self.n_prompts


def positions(scores: Floats, threshold: float) -> Any:
    """Return the place of the first accepted candidate of each prompt, -1 if none is.

    Parameters
    ----------
    scores : ndarray of shape (n, N)
        Machine scores; NaN or infinite where there is no candidate.
    threshold : float
        Scores up to it are accepted.

    Returns
    -------
    ndarray of int, shape (n,)
        Places among the candidates that are there are the columns themselves.
    """
    with np.errstate(invalid="ignore"):
        accepted = scores <= threshold
    return np.where(accepted.any(axis=1), accepted.argmax(axis=1), -1)
