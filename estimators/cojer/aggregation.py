"""Intervals from several models that share their calibration points: aggregated p-values, solved exactly.

Model q has p-values ``p_q(x, y)``; an aggregate ``h(x, y)``, by default their harmonic mean, gives the set
``{y : h(x, y) >= t}``. As a function of y, ``h`` is piecewise constant with breakpoints at the ends of the
models' score sets, and because a p-value counts the scores that are *at least* its own, the value at a
breakpoint is the larger one of its two sides. So the set is a union of closed intervals that end at
breakpoints, and no grid over y is needed.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from seedbed.estimators.cojer.laws import TOLERANCE, Floats, Ints, sample_ranks
from seedbed.estimators.cojer.scores import AffineBand, Band

Aggregation = Literal["harmonic", "arithmetic", "geometric", "quantile"]
AggregationNull = Literal["independent", "single", "split"]
AGGREGATIONS: tuple[Aggregation, ...] = ("harmonic", "arithmetic", "geometric", "quantile")
NULLS: tuple[AggregationNull, ...] = ("independent", "single", "split")

_CELLS = 1 << 25  # 256 MiB of float64

Aggregate = Callable[[Floats], Floats]


def aggregate_p_values(
    p: Floats, aggregation: Aggregation = "harmonic", quantile_gamma: float = 0.3
) -> Floats:
    """Aggregate p-values over the models.

    Parameters
    ----------
    p : ndarray of shape (n_models, ...)
        P-values in (0, 1].
    aggregation : {"harmonic", "arithmetic", "geometric", "quantile"}
        Which mean, or ``min(1, Q_gamma(p) / gamma)`` with the empirical quantile
        ``Q_gamma`` (the ``ceil(gamma n_models)``-th smallest, for which the aggregate is a valid p-value).
    quantile_gamma : float
        gamma in (0, 1], for "quantile".

    Returns
    -------
    ndarray
        Shape of ``p`` without the first axis.

    Examples
    --------
    >>> import numpy as np
    >>> round(float(aggregate_p_values(np.array([0.5, 0.25]))), 12)
    0.333333333333
    """
    if aggregation == "harmonic":
        return len(p) / np.sum(1.0 / p, axis=0)
    if aggregation == "arithmetic":
        return np.mean(p, axis=0)
    if aggregation == "geometric":
        return np.exp(np.mean(np.log(p), axis=0))
    position = int(np.ceil(quantile_gamma * len(p) - 1e-9)) - 1
    return np.minimum(1.0, np.partition(p, position, axis=0)[position] / quantile_gamma)


class Ranks(Protocol):
    """Edges and ranks of one model's score sets at m points; edge i belongs to its i-th smallest score."""

    n: int

    def upper(self, i: Ints) -> Floats:
        """Upper ends of the sets i, (m, c)."""

    def lower(self, i: Ints) -> Floats:
        """Lower ends of the sets i, (m, c)."""

    def uppers_below(self, y: Floats) -> Ints:
        """How many upper ends lie below y, (m, c)."""

    def lowers_above(self, y: Floats) -> Ints:
        """How many lower ends lie above y, (m, c)."""

    def mirrored(self) -> "Ranks":
        """The same sets for -y."""

    def take(self, rows: NDArray[np.intp]) -> "Ranks":
        """The same sets at some of the points."""


class AffineRanks:
    """:class:`Ranks` of an :class:`AffineBand`.

    Parameters
    ----------
    low, high, scale : ndarray of shape (m,)
        The band.
    scores : ndarray of shape (n,)
        Sorted calibration scores.
    """

    def __init__(self, low: Floats, high: Floats, scale: Floats, scores: Floats) -> None:
        self.low, self.high, self.scale, self.scores = low, high, scale, scores
        self.n = len(scores)
        self._same_below: Ints = np.searchsorted(scores, scores, side="left")
        self._same_above: Ints = np.searchsorted(scores, scores, side="right")

    def upper(self, i: Ints) -> Floats:
        """Upper ends of the sets i, (m, c)."""
        return self.high[:, None] + self.scores[i] * self.scale[:, None]

    def lower(self, i: Ints) -> Floats:
        """Lower ends of the sets i, (m, c)."""
        return self.low[:, None] - self.scores[i] * self.scale[:, None]

    def uppers_below(self, y: Floats) -> Ints:
        """How many upper ends lie below y, (m, c)."""
        return self._count(self.high, y)

    def lowers_above(self, y: Floats) -> Ints:
        """How many lower ends lie above y, (m, c)."""
        return self._count(-self.low, -y)

    def _count(self, origin: Floats, y: Floats) -> Ints:
        """Count edges ``origin + score scale < y``, compared as the rounded numbers that the edges are.

        Solving for the score gives the count up to rounding; it is then moved until the edges themselves
        agree, so that an edge shared by two models is on the same side of both.
        """
        origin, scale = origin[:, None], self.scale[:, None]
        count = np.searchsorted(self.scores, (y - origin) / scale, side="left")
        while True:
            below = np.maximum(count - 1, 0)
            back = (count > 0) & (origin + self.scores[below] * scale >= y)
            if back.any():
                count = np.where(back, self._same_below[below], count)
                continue
            here = np.minimum(count, self.n - 1)
            ahead = (count < self.n) & (origin + self.scores[here] * scale < y)
            if not ahead.any():
                return count
            count = np.where(ahead, self._same_above[here], count)

    def mirrored(self) -> "AffineRanks":
        """The same sets for -y."""
        return AffineRanks(-self.high, -self.low, self.scale, self.scores)

    def take(self, rows: NDArray[np.intp]) -> "AffineRanks":
        """The same sets at some of the points."""
        return AffineRanks(self.low[rows], self.high[rows], self.scale[rows], self.scores)


