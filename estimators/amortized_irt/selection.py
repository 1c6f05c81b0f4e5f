"""Which item next: what each rule looks at, and the choice among the best."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from seedbed.estimators.amortized_irt.answers import Answers, normal_rule
from seedbed.estimators.amortized_irt.items import Floats, Items

Ints = NDArray[np.int64]
Selection = Literal["mfi", "random", "kl", "mepv", "spanning", "urry"]
SELECTIONS = ("mfi", "random", "kl", "mepv", "spanning", "urry")

N_NODES = 15
"""Nodes that stand for a taker's posterior."""
LARGE = 4096
"""Items from which on a single taker's scan is made in single precision first."""
CLOSE = 1e-4
"""Relative distance to the best, in single precision, of items that are looked at again."""
KL_NODES = 9
KL_WIDTH = 3.0
"""Chang and Ying's integral reaches KL_WIDTH / sqrt(answers) to either side."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def uniforms(seed: int, stream: int, taker: Any, count: Any) -> Floats:
    """Uniform numbers that depend on nothing but their coordinates.

    Every taker has numbers of its own, whoever else takes the test and in whatever order, and a saved session
    needs no state of a generator. SplitMix64's finaliser (Steele, Lea and Flood, 2014) mixes the coordinates.

    Parameters
    ----------
    seed : int
        Of the test, in [0, 2^64).
    stream : int
        What the numbers are for.
    taker, count : int or ndarray of int
        Coordinates, broadcast against each other.

    Returns
    -------
    ndarray
        In [0, 1), of the broadcast shape.
    """
    state = np.asarray(seed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for coordinate in (stream, taker, count):
            state = state ^ ((np.asarray(coordinate).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
            for shift, factor in zip((30, 27), _MIX, strict=True):
                state = (state ^ (state >> np.uint64(shift))) * factor
            state = state ^ (state >> np.uint64(31))
    return np.asarray((state >> np.uint64(11)).astype(float) * 2.0**-53)


@dataclass(frozen=True)
class Bank:
    """Items in the forms that the rules need.

    Attributes
    ----------
    items : Items
        Parameters, with the errors of the difficulties averaged over where that is asked for.
    """

    items: Items

    @cached_property
    def is_rasch(self) -> bool:
        """Whether the item nearest in difficulty says most."""
        items = self.items
        return bool(
            np.ptp(items.discrimination) == 0 and not items.guessing.any() and (items.upper == 1).all()
        )

    @cached_property
    def order(self) -> Ints:
        """Items by difficulty."""
        return np.argsort(self.items.difficulty, kind="stable")

    @cached_property
    def sorted_difficulty(self) -> Floats:
        """Difficulties in that order."""
        return self.items.difficulty[self.order]

    @cached_property
    def _single(self) -> tuple[NDArray[np.float32], ...]:
        items = self.items
        height = items.upper - items.guessing
        parts = (
            items.discrimination,
            items.discrimination * items.difficulty,
            (items.discrimination * height) ** 2,
            height,
            items.guessing,
            1 - items.upper,
        )
        return tuple(part.astype(np.float32) for part in parts)

    def spanning(self, length: int | None) -> Ints:
        """Order of the items that spreads any beginning of a test over the difficulties.

        Parameters
        ----------
        length : int, optional
            Length of the test: its items are the quantiles (k + 1/2) / length of the difficulties.

        Returns
        -------
        ndarray of int of shape (n_items,)
            Those items in van der Corput's order, and then all others in that order.
        """
        n_items = len(self.items)
        length = n_items if length is None else min(length, n_items)
        quantiles = ((np.arange(length) + 0.5) / length * n_items).astype(np.int64)
        first = quantiles[np.argsort(_bit_reversed(length), kind="stable")]
        rest = np.argsort(_bit_reversed(n_items), kind="stable")
        rest = rest[~np.isin(rest, first)]
        return np.asarray(self.order[np.concatenate([first, rest])])

    def nearest(self, theta: Floats, width: int) -> tuple[Floats, Ints]:
        """Distances of the items around each theta, negative, and which items these are.

        Parameters
        ----------
        theta : ndarray of shape (n_takers,)
            Abilities.
        width : int
            How many items to either side.

        Returns
        -------
        pair of ndarray of shape (n_takers, m)
            Minus |b - theta|, and items. Where the bank ends they are -inf and some item.
        """
        n_items = len(self.items)
        if 2 * width >= n_items:
            place = np.broadcast_to(np.arange(n_items), (len(theta), n_items))
        else:
            place = np.searchsorted(self.sorted_difficulty, theta)[:, None] + np.arange(-width, width)
        inside = np.clip(place, 0, n_items - 1)
        distance = -np.abs(self.sorted_difficulty[inside] - theta[:, None])
        return np.where(inside == place, distance, -np.inf), self.order[inside]

    def best_single(self, theta: float, open_: NDArray[np.bool_], n_best: int) -> Ints:
        """Items among which one taker's ``n_best`` most informative open items are.

        Parameters
        ----------
        theta : float
            Ability.
        open_ : ndarray of bool of shape (n_items,)
            Items to choose from.
        n_best : int
            How many.

        Returns
        -------
        ndarray of int
            Few items.
        """
        slope, shift, factor, height, low, gap = self._single
        work: Any = slope * np.float32(theta)
        work -= shift
        np.clip(work, -40, 40, out=work)
        np.negative(work, out=work)
        np.exp(work, out=work)  # odds against
        rise = 1 / (1 + work)
        if (self.items.upper == 1).all() and self.items.guessing.any():
            found: Any = rise * rise
            found *= np.multiply(work, rise, out=work)
            found *= factor
            rise *= height
            rise += low
            rise *= height
            found /= rise
        elif (self.items.upper != 1).any():
            fall = work * rise
            found = factor * (rise * fall) ** 2 / ((low + height * rise) * (gap + height * fall))
        else:
            np.multiply(work, rise, out=work)
            work *= rise
            work *= factor
            found = work
        found *= open_
        top = found.max() if n_best == 1 else np.partition(found, -n_best)[-n_best]
        return np.flatnonzero(found >= top * np.float32(1 - CLOSE))

    def kullback_leibler(self, theta: Floats, n_answers: int) -> Floats:
        """Chang and Ying's global information: the divergence from theta, integrated around it.

        Parameters
        ----------
        theta : ndarray of shape (n_takers,)
            Abilities.
        n_answers : int
            How many answers they rest on.

        Returns
        -------
        ndarray of shape (n_takers, n_items)
            Information.
        """
        nodes, weights = np.polynomial.legendre.leggauss(KL_NODES)
        reach = KL_WIDTH / np.sqrt(max(n_answers, 1))
        right = self.items.probability(theta)
        total = xlogy(right, right) + xlogy(1 - right, 1 - right)
        total *= weights.sum()
        for node, weight in zip(nodes, weights, strict=True):
            other = np.clip(self.items.probability(theta + reach * node), 1e-300, 1 - 1e-16)
            total -= weight * (right * np.log(other) + (1 - right) * np.log1p(-other))
        return total * reach

    def expected_variance(self, nodes: Floats, mass: Floats) -> Floats:
        """Posterior variance that is expected after each item.

        Parameters
        ----------
        nodes, mass : ndarray of shape (n_takers, n_nodes)
            The posteriors.

        Returns
        -------
        ndarray of shape (n_takers, n_items)
            Expected variances.
        """
        moments = np.zeros((3, len(nodes), len(self.items)))
        for node, weight in zip(nodes.T, mass.T, strict=True):
            right = self.items.probability(node) * weight[:, None]
            moments[0] += right
            moments[1] += right * node[:, None]
            moments[2] += right * (node**2)[:, None]
        whole = np.stack([mass.sum(axis=1), (mass * nodes).sum(axis=1), (mass * nodes**2).sum(axis=1)])
        rest = whole[:, :, None] - moments
        expected = moments[2] - moments[1] ** 2 / np.maximum(moments[0], 1e-300)
        return np.asarray(expected + rest[2] - rest[1] ** 2 / np.maximum(rest[0], 1e-300))

    def information_at(self, nodes: Floats) -> Floats:
        """Information of all items at each taker's nodes.

        Parameters
        ----------
        nodes : ndarray of shape (n_takers, n_nodes)
            Abilities.

        Returns
        -------
        ndarray of shape (n_takers, n_nodes, n_items)
            Information.
        """
        return np.stack([self.items.information(node) for node in nodes.T], axis=1)


def _bit_reversed(n: int) -> Floats:
    """Van der Corput's sequence: the bits of 0 .. n-1 behind the point, reversed."""
    value: Floats = np.zeros(n)
    scale, rest = 0.5, np.arange(n)
    while rest.any():
        value += scale * (rest & 1)
        rest >>= 1
        scale /= 2
    return value


