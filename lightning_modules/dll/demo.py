"""Digits learned without backpropagation: seven rules on one network, and feedback that comes to agree."""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from seedbed.demos import Demo, DemoFigure, Report
from seedbed.lightning_modules.dll.architecture import NetworkConfig, feedforward_layers
from seedbed.lightning_modules.dll.optimizing import build_optimizer, schedule_factor
from seedbed.lightning_modules.dll.rules import RULES, build_network
from seedbed.lightning_modules.dll.targets import class_targets

EPOCHS = 40
BATCH = 64
RATE = 1e-3
SETTINGS: dict[str, dict[str, Any]] = {
    "bp": {"learning_rule": "bp"},
    "dll": {"learning_rule": "dll"},
    "fa": {"learning_rule": "fa", "feedback_init": "normal"},
    "kolen_pollack": {"learning_rule": "kolen_pollack"},
    "dtp": {"learning_rule": "dtp"},
    "ff": {"learning_rule": "ff"},
    "softhebb": {"learning_rule": "softhebb"},
}


def run(report: Report) -> Demo:
    """Train the same network 64-128-64-10 by each rule.

    Parameters
    ----------
    report : callable
        Called with the share done and what is being done.

    Returns
    -------
    Demo
        Test accuracies and criteria, and the alignment of the layers.
    """
    data = _split()
    accuracies: dict[str, float] = {}
    curves: dict[str, np.ndarray] = {}
    for turn, (name, settings) in enumerate(SETTINGS.items()):
        report(turn / len(SETTINGS), f"digits, {name}")
        accuracies[name], curves[name] = _train(data, **settings)
    report(1.0, "digits")
    rows: list[dict[str, str | float | int]] = [
        {
            "rule": name,
            "separate weights": RULES[settings["learning_rule"]].separate_weights,
            "local error": RULES[settings["learning_rule"]].local_error,
            "single phase": RULES[settings["learning_rule"]].single_phase,
            "test accuracy": round(accuracies[name], 4),
        }
        for name, settings in SETTINGS.items()
    ]

    def draw_alignment(figure: Any) -> None:
        axes = figure.subplots()
        epochs = np.arange(1, EPOCHS + 1)
        for name, style in (("dll", "solid"), ("fa", "dashed")):
            for place, curve in enumerate(curves[name].T):
                axes.plot(
                    epochs, curve, linestyle=style, color=f"C{place}", label=f"{name}, layer {place + 2}"
                )
        axes.set(xlabel="epoch", ylabel="cos(W, Θ)")
        axes.legend()

    def draw_accuracies(figure: Any) -> None:
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        names = sorted(accuracies, key=lambda name: accuracies[name])
        axes.barh(names, [1 - accuracies[name] for name in names])
        axes.set(xlabel="test error")

    return Demo(
        headline=(
            f"Without a backward pass, DLL reads {accuracies['dll']:.1%} of the test digits; backpropagation "
            f"{accuracies['bp']:.1%}, DLL with feedback weights that never learn "
            f"{accuracies['fa']:.1%}."
        ),
        data="scikit-learn's digits: 1257 images to learn from, 540 to test on",
        rows=rows,
        figures=(
            DemoFigure(
                "Forward weights turn towards feedback weights",
                "Cosine between the weights that carry the signal up and those that carry the error down. "
                "Forward weights follow even feedback that never learns (fa); learned feedback adds little.",
                draw_alignment,
            ),
            DemoFigure(
                "One network, seven ways to learn",
                "Share of the test digits read wrongly, one run each. Differences below half a percentage "
                "point change sign with the seed.",
                draw_accuracies,
            ),
        ),
    )


def _split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Stratified 70/30 split, standardised by all training pixels together."""
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        x.astype(np.float32) / 16, y, test_size=0.3, stratify=y, random_state=0
    )
    mean, scale = x_train.mean(), x_train.std()
    parts = ((x_train - mean) / scale, y_train, (x_test - mean) / scale, y_test)
    return tuple(torch.as_tensor(part) for part in parts)  # type: ignore[return-value]


def _train(data: tuple[Tensor, Tensor, Tensor, Tensor], **settings: Any) -> tuple[float, np.ndarray]:
    """Accuracy on the test rows, and the alignment of each layer after each epoch."""
    x, y, x_test, y_test = data
    rule = settings.pop("learning_rule")
    layers = feedforward_layers(hidden_layer_sizes=(128, 64), layers=None, input_shape=(64,), num_outputs=10)
    network = build_network(rule, NetworkConfig(layers, (64,), random_state=0, **settings))
    optimizer = build_optimizer(network, lr=RATE)
    rates = [group["lr"] for group in optimizer.param_groups]
    target = class_targets(y, 10, smoothing=0.1)
    rng = torch.Generator().manual_seed(0)
    curve = []
    for epoch in range(EPOCHS):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule_factor("linear", EPOCHS, epoch)
        for rows in torch.randperm(len(x), generator=rng).split(BATCH):  # type: ignore[no-untyped-call]
            network.learn(x[rows], target[rows])
            optimizer.step()
        curve.append([float(cosine) for cosine in network.alignments().values()])
    network.eval()
    accuracy = float((network(x_test).argmax(1) == y_test).float().mean())
    return accuracy, np.array(curve)
