"""MetaOptimize: step sizes found blind, beside tuned ones and beside other self-tuning optimizers.

``python -m benchmarks metaoptimize [--size full]`` runs the claims on digits and on a drifting regression,
and the cost of a step. ``python -m benchmarks.metaoptimize --task cifar10 ...`` trains a larger network on
a GPU; see ``--help``.
"""

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from dadaptation import DAdaptAdam
from dog import DoG, LDoG
from mechanic_pytorch import mechanize
from prodigyopt import Prodigy
from schedulefree import AdamWScheduleFree
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from benchmarks import _digits
from benchmarks._digits import Outcome, repeat
from benchmarks.harness import Row, speed_row, time_pair
from seedbed.datasets import make_drifting_regression, make_task_sequence
from seedbed.optimizers import MetaOptimize

PACKAGES = (
    "dadaptation",
    "dog-optimizer",
    "lion-pytorch",
    "mechanic-pytorch",
    "prodigyopt",
    "schedulefree",
)

ALPHAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
CONSTANTS = (1e-3, 3e-3, 1e-2, 3e-2)
KAPPA = 0.1
ERROR = 0.006
"""Standard error of an accuracy of .98 on the 540 test digits: what a peer tuned on them is granted."""

adamw = partial(torch.optim.AdamW, weight_decay=KAPPA)
sgdm = partial(torch.optim.SGD, momentum=0.9)


def meta(base: Callable[..., Any], alpha: float, **options: Any) -> _digits.Make:
    """MetaOptimize around ``base``, starting at ``alpha``."""
    return lambda params: MetaOptimize(base(params, lr=alpha), **options)


def cosine(optimizer: Any) -> SequentialLR:
    """Linear warm-up over 100 steps, then cosine to zero."""
    warm = LinearLR(optimizer, 0.01, 1.0, 100)
    return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, _digits.STEPS - 100)], [100])


def run(size: str) -> list[Row]:
    """All rows; ``full`` has 5 seeds (small: 3 for the main claim, 1 elsewhere) and finer grids."""
    full = size == "full"
    seeds, few = range(5 if full else 3), range(3 if full else 1)
    digits = digits_rows(seeds, few, full=full)
    return [*digits, *tracking_rows(few), *continual_rows(few), *cost_rows()]


# --- digits


