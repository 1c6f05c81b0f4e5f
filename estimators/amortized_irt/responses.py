"""Responses: which taker got which item right, whatever the matrix came as, and sums over its cells."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.utils import Bunch

Floats = NDArray[np.float64]
Matrix = Any
"""A dense array or a scipy sparse array."""

MOST_PATTERNS = 0.5
"""Takers who saw the same items share a row of sums while there are at most this many patterns per taker."""


@dataclass(frozen=True)
class Responses:
    """Observed cells of a matrix of takers by items.

    Attributes
    ----------
    right : ndarray or csr_array of shape (n_takers, n_items)
        1 where an item was seen and answered right, else 0.
    seen : ndarray or csr_array of shape (n_takers, n_items), optional
        1 where an item was seen, else 0; None where every taker saw every item.
    weight : ndarray of shape (n_takers,)
        How often each taker counts.
    """

    right: Matrix
    seen: Matrix | None
    weight: Floats

    @property
    def n_takers(self) -> int:
        """Number of rows."""
        return int(self.right.shape[0])

    @property
    def n_items(self) -> int:
        """Number of columns."""
        return int(self.right.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether the cells are held sparse."""
        return bool(sparse.issparse(self.right))

    @cached_property
    def seen_by_taker(self) -> Floats:
        """Number of items each taker saw."""
        if self.seen is None:
            return np.full(self.n_takers, float(self.n_items))
        return np.asarray(self.seen.sum(axis=1), dtype=float).ravel()

    @cached_property
    def right_by_taker(self) -> Floats:
        """Number of items each taker got right."""
        return np.asarray(self.right.sum(axis=1), dtype=float).ravel()

    @cached_property
    def seen_by_item(self) -> Floats:
        """Weight of the takers who saw each item."""
        if self.seen is None:
            return np.full(self.n_items, self.weight.sum())
        return np.asarray(self.seen.T @ self.weight)

    @cached_property
    def right_by_item(self) -> Floats:
        """Weight of the takers who got each item right."""
        return np.asarray(self.right.T @ self.weight)

    @cached_property
    def n_cells(self) -> int:
        """Number of observed cells."""
        return int(self.seen_by_taker.sum())

    @cached_property
    def extreme(self) -> NDArray[np.bool_]:
        """Items that all who saw them got right, or all wrong."""
        return (self.right_by_item <= 0) | (self.right_by_item >= self.seen_by_item)

    @cached_property
    def patterns(self) -> tuple[Matrix, NDArray[np.int64]]:
        """Distinct rows of ``seen`` and which of them each taker has."""
        if self.seen is None:
            return np.ones((1, self.n_items)), np.zeros(self.n_takers, dtype=np.int64)
        if self.is_sparse:
            keys = [row.tobytes() for row in np.split(self.seen.indices, self.seen.indptr[1:-1])]
        else:
            keys = [row.tobytes() for row in np.packbits(self.seen.astype(bool), axis=1)]
        known: dict[bytes, int] = {}
        which = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
        first = np.unique(which, return_index=True)[1]
        return self.seen[first], which

    @cached_property
    def _design(self) -> tuple[Matrix, NDArray[np.int64] | None]:
        """Rows of ``seen``, distinct ones where takers share many, and which of them each taker has.

        Sparse rows are turned, so that a range of items is a range of rows.
        """
        seen, which = self.seen, None
        if seen is None:
            seen = np.ones((1, self.n_items))
        elif self._few_patterns:
            seen, which = self.patterns
        return (_turned(seen) if sparse.issparse(seen) else seen), which

    @cached_property
    def _few_patterns(self) -> bool:
        return self.seen is not None and len(np.unique(self.patterns[1])) <= MOST_PATTERNS * self.n_takers

    @cached_property
    def _right_turned(self) -> Matrix:
        return _turned(self.right)

    def sum_seen(self, table: Floats, columns: slice = slice(None)) -> Floats:
        """Sum rows of an item table over the items each taker saw.

        Parameters
        ----------
        table : ndarray of shape (n_chosen, k)
            One row per chosen item.
        columns : slice
            The chosen items.

        Returns
        -------
        ndarray of shape (n_takers, k) or (1, k)
            The sums; one row where all takers saw all items.
        """
        if self.seen is None:
            return table.sum(axis=0, keepdims=True)
        rows, which = self._design
        sums = _sum_by_row(rows, table, columns)
        return sums if which is None else sums[which]

    def spread_seen(self, table: Floats, columns: slice = slice(None)) -> Floats:
        """Sum rows of a taker table over the takers who saw each chosen item.

        Parameters
        ----------
        table : ndarray of shape (n_takers, k)
            One row per taker.
        columns : slice
            The chosen items.

        Returns
        -------
        ndarray of shape (n_chosen, k) or (1, k)
            The sums; one row where all takers saw all items.
        """
        if self.seen is None:
            return table.sum(axis=0, keepdims=True)
        rows, which = self._design
        if which is not None:
            member = (np.ones(len(which)), (which, np.arange(len(which))))
            table = sparse.csr_array(member, shape=(int(which.max()) + 1, len(which))) @ table
        return _sum_by_column(rows, table, columns)

    def sum_right(self, table: Floats, columns: slice = slice(None)) -> Floats:
        """Sum rows of an item table over the items each taker got right, as :meth:`sum_seen` does."""
        return _sum_by_row(self._right_turned if self.is_sparse else self.right, table, columns)

    def spread_right(self, table: Floats, columns: slice = slice(None)) -> Floats:
        """Sum rows of a taker table over the takers who got each item right, as :meth:`spread_seen` does."""
        return _sum_by_column(self._right_turned if self.is_sparse else self.right, table, columns)

    def take(self, rows: Any) -> "Responses":
        """Keep some takers.

        Parameters
        ----------
        rows : slice or ndarray
            Which.

        Returns
        -------
        Responses
            Theirs.
        """
        return Responses(self.right[rows], None if self.seen is None else self.seen[rows], self.weight[rows])

    def items(self, columns: NDArray[Any]) -> "Responses":
        """Keep some items.

        Parameters
        ----------
        columns : ndarray of int or bool
            Which.

        Returns
        -------
        Responses
            Their cells; takers stay even if no cell is left to them.
        """
        chosen = np.flatnonzero(columns) if columns.dtype == bool else columns
        return Responses(
            self.right[:, chosen], None if self.seen is None else self.seen[:, chosen], self.weight
        )

    def weighted(self, weight: Floats) -> "Responses":
        """Return the same cells with other weights of the takers."""
        return replace(self, weight=weight)

    def blocks(self, cells: int) -> Iterator["tuple[slice, Cells]"]:
        """Walk through the takers in blocks.

        Parameters
        ----------
        cells : int
            About how many cells a block has.

        Yields
        ------
        tuple of slice and Cells
            Rows, and their cells.
        """
        per_taker = self.n_cells / self.n_takers if self.is_sparse else self.n_items
        size = max(1, int(cells / max(per_taker, 1)))
        for start in range(0, self.n_takers, size):
            rows = slice(start, min(start + size, self.n_takers))
            yield rows, Cells.of(self.take(rows))

    def long(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Return taker, item and answer of every observed cell, by taker and item."""
        if self.is_sparse and self.seen is not None:
            both = self.seen + self.right  # 1 where wrong, 2 where right
            taker = np.repeat(np.arange(self.n_takers), np.diff(both.indptr))
            return taker, both.indices.astype(np.int64), both.data - 1
        if self.is_sparse:
            return replace(self, right=self.right.toarray()).long()
        seen = np.ones(self.right.shape, dtype=bool) if self.seen is None else self.seen > 0
        taker, item = np.nonzero(seen)
        return taker, item, self.right[taker, item]


def _turned(matrix: Matrix) -> Matrix:
    """Turn a sparse matrix of zeros and ones; the ones take a byte each."""
    return sparse.csr_array(matrix.astype(np.int8).T)


def _sum_by_row(matrix: Matrix, table: Floats, columns: slice) -> Floats:
    """Multiply chosen columns of a dense matrix, or chosen rows of a turned sparse one, with their table."""
    if not sparse.issparse(matrix):
        return np.asarray(matrix[:, columns] @ table)
    return np.asarray(_rows(matrix, columns).T @ table)


def _sum_by_column(matrix: Matrix, table: Floats, columns: slice) -> Floats:
    """Multiply the same, turned around, with a table of takers."""
    if not sparse.issparse(matrix):
        return np.asarray(matrix[:, columns].T @ table)
    return np.asarray(_rows(matrix, columns) @ table)


def _rows(matrix: Matrix, chosen: slice) -> Matrix:
    """A range of rows of a sparse matrix without a copy of its indices."""
    first, last, _ = chosen.indices(matrix.shape[0])
    ends = matrix.indptr[first : last + 1]
    cells = slice(ends[0], ends[-1])
    shape = (last - first, matrix.shape[1])
    return sparse.csr_array((matrix.data[cells], matrix.indices[cells], ends - ends[0]), shape=shape)


@dataclass(frozen=True)
class Cells:
    """Cells of some takers, all of a dense block or those observed of a sparse one.

    Attributes
    ----------
    right, seen : ndarray
        (takers, items) for a dense block, (cells,) for a sparse one; ``seen`` is None where all are.
    shape : tuple of int
        Takers and items.
    item : ndarray of int, optional
        Item of each cell, for a sparse block.
    starts : ndarray of int, optional
        First cell of each taker and the end, for a sparse block.
    """

    right: Floats
    seen: Floats | None
    shape: tuple[int, int]
    item: NDArray[Any] | None = None
    starts: NDArray[Any] | None = None

    @classmethod
    def of(cls, responses: Responses) -> "Cells":
        """Cells of all takers of some responses."""
        shape = (responses.n_takers, responses.n_items)
        if not responses.is_sparse:
            return cls(responses.right, responses.seen, shape)
        taker, item, right = responses.long()
        starts = np.searchsorted(taker, np.arange(shape[0] + 1))
        return cls(right, None, shape, item, starts)

    def from_takers(self, values: Floats) -> Floats:
        """Give every cell its taker's value."""
        if self.item is None:
            return values[:, None]
        assert self.starts is not None
        return np.repeat(values, np.diff(self.starts))

    def from_items(self, values: Floats) -> Floats:
        """Give every cell its item's value."""
        return values[None, :] if self.item is None else values[self.item]

    def by_taker(self, cells: Floats) -> Floats:
        """Sum observed cells by taker."""
        if self.item is None:
            if self.seen is None:
                return cells.sum(axis=1)
            return np.einsum("ni,ni->n", cells, self.seen)
        assert self.starts is not None
        sums = np.concatenate([[0.0], np.cumsum(cells)])
        return sums[self.starts[1:]] - sums[self.starts[:-1]]

    def by_item(self, cells: Floats) -> Floats:
        """Sum observed cells by item."""
        if self.item is None:
            return cells.sum(axis=0) if self.seen is None else np.einsum("ni,ni->i", cells, self.seen)
        return np.asarray(np.bincount(self.item, cells, minlength=self.shape[1]), dtype=float)


def read_responses(
    X: Any, *, mask: Any = None, missing_values: float = np.nan, weight: Floats | None = None, name: str = "X"
) -> Responses:
    """Read a validated matrix.

    Parameters
    ----------
    X : ndarray or sparse array of shape (n_takers, n_items)
        0, 1 and, where it is dense, ``missing_values``.
    mask : array-like or sparse array of shape (n_takers, n_items), optional
        True where an item was seen; what X has elsewhere does not count.
    missing_values : float
        What stands for an item that was not seen.
    weight : ndarray of shape (n_takers,), optional
        Weights of the takers.
    name : str
        The matrix's name, for messages.

    Returns
    -------
    Responses
        The cells.

    Raises
    ------
    ValueError
        If a cell holds anything else, or the mask has another shape.
    """
    weights = np.ones(X.shape[0]) if weight is None else np.asarray(weight, dtype=float)
    shown = _read_mask(mask, X.shape)
    if sparse.issparse(X):
        return _read_sparse(X, shown, weights, name)
    values = np.asarray(X, dtype=float)
    if shown is None and _all_known(values):
        return Responses(values, None, weights)
    seen = ~np.isnan(values) if np.isnan(missing_values) else values != missing_values
    if shown is not None:
        seen &= np.asarray(shown.toarray() if sparse.issparse(shown) else shown, dtype=bool)
    right = np.where(seen, values, 0.0)
    if not _all_known(right):
        row, column = np.argwhere((right != 0) & (right != 1))[0]
        raise ValueError(
            f"{name}[{row}, {column}] must be 0, 1 or missing ({missing_values}), got {values[row, column]:g}"
        )
    return Responses(right, None if seen.all() else seen.astype(float), weights)


def _all_known(values: Floats) -> bool:
    """Whether all cells are 0 or 1."""
    return np.count_nonzero(values == 1) + np.count_nonzero(values == 0) == values.size


def _read_mask(mask: Any, shape: tuple[int, int]) -> Any:
    if mask is None:
        return None
    found = mask if sparse.issparse(mask) else np.asarray(mask)
    if found.shape != shape:
        raise ValueError(f"mask must have the shape of X, {shape}, got {found.shape}")
    return found


def _read_sparse(X: Any, mask: Any, weight: Floats, name: str) -> Responses:
    """Cells of a sparse matrix; what the mask leaves out does not count."""
    right = sparse.csr_array(X, dtype=float, copy=True)
    seen = None
    if mask is not None:
        seen = sparse.csr_array(mask, dtype=float, copy=True)
        seen.data = (seen.data != 0).astype(float)
        seen.eliminate_zeros()
        seen.sum_duplicates()
        right = sparse.csr_array(right.multiply(seen))
    right.eliminate_zeros()
    right.sum_duplicates()
    wrong = right.data != 1
    if wrong.any():
        cell = np.flatnonzero(wrong)[0]
        row = np.searchsorted(right.indptr, cell, side="right") - 1
        raise ValueError(f"{name}[{row}, {right.indices[cell]}] must be 0 or 1, got {right.data[cell]:g}")
    if seen is not None and seen.nnz == seen.shape[0] * seen.shape[1]:
        seen = None
    return Responses(right, seen, weight)


def components(responses: Responses) -> list[tuple[int, int]]:
    """Find the parts of a design that no taker and no item links.

    Parameters
    ----------
    responses : Responses
        The cells; takers without weight or without a cell link nothing and count for nothing.

    Returns
    -------
    list of tuple of int
        Takers and items of each part, the largest first.
    """
    if responses.seen is None:
        return [(responses.n_takers, responses.n_items)]
    if _reaches_all(responses):
        return [(int((responses.seen_by_taker > 0).sum()), responses.n_items)]
    seen = sparse.csr_array(responses.seen)
    n = seen.shape[0]
    graph = sparse.block_array([[None, seen], [seen.T, None]])
    _, label = connected_components(graph, directed=False)
    linked = np.concatenate([responses.seen_by_taker > 0, np.ones(responses.n_items, dtype=bool)])
    found = []
    for part in np.unique(label[linked]):
        members = label == part
        found.append((int(members[:n].sum()), int(members[n:].sum())))
    return sorted(found, reverse=True)


def _reaches_all(responses: Responses) -> bool:
    """Whether the answers lead from the first item to all others: the usual case takes a few products."""
    seen: Any = responses.seen
    items = np.zeros(responses.n_items)
    items[0], reached = 1.0, 0
    while reached < (now := int(items.sum())):
        reached = now
        takers = (seen @ items > 0).astype(float)
        items = (seen.T @ takers > 0).astype(float)
        items[0] = 1.0
    return reached == responses.n_items


def responses_from_long(taker: ArrayLike, item: ArrayLike, y: ArrayLike) -> Bunch:
    """Make a sparse matrix of responses, and its mask, from one row per answer.

    Parameters
    ----------
    taker, item : array-like of shape (n_answers,)
        Names or numbers of the taker and the item of each answer.
    y : array-like of shape (n_answers,)
        1 for right, 0 for wrong.

    Returns
    -------
    Bunch
        ``X`` and ``mask``, sparse arrays of shape (n_takers, n_items) for ``fit(X, mask=mask)``;
        ``taker_names`` and ``item_names``, in order.

    Raises
    ------
    ValueError
        If the lengths differ, an answer is neither 0 nor 1, or a pair comes twice.

    Examples
    --------
    >>> from seedbed.estimators import responses_from_long
    >>> long = responses_from_long(["ann", "ann", "bob"], ["q1", "q2", "q2"], [1, 0, 1])
    >>> long.X.toarray(), long.mask.toarray()
    (array([[1., 0.],
           [0., 1.]]), array([[ True,  True],
           [False,  True]]))
    """
    takers, items = np.asarray(taker), np.asarray(item)
    answers = np.asarray(y, dtype=float)
    if not takers.shape == items.shape == answers.shape or answers.ndim != 1:
        raise ValueError(
            "taker, item and y must be one-dimensional and of one length, got shapes "
            f"{takers.shape}, {items.shape} and {answers.shape}"
        )
    wrong = (answers != 0) & (answers != 1)
    if wrong.any():
        raise ValueError(f"y[{np.argmax(wrong)}] must be 0 or 1, got {answers[np.argmax(wrong)]:g}")
    taker_names, rows = np.unique(takers, return_inverse=True)
    item_names, columns = np.unique(items, return_inverse=True)
    cell = rows.astype(np.int64) * len(item_names) + columns
    unique, count = np.unique(cell, return_counts=True)
    if (count > 1).any():
        row, column = divmod(int(unique[np.argmax(count)]), len(item_names))
        who, what = taker_names[row].item(), item_names[column].item()
        raise ValueError(f"taker {who!r} answers item {what!r} more than once")
    shape = (len(taker_names), len(item_names))
    X = sparse.csr_array((answers, (rows, columns)), shape=shape)
    X.eliminate_zeros()
    mask = sparse.csr_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=shape)
    return Bunch(X=X, mask=mask, taker_names=taker_names, item_names=item_names)


