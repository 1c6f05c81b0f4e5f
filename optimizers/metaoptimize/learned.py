"""Traces of the other meta-parameters: weight decay and momentum."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from seedbed.optimizers.metaoptimize.arguments import Options
from seedbed.optimizers.metaoptimize.directions import Analytic
from seedbed.optimizers.metaoptimize.lists import add_scaled_, as_dtype, times
from seedbed.optimizers.metaoptimize.spread import local
from seedbed.optimizers.metaoptimize.updates import AdamUpdate, Ratio, counts, update_of
from seedbed.optimizers.metaoptimize.work import Work


class Learner:
    """A further meta-parameter: its value, and the trace of the weights' dependence on it.

    Parameters
    ----------
    gamma : float
        Discount.
    """

    name: ClassVar[str]
    entries: ClassVar[tuple[str, ...]]

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def value(self, group: dict[str, Any], beta: float) -> tuple[float, float]:
        """Return the value that beta stands for, and its derivative.

        Parameters
        ----------
        group : dict
            Gives the value at beta = 0.
        beta : float
            Meta-parameter.

        Returns
        -------
        (float, float)
            Value and derivative.
        """
        raise NotImplementedError

    def assign(self, work: Work, beta: float) -> None:
        """Put the value into the wrapped optimizer's group, and the derivative into the work.

        Parameters
        ----------
        work : Work
            Tensors of this step.
        beta : float
            Meta-parameter.
        """
        raise NotImplementedError

    def before(self, works: Sequence[Work]) -> None:
        """Move the traces as far as that can be done before the optimizer's step.

        Parameters
        ----------
        works : sequence of Work
            Tensors of this step.
        """
        raise NotImplementedError

    def after(self, works: Sequence[Work]) -> None:
        """Move the traces as far as that must be done after the optimizer's step.

        Parameters
        ----------
        works : sequence of Work
            Tensors of this step.
        """
        raise NotImplementedError


class LearnedDecay(Learner):
    """kappa = weight_decay exp(beta): h <- gamma (1 - kappa alpha) h - alpha kappa Y w, w before the step."""

    name = "weight_decay"
    entries = ("weight_decay",)

    def value(self, group: dict[str, Any], beta: float) -> tuple[float, float]:
        """Return weight_decay exp(beta), which is its own derivative; see :meth:`Learner.value`."""
        value = group["weight_decay"] * math.exp(beta)
        return value, value

    def assign(self, work: Work, beta: float) -> None:
        """Set the decay; see :meth:`Learner.assign`."""
        work.decay, work.slopes[self.name] = self.value(work.group, beta)
        work.cell["weight_decay"] = work.decay

    def before(self, works: Sequence[Work]) -> None:
        """Move the traces; see :meth:`Learner.before`."""
        for work in works:
            traces = work.extra[self.name]
            torch._foreach_mul_(traces, work.keep(self.gamma))
            factor = times(-work.slopes[self.name] * work.weight, work.alpha)
            add_scaled_(traces, as_dtype(work.params, traces), factor)

    def after(self, works: Sequence[Work]) -> None:
        """Nothing is left to do."""


class LearnedMomentum(Learner):
    """rho = logistic(logit(momentum) + beta), of SGD or as the first beta of Adam and AdamW.

    X <- rho gamma X + rho' Y (m - g), with m before the step and g only for Adam, is how the averaged
    gradient depends on beta; h <- gamma (1 - kappa alpha) h - alpha du, where du is what X does to the
    update. Adam's bias correction depends on rho as well.

    Parameters
    ----------
    gamma : float
        Discount.
    base : Optimizer
        SGD with momentum, Adam or AdamW.
    """

    name = "momentum"
    entries = ("momentum", "momentum_tangent")

    def __init__(self, gamma: float, base: Optimizer) -> None:
        super().__init__(gamma)
        self.adam = isinstance(base, Adam)
        self._slot = "exp_avg" if self.adam else "momentum_buffer"
        self._formula = Analytic(gamma, update_of(base), raw=False)
        self._update = AdamUpdate()

    def value(self, group: dict[str, Any], beta: float) -> tuple[float, float]:
        """Return rho and rho (1 - rho); see :meth:`Learner.value`."""
        initial = group["betas"][0] if self.adam else group["momentum"]
        value = initial / (initial + (1 - initial) * math.exp(-beta))
        return value, value * (1 - value)

    def assign(self, work: Work, beta: float) -> None:
        """Set the momentum; see :meth:`Learner.assign`."""
        value, work.slopes[self.name] = self.value(work.group, beta)
        if self.adam:
            work.cell["betas"] = (value, work.group["betas"][1])
        else:
            work.cell["momentum"] = value

    def before(self, works: Sequence[Work]) -> None:
        """Move X; see :meth:`Learner.before`."""
        for work in works:
            direct = work.slopes[self.name] * work.weight
            rho = work.cell["betas"][0] if self.adam else work.cell["momentum"]
            torch._foreach_mul_(work.extra["momentum"], work.keep(self.gamma))
            tangents = work.extra["momentum_tangent"]
            torch._foreach_mul_(tangents, rho * self.gamma)
            held = [index for index, state in enumerate(work.states) if state.get(self._slot) is not None]
            if held:
                averages = [local(work.states[index][self._slot]) for index in held]
                chosen = [tangents[index] for index in held]
                torch._foreach_add_(chosen, as_dtype(averages, chosen), alpha=direct)
            if self.adam:
                torch._foreach_add_(tangents, self._formula.starts(work), alpha=-direct)

    def after(self, works: Sequence[Work]) -> None:
        """Move the traces, now that the optimizer's state is that of this step; see :meth:`Learner.after`."""
        for work in works:
            direct = times(work.slopes[self.name] * work.weight, work.alpha)
            traces, tangents = work.extra["momentum"], work.extra["momentum_tangent"]
            states = self._formula.states(work)
            averages = [state[self._slot] for state in states]
            if self.adam:
                form = self._update.direction(tangents, states, work.cell, None)
                Ratio(tangents, form.bottom, form.scale).subtract_(traces, work.alpha)
                rho = work.cell["betas"][0]
                drift = [step * rho ** (step - 1) / (1 - rho**step) ** 2 for step in counts(states)]
                Ratio(averages, form.bottom, drift).subtract_(traces, direct)
            elif work.cell["nesterov"]:
                Ratio(tangents).subtract_(traces, times(work.cell["momentum"], work.alpha))
                Ratio(averages).subtract_(traces, direct)
            else:
                Ratio(tangents).subtract_(traces, work.alpha)


