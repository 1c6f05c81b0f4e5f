"""What people do without a model: average scores, and averages as predictions."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seedbed.checks import check_choice, check_number
from seedbed.estimators.amortized_irt.diagnostics import _check_answers
from seedbed.estimators.amortized_irt.items import Floats


def average_score(responses: ArrayLike) -> Floats:
    """Share of right answers of each taker, over the items she was asked.

    Parameters
    ----------
    responses : array-like of shape (n_takers, n_items)
        1, 0, or NaN for no answer.

    Returns
    -------
    ndarray of shape (n_takers,)
        Average scores.

    Raises
    ------
    ValueError
        If a cell is no answer or a taker has none.

    Examples
    --------
    >>> from seedbed.estimators import average_score
    >>> average_score([[1, 0, 1, 1], [0, float("nan"), 1, float("nan")]])
    array([0.75, 0.5 ])
    """
    y, seen = _read(responses)
    return _mean(y, seen, 1, "responses[{}]")


def random_subset_score(responses: ArrayLike, n_items: int, *, random_state: Any = None) -> Floats:
    """Average score on a random subset of the items, another for each taker.

    Parameters
    ----------
    responses : array-like of shape (n_takers, n_items)
        1, 0, or NaN for no answer.
    n_items : int
        Size of the subset, drawn from the items a taker has answers to.
    random_state : int, Generator or None
        Source of randomness.

    Returns
    -------
    ndarray of shape (n_takers,)
        Average scores.

    Raises
    ------
    ValueError
        If a cell is no answer or a taker has too few.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import random_subset_score
    >>> random_subset_score(np.eye(4)[:2], 4, random_state=0)
    array([0.25, 0.25])
    """
    y, seen = _read(responses)
    check_number("n_items", n_items, low=1, integer=True)
    few = seen.sum(axis=1) < n_items
    if few.any():
        raise ValueError(f"responses[{np.argmax(few)}] has fewer than n_items={n_items} answers")
    keys = np.where(seen, np.random.default_rng(random_state).random(y.shape), np.inf)
    chosen = np.argsort(keys, axis=1)[:, :n_items]
    return np.asarray(np.take_along_axis(y, chosen, axis=1).mean(axis=1))


def average_prediction(responses: ArrayLike, kind: str) -> Floats:
    """Predict every cell by an average of the answers there are.

    Parameters
    ----------
    responses : array-like of shape (n_takers, n_items)
        1, 0, or NaN for cells without an answer or held out.
    kind : {"constant", "taker", "item"}
        Average over all cells, over the taker's, or over the item's. Takers and items without an answer get
        the average over all cells.

    Returns
    -------
    ndarray of shape (n_takers, n_items)
        Predicted chances of a right answer.

    Raises
    ------
    ValueError
        If a cell is no answer or there is none at all.

    Examples
    --------
    >>> from seedbed.estimators import average_prediction
    >>> average_prediction([[1, 0], [1, float("nan")]], "taker")
    array([[0.5, 0.5],
           [1. , 1. ]])
    """
    check_choice("kind", kind, ("constant", "taker", "item"))
    y, seen = _read(responses)
    if not seen.any():
        raise ValueError("responses hold no answer")
    overall = y.sum() / seen.sum()
    if kind == "constant":
        return np.full(y.shape, overall)
    axis = 1 if kind == "taker" else 0
    count = seen.sum(axis=axis, keepdims=True)
    average = np.where(count > 0, y.sum(axis=axis, keepdims=True) / np.maximum(count, 1), overall)
    return np.broadcast_to(average, y.shape).copy()


def _read(responses: ArrayLike) -> tuple[Floats, Any]:
    """Return answers, with 0 where there is none, and where there is one."""
    y = np.asarray(responses, dtype=float)
    if y.ndim != 2:
        raise ValueError(f"responses must have shape (n_takers, n_items), got {y.shape}")
    _check_answers(y)
    return np.nan_to_num(y), ~np.isnan(y)


def _mean(y: Floats, seen: Any, axis: int, name: str) -> Floats:
    count = seen.sum(axis=axis)
    if (count == 0).any():
        raise ValueError(f"{name.format(np.argmin(count))} has no answer")
    return np.asarray(y.sum(axis=axis) / count)
