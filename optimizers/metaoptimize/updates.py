"""The update formulas of known optimizers: the direction of a step, and how it answers to the weights.

All of these optimizers take steps of the form w <- w - alpha (u + kappa w). After a step, u is read from
their state; nothing here changes that state.
"""
# ruff: noqa: ARG002 - formulas have one signature, whatever each of them needs of it

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from seedbed.optimizers.lion import Lion
from seedbed.optimizers.metaoptimize.lists import Factor, Tensors, add_scaled_, times

States = Sequence[dict[str, Any]]
_TINY = 1e-30


class Ratio(NamedTuple):
    """scale * top / bottom, not yet divided.

    Attributes
    ----------
    top : sequence of Tensor
        Numerators.
    bottom : sequence of Tensor or None
        Denominators; None means 1.
    scale : float or list of (float or Tensor)
        One for all, or one for each.
    """

    top: Tensors
    bottom: Tensors | None = None
    scale: Factor = 1.0

    def evaluate(self) -> list[Tensor]:
        """Return the quotients as new tensors."""
        if self.bottom is None:
            return list(torch._foreach_mul(self.top, self.scale))
        quotients = torch._foreach_div(self.top, self.bottom)
        torch._foreach_mul_(quotients, self.scale)
        return list(quotients)

    def subtract_(self, targets: Tensors, factor: Factor) -> None:
        """Do ``target -= factor * quotient``.

        Parameters
        ----------
        targets : sequence of Tensor
            Changed in place.
        factor : float, Tensor or list of either
            One for all, or one for each.
        """
        total = times(self.scale, times(-1.0, factor))
        if isinstance(total, float):
            if self.bottom is None:
                torch._foreach_add_(targets, self.top, alpha=total)
            else:
                torch._foreach_addcdiv_(targets, self.top, self.bottom, value=total)
        elif isinstance(total, list) and isinstance(total[0], float) and self.bottom is not None:
            torch._foreach_addcdiv_(targets, self.top, self.bottom, total)
        else:
            quotients = self.top if self.bottom is None else torch._foreach_div(self.top, self.bottom)
            add_scaled_(targets, quotients, total)


class Update:
    """An optimizer's update formula.

    ``grads`` are those that the formula starts from: sign turned where the optimizer maximizes, coupled
    weight decay added. ``states`` are the optimizer's dicts after its step. The tangents of the state entries
    named in ``slots`` are dicts of the same keys; ``tangent`` moves them on.
    """

    slots: ClassVar[tuple[str, ...]] = ()
    curved: ClassVar[bool] = False
    momentum: ClassVar[str | None] = None

    def decoupled(self, group: dict[str, Any]) -> bool:
        """Whether weight decay acts on the weights directly and not through the gradient."""
        return False

    def before(self, grads: Tensors, states: States, group: dict[str, Any]) -> Any:
        """Save what the step overwrites."""
        return None

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return u of the step just taken."""
        raise NotImplementedError

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return u as it would be without momentum, at the present scaling of the gradient."""
        raise NotImplementedError

    def tangent(
        self,
        grads: Tensors,
        turns: Tensors,
        states: States,
        tangents: Sequence[dict[str, Tensor]],
        group: dict[str, Any],
        gamma: float,
    ) -> list[Tensor] | None:
        """Return du for gradients that change by ``turns``; None means zero."""
        raise NotImplementedError


def counts(states: States) -> list[float] | list[Tensor]:
    """Return how many steps each parameter has had, as floats where that needs no wait for a device.

    Parameters
    ----------
    states : sequence of dict
        Optimizer states with a ``step`` entry.

    Returns
    -------
    list of float or list of Tensor
        One for each.
    """
    steps = [state["step"] for state in states]
    if all(step.device.type == "cpu" for step in steps):
        return [float(step) for step in steps]
    return steps


def _root(value: Any) -> Any:
    return value.sqrt() if isinstance(value, Tensor) else math.sqrt(value)


def _entries(states: States, key: str) -> list[Tensor]:
    return [state[key] for state in states]


def _damped_root(squares: Tensors, corrections: Any, eps: float) -> list[Tensor]:
    """sqrt(squares) / corrections + eps."""
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, corrections)
    torch._foreach_add_(roots, eps)
    return list(roots)


