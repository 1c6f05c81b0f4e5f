"""Plain readings behind MetaOptimize: loops, float64, one equation a line.

Derivatives are taken by brute force (autograd through the unrolled run, or differences that are exact because
the run is linear in the number that is varied), so nothing here repeats the recursions that it is to check.
"""

import math

import numpy as np
import torch

# --- base steps: (w, state, g, alpha) -> (w, state); state[0] counts steps


def sgd(w, state, g, alpha, kappa=0.0):
    return w - alpha * (g + kappa * w), state


def delayed_momentum(w, state, g, alpha, kappa=0.0, rho=0.9):
    m = state.get("m", torch.zeros_like(w))
    return w - alpha * (m + kappa * w), {"m": rho * m + (1 - rho) * g}


def heavy_ball(w, state, g, alpha, kappa=0.0, rho=0.9):
    m = rho * state.get("m", torch.zeros_like(w)) + g
    return w - alpha * (m + kappa * w), {"m": m}


def rmsprop(w, state, g, alpha, kappa=0.0, lam=0.999, eps=1e-10):
    t = state.get("t", 0) + 1
    v = lam * state.get("v", torch.zeros_like(w)) + g**2
    mu = (1 - lam) / (1 - lam**t)
    return w - alpha * (g / (mu * v + eps).sqrt() + kappa * w), {"t": t, "v": v}


def adamw(w, state, g, alpha, kappa=0.0, rho=0.9, lam=0.999, eps=1e-10):
    t = state.get("t", 0) + 1
    m = rho * state.get("m", torch.zeros_like(w)) + g
    v = lam * state.get("v", torch.zeros_like(w)) + g**2
    mu = (1 - lam) / (1 - lam**t)
    return w - alpha * (m / (mu * v + eps).sqrt() + kappa * w), {"t": t, "m": m, "v": v}


BASES = {
    "sgd": sgd,
    "delayed_momentum": delayed_momentum,
    "heavy_ball": heavy_ball,
    "rmsprop": rmsprop,
    "adamw": adamw,
}


# --- sensitivities of w_T by brute force


def direct_trace(step, gradient, w0, betas, gamma):
    """Sum of gamma^(T-1-s) dw_T/dbeta_s, the other betas fixed: autograd through the unrolled run."""
    leaves = [torch.tensor(b, dtype=torch.float64, requires_grad=True) for b in betas]
    w, state = w0.clone(), {}
    for t, beta in enumerate(leaves):
        w, state = step(w, state, gradient(w, t), beta.exp())
    jacobian = _jacobian(w, leaves)
    T = len(leaves)
    return sum(gamma ** (T - 1 - s) * jacobian[:, s] for s in range(T))


def _jacobian(w, leaves):
    rows = [torch.autograd.grad(entry, leaves, retain_graph=True, allow_unused=True) for entry in w]
    zero = torch.zeros((), dtype=w.dtype)
    return torch.stack([torch.stack([zero if d is None else d for d in row]) for row in rows])


class QuarticPlusQuadratic:
    """f(w) = 1/2 w'Aw + q/4 sum w^4, with its derivatives written out."""

    def __init__(self, A, q):
        self.A, self.q = A, q

    def __call__(self, w, t=0):
        return 0.5 * w @ self.A @ w + 0.25 * self.q * (w**4).sum()

    def gradient(self, w):
        return self.A @ w + self.q * w**3

    def hessian_times(self, w, v):
        return self.A @ v + 3 * self.q * w**2 * v


def coupled_run(f, w0, beta0, eta, gamma, steps, direct=None, late=False):
    """SGD base, SGD meta, one step size: the run, and (1-gamma) sum gamma^(T-1-s) of *total* dw_T/dbeta_s.

    beta' = beta - eta h'g;  w' = w - alpha g;  h' = gamma (h - alpha Hess h) - alpha g * direct_t.
    A change of beta_s moves everything after it: autograd goes through the whole system. With ``late`` the
    step uses the new beta.
    """
    shifts = [torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(steps)]
    w, h = w0.clone(), torch.zeros_like(w0)
    beta = torch.tensor(beta0, dtype=torch.float64)
    for t in range(steps):
        beta = beta + shifts[t]
        g = f.gradient(w)
        new = beta - eta * h @ g
        alpha = (new if late else beta).exp()
        beta, w, h = (
            new,
            w - alpha * g,
            gamma * (h - alpha * f.hessian_times(w, h)) - alpha * g * (1.0 if direct is None else direct[t]),
        )
    jacobian = _jacobian(w, shifts)
    total = (1 - gamma) * sum(gamma ** (steps - 1 - s) * jacobian[:, s] for s in range(steps))
    return w.detach(), beta.item(), h.detach(), total


def forward_view(f, w0, beta0, eta, gamma, steps):
    """beta_{s+1} = beta_s - eta dF_s/dbeta_s with F_s = (1-gamma) sum_{t>s} gamma^(t-1-s) f(w_t), t < steps.

    The future is rolled out at the present beta (SGD base), so a change of beta_s persists.
    Returns the last beta and the derivatives.
    """
    w, beta, derivatives = w0.clone(), beta0, []
    for s in range(steps):
        leaf = torch.tensor(beta, dtype=torch.float64, requires_grad=True)
        future, F = w, leaf * 0.0
        for t in range(s + 1, steps):
            future = future - leaf.exp() * f.gradient(future)
            F = F + (1 - gamma) * gamma ** (t - 1 - s) * f(future)
        derivatives.append(torch.autograd.grad(F, leaf)[0].item())
        w = w - math.exp(beta) * f.gradient(w)
        beta -= eta * derivatives[-1]
    return beta, derivatives