class TableRanks:
    """:class:`Ranks` of any other band: all edges are kept, (m, n) each.

    Parameters
    ----------
    lowers, uppers : ndarray of shape (m, n)
        Ends of the score sets: non-increasing and non-decreasing rows.
    """

    def __init__(self, lowers: Floats, uppers: Floats) -> None:
        self.lowers, self.uppers = lowers, uppers
        self.n = lowers.shape[1]

    def upper(self, i: Ints) -> Floats:
        """Upper ends of the sets i, (m, c)."""
        return np.take_along_axis(self.uppers, np.broadcast_to(i, (len(self.uppers), i.shape[1])), axis=1)

    def lower(self, i: Ints) -> Floats:
        """Lower ends of the sets i, (m, c)."""
        return np.take_along_axis(self.lowers, np.broadcast_to(i, (len(self.lowers), i.shape[1])), axis=1)

    def uppers_below(self, y: Floats) -> Ints:
        """How many upper ends lie below y, (m, c)."""
        return np.stack(
            [np.searchsorted(row, at, side="left") for row, at in zip(self.uppers, y, strict=True)]
        )

    def lowers_above(self, y: Floats) -> Ints:
        """How many lower ends lie above y, (m, c)."""
        return np.stack(
            [np.searchsorted(-row, -at, side="left") for row, at in zip(self.lowers, y, strict=True)]
        )

    def mirrored(self) -> "TableRanks":
        """The same sets for -y."""
        return TableRanks(-self.uppers, -self.lowers)

    def take(self, rows: NDArray[np.intp]) -> "TableRanks":
        """The same sets at some of the points."""
        return TableRanks(self.lowers[rows], self.uppers[rows])


def make_ranks(band: Band, scores: Floats) -> Ranks:
    """Return the ranks of a band.

    Parameters
    ----------
    band : Band
        Score sets of one model at m points.
    scores : ndarray of shape (n,)
        Its sorted calibration scores.

    Returns
    -------
    Ranks
        Edges and ranks.
    """
    if isinstance(band, AffineBand):
        return AffineRanks(band.low, band.high, band.scale, scores)
    return TableRanks(*band.bounds(scores[None, :]))


def p_values(ranks: Ranks, y: Floats) -> Floats:
    """Return one model's conformal p-values ``(1 + #{i : S_i >= S(y)}) / (n + 1)``.

    Parameters
    ----------
    ranks : Ranks
        Of the model at m points.
    y : ndarray of shape (m, c)
        Candidates.

    Returns
    -------
    ndarray of shape (m, c)
        P-values. The score sets are nested, so y lies outside of the first ones only.
    """
    outside = np.maximum(ranks.uppers_below(y), ranks.lowers_above(y))
    return (1.0 + ranks.n - outside) / (ranks.n + 1)


def _values(models: Sequence[Ranks], y: Floats, aggregate: Aggregate) -> Floats:
    """H at candidates (m, c)."""
    return aggregate(np.stack([p_values(model, y) for model in models]))


