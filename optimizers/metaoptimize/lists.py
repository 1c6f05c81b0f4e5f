"""Foreach arithmetic where the factor may be one number, a number per tensor, or a tensor per tensor."""

from typing import Any

import torch
from torch import Tensor

Factor = float | Tensor | list[float] | list[Tensor]
Tensors = tuple[Tensor, ...] | list[Tensor]


def each(factor: Any, apply: Any) -> Any:
    """Apply a scalar function to a factor of any kind.

    Parameters
    ----------
    factor : float, Tensor or list of either
        The factor.
    apply : callable
        Takes and returns a float or a tensor, elementwise.

    Returns
    -------
    float, Tensor or list of either
        The same kind as ``factor``.
    """
    return [apply(value) for value in factor] if isinstance(factor, list) else apply(factor)


def times(one: Any, other: Any) -> Any:
    """Return the product of two factors.

    Parameters
    ----------
    one, other : float, Tensor or list of either
        Lists have equal lengths.

    Returns
    -------
    float, Tensor or list of either
        A list if either is one.
    """
    if isinstance(one, list) and isinstance(other, list):
        return [a * b for a, b in zip(one, other)]
    if isinstance(one, list):
        return [a * other for a in one]
    if isinstance(other, list):
        return [one * b for b in other]
    return one * other


def add_scaled_(targets: Tensors, terms: Tensors, factor: Any) -> None:
    """Do ``target += factor * term`` for every pair, in place.

    Parameters
    ----------
    targets, terms : sequence of Tensor
        Equal lengths, broadcastable shapes.
    factor : float, Tensor or list of either
        One for all, or one for each.
    """
    if isinstance(factor, (int, float)):
        torch._foreach_add_(targets, terms, alpha=factor)
    elif isinstance(factor, list) and isinstance(factor[0], Tensor):
        torch._foreach_addcmul_(targets, terms, factor)
    else:
        torch._foreach_add_(targets, torch._foreach_mul(terms, factor))


def as_dtype(tensors: Tensors, like: Tensors) -> list[Tensor]:
    """Cast tensors to the types of others; those that have it already are returned as they are.

    Parameters
    ----------
    tensors, like : sequence of Tensor
        Equal lengths.

    Returns
    -------
    list of Tensor
        The tensors.
    """
    return [tensor.to(other.dtype) for tensor, other in zip(tensors, like)]
