"""Dendritic localized learning read off the equations: row vectors, loops, NumPy.

``e`` points downhill (target minus output) and the returned changes are added to weights. Matrices are
inputs × outputs here; the library keeps them transposed.
"""

import numpy as np


def softmax(z):
    shifted = np.exp(z - z.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def mlp_forward(weights, x, form="inner", biases=None):
    """Pre-activations and activations of a tanh perceptron; the last layer's z is the output."""
    states, drives = [x], []
    top = len(weights) - 1
    for layer, W in enumerate(weights):
        below = states[-1]
        if form == "outer" and layer > 0:
            below = np.tanh(below)
        z = below @ W
        if biases is not None:
            z = z + biases[layer]
        drives.append(z)
        states.append(np.tanh(z) if form == "inner" and layer < top else z)
    return states, drives


def mlp_changes(
    weights,
    feedbacks,
    x,
    target,
    *,
    output="softmax",
    form="inner",
    sign=1.0,
    sigma=1.0,
    clip=50.0,
    biases=None,
    rows=None,
):
    """ΔW, ΔΘ (None for the lowest layer), Δb and the error at each layer's output.

    ``feedbacks[l]`` is Θ of layer l (None for l = 0).
    """
    bound = np.inf if clip is None else clip
    states, drives = mlp_forward(weights, x, form, biases)
    e = target - (softmax(drives[-1]) if output == "softmax" else drives[-1])
    share = np.ones((len(x), 1)) if rows is None else rows[:, None]  # of each row in every sum over rows
    dW, dT, db, errors = {}, {}, {}, {}
    top = len(weights) - 1
    for layer in range(top, -1, -1):
        errors[layer] = e
        if form == "inner":
            delta = e if layer == top else e * (1 - np.tanh(drives[layer]) ** 2)
            pre = states[layer]
        else:
            delta = e
            pre = np.tanh(states[layer]) if layer > 0 else states[layer]
        dW[layer] = np.clip(2 / sigma**2 * pre.T @ (share * delta), -bound, bound)
        db[layer] = np.clip(2 / sigma**2 * (share * delta).sum(0), -bound, bound)
        if layer > 0:
            down = delta @ feedbacks[layer].T / sigma**2
            slope = 1 - np.tanh(states[layer]) ** 2
            if form == "outer":
                down = slope * down
            down = np.clip(down, -bound, bound)
            sent = slope * down if form == "outer" else down
            dT[layer] = np.clip(sign * 2 / sigma**2 * sent.T @ (share * delta), -bound, bound)
            e = down
    return dW, dT, db, errors


class Adam:
    """The paper's own optimizer, ascending along a change."""

    def __init__(self, lr, betas=(0.9, 0.999), eps=1e-8):
        self.lr, self.betas, self.eps = lr, betas, eps
        self.m = self.v = 0.0
        self.t = 0

    def step(self, weight, change):
        b1, b2 = self.betas
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * change
        self.v = b2 * self.v + (1 - b2) * change**2
        return weight + self.lr * (self.m / (1 - b1**self.t)) / (
            np.sqrt(self.v / (1 - b2**self.t)) + self.eps
        )


def conv_forward(x, K, stride=1, padding=0):
    """Cross-correlation by its definition: x (B, C, H, W), K (F, C, kh, kw)."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    F, _, kh, kw = K.shape
    rows, cols = (x.shape[2] - kh) // stride + 1, (x.shape[3] - kw) // stride + 1
    z = np.zeros((len(x), F, rows, cols))
    for i in range(rows):
        for j in range(cols):
            patch = x[:, :, i * stride : i * stride + kh, j * stride : j * stride + kw]
            z[:, :, i, j] = np.einsum("bchw,fchw->bf", patch, K)
    return z


def conv_kernel_change(pre, delta, kernel, stride=1, padding=0):
    """Sum over batch and output positions of δ times the patch that meets it: the change of a kernel."""
    pre = np.pad(pre, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    change = np.zeros((delta.shape[1], pre.shape[1], kernel, kernel))
    for b in range(len(pre)):
        for i in range(delta.shape[2]):
            for j in range(delta.shape[3]):
                patch = pre[b, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
                change += delta[b, :, i, j][:, None, None, None] * patch[None]
    return change


def conv_error_down(delta, theta, shape, stride=1, padding=0):
    """Every output position adds δ times Θ to the patch that it looks at."""
    B, C, H, W = shape
    kernel = theta.shape[-1]
    down = np.zeros((B, C, H + 2 * padding, W + 2 * padding))
    for i in range(delta.shape[2]):
        for j in range(delta.shape[3]):
            patch = np.einsum("bf,fchw->bchw", delta[:, :, i, j], theta)
            down[:, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel] += patch
    return down[:, :, padding : padding + H, padding : padding + W]


def rnn_changes(Wx, Wh, Wy, Ty, Th, x, target, *, sign=-1.0, reach=None, weights=None):
    """All changes of a tanh network on sequences x (B, T, I), target (B, T, O).

    ``reach`` bounds how many steps an error travels, its own step included.
    """
    B, T, _ = x.shape
    h = np.zeros((T + 1, B, Wh.shape[0]))
    for t in range(T):
        h[t + 1] = np.tanh(h[t] @ Wh + x[:, t] @ Wx)
    ey = np.stack([target[:, t] - h[t + 1] @ Wy for t in range(T)])
    if weights is not None:
        ey = ey * weights.T[:, :, None]
    reach = T if reach is None else reach
    eh, delta = np.zeros((T, B, Wh.shape[0])), np.zeros((T, B, Wh.shape[0]))
    for t in range(T):
        # Errors of outputs t, t+1, ..., t+reach-1, each carried down step by step.
        for later in range(t, min(t + reach, T)):
            e = ey[later] @ Ty.T
            for s in range(later, t, -1):
                e = (e * (1 - h[s + 1] ** 2)) @ Th.T
            eh[t] += e
        delta[t] = eh[t] * (1 - h[t + 1] ** 2)
    return {
        "Wy": sum(h[t + 1].T @ ey[t] for t in range(T)),
        "Wx": sum(x[:, t].T @ delta[t] for t in range(T)),
        "Wh": sum(h[t].T @ delta[t] for t in range(T)),
        "Ty": sign * sum(eh[t].T @ ey[t] for t in range(T)),
        "Th": sign * sum((eh[t - 1].T @ delta[t] for t in range(1, T)), np.zeros_like(Th)),
    }, h
