"""What the loss's second derivatives do to the traces: Hessian-vector products and diagonals."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from seedbed.optimizers.metaoptimize.arguments import Options
from seedbed.optimizers.metaoptimize.lists import each
from seedbed.optimizers.metaoptimize.products import BlockSum, dots
from seedbed.optimizers.metaoptimize.spread import aligned, local
from seedbed.optimizers.metaoptimize.work import Work

Lists = list[list[Tensor]]
_TINY = 1e-30


def measure(options: Options, works: Sequence[Work], step: int) -> Lists:
    """Measure curvature through the graph of the gradients.

    Parameters
    ----------
    options : Options
        ``hessian`` is "hvp" or "diag".
    works : sequence of Work
        Tensors of this step.
    step : int
        Number of the step: with the seed it fixes the probes.

    Returns
    -------
    list of list of Tensor
        By work and tensor: Hessian times gamma h ("hvp") or the Hessian's diagonal ("diag").

    Raises
    ------
    RuntimeError
        If the gradients carry no graph, or the parameters are sharded.
    """
    parameters = [p for work in works for p in work.parameters]
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not any(gradient.requires_grad for gradient in gradients):
        raise RuntimeError(
            f"hessian={options.hessian!r} differentiates the gradients: call loss.backward(create_graph=True)"
        )
    if any(local(p) is not p for p in parameters):
        raise RuntimeError(
            f"hessian={options.hessian!r} needs whole parameters; use hessian='finite_difference'"
        )
    if options.hessian == "hvp":
        vectors = [trace * options.gamma for work in works for trace in work.traces]
        flat = _product(gradients, parameters, vectors)
    elif options.probes == "exact":
        flat = _exact_diagonal(gradients, parameters)
    else:
        flat = _probed_diagonal(gradients, parameters, int(options.probes), options.seed + step)
    rest = iter(flat)
    return [[next(rest).to(trace.dtype) for trace in work.traces] for work in works]


def turns(options: Options, measured: Lists, works: Sequence[Work]) -> Lists:
    """Return Hessian times gamma h of every tensor.

    Parameters
    ----------
    options : Options
        ``hessian``, ``clip_decay``, ``gamma``.
    measured : list of list of Tensor
        From :func:`measure`.
    works : sequence of Work
        With their step sizes set.

    Returns
    -------
    list of list of Tensor
        By work and tensor.
    """
    if options.hessian != "diag":
        return measured
    products = []
    for work, diagonal in zip(works, measured):
        kept: Any = diagonal
        if options.clip_decay:
            # alpha * diagonal at most 1 - kappa alpha: then the trace keeps its sign
            highest = each(work.alpha, lambda alpha, decay=work.decay: (1 - decay * alpha) / (alpha + _TINY))
            kept = _at_most(diagonal, highest)
        turned = torch._foreach_mul(kept, work.traces)
        torch._foreach_mul_(turned, options.gamma)
        products.append(list(turned))
    return products


def _at_most(tensors: list[Tensor], highest: Any) -> Any:
    if isinstance(highest, list) and isinstance(highest[0], Tensor):
        return torch._foreach_minimum(
            tensors, [torch.as_tensor(h).expand_as(t) for h, t in zip(highest, tensors)]
        )
    return torch._foreach_clamp_max(tensors, highest)


def _product(
    gradients: list[Tensor], parameters: list[Tensor], vectors: list[Tensor], *, keep: bool = False
) -> Any:
    pairs = [(g, v.to(g.dtype)) for g, v in zip(gradients, vectors) if g.requires_grad]
    return torch.autograd.grad(
        [g for g, _ in pairs],
        parameters,
        grad_outputs=[v for _, v in pairs],
        retain_graph=keep,
        allow_unused=True,
        materialize_grads=True,
    )


def _probed_diagonal(
    gradients: list[Tensor], parameters: list[Tensor], probes: int, seed: int
) -> list[Tensor]:
    """Hutchinson's estimate: the mean of v * (Hessian v) over random signs v."""
    generators: dict[torch.device, torch.Generator] = {}
    total = [torch.zeros_like(p) for p in parameters]
    for number in range(probes):
        signs = []
        for p in parameters:
            if p.device not in generators:
                generators[p.device] = torch.Generator(p.device).manual_seed(seed)
            bits = torch.randint(0, 2, p.shape, generator=generators[p.device], device=p.device)
            signs.append(bits.to(p.dtype).mul_(2).sub_(1))
        product = _product(gradients, parameters, signs, keep=number + 1 < probes)
        torch._foreach_addcmul_(total, product, signs, value=1 / probes)
    return total


