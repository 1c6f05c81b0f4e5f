"""DLL beside backpropagation, feedback that never learns, and other biologically motivated rules.

``python -m benchmarks dll`` runs reduced claims on one core. Runs of the paper's size, on an accelerator::

    python -m benchmarks.dll --data cifar10 --model cnn --rules bp,dll,fixed,dfa,kp,pc --epochs 200 --seeds 5
"""

import argparse
import statistics
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import _local_learning as runs
from benchmarks.harness import Row, say, speed_row, time_pair, write
from seedbed.datasets import CharDataModule, load_diabetes, load_topics
from seedbed.lightning_modules.dll.modules import DLLSequenceModel
from seedbed.lightning_modules.dll.optimizing import build_optimizer
from seedbed.lightning_modules.dll.targets import class_targets

PACKAGES = ("mlxtend", "torchmetrics", "jaxtyping")
SEEDS = (0, 1, 2)
OTHERS = ("dfa", "sign_symmetry", "pc", "pc_fa", "ipc", "dtp", "ep", "ff", "softhebb", "local_loss")
RELAXATION = {"pc": {"n_steps": 20}, "pc_fa": {"n_steps": 20}}
PAPER = (784, *runs.PAPER_HIDDEN, 10)


def run(size: str) -> list[Row]:
    """Run the claims and comparisons."""
    rows = [
        *_digits_rows(),
        *_rule_rows(),
        *_angle_rows(),
        *_deep_rows(),
        *_mnist_rows(epochs=20),
        *_cnn_rows(),
        *_recurrent_rows(epochs=2),
        *_regression_rows(),
        *_speed_rows(),
        *_memory_rows(),
    ]
    if size == "full":
        for data, model, epochs, lr in (("mnist", "mlp", 30, 1e-4), ("cifar10", "cnn", 60, 5e-5)):
            rows += table(data, model, ("bp", "dll", "fixed", "fa", "dfa", "kp", "pc"), epochs=epochs, lr=lr)
    return rows


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def _spread(values: Sequence[float]) -> float | None:
    return max(values) - min(values) if len(values) > 1 else None


