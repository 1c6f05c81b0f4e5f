"""Synthetic data with the ground truth returned."""

import math
from typing import Any, Literal

import numpy as np
from scipy.special import betaincinv, ndtr
from sklearn.utils import Bunch

from seedbed.checks import check_choice, check_number

Noise = Literal["t5", "normal", "laplace", "heteroscedastic"]

# Student's t with 5 degrees of freedom has variance 5/3; the others are brought to the same spread.
_SPREAD = math.sqrt(5.0 / 3.0)


def _generator(random_state: Any) -> Any:
    """Source of randomness; None draws a fresh seed rather than from NumPy's global state."""
    if isinstance(random_state, np.random.RandomState):
        return random_state
    return np.random.default_rng(random_state)


def make_fcp_regression(
    n_train: int = 500,
    n_cal: int = 1000,
    n_test: int = 500,
    *,
    noise: Noise = "t5",
    random_state: Any = None,
) -> Bunch:
    """Draw a regression problem in three parts: training, calibration and test.

    ``x ~ N(0, I_5)`` and ``y = 2 x_1 + sin(3 x_2) + 0.7 e``.

    Parameters
    ----------
    n_train, n_cal, n_test : int
        Rows of each part.
    noise : {"t5", "normal", "laplace", "heteroscedastic"}
        Law of ``e``. All have variance 5/3, that of Student's t with 5 degrees of freedom;
        "heteroscedastic" is normal with a standard deviation that grows with ``|x_1|``.
    random_state : int, Generator, RandomState or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``X_train`` (n_train, 5), ``y_train`` (n_train,), likewise ``X_cal``, ``y_cal``, ``X_test`` and
        ``y_test``; the regression function at each row, ``mean_train``, ``mean_cal`` and ``mean_test``; and
        ``noise_scale_test`` (n_test,), the standard deviation of ``y - mean`` at each test row.

    Raises
    ------
    ValueError
        If a size is below 1 or the noise is unknown.

    Examples
    --------
    >>> from seedbed.datasets import make_fcp_regression
    >>> problem = make_fcp_regression(10, 20, 30, random_state=0)
    >>> problem.X_cal.shape, problem.y_test.shape
    ((20, 5), (30,))
    """
    sizes = {"train": n_train, "cal": n_cal, "test": n_test}
    for part, size in sizes.items():
        check_number(f"n_{part}", size, low=1, integer=True)
    check_choice("noise", noise, ("t5", "normal", "laplace", "heteroscedastic"))
    rng = _generator(random_state)
    problem: dict[str, Any] = {}
    for part, size in sizes.items():
        X = rng.standard_normal((size, 5))
        mean = 2.0 * X[:, 0] + np.sin(3.0 * X[:, 1])
        scale = np.full(size, _SPREAD)
        if noise == "t5":
            error = rng.standard_t(5, size=size)
        elif noise == "laplace":
            error = rng.laplace(scale=_SPREAD / math.sqrt(2.0), size=size)
        else:
            if noise == "heteroscedastic":
                # E (1 + |x|)^2 = 2 + 2 sqrt(2 / pi) for a standard normal x.
                scale = _SPREAD * (1.0 + np.abs(X[:, 0])) / math.sqrt(2.0 + 2.0 * math.sqrt(2.0 / math.pi))
            error = scale * rng.standard_normal(size)
        problem[f"X_{part}"], problem[f"y_{part}"], problem[f"mean_{part}"] = X, mean + 0.7 * error, mean
    return Bunch(noise_scale_test=0.7 * scale, **problem)


def make_tail_alignment(
    n_prompts: int = 1000,
    n_candidates: int = 10,
    *,
    alignment: float = 0.7,
    random_state: Any = None,
) -> Bunch:
    """Draw human losses of candidate answers and machine scores that agree with them more or less.

    ``z_ij = sqrt(0.4) theta_i + sqrt(0.6) e_ij`` with standard normal theta and e; the human loss is the
    quantile of Beta(0.4, 2) at ``Phi(z_ij)``, the machine's score
    ``Phi(alignment z_ij + sqrt(1 - alignment^2) e'_ij)``.

    Parameters
    ----------
    n_prompts : int
        Prompts i.
    n_candidates : int
        Candidate answers j of each.
    alignment : float
        Correlation of both before they are transformed, in [-1, 1].
    random_state : int, Generator, RandomState or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``machine_scores`` and ``human_losses``, (n_prompts, n_candidates), in (0, 1).

    Raises
    ------
    ValueError
        If a number is not allowed.

    Examples
    --------
    >>> from seedbed.datasets import make_tail_alignment
    >>> make_tail_alignment(5, 3, random_state=0).human_losses.shape
    (5, 3)
    """
    check_number("n_prompts", n_prompts, low=1, integer=True)
    check_number("n_candidates", n_candidates, low=1, integer=True)
    check_number("alignment", alignment, low=-1, high=1)
    rng, shape = _generator(random_state), (n_prompts, n_candidates)
    theta, e, other = (rng.standard_normal(size) for size in ((n_prompts, 1), shape, shape))
    z = math.sqrt(0.4) * theta + math.sqrt(0.6) * e
    machine = ndtr(alignment * z + math.sqrt(1 - alignment**2) * other)
    return Bunch(machine_scores=machine, human_losses=betaincinv(0.4, 2.0, ndtr(z)))


def make_teacher_network(
    n_train: int = 2000,
    n_test: int = 1000,
    *,
    n_features: int = 20,
    n_hidden: int = 16,
    n_classes: int = 5,
    random_state: Any = None,
) -> Bunch:
    """Draw a classification problem whose labels come from a random network.

    ``x ~ N(0, I)``; the label is the largest output of ``tanh(x W_1) W_2``, with standard normal weights
    divided by the square root of their fan-in.

    Parameters
    ----------
    n_train, n_test : int
        Rows of each part.
    n_features, n_hidden, n_classes : int
        Sizes of the teacher's layers.
    random_state : int, Generator, RandomState or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``X_train`` (n_train, n_features), ``y_train`` (n_train,) int64, ``X_test``, ``y_test``; the teacher,
        ``weights`` [(n_features, n_hidden), (n_hidden, n_classes)]; and its outputs ``scores_train`` and
        ``scores_test`` of shape (n_rows, n_classes).

    Raises
    ------
    ValueError
        If a size is below 1 (below 2 for the classes).

    Examples
    --------
    >>> from seedbed.datasets import make_teacher_network
    >>> problem = make_teacher_network(100, 50, random_state=0)
    >>> problem.X_train.shape, bool((problem.scores_test.argmax(axis=1) == problem.y_test).all())
    ((100, 20), True)
    """
    for name, size in {
        "n_train": n_train,
        "n_test": n_test,
        "n_features": n_features,
        "n_hidden": n_hidden,
    }.items():
        check_number(name, size, low=1, integer=True)
    check_number("n_classes", n_classes, low=2, integer=True)
    rng = _generator(random_state)
    weights = [
        rng.standard_normal((n_features, n_hidden)) / math.sqrt(n_features),
        rng.standard_normal((n_hidden, n_classes)) / math.sqrt(n_hidden),
    ]
    X = rng.standard_normal((n_train + n_test, n_features))
    scores = np.tanh(X @ weights[0]) @ weights[1]
    y = scores.argmax(axis=1).astype(np.int64)
    return Bunch(
        X_train=X[:n_train],
        y_train=y[:n_train],
        scores_train=scores[:n_train],
        X_test=X[n_train:],
        y_test=y[n_train:],
        scores_test=scores[n_train:],
        weights=weights,
    )


def make_delayed_sum(
    n_train: int = 1000,
    n_test: int = 500,
    *,
    length: int = 20,
    noise: float = 0.0,
    random_state: Any = None,
) -> Bunch:
    """Draw sequences that can only be predicted by remembering: ``y_t = x_{t-1} + 0.5 x_{t-3}``.

    Inputs are standard normal, and 0 before the sequence begins.

    Parameters
    ----------
    n_train, n_test : int
        Number of sequences of each part.
    length : int
        Steps of a sequence.
    noise : float
        Standard deviation of normal noise added to the targets.
    random_state : int, Generator, RandomState or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``X_train`` and ``y_train`` of shape (n_train, length, 1), ``X_test`` and ``y_test``; the targets
        without noise, ``mean_train`` and ``mean_test``; and ``kernel`` (4,), the weights of ``x_t`` to
        ``x_{t-3}``.

    Raises
    ------
    ValueError
        If a size is below 1, the length below 4 or the noise negative.

    Examples
    --------
    >>> from seedbed.datasets import make_delayed_sum
    >>> problem = make_delayed_sum(10, 5, random_state=0)
    >>> X, y = problem.X_train, problem.y_train
    >>> bool(y[0, 5, 0] == X[0, 4, 0] + 0.5 * X[0, 2, 0])
    True
    """
    check_number("n_train", n_train, low=1, integer=True)
    check_number("n_test", n_test, low=1, integer=True)
    check_number("length", length, low=4, integer=True)
    check_number("noise", noise, low=0)
    rng = _generator(random_state)
    kernel = np.array([0.0, 1.0, 0.0, 0.5])
    X = rng.standard_normal((n_train + n_test, length, 1))
    mean = np.zeros_like(X)
    for lag, weight in enumerate(kernel):
        mean[:, lag:] += weight * X[:, : length - lag]
    y = mean + noise * rng.standard_normal(X.shape)
    return Bunch(
        X_train=X[:n_train],
        y_train=y[:n_train],
        mean_train=mean[:n_train],
        X_test=X[n_train:],
        y_test=y[n_train:],
        mean_test=mean[n_train:],
        kernel=kernel,
    )
