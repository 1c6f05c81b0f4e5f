"""LightningDataModules over arrays in memory: seeded splits, seeded order, scaling fitted on training rows.

Batches are pairs ``(x, y)``: ``x`` float32; ``y`` int64 of shape (batch,) for classes, float32 of shape
(batch, n_targets) for numbers, so that it lines up with the output of a linear layer. The predict loader
hands out the test rows, in order.

All loaders are :class:`~seedbed.datasets.loading.ArrayLoader`, whose order in epoch ``e`` depends on
``(shuffle_seed, e)`` alone: a resumed fit equals an uninterrupted one. Under DDP, keep the Trainer's
``use_distributed_sampler=True``, its default; with False every rank would see all rows.
"""

from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor

from seedbed.checks import check_choice, check_number
from seedbed.datasets.loading import ArrayDataset, ArrayLoader
from seedbed.datasets.packaged import load_diabetes, load_digits

Scaling = Literal["feature", "matrix", "channel", "half"]
Split = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]


def split_rows(
    n_rows: int,
    *,
    test_size: float,
    val_size: float,
    stratify: NDArray[Any] | None = None,
    random_state: int = 0,
    chronological: bool = False,
) -> Split:
    """Split row numbers into training, validation and test rows.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    test_size : float
        Share of all rows for the test, in [0, 1).
    val_size : float
        Share of the remaining rows for validation, in [0, 1).
    stratify : ndarray, shape (n_rows,), optional
        Classes whose shares every part keeps.
    random_state : int
        Seed of the split.
    chronological : bool
        Whether the parts are consecutive instead: training, then validation, then test.

    Returns
    -------
    tuple of ndarray
        Row numbers of the training, validation and test part.

    Raises
    ------
    ValueError
        If a share is out of range or no training row is left.
    """
    check_number("test_size", test_size, low=0, high=1, closed="left")
    check_number("val_size", val_size, low=0, high=1, closed="left")
    parts: list[NDArray[np.intp]] = []
    rest = np.arange(n_rows)
    for share in (test_size, val_size):
        cut = rest[:0]
        if share > 0 and chronological:
            keep = len(rest) - round(share * len(rest))
            rest, cut = rest[:keep], rest[keep:]
        elif share > 0:
            rest, cut = train_test_split(
                rest,
                test_size=share,
                random_state=random_state,
                stratify=None if stratify is None else stratify[rest],
            )
        parts.append(cut)
    if not len(rest):
        raise ValueError(f"test_size={test_size} and val_size={val_size} leave no training row of {n_rows}")
    return rest, parts[1], parts[0]


def fit_scaling(x: NDArray[Any], standardize: Scaling | None) -> tuple[Tensor | None, Tensor | None]:
    """Find the shift and scale that standardise training inputs.

    Parameters
    ----------
    x : ndarray, shape (n, ...)
        Training inputs.
    standardize : {"feature", "matrix", "channel", "half"} or None
        One mean and standard deviation per entry of a row, for the whole array, or per channel (axis 1);
        "half" maps [0, largest value of the type] to [-1, 1]: (x - 0.5) / 0.5 for inputs from 0 to 1.

    Returns
    -------
    shift, scale : Tensor or None
        float32, broadcastable over the rows. Entries that never vary have scale 1.
    """
    if standardize is None:
        return (None, torch.tensor(255.0)) if x.dtype == np.uint8 else (None, None)
    if standardize == "half":
        half = 127.5 if x.dtype == np.uint8 else 0.5
        return torch.tensor(half), torch.tensor(half)
    axes = {"feature": (0,), "matrix": tuple(range(x.ndim)), "channel": (0, *range(2, x.ndim))}[standardize]
    mean = x.mean(axis=axes, dtype=np.float64, keepdims=True)
    std = x.std(axis=axes, dtype=np.float64, keepdims=True)
    std[std == 0] = 1.0
    return torch.from_numpy(mean[0]).float(), torch.from_numpy(std[0]).float()