def _digits_rows() -> Iterator[Row]:
    data = runs.digits()
    found: dict[str, list[float]] = {}
    for name in ("bp", "dll", "fixed", "anti", "kp"):
        found[name] = [
            runs.train(
                runs.network(name, data, hidden=(128, 64), seed=seed), data, epochs=100, lr=1e-3, seed=seed
            ).accuracy
            for seed in SEEDS
        ]
    mean = {name: _mean(values) for name, values in found.items()}
    where = "digits, 64-128-64-10, 100 epochs"
    yield Row(
        f"DLL, test accuracy: {where}", "claim", mean["dll"], "accuracy", "higher",
        peer="backpropagation", peer_value=mean["bp"], target=0.970, repeats=3, spread=_spread(found["dll"]),
    )  # fmt: skip
    yield Row(
        f"DLL minus backpropagation: {where}", "claim", mean["dll"] - mean["bp"], "accuracy", "higher",
        target=-0.015, repeats=3,
    )  # fmt: skip
    for name, text in (
        ("fixed", "feedback that never learns"),
        ("anti", "anti-Hebbian feedback"),
        ("kp", "Kolen-Pollack feedback"),
    ):
        yield Row(
            f"DLL beside {text}: {where}", "claim", mean["dll"], "accuracy", "higher",
            peer=text, peer_value=mean[name], repeats=3, spread=_spread(found[name]),
            note="differences below .003 change sign with the seeds" if name == "fixed" else "",
        )  # fmt: skip
    (x, y), (x_test, y_test) = ([part.numpy() for part in pair] for pair in (data.train, data.test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so many epochs are what it gets
        peer = _mean(
            [
                MLPClassifier((128, 64), activation="tanh", batch_size=64, max_iter=60, random_state=seed)
                .fit(x, y)
                .score(x_test, y_test)
                for seed in SEEDS
            ]
        )
    yield Row(
        "DLL beside scikit-learn's MLPClassifier: digits, 64-128-64-10", "claim", mean["dll"], "accuracy",
        "higher", peer="scikit-learn MLPClassifier, Adam, 60 epochs", peer_value=peer, repeats=3,
    )  # fmt: skip


def _rule_rows() -> Iterator[Row]:
    data = runs.digits()

    def score(name: str) -> list[float]:
        return [
            runs.train(
                runs.network(name, data, hidden=(128, 64), seed=seed, options=RELAXATION.get(name)),
                data, epochs=40, lr=1e-3, seed=seed,
            ).accuracy
            for seed in (SEEDS if name in ("dll", "fixed") else SEEDS[:1])
        ]  # fmt: skip

    ours = _mean(score("dll"))
    for name in OTHERS:
        (value,) = score(name)
        yield Row(
            f"rule {name}, test accuracy: digits, 40 epochs", "claim", value, "accuracy", "higher",
            peer="DLL, 40 epochs, mean of 3", peer_value=ours, target=0.90,
        )  # fmt: skip


def _angle_rows() -> Iterator[Row]:
    data = runs.digits()
    angles: dict[int, list[list[float]]] = {1: [], 40: []}
    for seed in SEEDS:
        net = runs.network("dll", data, hidden=(128, 64), seed=seed)
        done = runs.train(net, data, epochs=40, lr=1e-3, seed=seed, schedule="none", angles_at=(1, 40))
        for epoch, found in done.angles.items():
            angles[epoch].append(found)
    for layer, bound in ((0, 65.0), (1, 55.0)):
        first, last = (_mean([found[layer] for found in angles[epoch]]) for epoch in (1, 40))
        yield Row(
            f"angle of DLL's update to the gradient, layer {layer + 1}, epoch 40: digits", "claim", last,
            "degrees", "lower", target=bound, repeats=3,
            spread=_spread([found[layer] for found in angles[40]]), note=f"{first:.1f} degrees after epoch 1",
        )  # fmt: skip


def _deep_rows() -> Iterator[Row]:
    data = runs.digits()
    score = {
        name: _mean(
            [
                runs.train(
                    runs.network(name, data, hidden=(128, 128, 128, 64), seed=seed, feedback_std=0.05),
                    data, epochs=60, lr=1e-3, seed=seed,
                ).accuracy
                for seed in SEEDS[:2]
            ]
        )
        for name in ("bp", "dll", "fixed")
    }  # fmt: skip
    for name, peer in (("bp", "backpropagation"), ("fixed", "feedback that never learns")):
        yield Row(
            f"DLL beside {peer}: digits, 5 layers of weights, 60 epochs", "claim", score["dll"], "accuracy",
            "higher", peer=peer, peer_value=score[name], repeats=2,
        )  # fmt: skip


def _mnist_rows(epochs: int) -> Iterator[Row]:
    data = runs.mnist5k()
    score = {
        name: runs.train(
            runs.network(name, data, hidden=(256, 128)), data, epochs=epochs, lr=5e-4, batch_size=128
        ).accuracy
        for name in ("bp", "dll", "fixed")
    }
    for name, peer in (("bp", "backpropagation"), ("fixed", "feedback that never learns")):
        yield Row(
            f"DLL beside {peer}: MNIST, 4000 digits, 784-256-128-10, {epochs} epochs", "claim", score["dll"],
            "accuracy", "higher", peer=peer, peer_value=score[name],
            target=0.90 if name == "bp" else None,
        )  # fmt: skip


def _cnn_rows() -> Iterator[Row]:
    data = runs.digits(images=True)
    score = {
        name: runs.train(runs.network(name, data, layers=runs.DIGITS_CNN), data, epochs=20, lr=3e-3).accuracy
        for name in ("bp", "dll", "fixed")
    }
    for name, peer in (("bp", "backpropagation"), ("fixed", "feedback that never learns")):
        yield Row(
            f"DLL beside {peer}: digits, two convolutions, 20 epochs", "claim", score["dll"], "accuracy",
            "higher", peer=peer, peer_value=score[name], target=0.94 if name == "bp" else None,
        )  # fmt: skip


def _recurrent_rows(epochs: int) -> Iterator[Row]:
    text = load_topics().text[:200_000]
    score = {}
    for name, settings in (
        ("bp", {"learning_rule": "bp"}),
        ("dll", {"learning_rule": "dll"}),
        ("fixed", {"learning_rule": "dll", "feedback_rule": "fixed"}),
    ):
        data = CharDataModule(text=text, seq_len=32, val_size=0.0, batch_size=64)
        data.setup("fit")
        model = DLLSequenceModel(
            input_size=data.num_classes, output_size=data.num_classes, hidden_size=128, lr=1e-3,
            random_state=0, **settings,
        )  # fmt: skip
        optimizer = build_optimizer(model.network, "sgd", lr=1e-3)
        for _ in range(epochs):
            for batch in data.train_dataloader():
                x, target, weight = model.unpack(batch, smooth=True)
                model.network.learn(x, target, weight)
                optimizer.step()
        data.setup("test")
        right = total = 0
        model.eval()
        for x, y in data.test_dataloader():
            right += int((model(x).argmax(-1) == y).sum())
            total += y.numel()
        score[name] = right / total
    for name, peer in (("bp", "backpropagation through time"), ("fixed", "feedback that never learns")):
        yield Row(
            f"DLL beside {peer}: characters of Python's help, 128 units, {epochs} epochs", "claim",
            score["dll"], "accuracy", "higher", peer=peer, peer_value=score[name],
            note="anti-Hebbian feedback under SGD, as released; it stays below fixed feedback"
            if name == "fixed" else "",
        )  # fmt: skip


def _regression_rows() -> Iterator[Row]:
    from seedbed.estimators import DLLMLPRegressor

    x, y = load_diabetes(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=0)
    mean, scale = x.mean(0), x.std(0)
    x, x_test = (x - mean) / scale, (x_test - mean) / scale
    score = {
        name: DLLMLPRegressor((32, 16), max_iter=60, accelerator="cpu", random_state=0, **settings)
        .fit(x, y)
        .score(x_test, y_test)
        for name, settings in (
            ("backpropagation", {"learning_rule": "bp"}),
            ("DLL", {}),
            ("feedback that never learns", {"feedback_rule": "fixed"}),
        )
    }
    ridge = r2_score(y_test, RidgeCV(np.logspace(-2, 3, 20)).fit(x, y).predict(x_test))
    for peer, value in (
        *((name, score[name]) for name in score if name != "DLL"),
        ("ridge regression", ridge),
    ):
        yield Row(
            f"DLL beside {peer}: diabetes, 10-32-16-1, 60 epochs", "claim", score["DLL"], "R²", "higher",
            peer=peer, peer_value=float(value),
        )  # fmt: skip


def _paper_data(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows, PAPER[0], generator=rng)
    y = torch.randint(10, (rows,), generator=rng)
    return x, y, class_targets(y, 10, runs.SMOOTHING)


@dataclass(frozen=True)
class Step:
    """A training step and what it holds on to."""

    net: nn.Module
    optimizer: torch.optim.Optimizer
    call: Callable[[], object]


def _local_step(rows: int, *, every: int = 1) -> Step:
    x, _, target = _paper_data(rows)
    data = runs.Data("paper", (x, target.argmax(1)), None, (x, target.argmax(1)), 10)
    net = runs.network("dll", data, hidden=runs.PAPER_HIDDEN)
    optimizer = build_optimizer(net, lr=1e-4)
    count = 0

    def step() -> None:
        nonlocal count
        net.update_feedback = count % every == 0
        count += 1
        net.learn(x, target)
        optimizer.step()

    return Step(net, optimizer, step)


def _autograd_step(rows: int) -> Step:
    """The same network, loss and optimizer as a torch user would write them."""
    x, _, target = _paper_data(rows)
    layers: list[nn.Module] = []
    for place, (n_in, n_out) in enumerate(pairwise(PAPER)):
        layers += [*([nn.Tanh()] if place else []), nn.Linear(n_in, n_out, bias=False)]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), target).backward()
        optimizer.step()

    return Step(net, optimizer, step)


