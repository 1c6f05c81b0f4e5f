"""What loaders share: orders that depend on seeds alone, work for each process, going on within an epoch."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from seedbed.checks import check_number

Batch = TypeVar("Batch")


def derive_seed(seed: int, *path: int) -> int:
    """A seed of its own for each path.

    Parameters
    ----------
    seed : int
        Non-negative.
    *path : int
        Such as the epoch.

    Returns
    -------
    int
        In [0, 2**63).
    """
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def permutation(n: int, seed: int, *path: int) -> Tensor:
    """An order of n rows that depends on the seed and the path alone.

    Parameters
    ----------
    n : int
        Number of rows.
    seed : int
        Non-negative.
    *path : int
        Such as the epoch.

    Returns
    -------
    Tensor of int64, shape (n,)
        The order.
    """
    return torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(seed, *path)))


def this_process() -> tuple[int, int]:
    """Tell the number of this process and how many there are.

    Returns
    -------
    (int, int)
        (0, 1) where no process group is running.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class SharedBatches(Generic[Batch]):
    """Loader whose steps are shared out among processes, and that Lightning can resume within an epoch.

    A subclass says with :meth:`share` and ``__len__`` what the steps are.

    Parameters
    ----------
    batch_size : int
        Rows of a step, over all processes.
    seed : int, optional
        Seed of the order; None keeps it.

    Raises
    ------
    TypeError, ValueError
        If a number is out of range.
    """

    def __init__(self, *, batch_size: int, seed: int | None = None) -> None:
        check_number("batch_size", batch_size, low=1, integer=True)
        if seed is not None:
            check_number("seed", seed, low=0, integer=True)
        self.batch_size = int(batch_size)
        self.seed = seed
        self.epoch = 0
        self._taken = 0
        self._resume: tuple[int, int] | None = None

    @property
    def sampler(self) -> "SharedBatches[Batch]":
        """Where Lightning looks for ``set_epoch``; missing where nothing is shuffled."""
        if self.seed is None:
            raise AttributeError("batches in order have no sampler")
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration follows.

        Parameters
        ----------
        epoch : int
            Epoch, from 0.
        """
        self.epoch = int(epoch)

    def __len__(self) -> int:
        raise NotImplementedError

    def share(self, rank: int, world: int) -> Iterator[Batch]:
        """Yield one process's share of every step.

        Parameters
        ----------
        rank, world : int
            Number of the process and of all processes; ``share(0, 1)`` is everything.

        Yields
        ------
        tuple of Tensor
            A batch.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        self._taken = skip = 0
        if self._resume is not None:
            epoch, taken = self._resume
            self._resume = None
            skip = taken if epoch == self.epoch and taken < len(self) else 0
        for step, batch in enumerate(self.share(*this_process())):
            self._taken = step + 1
            if step >= skip:
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return how far the present iteration has come.

        Returns
        -------
        dict
            ``epoch`` and ``taken``, the number of batches handed out.
        """
        return {"epoch": self.epoch, "taken": self._taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iteration over the saved epoch go on where that one stood.

        Parameters
        ----------
        state_dict : dict
            What :meth:`state_dict` returned.
        """
        self._resume = (int(state_dict["epoch"]), int(state_dict["taken"]))
