"""Moment estimates of the Rasch model: difficulties from the shares of right answers alone."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.exceptions import ConvergenceWarning

from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.joint import joint_rounds
from seedbed.estimators.amortized_irt.responses import Responses

Floats = NDArray[np.float64]

N_NODES = 31
START = 1.16
"""The root is near START times the logit of the share of right answers, where s = 1."""
NEWTON_TOL = 1e-12
EXTREME_STD = 4.0
"""Difficulties of items that all got right, or all wrong, are held by the prior N(0, EXTREME_STD^2)."""
REFINEMENTS = 3
"""Rounds that part ability from difficulty before respondents are compared."""
MOST_ITEMS = 2000
"""Items that these rounds look at."""
SCALES = (0.05, 10.0)
"""Range in which the spread of the abilities is looked for."""
UNEQUAL_RESPONDENTS = 0.25
"""Spread, over items and in units of s, of the respondents' mean ability that calls for a warning."""


@dataclass(frozen=True)
class Moments:
    """What the shares of right answers say.

    Attributes
    ----------
    items : Items
        Difficulties, all discriminations 1.
    scale : float
        s, the standard deviation of the abilities.
    ability : ndarray of shape (n_takers,)
        Posterior modes under N(0, s^2).
    unequal : float
        Spread over items of their respondents' mean ability beyond what chance explains, divided by s.
    n_iter : int
        Newton steps; if more, values of s that were tried.
    """

    items: Items
    scale: float
    ability: Floats
    unequal: float
    n_iter: int