def _right_end(
    models: Sequence[Ranks], reached: float, aggregate: Aggregate
) -> tuple[Floats, NDArray[np.bool_]]:
    """Right end of the hull where it lies right of all innermost lower ends: there h only falls.

    Bisection over each model's upper ends, all points and models at once. Returns the ends (m,) and where
    they hold.
    """
    n = models[0].n
    zero = np.zeros((1, 1), dtype=np.int64)
    start = np.max([model.lower(zero)[:, 0] for model in models], axis=0)
    inside = _values(models, start[:, None], aggregate)[:, 0] >= reached
    first = np.concatenate([model.uppers_below(start[:, None]) for model in models], axis=1)
    low, high = first - 1, np.full_like(first, n - 1)
    while True:
        open_ = low < high
        if not open_.any():
            break
        middle = np.where(open_, (low + high + 1) // 2, np.maximum(low, 0))
        y = np.concatenate([model.upper(middle[:, [q]]) for q, model in enumerate(models)], axis=1)
        good = _values(models, y, aggregate) >= reached
        low = np.where(open_ & good, middle, low)
        high = np.where(open_ & ~good, middle - 1, high)
    index = np.maximum(low, 0)
    y = np.concatenate([model.upper(index[:, [q]]) for q, model in enumerate(models)], axis=1)
    return np.max(np.where(low >= first, y, start[:, None]), axis=1), inside


def _sweep(models: Sequence[Ranks], aggregate: Aggregate) -> tuple[Floats, Floats, Floats]:
    """All c = 2 n n_models breakpoints of h at each point, with the values of h.

    Returns the sorted breakpoints (m, c), h there (m, c) and h between neighbours (m, c - 1). Ranks come from
    counting edges along the sorted row, so equal edges are equal and nothing is searched.
    """
    n = models[0].n
    index = np.arange(n)[None, :]
    y = np.concatenate([np.hstack([model.lower(index), model.upper(index)]) for model in models], axis=1)
    order = np.argsort(y, axis=1, kind="stable")
    y = np.take_along_axis(y, order, axis=1)
    block = order // n  # 2 q: a lower end of model q; 2 q + 1: an upper end
    position = np.broadcast_to(np.arange(y.shape[1]), y.shape)
    step = y[:, 1:] > y[:, :-1]
    edge = np.ones((len(y), 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, step]), position, 0), axis=1)
    last = np.where(np.hstack([step, edge]), position, y.shape[1])
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    at, right_of = np.empty((2, len(models), *y.shape))
    for q in range(len(models)):
        lowers = np.cumsum(block == 2 * q, axis=1)
        uppers = np.hstack([np.zeros((len(y), 1), dtype=np.int64), np.cumsum(block == 2 * q + 1, axis=1)])
        above, below = n - np.take_along_axis(lowers, last, axis=1), np.take_along_axis(uppers, first, axis=1)
        at[q] = (1.0 + n - np.maximum(above, below)) / (n + 1)
        right_of[q] = (1.0 + n - np.maximum(n - lowers, uppers[:, 1:])) / (n + 1)
    return y, aggregate(at), aggregate(right_of[:, :, :-1])


