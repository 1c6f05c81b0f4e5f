"""Layers that carry errors down by their own feedback weights and write their own updates.

One layer, with input ``x``, pre-activation ``z`` and the error ``e`` that arrives at its output::

              apical: e  (from the layer above, by that layer's Θ)
                 │
    x ──W── z ──φ──▶ y          δ    = e ∘ φ'(z)
    ▲                           e_in = clip(δ Θᵀ / σ²)            sent down
    └──Θ── δ                    ΔW   = 2/σ² xᵀ δ                  forward plasticity
                                ΔΘ   = s 2/σ² e_inᵀ δ             feedback plasticity

Nothing here keeps a graph: a layer stores its own input and activation during ``forward`` and needs
only those and ``e`` afterwards. Weights are kept as torch keeps them, outputs first, so ``ΔW`` reads
``δᵀ x`` below. ``e`` points downhill (target minus output); ``.grad`` receives ``-Δ``.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.dll.activations import get_activation
from seedbed.lightning_modules.dll.row_weights import weighted

LAYER_FEEDBACK_RULES = ("hebbian", "anti_hebbian", "fixed", "kolen_pollack", "sign_symmetry", "transport")
SIGN = {"hebbian": 1.0, "anti_hebbian": -1.0}
LEARNED = ("hebbian", "anti_hebbian", "kolen_pollack")


class DLLLayer(nn.Module, ABC):
    """A layer of a network that learns locally.

    Subclasses give :meth:`transform` (the map, and what to remember of it), :meth:`feedback_error` and,
    where they have weights, :meth:`local_update`.

    Attributes
    ----------
    clipped : Tensor or None
        Share of the entries of the last error sent down that met the bound, where ``monitor`` is set.
    monitor : bool
        Whether to measure it.
    update_feedback : bool
        Whether :meth:`local_update` also changes feedback weights.
    sample_weight : Tensor of shape (batch,) or None
        Factor on each row's share of this batch's update. Errors do without, so that it enters both updates
        once: a row of weight two counts as two rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.monitor = False
        self.update_feedback = True
        self.clipped: Tensor | None = None
        self.sample_weight: Tensor | None = None
        self._saved: tuple[Tensor, ...] | None = None

    @abstractmethod
    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Apply the layer's map.

        Parameters
        ----------
        x : Tensor
            Input.

        Returns
        -------
        y : Tensor
            Output.
        saved : tuple of Tensor
            What the layer must remember to learn.
        """

    @abstractmethod
    def feedback_error(self, e: Tensor) -> Tensor:
        """Error to send to the layer below.

        Parameters
        ----------
        e : Tensor
            Error at this layer's output.

        Returns
        -------
        Tensor
            Error at its input.
        """

    def local_update(self, e: Tensor) -> None:
        """Write ``.grad`` of the layer's own weights.

        Parameters
        ----------
        e : Tensor
            Error at this layer's output.
        """

    def evaluate(self, x: Tensor) -> Tensor:
        """Output alone, differentiable: what backpropagation, for comparison, runs through.

        Parameters
        ----------
        x : Tensor
            Input.

        Returns
        -------
        Tensor
            Output.
        """
        return self.transform(x)[0]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer and, in training mode, remember what learning needs.

        Parameters
        ----------
        x : Tensor
            Input, batch first. A graph it may carry is dropped.

        Returns
        -------
        Tensor
            Output.
        """
        with torch.no_grad():
            y, saved = self.transform(x.detach())
        self.release()
        if self.training:
            self._saved = saved
        return y

    @property
    def weighted(self) -> bool:
        """Whether the layer, or a layer inside it, has weights."""
        return next(self.parameters(), None) is not None

    def release(self) -> None:
        """Forget the last batch."""
        self._saved = self.sample_weight = None

    def recalled(self) -> tuple[Tensor, ...]:
        """What the last training-mode forward remembered.

        Returns
        -------
        tuple of Tensor
            As :meth:`transform` gave it.

        Raises
        ------
        RuntimeError
            If there was none, or evaluation mode followed it.
        """
        if self._saved is None:
            raise RuntimeError(
                f"{type(self).__name__} has nothing to learn from: call forward in training mode first"
            )
        return self._saved

    def __getstate__(self) -> dict[str, Any]:
        """Pickles and copies do not carry a batch along."""
        return {**self.__dict__, "_saved": None, "clipped": None, "sample_weight": None}


