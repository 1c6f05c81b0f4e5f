"""Likelihood of answers: at known abilities, and with abilities integrated out.

Every taker has quadrature nodes of their own, around the mode of their posterior and as wide as it: with many
items posteriors are narrower than the gaps between nodes that all takers could share.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

MOST_STEPS = 50
"""Newton steps to a posterior mode; from a mode nearby two or three do."""
STEP_TOLERANCE = 1e-5
LONGEST_STEP = 2.0
"""A mode moves at most so many prior standard deviations at a time."""


@dataclass(frozen=True)
class Curves:
    """Items of P(right | theta) = c + (1 - c) sigma(slope . theta + intercept).

    Attributes
    ----------
    slope : Tensor of shape (n_items, n_dimensions)
        Slopes.
    intercept : Tensor of shape (n_items,)
        Intercepts.
    guess_logit : Tensor of shape (n_items,), optional
        Logits of c; None where c = 0.
    """

    slope: Float[Tensor, "items dims"]
    intercept: Float[Tensor, " items"]
    guess_logit: Float[Tensor, " items"] | None = None

    def logit(
        self, item: Int[Tensor, " cells"], theta: Float[Tensor, "cells *nodes dims"]
    ) -> Float[Tensor, "cells *nodes"]:
        """Return ``slope . theta + intercept`` for each cell."""
        extra = theta.ndim - 2
        shape = (len(item), *(1,) * extra)
        slope = self.slope[item].reshape(*shape, -1)
        return (slope * theta).sum(-1) + self.intercept[item].reshape(shape)

    def probability(
        self, item: Int[Tensor, " cells"], theta: Float[Tensor, "cells *nodes dims"]
    ) -> Float[Tensor, "cells *nodes"]:
        """Chance of a right answer in each cell.

        Parameters
        ----------
        item : Tensor of int, shape (cells,)
            Item of each cell.
        theta : Tensor of shape (cells, ..., n_dimensions)
            Abilities.

        Returns
        -------
        Tensor of shape (cells, ...)
            Chances.
        """
        curve = torch.sigmoid(self.logit(item, theta))
        if self.guess_logit is None:
            return curve
        low = torch.sigmoid(self.guess_logit[item]).reshape(-1, *(1,) * (curve.ndim - 1))
        return low + (1 - low) * curve

    def log_likelihood(
        self,
        item: Int[Tensor, " cells"],
        theta: Float[Tensor, "cells *nodes dims"],
        y: Float[Tensor, " cells"],
    ) -> Float[Tensor, "cells *nodes"]:
        """Log-probability of the answer in each cell.

        Parameters
        ----------
        item : Tensor of int, shape (cells,)
            Item of each cell.
        theta : Tensor of shape (cells, ..., n_dimensions)
            Abilities.
        y : Tensor of shape (cells,)
            Answers, 1 for right and 0 for wrong.

        Returns
        -------
        Tensor of shape (cells, ...)
            Log-probabilities.
        """
        z = self.logit(item, theta)
        right = (y > 0.5).reshape(-1, *(1,) * (z.ndim - 1))
        if self.guess_logit is None:
            return logsigmoid(torch.where(right, z, -z))
        low = self.guess_logit[item].reshape(right.shape)
        not_guessed = logsigmoid(-low)
        known = torch.logaddexp(logsigmoid(low).expand_as(z), not_guessed + logsigmoid(z))
        return torch.where(right, known, not_guessed + logsigmoid(-z))

    def scores(
        self,
        item: Int[Tensor, " cells"],
        theta: Float[Tensor, "cells dims"],
        y: Float[Tensor, " cells"],
    ) -> tuple[Float[Tensor, " cells"], Float[Tensor, " cells"]]:
        """Derivative of each cell's log-probability in its logit, and the information about it.

        Parameters
        ----------
        item, theta, y
            As for :meth:`log_likelihood`.

        Returns
        -------
        tuple of Tensor, each of shape (cells,)
            Derivative, information.
        """
        curve = torch.sigmoid(self.logit(item, theta))
        if self.guess_logit is None:
            return y - curve, curve * (1 - curve)
        low = torch.sigmoid(self.guess_logit[item])
        chance = low + (1 - low) * curve
        share = curve / chance  # dP/dz / (1 - P) / P
        return (y - chance) * share, (1 - low) * curve * (1 - curve) * share


@dataclass(frozen=True)
class Rule:
    """Product of Gauss-Hermite rules for the standard normal density.

    Attributes
    ----------
    nodes : Tensor of shape (n_nodes, n_dimensions)
        Nodes.
    log_weights : Tensor of shape (n_nodes,)
        Logs of the weights, which sum to one.
    """

    nodes: Float[Tensor, "nodes dims"]
    log_weights: Float[Tensor, " nodes"]

    @classmethod
    def product(cls, n_quadrature: int, n_dimensions: int) -> "Rule":
        """Make the rule of ``n_quadrature ** n_dimensions`` nodes.

        Parameters
        ----------
        n_quadrature : int
            Nodes of each dimension.
        n_dimensions : int
            Dimensions.

        Returns
        -------
        Rule
            In float64.
        """
        x, w = np.polynomial.hermite_e.hermegauss(n_quadrature)
        nodes = list(itertools.product(x, repeat=n_dimensions))
        logs = list(itertools.product(np.log(w / w.sum()), repeat=n_dimensions))
        return cls(
            torch.tensor(nodes, dtype=torch.float64), torch.tensor(logs, dtype=torch.float64).sum(dim=1)
        )

    def to(self, like: Tensor) -> "Rule":
        """Move the rule to a tensor's device and dtype."""
        return Rule(self.nodes.to(like), self.log_weights.to(like))

    def around(
        self, mean: Float[Tensor, "n dims"], factor: Float[Tensor, "n dims dims"]
    ) -> Float[Tensor, "n nodes dims"]:
        """Nodes for normal laws N(mean, factor factor')."""
        return mean[:, None] + torch.einsum("nij,qj->nqi", factor, self.nodes)


