"""Marginal maximum likelihood with abilities of several dimensions: E-step by product rules, and EM.

P(right | theta) = c + (1 - c) sigma(alpha . theta + d), theta ~ N(0, I).
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy import sparse
from scipy.special import expit, logsumexp
from sklearn.exceptions import ConvergenceWarning

from seedbed.estimators.amortized_irt.items import Floats
from seedbed.estimators.amortized_irt.responses import Responses

FIXED_RANGE = 5.0
"""Fixed nodes reach so far in each dimension."""
TABLE = 1 << 21
"""Numbers of a table of takers by nodes by items that are worked on at a time."""
MOST_STEPS = 50
STEP_TOLERANCE = 1e-6
LONGEST_STEP = 1.0
"""A slope, its logarithm, an intercept or a logit of guessing moves at most so far at a time."""
SMALLEST = 1e-12


@dataclass(frozen=True)
class Planes:
    """Items of a model with several dimensions.

    Attributes
    ----------
    slope : ndarray of shape (n_items, n_dimensions)
        alpha.
    intercept : ndarray of shape (n_items,)
        d.
    guessing : ndarray of shape (n_items,), optional
        c; None where nothing can be guessed.
    """

    slope: Floats
    intercept: Floats
    guessing: Floats | None = None

    @property
    def n_dimensions(self) -> int:
        """Dimensions of ability."""
        return int(self.slope.shape[1])

    def probability(self, theta: Floats) -> Floats:
        """Chances of right answers, (n_takers, n_items)."""
        curve = expit(theta @ self.slope.T + self.intercept)
        return curve if self.guessing is None else self.guessing + (1 - self.guessing) * curve


@dataclass(frozen=True)
class Rule:
    """How to integrate over ability.

    Attributes
    ----------
    quadrature : {"adaptive", "fixed"}
        Nodes around every taker's posterior mode, or the same for all.
    nodes : ndarray of shape (n_nodes, n_dimensions)
        For a standard normal law.
    log_weights : ndarray of shape (n_nodes,)
        Logs of weights that sum to one.
    """

    quadrature: Literal["adaptive", "fixed"]
    nodes: Floats
    log_weights: Floats

    @classmethod
    def product(
        cls, quadrature: Literal["adaptive", "fixed"], n_quadrature: int, n_dimensions: int
    ) -> "Rule":
        """Make a rule of ``n_quadrature ** n_dimensions`` nodes."""
        if quadrature == "adaptive":
            x, w = hermegauss(n_quadrature)
        else:
            x = np.linspace(-FIXED_RANGE, FIXED_RANGE, n_quadrature)
            w = np.exp(-0.5 * x * x)
        logs = np.log(w / w.sum())
        nodes = np.array(list(itertools.product(x, repeat=n_dimensions)))
        log_weights = np.array(list(itertools.product(logs, repeat=n_dimensions))).sum(axis=1)
        return cls(quadrature, nodes, log_weights)

    @property
    def gap(self) -> float:
        """Distance of neighbouring fixed nodes."""
        values = np.unique(self.nodes[:, 0])
        return float(values[1] - values[0])


@dataclass(frozen=True)
class Posteriors:
    """What an E-step finds.

    Attributes
    ----------
    log_likelihood : ndarray of shape (n_takers,)
        Marginal log-likelihood of each taker's answers.
    mean : ndarray of shape (n_takers, n_dimensions)
        Posterior means.
    covariance : ndarray of shape (n_takers, n_dimensions, n_dimensions)
        Posterior covariances.
    gradient : ndarray of shape (n_items, p)
        Of the expected log-likelihood in slopes, intercept and, with guessing, the logit of c.
    curvature : ndarray of shape (n_items, p, p)
        Expected information about the same.
    products : ndarray of shape (n_items, p, p), optional
        Sums over takers of the outer products of their expected scores.
    """

    log_likelihood: Floats
    mean: Floats
    covariance: Floats
    gradient: Floats
    curvature: Floats
    products: Floats | None = None


def integrate(
    responses: Responses, planes: Planes, rule: Rule, *, start: Floats | None = None, products: bool = False
) -> Posteriors:
    """Integrate over ability.

    Parameters
    ----------
    responses : Responses
        Answers.
    planes : Planes
        Items.
    rule : Rule
        Nodes.
    start : ndarray of shape (n_takers, n_dimensions), optional
        Guesses of the posterior modes.
    products : bool
        Whether to sum the outer products of the takers' scores.

    Returns
    -------
    Posteriors
        Posteriors, and sums over takers.

    Warns
    -----
    ConvergenceWarning
        If fixed nodes lie further apart than posteriors are wide.
    """
    if rule.quadrature == "fixed" and not products:
        return _at_shared_nodes(responses, planes, rule)
    n, n_items, dims = responses.n_takers, responses.n_items, planes.n_dimensions
    p = dims + 1 + (planes.guessing is not None)
    log_likelihood, mean = np.empty(n), np.empty((n, dims))
    covariance = np.empty((n, dims, dims))
    gradient, curvature = np.zeros((n_items, p)), np.zeros((n_items, p, p))
    squares = np.zeros((n_items, p, p)) if products else None
    modes = np.zeros((n, dims)) if start is None else start
    for rows, right, seen in _blocks(responses, len(rule.nodes)):
        if rule.quadrature == "adaptive":
            mode, factor = _modes(planes, right, seen, modes[rows])
            theta = mode[:, None] + np.einsum("bij,qj->bqi", factor, rule.nodes)
            spread = np.log(np.abs(np.diagonal(factor, axis1=1, axis2=2))).sum(axis=1)
            density = rule.log_weights + 0.5 * ((rule.nodes**2).sum(axis=1) - (theta**2).sum(axis=2))
            density += spread[:, None]
        else:
            theta = np.broadcast_to(rule.nodes, (len(right), *rule.nodes.shape))
            density = np.broadcast_to(rule.log_weights, theta.shape[:2]).copy()
        cells = _Cells(planes, theta, right, seen)
        density += cells.log_likelihood()
        log_likelihood[rows] = logsumexp(density, axis=1)
        mass = np.exp(density - log_likelihood[rows][:, None])
        mean[rows] = np.einsum("bq,bqi->bi", mass, theta)
        away = theta - mean[rows][:, None]
        covariance[rows] = np.einsum("bq,bqi,bqj->bij", mass, away, away)
        if rule.quadrature == "adaptive" and len(rule.nodes) == 1:  # Laplace's method
            covariance[rows] = factor @ factor.transpose(0, 2, 1)
        cells.add(mass, responses.weight[rows], gradient, curvature, squares)
    return Posteriors(log_likelihood, mean, covariance, gradient, curvature, squares)


def _at_shared_nodes(responses: Responses, planes: Planes, rule: Rule) -> Posteriors:
    """Nodes that all takers share: sums over takers and over items are matrix products."""
    nodes, dims = rule.nodes, planes.n_dimensions
    chance = np.clip(planes.probability(nodes), SMALLEST, 1 - SMALLEST).T  # (items, nodes)
    wrong = np.log1p(-chance)
    density = np.asarray(responses.right @ (np.log(chance) - wrong)) + responses.sum_seen(wrong)
    density += rule.log_weights
    log_likelihood = logsumexp(density, axis=1)
    mass = np.exp(density - log_likelihood[:, None])
    mean = mass @ nodes
    second = (mass @ (nodes[:, :, None] * nodes[:, None, :]).reshape(len(nodes), -1)).reshape(-1, dims, dims)
    covariance = second - mean[:, :, None] * mean[:, None, :]
    _warn_of_gaps(rule, covariance)
    weighted = mass * responses.weight[:, None]
    right, seen = np.asarray(responses.right.T @ weighted), responses.spread_seen(weighted)
    curve = expit(planes.slope @ nodes.T + planes.intercept[:, None])
    low = np.zeros((len(curve), 1)) if planes.guessing is None else planes.guessing[:, None]
    # Derivatives of the chance over its variance come to these shares of the residual.
    share = curve / chance
    parts = [share * x for x in nodes.T] + [share]
    spread = (1 - low) * curve * (1 - curve) * share * seen
    powers = np.concatenate([nodes, np.ones((len(nodes), 1))], axis=1)
    if planes.guessing is not None:
        parts.append(low / chance)
    residual = right - seen * chance
    gradient = np.stack([(residual * part).sum(axis=1) for part in parts], axis=1)
    curvature = np.zeros((len(curve), len(parts), len(parts)))
    pairs = (powers[:, :, None] * powers[:, None, :]).reshape(len(nodes), -1)
    curvature[:, : dims + 1, : dims + 1] = (spread @ pairs).reshape(-1, dims + 1, dims + 1)
    if planes.guessing is not None:
        cross = (low / chance * (1 - low) * curve * (1 - curve) * seen) @ powers
        curvature[:, :-1, -1] = curvature[:, -1, :-1] = cross
        curvature[:, -1, -1] = (low**2 * (1 - low) * (1 - curve) / chance * seen).sum(axis=1)
    return Posteriors(log_likelihood, mean, covariance, gradient, curvature)


def _warn_of_gaps(rule: Rule, covariance: Floats) -> None:
    narrowest = float(np.sqrt(np.linalg.eigvalsh(covariance)[:, 0].min()))
    if narrowest < rule.gap / 2:
        warnings.warn(
            f"quadrature='fixed': nodes are {rule.gap:.3g} apart and the narrowest posterior has a standard "
            f"deviation of about {narrowest:.2g}; the likelihood is wrong. Use 'adaptive'",
            ConvergenceWarning,
            stacklevel=3,
        )


def _blocks(responses: Responses, n_nodes: int) -> Iterator[tuple[slice, Floats, Floats | None]]:
    """Rows of a few takers at a time, dense."""
    size = max(1, TABLE // (n_nodes * responses.n_items))
    for first in range(0, responses.n_takers, size):
        rows = slice(first, min(first + size, responses.n_takers))
        right, seen = responses.right[rows], None if responses.seen is None else responses.seen[rows]
        if sparse.issparse(right):
            right = right.toarray()
        if seen is not None and sparse.issparse(seen):
            seen = seen.toarray()
        yield rows, right, seen


def _scores(planes: Planes, curve: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Derivative of each cell's log-likelihood in its logit, and the information about it."""
    if planes.guessing is None:
        return right - curve, curve * (1 - curve)
    low = planes.guessing
    chance = low + (1 - low) * curve
    share = curve / chance
    return (right - chance) * share, (1 - low) * curve * (1 - curve) * share


def _modes(planes: Planes, right: Floats, seen: Floats | None, start: Floats) -> tuple[Floats, Floats]:
    """Posterior modes by Fisher scoring, and roots of the inverse information there."""
    dims = planes.n_dimensions
    outer = np.einsum("ij,ik->ijk", planes.slope, planes.slope).reshape(len(planes.slope), -1)
    mode, eye = start.copy(), np.eye(dims)
    for _ in range(MOST_STEPS):
        pull, spread = _scores(planes, expit(mode @ planes.slope.T + planes.intercept), right)
        if seen is not None:
            pull, spread = pull * seen, spread * seen
        gradient = pull @ planes.slope - mode
        information = (spread @ outer).reshape(-1, dims, dims) + eye
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        length = np.linalg.norm(step, axis=1, keepdims=True)
        step /= np.maximum(length / (2 * LONGEST_STEP), 1.0)
        mode += step
        if np.abs(step).max() < STEP_TOLERANCE:
            break
    root = np.linalg.cholesky(information)
    return mode, np.linalg.inv(root).transpose(0, 2, 1)


class _Cells:
    """Cells of some takers, each taker at several abilities."""

    def __init__(self, planes: Planes, theta: Floats, right: Floats, seen: Floats | None) -> None:
        self.planes, self.theta, self.right, self.seen = planes, theta, right, seen
        self.z = theta @ planes.slope.T + planes.intercept  # (takers, nodes, items)
        self.curve = expit(self.z)

    def log_likelihood(self) -> Floats:
        """Of every taker's answers at every node, (takers, nodes)."""
        z, low = self.z, self.planes.guessing
        if low is None:
            scores = self.right @ self.planes.slope
            total = np.einsum("bi,bqi->bq", scores, self.theta)
            total += (self.right @ self.planes.intercept)[:, None]
            wrong = -(np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))))
            if self.seen is None:
                return np.asarray(total + wrong.sum(axis=2))
            return np.asarray(total + np.einsum("bqi,bi->bq", wrong, self.seen))
        chance = np.clip(low + (1 - low) * self.curve, SMALLEST, 1 - SMALLEST)
        cells = np.log(np.where(self.right[:, None] > 0, chance, 1 - chance))
        return cells.sum(axis=2) if self.seen is None else np.einsum("bqi,bi->bq", cells, self.seen)

    def add(
        self,
        mass: Floats,
        weight: Floats,
        gradient: Floats,
        curvature: Floats,
        products: Floats | None,
    ) -> None:
        """Add what these takers say of the items."""
        n_items, dims = len(self.z[0, 0]), self.planes.n_dimensions
        pull, spread = _scores(self.planes, self.curve, self.right[:, None])
        each = mass[..., None] if self.seen is None else mass[..., None] * self.seen[:, None]
        powers = np.concatenate([self.theta, np.ones((*self.theta.shape[:2], 1))], axis=2)
        weighted = (powers * weight[:, None, None]).reshape(-1, dims + 1)
        pull, spread = pull * each, spread * each
        gradient[:, : dims + 1] += pull.reshape(-1, n_items).T @ weighted
        pairs = np.einsum("ri,rj->rij", weighted, powers.reshape(-1, dims + 1)).reshape(len(weighted), -1)
        information = spread.reshape(-1, n_items).T @ pairs
        curvature[:, : dims + 1, : dims + 1] += information.reshape(n_items, dims + 1, dims + 1)
        extra = None
        if self.planes.guessing is not None:
            extra = self._add_guessing(each, weighted, weight, gradient, curvature)
        if products is not None:
            scores = np.einsum("bqi,bqk->bik", pull, powers)
            if extra is not None:
                scores = np.concatenate([scores, extra[..., None]], axis=2)
            products += np.einsum("b,bik,bil->ikl", weight, scores, scores)

    def _add_guessing(
        self, each: Floats, weighted: Floats, weight: Floats, gradient: Floats, curvature: Floats
    ) -> Floats:
        """Add the part of the logit of c; return the takers' scores in it."""
        low = self.planes.guessing
        assert low is not None
        curve = self.curve
        chance = low + (1 - low) * curve
        share = low / chance * each
        scores = ((self.right[:, None] - chance) * share).sum(axis=1)
        gradient[:, -1] += weight @ scores
        flat = (share * (1 - curve)).reshape(-1, len(low))
        curvature[:, -1, -1] += low * (1 - low) * (weighted[:, -1] @ flat)
        cross = (1 - low)[:, None] * ((flat * curve.reshape(-1, len(low))).T @ weighted)
        curvature[:, :-1, -1] += cross
        curvature[:, -1, :-1] += cross
        return np.asarray(scores)


# -- M-step ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """M-step: one damped Newton step for each item, priors included.

    Attributes
    ----------
    positive : bool
        Whether slopes are positive: the step is taken in their logarithms.
    intercept_std : ndarray of shape (n_items,)
        Standard deviations of the normal priors of the intercepts; infinite where there is none.
    slope_prior : tuple of ndarray
        Mean and standard deviation of log a for each item; infinite where there is none.
    guessing_prior : tuple of float, optional
        Beta density of c.
    """

    positive: bool
    intercept_std: Floats
    slope_prior: tuple[Floats, Floats]
    guessing_prior: tuple[float, float] | None = None

    @property
    def holds_scale(self) -> bool:
        """Whether a prior of slopes or intercepts says something of the scale of ability."""
        return bool(np.isfinite(self.intercept_std).any() or np.isfinite(self.slope_prior[1]).any())

    def discrimination(self, planes: Planes) -> Floats:
        """a: the sum of positive slopes, or the length of free ones."""
        if self.positive:
            return np.asarray(planes.slope.sum(axis=1))
        return np.asarray(np.linalg.norm(planes.slope, axis=1))

    def log_prior(self, planes: Planes) -> float:
        """Log density of the priors, up to a constant."""
        center, spread = self.slope_prior
        z = (np.log(np.maximum(self.discrimination(planes), SMALLEST)) - center) / spread
        total = -0.5 * float(z @ z) - 0.5 * float(((planes.intercept / self.intercept_std) ** 2).sum())
        if self.guessing_prior is not None and planes.guessing is not None:
            inside = np.clip(planes.guessing, SMALLEST, 1 - SMALLEST)
            first, second = self.guessing_prior
            total += float(((first - 1) * np.log(inside) + (second - 1) * np.log1p(-inside)).sum())
        return total

    def update(self, planes: Planes, found: Posteriors) -> Planes:
        """Take the step."""
        dims = planes.n_dimensions
        move = self.move(planes, found)
        if self.positive:
            slope = np.clip(planes.slope * np.exp(move[:, :dims]), 1e-4, 1e3)
        else:
            slope = planes.slope + move[:, :dims]
        guessing = planes.guessing
        if guessing is not None:
            inside = np.clip(guessing, 1e-9, 1 - 1e-9)
            guessing = 1 / (1 + (1 - inside) / inside * np.exp(-move[:, -1]))
        return Planes(slope, planes.intercept + move[:, dims], guessing)

    def scores(self, planes: Planes, found: Posteriors) -> tuple[Floats, Floats]:
        """Gradient and information in the parameters that the step is taken in, priors included."""
        dims = planes.n_dimensions
        jacobian = np.ones_like(found.gradient)
        if self.positive:
            jacobian[:, :dims] = planes.slope
        gradient = found.gradient * jacobian
        curvature = found.curvature * jacobian[:, :, None] * jacobian[:, None, :]
        a = np.maximum(self.discrimination(planes), SMALLEST)
        direction = planes.slope / a[:, None] ** (1 if self.positive else 2)  # of log a
        center, spread = self.slope_prior
        gradient[:, :dims] -= direction * ((np.log(a) - center) / spread**2)[:, None]
        curvature[:, :dims, :dims] += np.einsum("ij,ik,i->ijk", direction, direction, spread**-2.0)
        gradient[:, dims] -= planes.intercept / self.intercept_std**2
        curvature[:, dims, dims] += self.intercept_std**-2.0
        if self.guessing_prior is not None and planes.guessing is not None:
            first, second = self.guessing_prior[0] - 1, self.guessing_prior[1] - 1
            c = planes.guessing
            gradient[:, -1] += first * (1 - c) - second * c
            curvature[:, -1, -1] += np.maximum((first + second) * c * (1 - c), 1e-6)
        diagonal = np.arange(gradient.shape[1])
        curvature[:, diagonal, diagonal] += 1e-8
        return gradient, curvature

    def move(self, planes: Planes, found: Posteriors) -> Floats:
        """Newton's step, shortened where it is long."""
        gradient, curvature = self.scores(planes, found)
        diagonal = np.arange(gradient.shape[1])
        # A slope or chance near zero hardly counts: its own long way must not shorten the others'.
        held = np.maximum(curvature[:, diagonal, diagonal], np.abs(gradient) / LONGEST_STEP)
        curvature[:, diagonal, diagonal] = held
        move = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        shortened = np.abs(move).max(axis=1, keepdims=True) / LONGEST_STEP
        return np.asarray(move / np.maximum(shortened, 1.0))


# -- the loop ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedPlanes:
    """What EM has found.

    Attributes
    ----------
    planes : Planes
        Items.
    posteriors : Posteriors
        E-step at them.
    log_likelihood : float
        Marginal log-likelihood, takers by their weights, without priors.
    n_iter, converged : int, bool
        Iterations, and whether they sufficed.
    history : list of float
        Log-likelihood plus log prior after each.
    """

    planes: Planes
    posteriors: Posteriors
    log_likelihood: float
    n_iter: int
    converged: bool
    history: list[float]


def run_em(
    responses: Responses,
    planes: Planes,
    step: Step,
    rule: Rule,
    *,
    max_iter: int,
    tol: float,
    report: Callable[[int, float], None] | None = None,
) -> FittedPlanes:
    """Maximise the marginal likelihood.

    After each M-step the mean and the spread of ability are estimated and taken out again by moving the
    items: parameter-expanded EM. Pairs of iterations are extrapolated (SQUAREM), and kept where the value
    grows.

    Parameters
    ----------
    responses : Responses
        Answers.
    planes : Planes
        To begin with.
    step : Step
        M-step.
    rule : Rule
        Nodes.
    max_iter : int
        Most iterations.
    tol : float
        Relative gain of the value at which to stop.
    report : callable, optional
        Told the iteration and the value.

    Returns
    -------
    FittedPlanes
        The maximum.
    """

    def at(items: Planes, start: Floats | None) -> "_State":
        found = integrate(responses, items, rule, start=start)
        return _State(items, found, float(responses.weight @ found.log_likelihood) + step.log_prior(items))

    def advance(state: "_State") -> "_State":
        updated = step.update(state.planes, state.found)
        after = at(_rescaled(updated, state.found, responses.weight, step), state.found.mean)
        if step.holds_scale:  # to move the scale is to leave the priors' maximum
            after = max(after, at(updated, state.found.mean), key=lambda one: one.value)
        return _uphill(state, after, at, step)

    state = at(planes, None)
    history, converged, n_iter = [state.value], False, 0
    while n_iter < max_iter and not converged:
        before = state
        state = advance(before)
        n_iter += 1
        if n_iter < max_iter:
            second = advance(state)
            n_iter += 1
            state = _extrapolate(before, state, second, at, step)
        history.append(state.value)
        if report is not None:
            report(n_iter, state.value)
        converged = state.value - before.value <= tol * (abs(before.value) + tol)
    likelihood = float(responses.weight @ state.found.log_likelihood)
    return FittedPlanes(state.planes, state.found, likelihood, n_iter, converged, history)


