"""Descriptions of networks: plain values that say what to build, checked before anything is built.

A layer is described by a :class:`LayerSpec`, or by a mapping with the same keys, which is what YAML gives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any, Literal

from seedbed.checks import check_choice, check_number

LayerKind = Literal[
    "linear",
    "conv2d",
    "conv1d",
    "max_pool2d",
    "avg_pool2d",
    "global_avg_pool",
    "batch_norm",
    "activation",
    "flatten",
    "branches",
    "recurrent",
]
LAYER_KINDS: tuple[str, ...] = LayerKind.__args__  # type: ignore[attr-defined]
ACTIVATIONS = ("tanh", "sigmoid", "relu", "leaky_relu", "softplus", "gelu", "identity")
FEEDBACK_RULES = ("hebbian", "anti_hebbian", "fixed", "kolen_pollack")

WEIGHTED = ("linear", "conv2d", "conv1d", "recurrent")
SPATIAL = {"conv1d": 1, "conv2d": 2, "max_pool2d": 2, "avg_pool2d": 2}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LayerSpec:
    """One layer.

    Attributes
    ----------
    kind : str
        ``"linear"``, ``"conv2d"``, ``"conv1d"``, ``"max_pool2d"``, ``"avg_pool2d"``, ``"global_avg_pool"``
        (mean over all positions), ``"batch_norm"`` (statistics only), ``"activation"``, ``"flatten"``,
        ``"branches"`` (parallel stacks whose outputs are concatenated) or ``"recurrent"``.
    size : int, optional
        Output features of a linear, channels of a convolution, hidden units of a recurrent layer.
    kernel_size : int, optional
        Of convolutions and pools.
    stride : int, optional
        Of convolutions (default 1) and pools (default ``kernel_size``).
    padding : int
        Of convolutions and pools.
    activation : str, optional
        Of layers with weights and of ``"activation"``; None takes the network's.
    branches : tuple of tuple of LayerSpec
        For ``"branches"``.

    Examples
    --------
    >>> LayerSpec("conv2d", 16, kernel_size=3).output_shape((1, 8, 8))
    (16, 6, 6)
    """

    kind: str
    size: int | None = None
    kernel_size: int | None = None
    stride: int | None = None
    padding: int = 0
    activation: str | None = None
    branches: tuple[tuple["LayerSpec", ...], ...] = ()

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, LAYER_KINDS)
        if self.kind in WEIGHTED:
            check_number(f"size of a {self.kind} layer", self.size, low=1, integer=True)
        if self.kind in SPATIAL:
            check_number(f"kernel_size of a {self.kind} layer", self.kernel_size, low=1, integer=True)
        if self.stride is not None:
            check_number("stride", self.stride, low=1, integer=True)
        check_number("padding", self.padding, low=0, integer=True)
        if self.kind.endswith("_pool2d") and self.padding > (self.kernel_size or 1) // 2:
            raise ValueError(f"padding of a pool must be at most half its kernel_size, got {self.padding!r}")
        if self.activation is not None:
            check_choice("activation", self.activation, ACTIVATIONS)
        if (self.kind == "branches") != bool(self.branches):
            raise ValueError(
                f"branches must be given for kind 'branches' and only there, got {self.branches!r}"
            )
        if not all(any(layer.weighted for layer in branch) for branch in self.branches):
            raise ValueError(f"every branch needs a layer with weights, got {self.branches!r}")

    @classmethod
    def parse(cls, value: "LayerSpec | Mapping[str, Any]") -> "LayerSpec":
        """Read a layer from a mapping.

        Parameters
        ----------
        value : LayerSpec or mapping
            Keys are the attributes of this class.

        Returns
        -------
        LayerSpec
            The layer.

        Raises
        ------
        TypeError
            If it is neither.
        ValueError
            If a key is unknown or a value is out of range.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(
                f"a layer must be a mapping such as {{'kind': 'linear', 'size': 64}}, got {value!r}"
            )
        known = {entry.name for entry in fields(cls)}
        if unknown := set(value) - known:
            raise ValueError(f"a layer has the keys {sorted(known)}; got {sorted(map(str, unknown))}")
        if "kind" not in value:
            raise ValueError(f"a layer needs a 'kind', one of {LAYER_KINDS}; got {dict(value)!r}")
        branches = tuple(tuple(cls.parse(layer) for layer in branch) for branch in value.get("branches", ()))
        return cls(**{**value, "branches": branches})

    @property
    def weighted(self) -> bool:
        """Whether the layer has weights of its own."""
        return self.kind in WEIGHTED

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the output for one sample.

        Parameters
        ----------
        shape : tuple of int
            Of the input, without the batch.

        Returns
        -------
        tuple of int
            Of the output, without the batch.

        Raises
        ------
        ValueError
            If the input does not fit; the message has its shape.
        """
        if self.kind == "linear":
            if len(shape) != 1:
                raise ValueError(
                    f"a linear layer needs a flat input, but one of shape {shape} arrives: flatten it"
                )
            return (int(self.size or 0),)
        if self.kind in SPATIAL:
            return self._spatial_shape(shape)
        if self.kind == "global_avg_pool":
            if len(shape) < 2:
                raise ValueError(
                    f"global_avg_pool needs channels and positions, got an input of shape {shape}"
                )
            return shape[:1]
        if self.kind == "flatten":
            return (prod(shape),)
        if self.kind == "branches":
            ends = [output_shapes(branch, shape)[-1] for branch in self.branches]
            if any(len(end) != 1 for end in ends):
                raise ValueError(
                    f"every branch must end flat (flatten or global_avg_pool), got shapes {ends}"
                )
            return (sum(end[0] for end in ends),)
        if self.kind == "recurrent":
            return (int(self.size or 0),)
        return shape

    def _spatial_shape(self, shape: Shape) -> Shape:
        positions = SPATIAL[self.kind]
        if len(shape) != positions + 1:
            raise ValueError(
                f"a {self.kind} layer needs {positions + 1} input dimensions, channels first; got {shape}"
            )
        kernel = int(self.kernel_size or 1)
        stride = self.stride or (kernel if self.kind.endswith("pool2d") else 1)
        found = tuple((size + 2 * self.padding - kernel) // stride + 1 for size in shape[1:])
        if min(found) < 1:
            raise ValueError(
                f"the kernel ({kernel}) of a {self.kind} layer exceeds its input of shape {shape} "
                f"with padding {self.padding}: its output would have shape {found}"
            )
        return (int(self.size or shape[0]), *found)


def output_shapes(layers: Sequence[LayerSpec], input_shape: Shape) -> list[Shape]:
    """Shapes of one sample after each layer.

    Parameters
    ----------
    layers : sequence of LayerSpec
        Bottom to top.
    input_shape : tuple of int
        Of one sample.

    Returns
    -------
    list of tuple of int
        One shape per layer.

    Raises
    ------
    ValueError
        If a layer does not fit; the message has its place and the shape that arrives.
    """
    shapes: list[Shape] = []
    shape = input_shape
    for place, layer in enumerate(layers):
        try:
            shape = layer.output_shape(shape)
        except ValueError as error:
            raise ValueError(f"layer {place} ({layer.kind}): {error}") from None
        shapes.append(shape)
    return shapes


@dataclass(frozen=True)
class NetworkConfig:
    """All that a learning rule needs to build its network.

    Attributes
    ----------
    layers : tuple of LayerSpec
        Bottom to top; the last is the linear output layer with identity activation.
    input_shape : tuple of int
        Of one sample: ``(features,)``, ``(channels, height, width)``; features of a step for sequences.
    output : {"softmax", "identity"}
        See :class:`~seedbed.lightning_modules.dll.rules.LocalNetwork`.
    activation : str
        Of hidden layers.
    form : {"inner", "outer"}
        Activation after the weights, ``φ(x W)``, or before them, ``φ(x) W``.
    bias : bool
        Whether weighted layers have biases.
    feedback_rule : str
        How ``dll`` learns its feedback weights.
    feedback_init : {"normal", "sign"}, optional
        Feedback weights ``N(0, std²)`` or ``±std``; None takes the rule's own.
    weight_std, feedback_std : float
        Standard deviations of the initial forward and feedback weights.
    kernel_feedback_std : float
        Standard deviation of the initial feedback kernels of convolutions.
    sigma : float
        The energy's σ.
    clip_value : float or None
        Bound on errors and updates.
    random_state : int
        Seed of the initial weights and of draws made while learning.
    options : mapping
        Settings that only one rule knows, such as the number of relaxation steps. A rule raises ValueError
        for a key it does not know (:meth:`rule_options`).
    """

    layers: tuple[LayerSpec, ...]
    input_shape: Shape
    output: Literal["softmax", "identity"] = "softmax"
    activation: str = "tanh"
    form: str = "inner"
    bias: bool = False
    feedback_rule: str = "hebbian"
    feedback_init: str | None = None
    weight_std: float = 0.05
    feedback_std: float = 1.0
    kernel_feedback_std: float = 0.05
    sigma: float = 1.0
    clip_value: float | None = 50.0
    random_state: int = 42
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.layers or not self.layers[-1].weighted:
            raise ValueError("layers must end in a layer with weights, the output layer")
        if not self.input_shape:
            raise ValueError("input_shape must have at least one dimension, got ()")
        for size in self.input_shape:
            check_number("input_shape", size, low=1, integer=True)
        check_choice("output", self.output, ("softmax", "identity"))
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("form", self.form, ("inner", "outer"))
        check_choice("feedback_rule", self.feedback_rule, FEEDBACK_RULES)
        check_choice("feedback_init", self.feedback_init, ("normal", "sign", None))
        check_number("weight_std", self.weight_std, low=0)
        check_number("feedback_std", self.feedback_std, low=0)
        check_number("kernel_feedback_std", self.kernel_feedback_std, low=0)
        check_number("sigma", self.sigma, low=0, closed="neither")
        if self.clip_value is not None:
            check_number("clip_value", self.clip_value, low=0, closed="neither")
        check_number("random_state", self.random_state, low=0, high=2**63 - 1, integer=True)
        output_shapes(self.layers, self.input_shape)

    @property
    def architecture(self) -> Literal["mlp", "cnn", "rnn"]:
        """What kind of network this is."""
        kinds = {layer.kind for layer in self.layers}
        if "recurrent" in kinds:
            return "rnn"
        return "mlp" if kinds <= {"linear", "flatten", "activation"} else "cnn"

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of one sample after each layer."""
        return output_shapes(self.layers, self.input_shape)

    @property
    def num_outputs(self) -> int:
        """Width of the output layer."""
        return int(self.layers[-1].size or 0)

    def rule_options(self, **defaults: Any) -> dict[str, Any]:
        """Options with a rule's defaults filled in.

        Parameters
        ----------
        **defaults : object
            Every option that the rule knows.

        Returns
        -------
        dict
            All of them.

        Raises
        ------
        ValueError
            If ``options`` has a key the rule does not know.
        """
        if unknown := set(self.options) - set(defaults):
            known = sorted(defaults) or "none"
            raise ValueError(f"rule_options must be among {known}; got {sorted(map(str, unknown))}")
        return {**defaults, **self.options}


