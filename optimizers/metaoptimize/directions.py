"""Three ways to take the wrapped optimizer's step and learn the direction it went.

With steps w <- w - alpha (u + kappa w), a trace moves as h <- gamma (1 - kappa alpha) h - sigma'(beta) Y (u +
kappa w).

=============  ==========================================  ================================================
provider       how u is found                              when
=============  ==========================================  ================================================
difference     from the change of the weights              any optimizer; loses digits where steps are tiny
analytic       from the optimizer's state, by its formula  known optimizers, any step size and precision
scratch        by a step of size 1 from the origin         step sizes that differ within a tensor
=============  ==========================================  ================================================
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from seedbed.optimizers.metaoptimize.lists import Tensors, add_scaled_, as_dtype, each, times
from seedbed.optimizers.metaoptimize.spread import local
from seedbed.optimizers.metaoptimize.updates import Update, update_of
from seedbed.optimizers.metaoptimize.work import Work

MANY_BLOCKS = 16
"""From here on a step over whole groups is quicker than one step per block."""

Turns = Sequence[list[Tensor]] | None


class Direction:
    """Takes a step of the wrapped optimizer and moves the traces.

    Parameters
    ----------
    gamma : float
        Discount.
    """

    name: ClassVar[str]
    whole_groups: ClassVar[bool] = False

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def step(self, base: Optimizer, works: Sequence[Work], turns: Turns) -> None:
        """Step.

        Parameters
        ----------
        base : Optimizer
            The wrapped optimizer; its groups hold the step sizes already.
        works : sequence of Work
            Tensors of this step.
        turns : sequence of list of Tensor or None
            Hessian times gamma h for every tensor, where curvature is kept.
        """
        raise NotImplementedError


class Difference(Direction):
    """h <- keep h - Y w before the step, h <- h + Y w after it: no copy of the weights, no temporary.

    The rounding error is that of a small change of large numbers: the precision times their ratio, w over dw.
    """

    name = "difference"

    def step(self, base: Optimizer, works: Sequence[Work], turns: Turns) -> None:  # noqa: ARG002
        """Step; see :meth:`Direction.step`."""
        begun = [self._begin(work) for work in works]
        base.step()
        for work, turned in zip(works, begun):
            if turned:
                for trace, weights in zip(work.traces, work.params):
                    torch.sub(weights, trace, out=trace)
            else:
                torch._foreach_add_(work.traces, work.params, alpha=work.weight)

    def _begin(self, work: Work) -> bool:
        """Leave keep h - Y w in the traces, or its negative where that is one pass over memory less."""
        keep = work.keep(self.gamma)
        alike = all(w.is_cpu and w.dtype == h.dtype for w, h in zip(work.params, work.traces))
        if isinstance(keep, float) and work.weight == 1.0 and alike:
            for trace, weights in zip(work.traces, work.params):
                torch.sub(weights, trace, alpha=keep, out=trace)
            return True
        if not (isinstance(keep, float) and keep == 1.0):
            torch._foreach_mul_(work.traces, keep)
        torch._foreach_add_(work.traces, work.params, alpha=-work.weight)
        return False


class Formula(Direction):
    """What the two providers share that know u: the traces, with curvature if it is kept.

    Parameters
    ----------
    gamma : float
        Discount.
    update : Update or None
        The optimizer's formula.
    raw : bool
        Whether the direct part uses the gradient in place of the update: ``trace="gradient"``.
    """

    def __init__(self, gamma: float, update: Update | None, *, raw: bool) -> None:
        super().__init__(gamma)
        self.update, self.raw = update, raw

    def starts(self, work: Work) -> list[Tensor]:
        """Return the gradients that the formula starts from: sign turned, coupled decay added."""
        grads = work.grads
        if work.sign < 0:
            grads = list(torch._foreach_neg(grads))
        if work.coupled:
            grads = list(torch._foreach_add(grads, work.params, alpha=work.coupled))
        return as_dtype(grads, work.traces)

    def states(self, work: Work) -> list[dict[str, Any]]:
        """Return the optimizer's states in this process's parts and the traces' precision."""
        return [
            {
                key: as_dtype([local(value)], [trace])[0]
                if isinstance(value, Tensor) and value.ndim
                else value
                for key, value in state.items()
                if not key.startswith("meta_")
            }
            for state, trace in zip(work.states, work.traces)
        ]

    def turned(self, work: Work, turns: Turns, index: int) -> list[Tensor] | None:
        """Return the change of those gradients with gamma h, if curvature is kept."""
        if turns is None:
            return None
        change = list(torch._foreach_mul(turns[index], work.sign))
        if work.coupled:
            torch._foreach_add_(change, work.traces, alpha=work.coupled * self.gamma)
        return change

    def decay_(self, work: Work, weights: Tensors) -> None:
        """Do what happens to a trace whatever u is."""
        keep = work.keep(self.gamma)
        if not (isinstance(keep, float) and keep == 1.0):
            torch._foreach_mul_(work.traces, keep)
        if work.decay and not self.raw:
            factor = times(-work.decay * work.weight, work.slope)
            add_scaled_(work.traces, as_dtype(weights, work.traces), factor)


