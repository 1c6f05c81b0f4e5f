"""Digits trained from step sizes five decades apart, with and without MetaOptimize."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from seedbed.demos import Demo, DemoFigure, Report
from seedbed.optimizers.metaoptimize.wrapper import MetaOptimize

STEPS = 2500
BATCH = 64
STARTS = (1e-6, 1e-4, 1e-2)
EVERY = 10


@dataclass
class _Curve:
    """One training run: step sizes and losses along the way, and how it ended."""

    name: str
    start: float
    steps: list[int] = field(default_factory=list)
    alpha: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    final_loss: float = float("nan")
    accuracy: float = float("nan")

    @property
    def label(self) -> str:
        return f"{self.name} from {self.start:g}"


def run(report: Report) -> Demo:
    """Train a small network with AdamW and with MetaOptimize around it, from three initial step sizes.

    Parameters
    ----------
    report : callable
        Called with the share done and what is being done.

    Returns
    -------
    Demo
        Test accuracies, and the paths of step size and loss.
    """
    data = _split()
    learned: dict[float, _Curve] = {}
    fixed: dict[float, _Curve] = {}
    for turn, start in enumerate(STARTS):
        report(turn / len(STARTS), f"digits, initial step size {start:g}")
        fixed[start] = _train(_Curve("AdamW", start), data, _adamw(start))
        learned[start] = _train(_Curve("MetaOptimize", start), data, _wrapped(start))
    report(1.0, "digits")
    curves = [*learned.values(), *fixed.values()]
    worst, best = min(c.accuracy for c in learned.values()), max(c.accuracy for c in fixed.values())
    rows: list[dict[str, str | float | int]] = [
        {
            "optimizer": curve.name,
            "initial step size": f"{curve.start:g}",
            "last step size": f"{curve.alpha[-1]:.2g}",
            "training loss": round(curve.final_loss, 4),
            "test accuracy": round(curve.accuracy, 3),
        }
        for curve in curves
    ]
    lowest = min(c.accuracy for c in fixed.values())
    return Demo(
        headline=f"From any initial step size MetaOptimize reaches at least {worst:.1%} on unseen digits; "
        f"AdamW alone reaches {lowest:.1%} to {best:.1%}.",
        data=f"scikit-learn's digits: 1,257 images for training, 540 for the test; {STEPS} steps of {BATCH}",
        rows=rows,
        figures=(
            DemoFigure(
                "The step size finds its own place",
                "Step size of MetaOptimize(AdamW) during training, from three starts. A sign rule moves it "
                "by one percent per step, so a decade takes 230 steps.",
                lambda figure: _draw(figure, learned.values(), "alpha", "step size"),
            ),
            DemoFigure(
                "A bad start costs some steps, not the run",
                "Training loss (running mean over 50 steps). Dashed: AdamW kept at the initial step size.",
                lambda figure: _draw(figure, curves, "losses", "training loss"),
            ),
        ),
    )


def _split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    parts = train_test_split((x / 16.0).astype("float32"), y, test_size=0.3, stratify=y, random_state=0)
    train_x, test_x, train_y, test_y = map(torch.as_tensor, parts)
    return train_x, train_y, test_x, test_y


def _adamw(lr: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.AdamW]:
    return lambda params: torch.optim.AdamW(params, lr=lr, weight_decay=0.1)


def _wrapped(lr: float) -> Callable[[Iterable[nn.Parameter]], MetaOptimize]:
    return lambda params: MetaOptimize(_adamw(lr)(params), meta_lr=1e-2, gamma=0.9999)


def _network() -> nn.Sequential:
    """A network of 64-64-64-10 units; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _batches(n_rows: int) -> Iterator[Tensor]:
    rng = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(n_rows, generator=rng)
        yield from order[: n_rows // BATCH * BATCH].view(-1, BATCH)


def _train(
    curve: _Curve,
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> _Curve:
    train_x, train_y, test_x, test_y = data
    model = _network()
    optimizer = make(model.parameters())
    mean = float("nan")
    for step, rows in zip(range(STEPS), _batches(len(train_x)), strict=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
        torch.autograd.backward(loss)
        optimizer.step()
        mean = loss.item() if step == 0 else mean + (loss.item() - mean) / min(step + 1, 50)
        if step % EVERY == 0 or step == STEPS - 1:
            group = optimizer.param_groups[0]
            curve.steps.append(step)
            curve.alpha.append(float(group.get("meta_alpha", group["lr"])))
            curve.losses.append(mean)
    with torch.no_grad():
        curve.final_loss = nn.functional.cross_entropy(model(train_x), train_y).item()
        curve.accuracy = (model(test_x).argmax(dim=1) == test_y).float().mean().item()
    return curve


def _draw(figure: Any, curves: Iterable[_Curve], quantity: str, title: str) -> None:
    axes = figure.subplots()
    colours = {start: f"C{index}" for index, start in enumerate(STARTS)}
    for curve in curves:
        axes.plot(
            curve.steps,
            getattr(curve, quantity),
            color=colours[curve.start],
            linestyle="-" if curve.name == "MetaOptimize" else "--",
            label=curve.label,
        )
    axes.set(yscale="log", xlabel="step", ylabel=title)
    axes.legend(fontsize="small", loc="upper right" if quantity == "losses" else "best")
