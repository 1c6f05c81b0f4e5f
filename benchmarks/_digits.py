"""The digits run of the step-size benchmarks: one small network, any optimizer, the same batches for all."""

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from benchmarks._networks import mlp

STEPS = 3000
BATCH = 64
Make = Callable[[Iterable[nn.Parameter]], Any]
Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class Outcome:
    """Medians over seeds, and the worst accuracy among them."""

    loss: float
    accuracy: float
    worst: float
    alpha: float
    seeds: int


@cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images in [0, 1] with their classes: a stratified 70/30 split."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split((x / 16.0).astype("float32"), y, test_size=0.3, stratify=y, random_state=0)
    train_x, test_x, train_y, test_y = map(torch.as_tensor, parts)
    return train_x, train_y, test_x, test_y


def network(seed: int) -> nn.Sequential:
    """The network 64-64-64-10 as this seed initialises it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(64, 64, 64, 10)


def batches(seed: int, steps: int, size: int = BATCH) -> Iterable[Tensor]:
    """Row numbers of each batch: a fresh permutation every epoch, its last incomplete batch left out."""
    rng = torch.Generator().manual_seed(seed)
    rows = len(data()[0])
    served = 0
    while served < steps:
        for batch in torch.randperm(rows, generator=rng).split(size):
            if len(batch) == size and served < steps:
                yield batch
                served += 1


def train(
    make: Make,
    seed: int,
    steps: int = STEPS,
    schedule: Schedule | None = None,
    watch: Callable[[Any], None] | None = None,
) -> tuple[float, float, float]:
    """Train once; returns training loss, test accuracy and the last step size (NaN where none is shown)."""
    train_x, train_y, test_x, test_y = data()
    model = network(seed)
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule is not None else None
    _mode(optimizer, "train")
    for rows in batches(seed, steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train_x[rows]), train_y[rows]).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if watch is not None:
            watch(optimizer)
    _mode(optimizer, "eval")
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(train_x), train_y).item()
        accuracy = (model(test_x).argmax(dim=1) == test_y).float().mean().item()
    return float("inf") if math.isnan(loss) else loss, accuracy, float(_step_size(optimizer))


def _step_size(optimizer: Any) -> float:
    """The first of the step sizes that the optimizer shows."""
    sizes = optimizer.step_sizes() if hasattr(optimizer, "step_sizes") else {}
    return next(iter(sizes.values()), math.nan)


def _mode(optimizer: Any, name: str) -> None:
    """Schedule-Free keeps two sets of weights and has to be told which is wanted."""
    if hasattr(optimizer, name):
        getattr(optimizer, name)()


def repeat(make: Make, seeds: Sequence[int], steps: int = STEPS, schedule: Schedule | None = None) -> Outcome:
    """Train once per seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peers' own deprecation notes
        runs = [train(make, seed, steps, schedule) for seed in seeds]
    losses, accuracies, alphas = zip(*runs, strict=True)
    return Outcome(
        statistics.median(losses),
        statistics.median(accuracies),
        min(accuracies),
        statistics.median(alphas),
        len(runs),
    )
