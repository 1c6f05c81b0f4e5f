"""Conformity scores: what a score of s means for y, and back.

The built-in scores all have the form ``S(x, y) = max(low(x) - y, y - high(x)) / scale(x)``, so that
``{y : S(x, y) <= s} = [low - s scale, high + s scale]``:

====================  ==================  =========================================
score                 low, high           scale
====================  ==================  =========================================
absolute              prediction          1
gamma                 prediction          prediction (which must be positive)
residual_normalized   prediction          model of the absolute residual
std_normalized        prediction          standard deviation predicted by the model
cqr                   two quantiles       1
====================  ==================  =========================================

Any other symmetric score of MAPIE's interface is used through its two methods. One score, one rank: scores
that correct each side by its own quantile have no FCP guarantee and are refused.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted

from seedbed.estimators.cojer.laws import Floats

NAMES = ("absolute", "gamma", "residual_normalized", "std_normalized", "cqr")
_TINY = float(np.finfo(np.float64).eps)


class Band(Protocol):
    """The score sets of one model at some points."""

    @property
    def center(self) -> Floats:
        """Point predictions, shape (m,)."""

    def score(self, y: Floats) -> Floats:
        """Score of ``y``, shape (m,), at each point."""

    def bounds(self, s: Floats) -> tuple[Floats, Floats]:
        """Ends of ``{y : score <= s}``; ``s`` (broadcast to m rows) has shape (m or 1, c)."""


@dataclass(frozen=True)
class AffineBand:
    """Score sets ``[low - s scale, high + s scale]``; all arrays have shape (m,)."""

    center: Floats
    low: Floats
    high: Floats
    scale: Floats

    def score(self, y: Floats) -> Floats:
        """Score of ``y``, shape (m,)."""
        return np.maximum(self.low - y, y - self.high) / self.scale

    def bounds(self, s: Floats) -> tuple[Floats, Floats]:
        """Ends of ``{y : score <= s}``, shape (m, c) for ``s`` of shape (m or 1, c)."""
        step = s * self.scale[:, None]
        return self.low[:, None] - step, self.high[:, None] + step


@dataclass(frozen=True)
class MapieBand:
    """Score sets of a symmetric score with MAPIE's interface."""

    center: Floats
    rows: Any
    conformity: Any

    def score(self, y: Floats) -> Floats:
        """Score of ``y``, shape (m,)."""
        return np.asarray(self.conformity.get_conformity_scores(y, self.center, X=self.rows), dtype=float)

    def bounds(self, s: Floats) -> tuple[Floats, Floats]:
        """Ends of ``{y : score <= s}``, shape (m, c) for ``s`` of shape (m or 1, c)."""
        finite = np.where(np.isfinite(s), s, 0.0)
        ends = [
            np.asarray(
                self.conformity.get_estimation_distribution(self.center[:, None], sign * finite, X=self.rows),
                dtype=float,
            )
            for sign in (-1.0, 1.0)
        ]
        wide = np.broadcast_to(np.isposinf(s), ends[0].shape)
        return (
            np.where(wide, -np.inf, np.minimum(*ends)),
            np.where(wide, np.inf, np.maximum(*ends)),
        )


def predictions(model: Any, X: Any) -> Floats:
    """Return a model's point predictions, checked.

    Parameters
    ----------
    model : object
        With ``predict``.
    X : array-like of shape (m, n_features)
        Rows.

    Returns
    -------
    ndarray of shape (m,)
        In float64.

    Raises
    ------
    ValueError
        If they are not one finite number a row.
    """
    points = np.asarray(model.predict(X))
    if points.ndim == 2 and points.shape[1] == 1:
        points = points[:, 0]
    if points.ndim != 1:
        raise ValueError(f"estimator must predict a single output, got predictions of shape {points.shape}")
    points = points.astype(float)
    if not np.isfinite(points).all():
        raise ValueError("estimator predicted NaN or infinity; conformity scores must be finite")
    return points


def positive(scale: NDArray[Any], what: str) -> Floats:
    """Return ``scale`` in float64; raise ValueError unless it is finite and positive.

    Parameters
    ----------
    scale : ndarray
        Scales.
    what : str
        Their name, for the message.

    Returns
    -------
    ndarray
        The scales.

    Raises
    ------
    ValueError
        If one is not.
    """
    values = np.asarray(scale, dtype=float)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{what} must be finite and positive, got a minimum of {np.min(values)}")
    return values


