"""Plot: the step sizes that were learned, block by block."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seedbed.checks import missing_extra


class StepSizeDisplay:
    """Step sizes over training, a line per block; a block with several values has a band around their mean.

    Create it with :meth:`from_history` or, after training with Lightning, :meth:`from_monitor`.

    Parameters
    ----------
    steps : array-like of shape (n_steps,)
        Number of each step.
    step_sizes : mapping of str to array-like of shape (n_steps, 3)
        By block: mean, smallest and largest step size. NaN where a block was not there yet.
    name : str, optional
        Title.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    ax_ : matplotlib.axes.Axes
        The axes; the step sizes are on a logarithmic scale where all of them are positive.
    lines_ : list of matplotlib.lines.Line2D
        One per block.
    bands_ : list of matplotlib.collections.Collection
        From the smallest to the largest value of each block that has several.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import MetaOptimize, StepSizeDisplay
    >>> w = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = MetaOptimize(torch.optim.SGD([w], lr=1e-3), meta_lr=0.1)
    >>> history = []
    >>> for _ in range(5):
    ...     optimizer.zero_grad()
    ...     w.square().sum().backward()
    ...     optimizer.step()
    ...     history.append(optimizer.step_sizes())
    >>> StepSizeDisplay.from_history(history).step_sizes["all"].shape
    (5, 3)
    """

    def __init__(self, *, steps: Any, step_sizes: Mapping[str, Any], name: str | None = None) -> None:
        self.steps = steps
        self.step_sizes = step_sizes
        self.name = name

    @classmethod
    def from_history(
        cls,
        history: Sequence[Mapping[str, Any]],
        *,
        steps: Sequence[int] | None = None,
        ax: Any = None,
        name: str | None = None,
    ) -> "StepSizeDisplay":
        """Plot what ``optimizer.step_sizes()`` returned in the course of training.

        Parameters
        ----------
        history : sequence of mapping
            Step sizes by block, floats or tensors.
        steps : sequence of int, optional
            Number of the step of each; 1, 2, ... if None.
        ax : matplotlib.axes.Axes, optional
            Where to draw.
        name : str, optional
            Title.

        Returns
        -------
        StepSizeDisplay
            Drawn.

        Raises
        ------
        ValueError
            If there is nothing to plot, or ``steps`` has another length.
        ImportError
            If matplotlib is missing.
        """
        if not history or not history[0]:
            raise ValueError("history must hold the step sizes of one step or more, got none")
        numbers = np.arange(1, len(history) + 1) if steps is None else np.asarray(steps)
        if len(numbers) != len(history):
            raise ValueError(
                f"steps must have one entry for each of {len(history)} steps, got {len(numbers)}"
            )
        blocks = dict.fromkeys(block for entry in history for block in entry)
        absent = (np.nan,) * 3
        sizes = {
            block: np.array([summary(entry[block]) if block in entry else absent for entry in history])
            for block in blocks
        }
        return cls(steps=numbers, step_sizes=sizes, name=name).plot(ax=ax)

    @classmethod
    def from_monitor(cls, monitor: Any, *, ax: Any = None, name: str | None = None) -> "StepSizeDisplay":
        """Plot what a callback has seen.

        Parameters
        ----------
        monitor : StepSizeMonitor
            After training.
        ax : matplotlib.axes.Axes, optional
            Where to draw.
        name : str, optional
            Title.

        Returns
        -------
        StepSizeDisplay
            Drawn.

        Raises
        ------
        TypeError
            If it is no StepSizeMonitor.
        ValueError
            If it has seen no step of a MetaOptimize.
        ImportError
            If matplotlib is missing.
        """
        if not hasattr(monitor, "history"):
            raise TypeError(f"monitor must be a StepSizeMonitor, got {type(monitor).__name__}")
        steps = [step for step, _ in monitor.history]
        return cls.from_history([sizes for _, sizes in monitor.history], steps=steps, ax=ax, name=name)

    def plot(self, *, ax: Any = None) -> "StepSizeDisplay":
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
            raise missing_extra("matplotlib", "plot", "StepSizeDisplay") from error
        if ax is None:
            _, ax = plt.subplots()
        self.lines_, self.bands_ = [], []
        positive = True
        for block, sizes in self.step_sizes.items():
            mean, low, high = np.asarray(sizes, dtype=float).T
            positive = positive and not (low <= 0).any()
            (line,) = ax.plot(self.steps, mean, label=block)
            self.lines_.append(line)
            if (high > low).any():
                self.bands_.append(ax.fill_between(self.steps, low, high, color=line.get_color(), alpha=0.2))
        ax.set(xlabel="step", ylabel="step size", title=self.name or "")
        if positive:
            ax.set_yscale("log")
        if len(self.lines_) > 1:
            ax.legend(fontsize="small")
        self.ax_ = ax
        self.figure_ = ax.figure
        return self


def summary(value: Any) -> tuple[float, float, float]:
    """Return mean, smallest and largest of the values of a block; zeros where it has none.

    Parameters
    ----------
    value : float, Tensor or tuple of float
        One value, several, or what this function has returned.

    Returns
    -------
    (float, float, float)
        Mean, smallest, largest.
    """
    if isinstance(value, tuple):
        return value
    if not isinstance(value, Tensor):
        return float(value), float(value), float(value)
    if not value.numel():
        return 0.0, 0.0, 0.0
    low, high = torch.aminmax(value)
    return float(value.mean()), float(low), float(high)
