"""Whether a model fits: item by item, taker by taker, group by group, and on cells it has not seen."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2, false_discovery_control
from sklearn.metrics import roc_auc_score

from seedbed.checks import check_choice, check_number
from seedbed.estimators.amortized_irt.answers import items_of
from seedbed.estimators.amortized_irt.items import Floats, Items

SHIFT_SCALE = 4.0
"""Standard deviation of the weak normal prior on a group's shift of difficulty, for items all of one kind."""
SHIFT_STEPS = 50


@dataclass(frozen=True)
class MeanSquares:
    """Mean squares of residuals; 1 is expected, more is noise, less is redundancy.

    Attributes
    ----------
    infit : ndarray
        Weighted by information: sum (y - P)^2 / sum P (1 - P).
    outfit : ndarray
        Unweighted: mean of (y - P)^2 / (P (1 - P)).
    """

    infit: Floats
    outfit: Floats


@dataclass(frozen=True)
class ItemBias:
    """Differences between groups in how items work.

    Attributes
    ----------
    groups : ndarray of shape (n_groups,)
        Labels.
    shift : ndarray of shape (n_groups, n_items)
        How much harder each item is for each group than the model says, less the group's average over items.
    std : ndarray of shape (n_groups, n_items)
        Standard errors; NaN where a group did not meet an item.
    statistic : ndarray of shape (n_items,)
        Chi-squared statistic of equal shifts.
    p_value, p_adjusted : ndarray of shape (n_items,)
        Its p-values, as they are and after Benjamini and Hochberg; 1 where fewer than two groups met an item.
    """

    groups: Any
    shift: Floats
    std: Floats
    statistic: Floats
    p_value: Floats
    p_adjusted: Floats


def goodness_of_fit(responses: ArrayLike, ability: ArrayLike, items: Any, *, n_bins: int = 6) -> Floats:
    """One minus the mean distance between the curve of each item and what its takers did.

    Takers are put into bins of equal width by ability; the curve is read at each bin's midpoint.

    Parameters
    ----------
    responses : array-like of shape (n_takers, n_items)
        1, 0, or NaN for no answer.
    ability : array-like of shape (n_takers,)
        Abilities.
    items : Items or fitted estimator
        The items.
    n_bins : int, default=6
        Number of bins between the lowest and the highest ability.

    Returns
    -------
    ndarray of shape (n_items,)
        1 - mean |share right - P(midpoint)| over the bins in which the item was met.

    Raises
    ------
    ValueError
        If shapes do not match, a cell is no answer, or an item has none.

    Examples
    --------
    >>> from seedbed.estimators import Items, goodness_of_fit
    >>> goodness_of_fit([[0.0], [1.0]], [-1.0, 1.0], Items.of([0.0]), n_bins=2).round(3)
    array([0.622])
    """
    check_number("n_bins", n_bins, low=1, integer=True)
    y, theta, bank = _checked(responses, ability, items)
    edges = np.linspace(theta.min(), theta.max(), n_bins + 1)
    place = np.clip(np.searchsorted(edges, theta, side="right") - 1, 0, n_bins - 1)
    member = (place == np.arange(n_bins)[:, None]).astype(float)
    count = member @ ~np.isnan(y)
    right = member @ np.nan_to_num(y)
    model = bank.probability((edges[:-1] + edges[1:]) / 2)
    distance = np.where(count > 0, np.abs(right / np.maximum(count, 1) - model), 0.0)
    return np.asarray(1 - distance.sum(axis=0) / (count > 0).sum(axis=0))


