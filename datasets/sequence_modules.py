"""LightningDataModules over sequences: characters of a text, time series. All splits are chronological."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from seedbed.checks import check_choice, check_number
from seedbed.datasets.loading import ArrayDataset, OneHotDataset
from seedbed.datasets.modules import TensorDataModule, fit_scaling, split_rows
from seedbed.datasets.packaged import encode, load_topics, load_txhousing
from seedbed.datasets.series import fetch_electricity, fetch_exchange_rate, fetch_pems_bay

SERIES = ("txhousing", "exchange_rate", "electricity", "pems_bay")


def windows(rows: NDArray[Any], length: int, stride: int) -> NDArray[Any]:
    """Cut a sequence into windows.

    Parameters
    ----------
    rows : ndarray, shape (n, ...)
        The sequence along its first axis.
    length : int
        Rows of a window.
    stride : int
        Rows between the starts of neighbouring windows.

    Returns
    -------
    ndarray, shape (n_windows, length, ...)
        A copy; rows behind the last whole window are left out.
    """
    if len(rows) < length:
        return np.empty((0, length, *rows.shape[1:]), dtype=rows.dtype)
    view = np.lib.stride_tricks.sliding_window_view(rows, length, axis=0)[::stride]
    return np.moveaxis(view, -1, 1).copy()


class CharDataModule(TensorDataModule):
    """Characters of a text: predict each next one from those before.

    The text is split in time (training, validation, test), each part cut into windows of ``seq_len + 1``
    characters; inputs are all but the last, targets all but the first.

    Parameters
    ----------
    text : str, optional
        The text; the help pages of :func:`~seedbed.datasets.load_topics` if neither it nor ``path`` is given.
    path : str, optional
        A UTF-8 text file instead.
    seq_len : int
        Characters of an input.
    stride : int, optional
        Characters between the starts of neighbouring windows; None means ``seq_len + 1``, so that no
        character is predicted twice.
    encoding : {"onehot", "index"}
        Whether inputs are float32 (batch, seq_len, n_vocabulary) or int64 (batch, seq_len). Targets are int64
        (batch, seq_len).
    batch_size : int
        Windows of a batch.
    test_size : float
        Share of the text, its end, for the test.
    val_size : float
        Share of the remaining text, its end, for validation; 0 for none.
    shuffle_seed : int
        Seed of the order of the training windows.
    num_workers : int
        Worker processes of each loader.

    Raises
    ------
    ValueError
        If both ``text`` and ``path`` are given, or the text is too short for one training window.

    Examples
    --------
    >>> from seedbed.datasets import CharDataModule
    >>> data = CharDataModule(text="abcd" * 50, seq_len=4, batch_size=8)
    >>> x, y = next(iter(data.train_dataloader()))
    >>> x.shape, y.shape, data.num_classes, bool((x.argmax(dim=2)[:, 1:] == y[:, :-1]).all())
    (torch.Size([8, 4, 4]), torch.Size([8, 4]), 4, True)
    """

    def __init__(
        self,
        text: str | None = None,
        path: str | None = None,
        seq_len: int = 32,
        stride: int | None = None,
        encoding: Literal["onehot", "index"] = "onehot",
        batch_size: int = 64,
        test_size: float = 0.2,
        val_size: float = 0.1,
        shuffle_seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            test_size=test_size,
            val_size=val_size,
            shuffle_seed=shuffle_seed,
            num_workers=num_workers,
        )
        if text is not None and path is not None:
            raise ValueError("give text or path, not both")
        check_number("seq_len", seq_len, low=1, integer=True)
        if stride is not None:
            check_number("stride", stride, low=1, integer=True)
        check_choice("encoding", encoding, ("onehot", "index"))
        self.text, self.path = text, path
        self.seq_len, self.encoding = seq_len, encoding
        self.stride = seq_len + 1 if stride is None else stride
        self._vocabulary = ""
        self.save_hyperparameters(ignore=["text"], logger=False)

    @property
    def vocabulary(self) -> str:
        """The characters, in order of code point."""
        self.setup()
        return self._vocabulary

    @property
    def num_classes(self) -> int:
        """Number of characters in the vocabulary."""
        return len(self.vocabulary)

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Split the text and cut it into windows.

        Returns
        -------
        tuple of ArrayDataset
            Training, validation and test windows.
        """
        text = self.text
        if text is None:
            text = load_topics().text if self.path is None else Path(self.path).read_text(encoding="utf-8")
        self._vocabulary, codes = encode(text)
        split = split_rows(len(codes), test_size=self.test_size, val_size=self.val_size, chronological=True)
        sets = []
        for rows in split:
            cut = torch.from_numpy(windows(codes[rows], self.seq_len + 1, self.stride))
            x, y = cut[:, :-1].contiguous(), cut[:, 1:].contiguous()
            sets.append(
                ArrayDataset(x, y)
                if self.encoding == "index"
                else OneHotDataset(x, y, num_codes=len(self._vocabulary))
            )
        if not len(sets[0]):
            raise ValueError(
                f"the training part of the text has {len(split[0])} characters, less than seq_len + 1 = "
                f"{self.seq_len + 1}"
            )
        return sets[0], sets[1], sets[2]

    def decode(self, codes: Any) -> str:
        """Turn codes back into text.

        Parameters
        ----------
        codes : Tensor or array-like of int, any shape
            Positions in the vocabulary, read in row-major order.

        Returns
        -------
        str
            The characters.
        """
        return "".join(self.vocabulary[code] for code in np.asarray(codes).ravel())