def check_linked(responses: Responses) -> None:
    """Raise unless answers link all takers and items.

    Parameters
    ----------
    responses : Responses
        The cells.

    Raises
    ------
    ValueError
        If there are several parts; the message has their sizes.
    """
    parts = components(responses)
    if len(parts) > 1:
        sizes = ", ".join(f"{takers} x {items}" for takers, items in parts)
        raise ValueError(
            f"X falls into {len(parts)} parts of takers x items that no answer links ({sizes}): abilities "
            "are not comparable. Set allow_disconnected=True to fit them all the same"
        )


def code_groups(
    labels: Any, n: int, *, name: str = "taker_groups", of: str = "taker"
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Number groups in the order in which they come.

    Parameters
    ----------
    labels : array-like of shape (n,) or None
        Labels; None for one group.
    n : int
        How many there must be.
    name, of : str
        For messages.

    Returns
    -------
    labels, code : ndarray
        Distinct labels, the first one first, and which of them each has.

    Raises
    ------
    ValueError
        If the shape is another.
    """
    if labels is None:
        return np.zeros(1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    given = np.asarray(labels)
    if given.shape != (n,):
        raise ValueError(f"{name} must have one label for each {of}, shape ({n},), got {given.shape}")
    distinct, first, code = np.unique(given, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[code]