class Analytic(Formula):
    """Reads u from the optimizer's state after its step."""

    name = "analytic"

    def step(self, base: Optimizer, works: Sequence[Work], turns: Turns) -> None:
        """Step; see :meth:`Direction.step`."""
        assert self.update is not None
        begun = []
        for index, work in enumerate(works):
            starts = self.starts(work)
            saved = self.update.before(starts, self.states(work), work.cell)
            turned = self.turned(work, turns, index)
            self.decay_(work, work.params)
            begun.append((starts, saved, turned))
        base.step()
        for work, (starts, saved, turned) in zip(works, begun):
            states = self.states(work)
            ratio = (
                self.update.gradient(starts, states, work.cell)
                if self.raw
                else self.update.direction(starts, states, work.cell, saved)
            )
            ratio.subtract_(work.traces, times(work.weight, work.slope))
            if turned is not None:
                bend_(self.update, work, starts, turned, states, self.gamma)


class Scratch(Formula):
    """Steps with size 1 from the origin, which leaves -u there; then applies its own step sizes."""

    name = "scratch"
    whole_groups = True

    def step(self, base: Optimizer, works: Sequence[Work], turns: Turns) -> None:
        """Step; see :meth:`Direction.step`."""
        begun = []
        for index, work in enumerate(works):
            starts = self.starts(work)
            turned = self.turned(work, turns, index)
            self.decay_(work, work.params)
            begun.append((starts, turned, torch._foreach_mul(work.params, 1.0)))
        self._step_from_origin(base, works)
        for work, (starts, turned, weights) in zip(works, begun):
            moves = as_dtype(work.params, work.traces)  # -u
            if self.raw:
                assert self.update is not None
                ratio = self.update.gradient(starts, self.states(work), work.cell)
                ratio.subtract_(work.traces, times(work.weight, work.slope))
            else:
                add_scaled_(work.traces, moves, times(work.weight, work.slope))
            if turned is not None:
                bend_(self.update, work, starts, turned, self.states(work), self.gamma)
            if work.decay:
                torch._foreach_mul_(
                    weights, each(work.alpha, lambda alpha, decay=work.decay: 1 - decay * alpha)
                )
            add_scaled_(weights, moves, work.alpha)
            torch._foreach_copy_(work.params, weights)

    def _step_from_origin(self, base: Optimizer, works: Sequence[Work]) -> None:
        before: list[Any] = []
        for work in works:
            before.append([parameter.grad for parameter in work.parameters])
            if work.coupled:
                sign = work.sign * work.coupled
                shifted = torch._foreach_add(before[-1], [p.detach() for p in work.parameters], alpha=sign)
                for parameter, gradient in zip(work.parameters, shifted):
                    parameter.grad = gradient
            torch._foreach_zero_(work.params)
        rates = [(group, group["lr"], group.get("weight_decay")) for group in base.param_groups]
        try:
            for group, _, decay in rates:
                group["lr"] = torch.ones_like(group["lr"]) if isinstance(group["lr"], Tensor) else 1.0
                if decay is not None:
                    group["weight_decay"] = 0.0
            base.step()
        finally:
            for group, rate, decay in rates:
                group["lr"] = rate
                if decay is not None:
                    group["weight_decay"] = decay
            for work, gradients in zip(works, before):
                for parameter, gradient in zip(work.parameters, gradients):
                    parameter.grad = gradient


