"""Where the samples of the baselines should go, at the present estimates.

Track-and-stop takes its shares from the solved program. Clustering bandits know that arms fall into groups
of equal means, but not that groups are intervals (Yang, Zhong and Tan, "Optimal clustering with bandit
feedback", JMLR 25, 2024): to move arm i of cluster c into cluster d costs, at shares w,

    w_i W_d / (w_i + W_d) (distance of their centres)^2 / 2,    W_d: share of all arms of d,

and they maximise the least such cost. With equal shares inside a cluster and u = 1 / w that is the convex
program ``min sum_c n_c / u_c  subject to  u_c + u_d / n_d <= distance^2 / 2`` for every ordered pair.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import minimize

from seedbed.estimators.change_point_bandit.complexity import optimal_allocation
from seedbed.estimators.change_point_bandit.segmentation import Ints
from seedbed.estimators.change_point_bandit.thresholds import Floats

# Centres within so many standard errors of each other are taken for one cluster.
ONE_CLUSTER = 2.0


def solved_shares(changes: Ints, jumps: Floats, sigma: Floats, objective: Any) -> Floats:
    """Return the shares of the numeric program at a staircase with these changes.

    Parameters
    ----------
    changes : ndarray of shape (n_changes,)
        Boundaries.
    jumps : ndarray of shape (n_changes,)
        Jumps with their signs, not zero.
    sigma : ndarray of shape (n_arms,)
        Standard deviation of each arm's noise.
    objective : {"exact", "any"}
        Whether there are no more changes.

    Returns
    -------
    ndarray of shape (n_arms,)
        Shares that sum to one.
    """
    steps = np.zeros(len(sigma))
    steps[changes + 1] = jumps
    return optimal_allocation(np.cumsum(steps), sigma, None, objective, "numeric")


@lru_cache(maxsize=4096)
def cluster_program(sizes: tuple[int, ...], centres: tuple[float, ...]) -> tuple[float, tuple[float, ...]]:
    """Solve the clustering bandit's program for noise of standard deviation one.

    Parameters
    ----------
    sizes : tuple of int
        Arms of each cluster; two clusters or more.
    centres : tuple of float
        Means of the clusters, all different.

    Returns
    -------
    (float, tuple of float)
        Samples per unit of log(1 / delta), and the share of one arm of each cluster.
    """
    n, place = np.array(sizes, dtype=float), np.array(centres)
    scale = float(np.min(np.diff(np.sort(place)))) ** 2 / 2
    pairs = [(c, d) for c in range(len(n)) for d in range(len(n)) if c != d]
    rows = np.zeros((len(pairs), len(n)))
    for row, (c, d) in zip(rows, pairs, strict=True):
        row[c] += 1.0
        row[d] += 1.0 / n[d]
    limits = np.array([(place[c] - place[d]) ** 2 / 2 for c, d in pairs]) / scale
    solved = minimize(
        lambda u: float((n / u).sum()),
        np.full(len(n), 0.4),
        jac=lambda u: -n / u**2,
        bounds=[(1e-9, None)] * len(n),
        constraints={"type": "ineq", "fun": lambda u: limits - rows @ u, "jac": lambda _: -rows},
        method="SLSQP",
        options={"maxiter": 300, "ftol": 1e-12},
    )
    u = solved.x * min(1.0, float((limits / (rows @ solved.x)).min()))  # inside, to the last digit
    time = float((n / u).sum())
    return time / scale, tuple((1.0 / u / time).tolist())


def cluster_shares(counts: Floats, sums: Floats, changes: Ints, sigma: Floats) -> Floats:
    """Return the clustering bandit's shares where the segments between changes form the clusters.

    Parameters
    ----------
    counts, sums : ndarray of shape (n_arms,)
        Number and sum of each arm's rewards; counts positive.
    changes : ndarray of shape (n_changes,)
        Boundaries, in order.
    sigma : ndarray of shape (n_arms,)
        Standard deviation of each arm's noise.

    Returns
    -------
    ndarray of shape (n_arms,)
        Shares that sum to one; equal ones while no two clusters can be told apart.
    """
    arms = len(counts)
    starts = np.concatenate([[0], changes + 1])
    weight = np.add.reduceat(counts, starts)
    centres = np.add.reduceat(sums, starts) / weight
    error = np.sqrt(np.add.reduceat(sigma**2 * counts, starts)) / weight
    length = np.diff(np.append(starts, arms))
    order = np.argsort(centres, kind="stable")
    near = np.diff(centres[order]) <= ONE_CLUSTER * np.hypot(error[order][1:], error[order][:-1])
    cluster = np.empty(len(order), dtype=np.int64)
    cluster[order] = np.concatenate([[0], np.cumsum(~near)])
    if cluster.max() == 0:
        return np.full(arms, 1.0 / arms)
    sizes = np.bincount(cluster, weights=length)
    middle = np.bincount(cluster, weights=weight * centres) / np.bincount(cluster, weights=weight)
    # Only ratios of distances matter, and two digits of them are enough.
    gaps = np.diff(np.sort(middle))
    ratios = [float(f"{gap:.2g}") for gap in gaps / gaps.min()]
    _, shares = cluster_program(tuple(sizes.astype(int).tolist()), (0.0, *np.cumsum(ratios).tolist()))
    each = np.repeat(np.array(shares)[cluster], length)
    return each / math.fsum(each)
