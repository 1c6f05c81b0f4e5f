"""One way in to all calibrations: what is to be estimated, and what came of it."""

import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from seedbed.estimators.amortized_irt.em import FreeStep, Latent, Quadrature, run_em
from seedbed.estimators.amortized_irt.expectation import Expectation, expect
from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.joint import calibrate_joint
from seedbed.estimators.amortized_irt.moment import calibrate_moment, respondent_spread
from seedbed.estimators.amortized_irt.posterior import Priors
from seedbed.estimators.amortized_irt.responses import Responses
from seedbed.estimators.amortized_irt.standard_errors import difficulty_std, item_covariances

EXTREME_STD = 4.0
"""Standard deviation of the prior that holds items whose answers are all alike."""
FEW_TAKERS = 200
"""With fewer takers of an item, in the median, discriminations get a weak prior."""
WEAK_SLOPES = (0.0, 0.5)
UNEQUAL_GROUPS = 0.15
"""Spread of the respondents' mean ability, drawn together by one population, that calls for a warning."""
SMALL_GROUP = 10
"""Groups by pattern of missing answers with fewer takers are pooled."""


@dataclass(frozen=True)
class Plan:
    """What is to be estimated, and how.

    Attributes
    ----------
    method : str
        "mml", "moment", "jml", "cml", "mle" or "bayes".
    n_parameters : {1, 2, 3, 4}
        Of an item: difficulty, discrimination, guessing, upper asymptote.
    latent_scale : float, optional
        Standard deviation of ability; None where it is estimated, or 1 by convention.
    pattern_groups : bool
        Whether takers who met the same items form a group with a mean of its own.
    quadrature, n_quadrature, item_prior, max_iter, tol, device, random_state, verbose, ability
        As in the models.
    drop_extreme : bool
        Whether items whose answers are all alike are left out.
    discrimination_prior : tuple of float, "auto" or None
        Mean and standard deviation of log a; "auto": weak, where takers are few.
    guessing_prior, upper_prior : tuple of float, optional
        Beta densities of c and 1 - u.
    """

    method: str
    n_parameters: Any
    latent_scale: float | None
    pattern_groups: bool
    quadrature: Quadrature
    n_quadrature: int
    item_prior: tuple[float, float] | None
    drop_extreme: bool
    max_iter: int
    tol: float
    device: str
    random_state: Any
    verbose: int
    ability: str = "eap"
    discrimination_prior: Any = None
    guessing_prior: tuple[float, float] | None = None
    upper_prior: tuple[float, float] | None = None


@dataclass(frozen=True)
class Calibrated:
    """What a calibration has found.

    Attributes
    ----------
    items : Items
        Estimates, with standard errors of the difficulties.
    latent : Latent
        Distribution of ability.
    log_likelihood : float, optional
        Marginal log-likelihood of the answers; for "jml" the joint, for "cml" the conditional one; None for
        "moment", which needs none.
    n_iter : int
        Iterations.
    converged : bool
        Whether they sufficed.
    posterior : object, optional
        Draws, for "bayes".
    abilities : tuple of ndarray, optional
        Estimates of the wanted kind and their standard deviations, where they came along.
    """

    items: Items
    latent: Latent
    log_likelihood: float | None
    n_iter: int
    converged: bool
    posterior: Any = None
    abilities: tuple[Floats, Floats] | None = None


def calibrate(responses: Responses, plan: Plan, *, group: NDArray[np.int64]) -> Calibrated:
    """Estimate items and the distribution of ability.

    Parameters
    ----------
    responses : Responses
        Answers.
    plan : Plan
        What and how.
    group : ndarray of int, shape (n_takers,)
        Group of each taker.

    Returns
    -------
    Calibrated
        The estimates; dropped items have infinite difficulties.
    """
    if plan.pattern_groups:
        group = pattern_groups(responses, group)
    kept = ~responses.extreme if plan.drop_extreme else np.ones(responses.n_items, dtype=bool)
    if not kept.all():
        found = _calibrate(responses.items(kept), plan, group)
        return replace(found, items=_with_dropped(found.items, responses, kept))
    return _calibrate(responses, plan, group)


def _with_dropped(items: Items, responses: Responses, kept: NDArray[np.bool_]) -> Items:
    """Put items that were left out back to their places, infinitely easy or hard."""
    easy = 2 * responses.right_by_item > responses.seen_by_item
    full = Items.of(np.where(easy, -np.inf, np.inf))
    for name in ("difficulty", "discrimination", "guessing", "upper", "difficulty_std"):
        getattr(full, name)[kept] = getattr(items, name)
    return full