class SeriesDataModule(TensorDataModule):
    """A multivariate time series, standardised by its training part and cut into windows.

    Parameters
    ----------
    data : str or array-like, shape (n_times, n_series)
        The series in order of time, or the name of a data set: "txhousing" (packaged), "exchange_rate",
        "electricity" or "pems_bay" (fetched).
    mode : {"forecast", "contemporaneous"}
        "forecast": from all series up to now, all series ``horizon`` steps ahead; input and target have shape
        (batch, seq_len, n_series). "contemporaneous": from the other series, the last one at the same time;
        shapes (batch, seq_len, n_series - 1) and (batch, seq_len, 1). The latter explains, it does not
        forecast.
    seq_len : int
        Times of a window.
    horizon : int
        Steps ahead, in mode "forecast".
    stride : int
        Times between the starts of neighbouring windows.
    batch_size : int
        Windows of a batch.
    test_size : float
        Share of the times, the end, for the test.
    val_size : float
        Share of the remaining times, the end, for validation; 0 for none.
    shuffle_seed : int
        Seed of the order of the training windows.
    num_workers : int
        Worker processes of each loader.
    data_home : str, optional
        Where fetched data are kept.

    Raises
    ------
    ValueError
        If the series is not a finite matrix, too short for one training window, or has a single column in
        mode "contemporaneous".

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.datasets import SeriesDataModule
    >>> data = SeriesDataModule(np.random.default_rng(0).normal(size=(200, 3)), seq_len=10, batch_size=4)
    >>> x, y = next(iter(data.train_dataloader()))
    >>> x.shape, bool((x[:, 1:] == y[:, :-1]).all())
    (torch.Size([4, 10, 3]), True)
    """

    def __init__(
        self,
        data: Any = "txhousing",
        mode: Literal["forecast", "contemporaneous"] = "forecast",
        seq_len: int = 12,
        horizon: int = 1,
        stride: int = 1,
        batch_size: int = 64,
        test_size: float = 0.2,
        val_size: float = 0.1,
        shuffle_seed: int = 0,
        num_workers: int = 0,
        data_home: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            test_size=test_size,
            val_size=val_size,
            shuffle_seed=shuffle_seed,
            num_workers=num_workers,
        )
        if isinstance(data, str):
            check_choice("data", data, SERIES)
        else:
            data = check_series(data)
        check_choice("mode", mode, ("forecast", "contemporaneous"))
        for name, value in {"seq_len": seq_len, "horizon": horizon, "stride": stride}.items():
            check_number(name, value, low=1, integer=True)
        self.data, self.data_home = data, data_home
        self.mode, self.seq_len, self.horizon, self.stride = mode, seq_len, horizon, stride
        self.save_hyperparameters(ignore=[] if isinstance(data, str) else ["data"], logger=False)

    def prepare_data(self) -> None:
        """Fetch a named data set that is not packaged, on one process only."""
        if isinstance(self.data, str):
            self._load(self.data)

    def _load(self, name: str) -> NDArray[np.float64]:
        if name == "txhousing":
            return check_series(load_txhousing().series)
        fetch = {
            "electricity": fetch_electricity,
            "exchange_rate": fetch_exchange_rate,
            "pems_bay": fetch_pems_bay,
        }[name]
        return check_series(fetch(data_home=self.data_home).data)

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Scale the series and cut each part into windows.

        ``mean`` and ``scale``, float32 of shape (n_series,), bring values back.

        Returns
        -------
        tuple of ArrayDataset
            Training, validation and test windows.
        """
        series = self._load(self.data) if isinstance(self.data, str) else self.data
        if self.mode == "contemporaneous" and series.shape[1] < 2:
            raise ValueError("mode='contemporaneous' needs at least two series, got 1")
        split = split_rows(len(series), test_size=self.test_size, val_size=self.val_size, chronological=True)
        mean, scale = fit_scaling(series[split[0]], "feature")
        assert mean is not None
        assert scale is not None
        self.mean, self.scale = mean, scale
        standard = ((series - mean.numpy()) / scale.numpy()).astype(np.float32)
        ahead = self.horizon if self.mode == "forecast" else 0
        sets = []
        for rows in split:
            cut = torch.from_numpy(windows(standard[rows], self.seq_len + ahead, self.stride))
            if self.mode == "forecast":
                x, y = cut[:, : self.seq_len], cut[:, ahead:]
            else:
                x, y = cut[:, :, :-1], cut[:, :, -1:]
            sets.append(ArrayDataset(x.contiguous(), y.contiguous()))
        if not len(sets[0]):
            raise ValueError(
                f"the training part has {len(split[0])} times, less than seq_len + horizon = "
                f"{self.seq_len + ahead}"
            )
        return sets[0], sets[1], sets[2]


def check_series(data: ArrayLike) -> NDArray[np.float64]:
    """Check a time series.

    Parameters
    ----------
    data : array-like, shape (n_times, n_series)
        The series in order of time.

    Returns
    -------
    ndarray of float64
        The series.

    Raises
    ------
    ValueError
        If it is no matrix or not finite.
    """
    series = np.asarray(data, dtype=np.float64)
    if series.ndim != 2 or 0 in series.shape:
        raise ValueError(f"data must have shape (n_times, n_series), got {series.shape}")
    if not np.isfinite(series).all():
        raise ValueError("data must be finite, got NaN or infinity")
    return series
