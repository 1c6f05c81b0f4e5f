"""What one would do without the paper: noisy bisection and sequential halving.

Both query an oracle that maps an array of arm numbers to rewards.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from seedbed.checks import check_number
from seedbed.estimators.change_point_bandit.thresholds import log_e_value

Oracle = Callable[[Any], Any]
FIRST_CAP = 64


def _check(n_arms: int, sigma: float) -> None:
    check_number("n_arms", n_arms, low=2, integer=True)
    check_number("sigma", sigma, low=0, closed="neither")


def noisy_binary_search(
    oracle: Oracle,
    n_arms: int,
    *,
    delta: float = 0.05,
    sigma: float = 1.0,
    kappa: float = 1.0,
    max_evals: int = 100_000,
) -> Bunch:
    """Find one change by bisection: compare the middle with both ends until one of them differs.

    Each comparison is an anytime test at ``delta / (2 ceil(log2 K))``. Where neither end differs from the
    middle within a cap, a turn before was wrong, or the cap too small: the search starts over with twice the
    cap. It takes both ends to differ, so it knows one change only.

    Parameters
    ----------
    oracle : callable
        Maps arm numbers (b,) to rewards (b,).
    n_arms : int
        Number of arms K.
    delta : float
        Error probability of one search.
    sigma : float
        Standard deviation of the noise.
    kappa : float
        Prior of the tests, in rewards.
    max_evals : int
        Queries after which it gives up.

    Returns
    -------
    Bunch
        ``change_point``, ``n_evals`` and ``stopped``.

    Raises
    ------
    ValueError
        If a number is not allowed.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> found = noisy_binary_search(lambda arms: 3.0 * (arms > 4) + rng.normal(size=len(arms)), 16)
    >>> found.change_point
    4
    """
    _check(n_arms, sigma)
    check_number("delta", delta, low=0, high=1, closed="neither")
    check_number("kappa", kappa, low=0, closed="neither")
    check_number("max_evals", max_evals, low=1, integer=True)
    level = math.log(2 * max(math.ceil(math.log2(n_arms)), 1) / delta)
    low, high, evals, cap = 0, n_arms - 1, 0, FIRST_CAP
    while high - low > 1:
        middle = (low + high) // 2
        sums, side = np.zeros(2), 0
        for n in range(1, cap + 1):
            if evals + 3 > max_evals:
                return Bunch(change_point=low, n_evals=evals, stopped=False)
            left, centre, right = np.asarray(oracle(np.array([low, middle, high])), dtype=float)
            evals += 3
            sums += (centre - left, right - centre)
            evidence = log_e_value(sums**2 / (4 * n * sigma**2), n, n, kappa, "paired")
            if evidence.max() >= level:
                side = 1 if evidence[0] >= evidence[1] else 2
                break
        if side == 1:
            high = middle
        elif side == 2:
            low = middle
        else:
            low, high, cap = 0, n_arms - 1, 2 * cap
    return Bunch(change_point=low, n_evals=evals, stopped=True)


def sequential_halving(oracle: Oracle, n_arms: int, budget: int) -> Bunch:
    """Find one change with a fixed number of queries: the half with the smaller jumps leaves each round.

    Parameters
    ----------
    oracle : callable
        Maps arm numbers (b,) to rewards (b,).
    n_arms : int
        Number of arms K.
    budget : int
        Queries in all; one per arm and round at least.

    Returns
    -------
    Bunch
        ``change_point`` and ``n_evals``. There is no statement on the error.

    Raises
    ------
    ValueError
        If the budget does not reach for one query per arm in each round.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> sequential_halving(lambda arms: 3.0 * (arms > 4) + rng.normal(size=len(arms)), 16, 400).change_point
    4
    """
    _check(n_arms, 1.0)
    rounds = max(math.ceil(math.log2(n_arms - 1)), 1)
    check_number("budget", budget, low=n_arms * rounds, integer=True)
    alive = np.arange(n_arms - 1)
    sums, counts, evals = np.zeros(n_arms), np.zeros(n_arms), 0
    for _ in range(rounds):
        arms = np.unique(np.concatenate([alive, alive + 1]))
        each = budget // (rounds * len(arms))
        asked = np.repeat(arms, each)
        np.add.at(sums, asked, np.asarray(oracle(asked), dtype=float))
        np.add.at(counts, asked, 1)
        evals += len(asked)
        means = sums / np.maximum(counts, 1)
        jumps = np.abs(means[alive + 1] - means[alive])
        best = np.argsort(-jumps, kind="stable")[: max(-(-len(alive) // 2), 1)]
        alive = np.sort(alive[best])
    return Bunch(change_point=int(alive[0]), n_evals=evals)
