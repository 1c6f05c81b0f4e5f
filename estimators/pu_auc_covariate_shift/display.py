"""Plots: where the scores of the samples lie, and the curve behind the AUC without negatives."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from seedbed.checks import missing_extra
from seedbed.estimators.pu_auc_covariate_shift.classifier import PUAUCClassifier
from seedbed.estimators.pu_auc_covariate_shift.losses import Floats
from seedbed.estimators.pu_auc_covariate_shift.risk import weighted_pu_auc_score
from seedbed.estimators.pu_auc_covariate_shift.samples import split_samples
from seedbed.estimators.pu_auc_covariate_shift.threshold import youden_curve


class PUAUCDisplay:
    """Scores of positives and unlabeled rows, and the share of positives found against the share flagged.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    positive : ndarray of shape (n,)
        Decision values of labelled positives.
    population : ndarray of shape (m,)
        Decision values of the target rows, or of unlabeled source rows where there are none.
    positive_weight, population_weight : ndarray
        Their weights.
    source : ndarray of shape (k,), optional
        Decision values of unlabeled source rows, to compare with target rows.

    Attributes
    ----------
    pu_auc : float
        Area under the curve: the weighted share of (positive, unlabeled) pairs in order.
    figure_ : matplotlib.figure.Figure
        The figure.
    scores_ax_, curve_ax_ : matplotlib.axes.Axes
        Distribution of the scores, and the curve.
    line_ : matplotlib.lines.Line2D
        The curve.

    Examples
    --------
    >>> from seedbed.datasets import make_pu_digits
    >>> from seedbed.estimators import PUAUCClassifier, PUAUCDisplay
    >>> data = make_pu_digits(random_state=0)
    >>> model = PUAUCClassifier(random_state=0).fit(data.X, data.y, sample_domain=data.sample_domain)
    >>> display = PUAUCDisplay.from_estimator(model, data.X, data.y, sample_domain=data.sample_domain)
    >>> 0.5 < display.pu_auc < 1
    True
    """

    def __init__(
        self,
        *,
        positive: Floats,
        population: Floats,
        positive_weight: Floats,
        population_weight: Floats,
        source: Floats | None = None,
    ) -> None:
        self.positive = positive
        self.population = population
        self.positive_weight = positive_weight
        self.population_weight = population_weight
        self.source = source
        self.pu_auc = weighted_pu_auc_score(positive, population, positive_weight, population_weight)

    def plot(self, *, ax: Any = None, name: str | None = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : pair of matplotlib axes, optional
            Where to draw the scores and the curve. New ones by default.
        name : str, optional
            Label of the curve.

        Returns
        -------
        self
            With the axes as attributes.

        Raises
        ------
        ImportError
            Without matplotlib.
        ValueError
            If ``ax`` does not hold two axes.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise missing_extra("matplotlib", "plot", "PUAUCDisplay") from error

        if ax is None:
            _, ax = plt.subplots(1, 2, figsize=(9.6, 4), layout="constrained")
        axes = list(np.ravel(ax))
        if len(axes) != 2:
            raise ValueError(f"ax must hold 2 axes, got {len(axes)}")
        self.scores_ax_, self.curve_ax_ = axes
        self.figure_ = self.scores_ax_.figure
        self._plot_scores()
        self._plot_curve(name)
        return self

    def _plot_scores(self) -> None:
        """Histograms of the decision values."""
        shown = [
            ("positives, weighted", self.positive, self.positive_weight),
            ("target" if self.source is not None else "unlabeled", self.population, self.population_weight),
        ]
        if self.source is not None:
            shown.append(("source, unlabeled", self.source, np.ones(len(self.source))))
        edges = np.histogram_bin_edges(np.concatenate([scores for _, scores, _ in shown]), bins=30)
        for label, scores, weight in shown:
            self.scores_ax_.hist(
                scores, bins=edges, weights=weight, density=True, histtype="step", linewidth=1.5, label=label
            )
        self.scores_ax_.axvline(0.0, linestyle="--", color="C3", label="threshold")
        self.scores_ax_.set(xlabel="Decision value", ylabel="Density")
        self.scores_ax_.legend()

    def _plot_curve(self, name: str | None) -> None:
        """Share of positives found against share of rows flagged."""
        cuts, found, flagged = youden_curve(
            self.positive, self.population, self.positive_weight, self.population_weight
        )
        label = f"{'PU-AUC' if name is None else name} = {self.pu_auc:.3f}"
        (self.line_,) = self.curve_ax_.plot(
            np.concatenate([[0.0], flagged]), np.concatenate([[0.0], found]), label=label
        )
        above = cuts > 0
        at = (flagged[above][-1], found[above][-1]) if above.any() else (0.0, 0.0)
        self.curve_ax_.plot(*at, "o", color="C3", label="threshold")
        self.curve_ax_.plot([0, 1], [0, 1], ":", color="C2", label="chance")
        self.curve_ax_.set(xlabel="Share of rows above the cut", ylabel="Share of positives above the cut")
        self.curve_ax_.legend(loc="lower right")

    @classmethod
    def from_estimator(
        cls,
        estimator: PUAUCClassifier,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_domain: ArrayLike | None = None,
        X_target: Any = None,
        ax: Any = None,
        name: str | None = None,
    ) -> Self:
        """Draw for a fitted classifier.

        Parameters
        ----------
        estimator : PUAUCClassifier
            Fitted.
        X, y, sample_domain, X_target
            As in :meth:`PUAUCClassifier.fit`. Without target rows, unlabeled source rows are weighted.
        ax : pair of matplotlib axes, optional
            Where to draw.
        name : str, optional
            Label of the curve.

        Returns
        -------
        PUAUCDisplay
            The display.

        Raises
        ------
        ValueError
            If arrays are malformed.
        NotFittedError
            If the estimator is not fitted.
        """
        check_is_fitted(estimator, "threshold_")
        samples = split_samples(
            estimator,
            X,
            y,
            sample_domain=sample_domain,
            X_target=X_target,
            sample_weight=None,
            fitting=False,
            **estimator._options,
        )

        def values(rows: Any) -> Floats:
            return estimator._raw_scores(rows) - estimator.threshold_

        weight = estimator._known_weights(samples.positive)
        source = values(samples.unlabeled)
        if samples.target is None:
            found = cls(
                positive=values(samples.positive),
                population=source,
                positive_weight=weight,
                population_weight=estimator._known_weights(samples.unlabeled),
            )
        else:
            found = cls(
                positive=values(samples.positive),
                population=values(samples.target),
                positive_weight=weight,
                population_weight=np.ones(samples.target.shape[0]),
                source=source,
            )
        return found.plot(ax=ax, name=name)
