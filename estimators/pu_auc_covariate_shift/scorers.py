"""Scores that are linear in features, trained on all pairs at once by L-BFGS."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import OptimizeResult, minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.parallel import Parallel, delayed

from seedbed.estimators.density_ratio import kernel_features, median_distance
from seedbed.estimators.pu_auc_covariate_shift.losses import Floats
from seedbed.estimators.pu_auc_covariate_shift.risk import PURisk
from seedbed.estimators.pu_auc_covariate_shift.samples import PUSamples, Rows, stack

START = 0.1
"""Standard deviation of the first coefficients."""

TOLERANCE = 1e-9
"""Largest entry of the gradient at which the search ends."""

CLOSE_ENOUGH = 1e-4
"""Largest entry of the gradient that is no reason to warn when the iterations are used up."""


@dataclass(frozen=True)
class LinearFit:
    """Coefficients and how they were found.

    Attributes
    ----------
    coef : ndarray of shape (n_features,)
        Coefficients of the best start.
    loss_curve : list of float
        Objective after each of its iterations.
    n_iter : int
        Number of them.
    """

    coef: Floats
    loss_curve: list[float]
    n_iter: int


def fit_linear(
    samples: Sequence[Any],
    risk: PURisk,
    *,
    l2: float,
    max_iter: int,
    n_restarts: int,
    rng: np.random.RandomState,
    n_jobs: int | None = None,
) -> LinearFit:
    """Minimise ``risk(Z v) + l2 / 2 |v|^2`` from several random starts.

    Parameters
    ----------
    samples : sequence of {ndarray, sparse} of shape (n, n_features)
        Features Z of positives, unlabeled rows and target rows; the last may be None.
    risk : PURisk
        The objective as a function of scores.
    l2 : float
        Strength of the penalty.
    max_iter : int
        Most iterations of a start.
    n_restarts : int
        Starts; the objective is not convex.
    rng : RandomState
        Draws them.
    n_jobs : int, optional
        Starts at a time, see joblib; the result does not depend on it.

    Returns
    -------
    LinearFit
        The best.

    Raises
    ------
    ValueError
        If no start leads to finite coefficients.

    Warns
    -----
    ConvergenceWarning
        If the iterations did not suffice.
    """
    positive, unlabeled, target = samples
    if target is None or not risk.gamma:
        target = positive[:0]
    starts = rng.standard_normal((n_restarts, positive.shape[1])) * START
    descents = Parallel(n_jobs=n_jobs)(
        delayed(_descend)(start, (positive, unlabeled, target), risk, l2, max_iter) for start in starts
    )
    best: OptimizeResult | None = None
    best_curve: list[float] = []
    for found, curve in descents:
        usable = np.isfinite(found.fun) and np.isfinite(found.x).all()
        if usable and (best is None or found.fun < best.fun):
            best, best_curve = found, curve or [float(found.fun)]
    if best is None:
        raise ValueError(
            "the objective is not finite: X has columns of very different or very large scale; scale them"
        )
    if best.nit >= max_iter and np.abs(best.jac).max() > CLOSE_ENOUGH:
        warnings.warn(
            f"L-BFGS did not converge in max_iter={max_iter} iterations: raise max_iter or scale the columns",
            ConvergenceWarning,
            stacklevel=4,
        )
    return LinearFit(np.asarray(best.x, dtype=np.float64), best_curve, max(1, int(best.nit)))


def _descend(
    start: Floats, samples: tuple[Any, Any, Any], risk: PURisk, l2: float, max_iter: int
) -> tuple[OptimizeResult, list[float]]:
    """L-BFGS from one start: what it found, and the objective of each iteration."""
    positive, unlabeled, target = samples

    def objective(coef: Floats) -> tuple[float, Floats]:
        value, to_p, to_u, to_t = risk(positive @ coef, unlabeled @ coef, target @ coef)
        gradient = positive.T @ to_p + unlabeled.T @ to_u + target.T @ to_t + l2 * coef
        return value + l2 / 2 * float(coef @ coef), gradient

    curve: list[float] = []
    with np.errstate(all="ignore"):
        found = minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=_recorder(curve),
            options={"maxiter": max_iter, "gtol": TOLERANCE, "ftol": 0.0, "maxcor": 20},
        )
    return found, curve


def _recorder(curve: list[float]) -> Callable[[OptimizeResult], None]:
    """Return a callback that notes the objective of each iteration."""

    def note(intermediate_result: OptimizeResult) -> None:
        curve.append(float(intermediate_result.fun))

    return note


def centred(samples: PUSamples) -> list[Any]:
    """The dense samples less the mean of the unlabeled rows: scores only shift, numbers get better.

    Parameters
    ----------
    samples : PUSamples
        The samples; sparse ones are returned as they are.

    Returns
    -------
    list
        Positives, unlabeled rows, target rows or None.
    """
    parts = [samples.positive, samples.unlabeled, samples.target]
    if sparse.issparse(samples.unlabeled):
        return parts
    parts = [None if part is None else np.asarray(part, dtype=np.float64) for part in parts]
    with np.errstate(all="ignore"):
        mean = parts[1].mean(axis=0)
        return [None if part is None else part - mean for part in parts]


@dataclass(frozen=True)
class KernelMap:
    """Gaussian kernels on landmarks.

    Attributes
    ----------
    landmarks : {ndarray, sparse} of shape (k, n_features)
        Centres.
    gamma : float
        ``exp(-gamma |x - c|^2)``.
    """

    landmarks: Rows
    gamma: float

    def __call__(self, X: Rows) -> Floats:
        """Features of these rows, (n, k)."""
        return kernel_features(X, self.landmarks, (2.0 * self.gamma) ** -0.5)


def draw_landmarks(
    samples: PUSamples, n_components: int, gamma: float | None, rng: np.random.RandomState
) -> KernelMap:
    """Choose landmarks among training and target rows.

    Parameters
    ----------
    samples : PUSamples
        The samples.
    n_components : int
        Most landmarks.
    gamma : float or None
        Width; None takes ``1 / (2 median^2)`` of the distances between rows.
    rng : RandomState
        Draws them.

    Returns
    -------
    KernelMap
        The features.
    """
    parts = [part for part in (samples.positive, samples.unlabeled, samples.target) if part is not None]
    rows = stack(parts)
    n = rows.shape[0]
    landmarks = rows[np.sort(rng.choice(n, min(n_components, n), replace=False))]
    width = median_distance(rows, rng) if gamma is None else None
    return KernelMap(landmarks, float(gamma) if width is None else 0.5 / width**2)  # type: ignore[arg-type]
