"""From ``X, y`` and the target rows to three samples: positives, unlabeled rows, target rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_sample_weight,
    _check_y,
    _num_samples,
    check_consistent_length,
    column_or_1d,
    validate_data,
)

from seedbed.estimators.pu_auc_covariate_shift.losses import Floats

Rows = Any
"""ndarray or CSR matrix of shape (n, n_features)."""

HINT = (
    "stack the target rows into X and mark them in sample_domain; cross-validation then needs "
    "PUDomainStratifiedKFold, since folds stratified on y alone can be left without target rows"
)


@dataclass(frozen=True)
class PUSamples:
    """The three samples.

    Attributes
    ----------
    positive, unlabeled : {ndarray, sparse} of shape (n, n_features)
        Labelled positives and unlabeled rows of the training population.
    target : {ndarray, sparse} or None
        Unlabeled rows of the target population.
    positive_weight, unlabeled_weight, target_weight : ndarray of shape (n,)
        The caller's weights of these rows.
    """

    positive: Rows
    unlabeled: Rows
    target: Rows | None
    positive_weight: Floats
    unlabeled_weight: Floats
    target_weight: Floats

    def source(self, *, single_set: bool) -> Rows:
        """Rows that stand for the training population.

        Parameters
        ----------
        single_set : bool
            Whether labelled positives belong to them.

        Returns
        -------
        {ndarray, sparse} of shape (n, n_features)
            The rows.
        """
        return stack([self.positive, self.unlabeled]) if single_set else self.unlabeled


def stack(parts: list[Rows]) -> Rows:
    """Put samples one above the other.

    Parameters
    ----------
    parts : list of {ndarray, sparse}
        With equal columns.

    Returns
    -------
    {ndarray, CSR matrix}
        Sparse if one of them is.
    """
    if any(sparse.issparse(part) for part in parts):
        return sparse.vstack(parts, format="csr")
    return np.vstack(parts)


def _domains(sample_domain: Any, X: Rows) -> NDArray[np.bool_]:
    """Which rows of X belong to the training population; raises unless there are rows of both."""
    domain = column_or_1d(sample_domain)
    check_consistent_length(X, domain)
    if domain.dtype.kind not in "iuf" or not np.isfinite(domain).all():
        raise ValueError(
            f"sample_domain must hold numbers, positive for source and negative for target rows; got "
            f"{sample_domain!r}"
        )
    if (domain == 0).any():
        raise ValueError(
            "sample_domain must be positive for source rows and negative for target rows, got "
            f"{int((domain == 0).sum())} zeros"
        )
    for name, there in (("positive (source)", domain > 0), ("negative (target)", domain < 0)):
        if not there.any():
            raise ValueError(
                f"sample_domain has no {name} entry among {len(domain)} rows; in cross-validation, use "
                "PUDomainStratifiedKFold, which keeps the share of target rows in every fold"
            )
    return np.asarray(domain > 0)


def _target_rows(estimator: BaseEstimator, X_target: Any, X: Rows, options: dict[str, Any]) -> Rows:
    """Check target rows that came in an array of their own, or in a list of such arrays."""
    parts = X_target if isinstance(X_target, list | tuple) and np.ndim(_first(X_target)) == 2 else None
    if parts is None and _num_samples(X_target) == _num_samples(X):
        raise ValueError(
            f"X_target has as many rows as X ({_num_samples(X)}). Cross-validation would take it for one "
            "entry per row of X and slice it, without a word. Pass the list [X_target], which stays whole, "
            f"or {HINT}"
        )
    checked = [
        validate_data(estimator, part, reset=False, **options)
        for part in ([X_target] if parts is None else parts)
    ]
    return stack(checked) if len(checked) > 1 else checked[0]


def _first(parts: Any) -> Any:
    return parts[0] if len(parts) else None


def _labels(estimator: BaseEstimator, y: Any, *, fitting: bool, pos_label: Any) -> NDArray[np.bool_]:
    """Which source rows are labelled positive; sets ``classes_`` when fitting."""
    y = _check_y(y, estimator=estimator)
    check_classification_targets(y)
    if type_of_target(y, input_name="y", raise_unknown=True) not in ("binary", "multiclass"):
        raise ValueError(f"y must hold one label per row, got {type_of_target(y)} targets")
    classes = np.unique(y)
    if not fitting:
        classes = estimator.classes_  # type: ignore[attr-defined]
        unknown = np.setdiff1d(y, classes)
        if len(unknown):
            raise ValueError(f"y has labels that are not among the classes {classes!r}: {unknown!r}")
        return np.asarray(y == estimator._positive_label)  # type: ignore[attr-defined]
    if len(classes) > 2:
        raise ValueError(
            "Only binary classification is supported. The type of the target is "
            f"{type_of_target(y)}: y must hold one label for positives and one for unlabeled rows, got "
            f"{len(classes)} labels"
        )
    if len(classes) < 2:
        raise ValueError(
            f"y must hold positives and unlabeled rows, got 1 class: {classes!r}. In cross-validation, use "
            "PUDomainStratifiedKFold"
        )
    if pos_label is not None and not (classes == pos_label).any():
        raise ValueError(f"y has no positives: pos_label={pos_label!r}, labels are {classes!r}")
    positive = classes[-1] if pos_label is None else classes[classes == pos_label][0]
    estimator._positive_label = positive  # type: ignore[attr-defined]
    # As everywhere in scikit-learn, the positive class comes second.
    ordered = classes if positive == classes[1] else classes[::-1].copy()
    estimator.classes_ = ordered  # type: ignore[attr-defined]
    return np.asarray(y == positive)


def split_samples(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    *,
    sample_domain: Any,
    X_target: Any,
    sample_weight: Any,
    fitting: bool,
    pos_label: Any = None,
    drop_zero_weights: bool = True,
    **options: Any,
) -> PUSamples:
    """Check everything and tell the samples apart.

    Parameters
    ----------
    estimator : estimator
        Whose data they are; its ``classes_`` and feature names are set when fitting, checked else.
    X : {array-like, sparse} of shape (n, n_features)
        Rows; with ``sample_domain``, target rows among them.
    y : array-like of shape (n,)
        Labels; ignored for target rows.
    sample_domain : array-like of shape (n,) or None
        Positive for rows of the training population, negative for target rows.
    X_target : {array-like, sparse}, list of them, or None
        Target rows that are not in X.
    sample_weight : array-like of shape (n,) or None
        Non-negative weights of the rows of X.
    fitting : bool
        Whether this is for ``fit``.
    pos_label : label, optional
        Label of positives; the larger one by default.
    drop_zero_weights : bool
        Whether rows of weight zero are left out altogether.
    **options
        For :func:`~sklearn.utils.validation.validate_data`.

    Returns
    -------
    PUSamples
        The samples.

    Raises
    ------
    ValueError
        If anything is malformed, or a sample is missing.
    """
    if sample_domain is not None and X_target is not None:
        raise ValueError("sample_domain and X_target both say which rows are target rows: pass one of them")
    X = validate_data(estimator, X, reset=fitting, **options)
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None."
        )
    y = column_or_1d(y, warn=True)
    check_consistent_length(X, y)
    source = np.ones(X.shape[0], dtype=bool) if sample_domain is None else _domains(sample_domain, X)
    positive = np.zeros(X.shape[0], dtype=bool)
    positive[source] = _labels(estimator, y[source], fitting=fitting, pos_label=pos_label)
    weight = np.ones(X.shape[0])
    if sample_weight is not None:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    kept = weight > 0 if drop_zero_weights else np.ones(len(weight), dtype=bool)
    parts = {
        "positives": np.flatnonzero(positive & kept),
        "unlabeled rows": np.flatnonzero(source & ~positive & kept),
    }
    for name, rows in parts.items():
        if not len(rows) or weight[rows].max() <= 0:
            what = "y has no" if sample_weight is None else "sample_weight leaves out all"
            raise ValueError(
                f"{what} {name}, one of the two classes; in cross-validation, use PUDomainStratifiedKFold"
            )
    p, u = parts.values()
    target, target_weight = None, np.ones(0)
    if X_target is not None:
        target = _target_rows(estimator, X_target, X, options)
        target_weight = np.ones(target.shape[0])
    elif not source.all():
        rows = np.flatnonzero(~source & kept)
        target, target_weight = X[rows], weight[rows]
    if target is not None and target.shape[0] < 2:
        raise ValueError(f"there must be at least 2 target rows, got {target.shape[0]}")
    return PUSamples(X[p], X[u], target, weight[p], weight[u], target_weight)