@dataclass(frozen=True)
class _State:
    planes: Planes
    found: Posteriors
    value: float


def moments(found: Posteriors, weight: Floats) -> tuple[Floats, Floats]:
    """Mean and covariance of ability over the takers' posteriors."""
    mean = np.average(found.mean, axis=0, weights=weight)
    away = found.mean - mean
    spread = np.einsum("n,nij->ij", weight, found.covariance + away[:, :, None] * away[:, None, :])
    return mean, spread / weight.sum()


def _rescaled(planes: Planes, found: Posteriors, weight: Floats, step: Step) -> Planes:
    """Move the items to the scale on which ability has mean 0 and unit spread."""
    mean, covariance = moments(found, weight)
    if step.positive:
        root = np.diag(np.sqrt(np.diagonal(covariance)))
    else:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, SMALLEST)) @ vectors.T
    return replace(planes, slope=planes.slope @ root, intercept=planes.intercept + planes.slope @ mean)


def _pack(planes: Planes, step: Step) -> Floats:
    slope = np.log(planes.slope) if step.positive else planes.slope
    parts = [slope.ravel(), planes.intercept]
    if planes.guessing is not None:
        inside = np.clip(planes.guessing, 1e-9, 1 - 1e-9)
        parts.append(np.log(inside / (1 - inside)))
    return np.concatenate(parts)