@dataclass(frozen=True)
class Marginal:
    """Marginal likelihood and posteriors of some takers.

    Attributes
    ----------
    log_likelihood : Tensor of shape (n_takers,)
        Of each taker's answers, with its gradient in the item parameters and the scale.
    mean : Tensor of shape (n_takers, n_dimensions)
        Posterior means of ability.
    factor : Tensor of shape (n_takers, n_dimensions, n_dimensions)
        Cholesky factors of the posterior covariances.
    """

    log_likelihood: Float[Tensor, " n"]
    mean: Float[Tensor, "n dims"]
    factor: Float[Tensor, "n dims dims"]


def accumulator(like: Tensor) -> torch.dtype:
    """The dtype for sums of many logarithms: float64 where the device has it."""
    return torch.float32 if like.device.type == "mps" else torch.float64


@torch.no_grad()
def posterior_modes(
    curves: Curves,
    taker: Int[Tensor, " cells"],
    item: Int[Tensor, " cells"],
    y: Float[Tensor, " cells"],
    scale: Float[Tensor, ""],
    start: Float[Tensor, "n dims"],
) -> tuple[Float[Tensor, "n dims"], Float[Tensor, "n dims dims"]]:
    """Find the modes of the takers' posteriors by Fisher scoring.

    Parameters
    ----------
    curves : Curves
        Items.
    taker, item : Tensor of int, shape (cells,)
        Row of ``start`` and item of each cell.
    y : Tensor of shape (cells,)
        Answers.
    scale : Tensor of shape ()
        Standard deviation of the prior N(0, scale^2 I).
    start : Tensor of shape (n, n_dimensions)
        Where to begin.

    Returns
    -------
    tuple of Tensor
        Modes (n, n_dimensions), and factors (n, n_dimensions, n_dimensions) whose products with their
        transposes are the inverses of the information there.
    """
    slope = curves.slope[item]
    precision = scale**-2
    eye = torch.eye(start.shape[1], dtype=start.dtype, device=start.device)
    mode = start.clone()
    for _ in range(MOST_STEPS):
        pull, spread = curves.scores(item, mode[taker], y)
        gradient = (-precision * mode).index_add(0, taker, pull[:, None] * slope)
        information = (precision * eye).repeat(len(mode), 1, 1)
        information.index_add_(0, taker, spread[:, None, None] * slope[:, :, None] * slope[:, None, :])
        root = torch.linalg.cholesky(information)
        step = torch.cholesky_solve(gradient[..., None], root)[..., 0]
        length = step.norm(dim=1, keepdim=True) / (LONGEST_STEP * scale)
        step = step / length.clamp_min(1.0)
        mode += step
        if not bool((step.abs() > STEP_TOLERANCE * scale).any()):
            break
    return mode, torch.linalg.solve_triangular(root.mT, eye.expand_as(root), upper=True)


