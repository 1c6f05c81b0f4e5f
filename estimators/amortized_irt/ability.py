"""Estimates of ability from answers to items whose parameters are known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from seedbed.checks import check_choice, check_number
from seedbed.estimators.amortized_irt.answers import (
    SMALL,
    Answers,
    GridValues,
    check_items,
    normal_rule,
    walk,
)
from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.responses import Responses, read_responses

Method = Literal["eap", "map", "mle", "wle"]
METHODS = ("eap", "map", "mle", "wle")
MOST_STEPS = 200
TIGHT = 1e-10
"""Newton's method ends when no estimate moves by more."""
COARSE = 61
"""Points of the coarse grid on which roots are told apart where there may be several."""

Gradient = Callable[[Floats], tuple[Floats, Floats]]


@dataclass(frozen=True)
class AbilityEstimate:
    """Abilities of some takers.

    Attributes
    ----------
    ability : ndarray of shape (n_takers,)
        Estimates, on the scale of the difficulties.
    std : ndarray of shape (n_takers,)
        Standard errors ("mle", "wle") or posterior standard deviations ("map", "eap"); inf where a
        maximum-likelihood estimate is infinite.
    finite : ndarray of bool of shape (n_takers,)
        False where the likelihood has no finite maximum: all answers right, all wrong, or no better than
        guessing. Always True for the other methods.
    """

    ability: Floats
    std: Floats
    finite: NDArray[np.bool_]


def estimate_ability(
    responses: Any,
    items: Items,
    *,
    method: Method = "eap",
    latent_mean: ArrayLike = 0.0,
    latent_scale: float = 1.0,
    bounds: tuple[float, float] | None = None,
    difficulty_uncertainty: bool = True,
    n_quadrature: int = 21,
    mask: Any = None,
    missing_values: float = np.nan,
) -> AbilityEstimate:
    """Estimate abilities while the items stay as they are.

    Parameters
    ----------
    responses : array-like or sparse array of shape (n_takers, n_items), or Responses
        1 for right, 0 for wrong, ``missing_values`` where there is no answer.
    items : Items
        Parameters of the items, one per column.
    method : {"eap", "map", "mle", "wle"}, default="eap"
        Mean or mode of the posterior under the prior N(latent_mean, latent_scale^2), the maximum of the
        likelihood, or Warm's weighted likelihood, whose estimate is finite for every pattern of answers
        and biased less: score + J / (2 I) = 0 with J = sum P' P'' / (P Q) and I the information.
    latent_mean : float or array-like of shape (n_takers,), default=0
        Prior mean.
    latent_scale : float, default=1
        Prior standard deviation.
    bounds : pair of float, optional
        Estimates are kept between these; without them a maximum-likelihood estimate may be infinite.
    difficulty_uncertainty : bool, default=True
        Average the curves over the errors of the difficulties, ``items.difficulty_std``. Without it,
        intervals from predicted difficulties are too narrow.
    n_quadrature : int, default=21
        Nodes of the Gauss-Hermite rule around each posterior mode ("eap").
    mask : array-like or sparse array of shape (n_takers, n_items), optional
        True where there is an answer; needed for sparse responses with gaps.
    missing_values : float, default=nan
        What stands for no answer.

    Returns
    -------
    AbilityEstimate
        ``ability``, ``std`` and ``finite``.

    Raises
    ------
    ValueError
        If a cell is neither 0, 1 nor missing, the items do not match, a taker without answers is given to
        "mle" or "wle", or a parameter is out of range.

    References
    ----------
    Bock and Mislevy, "Adaptive EAP estimation of ability in a microcomputer environment", 1982. Warm,
    "Weighted likelihood estimation of ability in item response theory", Psychometrika 54, 1989.

    Examples
    --------
    >>> from seedbed.estimators import Items, estimate_ability
    >>> items = Items.of([-1.0, 0.0, 1.0])
    >>> found = estimate_ability([[1, 1, 0], [1, 1, 1]], items, method="mle")
    >>> found.ability.round(6), found.std.round(6), found.finite
    (array([0.802934,      inf]), array([1.309982,      inf]), array([ True, False]))
    >>> estimate_ability([[1, 1, 0]], items).ability.round(6)
    array([0.315435])
    """
    check_choice("method", method, METHODS)
    check_number("latent_scale", latent_scale, low=0, closed="neither")
    check_number("n_quadrature", n_quadrature, low=3, integer=True)
    low, high = check_bounds(bounds)
    check_items(items)
    read = _read(responses, mask, missing_values)
    if read.n_items != len(items):
        raise ValueError(f"responses must have one column per item, {len(items)}, got {read.n_items}")
    means = np.asarray(latent_mean, dtype=float)
    if means.ndim > 1 or means.size not in (1, read.n_takers) or not np.isfinite(means).all():
        raise ValueError(
            f"latent_mean must be a finite number, or one per taker ({read.n_takers}), got {latent_mean!r}"
        )
    means = np.broadcast_to(means, read.n_takers)
    if method in ("mle", "wle") and (read.seen_by_taker == 0).any():
        lost = int(np.argmin(read.seen_by_taker))
        raise ValueError(
            f"responses[{lost}] has no answer: method={method!r} needs one, 'eap' and 'map' do not"
        )
    curves = items.softened() if difficulty_uncertainty else items
    ability, std = np.empty(read.n_takers), np.empty(read.n_takers)
    finite = np.ones(read.n_takers, dtype=bool)
    for rows, answers in walk(read, curves):
        part = estimate(answers, method, means[rows], float(latent_scale), (low, high), n_quadrature)
        ability[rows], std[rows], finite[rows] = part.ability, part.std, part.finite
    return AbilityEstimate(ability, std, finite)


