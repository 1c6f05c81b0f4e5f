"""Where to cut the scores: a ranker has no natural zero."""

import numpy as np

from seedbed.estimators.pu_auc_covariate_shift.losses import Floats


def youden_curve(
    positive: Floats, unlabeled: Floats, weight_positive: Floats, weight_unlabeled: Floats
) -> tuple[Floats, Floats, Floats]:
    """Shares of positives and of unlabeled rows at or above each score.

    Parameters
    ----------
    positive, unlabeled : ndarray of shape (n,) and (m,)
        Scores.
    weight_positive, weight_unlabeled : ndarray of shape (n,) and (m,)
        Weights.

    Returns
    -------
    cuts : ndarray of shape (k,)
        Distinct scores, descending.
    positive_share, unlabeled_share : ndarray of shape (k,)
        Weighted shares of scores at or above each.
    """
    scores = np.concatenate([positive, unlabeled])
    cuts, place = np.unique(-scores, return_inverse=True)
    n = len(positive)
    first = np.bincount(place[:n], weight_positive, len(cuts)).cumsum()
    second = np.bincount(place[n:], weight_unlabeled, len(cuts)).cumsum()
    return -cuts, first / first[-1], second / second[-1]


def youden_threshold(
    positive: Floats, unlabeled: Floats, weight_positive: Floats, weight_unlabeled: Floats
) -> float:
    """Threshold that maximises ``TPR - P(s >= t)``, half way to the next lower score.

    On the target population ``TPR - P(s >= t) = (1 - pi) (TPR - FPR)``: the maximiser is that of Youden's J,
    whatever the class prior.

    Parameters
    ----------
    positive, unlabeled : ndarray of shape (n,) and (m,)
        Scores of positives and of rows of the population.
    weight_positive, weight_unlabeled : ndarray of shape (n,) and (m,)
        Weights.

    Returns
    -------
    float
        Rows with a larger score count as positive.
    """
    cuts, tpr, share = youden_curve(positive, unlabeled, weight_positive, weight_unlabeled)
    best = int(np.argmax(tpr - share))
    if best + 1 == len(cuts):  # all rows count as positive
        return float(cuts[best] - (np.ptp(cuts) or 1.0) / 2)
    return float(cuts[best + 1] + (cuts[best] - cuts[best + 1]) / 2)


def upper_share_threshold(scores: Floats, weight: Floats, share: float) -> float:
    """Threshold above which this share of the rows lies.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        Scores.
    weight : ndarray of shape (n,)
        Weights.
    share : float in (0, 1)
        Wanted share.

    Returns
    -------
    float
        The weighted ``1 - share`` quantile, half way between neighbouring scores.
    """
    order = np.argsort(scores, kind="stable")
    ranked, reached = scores[order], np.cumsum(weight[order])
    place = int(np.searchsorted(reached, (1 - share) * reached[-1] * (1 - 1e-12)))
    upper = ranked[min(place + 1, len(ranked) - 1)]
    return float(ranked[place] + (upper - ranked[place]) / 2)
