"""Feed-forward networks whose rules differ only in what carries the error down.

========================  ==========================================  =======================
class                     error at the input of a layer with weights  feedback weights
========================  ==========================================  =======================
DendriticNetwork          δ Θᵀ                                        learn by a local rule
FeedbackAlignment         δ Bᵀ                                        fixed
DirectFeedbackAlignment   e_top B                                     fixed
SignSymmetry              δ sign(W)ᵀ · std                            none
KolenPollack              δ Θᵀ                                        ΔΘ = ΔW, both decay
Backpropagation           autograd                                    none
========================  ==========================================  =======================
"""

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import LEARNED, DLLLayer, DLLWeighted
from seedbed.lightning_modules.dll.row_weights import weighted
from seedbed.lightning_modules.dll.rules import LearnStep, LocalNetwork, Output
from seedbed.lightning_modules.dll.sequential import Carry, DLLSequential, build_layers, by_feedback

Stack = TypeVar("Stack", bound="DendriticNetwork")
Direct = TypeVar("Direct", bound="DirectFeedbackAlignment")
Taught = TypeVar("Taught", bound="Backpropagation")


class DendriticNetwork(LocalNetwork):
    """A stack of DLL layers with a softmax or an identity on top (rule ``"dll"``).

    Parameters
    ----------
    body : DLLSequential
        Its last layer has identity activation.
    output : {"softmax", "identity"}
        Classification or regression.
    clip_value : float or None
        Bound on each entry of each update; errors inside the body have their own.

    Examples
    --------
    >>> import torch
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = (LayerSpec("linear", 8), LayerSpec("linear", 3, activation="identity"))
    >>> net = DendriticNetwork.from_config(NetworkConfig(layers, input_shape=(4,)))
    >>> step = net.learn(torch.ones(3, 4), torch.eye(3))
    >>> round(float(step.loss), 2)
    1.1
    """

    fixed_rule: str | None = None
    default_feedback_init: str = "normal"

    def __init__(self, body: DLLSequential, output: Output, clip_value: float | None = 50.0) -> None:
        super().__init__(output, clip_value)
        self.body = body
        if {layer.feedback_rule for layer in body.weighted_layers()} == {"kolen_pollack"}:
            # ΔΘ = ΔW brings W and Θ together only where both move at one rate and decay.
            self.default_feedback_lr_ratio = 1.0

    @classmethod
    def from_config(cls: type[Stack], config: NetworkConfig) -> Stack:
        """Build the network.

        Parameters
        ----------
        config : NetworkConfig
            Layers and settings. ``options`` may have ``weight_decay`` (Kolen-Pollack's, default 0.01).

        Returns
        -------
        DendriticNetwork
            With weights drawn from ``config.random_state``.
        """
        rule = cls.fixed_rule or config.feedback_rule
        defaults = {"weight_decay": 0.01} if rule == "kolen_pollack" else {}
        options = config.rule_options(**defaults)
        layers = build_layers(config, feedback_rule=rule, feedback_init=cls.default_feedback_init)
        network = cls(DLLSequential(*layers), config.output, config.clip_value)
        network.weight_decay = options.get("weight_decay", 0.0)
        return network

    def forward(self, x: Tensor) -> Tensor:
        """Output before the softmax.

        Parameters
        ----------
        x : Tensor
            Inputs, batch first.

        Returns
        -------
        Tensor of shape (batch, outputs)
            Logits or values.
        """
        return self.body(x)

    def evaluate(self, x: Tensor) -> Tensor:
        """Return the same as ``forward``, differentiable."""
        return self.body.evaluate(x)

    def carry(self, e_top: Tensor) -> Carry:  # noqa: ARG002  (direct feedback needs it)
        """Return how errors pass a layer, given that at the top.

        Parameters
        ----------
        e_top : Tensor
            Error at the output.

        Returns
        -------
        callable
            For :meth:`DLLSequential.learn`.
        """
        return by_feedback

    def feedback_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the learned Θ of each layer."""
        for layer in self.body.weighted_layers():
            if layer.feedback is not None and layer.feedback_rule in LEARNED:
                yield layer.feedback

    def alignments(self) -> dict[str, Tensor]:
        """Cosine between W and Θ of each layer that has both."""
        return {
            name: cosine
            for name, layer in self.body.named_modules()
            if isinstance(layer, DLLWeighted) and (cosine := layer.alignment()) is not None
        }

    def clipped_share(self) -> Tensor | None:
        """Share of error entries that met the bound, mean over layers that were monitored.

        Returns
        -------
        Tensor or None
            A scalar; None where nothing was measured.
        """
        shares = [layer.clipped for layer in self.body.weighted_layers() if layer.clipped is not None]
        return torch.stack(shares).mean() if shares else None

    def monitor(self, active: bool) -> None:
        """Measure, or stop measuring, the share of bounded errors.

        Parameters
        ----------
        active : bool
            Whether to.
        """
        for module in self.body.modules():
            if isinstance(module, DLLLayer):
                module.monitor = active

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        for layer in self.body.weighted_layers():
            layer.update_feedback = self.update_feedback
        output = self.body(x)
        e_top = self.top_error(output, target)
        self.body.learn(e_top, self.carry(e_top), sample_weight)
        return LearnStep(self.loss(output, target, sample_weight), output)


class FeedbackAlignment(DendriticNetwork):
    """Errors go down through fixed random weights, ±1 unless told otherwise (rule ``"fa"``).

    Lillicrap et al., *Random synaptic feedback weights support error backpropagation for deep learning*,
    Nature Communications 7 (2016). The same as ``"dll"`` with ``feedback_rule="fixed"``.
    """

    fixed_rule: str | None = "fixed"
    default_feedback_init: str = "sign"


class KolenPollack(DendriticNetwork):
    """Feedback weights receive the forward weights' updates, and both decay (rule ``"kolen_pollack"``).

    Akrout et al., *Deep learning without weight transport*, NeurIPS 2019. With one learning rate for both
    and decoupled decay λ the difference W - Θ shrinks by ``1 - lr λ`` a step. Its optimizer should decouple
    the decay (SGD does, AdamW does, Adam does not).
    """

    fixed_rule: str | None = "kolen_pollack"


class SignSymmetry(DendriticNetwork):
    """Errors go down through ``feedback_std · sign(W)`` (rule ``"sign_symmetry"``).

    Liao, Leibo and Poggio, *How important is weight symmetry in backpropagation?*, AAAI 2016.
    """

    fixed_rule: str | None = "sign_symmetry"


class DirectFeedbackAlignment(DendriticNetwork):
    """The error at the output reaches every layer directly through fixed random weights (rule ``"dfa"``).

    Nøkland, *Direct feedback alignment provides learning in deep neural networks*, NeurIPS 2016. The signal
    arrives at the input of each layer with weights and passes pools and flattening below it as any error
    does. Inside parallel branches layers use fixed feedback of their own.

    Parameters
    ----------
    body : DLLSequential
        The layers.
    output : {"softmax", "identity"}
        Classification or regression.
    clip_value : float or None
        Bound on each entry of each update.
    direct : sequence of Tensor
        For each layer with weights above the lowest, bottom to top: ``B`` of shape (outputs, inputs of that
        layer, flattened).
    """

    fixed_rule: str | None = "fixed"
    default_feedback_init: str = "sign"

    def __init__(
        self,
        body: DLLSequential,
        output: Output,
        clip_value: float | None = 50.0,
        direct: list[Tensor] | None = None,
    ) -> None:
        super().__init__(body, output, clip_value)
        upper = [layer for layer in body if isinstance(layer, DLLWeighted) and layer.needs_feedback]
        given = direct or []
        if len(given) != len(upper):
            raise ValueError(f"direct must have one matrix for each of {len(upper)} layers, got {len(given)}")
        for layer in upper:
            layer.feedback = None
        self.direct = nn.ParameterList(nn.Parameter(matrix, requires_grad=False) for matrix in given)
        self._places = {id(layer): place for place, layer in enumerate(upper)}

    @classmethod
    def from_config(cls: type[Direct], config: NetworkConfig) -> Direct:
        """Build the network.

        Parameters
        ----------
        config : NetworkConfig
            Layers and settings.

        Returns
        -------
        DirectFeedbackAlignment
            With weights drawn from ``config.random_state``.
        """
        config.rule_options()
        generator = torch.Generator().manual_seed(config.random_state)
        body = DLLSequential(*build_layers(config, feedback_rule="fixed", generator=generator))
        shapes = [config.input_shape, *config.shapes]
        direct = []
        for layer, shape in zip(body, shapes, strict=False):
            if isinstance(layer, DLLWeighted) and layer.needs_feedback:
                drawn = torch.empty(config.num_outputs, torch.Size(shape).numel()).normal_(
                    generator=generator
                )
                if (config.feedback_init or cls.default_feedback_init) == "sign":
                    drawn = torch.where(drawn < 0, -1.0, 1.0)
                direct.append(drawn * layer.feedback_std)
        return cls(body, config.output, config.clip_value, direct)

    def carry(self, e_top: Tensor) -> Carry:
        """Return a carry that brings the output's error to each layer with weights."""

        def route(layer: DLLLayer, e: Tensor) -> Tensor:
            place = self._places.get(id(layer))
            if place is None or not isinstance(layer, DLLWeighted):
                return layer.feedback_error(e)
            like = layer.recalled()[0]
            return layer.receive(torch.mm(e_top, self.direct[place].to(e_top.dtype)).view(like.shape))

        return route


