"""What the ranks of the optimizer conformance tests run."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conformance import toy
from seedbed import catalog


def train_ranks(rank, optimizers):
    """Train one network per optimizer (``path -> small``) on this rank's half of each batch."""
    results = {}
    for path, small in optimizers.items():
        model = DistributedDataParallel(toy.network(dtype=torch.float64))
        optimizer = catalog.load(path).build(model.parameters(), **small)
        if toy.needs_graph(optimizer):
            continue
        half = slice(rank, None, dist.get_world_size())
        toy.train(model, optimizer, [(x[half], y[half]) for x, y in toy.batches(6, dtype=torch.float64)])
        results[path] = torch.cat([p.detach().flatten() for p in model.parameters()])
    return results