def digits_rows(seeds: Sequence[int], few: Sequence[int], *, full: bool) -> Iterator[Row]:
    """Blind training from five initial step sizes beside tuned and self-tuning peers."""
    lion = {"meta": "lion", "meta_lr": 1e-2, "gamma": 0.9999}
    adam = {"meta": "adam_corrected", "meta_lr": 1e-2, "gamma": 0.9999}
    constants = {lr: repeat(partial(adamw, lr=lr), few) for lr in CONSTANTS}
    best = max(constants, key=lambda lr: constants[lr].accuracy)
    constant = repeat(partial(adamw, lr=best), seeds)
    ours = {alpha: repeat(meta(adamw, alpha, **lion), seeds) for alpha in ALPHAS}
    for alpha, outcome in ours.items():
        yield claim(f"digits, alpha0={alpha:g}: training loss", outcome.loss, outcome, target=0.01)
        yield claim(
            f"digits, alpha0={alpha:g}: test accuracy",
            outcome.accuracy,
            outcome,
            better="higher",
            target=max(0.97, constant.accuracy - 0.015),
            peer=f"AdamW, best of {len(CONSTANTS)} rates ({best:g})",
            peer_value=constant.accuracy,
            note=f"worst seed {outcome.worst:.3f}, alpha ends at {outcome.alpha:.2g}",
        )

    blind = Outcome(
        max(o.loss for o in ours.values()),
        min(o.accuracy for o in ours.values()),
        min(o.worst for o in ours.values()),
        float("nan"),
        len(seeds),
    )
    typical = statistics.median(o.accuracy for o in ours.values())
    schedules = {lr: repeat(partial(adamw, lr=lr), few, schedule=cosine) for lr in (1e-3, 3e-3, 1e-2)}
    free = {lr: repeat(_schedule_free(lr), few) for lr in (1e-6, 1e-3, 1e-2)}
    mechanic = {
        lr: repeat(lambda p, lr=lr: mechanize(torch.optim.AdamW)(p, lr=lr, weight_decay=KAPPA), few)
        for lr in (1e-6, 1e-3, 1e-2)
    }
    tuned = {
        "AdamW, cosine and warm-up": schedules,
        "Schedule-Free AdamW": free,
        "Mechanic (AdamW)": mechanic,
    }
    for name, outcomes in tuned.items():
        rate = max(outcomes, key=lambda lr: outcomes[lr].accuracy)
        yield claim(
            f"digits: test accuracy, median of five alpha0, beside the best rate of {name}",
            typical,
            blind,
            better="higher",
            target=outcomes[rate].accuracy - ERROR,
            peer=f"{name}, lr={rate:g}",
            peer_value=outcomes[rate].accuracy,
            note=f"peer: best of {len(outcomes)} rates by test accuracy, {len(few)} seed(s)",
        )
        if name.startswith("AdamW"):
            continue
        rate = min(outcomes, key=lambda lr: outcomes[lr].accuracy)
        yield claim(
            f"digits: test accuracy, worst of five alpha0, beside the worst rate of {name}",
            blind.accuracy,
            blind,
            better="higher",
            target=outcomes[rate].accuracy,
            peer=f"{name}, lr={rate:g}",
            peer_value=outcomes[rate].accuracy,
            note=f"peer: worst of {len(outcomes)} rates, {len(few)} seed(s)",
        )
    untuned: dict[str, _digits.Make] = {
        "Prodigy, lr=1": lambda p: Prodigy(p, lr=1.0, weight_decay=KAPPA),
        "D-Adaptation (Adam), lr=1": lambda p: DAdaptAdam(p, lr=1.0, decouple=True, weight_decay=KAPPA),
        "DoG": DoG,
        "LDoG": LDoG,
    }
    for name, make in untuned.items():
        outcome = repeat(make, few)
        yield claim(
            f"digits: test accuracy, worst of five alpha0, beside {name}",
            blind.accuracy,
            blind,
            better="higher",
            target=outcome.accuracy,
            peer=name,
            peer_value=outcome.accuracy,
            note=f"peer has training loss {outcome.loss:.2g}, {len(few)} seed(s)",
        )

    for alpha in ALPHAS if full else (1e-6, 1e-2):
        outcome = repeat(meta(adamw, alpha, **adam), few)
        yield claim(
            f"digits, Adam meta rule, alpha0={alpha:g}: test accuracy",
            outcome.accuracy,
            outcome,
            better="higher",
            target=0.97,
            note=f"training loss {outcome.loss:.2g}",
        )
    layers = repeat(meta(adamw, 1e-6, blocks="layerwise", **lion), few)
    yield claim(
        "digits, one step size per tensor, alpha0=1e-6: test accuracy",
        layers.accuracy,
        layers,
        better="higher",
        target=0.97,
        note=f"training loss {layers.loss:.2g}",
    )
    yield from _horizon_rows(ours[1e-6], few, (0.0, 0.9, 0.99, 1.0) if full else (0.0, 1.0))
    yield from _momentum_rows(few, (1e-6, 1e-4, 1e-2, 0.1) if full else (1e-6, 0.1))


def _horizon_rows(long: Outcome, few: Sequence[int], gammas: Sequence[float]) -> Iterator[Row]:
    """A short horizon keeps alpha small: it counts the next losses alone."""
    for gamma in gammas:
        outcome = repeat(meta(adamw, 1e-6, meta="lion", meta_lr=1e-2, gamma=gamma), few)
        yield claim(
            f"digits, alpha0=1e-6: training loss at gamma={gamma:g} over that at gamma=0.9999",
            outcome.loss / long.loss,
            outcome,
            better="higher" if gamma < 0.99 else "lower",
            unit="x",
            target=5.0 if gamma == 0 else None,
            note=f"loss {outcome.loss:.2g}, accuracy {outcome.accuracy:.3f}, last alpha {outcome.alpha:.2g}",
        )
    slow = repeat(meta(adamw, 1e-6, meta="lion", meta_lr=1e-3, gamma=0.9999), few)
    reach = 1e-6 * math.exp(1e-3 * _digits.STEPS)
    yield claim(
        "digits, alpha0=1e-6, meta_lr=1e-3: last step size, at most alpha0 e^(meta_lr steps)",
        slow.alpha,
        slow,
        unit="alpha",
        target=reach * (1 + 1e-6),
        note=f"too slow for {_digits.STEPS} steps: loss {slow.loss:.2g}, accuracy {slow.accuracy:.3f}",
    )


