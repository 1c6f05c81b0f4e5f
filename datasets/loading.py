"""Loaders over arrays held in memory, with an order that depends on the seed and the epoch alone.

Nothing here draws from torch's global generator, so loading data never changes how a model is initialised.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from seedbed.batches import permutation
from seedbed.checks import check_number

Batch = tuple[Tensor, Tensor]


class EpochSampler(Sampler[int]):
    """Shuffle rows by a permutation that is a function of ``(seed, epoch)``.

    Lightning calls ``set_epoch`` before every epoch, also after a resume, so a resumed run sees the rows that
    an uninterrupted one would have seen. Under DDP, Lightning (with ``use_distributed_sampler=True``, its
    default) wraps the sampler, forwards ``set_epoch`` and deals the rows out to the ranks; every row is seen
    once, up to the padding that makes the ranks' shares equal.

    Parameters
    ----------
    size : int
        Number of rows.
    seed : int
        Seed, 0 or more.

    Examples
    --------
    >>> from seedbed.datasets.loading import EpochSampler
    >>> sampler = EpochSampler(5, seed=0)
    >>> first = list(sampler)
    >>> sampler.set_epoch(1)
    >>> second = list(sampler)
    >>> sampler.set_epoch(0)
    >>> first == list(sampler), first == second
    (True, False)
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        check_number("size", size, low=1, integer=True)
        check_number("seed", seed, low=0, integer=True)
        self.size = int(size)
        self.seed = int(seed)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration follows.

        Parameters
        ----------
        epoch : int
            Epoch, from 0.
        """
        self.epoch = int(epoch)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        yield from permutation(self.size, self.seed, self.epoch).tolist()


class ArrayDataset(Dataset[Batch]):
    """Pairs ``(x, y)`` held as tensors; a list of rows comes out as one batch, in one indexing.

    Parameters
    ----------
    x : Tensor, shape (n, ...)
        Inputs. ``uint8`` inputs stay as they are in memory and become float32 on the way out.
    y : Tensor, shape (n, ...)
        Targets.
    shift, scale : Tensor, optional
        If given, a batch is ``(x - shift) / scale`` in float32, broadcast over the rows.

    Raises
    ------
    ValueError
        If the numbers of rows differ.

    Examples
    --------
    >>> import torch
    >>> from seedbed.datasets.loading import ArrayDataset
    >>> x, y = ArrayDataset(torch.arange(6.0).reshape(3, 2), torch.arange(3)).__getitems__([2, 0])
    >>> x.tolist(), y.tolist()
    ([[4.0, 5.0], [0.0, 1.0]], [2, 0])
    """

    def __init__(
        self, x: Tensor, y: Tensor, *, shift: Tensor | None = None, scale: Tensor | None = None
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"x and y must have the same number of rows, got {len(x)} and {len(y)}")
        self.x, self.y, self.shift, self.scale = x, y, shift, scale

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        """Return the rows as one batch.

        Parameters
        ----------
        rows : sequence of int
            Row numbers.

        Returns
        -------
        tuple of Tensor
            ``x`` and ``y`` of these rows.
        """
        index = torch.as_tensor(rows)
        return self._inputs(self.x[index]), self.y[index]

    def __getitem__(self, row: int) -> Batch:
        return self._inputs(self.x[row]), self.y[row]

    def arrays(self) -> Batch:
        """Return all rows in order as one batch.

        Returns
        -------
        tuple of Tensor
            ``x`` and ``y``.
        """
        return self._inputs(self.x), self.y

    def _inputs(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            x = x.float()
        if self.shift is not None:
            x = x - self.shift
        if self.scale is not None:
            x = x / self.scale
        return x


class OneHotDataset(ArrayDataset):
    """Pairs whose inputs are codes in memory and one-hot float32 vectors on the way out.

    Parameters
    ----------
    x : Tensor of int64, shape (n, ...)
        Codes below ``num_codes``.
    y : Tensor, shape (n, ...)
        Targets.
    num_codes : int
        Length of the one-hot vectors.
    """

    def __init__(self, x: Tensor, y: Tensor, *, num_codes: int) -> None:
        super().__init__(x, y)
        self.eye = torch.eye(num_codes)

    def _inputs(self, x: Tensor) -> Tensor:
        return self.eye[x]


def _as_is(batch: Any) -> Any:
    """Collate nothing: the dataset has made the batch already."""
    return batch


class ArrayLoader(DataLoader[Batch]):
    """A DataLoader that Lightning can resume in the middle of an epoch.

    ``state_dict`` says how many batches of which epoch were taken; after ``load_state_dict`` that epoch goes
    on behind them. An iteration starts its workers only when its first batch is asked for, hence after
    ``set_epoch``.

    Parameters
    ----------
    *args, **kwargs
        As for :class:`torch.utils.data.DataLoader`. :meth:`over` gives the arguments that suit an
        :class:`ArrayDataset`.
    """

    _taken = 0
    _resume: tuple[int, int] | None = None

    @classmethod
    def over(
        cls,
        dataset: ArrayDataset,
        *,
        batch_size: int,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
    ) -> "ArrayLoader":
        """Make a loader over an array dataset.

        Parameters
        ----------
        dataset : ArrayDataset
            The rows.
        batch_size : int
            Rows of a batch.
        shuffle_seed : int, optional
            Shuffle every epoch anew from this seed; None keeps the order of the rows.
        num_workers : int
            Worker processes; arrays in memory need none.
        drop_last : bool
            Whether to leave out a smaller last batch.

        Returns
        -------
        ArrayLoader
            The loader.
        """
        return cls(
            dataset,
            batch_size=batch_size,
            sampler=None if shuffle_seed is None else EpochSampler(len(dataset), shuffle_seed),
            num_workers=num_workers,
            drop_last=drop_last,
            collate_fn=_as_is,
            pin_memory=torch.cuda.is_available(),
            # Its own generator: the seed of the workers would otherwise come from the global one.
            generator=torch.Generator().manual_seed(shuffle_seed or 0),
        )

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self._taken = 0
        skip = 0
        if self._resume is not None:
            epoch, taken = self._resume
            self._resume = None
            skip = taken if epoch == self._epoch and taken < len(self) else 0
        for batch in super().__iter__():
            self._taken += 1
            if self._taken > skip:
                yield batch

    @property
    def _epoch(self) -> int:
        """The epoch last set; Lightning's distributed sampler, which wraps ours, keeps it too."""
        return int(getattr(self.sampler, "epoch", 0))

    def state_dict(self) -> dict[str, Any]:
        """Return how far the present iteration has come.

        Returns
        -------
        dict
            ``epoch`` and ``taken``, the number of batches handed out.
        """
        return {"epoch": self._epoch, "taken": self._taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iteration over the saved epoch go on where that one stood.

        Parameters
        ----------
        state_dict : dict
            What :meth:`state_dict` returned.
        """
        self._resume = (int(state_dict["epoch"]), int(state_dict["taken"]))
