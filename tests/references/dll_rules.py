"""Plain NumPy readings of the learning rules that stand beside DLL: one sample at a time, loops, no batching.

Matrices are ``out x in`` as in torch. Every function returns what is *added* to a weight, or a loss.
"""

import numpy as np


def softmax(z):
    """Softmax of one vector."""
    e = np.exp(z - z.max())
    return e / e.sum()


def tanh_states(x, weights):
    """All states of a bias-free tanh network; the last entry holds the logits."""
    states = [x]
    for W in weights[:-1]:
        states.append(np.tanh(W @ states[-1]))
    states.append(weights[-1] @ states[-1])
    return states


def backprop(x, target, weights):
    """Gradients of the cross-entropy, written out by the chain rule."""
    states = tanh_states(x, weights)
    error = softmax(states[-1]) - target
    gradients = [np.outer(error, states[-2])]
    for layer in range(len(weights) - 2, -1, -1):
        error = (weights[layer + 1].T @ error) * (1 - states[layer + 1] ** 2)
        gradients.insert(0, np.outer(error, states[layer]))
    return gradients


def predictive_coding(x, target, weights, feedback, steps, rate):
    """Whittington & Bogacz (2017) with fixed predictions: relax the value nodes, then learn from the errors.

    ``feedback[l]`` stands in for ``weights[l]`` on the way down (``weights`` itself for plain PC).
    """
    predictions = tanh_states(x, weights)
    gates = [None, *(1 - u**2 for u in predictions[1:-1]), np.ones_like(target)]
    values = [u.copy() for u in predictions]
    top = target - softmax(predictions[-1])
    depth = len(weights)
    for _ in range(steps):
        errors = [v - u for v, u in zip(values, predictions)]
        errors[depth] = top
        for layer in range(1, depth):
            above = feedback[layer].T @ (gates[layer + 1] * errors[layer + 1])
            values[layer] = values[layer] + rate * (above - errors[layer])
    errors = [v - u for v, u in zip(values, predictions)]
    errors[depth] = top
    return [np.outer(gates[layer + 1] * errors[layer + 1], predictions[layer]) for layer in range(depth)]


def recurrent_predictive_coding(e_y, slopes, down_y, down_h, steps, rate):
    """Errors of hidden units, time first: each step's values relax in turn, the last step's first.

    ``down_y`` (outputs, hidden) and ``down_h`` (hidden, hidden) carry errors down.
    """
    errors = np.zeros_like(slopes)
    for t in reversed(range(len(e_y))):
        value = np.zeros_like(slopes[t])  # less its prediction
        for _ in range(steps):
            arriving = e_y[t] @ down_y
            if t + 1 < len(e_y):
                arriving = arriving + (slopes[t + 1] * errors[t + 1]) @ down_h
            value = value + rate * (arriving - value)
        errors[t] = value
    return errors


def difference_targets(x, target, weights, inverses, step):
    """Lee et al. (2015), eq. 15: ``t_{l-1} = h_{l-1} - g_l(h_l) + g_l(t_l)`` from the top hidden layer down.

    ``inverses[l]`` is the matrix of ``g`` from state ``l + 1`` to state ``l`` (``inverses[0]`` unused).
    """
    states = tanh_states(x, weights)
    depth = len(weights)
    targets = [None] * depth
    error = softmax(states[-1]) - target
    targets[depth - 1] = states[depth - 1] - step * (weights[-1].T @ error)
    for layer in range(depth - 1, 1, -1):
        g = inverses[layer - 1]
        targets[layer - 1] = states[layer - 1] - np.tanh(g @ states[layer]) + np.tanh(g @ targets[layer])
    return states, targets


def soft_hebb(x, W, temperature, *, anti):
    """Journé et al. (2023), eq. 2: ``dw_ik = y_k (x_i - u_k w_ik)``, losers' ``y`` negated if ``anti``."""
    u = W @ x
    y = softmax(u / temperature)
    change = np.zeros_like(W)
    for k in range(W.shape[0]):
        sign = -1.0 if anti and k != np.argmax(u) else 1.0
        for i in range(W.shape[1]):
            change[k, i] = sign * y[k] * (x[i] - u[k] * W[k, i])
    return change


def settle(x, weights, steps, *, nudge=0.0, target=None, start=None):
    """Equilibrium propagation's states ``s_l = tanh(W_l s_{l-1} + W_{l+1}^T s_{l+1})``, all moved at once."""
    hidden = len(weights) - 1
    states = start or [np.zeros(W.shape[0]) for W in weights[:-1]]
    for _ in range(steps):
        moved = []
        for layer in range(hidden):
            drive = weights[layer] @ (x if layer == 0 else states[layer - 1])
            if layer < hidden - 1:
                drive = drive + weights[layer + 1].T @ states[layer + 1]
            elif nudge:
                error = target - softmax(weights[-1] @ states[layer])
                drive = drive + nudge * (weights[-1].T @ error)
            moved.append(np.tanh(drive))
        states = moved
    return states


def settled_loss(x, target, weights, steps):
    """Cross-entropy at the free equilibrium."""
    states = settle(x, weights, steps)
    return -float(target @ np.log(softmax(weights[-1] @ states[-1])))
