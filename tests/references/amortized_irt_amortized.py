"""Item response models with difficulties from features, read plainly: one grid of ability, loops over it."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

GRID = np.linspace(-8, 8, 321)


def log_likelihoods(Y, b, s, grid=GRID):
    """log int prod P^y (1 - P)^(1 - y) N(theta; 0, s^2) dtheta of each row, NaN not seen; and posteriors."""
    seen = ~np.isnan(Y)
    right = np.where(seen, Y, 0)
    table = np.empty((len(Y), len(grid)))
    for q, theta in enumerate(grid):
        z = theta - b
        table[:, q] = (seen * (right * z - np.logaddexp(0, z))).sum(axis=1)
    prior = np.exp(-0.5 * (grid / s) ** 2)
    table += np.log(prior / prior.sum())
    top = table.max(axis=1, keepdims=True)
    weight = np.exp(table - top)
    total = weight.sum(axis=1, keepdims=True)
    return (top + np.log(total))[:, 0], weight / total


def joint_fit(Y, X, l2=0.0):
    """Maximise sum_n log L_n - l2 |w|^2 / 2 over (intercept, w, log s) by BFGS, gradients by differences."""
    X = np.column_stack([np.ones(len(X)), X])

    def lost(parameters):
        w, s = parameters[:-1], np.exp(parameters[-1])
        return -log_likelihoods(Y, X @ w, s)[0].sum() + 0.5 * l2 * (w[1:] ** 2).sum()

    found = minimize(lost, np.zeros(X.shape[1] + 1), method="BFGS", options={"gtol": 1e-3})
    w, s = found.x[:-1], np.exp(found.x[-1])
    return w[0], w[1:], s, log_likelihoods(Y, X @ w, s)[0].sum()


def difficulty_scores(Y, b, s, grid=GRID):
    """Gradient sum_n E[P] - y and curvature sum_n E[P (1 - P)] of the items, from the posteriors."""
    seen = ~np.isnan(Y)
    weight = log_likelihoods(Y, b, s, grid)[1]
    gradient, curvature = np.zeros(len(b)), np.zeros(len(b))
    for i in range(len(b)):
        for n in np.flatnonzero(seen[:, i]):
            p = expit(grid - b[i])
            gradient[i] += weight[n] @ p - Y[n, i]
            curvature[i] += weight[n] @ (p * (1 - p))
    return gradient, curvature


def residual_fit(Y, X, l2, tau, n_iter=60, free_tau=True, grid=GRID):
    """EM of b_i = x_i'w + eps_i, eps_i ~ N(0, tau^2), with the variances of the b_i by Laplace."""
    X = np.column_stack([np.ones(len(X)), X])
    ridge = np.diag([0.0] + [l2] * (X.shape[1] - 1))
    share = np.nanmean(Y, axis=0).clip(0.05, 0.95)
    b, s = np.log((1 - share) / share), 1.0
    w = np.linalg.lstsq(X, b, rcond=None)[0]
    for _ in range(n_iter):
        gradient, curvature = difficulty_scores(Y, b, s, grid)
        weight = log_likelihoods(Y, b, s, grid)[1]
        v = 1 / (curvature + tau**-2)
        b = b + (gradient - (b - X @ w) / tau**2) * v
        w = np.linalg.solve(X.T @ X / tau**2 + ridge, X.T @ b / tau**2)
        if free_tau:
            tau = np.sqrt(np.mean((b - X @ w) ** 2 + v))
        mean = (weight @ grid).mean()
        s = np.sqrt((weight @ grid**2).mean() - mean**2)
        b, w[0] = b - mean, w[0] - mean
    return b, w[0], w[1:], tau, s, v


def made(n_takers, n_items, n_features, tau, missing, seed):
    """Abilities N(0, 1), difficulties x'w + eps with |w| = 1, answers missing at random."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_items, n_features))
    w = rng.standard_normal(n_features)
    b = X @ (w / np.linalg.norm(w)) + tau * rng.standard_normal(n_items)
    theta = rng.standard_normal(n_takers)
    Y = (rng.random((n_takers, n_items)) < expit(theta[:, None] - b)).astype(float)
    Y[rng.random(Y.shape) < missing] = np.nan
    return Y, X, b, theta, w / np.linalg.norm(w)