def _speed_rows() -> Iterator[Row]:
    peer = f"autograd and fused Adam, torch {torch.__version__.partition('+')[0]}"
    where = "784-1024-512-256-10, batch 128"
    for every, target in ((1, 1 / 1.35), (4, 1 / 1.1)):
        ours, theirs = _local_step(128, every=every).call, _autograd_step(128).call

        def several(step: Callable[[], object]) -> Callable[[], None]:
            def call() -> None:
                for _ in range(4):
                    step()

            return call

        timing = time_pair(several(ours), several(theirs), repeats=15, warmup=3)
        how = "every step" if every == 1 else f"every {every} steps"
        yield speed_row(
            f"four training steps, feedback learns {how}: {where}", timing, peer=peer, target=target,
            note="DLL multiplies four matrices per layer where backpropagation multiplies three",
        )  # fmt: skip


class _Live(TorchDispatchMode):
    """Counts the bytes of tensors alive inside, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's memory until it is freed, once however many tensors share it."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count what it returns."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return out


def _peak(step: Step) -> float:
    """Megabytes alive at most during a training step: weights, optimizer state, gradients, activations."""
    step.call()
    with _Live() as live:
        held = [*step.net.parameters(), *(p.grad for p in step.net.parameters() if p.grad is not None)]
        for state in step.optimizer.state.values():
            held += [value for value in state.values() if isinstance(value, Tensor)]
        for tensor in held:
            live.add(tensor)
        step.call()
    return live.peak / 1e6


def _memory_rows() -> Iterator[Row]:
    for rows in (128, 8192):
        yield Row(
            f"peak memory of a training step: 784-1024-512-256-10, batch {rows}", "memory",
            _peak(_local_step(rows)), "MB", "lower",
            peer="autograd and fused Adam", peer_value=_peak(_autograd_step(rows)),
            note="feedback weights and their moments come on top; no graph is kept",
        )  # fmt: skip


def table(
    name: str,
    model: str,
    rules: Sequence[str],
    *,
    epochs: int,
    lr: float,
    batch_size: int = 64,
    seeds: int = 1,
    device: str | None = None,
) -> list[Row]:
    """Test accuracy, time per epoch and peak memory of each rule on one data set.

    The accuracy is that of the epoch that did best on a tenth of the training part.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    packaged = {"digits": lambda: runs.digits(images=model == "cnn"), "mnist5k": runs.mnist5k}
    data = (packaged[name]() if name in packaged else runs.images(name)).to(place)
    if data.validation is None:
        x, x_val, y, y_val = train_test_split(
            *(part.cpu() for part in data.train), test_size=0.1, random_state=0
        )
        data = runs.Data(name, (x, y), (x_val, y_val), data.test, data.classes).to(place)
    found: dict[str, list[runs.Run]] = {}
    for rule in rules:
        found[rule] = []
        for seed in range(seeds):
            start = time.perf_counter()
            net = runs.network(rule, data, seed=seed, **runs.layers_of(model, name)).to(place)
            done = runs.train(net, data, epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)
            found[rule].append(done)
            say(
                f"{name} {model} {rule} seed {seed}: {done.accuracy:.4f} at epoch {done.best_epoch}, "
                f"{done.seconds_per_epoch:.2f} s per epoch, {time.perf_counter() - start:.0f} s"
            )
    best = max(_mean([one.accuracy for one in some]) for some in found.values())
    rows = []
    for rule, some in found.items():
        values = [one.accuracy for one in some]
        what = f"{rule}: {name}, {model}, {epochs} epochs"
        rows.append(
            Row(
                f"test accuracy of {what}", "claim", _mean(values), "accuracy", "higher",
                peer="best of the table", peer_value=best, repeats=seeds, spread=_spread(values),
            )
        )  # fmt: skip
        rows.append(Row(f"epoch of {what}", "speed", some[0].seconds_per_epoch, "s", "lower"))
        if place.type == "cuda":
            rows.append(Row(f"peak memory of {what}", "memory", some[0].peak_bytes / 1e6, "MB", "lower"))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one table from the command line and write it to ``results/dll.<data>-<model>.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dll", description=__doc__)
    parser.add_argument("--data", default="mnist", choices=("digits", "mnist5k", *runs.FETCHERS))
    parser.add_argument("--model", default="mlp", choices=("mlp", "cnn"))
    parser.add_argument("--rules", default="bp,dll,fixed,fa,dfa,kp,pc", help=", ".join(runs.RULES))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default=None)
    given = parser.parse_args(arguments)
    rules = given.rules.split(",")
    if unknown := set(rules) - set(runs.RULES):
        parser.error(f"--rules must be among {', '.join(runs.RULES)}; got {', '.join(sorted(unknown))}")
    start = time.perf_counter()
    rows = table(
        given.data, given.model, rules, epochs=given.epochs, lr=given.lr, batch_size=given.batch_size,
        seeds=given.seeds, device=given.device,
    )  # fmt: skip
    written = write("dll", f"{given.data}-{given.model}", rows, time.perf_counter() - start, PACKAGES)
    say(f"-> {written.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
