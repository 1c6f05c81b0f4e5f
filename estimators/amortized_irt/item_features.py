"""Features of items: numbers or texts that scikit-learn passes on whole, though rows are test takers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.utils._missing import is_pandas_na, is_scalar_nan
from sklearn.utils.validation import check_array

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Matrix = Any
"""A dense array or a scipy sparse array."""


class ItemFeatures:
    """Features of the items of a response matrix.

    Rows of X are test takers and items its columns, but scikit-learn's splitters cut every argument that has
    as many entries as X has rows. With as many items as takers, plain ``item_features`` would be cut
    silently. This wrapper has neither length nor shape, so that it always arrives whole. Estimators here take
    plain arrays too; wrap what goes through a ``GridSearchCV`` or ``cross_validate``.

    Parameters
    ----------
    values : array-like, sparse matrix or DataFrame of shape (n_items, n_features), or list of str
        One row or one text for each item. A text that is None belongs to an item without features.
    missing : array-like of bool, shape (n_items,), optional
        True for items without features, whose rows do not count. Their difficulties are free.

    Attributes
    ----------
    values : object
        As passed.
    missing : ndarray of bool or None
        As passed.
    n_items : int
        Number of items.

    Raises
    ------
    ValueError
        If ``missing`` has another length.
    TypeError
        If ``values`` is a single text.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import ItemFeatures
    >>> features = ItemFeatures(np.eye(3))
    >>> features.n_items, hasattr(features, "__len__")
    (3, False)
    >>> features.take([0, 2]).n_items
    2
    """

    def __init__(self, values: Any, *, missing: Any = None) -> None:
        if isinstance(values, ItemFeatures):
            missing, values = values.missing if missing is None else missing, values.values
        if isinstance(values, (str, bytes)):
            raise TypeError(f"item_features must have one text for each item, got the single text {values!r}")
        self.values: Any = values
        self.missing: Flags | None = None
        if missing is not None:
            self.missing = np.asarray(missing, dtype=bool)
            if self.missing.shape != (self.n_items,):
                raise ValueError(
                    f"missing must have one entry for each of {self.n_items} items, got {self.missing.shape}"
                )

    def __repr__(self) -> str:
        return f"ItemFeatures({self.n_items} items)"

    def __sklearn_clone__(self) -> Self:
        return self

    @property
    def n_items(self) -> int:
        """Number of items."""
        shape = getattr(self.values, "shape", None)
        return int(shape[0]) if shape else len(self.values)

    @property
    def is_text(self) -> bool:
        """Whether items are described by texts."""
        if hasattr(self.values, "iloc"):
            return getattr(self.values, "ndim", 2) == 1 and _holds_text(list(self.values))
        if isinstance(self.values, np.ndarray):
            return (
                self.values.ndim == 1 and self.values.dtype.kind in "OUT" and _holds_text(list(self.values))
            )
        return isinstance(self.values, Sequence) and _holds_text(self.values)

    def take(self, chosen: Any) -> "ItemFeatures":
        """Keep some items.

        Parameters
        ----------
        chosen : array-like of int or bool
            Which.

        Returns
        -------
        ItemFeatures
            Theirs.
        """
        where = np.arange(self.n_items)[np.asarray(chosen)]
        values = self.values
        if hasattr(values, "iloc"):
            kept = values.iloc[where]
        elif sparse.issparse(values):
            kept = sparse.csr_array(values)[where]
        elif isinstance(values, np.ndarray):
            kept = values[where]
        else:
            kept = [values[k] for k in where]
        return ItemFeatures(kept, missing=None if self.missing is None else self.missing[where])

    def _absent(self) -> Flags:
        """Items without features."""
        absent = np.zeros(self.n_items, dtype=bool) if self.missing is None else self.missing.copy()
        if self.is_text:
            absent |= np.array([_is_absent(text) for text in self.values], dtype=bool)
        return absent


def _holds_text(values: Sequence[Any]) -> bool:
    """Whether a sequence has texts, and else nothing but missing ones."""
    return any(isinstance(v, str) for v in values) and all(
        _is_absent(v) or isinstance(v, str) for v in values
    )


def _is_absent(text: Any) -> bool:
    """Whether this stands for no text: None, or what pandas makes of it."""
    return bool(text is None or is_scalar_nan(text) or is_pandas_na(text))


LARGEST = 1e100
"""Features beyond this size would overflow when squared."""


@dataclass(frozen=True)
class Design:
    """What a difficulty is predicted from.

    Attributes
    ----------
    matrix : ndarray or csr_array of shape (n_items, n_features)
        Features; zeros for items that have none.
    known : ndarray of bool, shape (n_items,)
        Which items have features.
    """

    matrix: Matrix
    known: Flags

    def __post_init__(self) -> None:
        if self.matrix.shape[1] and abs(self.matrix).max() > LARGEST:
            raise ValueError(f"features of items must be at most {LARGEST:g} in size; scale them")

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.matrix.shape[1])

    def rows(self) -> Matrix:
        """Features of the items that have some."""
        return self.matrix if self.known.all() else self.matrix[self.known]


def fit_encoder(encoder: Any, features: ItemFeatures) -> Any:
    """Fit an encoder to the items that have features.

    Parameters
    ----------
    encoder : transformer, callable or None
        A transformer is cloned and fitted; anything else stays as it is.
    features : ItemFeatures
        Items.

    Returns
    -------
    transformer, callable or None
        The encoder to pass to :func:`read_item_features`.
    """
    if encoder is None or not hasattr(encoder, "transform"):
        return encoder
    absent = features._absent()
    return clone(encoder).fit((features.take(~absent) if absent.any() else features).values)


def read_item_features(
    features: Any,
    *,
    encoder: Any = None,
    n_items: int | None = None,
    n_features: int | None = None,
    name: str = "item_features",
) -> Design:
    """Turn features into numbers.

    Parameters
    ----------
    features : ItemFeatures or what it wraps
        Features of the items.
    encoder : fitted transformer, callable or None
        Turns them (or the texts) into a matrix.
    n_items, n_features : int, optional
        How many there must be.
    name : str
        For messages.

    Returns
    -------
    Design
        The numbers.

    Raises
    ------
    ValueError
        If the number of items or features is another, a value is NaN or infinite, or texts come without an
        encoder.
    """
    wrapped = features if isinstance(features, ItemFeatures) else ItemFeatures(features)
    if n_items is not None and wrapped.n_items != n_items:
        raise ValueError(f"{name} must have one row for each of {n_items} items, got {wrapped.n_items} rows")
    absent = wrapped._absent()
    if absent.all():
        raise ValueError(f"{name} must have features for at least one item, got none for {wrapped.n_items}")
    some = wrapped.take(~absent) if absent.any() else wrapped
    matrix = _numbers(some, encoder, name)
    if matrix.shape[0] != some.n_items:
        raise ValueError(
            f"feature_encoder must return one row for each of {some.n_items} items, got {matrix.shape[0]}"
        )
    if n_features is not None and matrix.shape[1] != n_features:
        raise ValueError(f"{name} must have {n_features} features as in fit, got {matrix.shape[1]}")
    return Design(_scatter(matrix, ~absent), ~absent)


def _numbers(features: ItemFeatures, encoder: Any, name: str) -> Matrix:
    values = features.values
    if encoder is not None:
        values = encoder.transform(values) if hasattr(encoder, "transform") else encoder(values)
        name = "what feature_encoder returns"
    elif features.is_text:
        raise ValueError(f"{name} are texts: set feature_encoder, for example to SentenceEncoder()")
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    try:
        found = check_array(values, accept_sparse="csr", dtype=np.float64, input_name=name)
    except ValueError as error:
        if "contains NaN" in str(error):
            raise ValueError(
                f"{name} must not contain NaN; mark items without features by "
                "ItemFeatures(values, missing=...), their difficulties are free then"
            ) from error
        raise
    return sparse.csr_array(found) if sparse.issparse(found) else found


def _scatter(matrix: Matrix, known: Flags) -> Matrix:
    """Put rows where their items are, and zeros elsewhere."""
    if known.all():
        return matrix
    if sparse.issparse(matrix):
        place = sparse.csr_array(
            (np.ones(matrix.shape[0]), (np.flatnonzero(known), np.arange(matrix.shape[0]))),
            shape=(len(known), matrix.shape[0]),
        )
        return sparse.csr_array(place @ matrix)
    full = np.zeros((len(known), matrix.shape[1]))
    full[known] = matrix
    return full


def item_feature_names(features: Any) -> NDArray[np.object_] | None:
    """Column names of a DataFrame of features, None where there are none.

    Parameters
    ----------
    features : ItemFeatures or what it wraps
        Features.

    Returns
    -------
    ndarray of str or None
        The names.
    """
    values = features.values if isinstance(features, ItemFeatures) else features
    columns = getattr(values, "columns", None)
    if columns is None or not all(isinstance(column, str) for column in columns):
        return None
    return np.asarray(list(columns), dtype=object)
