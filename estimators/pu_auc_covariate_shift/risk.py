"""The two estimators of the AUC risk on the target population, their gradients, and the AUC by ranks.

With the density ratio ``w = p_te / p_tr`` and a symmetric loss, both

- ``J1 = E[w(x) w(x') l(s(x) - s(x'))]``, x a training positive, x' from the training population, and
- ``J2 = E[w(x) l(s(x) - s(x'))]``, x a training positive, x' from the target population,

equal ``(pi_te / pi_tr) ((1 - pi_te) R + pi_te / 2)``, where R is the AUC risk on the target population.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_array, column_or_1d

from seedbed.checks import check_choice, check_number
from seedbed.estimators.pu_auc_covariate_shift.losses import LOSSES, SYMMETRIC, Floats, PairLoss

CHUNK = 1 << 16
"""Pairs held at a time: two such blocks stay in a core's cache."""

SPREAD = 600.0
"""Scores further apart than this would overflow a product of exponentials."""


def pair_sum(
    first: Floats,
    second: Floats,
    first_weight: Floats,
    second_weight: Floats,
    loss: PairLoss,
    *,
    gradient: bool = True,
) -> tuple[float, Floats, Floats]:
    """Sum ``a_i b_j l(s_i - t_j)`` over all pairs, a block of rows at a time.

    Parameters
    ----------
    first, second : ndarray of shape (n,) and (m,)
        Scores s and t.
    first_weight, second_weight : ndarray of shape (n,) and (m,)
        Weights a and b.
    loss : PairLoss
        The loss.
    gradient : bool
        Whether the gradient is wanted; zeros else.

    Returns
    -------
    value : float
        The sum.
    first_gradient, second_gradient : ndarray of shape (n,) and (m,)
        Its derivatives with respect to s and t.
    """
    total = 0.0
    left, right = np.zeros(len(first)), np.zeros(len(second))
    if not len(first) or not len(second):
        return total, left, right
    low = min(first.min(), second.min())
    spread = max(first.max(), second.max()) - low
    # One product, one sum and one division a pair instead of an exponential.
    quick = loss.name == "sigmoid" and spread < SPREAD
    if quick:
        middle = low + spread / 2
        up, down = np.exp(first - middle), np.exp(middle - second)
    rows = max(1, CHUNK // len(second))
    block = np.empty((min(rows, len(first)), len(second)))
    other = np.empty_like(block)
    for start in range(0, len(first), rows):
        part = slice(start, min(start + rows, len(first)))
        size = part.stop - part.start
        if quick:
            values = np.multiply.outer(up[part], down, out=block[:size])
            values += 1.0
            np.reciprocal(values, out=values)
        else:
            gap = np.subtract.outer(first[part], second, out=other[:size])
            values = loss.value(gap)
        total += float(first_weight[part] @ (values @ second_weight))
        if not gradient:
            continue
        if quick:
            slopes = np.multiply(values, values, out=other[:size])
            slopes -= values
        else:
            slopes = loss.slope(gap)
        left[part] = first_weight[part] * (slopes @ second_weight)
        right -= first_weight[part] @ slopes
    return total, left, right * second_weight


@dataclass(frozen=True)
class Weighted:
    """Rows of one sample as the risk sees them.

    Attributes
    ----------
    ratio : ndarray of shape (n,)
        Importance weights w.
    count : ndarray of shape (n,)
        How many rows each row stands for.
    """

    ratio: Floats
    count: Floats

    @property
    def weight(self) -> Floats:
        """Weight of each row in a sum over pairs."""
        return self.ratio * self.count

    @classmethod
    def ones(cls, n: int) -> "Weighted":
        """Rows that all count alike.

        Parameters
        ----------
        n : int
            Number of rows.

        Returns
        -------
        Weighted
            With all weights one.
        """
        return cls(np.ones(n), np.ones(n))

    @classmethod
    def joined(cls, *parts: "Weighted") -> "Weighted":
        """Samples one behind the other.

        Parameters
        ----------
        *parts : Weighted
            The samples.

        Returns
        -------
        Weighted
            All rows.
        """
        return cls(
            np.concatenate([part.ratio for part in parts]), np.concatenate([part.count for part in parts])
        )


@dataclass(frozen=True)
class PURisk:
    """The objective ``(1 - gamma) J1 + gamma J2`` as a function of scores, without its regulariser.

    Attributes
    ----------
    positive, unlabeled : Weighted
        Labelled positives and unlabeled rows of the training population.
    target : Weighted or None
        Unlabeled rows of the target population; without them gamma is taken as 0.
    loss : PairLoss
        Loss of a pair.
    trade_off : float
        gamma.
    normalize : bool
        Divide by the sums of the weights instead of the numbers of pairs.
    class_prior_train : float or None
        ``pi_tr``, for a loss that is not symmetric.
    single_set : bool
        Whether unlabeled rows are what labelling left of one sample: then all rows together stand for the
        training population, and a row is not paired with itself.
    """

    positive: Weighted
    unlabeled: Weighted
    target: Weighted | None = None
    loss: PairLoss = field(default_factory=lambda: LOSSES["sigmoid"])
    trade_off: float = 0.5
    normalize: bool = True
    class_prior_train: float | None = None
    single_set: bool = False

    @property
    def gamma(self) -> float:
        """The trade-off that counts."""
        return self.trade_off if self.target is not None else 0.0

    def __call__(
        self, positive: Floats, unlabeled: Floats, target: Floats | None = None, *, gradient: bool = True
    ) -> tuple[float, Floats, Floats, Floats]:
        """Evaluate at these scores.

        Parameters
        ----------
        positive, unlabeled, target : ndarray of shape (n_p,), (n_u,) and (n_t,)
            Scores of the three samples.
        gradient : bool
            Whether the gradient is wanted; zeros else.

        Returns
        -------
        value : float
            The objective.
        positive_gradient, unlabeled_gradient, target_gradient : ndarray
            Its derivatives with respect to the scores.
        """
        value = 0.0
        to_p, to_u = np.zeros(len(positive)), np.zeros(len(unlabeled))
        to_t = np.zeros(0 if target is None else len(target))
        if self.gamma < 1:
            share = 1 - self.gamma
            part, grad_p, grad_u = self._source(positive, unlabeled, gradient)
            value += share * part
            to_p, to_u = share * grad_p, share * grad_u
        if self.gamma > 0 and target is not None and self.target is not None:
            part, grad_p, grad_t = self._mean(positive, target, self.positive, self.target, gradient)
            value += self.gamma * part
            to_p, to_t = to_p + self.gamma * grad_p, self.gamma * grad_t
        if not self.loss.symmetric:
            part, grad_p = self._positive_pairs(positive, gradient)
            value -= part
            to_p = to_p - grad_p
        return value, to_p, to_u, to_t

    def _mean(
        self, s: Floats, t: Floats, a: Weighted, b: Weighted, gradient: bool, *, same: bool = False
    ) -> tuple[float, Floats, Floats]:
        """Mean of the loss over pairs; ``same`` leaves out the pairs of a row of s with itself in t.

        A left-out pair has loss l(0) at any score, so the gradient needs no correction.
        """
        value, left, right = pair_sum(s, t, a.weight, b.weight, self.loss, gradient=gradient)
        total_a, total_b = (a.weight, b.weight) if self.normalize else (a.count, b.count)
        pairs = float(total_a.sum() * total_b.sum())
        if same:
            value -= self.loss.at_zero * float(a.weight @ a.weight)
            pairs -= float(total_a @ total_a)
        return value / pairs, left / pairs, right / pairs

    def _source(self, positive: Floats, unlabeled: Floats, gradient: bool) -> tuple[float, Floats, Floats]:
        """J1."""
        if not self.single_set:
            return self._mean(positive, unlabeled, self.positive, self.unlabeled, gradient)
        both = Weighted.joined(self.positive, self.unlabeled)
        value, left, right = self._mean(
            positive, np.concatenate([positive, unlabeled]), self.positive, both, gradient, same=True
        )
        n = len(positive)
        return value, left + right[:n], right[n:]

    def _positive_pairs(self, positive: Floats, gradient: bool) -> tuple[float, Floats]:
        """``pi_tr J_pp``, in the scale of the normalised risks where these are."""
        assert self.class_prior_train is not None
        value, left, right = self._mean(positive, positive, self.positive, self.positive, gradient, same=True)
        factor = self.class_prior_train
        if self.normalize:
            # Dividing J1 by E+[w] E[w], and J_pp by E+[w]^2, leaves their quotient: an estimate of pi_te.
            whole = Weighted.joined(self.positive, self.unlabeled) if self.single_set else self.unlabeled
            factor *= float(np.average(self.positive.ratio, weights=self.positive.count))
            factor /= float(np.average(whole.ratio, weights=whole.count))
        return factor * value, factor * (left + right)


def _scores(name: str, values: ArrayLike) -> Floats:
    """Check a 1-D array of finite scores."""
    array = check_array(values, ensure_2d=False, dtype=np.float64, input_name=name)
    return np.asarray(column_or_1d(array), dtype=np.float64)


def _weights(name: str, values: ArrayLike | None, n: int) -> Floats:
    """Check non-negative weights of n rows; ones for None."""
    if values is None:
        return np.ones(n)
    array = _scores(name, values)
    if len(array) != n:
        raise ValueError(f"{name} must have one entry per score, {n}; got {len(array)}")
    if array.min() < 0 or array.max() <= 0:
        raise ValueError(
            f"{name} must be non-negative and not all zero; got values in [{array.min():g}, {array.max():g}]"
        )
    return array


def pu_auc_risk(
    scores_positive: ArrayLike,
    scores_unlabeled: ArrayLike,
    weight_positive: ArrayLike | None = None,
    weight_unlabeled: ArrayLike | None = None,
    *,
    loss: str = "sigmoid",
    normalize: bool = True,
    class_prior_train: float | None = None,
    ratio_mean: float | None = None,
    self_pairs: bool = False,
) -> float:
    """Weighted risk of ranking positives above unlabeled rows.

    J1 with ``w`` for the positives and for unlabeled training rows, J2 with ``w`` for the positives and no
    weights for unlabeled target rows. A loss that is not symmetric needs ``class_prior_train``: the pairs of
    two positives are then taken off, and the result is proportional to the AUC risk of the target population.

    Parameters
    ----------
    scores_positive : array-like of shape (n_p,)
        Scores of labelled positives of the training population.
    scores_unlabeled : array-like of shape (n,)
        Scores of unlabeled rows, of the training or of the target population.
    weight_positive, weight_unlabeled : array-like, optional
        Importance weights; ones by default.
    loss : {"sigmoid", "ramp", "logistic", "squared_hinge", "squared", "zero_one"}
        Loss of ``s(x) - s(x')``. "zero_one" counts ties as one half.
    normalize : bool
        Divide by the sums of the weights (free of their scale and far less variable) instead of by the number
        of pairs (unbiased).
    class_prior_train : float in (0, 1), optional
        Share of positives in the training population, for "logistic", "squared_hinge" and "squared".
    ratio_mean : float > 0, optional
        Mean of the importance weights over the training population, for a normalised risk with
        ``class_prior_train``; by default the mean of ``weight_unlabeled``.
    self_pairs : bool
        Whether the pairs of two positives include a row with itself, as for a population with atoms.

    Returns
    -------
    float
        The risk.

    Raises
    ------
    ValueError
        If an argument is out of range, or ``class_prior_train`` is missing.

    References
    ----------
    A. Kumagai et al., *Positive-unlabeled AUC Maximization under Covariate Shift*, ICML 2025.

    Examples
    --------
    >>> pu_auc_risk([2.0, 1.0], [0.0, 1.0], loss="zero_one")
    0.125
    >>> round(pu_auc_risk([2.0, 1.0], [0.0, 1.0], weight_positive=[1.0, 3.0]), 4)
    0.3369
    """
    check_choice("loss", loss, (*LOSSES, "zero_one"))
    s, t = _scores("scores_positive", scores_positive), _scores("scores_unlabeled", scores_unlabeled)
    a = _weights("weight_positive", weight_positive, len(s))
    b = _weights("weight_unlabeled", weight_unlabeled, len(t))
    scale = float(a.sum() * b.sum()) if normalize else float(len(s) * len(t))
    if loss == "zero_one":
        return float(a.sum() * b.sum()) / scale * (1.0 - _ranked(s, t, a, b))
    kind = LOSSES[loss]
    risk = pair_sum(s, t, a, b, kind, gradient=False)[0] / scale
    if kind.symmetric:
        return risk
    if class_prior_train is None:
        raise ValueError(
            f"class_prior_train must be given for loss={loss!r}, or the loss be one of {SYMMETRIC}: without "
            "symmetry, pairs of two positives do not add up to a constant"
        )
    check_number("class_prior_train", class_prior_train, low=0, high=1, closed="neither")
    pairs, count = pair_sum(s, s, a, a, kind, gradient=False)[0], float(len(s) ** 2)
    total = float(a.sum() ** 2)
    if not self_pairs:
        if len(s) < 2:
            raise ValueError("scores_positive must hold at least 2 scores to pair positives, got 1")
        pairs, count, total = pairs - kind.at_zero * float(a @ a), count - len(s), total - float(a @ a)
    if not normalize:
        return risk - class_prior_train * pairs / count
    if ratio_mean is not None:
        check_number("ratio_mean", ratio_mean, low=0, closed="neither")
    mean = float(b.mean()) if ratio_mean is None else ratio_mean
    return risk - class_prior_train * float(a.mean()) / mean * pairs / total


def _ranked(s: Floats, t: Floats, a: Floats, b: Floats) -> float:
    """Weighted share of pairs in order, ties half, in O(n log n)."""
    order = np.argsort(t, kind="stable")
    sorted_t = t[order]
    below = np.concatenate([[0.0], np.cumsum(b[order])])
    less = below[np.searchsorted(sorted_t, s, side="left")]
    at_most = below[np.searchsorted(sorted_t, s, side="right")]
    return float(a @ (less + at_most)) / float(2 * a.sum() * below[-1])


def weighted_pu_auc_score(
    scores_positive: ArrayLike,
    scores_unlabeled: ArrayLike,
    weight_positive: ArrayLike | None = None,
    weight_unlabeled: ArrayLike | None = None,
) -> float:
    """Weighted share of pairs in which the positive has the higher score; ties count one half.

    With importance weights it increases with the AUC on the target population, so it compares scorers without
    a single negative: see :func:`auc_from_pu_auc`.

    Parameters
    ----------
    scores_positive : array-like of shape (n_p,)
        Scores of labelled positives.
    scores_unlabeled : array-like of shape (n,)
        Scores of unlabeled rows.
    weight_positive, weight_unlabeled : array-like, optional
        Importance weights; ones by default.

    Returns
    -------
    float
        In [0, 1]; computed from ranks in O(n log n).

    Raises
    ------
    ValueError
        If arrays are malformed.

    Examples
    --------
    >>> weighted_pu_auc_score([2.0, 1.0], [0.0, 1.0])
    0.875
    """
    s, t = _scores("scores_positive", scores_positive), _scores("scores_unlabeled", scores_unlabeled)
    a = _weights("weight_positive", weight_positive, len(s))
    return _ranked(s, t, a, _weights("weight_unlabeled", weight_unlabeled, len(t)))


def auc_from_pu_auc(pu_auc: Any, class_prior: float) -> Any:
    """AUC against true negatives, from the AUC against unlabeled rows.

    ``(A - pi / 2) / (1 - pi)``: of the unlabeled rows a share pi is positive, and ranks level with the
    positives on average.

    Parameters
    ----------
    pu_auc : float or array-like
        Share of (positive, unlabeled) pairs in order, such as :func:`weighted_pu_auc_score`.
    class_prior : float in (0, 1)
        Share of positives in the population that the unlabeled rows stand for.

    Returns
    -------
    float or ndarray
        The AUC; outside [0, 1] where estimate and prior do not agree.

    Raises
    ------
    ValueError
        If ``class_prior`` is out of range.

    Examples
    --------
    >>> round(auc_from_pu_auc(0.82, class_prior=0.2), 3)
    0.9
    """
    check_number("class_prior", class_prior, low=0, high=1, closed="neither")
    found = (np.asarray(pu_auc, dtype=np.float64) - class_prior / 2) / (1 - class_prior)
    return float(found) if found.ndim == 0 else found
