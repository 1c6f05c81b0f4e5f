"""Optimizers by name, for configuration files."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from seedbed.optimizers.lion import Lion


def make_base(
    params: ParamsT, base: str | Callable[..., Optimizer], base_kwargs: Mapping[str, Any] | None = None
) -> Optimizer:
    """Make an optimizer from its name.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) or of dict
        What to optimize.
    base : str or callable
        Name of an optimizer of torch.optim, "Lion", or anything that makes an optimizer of parameters.
    base_kwargs : mapping, optional
        Its keyword arguments.

    Returns
    -------
    Optimizer
        The optimizer.

    Raises
    ------
    ValueError
        If there is no optimizer of that name.
    """
    if callable(base):
        return base(params, **(base_kwargs or {}))
    kind = Lion if base == "Lion" else getattr(torch.optim, base, None)
    if not isinstance(kind, type) or not issubclass(kind, Optimizer) or kind is Optimizer:
        raise ValueError(f"base must be the name of an optimizer of torch.optim or 'Lion', got {base!r}")
    return kind(params, **(base_kwargs or {}))