class DLLWeighted(DLLLayer):
    """What layers with weights share; see :class:`DLLLinear` for the parameters."""

    weight: nn.Parameter
    feedback: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        *,
        activation: str = "tanh",
        form: str = "inner",
        bias: bool = False,
        feedback_rule: str = "hebbian",
        feedback_init: str = "normal",
        weight_std: float = 0.05,
        feedback_std: float = 1.0,
        sigma: float = 1.0,
        clip_value: float | None = 50.0,
        needs_feedback: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.activation = get_activation(activation).name
        check_choice("form", form, ("inner", "outer"))
        check_choice("feedback_rule", feedback_rule, LAYER_FEEDBACK_RULES)
        check_choice("feedback_init", feedback_init, ("normal", "sign"))
        check_number("weight_std", weight_std, low=0)
        check_number("feedback_std", feedback_std, low=0)
        check_number("sigma", sigma, low=0, closed="neither")
        if clip_value is not None:
            check_number("clip_value", clip_value, low=0, closed="neither")
        self.form = form
        self.feedback_rule = feedback_rule
        self.feedback_std = feedback_std
        self.sigma = sigma
        self.clip_value = clip_value
        self.needs_feedback = needs_feedback
        self._errors: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.weight = nn.Parameter(torch.empty(weight_shape).normal_(0.0, weight_std, generator=generator))
        self.register_parameter("bias", nn.Parameter(torch.zeros(weight_shape[0])) if bias else None)
        self.register_parameter("feedback", None)
        if needs_feedback and feedback_rule not in ("sign_symmetry", "transport"):
            # Drawn after, and never copied from, the forward weights.
            drawn = torch.empty(weight_shape).normal_(0.0, 1.0, generator=generator)
            if feedback_init == "sign":
                drawn = torch.where(drawn < 0, -1.0, 1.0)
            self.feedback = nn.Parameter(drawn * feedback_std, requires_grad=feedback_rule in LEARNED)

    @abstractmethod
    def drive(self, x: Tensor) -> Tensor:
        """Basal drive: the layer's linear map, bias included.

        Parameters
        ----------
        x : Tensor
            Presynaptic activity.

        Returns
        -------
        Tensor
            Drive of each unit.
        """

    @abstractmethod
    def _send(self, delta: Tensor, matrix: Tensor, x: Tensor) -> Tensor:
        """Carry an error through the adjoint of the map with weights ``matrix``; ``x`` gives the shape."""

    @abstractmethod
    def _correlate(self, delta: Tensor, pre: Tensor, scale: float, out: Tensor) -> None:
        """Write ``scale`` times the sum over batch and positions of ``delta ⊗ pre`` into ``out``."""

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Apply the layer: ``φ(W x)``, or ``W φ(x)`` in the outer form."""
        self._check_input(x)
        phi = get_activation(self.activation)
        if self.form == "inner":
            z = self.drive(x)
            y = phi.function(z)
            return y, (x, phi.keep(z, y))
        active = phi.function(x)
        return self.drive(active), (active, phi.keep(x, active))

    def feedback_error(self, e: Tensor) -> Tensor:
        """Error to send down: ``clip(δ Θᵀ / σ²)``."""
        if not self.needs_feedback:
            raise RuntimeError(
                f"this {type(self).__name__} was built with needs_feedback=False: it sends no error down"
            )
        with torch.no_grad():
            delta = self._gated(e.detach())
            e_in = self.receive(self._send(delta, self.feedback_matrix(), self.recalled()[0]))
            self._errors = (e, delta, e_in)
        return e_in

    def receive(self, apical: Tensor) -> Tensor:
        """Turn a raw apical signal at the layer's input into the error there.

        Parameters
        ----------
        apical : Tensor
            ``δ Θᵀ``, or what another route (direct feedback) brings. Changed in place.

        Returns
        -------
        Tensor
            Divided by σ², gated (outer form) and bounded.
        """
        if self.sigma != 1.0:
            apical.mul_(self.sigma**-2)
        if self.form == "outer":
            apical = get_activation(self.activation).gate(apical, self.recalled()[1])
        if self.clip_value is None:
            return apical
        if self.monitor:
            self.clipped = (apical.abs() > self.clip_value).float().mean()
        return apical.clamp_(-self.clip_value, self.clip_value)

    def local_update(self, e: Tensor) -> None:
        """Write ``weight.grad = -ΔW``, ``feedback.grad = -ΔΘ`` and ``bias.grad = -Δb``.

        They are not bounded here: :meth:`LocalNetwork.clip_updates` does that once for all.
        """
        with torch.no_grad():
            if self._errors is None or self._errors[0] is not e:
                # A layer may be asked for its update alone; the error it would send is part of it.
                if self.feedback is not None:
                    self.feedback_error(e)
                else:
                    self._errors = (e, self._gated(e.detach()), None)
            assert self._errors is not None
            _, delta, e_in = self._errors
            delta = weighted(delta, self.sample_weight)
            pre, kept = self.recalled()
            scale = 2.0 / self.sigma**2
            self._correlate(delta, pre, -scale, gradient_of(self.weight))
            if self.bias is not None:
                self._sum(delta, -scale, gradient_of(self.bias))
            if self.feedback is None or self.feedback_rule not in LEARNED:
                return
            if not self.update_feedback:
                self.feedback.grad = None
            elif self.feedback_rule == "kolen_pollack":
                assert self.weight.grad is not None
                gradient_of(self.feedback).copy_(self.weight.grad)
            else:
                assert e_in is not None
                sent = e_in
                if self.form == "outer":
                    sent = get_activation(self.activation).gate(e_in, kept)
                self._correlate(delta, sent, -SIGN[self.feedback_rule] * scale, gradient_of(self.feedback))

    def feedback_matrix(self) -> Tensor:
        """Weights that carry the error down.

        Returns
        -------
        Tensor
            ``Θ``; ``std · sign(W)`` for ``"sign_symmetry"``; ``W`` itself for ``"transport"``.

        Raises
        ------
        RuntimeError
            If the layer sends no error down.
        """
        if self.feedback_rule == "sign_symmetry":
            return torch.sign(self.weight.detach()) * self.feedback_std
        if self.feedback_rule == "transport":
            return self.weight.detach()
        if self.feedback is None:
            raise RuntimeError(f"this {type(self).__name__} has no feedback weights")
        return self.feedback.detach()

    def drop_feedback(self) -> None:
        """Give up the feedback weights: the layer below has nothing to learn."""
        self.needs_feedback = False
        self.feedback = None

    def alignment(self) -> Tensor | None:
        """Cosine between forward and feedback weights.

        Returns
        -------
        Tensor or None
            A scalar; None without feedback weights.
        """
        if self.feedback is None:
            return None
        with torch.no_grad():
            return functional.cosine_similarity(self.weight.flatten(), self.feedback.flatten(), dim=0)

    def release(self) -> None:
        """Forget the last batch."""
        super().release()
        self._errors = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickles and copies do not carry a batch along."""
        return {**super().__getstate__(), "_errors": None}

    def _gated(self, e: Tensor) -> Tensor:
        _, kept = self.recalled()
        return get_activation(self.activation).gate(e, kept) if self.form == "inner" else e

    def _check_input(self, x: Tensor) -> None:
        channels = self.weight.shape[1]
        if x.ndim != self.weight.ndim or x.shape[1] != channels:
            raise ValueError(
                f"{type(self).__name__} takes a batch of {self.weight.ndim - 1}-dimensional samples with "
                f"{channels} features or channels, got an input of shape {tuple(x.shape)}"
            )

    def _sum(self, delta: Tensor, scale: float, out: Tensor) -> None:
        dims = [dim for dim in range(delta.ndim) if dim != 1]
        out.copy_(delta.sum(dims, dtype=out.dtype)).mul_(scale)


class DLLLinear(DLLWeighted):
    """Fully connected layer of three-compartment neurons.

    Parameters
    ----------
    in_features, out_features : int
        Widths.
    activation : str
        ``"tanh"``, ``"sigmoid"``, ``"relu"``, ``"leaky_relu"``, ``"softplus"``, ``"gelu"`` or
        ``"identity"``. An output layer takes ``"identity"``: softmax with cross-entropy, like identity with
        squared error, has slope one in front of its error.
    form : {"inner", "outer"}
        ``φ(x W)``, or ``φ(x) W``.
    bias : bool
        Whether to learn a bias (starts at zero).
    feedback_rule : str
        How the feedback weights Θ learn: ``"hebbian"`` (s = +1), ``"anti_hebbian"`` (s = -1), ``"fixed"``
        (feedback alignment), ``"kolen_pollack"`` (ΔΘ = ΔW). ``"sign_symmetry"`` sends errors by
        ``feedback_std · sign(W)`` and ``"transport"`` by W, which is the weight transport of
        backpropagation; both have no Θ.
    feedback_init : {"normal", "sign"}
        Θ starts as ``N(0, feedback_std²)`` or ``±feedback_std``.
    weight_std, feedback_std : float
        Standard deviations at the start.
    sigma : float
        The energy's σ; errors shrink by σ⁻² per layer.
    clip_value : float or None
        Bound on each entry of the error sent down.
    needs_feedback : bool
        Whether a layer below needs an error. The lowest layer of a network has no Θ.
    generator : torch.Generator, optional
        Source of the initial weights; None draws from torch's, as ``torch.nn.Linear`` does.

    Attributes
    ----------
    weight : Parameter of shape (out_features, in_features)
        W, transposed as in ``torch.nn.Linear``.
    feedback : Parameter of shape (out_features, in_features), or None
        Θ. It requires no gradient where the rule leaves it fixed.
    bias : Parameter of shape (out_features,), or None
        Bias.

    Raises
    ------
    ValueError
        If a parameter is out of range; the message has what is allowed.

    Examples
    --------
    >>> import torch
    >>> layer = DLLLinear(3, 2, generator=torch.Generator().manual_seed(0))
    >>> y = layer(torch.ones(5, 3))
    >>> e_in = layer.feedback_error(1.0 - y)
    >>> layer.local_update(1.0 - y)
    >>> e_in.shape, layer.weight.grad.shape, layer.feedback.grad.shape
    (torch.Size([5, 3]), torch.Size([2, 3]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        activation: str = "tanh",
        form: str = "inner",
        bias: bool = False,
        feedback_rule: str = "hebbian",
        feedback_init: str = "normal",
        weight_std: float = 0.05,
        feedback_std: float = 1.0,
        sigma: float = 1.0,
        clip_value: float | None = 50.0,
        needs_feedback: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        check_number("in_features", in_features, low=1, integer=True)
        check_number("out_features", out_features, low=1, integer=True)
        super().__init__(
            (out_features, in_features),
            activation=activation,
            form=form,
            bias=bias,
            feedback_rule=feedback_rule,
            feedback_init=feedback_init,
            weight_std=weight_std,
            feedback_std=feedback_std,
            sigma=sigma,
            clip_value=clip_value,
            needs_feedback=needs_feedback,
            generator=generator,
        )

    def drive(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch outputs"]:
        """Basal drive ``x W + b``."""
        return functional.linear(x, self.weight, self.bias)

    def _send(
        self,
        delta: Float[Tensor, "batch outputs"],
        matrix: Float[Tensor, "outputs inputs"],
        x: Float[Tensor, "batch inputs"],  # noqa: ARG002  (a convolution needs its shape)
    ) -> Float[Tensor, "batch inputs"]:
        delta, matrix = autocast(delta, matrix)
        return torch.mm(delta, matrix)

    def _correlate(
        self,
        delta: Float[Tensor, "batch outputs"],
        pre: Float[Tensor, "batch inputs"],
        scale: float,
        out: Float[Tensor, "outputs inputs"],
    ) -> None:
        delta, pre = autocast(delta, pre)
        multiply_into(delta.T, pre, scale, out)


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The tensor to write a parameter's gradient into, made if there is none.

    Parameters
    ----------
    parameter : Parameter
        A parameter.

    Returns
    -------
    Tensor
        Its ``.grad``.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, requires_grad=False)
    return parameter.grad


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to the dtype of the surrounding autocast region, as its operators would.

    Kernels that autocast does not know (weight gradients, ``out=``) get their inputs through this.

    Parameters
    ----------
    *tensors : Tensor
        Operands of one product.

    Returns
    -------
    tuple of Tensor
        In the region's dtype; unchanged outside of one.
    """
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind) or any(tensor.dtype == torch.float64 for tensor in tensors):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor.to(dtype) for tensor in tensors)


def multiply_into(left: Tensor, right: Tensor, scale: float, out: Tensor) -> None:
    """Write ``scale · left @ right`` into ``out`` without a temporary where the dtypes allow.

    Parameters
    ----------
    left, right : Tensor
        Matrices.
    scale : float
        Factor.
    out : Tensor
        Receives the product.
    """
    if left.dtype == out.dtype:
        # beta=0: what `out` held before is never read.
        torch.addmm(out, left, right, beta=0, alpha=scale, out=out)
    else:
        out.copy_(torch.mm(left, right)).mul_(scale)