def _momentum_rows(few: Sequence[int], starts: Sequence[float]) -> Iterator[Row]:
    """SGD with momentum: an Adam meta rule holds it at the edge of stability, a sign rule walks over it."""
    constants = {lr: repeat(partial(sgdm, lr=lr), few) for lr in (0.03, 0.1, 0.3)}
    best = max(constants, key=lambda lr: constants[lr].accuracy)
    rules: dict[str, tuple[dict[str, Any], float | None]] = {
        "Adam meta rule": ({"meta": "adam_corrected"}, 0.97),
        "Lion meta rule": ({"meta": "lion"}, None),
        "Lion meta rule, alpha at most 0.3": ({"meta": "lion", "alpha_bounds": (1e-8, 0.3)}, 0.97),
    }
    if len(starts) > 2:
        rules["Adam meta rule in the authors' form, ten times as fast"] = ({"meta": "adam"}, None)
    for name, (options, target) in rules.items():
        runs = [repeat(meta(sgdm, a, meta_lr=1e-2, gamma=0.9999, **options), few) for a in starts]
        outcome = min(runs, key=lambda run: run.worst)
        yield claim(
            f"digits, SGD with momentum, {name}: worst test accuracy of {len(starts)} alpha0",
            outcome.worst,
            outcome,
            better="higher",
            target=target,
            peer=f"SGD with momentum, best of {len(constants)} rates ({best:g})",
            peer_value=constants[best].accuracy,
            note="accuracies "
            + " ".join(f"{run.worst:.3f}" for run in runs)
            + "; last alphas "
            + " ".join(f"{run.alpha:.2g}" for run in runs),
        )


def _schedule_free(lr: float) -> _digits.Make:
    return lambda p: AdamWScheduleFree(p, lr=lr, weight_decay=KAPPA, warmup_steps=100)


def claim(
    name: str, value: float, outcome: Outcome, *, better: Any = "lower", unit: str | None = None, **rest: Any
) -> Row:
    """A claim row; the unit is that of the quantity named."""
    unit = unit or ("nats" if better == "lower" else "share right")
    return Row(name=name, kind="claim", value=value, unit=unit, better=better, repeats=outcome.seeds, **rest)


# --- a regression whose weights flip sign: a step size per input pays


