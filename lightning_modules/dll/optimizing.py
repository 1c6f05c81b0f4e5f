"""Optimizers and schedules for networks that write their own gradients."""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from seedbed.checks import check_choice
from seedbed.lightning_modules.dll.rules import LocalNetwork

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("linear", "cosine", "none")
OptimizerCallable = Callable[[Iterable[Any]], torch.optim.Optimizer]
"""Lightning's type of that name, which the command line fills from a class path and its arguments."""


def build_optimizer(
    network: LocalNetwork,
    optimizer: OptimizerCallable | str = "adam",
    *,
    lr: float = 1e-4,
    feedback_lr_ratio: float | None = None,
    allow_unstable: bool = False,
) -> torch.optim.Optimizer:
    """Build an optimizer over a network's forward and feedback weights.

    Parameters
    ----------
    network : LocalNetwork
        Whose parameters.
    optimizer : {"adam", "adamw", "sgd"} or callable
        A name takes the fused kernel where there is one. With weight decay of the rule's own, ``"adam"``
        decouples it. A callable gets the parameter groups and brings its own rate.
    lr : float
        Rate of a named optimizer.
    feedback_lr_ratio : float, optional
        Rate of the feedback weights over it; None takes the rule's own.
    allow_unstable : bool
        Skip the check for divergence.

    Returns
    -------
    Optimizer
        Ready to step.

    Raises
    ------
    ValueError
        If the name is unknown, or Hebbian feedback would meet plain SGD without bound or decay.

    Examples
    --------
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> from seedbed.lightning_modules.dll.rules import build_network
    >>> layers = (LayerSpec("linear", 8), LayerSpec("linear", 3, activation="identity"))
    >>> network = build_network("dll", NetworkConfig(layers, input_shape=(4,)))
    >>> [(group["name"], group["lr"]) for group in build_optimizer(network, lr=0.5).param_groups]
    [('forward', 0.5), ('feedback', 0.05)]
    """
    if callable(optimizer):
        # Rates go into the groups before the real optimizer sees them; one on a stand-in tells the base rate.
        stand_in = optimizer([{"params": [nn.Parameter(torch.zeros(1))]}])
        rate = stand_in.param_groups[0].get("lr")
        base = float(rate) if isinstance(rate, int | float) else None
        built = optimizer(network.parameter_groups(base, feedback_lr_ratio))
    else:
        check_choice("optimizer", optimizer, OPTIMIZERS)
        built = _named(
            optimizer, network.parameter_groups(lr, feedback_lr_ratio), decays=network.weight_decay > 0
        )
    if not allow_unstable:
        _check_stable(network, built)
    return built


def schedule_factor(schedule: str, epochs: int, epoch: int) -> float:
    """Factor on the learning rate in an epoch.

    Parameters
    ----------
    schedule : {"linear", "cosine", "none"}
        Kind of decay.
    epochs : int
        Epochs in all.
    epoch : int
        Counted from 0.

    Returns
    -------
    float
        From 1 in the first epoch towards 0 behind the last.

    Examples
    --------
    >>> [schedule_factor("linear", 4, epoch) for epoch in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    done = min(epoch / epochs, 1.0)
    if schedule == "linear":
        return 1.0 - done
    return 0.5 * (1.0 + math.cos(math.pi * done)) if schedule == "cosine" else 1.0


def _named(name: str, groups: list[dict[str, Any]], *, decays: bool) -> torch.optim.Optimizer:
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.AdamW if decays else torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }
    rate = groups[0]["lr"]
    try:
        return kinds[name](groups, lr=rate, fused=True)
    except RuntimeError:  # no fused kernel on this device
        return kinds[name](groups, lr=rate, foreach=True)


def _check_stable(network: LocalNetwork, optimizer: torch.optim.Optimizer) -> None:
    """Refuse Θ ← Θ (1 + 2 η e²) without anything to hold it."""
    body = getattr(network, "body", None)
    layers = body.modules() if isinstance(body, nn.Module) else ()
    hebbian = any(getattr(layer, "feedback_rule", None) == "hebbian" for layer in layers) and any(
        p.requires_grad for p in network.feedback_parameters()
    )
    if not hebbian or not isinstance(optimizer, torch.optim.SGD):
        return
    decays = any(
        group.get("weight_decay") for group in optimizer.param_groups if group.get("name") == "feedback"
    )
    if network.clip_value is None and not decays:
        raise ValueError(
            "feedback_rule='hebbian' grows exponentially under plain SGD without clip_value or weight decay; "
            "use 'adam', feedback_rule='anti_hebbian' or 'fixed', a clip_value, or allow_unstable=True"
        )
    warnings.warn(
        "feedback_rule='hebbian' under SGD grows feedback weights as fast as the bound lets it; 'adam' "
        "bounds each step, feedback_rule='anti_hebbian' is stable",
        UserWarning,
        stacklevel=3,
    )
