"""Plain readings of the likelihoods behind AmortizedIRTModule and MultidimensionalIRT."""

import itertools
import math

import numpy as np
from scipy.optimize import minimize


def chance(theta, slope, intercept, guessing=0.0):
    """P(right) of one item at one ability vector."""
    z = sum(a * t for a, t in zip(slope, theta)) + intercept
    return guessing + (1 - guessing) / (1 + math.exp(-z))


def log_density(y, theta, slope, intercept, guessing, scale):
    """Log of likelihood times prior density of one taker, cells with NaN left out."""
    total = sum(-0.5 * (t / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi) for t in theta)
    for i, answer in enumerate(y):
        if not math.isnan(answer):
            p = chance(theta, slope[i], intercept[i], guessing[i])
            total += math.log(p) if answer == 1 else math.log(1 - p)
    return total


def marginal(y, slope, intercept, guessing, scale=1.0, reach=7.0, n=71):
    """Log-likelihood, posterior mean and covariance of one taker, by the trapezoidal rule."""
    dims = len(slope[0])
    line = np.linspace(-reach * scale, reach * scale, n)
    nodes = list(itertools.product(line, repeat=dims))
    logs = np.array([log_density(y, node, slope, intercept, guessing, scale) for node in nodes])
    top = logs.max()
    mass = np.exp(logs - top)
    value = top + math.log(mass.sum() * (line[1] - line[0]) ** dims)
    mass /= mass.sum()
    points = np.array(nodes)
    mean = mass @ points
    return value, mean, np.einsum("q,qi,qj->ij", mass, points - mean, points - mean)


def joint(Y, ability, slope, intercept, guessing):
    """Log-likelihood of all cells at known abilities."""
    total = 0.0
    for n, i in itertools.product(range(len(Y)), range(len(Y[0]))):
        if not math.isnan(Y[n][i]):
            p = chance(ability[n], slope[i], intercept[i], guessing[i])
            total += math.log(p) if Y[n][i] == 1 else math.log(1 - p)
    return total


def best_marginal(Y, nodes, log_weights, n_dimensions, prior_std, start):
    """Largest marginal log-likelihood plus log prior of log |slope|, with nodes that are the same for all.

    A general-purpose optimiser, with gradients by finite differences.
    """
    n_items = Y.shape[1]

    def value(x):
        slope, intercept = x[: n_items * n_dimensions].reshape(n_items, n_dimensions), x[-n_items:]
        p = 1 / (1 + np.exp(-(nodes @ slope.T + intercept)))
        total = 0.0
        for y in Y:
            seen = ~np.isnan(y)
            logs = np.log(np.where(y[seen] == 1, p[:, seen], 1 - p[:, seen])).sum(axis=1)
            total += np.log(np.exp(logs + log_weights).sum())
        return -total + 0.5 * (np.log(np.linalg.norm(slope, axis=1)) ** 2).sum() / prior_std**2

    return -minimize(value, start, method="L-BFGS-B", options={"maxiter": 500, "maxfun": 10**6}).fun


def best_joint_rasch(Y, ability_std, difficulty_std):
    """Abilities and difficulties of the largest joint likelihood times normal priors, by Newton steps."""
    n, m = Y.shape
    theta, b = np.zeros(n), np.zeros(m)
    for _ in range(500):
        p = 1 / (1 + np.exp(-(theta[:, None] - b)))
        theta = theta + ((Y - p).sum(axis=1) - theta / ability_std**2) / (
            (p * (1 - p)).sum(axis=1) + ability_std**-2.0
        )
        p = 1 / (1 + np.exp(-(theta[:, None] - b)))
        b = b - ((Y - p).sum(axis=0) + b / difficulty_std**2) / (
            (p * (1 - p)).sum(axis=0) + difficulty_std**-2.0
        )
    return theta, b


def procrustes(found, truth):
    """Turn ``found`` onto ``truth`` by the best orthogonal matrix."""
    u, _, vt = np.linalg.svd(found.T @ truth)
    return found @ (u @ vt)


def gradients_of_two(rank, seed):
    """What one of two processes finds for its share of seven takers: gradients, and all posteriors."""
    import torch
    import torch.distributed as dist

    from seedbed.lightning_modules import AmortizedIRTModule

    module, cells, y = seven_takers(AmortizedIRTModule, seed)
    if rank is not None:
        type(module)._world = property(lambda self: dist.get_world_size())
        mine = cells[:, 0] % 2 == rank  # four takers and three
        cells, y = cells[mine], y[mine]
    module._marginal_loss(cells, y, None).backward()
    grads = torch.cat([value.grad.flatten() for value in module.parameters()])
    if rank is not None:
        dist.all_reduce(grads)
        grads /= dist.get_world_size()
    return grads, module.ability_mean.clone()


def seven_takers(module_class, seed):
    """A module with features and some answers."""
    import torch

    rng = np.random.default_rng(seed)
    module = module_class(
        7, 5, model="2pl", n_features=3, item_inputs=rng.normal(size=(5, 3)), random_state=seed
    )
    seen = rng.random((7, 5)) < 0.8
    seen[:, 0] = True
    cells = torch.tensor(np.argwhere(seen))
    return module, cells, torch.tensor(rng.integers(0, 2, len(cells)), dtype=torch.float32)
