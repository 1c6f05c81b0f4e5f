"""Optimizers by name, and the cosine schedule."""

import math
from collections.abc import Iterable
from typing import Any

import torch


def named_optimizer(
    name: str, parameters: Iterable[Any], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Build an optimizer.

    Parameters
    ----------
    name : {"adam", "adamw", "sgd"}
        Which.
    parameters : iterable of Parameter
        What it trains.
    lr, weight_decay : float
        Its settings.

    Returns
    -------
    Optimizer
        The optimizer.
    """
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    built: torch.optim.Optimizer = kinds[name](parameters, lr=lr, weight_decay=weight_decay)
    return built


def cosine(step: int, steps: float, warmup: float) -> float:
    """Share of the learning rate at a step: a linear rise from zero, then half a cosine down to zero.

    Parameters
    ----------
    step : int
        Counted from 0.
    steps : float
        Steps in all.
    warmup : float in [0, 1)
        Share of them that rise.

    Returns
    -------
    float
        In [0, 1].

    Examples
    --------
    >>> [cosine(step, 8.0, 0.25) for step in (0, 1, 2, 5, 8)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rising = warmup * steps
    if step < rising:
        return step / rising
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / max(1.0, steps - rising))))
