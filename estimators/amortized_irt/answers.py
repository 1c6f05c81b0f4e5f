"""The likelihood of ability: answers to known items, and what the curves say about each taker."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.utils.validation import check_is_fitted

from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.responses import Responses

STEEPEST = 300.0
"""|a (theta - b)| beyond which a curve counts as flat, so that no quotient of its slopes is 0 / 0."""

SMALL = 1 << 18
"""Cells, over all points of a grid, below which the points are worked on at once."""

BLOCK = 1 << 20
"""Cells of a matrix that are worked on at a time."""


@lru_cache(maxsize=32)
def normal_rule(n_nodes: int) -> tuple[Floats, Floats]:
    """Return nodes x of the Gauss-Hermite rule for N(0, 1), and log weights of integrals over dx.

    Parameters
    ----------
    n_nodes : int
        How many.

    Returns
    -------
    pair of ndarray of shape (n_nodes,)
        The integral of f(m + s x) s dx is the sum of exp(log weight) f(m + s x) s.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    log_weights = np.log(weights) + nodes**2 / 2
    for part in (nodes, log_weights):
        part.flags.writeable = False
    return nodes, log_weights


class Slopes(NamedTuple):
    """Derivatives in theta, each of shape (n_takers,).

    Attributes
    ----------
    score : ndarray
        First derivative of the log-likelihood.
    curvature : ndarray
        Minus its second derivative.
    information : ndarray
        What ``curvature`` is on average over the answers.
    """

    score: Floats
    curvature: Floats
    information: Floats


class Curves(NamedTuple):
    """P(right), P(wrong) and the first two derivatives of P(right) in theta, cell by cell."""

    right: Floats
    wrong: Floats
    first: Floats
    second: Floats


class GridValues(NamedTuple):
    """Values at the points of a grid, each of shape (n_points, n_takers).

    Attributes
    ----------
    score, level : ndarray
        Slope and value of the log-likelihood.
    information, bend : ndarray
        I and Warm's J = sum P' P'' / (P Q).
    """

    score: Floats
    level: Floats
    information: Floats
    bend: Floats


def curves_of(items: Items, theta: Floats) -> Curves:
    """Return response curves and their slopes.

    Parameters
    ----------
    items : Items
        Parameters.
    theta : ndarray
        Abilities, broadcastable to the items.

    Returns
    -------
    Curves
        Of the broadcast shape.
    """
    logit = np.clip(items.discrimination * (theta - items.difficulty), -STEEPEST, STEEPEST)
    rise, fall = expit(logit), expit(-logit)
    height = items.upper - items.guessing
    first = items.discrimination * height * rise * fall
    second = items.discrimination * first * (fall - rise)
    return Curves(items.guessing + height * rise, (1 - items.upper) + height * fall, first, second)


