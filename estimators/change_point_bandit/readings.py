"""What a session knows at any time, computed from its engine when it is asked for."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.estimators.change_point_bandit.complexity import closed_weights
from seedbed.estimators.change_point_bandit.segmentation import Ints, pooled_levels
from seedbed.estimators.change_point_bandit.single import Single
from seedbed.estimators.change_point_bandit.thresholds import CERTIFIED, Floats

HISTORY = np.dtype([("arm", np.int64), ("y", np.float64), ("round", np.int64)])


class Readings:
    """Learned attributes of :class:`~seedbed.estimators.ChangePointBandit`; described there."""

    domain_: Floats
    n_arms_: int
    stopped_: bool
    threshold: Any
    _engine: Single
    _log: list[tuple[int, float, int]]
    _curve: list[tuple[int, float]]

    @property
    def n_evals_(self) -> int:
        """Rewards told."""
        return self._engine.t

    @property
    def history_(self) -> Any:
        """``arm``, ``y`` and ``round`` of each reward."""
        return np.array(self._log, dtype=HISTORY)

    @property
    def counts_(self) -> Ints:
        """Queries of each arm."""
        return self._engine.counts[0].astype(np.int64)

    @property
    def means_(self) -> Floats:
        """Mean of each arm; NaN without queries."""
        counts = self._engine.counts[0]
        return self._engine.sums[0] / np.where(counts > 0, counts, np.nan)

    @property
    def change_points_(self) -> Ints:
        """Reported boundaries."""
        engine = self._engine
        if engine.rules.trivial:
            return np.arange(self.n_arms_ - 1)
        if engine.rules.objective == "all":
            return np.flatnonzero(engine.accepted[0])
        return engine.changes[0].copy() if engine.complete else np.empty(0, dtype=np.int64)

    @property
    def change_intervals_(self) -> Floats:
        """Points on both sides of each reported boundary."""
        b = self.change_points_
        return np.stack([self.domain_[b], self.domain_[b + 1]], axis=1)

    @property
    def jumps_(self) -> Floats:
        """Size of each reported change."""
        return self._engine.jumps()[0][0, self.change_points_]

    @property
    def jump_intervals_(self) -> Floats:
        """Interval of each; all hold at all times together with probability 1 - delta."""
        gap, radius = (values[0, self.change_points_] for values in self._engine.jumps())
        return np.stack([gap - radius, gap + radius], axis=1)

    @property
    def levels_(self) -> Floats:
        """Mean of each segment."""
        return pooled_levels(self._engine.counts[0], self._engine.sums[0], self.change_points_)

    @property
    def log_e_values_(self) -> Floats:
        """Log e-value of each boundary."""
        return self._engine.log_e[0].copy()

    @property
    def p_values_(self) -> Floats:
        """Anytime p-value of each boundary, adjusted for all."""
        return np.minimum(1.0, np.exp(math.log(self.n_arms_ - 1) - self._engine.best_log_e[0]))

    @property
    def cleared_(self) -> NDArray[np.bool_]:
        """Boundaries shown to have no jump of ``min_jump``."""
        return self._engine.cleared[0].copy()

    @property
    def confidence_(self) -> float:
        """1 minus the largest p-value of a reported change."""
        b = self.change_points_
        if self._engine.rules.trivial:
            return 1.0
        return 1.0 - float(self.p_values_[b].max()) if len(b) else 0.0

    @property
    def certified_(self) -> bool:
        """Whether the report is certain at ``delta``."""
        return self.stopped_ and (self._engine.rules.trivial or self.threshold in CERTIFIED)

    @property
    def sampling_weights_(self) -> Floats:
        """Target shares at the present estimates; equal ones where there are none."""
        b, sizes = self._estimated()
        if not len(b):
            return np.full(self.n_arms_, 1.0 / self.n_arms_)
        return closed_weights(sizes, b, self._engine.rules.sigma)

    @property
    def characteristic_time_(self) -> float:
        """``T*`` at the present estimates; infinite where there are none."""
        b, sizes = self._estimated()
        if not len(b):
            return 0.0 if self._engine.rules.trivial else math.inf
        sigma = self._engine.rules.sigma
        return float(2.0 * (((sigma[b] + sigma[b + 1]) / sizes) ** 2).sum())

    @property
    def stopping_curve_(self) -> Floats:
        """Number of rewards, and least log e-value of the changes reported then."""
        return np.array(self._curve, dtype=float).reshape(-1, 2)

    def _estimated(self) -> tuple[Ints, Floats]:
        """Reported changes and sizes of their jumps; empty unless all are there and not zero."""
        if self._engine.rules.trivial or not self._engine.complete:
            return np.empty(0, dtype=np.int64), np.empty(0)
        b, means = self.change_points_, self.means_
        sizes = np.abs(means[b + 1] - means[b])
        return (b, sizes) if len(b) and (sizes > 0).all() else (b[:0], sizes[:0])
