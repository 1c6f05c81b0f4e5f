"""Streams on which the best step size is known, or changes: for optimizers that tune themselves."""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

from seedbed.checks import check_number


def make_noisy_quadratic(
    n_steps: int = 1000,
    n_weights: int = 20,
    *,
    floor: float = 0.3,
    noise: float = 0.5,
    random_state: Any = None,
) -> Bunch:
    """Draw losses ``f_t(w) = 1/2 (w - c_t)' A (w - c_t)`` around minima that jitter about zero.

    ``A = M M' / n + floor I`` with standard normal M, ``c_t ~ N(0, noise^2 I)``. The expected loss is
    minimal at w = 0; a constant step size buys speed with excess loss, so the best one falls as w nears
    zero.

    Parameters
    ----------
    n_steps : int
        Number of losses, T.
    n_weights : int
        Dimension, n.
    floor : float >= 0
        Least eigenvalue of A.
    noise : float >= 0
        Standard deviation of each coordinate of c_t.
    random_state : int, SeedSequence, Generator or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``A`` (n, n), ``centers`` (T, n), a start ``w0`` (n,) drawn from N(0, I), the minimiser of the
        expected loss, ``optimum`` (n,), and its value there, ``optimal_loss``.

    Raises
    ------
    ValueError
        If a number is out of range.
    TypeError
        If a number is none.

    Examples
    --------
    >>> from seedbed.datasets import make_noisy_quadratic
    >>> problem = make_noisy_quadratic(100, 3, random_state=0)
    >>> problem.A.shape, problem.centers.shape
    ((3, 3), (100, 3))
    """
    check_number("n_steps", n_steps, low=1, integer=True)
    check_number("n_weights", n_weights, low=1, integer=True)
    check_number("floor", floor, low=0)
    check_number("noise", noise, low=0)
    rng = np.random.default_rng(random_state)
    M = rng.standard_normal((n_weights, n_weights))
    A = M @ M.T / n_weights + floor * np.eye(n_weights)
    return Bunch(
        A=A,
        w0=rng.standard_normal(n_weights),
        centers=noise * rng.standard_normal((n_steps, n_weights)),
        optimum=np.zeros(n_weights),
        optimal_loss=0.5 * noise**2 * float(np.trace(A)),
    )


def make_drifting_regression(
    n_steps: int = 30_000,
    n_features: int = 20,
    n_relevant: int = 5,
    *,
    drift_every: int = 20,
    random_state: Any = None,
) -> Bunch:
    """Draw Sutton's (1992) tracking task: a linear target whose relevant weights flip sign now and then.

    ``x_t ~ N(0, I)`` and ``y_t = sum over i < n_relevant of s_i x_ti`` with signs s_i = +-1; every
    ``drift_every`` steps one sign, drawn uniformly, flips. A learner has to be fast on the relevant inputs
    and slow on the others.

    Parameters
    ----------
    n_steps : int
        Number of examples, T.
    n_features : int
        Number of inputs, n.
    n_relevant : int
        Number of inputs with a non-zero weight, at most n.
    drift_every : int
        Steps between flips.
    random_state : int, SeedSequence, Generator or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``X`` (T, n), ``y`` (T,), the true weights at each step, ``weights`` (T, n), and ``relevant`` (n,),
        a mask.

    Raises
    ------
    ValueError
        If a number is out of range.
    TypeError
        If a number is none.

    Examples
    --------
    >>> from seedbed.datasets import make_drifting_regression
    >>> stream = make_drifting_regression(60, random_state=0)
    >>> stream.X.shape, int((stream.weights[0] != stream.weights[20]).sum())
    ((60, 20), 1)
    """
    check_number("n_steps", n_steps, low=1, integer=True)
    check_number("n_features", n_features, low=1, integer=True)
    check_number("n_relevant", n_relevant, low=1, high=n_features, integer=True)
    check_number("drift_every", drift_every, low=1, integer=True)
    rng = np.random.default_rng(random_state)
    X = rng.standard_normal((n_steps, n_features))
    signs = rng.choice([-1.0, 1.0], size=n_relevant)
    periods = np.arange(n_steps) // drift_every
    flipped = rng.integers(n_relevant, size=int(periods[-1]))
    turns = np.ones((int(periods[-1]) + 1, n_relevant))
    turns[np.arange(1, len(turns)), flipped] = -1.0
    weights = np.zeros((n_steps, n_features))
    weights[:, :n_relevant] = (signs * np.cumprod(turns, axis=0))[periods]
    return Bunch(
        X=X, y=np.einsum("ti,ti->t", X, weights), weights=weights, relevant=np.arange(n_features) < n_relevant
    )


