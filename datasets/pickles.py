"""Read tables out of pickles without unpickling: nothing that a file names is ever called.

A pickle is a program that calls what it names. Here every name becomes an inert record of the arguments it
was given, names other than those that numpy and pandas use for plain arrays and tables are refused, and
arrays are built from the records' bytes by code of this file.
"""

import copyreg
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAMES = frozenset(
    {
        "DataFrame",
        "BlockManager",
        "_unpickle_block",
        "_new_Index",
        "Index",
        "MultiIndex",
        "RangeIndex",
        "StringArray",
        "StringDtype",
        "__pyx_unpickle_NDArrayBacked",
        "_frombuffer",
        "_reconstruct",
        "ndarray",
        "dtype",
    }
)
"""What may be named in numpy and pandas; whatever these are there, here they are records."""
_ELSEWHERE = frozenset({("builtins", "slice"), ("__builtin__", "slice"), ("_codecs", "encode")})
_KINDS = "biufUS"
_MOST_DEPTH = 50


class PickleError(ValueError):
    """A pickle holds something other than a table or an array, or none that can be read safely."""


class _Record:
    """What a name was called with, and the state it was given."""

    path: tuple[str, str] = ("", "")

    def __new__(cls, *args: Any, **_: Any) -> "_Record":
        made = super().__new__(cls)
        made.args = args  # type: ignore[attr-defined]
        made.state = None  # type: ignore[attr-defined]
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        self.args: tuple[Any, ...]
        self.state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @property
    def name(self) -> str:
        """Name without its module."""
        return self.path[1]


class _Reader(pickle.Unpickler):
    """Parse a pickle into records."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a fresh class of records for an allowed name."""
        package = module.partition(".")[0]
        if not (package in ("numpy", "pandas") and name in _NAMES) and (module, name) not in _ELSEWHERE:
            raise PickleError(f"it names {module}.{name}, which is neither a plain array nor a plain table")
        # A class of its own for each mention: what a file does to one (a BUILD on it) reaches no other.
        return type("_Named", (_Record,), {"path": (module, name)})


@dataclass(frozen=True)
class Table:
    """A table of a pickle.

    Attributes
    ----------
    values : ndarray of shape (n_rows, n_columns)
        Its cells.
    rows, columns : list
        Labels, tuples where they have several levels.
    """

    values: NDArray[Any]
    rows: list[Any]
    columns: list[Any]


def read_pickled_table(path: str | Path) -> Table:
    """Read a pickled pandas DataFrame of numbers without running anything that the file says.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    Table
        Its cells and labels.

    Raises
    ------
    PickleError
        If the file is no pickle, holds anything else or in another layout (Arrow columns, for one); the
        message says what to convert.
    """
    name = Path(path).name
    if getattr(copyreg, "_inverted_registry", None):
        raise PickleError(f"{name}: pickles are not read where copyreg extensions are registered")
    try:
        with Path(path).open("rb") as file:
            return _table(_Reader(file).load())
    except PickleError as error:
        reason = str(error)
    except MemoryError:
        raise
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a malformed pickle may fail in any way
        reason = f"it is malformed ({type(error).__name__}: {error})"
    raise PickleError(
        f"{name} was not read: {reason}. If you trust where it comes from, convert it once with "
        "pandas.read_pickle(...).to_parquet(...) and pass the parquet file"
    )


def _table(found: Any) -> Table:
    frame = _expect(found, "DataFrame")
    manager = _expect(dict(frame.state)["_mgr"], "BlockManager")
    blocks, axes = manager.args
    columns, rows = (_labels(axis) for axis in axes)
    parts = []
    for record in blocks:
        block = _expect(record, "_unpickle_block")
        values, place = _array(block.args[0]), block.args[1]
        if values.ndim != 2 or values.shape[1] != len(rows):
            raise PickleError(f"a block has shape {values.shape} beside {len(rows)} rows")
        parts.append((_places(place, len(columns)), values))
    kinds = {values.dtype.kind for _, values in parts}
    if not parts or not kinds <= set("biuf"):
        raise PickleError(f"its columns must be numbers, got kinds {sorted(kinds)}")
    table = np.full((len(rows), len(columns)), np.nan)
    covered = np.zeros(len(columns), dtype=np.int64)
    for places, values in parts:
        table[:, places] = values.T
        np.add.at(covered, places, 1)
    if (covered != 1).any():
        raise PickleError("its blocks do not cover its columns once")
    return Table(table, rows, columns)