def marginal_likelihood(
    curves: Curves,
    taker: Int[Tensor, " cells"],
    item: Int[Tensor, " cells"],
    y: Float[Tensor, " cells"],
    scale: Float[Tensor, ""],
    start: Float[Tensor, "n dims"],
    rule: Rule,
) -> Marginal:
    """Integrate abilities out of the takers' likelihoods.

    log INT prod_i P_i^y (1 - P_i)^(1 - y) N(theta; 0, scale^2 I) d theta, by the rule moved to each
    posterior. Nodes count as constants: where they stand does not change the integral.

    Parameters
    ----------
    curves : Curves
        Items.
    taker, item : Tensor of int, shape (cells,)
        Row of ``start`` and item of each cell. All cells of a taker must be here.
    y : Tensor of shape (cells,)
        Answers.
    scale : Tensor of shape ()
        Standard deviation of the prior N(0, scale^2 I).
    start : Tensor of shape (n, n_dimensions)
        Guesses of the posterior modes.
    rule : Rule
        Nodes for a standard normal law.

    Returns
    -------
    Marginal
        Likelihoods and posteriors.
    """
    mode, factor = posterior_modes(curves, taker, item, y, scale, start)
    theta = rule.around(mode, factor)
    exact = accumulator(theta)
    cells = curves.log_likelihood(item, theta[taker], y).to(exact)
    total = torch.zeros(theta.shape[:2], dtype=exact, device=theta.device).index_add(0, taker, cells)
    # The rule's weights hold the standard normal density, which is not in the integrand.
    spread = torch.diagonal(factor, dim1=1, dim2=2).log().sum(dim=1)
    width = scale.to(exact)
    prior = -0.5 * theta.to(exact).square().sum(-1) / width**2 - theta.shape[2] * width.log()
    weights = rule.log_weights.to(exact) + 0.5 * rule.nodes.to(exact).square().sum(-1)
    density = total + prior + weights + spread.to(exact)[:, None]
    log_likelihood = torch.logsumexp(density, dim=1)
    mean, root = _moments(theta, (density - log_likelihood[:, None]).detach().exp().to(theta.dtype))
    return Marginal(log_likelihood, mean, root)


def _moments(
    theta: Float[Tensor, "n nodes dims"], mass: Float[Tensor, "n nodes"]
) -> tuple[Float[Tensor, "n dims"], Float[Tensor, "n dims dims"]]:
    mean = (mass[..., None] * theta).sum(dim=1)
    away = theta - mean[:, None]
    covariance = torch.einsum("nq,nqi,nqj->nij", mass, away, away)
    return mean, torch.linalg.cholesky(covariance)


def log_beta(logit: Float[Tensor, "*shape"], alpha: float, beta: float) -> Float[Tensor, "*shape"]:
    """Log density of a share, given by its logit, under Beta(alpha, beta), but for a constant."""
    return (alpha - 1) * logsigmoid(logit) + (beta - 1) * logsigmoid(-logit)


def log_normal(x: Float[Tensor, "*shape"], mean: float, std: float) -> Float[Tensor, "*shape"]:
    """Log density of N(mean, std^2)."""
    return -0.5 * ((x - mean) / std).square() - math.log(std) - 0.5 * math.log(2 * math.pi)