def _chunks(models: Sequence[Ranks], m: int) -> list[NDArray[np.intp]]:
    cells = 2 * models[0].n * len(models) * (2 * len(models) + 8)
    step = max(1, _CELLS // cells)
    return [np.arange(start, min(start + step, m)) for start in range(0, m, step)]


def hulls(models: Sequence[Ranks], threshold: float, aggregate: Aggregate) -> Floats:
    """Return the hull of ``{y : h(x, y) >= t}`` at each point.

    Parameters
    ----------
    models : sequence of Ranks
        One for each model, at the same m points, with equally many scores.
    threshold : float
        t. Must exceed the value of h at infinity, else the set is the line.
    aggregate : callable
        From p-values (n_models, m, c) to h (m, c), non-decreasing in each.

    Returns
    -------
    ndarray of shape (m, 2)
        Closed intervals; where no y reaches t, the point where h is largest (the smallest of them).
    """
    reached = threshold * (1 - TOLERANCE)
    m = len(models[0].lower(np.zeros((1, 1), dtype=np.int64)))
    if aggregate(np.full((len(models), 1, 1), 1.0 / (models[0].n + 1)))[0, 0] >= reached:
        return np.tile([-np.inf, np.inf], (m, 1))
    right, right_holds = _right_end(models, reached, aggregate)
    left, left_holds = _right_end([model.mirrored() for model in models], reached, aggregate)
    found = np.stack([-left, right], axis=1)
    # Where the models disagree so much that h is low between them, look at every breakpoint.
    rest = np.flatnonzero(~(right_holds & left_holds))
    for chunk in _chunks(models, len(rest)):
        rows = rest[chunk]
        y, h, _ = _sweep([model.take(rows) for model in models], aggregate)
        top = h.max(axis=1, keepdims=True) * (1 - TOLERANCE)
        inside = h >= np.minimum(reached, top)
        first = np.argmax(inside, axis=1)
        last = inside.shape[1] - 1 - np.argmax(inside[:, ::-1], axis=1)
        last = np.where(np.any(h >= reached, axis=1), last, first)
        at = np.arange(len(rows))
        found[rows] = np.stack([y[at, first], y[at, last]], axis=1)
    return found


def unions(models: Sequence[Ranks], threshold: float, aggregate: Aggregate) -> list[Floats]:
    """Return ``{y : h(x, y) >= t}`` itself at each point.

    Parameters
    ----------
    models : sequence of Ranks
        One for each model, at the same m points, with equally many scores.
    threshold : float
        t.
    aggregate : callable
        From p-values (n_models, m, c) to h (m, c).

    Returns
    -------
    list of m ndarrays of shape (pieces, 2)
        Disjoint closed intervals, sorted. Where no y reaches t, the point where h is largest.
    """
    reached = threshold * (1 - TOLERANCE)
    m = len(models[0].lower(np.zeros((1, 1), dtype=np.int64)))
    if aggregate(np.full((len(models), 1, 1), 1.0 / (models[0].n + 1)))[0, 0] >= reached:
        return [np.array([[-np.inf, np.inf]]) for _ in range(m)]
    pieces = []
    for rows in _chunks(models, m):
        y, h, right_of = _sweep([model.take(rows) for model in models], aggregate)
        inside = h >= reached
        between = (right_of >= reached) | (y[:, 1:] == y[:, :-1])
        for points, good, joined, value in zip(y, inside, between, h, strict=True):
            if not good.any():
                best = np.argmax(value >= value.max() * (1 - TOLERANCE))
                pieces.append(np.repeat(points[best], 2)[None, :])
                continue
            linked = joined & good[1:] & good[:-1]
            starts = good & ~np.concatenate([[False], linked])
            stops = good & ~np.concatenate([linked, [False]])
            pieces.append(np.stack([points[starts], points[stops]], axis=1))
    return pieces


@lru_cache(maxsize=64)
def independent_thresholds(
    n_cal: int,
    n_test: int,
    delta: float,
    k_max: int,
    n_models: int,
    aggregation: Aggregation,
    quantile_gamma: float,
    n_draws: int,
    seed: int,
    single: bool,
) -> tuple[Floats, float, float]:
    """Calibrate thresholds on the simulated law of the aggregate of independent p-values; cached.

    Parameters
    ----------
    n_cal, n_test : int
        Numbers n of calibration and m of test points.
    delta : float
        Allowed joint error rate.
    k_max : int
        Number of thresholds K.
    n_models : int
        Number of models.
    aggregation, quantile_gamma
        As in :func:`aggregate_p_values`.
    n_draws : int
        Simulated batches for the template and, independently, for its calibration.
    seed : int
        Seed.
    single : bool
        Whether position K alone is constrained.

    Returns
    -------
    t : ndarray of shape (K,)
        Thresholds of the k-th smallest aggregate, read-only.
    parameter : float
        Share of the template's curves below ``t``.
    jer : float
        Joint error rate over the calibration draws.
    """
    rng = np.random.default_rng(seed)

    def draw() -> Floats:
        h = np.empty((n_draws, k_max))
        step = max(1, _CELLS // (4 * n_models * n_test))
        for start in range(0, n_draws, step):
            rows = min(step, n_draws - start)
            p = np.stack([sample_ranks(n_cal, n_test, rows, rng, sort=False) for _ in range(n_models)])
            value = aggregate_p_values((1.0 + p) / (n_cal + 1), aggregation, quantile_gamma)
            h[start : start + rows] = np.sort(value, axis=1)[:, :k_max]
        return h

    # Below this, {h >= t} is the whole line: such a threshold constrains nothing.
    floor = float(
        aggregate_p_values(np.full((n_models, 1), 1.0 / (n_cal + 1)), aggregation, quantile_gamma)[0]
    )
    curves = np.sort(draw(), axis=0)
    if single:
        row = int(np.floor(delta * n_draws + 1e-9))  # as many draws lie below it
        t = np.full(k_max, floor)
        t[-1] = curves[min(row, n_draws - 1), -1]
        error = float(np.mean(curves[:, -1] < t[-1] * (1 - TOLERANCE)))
        t.setflags(write=False)
        return t, row / n_draws, error
    check = draw()
    low, high = 0, n_draws

    def error_of(row: int) -> float:
        return float(np.mean(np.any(check < curves[row - 1] * (1 - TOLERANCE), axis=1)))

    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if error_of(middle) <= delta + TOLERANCE else (low, middle - 1)
    t = curves[low - 1].copy() if low else np.full(k_max, floor)
    t.setflags(write=False)
    return t, low / n_draws, error_of(low) if low else 0.0
