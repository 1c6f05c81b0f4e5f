"""Posterior of item models with priors, as the normal law that fits it at its mode."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from seedbed.checks import check_choice, check_number
from seedbed.estimators.amortized_irt.em import Fitted, FreeStep, Latent, expect, run_em
from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.moment import calibrate_moment
from seedbed.estimators.amortized_irt.posterior import Posterior, Priors
from seedbed.estimators.amortized_irt.responses import Responses

Floats = NDArray[np.float64]

MOST_PARAMETERS = 400
"""Up to so many parameters have a full matrix of second derivatives; beyond, items count as independent."""
DIFFERENCE = 1e-4
POLISH = 10
"""Most Newton steps from where EM ends to the mode."""
LAW_ROUNDS = 30
LAW_TOL = 1e-4


@dataclass(frozen=True)
class _Problem:
    """The log posterior of items and population, abilities integrated out.

    Parameters are, by item, the difficulty, or log a, the intercept and logit c; then log s, if it has a
    prior; then the means of the groups but the first.
    """

    responses: Responses
    n_parameters: Any
    step: FreeStep
    priors: Priors
    group: NDArray[np.int64]
    n_groups: int

    @property
    def n_item_parameters(self) -> int:
        """Length of the items' part."""
        return int(self.responses.n_items * self.n_parameters)

    def pack(self, items: Items, latent: Latent) -> Floats:
        """Parameters as a vector."""
        if self.n_parameters == 1:
            columns = [items.difficulty]
        else:
            columns = [np.log(items.discrimination), items.intercept, logit(items.guessing)][
                : self.n_parameters
            ]
        rest = [] if self.priors.scale is None else [np.log(np.atleast_1d(latent.scale))]
        return np.concatenate([np.stack(columns, axis=1).ravel(), *rest, latent.mean[1:]])

    def unpack(self, x: Floats) -> tuple[Items, Latent]:
        """The reverse of ``pack``."""
        table = x[: self.n_item_parameters].reshape(-1, self.n_parameters)
        rest = x[self.n_item_parameters :]
        scale = 1.0
        if self.priors.scale is not None:
            scale, rest = float(np.exp(rest[0])), rest[1:]
        latent = Latent(np.append(0.0, rest), scale, self.group)
        if self.n_parameters == 1:
            return Items.of(table[:, 0]), latent
        a = np.exp(table[:, 0])
        guessing = expit(table[:, 2]) if self.n_parameters > 2 else 0.0
        return Items.of(-table[:, 1] / a, a, guessing), latent

    def gradient(self, x: Floats) -> tuple[Floats, Floats]:
        """Derivative of the log posterior (Fisher's identity), and each item's complete information."""
        items, latent = self.unpack(x)
        found = expect(self.responses, items, latent, n_parameters=self.n_parameters)
        if self.n_parameters == 1:
            mean, std = self.step.difficulty_prior
            of_items = found.gradient - ((items.difficulty - mean) * std**-2.0)[:, None]
            blocks = found.curvature + (std**-2.0)[:, None, None]
        else:
            of_items, blocks = self.step._scores(items, found)
        parts = [of_items.ravel()]
        weight, off = self.responses.weight, found.mean - latent.prior_mean
        if self.priors.scale is not None:
            shape, rate = self.priors.scale
            variance = float(latent.scale) ** 2
            likelihood = float(weight @ ((off**2 + found.std**2) / variance - 1))
            parts.append(np.array([likelihood - 2 * shape + 2 * rate / variance]))
        by_group = np.bincount(self.group, weight * off, minlength=self.n_groups)
        parts.append(by_group[1:] / float(latent.scale) ** 2)
        return np.concatenate(parts), blocks

    def information(self, x: Floats) -> Floats:
        """Minus the second derivative, by central differences of the gradient."""
        columns = []
        for k in range(len(x)):
            move = np.zeros(len(x))
            move[k] = DIFFERENCE
            columns.append((self.gradient(x - move)[0] - self.gradient(x + move)[0]) / (2 * DIFFERENCE))
        found = np.stack(columns, axis=1)
        return (found + found.T) / 2


def laplace_posterior(
    responses: Responses,
    *,
    n_parameters: int = 1,
    priors: Priors | None = None,
    group: NDArray[np.int64] | None = None,
    n_draws: int = 2000,
    max_iter: int = 100,
    tol: float = 1e-8,
    random_state: Any = None,
) -> tuple[Fitted, Posterior]:
    """Draw from the normal law at the mode of the posterior of the Rasch, 2PL or 3PL model.

    Where mu and tau of the difficulties are learned, they stand at the mode of their posterior with the
    difficulties integrated out by their own normal laws. Abilities have their posterior at the mode of
    everything else.

    Parameters
    ----------
    responses : Responses
        The cells.
    n_parameters : {1, 2, 3}
        Difficulty; discrimination, too; guessing, too.
    priors : Priors, optional
        Prior laws; the default ones where None, with s = 1 if discriminations are free.
    group : ndarray of int, shape (n_takers,), optional
        Groups of takers with means of their own; that of group 0 is 0.
    n_draws : int
        Draws.
    max_iter, tol
        Of EM, which Newton steps follow.
    random_state : int, Generator or None
        Source of randomness.

    Returns
    -------
    fitted : Fitted
        The mode, with the standard deviations of the difficulties.
    posterior : Posterior
        Draws.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    check_choice("n_parameters", n_parameters, (1, 2, 3))
    check_number("n_draws", n_draws, low=2, integer=True)
    chosen = priors or Priors(scale=None if n_parameters > 1 else (1.0, 1.0))
    chosen.check()
    member = np.zeros(responses.n_takers, dtype=np.int64) if group is None else group
    fitted, law, problem = _mode_of_law(responses, n_parameters, chosen, member, max_iter, tol)
    x = problem.pack(fitted.items, fitted.latent)
    full = len(x) <= MOST_PARAMETERS
    converged = fitted.converged
    if full:
        x, converged = _polish(problem, x)
    items, latent = problem.unpack(x)
    found = expect(responses, items, latent)
    noise = np.random.default_rng(random_state).standard_normal((n_draws, len(x)))
    if full:
        values, vectors = np.linalg.eigh(problem.information(x))
        noise = (noise / np.sqrt(np.maximum(values, 1e-8))) @ vectors.T
    else:
        noise = _independent(problem, x, noise)
    drawn = [problem.unpack(row) for row in x + noise]
    names = ("difficulty", "discrimination", "guessing")
    b, a, c = (np.stack([getattr(one, name) for one, _ in drawn]) for name in names)
    scale = np.array([float(each.scale) for _, each in drawn])
    mean = np.stack([each.mean for _, each in drawn])
    laws = np.tile(law, (n_draws, 1))
    value = float(responses.weight @ found.log_likelihood)
    items = replace(items, difficulty_std=b.std(axis=0, ddof=1))
    there = Fitted(items, latent, found, value, fitted.n_iter, converged, fitted.history)
    return there, Posterior(b, a, c, scale, mean, laws, found.mean, found.std)


def _mode_of_law(
    responses: Responses,
    n_parameters: Any,
    priors: Priors,
    group: NDArray[np.int64],
    max_iter: int,
    tol: float,
) -> tuple[Fitted, tuple[float, float], _Problem]:
    """Run EM, and where mu and tau are learned, in turn with them."""
    start = calibrate_moment(responses, scale=1.0, warn=False).items.difficulty
    n_groups, n_items = int(group.max()) + 1, responses.n_items
    guess = priors.guessing[0] / sum(priors.guessing) if n_parameters > 2 else 0.0
    items, latent = Items.of(start, 1.0, guess), Latent(np.zeros(n_groups), 1.0, group)
    mu, tau = priors.difficulty or (float(start.mean()), float(start.std()) + 0.1)
    n_iter = 0
    for _ in range(LAW_ROUNDS):
        step = FreeStep(
            n_parameters,
            (np.full(n_items, mu), np.full(n_items, tau)),
            priors.log_discrimination,
            priors.guessing if n_parameters > 2 else None,
        )
        fitted = run_em(
            responses,
            items,
            latent,
            step,
            max_iter=max_iter,
            tol=tol,
            slopes=n_parameters > 1,
            free_scale=priors.scale is not None,
        )
        items, latent, n_iter = fitted.items, fitted.latent, n_iter + fitted.n_iter
        problem = _Problem(responses, n_parameters, step, priors, group, n_groups)
        if priors.difficulty is not None:
            break
        before = (mu, tau)
        shape, rate = priors.difficulty_variance
        variance = _difficulty_variance(problem, fitted)
        precision = n_items / tau**2 + priors.difficulty_mean_std**-2
        mu = float(items.difficulty.sum() / tau**2 / precision)
        total = float(((items.difficulty - mu) ** 2 + variance).sum())
        tau = float(np.sqrt((rate + total / 2) / (shape + n_items / 2 + 1)))
        if abs(mu - before[0]) + abs(tau - before[1]) < LAW_TOL:
            break
    return fitted, (mu, tau), problem


def _difficulty_variance(problem: _Problem, fitted: Fitted) -> Floats:
    """Variance of each difficulty by its own block of information."""
    _, blocks = problem.gradient(problem.pack(fitted.items, fitted.latent))
    covariance = np.linalg.inv(blocks)
    if problem.n_parameters == 1:
        return np.asarray(covariance[:, 0, 0])
    a, b = fitted.items.discrimination, fitted.items.difficulty
    direction = np.stack([-b, -1 / a], axis=1)
    return np.einsum("ij,ijk,ik->i", direction, covariance[:, :2, :2], direction)


def _polish(problem: _Problem, x: Floats) -> tuple[Floats, bool]:
    """Newton steps to the mode, and whether it was reached: EM is slow at the end and knows no prior of s."""
    information = problem.information(x)
    for _ in range(POLISH):
        values, vectors = np.linalg.eigh(information)
        gradient = problem.gradient(x)[0]
        move = vectors @ ((vectors.T @ gradient) / np.maximum(values, 1e-6 * values.max()))
        x = x + move * min(1.0, 0.5 / max(float(np.abs(move).max()), 1e-300))
        if np.abs(move).max() < 1e-5:
            return x, True
    return x, False


def _independent(problem: _Problem, x: Floats, noise: Floats) -> Floats:
    """Noise of items that count as independent, given abilities; and of the population given its members."""
    _, blocks = problem.gradient(x)
    root = np.linalg.cholesky(np.linalg.inv(blocks))
    n, size = len(noise), problem.n_item_parameters
    of_items = noise[:, :size].reshape(n, -1, problem.n_parameters)
    spread = np.einsum("ijk,nik->nij", root, of_items).reshape(n, size)
    _, latent = problem.unpack(x)
    total = np.bincount(problem.group, problem.responses.weight, minlength=problem.n_groups)
    widths = [] if problem.priors.scale is None else [1 / np.sqrt(2 * total.sum())]
    widths += list(float(latent.scale) / np.sqrt(np.maximum(total[1:], 1.0)))
    return np.concatenate([spread, noise[:, size:] * np.array(widths)], axis=1)