def lms(X: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """Squared errors of least mean squares with a constant step size."""
    w, errors = np.zeros(X.shape[1]), np.empty(len(X))
    for t, (x, target) in enumerate(zip(X, y, strict=True)):
        error = target - w @ x
        w += alpha * error * x
        errors[t] = error * error
    return errors


def track(stream: Any, make: Callable[[Any], Any], *, graph: bool = False) -> tuple[float, np.ndarray, Any]:
    """Mean squared error over the last third, the last step size of every input, and the optimizer.

    ``graph``: whether the optimizer differentiates the gradient.
    """
    w = nn.Parameter(torch.zeros(stream.X.shape[1], dtype=torch.float64))
    optimizer = make([w])
    X, y = torch.as_tensor(stream.X), torch.as_tensor(stream.y)
    errors = np.empty(len(X))
    for t, (x, target) in enumerate(zip(X, y, strict=True)):
        optimizer.zero_grad()
        error = target - w @ x
        (0.5 * error**2).backward(create_graph=graph)
        optimizer.step()
        errors[t] = error.item() ** 2
    if "meta_beta" in optimizer.state[w]:
        rates = optimizer.param_groups[0]["lr"] * optimizer.state[w]["meta_beta"].exp().numpy()
    else:
        rates = np.full(len(w), float(optimizer.step_sizes()["all"]))
    return float(errors[-len(X) // 3 :].mean()), rates, optimizer


def tracking_rows(seeds: Sequence[int]) -> Iterator[Row]:
    """Mean squared error of trackers; what counts is following the flips."""
    streams = [make_drifting_regression(random_state=seed) for seed in seeds]
    third = len(streams[0].X) // 3
    constants = {
        alpha: statistics.mean(float(lms(s.X, s.y, alpha)[-third:].mean()) for s in streams)
        for alpha in (0.02, 0.03, 0.04, 0.05, 0.06)
    }
    best = min(constants, key=lambda alpha: constants[alpha])
    base = partial(torch.optim.SGD, lr=0.05)
    common: dict[str, Any] = {"state_dtype": torch.float64, "order": "meta_first"}
    trackers: dict[str, tuple[dict[str, Any], float]] = {
        "one step size, exact curvature": (
            {"meta": "sgd", "meta_lr": 1e-4, "gamma": 1.0, "hessian": "hvp", **common},
            constants[best] + 0.1,
        ),
        "IDBD (a rate per input, diagonal curvature)": (
            {
                "meta": "sgd",
                "meta_lr": 1e-3,
                "gamma": 1.0,
                "hessian": "diag",
                "probes": "exact",
                "blocks": "weightwise",
                "clip_decay": True,
                **common,
            },
            2.2,
        ),
        "a rate per input, no curvature, Lion": (
            {
                "meta": "lion",
                "meta_lr": 1e-3,
                "gamma": 0.9,
                "blocks": "weightwise",
                "state_dtype": torch.float64,
            },
            2.2,
        ),
    }
    for name, (options, target) in trackers.items():
        graph = "hessian" in options
        runs = [
            track(s, lambda p, options=options: MetaOptimize(base(p), **options), graph=graph)
            for s in streams
        ]
        mse = [run[0] for run in runs]
        relevant = [float(run[1][s.relevant].mean()) for run, s in zip(runs, streams, strict=True)]
        others = [float(run[1][~s.relevant].mean()) for run, s in zip(runs, streams, strict=True)]
        yield Row(
            name=f"drifting regression, {name}: squared error",
            kind="claim",
            value=statistics.mean(mse),
            unit="mse",
            better="lower",
            peer=f"LMS, best of {len(constants)} rates ({best:g})",
            peer_value=constants[best],
            target=target,
            repeats=len(streams),
            spread=max(mse) - min(mse) if len(mse) > 1 else None,
            note=f"rates: relevant {statistics.mean(relevant):.3g}, others {statistics.mean(others):.3g}",
        )
        if options.get("hessian") == "diag":
            yield Row(
                name=f"drifting regression, {name}: rate of relevant over other inputs",
                kind="claim",
                value=statistics.mean(relevant) / statistics.mean(others),
                unit="x",
                better="higher",
                target=3.0,
                repeats=len(streams),
            )


# --- a sequence of tasks


def continual_rows(seeds: Sequence[int]) -> Iterator[Row]:
    """Digits whose labels are permuted every 400 steps: accuracy on each batch before learning from it."""
    streams = [make_task_sequence(5, 400, random_state=seed) for seed in seeds]

    def online(make: _digits.Make) -> float:
        return statistics.mean(
            _online(stream, make, seed) for stream, seed in zip(streams, seeds, strict=True)
        )

    constants = {lr: online(partial(adamw, lr=lr)) for lr in (1e-4, 1e-3, 3e-3, 1e-2)}
    best = max(constants, key=lambda lr: constants[lr])
    for alpha in (1e-4, 1e-3):
        value = online(meta(adamw, alpha, meta="lion", meta_lr=1e-2, gamma=0.999))
        for which, peer, lr in (
            ("AdamW at that rate", f"AdamW at {alpha:g}", alpha),
            ("AdamW at its best rate", f"AdamW, best of {len(constants)} rates ({best:g})", best),
        ):
            yield Row(
                name=f"permuted digits, alpha0={alpha:g}: accuracy on the next batch, beside {which}",
                kind="claim",
                value=value,
                unit="share right",
                better="higher",
                peer=peer,
                peer_value=constants[lr],
                target=constants[lr],
                repeats=len(streams),
            )


def _online(stream: Any, make: _digits.Make, seed: int) -> float:
    model = _digits.network(seed)
    optimizer = make(model.parameters())
    data, right = torch.as_tensor(stream.data), 0
    for rows, labels in zip(torch.as_tensor(stream.rows), torch.as_tensor(stream.labels), strict=True):
        optimizer.zero_grad()
        logits = model(data[rows])
        right += int((logits.argmax(dim=1) == labels).sum())
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    return right / stream.rows.size


# --- what a step costs

SIZES = (1024, 1024, 1024, 1024)  # three layers and as many biases ... 4.2 million parameters


def cost_rows() -> Iterator[Row]:
    """Seconds per step beside the bare optimizer and other wrappers; bytes of state per parameter."""
    lr = 1e-3
    foreach = partial(adamw, foreach=True)
    plain = _stepper(lambda p: foreach(p, lr=lr))
    ours = _stepper(meta(foreach, lr, delta="difference"))
    yield speed_row(
        "one step, 4.2 M parameters, 1 thread: MetaOptimize (difference)",
        time_pair(ours, plain, repeats=15, warmup=3),
        peer="torch AdamW, foreach",
        target=1 / 1.35,
        note="target: at most 1.35 times as long",
    )
    fused = _stepper(lambda p: torch.optim.AdamW(p, lr=lr, weight_decay=KAPPA, fused=True))
    ours_fused = _stepper(
        lambda p: MetaOptimize(
            torch.optim.AdamW(p, lr=lr, weight_decay=KAPPA, fused=True), delta="difference"
        )
    )
    yield speed_row(
        "one step, 4.2 M parameters, 1 thread: MetaOptimize on a fused base",
        time_pair(ours_fused, fused, repeats=15, warmup=3),
        peer="torch AdamW, fused",
    )
    analytic = _stepper(meta(foreach, lr, delta="analytic"))
    yield speed_row(
        "one step, 4.2 M parameters, 1 thread: MetaOptimize (analytic)",
        time_pair(analytic, plain, repeats=15, warmup=3),
        peer="torch AdamW, foreach",
    )
    compiled = _compiled(lr)
    if compiled is not None:
        yield speed_row(
            "one step, 4.2 M parameters, 1 thread: MetaOptimize (compiled)",
            time_pair(compiled, fused, repeats=15, warmup=3),
            peer="torch AdamW, fused",
            target=1 / 2.2,
            note="target: at most 2.2 times as long",
        )
        yield speed_row(
            "one step, 4.2 M parameters, 1 thread: MetaOptimize (compiled) beside AdamW as torch runs it",
            time_pair(compiled, plain, repeats=15, warmup=3),
            peer="torch AdamW, foreach",
            target=1.0,
        )
    peers: dict[str, _digits.Make] = {
        "Mechanic (AdamW)": lambda p: mechanize(torch.optim.AdamW)(p, lr=lr, weight_decay=KAPPA),
        "Prodigy": lambda p: Prodigy(p, weight_decay=KAPPA),
        "Schedule-Free AdamW": _schedule_free(lr),
    }
    for name, make in peers.items():
        yield speed_row(
            f"one step, 4.2 M parameters, 1 thread: MetaOptimize (difference) beside {name}",
            time_pair(ours, _stepper(make), repeats=9, warmup=2),
            peer=name,
            target=1.0 if name.startswith("Mechanic") else None,
        )
    yield from _memory_rows({"AdamW": lambda p: adamw(p, lr=lr), **peers}, meta(adamw, lr))
    yield speed_row(
        "digits, 200 whole training steps",
        time_pair(
            lambda: _digits.train(meta(adamw, lr), 0, 200),
            lambda: _digits.train(partial(adamw, lr=lr), 0, 200),
            repeats=5,
        ),
        peer="torch AdamW, foreach",
        note="forward, backward and step of a small network: Python's share is large",
    )


def _parameters() -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(0)
    params = []
    for size in SIZES:
        for shape in ((size, 1024), (size,)):
            p = nn.Parameter(0.02 * torch.randn(shape, generator=rng))
            p.grad = 1e-3 * torch.randn(shape, generator=rng)
            params.append(p)
    return params


def _stepper(make: _digits.Make) -> Callable[[], object]:
    optimizer = make(_parameters())
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer.step


def _compiled(lr: float) -> Callable[[], object] | None:
    """The compiled step, or None where no compiler is installed."""
    step = _stepper(meta(adamw, lr, compile=True))
    try:
        step()
    except torch._dynamo.exc.BackendCompilerFailed:
        return None
    return step


def _memory_rows(peers: dict[str, _digits.Make], ours: _digits.Make) -> Iterator[Row]:
    mine = _state_bytes(ours)
    for name, make in peers.items():
        theirs = _state_bytes(make)
        yield Row(
            name=f"optimizer state per parameter beside {name}",
            kind="memory",
            value=mine,
            unit="bytes",
            better="lower",
            peer=name,
            peer_value=theirs,
            target=0.66 if name == "AdamW" else None,
            note="one float32 vector more than the wrapped optimizer" if name == "AdamW" else "",
        )


def _state_bytes(make: _digits.Make) -> float:
    params = _parameters()
    optimizer = make(params)
    if hasattr(optimizer, "train"):
        optimizer.train()
    optimizer.step()
    seen: dict[int, int] = {}

    def collect(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            seen[value.data_ptr()] = value.numel() * value.element_size()
        elif isinstance(value, dict):
            for inner in value.values():
                collect(inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                collect(inner)

    collect(dict(optimizer.state))
    held = sum(size for pointer, size in seen.items() if pointer not in {p.data_ptr() for p in params})
    return held / sum(p.numel() for p in params)


if __name__ == "__main__":
    from benchmarks._training import main

    sys.exit(main())