def infit_outfit(responses: ArrayLike, ability: ArrayLike, items: Any, *, of: str = "items") -> MeanSquares:
    """Mean squares of the residuals of each item or taker.

    Parameters
    ----------
    responses : array-like of shape (n_takers, n_items)
        1, 0, or NaN for no answer.
    ability : array-like of shape (n_takers,)
        Abilities.
    items : Items or fitted estimator
        The items.
    of : {"items", "takers"}, default="items"
        Whose.

    Returns
    -------
    MeanSquares
        ``infit`` and ``outfit``.

    Raises
    ------
    ValueError
        If shapes do not match, a cell is no answer, or an item or taker has none.

    References
    ----------
    Wright and Masters, Rating Scale Analysis, 1982.

    Examples
    --------
    >>> from seedbed.estimators import Items, infit_outfit
    >>> found = infit_outfit([[1, 0], [0, 1]], [0.0, 0.0], Items.of([0.0, 0.0]))
    >>> found.infit, found.outfit
    (array([1., 1.]), array([1., 1.]))
    """
    check_choice("of", of, ("items", "takers"))
    y, theta, bank = _checked(responses, ability, items)
    axis = 0 if of == "items" else 1
    seen = ~np.isnan(y)
    if axis == 1 and not seen.any(axis=1).all():
        raise ValueError(f"responses[{np.argmin(seen.any(axis=1))}] has no answer")
    right = np.clip(bank.probability(theta), 1e-12, 1 - 1e-12)
    spread = np.where(seen, right * (1 - right), 0.0)
    square = np.where(seen, (np.nan_to_num(y) - right) ** 2, 0.0)
    ratio = np.divide(square, spread, out=np.zeros_like(square), where=seen)
    return MeanSquares(square.sum(axis) / spread.sum(axis), ratio.sum(axis) / seen.sum(axis))


def differential_item_functioning(
    responses: ArrayLike, ability: ArrayLike, items: Any, groups: ArrayLike
) -> ItemBias:
    """Test whether items are harder for one group than for another of the same ability.

    Given the abilities, each group's own difficulty of each item is fitted; the group's average shift, which
    is a matter of ability, is taken off; and the rest is compared between groups.

    Parameters
    ----------
    responses : array-like of shape (n_takers, n_items)
        1, 0, or NaN for no answer.
    ability : array-like of shape (n_takers,)
        Abilities; of many items, or they carry the bias of the items themselves.
    items : Items or fitted estimator
        The items.
    groups : array-like of shape (n_takers,)
        Group of each taker, two at least.

    Returns
    -------
    ItemBias
        Shifts and tests.

    Raises
    ------
    ValueError
        If shapes do not match, a cell is no answer, or there is one group only.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import Items, differential_item_functioning, simulate_responses
    >>> theta, group = np.random.default_rng(0).normal(size=2000), np.arange(2000) % 2
    >>> items, harder = Items.of(np.linspace(-1, 1, 9)), Items.of(np.linspace(-1, 1, 9) + np.eye(9)[4])
    >>> y = np.where(group[:, None], simulate_responses(theta, harder, random_state=0),
    ...              simulate_responses(theta, items, random_state=1))
    >>> differential_item_functioning(y, theta, items, group).p_adjusted.argmin()
    np.int64(4)
    """
    y, theta, bank = _checked(responses, ability, items)
    label = np.asarray(groups)
    if label.shape != theta.shape:
        raise ValueError(f"groups must have one label per taker, {len(theta)}, got shape {label.shape}")
    names, number = np.unique(label, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"groups must hold two labels at least, got {names.tolist()}")
    parts = [_shift(y[number == g], theta[number == g], bank) for g in range(len(names))]
    shift, weight = (np.array(part) for part in zip(*parts, strict=True))
    shift = shift - (shift * weight).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
    total = np.maximum(weight.sum(axis=0), np.finfo(float).tiny)
    common = (shift * weight).sum(axis=0) / total
    statistic = (weight * (shift - common) ** 2).sum(axis=0)
    n_met = (weight > 0).sum(axis=0)
    p_value = np.where(n_met > 1, chi2.sf(statistic, np.maximum(n_met - 1, 1)), 1.0)
    with np.errstate(divide="ignore"):
        std = np.where(weight > 0, 1 / np.sqrt(weight), np.nan)
    return ItemBias(names, shift, std, statistic, p_value, false_discovery_control(p_value))


def _shift(y: Floats, theta: Floats, items: Items) -> tuple[Floats, Floats]:
    """Shift of the difficulties that fits a group best, and its precision; 0 where it has no answers."""
    seen = ~np.isnan(y)
    right = np.nan_to_num(y)
    shift = np.zeros(len(items))
    for _ in range(SHIFT_STEPS):
        moved = Items(items.difficulty + shift, *_rest(items))
        chance = moved.probability(theta)
        spread = np.maximum(chance * (1 - chance), 1e-12)
        slope = np.sqrt(moved.information(theta) * spread)
        score = np.where(seen, (chance - right) * slope / spread, 0.0).sum(axis=0)
        weight = np.where(seen, slope**2 / spread, 0.0).sum(axis=0)
        step = np.clip((score - shift / SHIFT_SCALE**2) / (weight + SHIFT_SCALE**-2), -1, 1)
        shift += step
        if np.abs(step).max() < 1e-10:
            break
    return shift, weight


def _rest(items: Items) -> tuple[Floats, Floats, Floats, Floats]:
    return items.discrimination, items.guessing, items.upper, items.difficulty_std


def held_out_auc(responses: ArrayLike, probability: ArrayLike, *, held_out: ArrayLike | None = None) -> float:
    """Area under the ROC curve of predicted answers, over all cells together.

    Parameters
    ----------
    responses : array-like of shape (n_takers, n_items)
        1, 0, or NaN for no answer.
    probability : array-like of shape (n_takers, n_items)
        Predicted chance of a right answer.
    held_out : array-like of bool of shape (n_takers, n_items), optional
        Cells that count; all answers by default.

    Returns
    -------
    float
        The area; 1/2 for guessing.

    Raises
    ------
    ValueError
        If shapes do not match, or the cells hold only one kind of answer.

    Examples
    --------
    >>> from seedbed.estimators import held_out_auc
    >>> held_out_auc([[1, 0], [1, float("nan")]], [[0.9, 0.2], [0.6, 0.5]])
    1.0
    """
    y, chance, use = _cells(responses, probability, held_out)
    if len(np.unique(y[use])) < 2:
        raise ValueError("responses must hold both right and wrong answers among the cells that count")
    return float(roc_auc_score(y[use], chance[use]))


def ctt_correlation(
    responses: ArrayLike, probability: ArrayLike, *, held_out: ArrayLike | None = None
) -> float:
    """Correlation, over takers, of the mean predicted and the mean observed score.

    Parameters
    ----------
    responses, probability, held_out : array-like of shape (n_takers, n_items)
        As for :func:`held_out_auc`.

    Returns
    -------
    float
        Pearson's correlation over the takers with cells that count.

    Raises
    ------
    ValueError
        If shapes do not match, fewer than two takers have cells, or a mean does not vary.

    Examples
    --------
    >>> from seedbed.estimators import ctt_correlation
    >>> round(ctt_correlation([[1, 1], [1, 0], [0, 0]], [[0.9, 0.8], [0.6, 0.5], [0.3, 0.1]]), 3)
    0.999
    """
    y, chance, use = _cells(responses, probability, held_out)
    count = use.sum(axis=1)
    rows = count > 0
    means = [np.where(use, part, 0.0).sum(axis=1)[rows] / count[rows] for part in (np.nan_to_num(y), chance)]
    return _pearson(means[0], means[1], "mean scores")