def _root_tangent(tops: Tensors, bottoms: Tensors, roots: Tensors, turns: Tensors) -> list[Tensor]:
    """Tops / bottoms^2 * d(root), with d(root) = turns / (2 root): the change that a denominator makes."""
    change = torch._foreach_div(turns, torch._foreach_clamp_min(torch._foreach_mul(roots, 2.0), _TINY))
    torch._foreach_mul_(change, tops)
    torch._foreach_div_(change, bottoms)
    torch._foreach_div_(change, bottoms)
    return list(change)


def _blend_(targets: Tensors, decay: int | float, terms: Tensors, factor: int | float) -> None:
    """Targets <- decay * targets + factor * terms."""
    torch._foreach_mul_(targets, decay)
    torch._foreach_add_(targets, terms, alpha=factor)


class SGDUpdate(Update):
    """torch.optim.SGD with momentum, dampening and Nesterov's form."""

    slots = ("momentum_buffer",)
    curved = True
    momentum = "momentum"

    def decoupled(self, group: dict[str, Any]) -> bool:
        """Without momentum the two kinds of decay are one."""
        return group["momentum"] == 0

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return the gradient, the buffer or, for Nesterov, both."""
        if group["momentum"] == 0:
            return Ratio(grads)
        buffers = _entries(states, "momentum_buffer")
        if group["nesterov"]:
            return Ratio(torch._foreach_add(grads, buffers, alpha=group["momentum"]))
        return Ratio(buffers)

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return the gradient."""
        return Ratio(grads)

    def tangent(
        self,
        grads: Tensors,
        turns: Tensors,
        states: States,
        tangents: Sequence[dict[str, Tensor]],
        group: dict[str, Any],
        gamma: float,
    ) -> list[Tensor] | None:
        """Pass the turn through the buffer."""
        if group["momentum"] == 0:
            return list(turns)
        buffers = [tangent["momentum_buffer"] for tangent in tangents]
        _blend_(buffers, group["momentum"] * gamma, turns, 1 - group["dampening"])
        if group["nesterov"]:
            return list(torch._foreach_add(turns, buffers, alpha=group["momentum"]))
        return list(torch._foreach_mul(buffers, 1.0))


class AdamUpdate(Update):
    """torch.optim.Adam and AdamW."""

    slots = ("exp_avg", "exp_avg_sq")
    curved = True
    momentum = "betas"

    def decoupled(self, group: dict[str, Any]) -> bool:
        """As the group says."""
        return bool(group.get("decoupled_weight_decay"))

    def _corrections(self, states: States, group: dict[str, Any]) -> tuple[Any, Any]:
        beta1, beta2 = group["betas"]
        steps = counts(states)
        return [1 / (1 - beta1**step) for step in steps], [_root(1 - beta2**step) for step in steps]

    def _bottom(self, states: States, group: dict[str, Any], correction: Any) -> list[Tensor]:
        squares = _entries(states, "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq")
        return _damped_root(squares, correction, group["eps"])

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return m-hat / (sqrt(v-hat) + eps)."""
        first, second = self._corrections(states, group)
        return Ratio(_entries(states, "exp_avg"), self._bottom(states, group, second), first)

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return g / (sqrt(v-hat) + eps)."""
        return Ratio(grads, self._bottom(states, group, self._corrections(states, group)[1]))

    def tangent(
        self,
        grads: Tensors,
        turns: Tensors,
        states: States,
        tangents: Sequence[dict[str, Tensor]],
        group: dict[str, Any],
        gamma: float,
    ) -> list[Tensor] | None:
        """Pass the turn through both moments."""
        beta1, beta2 = group["betas"]
        first, second = self._corrections(states, group)
        means = [tangent["exp_avg"] for tangent in tangents]
        squares = [tangent["exp_avg_sq"] for tangent in tangents]
        _blend_(means, beta1 * gamma, turns, 1 - beta1)
        _blend_(squares, beta2 * gamma, torch._foreach_mul(grads, turns), 2 * (1 - beta2))
        roots = torch._foreach_div(torch._foreach_sqrt(_entries(states, "exp_avg_sq")), second)
        bottom = torch._foreach_add(roots, group["eps"])
        change = list(torch._foreach_div(means, bottom))
        torch._foreach_mul_(change, first)
        tops = torch._foreach_mul(_entries(states, "exp_avg"), first)
        turned = torch._foreach_div(torch._foreach_div(squares, second), second)
        torch._foreach_sub_(change, _root_tangent(tops, bottom, roots, turned))
        return change