# --- any torch optimizer on losses c_t'w


def run_linear(make, w0, gradients, values, key="lr"):
    """w_T of a torch optimizer on losses c_t'w, hyperparameter ``key`` being ``values[t]`` at step t."""
    p = torch.nn.Parameter(w0.clone())
    optimizer = make([p])
    for g, value in zip(gradients, values, strict=True):
        if key == "momentum" and "betas" in optimizer.param_groups[0]:
            optimizer.param_groups[0]["betas"] = (value, optimizer.param_groups[0]["betas"][1])
        else:
            optimizer.param_groups[0][key] = value
        p.grad = g.clone()
        optimizer.step()
    return p.detach().clone()


def linear_trace(make, w0, gradients, values, gamma, key="lr", slope=None):
    """Sum of gamma^(T-1-s) dw_T/d(theta_s) * slope_s for losses c_t'w, where c_t does not depend on w.

    w_T is then linear in every single lr_s (and weight_decay_s, and SGD's momentum_s), so a wide central
    difference is exact up to rounding. ``slope`` is dtheta/dbeta; theta itself for theta = exp(beta).
    """
    T = len(values)
    slope = values if slope is None else slope
    total = torch.zeros_like(w0)
    for s in range(T):
        up, down = list(values), list(values)
        up[s], down[s] = 1.25 * values[s], 0.75 * values[s]
        difference = run_linear(make, w0, gradients, up, key) - run_linear(make, w0, gradients, down, key)
        total += gamma ** (T - 1 - s) * slope[s] * difference / (0.5 * values[s])
    return total


def adam_momentum_trace(w0, gradients, lr, rho, lam, kappa, eps, gamma):
    """The same for rho = logistic(b) of torch's AdamW, whose bias correction at step t knows rho_t alone."""
    T = len(gradients)
    leaves = [
        torch.tensor(math.log(rho / (1 - rho)), dtype=torch.float64, requires_grad=True) for _ in range(T)
    ]
    w, m, v = w0.clone(), torch.zeros_like(w0), torch.zeros_like(w0)
    for t, g in enumerate(gradients, start=1):
        r = torch.sigmoid(leaves[t - 1])
        m, v = r * m + (1 - r) * g, lam * v + (1 - lam) * g**2
        w = w - lr * kappa * w
        w = w - lr * (m / (1 - r**t)) / ((v / (1 - lam**t)).sqrt() + eps)
    jacobian = _jacobian(w, leaves)
    return sum(gamma ** (T - 1 - s) * jacobian[:, s] for s in range(T))


# --- the methods that MetaOptimize contains


def idbd(X, y, beta0, theta, clip=True):
    """Sutton (1992): per-weight step sizes of LMS, loss 1/2 delta^2; yields (w, beta, h)."""
    n = X.shape[1]
    w, h, beta = np.zeros(n), np.zeros(n), np.full(n, beta0)
    for x, target in zip(X, y, strict=True):
        delta = target - w @ x
        beta = beta + theta * delta * x * h
        alpha = np.exp(beta)
        w = w + alpha * delta * x
        factor = 1 - alpha * x * x
        h = h * (np.maximum(factor, 0) if clip else factor) + alpha * delta * x
        yield w, beta, h


def smd(X, y, alpha0, mu, lam=1.0):
    """Schraudolph (1999), linear regression: alpha <- alpha max(1/2, 1 - mu v g), v as d w / d ln alpha.

    v <- lam (v - alpha (Hess v)) - alpha g with Hess = x x'.
    """
    n = X.shape[1]
    w, v, alpha = np.zeros(n), np.zeros(n), np.full(n, alpha0)
    for x, target in zip(X, y, strict=True):
        g = -(target - w @ x) * x
        alpha = alpha * np.maximum(0.5, 1 - mu * v * g)
        w = w - alpha * g
        v = lam * (v - alpha * x * (x @ v)) - alpha * g
        yield w, alpha, v


def hypergradient_descent(X, y, alpha0, eta, multiplicative=False):
    """Baydin et al. (2018): alpha_t = alpha_{t-1} + eta g_t'g_{t-1}; or the same for beta = ln alpha."""
    n = X.shape[1]
    w, alpha, old = np.zeros(n), alpha0, np.zeros(n)
    for x, target in zip(X, y, strict=True):
        g = -(target - w @ x) * x
        alpha = alpha * np.exp(eta * alpha * (g @ old)) if multiplicative else alpha + eta * (g @ old)
        w = w - alpha * g
        old = g
        yield w, alpha


def adam_hd(X, y, alpha0, eta, betas=(0.9, 0.999), eps=1e-8):
    """Adam-HD of the same paper: the old direction is -u_{t-1}, torch's Adam with eps outside the root."""
    n = X.shape[1]
    w, alpha, old, m, v = np.zeros(n), alpha0, np.zeros(n), np.zeros(n), np.zeros(n)
    for t, (x, target) in enumerate(zip(X, y, strict=True), start=1):
        g = -(target - w @ x) * x
        alpha = alpha + eta * (g @ old)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        old = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        w = w - alpha * old
        yield w, alpha
