"""Time series from the network: electricity, exchange rates, traffic."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from seedbed.datasets.archives import read_gzip
from seedbed.datasets.resources import RESOURCES, PathLike


def _read_matrix(text: bytes, name: str) -> NDArray[np.float64]:
    """Read numbers separated by commas, the same number in each line."""
    data = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.float64, ndmin=2)
    if not data.size or not np.isfinite(data).all():
        raise ValueError(f"{name} must hold finite numbers, got shape {data.shape} with NaN or infinity")
    return data


def _fetch_text(name: str, data_home: PathLike | None, download_if_missing: bool, descr: str) -> Bunch:
    path = RESOURCES[name]["text"].path(data_home, download_if_missing)
    return Bunch(data=_read_matrix(read_gzip(path, max_size=1 << 30), name), DESCR=descr + "\n")


def fetch_electricity(*, data_home: PathLike | None = None, download_if_missing: bool = True) -> Bunch:
    """Fetch the hourly electricity consumption of 321 clients, 2012 to 2014.

    Parameters
    ----------
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        ``data`` float64 (26304, 321) in kWh, and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    descr = "Hourly electricity consumption of 321 clients in kWh (UCI; prepared by Lai et al., 2018)."
    return _fetch_text("electricity", data_home, download_if_missing, descr)


def fetch_exchange_rate(*, data_home: PathLike | None = None, download_if_missing: bool = True) -> Bunch:
    """Fetch the daily exchange rates of 8 currencies, 1990 to 2010.

    Parameters
    ----------
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        ``data`` float64 (7588, 8), ``feature_names`` and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    bunch = _fetch_text(
        "exchange_rate",
        data_home,
        download_if_missing,
        "Daily exchange rates of 8 currencies (prepared by Lai et al., 2018).",
    )
    countries = "Australia Britain Canada Switzerland China Japan New_Zealand Singapore"
    bunch.feature_names = [name.replace("_", " ") for name in countries.split()]
    return bunch


def fetch_pems_bay(*, data_home: PathLike | None = None, download_if_missing: bool = True) -> Bunch:
    """Fetch PEMS-BAY: the mean speed at 325 road sensors every five minutes, January to June 2017.

    It is read from the CSV edition; the original HDF5 file, written by pandas, holds pickles. Nobody
    publishes its checksum, so the SHA-256 is recorded at the first use.

    Parameters
    ----------
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        ``data`` float64 (52116, 325) in miles per hour, 0 where missing; ``times`` datetime64 (52116,);
        ``feature_names``, the sensors; and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    path = RESOURCES["pems_bay"]["csv"].path(data_home, download_if_missing)
    times, data, sensors = read_timed_csv(path.read_bytes(), "PEMS-BAY")
    return Bunch(
        data=data,
        times=times,
        feature_names=sensors,
        DESCR="PEMS-BAY: speeds at road sensors (Caltrans; prepared by Li et al., 2018).\n",
    )


def read_timed_csv(content: bytes, name: str) -> tuple[NDArray[Any], NDArray[np.float64], list[str]]:
    """Read a table with a header, whose first column is the time.

    Parameters
    ----------
    content : bytes
        The file, UTF-8, separated by commas.
    name : str
        What it is, for the error.

    Returns
    -------
    times : ndarray of datetime64, shape (n,)
        The first column.
    data : ndarray of float64, shape (n, n_columns)
        The others.
    columns : list of str
        Their names.

    Raises
    ------
    ValueError
        If a line has another number of columns, or an entry is not finite or no time.
    """
    header, _, body = content.decode("utf-8").partition("\n")
    columns = [column.strip().strip('"') for column in header.split(",")][1:]
    stamps, numbers = [], []
    for line in body.splitlines():
        stamp, _, rest = line.partition(",")
        stamps.append(stamp.strip('"'))
        numbers.append(rest)
    data = _read_matrix("\n".join(numbers).encode(), name)
    if data.shape != (len(stamps), len(columns)):
        raise ValueError(f"{name} must have {len(columns)} numbers in each line, got shape {data.shape}")
    return np.array(stamps, dtype="datetime64[s]"), data, columns
