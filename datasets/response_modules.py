"""Batches of answers, whole takers or single cells, and a data module that hands them out."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from seedbed.batches import SharedBatches, permutation, this_process
from seedbed.checks import check_choice, check_number
from seedbed.datasets.classifier_responses import load_classifier_responses
from seedbed.datasets.item_responses import (
    load_lsat6,
    load_lsat7,
    load_swedish_sat,
    load_verbal_aggression,
)
from seedbed.datasets.synthetic_responses import make_irt_responses

NAMES = (
    "lsat6", "lsat7", "verbal_aggression", "swedish_sat_quant", "swedish_sat_verb", "classifiers",
    "simulated",
)  # fmt: skip
Ints = NDArray[np.int64]


class ResponseBatch(NamedTuple):
    """Some answers.

    Parameters
    ----------
    cells : Tensor of int64, shape (n, 2)
        Taker and item of each.
    y : Tensor of float32, shape (n,)
        1 for right, 0 for wrong.

    Examples
    --------
    >>> import torch
    >>> ResponseBatch(torch.tensor([[0, 3], [0, 4]]), torch.tensor([1.0, 0.0])).cells.shape
    torch.Size([2, 2])
    """

    cells: Tensor
    y: Tensor


class ResponseBatches(SharedBatches[ResponseBatch]):
    """Loader of batches of answers.

    With a seed, the order of an epoch depends on ``(seed, epoch)`` alone; without, takers come in order.
    Several processes share out every step, a taker never between two of them. Lightning can resume within an
    epoch.

    Parameters
    ----------
    cells : Tensor of int64, shape (n, 2)
        Taker and item of each answer, sorted by taker.
    y : Tensor of shape (n,)
        Answers.
    batch_size : int
        Takers or cells of a step, over all processes; an epoch's steps are of equal size, up to one.
    unit : {"takers", "cells"}
        Whether a batch is made of takers with all of their answers, or of single answers.
    seed : int, optional
        Seed of the order; None keeps it.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> import torch
    >>> cells = torch.tensor([[0, 0], [0, 1], [1, 1], [2, 0]])
    >>> batches = ResponseBatches(cells, torch.tensor([1.0, 0.0, 1.0, 1.0]), batch_size=2)
    >>> [batch.cells[:, 0].tolist() for batch in batches]
    [[0, 0, 1], [2]]
    """

    def __init__(
        self, cells: Tensor, y: Tensor, *, batch_size: int, unit: str = "takers", seed: int | None = None
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        check_choice("unit", unit, ("takers", "cells"))
        if cells.ndim != 2 or cells.shape[1] != 2 or len(cells) != len(y) or not len(y):
            raise ValueError(
                f"cells must have shape (n, 2) and y shape (n,), n >= 1, got {tuple(cells.shape)} and "
                f"{tuple(y.shape)}"
            )
        taker = cells[:, 0]
        if bool((taker[1:] < taker[:-1]).any()):
            raise ValueError("cells must be sorted by taker")
        self.cells, self.y = cells, y
        if unit == "takers":
            counts = torch.unique_consecutive(taker, return_counts=True)[1]
        else:
            counts = torch.ones(len(taker), dtype=torch.int64)
        self.counts = counts
        self.starts = counts.cumsum(0) - counts

    def __len__(self) -> int:
        return math.ceil(len(self.counts) / self.batch_size)

    def share(self, rank: int, world: int) -> Iterator[ResponseBatch]:
        """Yield one process's share of every step.

        Parameters
        ----------
        rank, world : int
            Number of the process and of all processes; ``share(0, 1)`` is everything.

        Yields
        ------
        ResponseBatch
            Empty where a step has fewer units than there are processes.
        """
        n = len(self.counts)
        order = torch.arange(n) if self.seed is None else permutation(n, self.seed, self.epoch)
        for step in order.tensor_split(len(self)):
            units = step.tensor_split(world)[rank]
            # Cells of the units, one after another.
            counts = self.counts[units]
            offset = torch.arange(int(counts.sum())) - torch.repeat_interleave(
                counts.cumsum(0) - counts, counts
            )
            rows = torch.repeat_interleave(self.starts[units], counts) + offset
            yield ResponseBatch(self.cells[rows], self.y[rows])


class PairBatches:
    """Loader of all pairs of taker and item, row by row of the table.

    Parameters
    ----------
    n_takers, n_items : int
        Shape of the table.
    batch_size : int
        Takers of a batch, over all processes, as far as a batch has no more than a million pairs.

    Examples
    --------
    >>> [cells.tolist() for (cells,) in PairBatches(2, 2, batch_size=1)]
    [[[0, 0], [0, 1]], [[1, 0], [1, 1]]]
    """

    MOST_PAIRS = 1 << 20

    def __init__(self, n_takers: int, n_items: int, *, batch_size: int) -> None:
        self.n_takers, self.n_items = n_takers, n_items
        self.size = max(1, min(batch_size * n_items, self.MOST_PAIRS))

    def __len__(self) -> int:
        return math.ceil(self.n_takers * self.n_items / self.size)

    def __iter__(self) -> Iterator[tuple[Tensor]]:
        rank, world = this_process()
        total = self.n_takers * self.n_items
        for start in range(0, total, self.size):
            pairs = torch.arange(start, min(start + self.size, total)).tensor_split(world)[rank]
            yield (torch.stack([pairs // self.n_items, pairs % self.n_items], dim=1),)


class ResponseDataModule(LightningDataModule):
    """Answers of takers to items for :class:`~seedbed.lightning_modules.AmortizedIRTModule`.

    Training, validation and test batches are :class:`ResponseBatch`; held-out cells are drawn from all
    observed ones, but the last answer of a taker or to an item always stays in the training data. The predict
    loader hands out every pair of taker and item, so that the predictions, joined and reshaped to ``shape``,
    are the table of chances.

    Parameters
    ----------
    data : str or mapping or array-like
        "lsat6", "lsat7", "verbal_aggression", "swedish_sat_quant", "swedish_sat_verb", "classifiers"
        (:func:`load_classifier_responses`), "simulated" (:func:`make_irt_responses`, with ``settings``); or a
        table of shape (n_takers, n_items) with 1, 0 and NaN for no answer; or a mapping that holds it under
        ``data``, and features of the items under ``item_features``.
    batch_size : int
        Takers of a training step, or cells.
    unit : {"takers", "cells"}
        What batches are made of. The marginal loss needs takers.
    val_size, test_size : float
        Shares of the observed cells held out, in [0, 1).
    mask : array-like or sparse matrix of shape (n_takers, n_items), optional
        True where there is an answer, for a sparse table.
    settings : dict, optional
        Arguments of :func:`make_irt_responses`.
    random_state : int
        Seed of simulated data, of what is held out and of the order.

    Attributes
    ----------
    shape : tuple of int
        Takers and items; known after :meth:`setup`.
    item_inputs : ndarray or None
        Features of the items, where the data have some.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> data = ResponseDataModule("lsat6", batch_size=250)
    >>> [len(batch.cells[:, 0].unique()) for batch in data.train_dataloader()]
    [250, 250, 250, 250]
    """

    def __init__(
        self,
        data: Any = "lsat6",
        batch_size: int = 256,
        unit: str = "takers",
        val_size: float = 0.1,
        test_size: float = 0.1,
        mask: Any = None,
        settings: dict[str, Any] | None = None,
        random_state: int = 0,
    ) -> None:
        super().__init__()
        check_number("batch_size", batch_size, low=1, integer=True)
        check_choice("unit", unit, ("takers", "cells"))
        for name, share in (("val_size", val_size), ("test_size", test_size)):
            check_number(name, share, low=0, high=1, closed="left")
        if val_size + test_size >= 1:
            raise ValueError(f"val_size + test_size must be less than 1, got {val_size} + {test_size}")
        check_number("random_state", random_state, low=0, integer=True)
        if isinstance(data, str):
            check_choice("data", data, NAMES)
        if settings is not None and not (isinstance(data, str) and data == "simulated"):
            raise ValueError(f"settings are for data='simulated', got data={data!r}")
        self.data, self.mask, self.settings = data, mask, settings
        self.batch_size, self.unit = batch_size, unit
        self.val_size, self.test_size = float(val_size), float(test_size)
        self.random_state = random_state
        self.save_hyperparameters(ignore=["data", "mask"], logger=False)
        self.shape: tuple[int, int] | None = None
        self.item_inputs: NDArray[Any] | None = None
        self._parts: list[ResponseBatches | None] = []

    def setup(self, stage: str | None = None) -> None:
        """Read the table and hold out cells, once.

        Parameters
        ----------
        stage : str, optional
            Lightning's stage; everything is made in any.

        Raises
        ------
        ValueError
            If a cell is neither 0, 1 nor missing, or no cell can be held out.
        """
        del stage
        if self._parts:
            return
        table, features = self._load()
        taker, item, y = _long(table, self.mask)
        self.item_inputs = None if features is None else np.asarray(features)
        part = _held_out(taker, item, (self.val_size, self.test_size), self.random_state)
        cells = torch.from_numpy(np.stack([taker, item], axis=1))
        answers = torch.from_numpy(y.astype(np.float32))
        for k, name in enumerate(("data", "val_size", "test_size")):
            rows = torch.from_numpy(np.flatnonzero(part == k))
            if k > 0 and getattr(self, name) > 0 and not len(rows):
                raise ValueError(f"{name}={getattr(self, name):g} leaves no cell to hold out")
            made = None
            if len(rows):
                made = ResponseBatches(
                    cells[rows],
                    answers[rows],
                    batch_size=self.batch_size,
                    unit=self.unit,
                    seed=self.random_state if k == 0 else None,
                )
            self._parts.append(made)
        self.shape = (int(table.shape[0]), int(table.shape[1]))

    def _load(self) -> tuple[Any, Any]:
        """The table, and features of the items."""
        data = self.data
        if isinstance(data, str):
            loaders = {
                "lsat6": load_lsat6,
                "lsat7": load_lsat7,
                "verbal_aggression": load_verbal_aggression,
                "classifiers": load_classifier_responses,
            }
            if data == "simulated":
                data = make_irt_responses(**{"random_state": self.random_state, **(self.settings or {})})
            elif data.startswith("swedish_sat_"):
                data = load_swedish_sat("quant" if data.endswith("quant") else "verb")
            else:
                data = loaders[data]()
        if isinstance(data, Mapping):
            if "data" not in data:
                raise ValueError(f"data must hold a table under 'data', got {sorted(data)}")
            return data["data"], data.get("item_features")
        return data, None

    def _batches(self, part: int) -> Any:
        self.setup()
        found = self._parts[part]
        return [] if found is None else found

    def train_dataloader(self) -> ResponseBatches:
        """Return the loader of training batches, shuffled anew every epoch.

        Returns
        -------
        ResponseBatches
            The loader.
        """
        found: ResponseBatches = self._batches(0)
        return found

    def val_dataloader(self) -> Any:
        """Return the loader of validation cells, in order.

        Returns
        -------
        ResponseBatches or list
            An empty list for ``val_size=0``.
        """
        return self._batches(1)

    def test_dataloader(self) -> Any:
        """Return the loader of test cells, in order.

        Returns
        -------
        ResponseBatches or list
            An empty list for ``test_size=0``.
        """
        return self._batches(2)

    def predict_dataloader(self) -> PairBatches:
        """Return the loader of all pairs of taker and item.

        Returns
        -------
        PairBatches
            Row by row.
        """
        self.setup()
        assert self.shape is not None
        return PairBatches(*self.shape, batch_size=self.batch_size)


def _long(table: Any, mask: Any) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """Taker, item and answer of every observed cell, by taker and item."""
    shape = tuple(np.shape(table)) if not sparse.issparse(table) else table.shape
    if len(shape) != 2 or min(shape) < 2:
        raise ValueError(f"data must be a table of at least 2 takers by 2 items, got shape {shape}")
    shown = mask
    if shown is not None and tuple(shown.shape if sparse.issparse(shown) else np.shape(shown)) != shape:
        raise ValueError(f"mask must have the shape of the table, {shape}")
    if sparse.issparse(table):
        if shown is None:
            raise ValueError("mask must tell which cells of a sparse table are answers")
        grid = sparse.csr_array(shown, dtype=bool)
        grid.eliminate_zeros()
        grid.sort_indices()
        taker = np.repeat(np.arange(shape[0]), np.diff(grid.indptr))
        item = grid.indices.astype(np.int64)
        y = np.asarray(sparse.csr_array(table)[taker, item], dtype=float).ravel()
    else:
        dense = np.asarray(table, dtype=float)
        seen = ~np.isnan(dense)
        if shown is not None:
            seen &= np.asarray(shown.toarray() if sparse.issparse(shown) else shown, dtype=bool)
        taker, item = np.nonzero(seen)
        y = dense[taker, item]
    wrong = (y != 0) & (y != 1)
    if wrong.any():
        k = int(np.argmax(wrong))
        raise ValueError(f"data[{taker[k]}, {item[k]}] must be 0, 1 or missing, got {y[k]:g}")
    if not len(y):
        raise ValueError("data must hold an answer, got none")
    return taker.astype(np.int64), item.astype(np.int64), y


def _held_out(taker: Ints, item: Ints, shares: tuple[float, float], seed: int) -> NDArray[np.int8]:
    """Part of each cell: 0 training, 1 validation, 2 test."""
    n = len(taker)
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(n)
    # The first answer of each taker and item in this order stays.
    stays = np.zeros(n, dtype=bool)
    for which in (taker, item):
        stays[order[np.unique(which[order], return_index=True)[1]]] = True
    free = order[~stays[order]]
    first, second = round(shares[0] * n), round(shares[1] * n)
    if first + second > len(free):
        raise ValueError(
            f"val_size and test_size ask for {first + second} of {n} cells, but only {len(free)} are not the "
            "last answer of a taker or to an item"
        )
    part = np.zeros(n, dtype=np.int8)
    part[free[:first]] = 1
    part[free[first : first + second]] = 2
    return part
