"""Sums and rows over all processes of a distributed run."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor


def total_over_ranks(value: Float[Tensor, ""], world: int) -> Float[Tensor, ""]:
    """Sum a number over processes, without gradients.

    Parameters
    ----------
    value : Tensor of shape ()
        This process's share.
    world : int
        Number of processes; 1 asks nobody.

    Returns
    -------
    Tensor of shape ()
        The sum, the same everywhere.
    """
    found = value.detach().clone()
    if world > 1:
        dist.all_reduce(found)
    return found


def gather_rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Join the rows of all processes, which may have different numbers of them.

    Parameters
    ----------
    tensors : sequence of Tensor, each of shape (rows, ...)
        This process's rows.

    Returns
    -------
    list of Tensor
        Rows of all processes, in the order of their ranks.
    """
    world = dist.get_world_size()
    mine = torch.tensor([len(tensors[0])], device=tensors[0].device)
    counts = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(counts, mine)
    sizes = [int(count) for count in counts]
    found = []
    for tensor in tensors:
        padded = tensor.detach().new_zeros(max(sizes), *tensor.shape[1:])
        padded[: len(tensor)] = tensor.detach()
        parts = [torch.zeros_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded)
        found.append(torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]))
    return found
