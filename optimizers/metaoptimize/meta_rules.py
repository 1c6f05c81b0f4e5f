"""How the meta-parameters move: Lion, Adam, RMSProp or gradient descent on beta."""
# ruff: noqa: ARG002 - rules have one signature, whatever each of them needs of it

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seedbed.optimizers.metaoptimize.lists import Tensors

Slots = dict[str, list[Tensor]]
Counts = Sequence[float] | Sequence[Tensor]


@dataclass(frozen=True)
class MetaRule:
    """A rule that turns meta-gradients into a direction for beta.

    Rules are functions of lists of tensors, so that one of them serves a single stacked vector as well as a
    tensor per parameter, and can be differentiated.

    Attributes
    ----------
    lr : float
        Meta step size eta.
    betas : (float, float)
        Its two averaging constants.
    eps : float
        Added under (``adam``, ``rmsprop``) or beside (``adam_corrected``) the root.
    weight_decay : float
        Decay of beta towards 0, so of the step size towards lr.
    linear_step : bool
        Whether the step size changes by the factor max(1/2, 1 - eta d) in place of exp(-eta d).
    """

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    linear_step: bool
    slots: ClassVar[tuple[str, ...]] = ()

    def direction(self, z: Tensors, slots: Mapping[str, Tensors], counts: Counts) -> tuple[Tensors, Slots]:
        """Return the direction d and the slots after it.

        Parameters
        ----------
        z : sequence of Tensor
            Meta-gradients.
        slots : mapping
            The rule's memory, one tensor for each of ``z``.
        counts : sequence of float or of Tensor
            Number of this step, from 1, for each of ``z``.

        Returns
        -------
        (sequence of Tensor, dict)
            New tensors.
        """
        raise NotImplementedError

    def move(
        self, beta: Tensors, z: Tensors, slots: Mapping[str, Tensors], counts: Counts
    ) -> tuple[Tensors, Slots]:
        """Return beta and the slots after a step.

        Parameters
        ----------
        beta : sequence of Tensor
            Meta-parameters.
        z, slots, counts
            As for :meth:`direction`.

        Returns
        -------
        (sequence of Tensor, dict)
            New tensors.
        """
        direction, slots = self.direction(z, slots, counts)
        moved = beta if self.weight_decay == 0 else torch._foreach_mul(beta, 1 - self.lr * self.weight_decay)
        if not self.linear_step:
            return torch._foreach_add(moved, direction, alpha=-self.lr), slots
        factors = torch._foreach_add(torch._foreach_mul(direction, -self.lr), 1.0)
        return torch._foreach_add(moved, torch._foreach_log(torch._foreach_clamp_min(factors, 0.5))), slots


class SGDRule(MetaRule):
    """d = z."""

    def direction(self, z: Tensors, slots: Mapping[str, Tensors], counts: Counts) -> tuple[Tensors, Slots]:
        """Return z."""
        return z, {}


class LionRule(MetaRule):
    """d = sign(c m + (1 - c) z), then m <- rho m + (1 - rho) z, with (rho, c) = betas."""

    slots: ClassVar[tuple[str, ...]] = ("m",)

    def direction(self, z: Tensors, slots: Mapping[str, Tensors], counts: Counts) -> tuple[Tensors, Slots]:
        """Return the sign of the interpolated mean."""
        momentum, interpolation = self.betas
        direction = torch._foreach_sign(_blend(slots["m"], z, interpolation, 1 - interpolation))
        return direction, {"m": _blend(slots["m"], z, momentum, 1 - momentum)}


class RMSPropRule(MetaRule):
    """v <- l v + z^2, d = z / sqrt(mu v + eps) with mu = (1 - l) / (1 - l^t) and l = betas[1]."""

    slots: ClassVar[tuple[str, ...]] = ("v",)

    def direction(self, z: Tensors, slots: Mapping[str, Tensors], counts: Counts) -> tuple[Tensors, Slots]:
        """Return the scaled meta-gradient."""
        v = _blend(slots["v"], torch._foreach_mul(z, z), self.betas[1], 1.0)
        return torch._foreach_div(z, self._root(v, counts)), {"v": v}

    def _root(self, v: Tensors, counts: Counts) -> Tensors:
        decay = self.betas[1]
        scaled = torch._foreach_mul(v, [(1 - decay) / (1 - decay**count) for count in counts])
        return torch._foreach_sqrt(torch._foreach_add(scaled, self.eps))


class AdamRule(RMSPropRule):
    """m <- rho m + z in front of RMSProp, as in the authors' code: d is up to 1 / (1 - rho) long."""

    slots: ClassVar[tuple[str, ...]] = ("m", "v")

    def direction(self, z: Tensors, slots: Mapping[str, Tensors], counts: Counts) -> tuple[Tensors, Slots]:
        """Return the scaled sum of meta-gradients."""
        m = _blend(slots["m"], z, self.betas[0], 1.0)
        v = _blend(slots["v"], torch._foreach_mul(z, z), self.betas[1], 1.0)
        return torch._foreach_div(m, self._root(v, counts)), {"m": m, "v": v}


class CorrectedAdamRule(MetaRule):
    """Adam as Kingma and Ba give it: averages with bias correction, eps beside the root."""

    slots: ClassVar[tuple[str, ...]] = ("m", "v")

    def direction(self, z: Tensors, slots: Mapping[str, Tensors], counts: Counts) -> tuple[Tensors, Slots]:
        """Return m-hat / (sqrt(v-hat) + eps)."""
        rho, decay = self.betas
        m = _blend(slots["m"], z, rho, 1 - rho)
        v = _blend(slots["v"], torch._foreach_mul(z, z), decay, 1 - decay)
        top = torch._foreach_mul(m, [1 / (1 - rho**count) for count in counts])
        root = torch._foreach_sqrt(torch._foreach_mul(v, [1 / (1 - decay**count) for count in counts]))
        return torch._foreach_div(top, torch._foreach_add(root, self.eps)), {"m": m, "v": v}


def _blend(average: Tensors, new: Tensors, keep: float, weight: float) -> list[Tensor]:
    return list(torch._foreach_add(torch._foreach_mul(average, keep), new, alpha=weight))


_RULES: dict[str, type[MetaRule]] = {
    "sgd": SGDRule,
    "lion": LionRule,
    "rmsprop": RMSPropRule,
    "adam": AdamRule,
    "adam_corrected": CorrectedAdamRule,
}


def meta_rule(options: Any) -> MetaRule | None:
    """Return the rule that the options ask for.

    Parameters
    ----------
    options : Options
        See :class:`~seedbed.optimizers.MetaOptimize`.

    Returns
    -------
    MetaRule or None
        None if the step sizes stay as they are.
    """
    if options.meta is None:
        return None
    return _RULES[options.meta](
        lr=options.meta_lr,
        betas=options.betas,
        eps=options.meta_eps,
        weight_decay=options.meta_weight_decay,
        linear_step=options.parameterisation == "smd",
    )