class RMSpropUpdate(Update):
    """torch.optim.RMSprop, centered or not, with momentum or not."""

    slots = ("square_avg", "grad_avg", "momentum_buffer")
    curved = True

    def _roots(self, states: States, group: dict[str, Any]) -> list[Tensor]:
        squares = _entries(states, "square_avg")
        if group["centered"]:
            means = _entries(states, "grad_avg")
            squares = list(torch._foreach_addcmul(squares, means, means, value=-1.0))
        return list(torch._foreach_sqrt(squares))

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return the buffer or g / (sqrt(v) + eps)."""
        if group["momentum"] > 0:
            return Ratio(_entries(states, "momentum_buffer"))
        return self.gradient(grads, states, group)

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return g / (sqrt(v) + eps)."""
        return Ratio(grads, list(torch._foreach_add(self._roots(states, group), group["eps"])))

    def tangent(
        self,
        grads: Tensors,
        turns: Tensors,
        states: States,
        tangents: Sequence[dict[str, Tensor]],
        group: dict[str, Any],
        gamma: float,
    ) -> list[Tensor] | None:
        """Pass the turn through the moments and the buffer."""
        alpha = group["alpha"]
        squares = [tangent["square_avg"] for tangent in tangents]
        _blend_(squares, alpha * gamma, torch._foreach_mul(grads, turns), 2 * (1 - alpha))
        if group["centered"]:
            means = [tangent["grad_avg"] for tangent in tangents]
            _blend_(means, alpha * gamma, turns, 1 - alpha)
            squares = list(torch._foreach_addcmul(squares, _entries(states, "grad_avg"), means, value=-2.0))
        roots = self._roots(states, group)
        bottom = torch._foreach_add(roots, group["eps"])
        change = list(torch._foreach_div(turns, bottom))
        torch._foreach_sub_(change, _root_tangent(grads, bottom, roots, squares))
        if group["momentum"] == 0:
            return change
        buffers = [tangent["momentum_buffer"] for tangent in tangents]
        _blend_(buffers, group["momentum"] * gamma, change, 1.0)
        return list(torch._foreach_mul(buffers, 1.0))


class LionUpdate(Update):
    """seedbed.optimizers.Lion. A sign does not answer to small changes: its tangent is zero."""

    curved = True

    def decoupled(self, group: dict[str, Any]) -> bool:
        """Always."""
        return True

    def before(self, grads: Tensors, states: States, group: dict[str, Any]) -> Any:
        """Return u: it is made of the momentum that the step overwrites."""
        weight = 1 - group["betas"][0]
        momenta = [
            state["exp_avg"] if "exp_avg" in state else torch.zeros_like(grad)
            for state, grad in zip(states, grads)
        ]
        updates = torch._foreach_lerp(momenta, grads, weight)
        torch._foreach_sign_(updates)
        return updates

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return what was saved."""
        return Ratio(saved)

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return the sign of the gradient."""
        return Ratio(torch._foreach_sign(grads))

    def tangent(
        self,
        grads: Tensors,
        turns: Tensors,
        states: States,
        tangents: Sequence[dict[str, Tensor]],
        group: dict[str, Any],
        gamma: float,
    ) -> list[Tensor] | None:
        """Return None."""
        return None


class AdagradUpdate(Update):
    """torch.optim.Adagrad."""

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return g / (sqrt(sum) + eps), slowed by lr_decay."""
        slow = [1 / (1 + (step - 1) * group["lr_decay"]) for step in counts(states)]
        return Ratio(grads, _damped_root(_entries(states, "sum"), 1.0, group["eps"]), slow)

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return the direction: there is no momentum."""
        return self.direction(grads, states, group, None)


class AdamaxUpdate(Update):
    """torch.optim.Adamax."""

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return m-hat / infinity norm."""
        first = [1 / (1 - group["betas"][0] ** step) for step in counts(states)]
        return Ratio(_entries(states, "exp_avg"), _entries(states, "exp_inf"), first)

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return g / infinity norm."""
        return Ratio(grads, _entries(states, "exp_inf"))


class NAdamUpdate(Update):
    """torch.optim.NAdam."""

    def decoupled(self, group: dict[str, Any]) -> bool:
        """As the group says."""
        return bool(group["decoupled_weight_decay"])

    def _bottom(self, states: States, group: dict[str, Any]) -> list[Tensor]:
        corrections = [_root(1 - group["betas"][1] ** step) for step in counts(states)]
        return _damped_root(_entries(states, "exp_avg_sq"), corrections, group["eps"])

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return the gradient and the mean, each with its own correction, over sqrt(v-hat) + eps."""
        steps: Any = counts(states)
        products: Any = _entries(states, "mu_product")
        if all(product.device.type == "cpu" for product in products):
            products = [float(product) for product in products]

        def mu(step: Any) -> Any:
            return group["betas"][0] * (1 - 0.5 * 0.96 ** (step * group["momentum_decay"]))

        now = [(1 - mu(step)) / (1 - product) for step, product in zip(steps, products)]
        ahead = [mu(step + 1) / (1 - product * mu(step + 1)) for step, product in zip(steps, products)]
        top = torch._foreach_mul(grads, now)
        torch._foreach_add_(top, torch._foreach_mul(_entries(states, "exp_avg"), ahead))
        return Ratio(top, self._bottom(states, group))

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return g / (sqrt(v-hat) + eps)."""
        return Ratio(grads, self._bottom(states, group))


class RAdamUpdate(Update):
    """torch.optim.RAdam."""

    def decoupled(self, group: dict[str, Any]) -> bool:
        """As the group says."""
        return bool(group["decoupled_weight_decay"])

    def _parts(self, states: States, group: dict[str, Any]) -> tuple[list[Tensor], list[float], list[float]]:
        """Return denominators, mean corrections and rectifications; a denominator is 1 in the first steps."""
        beta1, beta2 = group["betas"]
        limit = 2 / (1 - beta2) - 1
        first, rectified = [], []
        for step in map(float, counts(states)):
            second = 1 - beta2**step
            length = limit - 2 * step * beta2**step / second
            first.append(1 / (1 - beta1**step))
            if length > 5:
                share = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
                rectified.append(math.sqrt(share * second))
            else:
                rectified.append(0.0)
        bottom = _damped_root(_entries(states, "exp_avg_sq"), 1.0, group["eps"])
        early = [root for root, value in zip(bottom, rectified) if not value]
        if early:
            torch._foreach_mul_(early, 0.0)
            torch._foreach_add_(early, 1.0)
        return bottom, first, [value or 1.0 for value in rectified]

    def direction(self, grads: Tensors, states: States, group: dict[str, Any], saved: Any) -> Ratio:
        """Return the rectified m-hat / (sqrt(v) + eps)."""
        bottom, first, rectified = self._parts(states, group)
        return Ratio(_entries(states, "exp_avg"), bottom, times(first, rectified))

    def gradient(self, grads: Tensors, states: States, group: dict[str, Any]) -> Ratio:
        """Return the rectified g / (sqrt(v) + eps)."""
        bottom, _, rectified = self._parts(states, group)
        return Ratio(grads, bottom, rectified)


_UPDATES: dict[type, Update] = {
    torch.optim.SGD: SGDUpdate(),
    torch.optim.Adam: AdamUpdate(),
    torch.optim.AdamW: AdamUpdate(),
    torch.optim.RMSprop: RMSpropUpdate(),
    torch.optim.Adagrad: AdagradUpdate(),
    torch.optim.Adamax: AdamaxUpdate(),
    torch.optim.NAdam: NAdamUpdate(),
    torch.optim.RAdam: RAdamUpdate(),
    Lion: LionUpdate(),
}


def update_of(base: Optimizer) -> Update | None:
    """Return the update formula of an optimizer.

    Parameters
    ----------
    base : Optimizer
        Any optimizer; a subclass of a known one is not known.

    Returns
    -------
    Update or None
        None if it is not known.
    """
    return _UPDATES.get(type(base))


def decay_of(base: Optimizer, group: dict[str, Any]) -> tuple[float, float]:
    """Return decoupled and coupled weight decay of a group.

    An optimizer that is not known here, Muon and other implementations of Lion aside, counts as coupled: its
    decay is then part of the loss.

    Parameters
    ----------
    base : Optimizer
        The optimizer.
    group : dict
        One of its groups.

    Returns
    -------
    (float, float)
        One of them is 0.
    """
    decay = float(group.get("weight_decay") or 0.0)
    update = update_of(base)
    if update is not None:
        decoupled = update.decoupled(group)
    else:
        decoupled = bool(group.get("decoupled_weight_decay")) or type(base).__name__ in ("Lion", "Muon")
        if decoupled and getattr(base, "decoupled_wd", False):
            decay /= base._init_lr  # type: ignore[attr-defined]
    return (decay, 0.0) if decoupled else (0.0, decay)
