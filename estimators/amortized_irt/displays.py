"""Plots: the course of an adaptive test, response curves, and abilities beside difficulties."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from seedbed.checks import missing_extra
from seedbed.estimators.amortized_irt.adaptive import AdaptiveTest
from seedbed.estimators.amortized_irt.answers import items_of
from seedbed.estimators.amortized_irt.items import Floats, Items

WIDTH = 1.959964
"""Standard errors to either side of an estimate that are drawn."""


def _axes(ax: Any, name: str, size: tuple[float, float]) -> Any:
    """Return the given axes or new ones."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise missing_extra("matplotlib", "plot", name) from error
    if ax is None:
        _, ax = plt.subplots(figsize=size, layout="constrained")
    return ax


class AdaptiveTestDisplay:
    """Ability and its interval after each answer, with the difficulties that were asked.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    theta, se : ndarray of shape (n_answers,)
        Estimate and standard error after each answer.
    difficulty : ndarray of shape (n_answers,)
        Difficulties of the items asked.
    y : ndarray of shape (n_answers,)
        Answers.
    ability : float, optional
        True ability, where it is known.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    ax_ : matplotlib.axes.Axes
        The axes.
    line_ : matplotlib.lines.Line2D
        The estimates.
    band_ : matplotlib.collections.PolyCollection
        95 % intervals.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import AdaptiveTest, AdaptiveTestDisplay, Items
    >>> test = AdaptiveTest(Items.of(np.linspace(-3, 3, 61)), max_items=12)
    >>> display = AdaptiveTestDisplay.from_estimator(test.run(lambda items: items < 40))
    >>> len(display.theta)
    12
    """

    def __init__(
        self, *, theta: Floats, se: Floats, difficulty: Floats, y: Floats, ability: float | None = None
    ) -> None:
        self.theta = theta
        self.se = se
        self.difficulty = difficulty
        self.y = y
        self.ability = ability

    def plot(self, *, ax: Any = None, name: str | None = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where; new ones by default.
        name : str, optional
            Label of the estimates.

        Returns
        -------
        self
            With the axes as attributes.

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        self.ax_ = _axes(ax, "AdaptiveTestDisplay", (6.0, 4.0))
        self.figure_ = self.ax_.figure
        answers = np.arange(1, len(self.theta) + 1)
        (self.line_,) = self.ax_.plot(answers, self.theta, color="C0", label=name or "ability")
        self.band_ = self.ax_.fill_between(
            answers, self.theta - WIDTH * self.se, self.theta + WIDTH * self.se, color="C0", alpha=0.2
        )
        for value, marker, color, label in ((1, "^", "C2", "right"), (0, "v", "C3", "wrong")):
            rows = self.y == value
            self.ax_.scatter(
                answers[rows], self.difficulty[rows], marker=marker, color=color, s=18, label=label
            )
        if self.ability is not None:
            self.ax_.axhline(self.ability, linestyle="--", color="C1", label="true ability")
        self.ax_.set(xlabel="Items asked", ylabel="Ability and difficulty")
        self.ax_.legend()
        return self

    @classmethod
    def from_estimator(
        cls, estimator: AdaptiveTest, *, ability: float | None = None, ax: Any = None, name: str | None = None
    ) -> Self:
        """Draw the course of a test so far.

        Parameters
        ----------
        estimator : AdaptiveTest
            With one answer at least.
        ability : float, optional
            True ability, where it is known.
        ax : matplotlib axes, optional
            Where to draw.
        name : str, optional
            Label of the estimates.

        Returns
        -------
        AdaptiveTestDisplay
            The display.

        Raises
        ------
        ValueError
            If there is no answer yet.
        """
        course = estimator.trajectory_
        if len(course) == 0:
            raise ValueError("estimator must have one answer at least: tell it one")
        display = cls(
            theta=course["theta"],
            se=course["se"],
            difficulty=estimator.items_.difficulty[course["item"]],
            y=course["y"].astype(float),
            ability=ability,
        )
        return display.plot(ax=ax, name=name)


class ItemCharacteristicDisplay:
    """Response curves of some items, with what takers of each ability did.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    theta : ndarray of shape (n_points,)
        Abilities.
    probability : ndarray of shape (n_points, n_curves)
        Chance of a right answer.
    labels : list of str
        One per curve.
    observed : list of pair of ndarray, optional
        Mean abilities and shares of right answers of groups of takers, one pair per curve.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    ax_ : matplotlib.axes.Axes
        The axes.
    lines_ : list of matplotlib.lines.Line2D
        The curves.

    Examples
    --------
    >>> from seedbed.estimators import ItemCharacteristicDisplay, Items
    >>> display = ItemCharacteristicDisplay.from_estimator(Items.of([-1.0, 1.0], guessing=0.2))
    >>> len(display.lines_)
    2
    """

    def __init__(
        self, *, theta: Floats, probability: Floats, labels: list[str], observed: list[Any] | None = None
    ) -> None:
        self.theta = theta
        self.probability = probability
        self.labels = labels
        self.observed = observed

    def plot(self, *, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where; new ones by default.

        Returns
        -------
        self
            With the axes as attributes.

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        self.ax_ = _axes(ax, "ItemCharacteristicDisplay", (5.2, 4.0))
        self.figure_ = self.ax_.figure
        self.lines_ = []
        for curve, label in enumerate(self.labels):
            (line,) = self.ax_.plot(self.theta, self.probability[:, curve], label=label)
            self.lines_.append(line)
            if self.observed is not None:
                self.ax_.plot(*self.observed[curve], "o", color=line.get_color(), markersize=4)
        self.ax_.set(xlabel="Ability", ylabel="Chance of a right answer", ylim=(-0.02, 1.02))
        if len(self.labels) <= 10:
            self.ax_.legend()
        return self

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        items: ArrayLike | None = None,
        responses: ArrayLike | None = None,
        ability: ArrayLike | None = None,
        n_bins: int = 8,
        ax: Any = None,
    ) -> Self:
        """Draw the curves of a fitted model.

        Parameters
        ----------
        estimator : fitted estimator or Items
            The items.
        items : array-like of int, optional
            Which to draw; all by default.
        responses : array-like of shape (n_takers, n_items), optional
            Answers, with NaN for none, whose shares are drawn beside the curves.
        ability : array-like of shape (n_takers,), optional
            Abilities of those takers; the estimator's ``ability_`` by default.
        n_bins : int, default=8
            Groups of equally many takers for the shares.
        ax : matplotlib axes, optional
            Where to draw.

        Returns
        -------
        ItemCharacteristicDisplay
            The display.

        Raises
        ------
        ValueError
            If an item is unknown, or answers and abilities do not match.
        """
        bank = items_of(estimator)
        chosen = np.arange(len(bank)) if items is None else np.atleast_1d(np.asarray(items))
        if chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= len(bank):
            raise ValueError(f"items must be positions in [0, {len(bank) - 1}], got {items!r}")
        names = getattr(estimator, "feature_names_in_", [f"item {i}" for i in range(len(bank))])
        shown = bank.take(chosen)
        reach = 4 / shown.discrimination
        ends = np.clip([(shown.difficulty - reach).min(), (shown.difficulty + reach).max()], -8, 8)
        theta = np.linspace(ends[0], ends[1], 201)
        observed = None
        if responses is not None:
            abilities = getattr(estimator, "ability_", None) if ability is None else ability
            observed = _shares(responses, abilities, chosen, len(bank), n_bins)
        display = cls(
            theta=theta,
            probability=shown.probability(theta),
            labels=[str(names[item]) for item in chosen],
            observed=observed,
        )
        return display.plot(ax=ax)


def _shares(responses: ArrayLike, ability: Any, chosen: Any, n_items: int, n_bins: int) -> list[Any]:
    """Mean ability and share of right answers of groups of equally many takers, for each chosen item."""
    y = np.asarray(responses, dtype=float)
    theta = np.asarray(ability if ability is not None else [], dtype=float)
    if y.ndim != 2 or y.shape != (len(theta), n_items):
        raise ValueError(
            f"responses must have shape ({len(theta)}, {n_items}) of abilities by items: {y.shape}"
        )
    found = []
    for item in chosen:
        rows = np.flatnonzero(~np.isnan(y[:, item]))
        bins = np.array_split(rows[np.argsort(theta[rows])], min(n_bins, max(len(rows), 1)))
        bins = [part for part in bins if len(part)]
        found.append(
            (
                np.array([theta[part].mean() for part in bins]),
                np.array([y[part, item].mean() for part in bins]),
            )
        )
    return found


class WrightMapDisplay:
    """Abilities of the takers beside difficulties of the items, on one scale.

    Create it with :meth:`from_estimator`.

    Parameters
    ----------
    ability : ndarray of shape (n_takers,)
        Abilities.
    items : Items
        The items.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    ax_, item_ax_ : matplotlib.axes.Axes
        Axes with the takers and the items.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import Items, WrightMapDisplay
    >>> rng = np.random.default_rng(0)
    >>> display = WrightMapDisplay.from_estimator(Items.of(rng.normal(size=40)), rng.normal(size=200))
    >>> display.ability.shape
    (200,)
    """

    def __init__(self, *, ability: Floats, items: Items) -> None:
        self.ability = ability
        self.items = items

    def plot(self, *, ax: Any = None, n_bins: int = 25) -> Self:
        """Draw.

        Parameters
        ----------
        ax : pair of matplotlib axes, optional
            Where; new ones by default.
        n_bins : int, default=25
            Bars of either histogram.

        Returns
        -------
        self
            With the axes as attributes.

        Raises
        ------
        ImportError
            Without matplotlib.
        ValueError
            If ``ax`` is no pair.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise missing_extra("matplotlib", "plot", "WrightMapDisplay") from error
        if ax is None:
            _, ax = plt.subplots(1, 2, figsize=(6.4, 4.4), sharey=True, layout="constrained")
        axes = list(np.ravel(ax))
        if len(axes) != 2:
            raise ValueError(f"ax must be a pair of axes, got {len(axes)}")
        self.ax_, self.item_ax_ = axes
        self.figure_ = self.ax_.figure
        both = np.concatenate([self.ability, self.items.difficulty])
        edges = np.histogram_bin_edges(both, n_bins)
        self.ax_.hist(self.ability, edges, orientation="horizontal", color="C0")
        self.ax_.invert_xaxis()
        self.ax_.set(xlabel="Takers", ylabel="Ability and difficulty")
        self.item_ax_.hist(self.items.difficulty, edges, orientation="horizontal", color="C1")
        self.item_ax_.set(xlabel="Items")
        return self

    @classmethod
    def from_estimator(cls, estimator: Any, ability: ArrayLike | None = None, *, ax: Any = None) -> Self:
        """Draw for a fitted model.

        Parameters
        ----------
        estimator : fitted estimator or Items
            The items, and the takers' ``ability_``.
        ability : array-like of shape (n_takers,), optional
            Other abilities.
        ax : pair of matplotlib axes, optional
            Where to draw.

        Returns
        -------
        WrightMapDisplay
            The display.

        Raises
        ------
        ValueError
            If there are no abilities, or one is not finite.
        """
        bank = items_of(estimator)
        theta = np.asarray(getattr(estimator, "ability_", []) if ability is None else ability, dtype=float)
        if theta.ndim != 1 or len(theta) == 0 or not np.isfinite(theta).all():
            raise ValueError(f"ability must be a list of finite numbers, got shape {theta.shape}")
        return cls(ability=theta, items=bank).plot(ax=ax)
