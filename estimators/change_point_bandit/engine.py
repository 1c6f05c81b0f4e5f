"""Many sessions of one bandit side by side: what was seen, which arm is next, when to stop.

Arrays have the shape (runs, arms) or (runs, boundaries). Nothing here draws random numbers, and ties go to
the first, so a session depends on its rewards alone.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from seedbed.estimators.change_point_bandit.complexity import closed_shares
from seedbed.estimators.change_point_bandit.segmentation import Ints, largest_jumps, least_squares_changes
from seedbed.estimators.change_point_bandit.targets import cluster_shares, solved_shares
from seedbed.estimators.change_point_bandit.thresholds import (
    Floats,
    Statistic,
    Threshold,
    ThresholdFunction,
    log_e_value,
    mixture_threshold,
    stopping_threshold,
)

Goal = Literal["exact", "any", "all"]
Sampling = Literal["mcpi", "uniform", "elimination", "track-and-stop", "cluster"]

# A jump taken for smaller than this share of its standard error would swallow all samples.
SMALLEST_JUMP = 0.05

# Dynamic programming takes time in proportion to the square of the number of arms. Beyond so many arms it is
# done anew each time the rewards have grown by so much, not after each.
MANY_ARMS, GROWTH = 256, 1.01


@dataclass(frozen=True)
class Rules:
    """How a session runs; see :class:`~seedbed.estimators.ChangePointBandit` for the fields."""

    n_change_points: int
    objective: Goal
    delta: float
    sigma: Floats
    min_jump: float | None
    estimator: Literal["auto", "segmentation", "pairwise"]
    statistic: Statistic
    threshold: Threshold | ThresholdFunction
    kappa: float
    sampling: Sampling
    tracking: Literal["D", "C"]
    forced_exploration: float

    @cached_property
    def n_arms(self) -> int:
        """Number of arms K."""
        return len(self.sigma)

    @cached_property
    def log_odds(self) -> float:
        """log((K - 1) / delta): what a log e-value must reach."""
        return math.log((self.n_arms - 1) / self.delta)

    @cached_property
    def trivial(self) -> bool:
        """Whether the answer is known beforehand: every boundary is a change."""
        return self.objective == "exact" and self.n_change_points == self.n_arms - 1


class Engine:
    """State of the sessions.

    Parameters
    ----------
    rules : Rules
        How all of them run.
    n_runs : int
        How many there are.
    """

    def __init__(self, rules: Rules, n_runs: int = 1) -> None:
        self.rules = rules
        arms = rules.n_arms
        self.t = 0
        self.counts = np.zeros((n_runs, arms))
        self.sums = np.zeros((n_runs, arms))
        self.log_e = np.zeros((n_runs, arms - 1))
        self.best_log_e = np.zeros((n_runs, arms - 1))
        self.accepted = np.zeros((n_runs, arms - 1), dtype=bool)
        self.cleared = np.zeros((n_runs, arms - 1), dtype=bool)
        self.tracked = np.zeros((n_runs, arms))  # running sum of targets, for C-tracking
        # The i-th rewards of two neighbours are paired whenever both are there. A log of all rewards, with
        # links from each to the next of its arm, makes that one look-up, however uneven the counts.
        self._y = np.empty((n_runs, 64))
        self._next = np.full((n_runs, 64), -1, dtype=np.int64)
        self._first = np.full((n_runs, arms), -1, dtype=np.int64)
        self._last = np.full((n_runs, arms), -1, dtype=np.int64)
        self._paired = np.full((2, n_runs, arms - 1), -1, dtype=np.int64)  # place of the last paired reward
        self.differences = np.zeros((n_runs, arms - 1))  # sum of paired rewards, right less left
        self._rows = np.arange(n_runs)
        self._complete = False
        self._changes: Ints | None = None
        self._targets: tuple[Ints | None, Floats] | None = None
        self._fitted: tuple[int, Ints] | None = None  # when changes were last estimated, and what they were
        self._mixture = isinstance(rules.threshold, str) and rules.threshold == "mixture"

    @property
    def n_runs(self) -> int:
        """Number of sessions."""
        return len(self.counts)

    @property
    def complete(self) -> bool:
        """Whether every arm of every session has a reward."""
        if not self._complete and self.t >= self.rules.n_arms:
            self._complete = bool(self.counts.all())
        return self._complete

    def keep(self, chosen: Any) -> None:
        """Go on with some of the sessions only.

        Parameters
        ----------
        chosen : ndarray of bool or int
            Which.
        """
        for name in (
            "counts", "sums", "log_e", "best_log_e", "accepted", "cleared", "tracked", "differences",
            "_y", "_next", "_first", "_last",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name)[chosen])
        self._paired = self._paired[:, chosen]
        if self._fitted is not None:
            self._fitted = self._fitted[0], self._fitted[1][chosen]
        self._rows = np.arange(len(self.counts))
        self._changes = self._targets = None

    # -- what is seen ---------------------------------------------------------------------------------------

    def observe(self, arms: Ints, rewards: Floats) -> None:
        """Take in one reward per session.

        Parameters
        ----------
        arms : ndarray of shape (runs,)
            Arm of each.
        rewards : ndarray of shape (runs,)
            Reward of each.
        """
        rows, now = self._rows, self.t
        if now == self._y.shape[1]:
            self._y = np.concatenate([self._y, np.empty_like(self._y)], axis=1)
            self._next = np.concatenate([self._next, np.full_like(self._next, -1)], axis=1)
        self._y[:, now] = rewards
        before = self._last[rows, arms]
        seen = before >= 0
        self._next[rows[seen], before[seen]] = now
        self._first[rows[~seen], arms[~seen]] = now
        self._last[rows, arms] = now
        self.t = now + 1
        self.counts[rows, arms] += 1
        self.sums[rows, arms] += rewards
        for side in (0, 1):
            # The arm is on the left of boundary `arm` and on the right of boundary `arm - 1`.
            boundary = arms - side
            inside = boundary < self.rules.n_arms - 1 if side == 0 else boundary >= 0
            self._pair(rows[inside], boundary[inside], side)
        self._changes = self._targets = None

    def _pair(self, rows: Ints, boundary: Ints, side: int) -> None:
        """Bring a boundary up to date after a reward on its left (side 0) or right (side 1)."""
        own, other = boundary + side, boundary + 1 - side
        behind = self.counts[rows, own] <= self.counts[rows, other]
        if behind.any():
            r, b, o = rows[behind], boundary[behind], other[behind]
            place = self._paired[1 - side, r, b]
            place = np.where(place < 0, self._first[r, o], self._next[r, place])
            self._paired[1 - side, r, b] = place
            self._paired[side, r, b] = self.t - 1
            self.differences[r, b] += self._y[r, self._paired[1, r, b]] - self._y[r, self._paired[0, r, b]]
        if self.rules.statistic == "paired":
            rows, boundary = rows[behind], boundary[behind]
        if len(rows):
            self._refresh(rows, boundary)

    def _refresh(self, rows: Any, boundary: Any) -> None:
        """Bring the e-values of some boundaries up to date."""
        z, left, right = self._statistics(rows, boundary)
        value = log_e_value(z, left, right, self.rules.kappa, self.rules.statistic)
        self.log_e[rows, boundary] = value
        self.best_log_e[rows, boundary] = np.maximum(self.best_log_e[rows, boundary], value)

    def _statistics(self, rows: Any, boundary: Any) -> tuple[Floats, Floats, Floats]:
        """Pair statistic Z and the counts it is made of, at some boundaries."""
        left, right = self.counts[rows, boundary], self.counts[rows, boundary + 1]
        sigma = self.rules.sigma
        if self.rules.statistic == "paired":
            n = np.minimum(left, right)
            gap = self.differences[rows, boundary]
            z = gap * gap / (4.0 * sigma[boundary] ** 2 * np.maximum(n, 1.0))
            return z, n, n
        both = (left > 0) & (right > 0)
        left_n, right_n = np.maximum(left, 1.0), np.maximum(right, 1.0)
        gap = self.sums[rows, boundary + 1] / right_n - self.sums[rows, boundary] / left_n
        variance = sigma[boundary] ** 2 / left_n + sigma[boundary + 1] ** 2 / right_n
        return np.where(both, gap * gap / (2.0 * variance), 0.0), left, right

    # -- what is made of it ---------------------------------------------------------------------------------

    @property
    def changes(self) -> Ints:
        """Estimated changes, (runs, n_change_points), in order; every arm has a reward."""
        if self._changes is None:
            if self._fitted is None or self._due(self._fitted[0]):
                self._fitted = self.t, self._estimate()
            self._changes = self._fitted[1]
        return self._changes

    def _due(self, before: int) -> bool:
        rules = self.rules
        quick = rules.estimator == "pairwise" or rules.n_change_points == 1 or rules.n_arms <= MANY_ARMS
        return quick or self.t >= GROWTH * before

    def _estimate(self) -> Ints:
        n = self.rules.n_change_points
        if self.rules.estimator == "pairwise":
            return largest_jumps(self.sums / self.counts, n)
        return least_squares_changes(self.counts, self.sums, n)

    def jumps(self, level: Any = None) -> tuple[Floats, Floats]:
        """Estimate all jumps with the radius of a confidence sequence for all boundaries and times.

        Parameters
        ----------
        level : ndarray of shape (runs, boundaries), optional
            What the pair statistic of the difference to the true jump stays below; default the mixture's.

        Returns
        -------
        (ndarray, ndarray) of shape (runs, boundaries)
            Jump, and radius; infinite where an arm has no reward.
        """
        rules = self.rules
        left, right = self.counts[:, :-1], self.counts[:, 1:]
        if level is None:
            level = mixture_threshold(left, right, rules.log_odds, rules.kappa, rules.statistic)
        with np.errstate(divide="ignore", invalid="ignore"):
            if rules.statistic == "paired":
                n = np.minimum(left, right)
                gap, variance = self.differences / n, 2.0 * rules.sigma[:-1] ** 2 / n
            else:
                gap = self.sums[:, 1:] / right - self.sums[:, :-1] / left
                variance = rules.sigma[:-1] ** 2 / left + rules.sigma[1:] ** 2 / right
            radius = np.sqrt(2.0 * variance * level)
        empty = (left == 0) | (right == 0)
        return np.where(empty, 0.0, gap), np.where(empty, np.inf, radius)

    def passing(self) -> Any:
        """Tell which of the reported changes pass the stopping test.

        Returns
        -------
        ndarray of bool, shape (runs, n_change_points)
            In the order of :attr:`changes`.
        """
        rows, b = self._rows[:, None], self.changes
        if self._mixture:
            return self.log_e[rows, b] >= self.rules.log_odds
        z, left, right = self._statistics(rows, b)
        return z > self._level(left, right)

    def _level(self, left: Any, right: Any) -> Any:
        """Return the threshold of the session's rule."""
        rules = self.rules
        return stopping_threshold(
            rules.threshold, left, right, self.t, rules.n_arms, rules.delta, rules.kappa, rules.statistic
        )

    def stopped(self) -> Any:
        """Tell which sessions may stop.

        Returns
        -------
        ndarray of bool, shape (runs,)
            Whether the stopping test is passed.
        """
        if self.rules.trivial:
            return np.ones(self.n_runs, dtype=bool)
        if self.rules.objective == "all":
            self._settle()
            return (self.accepted | self.cleared).all(axis=1)
        if not self.complete:
            return np.zeros(self.n_runs, dtype=bool)
        return self.passing().all(axis=1)

    def _settle(self) -> None:
        """Accept and clear boundaries; what was once shown stays shown."""
        left, right = self.counts[:, :-1], self.counts[:, 1:]
        if self.rules.statistic == "paired":
            left = right = np.minimum(left, right)
        gap, radius = self.jumps(None if self._mixture else self._level(left, right))
        self.accepted |= np.abs(gap) > radius
        self.cleared |= np.abs(gap) + radius < (self.rules.min_jump or 0.0)

    # -- which arm is next ----------------------------------------------------------------------------------

    def choose(self, pending: Floats | None = None) -> Ints:
        """Return the arm that each session asks for next.

        Parameters
        ----------
        pending : ndarray of shape (runs, arms), optional
            Queries asked for and not yet answered: they count as if they were.

        Returns
        -------
        ndarray of shape (runs,)
            Arms.
        """
        counts, t = self.counts, float(self.t)
        if pending is not None:
            counts, t = counts + pending, t + float(pending[0].sum())
        rules = self.rules
        least = counts.argmin(axis=1)
        fewest = counts[self._rows, least]
        if rules.sampling == "uniform":
            return least
        if not self.complete:
            return least
        if rules.objective == "all":
            return self._among(counts, self._beside(~(self.accepted | self.cleared)))
        if rules.sampling == "elimination":
            return self._among(counts, self._beside(self._survivors()))
        arms, shares = self._aims()
        if rules.tracking == "C":
            if arms is None:
                self.tracked += shares
            else:
                # An arm that comes twice has the same sum both times.
                self.tracked[self._rows[:, None], arms] += shares
            chosen = (self.tracked - counts).argmax(axis=1)
        elif arms is None:
            chosen = np.where(shares > 0, t * shares - counts, -np.inf).argmax(axis=1)
        else:
            rows = self._rows
            best = (t * shares - counts[rows[:, None], arms]).argmax(axis=1)
            chosen = arms[rows, best]
        return np.where(fewest < rules.forced_exploration * math.sqrt(t), least, chosen)

    def _among(self, counts: Floats, allowed: Any) -> Ints:
        """Least queried of the allowed arms; of all where none is allowed."""
        masked = np.where(allowed | ~allowed.any(axis=1, keepdims=True), counts, np.inf)
        return masked.argmin(axis=1)

    @staticmethod
    def _beside(boundaries: Any) -> Any:
        """Arms beside some boundaries."""
        edge = np.zeros((len(boundaries), 1), dtype=bool)
        return np.concatenate([boundaries, edge], axis=1) | np.concatenate([edge, boundaries], axis=1)

    def _survivors(self) -> Any:
        """Boundaries that may still be among the N largest jumps."""
        gap, radius = self.jumps()
        size, n = np.abs(gap), self.rules.n_change_points
        lower = np.partition(size - radius, -n, axis=1)[:, -n]
        return size + radius >= lower[:, None]

    def _aims(self) -> tuple[Ints | None, Floats]:
        """Target shares, from the present estimates: of all arms, or of the arms named."""
        if self._targets is None:
            rules, changes = self.rules, self.changes
            if rules.sampling == "cluster":
                sessions = zip(self.counts, self.sums, changes, strict=True)
                self._targets = None, np.stack([cluster_shares(*s, rules.sigma) for s in sessions])
            elif rules.sampling == "track-and-stop":
                known = zip(changes, self._sizes(changes), strict=True)
                shares = [solved_shares(b, gaps, rules.sigma, rules.objective) for b, gaps in known]
                self._targets = None, np.stack(shares)
            else:
                self._targets = closed_shares(self._sizes(changes), changes, rules.sigma)
        return self._targets

    def _sizes(self, changes: Ints) -> Floats:
        """Estimated jumps, with signs, none of them too small to be weighed."""
        rows, right, sigma = self._rows[:, None], changes + 1, self.rules.sigma
        n_left, n_right = self.counts[rows, changes], self.counts[rows, right]
        gaps = self.sums[rows, right] / n_right - self.sums[rows, changes] / n_left
        least = SMALLEST_JUMP * np.sqrt(sigma[changes] ** 2 / n_left + sigma[right] ** 2 / n_right)
        return np.copysign(np.maximum(np.abs(gaps), least), gaps)
