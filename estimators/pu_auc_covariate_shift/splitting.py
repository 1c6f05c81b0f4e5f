"""Folds that keep the shares of positives and of target rows."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import BaseCrossValidator, StratifiedKFold
from sklearn.utils.validation import check_consistent_length, column_or_1d

from seedbed.checks import check_number


class PUDomainStratifiedKFold(BaseCrossValidator):
    """K folds that hold the shares of labelled positives, unlabeled source rows and target rows.

    Folds that are stratified on y alone can be left without target rows. Under metadata routing
    ``sample_domain`` reaches the splitter by itself; without, pass ``cv=list(splitter.split(X, y,
    sample_domain=sample_domain))``.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds.
    shuffle : bool, default=True
        Whether rows are shuffled first.
    random_state : int, RandomState instance or None, default=None
        Shuffling.

    Raises
    ------
    TypeError, ValueError
        If ``n_splits`` is no integer of at least 2.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([1, 1, 0, 0, 0, 0, -1, -1])  # the last two are target rows
    >>> domain = np.array([1, 1, 1, 1, 1, 1, -1, -1])
    >>> folds = PUDomainStratifiedKFold(2, random_state=0)
    >>> [sorted(domain[test].tolist()) for _, test in folds.split(np.zeros((8, 1)), y, sample_domain=domain)]
    [[-1, 1, 1, 1], [-1, 1, 1, 1]]
    """

    __metadata_request__split: ClassVar[dict[str, bool]] = {"sample_domain": True}

    def __init__(self, n_splits: int = 5, *, shuffle: bool = True, random_state: Any = None) -> None:
        check_number("n_splits", n_splits, low=2, integer=True)
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, **metadata: Any) -> int:
        """Number of folds.

        Parameters
        ----------
        X, y, groups, **metadata : object
            Ignored.

        Returns
        -------
        int
            ``n_splits``.
        """
        del X, y, groups, metadata
        return int(self.n_splits)

    def split(
        self,
        X: Any,
        y: ArrayLike,
        groups: Any = None,
        *,
        sample_domain: ArrayLike | None = None,
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield row numbers of training and test part.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows; only their number counts.
        y : array-like of shape (n,)
            Labels; those of target rows are ignored.
        groups : object
            Ignored.
        sample_domain : array-like of shape (n,)
            Positive for source rows, negative for target rows.

        Yields
        ------
        train, test : ndarray
            Row numbers.

        Raises
        ------
        ValueError
            If ``sample_domain`` is missing or malformed, or a kind of rows has fewer members than there are
            folds.
        """
        del groups
        if sample_domain is None:
            raise ValueError(
                "sample_domain must be given: enable metadata routing, or pass "
                "cv=list(splitter.split(X, y, sample_domain=sample_domain))"
            )
        domain, labels = column_or_1d(sample_domain), column_or_1d(y)
        check_consistent_length(X, labels, domain)
        if domain.dtype.kind not in "iuf" or not np.isfinite(domain).all() or (domain == 0).any():
            raise ValueError(
                "sample_domain must be positive for source rows and negative for target rows, got "
                f"{sample_domain!r}"
            )
        source = domain > 0
        strata = np.zeros(len(labels), dtype=int)  # target rows
        classes, codes = np.unique(labels[source], return_inverse=True)
        strata[source] = 1 + codes
        names = ["target rows", *(f"source rows of label {label!r}" for label in classes.tolist())]
        for stratum, name in enumerate(names):
            members = int((strata == stratum).sum())
            if members < self.n_splits:
                raise ValueError(
                    f"n_splits={self.n_splits} folds cannot all have {name}: there are {members}"
                )
        folds = StratifiedKFold(
            self.n_splits,
            shuffle=self.shuffle,
            random_state=self._generator() if self.shuffle else None,
        )
        yield from folds.split(np.zeros(len(strata)), strata)

    def _generator(self) -> Any:
        """None draws from a fresh generator, not from NumPy's global one."""
        return np.random.RandomState() if self.random_state is None else self.random_state