def score_correlation(ability: ArrayLike, responses: ArrayLike) -> float:
    """Correlation of abilities with average scores.

    Parameters
    ----------
    ability : array-like of shape (n_takers,)
        Abilities.
    responses : array-like of shape (n_takers, n_items)
        1, 0, or NaN for no answer.

    Returns
    -------
    float
        Pearson's correlation.

    Raises
    ------
    ValueError
        If shapes do not match, a taker has no answer, or one of the two does not vary.

    Examples
    --------
    >>> from seedbed.estimators import score_correlation
    >>> round(score_correlation([-1.0, 0.0, 1.0], [[0, 0], [0, 1], [1, 1]]), 3)
    1.0
    """
    y, theta = np.asarray(responses, dtype=float), np.asarray(ability, dtype=float)
    if y.ndim != 2 or theta.shape != (len(y),) or not np.isfinite(theta).all():
        raise ValueError(f"ability must be finite, one per taker, got {theta.shape} for responses {y.shape}")
    seen = ~np.isnan(y)
    if not seen.any(axis=1).all():
        raise ValueError(f"responses[{np.argmin(seen.any(axis=1))}] has no answer")
    return _pearson(theta, np.nan_to_num(y).sum(axis=1) / seen.sum(axis=1), "ability or average score")


def information_criteria(log_likelihood: float, n_parameters: int, n_takers: int) -> tuple[float, float]:
    """Akaike's and Schwarz's criteria of a marginal log-likelihood; the smaller, the better.

    Parameters
    ----------
    log_likelihood : float
        Of the fitted model.
    n_parameters : int
        Free item parameters, and those of the ability distribution.
    n_takers : int
        Takers, the independent units.

    Returns
    -------
    pair of float
        AIC = 2 k - 2 LL and BIC = k log(n) - 2 LL.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> from seedbed.estimators import information_criteria
    >>> aic, bic = information_criteria(-2466.938, 6, 1000)
    >>> round(aic, 3), round(bic, 3)
    (4945.876, 4975.323)
    """
    check_number("log_likelihood", log_likelihood)
    check_number("n_parameters", n_parameters, low=0, integer=True)
    check_number("n_takers", n_takers, low=1, integer=True)
    return 2 * n_parameters - 2 * log_likelihood, float(n_parameters * np.log(n_takers) - 2 * log_likelihood)


def _checked(responses: ArrayLike, ability: ArrayLike, items: Any) -> tuple[Floats, Floats, Items]:
    """Check answers, abilities and items against each other."""
    bank = items_of(items)
    y, theta = np.asarray(responses, dtype=float), np.asarray(ability, dtype=float)
    if theta.ndim != 1 or y.shape != (len(theta), len(bank)):
        raise ValueError(
            f"responses must have shape (n_takers, n_items) = ({theta.size}, {len(bank)}), got {y.shape}"
        )
    if not np.isfinite(theta).all():
        wrong = int(np.argmin(np.isfinite(theta)))
        raise ValueError(f"ability[{wrong}] must be finite, got {theta[wrong]}")
    _check_answers(y)
    met = (~np.isnan(y)).any(axis=0)
    if not met.all():
        raise ValueError(f"item {np.argmin(met)} has no answer")
    return y, theta, bank


def _check_answers(y: Floats) -> None:
    wrong = ~np.isnan(y) & (y != 0) & (y != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(f"responses[{row}, {column}] must be 0, 1 or NaN, got {y[row, column]:g}")


def _cells(responses: ArrayLike, probability: ArrayLike, held_out: Any) -> tuple[Floats, Floats, Any]:
    y, chance = np.asarray(responses, dtype=float), np.asarray(probability, dtype=float)
    if y.ndim != 2 or y.shape != chance.shape:
        raise ValueError(f"probability must have the shape of responses, {y.shape}, got {chance.shape}")
    _check_answers(y)
    use = ~np.isnan(y)
    if held_out is not None:
        chosen = np.asarray(held_out, dtype=bool)
        if chosen.shape != y.shape:
            raise ValueError(f"held_out must have the shape of responses, {y.shape}, got {chosen.shape}")
        use &= chosen
    if not np.isfinite(chance[use]).all():
        raise ValueError("probability must be finite wherever an answer counts")
    return y, chance, use


def _pearson(first: Floats, second: Floats, what: str) -> float:
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        raise ValueError(f"{what} must vary over two takers at least")
    return float(np.corrcoef(first, second)[0, 1])
