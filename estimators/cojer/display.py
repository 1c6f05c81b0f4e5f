"""Plots: the bound on the false coverage proportion beside what came."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import _num_samples

from seedbed.checks import check_number, missing_extra
from seedbed.estimators.cojer.laws import Floats, false_coverage_proportion
from seedbed.estimators.cojer.regressor import CoJERRegressor


class CoJERDisplay:
    """Realised false coverage proportion of one batch beside its bound, and over repeated splits.

    Create it with :meth:`from_estimator` or :meth:`from_predictions`.

    Parameters
    ----------
    bounds : ndarray of shape (K,)
        Bounds on the FCP that hold together with probability 1 - delta.
    fcp : ndarray of shape (K,)
        Realised FCP of the intervals of each bound.
    split_fcp : ndarray of shape (n_splits,), optional
        Realised FCP at ``alpha`` over repeated splits into calibration rows and batch.
    alpha : float, optional
        Share of misses asked for over the splits.
    delta : float, optional
        Probability with which the bounds may fail.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    ax_ : matplotlib.axes.Axes
        Axes with the bound and the realised FCP.
    line_, bound_line_ : matplotlib.lines.Line2D
        Realised FCP and bound.
    split_ax_ : matplotlib.axes.Axes or None
        Axes with the repeated splits.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from seedbed.estimators import CoJERDisplay, CoJERRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = CoJERRegressor(random_state=0).fit(X[:342], y[:342])
    >>> display = CoJERDisplay.from_estimator(model, X[342:], y[342:])
    >>> bool((display.fcp <= display.bounds).all())
    True
    """

    def __init__(
        self,
        *,
        bounds: Floats,
        fcp: Floats,
        split_fcp: Floats | None = None,
        alpha: float | None = None,
        delta: float | None = None,
    ) -> None:
        self.bounds = bounds
        self.fcp = fcp
        self.split_fcp = split_fcp
        self.alpha = alpha
        self.delta = delta

    @property
    def violation_share(self) -> float | None:
        """Share of the repeated splits whose FCP exceeds alpha."""
        if self.split_fcp is None or self.alpha is None:
            return None
        return float(np.mean(self.split_fcp > self.alpha + 1e-9))

    def plot(self, *, ax: Any = None, name: str | None = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes or pair of them, optional
            Where to draw: one, or two if there are repeated splits. New ones by default.
        name : str, optional
            Label of the realised FCP.

        Returns
        -------
        self
            With the axes as attributes.

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise missing_extra("matplotlib", "plot", "CoJERDisplay") from error

        panels = 1 if self.split_fcp is None else 2
        if ax is None:
            _, ax = plt.subplots(1, panels, figsize=(4.8 * panels, 4), layout="constrained")
        axes = list(np.ravel(ax))
        if len(axes) < panels:
            raise ValueError(f"ax must hold {panels} axes, got {len(axes)}")
        self.ax_, self.split_ax_ = axes[0], axes[1] if panels == 2 else None
        self.figure_ = self.ax_.figure
        (self.bound_line_,) = self.ax_.plot(self.bounds, self.bounds, "--", label="bound")
        (self.line_,) = self.ax_.plot(self.bounds, self.fcp, drawstyle="steps-post", label=name or "realised")
        self.ax_.set(xlabel="Allowed share of misses", ylabel="Share of misses in the batch", ylim=(0, None))
        self.ax_.margins(x=0)
        self.ax_.legend()
        if self.split_ax_ is not None and self.split_fcp is not None:
            values, counts = np.unique(self.split_fcp, return_counts=True)
            width = np.min(np.diff(values), initial=1.0) * 0.9 if len(values) > 1 else 0.005
            self.split_ax_.bar(values, counts, width=width, label=f"{len(self.split_fcp)} splits")
            if self.alpha is not None:
                self.split_ax_.axvline(
                    self.alpha, linestyle="--", color="C1", label=f"alpha = {self.alpha:g}"
                )
                self.split_ax_.set_title(
                    f"above alpha in {self.violation_share:.1%} of the splits", fontsize="medium"
                )
            self.split_ax_.set(xlabel="Share of misses in the batch", ylabel="Splits")
            self.split_ax_.legend()
        return self

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        intervals: ArrayLike,
        bounds: ArrayLike,
        *,
        delta: float | None = None,
        ax: Any = None,
        name: str | None = None,
    ) -> Self:
        """Draw from intervals.

        Parameters
        ----------
        y_true : array-like of shape (m,)
            True values.
        intervals : array-like of shape (m, 2, K)
            Intervals, as :meth:`CoJERRegressor.predict_interval_all` or ``predict_interval`` with several
            alpha return them.
        bounds : array-like of shape (K,)
            Their bounds on the FCP, or the values of alpha.
        delta : float, optional
            Probability with which the bounds may fail.
        ax : matplotlib axes, optional
            Where to draw.
        name : str, optional
            Label of the realised FCP.

        Returns
        -------
        CoJERDisplay
            The display.

        Raises
        ------
        ValueError
            If the shapes do not match.
        """
        limit = np.atleast_1d(np.asarray(bounds, dtype=float))
        ends = np.asarray(intervals, dtype=float)
        if ends.ndim != 3 or limit.shape != (ends.shape[-1],):
            raise ValueError(
                f"intervals must have shape (m, 2, K) with K = {limit.size} bounds, got {ends.shape}"
            )
        order = np.argsort(limit, kind="stable")
        fcp = np.asarray(false_coverage_proportion(y_true, ends))[order]
        return cls(bounds=limit[order], fcp=fcp, delta=delta).plot(ax=ax, name=name)

    @classmethod
    def from_estimator(
        cls,
        estimator: CoJERRegressor,
        X: Any,
        y: ArrayLike,
        *,
        n_splits: int = 0,
        n_calibration: int | None = None,
        random_state: Any = None,
        ax: Any = None,
        name: str | None = None,
    ) -> Self:
        """Draw for a calibrated estimator and a batch with known targets.

        Parameters
        ----------
        estimator : CoJERRegressor
            Calibrated, with simultaneous thresholds.
        X : array-like of shape (m, n_features)
            The batch; rows that neither trained nor calibrated the estimator.
        y : array-like of shape (m,)
            True values.
        n_splits : int, default=0
            How often these rows are split anew, into rows that calibrate the fitted models and a batch. 0
            draws the first panel only.
        n_calibration : int, optional
            Calibration rows of each such split; half of the rows by default.
        random_state : int, RandomState instance or None
            Splits.
        ax : matplotlib axes or pair of them, optional
            Where to draw.
        name : str, optional
            Label of the realised FCP.

        Returns
        -------
        CoJERDisplay
            The display.

        Raises
        ------
        ValueError
            If an argument is out of range.
        NotFittedError
            If the estimator is not calibrated.
        """
        check_number("n_splits", n_splits, low=0, integer=True)
        target = np.asarray(y, dtype=float)
        _, intervals, bounds = estimator.predict_interval_all(X)
        fcp = np.asarray(false_coverage_proportion(target, intervals))
        alpha = float(np.max(estimator.alpha))
        split_fcp = None
        if n_splits:
            rows = _num_samples(X)
            size = rows // 2 if n_calibration is None else n_calibration
            check_number("n_calibration", size, low=2, high=rows - 1, integer=True)
            rng = np.random.RandomState() if random_state is None else check_random_state(random_state)
            split_fcp = np.empty(n_splits)
            for i in range(n_splits):
                order = rng.permutation(rows)
                again = estimator._recalibrated(_safe_indexing(X, order[:size]), target[order[:size]])
                _, found = again.predict_interval(_safe_indexing(X, order[size:]), alpha)
                split_fcp[i] = false_coverage_proportion(target[order[size:]], found)[0]
        display = cls(bounds=bounds, fcp=fcp, split_fcp=split_fcp, alpha=alpha, delta=estimator.delta)
        return display.plot(ax=ax, name=name)
