"""What the ranks of MetaOptimize's tests run: data parallel, sharded, and summed over a process group."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from conformance import toy
from seedbed.optimizers import MetaAdamW, MetaOptimize

F64 = torch.float64


def train(model, optimizer, rows, data):
    """Train on some rows of every batch; returns the meta-gradients of every step."""
    gradients = []
    for x, y in data:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            loss.backward()
            return loss

        optimizer.step(closure)
        gradients.append(optimizer.meta_gradients())
    return gradients


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def weights(model):
    return torch.cat([whole(p.detach()).flatten() for p in model.parameters()])


def build(model, options):
    return MetaAdamW(model.parameters(), lr=1e-2, **options)


def shard(mesh, seed=0):
    model = toy.network(seed, dtype=F64)
    fully_shard(model, mesh=mesh)
    return model


def compare_engines(rank, variants):
    """Train every variant alone, under DDP and under FSDP2; then resume it from distributed checkpoints."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = slice(rank, None, dist.get_world_size())
    data = toy.batches(6, dtype=F64)
    results = {}
    for name, options in variants.items():
        alone = toy.network(dtype=F64)
        z_alone = train(alone, build(alone, options), slice(None), data)
        spread = DistributedDataParallel(toy.network(dtype=F64))
        z_spread = train(spread, build(spread, options), rows, data)
        sharded = shard(mesh)
        optimizer = build(sharded, options)
        z_sharded = train(sharded, optimizer, rows, data)
        result = {
            "weights": [weights(alone), weights(spread), weights(sharded)],
            "z": [z_alone, z_spread, z_sharded],
            "norms": optimizer.trace_norms(),
            "resumed": [],
        }
        saved = {}
        for how in (
            StateDictOptions(),
            StateDictOptions(full_state_dict=True),
            StateDictOptions(flatten_optimizer_state_dict=True),
        ):
            saved[len(saved)] = how, copy.deepcopy(get_optimizer_state_dict(sharded, optimizer, options=how))
        start = copy.deepcopy(sharded.state_dict())
        train(sharded, optimizer, rows, data)
        result["on"] = weights(sharded)
        for how, state in saved.values():
            fresh = shard(mesh, seed=9)
            its = build(fresh, options)
            fresh.load_state_dict(start)
            set_optimizer_state_dict(fresh, its, state, options=how)
            train(fresh, its, rows, data)
            result["resumed"].append(weights(fresh))
        results[name] = result
    return results


def sum_over_a_group(rank):
    """Sum z over ranks that hold half of every parameter each, as plain tensors, as FSDP1 does."""
    target = torch.linspace(-1, 1, 8, dtype=F64)
    mine = slice(4 * rank, 4 * rank + 4)
    part = nn.Parameter(torch.zeros(4, dtype=F64))
    all_of_it = nn.Parameter(torch.zeros(8, dtype=F64))
    half = MetaOptimize(torch.optim.AdamW([part], lr=1e-2), meta_lr=0.1, process_group=dist.group.WORLD)
    full = MetaOptimize(torch.optim.AdamW([all_of_it], lr=1e-2), meta_lr=0.1)
    for step in range(8):
        scale = 1.0 if step < 5 else -1.0
        part.grad = scale * (part.detach() - target[mine])
        all_of_it.grad = scale * (all_of_it.detach() - target)
        half.step()
        full.step()
    same = torch.equal(part.detach(), all_of_it.detach()[mine])
    return (
        half.meta_gradients()["all"],
        full.meta_gradients()["all"],
        same,
        half.step_sizes() == full.step_sizes(),
    )


def split_columns(rank):
    """Tensor parallelism: each rank holds some columns of a matrix; compare with the matrix in one piece."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    g = torch.Generator().manual_seed(0)
    start, grads = torch.randn(3, 5, generator=g, dtype=F64), torch.randn(6, 3, 5, generator=g, dtype=F64)
    results = {}
    for blocks in ("scalar", "nodewise", "weightwise"):
        options = {"lr": 1e-2, "meta": "adam", "meta_lr": 0.1, "blocks": blocks}
        plain = nn.Parameter(start.clone())
        split = nn.Parameter(distribute_tensor(start.clone(), mesh, [Shard(1)]))
        alone, spread = MetaAdamW([plain], **options), MetaAdamW([split], **options)
        for grad in grads:
            plain.grad = grad.clone()
            split.grad = distribute_tensor(grad.clone(), mesh, [Shard(1)])
            alone.step()
            spread.step()
        beta = spread.state[split].get("meta_beta")
        mine = alone.state[plain].get("meta_beta")
        results[blocks] = plain.detach(), whole(split.detach()), mine, None if beta is None else whole(beta)
    return results
