"""Posterior draws of the Rasch and 2PL models by Gibbs sampling with Polya-Gamma variables."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.checks import check_number, missing_extra
from seedbed.estimators.amortized_irt.moment import calibrate_moment
from seedbed.estimators.amortized_irt.posterior import InverseGamma, Posterior, Priors
from seedbed.estimators.amortized_irt.responses import Responses

__all__ = ["GibbsSampler", "Posterior", "Priors", "sample_posterior"]

Floats = NDArray[np.float64]


class _Cells:
    """Observed cells, and sums over them by taker and by item."""

    def __init__(self, responses: Responses) -> None:
        self.n_takers, self.n_items = responses.n_takers, responses.n_items
        self.complete = responses.seen is None and not responses.is_sparse
        if self.complete:
            right = responses.right
        else:
            self.taker, self.item, right = responses.long()
        self.half: Floats = np.ascontiguousarray(right - 0.5)
        self.half_by_taker = self.by_taker(self.half)
        self.half_by_item = self.by_item(self.half)

    def of_takers(self, values: Floats) -> Floats:
        """Each cell's taker's value."""
        return values[:, None] if self.complete else values[self.taker]

    def of_items(self, values: Floats) -> Floats:
        """Each cell's item's value."""
        return values if self.complete else values[self.item]

    def by_taker(self, values: Floats) -> Floats:
        """Sums by taker."""
        if self.complete:
            return np.asarray(values.sum(axis=1))
        return np.asarray(np.bincount(self.taker, values, minlength=self.n_takers), dtype=float)

    def by_item(self, values: Floats) -> Floats:
        """Sums by item."""
        if self.complete:
            return np.asarray(values.sum(axis=0))
        return np.asarray(np.bincount(self.item, values, minlength=self.n_items), dtype=float)


class GibbsSampler:
    """One chain: abilities, item parameters and the parameters of their laws, drawn in turn.

    With omega ~ PG(1, psi) for each cell, psi = a (theta - b), the likelihood is Gaussian in psi: all
    conditional laws of theta and b are normal, that of a is normal times its prior (Polson, Scott and Windle,
    2013).

    Parameters
    ----------
    responses : Responses
        The cells; all takers weigh 1.
    priors : Priors
        Prior laws.
    slopes : bool
        Whether discriminations are drawn (2PL) or 1 (Rasch).
    group : ndarray of int, shape (n_takers,), optional
        Groups of takers with means of their own; that of group 0 is 0.
    random_state : int, Generator or None
        Source of randomness.

    Raises
    ------
    ImportError
        If polyagamma is not installed.
    ValueError
        If a taker weighs other than 1, or a prior is out of range.
    """

    def __init__(
        self,
        responses: Responses,
        priors: Priors,
        *,
        slopes: bool = False,
        group: NDArray[np.int64] | None = None,
        random_state: Any = None,
    ) -> None:
        try:
            from polyagamma import random_polyagamma
        except ImportError as error:
            raise missing_extra(
                "polyagamma", "bayes", "the Gibbs sampler of method='bayes' (laplace_posterior does without)"
            ) from error
        if (responses.weight != 1).any():
            raise ValueError("sample_weight must be 1 for all takers with method='bayes'; use method='mml'")
        priors.check()
        self.priors, self.slopes = priors, slopes
        self.rng = np.random.default_rng(random_state)
        self._draw_polya_gamma = random_polyagamma
        self._cells = _Cells(responses)
        start = calibrate_moment(responses, scale=1.0, warn=False)
        self.theta = start.ability
        self.b = start.items.difficulty
        self.a = np.ones(responses.n_items)
        self.scale = 1.0
        self.group = np.zeros(responses.n_takers, dtype=np.int64) if group is None else group
        self.mean = np.zeros(int(self.group.max()) + 1)
        self.law = priors.difficulty or (float(self.b.mean()), float(self.b.std()) + 0.1)

    def step(self) -> None:
        """Draw everything once."""
        omega = self._omega()
        self._draw_abilities(omega)
        self._draw_difficulties(omega)
        if self.slopes:
            self._draw_discriminations(omega)
        self._shift()
        self._draw_laws()

    def _omega(self) -> Floats:
        cells = self._cells
        psi = cells.of_items(self.a) * (cells.of_takers(self.theta) - cells.of_items(self.b))
        return np.asarray(self._draw_polya_gamma(1.0, psi, random_state=self.rng, disable_checks=True))

    def _draw_abilities(self, omega: Floats) -> None:
        """Theta | rest: precision sum of omega a^2 + 1 / s^2."""
        cells = self._cells
        a = cells.of_items(self.a)
        heavy = omega * a**2
        precision = cells.by_taker(heavy) + self.scale**-2
        pull = cells.by_taker(a * cells.half + heavy * cells.of_items(self.b))
        pull += self.mean[self.group] / self.scale**2
        self.theta = pull / precision + self.rng.standard_normal(len(pull)) / np.sqrt(precision)

    def _draw_difficulties(self, omega: Floats) -> None:
        """B | rest: precision a^2 sum of omega + 1 / tau^2."""
        cells = self._cells
        mu, tau = self.law
        precision = self.a**2 * cells.by_item(omega) + tau**-2
        pull = self.a**2 * cells.by_item(omega * cells.of_takers(self.theta)) - self.a * cells.half_by_item
        pull += mu / tau**2
        self.b = pull / precision + self.rng.standard_normal(len(pull)) / np.sqrt(precision)

    def _draw_discriminations(self, omega: Floats) -> None:
        """A | rest: a normal proposal from the likelihood, accepted by the prior (Metropolis)."""
        cells = self._cells
        x = cells.of_takers(self.theta) - cells.of_items(self.b)
        precision = cells.by_item(omega * x**2)
        centre = cells.by_item(cells.half * x) / precision
        proposal = centre + self.rng.standard_normal(len(centre)) / np.sqrt(precision)
        log_ratio = np.full(len(centre), -np.inf)
        positive = proposal > 0
        log_ratio[positive] = self._log_slope(proposal[positive]) - self._log_slope(self.a[positive])
        accept = np.log(self.rng.uniform(size=len(centre))) < log_ratio
        self.a = np.where(accept, proposal, self.a)

    def _log_slope(self, a: Floats) -> Floats:
        """Log density of the log-normal prior, up to a constant."""
        mean, std = self.priors.log_discrimination
        log_a = np.log(a)
        return -log_a - 0.5 * ((log_a - mean) / std) ** 2

    def _shift(self) -> None:
        """Move abilities and difficulties together; the likelihood is blind to it, single draws are slow."""
        mu, tau = self.law
        from_mean = self.theta - self.mean[self.group]
        precision = len(self.theta) / self.scale**2 + len(self.b) / tau**2
        pull = -from_mean.sum() / self.scale**2 - (self.b - mu).sum() / tau**2
        by = pull / precision + self.rng.standard_normal() / np.sqrt(precision)
        self.theta += by
        self.b += by

    def _draw_laws(self) -> None:
        """s, the means of the groups, mu and tau given abilities and difficulties."""
        if len(self.mean) > 1:
            size = np.bincount(self.group, minlength=len(self.mean))
            centre = np.bincount(self.group, self.theta, minlength=len(self.mean)) / size
            self.mean = centre + self.scale * self.rng.standard_normal(len(size)) / np.sqrt(size)
            self.mean[0] = 0.0
        if self.priors.scale is not None:
            rest = self.theta - self.mean[self.group]
            self.scale = float(np.sqrt(self._inverse_gamma(self.priors.scale, rest)))
        if self.priors.difficulty is None:
            tau = float(np.sqrt(self._inverse_gamma(self.priors.difficulty_variance, self.b - self.law[0])))
            precision = len(self.b) / tau**2 + self.priors.difficulty_mean_std**-2
            centre = self.b.sum() / tau**2 / precision
            self.law = (float(centre + self.rng.standard_normal() / np.sqrt(precision)), tau)

    def _inverse_gamma(self, law: InverseGamma, values: Floats) -> float:
        """Draw a variance given what it spreads."""
        shape, rate = law[0] + len(values) / 2, law[1] + values @ values / 2
        return float(rate / self.rng.standard_gamma(shape))


def sample_posterior(
    responses: Responses,
    *,
    slopes: bool = False,
    priors: Priors | None = None,
    group: NDArray[np.int64] | None = None,
    n_draws: int = 2000,
    n_burn_in: int = 500,
    random_state: Any = None,
) -> Posterior:
    """Draw from the posterior of the Rasch (or, with ``slopes``, 2PL) model.

    Parameters
    ----------
    responses : Responses
        The cells; all takers weigh 1.
    slopes : bool
        Whether discriminations are free.
    priors : Priors, optional
        Prior laws; the default ones where None, with s = 1 if discriminations are free.
    group : ndarray of int, shape (n_takers,), optional
        Groups of takers with means of their own; that of group 0 is 0.
    n_draws : int
        Draws kept.
    n_burn_in : int
        Draws thrown away before.
    random_state : int, Generator or None
        Source of randomness.

    Returns
    -------
    Posterior
        The draws.

    Raises
    ------
    ImportError
        If polyagamma is not installed.
    ValueError
        If a number is out of range, or a taker weighs other than 1.
    """
    check_number("n_draws", n_draws, low=2, integer=True)
    check_number("n_burn_in", n_burn_in, low=0, integer=True)
    chosen = priors or Priors(scale=None if slopes else (1.0, 1.0))
    chain = GibbsSampler(responses, chosen, slopes=slopes, group=group, random_state=random_state)
    b, a = np.empty((n_draws, responses.n_items)), np.empty((n_draws, responses.n_items))
    scale, law, mean = np.empty(n_draws), np.empty((n_draws, 2)), np.empty((n_draws, len(chain.mean)))
    total, squares = np.zeros(responses.n_takers), np.zeros(responses.n_takers)
    for _ in range(n_burn_in):
        chain.step()
    pivot = chain.theta.copy()
    for k in range(n_draws):
        chain.step()
        b[k], a[k], scale[k], law[k], mean[k] = chain.b, chain.a, chain.scale, chain.law, chain.mean
        apart = chain.theta - pivot
        total += apart
        squares += apart**2
    centre = total / n_draws
    spread = np.sqrt(np.clip(squares - n_draws * centre**2, 0, None) / (n_draws - 1))
    return Posterior(b, a, np.zeros_like(b), scale, mean, law, pivot + centre, spread)
