"""What one step works on: the tensors of a part of a parameter group."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seedbed.optimizers.metaoptimize.lists import Factor, each
from seedbed.optimizers.metaoptimize.spread import aligned, local


@dataclass
class Work:
    """Parameters with a gradient that share a group (and a block, if the optimizer applies the step size).

    Attributes
    ----------
    group : dict
        The wrapper's group, which users and schedulers write to.
    cell : dict
        The wrapped optimizer's group.
    parameters : list of Tensor
        As the optimizer has them.
    params, grads, traces : list of Tensor
        This process's parts; writing to them writes to the whole.
    states : list of dict
        The optimizer's state of each.
    blocks : list of int
        Block of each.
    sign : float
        -1 if the optimizer maximizes.
    decay, coupled : float
        Decoupled and coupled weight decay.
    alpha : float, Tensor or list of either
        Step size.
    slope : float, Tensor or list of either
        sigma'(beta): derivative of the step size.
    slopes : dict
        Derivative of each further meta-parameter, by name.
    weight : float
        Share of a meta-parameter's discounted history that moves with it, Y; 1 unless ``normalised``.
    extra : dict
        Traces of further meta-parameters, by name.
    new : list of (dict, str, Tensor)
        Entries to put into the state once the optimizer has stepped: before, it takes a state that is not
        empty for its own.
    """

    group: dict[str, Any]
    cell: dict[str, Any]
    parameters: list[Tensor] = field(default_factory=list)
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    traces: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    sign: float = 1.0
    decay: float = 0.0
    coupled: float = 0.0
    alpha: Factor = 0.0
    slope: Factor = 0.0
    weight: float = 1.0
    slopes: dict[str, float] = field(default_factory=dict)
    extra: dict[str, list[Tensor]] = field(default_factory=dict)
    new: list[tuple[dict[str, Any], str, Tensor]] = field(default_factory=list)

    def add(self, parameter: Tensor, state: dict[str, Any], block: int, dtype: torch.dtype) -> None:
        """Take in a parameter that has a gradient.

        Parameters
        ----------
        parameter : Tensor
            Plain or distributed.
        state : dict
            The optimizer's state of it.
        block : int
            Its block.
        dtype : torch.dtype
            Type of its traces.

        Raises
        ------
        RuntimeError
            If the gradient is sparse or complex.
        """
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse or gradient.is_complex():
            kind = "sparse" if gradient.is_sparse else "complex"
            raise RuntimeError(
                f"MetaOptimize takes dense real gradients, got a {kind} one of {tuple(gradient.shape)}"
            )
        self.parameters.append(parameter)
        self.params.append(local(parameter.detach()))
        self.grads.append(aligned(gradient.detach(), parameter))
        self.states.append(state)
        self.blocks.append(block)
        self.traces.append(self._entry(parameter, state, "meta_trace", dtype))
        for name, traces in self.extra.items():
            traces.append(self._entry(parameter, state, f"meta_trace_{name}", dtype))

    def _entry(self, parameter: Tensor, state: dict[str, Any], key: str, dtype: torch.dtype) -> Tensor:
        if key not in state:
            zeros = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            self.new.append((state, key, zeros))
            return local(zeros)
        return local(state[key])

    def keep(self, gamma: float) -> Factor:
        """Return gamma (1 - kappa alpha), the share of a trace that stays.

        Parameters
        ----------
        gamma : float
            Discount.

        Returns
        -------
        float, Tensor or list of either
            As ``alpha`` is.
        """
        if self.decay == 0:
            return gamma
        return each(self.alpha, lambda alpha: gamma * (1 - self.decay * alpha))
