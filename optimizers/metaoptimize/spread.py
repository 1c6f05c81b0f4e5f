"""Tensors over processes: DTensors and the parts of them that this process holds."""

import sys
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor


def is_spread(tensor: Tensor) -> bool:
    """Whether a tensor is distributed over processes.

    Importing DTensor costs as much as importing half of torch, and whoever has one has imported it.

    Parameters
    ----------
    tensor : Tensor
        Any.

    Returns
    -------
    bool
        True for a DTensor.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this process holds; the same memory.

    Parameters
    ----------
    tensor : Tensor
        Plain or distributed.

    Returns
    -------
    Tensor
        Plain.
    """
    return tensor.to_local() if is_spread(tensor) else tensor


def spread_like(tensor: Tensor, like: Any) -> Tensor:
    """Make a distributed tensor from the parts that the processes hold.

    Parameters
    ----------
    tensor : Tensor
        This process's part: shaped as its part of ``like``, or with size 1 in all dimensions but the first.
    like : Tensor
        Plain or distributed.

    Returns
    -------
    Tensor
        Distributed as ``like``, or as its rows; plain if ``like`` is.
    """
    if not is_spread(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    shape = like.shape
    if tensor.shape != local(like).shape:
        shape = torch.Size([like.shape[0], *[1] * (like.ndim - 1)])
    placements = [
        Replicate() if kind.is_shard() and kind.dim > 0 and shape != like.shape else kind
        for kind in like.placements
    ]
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        tensor, like.device_mesh, placements, run_check=False, shape=shape, stride=stride
    )


def aligned(gradient: Any, parameter: Any) -> Tensor:
    """Return this process's part of a gradient, split as its parameter is.

    Parameters
    ----------
    gradient, parameter : Tensor
        Plain or distributed.

    Returns
    -------
    Tensor
        Plain.
    """
    if is_spread(gradient) and is_spread(parameter):
        if gradient.placements != parameter.placements:
            gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
        return gradient.to_local()
    return gradient


def sharding(parameter: Any) -> Hashable:
    """Return what tells ways to spread a tensor apart, as far as sums over it go.

    Parameters
    ----------
    parameter : Tensor
        Plain or distributed.

    Returns
    -------
    hashable
        None for a plain tensor.
    """
    if not is_spread(parameter):
        return None
    return id(parameter.device_mesh), tuple(kind.is_shard() for kind in parameter.placements)


def sum_of_shards(part: Tensor, parameter: Any) -> Tensor:
    """Sum over the processes that hold different parts of a parameter.

    Parameters
    ----------
    part : Tensor
        This process's share of the sum.
    parameter : Tensor
        Plain or distributed.

    Returns
    -------
    Tensor
        The same on all processes.
    """
    if not is_spread(parameter):
        return part
    from torch.distributed.tensor import DTensor, Partial, Replicate

    kinds = [Partial() if kind.is_shard() else Replicate() for kind in parameter.placements]
    return DTensor.from_local(part, parameter.device_mesh, kinds, run_check=False).full_tensor()


def sum_of_columns(rows: Tensor, parameter: Any) -> Tensor:
    """Sum what each process has summed over its columns.

    Parameters
    ----------
    rows : Tensor
        One entry for each row that this process holds.
    parameter : Tensor
        Plain or distributed.

    Returns
    -------
    Tensor
        The sums over whole rows.
    """
    if not is_spread(parameter):
        return rows
    split = [kind.is_shard() and kind.dim > 0 for kind in parameter.placements]
    if not any(split):
        return rows
    from torch.distributed.tensor import DTensor, Partial, Replicate

    partial = [Partial() if cut else kind for cut, kind in zip(split, parameter.placements)]
    whole = [Replicate() if cut else kind for cut, kind in zip(split, parameter.placements)]
    spread = DTensor.from_local(rows, parameter.device_mesh, partial, run_check=False)
    return spread.redistribute(parameter.device_mesh, whole).to_local()
