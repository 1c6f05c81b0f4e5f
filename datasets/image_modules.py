"""LightningDataModules over images."""

import logging
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seedbed.checks import check_choice
from seedbed.datasets.images import fetch_cifar10, fetch_mnist
from seedbed.datasets.loading import ArrayDataset
from seedbed.datasets.modules import Split, TensorDataModule, scaled_sets, split_rows
from seedbed.datasets.packaged import load_mnist_5k

_logger = logging.getLogger(__name__)


class MNISTDataModule(TensorDataModule):
    """MNIST's digits of 28 x 28 pixels: the full set where it is at hand, else the packaged 5,000.

    Parameters
    ----------
    root : str, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home` when None).
    source : {"auto", "full", "packaged"}
        "full" downloads what is missing; "auto" takes the full set only if it lies in the folder already, and
        says which it took in ``source_`` after ``setup``.
    batch_size : int
        Rows of a batch.
    flatten : bool
        Whether an input has shape (784,) instead of (1, 28, 28).
    standardize : {"matrix", "half"} or None
        Standardise by the mean and deviation of all training pixels (about .1307 and .3081 of white), map to
        [-1, 1], or to [0, 1].
    test_size : float
        Share of the packaged digits for the test. The full set has a test set of its own, 10,000 digits.
    val_size : float
        Share of the training digits for validation; 0 for none.
    random_state : int
        Seed of the split.
    shuffle_seed : int, optional
        Seed of the order of the training rows; ``random_state`` when None.
    num_workers : int
        Worker processes of each loader.

    Examples
    --------
    >>> from seedbed.datasets import MNISTDataModule
    >>> data = MNISTDataModule(source="packaged", val_size=0.0)
    >>> len(data.train_set), len(data.test_set), data.input_shape, data.num_classes
    (4000, 1000, (784,), 10)
    """

    def __init__(
        self,
        root: str | None = None,
        source: Literal["auto", "full", "packaged"] = "auto",
        batch_size: int = 128,
        flatten: bool = True,
        standardize: Literal["matrix", "half"] | None = "matrix",
        test_size: float = 0.2,
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
        check_choice("source", source, ("auto", "full", "packaged"))
        check_choice("standardize", standardize, (None, "matrix", "half"))
        self.root, self.source = root, source
        self.flatten, self.standardize = flatten, standardize
        self.save_hyperparameters(logger=False)

    def prepare_data(self) -> None:
        """Download the full set if it is asked for, on one process only."""
        if self.source == "full":
            fetch_mnist(data_home=self.root)

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Split and scale the digits.

        Returns
        -------
        tuple of ArrayDataset
            Training, validation and test rows.
        """
        train = test = None
        if self.source != "packaged":
            fetch = partial(
                fetch_mnist, data_home=self.root, download_if_missing=self.source == "full", return_X_y=True
            )
            try:
                train, test = fetch(subset="train"), fetch(subset="test")
            except FileNotFoundError:
                if self.source == "full":
                    raise
        self.source_ = "packaged" if test is None else "full"
        _logger.info("MNISTDataModule uses the %s digits", self.source_)
        if train is None or test is None:
            X, y = load_mnist_5k(return_X_y=True)
            X = X.astype(np.uint8)
            split = split_rows(
                len(X),
                test_size=self.test_size,
                val_size=self.val_size,
                stratify=y,
                random_state=self.random_state,
            )
        else:
            X, y, split = with_test_set(train, test, val_size=self.val_size, random_state=self.random_state)
        X = X.reshape(len(X), 784) if self.flatten else X.reshape(len(X), 1, 28, 28)
        return scaled_sets(X, y, split, self.standardize)


class CIFAR10DataModule(TensorDataModule):
    """CIFAR-10: 60,000 colour images of 32 x 32 pixels in 10 classes, 10,000 of them for the test.

    Parameters
    ----------
    root : str, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home` when None).
    batch_size : int
        Rows of a batch.
    flatten : bool
        Whether an input has shape (3072,) instead of (3, 32, 32).
    standardize : {"half", "channel", "matrix"} or None
        Map to [-1, 1]; standardise by mean and deviation of the training pixels, per channel or all together;
        or map to [0, 1].
    val_size : float
        Share of the training images for validation; 0 for none.
    random_state : int
        Seed of the split.
    shuffle_seed : int, optional
        Seed of the order of the training rows; ``random_state`` when None.
    num_workers : int
        Worker processes of each loader.

    Examples
    --------
    >>> from seedbed.datasets import CIFAR10DataModule
    >>> CIFAR10DataModule(batch_size=128).hparams["standardize"]
    'half'
    """

    def __init__(
        self,
        root: str | None = None,
        batch_size: int = 64,
        flatten: bool = False,
        standardize: Literal["half", "channel", "matrix"] | None = "half",
        val_size: float = 0.1,
        random_state: int = 0,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            test_size=0.0,
            val_size=val_size,
            random_state=random_state,
            shuffle_seed=shuffle_seed,
            num_workers=num_workers,
        )
        check_choice("standardize", standardize, (None, "half", "channel", "matrix"))
        self.root, self.flatten, self.standardize = root, flatten, standardize
        self.save_hyperparameters(logger=False)

    def prepare_data(self) -> None:
        """Download the data if they are not there, on one process only."""
        fetch_cifar10(data_home=self.root, subset="test")

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Split and scale the images.

        Returns
        -------
        tuple of ArrayDataset
            Training, validation and test rows.
        """
        fetch = partial(fetch_cifar10, data_home=self.root, return_X_y=True)
        X, y, split = with_test_set(
            fetch(subset="train"),
            fetch(subset="test"),
            val_size=self.val_size,
            random_state=self.random_state,
        )
        if not self.flatten:
            return scaled_sets(X, y, split, self.standardize)
        sets = scaled_sets(X, y, split, self.standardize)
        for part in sets:
            part.x = part.x.flatten(1)
            for name in ("shift", "scale"):
                value = getattr(part, name)
                if value is not None and value.ndim:
                    setattr(part, name, value.expand(3, 32, 32).flatten())
        return sets


def with_test_set(
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    *,
    val_size: float,
    random_state: int,
) -> tuple[NDArray[Any], NDArray[Any], Split]:
    """Join a training and a test set, and split validation rows off the training set by class.

    Parameters
    ----------
    train, test : tuple of ndarray
        Inputs and classes.
    val_size : float
        Share of the training rows for validation.
    random_state : int
        Seed of the split.

    Returns
    -------
    X, y : ndarray
        Training rows, then test rows.
    split : tuple of ndarray
        Training, validation and test rows.
    """
    n_train, n_test = len(train[0]), len(test[0])
    rows, val, _ = split_rows(
        n_train, test_size=0.0, val_size=val_size, stratify=train[1], random_state=random_state
    )
    split = rows, val, np.arange(n_train, n_train + n_test)
    return np.concatenate([train[0], test[0]]), np.concatenate([train[1], test[1]]), split