@dataclass(frozen=True)
class Answers:
    """Answers of some takers.

    Attributes
    ----------
    right : ndarray of shape (n_takers, n_answers) or (n_cells,)
        1 for right, 0 for wrong.
    items : Items
        Parameters of the items answered, broadcastable to ``right``.
    seen : ndarray of shape (n_takers, n_answers), optional
        0 where there is no answer; None where there is one in every cell.
    starts : ndarray of shape (n_takers + 1,), optional
        First cell of each taker, and the end, where ``right`` is flat.
    table : tuple of (matrix, matrix or None, Items), optional
        ``right`` and ``seen`` as matrices of takers by items, and those items, where the takers share them.
    """

    right: Floats
    items: Items
    seen: Floats | None = None
    starts: NDArray[np.int64] | None = None
    table: tuple[Any, Any, Items] | None = None

    @property
    def n_takers(self) -> int:
        """Number of takers."""
        return len(self.right) if self.starts is None else len(self.starts) - 1

    @property
    def n_seen(self) -> NDArray[np.int64]:
        """Number of answers of each taker."""
        if self.starts is not None:
            return np.diff(self.starts)
        if self.seen is None:
            return np.full(self.n_takers, self.right.shape[1])
        return self.seen.sum(axis=1).astype(np.int64)

    @cached_property
    def is_logistic(self) -> bool:
        """Whether no item can be guessed or slipped on: the log-likelihood is then concave."""
        return not self.items.guessing.any() and bool((self.items.upper == 1).all())

    def at(self, theta: Floats) -> Floats:
        """Lay one value per taker along the cells."""
        return theta[..., None] if self.starts is None else np.repeat(theta, np.diff(self.starts))

    def total(self, cells: Floats) -> Floats:
        """Sum over each taker's answers."""
        if self.starts is None:
            return (cells if self.seen is None else cells * self.seen).sum(axis=-1)
        # reduceat gives an empty taker the next one's first cell
        sums = np.add.reduceat(np.append(cells, 0.0), np.minimum(self.starts[:-1], len(cells)))
        return np.where(np.diff(self.starts) > 0, sums, 0.0)

    def curves(self, theta: Floats) -> Curves:
        """Response curves and their slopes at each taker's theta."""
        return curves_of(self.items, self.at(theta))

    def log_likelihood(self, theta: Floats) -> Floats:
        """Log-likelihood of each taker's theta."""
        items, logit = self.items, self.logit(theta)
        if self.is_logistic:
            soft = np.maximum(logit, 0.0) + np.log(1 + np.exp(-np.abs(logit)))
            return self.total(self.right * logit - soft)
        rise, fall = expit(logit), expit(-logit)
        height = items.upper - items.guessing
        chance = np.where(self.right > 0, items.guessing + height * rise, (1 - items.upper) + height * fall)
        return self.total(np.log(chance))

    def logit(self, theta: Floats) -> Floats:
        """A (theta - b) of each cell, clipped where the curves are flat."""
        items = self.items
        logit = items.discrimination * (self.at(theta) - items.difficulty)
        return np.clip(logit, -STEEPEST, STEEPEST, out=logit)

    def slopes(self, theta: Floats) -> Slopes:
        """Score, curvature and information of each taker at theta."""
        if self.is_logistic:  # the quotients below, in closed form
            slope = self.items.discrimination
            rise = 1 / (1 + np.exp(-self.logit(theta)))
            information = self.total(slope**2 * (rise * (1 - rise)))
            return Slopes(self.total(slope * (self.right - rise)), information, information)
        curve = self.curves(theta)
        chance = np.where(self.right > 0, curve.right, -curve.wrong)
        score = curve.first / chance
        return Slopes(
            self.total(score),
            self.total(score**2 - curve.second / chance),
            self.total(curve.first**2 / (curve.right * curve.wrong)),
        )

    def warm(self, theta: Floats) -> tuple[Floats, Floats]:
        """Warm's correction J / (2 I), J = sum P' P'' / (P Q), and its derivative in theta."""
        items, curve = self.items, self.curves(theta)
        third = curve.first * items.discrimination
        third *= items.discrimination - 6 * curve.first / (items.upper - items.guessing)
        spread = curve.right * curve.wrong
        tilt = (curve.wrong - curve.right) * curve.first / spread
        info = self.total(curve.first**2 / spread)
        bend = self.total(curve.first * curve.second / spread)
        info_slope = self.total((2 * curve.second - tilt * curve.first) * curve.first / spread)
        bend_slope = self.total(
            (curve.second**2 + curve.first * third - tilt * curve.first * curve.second) / spread
        )
        bare = np.maximum(info, np.finfo(float).tiny)
        correction = bend / (2 * bare)
        return correction, (bend_slope - 2 * correction * info_slope) / (2 * bare)

    def grid(self, n_points: int, reach: tuple[float, float] = (np.inf, -np.inf)) -> Floats:
        """Points, in rows, that cover the items and ``reach``: one column for all takers, or one for each."""
        items = self.items if self.table is None else self.table[2].take(np.s_[None, :])
        margin = (10 + np.log(max(items.difficulty.shape[-1], 1))) / items.discrimination
        low = np.minimum((items.difficulty - margin).min(axis=-1, initial=0.0), reach[0])
        high = np.maximum((items.difficulty + margin).max(axis=-1, initial=0.0), reach[1])
        return np.linspace(low, high, n_points)

    def on_grid(self, grid: Floats) -> GridValues:
        """Score, log-likelihood and Warm's terms at the points of :meth:`grid`.

        Takers who share their items need one matrix product instead of a walk through the cells.
        """
        if self.table is None:
            points = np.broadcast_to(grid, (len(grid), self.n_takers))
            if len(grid) * self.right.size <= SMALL:
                return GridValues(*self._at_point(points))
            found = [self._at_point(theta) for theta in points]
            return GridValues(*(np.array(part) for part in zip(*found, strict=True)))
        right, seen, items = self.table
        curve = curves_of(items, grid)
        spread = curve.right * curve.wrong

        def shown(values: Floats) -> Floats:
            if seen is None:
                return np.broadcast_to(values.sum(axis=1)[:, None], (len(grid), self.n_takers))
            return np.asarray(seen @ values.T).T

        def answered(if_right: Floats, if_wrong: Floats) -> Floats:
            return np.asarray(right @ (if_right - if_wrong).T).T + shown(if_wrong)

        return GridValues(
            answered(curve.first / curve.right, -curve.first / curve.wrong),
            answered(np.log(curve.right), np.log(curve.wrong)),
            shown(curve.first**2 / spread),
            shown(curve.first * curve.second / spread),
        )

    def _at_point(self, theta: Floats) -> tuple[Floats, ...]:
        curve = self.curves(theta)
        spread = curve.right * curve.wrong
        return (
            self.total(curve.first / np.where(self.right > 0, curve.right, -curve.wrong)),
            self.total(np.log(np.where(self.right > 0, curve.right, curve.wrong))),
            self.total(curve.first**2 / spread),
            self.total(curve.first * curve.second / spread),
        )

    def limits(self) -> tuple[Floats, Floats]:
        """Log-likelihood as theta goes to minus and to plus infinity."""
        with np.errstate(divide="ignore"):
            guessed = np.where(self.right > 0, np.log(self.items.guessing), np.log1p(-self.items.guessing))
            slipped = np.where(self.right > 0, np.log(self.items.upper), np.log1p(-self.items.upper))
        if self.seen is not None:
            guessed, slipped = (np.where(self.seen > 0, part, 0.0) for part in (guessed, slipped))
        return self.total(guessed), self.total(slipped)


