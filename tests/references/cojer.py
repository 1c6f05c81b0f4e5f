"""CoJER written as plainly as possible: enumeration, whole-number counting, loops."""

from fractions import Fraction
from itertools import combinations
from math import comb, log, pi, sqrt

import numpy as np


def arrangements(n, m):
    """Sorted i_k (calibration points before the k-th test point) of all C(n + m, m) arrangements."""
    for places in combinations(range(n + m), m):
        yield [place - k for k, place in enumerate(places)]


def jer_by_enumeration(g, n, m):
    """P(some p_(k) < g_k / (n + 1)), p_(k) = (1 + i_k) / (n + 1), every arrangement equally likely."""
    rows = list(arrangements(n, m))
    wrong = sum(any(1 + row[k] < threshold for k, threshold in enumerate(g)) for row in rows)
    return Fraction(wrong, len(rows))


def jer_by_counting(g, n, m):
    """The same, counting lattice paths with whole numbers."""
    alive = {(0, 0): 1}  # (calibration, test) points placed, largest score first -> number of ways
    for _ in range(n + m):
        fresh = {}
        for (i, j), ways in alive.items():
            if i < n:
                fresh[i + 1, j] = fresh.get((i + 1, j), 0) + ways
            if j < m and (j >= len(g) or 1 + i >= g[j]):
                fresh[i, j + 1] = fresh.get((i, j + 1), 0) + ways
        alive = fresh
    return 1 - Fraction(alive.get((n, m), 0), comb(n + m, n))


def rank_pmf(n, m, k):
    """P(i_k = i), i = 0..n."""
    return [Fraction(comb(i + k - 1, i) * comb(n - i + m - k, n - i), comb(n + m, n)) for i in range(n + 1)]


def rank_cdf(n, m, k):
    total, out = Fraction(0), []
    for p in rank_pmf(n, m, k):
        total += p
        out.append(total)
    return out


def quantile_template(lam, n, m, size):
    """g_k = 1 + min{i : F_k(i) >= lam}."""
    return [1 + next(i for i, f in enumerate(rank_cdf(n, m, k)) if f >= lam) for k in range(1, size + 1)]


def calibrated_quantile(n, m, delta, size):
    """Largest family with JER <= delta: try every value that a threshold can jump at."""
    jumps = sorted({f for k in range(1, size + 1) for f in rank_cdf(n, m, k)})
    best = [1] * size
    for lam in jumps:
        g = quantile_template(lam, n, m, size)
        if jer_by_counting(g, n, m) > delta:
            break
        best = g
    return best


def pointwise_level(n, m, alpha, delta):
    """max{l : P(more than alpha m misses at level l) <= delta}."""
    k = int(alpha * m) + 1
    level, total = 0, Fraction(0)
    for p in rank_pmf(n, m, k):
        total += p
        if total > delta:
            break
        level += 1
    return level


def dkw_margin(n, m, delta):
    tau = n * m / (n + m)
    lam = 1.0
    for _ in range(9):
        lam = min(
            1.0, sqrt((log(1 / delta) + log(1 + sqrt(2 * pi) * 2 * tau * lam / sqrt(n + m))) / (2 * tau))
        )
    return lam


def p_value(calibration_scores, score):
    return (1 + sum(s >= score for s in calibration_scores)) / (len(calibration_scores) + 1)


def interval(point, calibration_scores, level):
    """Half-width: the (n + 1 - l)-th smallest score."""
    n = len(calibration_scores)
    half = sorted(calibration_scores)[n - level] if level else np.inf
    return point - half, point + half


def aggregated(ps, aggregation, gamma=0.3):
    count = len(ps)
    if aggregation == "harmonic":
        return count / sum(1 / p for p in ps)
    if aggregation == "arithmetic":
        return sum(ps) / count
    if aggregation == "geometric":
        return float(np.prod(ps)) ** (1 / count)
    smallest = next(q for q in sorted(ps) if sum(p <= q for p in ps) >= gamma * count)
    return min(1.0, smallest / gamma)


def aggregate_on_grid(points, scores, grid, aggregation, gamma=0.3):
    """h(y) for each y of a grid, absolute residuals; points (n_models,), scores (n_models, n)."""
    return [
        aggregated(
            [p_value(own, abs(y - mu)) for mu, own in zip(points, scores, strict=True)], aggregation, gamma
        )
        for y in grid
    ]