class TensorDataModule(LightningDataModule):
    """What the data modules share: three array datasets and their loaders.

    Subclasses return the datasets from ``make_sets``; it runs once, at the first use.

    Parameters
    ----------
    batch_size : int
        Rows of a batch.
    test_size : float
        Share of all rows for the test.
    val_size : float
        Share of the remaining rows for validation; with 0, give the Trainer ``limit_val_batches=0``, or it
        warns that there is nothing to validate on.
    random_state : int
        Seed of the split.
    shuffle_seed : int, optional
        Seed of the order of the training rows; ``random_state`` when None.
    num_workers : int
        Worker processes of each loader.
    drop_last : bool
        Whether training leaves out a smaller last batch.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        test_size: float,
        val_size: float,
        random_state: int = 0,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        check_number("test_size", test_size, low=0, high=1, closed="left")
        check_number("val_size", val_size, low=0, high=1, closed="left")
        check_number("batch_size", batch_size, low=1, integer=True)
        check_number("random_state", random_state, low=0, integer=True)
        if shuffle_seed is not None:
            check_number("shuffle_seed", shuffle_seed, low=0, integer=True)
        check_number("num_workers", num_workers, low=0, integer=True)
        self.test_size, self.val_size = test_size, val_size
        self.batch_size = batch_size
        self.random_state = random_state
        self.shuffle_seed = random_state if shuffle_seed is None else shuffle_seed
        self.num_workers = num_workers
        self.drop_last = drop_last
        self._sets: tuple[ArrayDataset, ArrayDataset, ArrayDataset] | None = None

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Build the training, validation and test sets.

        Returns
        -------
        tuple of ArrayDataset
            In this order; the last two may be empty.
        """
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Build the sets, once.

        Parameters
        ----------
        stage : str, optional
            Lightning's stage; all sets are built in any.
        """
        del stage
        if self._sets is None:
            self._sets = self.make_sets()

    def _set(self, index: int) -> ArrayDataset:
        self.setup()
        assert self._sets is not None
        return self._sets[index]

    @property
    def train_set(self) -> ArrayDataset:
        """Training rows."""
        return self._set(0)

    @property
    def val_set(self) -> ArrayDataset:
        """Validation rows."""
        return self._set(1)

    @property
    def test_set(self) -> ArrayDataset:
        """Test rows."""
        return self._set(2)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch axis."""
        return tuple(self.train_set[0][0].shape)

    @property
    def num_classes(self) -> int:
        """Number of classes; AttributeError where the targets are numbers."""
        y = [part.y for part in (self.train_set, self.val_set, self.test_set) if len(part)]
        if y[0].is_floating_point():
            raise AttributeError(f"{type(self).__name__} has numbers as targets, no classes")
        return 1 + max(int(part.max()) for part in y)

    def _loader(self, dataset: ArrayDataset) -> Any:
        if not len(dataset):
            return []
        return ArrayLoader.over(dataset, batch_size=self.batch_size, num_workers=self.num_workers)

    def train_dataloader(self) -> ArrayLoader:
        """Return the loader of the training rows, shuffled anew every epoch.

        Returns
        -------
        ArrayLoader
            Batches ``(x, y)``.
        """
        return ArrayLoader.over(
            self.train_set,
            batch_size=self.batch_size,
            shuffle_seed=self.shuffle_seed,
            num_workers=self.num_workers,
            drop_last=self.drop_last,
        )

    def val_dataloader(self) -> Any:
        """Return the loader of the validation rows, in order.

        Returns
        -------
        ArrayLoader or list
            Batches ``(x, y)``; an empty list if there are no validation rows.
        """
        return self._loader(self.val_set)

    def test_dataloader(self) -> Any:
        """Return the loader of the test rows, in order.

        Returns
        -------
        ArrayLoader or list
            Batches ``(x, y)``; an empty list if there are no test rows.
        """
        return self._loader(self.test_set)

    def predict_dataloader(self) -> Any:
        """Return the loader of the test rows, in order.

        Returns
        -------
        ArrayLoader or list
            Batches ``(x, y)``; an empty list if there are no test rows.
        """
        return self._loader(self.test_set)


def _targets(y: NDArray[Any]) -> Tensor:
    """Classes as int64 (n,), numbers as float32 (n, n_targets)."""
    if y.dtype.kind in "iub":
        return torch.from_numpy(y.astype(np.int64))
    y = y[:, None] if y.ndim == 1 else y
    return torch.from_numpy(y.astype(np.float32))


def _inputs(x: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32)))


def scaled_sets(
    X: NDArray[Any], y: NDArray[Any], split: Split, standardize: Scaling | None
) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
    """Build the three sets of a split, scaled by the training rows.

    Parameters
    ----------
    X : ndarray, shape (n, ...)
        Inputs; bytes stay bytes in memory.
    y : ndarray, shape (n,) or (n, n_targets)
        Classes or numbers.
    split : tuple of ndarray
        Training, validation and test rows.
    standardize : {"feature", "matrix", "channel", "half"} or None
        As in :func:`fit_scaling`.

    Returns
    -------
    tuple of ArrayDataset
        Training, validation and test sets.
    """
    shift, scale = fit_scaling(X[split[0]], standardize)
    targets = _targets(y)
    train, val, test = (
        ArrayDataset(_inputs(X[rows]), targets[torch.from_numpy(rows)], shift=shift, scale=scale)
        for rows in split
    )
    if X.dtype != np.uint8:  # floats are scaled here once; bytes stay small and are scaled by batch
        train, val, test = (ArrayDataset(*part.arrays()) for part in (train, val, test))
    return train, val, test


