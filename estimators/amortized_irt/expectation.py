"""The E-step: what the answers say of every taker's ability, and what that says of the items.

Posteriors of ability are integrated on one uniform grid that all takers share, spaced by the narrowest of
them: the trapezoidal rule is off by about 2 exp(-2 pi^2 sd^2 / h^2) for a normal posterior, 1e-11 at the
spacing h = 0.85 sd, and sums over takers and items are matrix products.

With many items posteriors are narrow and the grid is long, but the curves are smooth: log P and what is made
of it are analytic within pi / a of the real line, so that polynomials through some 50 Chebyshev points give
them at all nodes of the grid nearly to rounding error (the ellipse of analyticity tells how many points).
Items are then worked out at those points alone; only takers meet the whole grid, without a sum over items.

Fixed nodes of the prior, which other programs take, are offered as ``quadrature="fixed"``. With hundreds of
items posteriors are narrower than the gaps between them.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.responses import Responses

Quadrature = Literal["adaptive", "fixed"]
Sums = Literal[0, 1, 2, 3, 4]

WIDTH = 7.0
"""Posterior standard deviations that the shared grid reaches beyond the outermost modes."""
SPAN = 7.65
"""Standard deviations of the narrowest posterior on which ``n_quadrature`` nodes of the grid lie."""
FIXED_RANGE = 6.0
"""Fixed nodes reach so many standard deviations of the prior."""
CUT = 1e-7
"""The grid is too short for a posterior with more than this share of its mass on the last node."""
TABLE = 1 << 20
"""Numbers of a table that are worked on at a time."""
NEGLIGIBLE = 1e-11
"""Error, relative to the curves, at which polynomials stand for them."""
FLATTEST = 1e-3
"""Polynomials stand for chances that stay so far from 0 (and 1): their inverses must not be huge."""
TINY = 1e-300


@dataclass(frozen=True)
class Latent:
    """Distribution of ability: N(mean of the taker's group, scale^2).

    Attributes
    ----------
    mean : ndarray of shape (n_groups,)
        Means.
    scale : float or ndarray of shape (n_groups,)
        Standard deviation within a group.
    group : ndarray of int of shape (n_takers,)
        Each taker's group.
    """

    mean: Floats
    scale: Any
    group: NDArray[np.int64]

    @classmethod
    def single(cls, n_takers: int, scale: float = 1.0) -> "Latent":
        """One group with mean 0."""
        return cls(np.zeros(1), float(scale), np.zeros(n_takers, dtype=np.int64))

    @property
    def prior_mean(self) -> Floats:
        """Each taker's prior mean, (n_takers,)."""
        return self.mean[self.group]

    @property
    def prior_scale(self) -> Floats:
        """Each taker's prior standard deviation, (n_takers,)."""
        return np.broadcast_to(np.asarray(self.scale, dtype=float), self.mean.shape)[self.group]

    @property
    def widest(self) -> float:
        """Largest prior standard deviation."""
        return float(np.max(self.scale))


@dataclass(frozen=True)
class Expectation:
    """What an E-step finds.

    Attributes
    ----------
    log_likelihood : ndarray of shape (n_takers,)
        Marginal log-likelihood of each taker's answers.
    mean, std : ndarray of shape (n_takers,)
        Of each taker's posterior of ability.
    gradient : ndarray of shape (n_items, p)
        Of the expected log-likelihood of the answers, takers by their weights. p = 1: in the difficulty;
        2: in slope a and intercept d of sigma(a theta + d); 3: guessing, too; 4: upper asymptote, too.
    curvature : ndarray of shape (n_items, p, p)
        Expected information about the same, positive semidefinite.
    """

    log_likelihood: Floats
    mean: Floats
    std: Floats
    gradient: Floats
    curvature: Floats


def expect(
    responses: Responses,
    items: Items,
    latent: Latent,
    *,
    n_parameters: Sums = 1,
    quadrature: Quadrature = "adaptive",
    n_quadrature: int = 9,
    start: Expectation | None = None,
) -> Expectation:
    """Integrate over ability.

    Parameters
    ----------
    responses : Responses
        Answers.
    items : Items
        Item parameters.
    latent : Latent
        Distribution of ability.
    n_parameters : {0, 1, 2, 3, 4}
        Item parameters that the gradient is in; 0 for the takers' posteriors alone.
    quadrature : {"adaptive", "fixed"}
        Nodes that follow the posteriors, or fixed ones.
    n_quadrature : int
        Nodes on the width of the narrowest posterior (9: exact to some 1e-11), or fixed nodes.
    start : Expectation, optional
        An E-step at parameters nearby, which tells where posteriors are.

    Returns
    -------
    Expectation
        Posteriors, and sums over takers.

    Warns
    -----
    ConvergenceWarning
        If fixed nodes lie further apart than posteriors are wide.
    """
    if quadrature == "fixed":
        return _at_fixed_nodes(responses, items, latent, n_parameters, n_quadrature)
    reach = FIXED_RANGE
    while True:
        grid = _shared_grid(responses, items, latent, start, n_quadrature=n_quadrature, reach=reach)
        found, cut = _on_grid(responses, items, latent, grid, n_parameters)
        if not cut or reach > 100 * FIXED_RANGE:
            return found
        start, reach = None, 2 * reach if start is None else reach


def _at_fixed_nodes(
    responses: Responses, items: Items, latent: Latent, n_parameters: int, n_nodes: int
) -> Expectation:
    reach = FIXED_RANGE * latent.widest
    grid = np.linspace(latent.mean.min() - reach, latent.mean.max() + reach, n_nodes)
    found, _ = _on_grid(responses, items, latent, grid, n_parameters)
    gap = float(grid[1] - grid[0])
    if found.std.min() < gap / 2:
        warnings.warn(
            f"quadrature='fixed': nodes are {gap:.3g} apart and the narrowest posterior has a standard "
            f"deviation of at most {gap / 2:.3g}; likelihood and latent_scale_ are wrong. Use 'adaptive'",
            ConvergenceWarning,
            stacklevel=3,
        )
    return found


# -- the grid ----------------------------------------------------------------------------------------------


def _shared_grid(
    responses: Responses,
    items: Items,
    latent: Latent,
    start: Expectation | None,
    *,
    n_quadrature: int = 9,
    reach: float = FIXED_RANGE,
) -> Floats:
    """Nodes that are dense enough for the narrowest posterior and wide enough for all."""
    if start is None:
        most = reach * latent.widest
        coarse = np.linspace(latent.mean.min() - most, latent.mean.max() + most, 49)
        level = _log_likelihood(responses, items, coarse)
        for rows in _parts(len(level), len(coarse)):
            level[rows] += _log_prior(latent, rows, coarse)
        modes = coarse[level.argmax(axis=1)]
        gap = coarse[1] - coarse[0]
        low, high = modes.min() - gap, modes.max() + gap
        wide = latent.widest
    else:
        low, high = float(start.mean.min()), float(start.mean.max())
        wide = min(float(start.std.max()) * 1.2, latent.widest)
    beyond = WIDTH * wide
    spacing = SPAN / n_quadrature * _narrowest(responses, items, latent)
    n_nodes = int(np.ceil((high - low + 2 * beyond) / spacing)) + 1
    return np.linspace(low - beyond, high + beyond, max(n_nodes, 2 * n_quadrature + 3))


def _narrowest(responses: Responses, items: Items, latent: Latent) -> float:
    """Least standard deviation that a posterior can have: an answer tells at most a^2 / 4."""
    total = responses.sum_seen(items.discrimination[:, None] ** 2 / 4)[:, 0]
    return float(1.0 / np.sqrt((total + 1.0 / latent.prior_scale**2).max()))


@dataclass(frozen=True)
class _Nodes:
    """Where posteriors, and where items, are worked out.

    Attributes
    ----------
    grid : ndarray of shape (n_nodes,)
        Abilities at which posteriors are.
    points : ndarray of shape (n_points,)
        Abilities at which items are.
    carry : ndarray of shape (n_nodes, n_points), optional
        Takes values at the points to the grid; None where the points are the grid.
    """

    grid: Floats
    points: Floats
    carry: Floats | None

    @classmethod
    def of(cls, grid: Floats, items: Items) -> "_Nodes":
        """Take Chebyshev points where they are fewer than the nodes."""
        middle, half = (grid[-1] + grid[0]) / 2, (grid[-1] - grid[0]) / 2
        n_points = _n_chebyshev(items, half)
        if n_points is None or n_points > 0.8 * len(grid):
            return cls(grid, grid, None)
        order = np.arange(n_points)
        angle = (order + 0.5) * np.pi / n_points
        inside = np.arccos(np.clip((grid - middle) / half, -1, 1))
        back = np.cos(np.outer(order, angle)) * 2 / n_points
        back[0] /= 2
        return cls(grid, middle + half * np.cos(angle), np.cos(np.outer(inside, order)) @ back)

    def to_grid(self, values: Floats) -> Floats:
        """Values of smooth functions at the grid, from those at the points, (n, n_nodes)."""
        return values if self.carry is None else values @ self.carry.T

    def to_points(self, mass: Floats) -> Floats:
        """Weights of the points that give smooth functions the sums that ``mass`` on the grid gives them."""
        return mass if self.carry is None else mass @ self.carry


def _n_chebyshev(items: Items, half: float) -> int | None:
    """Points that polynomials need to be the curves on an interval; None if they never are."""
    if not _is_logistic(items):
        close = items.guessing.min() < FLATTEST
        if close or ((items.upper < 1) & (items.upper > 1 - FLATTEST)).any():
            return None
    pole = np.pi / (items.discrimination.max() * half)
    return 8 + int(np.ceil(-np.log(NEGLIGIBLE) / np.log(pole + np.sqrt(1 + pole**2))))


def _parts(n_rows: int, n_columns: int) -> list[slice]:
    """Parts of the rows of a table that is too large to be worked on at once."""
    size = max(1, TABLE // n_columns)
    return [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]


# -- answers -----------------------------------------------------------------------------------------------


def _is_logistic(items: Items) -> bool:
    return not items.guessing.any() and bool((items.upper == 1).all())


def _softplus(x: Floats) -> Floats:
    found = np.abs(x)
    np.negative(found, out=found)
    np.log1p(np.exp(found, out=found), out=found)
    found += np.maximum(x, 0)
    return found


def _log_chances(items: Items, points: Floats) -> tuple[Floats, Floats]:
    """Log odds of a right answer and log chance of a wrong one, (n_items, n_points) each."""
    z = items.logit(points).T
    total = _softplus(z)
    with np.errstate(divide="ignore"):
        low, high = np.log(items.guessing)[:, None], np.log(items.upper)[:, None]
        left, rest = np.log1p(-items.guessing)[:, None], np.log1p(-items.upper)[:, None]
    right = np.logaddexp(low, high + z)
    wrong = np.logaddexp(left, rest + z) if np.isfinite(rest).any() else left
    return right - wrong, wrong - total


def _log_likelihood(responses: Responses, items: Items, points: Floats) -> Floats:
    """Log-likelihood of every taker at every point, (n_takers, n_points)."""
    if not _is_logistic(items):
        total = np.zeros((responses.n_takers, len(points)))
        for columns in _parts(len(items), len(points)):
            odds, wrong = _log_chances(items.take(columns), points)
            total += responses.sum_right(odds, columns)
            total += responses.sum_seen(wrong, columns)
        return total
    a = items.discrimination
    scores = a[0] * responses.right_by_taker if (a == a[0]).all() else responses.right @ a
    total = np.outer(scores, points)
    total += np.asarray(responses.right @ items.intercept)[:, None]
    if responses.seen is None:
        kinds, _, count = _kinds(items)
        for columns in _parts(len(kinds), len(points)):
            total -= count[columns] @ _softplus(kinds.take(columns).logit(points).T)
        return total
    for columns in _parts(len(items), len(points)):
        total -= responses.sum_seen(_softplus(items.take(columns).logit(points).T), columns)
    return total


def _kinds(items: Items) -> tuple[Items, NDArray[np.int64], Floats]:
    """Distinct logistic items, which of them each is, and how many of each there are.

    Under the Rasch model all items of a complete table with one number of right answers are one kind.
    """
    if (items.discrimination != items.discrimination[0]).any():
        return items, np.arange(len(items)), np.ones(len(items))
    _, first, code, count = np.unique(
        items.difficulty, return_index=True, return_inverse=True, return_counts=True
    )
    return items.take(first), code, count.astype(float)


def _log_prior(latent: Latent, rows: slice, grid: Floats) -> Floats:
    """Log density of the abilities of some takers at the grid; one row where all have the same."""
    group, n_groups = latent.group[rows], len(latent.mean)
    own = n_groups >= len(group)  # groups as many as takers: nothing is shared
    mean = latent.mean[group] if own else latent.mean
    scale = np.broadcast_to(np.asarray(latent.scale, dtype=float), latent.mean.shape)
    scale = (scale[group] if own else scale)[:, None]
    z = (grid - mean[:, None]) / scale
    density = -0.5 * z * z - np.log(scale * np.sqrt(2 * np.pi))
    return density if own or n_groups == 1 else density[group]


def _on_grid(
    responses: Responses, items: Items, latent: Latent, grid: Floats, n_parameters: int
) -> tuple[Expectation, bool]:
    """E-step on a grid, and whether the grid ends before a posterior does."""
    nodes = _Nodes.of(grid, items)
    table = _log_likelihood(responses, items, nodes.points)
    n = responses.n_takers
    log_likelihood, mean, std = np.empty(n), np.empty(n), np.empty(n)
    cut = False
    for rows in _parts(n, len(grid)):
        mass = nodes.to_grid(table[rows]) + _log_prior(latent, rows, grid)
        top = mass.max(axis=1)
        mass -= top[:, None]
        total = np.exp(mass, out=mass).sum(axis=1)
        mass /= total[:, None]
        log_likelihood[rows] = top + np.log(total) + np.log(grid[1] - grid[0])
        mean[rows] = mass @ grid
        std[rows] = np.sqrt(np.einsum("nq,nq->n", mass, (grid - mean[rows, None]) ** 2))
        cut = cut or float(mass[:, [0, -1]].max()) > CUT
        mass *= responses.weight[rows, None]
        table[rows] = nodes.to_points(mass)  # what the answers said of these takers is no longer needed
    if n_parameters == 0:
        n = len(items)
        return Expectation(log_likelihood, mean, std, np.empty((n, 0)), np.empty((n, 0, 0))), cut
    if n_parameters <= 2 and _is_logistic(items):
        sums = _logistic_sums(responses, items, nodes.points, table, mean, n_parameters)
    else:
        sums = _general_sums(responses, items, nodes.points, table, n_parameters)
    return Expectation(log_likelihood, mean, std, *sums), cut


def _logistic_sums(
    responses: Responses, items: Items, points: Floats, weighted: Floats, mean: Floats, n_parameters: int
) -> tuple[Floats, Floats]:
    """Gradient and information of logistic items: answers enter through their sums with powers of ability."""
    powers = np.stack([points * points, points, np.ones_like(points)], axis=1)
    used = powers[:, 1:] if n_parameters == 2 else powers[:, 2:]
    right = responses.right_by_item[:, None]
    if n_parameters == 2:
        right = np.column_stack([responses.right.T @ (responses.weight * mean), right])
    if responses.seen is None:
        kinds, code, _ = _kinds(items)
    else:
        kinds, code = items, np.arange(len(items))
    expected = np.empty((len(kinds), n_parameters))
    moments = np.empty((len(kinds), 3 if n_parameters == 2 else 1))
    for columns in _parts(len(kinds), len(points)):
        curve = expit(kinds.take(columns).logit(points).T)
        seen = responses.spread_seen(weighted, columns) * curve
        expected[columns] = seen @ used
        seen *= np.subtract(1, curve, out=curve)
        moments[columns] = seen @ (powers if n_parameters == 2 else used)
    gradient = right - expected[code]
    if n_parameters == 2:
        return gradient, moments[code][:, [0, 1, 1, 2]].reshape(-1, 2, 2)
    a = items.discrimination[:, None]
    return -a * gradient, (a * a * moments[code])[:, :, None]


def _general_sums(
    responses: Responses, items: Items, points: Floats, weighted: Floats, n_parameters: int
) -> tuple[Floats, Floats]:
    """Gradient and information of items of any form."""
    gradient = np.empty((len(items), n_parameters))
    curvature = np.empty((len(items), n_parameters, n_parameters))
    for columns in _parts(len(items), 4 * len(points)):
        seen = responses.spread_seen(weighted, columns)
        right = responses.spread_right(weighted, columns)
        chosen = items.take(columns)
        gradient[columns], curvature[columns] = _item_sums(chosen, points, right, seen, n_parameters)
    return gradient, curvature


def _item_sums(
    items: Items, points: Floats, right: Floats, seen: Floats, n_parameters: int
) -> tuple[Floats, Floats]:
    """Gradient and information from expected counts at the points, (n_items, n_points) each.

    Derivatives of P over P (1 - P) are written so that nothing cancels where P is close to 0 or 1.
    """
    z = items.logit(points).T
    up, down = expit(z), expit(-z)
    low, high = items.guessing[:, None], items.upper[:, None]
    gain = high - low
    chance, rest = low + gain * up, (1 - high) + gain * down
    from_low, from_high = up / np.maximum(chance, TINY), gain * down / np.maximum(rest, TINY)
    slope, scaled = gain * up * down, from_low * from_high
    parts = [slope * points, slope, down, up][:n_parameters]
    if n_parameters == 1:
        parts = [-items.discrimination[:, None] * slope]
        ratios = [-items.discrimination[:, None] * scaled]
    else:
        ratios = [scaled * points, scaled]
        if n_parameters > 2:
            ratios.append(from_high / (gain * np.maximum(chance, TINY)))
        if n_parameters > 3:
            ratios.append(from_low / np.maximum(rest, TINY))
    residual = right - seen * chance
    gradient = np.stack([np.einsum("iq,iq->i", residual, ratio) for ratio in ratios], axis=1)
    curvature = np.empty((len(items), n_parameters, n_parameters))
    for k, part in enumerate(parts):
        weighted = seen * part
        for j in range(k + 1):
            curvature[:, k, j] = curvature[:, j, k] = np.einsum("iq,iq->i", weighted, ratios[j])
    return gradient, curvature
