"""How far local updates are from backpropagation's."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from seedbed.lightning_modules.dll.networks import differentiate
from seedbed.lightning_modules.dll.rules import LocalNetwork


def angles_to_backprop(
    network: LocalNetwork,
    x: Tensor,
    target: Tensor,
    sample_weight: Tensor | None = None,
) -> dict[str, Float[Tensor, ""]]:
    """Angle between each gradient that ``learn`` wrote and the one autograd finds on the same batch.

    Parameters
    ----------
    network : LocalNetwork
        After :meth:`~LocalNetwork.learn` on this batch, before the optimizer's step.
    x : Tensor
        Inputs.
    target : Tensor
        Class probabilities or values.
    sample_weight : Tensor, optional
        As given to ``learn``.

    Returns
    -------
    dict of str to Tensor
        Degrees in [0, 180] by parameter name, for those on the way up; 90 means unrelated. Empty where the
        network has no differentiable form.

    Examples
    --------
    >>> import torch
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> from seedbed.lightning_modules.dll.rules import build_network
    >>> layers = (LayerSpec("linear", 8), LayerSpec("linear", 3, activation="identity"))
    >>> network = build_network("dll", NetworkConfig(layers, input_shape=(4,)))
    >>> x, target = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), torch.eye(3)
    >>> step = network.learn(x, target)
    >>> angles = angles_to_backprop(network, x, target)
    >>> sorted(angles), bool(angles["body.layers.1.weight"] < 0.1)
    (['body.layers.0.weight', 'body.layers.1.weight'], True)
    """
    feedback = {id(p) for p in network.feedback_parameters()}
    chosen = {
        name: p
        for name, p in network.named_parameters()
        if p.requires_grad and p.grad is not None and id(p) not in feedback
    }
    with torch.no_grad():
        if network.evaluate(x[:1]) is None:
            return {}
    _, gradients = differentiate(network, x, target, sample_weight, list(chosen.values()))
    angles = {}
    for (name, parameter), gradient in zip(chosen.items(), gradients, strict=True):
        assert parameter.grad is not None
        cosine = functional.cosine_similarity(
            parameter.grad.flatten().double(), gradient.flatten().double(), dim=0
        )
        angles[name] = torch.rad2deg(torch.acos(cosine.clamp(-1.0, 1.0)))
    return angles
