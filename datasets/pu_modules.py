"""Batches of positives, unlabeled rows and target rows, and a data module that hands them out."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from torch import Tensor

from seedbed.batches import SharedBatches, permutation
from seedbed.checks import check_choice, check_number
from seedbed.datasets.loading import ArrayDataset, ArrayLoader
from seedbed.datasets.positive_unlabeled import make_pu_covariate_shift, make_pu_digits

PARTS = ("positive", "unlabeled", "target")


class PUBatch(NamedTuple):
    """Rows of the three samples, each of shape (rows, ...).

    Parameters
    ----------
    positive, unlabeled : Tensor
        Labelled positives and unlabeled rows of the training population.
    target : Tensor
        Unlabeled rows of the target population.

    Examples
    --------
    >>> import torch
    >>> PUBatch(torch.zeros(2, 3), torch.zeros(8, 3), torch.zeros(4, 3)).target.shape
    torch.Size([4, 3])
    """

    positive: Tensor
    unlabeled: Tensor
    target: Tensor


class WeightedPUBatch(NamedTuple):
    """The same with the weight of each row in the sums over pairs.

    Parameters
    ----------
    positive, unlabeled, target : Tensor
        Rows, as in :class:`PUBatch`.
    positive_weight, unlabeled_weight, target_weight : Tensor
        Weights of shape (rows,).

    Examples
    --------
    >>> import torch
    >>> rows, ones = torch.zeros(2, 3), torch.ones(2)
    >>> WeightedPUBatch(rows, rows, rows, ones, ones, ones).positive_weight
    tensor([1., 1.])
    """

    positive: Tensor
    unlabeled: Tensor
    target: Tensor
    positive_weight: Tensor
    unlabeled_weight: Tensor
    target_weight: Tensor


class PUBatches(SharedBatches[PUBatch | WeightedPUBatch]):
    """Loader of batches that hold their share of every sample.

    An epoch has ``ceil(n / batch_size)`` steps for n rows in all. With a seed, every step takes equally many
    rows of a sample in an order that depends on ``(seed, epoch)`` alone; a sample that does not divide is
    filled up with its own first rows, so that a few positives are in every step. Without, all rows come once,
    in order. Several processes share out each step. Lightning can resume within an epoch.

    Parameters
    ----------
    positive, unlabeled, target : Tensor
        The samples, of shape (rows, ...). The last may be empty.
    weights : tuple of three Tensor, optional
        Weights of their rows, each of shape (rows,).
    batch_size : int
        Rows of a step, of the three samples together and over all processes.
    seed : int, optional
        Seed of the order; None keeps the order of the rows.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> import torch
    >>> loader = PUBatches(torch.zeros(3, 2), torch.zeros(20, 2), torch.zeros(10, 2), batch_size=11, seed=0)
    >>> [tuple(len(part) for part in batch) for batch in loader]
    [(1, 7, 4), (1, 7, 4), (1, 7, 4)]
    """

    def __init__(
        self,
        positive: Tensor,
        unlabeled: Tensor,
        target: Tensor,
        *,
        weights: tuple[Tensor, Tensor, Tensor] | None = None,
        batch_size: int,
        seed: int | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.parts = (positive, unlabeled, target)
        for name, part in zip(PARTS[:2], self.parts):
            if not len(part):
                raise ValueError(f"{name} must have at least one row, got shape {tuple(part.shape)}")
        if weights is not None and [len(weight) for weight in weights] != [len(part) for part in self.parts]:
            raise ValueError(
                f"weights must have one entry per row, {[len(part) for part in self.parts]}; got "
                f"{[len(weight) for weight in weights]}"
            )
        self.weights = weights

    def __len__(self) -> int:
        return math.ceil(sum(len(part) for part in self.parts) / self.batch_size)

    def share(self, rank: int, world: int) -> Iterator[PUBatch | WeightedPUBatch]:
        """Yield one process's share of every step.

        Parameters
        ----------
        rank, world : int
            Number of the process and of all processes; ``share(0, 1)`` is everything.

        Yields
        ------
        PUBatch or WeightedPUBatch
            With weights if there are some.
        """
        plans = [self._plan(index, len(part)) for index, part in enumerate(self.parts)]
        for step in zip(*plans, strict=True):
            rows = [_of_rank(part, rank, world) for part in step]
            taken = [part[index] for part, index in zip(self.parts, rows, strict=True)]
            if self.weights is None:
                yield PUBatch(*taken)
            else:
                weights = [weight[index] for weight, index in zip(self.weights, rows, strict=True)]
                yield WeightedPUBatch(*taken, *weights)

    def _plan(self, index: int, n: int) -> list[Tensor]:
        """Row numbers of one sample in each step."""
        steps = len(self)
        if self.seed is None or n == 0:
            return list(torch.arange(n).tensor_split(steps))
        order = permutation(n, self.seed, self.epoch, index)
        size = math.ceil(n / steps)
        return list(order[torch.arange(steps * size) % n].split(size))  # type: ignore[no-untyped-call]


def _of_rank(rows: Tensor, rank: int, world: int) -> Tensor:
    """Equal shares for all processes: what does not divide is filled up with the first rows."""
    if world == 1 or not len(rows):
        return rows
    share = math.ceil(len(rows) / world)
    return rows[torch.arange(rank * share, (rank + 1) * share) % len(rows)]


class PUDataModule(LightningDataModule):
    """Positives, unlabeled rows and target rows for :class:`~seedbed.lightning_modules.PUAUCModule`.

    Training and validation batches are :class:`PUBatch` (with weights: :class:`WeightedPUBatch`); the test
    and predict loaders hand out labelled rows of the target population, ``(x, y)``.

    Parameters
    ----------
    data : {"digits", "gaussians"} or mapping
        :func:`make_pu_digits`, :func:`make_pu_covariate_shift`, or a mapping such as they return:
        ``X_positive``, ``X_unlabeled``, ``X_target``, each of shape (n, ...), and, where there are labels to
        test on, ``X_test`` and ``y_test`` (0 or 1).
    batch_size : int
        Rows of a training step, of the three samples together.
    val_size : float
        Share of each sample held out for validation, in [0, 1).
    weights : tuple of three array-like, optional
        Importance weights of the rows of ``X_positive`` and ``X_unlabeled``, and weights of the target rows,
        for ``weighting="two_step"``.
    standardize : bool
        Whether columns are standardised, by the training rows of both populations.
    random_state : int
        Seed of named data, of the split and of the order.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> data = PUDataModule("digits", batch_size=200)
    >>> [tuple(part.shape) for part in next(iter(data.train_dataloader()))]
    [(16, 64), (107, 64), (54, 64)]
    """

    def __init__(
        self,
        data: str | Mapping[str, Any] = "digits",
        batch_size: int = 1024,
        val_size: float = 0.2,
        weights: tuple[Any, Any, Any] | None = None,
        standardize: bool = True,
        random_state: int = 0,
    ) -> None:
        super().__init__()
        check_number("batch_size", batch_size, low=1, integer=True)
        check_number("val_size", val_size, low=0, high=1, closed="left")
        check_number("random_state", random_state, low=0, integer=True)
        if isinstance(data, str):
            check_choice("data", data, ("digits", "gaussians"))
        elif not isinstance(data, Mapping):
            raise TypeError(f"data must be 'digits', 'gaussians' or a mapping, got {type(data).__name__}")
        else:
            missing = [name for name in ("X_positive", "X_unlabeled", "X_target") if name not in data]
            if missing:
                raise ValueError(
                    f"data must hold X_positive, X_unlabeled and X_target; {missing} are missing"
                )
        self.data = data
        self.batch_size = batch_size
        self.val_size = val_size
        self.weights = weights
        self.standardize = standardize
        self.random_state = random_state
        self.save_hyperparameters(ignore=["data", "weights"], logger=False)
        self._train: PUBatches | None = None
        self._val: PUBatches | None = None
        self._test: ArrayDataset | None = None

    def setup(self, stage: str | None = None) -> None:
        """Split and scale, once.

        Parameters
        ----------
        stage : str, optional
            Lightning's stage; everything is made in any.

        Raises
        ------
        ValueError
            If arrays are malformed, or a sample is too small to split.
        """
        del stage
        if self._train is not None:
            return
        data = self._load()
        arrays = [_rows(f"X_{name}", data[f"X_{name}"]) for name in PARTS]
        weights = self._checked_weights(arrays)
        rng = np.random.default_rng([self.random_state, 1])
        splits = [self._split(name, len(part), rng) for name, part in zip(PARTS, arrays, strict=True)]
        shift, scale = _scaling(
            [part[train] for part, (train, _) in zip(arrays[1:], splits[1:], strict=True)]
        )
        if not self.standardize:
            shift, scale = np.zeros_like(shift), np.ones_like(scale)

        def batches(side: int, seed: int | None) -> PUBatches:
            rows = [split[side] for split in splits]
            tensors = [
                _tensor((part[index] - shift) / scale) for part, index in zip(arrays, rows, strict=True)
            ]
            given = None
            if weights is not None:
                p, u, t = (_tensor(weight[index]) for weight, index in zip(weights, rows, strict=True))
                given = (p, u, t)
            return PUBatches(*tensors, weights=given, batch_size=self.batch_size, seed=seed)

        self._train = batches(0, self.random_state)
        self._val = batches(1, None) if self.val_size > 0 else None
        if "X_test" in data:
            y = np.asarray(data["y_test"])
            if not np.isin(y, [0, 1]).all():
                raise ValueError(f"y_test must hold 0 and 1, got {np.unique(y)!r}")
            X_test = _rows("X_test", data["X_test"], least=0)
            self._test = ArrayDataset(_tensor((X_test - shift) / scale), torch.as_tensor(y.astype(np.int64)))

    def _load(self) -> Mapping[str, Any]:
        """The arrays."""
        if not isinstance(self.data, str):
            return self.data
        make = {"digits": make_pu_digits, "gaussians": make_pu_covariate_shift}[self.data]
        return make(random_state=self.random_state)  # type: ignore[operator, no-any-return]

    def _checked_weights(self, arrays: list[NDArray[Any]]) -> list[NDArray[Any]] | None:
        if self.weights is None:
            return None
        if len(self.weights) != len(PARTS):
            raise ValueError(f"weights must be a tuple of three arrays, got {len(self.weights)}")
        found = []
        for name, weight, part in zip(PARTS, self.weights, arrays, strict=True):
            array = np.asarray(weight, dtype=np.float64)
            if array.shape != (len(part),) or not np.isfinite(array).all() or array.min() < 0:
                raise ValueError(
                    f"weights of X_{name} must be {len(part)} finite numbers of at least 0, got {weight!r}"
                )
            found.append(array)
        return found

    def _split(
        self, name: str, n: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows of a sample for training and for validation."""
        order = rng.permutation(n)
        held = round(self.val_size * n)
        if self.val_size > 0 and not 0 < held < n:
            raise ValueError(f"X_{name} has {n} rows, too few for val_size={self.val_size:g}")
        return np.sort(order[held:]), np.sort(order[:held])

    def train_dataloader(self) -> PUBatches:
        """Return the loader of training batches, shuffled anew every epoch.

        Returns
        -------
        PUBatches
            The loader.
        """
        self.setup()
        assert self._train is not None
        return self._train

    def val_dataloader(self) -> Any:
        """Return the loader of validation batches, in order.

        Returns
        -------
        PUBatches or list
            An empty list for ``val_size=0``.
        """
        self.setup()
        return [] if self._val is None else self._val

    def test_dataloader(self) -> Any:
        """Return the loader of labelled target rows, in order.

        Returns
        -------
        ArrayLoader or list
            Batches ``(x, y)``; an empty list where there are no labels.
        """
        self.setup()
        if self._test is None or not len(self._test):
            return []
        return ArrayLoader.over(self._test, batch_size=self.batch_size)

    def predict_dataloader(self) -> Any:
        """Return the loader of labelled target rows, in order.

        Returns
        -------
        ArrayLoader or list
            As :meth:`test_dataloader`.
        """
        return self.test_dataloader()


def _rows(name: str, values: Any, *, least: int = 1) -> NDArray[np.float64]:
    """Check an array of rows."""
    array = np.asarray(values)
    if array.dtype.kind not in "iubf" or array.ndim < 2 or len(array) < least:
        raise ValueError(f"{name} must be numeric of shape (n, ...), got {array.dtype} {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return array.astype(np.float64)


def _scaling(parts: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each entry over both populations; 1 where nothing varies."""
    rows = np.concatenate(parts)
    scale = rows.std(axis=0)
    return rows.mean(axis=0), np.where(scale == 0, 1.0, scale)


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