def _exact_diagonal(gradients: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """One product per weight, in one batch per tensor: for small models."""
    diagonals = []
    for gradient, p in zip(gradients, parameters):
        if not gradient.requires_grad:
            diagonals.append(torch.zeros_like(p))
            continue
        basis = torch.eye(p.numel(), dtype=p.dtype, device=p.device).view(p.numel(), *p.shape)
        (rows,) = torch.autograd.grad(
            [gradient],
            [p],
            [basis],
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        diagonals.append(rows.reshape(p.numel(), p.numel()).diagonal().reshape(p.shape))
    return diagonals


def by_difference(
    options: Options, works: Sequence[Work], closure: Callable[[], Any], total: BlockSum
) -> Lists:
    """Measure Hessian times gamma h by a second gradient, a short way along h.

    Weights, gradients and the random state are afterwards as they were.

    Parameters
    ----------
    options : Options
        Gives gamma.
    works : sequence of Work
        Tensors of this step.
    closure : callable
        Evaluates loss and gradients, with the random state that the first evaluation had.
    total : BlockSum
        Sums over processes.

    Returns
    -------
    list of list of Tensor
        By work and tensor.

    Raises
    ------
    ValueError
        If the closure returns None.
    """
    length, size = (_norm(works, name, total) for name in ("traces", "params"))
    if length == 0:
        return [[torch.zeros_like(trace) for trace in work.traces] for work in works]
    precision = max(torch.finfo(param.dtype).eps for work in works for param in work.params)
    reach = math.sqrt(precision) * (1 + size)
    kept = [[param.clone() for param in work.params] for work in works]
    gradients = [[p.grad for p in work.parameters] for work in works]
    first = [[grad.clone() for grad in work.grads] for work in works]
    for work in works:
        torch._foreach_add_(work.params, work.traces, alpha=reach / length)
        for p in work.parameters:
            p.grad = None
    try:
        with torch.enable_grad():
            if closure() is None:
                raise ValueError(
                    "closure must return the loss with hessian='finite_difference', it returned None"
                )
        second = [
            [
                torch.zeros_like(q) if p.grad is None else aligned(p.grad, p)
                for p, q in zip(work.parameters, old)
            ]
            for work, old in zip(works, kept)
        ]
    finally:
        for work, weights, saved, values in zip(works, kept, gradients, first):
            torch._foreach_copy_(work.params, weights)
            for p, gradient in zip(work.parameters, saved):
                p.grad = gradient
            torch._foreach_copy_(work.grads, values)
    products = []
    for work, old, new in zip(works, first, second):
        change = torch._foreach_sub([grad.to(trace.dtype) for grad, trace in zip(new, work.traces)], old)
        torch._foreach_mul_(change, options.gamma * length / reach)
        products.append(list(change))
    return products


def _norm(works: Sequence[Work], name: str, total: BlockSum) -> float:
    entries: list[tuple[Tensor, Tensor, int]] = []
    for work in works:
        tensors = getattr(work, name)
        entries.extend((square, p, 0) for square, p in zip(dots(tensors, tensors), work.parameters))
    like = torch.zeros((), dtype=torch.float32, device=entries[0][0].device)
    return math.sqrt(float(total(entries, 1, like)))


class RandomState:
    """The state of torch's generators, to run a closure twice with the same draws.

    Parameters
    ----------
    devices : iterable of torch.device
        Where the parameters are.
    """

    def __init__(self, devices: set[torch.device]) -> None:
        self._modules = {d: torch.get_device_module(d) for d in devices if d.type not in ("cpu", "meta")}
        self._cpu = torch.get_rng_state()
        self._others = {d: module.get_rng_state(d) for d, module in self._modules.items()}

    @contextmanager
    def again(self) -> Iterator[None]:
        """Go back to this state, and afterwards to where the generators were."""
        now = RandomState(set(self._modules))
        self._set()
        try:
            yield
        finally:
            now._set()

    def _set(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, state in self._others.items():
            self._modules[device].set_rng_state(state, device)
