"""Malformed and odd inputs, each with a name: what strangers pass to ``fit`` and ``predict``."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse


def _with(X: np.ndarray, value: float, everywhere: bool = False) -> np.ndarray:
    X = X.astype(float).copy()
    X[... if everywhere else (3, 0)] = value
    return X


def bad_rows(X: np.ndarray) -> Iterator[tuple[str, Any]]:
    """Variants of a good (n, d) array of rows; most are wrong, some merely unusual."""
    n, d = X.shape
    positive = np.abs(X)
    yield "one NaN", _with(X, np.nan)
    yield "all NaN", _with(X, np.nan, everywhere=True)
    yield "one +inf", _with(X, np.inf)
    yield "one -inf", _with(X, -np.inf)
    yield "one 1e300", _with(X, 1e300)
    yield "all 1e300", _with(X, 1e300, everywhere=True)
    yield "signs of 1e300", np.sign(X) * 1e300
    yield "one 3e38", _with(X, 3e38)
    yield "all 1e20", X * 1e20
    yield "all 1e-300", X * 1e-300
    yield "denormal", np.full_like(X, 5e-324)
    yield "mixed scales", X * np.logspace(-30, 30, d)
    yield "zeros", np.zeros_like(X)
    yield "constant", np.full_like(X, 2.5)
    yield "one constant column", np.column_stack([np.ones(n), X[:, 1:]])
    yield "equal columns", np.repeat(X[:, :1], d, axis=1)
    yield "equal rows", np.repeat(X[:1], n, axis=0)
    yield "no rows", X[:0]
    yield "no columns", X[:, :0]
    yield "1-D", X[:, 0]
    yield "0-D", np.float64(3.0)
    yield "3-D", X[:, :, None]
    yield "bool", X > 0
    yield "int8", (X * 10).astype(np.int8)
    yield "uint8", (positive * 10).astype(np.uint8)
    yield "int64 of 2**62", (X > 0).astype(np.int64) * 2**62
    yield "float16", X.astype(np.float16)
    yield "longdouble", X.astype(np.longdouble)
    yield "big-endian", X.astype(">f8")
    yield "complex", X + 1j
    yield "object of floats", X.astype(object)
    yield "object with None", np.where(X > 2, None, X.astype(object))
    yield "object with text", np.where(X > 1, "text", X.astype(object))
    yield "object with dicts", np.full(X.shape, {}, dtype=object)
    yield "text", np.full(X.shape, "red")
    yield "text of numbers", X.astype(str)
    yield "bytes", np.full(X.shape, b"red")
    yield "dates", np.full(X.shape, np.datetime64("2025-07-13"))
    yield "durations", np.full(X.shape, np.timedelta64(3, "D"))
    yield "records", np.zeros(n, dtype=[("a", float), ("b", int)])
    yield "not contiguous", np.repeat(X, 2, axis=0)[::2, ::-1][:, ::-1]
    yield "Fortran", np.asfortranarray(X)
    locked = X.copy()
    locked.flags.writeable = False
    yield "read-only", locked
    yield "masked", np.ma.masked_array(X, mask=X > 2)
    yield "matrix of csr", sparse.csr_matrix(X)
    yield "array of csc", sparse.csc_array(X)
    yield "coo", sparse.coo_array(X)
    yield "csr with NaN", sparse.csr_array(_with(X, np.nan))
    yield "lists", X.tolist()
    yield "tuples", tuple(map(tuple, X.tolist()))
    yield "ragged lists", [row[: 1 + i % d] for i, row in enumerate(X.tolist())]
    yield "lists with None", [[None, *row[1:]] for row in X.tolist()]
    yield "list of dicts", [{"a": 1.0}] * n
    yield "dict", {"a": list(X[:, 0])}
    yield "None", None
    yield "a string", "rows"
    yield "a number", 3
    yield "a generator", (row for row in X)
    yield "a class", object
    names = [f"c{i}" for i in range(d)]
    yield "frame", pd.DataFrame(X, columns=names)
    yield "frame with text", pd.DataFrame(X, columns=names).assign(c0="red")
    yield (
        "frame with categories",
        pd.DataFrame(X, columns=names).assign(c0=pd.Categorical(["a", "b"] * (n // 2))),
    )
    yield "frame with missing", pd.DataFrame(_with(X, np.nan), columns=names)
    yield "nullable frame", pd.DataFrame((X * 10).astype(int), columns=names).astype("Int64").mask(X > 2)
    yield "frame with equal names", pd.DataFrame(X, columns=["a"] * d)
    yield "frame with mixed names", pd.DataFrame(X, columns=[0, *names[1:]])
    yield "series", pd.Series(X[:, 0])


def bad_targets(y: np.ndarray) -> Iterator[tuple[str, Any]]:
    """Variants of a good (n,) array of targets, numbers or labels."""
    n = len(y)
    numbers = np.arange(n, dtype=float)
    yield "too short", y[:-1]
    yield "too long", np.append(y, y[:1])
    yield "empty", y[:0]
    yield "None", None
    yield "one NaN", np.where(numbers == 3, np.nan, numbers)
    yield "one inf", np.where(numbers == 3, np.inf, numbers)
    yield "all NaN", np.full(n, np.nan)
    yield "huge", np.where(numbers % 2 == 0, 1e300, -1e300)
    yield "constant 1e300", np.full(n, 1e300)
    yield "tiny", numbers * 1e-310
    yield "constant", np.full(n, y[0])
    yield "constant number", np.full(n, 0.1)
    yield "one column", y[:, None]
    yield "two columns", np.column_stack([y, y])
    yield "3-D", y[:, None, None]
    yield "0-D", y[0]
    yield "all different", np.arange(n)
    yield "all different text", np.array([f"class {i}" for i in range(n)])
    yield "one rare class", np.where(numbers == 0, "rare", "often")
    yield "fractions", numbers / 7
    yield "bool", numbers % 2 == 0
    yield "text", np.where(numbers % 2 == 0, "a", "b")
    yield "bytes", np.where(numbers % 2 == 0, b"a", b"b")
    yield "complex", numbers + 1j
    yield "dates", np.full(n, np.datetime64("2025-07-13"))
    yield "object of floats", numbers.astype(object)
    yield "object with None", np.where(numbers == 3, None, y.astype(object))
    yield "object of both kinds", np.where(numbers % 2 == 0, "a", numbers.astype(object))
    yield "object of lists", np.array([[1], [2, 3]] * (n // 2), dtype=object)
    yield "masked", np.ma.masked_array(numbers, mask=numbers == 3)
    yield "sparse", sparse.csr_array(numbers[:, None])
    yield "ragged", [[1.0] * (1 + i % 2) for i in range(n)]
    yield "list", y.tolist()
    yield "series with odd index", pd.Series(y, index=np.arange(n)[::-1] + 5)
    yield "series with missing", pd.Series(np.where(numbers == 3, np.nan, numbers))
    yield "nullable series", pd.Series(numbers.astype(int)).astype("Int64").mask(numbers == 3)
    yield "categories", pd.Series(pd.Categorical(["a", "b"] * (n // 2)))
    yield "frame", pd.DataFrame({"y": y})
    yield "dict", {"y": y}
    yield "a string", "targets"
    yield "a number", 3
    yield "a generator", (value for value in y)
    locked = y.copy()
    locked.flags.writeable = False
    yield "read-only", locked


def few_rows(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, Any, Any]]:
    """Too few rows or columns for comfort, X and y alike."""
    for n in (0, 1, 2, 3, 5):
        yield f"{n} rows", X[:n], y[:n]
    yield "one column", X[:, :1], y
    yield "one row, one column", X[:1, :1], y[:1]
    yield "more columns than rows", np.tile(X[:6], (1, 20)), y[:6]


VALUES = {
    "object": object(),
    "text": "no such thing",
    "empty text": "",
    "bytes": b"x",
    "None": None,
    "NaN": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "-1": -1,
    "-0.5": -0.5,
    "0": 0,
    "0.0": 0.0,
    "1.5": 1.5,
    "2.5": 2.5,
    "True": True,
    "complex": 1 + 2j,
    "empty list": [],
    "list of text": ["a"],
    "list of None": [None],
    "list of -1": [-1],
    "list of NaN": [float("nan")],
    "list of 0.5 and 2": [0.5, 2.0],
    "nested list": [[1], [2, 3]],
    "tuple": (0,),
    "dict": {"a": 1},
    "set": {1},
    "array": np.array([1.0, 2.0]),
    "empty array": np.array([]),
    "2-D array": np.ones((2, 2)),
    "a class": int,
    "a function": len,
}
"""Values that few constructor parameters take."""