def _calibrate(responses: Responses, plan: Plan, group: NDArray[np.int64]) -> Calibrated:
    latent = Latent(np.zeros(int(group.max()) + 1), plan.latent_scale or 1.0, group)
    if plan.method == "mml":
        return _marginal(responses, plan, latent)
    if plan.method == "moment":
        return _moment(responses, plan, latent)
    if plan.method == "jml":
        return _joint(responses, plan, latent)
    if plan.method == "cml":
        return _conditional(responses, plan, latent)
    if plan.method == "bayes":
        return _bayes(responses, plan, latent)
    return _first_order(responses, plan, latent)


def first_items(responses: Responses, plan: Plan) -> Items:
    """Guess difficulties from shares of right answers; guessing and upper asymptote from their priors."""
    share = (responses.right_by_item + 0.5) / (responses.seen_by_item + 1.0)
    low, high = 0.0, 1.0
    if plan.n_parameters > 2:
        prior = plan.guessing_prior or (5.0, 17.0)
        low = prior[0] / (prior[0] + prior[1])
    if plan.n_parameters > 3:
        prior = plan.upper_prior or (5.0, 61.0)
        high = 1 - prior[0] / (prior[0] + prior[1])
    inside = np.clip((share - low) / (high - low), 0.02, 0.98)
    return Items.of(-1.16 * logit(inside if plan.n_parameters > 2 else share), 1.0, low, high)


def free_step(responses: Responses, plan: Plan) -> FreeStep:
    """M-step of items with parameters of their own."""
    n = responses.n_items
    mean, std = (0.0, np.inf) if plan.item_prior is None else plan.item_prior
    means = np.full(n, float(mean))
    spread = np.where(responses.extreme, min(float(std), EXTREME_STD), float(std))
    slopes = plan.discrimination_prior
    if isinstance(slopes, str):
        slopes = WEAK_SLOPES if np.median(responses.seen_by_item) < FEW_TAKERS else None
    return FreeStep(plan.n_parameters, (means, spread), slopes, plan.guessing_prior, plan.upper_prior)


def _marginal(responses: Responses, plan: Plan, latent: Latent) -> Calibrated:
    from seedbed.estimators.amortized_irt.progress import reporter

    step = free_step(responses, plan)
    items = first_items(responses, plan)
    if len(latent.mean) > 1:
        latent, items = _apart(responses, plan, latent, items)
    with reporter(plan.verbose, plan.max_iter) as report:
        fitted = run_em(
            responses,
            items,
            latent,
            step,
            max_iter=plan.max_iter,
            tol=plan.tol,
            quadrature=plan.quadrature,
            n_quadrature=plan.n_quadrature,
            slopes=plan.n_parameters > 1,
            free_scale=plan.latent_scale is None,
            report=report,
            e_step=_e_step(plan.device),
        )
    if not fitted.converged:
        warnings.warn(
            f"EM did not converge in max_iter={plan.max_iter} iterations: raise max_iter or tol",
            ConvergenceWarning,
            stacklevel=5,
        )
    if len(latent.mean) == 1:
        _warn_of_groups(responses, fitted.items, fitted.expectation, float(fitted.latent.scale))
    found = fitted.expectation
    return Calibrated(
        _with_errors(responses, fitted.items, found, step),
        fitted.latent,
        fitted.log_likelihood,
        fitted.n_iter,
        fitted.converged,
        abilities=(found.mean, found.std) if plan.ability == "eap" else None,
    )


def _e_step(device: str) -> Any:
    """NumPy's E-step, or on a GPU that is asked for by name PyTorch's."""
    if not device.startswith("cuda"):
        return expect
    from seedbed.estimators.amortized_irt.device_expectation import DeviceExpectation
    from seedbed.estimators.amortized_irt.first_order import resolve_device

    return DeviceExpectation(resolve_device(device))


def _with_errors(responses: Responses, items: Items, expectation: Expectation, step: FreeStep) -> Items:
    """Add standard errors of the difficulties."""
    precision = step.precision(items)
    return replace(
        items,
        difficulty_std=difficulty_std(items, item_covariances(responses, items, expectation, precision)),
    )