class Backpropagation(LocalNetwork):
    """The same layers taught by autograd, for comparison (rule ``"bp"``).

    Gradients carry the factor ``2/σ²`` of the local rules, so that one learning rate suits all. Its errors
    are not bounded inside the network, its updates are.

    Parameters
    ----------
    body : DLLSequential
        Layers; their feedback weights, if any, are not used.
    output : {"softmax", "identity"}
        Classification or regression.
    clip_value : float or None
        Bound on each entry of each update.
    sigma : float
        The energy's σ.
    """

    def __init__(
        self, body: DLLSequential, output: Output, clip_value: float | None = 50.0, sigma: float = 1.0
    ) -> None:
        super().__init__(output, clip_value)
        self.body = body
        self.sigma = sigma

    @classmethod
    def from_config(cls: type[Taught], config: NetworkConfig) -> Taught:
        """Build the network.

        Parameters
        ----------
        config : NetworkConfig
            Layers and settings.

        Returns
        -------
        Backpropagation
            With weights drawn from ``config.random_state``.
        """
        config.rule_options()
        body = DLLSequential(*build_layers(config, feedback_rule="transport"))
        return cls(body, config.output, config.clip_value, config.sigma)

    def forward(self, x: Tensor) -> Tensor:
        """Output before the softmax.

        Parameters
        ----------
        x : Tensor
            Inputs, batch first.

        Returns
        -------
        Tensor of shape (batch, outputs)
            Logits or values.
        """
        with torch.no_grad():
            return self.body.evaluate(x)

    def evaluate(self, x: Tensor) -> Tensor:
        """Return the same as ``forward``, differentiable."""
        return self.body.evaluate(x)

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        parameters = [p for p in self.parameters() if p.requires_grad]
        output, gradients = differentiate(self, x, target, sample_weight, parameters, 2.0 / self.sigma**2)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return LearnStep(self.loss(output, target, sample_weight), output)


def differentiate(
    network: LocalNetwork,
    x: Tensor,
    target: Tensor,
    sample_weight: Tensor | None,
    parameters: list[nn.Parameter],
    scale: float = 1.0,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Gradient of the summed loss by autograd.

    Parameters
    ----------
    network : LocalNetwork
        One that offers ``evaluate``.
    x : Tensor
        Inputs.
    target : Tensor
        Class probabilities or values.
    sample_weight : Tensor, optional
        Factor on each row.
    parameters : list of Parameter
        Of which.
    scale : float
        Factor on the gradient.

    Returns
    -------
    output : Tensor
        Of the network, detached.
    gradients : tuple of Tensor
        One per parameter.

    Raises
    ------
    ValueError
        If the network has no differentiable form.
    """
    with torch.enable_grad():
        output = network.evaluate(x)
        if output is None:
            raise ValueError(f"{type(network).__name__} has no differentiable form to compare with")
        if network.output == "softmax":
            rows = -(target * torch.log_softmax(output, dim=-1)).sum(-1)
        else:
            rows = 0.5 * (target - output).square().sum(-1)
        gradients = torch.autograd.grad(scale * weighted(rows, sample_weight).sum(), parameters)
    return output.detach(), gradients
