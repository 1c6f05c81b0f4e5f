"""Difference target propagation: targets instead of errors, carried down by learned inverses.

Lee, Zhang, Fischer & Bengio, "Difference Target Propagation", ECML PKDD 2015, arXiv:1412.7525.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.dll.activations import get_activation
from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import DLLLayer, gradient_of
from seedbed.lightning_modules.dll.row_weights import weighted
from seedbed.lightning_modules.dll.rules import LearnStep
from seedbed.lightning_modules.dll.stages import Stage, StagedNetwork, build_stages

Network = TypeVar("Network", bound="TargetPropagation")


class TargetPropagation(StagedNetwork):
    r"""Network with a learned approximate inverse ``g_l`` beside every stage ``f_l`` above the first.

    .. math::

        t_{L-1} &= h_{L-1} - η\, ∂L/∂h_{L-1} \\
        t_{l-1} &= h_{l-1} - g_l(h_l) + g_l(t_l) \\
        L_l &= ‖f_l(h_{l-1}) - t_l‖² \\
        L_l^{inv} &= ‖g_l(f_l(h_{l-1} + ε)) - (h_{l-1} + ε)‖²

    Each stage descends its ``L_l`` with the target held fixed, each inverse its ``L_l^inv`` with ``ε ~
    N(0, noise²)``. ``g_l`` is the adjoint of the stage's map with weights ``V_l`` of its own, followed by
    the activation of the stage below; a max-pool is undone at the winners.

    With ``top="gradient"`` the first target is the paper's, which needs the output weights once. With
    ``top="inverse"`` the output gets a target in the space of the logits, ``z - η (softmax(z) - y)``, and an
    inverse like all others.

    Parameters
    ----------
    stem : sequence of DLLLayer
        Layers without weights in front of the first stage.
    stages : sequence of Stage
        Bottom to top, the output layer last.
    inverses : sequence of Parameter
        ``V_l`` in the shape of the weights of stage l, for the second stage and up.
    step : float
        η.
    noise : float
        Standard deviation of ε.
    top : {"gradient", "inverse"}
        How the first target is formed.
    random_state : int
        Seed of ε.
    **options
        ``output`` and ``clip_value``, see :class:`~seedbed.lightning_modules.dll.rules.LocalNetwork`.

    Examples
    --------
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = tuple(LayerSpec("linear", size) for size in (8, 6, 3))
    >>> network = TargetPropagation.from_config(NetworkConfig(layers, input_shape=(4,)))
    >>> [tuple(inverse.shape) for inverse in network.inverses]
    [(6, 8)]
    """

    default_feedback_lr_ratio = 1.0

    def __init__(
        self,
        stem: Sequence[DLLLayer],
        stages: Sequence[Stage],
        inverses: Sequence[nn.Parameter],
        *,
        step: float = 0.1,
        noise: float = 0.1,
        top: str = "gradient",
        random_state: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(stem, stages, **options)
        check_number("step", step, low=0, closed="neither")
        check_number("noise", noise, low=0)
        check_choice("top", top, ("gradient", "inverse"))
        self.inverses = nn.ParameterList(inverses)
        self.step = step
        self.noise = noise
        self.top = top
        self.seed(random_state)

    @classmethod
    def from_config(cls: type[Network], config: NetworkConfig) -> Network:
        """Build from a description; options: ``step``, ``noise`` and ``top``."""
        options = config.rule_options(step=0.1, noise=0.1, top="gradient")
        check_choice("top", options["top"], ("gradient", "inverse"))
        stem, stages = build_stages(config, "dtp", sigma=1.0, clip_value=None)
        generator = torch.Generator().manual_seed(config.random_state + 1)
        inverses = []
        for stage in stages[1 : None if options["top"] == "inverse" else -1]:
            weight = stage.unit.weight
            # A unit below hears from the outputs times the kernel's positions.
            fan_in = weight.shape[0] * weight[0, 0].numel()
            inverses.append(
                nn.Parameter(torch.empty_like(weight).normal_(0, fan_in**-0.5, generator=generator))
            )
        return cls(
            stem,
            stages,
            inverses,
            output=config.output,
            clip_value=config.clip_value,
            random_state=config.random_state,
            **options,
        )

    def feedback_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights of the inverses."""
        yield from self.inverses

    def invert(self, place: int, h: Tensor, like: Tensor) -> Tensor:
        """Apply ``g_l``.

        Parameters
        ----------
        place : int
            Index of the stage, from 1.
        h : Tensor
            In the space of its output.
        like : Tensor
            Input of the stage, for the shape.

        Returns
        -------
        Tensor
            In the space of its input.
        """
        stage = self.stack[place]
        below = get_activation(self.stack[place - 1].unit.activation)
        return below.function(stage.send(stage.unshape(h), self.inverses[place - 1], like))

    def targets(self, states: Sequence[Tensor], error: Tensor) -> list[Tensor]:
        """Targets of all hidden stages.

        Parameters
        ----------
        states : sequence of Tensor
            Input of the first stage and output of each, the last being the network's output.
        error : Tensor
            Error at the output, target minus prediction.

        Returns
        -------
        list of Tensor
            One per hidden stage, bottom to top.
        """
        stack = self.stack
        hidden = len(stack) - 1
        targets: list[Tensor] = []
        if self.top == "gradient":
            aim = states[hidden] + self.step * stack[hidden].descend(error)
            targets, start = [aim], hidden - 1
        else:
            aim, start = states[-1] + self.step * error, hidden
        for place in range(start, 0, -1):
            h = states[place]
            aim = h - self.invert(place, states[place + 1], h) + self.invert(place, aim, h)
            targets.insert(0, aim)
        return targets

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        stack = self.stack
        states = [self.enter(x)]
        for stage in stack:
            states.append(stage(states[-1]))
        output = states[-1]
        error = self.top_error(output, target)
        stack[-1].update(0.5 * weighted(error, sample_weight))
        if len(stack) > 1:
            for stage, h, aim in zip(stack, states[1:], self.targets(states, error)):
                stage.update(weighted(aim - h, sample_weight))
        for place in range(1, len(self.inverses) + 1):
            self._learn_inverse(place, states[place], sample_weight)
        return LearnStep(self.loss(output, target, sample_weight), output)

    def _learn_inverse(self, place: int, h: Tensor, sample_weight: Tensor | None) -> None:
        """Write the gradient of the reconstruction loss of ``g_l`` at noisy inputs."""
        assert self.generator is not None
        stage, below = self.stack[place], get_activation(self.stack[place - 1].unit.activation)
        noisy = h + self.noise * torch.randn(h.shape, generator=self.generator).to(h)
        code = stage.unshape(stage(noisy))
        drive = stage.send(code, self.inverses[place - 1], noisy)
        guess = below.function(drive)
        miss = below.gate(guess - noisy, below.keep(drive, guess))
        stage.correlate(code, weighted(miss, sample_weight), 2.0, gradient_of(self.inverses[place - 1]))
