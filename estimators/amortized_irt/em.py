"""Marginal maximum likelihood by EM: the loop, and the M-steps of the classic item models."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from seedbed.estimators.amortized_irt.expectation import Expectation, Latent, Quadrature, expect
from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.responses import Responses

__all__ = [
    "Expectation", "Fitted", "FreeStep", "ItemStep", "Latent", "LatentStep", "Quadrature", "expect", "run_em",
]  # fmt: skip

LONGEST_STEP = 1.0
"""A difficulty, log discrimination or logit of guessing moves at most so far at a time."""
SMALLEST_SCALE = 1e-3
"""Least spread of abilities: answers that show none would take it to 0."""
FARTHEST = 40.0
"""Difficulties of items without a slope of their own are kept within so many logits."""
FLATTEST, STEEPEST = 1e-3, 1e3
"""Ends of discriminations. Items that tell nothing keep their intercepts, whatever that makes of b."""


@runtime_checkable
class ItemStep(Protocol):
    """M-step of the items, with what belongs to it."""

    def update(self, items: Items, expectation: Expectation) -> Items:
        """Return better items."""

    def log_prior(self, items: Items) -> float:
        """Log prior density of the items, up to a constant."""

    def shift(self, items: Items, mean: float, scale: float) -> Items:
        """Return the items on the ability scale (theta - mean) / scale."""


class LatentStep(Protocol):
    """M-step of the abilities' distribution."""

    def update(self, latent: Latent, expectation: Expectation) -> Latent:
        """Return a better distribution."""

    def shift(self, mean: float, scale: float) -> Latent:
        """Return it on the ability scale (theta - mean) / scale."""


