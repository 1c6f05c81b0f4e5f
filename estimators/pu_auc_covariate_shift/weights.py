"""Importance weights: which density ratio, its floor and ceiling, and what a user should be warned of."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone

from seedbed.estimators.density_ratio import LogisticRatio, RuLSIF
from seedbed.estimators.pu_auc_covariate_shift.losses import Floats
from seedbed.estimators.pu_auc_covariate_shift.samples import Rows

RATIOS = ("rulsif", "neural", "logistic", "none", "precomputed")
"""Named density ratios."""

LEAST_EFFECTIVE = 10.0
"""Fewer effective positives than this are warned of."""


def _neural(alpha: float, seed: int) -> Any:
    from seedbed.estimators.pu_auc_covariate_shift.networks import NeuralRatio

    return NeuralRatio(alpha, random_state=seed)


def make_ratio(density_ratio: Any, alpha: float, rng: np.random.RandomState) -> Any:
    """Return an unfitted estimator of the ratio, or None where weights are not estimated.

    Parameters
    ----------
    density_ratio : str or estimator
        A name of :data:`RATIOS`, or an object with ``fit(X_numerator, X_denominator)`` and ``predict``.
    alpha : float in [0, 1)
        Share of the target density in the mixture, for a named ratio.
    rng : RandomState
        Seeds it.

    Returns
    -------
    estimator or None
        A clone of a given one.
    """
    if not isinstance(density_ratio, str):
        return clone(density_ratio, safe=False)
    makers: dict[str, Callable[[], Any]] = {
        "rulsif": lambda: RuLSIF(alpha, random_state=rng.randint(np.iinfo(np.int32).max)),
        "logistic": lambda: LogisticRatio(alpha),
        "neural": lambda: _neural(alpha, rng.randint(np.iinfo(np.int32).max)),
    }
    return makers[density_ratio]() if density_ratio in makers else None


def predict_ratio(ratio: Any, X: Rows) -> Floats:
    """Predict with an estimator of the ratio and check what it says.

    Parameters
    ----------
    ratio : estimator
        Fitted.
    X : {ndarray, sparse} of shape (n, n_features)
        Rows.

    Returns
    -------
    ndarray of shape (n,)
        Finite, 0 or more.

    Raises
    ------
    ValueError
        If the estimator says anything else.
    """
    found = np.asarray(ratio.predict(X), dtype=np.float64).ravel()
    if len(found) != X.shape[0] or not np.isfinite(found).all() or found.min(initial=0.0) < 0:
        raise ValueError(
            "density_ratio must predict one finite weight of at least 0 per row; "
            f"{type(ratio).__name__} gave {len(found)} for {X.shape[0]} rows, in "
            f"[{found.min(initial=np.inf):g}, {found.max(initial=-np.inf):g}]"
        )
    return found


def bounded(ratio: Floats, floor: float, ceiling: float | None) -> Floats:
    """Weights within floor and ceiling: the sums of weights are divided by, so they must not vanish.

    Parameters
    ----------
    ratio : ndarray
        Weights.
    floor : float
        Least weight.
    ceiling : float or None
        Largest weight.

    Returns
    -------
    ndarray
        Clipped weights.
    """
    return np.clip(ratio, floor, ceiling)


def effective_sample_size(weight: Floats, count: Floats) -> float:
    """``(sum w)^2 / sum w^2``: how many rows of equal weight are as informative.

    Parameters
    ----------
    weight : ndarray of shape (n,)
        Weights.
    count : ndarray of shape (n,)
        How many rows each one stands for.

    Returns
    -------
    float
        At most the number of rows.
    """
    return float((weight @ count) ** 2 / (weight**2 @ count))


def warn_of(positive: Floats, effective: float, bound: float | None) -> None:
    """Warn where few positives carry all weight, or target rows lie where no positive is.

    Parameters
    ----------
    positive : ndarray of shape (n,)
        Weights of labelled positives.
    effective : float
        Their effective sample size.
    bound : float or None
        ``1 / alpha``, the largest value of a relative ratio.

    Warns
    -----
    UserWarning
        See above.
    """
    if effective < LEAST_EFFECTIVE:
        warnings.warn(
            f"the weighted positives are worth {effective:.1f} of the {len(positive)}: raise "
            "relative_alpha, set weight_clip, or collect positives that resemble the target rows",
            UserWarning,
            stacklevel=4,
        )
    at_bound = 0.0 if bound is None else float(np.mean(positive >= 0.95 * bound))
    if at_bound > 0.2:
        warnings.warn(
            f"{at_bound:.0%} of the positives have weights at the bound 1 / relative_alpha = {bound:g}: "
            "target and training population hardly overlap there, which no weight can mend",
            UserWarning,
            stacklevel=4,
        )
