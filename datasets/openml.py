"""The regression tasks of OpenML on which the paper of CoJER compares methods."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.error import HTTPError, URLError

import numpy as np
from sklearn.utils import Bunch

from seedbed.datasets.fetch import FetchError, get_data_home
from seedbed.datasets.resources import PathLike


@dataclass(frozen=True)
class Task:
    """A regression task of OpenML.

    Attributes
    ----------
    name : str
        The data set's name.
    task_id : int
        The task's number.
    data_id : int
        The data set's number.
    n_rows : int
        Its number of rows.
    """

    name: str
    task_id: int
    data_id: int
    n_rows: int


OPENML_REGRESSION: tuple[Task, ...] = (
    Task("cpu_act", 361072, 44132, 8192),
    Task("pol", 361073, 44133, 15000),
    Task("elevators", 361074, 44134, 16599),
    Task("wine_quality", 361076, 44136, 6497),
    Task("Ailerons", 361077, 44137, 13750),
    Task("yprop_4_1", 361279, 45032, 8885),
    Task("houses", 361078, 44138, 20640),
    Task("house_16H", 361079, 44139, 22784),
    Task("diamonds", 361080, 44140, 53940),
    Task("Brazilian_houses", 361081, 44141, 10692),
    Task("Bike_Sharing_Demand", 361082, 44142, 17379),
    Task("abalone", 361280, 45033, 4177),
    Task("house_sales", 361084, 44144, 21613),
    Task("sulfur", 361085, 44145, 10081),
    Task("medical_charges", 361086, 44146, 163065),
    Task("MiamiHousing2016", 361087, 44147, 13932),
    Task("superconduct", 361088, 44148, 21263),
)


def fetch_openml_regression(
    task: str | int,
    *,
    data_home: PathLike | None = None,
    return_X_y: bool = False,
) -> Any:
    """Fetch one of 17 regression tasks with numeric features from OpenML.

    They are the ones of "False Coverage Proportion Control for Conformal Prediction" (ICML 2025), part of the
    tabular benchmark of Grinsztajn et al. (2022). The edition is theirs: ``diamonds``, for one, has fewer
    features here than in :func:`~seedbed.datasets.load_diamonds`, and the logarithm of the price.

    Parameters
    ----------
    task : str or int
        Name or task number: one of ``OPENML_REGRESSION``.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch or tuple
        ``data`` float64 (n, n_features), ``target`` float64 (n,), ``feature_names``, ``name``, ``task_id``,
        ``data_id`` and ``DESCR``.

    Raises
    ------
    ValueError
        If the task is none of them, or OpenML sends other than finite numbers of the known size.
    FetchError
        If it cannot be downloaded.
    """
    found = [known for known in OPENML_REGRESSION if task in (known.name, known.task_id)]
    if not found:
        choices = ", ".join(f"{known.name} ({known.task_id})" for known in OPENML_REGRESSION)
        raise ValueError(f"task must be one of {choices}; got {task!r}")
    (known,) = found
    bunch = _fetch(known, data_home)
    X, y = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target, dtype=np.float64)
    if len(X) != known.n_rows or y.shape != (known.n_rows,):
        raise ValueError(f"{known.name} must have {known.n_rows} rows, got {X.shape} and {y.shape}")
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise ValueError(f"{known.name} must be finite, got NaN or infinity")
    if return_X_y:
        return X, y
    return Bunch(
        data=X,
        target=y,
        feature_names=list(bunch.feature_names),
        name=known.name,
        task_id=known.task_id,
        data_id=known.data_id,
        DESCR=bunch.DESCR,
    )


def _fetch(known: Task, data_home: PathLike | None) -> Any:
    """Call scikit-learn, which caches and checks; explain what to do when there is no network."""
    from sklearn.datasets import fetch_openml

    home = get_data_home(data_home) / "openml"
    try:
        return fetch_openml(
            data_id=known.data_id,
            as_frame=False,
            parser="pandas" if find_spec("pandas") else "liac-arff",
            data_home=str(home),
        )
    except (URLError, ConnectionError, TimeoutError) as error:
        if isinstance(error, HTTPError) and error.code < 500:
            reason = f"OpenML answered {error.code} {error.reason}"
        else:
            reason = str(error)
        raise FetchError(
            f"could not download {known.name} (OpenML data set {known.data_id}): {reason}. To go without "
            f"the network, copy the folder {home} from a machine where this call has worked. Without any "
            "download, load_diamonds, load_abalone and load_diabetes give regression tasks"
        ) from error
