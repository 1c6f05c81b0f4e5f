"""PU-AUC under covariate shift written as plainly as possible: loops over pairs, sums over atoms."""

from math import exp, log, tanh

import numpy as np

LOSSES = {
    "sigmoid": lambda z: 1 / (1 + exp(z)),
    "ramp": lambda z: min(max((1 - z) / 2, 0), 1),
    "logistic": lambda z: log(1 + exp(-z)),
    "squared_hinge": lambda z: max(0, 1 - z) ** 2,
    "squared": lambda z: (1 - z) ** 2,
    "zero_one": lambda z: 0.5 if z == 0 else float(z < 0),
}


class Population:
    """Finitely many points with p_tr, p_te, p(y = 1 | x) and a score."""

    def __init__(self, p_tr, p_te, eta, score):
        self.p_tr, self.p_te, self.eta, self.score = (np.asarray(a, float) for a in (p_tr, p_te, eta, score))

    @property
    def w(self):
        return self.p_te / self.p_tr

    def prior(self, p):
        return float(sum(p * self.eta))

    def positives(self, p):
        return p * self.eta / self.prior(p)

    def negatives(self, p):
        return p * (1 - self.eta) / (1 - self.prior(p))

    def pairs(self, first, second, loss):
        """Expected loss of a pair whose rows have these masses."""
        total = 0.0
        for a, s in zip(first, self.score):
            for b, t in zip(second, self.score):
                total += a * b * LOSSES[loss](s - t)
        return total

    def auc_risk(self, p, loss):
        """The truth: positives against negatives of the population p."""
        return self.pairs(self.positives(p), self.negatives(p), loss)


# Six points; the numbers of the tests were worked out on them.
SIX = Population(
    (0.30, 0.25, 0.20, 0.15, 0.07, 0.03),
    (0.05, 0.10, 0.15, 0.20, 0.25, 0.25),
    (0.1, 0.6, 0.2, 0.7, 0.05, 0.4),
    (-1, 0.5, 0.2, 2, -0.3, 0.1),
)


def risk(s_p, s_u, s_t, w_p, w_u, w_t, loss, gamma, normalize, prior=None, single_set=False):
    """(1 - gamma) J1 + gamma J2 - pi_tr J_pp, one pair after the other."""
    value = LOSSES[loss]

    def mean(pairs):
        pairs = list(pairs)
        total = sum(a * b * value(s - t) for s, t, a, b in pairs)
        return total / (sum(a * b for _, _, a, b in pairs) if normalize else len(pairs))

    others = [(s, w, None) for s, w in zip(s_u, w_u)]
    if single_set:
        others += [(s, w, i) for i, (s, w) in enumerate(zip(s_p, w_p))]
    j1 = mean((s, t, a, b) for i, (s, a) in enumerate(zip(s_p, w_p)) for t, b, k in others if k != i)
    j2 = mean((s, t, a, b) for s, a in zip(s_p, w_p) for t, b in zip(s_t, w_t)) if gamma else 0.0
    found = (1 - gamma) * j1 + gamma * j2
    if loss in ("sigmoid", "ramp"):
        return found
    jpp = mean((s_p[i], s_p[k], w_p[i], w_p[k]) for i in range(len(s_p)) for k in range(len(s_p)) if i != k)
    if normalize:
        # An estimate of pi_te: all three risks are divided by different sums of weights.
        prior = prior * np.mean(w_p) / np.mean([b for _, b, _ in others])
    return found - prior * jpp


def pu_auc(s_p, s_u, w_p, w_u):
    total = sum(a * b * (1 - LOSSES["zero_one"](s - t)) for s, a in zip(s_p, w_p) for t, b in zip(s_u, w_u))
    return total / (sum(w_p) * sum(w_u))


def rulsif(phi_te, phi_tr, alpha, rho):
    """Coefficients of the relative ratio by a linear solve."""
    k = phi_te.shape[1]
    gram = rho * np.eye(k)
    for row in phi_te:
        gram += alpha * np.outer(row, row) / len(phi_te)
    for row in phi_tr:
        gram += (1 - alpha) * np.outer(row, row) / len(phi_tr)
    return np.linalg.solve(gram, phi_te.mean(axis=0))


def gaussian_grid(shift=0.7, nodes=161):
    """The synthetic population on a grid: x_1, x_2, masses p_tr and p_te, p(y = 1 | x).

    The trapezoidal rule is as good as exact for smooth functions that vanish at the ends.
    """
    x = np.linspace(-8, 8, nodes)
    x1, x2 = np.repeat(x, nodes), np.tile(x, nodes)
    p_tr = np.exp(-((x1 + shift) ** 2 + x2**2) / 2)
    p_te = np.exp(-((x1 - shift) ** 2 + x2**2) / 2)
    eta = np.array([1 / (1 + exp(2.2 - 3 * b * tanh(-2 * a))) for a, b in zip(x1, x2)])
    return x1, x2, p_tr / p_tr.sum(), p_te / p_te.sum(), eta
