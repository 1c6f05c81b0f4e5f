"""How hard an instance is, and where its samples should go.

``T*`` is the number of samples per unit of log(1 / delta) that no delta-correct procedure can go below, as
delta falls, and the weights are the shares of the arms in it. Finding ``N`` true changes among those there
are ("any"), with jumps ``D_j`` that share no arm and equal noise, takes ``T* = 8 sigma^2 sum 1 / D_j^2``,
with ``1 / D_j^2`` in proportion on both arms of one (Lazzaro and Pike-Burke, ICML 2025, theorems 5.5, 5.7).
Neighbouring changes share an arm and take less; where exactly ``N`` changes exist ("exact"), an alternative
that deletes one must place another somewhere, so that neighbouring segments help, and three or more take less
as well. ``method="numeric"`` solves the max-min program over shares and alternatives, adding the nearest
alternative until none is nearer.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from seedbed.checks import check_choice, check_number
from seedbed.estimators.change_point_bandit.segmentation import Ints
from seedbed.estimators.change_point_bandit.thresholds import Floats

Objective = Literal["exact", "any"]
Method = Literal["closed", "numeric"]
Edges = tuple[int, ...]
ROUNDS = 60
FLOOR = 1e-12
BESIDE = np.array([0, 1])


def closed_shares(jumps: Floats, changes: Ints, sigma: Floats) -> tuple[Ints, Floats]:
    """Return the closed-form target shares of many sessions, at the arms beside the changes.

    Arms that two changes share get the larger of the two weights; then all are normalised.

    Parameters
    ----------
    jumps : ndarray of shape (runs, n_changes)
        Size of each change, not zero.
    changes : ndarray of shape (runs, n_changes)
        Boundaries, in order.
    sigma : ndarray of shape (n_arms,)
        Standard deviation of each arm's noise.

    Returns
    -------
    (ndarray, ndarray) of shape (runs, 2 n_changes)
        Arms in order, and the share of each; an arm that two changes share comes twice. All others get none.
    """
    runs, n = changes.shape
    beside = changes[:, :, None] + BESIDE
    noise = sigma[beside]
    if n == 1:  # whatever the size of the jump
        return beside[:, 0], noise[:, 0] / noise[:, 0].sum(axis=1, keepdims=True)
    shares = noise * (noise.sum(axis=2) / (jumps * jumps))[:, :, None]
    total = shares.sum(axis=(1, 2))
    shared = changes[:, 1:] == changes[:, :-1] + 1
    if shared.any():
        left, right = shares[:, :-1, 1], shares[:, 1:, 0]
        total -= np.where(shared, np.minimum(left, right), 0.0).sum(axis=1)
        larger = np.maximum(left, right)
        shares[:, :-1, 1] = np.where(shared, larger, left)
        shares[:, 1:, 0] = np.where(shared, larger, right)
    return beside.reshape(runs, 2 * n), (shares / total[:, None, None]).reshape(runs, 2 * n)


def closed_weights(jumps: Floats, changes: Ints, sigma: Floats) -> Floats:
    """Return the closed-form target shares of one session, arm by arm.

    Parameters
    ----------
    jumps, changes : ndarray of shape (n_changes,)
        As one row of :func:`closed_shares`.
    sigma : ndarray of shape (n_arms,)
        Standard deviation of each arm's noise.

    Returns
    -------
    ndarray of shape (n_arms,)
        Shares that sum to one.
    """
    arms, shares = closed_shares(jumps[None], changes[None], sigma)
    weights = np.zeros(len(sigma))
    weights[arms[0]] = shares[0]
    return weights


def _gap(means: Floats, weights: Floats, variance: Floats, edges: Edges) -> Floats:
    """Return what a sample of each arm contributes against the best function constant between edges."""
    precision = np.maximum(weights, FLOOR) / variance
    starts = np.array(edges[:-1])
    fitted = np.add.reduceat(precision * means, starts) / np.add.reduceat(precision, starts)
    return (means - np.repeat(fitted, np.diff(edges))) ** 2 / (2 * variance)


def _max_min(
    means: Floats, variance: Floats, start: Floats, scale: float, worst: Callable[[Floats], list[Edges]]
) -> tuple[float, Floats]:
    """Maximise over shares the least weighted gap to an alternative.

    Parameters
    ----------
    means, variance : ndarray of shape (n_arms,)
        The instance.
    start : ndarray of shape (n_arms,)
        Shares to start from.
    scale : float
        An estimate of T*, which brings the program's value near one.
    worst : callable
        ``worst(w)`` gives alternatives, the nearest at shares w among them, as edges of constant pieces.

    Returns
    -------
    (float, ndarray)
        1 / T* and the shares.
    """
    arms = len(means)
    known: dict[Edges, None] = dict.fromkeys(worst(start))
    point = np.r_[start, 0.0]
    for _ in range(ROUNDS):
        pieces = list(known)

        def slack(x: Floats, pieces: list[Edges] = pieces) -> Floats:
            return np.array([scale * (x[:-1] @ _gap(means, x[:-1], variance, p)) for p in pieces]) - x[-1]

        def slopes(x: Floats, pieces: list[Edges] = pieces) -> Floats:
            # The nearest function moves with the shares, but to no effect at first order.
            return np.array([np.r_[scale * _gap(means, x[:-1], variance, p), -1.0] for p in pieces])

        solved = minimize(
            lambda x: -x[-1],
            point,
            jac=lambda _: np.r_[np.zeros(arms), -1.0],
            bounds=[(0.0, 1.0)] * arms + [(None, None)],
            constraints=(
                {"type": "ineq", "fun": slack, "jac": slopes},
                {"type": "eq", "fun": lambda x: x[:-1].sum() - 1, "jac": lambda _: np.r_[np.ones(arms), 0.0]},
            ),
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-13},
        )
        shares = np.maximum(solved.x[:-1], 0.0)
        shares /= shares.sum()
        found = worst(shares)
        least = min(float(shares @ _gap(means, shares, variance, p)) for p in (*found, *pieces))
        if scale * least >= solved.x[-1] - 1e-9 or all(p in known for p in found):
            break
        known |= dict.fromkeys(found)
        point = np.r_[shares, scale * least]
    return least, shares


def _merged(arms: int, b: int) -> Edges:
    """Every arm alone but for those beside boundary b."""
    return tuple(edge for edge in range(arms + 1) if edge != b + 1)


def _without(means: Floats, precision: Floats, forbidden: int, n_changes: int) -> Edges:
    """Return the edges of the best fit with at most so many changes that lacks one boundary."""
    arms = len(means)
    weight, part = np.zeros(arms + 1), np.zeros(arms + 1)
    np.cumsum(precision, out=weight[1:])
    np.cumsum(precision * means, out=part[1:])
    upper = np.triu(np.ones((arms + 1, arms + 1), dtype=bool), 1)
    span = np.where(upper, weight[None, :] - weight[:, None], 1.0)
    gain = np.where(upper, (part[None, :] - part[:, None]) ** 2 / span, -np.inf)
    gain[forbidden + 1, :] = -np.inf  # no piece may begin there
    best, came = gain[0], []
    for _ in range(n_changes):
        options = best[:, None] + gain
        came.append(options.argmax(axis=0))
        best = options.max(axis=0)
    edges = [arms]
    for step in reversed(came):
        edges.append(int(step[edges[-1]]))
    return (0, *reversed(edges))


def _instance(
    means: ArrayLike, sigma: float | ArrayLike, n_change_points: int | None, objective: Objective
) -> tuple[Floats, Floats, Ints]:
    """Check an instance; return its means, noise and the changes to be found."""
    values = np.asarray(means, dtype=float)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(f"means must be 1-D, finite, of two arms or more, got shape {values.shape}")
    noise = np.asarray(sigma, dtype=float)
    if noise.shape not in ((), values.shape) or not (np.isfinite(noise).all() and (noise > 0).all()):
        raise ValueError(f"sigma must be positive, one number or one per arm, got {sigma!r}")
    check_choice("objective", objective, ("exact", "any"))
    jumps = np.abs(np.diff(values))
    there = np.flatnonzero(jumps)
    if len(there) == 0:
        raise ValueError("means must have a change")
    wanted = len(there) if n_change_points is None else n_change_points
    check_number("n_change_points", wanted, low=1, high=len(there), integer=True)
    if objective == "exact" and wanted != len(there):
        raise ValueError(
            f"objective='exact' needs n_change_points to be the number of changes, {len(there)}, got {wanted}"
        )
    largest = there[np.argsort(-jumps[there], kind="stable")[:wanted]]
    return values, np.broadcast_to(noise, values.shape).astype(float), np.sort(largest)


def _solve(
    means: ArrayLike,
    sigma: float | ArrayLike,
    n_change_points: int | None,
    objective: Objective,
    method: Method,
) -> tuple[float, Floats]:
    values, noise, changes = _instance(means, sigma, n_change_points, objective)
    check_choice("method", method, ("closed", "numeric"))
    arms = len(values)
    if objective == "exact" and len(changes) == arms - 1:
        return 0.0, np.full(arms, 1.0 / arms)  # there is nothing else it could be
    jumps = np.abs(np.diff(values))[changes]
    time = 2.0 * float((((noise[changes] + noise[changes + 1]) / jumps) ** 2).sum())
    weights = closed_weights(jumps, changes, noise)
    if method == "closed":
        return time, weights
    centred, variance = values - values.mean(), noise**2

    def worst(shares: Floats) -> list[Edges]:
        if objective == "any":
            return [_merged(arms, int(b)) for b in changes]
        precision = np.maximum(shares, FLOOR) / variance
        return [_without(centred, precision, int(b), len(changes)) for b in changes]

    start = 0.9 * weights + 0.1 / arms
    least, weights = _max_min(centred, variance, start, time, worst)
    return 1.0 / least, weights


def characteristic_time(
    means: ArrayLike,
    sigma: float | ArrayLike = 1.0,
    n_change_points: int | None = None,
    objective: Objective = "exact",
    method: Method = "closed",
) -> float:
    """Return T*, the samples needed per unit of log(1 / delta) as delta falls.

    Parameters
    ----------
    means : array-like of shape (n_arms,)
        Piecewise constant.
    sigma : float or array-like of shape (n_arms,)
        Standard deviation of the noise.
    n_change_points : int, optional
        How many changes are to be found: the largest; all if None.
    objective : {"exact", "any"}
        Whether it is known that there are no more.
    method : {"closed", "numeric"}
        ``2 sum ((sigma_l + sigma_r) / jump)^2``, which MCPI attains, or the solved program: equal to it for
        "any" where no two changes share an arm and for "exact" with one change or two, else smaller.

    Returns
    -------
    float
        T*; 0 where the answer is known beforehand.

    Raises
    ------
    ValueError
        If the means have no change, or an argument is not allowed.

    Examples
    --------
    >>> from seedbed.estimators import characteristic_time
    >>> characteristic_time([0, 0, 0, 1, 1, 1], sigma=0.5)
    2.0
    """
    return _solve(means, sigma, n_change_points, objective, method)[0]


def optimal_allocation(
    means: ArrayLike,
    sigma: float | ArrayLike = 1.0,
    n_change_points: int | None = None,
    objective: Objective = "exact",
    method: Method = "closed",
) -> Floats:
    """Return the share of the samples that each arm should get.

    Parameters
    ----------
    means, sigma, n_change_points, objective, method
        As in :func:`characteristic_time`.

    Returns
    -------
    ndarray of shape (n_arms,)
        Shares that sum to one.

    Raises
    ------
    ValueError
        As in :func:`characteristic_time`.

    Examples
    --------
    >>> from seedbed.estimators import optimal_allocation
    >>> optimal_allocation([0, 0, 0, 1, 1, 1]).tolist()
    [0.0, 0.0, 0.5, 0.5, 0.0, 0.0]
    """
    return _solve(means, sigma, n_change_points, objective, method)[1]