@dataclass(frozen=True)
class Fitted:
    """What a calibration has found.

    Attributes
    ----------
    items : Items
        Item parameters.
    latent : Latent
        Distribution of ability.
    expectation : Expectation
        E-step at these.
    log_likelihood : float
        Marginal log-likelihood, takers by their weights, without priors.
    n_iter : int
        Iterations.
    converged : bool
        Whether they sufficed.
    history : list of float
        Log-likelihood plus log prior after each E-step.
    """

    items: Items
    latent: Latent
    expectation: Expectation
    log_likelihood: float
    n_iter: int
    converged: bool
    history: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class FreeStep:
    """M-step of items that each have parameters of their own: one damped Newton step.

    Newton's step is taken in log a, the intercept, logit c and logit u, with the expected information.

    Attributes
    ----------
    n_parameters : {1, 2, 3, 4}
        Difficulty; discrimination, too; guessing, too; upper asymptote, too.
    difficulty_prior : tuple of ndarray
        Mean and standard deviation of the normal prior of each b; infinite where there is none.
    discrimination_prior : tuple of float, optional
        Mean and standard deviation of log a.
    guessing_prior, upper_prior : tuple of float, optional
        Beta densities of c and of 1 - u.
    """

    n_parameters: int
    difficulty_prior: tuple[Floats, Floats]
    discrimination_prior: tuple[float, float] | None = None
    guessing_prior: tuple[float, float] | None = None
    upper_prior: tuple[float, float] | None = None

    def update(self, items: Items, expectation: Expectation) -> Items:
        """Take the step."""
        mean, std = self.difficulty_prior
        b, a = items.difficulty, items.discrimination
        precision = std**-2.0
        if self.n_parameters == 1:
            gradient = expectation.gradient[:, 0] - (b - mean) * precision
            move = gradient / np.maximum(expectation.curvature[:, 0, 0] + precision, 1e-9)
            return replace(items, difficulty=_near(b + np.clip(move, -LONGEST_STEP, LONGEST_STEP)))
        slopes, curvature = self._scores(items, expectation)
        moves: Floats = np.asarray(np.linalg.solve(curvature, slopes[..., None])[..., 0], dtype=float)
        moves /= np.maximum(np.abs(moves).max(axis=1, keepdims=True) / LONGEST_STEP, 1.0)
        slope = np.clip(a * np.exp(moves[:, 0]), FLATTEST, STEEPEST)
        found = replace(items, discrimination=slope, difficulty=-(items.intercept + moves[:, 1]) / slope)
        if self.n_parameters > 2:
            found = replace(found, guessing=_moved(items.guessing, moves[:, 2]))
        if self.n_parameters > 3:
            found = replace(found, upper=1 - _moved(1 - items.upper, -moves[:, 3]))
        return found

    def _scores(self, items: Items, expectation: Expectation) -> tuple[Floats, Floats]:
        """Gradient and information in the unbounded parameters, priors included."""
        a, b, c, u = items.discrimination, items.difficulty, items.guessing, items.upper
        jacobian = np.stack([a, np.ones_like(a), c * (1 - c), u * (1 - u)], axis=1)[:, : self.n_parameters]
        gradient = expectation.gradient * jacobian
        curvature = expectation.curvature * jacobian[:, :, None] * jacobian[:, None, :]
        mean, std = self.difficulty_prior
        direction = np.stack([-b, -1 / a], axis=1)  # of b in log a and the intercept
        gradient[:, :2] -= direction * ((b - mean) * std**-2.0)[:, None]
        curvature[:, :2, :2] += direction[:, :, None] * direction[:, None, :] * (std**-2.0)[:, None, None]
        if self.discrimination_prior is not None:
            center, spread = self.discrimination_prior
            gradient[:, 0] -= (np.log(a) - center) / spread**2
            curvature[:, 0, 0] += 1 / spread**2
        for place, prior, share, sign in (
            (2, self.guessing_prior, c, 1.0), (3, self.upper_prior, 1 - u, -1.0)
        ):  # fmt: skip
            if prior is not None and self.n_parameters > place:
                first, second = prior[0] - 1, prior[1] - 1
                gradient[:, place] += sign * (first * (1 - share) - second * share)
                curvature[:, place, place] += np.maximum((first + second) * share * (1 - share), 1e-6)
        diagonal = np.arange(self.n_parameters)
        curvature[:, diagonal, diagonal] += 1e-9
        return gradient, curvature

    def precision(self, items: Items) -> Floats:
        """Information from the priors about slope, intercept and asymptotes (p = 1: about b)."""
        a, b, p = items.discrimination, items.difficulty, self.n_parameters
        found = np.zeros((len(items), p, p))
        weight = self.difficulty_prior[1] ** -2.0
        if p == 1:
            found[:, 0, 0] = weight
            return found
        direction = np.stack([-b / a, -1 / a], axis=1)
        found[:, :2, :2] = direction[:, :, None] * direction[:, None, :] * weight[:, None, None]
        if self.discrimination_prior is not None:
            found[:, 0, 0] += (a * self.discrimination_prior[1]) ** -2.0
        shares = ((2, self.guessing_prior, items.guessing), (3, self.upper_prior, 1 - items.upper))
        for place, prior, share in shares:
            if prior is not None and p > place:
                found[:, place, place] += max(prior[0] + prior[1] - 2, 0) / np.maximum(
                    share * (1 - share), 1e-6
                )
        return found

    def log_prior(self, items: Items) -> float:
        """Log density of the priors, up to a constant."""
        mean, std = self.difficulty_prior
        total = -0.5 * float((((items.difficulty - mean) / std) ** 2).sum())
        if self.discrimination_prior is not None and self.n_parameters > 1:
            center, spread = self.discrimination_prior
            total -= 0.5 * float((((np.log(items.discrimination) - center) / spread) ** 2).sum())
        shares = ((2, self.guessing_prior, items.guessing), (3, self.upper_prior, 1 - items.upper))
        for place, prior, share in shares:
            if prior is not None and self.n_parameters > place:
                inside = np.clip(share, 1e-12, 1 - 1e-12)
                logs = (prior[0] - 1) * np.log(inside) + (prior[1] - 1) * np.log1p(-inside)
                total += float(logs.sum())
        return total

    def shift(self, items: Items, mean: float, scale: float) -> Items:
        """Move the items to the ability scale (theta - mean) / scale."""
        moved = (items.difficulty - mean) / scale
        if self.n_parameters == 1:
            return replace(items, difficulty=_near(moved))
        slope = items.discrimination * scale
        kept = np.clip(slope, FLATTEST, STEEPEST)
        return replace(items, difficulty=moved * (slope / kept), discrimination=kept)


def _near(difficulty: Floats) -> Floats:
    return np.clip(difficulty, -FARTHEST, FARTHEST)