def make_linear_losses(n_steps: int = 15, n_weights: int = 6, *, random_state: Any = None) -> Bunch:
    """Draw losses ``f_t(w) = c_t'w``, whose curvature is zero.

    Gradients do not depend on the weights, so MetaOptimize without a Hessian is exact here.

    Parameters
    ----------
    n_steps : int
        Number of losses, T.
    n_weights : int
        Dimension, n.
    random_state : int, SeedSequence, Generator or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``gradients`` (T, n): the c_t, drawn from N(0, I); and a start ``w0`` (n,), likewise.

    Raises
    ------
    ValueError
        If a number is out of range.
    TypeError
        If a number is none.

    Examples
    --------
    >>> from seedbed.datasets import make_linear_losses
    >>> make_linear_losses(random_state=0).gradients.shape
    (15, 6)
    """
    check_number("n_steps", n_steps, low=1, integer=True)
    check_number("n_weights", n_weights, low=1, integer=True)
    rng = np.random.default_rng(random_state)
    return Bunch(w0=rng.standard_normal(n_weights), gradients=rng.standard_normal((n_steps, n_weights)))


def make_task_sequence(
    n_tasks: int = 5, steps_per_task: int = 400, batch_size: int = 64, *, random_state: Any = None
) -> Bunch:
    """Draw a continual stream: the digits, their labels permuted anew every ``steps_per_task`` steps.

    The first task has the true labels. Rows are drawn with replacement.

    Parameters
    ----------
    n_tasks : int
        Number of tasks.
    steps_per_task : int
        Batches of each task.
    batch_size : int
        Rows of a batch, B.
    random_state : int, SeedSequence, Generator or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``data`` (1797, 64) float32 in [0, 1] and ``target`` (1797,), the digits; with T = n_tasks *
        steps_per_task: ``rows`` (T, B), ``labels`` (T, B), the permuted classes of those rows, ``task``
        (T,), and the ground truth ``permutations`` (n_tasks, 10): ``labels[t] ==
        permutations[task[t]][target[rows[t]]]``.

    Raises
    ------
    ValueError
        If a number is out of range.
    TypeError
        If a number is none.

    Examples
    --------
    >>> from seedbed.datasets import make_task_sequence
    >>> stream = make_task_sequence(2, 3, 8, random_state=0)
    >>> stream.rows.shape, stream.task.tolist()
    ((6, 8), [0, 0, 0, 1, 1, 1])
    """
    check_number("n_tasks", n_tasks, low=1, integer=True)
    check_number("steps_per_task", steps_per_task, low=1, integer=True)
    check_number("batch_size", batch_size, low=1, integer=True)
    rng = np.random.default_rng(random_state)
    data, target = load_digits(return_X_y=True)
    permutations = np.stack([np.arange(10), *(rng.permutation(10) for _ in range(n_tasks - 1))])
    task = np.repeat(np.arange(n_tasks), steps_per_task)
    rows = rng.integers(len(data), size=(len(task), batch_size))
    return Bunch(
        data=(data / 16.0).astype(np.float32),
        target=target,
        rows=rows,
        labels=permutations[task[:, None], target[rows]],
        task=task,
        permutations=permutations,
    )
