"""Layer-wise classifiers: every stage learns from a loss of its own.

The prediction loss of Nøkland & Eidnes, "Training Neural Networks with Local Error Signals", ICML 2019,
arXiv:1901.06656.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import DLLLayer, autocast, gradient_of, multiply_into
from seedbed.lightning_modules.dll.rules import LearnStep
from seedbed.lightning_modules.dll.stages import Stage, StagedNetwork, build_stages

Network = TypeVar("Network", bound="LocalLoss")


class LocalLoss(StagedNetwork):
    """Stages with a linear classifier each.

    Stage l maps ``h_l = f_l(h_{l-1})`` and has a classifier ``ŷ_l = A_l h_l``. Both descend the loss of
    ``ŷ_l``; nothing goes to the stage below. The classifier of the last hidden stage is the network's output
    layer.

    Parameters
    ----------
    stem : sequence of DLLLayer
        Layers without weights in front of the first stage.
    stages : sequence of Stage
        Bottom to top, the output layer last.
    classifiers : sequence of Parameter
        ``A_l`` of shape (outputs, units of stage l) for all hidden stages but the last.
    **options
        ``output`` and ``clip_value``, see :class:`~seedbed.lightning_modules.dll.rules.LocalNetwork`.

    Examples
    --------
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = tuple(LayerSpec("linear", size) for size in (8, 6, 3))
    >>> network = LocalLoss.from_config(NetworkConfig(layers, input_shape=(4,)))
    >>> [tuple(classifier.shape) for classifier in network.classifiers]
    [(3, 8)]
    """

    def __init__(
        self,
        stem: Sequence[DLLLayer],
        stages: Sequence[Stage],
        classifiers: Sequence[nn.Parameter],
        **options: Any,
    ) -> None:
        super().__init__(stem, stages, **options)
        self.classifiers = nn.ParameterList(classifiers)

    @classmethod
    def from_config(cls: type[Network], config: NetworkConfig) -> Network:
        """Build from a description; there are no options."""
        config.rule_options()
        stem, stages = build_stages(config, "local_loss", branches=True, sigma=1.0, clip_value=None)
        generator = torch.Generator().manual_seed(config.random_state + 1)
        places = [
            place for place, spec in enumerate(config.layers) if spec.weighted or spec.kind == "branches"
        ]
        # The shape in front of a stage is that of the output of the one below.
        widths = [prod(config.shapes[place - 1]) for place in places[1:-1]]
        draws = [torch.empty(config.num_outputs, width).normal_(generator=generator) for width in widths]
        classifiers = [nn.Parameter(draw * config.weight_std) for draw in draws]
        return cls(stem, stages, classifiers, output=config.output, clip_value=config.clip_value)

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        *hidden, top = self.stack
        h = self.enter(x)
        for stage, classifier in zip(hidden, self.classifiers):
            h = stage(h)
            flat = h.flatten(1)
            error = self.top_error(functional.linear(flat, classifier), target, sample_weight)
            left, right = autocast(error.T, flat)
            multiply_into(left, right, -1.0, gradient_of(classifier))
            # Half, for the layers' factor of two.
            stage.update((0.5 * error @ classifier).view_as(h))
        for stage in hidden[-1:]:
            h = stage(h)
        output = top(h)
        error = 0.5 * self.top_error(output, target, sample_weight)
        top.update(error)
        for stage in hidden[-1:]:
            stage.update(top.descend(error))
        return LearnStep(self.loss(output, target, sample_weight), output)
