"""Change points under bandit feedback read off the equations: lists, loops, all alternatives."""

import itertools
import math

import numpy as np
from scipy.optimize import linprog


def paired_log_e(left, right, sigma, kappa):
    """Log e-value from the first n rewards of either arm, by integrating over the size of the change.

    With D_i ~ N(d, 2 sigma^2) and d ~ N(0, sigma^2 / kappa) the likelihood ratio to d = 0 is an average,
    here taken by brute force.
    """
    n = min(len(left), len(right))
    if n == 0:
        return 0.0
    differences = np.asarray(right[:n]) - np.asarray(left[:n])
    prior = sigma / math.sqrt(kappa)
    d = np.linspace(-12 * prior, 12 * prior, 200_001)
    log_ratio = (differences.sum() * d - n * d**2 / 2) / (2 * sigma**2)
    top = log_ratio.max()
    weight = np.exp(-(d**2) / (2 * prior**2)) / (prior * math.sqrt(2 * math.pi))
    return top + math.log(np.trapezoid(np.exp(log_ratio - top) * weight, d))


def all_change_sets(n_arms, n_changes):
    return itertools.combinations(range(n_arms - 1), n_changes)


def residual(weights, means, changes):
    """Weighted squares about the means of the segments, and those means arm by arm."""
    fitted, total = np.empty(len(means)), 0.0
    edges = [0, *(b + 1 for b in changes), len(means)]
    for start, stop in itertools.pairwise(edges):
        w, m = weights[start:stop], means[start:stop]
        centre = (w @ m) / w.sum() if w.sum() > 0 else m.mean()
        fitted[start:stop] = centre
        total += float(w @ (m - centre) ** 2)
    return total, fitted


def best_changes(counts, sums, n_changes):
    """Least squares over all change sets; the first of equals."""
    means = sums / counts
    return min(all_change_sets(len(means), n_changes), key=lambda x: round(residual(counts, means, x)[0], 9))


def exact_time(means, sigma, tolerance=5e-3):
    """Bounds on T* when exactly the changes of ``means`` are there, from all alternatives: (upper, lower)."""
    means = np.asarray(means, dtype=float)
    truth = tuple(np.flatnonzero(np.diff(means)))
    alternatives = [x for x in all_change_sets(len(means), len(truth)) if x != truth]
    arms = len(means)
    w, cuts = np.full(arms, 1 / arms), []
    lower = 0.0
    best = w
    for _ in range(400):
        costs = [residual(np.maximum(w, 1e-13), means, x) for x in alternatives]
        least = min(cost for cost, _ in costs) / (2 * sigma**2)
        if least > lower:
            lower, best = least, w
        near = sorted(costs, key=lambda pair: pair[0])[:4]
        cuts += [(means - fitted) ** 2 / (2 * sigma**2) for _, fitted in near]
        solved = linprog(
            np.r_[np.zeros(arms), -1.0],
            A_ub=np.column_stack([-np.array(cuts), np.ones(len(cuts))]),
            b_ub=np.zeros(len(cuts)),
            A_eq=np.r_[np.ones(arms), 0.0][None],
            b_eq=[1.0],
            bounds=[(0, None)] * arms + [(None, None)],
        )
        if -solved.fun - lower < tolerance * lower:
            break
        w = 0.3 * best + 0.7 * solved.x[:-1]
        w = w / w.sum()
    return 1 / lower, 1 / -solved.fun


def cluster_cost(shares, sizes, centres):
    """What the least costly move of one arm into another cluster costs; shares are those of one arm each."""
    return min(
        shares[c]
        * sizes[d]
        * shares[d]
        / (shares[c] + sizes[d] * shares[d])
        * (centres[c] - centres[d]) ** 2
        / 2
        for c in range(len(sizes))
        for d in range(len(sizes))
        if c != d
    )


class PlainMCPI:
    """The sampling rule and the certified stopping rule, step by step, for one session."""

    def __init__(
        self,
        n_arms,
        n_changes,
        delta,
        sigma=1.0,
        c=0.25,
        kappa=1.0,
        estimator="segmentation",
        tracking="D",
        batch=1,
    ):
        self.rewards = [[] for _ in range(n_arms)]
        self.n_changes, self.delta, self.sigma, self.c, self.kappa = n_changes, delta, sigma, c, kappa
        self.estimator, self.tracking, self.batch = estimator, tracking, batch
        self.past_targets = np.zeros(n_arms)

    def estimate(self):
        counts = np.array([len(r) for r in self.rewards], dtype=float)
        sums = np.array([sum(r) for r in self.rewards])
        if self.estimator == "segmentation":
            return best_changes(counts, sums, self.n_changes)
        jumps = np.abs(np.diff(sums / counts))
        return tuple(sorted(np.argsort(-jumps, kind="stable")[: self.n_changes].tolist()))

    def log_e(self, b):
        left, right = self.rewards[b], self.rewards[b + 1]
        n = min(len(left), len(right))
        half = n / 2
        mean = (sum(right[:n]) - sum(left[:n])) / n
        z = n * mean**2 / (4 * self.sigma**2)
        return half / (half + self.kappa) * z - 0.5 * math.log(1 + half / self.kappa)

    def stops(self):
        if min(len(r) for r in self.rewards) == 0:
            return False
        level = math.log((len(self.rewards) - 1) / self.delta)
        return all(self.log_e(b) >= level for b in self.estimate())

    def targets(self):
        weights = np.zeros(len(self.rewards))
        means = [np.mean(r) for r in self.rewards]
        for b in self.estimate():
            share = 1 / (means[b + 1] - means[b]) ** 2
            weights[b] = max(weights[b], share)
            weights[b + 1] = max(weights[b + 1], share)
        return weights / weights.sum()

    def round(self):
        """The arms of the next round, or none; each counts as queried while the others are chosen."""
        if self.stops():
            return []
        counts = [len(r) for r in self.rewards]
        complete = min(counts) > 0
        arms = []
        for _ in range(self.batch):
            arms.append(self._next(counts, complete))
            counts[arms[-1]] += 1
        return arms

    def _next(self, counts, complete):
        least = counts.index(min(counts))
        if not complete:
            return least
        weights, t = self.targets(), sum(counts)
        self.past_targets += weights
        if min(counts) < self.c * math.sqrt(t):
            return least
        if self.tracking == "C":
            score = [past - n for past, n in zip(self.past_targets, counts)]
        else:
            score = [t * w - n if w > 0 else -math.inf for w, n in zip(weights, counts)]
        return score.index(max(score))
