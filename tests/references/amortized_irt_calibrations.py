"""Calibrations of the Rasch model read off their definitions: sums over patterns, integrals by quadrature."""

import itertools
import math

import numpy as np
from scipy import integrate, optimize


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def moment_root(share, scale):
    """The b at which E sigma(theta - b) = share, theta ~ N(0, scale^2)."""

    def mean(b):
        def weighted(x):
            return sigmoid(scale * x - b) * math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)

        return integrate.quad(weighted, -12, 12, epsabs=1e-13, limit=200)[0]

    return optimize.brentq(lambda b: mean(b) - share, -60, 60, xtol=1e-12)


def monte_carlo_minimiser(share, draws):
    """The b that minimises the average over draws of ability of minus an item's expected log-likelihood."""

    def loss(b):
        return np.mean(np.logaddexp(0, draws - b)) - share * np.mean(draws - b)

    return optimize.minimize_scalar(loss, bounds=(-10, 10), method="bounded", options={"xatol": 1e-10}).x


def score_excess(data, b, scale):
    """Products of two residuals of a taker minus their expectation, summed over takers and pairs of items."""
    x, w = np.polynomial.hermite_e.hermegauss(31)
    w = w / w.sum()
    curve = np.array([[sigmoid(scale * node - difficulty) for node in x] for difficulty in b])
    p = curve @ w
    total = 0.0
    for row in data:
        seen = [i for i in range(len(b)) if not np.isnan(row[i])]
        for i in seen:
            for j in seen:
                if i != j:
                    expected = np.sum(w * (curve[i] - p[i]) * (curve[j] - p[j]))
                    total += (row[i] - p[i]) * (row[j] - p[j]) - expected
    return total


def joint_maximum(data):
    """Abilities and difficulties (of mean 0) of greatest joint likelihood, by a general optimiser."""
    n, m = data.shape
    seen = ~np.isnan(data)
    y = np.where(seen, data, 0)

    def loss(x):
        z = x[:n, None] - x[None, n:]
        p = 1 / (1 + np.exp(-z))
        value = np.sum(seen * (np.logaddexp(0, z) - y * z))
        slope = seen * (p - y)
        return value, np.concatenate([slope.sum(axis=1), -slope.sum(axis=0)])

    x = optimize.minimize(loss, np.zeros(n + m), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    return x[:n] - x[n:].mean(), x[n:] - x[n:].mean(), -loss(x)[0]


def conditional_log_likelihood(data, b):
    """Sum over takers of log P(answers | score), by all patterns that have the score."""
    total = 0.0
    for row in data:
        seen = [i for i in range(len(b)) if not np.isnan(row[i])]
        score = sum(row[i] for i in seen)
        own = math.exp(-sum(b[i] for i in seen if row[i] == 1))
        every = 0.0
        for pattern in itertools.product((0, 1), repeat=len(seen)):
            if sum(pattern) == score:
                every += math.exp(-sum(b[i] for i, y in zip(seen, pattern) if y))
        total += math.log(own / every)
    return total


def marginal_rasch(data, n_nodes=81):
    """Difficulties, scale and log-likelihood of greatest marginal likelihood, by a general optimiser."""
    x, w = np.polynomial.hermite_e.hermegauss(n_nodes)
    log_w = np.log(w / w.sum())
    seen = (~np.isnan(data)).astype(float)
    y = np.nan_to_num(data)

    def loss(parameters):
        b, scale = parameters[:-1], math.exp(parameters[-1])
        z = scale * x[:, None] - b
        log_p = log_w + y.sum(axis=1)[:, None] * scale * x - (y @ b)[:, None] - seen @ np.logaddexp(0, z).T
        top = log_p.max(axis=1, keepdims=True)
        log_likelihood = top[:, 0] + np.log(np.exp(log_p - top).sum(axis=1))
        posterior = np.exp(log_p - log_likelihood[:, None])
        p = 1 / (1 + np.exp(-z))
        slope_b = ((posterior.T @ seen) * p).sum(axis=0) - y.sum(axis=0)
        residual = y.sum(axis=1)[:, None] - seen @ p.T
        slope_scale = np.sum(posterior * residual * x) * scale
        return -log_likelihood.sum(), -np.append(slope_b, slope_scale)

    start = np.append(-np.log((y.sum(axis=0) + 0.5) / (seen.sum(axis=0) - y.sum(axis=0) + 0.5)), 0.0)
    best = optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-5})
    return best.x[:-1], math.exp(best.x[-1]), -best.fun


def posterior_of_one_item(right, n, prior_b, log_slope=None, n_grid=241):
    """Mean and sd of b (and of a, if free) given how many of n takers, N(0, 1), got it right."""
    x, w = np.polynomial.hermite_e.hermegauss(61)
    w = w / w.sum()
    mean, std = prior_b
    b = mean + std * np.linspace(-6, 6, n_grid)
    a = (
        np.array([1.0])
        if log_slope is None
        else np.exp(log_slope[0] + log_slope[1] * np.linspace(-6, 6, n_grid))
    )
    weight = np.zeros((len(a), len(b)))
    for k, slope in enumerate(a):
        share = (1 / (1 + np.exp(-slope * (x[:, None] - b)))).T @ w
        log_prior = -0.5 * ((b - mean) / std) ** 2
        if log_slope is not None:
            # On an even grid of log a the density of log a is what counts.
            log_prior = log_prior - 0.5 * ((math.log(slope) - log_slope[0]) / log_slope[1]) ** 2
        weight[k] = share**right * (1 - share) ** (n - right) * np.exp(log_prior)
    weight /= weight.sum()
    found = []
    for values, marginal in ((b, weight.sum(axis=0)), (a, weight.sum(axis=1))):
        centre = values @ marginal
        found.append((centre, math.sqrt(max(((values - centre) ** 2) @ marginal, 0.0))))
    return found