def feedforward_layers(
    *,
    hidden_layer_sizes: Sequence[int] | None,
    layers: Sequence[Any] | None,
    input_shape: Shape,
    num_outputs: int,
) -> tuple[LayerSpec, ...]:
    """Complete a user's description: hidden layers as given, then a linear output layer.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int, optional
        Widths of a multilayer perceptron; an input with more than one dimension is flattened first.
    layers : sequence of LayerSpec or mapping, optional
        Or the hidden layers one by one. Just one of the two must be given.
    input_shape : tuple of int
        Of one sample.
    num_outputs : int
        Classes or targets.

    Returns
    -------
    tuple of LayerSpec
        For :class:`NetworkConfig`.

    Raises
    ------
    ValueError
        If both or none is given, a list is empty, a size is below 1 or shapes do not fit.
    """
    if (hidden_layer_sizes is None) == (layers is None):
        raise ValueError(
            "give either hidden_layer_sizes or layers; got "
            f"hidden_layer_sizes={hidden_layer_sizes!r} and layers={layers!r}"
        )
    name, given = ("layers", layers) if layers is not None else ("hidden_layer_sizes", hidden_layer_sizes)
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) == 0:
        raise ValueError(f"{name} must be a list with at least one entry, got {given!r}")
    hidden: list[LayerSpec] = []
    if layers is not None:
        hidden += [LayerSpec.parse(layer) for layer in layers]
    else:
        assert hidden_layer_sizes is not None
        for size in hidden_layer_sizes:
            check_number("hidden_layer_sizes", size, low=1, integer=True)
        hidden += [LayerSpec("flatten")] * (len(input_shape) > 1)
        hidden += [LayerSpec("linear", int(size)) for size in hidden_layer_sizes]
    check_number("number of outputs", num_outputs, low=1, integer=True)
    if len(output_shapes(hidden, input_shape)[-1]) != 1:
        hidden.append(LayerSpec("flatten"))
    hidden.append(LayerSpec("linear", int(num_outputs), activation="identity"))
    output_shapes(hidden, input_shape)
    return tuple(hidden)
