"""What every network that learns without backpropagation promises, and the list of those there are.

A learning rule is a class: a subclass of :class:`LocalNetwork` that can be built from a
:class:`~seedbed.lightning_modules.dll.architecture.NetworkConfig`. :func:`build_network` looks a rule up in
:data:`RULES` and builds it, so the same LightningModule, data and optimizer run all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.buffers import GradientBuffer
from seedbed.lightning_modules.dll.row_weights import spread, weighted

Output = Literal["softmax", "identity"]
# typing.Self says the same, but is refused by the shape checks that the tests switch on.
Network = TypeVar("Network", bound="LocalNetwork")


class LearnStep(NamedTuple):
    """What one call of :meth:`LocalNetwork.learn` returns.

    Attributes
    ----------
    loss : Tensor
        Weighted mean loss of the batch before the update, a scalar.
    output : Tensor or None
        The network's output on the batch, as :meth:`LocalNetwork.forward` gives it, where the rule has it
        at no extra cost; None otherwise.
    """

    loss: Tensor
    output: Tensor | None


class LocalNetwork(nn.Module, ABC):
    """A network that learns from local signals.

    The contract, which the Lightning modules rely on:

    ``forward(x)``
        Maps a batch to the output *before* the softmax: logits (B, K) for ``output="softmax"``, values
        (B, K) for ``output="identity"``. Sequence networks give (B, T, K). The argmax of the logits is the
        prediction; their softmax is what ``predict`` reports. No graph is kept.
    ``learn(x, target, sample_weight=None, *, clip=True)``
        Runs the whole rule on one batch and leaves a *descent* gradient in ``.grad`` of each parameter that
        shall move: an optimizer that subtracts ``lr * grad`` then applies the rule. It overwrites ``.grad``,
        it never accumulates. Gradients are **sums** over the batch, so gradients of two halves of a batch
        add up to those of the whole. A parameter that shall rest in this step gets ``.grad = None``, which
        every torch optimizer skips (zeros would let its momentum move on).
        ``target`` is (B, K): class probabilities (already smoothed) or values.
    ``parameter_groups(lr, feedback_lr_ratio)``
        Parameter groups for a torch optimizer; a group named ``"feedback"`` holds what learns slower.
    ``from_config(config)``
        Builds the network.

    A subclass implements ``forward``, ``_learn``, ``from_config`` and, where it has feedback weights,
    ``feedback_parameters``. ``_learn`` may write a gradient in place (``p.grad`` is a view into one flat
    buffer when it is called) or assign ``p.grad = tensor``; both end up in the flat buffer. It runs under
    ``torch.no_grad()`` and must touch no global random state: a rule that draws numbers while it learns
    calls ``self.seed(n)`` once and draws from ``self.generator`` (on the CPU; its state goes into
    ``state_dict``, so that a resumed run equals an uninterrupted one).

    Parameters
    ----------
    output : {"softmax", "identity"}
        Softmax with cross-entropy, or identity with half the squared error.
    clip_value : float or None
        Bound on each entry of each gradient, applied once per step by :meth:`clip_updates`.

    Attributes
    ----------
    update_feedback : bool
        Whether the next ``learn`` also updates feedback weights. Where False, those get ``.grad = None``.
    """

    default_feedback_lr_ratio: float = 0.1
    weight_decay: float = 0.0

    def __init__(self, output: Output, clip_value: float | None = 50.0) -> None:
        super().__init__()
        check_choice("output", output, ("softmax", "identity"))
        if clip_value is not None:
            check_number("clip_value", clip_value, low=0, closed="neither")
        self.output: Output = output
        self.clip_value = clip_value
        self.update_feedback = True
        self.generator: torch.Generator | None = None
        self._buffer = GradientBuffer()

    @classmethod
    @abstractmethod
    def from_config(cls: type[Network], config: NetworkConfig) -> Network:
        """Build the network that ``config`` describes."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Output before the softmax."""

    @abstractmethod
    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        """Write a gradient for every parameter that shall move."""

    def evaluate(self, x: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return the same as ``forward`` but differentiable, to compare with backpropagation.

        Parameters
        ----------
        x : Tensor
            Inputs.

        Returns
        -------
        Tensor or None
            Output with a graph; None where the network does not offer it.
        """
        return None

    def alignments(self) -> dict[str, Tensor]:
        """Cosine between forward and feedback weights, by parameter name.

        Returns
        -------
        dict of str to Tensor
            Scalars; empty where a rule has no feedback weights of the forward weights' shape.
        """
        return {}

    def monitor(self, active: bool) -> None:
        """Measure, or stop measuring, the share of errors that meet their bound.

        Parameters
        ----------
        active : bool
            Whether to. Rules that bound no errors ignore it.
        """

    def clipped_share(self) -> Tensor | None:
        """Share of error entries that met the bound while they were monitored.

        Returns
        -------
        Tensor or None
            A scalar; None where nothing was measured.
        """
        return None

    def feedback_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that carry errors down and learn at their own rate.

        Yields
        ------
        Parameter
            None here; rules with learned feedback override this.
        """
        yield from ()

    def learn(
        self,
        x: Tensor,
        target: Float[Tensor, "batch *output"],
        sample_weight: Float[Tensor, "batch *time"] | None = None,
        *,
        clip: bool = True,
    ) -> LearnStep:
        """Write the gradients of one batch.

        Parameters
        ----------
        x : Tensor
            Inputs, batch first.
        target : Tensor of shape (batch, outputs) or (batch, time, outputs)
            Class probabilities, or values.
        sample_weight : Tensor of shape (batch,) or (batch, time), optional
            Factor on each row's share of the update. Zero leaves the row out.
        clip : bool
            Whether to bound the gradients at once. Data-parallel training passes False, reduces first and
            then calls :meth:`clip_updates`: a bound on each share would make the result depend on the
            number of processes.

        Returns
        -------
        LearnStep
            Loss and output before the update.
        """
        with torch.no_grad():
            self._buffer.attach(self._ordered_parameters())
            step = self._learn(x, target, sample_weight)
            self._buffer.collect()
            if clip:
                self.clip_updates()
        return step

    def clip_updates(self, max_norm: float | None = None) -> None:
        """Bound each entry of each gradient by ``clip_value``, then their joint norm by ``max_norm``.

        Parameters
        ----------
        max_norm : float, optional
            Bound on the Euclidean norm of all gradients together.
        """
        with torch.no_grad():
            flat = self._buffer.active
            if self.clip_value is not None:
                flat.clamp_(-self.clip_value, self.clip_value)
        if max_norm is not None:
            nn.utils.clip_grad_norm_([p for p in self.parameters() if p.grad is not None], max_norm)

    def reduce_updates(self, reduce: Callable[[Tensor], Tensor]) -> None:
        """Replace all gradients at once by what ``reduce`` makes of the flat buffer that holds them.

        Parameters
        ----------
        reduce : callable
            Given the flat gradient (in place or not), returns the reduced one: a sum over processes.
        """
        with torch.no_grad():
            flat = self._buffer.active
            reduced = reduce(flat)
            if reduced is not flat:
                flat.copy_(reduced)

    def parameter_groups(
        self, lr: float | None = None, feedback_lr_ratio: float | None = None
    ) -> list[dict[str, Any]]:
        """Parameter groups for a torch optimizer.

        Parameters
        ----------
        lr : float, optional
            Rate of the forward weights; None leaves rates to the optimizer's own default.
        feedback_lr_ratio : float, optional
            Rate of the feedback weights over that of the forward weights; None takes the rule's own.

        Returns
        -------
        list of dict
            Group ``"forward"`` and, where there are learned feedback weights, group ``"feedback"``. With
            ``lr`` given each carries its rate. Rules that decay weights set ``weight_decay``.
        """
        ratio = self.default_feedback_lr_ratio if feedback_lr_ratio is None else feedback_lr_ratio
        feedback = [p for p in self.feedback_parameters() if p.requires_grad]
        known = {id(p) for p in feedback}
        forward = [p for p in self.parameters() if p.requires_grad and id(p) not in known]
        groups: list[dict[str, Any]] = [{"params": forward, "name": "forward"}]
        if feedback:
            groups.append({"params": feedback, "name": "feedback"})
        for group in groups:
            if lr is not None:
                group["lr"] = lr * (ratio if group["name"] == "feedback" else 1.0)
            if self.weight_decay:
                group["weight_decay"] = self.weight_decay
        return groups

    def loss(self, output: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Weighted mean loss of a batch.

        Parameters
        ----------
        output : Tensor of shape (..., outputs)
            From :meth:`forward`.
        target : Tensor of shape (..., outputs)
            Class probabilities, or values.
        sample_weight : Tensor, optional
            Weights of the leading dimensions.

        Returns
        -------
        Tensor
            Cross-entropy, or half the squared error; a scalar.
        """
        if self.output == "softmax":
            wide = output.to(torch.promote_types(output.dtype, torch.float32))
            rows = -(target * torch.log_softmax(wide, dim=-1)).sum(-1)
        else:
            rows = 0.5 * (target - output).square().sum(-1)
        if sample_weight is None:
            return rows.mean()
        weight = spread(sample_weight, rows)
        # All-zero weights: nothing to average, and 0 / 0 must not reach a log.
        return (weight * rows).sum() / weight.sum().clamp_min(torch.finfo(rows.dtype).tiny)

    def top_error(self, output: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Error at the output: target minus prediction, the negative gradient of the loss's row sum.

        Parameters
        ----------
        output : Tensor of shape (..., outputs)
            From :meth:`forward`.
        target : Tensor of shape (..., outputs)
            Class probabilities, or values.
        sample_weight : Tensor, optional
            Factor on each row.

        Returns
        -------
        Tensor
            Shape of ``target``: ``t - softmax(output)`` or ``t - output``.
        """
        prediction = torch.softmax(output, dim=-1) if self.output == "softmax" else output
        return weighted(target - prediction, sample_weight)

    def seed(self, random_state: int) -> None:
        """Give the network its own generator for draws made while learning.

        Parameters
        ----------
        random_state : int
            Seed.
        """
        self.generator = torch.Generator().manual_seed(random_state)

    def get_extra_state(self) -> Tensor:
        """State of the generator, for ``state_dict``."""
        return torch.empty(0, dtype=torch.uint8) if self.generator is None else self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the generator from ``state_dict``."""
        if self.generator is not None and state.numel():
            self.generator.set_state(state.cpu())

    def _ordered_parameters(self) -> list[nn.Parameter]:
        """Return what learns, feedback weights last: a step that leaves them out reduces a shorter buffer."""
        return [p for group in self.parameter_groups() for p in group["params"]]

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the gradient buffer behind: its views would point at the original."""
        return {**self.__dict__, "_buffer": GradientBuffer()}


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode for a block, without a graph.

    Parameters
    ----------
    network : Module
        Restored to its former mode afterwards.

    Yields
    ------
    None
        Nothing.
    """
    mode = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(mode)


Architecture = Literal["mlp", "cnn", "rnn"]


@dataclass(frozen=True)
class Rule:
    """A learning rule and which criteria of biological plausibility it meets.

    The ticks are a reading of the three criteria; the paper claims all three for ``dll``.

    Attributes
    ----------
    name : str
        Value of ``learning_rule``.
    network : str
        ``"module:Class"`` of its :class:`LocalNetwork` for feed-forward networks.
    separate_weights : {"yes", "partly", "no"}
        C1: forward and feedback weights are not the same matrix.
    local_error : {"yes", "partly", "no"}
        C2: a neuron can form its error from what reaches it.
    single_phase : {"yes", "partly", "no"}
        C3: no separate backward or settling phase.
    architectures : tuple of {"mlp", "cnn", "rnn"}
        What it can train.
    sequence_network : str, optional
        ``"module:Class"`` for recurrent networks.
    """

    name: str
    network: str
    separate_weights: Literal["yes", "partly", "no"]
    local_error: Literal["yes", "partly", "no"]
    single_phase: Literal["yes", "partly", "no"]
    architectures: tuple[Architecture, ...] = ("mlp", "cnn")
    sequence_network: str | None = None


_HERE = "seedbed.lightning_modules.dll"
_ALL: tuple[Architecture, ...] = ("mlp", "cnn", "rnn")

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "dll",
            f"{_HERE}.networks:DendriticNetwork",
            "yes",
            "yes",
            "yes",
            _ALL,
            f"{_HERE}.recurrent:DendriticRNN",
        ),
        Rule(
            "fa",
            f"{_HERE}.networks:FeedbackAlignment",
            "yes",
            "no",
            "no",
            _ALL,
            f"{_HERE}.recurrent:FeedbackAlignmentRNN",
        ),
        Rule("dfa", f"{_HERE}.networks:DirectFeedbackAlignment", "yes", "no", "no"),
        Rule(
            "sign_symmetry",
            f"{_HERE}.networks:SignSymmetry",
            "partly",
            "no",
            "no",
            _ALL,
            f"{_HERE}.recurrent:SignSymmetryRNN",
        ),
        Rule(
            "kolen_pollack",
            f"{_HERE}.networks:KolenPollack",
            "yes",
            "partly",
            "no",
            _ALL,
            f"{_HERE}.recurrent:KolenPollackRNN",
        ),
        Rule(
            "bp",
            f"{_HERE}.networks:Backpropagation",
            "no",
            "no",
            "no",
            _ALL,
            f"{_HERE}.recurrent:BackpropagationRNN",
        ),
        Rule(
            "pc",
            f"{_HERE}.predictive_coding:PredictiveCoding",
            "no",
            "yes",
            "no",
            _ALL,
            f"{_HERE}.recurrent:PredictiveCodingRNN",
        ),
        Rule(
            "pc_fa",
            f"{_HERE}.predictive_coding:PredictiveCodingFA",
            "yes",
            "yes",
            "no",
            _ALL,
            f"{_HERE}.recurrent:PredictiveCodingFARNN",
        ),
        Rule(
            "ipc",
            f"{_HERE}.predictive_coding:IncrementalPredictiveCoding",
            "no",
            "yes",
            "yes",
            _ALL,
            f"{_HERE}.recurrent:IncrementalPredictiveCodingRNN",
        ),
        Rule("dtp", f"{_HERE}.target_propagation:TargetPropagation", "yes", "yes", "no"),
        Rule("ep", f"{_HERE}.equilibrium:EquilibriumPropagation", "no", "yes", "no"),
        Rule("ff", f"{_HERE}.forward_forward:ForwardForward", "yes", "yes", "no"),
        Rule("softhebb", f"{_HERE}.softhebb:SoftHebb", "yes", "yes", "yes"),
        Rule("local_loss", f"{_HERE}.local_loss:LocalLoss", "yes", "yes", "yes"),
    )
}
"""Every learning rule by name."""


def build_network(rule: str, config: NetworkConfig) -> LocalNetwork:
    """Build the network that learns by a rule.

    Parameters
    ----------
    rule : str
        A key of :data:`RULES`.
    config : NetworkConfig
        Layers, input shape and the rule's settings. For ``config.architecture == "rnn"`` the
        rule's sequence network is built.

    Returns
    -------
    LocalNetwork
        Ready to learn.

    Raises
    ------
    ValueError
        If the rule is unknown (the message lists the choices) or cannot train this architecture.
    """
    check_choice("learning_rule", rule, tuple(RULES))
    entry = RULES[rule]
    path = entry.sequence_network if config.architecture == "rnn" else entry.network
    if config.architecture not in entry.architectures or path is None:
        can = [name for name, other in RULES.items() if config.architecture in other.architectures]
        raise ValueError(
            f"learning_rule={rule!r} cannot train a network of kind {config.architecture!r}; "
            f"those that can: {', '.join(map(repr, can))}"
        )
    module, _, name = path.partition(":")
    network: type[LocalNetwork] = getattr(import_module(module), name)
    return network.from_config(config)
