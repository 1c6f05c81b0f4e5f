"""Training runs of the paper's size: ``python -m benchmarks.metaoptimize --task cifar10 ...``."""

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prodigyopt import Prodigy
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._networks import Llama, ResNet18
from benchmarks.harness import Row, say, write
from seedbed.datasets import fetch_cifar10, load_topics
from seedbed.optimizers import MetaOptimize

PEERS = ("constant", "cosine", "prodigy", "schedulefree")
LAST_EPOCHS = 5


@dataclass(frozen=True)
class Arm:
    """One optimizer: ``make(params)``, and the share of its lr at each point in [0, 1] of the run."""

    name: str
    make: Callable[[Any], Any]
    schedule: Callable[[float], float] | None = None


def cosine(done: float, warm: float = 0.05) -> float:
    """Linear warm-up over the first 5 percent, then cosine to zero."""
    return min(done / warm, 0.5 * (1 + math.cos(math.pi * max(0.0, (done - warm) / (1 - warm)))))


def bases(kappa: float) -> dict[str, Callable[..., Any]]:
    """The wrapped optimizers by name."""
    return {
        "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=kappa),
        "sgdm": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    }


def arms(options: argparse.Namespace, listed: Sequence[int]) -> Iterator[Arm]:
    """Every optimizer that the command line asks for; ``listed`` are the paper's blocks of the network."""
    made = bases(options.weight_decay)
    for base, meta, alpha, blocks in itertools.product(
        options.base, options.meta, options.alpha0, options.blocks
    ):
        layout = list(listed) if blocks.isdigit() else blocks
        if blocks.isdigit() and int(blocks) != len(listed):
            raise SystemExit(f"--blocks must be scalar, layerwise, nodewise or {len(listed)}; got {blocks}")
        keywords: dict[str, Any] = {
            "meta": meta,
            "meta_lr": options.meta_lr,
            "gamma": options.gamma,
            "blocks": layout,
            "alpha_bounds": options.alpha_bounds,
        }
        yield Arm(
            f"MetaOptimize({base}), {meta}, {blocks}, alpha0={alpha:g}",
            lambda p, base=base, alpha=alpha, keywords=keywords: MetaOptimize(
                made[base](p, alpha), **keywords
            ),
        )
    for base, lr in itertools.product(options.base, options.lr):
        if "constant" in options.peers:
            yield Arm(f"{base}, constant {lr:g}", lambda p, base=base, lr=lr: made[base](p, lr))
        if "cosine" in options.peers:
            yield Arm(f"{base}, cosine {lr:g}", lambda p, base=base, lr=lr: made[base](p, lr), cosine)
    if "schedulefree" in options.peers:
        for lr in options.lr:
            yield Arm(
                f"Schedule-Free AdamW {lr:g}",
                lambda p, lr=lr: AdamWScheduleFree(p, lr=lr, weight_decay=options.weight_decay),
            )
    if "prodigy" in options.peers:
        yield Arm("Prodigy", lambda p: Prodigy(p, lr=1.0, weight_decay=options.weight_decay))


# --- images