def check_bounds(bounds: Any) -> tuple[float, float]:
    """Return the bounds on ability, infinite ones where there are none.

    Parameters
    ----------
    bounds : pair of float or None
        What was passed.

    Returns
    -------
    pair of float
        Low and high.

    Raises
    ------
    ValueError
        If they are no rising pair of numbers.
    """
    if bounds is None:
        return -np.inf, np.inf
    try:
        low, high = (float(end) for end in bounds)
    except (TypeError, ValueError) as error:
        raise ValueError(f"bounds must be a pair of numbers, got {bounds!r}") from error
    if not low < high:
        raise ValueError(f"bounds must rise from low to high, got {bounds!r}")
    return low, high


def _read(responses: Any, mask: Any, missing_values: float) -> Responses:
    """Read the responses, whatever they came as."""
    if isinstance(responses, Responses):
        return responses
    found = responses if sparse.issparse(responses) else np.asarray(responses, dtype=float)
    if found.ndim != 2 or found.shape[0] == 0:
        raise ValueError(f"responses must have shape (n_takers, n_items), got {found.shape}")
    return read_responses(found, mask=mask, missing_values=missing_values, name="responses")


def estimate(
    answers: Answers,
    method: Method,
    mean: Floats,
    scale: float,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    n_quadrature: int = 21,
    start: Floats | None = None,
) -> AbilityEstimate:
    """Estimate abilities from answers that were checked and curves that were softened before.

    Parameters
    ----------
    answers : Answers
        At least one per taker for "mle" and "wle".
    method : {"eap", "map", "mle", "wle"}
        As in :func:`estimate_ability`.
    mean : ndarray of shape (n_takers,)
        Prior means.
    scale : float
        Prior standard deviation.
    bounds : pair of float
        Ends of the scale.
    n_quadrature : int
        Nodes ("eap").
    start : ndarray of shape (n_takers,), optional
        Where Newton's method starts; the prior means by default.

    Returns
    -------
    AbilityEstimate
        The estimates.
    """
    begin = mean if start is None else start
    finite = np.ones(answers.n_takers, dtype=bool)
    if method == "mle":
        theta, finite = _mle(answers, begin)
        prior = 0.0
    elif method == "wle":
        theta, prior = _wle(answers), 0.0
    else:
        theta, prior = posterior_mode(answers, mean, scale, begin), scale**-2
    if method == "eap":
        theta, std = _posterior_moments(answers, theta, mean, scale, n_quadrature)
        return AbilityEstimate(np.clip(theta, *bounds), std, finite)
    theta = np.clip(theta, *bounds)
    inside = np.isfinite(theta)
    information = answers.slopes(np.where(inside, theta, 0.0)).information + prior
    with np.errstate(divide="ignore"):
        std = np.where(inside, 1 / np.sqrt(information), np.inf)
    return AbilityEstimate(theta, std, finite)


