"""The rule as one pure function, for a perceptron: weights and a batch in, gradients and loss out.

It is what the layers of a :class:`~seedbed.lightning_modules.dll.sequential.DLLSequential` do together,
without state: made for ``torch.compile``, ``torch.func`` and captured graphs.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from seedbed.checks import check_choice
from seedbed.lightning_modules.dll.activations import get_activation
from seedbed.lightning_modules.dll.layers import SIGN


def dll_gradients(
    weights: Sequence[Float[Tensor, "_ _"]],
    feedbacks: Sequence[Float[Tensor, "_ _"]],
    x: Float[Tensor, "batch features"],
    target: Float[Tensor, "batch outputs"],
    *,
    activation: str = "tanh",
    output: str = "softmax",
    feedback_rule: str = "hebbian",
    sigma: float = 1.0,
    clip_value: float = 50.0,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Gradients of one batch for a perceptron of the inner form.

    Parameters
    ----------
    weights : sequence of Tensor, layer l of shape (d_l, d_{l-1})
        W of each layer, bottom to top.
    feedbacks : sequence of Tensor
        Θ of each layer but the lowest, shaped like its W.
    x : Tensor of shape (batch, d_0)
        Inputs.
    target : Tensor of shape (batch, d_L)
        Class probabilities or values.
    activation : str
        Of hidden layers.
    output : {"softmax", "identity"}
        Softmax with cross-entropy, or identity with half the squared error.
    feedback_rule : {"hebbian", "anti_hebbian"}
        The sign of Θ's rule.
    sigma : float
        The energy's σ.
    clip_value : float
        Bound on errors and gradients.

    Returns
    -------
    weight_gradients, feedback_gradients : list of Tensor
        ``-ΔW`` and ``-ΔΘ``, shaped like what they belong to.
    loss : Tensor
        Mean loss, a scalar.

    Examples
    --------
    >>> import torch
    >>> draws = torch.Generator().manual_seed(0)
    >>> weights = [torch.randn(8, 4, generator=draws), torch.randn(3, 8, generator=draws)]
    >>> feedbacks = [torch.randn(3, 8, generator=draws)]
    >>> gradients, _, loss = dll_gradients(weights, feedbacks, torch.ones(3, 4), torch.eye(3))
    >>> [tuple(gradient.shape) for gradient in gradients]
    [(8, 4), (3, 8)]
    """
    if len(feedbacks) != len(weights) - 1:
        raise ValueError(
            f"feedbacks must have one entry less than weights, got {len(feedbacks)}, {len(weights)}"
        )
    check_choice("output", output, ("softmax", "identity"))
    check_choice("feedback_rule", feedback_rule, tuple(SIGN))
    phi = get_activation(activation)
    top = len(weights) - 1
    states, kept = [x], []
    for place, weight in enumerate(weights):
        z = states[-1] @ weight.T
        y = z if place == top else phi.function(z)
        kept.append(phi.keep(z, y))
        states.append(y)
    logs = torch.log_softmax(states[-1], dim=1)
    if output == "softmax":
        e, loss = target - logs.exp(), -(target * logs).sum(1).mean()
    else:
        e = target - states[-1]
        loss = 0.5 * e.square().sum(1).mean()
    scale = 2.0 / sigma**2
    weight_gradients: list[Tensor] = []
    feedback_gradients: list[Tensor] = []
    for place in range(top, -1, -1):
        delta = e if place == top else phi.gate(e, kept[place])
        weight_gradients.insert(0, (-scale * (delta.T @ states[place])).clamp(-clip_value, clip_value))
        if place > 0:
            e = (delta @ feedbacks[place - 1] / sigma**2).clamp(-clip_value, clip_value)
            change = SIGN[feedback_rule] * scale * (delta.T @ e)
            feedback_gradients.insert(0, -change.clamp(-clip_value, clip_value))
    return weight_gradients, feedback_gradients, loss