def _moved(share: Floats, move: Floats) -> Floats:
    """Move a share by so much on the logit scale."""
    inside = np.clip(share, 1e-9, 1 - 1e-9)
    return 1 / (1 + (1 - inside) / inside * np.exp(-move))


# -- the loop ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """Parameters, and the E-step at them."""

    items: Items
    latent: Latent
    expectation: Expectation
    value: float


def run_em(
    responses: Responses,
    items: Items,
    latent: Latent,
    step: ItemStep,
    *,
    max_iter: int = 200,
    tol: float = 1e-8,
    quadrature: Quadrature = "adaptive",
    n_quadrature: int = 9,
    slopes: bool = False,
    free_scale: bool = True,
    latent_step: LatentStep | None = None,
    report: Callable[[int, float], None] | None = None,
    e_step: Callable[..., Expectation] = expect,
) -> Fitted:
    """Maximise the marginal likelihood.

    After each M-step the mean of ability (and with slopes its spread) is estimated too, and taken out again
    by moving the scale: parameter-expanded EM, without which EM creeps along the direction in which abilities
    and difficulties move together. Where all parameters are in ``items`` and ``latent``, pairs of iterations
    are extrapolated (SQUAREM), and kept where the value grows.

    Parameters
    ----------
    responses : Responses
        Answers.
    items : Items
        To begin with.
    latent : Latent
        To begin with; the mean of group 0 is kept at 0.
    step : ItemStep
        M-step of the items.
    max_iter : int
        Most iterations.
    tol : float
        Relative gain of the value at which to stop.
    quadrature : {"adaptive", "fixed"}
        See :func:`expect`.
    n_quadrature : int
        See :func:`expect`.
    slopes : bool
        Whether items have discriminations, so that ability's scale is a matter of convention.
    free_scale : bool
        Whether, without slopes, the standard deviation of ability is estimated.
    latent_step : LatentStep, optional
        M-step of the abilities' distribution; by default of normal groups.
    report : callable, optional
        Told the iteration and the value.
    e_step : callable
        :func:`expect`, or what takes its place.

    Returns
    -------
    Fitted
        The maximum.
    """
    n_parameters: Any = getattr(step, "n_parameters", 2 if slopes else 1)
    stateless = isinstance(step, FreeStep) and latent_step is None

    def at(items: Items, latent: Latent, start: Expectation | None) -> _State:
        found = e_step(
            responses,
            items,
            latent,
            n_parameters=n_parameters,
            quadrature=quadrature,
            n_quadrature=n_quadrature,
            start=start,
        )
        return _State(
            items, latent, found, float(responses.weight @ found.log_likelihood) + step.log_prior(items)
        )

    def advance(state: _State) -> _State:
        changed = step.update(state.items, state.expectation)
        moved = _recentre(
            changed, state, responses.weight, step, latent_step, slopes=slopes, free_scale=free_scale
        )
        return at(*moved, state.expectation)

    state = at(items, latent, None)
    history, converged, n_iter = [state.value], False, 0
    while n_iter < max_iter and not converged:
        before = state
        state = advance(before)
        if stateless:
            state = _uphill(before, state, at)
        n_iter += 1
        if stateless and n_iter + 1 < max_iter:
            second = _uphill(state, advance(state), at)
            n_iter += 1
            state = _extrapolate(before, state, second, at)
        history.append(state.value)
        if report is not None:
            report(n_iter, state.value)
        converged = abs(state.value - before.value) <= tol * (abs(before.value) + tol)
    likelihood = float(responses.weight @ state.expectation.log_likelihood)
    return Fitted(state.items, state.latent, state.expectation, likelihood, n_iter, converged, history)