def posterior_mode(answers: Answers, mean: Floats, scale: float, start: Floats | None = None) -> Floats:
    """Find the mode of each posterior under N(mean, scale^2).

    Parameters
    ----------
    answers : Answers
        What the takers answered.
    mean : ndarray of shape (n_takers,)
        Prior means.
    scale : float
        Prior standard deviation.
    start : ndarray of shape (n_takers,), optional
        Where Newton's method starts.

    Returns
    -------
    ndarray of shape (n_takers,)
        The modes; the highest where there are several.
    """

    def gradient(theta: Floats) -> tuple[Floats, Floats]:
        slopes = answers.slopes(theta)
        return slopes.score - (theta - mean) / scale**2, slopes.curvature + scale**-2

    if answers.is_logistic:
        return climb(gradient, mean if start is None else start)

    def prior(grid: Floats, _: GridValues) -> tuple[Floats, Floats]:
        return -((grid - mean) ** 2) / (2 * scale**2), -(grid - mean) / scale**2

    theta, _ = _highest(answers, gradient, prior, (mean.min(initial=np.inf), mean.max(initial=-np.inf)))
    return theta


def _mle(answers: Answers, start: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Maxima of the likelihood, and whether they are finite; of a taker without answers, the start."""

    def gradient(theta: Floats) -> tuple[Floats, Floats]:
        slopes = answers.slopes(theta)
        return slopes.score, slopes.curvature

    if answers.is_logistic:
        top, bottom = answers.total(answers.right), answers.total(1 - answers.right)
        ends = (bottom == 0) | (top == 0)  # all answers are of one kind

        def halted(theta: Floats) -> tuple[Floats, Floats]:
            score, curvature = gradient(theta)
            return np.where(ends, 0.0, score), curvature

        theta = climb(halted, start)
    else:
        theta, crossed = _highest(answers, gradient, lambda _, values: (values.level * 0, values.score * 0))
        bottom, top = answers.limits()
        ends = ~crossed | (np.maximum(bottom, top) > answers.log_likelihood(theta))
    return np.where(ends, np.where(top > bottom, np.inf, -np.inf), theta), ~ends


def _wle(answers: Answers) -> Floats:
    """Roots of Warm's equation, the most likely where there are several."""

    def gradient(theta: Floats) -> tuple[Floats, Floats]:
        slopes = answers.slopes(theta)
        correction, rise = answers.warm(theta)
        return slopes.score + correction, slopes.curvature - rise

    def correction(_: Floats, values: GridValues) -> tuple[Floats, Floats]:
        information = np.maximum(values.information, np.finfo(float).tiny)
        return 0.5 * np.log(information), values.bend / (2 * information)

    return _highest(answers, gradient, correction)[0]


def _posterior_moments(
    answers: Answers, mode: Floats, mean: Floats, scale: float, n_quadrature: int
) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each posterior by adaptive Gauss-Hermite quadrature."""
    nodes, log_weights = normal_rule(n_quadrature)
    width = 1 / np.sqrt(answers.slopes(mode).information + scale**-2)
    points = mode + width * nodes[:, None]
    if answers.starts is None and n_quadrature * answers.right.size <= SMALL:
        log_mass = answers.log_likelihood(points)
    else:
        log_mass = np.array([answers.log_likelihood(theta) for theta in points])
    log_mass += log_weights[:, None] - (points - mean) ** 2 / (2 * scale**2)
    mass = np.exp(log_mass - log_mass.max(axis=0))
    mass /= mass.sum(axis=0)
    ability = (mass * points).sum(axis=0)
    return ability, np.sqrt((mass * (points - ability) ** 2).sum(axis=0))


def climb(gradient: Gradient, start: Floats, low: ArrayLike = -np.inf, high: ArrayLike = np.inf) -> Floats:
    """Find a root at which each gradient falls through 0, by Newton's method kept inside a shrinking bracket.

    Parameters
    ----------
    gradient : callable
        Returns the gradients at theta, and minus their derivatives.
    start : ndarray of shape (n_takers,)
        Where to start, between low and high.
    low, high : float or ndarray of shape (n_takers,)
        Where the gradients are above and below 0; infinite where that is not known.

    Returns
    -------
    ndarray of shape (n_takers,)
        The roots.
    """
    theta = np.array(start, dtype=float)
    low, high = (np.broadcast_to(np.asarray(end, dtype=float), theta.shape) for end in (low, high))
    moving = np.ones(theta.shape, dtype=bool)
    for _ in range(MOST_STEPS):
        slope, curvature = gradient(theta)
        low, high = np.where(slope > 0, theta, low), np.where(slope < 0, theta, high)
        leap = np.maximum(2.0, np.abs(theta))  # what a flat stretch may be left by
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(curvature > 0, slope / curvature, np.sign(slope) * leap)
        step = np.clip(np.where(slope == 0, 0.0, step), -leap, leap)
        moved = theta + step
        closed = np.isfinite(low) & np.isfinite(high)
        small = TIGHT * np.maximum(1.0, np.abs(theta))
        outside = ((moved <= low) | (moved >= high)) & (np.abs(step) > small)
        with np.errstate(invalid="ignore"):
            middle = np.where(closed, (low + high) / 2, theta + step / 2)
        moved = np.where(outside, middle, moved)
        arrived = np.abs(moved - theta) <= small
        theta = np.where(moving, moved, theta)
        moving &= ~arrived  # those who arrived wait: nobody's estimate depends on the company
        if not moving.any():
            break
    return theta


def _highest(
    answers: Answers,
    gradient: Gradient,
    lift: Callable[[Floats, GridValues], tuple[Floats, Floats]],
    reach: tuple[float, float] = (np.inf, -np.inf),
) -> tuple[Floats, NDArray[np.bool_]]:
    """Find the highest of the points at which a gradient falls through 0, and whether there is one.

    A coarse grid that covers all items tells the hills apart; Newton's method does the rest. ``lift`` returns
    what is added to the log-likelihood on the grid, and its slope.
    """
    grid = answers.grid(COARSE, reach)
    values = answers.on_grid(grid)
    more, steeper = lift(grid, values)
    slope, level = values.score + steeper, values.level + more
    falls = (slope[:-1] > 0) & (slope[1:] <= 0)
    best = np.where(falls, np.maximum(level[:-1], level[1:]), -np.inf).argmax(axis=0)
    crossed = np.asarray(falls.any(axis=0))

    def bracketed(theta: Floats) -> tuple[Floats, Floats]:
        found, curvature = gradient(theta)
        return np.where(crossed, found, 0.0), curvature

    ends = np.broadcast_to(grid, slope.shape)
    low, high = (np.take_along_axis(ends, (best + step)[None], axis=0)[0] for step in (0, 1))
    theta = climb(bracketed, (low + high) / 2, low, high)
    return np.where(crossed, theta, np.where(slope[0] > 0, ends[-1], ends[0])), crossed