def learners(base: Optimizer, options: Options) -> list[Learner]:
    """Return what learns the meta-parameters other than lr.

    Parameters
    ----------
    base : Optimizer
        The wrapped optimizer.
    options : Options
        What was asked for.

    Returns
    -------
    list of Learner
        In the order of ``options.meta_parameters``.

    Raises
    ------
    ValueError
        If the optimizer has no decoupled decay or no momentum to learn.
    """
    update = update_of(base)
    found: list[Learner] = []
    for name in options.meta_parameters:
        if name == "weight_decay":
            if update is None or not all(update.decoupled(group) for group in base.param_groups):
                raise ValueError(
                    "meta_parameters has 'weight_decay', which needs decoupled decay (AdamW, Lion, SGD "
                    "without momentum, NAdam and RAdam with decoupled_weight_decay=True); base is "
                    f" {type(base).__name__}"
                )
            found.append(LearnedDecay(float(options.gamma)))
        elif name == "momentum":
            keys = {SGD: "momentum", Adam: "betas", AdamW: "betas"}
            values = [group.get(keys.get(type(base), ""), 0.0) for group in base.param_groups]
            if not all(0 < (value[0] if isinstance(value, tuple) else value) < 1 for value in values):
                raise ValueError(
                    "meta_parameters has 'momentum', which needs SGD, Adam or AdamW with a momentum "
                    f"in (0, 1); base is {type(base).__name__} with {values}"
                )
            found.append(LearnedMomentum(float(options.gamma), base))
    return found