def bend_(
    update: Update | None,
    work: Work,
    starts: list[Tensor],
    turns: list[Tensor],
    states: list[dict[str, Any]],
    gamma: float,
) -> None:
    """Subtract alpha du from the traces: the part of their change that comes from curvature.

    Parameters
    ----------
    update : Update
        The optimizer's formula.
    work : Work
        Tensors of this step.
    starts, turns : list of Tensor
        Gradients that the formula starts from, and their change with gamma h.
    states : list of dict
        The optimizer's states after the step.
    gamma : float
        Discount.
    """
    assert update is not None
    tangents = []
    for trace, state in zip(work.traces, work.states):
        for slot in update.slots:
            if slot in state and f"meta_tangent_{slot}" not in state:
                state[f"meta_tangent_{slot}"] = torch.zeros_like(trace)
        tangents.append({slot: state[f"meta_tangent_{slot}"] for slot in update.slots if slot in state})
    change = update.tangent(starts, turns, states, tangents, work.cell, gamma)
    if change is not None:
        add_scaled_(work.traces, change, each(work.alpha, lambda alpha: -alpha))


def choose(
    base: Optimizer,
    options: Any,
    *,
    half: bool,
    smallest: float,
    parts: int,
) -> Direction:
    """Return the provider that the options ask for, or the best one if they leave it open.

    Parameters
    ----------
    base : Optimizer
        The wrapped optimizer.
    options : Options
        What was asked for.
    half : bool
        Whether a parameter has less than 32 bits.
    smallest : float
        The smallest lr of all groups at the start.
    parts : int
        Number of parts into which the groups fall if each is to have one step size.

    Returns
    -------
    Direction
        The provider.

    Raises
    ------
    ValueError
        If the optimizer's kind of decay has to be known and is not.
    """
    update = update_of(base)
    raw = options.trace == "gradient"
    name = options.delta
    if name == "auto":
        if options.fine:
            name = "scratch"
        elif raw or options.hessian != "zero":
            name = "analytic"
        elif options.parameterisation == "identity":
            name = "analytic" if update else "scratch"
        elif update and parts >= MANY_BLOCKS and len(options.meta_parameters) == 1:
            name = "scratch"
        elif update and (half or smallest <= 1e-5):
            name = "analytic"
        else:
            name = "scratch" if half else "difference"
    if update is None and name == "scratch" and any(group.get("weight_decay") for group in base.param_groups):
        raise ValueError(
            f"delta='scratch' needs weight_decay=0 for {type(base).__name__}: how it decays is not known"
        )
    if name == "difference":
        return Difference(float(options.gamma))
    if name == "analytic":
        return Analytic(float(options.gamma), update, raw=raw)
    return Scratch(float(options.gamma), update, raw=raw)


def check_known(base: Optimizer, options: Any) -> None:
    """Raise unless the optimizer's formula is known where it is needed.

    Parameters
    ----------
    base : Optimizer
        The wrapped optimizer.
    options : Options
        What was asked for.

    Raises
    ------
    ValueError
        If it is not.
    """
    update, kind = update_of(base), type(base).__name__
    if options.hessian != "zero" and not (update and update.curved):
        raise ValueError(f"hessian={options.hessian!r} knows SGD, Adam, AdamW, RMSprop and Lion, not {kind}")
    if update is None and (options.delta == "analytic" or options.trace == "gradient"):
        raise ValueError(
            f"delta='analytic' and trace='gradient' need an optimizer whose formula is known, not {kind}; "
            "use delta='difference' or 'scratch' with trace='update'"
        )
    if options.clip_decay and any(type(base) is not SGD or group["momentum"] for group in base.param_groups):
        raise ValueError(f"clip_decay=True needs SGD without momentum, got {kind}")
