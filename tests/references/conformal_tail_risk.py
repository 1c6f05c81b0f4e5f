"""Conformal tail risk control read off the equations: loops over thresholds, integrals over spacings."""

import math

import numpy as np
from scipy.stats import binom, norm


def variance(losses, dpsi):
    """Double sum over spacings of psi'(F(x)) psi'(F(y)) [F(min) - F(x) F(y)]."""
    r = np.sort(losses)
    n = len(r)
    total = 0.0
    for j in range(1, n):
        for k in range(1, n):
            low, high = min(j, k), max(j, k)
            overlap = low / n - (low / n) * (high / n)
            total += dpsi(j / n) * dpsi(k / n) * overlap * (r[j] - r[j - 1]) * (r[k] - r[k - 1])
    return total


def prompt_losses(scores, losses, threshold, lowest=0.0, reduction="max"):
    found = []
    for row, human in zip(scores, losses):
        accepted = [h for m, h in zip(row, human) if m <= threshold]
        if not accepted:
            found.append(lowest)
        elif reduction == "max":
            found.append(max(accepted))
        else:
            found.append(accepted[0] if reduction == "first" else float(np.mean(accepted)))
    return np.array(found)


def cvar_bound(losses, beta, delta, bound, lower=None, upper=1.0):
    """Upper bound of CVaR: asymptotic, or from a lower band of the distribution function."""
    r = np.sort(losses)
    n = len(r)
    psi = lambda u: max(u - beta, 0.0) / (1 - beta)
    if bound == "l_statistic":
        estimate = sum(r[i] * (psi((i + 1) / n) - psi(i / n)) for i in range(n))
        threshold = r[math.ceil(n * beta) - 1]
        deviation = np.maximum(r, threshold).std() / (1 - beta)
        return min(estimate + norm.isf(delta) * deviation / math.sqrt(n), upper)
    steps = [0.0, *lower]
    total = sum(r[i] * (psi(steps[i + 1]) - psi(steps[i])) for i in range(n))
    return min(total + upper * (1 - psi(steps[-1])), upper)


def first_crossing(grid, ucb, alpha):
    """Largest threshold before the first whose bound exceeds alpha."""
    chosen = -math.inf
    for threshold in grid:
        if ucb(threshold) > alpha:
            break
        chosen = threshold
    return chosen


def quantile_rank(n, beta, delta):
    return next((k for k in range(1, n + 1) if binom.sf(k - 1, n, beta) <= delta), None)
