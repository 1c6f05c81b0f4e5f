"""Answers of real models to real items: many small classifiers, each tested on every handwritten digit."""

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import Bunch
from sklearn.utils.parallel import Parallel, delayed

from seedbed.checks import check_number

Floats = NDArray[np.float64]

N_CLASSIFIERS = 148
N_FOLDS = 5
SIZES = (20, 1400)
"""Fewest and most images that a classifier learns from; sizes are log-uniform between them."""
N_NEIGHBORS = (5, 15)
"""Nearest images that the agreement of labels is counted among."""
_DESCR = """
Classifier responses: which of 148 classifiers of scikit-learn got which of 1797 handwritten digits right.

Rows are classifiers of 11 families, trained on 20 to 1400 images each; columns are the images of
sklearn.datasets.load_digits. An answer is given out of fold: no classifier has seen the image that it is
asked about. Made by make_classifier_responses(random_state=0).
"""


@dataclass(frozen=True)
class _Draw:
    """What a family draws a classifier from."""

    rng: np.random.Generator
    size: int
    seed: int

    def log_uniform(self, low: float, high: float) -> float:
        """Log-uniform number between both."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def integer(self, low: int, high: int) -> int:
        """Integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))


def _logistic(draw: _Draw) -> ClassifierMixin:
    return LogisticRegression(C=draw.log_uniform(1e-4, 1.0), max_iter=2000, random_state=draw.seed)


def _ridge(draw: _Draw) -> ClassifierMixin:
    return RidgeClassifier(alpha=draw.log_uniform(1.0, 1e5))


def _bayes(draw: _Draw) -> ClassifierMixin:
    return GaussianNB(var_smoothing=draw.log_uniform(1e-4, 1.0))


def _centroid(draw: _Draw) -> ClassifierMixin:
    return NearestCentroid(metric=("euclidean", "manhattan")[draw.integer(0, 1)])


def _neighbors(draw: _Draw) -> ClassifierMixin:
    return KNeighborsClassifier(n_neighbors=draw.integer(1, min(15, draw.size - 1)))


def _tree(draw: _Draw) -> ClassifierMixin:
    return DecisionTreeClassifier(max_depth=draw.integer(1, 12), random_state=draw.seed)


def _forest(draw: _Draw) -> ClassifierMixin:
    trees, depth = draw.integer(2, 30), draw.integer(2, 12)
    return RandomForestClassifier(n_estimators=trees, max_depth=depth, random_state=draw.seed)


def _extra_trees(draw: _Draw) -> ClassifierMixin:
    trees, depth = draw.integer(2, 30), draw.integer(2, 12)
    return ExtraTreesClassifier(n_estimators=trees, max_depth=depth, random_state=draw.seed)


def _svc(draw: _Draw) -> ClassifierMixin:
    return SVC(C=draw.log_uniform(0.1, 30.0), gamma=draw.log_uniform(1e-4, 1e-2), random_state=draw.seed)


def _few_pixels(draw: _Draw) -> ClassifierMixin:
    return BaggingClassifier(
        KNeighborsClassifier(n_neighbors=1),
        n_estimators=1,
        max_features=draw.integer(6, 32),
        bootstrap=False,
        random_state=draw.seed,
    )


def _bagged_logistic(draw: _Draw) -> ClassifierMixin:
    return BaggingClassifier(
        LogisticRegression(C=draw.log_uniform(1e-4, 1e-1), max_iter=2000),
        n_estimators=3,
        max_features=draw.integer(8, 40),
        random_state=draw.seed,
    )


FAMILIES: dict[str, Callable[[_Draw], ClassifierMixin]] = {
    "logistic": _logistic,
    "ridge": _ridge,
    "naive_bayes": _bayes,
    "centroid": _centroid,
    "neighbors": _neighbors,
    "tree": _tree,
    "forest": _forest,
    "extra_trees": _extra_trees,
    "svc": _svc,
    "few_pixels": _few_pixels,
    "bagged_logistic": _bagged_logistic,
}


def load_classifier_responses() -> Bunch:
    """Load the answers of 148 classifiers to 1797 images of digits: real models, real items.

    Returns
    -------
    Bunch
        ``data`` float64 (148, 1797): 1 where the classifier of the row named the digit of the column
        correctly, else 0, nothing missing; ``family`` (148,) of str; ``n_train`` int64 (148,), the images
        that each classifier learned from; ``label`` int64 (1797,); ``pixels`` float64 (1797, 64), from 0 to
        16; ``item_features`` float64 (1797, 27), which know the label: see :func:`digit_features`;
        ``feature_names`` and ``DESCR``.

    Examples
    --------
    >>> from seedbed.datasets import load_classifier_responses
    >>> found = load_classifier_responses()
    >>> found.data.shape, found.item_features.shape
    ((148, 1797), (1797, 27))
    """
    with (files("seedbed.datasets") / "data" / "classifier_responses.npz").open("rb") as file:
        table = np.load(io.BytesIO(file.read()), allow_pickle=False)
    names = list(FAMILIES)
    n_items = len(load_digits().target)
    right = np.unpackbits(table["right"], axis=1, count=n_items)
    return _bunch(right, [names[code] for code in table["family"]], table["n_train"].astype(np.int64))