def _unpack(vector: Floats, planes: Planes, step: Step) -> Planes:
    n, dims = planes.slope.shape
    slope = vector[: n * dims].reshape(n, dims)
    if step.positive:
        slope = np.exp(np.clip(slope, -9.2, 6.9))
    guessing = None if planes.guessing is None else expit(vector[n * (dims + 1) :])
    return Planes(slope, vector[n * dims : n * (dims + 1)], guessing)


def _uphill(before: _State, after: _State, at: Callable[..., _State], step: Step) -> _State:
    """Halve a step that lost value: one Newton step is usually uphill, not always."""
    slack = 1e-9 * (1 + abs(before.value))
    old, new = _pack(before.planes, step), _pack(after.planes, step)
    share = 1.0
    while after.value < before.value - slack and share > 1e-3:
        share /= 2
        after = at(_unpack(old + share * (new - old), before.planes, step), before.found.mean)
    return after if after.value >= before.value - slack else before


def _extrapolate(
    before: _State, first: _State, second: _State, at: Callable[..., _State], step: Step
) -> _State:
    """SQUAREM's step from two of EM, or the second of them where that is better."""
    x0, x1, x2 = (_pack(state.planes, step) for state in (before, first, second))
    r, v = x1 - x0, (x2 - x1) - (x1 - x0)
    size = float(np.linalg.norm(v))
    if size < SMALLEST:
        return second
    alpha = -float(np.linalg.norm(r)) / size
    if alpha >= -1.0:
        return second
    jump = x0 - 2 * alpha * r + alpha**2 * v
    if not np.isfinite(jump).all() or np.abs(jump - x2).max() > 5 * LONGEST_STEP:
        return second
    ahead = at(_unpack(jump, second.planes, step), second.found.mean)
    return ahead if ahead.value > second.value else second


def distinct(responses: Responses) -> Responses:
    """Join takers with the same answers to one that counts for all of them.

    Parameters
    ----------
    responses : Responses
        Answers.

    Returns
    -------
    Responses
        The same likelihood with fewer rows, where at most half of the rows differ; else what was given.
    """
    if responses.is_sparse:
        return responses
    parts = [responses.right] if responses.seen is None else [responses.right, responses.seen]
    bits = np.packbits(np.concatenate(parts, axis=1).astype(bool), axis=1)
    _, first, code = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    if 2 * len(first) > responses.n_takers:
        return responses
    return responses.take(first).weighted(
        np.asarray(np.bincount(code.ravel(), responses.weight), dtype=float)
    )