def _apart(responses: Responses, plan: Plan, latent: Latent, items: Items) -> tuple[Latent, Items]:
    """Start groups from joint maximum likelihood, from which abilities have no common prior to shrink to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near enough for a start
        start = calibrate_joint(responses, max_iter=50, tol=1e-4)
    weight = responses.weight
    total = np.bincount(latent.group, weight, minlength=len(latent.mean))
    sums = np.bincount(latent.group, weight * start.ability, minlength=len(latent.mean))
    means = sums / np.maximum(total, 1e-300)
    b = items.difficulty
    if plan.n_parameters <= 2:
        b = start.items.difficulty - means[0]
    return Latent(means - means[0], latent.scale, latent.group), replace(items, difficulty=b)


def _warn_of_groups(responses: Responses, items: Items, expectation: Expectation, scale: float) -> None:
    """Warn where takers who met other items differ in ability."""
    if responses.seen is None or len(responses.patterns[1]) == 0:
        return
    _, sizes = np.unique(responses.patterns[1], return_counts=True)
    if (sizes >= SMALL_GROUP).sum() < 2:
        return
    unequal = respondent_spread(responses, expectation.mean, items.difficulty, scale) / scale
    if unequal > UNEQUAL_GROUPS:
        warnings.warn(
            f"the mean ability of those who answered an item varies between items by {unequal:.2f} of its "
            "standard deviation, and one population for all draws groups together: pass taker_groups, or set "
            "latent_groups='pattern'",
            UserWarning,
            stacklevel=6,
        )


def pattern_groups(responses: Responses, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Group takers by the items they met; groups of fewer than ``SMALL_GROUP`` takers are pooled.

    Parameters
    ----------
    responses : Responses
        Answers.
    group : ndarray of int, shape (n_takers,)
        Groups within which patterns are told apart.

    Returns
    -------
    ndarray of int, shape (n_takers,)
        Groups, the largest first.
    """
    pattern = responses.patterns[1]
    _, code, count = np.unique(
        group * (int(pattern.max()) + 1) + pattern, return_inverse=True, return_counts=True
    )
    pooled = np.where(count[code] < SMALL_GROUP, -1, code)
    _, code, count = np.unique(pooled, return_inverse=True, return_counts=True)
    rank = np.empty(len(count), dtype=np.int64)
    rank[np.argsort(-count, kind="stable")] = np.arange(len(count))
    return np.asarray(rank[code])


# -- the other methods -------------------------------------------------------------------------------------


def _moment(responses: Responses, plan: Plan, latent: Latent) -> Calibrated:
    if len(latent.mean) > 1:
        raise ValueError("method='moment' knows one population; use method='mml' with groups")
    found = calibrate_moment(responses, scale=plan.latent_scale)
    nodes = found.scale * np.linspace(-6, 6, 61)
    kinds, kind = np.unique(found.items.difficulty, return_inverse=True)  # far fewer, where few took the test
    curve = expit(nodes - kinds[:, None])
    density = np.exp(-0.5 * (nodes / found.scale) ** 2)
    slope = ((curve * (1 - curve)) @ (density / density.sum()))[kind]
    n = np.maximum(responses.seen_by_item, 1e-12)
    share = np.clip(responses.right_by_item / n, 0.5 / n, 1 - 0.5 / n)
    items = replace(found.items, difficulty_std=np.sqrt(share * (1 - share) / n) / slope)
    latent = Latent(latent.mean, found.scale, latent.group)
    abilities = None
    if plan.ability == "eap":
        posterior = expect(responses, items, latent, n_parameters=0, n_quadrature=plan.n_quadrature)
        abilities = posterior.mean, posterior.std
    return Calibrated(items, latent, None, found.n_iter, True, abilities=abilities)


def _joint(responses: Responses, plan: Plan, latent: Latent) -> Calibrated:
    found = calibrate_joint(responses, max_iter=plan.max_iter, tol=plan.tol)
    center = float(np.average(found.ability, weights=responses.weight))
    spread = float(np.sqrt(np.average((found.ability - center) ** 2, weights=responses.weight)))
    total = np.bincount(latent.group, responses.weight, minlength=len(latent.mean))
    sums = np.bincount(latent.group, responses.weight * found.ability, minlength=len(latent.mean))
    means = sums / np.maximum(total, 1e-300)
    latent = Latent(means if len(means) > 1 else np.array([center]), max(spread, 1e-6), latent.group)
    items = replace(found.items, difficulty_std=_joint_errors(responses, found.items, found.ability))
    return Calibrated(items, latent, found.log_likelihood, found.n_iter, found.converged)


