"""Conditional maximum likelihood of the Rasch model: given the scores, abilities drop out."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.joint import RIDGE_STD, ordinary
from seedbed.estimators.amortized_irt.responses import Responses

Floats = NDArray[np.float64]

MOST_WORK = 2e9
"""Patterns times the cube of their length beyond which the method is refused."""
MAX_STEP = 3.0


@dataclass(frozen=True)
class Conditional:
    """Conditional estimates.

    Attributes
    ----------
    items : Items
        Difficulties of mean 0 over the finite ones, with standard errors; all discriminations 1.
    log_likelihood : float
        Conditional log-likelihood at the difficulties, without the ridge.
    covariance : ndarray of shape (n_items, n_items)
        Inverse information about the difficulties, given that their mean is 0; NaN where one is infinite.
    n_iter : int
        Newton steps.
    converged : bool
        Whether the last step was below the tolerance.
    """

    items: Items
    log_likelihood: float
    covariance: Floats
    n_iter: int
    converged: bool


@dataclass(frozen=True)
class _Scores:
    """Takers who saw the same items, by score.

    Attributes
    ----------
    items : ndarray of int, shape (k,)
        What they saw.
    count : ndarray of shape (k + 1,)
        Weight of takers by score.
    """

    items: NDArray[np.int64]
    count: Floats


def log_symmetric(b: Floats) -> tuple[Floats, Floats]:
    """Logarithms of the elementary symmetric functions of exp(-b), and how scores come about.

    Parameters
    ----------
    b : ndarray of shape (k,)
        Difficulties.

    Returns
    -------
    log_gamma : ndarray of shape (k + 1,)
        log of the sum over patterns with score r of exp(-sum of y_i b_i).
    last : ndarray of shape (k, k + 1)
        Row j: the probability that item j is right given that score r is reached on items 0, ..., j; 0 for an
        impossible score.
    """
    k = len(b)
    log_gamma = np.full(k + 1, -np.inf)
    log_gamma[0] = 0.0
    last = np.zeros((k, k + 1))
    for j in range(k):
        right = log_gamma[: j + 1] - b[j]
        # Score j + 1 on j + 1 items needs all of them right; scores above are impossible.
        last[j, j + 1] = 1.0
        last[j, 1 : j + 1] = expit(right[:-1] - log_gamma[1 : j + 1])
        log_gamma[1 : j + 1] = np.logaddexp(log_gamma[1 : j + 1], right[:-1])
        log_gamma[j + 1] = right[-1]
    return log_gamma, last


def score_moments(count: Floats, last: Floats) -> tuple[Floats, Floats]:
    """Mean and covariance of answers given scores, summed over takers.

    Given its score, a pattern is a Markov chain from the last item to the first whose state is the score that
    the items up to there have. Only sums of products of probabilities occur, so that nothing cancels.

    Parameters
    ----------
    count : ndarray of shape (k + 1,)
        Takers by score.
    last : ndarray of shape (k, k + 1)
        From :func:`log_symmetric`.

    Returns
    -------
    mean : ndarray of shape (k,)
        Expected right answers to each item.
    covariance : ndarray of shape (k, k)
        Sum over takers of the covariances of the answers given the score.
    """
    k = len(last)
    # reach[j, r]: takers who have score r on items 0, ..., j - 1.
    reach = np.zeros((k + 1, k + 1))
    reach[k] = count
    for j in range(k - 1, -1, -1):
        came_right = reach[j + 1] * last[j]
        reach[j] = reach[j + 1] - came_right
        reach[j, :-1] += came_right[1:]
    right = reach[1:] * last
    mean = right.sum(axis=1)
    covariance = np.diag(mean)
    # chance[i, r]: probability that item i is right given score r on the items so far.
    chance = np.zeros((k, k + 1))
    for j in range(k):
        both = chance[:j, :-1] @ right[j, 1:]
        covariance[:j, j] = both
        covariance[j, :j] = both
        shifted = np.zeros((j, k + 1))
        shifted[:, 1:] = chance[:j, :-1]
        chance[:j] += last[j] * (shifted - chance[:j])
        chance[j] = last[j]
    return mean, covariance - (chance * count) @ chance.T


def conditional_log_likelihood(responses: Responses, b: Floats) -> tuple[float, Floats, Floats]:
    """Sum over takers of log P(answers | score), with its gradient and information in b.

    Parameters
    ----------
    responses : Responses
        The cells.
    b : ndarray of shape (n_items,)
        Difficulties.

    Returns
    -------
    value : float
        -sum_i right_i b_i - sum_n log gamma of n's score over the items that n saw.
    gradient : ndarray of shape (n_items,)
        Its derivative: expected minus observed right answers.
    information : ndarray of shape (n_items, n_items)
        Minus its second derivative.
    """
    return _evaluate(_tables(responses), responses.right_by_item, b)


def calibrate_conditional(
    responses: Responses,
    *,
    drop_extreme: bool = False,
    ridge_std: float = RIDGE_STD,
    max_iter: int = 100,
    tol: float = 1e-10,
) -> Conditional:
    """Maximise the likelihood of the answers given the takers' scores.

    Consistent as takers grow, whatever the law of ability and whoever saw what. Work grows with the patterns
    of missing answers times the cube of the number of items.

    Parameters
    ----------
    responses : Responses
        The cells.
    drop_extreme : bool
        Leave out items whose answers are all alike (their difficulties are infinite), rather than hold them
        by a prior N(0, ridge_std^2).
    ridge_std : float
        Spread of that prior; other items have none.
    max_iter : int
        Most Newton steps.
    tol : float
        Largest change of a difficulty in the last step.

    Returns
    -------
    Conditional
        The estimates.

    Raises
    ------
    ValueError
        If there are too many items and patterns, or every taker has answers that are all alike.

    Warns
    -----
    ConvergenceWarning
        If the maximum is not reached, or there is no finite one; all difficulties then have the prior.
    """
    takers, items = ordinary(responses)
    if not takers.any():
        raise ValueError("every taker or item has answers that are all alike; none is left to compare")
    chosen = np.flatnonzero(items) if drop_extreme else np.arange(responses.n_items)
    kept = responses.items(chosen) if drop_extreme else responses
    tables = _tables(kept)
    work = float(sum(len(table.items) ** 3 for table in tables))
    if work > MOST_WORK:
        raise ValueError(
            f"method='cml' would take {work:.1e} operations a step for {len(tables)} patterns of missing "
            f"answers, more than {MOST_WORK:.0e}; use method='mml', or about 200 items and few patterns"
        )
    apart = separated(responses, items)
    ridge = np.where(items[chosen] & (not apart), 0.0, ridge_std**-2)
    b, value, information, steps, converged = _newton(tables, kept.right_by_item, ridge, max_iter, tol)
    if apart:
        warnings.warn(
            "the items fall into two groups such that nobody got one of the first wrong and one of the "
            f"second right, so that no difficulties are best; all have the prior N(0, {ridge_std:g}^2)",
            ConvergenceWarning,
            stacklevel=2,
        )
    if not converged:
        warnings.warn(
            f"conditional maximum likelihood did not settle within {max_iter} steps; increase max_iter",
            ConvergenceWarning,
            stacklevel=2,
        )
    covariance = _covariance(information)
    difficulty = np.where(2 * responses.right_by_item > responses.seen_by_item, -np.inf, np.inf)
    full = np.full((responses.n_items, responses.n_items), np.nan)
    difficulty[chosen] = b
    full[np.ix_(chosen, chosen)] = covariance
    std = np.zeros(responses.n_items)
    std[chosen] = np.sqrt(np.clip(np.diag(covariance), 0, None))
    return Conditional(Items.of(difficulty, difficulty_std=std), value, full, steps, converged)


def separated(responses: Responses, items: NDArray[np.bool_]) -> bool:
    """Say whether the conditional likelihood has no finite maximum (Fischer, 1981).

    It has one if and only if the items, with an arrow from i to j wherever somebody got i right and j wrong,
    can all be reached from each other.

    Parameters
    ----------
    responses : Responses
        The cells.
    items : ndarray of bool, shape (n_items,)
        Which items count.

    Returns
    -------
    bool
        True if there is none.
    """
    kept = responses.items(items).take(np.flatnonzero(responses.weight > 0))
    right = kept.right.toarray() if kept.is_sparse and kept.seen is None else kept.right
    wrong = (1 if kept.seen is None else kept.seen) - right
    return int(connected_components(sparse.csr_array(right.T @ wrong), connection="strong")[0]) > 1


def _tables(responses: Responses) -> list[_Scores]:
    """Count takers by the items they saw and their score; scores of 0 and of all say nothing."""
    rows, which = responses.patterns
    found = []
    order = np.argsort(which, kind="stable")
    cuts = np.flatnonzero(np.diff(which[order])) + 1
    for members in np.split(order, cuts):
        row = rows[[which[members[0]]]]
        seen = np.flatnonzero(row.toarray() if sparse.issparse(row) else row)
        score = np.rint(responses.right_by_taker[members]).astype(np.int64)
        count = np.bincount(score, responses.weight[members], minlength=len(seen) + 1).astype(float)
        found.append(_Scores(seen, count))
    return found


def _evaluate(tables: list[_Scores], right: Floats, b: Floats) -> tuple[float, Floats, Floats]:
    value = -float(right @ b)
    gradient = -right.copy()
    information = np.zeros((len(b), len(b)))
    for table in tables:
        log_gamma, last = log_symmetric(b[table.items])
        mean, covariance = score_moments(table.count, last)
        value -= float(table.count @ log_gamma)
        gradient[table.items] += mean
        information[np.ix_(table.items, table.items)] += covariance
    return value, gradient, information


def _newton(
    tables: list[_Scores], right: Floats, ridge: Floats, max_iter: int, tol: float
) -> tuple[Floats, float, Floats, int, bool]:
    """Newton steps at mean 0, halved where the likelihood falls."""
    b = np.zeros(len(right))
    value, gradient, information = _evaluate(tables, right, b)
    for steps in range(1, max_iter + 1):
        # A common shift changes nothing: the mean is pinned by adding a multiple of the matrix of ones.
        pinned = information + np.diag(ridge) + np.trace(information) / len(b) ** 2
        step = np.linalg.lstsq(pinned, gradient - ridge * b, rcond=None)[0]
        step *= min(1.0, MAX_STEP / max(np.abs(step).max(), 1e-300))
        penalised = value - 0.5 * float(ridge @ b**2)
        for _ in range(30):
            trial = b + step
            trial -= trial.mean()
            at_trial = _evaluate(tables, right, trial)
            if at_trial[0] - 0.5 * float(ridge @ trial**2) >= penalised - 1e-9 * abs(penalised):
                break
            step /= 2
        moved = np.abs(trial - b).max()
        b, (value, gradient, information) = trial, at_trial
        if moved < tol:
            return b, value, information, steps, True
    return b, value, information, max_iter, False


def _covariance(information: Floats) -> Floats:
    """Inverse of the information within the vectors of mean 0."""
    n = len(information)
    pin = np.full((n, n), 1 / n)
    size = np.trace(information) / n
    return np.asarray(np.linalg.pinv(information + size * pin, hermitian=True) - pin / size)