def make_classifier_responses(
    n_classifiers: int = N_CLASSIFIERS, *, n_jobs: int | None = None, random_state: Any = None
) -> Bunch:
    """Train small classifiers of many kinds and ask each about every image of a digit.

    Families come in turn, hyperparameters are drawn, and training sizes are log-uniform from 20 to 1400.
    Answers are out of fold (5 folds; in each, the classifier learns from ``n_train`` images of the other
    four). 148 of them take about 20 seconds.

    Parameters
    ----------
    n_classifiers : int, default=148
        How many.
    n_jobs : int, default=None
        Classifiers trained at a time (joblib).
    random_state : int, Generator, RandomState or None, default=None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        As from :func:`load_classifier_responses`.

    Raises
    ------
    ValueError
        If ``n_classifiers`` is below 1.
    TypeError
        If it is no integer.

    Examples
    --------
    >>> from seedbed.datasets import make_classifier_responses
    >>> make_classifier_responses(2, random_state=0).data.shape
    (2, 1797)
    """
    check_number("n_classifiers", n_classifiers, low=1, integer=True)
    if isinstance(random_state, np.random.RandomState):
        seeds = random_state.randint(2**31 - 1, size=n_classifiers)
    else:
        seeds = np.random.default_rng(random_state).integers(2**31 - 1, size=n_classifiers)
    names = [list(FAMILIES)[k % len(FAMILIES)] for k in range(n_classifiers)]
    digits = load_digits()
    answers = Parallel(n_jobs=n_jobs)(
        delayed(_answer)(name, int(seed), digits.data, digits.target)
        for name, seed in zip(names, seeds, strict=True)
    )
    return _bunch(
        np.array([right for right, _ in answers]),
        names,
        np.array([size for _, size in answers], dtype=np.int64),
    )


def _answer(family: str, seed: int, X: Floats, y: NDArray[Any]) -> tuple[NDArray[np.bool_], int]:
    """Out-of-fold answers of one classifier, and how many images it learned from in each fold."""
    rng = np.random.default_rng(seed)
    size = round(float(np.exp(rng.uniform(*np.log(SIZES)))))
    model = FAMILIES[family](_Draw(rng, size, seed))
    right = np.zeros(len(y), dtype=bool)
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # Pixels at the edge are blank in every image of a class, which the nearest centroid warns of.
        warnings.filterwarnings("ignore", ".*zero standard deviation", UserWarning)
        for train, test in folds.split(X, y):
            rows = rng.choice(train, size, replace=False)
            right[test] = model.fit(X[rows], y[rows]).predict(X[test]) == y[test]
    return right, size


def _bunch(right: NDArray[Any], family: list[str], n_train: NDArray[np.int64]) -> Bunch:
    digits = load_digits()
    label = digits.target.astype(np.int64)
    features, names = digit_features(digits.data, label)
    return Bunch(
        data=right.astype(np.float64),
        family=np.array(family),
        n_train=n_train,
        label=label,
        pixels=digits.data,
        item_features=features,
        feature_names=names,
        DESCR=_DESCR,
    )


def digit_features(pixels: Any, label: Any) -> tuple[Floats, list[str]]:
    """Describe how images lie to the classes, their own and the others.

    Parameters
    ----------
    pixels : ndarray of shape (n_images, n_pixels)
        Images.
    label : ndarray of int, shape (n_images,)
        Their classes, at least four.

    Returns
    -------
    features : ndarray of shape (n_images, 2 n_classes + 7)
        Distances to the centroids of all classes; the label as indicators; the distances to the own centroid
        and to the three nearest others, and the ratio of the first two of these; the share of the nearest 5
        and 15 images that have the same label.
    names : list of str
        Of the columns.
    """
    classes = np.unique(label)
    own = label[:, None] == classes
    distance = euclidean_distances(pixels, np.array([pixels[label == c].mean(axis=0) for c in classes]))
    to_own = distance[own]
    others = np.sort(distance[~own].reshape(len(label), -1), axis=1)[:, :3]
    apart = euclidean_distances(pixels)
    np.fill_diagonal(apart, np.inf)
    nearest = np.argsort(apart, axis=1)[:, : max(N_NEIGHBORS)]
    same = label[nearest] == label[:, None]
    columns = [distance, own, to_own, others, to_own / others[:, 0]]
    columns += [same[:, :k].mean(axis=1) for k in N_NEIGHBORS]
    names = [f"to_{c}" for c in classes] + [f"is_{c}" for c in classes]
    names += ["to_own", "to_other_1", "to_other_2", "to_other_3", "own_to_other"]
    return np.column_stack(columns), names + [f"agreement_{k}" for k in N_NEIGHBORS]


def write_table(path: str | Path, *, n_jobs: int | None = None) -> None:
    """Write the table that :func:`load_classifier_responses` reads.

    Parameters
    ----------
    path : path-like
        Where to, ending in ``.npz``.
    n_jobs : int, optional
        Classifiers trained at a time.
    """
    made = make_classifier_responses(random_state=0, n_jobs=n_jobs)
    names = list(FAMILIES)
    np.savez_compressed(
        path,
        right=np.packbits(made.data.astype(bool), axis=1),
        family=np.array([names.index(name) for name in made.family], dtype=np.uint8),
        n_train=made.n_train.astype(np.uint16),
    )