def _joint_errors(responses: Responses, items: Items, ability: Floats) -> Floats:
    """Standard errors of difficulties at known abilities."""
    information = np.zeros(len(items))
    for rows, cells in responses.blocks(1 << 21):
        curve = items.probability(ability[rows]) if cells.item is None else None
        if curve is None:
            x = cells.from_takers(ability[rows]) - cells.from_items(items.difficulty)
            curve = 1 / (1 + np.exp(-x))
        information += cells.by_item(curve * (1 - curve) * cells.from_takers(responses.weight[rows]))
    return 1 / np.sqrt(np.maximum(information, 1e-12))


def _conditional(responses: Responses, plan: Plan, latent: Latent) -> Calibrated:
    from seedbed.estimators.amortized_irt.conditional import calibrate_conditional

    found = calibrate_conditional(responses, max_iter=plan.max_iter)
    latent = _latent_for(responses, plan, found.items, latent)
    return Calibrated(found.items, latent, found.log_likelihood, found.n_iter, found.converged)


class _Held:
    """M-step that leaves the items where they are: only the distribution of ability is estimated."""

    n_parameters = 1

    def update(self, items: Items, expectation: Expectation) -> Items:  # noqa: ARG002
        return items

    def log_prior(self, items: Items) -> float:  # noqa: ARG002
        return 0.0

    def shift(self, items: Items, mean: float, scale: float) -> Items:
        return replace(items, difficulty=(items.difficulty - mean) / scale)


def _latent_for(responses: Responses, plan: Plan, items: Items, latent: Latent) -> Latent:
    """Distribution of ability that goes with known items, on their scale."""
    fitted = run_em(
        responses,
        items,
        latent,
        _Held(),
        max_iter=plan.max_iter,
        tol=1e-7,
        n_quadrature=plan.n_quadrature,
        free_scale=plan.latent_scale is None,
    )
    moved = float(np.mean(items.difficulty - fitted.items.difficulty))
    return replace(fitted.latent, mean=fitted.latent.mean + moved)


def _bayes(responses: Responses, plan: Plan, latent: Latent) -> Calibrated:
    """Draws by Gibbs sampling, or from the normal law at the mode where that cannot be."""
    scale = (1.0, 1.0) if plan.n_parameters == 1 and plan.latent_scale is None else None
    slopes = plan.discrimination_prior if isinstance(plan.discrimination_prior, tuple) else WEAK_SLOPES
    priors = Priors(
        scale=scale,
        difficulty=plan.item_prior,
        log_discrimination=slopes,
        guessing=plan.guessing_prior or Priors.guessing,
    )
    seed = check_random_state(plan.random_state).randint(2**31 - 1)
    reason = _why_no_gibbs(responses, plan)
    if reason is not None:
        if plan.n_parameters > 3:
            raise ValueError("method='bayes' knows no upper_prior; use method='mml'")
        if reason:
            warnings.warn(f"{reason}: 'bayes' takes the normal law at the mode", UserWarning, stacklevel=5)
        from seedbed.estimators.amortized_irt.laplace import laplace_posterior

        fitted, posterior = laplace_posterior(
            responses, n_parameters=plan.n_parameters, priors=priors, group=latent.group, random_state=seed
        )
        return Calibrated(
            fitted.items, fitted.latent, fitted.log_likelihood, fitted.n_iter, fitted.converged, posterior
        )
    from seedbed.estimators.amortized_irt.gibbs import sample_posterior

    posterior = sample_posterior(
        responses, slopes=plan.n_parameters == 2, priors=priors, group=latent.group, random_state=seed
    )
    items = posterior.items()
    latent = Latent(posterior.mean.mean(axis=0), float(posterior.scale.mean()), latent.group)
    found = expect(responses, items, latent, n_parameters=0, n_quadrature=plan.n_quadrature)
    value = float(responses.weight @ found.log_likelihood)
    return Calibrated(items, latent, value, len(posterior.scale), True, posterior)


def _why_no_gibbs(responses: Responses, plan: Plan) -> str | None:
    """Say why the posterior cannot be sampled; None if it can, "" where nobody expects it."""
    if plan.n_parameters > 2:
        return ""
    if (responses.weight != 1).any():
        return "takers have weights, which Gibbs sampling does not know"
    if find_spec("polyagamma") is None:
        return "polyagamma is not installed (pip install 'seedbed[bayes]')"
    return None


def _first_order(responses: Responses, plan: Plan, latent: Latent) -> Calibrated:
    from seedbed.estimators.amortized_irt.first_order import calibrate_first_order

    return calibrate_first_order(responses, plan, latent)
