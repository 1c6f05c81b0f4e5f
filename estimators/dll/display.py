"""Plot: how forward and feedback weights come to agree, beside the loss."""

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from seedbed.checks import missing_extra


class AlignmentDisplay:
    """Cosine between forward and feedback weights, and training loss, over epochs.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    alignment : ndarray of shape (n_epochs, n_layers)
        Cosine of each layer with feedback weights after each epoch.
    loss : ndarray of shape (n_epochs,)
        Training loss of each epoch.
    name : str, optional
        What to call the estimator.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    ax_ : matplotlib.axes.Axes
        Axes with the cosines.
    loss_ax_ : matplotlib.axes.Axes
        Axes with the loss, on the right.
    lines_ : list of matplotlib.lines.Line2D
        One per layer.
    loss_line_ : matplotlib.lines.Line2D
        The loss.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from seedbed.estimators import AlignmentDisplay, DLLMLPClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = DLLMLPClassifier(max_iter=5, random_state=0).fit(X / 16 - 0.3, y)
    >>> AlignmentDisplay.from_estimator(model).alignment.shape
    (5, 2)
    """

    def __init__(self, *, alignment: Any, loss: Any, name: str | None = None) -> None:
        self.alignment = alignment
        self.loss = loss
        self.name = name

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Any = None, name: str | None = None, first_layer: int = 2
    ) -> Self:
        """Plot a fitted estimator.

        Parameters
        ----------
        estimator : DLLMLPClassifier, DLLMLPRegressor or DLLCNNClassifier
            Fitted, with a rule that has feedback weights.
        ax : matplotlib.axes.Axes, optional
            Where to draw.
        name : str, optional
            Title; default the class and its rule.
        first_layer : int
            Number of the lowest layer with feedback weights, for the legend.

        Returns
        -------
        AlignmentDisplay
            Drawn.

        Raises
        ------
        TypeError
            If it has no ``alignment_curve_``.
        ValueError
            If its rule has no feedback weights.
        NotFittedError
            If it is not fitted.
        ImportError
            If matplotlib is missing.
        """
        check_is_fitted(estimator)
        if not hasattr(estimator, "alignment_curve_"):
            raise TypeError(f"estimator must have alignment_curve_, got {type(estimator).__name__}")
        alignment = np.asarray(estimator.alignment_curve_)
        if alignment.ndim != 2 or alignment.shape[1] == 0:
            raise ValueError(
                f"learning_rule={estimator.learning_rule!r} has no feedback weights to compare with"
            )
        title = name or f"{type(estimator).__name__}, {estimator.learning_rule}"
        display = cls(alignment=alignment, loss=np.asarray(estimator.loss_curve_), name=title)
        return display.plot(ax=ax, first_layer=first_layer)

    def plot(self, *, ax: Any = None, first_layer: int = 2) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where; default a new figure.
        first_layer : int
            Number of the lowest layer with feedback weights.

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
            raise missing_extra("matplotlib", "plot", "AlignmentDisplay") from error
        if ax is None:
            _, ax = plt.subplots()
        epochs = np.arange(1, len(self.alignment) + 1)
        self.lines_ = [
            ax.plot(epochs, column, label=f"layer {place}")[0]
            for place, column in enumerate(self.alignment.T, start=first_layer)
        ]
        ax.set(xlabel="epoch", ylabel="cos(W, Θ)", title=self.name or "")
        self.loss_ax_ = ax.twinx()
        (self.loss_line_,) = self.loss_ax_.plot(
            np.arange(1, len(self.loss) + 1), self.loss, linestyle="dotted", color="C7", label="loss"
        )
        self.loss_ax_.set_ylabel("training loss")
        ax.legend(handles=[*self.lines_, self.loss_line_], loc="center right")
        self.ax_ = ax
        self.figure_ = ax.figure
        return self
