"""Step and trace as one compiled kernel.

The optimizer's formula and the trace's are written once more, tensor by tensor, so that the compiler can run
through weights, gradient, state and trace in a single pass.
"""
# ruff: noqa: ARG002 - kernels have one signature, whatever each of them needs of it

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from seedbed.optimizers.lion import Lion
from seedbed.optimizers.metaoptimize.directions import Difference, Direction, Turns
from seedbed.optimizers.metaoptimize.spread import local
from seedbed.optimizers.metaoptimize.work import Work

Row = Sequence[Tensor]


class Kernel:
    """An optimizer's step on one tensor, made of arithmetic only.

    Whatever number may change during training is passed in a tensor, so that it needs no new compilation.
    """

    slots: ClassVar[tuple[str, ...]] = ()

    def refusal(self, group: dict[str, Any]) -> str | None:
        """Return why a group cannot be compiled, or None."""
        return None

    def keys(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Return the state entries that a group has."""
        return self.slots

    def numbers(self, group: dict[str, Any], step: float) -> list[float]:
        """Return the numbers of this step."""
        raise NotImplementedError

    def direction(self, g: Tensor, state: Row, numbers: Row, nesterov: bool) -> Tensor:
        """Update the state in place and return u."""
        raise NotImplementedError


class AdamKernel(Kernel):
    """Adam and AdamW."""

    slots = ("exp_avg", "exp_avg_sq")

    def refusal(self, group: dict[str, Any]) -> str | None:
        """Refuse AMSGrad."""
        return "amsgrad=True" if group["amsgrad"] else None

    def numbers(self, group: dict[str, Any], step: float) -> list[float]:
        """Return both averaging weights, both bias corrections and eps."""
        beta1, beta2 = group["betas"]
        return [1 - beta1, 1 - beta2, 1 / (1 - beta1**step), (1 - beta2**step) ** -0.5, group["eps"]]

    def direction(self, g: Tensor, state: Row, numbers: Row, nesterov: bool) -> Tensor:
        """Update both moments; return m-hat / (sqrt(v-hat) + eps)."""
        new1, new2, correct1, correct2, eps = numbers
        mean, square = state
        mean.copy_(mean + new1 * (g - mean))
        square.copy_(square + new2 * (g * g - square))
        return mean * correct1 / (square.sqrt() * correct2 + eps)


class SGDKernel(Kernel):
    """SGD, with momentum or without."""

    def keys(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Return the buffer, if there is one."""
        return ("momentum_buffer",) if group["momentum"] else ()

    def numbers(self, group: dict[str, Any], step: float) -> list[float]:
        """Return momentum and the gradient's weight."""
        return [group["momentum"], 1 - group["dampening"]]

    def direction(self, g: Tensor, state: Row, numbers: Row, nesterov: bool) -> Tensor:
        """Update the buffer; return it, or the gradient."""
        if not state:
            return g
        momentum, weight = numbers
        state[0].copy_(momentum * state[0] + weight * g)
        return g + momentum * state[0] if nesterov else state[0]


class RMSpropKernel(Kernel):
    """RMSprop."""

    def refusal(self, group: dict[str, Any]) -> str | None:
        """Refuse the centered form."""
        return "centered=True" if group["centered"] else None

    def keys(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Return the second moment and the buffer, if there is one."""
        return ("square_avg", "momentum_buffer") if group["momentum"] else ("square_avg",)

    def numbers(self, group: dict[str, Any], step: float) -> list[float]:
        """Return the averaging weight, eps and momentum."""
        return [1 - group["alpha"], group["eps"], group["momentum"]]

    def direction(self, g: Tensor, state: Row, numbers: Row, nesterov: bool) -> Tensor:
        """Update the state; return g / (sqrt(v) + eps) or the buffer."""
        new, eps, momentum = numbers
        state[0].copy_(state[0] + new * (g * g - state[0]))
        scaled = g / (state[0].sqrt() + eps)
        if len(state) == 1:
            return scaled
        state[1].copy_(momentum * state[1] + scaled)
        return state[1]


class LionKernel(Kernel):
    """Lion."""

    slots = ("exp_avg",)

    def numbers(self, group: dict[str, Any], step: float) -> list[float]:
        """Return the gradient's weight in the update and in the mean."""
        interpolation, momentum = group["betas"]
        return [1 - interpolation, 1 - momentum]

    def direction(self, g: Tensor, state: Row, numbers: Row, nesterov: bool) -> Tensor:
        """Return the sign of the interpolated mean; update the mean."""
        inward, new = numbers
        update = (state[0] + inward * (g - state[0])).sign()
        state[0].copy_(state[0] + new * (g - state[0]))
        return update


_KERNELS: dict[type, Kernel] = {
    Adam: AdamKernel(),
    AdamW: AdamKernel(),
    SGD: SGDKernel(),
    RMSprop: RMSpropKernel(),
    Lion: LionKernel(),
}


def check_compiled(base: Optimizer) -> None:
    """Raise unless the optimizer's step can be compiled.

    Parameters
    ----------
    base : Optimizer
        The wrapped optimizer.

    Raises
    ------
    ValueError
        If its formula is not known here, or its lr is a tensor.
    """
    kernel = _KERNELS.get(type(base))
    if kernel is None:
        raise ValueError(f"compile=True knows SGD, Adam, AdamW, RMSprop and Lion, not {type(base).__name__}")
    for group in base.param_groups:
        reason = "lr as a tensor" if isinstance(group["lr"], Tensor) else kernel.refusal(group)
        if reason:
            raise ValueError(f"compile=True does not go with {reason} of {type(base).__name__}")


class Compiled(Direction):
    """The kernel where every tensor has its state already, the difference elsewhere: so at the first step.

    Parameters
    ----------
    gamma : float
        Discount.
    """

    name = "compiled"

    def __init__(self, gamma: float) -> None:
        super().__init__(gamma)
        self._first = Difference(gamma)

    def step(self, base: Optimizer, works: Sequence[Work], turns: Turns) -> None:
        """Step; see :meth:`Direction.step`."""
        kernel = _KERNELS[type(base)]
        if any(key not in state for work in works for state in work.states for key in kernel.keys(work.cell)):
            self._first.step(base, works, turns)
            return
        for work in works:
            self._run(base, kernel, work)

    def _run(self, base: Optimizer, kernel: Kernel, work: Work) -> None:
        steps = [state["step"] for state in work.states if "step" in state]
        if steps:
            torch._foreach_add_(steps, 1)
        keys = kernel.keys(work.cell)
        states = [[local(state[key]) for key in keys] for state in work.states]
        assert isinstance(work.alpha, float)
        shrink = 1 - work.decay * work.alpha
        shared = [work.alpha, shrink, self.gamma * shrink, work.weight, work.coupled]
        rows = [
            shared + kernel.numbers(work.cell, s)
            for s in (map(float, steps) if steps else [1.0] * len(states))
        ]
        table = torch.tensor(rows, dtype=work.traces[0].dtype, device=work.params[0].device)
        kind: Any = type(base)
        run = _compiled(kind, bool(work.cell.get("nesterov")), work.sign < 0, work.coupled != 0)
        run(work.params, work.grads, work.traces, states, table)


@lru_cache(maxsize=64)
def _compiled(kind: type, nesterov: bool, maximize: bool, coupled: bool) -> Callable[..., None]:
    """Compile each form of the update once; the compiler tells shapes and types of tensors apart."""
    kernel = _KERNELS[kind]

    def run(
        params: list[Tensor],
        grads: list[Tensor],
        traces: list[Tensor],
        states: list[list[Tensor]],
        table: Tensor,
    ) -> None:
        for index, (w, gradient, h, state) in enumerate(zip(params, grads, traces, states)):
            alpha, shrink, keep, weight, decay, *numbers = table[index].unbind()
            g = -gradient if maximize else gradient
            if coupled:
                g = g + decay * w
            new = shrink * w - alpha * kernel.direction(g, state, numbers, nesterov)
            h.copy_(keep * h + weight * (new - w))
            w.copy_(new)

    return torch.compile(run)
