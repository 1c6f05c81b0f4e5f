"""One session: what :class:`Engine` does for many, without arrays where single numbers will do.

Sums are made in the same order, so a session and a run of the simulation with the same rewards agree to the
last digit.
"""

import math

import numpy as np

from seedbed.estimators.change_point_bandit.engine import SMALLEST_JUMP, Engine, Rules
from seedbed.estimators.change_point_bandit.segmentation import Ints
from seedbed.estimators.change_point_bandit.thresholds import Floats


class Single(Engine):
    """State of one session.

    Parameters
    ----------
    rules : Rules
        How it runs.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._rewards: list[list[float]] = [[] for _ in range(rules.n_arms)]
        self._unseen = rules.n_arms
        self._pooled = rules.statistic == "pooled"

    @property
    def complete(self) -> bool:
        """Whether every arm has a reward."""
        return self._unseen == 0

    @property
    def fitted(self) -> tuple[int, Ints] | None:
        """When changes were last estimated, and what they were."""
        return None if self._fitted is None else (self._fitted[0], self._fitted[1][0])

    @fitted.setter
    def fitted(self, value: tuple[int, Ints] | None) -> None:
        self._fitted = None if value is None else (value[0], value[1][None])
        self._changes = self._targets = None

    def observe(self, arms: Ints, rewards: Floats) -> None:
        """Take in one reward.

        Parameters
        ----------
        arms : ndarray of shape (1,)
            Its arm.
        rewards : ndarray of shape (1,)
            The reward.
        """
        self.take(int(arms[0]), float(rewards[0]))

    def take(self, arm: int, reward: float) -> None:
        """Take in one reward.

        Parameters
        ----------
        arm : int
            Its arm.
        reward : float
            The reward.
        """
        own = self._rewards[arm]
        self._unseen -= not own
        own.append(reward)
        n = len(own)
        self.t += 1
        self.counts[0, arm] = n
        self.sums[0, arm] += reward
        if arm < self.rules.n_arms - 1:
            self._meet(arm, n, -reward, self._rewards[arm + 1], 1.0)
        if arm > 0:
            self._meet(arm - 1, n, reward, self._rewards[arm - 1], -1.0)
        self._changes = self._targets = None

    def _meet(self, boundary: int, n: int, signed: float, others: list[float], sign: float) -> None:
        """Pair the n-th reward with the neighbour's, if that is there."""
        paired = n <= len(others)
        if paired:
            self.differences[0, boundary] += sign * others[n - 1] + signed
        if paired or self._pooled:
            self._refresh(0, boundary)

    def stopped(self) -> Floats:
        """Tell whether the session may stop.

        Returns
        -------
        ndarray of bool, shape (1,)
            Whether the stopping test is passed.
        """
        if self._mixture and self.rules.objective != "all" and not self.rules.trivial and self.complete:
            log_e, level = self.log_e[0], self.rules.log_odds
            return np.array([all(log_e[b] >= level for b in self.changes[0].tolist())])
        return super().stopped()

    def weakest(self, boundaries: list[int]) -> float:
        """Return the least log e-value of some boundaries.

        Parameters
        ----------
        boundaries : list of int
            One or more.

        Returns
        -------
        float
            Log e-value.
        """
        log_e = self.log_e[0]
        return float(min(log_e[b] for b in boundaries))

    def _sizes(self, changes: Ints) -> Floats:
        """Estimated jumps, with signs, none of them too small to be weighed."""
        counts, sums, sigma = self.counts[0], self.sums[0], self.rules.sigma
        sizes = []
        for b in changes[0].tolist():
            n_left, n_right = float(counts[b]), float(counts[b + 1])
            gap = float(sums[b + 1]) / n_right - float(sums[b]) / n_left
            left, right = float(sigma[b]), float(sigma[b + 1])
            least = SMALLEST_JUMP * math.sqrt(left * left / n_left + right * right / n_right)
            sizes.append(math.copysign(max(abs(gap), least), gap))
        return np.array([sizes])
