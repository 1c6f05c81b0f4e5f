"""Equilibrium propagation: the difference between two equilibria is the gradient.

Scellier & Bengio, Frontiers in Computational Neuroscience 11:24, 2017, https://doi.org/10.3389/fncom.2017.00024.
In discrete time, with pools, a softmax read-out and nudging in both directions: Ernoult et al., NeurIPS 2019,
arXiv:1905.13633, and Laborieux et al., Frontiers in Neuroscience 15, 2021, arXiv:2006.03824.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from seedbed.checks import check_number
from seedbed.lightning_modules.dll.activations import get_activation
from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import DLLLayer
from seedbed.lightning_modules.dll.row_weights import weighted
from seedbed.lightning_modules.dll.rules import LearnStep
from seedbed.lightning_modules.dll.stages import Stage, StagedNetwork, build_stages

Network = TypeVar("Network", bound="EquilibriumPropagation")


class EquilibriumPropagation(StagedNetwork):
    r"""Network of states that settle under each other's influence.

    With ``Φ(s) = Σ_l s_l · P_l(W_l s_{l-1} + b_l)``, P the pools and ``s_0`` the input, hidden states follow

    .. math::

        s_l \leftarrow φ(∂Φ/∂s_l) = φ\big(P_l(W_l s_{l-1} + b_l) + W_{l+1}^T P_{l+1}^T s_{l+1}\big)

    to an equilibrium of the energy ``Σ G(s_l) - Φ(s)`` with ``G' = φ⁻¹``. The output
    ``y = softmax(W_L s_{L-1})`` reads the top state and is no state itself. Nudged, the top state also feels
    ``-β`` times the gradient of the loss. Between the equilibria at ``+β`` and ``-β``,

    .. math::

        ∂L/∂W_l = -\lim_{β→0} \frac{1}{2β}
            \Big(\frac{∂Φ}{∂W_l}\Big|_{β} - \frac{∂Φ}{∂W_l}\Big|_{-β}\Big),

    the gradient of the loss at the free equilibrium; each term is a product of the two states that a synapse
    joins. The output layer descends the loss by its own error, averaged over the two nudged equilibria.

    The activation follows the pools here, which differs from other rules' networks for average pools only.

    Parameters
    ----------
    stem : sequence of DLLLayer
        Layers without weights in front of the first stage.
    stages : sequence of Stage
        Bottom to top, the output layer last; heads without activation.
    activation : str
        φ; bounded, so that states stay finite.
    nudge : float
        β.
    free_steps, nudged_steps : int
        Steps to the free equilibrium, and from there to each nudged one.
    **options
        ``output`` and ``clip_value``, see :class:`~seedbed.lightning_modules.dll.rules.LocalNetwork`.

    Examples
    --------
    >>> import torch
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = tuple(LayerSpec("linear", size) for size in (8, 6, 3))
    >>> network = EquilibriumPropagation.from_config(NetworkConfig(layers, input_shape=(4,)))
    >>> [tuple(state.shape) for state in network.settle(torch.ones(5, 4), steps=10)]
    [(5, 4), (5, 8), (5, 6)]
    """

    bounded: ClassVar[tuple[str, ...]] = ("tanh", "sigmoid")

    def __init__(
        self,
        stem: Sequence[DLLLayer],
        stages: Sequence[Stage],
        *,
        activation: str = "tanh",
        nudge: float = 0.5,
        free_steps: int = 20,
        nudged_steps: int = 10,
        **options: Any,
    ) -> None:
        super().__init__(stem, stages, **options)
        if activation not in self.bounded:
            raise ValueError(
                f"learning_rule='ep' needs an activation among {self.bounded}, got {activation!r}"
            )
        check_number("nudge", nudge, low=0, closed="neither")
        check_number("free_steps", free_steps, low=1, integer=True)
        check_number("nudged_steps", nudged_steps, low=1, integer=True)
        self.activation = activation
        self.nudge = nudge
        self.free_steps = free_steps
        self.nudged_steps = nudged_steps

    @classmethod
    def from_config(cls: type[Network], config: NetworkConfig) -> Network:
        """Build from a description; options: ``nudge``, ``free_steps`` and ``nudged_steps``."""
        options = config.rule_options(nudge=0.5, free_steps=20, nudged_steps=10)
        if any(spec.activation not in (None, config.activation) for spec in config.layers[:-1]):
            raise ValueError("learning_rule='ep' needs one activation for all hidden layers")
        stem, stages = build_stages(config, "ep", activation="identity", sigma=1.0, clip_value=None)
        return cls(
            stem,
            stages,
            activation=config.activation,
            output=config.output,
            clip_value=config.clip_value,
            **options,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Output before the softmax, at the free equilibrium."""
        x = self.enter(x)
        with self._remembering():
            return self.stack[-1](self.settle(x, steps=self.free_steps)[-1])

    def evaluate(self, x: Tensor) -> None:
        """Offer no differentiable form: the output is that of an equilibrium."""

    def settle(
        self,
        x: Tensor,
        *,
        steps: int,
        start: Sequence[Tensor] | None = None,
        nudge: float = 0.0,
        target: Tensor | None = None,
    ) -> list[Tensor]:
        """Let the hidden states settle.

        Parameters
        ----------
        x : Tensor
            Input of the first stage.
        steps : int
            Steps, each moving all states at once.
        start : sequence of Tensor, optional
            Input and states to start from; the default is a pass from bottom to top.
        nudge : float
            Strength and sign of the pull on the top state.
        target : Tensor of shape (batch, outputs), optional
            What it pulls to.

        Returns
        -------
        list of Tensor
            The input and the states, bottom to top.

        Raises
        ------
        ValueError
            If ``nudge`` is not zero and there is no target.
        """
        if nudge and target is None:
            raise ValueError(f"nudge={nudge!r} needs a target")
        *hidden, top = self.stack
        phi = get_activation(self.activation).function
        states = [x] if start is None else list(start)
        for stage in hidden[len(states) - 1 :]:
            states.append(phi(stage(states[-1])))
        bottom = hidden[0](x) if hidden else x  # the input does not move, so neither does its drive
        for _ in range(steps):
            drives = [bottom, *(stage(state) for stage, state in zip(hidden[1:], states[1:]))]
            for place, stage in enumerate(hidden[1:]):
                drives[place] = drives[place] + stage.descend(states[place + 2])
            if hidden and target is not None and nudge:
                error = self.top_error(top(states[-1]), target)
                drives[-1] = drives[-1] + nudge * top.descend(error)
            states = [x, *map(phi, drives[: len(hidden)])]
        return states

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        x = self.enter(x)
        with self._remembering():
            free = self.settle(x, steps=self.free_steps)
            output = self.stack[-1](free[-1])
            forces = []
            for side in (self.nudge, -self.nudge):
                states = self.settle(x, steps=self.nudged_steps, start=free, nudge=side, target=target)
                forces.append(self._forces(states, target, sample_weight))
        share = [1 / (2 * self.nudge)] * (len(self.stack) - 1) + [0.5]
        for stage, factor, plus, minus in zip(self.stack, share, *forces, strict=True):
            last = stage is self.stack[-1]
            for parameter, a, b in zip(stage.parameters(), plus, minus, strict=True):
                parameter.grad = factor * (a + b if last else a - b)
        return LearnStep(self.loss(output, target, sample_weight), output)

    def _forces(
        self, states: list[Tensor], target: Tensor, sample_weight: Tensor | None
    ) -> list[list[Tensor]]:
        """``-∂Φ/∂θ`` of every hidden stage, and the gradient of the loss for the output layer."""
        *hidden, top = self.stack
        pulls = [*states[1:], self.top_error(top(states[-1]), target)]
        forces = []
        for stage, below, pull in zip((*hidden, top), states, pulls, strict=True):
            stage(below)
            stage.update(0.5 * weighted(pull, sample_weight))
            forces.append([p.grad.clone() for p in stage.parameters() if p.grad is not None])
        return forces

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Let the layers remember their batch: to settle, states need their adjoints in any mode."""
        modules = list(self.stages.modules())
        modes = [module.training for module in modules]
        for module in modules:
            module.training = True
        try:
            yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
            if not self.training:
                for stage in self.stack:
                    stage.release()