class Scorer:
    """A conformity score bound to one model.

    Parameters
    ----------
    conformity : str or object
        Name, or an instance of MAPIE's interface.
    model : object
        The model, fitted by the time ``band`` is called.
    """

    def __init__(self, conformity: Any, model: Any) -> None:
        self.conformity = deepcopy(conformity)  # scores may keep state; the user's object is left alone
        self.model = model
        self.residual_model: Any = None
        self.log_residual = True

    @property
    def learns_scale(self) -> bool:
        """Whether a residual model has to be learned (and has not been)."""
        if _is_named(self.conformity, "residual_normalized", "ResidualNormalisedScore"):
            return self.residual_model is None
        return False

    def adopt_scale(self, model: Any, *, log: bool) -> None:
        """Use a fitted residual model; ``log`` says whether it predicts logarithms."""
        self.residual_model, self.log_residual = model, log

    def learn_scale(self, X: Any, y: Floats, points: Floats) -> None:
        """Fit the residual model to ``log |y - points|`` (floored at machine precision)."""
        learner = getattr(self.conformity, "residual_estimator", None)
        if getattr(self.conformity, "prefit", False):
            check_is_fitted(learner)
            self.adopt_scale(learner, log=False)
            return
        target = np.log(np.maximum(np.abs(y - points), _TINY))
        self.adopt_scale(clone(LinearRegression() if learner is None else learner).fit(X, target), log=True)

    def learn_scale_in_training(self, X: Any, y: Floats) -> None:
        """Fit the residual model to cross-validated residuals of the training rows."""
        folds = min(5, len(y))
        if getattr(self.conformity, "prefit", False):
            points = y  # not used
        elif folds < 2:
            raise ValueError(
                "conformity_score='residual_normalized' needs at least 2 training rows, got 1 sample"
            )
        else:
            points = np.asarray(cross_val_predict(clone(self.model), X, y, cv=folds), dtype=float)
        self.learn_scale(X, y, points)

    def learn_scale_in_calibration(self, X: Any, y: Floats, random_state: Any) -> NDArray[np.intp]:
        """Fit the residual model to a part of the calibration rows; return the other rows' indices."""
        if getattr(self.conformity, "prefit", False):
            self.learn_scale(X, y, y)
            return np.arange(len(y))
        keep, spent = train_test_split(
            np.arange(len(y)),
            test_size=getattr(self.conformity, "split_size", None),
            random_state=check_random_state(random_state),
        )
        rows = _safe_indexing(X, spent)
        self.learn_scale(rows, y[spent], predictions(self.model, rows))
        return np.sort(keep)

    def band(self, X: Any) -> Band:
        """Score sets at the rows of ``X``.

        Parameters
        ----------
        X : array-like of shape (m, n_features)
            Rows.

        Returns
        -------
        Band
            Their score sets.

        Raises
        ------
        ValueError
            If a prediction or scale is not finite, or a scale not positive.
        """
        score = self.conformity
        if _is_named(score, "cqr"):
            ends = np.asarray(self.model.predict_band(X), dtype=float)
            if not np.isfinite(ends).all():
                raise ValueError("estimator predicted NaN or infinity; conformity scores must be finite")
            return AffineBand(predictions(self.model, X), ends[:, 0], ends[:, 1], np.ones(len(ends)))
        if _is_named(score, "std_normalized", "StdConformityScore"):
            points, std = self.model.predict(X, return_std=True)
            center = np.asarray(points, dtype=float).ravel()
            if not np.isfinite(center).all():
                raise ValueError("estimator predicted NaN or infinity; conformity scores must be finite")
            scale = np.maximum(np.asarray(std, dtype=float), _TINY) ** getattr(score, "pow", 1)
            return AffineBand(center, center, center, positive(scale, "predicted standard deviations"))
        center = predictions(self.model, X)
        if _is_named(score, "absolute", "AbsoluteConformityScore"):
            scale = np.ones(len(center))
        elif _is_named(score, "gamma", "GammaConformityScore"):
            scale = positive(center, "conformity_score='gamma': predictions")
        elif _is_named(score, "residual_normalized", "ResidualNormalisedScore"):
            raw = np.asarray(self.residual_model.predict(X), dtype=float).ravel()
            scale = np.maximum(np.exp(raw) if self.log_residual else raw, _TINY)
            scale = positive(scale, "conformity_score='residual_normalized': predicted residuals")
        else:
            return MapieBand(center, X, score)
        return AffineBand(center, center, center, scale)


def _is_named(score: Any, *names: str) -> bool:
    """Whether a score is one of ours by name, or exactly one of MAPIE's classes (a subclass may differ)."""
    return (score if isinstance(score, str) else type(score).__name__) in names


def check_conformity_score(score: Any) -> None:
    """Raise unless the score has one rank per point.

    Parameters
    ----------
    score : str or object
        The parameter ``conformity_score``.

    Raises
    ------
    ValueError
        If it is an unknown name, lacks MAPIE's two methods or is not symmetric.
    """
    if isinstance(score, str):
        if score not in NAMES:
            raise ValueError(
                f"conformity_score must be one of {', '.join(NAMES)} or an instance, got {score!r}"
            )
        return
    methods = ("get_conformity_scores", "get_estimation_distribution")
    if isinstance(score, type) or not all(callable(getattr(score, name, None)) for name in methods):
        raise ValueError(
            f"conformity_score must be one of {', '.join(NAMES)} or an instance with the methods "
            f"{' and '.join(methods)} (mapie.conformity_scores), got {score!r}"
        )
    if not getattr(score, "sym", False):
        raise ValueError(
            f"conformity_score must be symmetric, got {type(score).__name__}(sym=False): two one-sided "
            "quantiles do not control the false coverage proportion"
        )
