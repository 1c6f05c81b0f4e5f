"""Plot: means, counts and changes, and how the evidence came in."""

from typing import Any, Self

import numpy as np

from seedbed.checks import missing_extra


class ChangePointBanditDisplay:
    """Means with levels and reported changes, and the evidence for them beside the line it has to reach.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    domain, means, counts : ndarray of shape (n_arms,)
        Points, their mean rewards and numbers of queries.
    change_intervals : ndarray of shape (n_changes, 2)
        Points between which the changes lie.
    levels : ndarray of shape (n_changes + 1,)
        Levels of the segments.
    stopping_curve : ndarray of shape (n_checks, 2)
        Rewards, and least log e-value of the changes reported then.
    log_odds : float
        log((K - 1) / delta).
    name : str, optional
        Title.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    ax_, curve_ax_ : matplotlib.axes.Axes
        Means, and evidence.
    points_ : matplotlib.collections.PathCollection
        Means; the area of a marker grows with the number of queries.
    levels_lines_ : list of matplotlib.lines.Line2D
        One per segment.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import ChangePointBandit, ChangePointBanditDisplay
    >>> rng = np.random.default_rng(0)
    >>> oracle = lambda x: 2.0 * (x[:, 0] > 3) + rng.normal(size=len(x))
    >>> model = ChangePointBandit().fit(np.arange(8), oracle=oracle)
    >>> ChangePointBanditDisplay.from_estimator(model).change_intervals.tolist()
    [[3.0, 4.0]]
    """

    def __init__(
        self,
        *,
        domain: Any,
        means: Any,
        counts: Any,
        change_intervals: Any,
        levels: Any,
        stopping_curve: Any,
        log_odds: float,
        name: str | None = None,
    ) -> None:
        self.domain = domain
        self.means = means
        self.counts = counts
        self.change_intervals = change_intervals
        self.levels = levels
        self.stopping_curve = stopping_curve
        self.log_odds = log_odds
        self.name = name

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, name: str | None = None) -> Self:
        """Plot a session.

        Parameters
        ----------
        estimator : ChangePointBandit
            Started or fitted.
        ax : sequence of two matplotlib.axes.Axes, optional
            Where to draw means and evidence.
        name : str, optional
            Title.

        Returns
        -------
        ChangePointBanditDisplay
            Drawn.

        Raises
        ------
        NotFittedError
            Before ``start`` or ``fit``.
        ImportError
            If matplotlib is missing.
        """
        estimator._check_started()
        return cls(
            domain=estimator.domain_,
            means=estimator.means_,
            counts=estimator.counts_,
            change_intervals=estimator.change_intervals_,
            levels=estimator.levels_,
            stopping_curve=estimator.stopping_curve_,
            log_odds=estimator._engine.rules.log_odds,
            name=name,
        ).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : sequence of two matplotlib.axes.Axes, optional
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
            raise missing_extra("matplotlib", "plot", "ChangePointBanditDisplay") from error
        if ax is None:
            _, ax = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
        self.ax_, self.curve_ax_ = ax
        area = 8 + 100 * self.counts / max(self.counts.max(), 1)
        self.points_ = self.ax_.scatter(self.domain, self.means, s=area, alpha=0.6, label="mean, by queries")
        edges = [self.domain[0], *self.change_intervals.mean(axis=1), self.domain[-1]]
        self.levels_lines_ = [
            self.ax_.plot([left, right], [level, level], color="C1", label="level" if not place else None)[0]
            for place, (left, right, level) in enumerate(zip(edges[:-1], edges[1:], self.levels, strict=True))
        ]
        for left, right in self.change_intervals:
            self.ax_.axvspan(left, right, color="C3", alpha=0.2)
        self.ax_.set(xlabel="point", ylabel="reward", title=self.name or "")
        self.ax_.legend()
        steps, evidence = np.asarray(self.stopping_curve).reshape(-1, 2).T
        self.curve_ax_.plot(steps, evidence, label="weakest reported change")
        self.curve_ax_.axhline(self.log_odds, color="C3", linestyle="--", label="log((K - 1) / δ)")
        self.curve_ax_.set(xlabel="queries", ylabel="log e-value")
        self.curve_ax_.legend()
        self.figure_ = self.ax_.figure
        return self
