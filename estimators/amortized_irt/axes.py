"""Slopes of several abilities: where to begin, and which way round to turn them."""

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.extmath import randomized_svd

from seedbed.estimators.amortized_irt.items import Floats
from seedbed.estimators.amortized_irt.multidimensional_em import Planes
from seedbed.estimators.amortized_irt.responses import Responses


def first_planes(responses: Responses, n_dimensions: int, *, positive: bool, guessing: Any = None) -> Planes:
    """Guess slopes from the principal components of the answers, intercepts from the shares of right ones.

    Parameters
    ----------
    responses : Responses
        Answers.
    n_dimensions : int
        Dimensions of ability.
    positive : bool
        Whether slopes are to be positive.
    guessing : float, optional
        c of all items.

    Returns
    -------
    Planes
        The same for the same answers.
    """
    share = (responses.right_by_item + 0.5) / (responses.seen_by_item + 1.0)
    centred = _centred(responses, share)
    rank = min(n_dimensions, *centred.shape)
    _, _, components = randomized_svd(centred, n_components=rank, random_state=0)
    slope = np.zeros((responses.n_items, n_dimensions))
    slope[:, :rank] = components.T * np.sqrt(responses.n_items)
    signs = np.where(slope.sum(axis=0) < 0, -1.0, 1.0)
    slope = varimax(slope * signs) if positive else slope * signs
    if positive:
        slope = np.clip(np.abs(slope), 0.2, 2.0) / np.sqrt(n_dimensions)
    low = 0.0 if guessing is None else float(guessing)
    inside = np.clip((share - low) / (1 - low), 0.02, 0.98)
    intercept = 1.16 * np.log(inside / (1 - inside))
    return Planes(slope, intercept, None if guessing is None else np.full(len(share), low))


def _centred(responses: Responses, share: Floats) -> Floats:
    """Answers minus the shares of right ones over their standard deviations; zeros where there is none."""
    right = responses.right.toarray() if sparse.issparse(responses.right) else responses.right
    centred = (right - share) / np.sqrt(share * (1 - share))
    if responses.seen is not None:
        seen = responses.seen.toarray() if sparse.issparse(responses.seen) else responses.seen
        centred = centred * seen
    return np.asarray(centred * np.sqrt(responses.weight)[:, None])


def varimax(slope: Floats, max_iter: int = 100) -> Floats:
    """Rotate slopes so that each item has few large ones (Kaiser's criterion).

    Parameters
    ----------
    slope : ndarray of shape (n_items, n_dimensions)
        Slopes.
    max_iter : int
        Most iterations.

    Returns
    -------
    ndarray of shape (n_items, n_dimensions)
        Rotated.
    """
    rotation = np.eye(slope.shape[1])
    for _ in range(max_iter):
        turned = slope @ rotation
        u, _, vt = np.linalg.svd(slope.T @ (turned**3 - turned * (turned**2).mean(axis=0)))
        new = u @ vt
        if np.abs(new - rotation).max() < 1e-10:
            break
        rotation = new
    return np.asarray(slope @ rotation)


def orientation(slope: Floats, *, positive: bool) -> Floats:
    """Matrix to turn slopes and abilities by, which makes the axes unique.

    Free slopes: their principal axes, by falling sums of squares, each with a positive sum. Positive slopes
    may only change places: again by falling sums of squares.

    Parameters
    ----------
    slope : ndarray of shape (n_items, n_dimensions)
        Slopes.
    positive : bool
        Whether they are positive by construction.

    Returns
    -------
    ndarray of shape (n_dimensions, n_dimensions)
        Orthogonal; ``slope @ matrix`` and ``ability @ matrix`` are unique.
    """
    dims = slope.shape[1]
    if positive:
        order = np.argsort(-(slope**2).sum(axis=0), kind="stable")
        return np.eye(dims)[:, order]
    _, _, vt = np.linalg.svd(slope, full_matrices=False)
    signs = np.where((slope @ vt.T).sum(axis=0) < 0, -1.0, 1.0)
    return np.asarray(vt.T * signs)