def check_arrays(X: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check a pair of arrays before anything is done with them.

    Parameters
    ----------
    X : array-like, shape (n, ...)
        Inputs.
    y : array-like, shape (n,) or (n, n_targets)
        Integer classes from 0, or numbers.

    Returns
    -------
    X, y : ndarray
        As arrays.

    Raises
    ------
    TypeError
        If they are not numeric.
    ValueError
        If they are empty, differ in length, hold NaN or infinity, or the classes are negative.
    """
    arrays = {"X": np.asarray(X), "y": np.asarray(y)}
    for name, array in arrays.items():
        if array.dtype.kind not in "iubf":
            raise TypeError(f"{name} must be numeric, got dtype {array.dtype}")
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"{name} must have at least one row, got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
    if len(arrays["X"]) != len(arrays["y"]):
        raise ValueError(
            f"X and y must have the same number of rows, got {len(arrays['X'])} and {len(arrays['y'])}"
        )
    if arrays["X"].ndim < 2:
        raise ValueError(f"X must have rows of at least one axis, got shape {arrays['X'].shape}")
    if arrays["y"].dtype.kind == "i" and arrays["y"].min() < 0:
        raise ValueError(f"y must hold classes from 0, got {arrays['y'].min()}")
    return arrays["X"], arrays["y"]


class ArrayDataModule(TensorDataModule):
    """Any pair of arrays as a data module.

    Parameters
    ----------
    X : array-like, shape (n, ...)
        Inputs.
    y : array-like, shape (n,) or (n, n_targets)
        Integers are classes, floats are numbers.
    batch_size : int
        Rows of a batch.
    test_size : float
        Share of all rows for the test.
    val_size : float
        Share of the remaining rows for validation.
    stratify : bool
        Whether every part keeps the shares of the classes.
    standardize : {"feature", "matrix", "channel", "half"} or None
        How inputs are standardised, from training rows: per entry, as a whole, per channel (axis 1), or
        "half", (x - 0.5) / 0.5. Bytes without standardisation are divided by 255.
    standardize_target : bool
        Whether numeric targets are standardised, from training rows; ``target_mean`` and ``target_std``,
        float32 of shape (n_targets,) and set by ``setup``, bring predictions back.
    random_state : int
        Seed of the split.
    shuffle_seed : int, optional
        Seed of the order of the training rows; ``random_state`` when None.
    num_workers : int
        Worker processes of each loader.
    drop_last : bool
        Whether training leaves out a smaller last batch.

    Raises
    ------
    TypeError, ValueError
        If an argument or an array is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.datasets import ArrayDataModule
    >>> X = np.linspace(0, 1, 40).reshape(20, 2)
    >>> data = ArrayDataModule(X, np.arange(20) % 2, batch_size=4, test_size=0.5, val_size=0.2)
    >>> x, y = next(iter(data.train_dataloader()))
    >>> x.shape, x.dtype, y.dtype, data.num_classes
    (torch.Size([4, 2]), torch.float32, torch.int64, 2)
    """

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        batch_size: int = 64,
        test_size: float = 0.2,
        val_size: float = 0.1,
        stratify: bool = False,
        standardize: Scaling | None = None,
        standardize_target: bool = False,
        random_state: int = 0,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            test_size=test_size,
            val_size=val_size,
            random_state=random_state,
            shuffle_seed=shuffle_seed,
            num_workers=num_workers,
            drop_last=drop_last,
        )
        check_choice("standardize", standardize, (None, "feature", "matrix", "channel", "half"))
        self.X, self.y = check_arrays(X, y)
        if standardize == "channel" and self.X.ndim < 3:
            raise ValueError(f"standardize='channel' needs X of shape (n, channels, ...), got {self.X.shape}")
        if self.y.dtype.kind == "f" and stratify:
            raise ValueError("stratify=True needs classes, got numbers as y")
        if self.y.dtype.kind != "f" and standardize_target:
            raise ValueError("standardize_target=True needs numbers as y, got classes")
        if self.y.dtype.kind != "f" and self.y.ndim != 1:
            raise ValueError(f"classes must have shape (n,), got {self.y.shape}")
        self.stratify, self.standardize, self.standardize_target = stratify, standardize, standardize_target
        # Not to the logger: it refuses names that a module uses too, with another value.
        self.save_hyperparameters(ignore=["X", "y"], logger=False)

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Split and scale the arrays.

        Returns
        -------
        tuple of ArrayDataset
            Training, validation and test rows.
        """
        split = split_rows(
            len(self.X),
            test_size=self.test_size,
            val_size=self.val_size,
            stratify=self.y if self.stratify else None,
            random_state=self.random_state,
        )
        sets = scaled_sets(self.X, self.y, split, self.standardize)
        if self.standardize_target:
            mean, std = fit_scaling(self.y.reshape(len(self.y), -1)[split[0]], "feature")
            assert mean is not None
            assert std is not None
            self.target_mean, self.target_std = mean, std
            for part in sets:
                part.y = (part.y - mean) / std
        return sets


class DigitsDataModule(TensorDataModule):
    """scikit-learn's 1,797 digits of 8 x 8 pixels, grey values divided by 16, split by class.

    Parameters
    ----------
    batch_size : int
        Rows of a batch.
    flatten : bool
        Whether an input has shape (64,) instead of (1, 8, 8).
    standardize : {"matrix", "feature"} or None
        Standardise by the mean and deviation of all training pixels, of each pixel, or not.
    test_size : float
        Share of all rows for the test.
    val_size : float
        Share of the remaining rows for validation; 0 for none.
    random_state : int
        Seed of the split.
    shuffle_seed : int, optional
        Seed of the order of the training rows; ``random_state`` when None.
    num_workers : int
        Worker processes of each loader.

    Examples
    --------
    >>> from seedbed.datasets import DigitsDataModule
    >>> data = DigitsDataModule(val_size=0.0)
    >>> len(data.train_set), len(data.test_set), data.input_shape, data.num_classes
    (1257, 540, (64,), 10)
    """

    def __init__(
        self,
        batch_size: int = 64,
        flatten: bool = True,
        standardize: Literal["matrix", "feature"] | None = "matrix",
        test_size: float = 0.3,
        val_size: float = 0.1,
        random_state: int = 0,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            test_size=test_size,
            val_size=val_size,
            random_state=random_state,
            shuffle_seed=shuffle_seed,
            num_workers=num_workers,
        )
        check_choice("standardize", standardize, (None, "matrix", "feature"))
        self.flatten, self.standardize = flatten, standardize
        self.save_hyperparameters(logger=False)

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Split and scale the digits.

        Returns
        -------
        tuple of ArrayDataset
            Training, validation and test rows.
        """
        X, y = load_digits(return_X_y=True)
        X = X / 16.0
        if not self.flatten:
            X = X.reshape(-1, 1, 8, 8)
        split = split_rows(
            len(X),
            test_size=self.test_size,
            val_size=self.val_size,
            stratify=y,
            random_state=self.random_state,
        )
        return scaled_sets(X, y, split, self.standardize)


class DiabetesDataModule(TensorDataModule):
    """scikit-learn's diabetes data: 10 measures of 442 patients, the progression a year later.

    Parameters
    ----------
    batch_size : int
        Rows of a batch.
    standardize : bool
        Whether inputs are standardised per feature, from training rows.
    standardize_target : bool
        Whether the target is; ``target_mean`` and ``target_std``, set by ``setup``, bring predictions back.
    test_size : float
        Share of all rows for the test.
    val_size : float
        Share of the remaining rows for validation; 0 for none.
    random_state : int
        Seed of the split.
    shuffle_seed : int, optional
        Seed of the order of the training rows; ``random_state`` when None.
    num_workers : int
        Worker processes of each loader.

    Examples
    --------
    >>> from seedbed.datasets import DiabetesDataModule
    >>> x, y = next(iter(DiabetesDataModule().train_dataloader()))
    >>> x.shape, y.shape
    (torch.Size([32, 10]), torch.Size([32, 1]))
    """

    def __init__(
        self,
        batch_size: int = 32,
        standardize: bool = True,
        standardize_target: bool = True,
        test_size: float = 0.3,
        val_size: float = 0.1,
        random_state: int = 0,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            test_size=test_size,
            val_size=val_size,
            random_state=random_state,
            shuffle_seed=shuffle_seed,
            num_workers=num_workers,
        )
        self.standardize, self.standardize_target = standardize, standardize_target
        self.save_hyperparameters(logger=False)

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Split and scale the rows.

        Returns
        -------
        tuple of ArrayDataset
            Training, validation and test rows.
        """
        X, y = load_diabetes(return_X_y=True)
        arrays = ArrayDataModule(
            X,
            y,
            test_size=self.test_size,
            val_size=self.val_size,
            standardize="feature" if self.standardize else None,
            standardize_target=self.standardize_target,
            random_state=self.random_state,
        )
        sets = arrays.make_sets()
        if self.standardize_target:
            self.target_mean, self.target_std = arrays.target_mean, arrays.target_std
        return sets