def _expect(found: Any, name: str) -> _Record:
    if not isinstance(found, _Record) or found.name != name:
        what = found.name if isinstance(found, _Record) else type(found).__name__
        raise PickleError(f"it holds a {what} where a {name} is expected")
    return found


def _places(place: Any, n: int) -> NDArray[np.int64]:
    if isinstance(place, _Record) and place.name == "slice":
        return np.arange(n)[slice(*place.args)]
    return np.asarray(_array(place), dtype=np.int64)


def _labels(found: Any) -> list[Any]:
    """Labels of an axis."""
    index = _expect(found, "_new_Index")
    kind, facts = index.args
    # The class itself, not an instance of it, is the first argument.
    name = kind.path[1]
    if name == "RangeIndex":
        return list(range(*(int(facts[part]) for part in ("start", "stop", "step"))))
    if name == "MultiIndex":
        levels = [_labels(level) for level in facts["levels"]]
        codes = [_array(code).tolist() for code in facts["codes"]]
        picked = [
            [level[code] if code >= 0 else None for code in row]
            for level, row in zip(levels, codes, strict=True)
        ]
        return list(zip(*picked, strict=True))
    if name != "Index":
        raise PickleError(f"its labels are a {name}")
    return list(_array(facts["data"]).tolist())


def _array(found: Any, depth: int = 0) -> NDArray[Any]:
    """Build an array from its record."""
    if not isinstance(found, _Record) or depth > _MOST_DEPTH:
        raise PickleError(f"it holds a {type(found).__name__} where an array is expected")
    if found.name == "_frombuffer":
        data, dtype, shape, order = found.args
        return _filled(data, dtype, shape, order)
    if found.name == "_reconstruct":
        _, shape, dtype, fortran, data = found.state
        return _filled(data, dtype, shape, "F" if fortran else "C")
    if found.name in ("__pyx_unpickle_NDArrayBacked", "StringArray"):
        inner = [part for part in found.state if isinstance(part, _Record) and _is_array(part)]
        if len(inner) == 1:
            return _array(inner[0], depth + 1)
    raise PickleError(f"it holds a {found.name} where an array is expected")


def _is_array(record: _Record) -> bool:
    return record.name in ("_frombuffer", "_reconstruct")


def _filled(data: Any, dtype: Any, shape: Any, order: str) -> NDArray[Any]:
    """Build an array of numbers or short strings from bytes, or of strings from a list."""
    sizes = tuple(int(size) for size in shape)
    kind, state = str(_expect(dtype, "dtype").args[0]), dtype.state
    if kind[:1] == "O":
        if not isinstance(data, list) or not all(
            part is None or isinstance(part, (str, int, float, bool)) for part in data
        ):
            raise PickleError("it holds objects other than strings and numbers")
        objects = np.empty(len(data), dtype=object)
        objects[:] = data
        return objects.reshape(sizes, order=order)  # type: ignore[call-overload,no-any-return]
    if kind[:1] not in _KINDS or not kind[1:].isdigit():
        raise PickleError(f"it holds an array of dtype {kind!r}")
    byte_order = str(state[1]) if state else "|"
    real = np.dtype((byte_order if byte_order in "<>" else "=") + kind)
    raw = data.args[0].encode("latin-1") if isinstance(data, _Record) and data.name == "encode" else data
    if not isinstance(raw, (bytes, bytearray)):
        raise PickleError(f"an array's data are a {type(raw).__name__}")
    flat = np.frombuffer(bytes(raw), dtype=real)
    return flat.reshape(sizes, order=order).copy()  # type: ignore[call-overload,no-any-return]