def augmented(x: Tensor, rng: torch.Generator) -> Tensor:
    """Random crops after padding by 4, and mirror images with probability 1/2."""
    n, _, height, width = x.shape
    padded = F.pad(x, (4, 4, 4, 4))
    down, right = torch.randint(0, 9, (2, n, 1), generator=rng, device=x.device)
    rows = down + torch.arange(height, device=x.device)
    columns = right + torch.arange(width, device=x.device)
    mirror = torch.rand(n, 1, generator=rng, device=x.device) < 0.5
    columns = torch.where(mirror, columns.flip(1), columns)
    picture = torch.arange(n, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[picture, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def train_images(
    arm: Arm, data: Sequence[np.ndarray], seed: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Train a ResNet-18; returns the test accuracy (mean of the last 5 epochs) and the last training loss."""
    device = torch.device(options.device)
    train_x, train_y, test_x, test_y = (torch.as_tensor(part, device=device) for part in data)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ResNet18(int(train_y.max()) + 1).to(device, memory_format=torch.channels_last)
    rng = torch.Generator(device).manual_seed(seed)
    optimizer = arm.make(model.named_parameters() if arm.name.startswith("Meta") else model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    total = options.epochs * (len(train_x) // options.batch_size)
    accuracies, loss, step = [], torch.tensor(math.nan), 0
    for epoch in range(options.epochs):
        model.train()
        _tell(optimizer, "train")
        for rows in torch.randperm(len(train_x), generator=rng, device=device).split(options.batch_size):
            if len(rows) < options.batch_size:
                continue
            _set_rates(optimizer, arm, rates, step / total)
            x = _normalised(train_x[rows])
            x = augmented(x, rng) if options.augment else x
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=bool(options.bf16)):
                loss = F.cross_entropy(model(x), train_y[rows])
            loss.backward()
            optimizer.step()
            step += 1
        _tell(optimizer, "eval")
        if isinstance(optimizer, AdamWScheduleFree):  # batch statistics belong to the averaged weights
            model.train()
            with torch.no_grad():
                for x in train_x[: 50 * options.batch_size].split(options.batch_size):
                    model(_normalised(x))
        if epoch >= options.epochs - LAST_EPOCHS:
            accuracies.append(_accuracy(model, test_x, test_y))
    return statistics.mean(accuracies), float(loss.detach())


def _normalised(x: Tensor) -> Tensor:
    return (x.float() / 127.5 - 1.0).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    right = sum(
        int((model(_normalised(part)).argmax(dim=1) == labels).sum())
        for part, labels in zip(x.split(1000), y.split(1000), strict=True)
    )
    return right / len(x)


def _set_rates(optimizer: Any, arm: Arm, rates: Sequence[float], done: float) -> None:
    if arm.schedule is not None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * arm.schedule(done)


def _tell(optimizer: Any, mode: str) -> None:
    if hasattr(optimizer, mode):
        getattr(optimizer, mode)()


# --- text


def tokens(path: Path | None) -> tuple[Tensor, int]:
    """Tokens and the size of their vocabulary.

    A ``.bin`` file holds uint16 tokens of a vocabulary of 32,000 (llama2.c's format of TinyStories); any
    other file is read as bytes; without one, Python's own help texts are.
    """
    if path is None:
        return torch.frombuffer(bytearray(load_topics().text.encode()), dtype=torch.uint8).long(), 256
    if path.suffix == ".bin":
        return torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int64)), 32_000
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long(), 256


def train_text(
    arm: Arm, stream: Tensor, vocabulary: int, seed: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Train a language model; returns the loss on the last tenth of the text and the last training loss."""
    device, length = torch.device(options.device), options.length
    cut = len(stream) * 9 // 10
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Llama(vocabulary, options.dim, options.layers, options.layers, length).to(device)
    rng = torch.Generator().manual_seed(seed)
    optimizer = arm.make(model.named_parameters() if arm.name.startswith("Meta") else model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    stream = stream.to(device)

    def loss_on(low: int, high: int, generator: torch.Generator) -> Tensor:
        starts = torch.randint(low, high - length - 1, (options.batch_size, 1), generator=generator)
        window = stream[starts.to(device) + torch.arange(length + 1, device=device)]
        with torch.autocast(device.type, torch.bfloat16, enabled=bool(options.bf16)):
            logits = model(window[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())

    _tell(optimizer, "train")
    loss = torch.tensor(math.nan)
    for step in range(options.steps):
        _set_rates(optimizer, arm, rates, step / options.steps)
        optimizer.zero_grad()
        for _ in range(options.accumulate):
            loss = loss_on(0, cut, rng) / options.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    _tell(optimizer, "eval")
    fixed = torch.Generator().manual_seed(0)
    with torch.no_grad():
        held_out = statistics.mean(float(loss_on(cut, len(stream), fixed)) for _ in range(20))
    return held_out, float(loss.detach()) * options.accumulate


# --- command line


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command-line options."""

    def several(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
        return lambda text: [kind(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.metaoptimize", description=__doc__)
    parser.add_argument("--task", choices=("cifar10", "text"), required=True)
    parser.add_argument("--model", choices=("resnet18", "llama"), help="resnet18 for cifar10, llama for text")
    parser.add_argument("--base", type=several(str), default=["adamw"], help="adamw,sgdm")
    parser.add_argument("--meta", type=several(str), default=["lion"], help="lion,adam,rmsprop,sgd")
    parser.add_argument("--alpha0", type=several(float), default=[1e-6, 1e-3])
    parser.add_argument(
        "--blocks", type=several(str), default=["scalar"], help="scalar,6,layerwise (text: 7)"
    )
    parser.add_argument("--meta-lr", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--alpha-bounds", type=several(float), default=None, help="lowest,highest step size")
    parser.add_argument("--peers", type=several(str), default=list(PEERS), help=",".join(PEERS))
    parser.add_argument(
        "--lr", type=several(float), default=[1e-4, 3e-4, 1e-3, 3e-3], help="rates of the peers"
    )
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=None, help="100 images or 64 windows")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", type=int, choices=(0, 1), default=0, help="bfloat16 autocast")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--augment", type=int, choices=(0, 1), default=0)
    parser.add_argument("--text", type=Path, default=None, help="text, or a .bin file of uint16 tokens")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--dim", type=int, default=288)
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args(arguments)
    expected = {"cifar10": "resnet18", "text": "llama"}[options.task]
    if options.model not in (None, expected):
        parser.error(f"--task {options.task} goes with --model {expected}")
    for name, allowed in (("base", ("adamw", "sgdm")), ("peers", PEERS)):
        unknown = set(getattr(options, name)) - {*allowed, ""}
        if unknown:
            parser.error(f"--{name} takes {', '.join(allowed)}; got {', '.join(sorted(unknown))}")
    options.batch_size = options.batch_size or (100 if options.task == "cifar10" else 64)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Train every arm, report a line each and write ``results/metaoptimize.<task>.json``."""
    options = parse(arguments)
    torch.set_float32_matmul_precision("high")
    start, rows = time.perf_counter(), []
    for row in measure(options):
        rows.append(row)
        say(f"{row.name}: {row.value:.4f} {row.unit}  ({row.note})")
    path = write(
        "metaoptimize", options.task, rows, time.perf_counter() - start, ("prodigyopt", "schedulefree")
    )
    say(path.name)
    return 0


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """One row per arm."""
    if options.task == "cifar10":
        train, test = (fetch_cifar10(subset=part) for part in ("train", "test"))
        data = [train.data, train.target, test.data, test.target]
        listed: Sequence[int] = ResNet18.BLOCKS

        def once(arm: Arm, seed: int) -> tuple[float, float]:
            return train_images(arm, data, seed, options)

    else:
        stream, vocabulary = tokens(options.text)
        listed = [1, *[9] * (options.layers - 1), 10]

        def once(arm: Arm, seed: int) -> tuple[float, float]:
            return train_text(arm, stream, vocabulary, seed, options)

    for arm in arms(options, listed):
        start = time.perf_counter()
        values, losses = zip(*(once(arm, seed) for seed in range(options.seeds)), strict=True)
        seconds = (time.perf_counter() - start) / options.seeds
        image = options.task == "cifar10"
        yield Row(
            name=arm.name,
            kind="claim",
            value=statistics.mean(values),
            unit="share right" if image else "nats",
            better="higher" if image else "lower",
            repeats=options.seeds,
            spread=max(values) - min(values) if options.seeds > 1 else None,
            note=f"last training loss {statistics.mean(losses):.3g}, {seconds:.0f} s a run"
            + (f", augment={options.augment}" if image else ""),
        )


if __name__ == "__main__":
    sys.exit(main())
