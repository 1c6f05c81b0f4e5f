"""Scores on easy and on hard items: whether they depend on which items happened to be asked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logit
from scipy.stats import norm

from seedbed.checks import check_number
from seedbed.estimators.amortized_irt.ability import Method, estimate_ability
from seedbed.estimators.amortized_irt.answers import items_of
from seedbed.estimators.amortized_irt.diagnostics import _check_answers
from seedbed.estimators.amortized_irt.items import Floats


@dataclass(frozen=True)
class SubsetScores:
    """Scores of the same takers on easy and on hard items.

    Attributes
    ----------
    ability_easy, ability_hard : ndarray of shape (n_repeats, n_takers)
        Abilities from either subset.
    average_easy, average_hard : ndarray of shape (n_repeats, n_takers)
        Average scores on either subset.
    ability : ndarray of shape (n_takers,)
        Abilities from all answers.
    n_items : int
        Size of a subset.
    """

    ability_easy: Floats
    ability_hard: Floats
    average_easy: Floats
    average_hard: Floats
    ability: Floats
    n_items: int

    @property
    def ability_gap(self) -> float:
        """Mean of easy minus hard, in ability; 0 if the model holds."""
        return float(np.mean(self.ability_easy - self.ability_hard))

    @property
    def average_gap(self) -> float:
        """Mean of easy minus hard, in average score."""
        return float(np.mean(self.average_easy - self.average_hard))

    @property
    def absolute_gap(self) -> float:
        """Mean distance between the two abilities of a taker."""
        return float(np.mean(np.abs(self.ability_easy - self.ability_hard)))

    @property
    def logit_gap(self) -> float:
        """Mean of easy minus hard, in the logit of the average score, on the scale of a Rasch ability."""
        return float(np.mean(self._logit(self.average_easy) - self._logit(self.average_hard)))

    def order_errors(self, score: str = "ability") -> float:
        """Share of pairs that come out in the wrong order when one is scored on easy, one on hard items.

        Parameters
        ----------
        score : {"ability", "average"}
            What is compared.

        Returns
        -------
        float
            Share of the ordered pairs of takers with different abilities on all items; ties count half.
        """
        if score not in ("ability", "average"):
            raise ValueError(f"score must be one of 'ability', 'average'; got {score!r}")
        truth = np.sign(self.ability[:, None] - self.ability)
        easy, hard = getattr(self, f"{score}_easy"), getattr(self, f"{score}_hard")
        seen = np.sign(easy[:, :, None] - hard[:, None, :])
        return float(np.mean((np.abs(seen - truth) / 2)[:, truth != 0]))

    def _logit(self, average: Floats) -> Floats:
        low = 0.5 / self.n_items
        return np.asarray(logit(np.clip(average, low, 1 - low)))


def subset_test(
    responses: ArrayLike,
    items: Any,
    *,
    n_items: int = 100,
    n_repeats: int = 10,
    method: Method = "eap",
    latent_scale: float | None = None,
    random_state: Any = None,
) -> SubsetScores:
    """Score all takers on easy and on hard subsets of the items.

    Items are drawn without replacement with weights N(b; end, range / 10) around the lowest or the highest
    difficulty, each at least 1 / (5 n) for a bank of n.

    Parameters
    ----------
    responses : array-like of shape (n_takers, n_bank)
        1, 0, or NaN for no answer.
    items : Items or fitted estimator
        The items.
    n_items : int, default=100
        Size of a subset.
    n_repeats : int, default=10
        Subsets of either kind.
    method : {"eap", "map", "mle", "wle"}, default="eap"
        As in :func:`estimate_ability`; infinite estimates are kept to +- 4 latent_scale.
    latent_scale : float, optional
        Prior standard deviation; the estimator's, or 1.
    random_state : int, Generator or None
        Source of randomness.

    Returns
    -------
    SubsetScores
        Scores and their gaps.

    Raises
    ------
    ValueError
        If shapes do not match, the bank has too few items, or a taker has no answer in a subset.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import Items, simulate_responses, subset_test
    >>> rng = np.random.default_rng(0)
    >>> items, theta = Items.of(rng.normal(size=1000)), rng.normal(size=100)
    >>> scores = subset_test(simulate_responses(theta, items, random_state=0), items, random_state=0)
    >>> bool(scores.average_gap > 0.3), bool(abs(scores.ability_gap) < 0.1)
    (True, True)
    """
    bank = items_of(items)
    check_number("n_repeats", n_repeats, low=1, integer=True)
    check_number("n_items", n_items, low=1, high=len(bank) - 1, integer=True)
    scale = getattr(items, "latent_scale_", 1.0) if latent_scale is None else latent_scale
    check_number("latent_scale", scale, low=0, closed="neither")
    y = np.asarray(responses, dtype=float)
    if y.ndim != 2 or y.shape[1] != len(bank):
        raise ValueError(f"responses must have {len(bank)} columns, got shape {y.shape}")
    _check_answers(y)
    rng = np.random.default_rng(random_state)
    bounds = (-4.0 * scale, 4.0 * scale)

    def ability(columns: Any) -> Floats:
        return estimate_ability(
            y[:, columns], bank.take(columns), method=method, latent_scale=scale, bounds=bounds
        ).ability

    scores: list[list[Floats]] = [[], [], [], []]
    for _ in range(n_repeats):
        for side, end in enumerate((bank.difficulty.min(), bank.difficulty.max())):
            columns = rng.choice(len(bank), n_items, replace=False, p=_weights(bank.difficulty, end))
            seen = ~np.isnan(y[:, columns])
            if not seen.any(axis=1).all():
                raise ValueError(f"responses[{np.argmin(seen.any(axis=1))}] has no answer in a subset")
            scores[side].append(ability(columns))
            scores[2 + side].append(np.nan_to_num(y[:, columns]).sum(axis=1) / seen.sum(axis=1))
    easy, hard, easy_average, hard_average = (np.array(part) for part in scores)
    return SubsetScores(easy, hard, easy_average, hard_average, ability(slice(None)), n_items)


def _weights(difficulty: Floats, end: float) -> Floats:
    width = max(float(np.ptp(difficulty)) / 10, np.finfo(float).tiny)
    weights = norm.pdf((difficulty - end) / width)
    weights = np.maximum(weights / weights.sum(), 1 / (5 * len(difficulty)))
    return np.asarray(weights / weights.sum())
