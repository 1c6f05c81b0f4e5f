"""What calibration leaves behind: sorted scores, and how they turn a batch size and alpha into intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from seedbed.estimators.cojer.aggregation import (
    Aggregation,
    AggregationNull,
    Ranks,
    aggregate_p_values,
    hulls,
    independent_thresholds,
    make_ranks,
    unions,
)
from seedbed.estimators.cojer.competitors import dkw_fcp_level, scp_level
from seedbed.estimators.cojer.laws import TOLERANCE, Floats, Ints, misses_allowed
from seedbed.estimators.cojer.scores import Band
from seedbed.estimators.cojer.thresholds import (
    Calibration,
    Template,
    calibrate,
    default_k_max,
    fcp_bounds,
)

Bound = Literal["cojer", "dkw", "marginal", "bonferroni", "cv_plus_like"]
BOUNDS: tuple[Bound, ...] = ("cojer", "dkw", "marginal", "bonferroni", "cv_plus_like")


class Family(NamedTuple):
    """Calibrated thresholds of one batch size.

    ``g`` (K,) are the thresholds in units of ``1 / (n + 1)``, ``t`` (K,) those of the p-values (of the
    aggregate, where there is one), ``parameter`` the family's parameter, ``jer`` its joint error rate.
    ``single`` says whether position K alone is constrained.
    """

    g: Ints
    t: Floats
    parameter: float
    jer: float
    single: bool


class Cut(NamedTuple):
    """Where sets are cut: at level l of one model, or where the aggregated p-value falls below ``t``."""

    level: int
    t: float


@dataclass(frozen=True)
class Calibrated:
    """Calibration scores and the choices that thresholds depend on.

    Parameters
    ----------
    scores : ndarray of shape (n_models, n)
        Scores in any order, finite.
    alpha : float
        Largest share asked for at construction; with ``k_max`` it fixes the number of thresholds, which must
        not depend on an alpha that is chosen after a look at the widths.
    template, calibration, n_draws, k_max, simultaneous, aggregation, aggregation_null, quantile_gamma
        As in :class:`CoJERRegressor`.
    seed : int
        Seed of whatever is simulated or split.
    """

    scores: Floats
    alpha: float
    template: Template
    calibration: Calibration
    n_draws: int
    k_max: int | None
    simultaneous: bool
    aggregation: Aggregation
    aggregation_null: AggregationNull
    quantile_gamma: float
    seed: int

    @property
    def n_models(self) -> int:
        """Number of models."""
        return len(self.scores)

    @property
    def single(self) -> bool:
        """Whether each alpha is guaranteed alone."""
        return not self.simultaneous or self.template == "single"

    @property
    def _splits(self) -> bool:
        return self.n_models > 1 and self.aggregation_null == "split"

    @cached_property
    def _halves(self) -> tuple[Floats, Floats]:
        """With the split null: scores that give the ranks, and scores whose aggregate is calibrated."""
        n = self.scores.shape[1]
        order = np.random.default_rng(self.seed).permutation(n)
        return self.scores[:, order[: n // 2]], self.scores[:, order[n // 2 :]]

    @cached_property
    def ranked(self) -> Floats:
        """Sorted scores that p-values are computed with, (n_models, n or n // 2)."""
        return np.sort(self._halves[0] if self._splits else self.scores, axis=1)

    @cached_property
    def split_aggregates(self) -> Floats | None:
        """Sorted aggregates h of the other half; -h is one conformity score, whatever the dependence."""
        if not self._splits:
            return None
        n = self.ranked.shape[1]
        at_least = [
            n - np.searchsorted(own, s, side="left")
            for own, s in zip(self.ranked, self._halves[1], strict=True)
        ]
        return np.sort(self.aggregate((1.0 + np.stack(at_least)) / (n + 1)))

    def aggregate(self, p: Floats) -> Floats:
        """Aggregate p-values (n_models, ...) over the models."""
        return aggregate_p_values(p, self.aggregation, self.quantile_gamma)

    # -- thresholds ----------------------------------------------------------------------------------------

    def size(self, m: int) -> int:
        """Return the number K of thresholds for a batch of m points."""
        if self.k_max is None:
            return default_k_max(self.alpha, m)
        if self.k_max > m:
            raise ValueError(f"k_max must be at most the size of the batch, {m}; got {self.k_max}")
        return self.k_max

    def family(self, m: int, delta: float, size: int | None = None) -> Family:
        """Return the calibrated thresholds for a batch of m points.

        Parameters
        ----------
        m : int
            Size of the batch.
        delta : float
            Allowed error.
        size : int, optional
            Number K of thresholds; :meth:`size` if None.

        Returns
        -------
        Family
            The thresholds.
        """
        size = self.size(m) if size is None else size
        n = self.scores.shape[1]
        if self.n_models > 1 and self.aggregation_null == "independent":
            t, parameter, jer = independent_thresholds(
                n, m, float(delta), size, self.n_models, self.aggregation, float(self.quantile_gamma),
                int(self.n_draws), self.seed, self.single,
            )  # fmt: skip
            g = np.ceil(t * (n + 1) * (1 - TOLERANCE)).astype(np.int64)
            return Family(g, t, parameter, jer, self.single)
        if self.split_aggregates is not None:
            n = len(self.split_aggregates)
        found = calibrate(
            n,
            m,
            delta,
            template="single" if self.single else self.template,
            k_max=size,
            calibration=self.calibration,
            n_draws=self.n_draws,
            seed=self.seed,
        )
        return Family(found.g, found.g / (n + 1), found.parameter, found.jer, self.single)

    def families(self, m: int, alphas: Floats, delta: float) -> list[tuple[int, Family]]:
        """Return, for each alpha, its position k and the family it is read from.

        Parameters
        ----------
        m : int
            Size of the batch.
        alphas : ndarray of shape (n_alpha,)
            Shares of misses.
        delta : float
            Allowed error.

        Returns
        -------
        list of (int, Family)
            One for each alpha.

        Raises
        ------
        ValueError
            If an alpha needs more thresholds than there are.
        """
        ks = np.minimum(misses_allowed(alphas, m) + 1, m).tolist()
        if self.single:
            return [(k, self.family(m, delta, k)) for k in ks]
        size = self.size(m)
        if max(ks) > size:
            raise ValueError(
                f"alpha too large for k_max: alpha={alphas.max()} of {m} points needs k_max >= {max(ks)}, "
                f"got {size}"
            )
        return [(k, self.family(m, delta, size)) for k in ks]

    def cut(self, family: Family, k: int) -> Cut:
        """Return where the sets of threshold k are cut."""
        level = int(family.g[k - 1]) - 1
        h = self.split_aggregates
        if h is None:
            return Cut(level, float(family.t[k - 1]))
        # The (n + 1 - l)-th smallest score -h is minus the l-th smallest h.
        return Cut(level, float(h[level - 1]) if level else 0.0)

    def other_cuts(self, m: int, alphas: Floats, delta: float, bound: Bound) -> list[Cut]:
        """Return where the sets of another bound are cut, one for each alpha."""
        n = self.ranked.shape[1]
        if bound == "cv_plus_like":  # twice the arithmetic mean is a p-value: keep what lies above alpha
            return [Cut(scp_level(n, alpha / 2), float(alpha) / 2 * (1 + 1e-9)) for alpha in alphas]
        if bound == "dkw":
            levels = [dkw_fcp_level(n, m, float(alpha), delta) for alpha in alphas]
        else:
            models = self.n_models if bound == "bonferroni" else 1
            levels = [scp_level(n, alpha / models) for alpha in alphas]
        return [Cut(level, (level + 1) / (n + 1)) for level in levels]

    def is_infinite(self, cut: Cut) -> bool:
        """Whether the sets are the whole line: t is at most the (aggregated) p-value of y at infinity."""
        if self.n_models == 1 or cut.level <= 0:
            return cut.level <= 0
        models, n = self.ranked.shape
        return bool(self.aggregate(np.full((models, 1), 1.0 / (n + 1)))[0] >= cut.t * (1 - TOLERANCE))

    def smallest_alpha(self, family: Family, m: int) -> float | None:
        """Return the smallest alpha whose intervals are finite, None if there is none."""
        for k in range(1, len(family.g) + 1):
            if not self.is_infinite(self.cut(family, k)):
                return (k - 1) / m
        return None

    def fcp_bound(self, t: Floats, m: int, delta: float) -> Floats:
        """Return the bound on the FCP of ``{y : p(x, y) >= t}``; p is the aggregate of several models.

        Parameters
        ----------
        t : ndarray
            Levels.
        m : int
            Size of the batch.
        delta : float
            Allowed error.

        Returns
        -------
        ndarray
            Bounds, same shape.
        """
        k = min(int(misses_allowed(self.alpha, m)) + 1, m)
        family = self.family(m, delta, k if self.single else None)
        h = self.split_aggregates
        if h is not None:  # {h >= t} contains {h >= h_(c)} with the first h_(c) >= t
            t = (2.0 + np.searchsorted(h, t, side="left")) / (len(h) + 1)
        return fcp_bounds(family.t, t, m)

    # -- intervals -----------------------------------------------------------------------------------------

    def ranks(self, bands: Sequence[Band]) -> list[Ranks]:
        """Return each model's score sets at the points of a batch."""
        return [make_ranks(band, own) for band, own in zip(bands, self.ranked, strict=True)]

    def intervals(
        self, bands: Sequence[Band], cuts: Sequence[Cut], bound: Bound = "cojer"
    ) -> tuple[Floats, Floats]:
        """Return lower and upper ends, (m, n_cuts) each.

        Parameters
        ----------
        bands : sequence of Band
            Each model's score sets at the points of a batch.
        cuts : sequence of Cut
            Where to cut them.
        bound : str
            What the cuts come from: "bonferroni" intersects, "cv_plus_like" averages p-values.

        Returns
        -------
        low, high : ndarray of shape (m, n_cuts)
            Closed intervals; an empty set becomes the midpoint of its crossed ends.
        """
        if bound != "bonferroni" and self.n_models > 1:
            ranks = self.ranks(bands)
            aggregate = _mean if bound == "cv_plus_like" else self.aggregate
            found = {t: hulls(ranks, t, aggregate) for t in {cut.t for cut in cuts}}
            ends: Any = np.stack([found[cut.t] for cut in cuts], axis=2)
            return ends[:, 0], ends[:, 1]
        n = self.ranked.shape[1]
        # (n + 1 - l)-th smallest score; for l = 0 there is none and the interval is the line
        index = np.array([n - max(cut.level, 0) for cut in cuts])
        low, high = np.array(-np.inf), np.array(np.inf)
        for band, own in zip(bands, self.ranked, strict=True):
            lower, upper = band.bounds(np.append(own, np.inf)[index][None, :])
            low, high = np.maximum(low, lower), np.minimum(high, upper)
        empty = low > high  # crossed quantiles, or models that disagree
        middle = np.where(empty, (np.where(empty, low, 0.0) + np.where(empty, high, 0.0)) / 2, 0.0)
        return np.where(empty, middle, low), np.where(empty, middle, high)

    def sets(self, bands: Sequence[Band], cut: Cut) -> list[Floats]:
        """Return the sets themselves, each as disjoint closed intervals of shape (pieces, 2)."""
        if self.n_models > 1:
            return unions(self.ranks(bands), cut.t, self.aggregate)
        return list(np.stack(self.intervals(bands, [cut]), axis=2))


def _mean(p: Floats) -> Floats:
    return np.mean(p, axis=0)