def normal_nodes(n_nodes: int = N_NODES) -> tuple[Floats, Floats]:
    """Nodes and weights of Gauss-Hermite quadrature for N(0, 1).

    Parameters
    ----------
    n_nodes : int
        How many.

    Returns
    -------
    nodes, weights : ndarray of shape (n_nodes,)
        The weights sum to one.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return nodes, weights / weights.sum()


def moment_roots(
    right: Floats,
    seen: Floats,
    scale: float = 1.0,
    *,
    prior_std: Floats | float = np.inf,
    start: Floats | None = None,
    max_iter: int = 50,
) -> tuple[Floats, int]:
    """Solve right / seen = E sigma(theta - b), theta ~ N(0, scale^2), for each b.

    With a prior N(0, prior_std^2) on b, what is solved is seen E sigma(theta - b) - right - b / prior_std^2 =
    0.

    Parameters
    ----------
    right, seen : ndarray of shape (n_items,)
        Numbers of right and of all answers.
    scale : float
        Spread of the abilities.
    prior_std : float or ndarray of shape (n_items,)
        Spread of the prior; infinite for none.
    start : ndarray of shape (n_items,), optional
        First guess.
    max_iter : int
        Most Newton steps.

    Returns
    -------
    b : ndarray of shape (n_items,)
        The roots; infinite where all answers are alike and there is no prior.
    n_iter : int
        Newton steps taken.
    """
    nodes, weights = normal_nodes()
    precision = 1 / np.broadcast_to(np.asarray(prior_std, dtype=float), right.shape) ** 2
    free = (precision > 0) | ((right > 0) & (right < seen))
    found = np.where(right > 0, -np.inf, np.inf)
    n, r, ridge = seen[free], right[free], precision[free]
    if start is None:
        # Half an answer more of each kind keeps the guess finite.
        slope = START * np.sqrt((1 + np.pi * scale**2 / 8) / (1 + np.pi / 8))
        b = -slope * logit((r + 0.5 * (ridge > 0)) / (n + (ridge > 0)))
    else:
        b = start[free]
    theta = scale * nodes
    steps = 0
    active = np.arange(len(b))
    while len(active) and steps < max_iter:
        curve = expit(theta[:, None] - b[active])
        mean = weights @ curve
        slope_there = n[active] * (weights @ (curve * (1 - curve))) + ridge[active]
        step = (n[active] * mean - r[active] - ridge[active] * b[active]) / slope_there
        # Far out the curve is flat and a full step would overshoot.
        b[active] += np.clip(step, -2.0, 2.0)
        active = active[np.abs(step) > NEWTON_TOL * (1 + np.abs(b[active]))]
        steps += 1
        # Newton is quadratic: after a step below this, the next changes nothing that a double can hold.
        if len(active) and np.abs(step).max() < 1e-8:
            break
    found[free] = b
    return found, steps


def calibrate_moment(
    responses: Responses, *, scale: float | None = 1.0, drop_extreme: bool = False, warn: bool = True
) -> Moments:
    """Match the share of right answers of every item and, if the scale is free, the spread of the scores.

    Consistent as long as who answers an item does not depend on ability. The cost is that of reading the
    cells.

    Parameters
    ----------
    responses : Responses
        The cells.
    scale : float, optional
        s; when None, it is found from sum_n (S_n^2 - V_n), where S_n is a taker's score minus its expectation
        and V_n the sum of the squares of its terms: the expectation is sum_n Var_theta(sum of P_i over the
        items seen).
    drop_extreme : bool
        Whether difficulties of items with equal answers may be infinite, rather than held by a wide prior.
    warn : bool
        Whether to warn where the respondents of different items differ in ability.

    Returns
    -------
    Moments
        The estimates.

    Warns
    -----
    ConvergenceWarning
        If the respondents differ so much between items that the difficulties are biased.
    """
    shares = _Shares.of(responses, drop_extreme)
    rounds = 0
    if scale is None:
        scale, rounds = _free_scale(responses, shares)
    b, steps = shares.roots(scale)
    ability = modal_abilities(responses, b, scale)
    unequal = respondent_spread(responses, ability, b, scale) / scale
    if warn and unequal > UNEQUAL_RESPONDENTS:
        warnings.warn(
            f"the mean ability of those who answered an item varies between items by {unequal:.2f} of its "
            "standard deviation, so that shares of right answers mislead; use method='mml' with taker_groups "
            "or latent_groups='pattern'",
            ConvergenceWarning,
            stacklevel=2,
        )
    return Moments(Items.of(b), float(scale), ability, float(unequal), max(rounds, steps))


def expected_scores(responses: Responses, b: Floats, theta: Floats) -> Floats:
    """Sum of P_i(theta) over the items each taker saw: (n_takers or 1, len(theta))."""
    if responses.seen is None:
        kinds, count = np.unique(b, return_counts=True)
        return (count @ expit(theta[None, :] - kinds[:, None]))[None, :]
    return responses.sum_seen(expit(theta[None, :] - b[:, None]))


def modal_abilities(responses: Responses, b: Floats, scale: float) -> Floats:
    """Maximise each taker's posterior under N(0, scale^2), by interpolation between nodes.

    Parameters
    ----------
    responses : Responses
        The cells.
    b : ndarray of shape (n_items,)
        Difficulties.
    scale : float
        s.

    Returns
    -------
    ndarray of shape (n_takers,)
        Abilities, within 6 s.
    """
    theta = scale * np.linspace(-6, 6, N_NODES)
    # A taker with score r is where expected score + theta / s^2 = r; the left side increases.
    wanted = expected_scores(responses, finite(b), theta) + theta / scale**2
    score = responses.right_by_taker
    rows = np.broadcast_to(wanted, (len(score), len(theta)))
    k = np.clip((rows < score[:, None]).sum(axis=1), 1, len(theta) - 1)
    here = np.arange(len(score))
    low, high = rows[here, k - 1], rows[here, k]
    share = np.clip((score - low) / (high - low), 0, 1)
    return np.asarray(theta[k - 1] + share * (theta[k] - theta[k - 1]))


def respondent_spread(responses: Responses, ability: Floats, b: Floats, scale: float) -> float:
    """Spread over items of the respondents' mean ability, beyond that of random samples of as many takers.

    Moment estimates themselves hide such differences (they place every item's respondents at 0), so that a
    few rounds of Newton steps on abilities and difficulties come first, on at most MOST_ITEMS items at even
    distances.

    Parameters
    ----------
    responses : Responses
        The cells.
    ability : ndarray of shape (n_takers,)
        Abilities to start from.
    b : ndarray of shape (n_items,)
        Difficulties to start from.
    scale : float
        Spread of the prior of the abilities.

    Returns
    -------
    float
        Standard deviation; 0 where all takers saw all items.
    """
    if responses.seen is None:
        return 0.0
    some = np.arange(0, responses.n_items, -(-responses.n_items // MOST_ITEMS))
    part = responses.items(some) if len(some) < responses.n_items else responses
    ability, _ = joint_rounds(part, ability, np.clip(b[some], -15, 15), scale, REFINEMENTS)
    weight = part.weight
    total = weight.sum()
    centred = ability - weight @ ability / total
    count = np.maximum(part.seen_by_item, 1e-300)
    mean = part.spread_seen((weight * centred)[:, None])[:, 0] / count
    variance = weight @ centred**2 / total
    chance = variance / count * np.clip(total - count, 0, None) / max(total - 1, 1)
    # Items with more answers say more about it.
    excess = (count * (mean**2 - chance)).sum() / count.sum()
    return float(np.sqrt(max(excess, 0.0)))


@dataclass(frozen=True)
class _Shares:
    """Distinct pairs of right and all answers, which one each item has, and the prior of its difficulty."""

    right: Floats
    seen: Floats
    which: NDArray[np.int64]
    prior_std: Floats

    @classmethod
    def of(cls, responses: Responses, drop_extreme: bool) -> "_Shares":
        """Pairs of some responses: with few takers far fewer than items."""
        both = responses.right_by_item + 1j * responses.seen_by_item
        pairs, which = np.unique(both, return_inverse=True)
        right, seen = pairs.real, pairs.imag
        held = ((right <= 0) | (right >= seen)) & (not drop_extreme)
        return cls(right, seen, which, np.where(held, EXTREME_STD, np.inf))

    def roots(self, scale: float) -> tuple[Floats, int]:
        """Difficulty of each item, and Newton steps."""
        b, steps = moment_roots(self.right, self.seen, scale, prior_std=self.prior_std)
        return b[self.which], steps


def _free_scale(responses: Responses, shares: _Shares) -> tuple[float, int]:
    """Find s at which the scores spread as they should, difficulties following it; and evaluations."""

    def excess(log_scale: float) -> float:
        scale = float(np.exp(log_scale))
        return score_excess(responses, shares.roots(scale)[0], scale)

    low, high = np.log(SCALES)
    # The excess falls as s grows; with too few pairs it may not cross zero at all.
    if excess(low) <= 0:
        return SCALES[0], 1
    if excess(high) >= 0:
        return SCALES[1], 2
    root, report = brentq(excess, low, high, xtol=1e-10, full_output=True)
    return float(np.exp(root)), report.function_calls


def score_excess(responses: Responses, b: Floats, scale: float) -> float:
    """Products of two residuals of a taker, summed over pairs of items and takers, beyond their expectation.

    Parameters
    ----------
    responses : Responses
        The cells.
    b : ndarray of shape (n_items,)
        Difficulties.
    scale : float
        s.

    Returns
    -------
    float
        sum_n (S_n^2 - V_n) - sum_n sum_{i != j} Cov_theta(P_i, P_j), where S_n is the sum of y - p over the
        items that n saw, V_n that of (y - p)^2 and p = E P.
    """
    nodes, weights = normal_nodes()
    table = expit(scale * nodes[None, :] - finite(b)[:, None])
    means = table @ weights
    from_mean = responses.sum_seen(table - means[:, None])
    expected = np.broadcast_to(from_mean**2 @ weights, (responses.n_takers,))
    # The pairs i = j are left out on either side.
    expected = expected - _sum_by_taker(responses, table**2 @ weights - means**2)
    residual = responses.right_by_taker - _sum_by_taker(responses, means)
    # The sum over cells of (y - p)^2 is that of y (1 - 2 p) + p^2.
    own = responses.right @ (1 - 2 * means) + _sum_by_taker(responses, means**2)
    return float(responses.weight @ (residual**2 - own - expected))


def finite(b: Floats) -> Floats:
    """Put a number so large in place of an infinite difficulty that the curve is 0 or 1."""
    return np.clip(b, -1e3, 1e3)


def _sum_by_taker(responses: Responses, values: Floats) -> Floats:
    """Sum of an item's value over the items each taker saw."""
    return np.broadcast_to(responses.sum_seen(values[:, None])[:, 0], (responses.n_takers,))