def _recentre(
    items: Items,
    state: _State,
    weight: Floats,
    step: ItemStep,
    latent_step: LatentStep | None,
    *,
    slopes: bool,
    free_scale: bool,
) -> tuple[Items, Latent]:
    """Estimate the distribution of ability, then move the scale so that group 0 has mean 0."""
    if latent_step is not None:
        latent = latent_step.update(state.latent, state.expectation)
        center = float(np.average(latent.prior_mean, weights=weight))
        width = 1.0
        if slopes:
            spread = np.average((latent.prior_mean - center) ** 2 + latent.prior_scale**2, weights=weight)
            width = float(np.sqrt(spread))
        return step.shift(items, center, width), latent_step.shift(center, width)
    seen = _Spread.of(state, weight)
    if isinstance(step, FreeStep):
        return _weighed(items, state.latent, seen, step, slopes=slopes, free_scale=free_scale)
    center, scale, kept = float(seen.means[0]), seen.scale, float(state.latent.scale)
    # A prior of the discriminations ties them to the scale; a step with a state of its own cannot try both.
    if slopes and getattr(step, "discrimination_prior", None) is None:
        return step.shift(items, center, scale), replace(
            state.latent, mean=(seen.means - center) / scale, scale=1.0
        )
    if free_scale and not slopes:
        kept = _scale_step(kept, scale, seen.left, careful=True)
    return step.shift(items, center, 1.0), replace(state.latent, mean=seen.means - center, scale=kept)


@dataclass(frozen=True)
class _Spread:
    """How abilities are spread, by their posteriors.

    Attributes
    ----------
    means : ndarray of shape (n_groups,)
        Means of the groups.
    first : float
        Weight of group 0.
    weight : float
        Weight of all takers.
    within : float
        Sum of squared deviations from the groups' means.
    left : float
        Share of ability's variance that answers leave open.
    """

    means: Floats
    first: float
    weight: float
    within: float
    left: float

    @classmethod
    def of(cls, state: _State, weight: Floats) -> "_Spread":
        """Sum over takers."""
        old, found = state.latent, state.expectation
        total = np.bincount(old.group, weight, minlength=len(old.mean))
        sums = np.bincount(old.group, weight * found.mean, minlength=len(old.mean))
        means = np.where(total > 0, sums / np.where(total > 0, total, 1.0), old.mean)
        open_variance = float(weight @ found.std**2)
        within = float(weight @ (found.mean - means[old.group]) ** 2) + open_variance
        every = float(weight.sum())
        return cls(means, float(total[0]), every, within, open_variance / every / float(old.scale) ** 2)

    @property
    def scale(self) -> float:
        """Standard deviation within groups."""
        return float(np.sqrt(self.within / self.weight))


def _weighed(
    items: Items, latent: Latent, seen: _Spread, step: FreeStep, *, slopes: bool, free_scale: bool
) -> tuple[Items, Latent]:
    """Move the scale to where it is best for the distribution of ability and the items' priors together.

    What the answers say does not depend on where it lies.
    """
    kept, width = float(latent.scale), 1.0
    if slopes:
        center, width = _best_scale(step, items, seen)
        kept = 1.0
    else:
        center = _best_center(step, items, seen, kept)
        if free_scale:
            about = seen.within + seen.first * (seen.means[0] - center) ** 2
            kept = _scale_step(kept, float(np.sqrt(about / seen.weight)), seen.left, careful=False)
    means = (seen.means - center) / width
    means[0] = 0.0  # wherever its takers are
    return step.shift(items, center, width), replace(latent, mean=means, scale=kept)


def _best_center(step: FreeStep, items: Items, seen: _Spread, scale: float) -> float:
    """Where the origin goes: to the mean of group 0, drawn to where the difficulties' prior wants it."""
    mean, std = step.difficulty_prior
    precision = std**-2.0
    of_takers = seen.first / scale**2
    pull = of_takers * float(seen.means[0]) + float(precision @ (items.difficulty - mean))
    return pull / max(of_takers + float(precision.sum()), 1e-300)