def walk(responses: Responses, items: Items) -> Iterator[tuple[slice, Answers]]:
    """Walk through the takers in blocks that fit into memory.

    Parameters
    ----------
    responses : Responses
        The cells.
    items : Items
        One per column.

    Yields
    ------
    tuple of slice and Answers
        Rows, and their answers.
    """
    per_taker = responses.n_cells / responses.n_takers if responses.is_sparse else responses.n_items
    size = max(1, int(BLOCK / max(per_taker, 1)))
    for start in range(0, responses.n_takers, size):
        rows = slice(start, min(start + size, responses.n_takers))
        yield rows, answers_of(responses.take(rows), items)


def answers_of(responses: Responses, items: Items) -> Answers:
    """Return the answers of all takers at once, flat where the responses are sparse.

    Parameters
    ----------
    responses : Responses
        The cells.
    items : Items
        One per column.

    Returns
    -------
    Answers
        Theirs.
    """
    if not responses.is_sparse:
        table = (responses.right, responses.seen, items)
        return Answers(responses.right, items.take(np.s_[None, :]), responses.seen, None, table)
    taker, item, right = responses.long()
    starts = np.searchsorted(taker, np.arange(responses.n_takers + 1))
    table = (responses.right, responses.seen, items)
    return Answers(np.asarray(right, dtype=float), items.take(item), None, starts, table)


def items_of(model: Any) -> Items:
    """Return a fitted model's items, or the items themselves.

    Parameters
    ----------
    model : estimator or Items
        With ``difficulty_`` and, where it has them, ``discrimination_``, ``guessing_``, ``upper_`` and
        ``difficulty_std_``.

    Returns
    -------
    Items
        Its items.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    TypeError
        If it is neither, or its items are no curves in one ability.
    """
    if isinstance(model, Items):
        return check_items(model)
    if not hasattr(model, "fit"):
        raise TypeError(f"model must be a fitted estimator or Items, got {type(model).__name__}")
    check_is_fitted(model)
    if np.ndim(getattr(model, "difficulty_", 0.0)) != 1:
        raise TypeError(
            f"model must have one ability and difficulty_ of shape (n_items,); {type(model).__name__} has not"
        )
    names = {"discrimination_": 1.0, "guessing_": 0.0, "upper_": 1.0, "difficulty_std_": 0.0}
    return check_items(Items.of(model.difficulty_, *(getattr(model, k, v) for k, v in names.items())))


def check_items(items: Items) -> Items:
    """Raise ValueError, naming the parameter and the item, unless all items have proper curves.

    Parameters
    ----------
    items : Items
        The items.

    Returns
    -------
    Items
        The same.

    Raises
    ------
    ValueError
        If there is none, or a parameter is not finite or out of range.
    """
    if len(items) == 0:
        raise ValueError("items must hold at least one item, got none")
    allowed = {
        "difficulty": (np.isfinite(items.difficulty), "finite"),
        "discrimination": ((items.discrimination > 0) & (items.discrimination < np.inf), "in (0, inf)"),
        "guessing": ((items.guessing >= 0) & (items.guessing < 1), "in [0, 1)"),
        "upper": ((items.upper > items.guessing) & (items.upper <= 1), "in (guessing, 1]"),
        "difficulty_std": ((items.difficulty_std >= 0) & (items.difficulty_std < np.inf), "in [0, inf)"),
    }
    for name, (fine, words) in allowed.items():
        if not fine.all():
            wrong = int(np.argmin(fine))
            raise ValueError(f"{name}[{wrong}] must be {words}, got {getattr(items, name)[wrong]!r}")
    return items
