"""Plot: estimate and bound of the risk along the thresholds, and what they cost in abstention."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from seedbed.checks import missing_extra


class TailRiskDisplay:
    """Risk and its upper bound against the threshold, with the share of prompts without an answer.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    curve : mapping of ndarray
        ``lambda``, ``estimate``, ``ucb`` and ``abstention``.
    alpha : float
        Allowed risk.
    threshold : float
        The chosen threshold.
    name : str, optional
        Title.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    ax_, abstention_ax_ : matplotlib.axes.Axes
        Risk on the left, abstention on the right.
    lines_ : list of matplotlib.lines.Line2D
        Estimate, bound and abstention.

    Examples
    --------
    >>> from seedbed.datasets import make_tail_alignment
    >>> from seedbed.estimators import ConformalTailRiskController, TailRiskDisplay
    >>> data = make_tail_alignment(500, random_state=0)
    >>> model = ConformalTailRiskController().fit(data.machine_scores, data.human_losses)
    >>> TailRiskDisplay.from_estimator(model).ax_.get_xlabel()
    'threshold'
    """

    def __init__(
        self, *, curve: Mapping[str, Any], alpha: float, threshold: float, name: str | None = None
    ) -> None:
        self.curve = curve
        self.alpha = alpha
        self.threshold = threshold
        self.name = name

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, name: str | None = None) -> Self:
        """Plot a fitted controller.

        Parameters
        ----------
        estimator : ConformalTailRiskController
            Fitted.
        ax : matplotlib.axes.Axes, optional
            Where to draw.
        name : str, optional
            Title.

        Returns
        -------
        TailRiskDisplay
            Drawn.

        Raises
        ------
        NotFittedError
            If it is not fitted.
        ImportError
            If matplotlib is missing.
        """
        curve = estimator.curve()
        return cls(curve=curve, alpha=estimator.alpha, threshold=estimator.lambda_, name=name).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where; default a new figure.

        Returns
        -------
        self
            With the drawn parts as attributes.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise missing_extra("matplotlib", "plot", "TailRiskDisplay") from error
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        x = self.curve["lambda"]
        (estimate,) = ax.plot(x, self.curve["estimate"], label="estimated risk")
        (bound,) = ax.plot(x, self.curve["ucb"], label="upper bound")
        ax.axhline(self.alpha, color="C3", linestyle="--", label="allowed")
        if np.isfinite(self.threshold):
            ax.axvline(self.threshold, color="C2", linestyle=":", label="chosen threshold")
        self.abstention_ax_ = ax.twinx()
        (abstention,) = self.abstention_ax_.plot(
            x, self.curve["abstention"], color="C4", linestyle="-.", label="abstention"
        )
        self.abstention_ax_.set(ylabel="share of prompts without an answer", ylim=(0, 1))
        ax.set(xlabel="threshold", ylabel="risk", title=self.name or "")
        handles, labels = ax.get_legend_handles_labels()
        ax.legend([*handles, abstention], [*labels, "abstention"], loc="lower right")
        self.lines_ = [estimate, bound, abstention]
        self.ax_, self.figure_ = ax, ax.figure
        return self
