"""Positives and unlabeled rows of one population, unlabeled rows of another: synthetic, or from classes.

Both functions return the three samples, the same stacked with ``sample_domain``, and labelled rows of the
target population to test on.
"""

from collections.abc import Collection, Hashable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

from seedbed.checks import check_number

Floats = NDArray[np.float64]


def _posterior(X: Floats) -> Floats:
    """``p(y = 1 | x)``: the second column helps where the first is negative, and harms elsewhere."""
    return np.asarray(expit(-2.2 + 3 * X[:, 1] * np.tanh(-2 * X[:, 0])))


@lru_cache
def _class_prior(shift: float) -> float:
    """Share of positives, by the trapezoidal rule, which is all but exact here."""
    nodes = np.linspace(-9.0, 9.0, 361)
    weights = np.exp(-(nodes**2) / 2)
    weights /= weights.sum()
    grid = np.stack(np.meshgrid(nodes - shift, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    return float(np.outer(weights, weights).ravel() @ _posterior(grid))


def _bunch(
    positive: Floats, unlabeled: Floats, target: Floats, X_test: Floats, y_test: NDArray[Any], **more: Any
) -> Bunch:
    """The samples apart and stacked."""
    sizes = [len(positive), len(unlabeled), len(target)]
    return Bunch(
        X_positive=positive,
        X_unlabeled=unlabeled,
        X_target=target,
        X=np.vstack([positive, unlabeled, target]),
        y=np.repeat([1, 0, -1], sizes),
        sample_domain=np.repeat([1, 1, -1], sizes),
        X_test=X_test,
        y_test=y_test,
        **more,
    )


def make_pu_covariate_shift(
    n_positive: int = 100,
    n_unlabeled: int = 2000,
    n_target: int = 2000,
    *,
    n_test: int = 2000,
    shift: float = 0.7,
    random_state: Any = None,
) -> Bunch:
    """Draw two Gaussian populations with the same p(y|x) and a known density ratio.

    Inputs are ``N((-d, 0), I)`` in training and ``N((d, 0), I)`` in the target population, d = ``shift``, and
    ``p(y = 1 | x) = sigmoid(-2.2 + 3 x_2 tanh(-2 x_1))``: no linear score fits both. The ratio of the
    densities is ``w(x) = exp(2 d x_1)``; the class prior is the same on both sides, by symmetry.

    Parameters
    ----------
    n_positive : int
        Labelled positives of the training population.
    n_unlabeled : int
        Unlabeled rows of the training population, a sample of their own.
    n_target : int
        Unlabeled rows of the target population.
    n_test : int
        Labelled rows of the target population.
    shift : float >= 0
        Half of the distance between the populations.
    random_state : int, SeedSequence, Generator or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``X_positive``, ``X_unlabeled`` and ``X_target``, each (n, 2); stacked ``X``, ``y`` (1, 0, and -1 for
        target rows) and ``sample_domain`` (1, and -1 for target rows); ``X_test`` and ``y_test`` (0 or 1).
        The truth: ``weight_positive`` and ``weight_unlabeled``, the ratios of these rows;
        ``posterior_test``, p(y = 1 | x) of the test rows; ``class_prior`` of both populations.

    Raises
    ------
    TypeError
        If a number is none.
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> from seedbed.datasets import make_pu_covariate_shift
    >>> data = make_pu_covariate_shift(50, 300, 200, random_state=0)
    >>> data.X_positive.shape, data.X.shape, round(data.class_prior, 3)
    ((50, 2), (550, 2), 0.226)
    """
    for name, size, low in (
        ("n_positive", n_positive, 1),
        ("n_unlabeled", n_unlabeled, 1),
        ("n_target", n_target, 1),
        ("n_test", n_test, 0),
    ):
        check_number(name, size, low=low, integer=True)
    check_number("shift", shift, low=0, high=20)
    rng = np.random.default_rng(random_state)

    def draw(n: int, side: int) -> Floats:
        return rng.standard_normal((n, 2)) + np.array([side * shift, 0.0])

    positive = np.empty((0, 2))
    while len(positive) < n_positive:  # rejection: keep rows with their chance of being positive
        rows = draw(max(1000, 8 * n_positive), -1)
        positive = np.vstack([positive, rows[rng.uniform(size=len(rows)) < _posterior(rows)]])
    positive = positive[:n_positive]
    unlabeled, target, X_test = draw(n_unlabeled, -1), draw(n_target, 1), draw(n_test, 1)
    chance = _posterior(X_test)
    return _bunch(
        positive,
        unlabeled,
        target,
        X_test,
        (rng.uniform(size=n_test) < chance).astype(int),
        weight_positive=np.exp(2 * shift * positive[:, 0]),
        weight_unlabeled=np.exp(2 * shift * unlabeled[:, 0]),
        posterior_test=chance,
        class_prior=_class_prior(float(shift)),
    )


def _counts(mix: Mapping[Hashable, float], n: int) -> dict[Hashable, int]:
    """Share out n rows by the mix, largest remainders first."""
    total = sum(mix.values())
    exact = {label: n * share / total for label, share in mix.items()}
    counts = {label: int(value) for label, value in exact.items()}
    by_remainder = sorted(exact, key=lambda label: counts[label] - exact[label])
    for label in by_remainder[: n - sum(counts.values())]:
        counts[label] += 1
    return counts


def _check_mix(
    name: str, mix: Mapping[Hashable, float], present: set[Hashable], positive: set[Hashable]
) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
    """Check the shares of a population and part them into positives and negatives."""
    unknown = set(mix) - present
    if unknown:
        raise ValueError(f"{name} names {sorted(map(str, unknown))}, which labels do not hold")
    for label, share in mix.items():
        check_number(f"{name}[{label!r}]", share, low=0)
    sides = (
        {label: float(share) for label, share in mix.items() if label in positive},
        {label: float(share) for label, share in mix.items() if label not in positive},
    )
    if not all(sum(side.values()) > 0 for side in sides):
        raise ValueError(f"{name} must give a share to positive and to negative classes, got {dict(mix)!r}")
    return sides


def make_pu_domain_split(
    X: ArrayLike,
    labels: ArrayLike,
    *,
    positive_classes: Collection[Any],
    source_mix: Mapping[Any, float],
    target_mix: Mapping[Any, float],
    n_positive: int = 60,
    n_unlabeled: int = 400,
    n_target: int = 200,
    n_test: int = 300,
    class_prior: float = 0.15,
    class_prior_target: float | None = None,
    random_state: Any = None,
) -> Bunch:
    """Part classified data into two populations that mix the classes differently.

    Several classes together are the positives, the others the negatives; populations differ in their shares.
    Since the class decides the label, that is covariate shift. No row is in two parts.

    Parameters
    ----------
    X : array-like of shape (n, ...)
        Rows.
    labels : array-like of shape (n,)
        Class of each row.
    positive_classes : collection
        Classes that are positive.
    source_mix, target_mix : mapping of class to float >= 0
        Shares within the positives and within the negatives, in any unit.
    n_positive, n_unlabeled, n_target : int
        Labelled positives and unlabeled rows of the source, unlabeled rows of the target population.
    n_test : int
        Labelled rows of the target population, half of them positive.
    class_prior : float in (0, 1)
        Share of positives among the unlabeled source rows.
    class_prior_target : float in (0, 1), optional
        Share of positives among the target rows; ``class_prior`` by default.
    random_state : int, SeedSequence, Generator or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``X_positive``, ``X_unlabeled``, ``X_target``, stacked ``X``, ``y`` (1, 0, and -1 for target rows) and
        ``sample_domain`` (1, and -1 for target rows), ``X_test``, ``y_test`` (0 or 1), ``class_prior``,
        ``class_prior_target``, and ``rows``: row numbers by part.

    Raises
    ------
    TypeError
        If a number is none.
    ValueError
        If arguments are out of range, or a class has too few rows.

    Examples
    --------
    >>> from seedbed.datasets import load_digits, make_pu_domain_split
    >>> X, digit = load_digits(return_X_y=True)
    >>> mostly = {1: 30, 3: 30, 5: 30, 7: 5, 9: 5, 0: 30, 2: 30, 4: 30, 6: 5, 8: 5}
    >>> rarely = {1: 3, 3: 3, 5: 3, 7: 45, 9: 45, 0: 3, 2: 3, 4: 3, 6: 45, 8: 45}
    >>> data = make_pu_domain_split(X, digit, positive_classes={1, 3, 5, 7, 9}, source_mix=mostly,
    ...     target_mix=rarely, random_state=0)
    >>> data.X_positive.shape, data.X.shape, int(data.y_test.sum())
    ((60, 64), (660, 64), 150)
    """
    X, labels = np.asarray(X), np.asarray(labels)
    if labels.ndim != 1 or X.ndim < 2 or len(X) != len(labels):
        raise ValueError(f"X and labels must have shapes (n, ...) and (n,), got {X.shape} and {labels.shape}")
    sizes = {"positive": n_positive, "unlabeled": n_unlabeled, "target": n_target}
    for name, size in sizes.items():
        check_number(f"n_{name}", size, low=1, integer=True)
    check_number("n_test", n_test, low=0, integer=True)
    prior_target = class_prior if class_prior_target is None else class_prior_target
    check_number("class_prior", class_prior, low=0, high=1, closed="neither")
    check_number("class_prior_target", prior_target, low=0, high=1, closed="neither")
    present = set(labels.tolist())
    positive = set(positive_classes)
    source = _check_mix("source_mix", source_mix, present, positive)
    target = _check_mix("target_mix", target_mix, present, positive)
    rng = np.random.default_rng(random_state)
    pools = {label: rng.permutation(np.flatnonzero(labels == label)).tolist() for label in sorted(present)}

    def take(mix: Mapping[Hashable, float], n: int) -> list[int]:
        taken: list[int] = []
        for label, count in _counts(mix, n).items():
            if count > len(pools[label]):
                raise ValueError(
                    f"class {label!r} has {int((labels == label).sum())} rows, too few: "
                    f"{count - len(pools[label])} more are wanted; ask for fewer rows or another mix"
                )
            taken += [pools[label].pop() for _ in range(count)]
        return taken

    def population(sides: tuple[dict[Hashable, float], ...], n: int, share: float) -> NDArray[np.intp]:
        many = round(n * share)
        return rng.permutation(np.array(take(sides[0], many) + take(sides[1], n - many), dtype=np.intp))

    rows = {
        "positive": rng.permutation(np.array(take(source[0], n_positive), dtype=np.intp)),
        "unlabeled": population(source, n_unlabeled, class_prior),
        "target": population(target, n_target, prior_target),
        "test": population(target, n_test, 0.5),
    }
    return _bunch(
        X[rows["positive"]],
        X[rows["unlabeled"]],
        X[rows["target"]],
        X[rows["test"]],
        np.isin(labels[rows["test"]], list(positive)).astype(int),
        class_prior=float(class_prior),
        class_prior_target=float(prior_target),
        rows=rows,
    )


ODD_DIGITS = frozenset({1, 3, 5, 7, 9})
EARLY_DIGITS = frozenset({0, 1, 2, 3, 4, 5})
"""Digits that are common in the source population; in the target population the others are."""


def make_pu_digits(*, share: float = 0.9, random_state: Any = None, **sizes: Any) -> Bunch:
    """Part scikit-learn's digits into two populations: tell odd digits from even ones.

    In the source population a share of the odd digits are 1, 3 or 5 and of the even ones 0, 2 or 4; in the
    target population the others, 7 and 9, 6 and 8, have that share.

    Parameters
    ----------
    share : float in (0, 1)
        Share of the common digits in each population.
    random_state : int, SeedSequence, Generator or None
        Source of randomness; None for a fresh seed.
    **sizes
        ``n_positive``, ``n_unlabeled``, ``n_target``, ``n_test``, ``class_prior`` and
        ``class_prior_target`` of :func:`make_pu_domain_split`.

    Returns
    -------
    Bunch
        As from :func:`make_pu_domain_split`; pixels from 0 to 1.

    Raises
    ------
    TypeError
        If a number is none.
    ValueError
        If a number is out of range, or more digits are wanted than there are.

    Examples
    --------
    >>> from seedbed.datasets import make_pu_digits
    >>> data = make_pu_digits(random_state=0)
    >>> data.X_positive.shape, data.X_unlabeled.shape, data.X_target.shape, data.X_test.shape
    ((60, 64), (400, 64), (200, 64), (300, 64))
    """
    check_number("share", share, low=0, high=1, closed="neither")
    X, digit = load_digits(return_X_y=True)

    def mix(common: frozenset[int]) -> dict[int, float]:
        shares: dict[int, float] = {}
        for side in (ODD_DIGITS, frozenset(range(10)) - ODD_DIGITS):
            for group, weight in ((side & common, share), (side - common, 1 - share)):
                shares |= dict.fromkeys(sorted(group), weight / len(group))
        return shares

    return make_pu_domain_split(
        X / 16.0,
        digit,
        positive_classes=ODD_DIGITS,
        source_mix=mix(EARLY_DIGITS),
        target_mix=mix(frozenset(range(10)) - EARLY_DIGITS),
        random_state=random_state,
        **sizes,
    )
