"""A network and batches small enough for every optimizer to meet every engine in seconds."""

import torch
from torch import nn


def network(seed=0, dtype=torch.float32):
    """A two-layer network; the global generator is left as it was."""
    rng = torch.Generator().manual_seed(seed)
    with torch.device("meta"):  # there, initialising draws nothing
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model = model.to_empty(device="cpu").to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=dtype) * 0.4)
    return model


def batches(n, size=16, seed=1, dtype=torch.float32):
    """Batches ``(x, y)`` of a regression on the outputs of another network."""
    rng = torch.Generator().manual_seed(seed)
    teacher = network(seed + 100, dtype)
    x = torch.randn(n, size, 6, generator=rng, dtype=dtype)
    with torch.no_grad():
        return [(inputs, teacher(inputs)) for inputs in x]


def needs_graph(optimizer):
    """Whether the optimizer differentiates the gradient."""
    return getattr(getattr(optimizer, "_options", None), "hessian", "zero") in ("diag", "hvp")


def backward(optimizer, loss):
    """Backward pass, with the graph kept for an optimizer that needs it."""
    loss.backward(create_graph=needs_graph(optimizer))


def train(model, optimizer, data, scheduler=None):
    """One step per batch; returns the losses."""
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        backward(optimizer, loss)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses
