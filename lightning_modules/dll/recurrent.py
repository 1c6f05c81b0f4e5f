"""A recurrent network whose errors travel back through their own weights.

With ``h_t = φ(h_{t-1} W_h + x_t W_x)`` and ``y_t = h_t W_y``, errors ``e`` pointing downhill::

    e^h_t = e^y_t Θ_yᵀ + δ_{t+1} Θ_hᵀ        δ_t = e^h_t ∘ φ'(z_t)        (δ_{T+1} = 0)
    ΔW_y = Σ_t h_tᵀ e^y_t       ΔW_x = Σ_t x_tᵀ δ_t       ΔW_h = Σ_t h_{t-1}ᵀ δ_t
    ΔΘ_y = s Σ_t (e^h_t)ᵀ e^y_t                            ΔΘ_h = s Σ_{t≥2} (e^h_{t-1})ᵀ δ_t

Errors still travel back through time, as they do in recurrent predictive coding: the rule is local in
space, not in time. ``truncate`` bounds how far they go. Weights are kept outputs first, as torch does.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.dll.activations import get_activation
from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import (
    LAYER_FEEDBACK_RULES,
    LEARNED,
    SIGN,
    autocast,
    gradient_of,
    multiply_into,
)
from seedbed.lightning_modules.dll.networks import differentiate
from seedbed.lightning_modules.dll.row_weights import weighted
from seedbed.lightning_modules.dll.rules import LearnStep, LocalNetwork, Output

Saved = tuple[Tensor, Tensor, Tensor]
"""Input, states (T + 1, B, H) and what the gate needs (T, B, H), time first."""

Recurrent = TypeVar("Recurrent", bound="DendriticRNN")


class DLLRNN(nn.Module):
    """Elman network of three-compartment neurons with a linear readout.

    Parameters
    ----------
    input_size, hidden_size, output_size : int
        Widths. An integer input is read as tokens below ``input_size``, the same as one-hot vectors.
    activation : str
        Of the hidden units.
    batch_first : bool
        Input as (batch, time, features), or (time, batch, features).
    truncate : int, optional
        How many steps an error at one output reaches, that step included; None lets it reach the start.
    noise : float
        Errors of hidden units are multiplied by ``1 + noise · U(-1, 1)`` while learning.
    feedback_rule : str
        As in :class:`~seedbed.lightning_modules.dll.layers.DLLLinear`. ``"anti_hebbian"`` shrinks Θ along
        the errors and is stable under plain SGD, ``"hebbian"`` is not.
    feedback_init : {"normal", "sign"}
        Θ starts as ``N(0, feedback_std²)`` or ``±feedback_std``.
    weight_std, feedback_std : float
        Standard deviations at the start.
    initial_state : {"zeros", "random"}
        ``h_0`` for every sequence: zero, or drawn once from ``N(0, weight_std²)`` and kept.
    bias : bool
        Whether hidden units and outputs have biases.
    generator : torch.Generator, optional
        Source of the initial weights; None draws from torch's.

    Attributes
    ----------
    weight_ih, weight_hh, weight_ho : Parameter
        W_x (hidden, input), W_h (hidden, hidden) and W_y (output, hidden).
    feedback_hh, feedback_ho : Parameter or None
        Θ_h and Θ_y, shaped like W_h and W_y.
    settled : float
        Share of what arrives that the error of a hidden unit comes to before it is sent on; 1 unless errors
        settle step by step, as in predictive coding.

    Examples
    --------
    >>> import torch
    >>> net = DLLRNN(3, 8, 2, generator=torch.Generator().manual_seed(0))
    >>> y = net(torch.ones(5, 7, 3))
    >>> net.learn(1.0 - y)
    >>> y.shape, net.feedback_hh.grad.shape
    (torch.Size([5, 7, 2]), torch.Size([8, 8]))
    """

    feedback_hh: nn.Parameter | None
    feedback_ho: nn.Parameter | None
    bias_h: nn.Parameter | None
    bias_o: nn.Parameter | None
    initial: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int,
        *,
        activation: str = "tanh",
        batch_first: bool = True,
        truncate: int | None = None,
        noise: float = 0.0,
        feedback_rule: str = "anti_hebbian",
        feedback_init: str = "normal",
        weight_std: float = 0.05,
        feedback_std: float = 0.05,
        initial_state: str = "zeros",
        bias: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, size in (
            ("input_size", input_size),
            ("hidden_size", hidden_size),
            ("output_size", output_size),
        ):
            check_number(name, size, low=1, integer=True)
        if truncate is not None:
            check_number("truncate", truncate, low=1, integer=True)
        check_number("noise", noise, low=0, high=1)
        check_choice("feedback_rule", feedback_rule, LAYER_FEEDBACK_RULES)
        check_choice("feedback_init", feedback_init, ("normal", "sign"))
        check_choice("initial_state", initial_state, ("zeros", "random"))
        check_number("weight_std", weight_std, low=0)
        check_number("feedback_std", feedback_std, low=0)
        self.activation = get_activation(activation).name
        self.input_size = input_size
        self.batch_first = batch_first
        self.truncate = truncate
        self.noise = noise
        self.feedback_rule = feedback_rule
        self.feedback_std = feedback_std
        self.update_feedback = True
        self.settled = 1.0
        self._saved: Saved | None = None

        def drawn(*shape: int) -> Tensor:
            return torch.empty(shape).normal_(0.0, 1.0, generator=generator)

        self.weight_ih = nn.Parameter(drawn(hidden_size, input_size) * weight_std)
        self.weight_hh = nn.Parameter(drawn(hidden_size, hidden_size) * weight_std)
        self.weight_ho = nn.Parameter(drawn(output_size, hidden_size) * weight_std)
        self.register_parameter("bias_h", nn.Parameter(torch.zeros(hidden_size)) if bias else None)
        self.register_parameter("bias_o", nn.Parameter(torch.zeros(output_size)) if bias else None)
        for name, like in (("feedback_hh", self.weight_hh), ("feedback_ho", self.weight_ho)):
            self.register_parameter(name, None)
            if feedback_rule not in ("sign_symmetry", "transport"):
                start = drawn(*like.shape)
                if feedback_init == "sign":
                    start = torch.where(start < 0, -1.0, 1.0)
                setattr(
                    self, name, nn.Parameter(start * feedback_std, requires_grad=feedback_rule in LEARNED)
                )
        state = drawn(hidden_size) * weight_std if initial_state == "random" else torch.zeros(hidden_size)
        self.register_buffer("initial", state)

    def transform(self, x: Tensor) -> tuple[Tensor, Saved]:
        """Run over a batch of sequences; pure and differentiable.

        Parameters
        ----------
        x : Tensor of shape (batch, time, input_size), or integers of shape (batch, time)
            Inputs.

        Returns
        -------
        y : Tensor of shape (batch, time, output_size)
            Outputs.
        saved : tuple of Tensor
            What learning needs.
        """
        self._check_input(x)
        phi = get_activation(self.activation)
        x = x.transpose(0, 1) if self.batch_first else x
        if x.is_floating_point():
            drive = functional.linear(x, self.weight_ih, self.bias_h)
        else:
            drive = functional.embedding(x, self.weight_ih.T)
            drive = drive if self.bias_h is None else drive + self.bias_h
        states = [self.initial.to(drive.dtype).expand(x.shape[1], -1)]
        kept = []
        for now in drive:
            z = torch.addmm(now, states[-1], self.weight_hh.T)
            states.append(phi.function(z))
            kept.append(phi.keep(z, states[-1]))
        hidden = torch.stack(states)
        y = functional.linear(hidden[1:], self.weight_ho, self.bias_o)
        slopes = hidden[1:] if phi.keeps_output else torch.stack(kept)
        return (y.transpose(0, 1) if self.batch_first else y), (x, hidden, slopes)

    def forward(self, x: Tensor) -> Tensor:
        """Run over a batch of sequences and, in training mode, remember what learning needs.

        Parameters
        ----------
        x : Tensor of shape (batch, time, input_size), or integers of shape (batch, time)
            Inputs; time first where ``batch_first`` is False.

        Returns
        -------
        Tensor of shape (batch, time, output_size)
            Outputs.
        """
        with torch.no_grad():
            y, saved = self.transform(x.detach())
        self._saved = saved if self.training else None
        return y

    def learn(
        self,
        e_top: Float[Tensor, "_ _ outputs"],
        generator: torch.Generator | None = None,
        sample_weight: Float[Tensor, "batch *time"] | None = None,
    ) -> None:
        """Send errors back through time and write all gradients.

        Parameters
        ----------
        e_top : Tensor of shape (batch, time, output_size)
            Error at each output, target minus prediction; zero where a sequence is padded at its end.
        generator : torch.Generator, optional
            Source of the noise.
        sample_weight : Tensor of shape (batch,) or (batch, time), optional
            Factor on each sequence's share of the updates, or on each output's error (a mask, say).

        Raises
        ------
        RuntimeError
            If ``e_top`` requires a gradient, or no training-mode forward came before.
        FloatingPointError
            If an error is NaN or infinite.
        """
        if e_top.requires_grad:
            raise RuntimeError("DLL needs no autograd: e_top must not require a gradient; detach it")
        if self._saved is None:
            raise RuntimeError("DLLRNN has nothing to learn from: call forward in training mode first")
        with torch.no_grad():
            x, hidden, slopes = self._saved
            per_sequence = sample_weight
            if sample_weight is not None and sample_weight.ndim == 2:
                # Errors of several steps meet in each unit: only here can steps be told apart.
                e_top, per_sequence = weighted(e_top, sample_weight), None
            e_y = (e_top.transpose(0, 1) if self.batch_first else e_top).to(slopes.dtype)
            e_h, delta = self._errors(e_y, slopes, generator)
            if e_top.is_cpu and not torch.isfinite(delta.sum(dtype=torch.float64)):
                raise FloatingPointError(
                    "the error of the hidden units is not finite; lower the learning rate, or bound updates "
                    "by clip_value"
                )
            if per_sequence is not None:
                rows = per_sequence.expand(len(e_y), -1)
                e_y, delta = weighted(e_y, rows), weighted(delta, rows)
            self._write(x, hidden, e_y, e_h, delta)
            self._saved = None

    def feedback_matrix(self, name: Literal["hh", "ho"]) -> Tensor:
        """Weights that carry errors down: of the recurrent or of the output weights.

        Parameters
        ----------
        name : {"hh", "ho"}
            Which.

        Returns
        -------
        Tensor
            Θ; ``std · sign(W)`` for ``"sign_symmetry"``; W for ``"transport"``.
        """
        weight = self.weight_hh if name == "hh" else self.weight_ho
        if self.feedback_rule == "sign_symmetry":
            return torch.sign(weight.detach()) * self.feedback_std
        feedback = self.feedback_hh if name == "hh" else self.feedback_ho
        return weight.detach() if feedback is None else feedback.detach()

    def _errors(
        self,
        e_y: Float[Tensor, "time batch outputs"],
        slopes: Float[Tensor, "time batch hidden"],
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "time batch hidden"], Float[Tensor, "time batch hidden"]]:
        """Return errors of hidden units and the same gated."""
        phi = get_activation(self.activation)
        down_y, down_h = self.feedback_matrix("ho"), self.feedback_matrix("hh")
        from_output = torch.matmul(*autocast(e_y, down_y)).to(slopes.dtype)
        steps = len(e_y)
        factor = None
        if self.noise or self.settled != 1.0:
            factor = torch.full((steps, 1, 1), self.settled, dtype=slopes.dtype, device=slopes.device)
            if self.noise:
                draws = torch.rand(from_output.shape, generator=generator, dtype=torch.float32)
                factor = factor * (1.0 + self.noise * (2.0 * draws - 1.0)).to(from_output)
            from_output = from_output * factor
        if self.truncate is not None and self.truncate < steps:
            # The rule is linear in e^y: errors from outputs j steps ahead are one product for all t.
            e_h, part = from_output, phi.gate(from_output, slopes)
            delta = part
            for _ in range(1, self.truncate):
                carried = torch.zeros_like(part)
                carried[:-1] = torch.matmul(*autocast(part[1:], down_h))
                if factor is not None:
                    carried = carried * factor
                e_h = e_h + carried
                part = phi.gate(carried, slopes)
                delta = delta + part
            return e_h, delta
        e_h, delta = torch.empty_like(from_output), torch.empty_like(from_output)
        e_h[-1] = from_output[-1]
        delta[-1] = phi.gate(from_output[-1], slopes[-1])
        for t in range(steps - 2, -1, -1):
            carried = torch.mm(*autocast(delta[t + 1], down_h))
            e_h[t] = from_output[t] + (carried if factor is None else carried * factor[t])
            delta[t] = phi.gate(e_h[t], slopes[t])
        return e_h, delta

    def _write(
        self,
        x: Tensor,
        hidden: Float[Tensor, "states batch hidden"],
        e_y: Float[Tensor, "time batch outputs"],
        e_h: Float[Tensor, "time batch hidden"],
        delta: Float[Tensor, "time batch hidden"],
    ) -> None:
        """Write all gradients, each as one product over time and batch."""

        def correlate(post: Tensor, pre: Tensor, scale: float, out: Tensor) -> None:
            post, pre = autocast(post.flatten(0, 1), pre.flatten(0, 1))
            multiply_into(post.T, pre, scale, out)

        correlate(e_y, hidden[1:], -1.0, gradient_of(self.weight_ho))
        correlate(delta, hidden[:-1], -1.0, gradient_of(self.weight_hh))
        out = gradient_of(self.weight_ih)
        if x.is_floating_point():
            correlate(delta, x, -1.0, out)
        else:
            sums = torch.zeros(out.shape[::-1], dtype=out.dtype, device=out.device)
            sums.index_add_(0, x.flatten(), delta.flatten(0, 1).to(out.dtype), alpha=-1.0)
            out.copy_(sums.T)
        for bias, error in ((self.bias_h, delta), (self.bias_o, e_y)):
            if bias is not None:
                gradient_of(bias).copy_(error.sum((0, 1), dtype=bias.dtype)).neg_()
        if self.feedback_rule not in LEARNED:
            return
        assert self.feedback_hh is not None
        assert self.feedback_ho is not None
        if not self.update_feedback:
            self.feedback_hh.grad = self.feedback_ho.grad = None
        elif self.feedback_rule == "kolen_pollack":
            gradient_of(self.feedback_hh).copy_(gradient_of(self.weight_hh))
            gradient_of(self.feedback_ho).copy_(gradient_of(self.weight_ho))
        else:
            sign = SIGN[self.feedback_rule]
            correlate(e_y, e_h, -sign, gradient_of(self.feedback_ho))
            # At t = 1 the error would reach h_0, which is no neuron.
            correlate(delta[1:], e_h[:-1], -sign, gradient_of(self.feedback_hh))

    def _check_input(self, x: Tensor) -> None:
        wanted = 3 if x.is_floating_point() else 2
        if x.ndim != wanted or (wanted == 3 and x.shape[-1] != self.input_size) or 0 in x.shape:
            raise ValueError(
                f"DLLRNN takes floats (batch, time, {self.input_size}) or integer tokens (batch, time), "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Pickles and copies do not carry a batch along."""
        return {**self.__dict__, "_saved": None}


class DendriticRNN(LocalNetwork):
    """A :class:`DLLRNN` with a softmax or an identity on top (rule ``"dll"`` for sequences).

    Parameters
    ----------
    body : DLLRNN
        With ``batch_first=True``.
    output : {"softmax", "identity"}
        The paper's is the identity, also for characters.
    clip_value : float or None
        Bound on each entry of each update.

    Examples
    --------
    >>> import torch
    >>> net = DendriticRNN(DLLRNN(3, 8, 2, generator=torch.Generator().manual_seed(0)), "identity")
    >>> step = net.learn(torch.ones(4, 6, 3), torch.ones(4, 6, 2))
    >>> step.output.shape
    torch.Size([4, 6, 2])
    """

    default_feedback_lr_ratio = 1.0
    fixed_rule: str | None = None
    default_feedback_init: str = "normal"
    own_options: ClassVar[dict[str, Any]] = {}

    def __init__(self, body: DLLRNN, output: Output, clip_value: float | None = 50.0) -> None:
        super().__init__(output, clip_value)
        self.body = body

    @classmethod
    def from_config(cls: type[Recurrent], config: NetworkConfig) -> Recurrent:
        """Build the network.

        Parameters
        ----------
        config : NetworkConfig
            One recurrent layer and the output layer. ``options`` may have ``truncate``, ``noise``,
            ``initial_state``, for Kolen-Pollack ``weight_decay``, for predictive coding ``n_steps`` and
            ``rate``.

        Returns
        -------
        DendriticRNN
            With weights drawn from ``config.random_state``.

        Raises
        ------
        ValueError
            If the layers are others, or an option is unknown.
        """
        if [layer.kind for layer in config.layers] != ["recurrent", "linear"]:
            raise ValueError("a sequence network has one recurrent layer and a linear output layer")
        rule = cls.fixed_rule or config.feedback_rule
        defaults: dict[str, Any] = {
            "truncate": None,
            "noise": 0.0,
            "initial_state": "zeros",
            **cls.own_options,
        }
        if rule == "kolen_pollack":
            defaults["weight_decay"] = 0.01
        options = config.rule_options(**defaults)
        weight_decay = options.pop("weight_decay", 0.0)
        own = {name: options.pop(name) for name in cls.own_options}
        body = DLLRNN(
            config.input_shape[0],
            int(config.layers[0].size or 0),
            config.num_outputs,
            activation=config.activation,
            feedback_rule=rule,
            feedback_init=config.feedback_init or cls.default_feedback_init,
            weight_std=config.weight_std,
            feedback_std=config.feedback_std,
            bias=config.bias,
            generator=torch.Generator().manual_seed(config.random_state),
            **options,
        )
        network = cls(body, config.output, config.clip_value, **own)
        network.weight_decay = weight_decay
        network.seed(config.random_state)
        return network

    def forward(self, x: Tensor) -> Float[Tensor, "batch time outputs"]:
        """Output before the softmax at each step.

        Parameters
        ----------
        x : Tensor of shape (batch, time, features), or integers of shape (batch, time)
            Sequences.

        Returns
        -------
        Tensor of shape (batch, time, outputs)
            Logits or values.
        """
        return self.body(x)

    def evaluate(self, x: Tensor) -> Tensor:
        """Return the same as ``forward``, differentiable."""
        return self.body.transform(x)[0]

    def feedback_parameters(self) -> Iterator[nn.Parameter]:
        """Yield Θ_h and Θ_y where they learn."""
        for feedback in (self.body.feedback_hh, self.body.feedback_ho):
            if feedback is not None and feedback.requires_grad:
                yield feedback

    def alignments(self) -> dict[str, Tensor]:
        """Cosine between W and Θ of the recurrent and of the output weights."""
        pairs = {
            "hidden": (self.body.weight_hh, self.body.feedback_hh),
            "output": (self.body.weight_ho, self.body.feedback_ho),
        }
        with torch.no_grad():
            return {
                name: functional.cosine_similarity(weight.flatten(), feedback.flatten(), dim=0)
                for name, (weight, feedback) in pairs.items()
                if feedback is not None
            }

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        self.body.update_feedback = self.update_feedback
        output = self.body(x)
        self.body.learn(self.top_error(output, target), self.generator, sample_weight)
        return LearnStep(self.loss(output, target, sample_weight), output)


