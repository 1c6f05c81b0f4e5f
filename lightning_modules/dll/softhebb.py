"""SoftHebb: unsupervised Hebbian layers that compete softly, read out by a linear classifier.

Journé, Garcia Rodriguez, Guo & Moraitis, "Hebbian Deep Learning Without Feedback", ICLR 2023,
arXiv:2209.11883; Moraitis et al., Neuromorphic Computing and Engineering 2:044017, 2022.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from seedbed.checks import check_number
from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import DLLLayer, autocast, gradient_of, multiply_into
from seedbed.lightning_modules.dll.row_weights import weighted
from seedbed.lightning_modules.dll.rules import LearnStep
from seedbed.lightning_modules.dll.stages import Stage, StagedNetwork, build_stages, normalise

Network = TypeVar("Network", bound="SoftHebb")


class SoftHebb(StagedNetwork):
    r"""Stages that learn without labels, errors or targets, and a linear read-out that learns with them.

    A unit k with input x, standardised per sample, has drive ``u_k = w_k · x`` and competes through
    ``y = softmax(u / τ)`` over the units (over the channels at every position of a convolution). Then

    .. math:: Δw_{ik} = y_k (x_i - u_k w_{ik}),

    and with ``anti_hebbian`` the ``y_k`` of all but the largest drive is negated. At rest weight vectors
    have unit norm. The stage passes on ``relu(u - mean(u))``. The read-out sees every stage, each
    normalised to unit mean square, and descends its own loss.

    Hebbian weights form the optimizer's ``"feedback"`` group: they settle at a tenth of the read-out's rate.

    Parameters
    ----------
    stem : sequence of DLLLayer
        Layers without weights in front of the first stage.
    stages : sequence of Stage
        Hidden stages, bottom to top; heads without activation.
    readout : Parameter of shape (outputs, units of all stages)
        Weights of the linear read-out.
    temperature : float
        τ.
    anti_hebbian : bool
        Whether the losers of the competition unlearn.
    **options
        ``output`` and ``clip_value``, see :class:`~seedbed.lightning_modules.dll.rules.LocalNetwork`.

    Examples
    --------
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = tuple(LayerSpec("linear", size) for size in (8, 6, 3))
    >>> network = SoftHebb.from_config(NetworkConfig(layers, input_shape=(4,)))
    >>> network.readout.shape
    torch.Size([3, 14])
    """

    def __init__(
        self,
        stem: Sequence[DLLLayer],
        stages: Sequence[Stage],
        readout: nn.Parameter,
        *,
        temperature: float = 1.0,
        anti_hebbian: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(stem, stages, **options)
        check_number("temperature", temperature, low=0, closed="neither")
        self.temperature = temperature
        self.anti_hebbian = anti_hebbian
        self.readout = readout

    @classmethod
    def from_config(cls: type[Network], config: NetworkConfig) -> Network:
        """Build from a description; options: ``temperature`` and ``anti_hebbian``."""
        options = config.rule_options(temperature=1.0, anti_hebbian=False)
        stem, stages = build_stages(
            config, "softhebb", activation="identity", sigma=1.0, clip_value=None, bias=False
        )
        places = [place for place, spec in enumerate(config.layers) if spec.weighted]
        # The shape in front of a stage is that of the output of the one below.
        widths = [prod(config.shapes[place - 1]) for place in places[1:]] or [prod(config.input_shape)]
        readout = nn.Parameter(torch.zeros(config.num_outputs, sum(widths)))
        return cls(stem, stages[:-1], readout, output=config.output, clip_value=config.clip_value, **options)

    def feedback_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the Hebbian weights, which learn slower."""
        yield from self.stages.parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Output before the softmax."""
        with torch.no_grad():
            return functional.linear(self._features(x)[0], self.readout)

    def evaluate(self, x: Tensor) -> None:
        """Offer no differentiable form: the read-out alone has a gradient of the loss."""

    def _features(self, x: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """What the read-out sees, and input and drive of each stage."""
        h = self.enter(x)
        seen, traces = [], []
        for stage in self.stack:
            pre = standardise(h)
            u = stage.head(pre)
            traces.append((pre, u))
            h = stage.shape(torch.relu(u - u.mean(1, keepdim=True)))
            seen.append(normalise(h).flatten(1))
        return torch.cat(seen, 1) if seen else h.flatten(1), traces

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        features, traces = self._features(x)
        for stage, (pre, u) in zip(self.stack, traces):
            y = torch.softmax(u / self.temperature, dim=1)
            if self.anti_hebbian:
                y = torch.where(u == u.amax(1, keepdim=True), y, -y)
            y = weighted(y, sample_weight)
            weight = stage.unit.weight
            stage.correlate(y, pre, -1.0, gradient_of(weight))
            pull = (y * u).sum([dim for dim in range(u.ndim) if dim != 1])
            gradient_of(weight).add_(pull.view(-1, *[1] * (weight.ndim - 1)) * weight)
        output = functional.linear(features, self.readout)
        error = self.top_error(output, target, sample_weight)
        left, right = autocast(error.T, features)
        multiply_into(left, right, -1.0, gradient_of(self.readout))
        return LearnStep(self.loss(output, target, sample_weight), output)


def standardise(h: Tensor) -> Tensor:
    """Give each sample mean zero and variance one.

    Parameters
    ----------
    h : Tensor of shape (batch, ...)
        A batch.

    Returns
    -------
    Tensor
        Of the same shape; constant samples become zero.
    """
    flat = h.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    return normalise(centred).view_as(h)
