"""Plain readings: the marginal likelihood of item response models by a fine fixed grid, loops and all."""

import math

import numpy as np


def probability(theta, a, b, c=0.0, u=1.0):
    """P(right | theta)."""
    return c + (u - c) / (1 + math.exp(-a * (theta - b)))


def taker_likelihood(answers, items, mean, scale, nodes=801, reach=8.0):
    """Integral of one taker's likelihood over N(mean, scale^2), by the trapezoidal rule."""
    total = 0.0
    grid = np.linspace(mean - reach * scale, mean + reach * scale, nodes)
    for theta in grid:
        value = math.exp(-0.5 * ((theta - mean) / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
        for y, item in zip(answers, items, strict=True):
            if not math.isnan(y):
                p = probability(theta, *item)
                value *= p if y == 1 else 1 - p
        total += value
    return total * (grid[1] - grid[0])


def log_likelihood(X, items, means, scale):
    """Marginal log-likelihood of a table."""
    return sum(
        math.log(taker_likelihood(row, items, mean, scale)) for row, mean in zip(X, means, strict=True)
    )


def posterior_moments(answers, items, mean, scale, nodes=801, reach=8.0):
    """Mean and standard deviation of one taker's posterior."""
    grid = np.linspace(mean - reach * scale, mean + reach * scale, nodes)
    weights = []
    for theta in grid:
        value = math.exp(-0.5 * ((theta - mean) / scale) ** 2)
        for y, item in zip(answers, items, strict=True):
            if not math.isnan(y):
                p = probability(theta, *item)
                value *= p if y == 1 else 1 - p
        weights.append(value)
    weights = np.array(weights) / sum(weights)
    center = float(weights @ grid)
    return center, math.sqrt(float(weights @ (grid - center) ** 2))
