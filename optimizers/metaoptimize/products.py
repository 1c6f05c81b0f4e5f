"""Inner products of traces and gradients, over tensors that may be spread over processes."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seedbed.optimizers.metaoptimize.lists import Tensors
from seedbed.optimizers.metaoptimize.spread import sharding, sum_of_columns, sum_of_shards


def dots(ones: Tensors, others: Tensors) -> list[Tensor]:
    """Return the inner product of every pair.

    Parameters
    ----------
    ones, others : sequence of Tensor
        Plain tensors of equal shapes.

    Returns
    -------
    list of Tensor
        Scalars.
    """
    if ones[0].device.type == "cpu":  # no temporary: one read of each
        return [torch.dot(one.reshape(-1), other.reshape(-1)) for one, other in zip(ones, others)]
    return foreach_dots(ones, others)


def foreach_dots(ones: Tensors, others: Tensors) -> list[Tensor]:
    """Return the inner product of every pair, with a fixed number of kernels for all of them.

    There is no foreach sum, but a sum is twice the sum of its positive parts less that of absolute values,
    which are norms. The rounding error is that of any sum: the precision times the sum of absolute values.

    Parameters
    ----------
    ones, others : sequence of Tensor
        Plain tensors of equal shapes.

    Returns
    -------
    list of Tensor
        Scalars.
    """
    products = torch._foreach_mul(ones, others)
    sizes = torch._foreach_norm(products, 1)
    torch._foreach_clamp_min_(products, 0.0)
    return list(torch._foreach_sub(torch._foreach_mul(torch._foreach_norm(products, 1), 2.0), sizes))


class BlockSum:
    """Sums scalars into blocks, then over processes: one reduction for all blocks.

    Parameters
    ----------
    process_group : ProcessGroup or None
        Summed over if given, besides the meshes of distributed parameters.
    """

    def __init__(self, process_group: Any = None) -> None:
        self.process_group = process_group
        self._indices: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, entries: Iterable[tuple[Tensor, Tensor, int]], size: int, like: Tensor) -> Tensor:
        """Sum the entries of each block.

        Parameters
        ----------
        entries : iterable of (Tensor, Tensor, int)
            Local scalar, parameter that it belongs to, block.
        size : int
            Number of blocks.
        like : Tensor
            Gives the result's type and device.

        Returns
        -------
        Tensor of shape (size,)
            Equal on all processes.
        """
        spread: dict[Hashable, tuple[list[Tensor], list[int], Tensor]] = {}
        for scalar, parameter, block in entries:
            key = sharding(parameter) or scalar.device
            scalars, blocks, _ = spread.setdefault(key, ([], [], parameter))
            scalars.append(scalar)
            blocks.append(block)
        total = torch.zeros(size, dtype=like.dtype, device=like.device)
        for scalars, blocks, parameter in spread.values():
            values = torch.stack(scalars).to(like.device, like.dtype)
            part = values.sum().view(1) if size == 1 else self._scatter(values, blocks, size)
            total += sum_of_shards(part, parameter)
        if self.process_group is not None:
            dist.all_reduce(total, group=self.process_group)
        return total

    def _scatter(self, values: Tensor, blocks: list[int], size: int) -> Tensor:
        key = (values.device, *blocks)
        if key not in self._indices:
            if len(self._indices) > 32:  # freezing and thawing must not fill the memory
                self._indices.clear()
            self._indices[key] = torch.tensor(blocks, device=values.device)
        return torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(
            0, self._indices[key], values
        )


def row_sums(products: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Sum products over all dimensions but the first.

    Parameters
    ----------
    products : sequence of Tensor
        Local parts.
    parameters : sequence of Tensor
        What they belong to, plain or distributed.

    Returns
    -------
    list of Tensor
        Local rows, summed dimensions kept with size 1.
    """
    sums = []
    for product, parameter in zip(products, parameters):  # there is no foreach sum along dimensions
        rows = product.sum(dim=tuple(range(1, product.ndim)), keepdim=True) if product.ndim > 1 else product
        sums.append(sum_of_columns(rows, parameter))
    return sums