def posterior(answers: Answers, theta: Floats, mean: float, scale: float) -> tuple[Floats, Floats]:
    """Represent each taker's posterior under N(mean, scale^2) by a few nodes around theta.

    Parameters
    ----------
    answers : Answers
        What the takers answered.
    theta : ndarray of shape (n_takers,)
        Estimates.
    mean, scale : float
        The prior.

    Returns
    -------
    pair of ndarray of shape (n_takers, n_nodes)
        Nodes, and their probabilities.
    """
    points, log_weights = normal_rule(N_NODES)
    width = 1 / np.sqrt(answers.slopes(theta).information + scale**-2)
    nodes = theta + width * points[:, None]
    log_mass = answers.log_likelihood(nodes) - (nodes - mean) ** 2 / (2 * scale**2)
    log_mass += log_weights[:, None]
    mass = np.exp(log_mass - log_mass.max(axis=0))
    return np.ascontiguousarray(nodes.T), np.ascontiguousarray((mass / mass.sum(axis=0)).T)


def choose(value: Floats, item: Ints | None, n_best: int, uniform: Floats) -> Ints:
    """Choose, for each taker, one of the best items.

    Parameters
    ----------
    value : ndarray of shape (n_takers, m)
        What the rule maximises; -inf for items that must not be asked. Of equal ones the first is taken.
    item : ndarray of int of shape (n_takers, m), optional
        Which items these are; column i is item i by default.
    n_best : int
        Among how many best items to draw.
    uniform : ndarray of shape (n_takers,)
        Uniform numbers for the draw.

    Returns
    -------
    ndarray of int of shape (n_takers,)
        Items; -1 where there is none to ask.
    """
    rows = np.arange(len(value))
    if n_best == 1:
        place = value.argmax(axis=1)
    else:
        n_best = min(n_best, value.shape[1])
        top = np.sort(np.argpartition(-value, n_best - 1, axis=1)[:, :n_best], axis=1)
        by_value = np.argsort(-np.take_along_axis(value, top, axis=1), axis=1, kind="stable")
        ranked = np.take_along_axis(top, by_value, axis=1)
        allowed = (np.take_along_axis(value, ranked, axis=1) > -np.inf).sum(axis=1)
        place = ranked[rows, (uniform * np.maximum(allowed, 1)).astype(np.int64)]
    chosen = place if item is None else item[rows, place]
    return np.where(value[rows, place] > -np.inf, chosen, -1)