class FeedbackAlignmentRNN(DendriticRNN):
    """Fixed random feedback (rule ``"fa"`` for sequences)."""

    fixed_rule: str | None = "fixed"
    default_feedback_init: str = "sign"


class SignSymmetryRNN(DendriticRNN):
    """Feedback by ``feedback_std · sign(W)`` (rule ``"sign_symmetry"`` for sequences)."""

    fixed_rule: str | None = "sign_symmetry"


class KolenPollackRNN(DendriticRNN):
    """Feedback weights that receive the forward updates (rule ``"kolen_pollack"`` for sequences)."""

    fixed_rule: str | None = "kolen_pollack"


class BackpropagationRNN(DendriticRNN):
    """The same network taught by autograd through time (rule ``"bp"`` for sequences)."""

    fixed_rule: str | None = "transport"

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        parameters = [p for p in self.parameters() if p.requires_grad]
        output, gradients = differentiate(self, x, target, sample_weight, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return LearnStep(self.loss(output, target, sample_weight), output)


class PredictiveCodingRNN(DendriticRNN):
    r"""Recurrent predictive coding with fixed predictions (rule ``"pc"`` for sequences).

    From the last step to the first the error of the hidden units settles before the one ahead of it hears of
    it, by ``e ← e + γ (a - e)`` from zero, where ``a`` is what arrives from the output and from the step that
    follows. That stays the same meanwhile, so ``T`` steps come to ``(1 - (1 - γ)^T) a``, which is computed
    at once. At the fixed point errors are those of backpropagation through time (Millidge, Tschantz and
    Buckley, 2020, arXiv:2006.04182).

    Parameters
    ----------
    body : DLLRNN
        Its feedback rule carries the errors: ``"transport"`` for plain predictive coding.
    output : {"softmax", "identity"}
        Classification or regression.
    clip_value : float or None
        Bound on each entry of each update.
    n_steps : int
        Relaxation steps T.
    rate : float
        Relaxation rate γ in (0, 1].
    """

    fixed_rule: str | None = "transport"
    own_options: ClassVar[dict[str, Any]] = {"n_steps": 100, "rate": 0.1}

    def __init__(
        self,
        body: DLLRNN,
        output: Output,
        clip_value: float | None = 50.0,
        *,
        n_steps: int = 100,
        rate: float = 0.1,
    ) -> None:
        super().__init__(body, output, clip_value)
        check_number("n_steps", n_steps, low=1, integer=True)
        check_number("rate", rate, low=0, high=1, closed="right")
        self.n_steps = n_steps
        self.rate = rate
        body.settled = 1.0 - (1.0 - rate) ** n_steps


class PredictiveCodingFARNN(PredictiveCodingRNN):
    """The same with errors that come down by fixed random weights (rule ``"pc_fa"`` for sequences)."""

    fixed_rule: str | None = "fixed"


class IncrementalPredictiveCodingRNN(PredictiveCodingRNN):
    """One relaxation step in place of settling (rule ``"ipc"`` for sequences).

    An error is multiplied by ``rate`` at every step back in time. At rate 1, the default, this is
    backpropagation through time.
    """

    own_options: ClassVar[dict[str, Any]] = {"n_steps": 1, "rate": 1.0}

    def __init__(
        self,
        body: DLLRNN,
        output: Output,
        clip_value: float | None = 50.0,
        *,
        n_steps: int = 1,
        rate: float = 1.0,
    ) -> None:
        check_number("n_steps", n_steps, low=1, high=1, integer=True)
        super().__init__(body, output, clip_value, n_steps=n_steps, rate=rate)
