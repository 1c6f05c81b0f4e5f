"""Plain readings of the equations of ability, information and adaptive tests: loops, grids, bisection."""

import math

import numpy as np


def curve(theta, a, b, c=0.0, d=1.0):
    """P(right)."""
    return c + (d - c) / (1 + math.exp(-a * (theta - b)))


def log_likelihood(theta, y, a, b, c, d):
    """Sum over the answers; NaN is none."""
    total = 0.0
    for yi, ai, bi, ci, di in zip(y, a, b, c, d, strict=True):
        if not math.isnan(yi):
            p = curve(theta, ai, bi, ci, di)
            total += math.log(p) if yi == 1 else math.log(1 - p)
    return total


def difference(function, theta, step=1e-5):
    """Central difference."""
    return (function(theta + step) - function(theta - step)) / (2 * step)


def information(theta, a, b, c=0.0, d=1.0):
    """Minus the expected second derivative of the log-likelihood of one answer, by differences."""
    step = 1e-4
    found = 0.0
    p = curve(theta, a, b, c, d)
    for y, weight in ((1, p), (0, 1 - p)):

        def term(t, y=y):
            q = curve(t, a, b, c, d)
            return math.log(q if y else 1 - q)

        found -= weight * (term(theta + step) - 2 * term(theta) + term(theta - step)) / step**2
    return found


def bisect(function, low, high):
    """Where a falling function is 0."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2


def mle(y, a, b, c, d):
    """Maximum of the likelihood."""
    return bisect(lambda t: difference(lambda u: log_likelihood(u, y, a, b, c, d), t), -20, 20)


def map_estimate(y, a, b, c, d, mean, scale):
    """Mode of the posterior."""
    return bisect(
        lambda t: difference(lambda u: log_likelihood(u, y, a, b, c, d), t) - (t - mean) / scale**2, -20, 20
    )


def eap(y, a, b, c, d, mean, scale):
    """Mean and standard deviation of the posterior, on a fine grid."""
    grid = np.linspace(mean - 10 * scale, mean + 10 * scale, 4001)
    log_mass = np.array([log_likelihood(t, y, a, b, c, d) - (t - mean) ** 2 / (2 * scale**2) for t in grid])
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    centre = (mass * grid).sum()
    return centre, math.sqrt((mass * (grid - centre) ** 2).sum())


def wle(y, a, b, c, d):
    """Root of Warm's equation, score + sum P' P'' / (P Q) / (2 I) = 0."""

    def equation(t):
        bend = info = 0.0
        for yi, ai, bi, ci, di in zip(y, a, b, c, d, strict=True):
            if math.isnan(yi):
                continue
            rise = curve(t, ai, bi)
            p = ci + (di - ci) * rise
            first = ai * (di - ci) * rise * (1 - rise)
            second = ai * first * (1 - 2 * rise)
            bend += first * second / (p * (1 - p))
            info += first**2 / (p * (1 - p))
        return difference(lambda u: log_likelihood(u, y, a, b, c, d), t) + bend / (2 * info)

    return bisect(equation, -12, 12)


def adaptive_test(answers, a, b, c, scale, n_items, start=0.0):
    """Maximum information with the posterior mode after each answer: items and estimates."""
    theta, items, path = start, [], []
    for _ in range(n_items):
        best, most = None, -1.0
        for item in range(len(b)):
            p = curve(theta, a[item], b[item], c[item])
            info = a[item] ** 2 * (1 - p) / p * ((p - c[item]) / (1 - c[item])) ** 2
            if item not in items and info > most:
                best, most = item, info
        items.append(best)
        theta = map_estimate(answers[items], a[items], b[items], c[items], np.ones(len(items)), 0.0, scale)
        path.append(theta)
    return items, path


def kullback_leibler(theta, a, b, c, reach, n_points=4001):
    """Divergence of the answers at theta from those at t, integrated over t in theta +- reach."""
    p = curve(theta, a, b, c)
    grid = np.linspace(theta - reach, theta + reach, n_points)
    values = []
    for t in grid:
        q = curve(t, a, b, c)
        values.append(p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)))
    return float(np.trapezoid(values, grid))


def expected_variance(y, a, b, c, mean, scale, new):
    """Posterior variance expected after one more item (a, b, c)."""
    grid = np.linspace(mean - 8 * scale, mean + 8 * scale, 1601)
    ones = np.ones(len(y))
    log_mass = np.array([log_likelihood(t, y, a, b, c, ones) for t in grid]) - (grid - mean) ** 2 / (
        2 * scale**2
    )
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    right = np.array([curve(t, *new) for t in grid])
    total = 0.0
    for chance in (right, 1 - right):
        after = mass * chance
        share = after.sum()
        centre = (after * grid).sum() / share
        total += share * ((after * (grid - centre) ** 2).sum() / share)
    return total


def goodness_of_fit(y, theta, b, n_bins):
    """1 - mean |share right - P at the midpoint| over equal bins, item by item."""
    edges = np.linspace(min(theta), max(theta), n_bins + 1)
    found = []
    for item in range(len(b)):
        gaps = []
        for k in range(n_bins):
            last = k == n_bins - 1
            rows = [n for n, t in enumerate(theta) if edges[k] <= t and (t < edges[k + 1] or last)]
            rows = [n for n in rows if not math.isnan(y[n, item])]
            if rows:
                share = sum(y[n, item] for n in rows) / len(rows)
                gaps.append(abs(share - curve((edges[k] + edges[k + 1]) / 2, 1.0, b[item])))
        found.append(1 - sum(gaps) / len(gaps))
    return found


def infit_outfit(y, theta, b):
    """Mean squares of each item, by the formulas."""
    infit, outfit = [], []
    for item in range(len(b)):
        square = spread = ratio = count = 0.0
        for n, t in enumerate(theta):
            if math.isnan(y[n, item]):
                continue
            p = curve(t, 1.0, b[item])
            square += (y[n, item] - p) ** 2
            spread += p * (1 - p)
            ratio += (y[n, item] - p) ** 2 / (p * (1 - p))
            count += 1
        infit.append(square / spread)
        outfit.append(ratio / count)
    return infit, outfit