def _best_scale(step: FreeStep, items: Items, seen: _Spread) -> tuple[float, float]:
    """Origin c and unit s = e^t of ability.

    With the weight W of all takers, W_0 and m_0 of group 0, and V the spread within groups, the maximum of
    -W t - (V + W_0 (m_0 - c)^2) / (2 s^2) + log prior of the items on the scale (theta - c) / s, by Newton's
    method.
    """
    mean, std = step.difficulty_prior
    precision = std**-2.0
    slope_mean, slope_std = step.discrimination_prior or (0.0, np.inf)
    log_a, n = np.log(items.discrimination), len(items)
    first, own = seen.first, float(seen.means[0])
    c, t = own, float(np.log(max(seen.scale, SMALLEST_SCALE)))
    for _ in range(30):
        s = float(np.exp(t))
        b = (items.difficulty - c) / s
        pulled = precision * (b - mean)
        away = first * (own - c) / s**2
        wide = (seen.within + first * (own - c) ** 2) / s**2
        gradient = np.array([
            away + pulled.sum() / s,
            wide - seen.weight + pulled @ b - float((log_a + t - slope_mean).sum()) / slope_std**2,
        ])  # fmt: skip
        cross = 2 * away + float(precision @ b) / s
        known = np.array([
            [(first + precision.sum()) / s**2, cross],
            [cross, 2 * wide + precision @ b**2 + n / slope_std**2],
        ])  # fmt: skip
        move = np.clip(np.linalg.solve(known + 1e-9 * np.eye(2), gradient), -1, 1)
        c, t = c + float(move[0]), t + float(move[1])
        if np.abs(move).max() < 1e-10:
            break
    return c, max(float(np.exp(t)), SMALLEST_SCALE)


def _scale_step(old: float, new: float, left: float, *, careful: bool) -> float:
    """Newton's step towards the scale that EM creeps to.

    Of the information that abilities would give on log s^2, 1/2 a taker, answers give (1 - left)^2 / 2, where
    ``left`` is the share of ability's variance that they leave open.
    """
    known = max(1.0 - left, 0.05)
    step = ((new / old) ** 2 - 1) / (known if careful else known**2)
    return max(old * float(np.exp(np.clip(step, -1.5, 1.5) / 2)), SMALLEST_SCALE)


def _pack(items: Items, latent: Latent) -> Floats:
    """All parameters, unbounded: of steep items the difficulty, of flat ones the intercept, or between."""
    place = items.intercept / np.hypot(1, items.discrimination)
    inside = [np.clip(share, 1e-9, 1 - 1e-9) for share in (items.guessing, 1 - items.upper)]
    logits = [np.log(share / (1 - share)) for share in inside]
    scale = np.log(np.atleast_1d(latent.scale))
    return np.concatenate([place, np.log(items.discrimination), *logits, latent.mean, scale])


def _unpack(vector: Floats, items: Items, latent: Latent) -> tuple[Items, Latent]:
    n = len(items)
    place, log_a, low, high = (vector[k * n : (k + 1) * n] for k in range(4))
    a = np.exp(np.clip(log_a, np.log(FLATTEST), np.log(STEEPEST)))
    new = replace(items, difficulty=-place * np.hypot(1, a) / a, discrimination=a)
    if items.guessing.any():
        new = replace(new, guessing=1 / (1 + np.exp(-low)))
    if (items.upper < 1).any():
        new = replace(new, upper=1 - 1 / (1 + np.exp(-high)))
    groups = len(latent.mean)
    mean, scale = vector[4 * n : 4 * n + groups], max(float(np.exp(vector[-1])), SMALLEST_SCALE)
    return new, Latent(mean, scale, latent.group)


def _uphill(before: _State, after: _State, at: Callable[..., _State]) -> _State:
    """Halve a step that lost value: one Newton step is usually uphill, not always."""
    slack = 1e-9 * (1 + abs(before.value))
    old, new = _pack(before.items, before.latent), _pack(after.items, after.latent)
    share = 1.0
    while after.value < before.value - slack and share > 1e-3:
        share /= 2
        after = at(*_unpack(old + share * (new - old), before.items, before.latent), before.expectation)
    return after if after.value >= before.value - slack else before


def _extrapolate(before: _State, first: _State, second: _State, at: Callable[..., _State]) -> _State:
    """SQUAREM's step from two of EM, or the second of them where that is better."""
    x0, x1, x2 = (_pack(state.items, state.latent) for state in (before, first, second))
    r, v = x1 - x0, (x2 - x1) - (x1 - x0)
    size = float(np.linalg.norm(v))
    if size < 1e-12:
        return second
    alpha = -float(np.linalg.norm(r)) / size
    if alpha >= -1.0:
        return second
    jump = x0 - 2 * alpha * r + alpha**2 * v
    if not np.isfinite(jump).all() or np.abs(jump - x2).max() > 5 * LONGEST_STEP:
        return second
    ahead = at(*_unpack(jump, second.items, second.latent), second.expectation)
    return ahead if ahead.value > second.value else second
