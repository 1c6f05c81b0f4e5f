"""Stacks of layers and the one sweep that teaches them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seedbed.lightning_modules.dll.architecture import SPATIAL, LayerSpec, NetworkConfig, Shape, output_shapes
from seedbed.lightning_modules.dll.convolution import DLLConv1d, DLLConv2d
from seedbed.lightning_modules.dll.layers import DLLLayer, DLLLinear, DLLWeighted
from seedbed.lightning_modules.dll.shaping import shaping_layer

Carry = Callable[[DLLLayer, Tensor], Tensor]
"""Maps a layer and the error at its output to the error at its input."""


def by_feedback(layer: DLLLayer, e: Tensor) -> Tensor:
    """Carry an error down through the layer's own feedback weights.

    Parameters
    ----------
    layer : DLLLayer
        Any layer.
    e : Tensor
        Error at its output.

    Returns
    -------
    Tensor
        Error at its input.
    """
    return layer.feedback_error(e)


class DLLSequential(DLLLayer):
    """Layers one after another.

    :meth:`learn` is the whole of learning: the error at the top goes down layer by layer, and each layer
    writes its own update from it. Layer l is done before layer l-1 hears of the error, so there is no
    backward phase that waits for all layers, and ``Θ_l`` is read before an optimizer changes it.

    Parameters
    ----------
    *layers : DLLLayer
        Bottom to top.
    needs_feedback : bool
        Whether something below the stack needs an error. Where nothing does, the lowest layer with weights
        gives up its feedback weights.
    check_every : int
        How many calls of :meth:`learn` on an accelerator pass between checks for non-finite errors, each of
        which waits for the device. On the CPU every call checks.

    Raises
    ------
    TypeError
        If something else than a DLL layer is given.
    ValueError
        If there is no layer, or one occurs twice (its updates would overwrite each other).

    Examples
    --------
    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> net = DLLSequential(
    ...     DLLLinear(4, 8, generator=generator), DLLLinear(8, 3, activation="identity", generator=generator)
    ... )
    >>> target = torch.eye(3)
    >>> logits = net(torch.ones(3, 4))
    >>> net.learn(target - torch.softmax(logits, 1))
    >>> [name for name, p in net.named_parameters() if p.grad is not None]
    ['layers.0.weight', 'layers.1.weight', 'layers.1.feedback']
    """

    def __init__(self, *layers: nn.Module, needs_feedback: bool = False, check_every: int = 32) -> None:
        super().__init__()
        if not layers:
            raise ValueError("DLLSequential needs at least one layer")
        for layer in layers:
            if not isinstance(layer, DLLLayer):
                raise TypeError(f"layers must be DLL layers, got {type(layer).__name__}")
        modules = [module for layer in layers for module in layer.modules()]
        if len(modules) != len({id(module) for module in modules}):
            raise ValueError("a layer occurs twice; shared layers would overwrite their own updates")
        self.layers = nn.ModuleList(layers)
        self.needs_feedback = needs_feedback
        self.check_every = check_every
        self._calls = 0
        self._errors: list[tuple[DLLLayer, Tensor]] = []
        weighted = [place for place, layer in enumerate(layers) if layer.weighted]
        self._lowest = 0 if needs_feedback or not weighted else weighted[0]
        lowest = layers[self._lowest]
        if not needs_feedback and isinstance(lowest, DLLWeighted | DLLSequential | DLLBranches):
            lowest.drop_feedback()

    def __iter__(self) -> Iterator[DLLLayer]:
        """Iterate over the layers, bottom to top."""
        return iter(self.layers)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """Count the layers."""
        return len(self.layers)

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Apply the layers; they remember for themselves."""
        return self.evaluate(x), ()

    def evaluate(self, x: Tensor) -> Tensor:
        """Output alone, differentiable."""
        for layer in self:
            x = layer.evaluate(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers; in training mode each remembers its own input and activation.

        Parameters
        ----------
        x : Tensor
            Input, batch first.

        Returns
        -------
        Tensor
            Output of the last layer.
        """
        for layer in self:
            x = layer(x)
        return x

    def learn(self, e_top: Tensor, carry: Carry = by_feedback, sample_weight: Tensor | None = None) -> None:
        """Send an error down and let every layer write its update.

        Parameters
        ----------
        e_top : Tensor
            Error at the output, target minus prediction, of the batch that last went through ``forward``.
        carry : callable
            How an error passes a layer; its own feedback by default.
        sample_weight : Tensor of shape (batch,), optional
            Factor on each row's share of the updates.

        Raises
        ------
        RuntimeError
            If ``e_top`` requires a gradient, or no training-mode forward came before.
        FloatingPointError
            If an error is NaN or infinite; the message has the layer's place.
        """
        if e_top.requires_grad:
            raise RuntimeError("DLL needs no autograd: e_top must not require a gradient; detach it")
        if sample_weight is not None:
            for weighted in self.weighted_layers():
                weighted.sample_weight = sample_weight
        checked = e_top.is_cpu or self._calls % self.check_every == 0
        self._calls += 1
        totals = []
        e = e_top
        with torch.no_grad():
            for place in reversed(range(self._lowest, len(self.layers))):
                layer: DLLLayer = self.layers[place]  # type: ignore[assignment]
                if checked:
                    totals.append((place, e.sum(dtype=torch.promote_types(e.dtype, torch.float32))))
                e_in = carry(layer, e) if place > self._lowest or self.needs_feedback else e
                layer.local_update(e)
                layer.release()
                e = e_in
            if totals and not torch.isfinite(torch.stack([total for _, total in totals])).all():
                place = next(place for place, total in totals if not torch.isfinite(total))
                raise FloatingPointError(
                    f"the error at the output of layer {place} is not finite; lower the learning rate, or "
                    "bound updates by clip_value"
                )

    def feedback_error(self, e: Tensor) -> Tensor:
        """Send an error through the stack, as one layer of a larger network."""
        self._errors = []
        for place in reversed(range(self._lowest, len(self.layers))):
            layer: DLLLayer = self.layers[place]  # type: ignore[assignment]
            self._errors.append((layer, e))
            if place > self._lowest or self.needs_feedback:
                e = layer.feedback_error(e)
        return e

    def local_update(self, e: Tensor) -> None:
        """Let the layers write their updates, as one layer of a larger network."""
        if not self._errors or self._errors[0][1] is not e:
            self.feedback_error(e)
        for layer, error in self._errors:
            layer.local_update(error)

    def drop_feedback(self) -> None:
        """Give up the feedback weights of the lowest layer: nothing below the stack learns."""
        self.needs_feedback = False
        weighted = [place for place, layer in enumerate(self) if layer.weighted]
        self._lowest = weighted[0] if weighted else 0
        lowest = self.layers[self._lowest]
        if isinstance(lowest, DLLWeighted | DLLSequential | DLLBranches):
            lowest.drop_feedback()

    def release(self) -> None:
        """Forget the last batch."""
        self._errors = []
        for layer in self:
            layer.release()

    def weighted_layers(self) -> list[DLLWeighted]:
        """All layers with weights, bottom to top, those inside branches included.

        Returns
        -------
        list of DLLWeighted
            The layers.
        """
        return [module for module in self.modules() if isinstance(module, DLLWeighted)]

    def __getstate__(self) -> dict[str, Any]:
        """Pickles and copies do not carry a batch along."""
        return {**super().__getstate__(), "_errors": []}


class DLLBranches(DLLLayer):
    """Stacks side by side on one input; their flat outputs are concatenated, the error is split.

    Parameters
    ----------
    *branches : DLLSequential
        Each must give (batch, features).

    Examples
    --------
    >>> import torch
    >>> branches = DLLBranches(*(DLLSequential(DLLLinear(4, size), needs_feedback=True) for size in (2, 3)))
    >>> y = branches(torch.ones(5, 4))
    >>> y.shape, branches.feedback_error(y).shape
    (torch.Size([5, 5]), torch.Size([5, 4]))
    """

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        if not branches or not all(isinstance(branch, DLLSequential) for branch in branches):
            raise TypeError(f"branches must be one or more DLLSequential, got {branches!r}")
        self.branches = nn.ModuleList(branches)
        self._widths: list[int] = []
        self._pieces: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def __iter__(self) -> Iterator[DLLSequential]:
        """Iterate over the branches."""
        return iter(self.branches)  # type: ignore[arg-type]

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Apply the branches; they remember for themselves."""
        return self.evaluate(x), ()

    def evaluate(self, x: Tensor) -> Tensor:
        """Output alone, differentiable."""
        return torch.cat([branch.evaluate(x) for branch in self], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the branches and concatenate.

        Parameters
        ----------
        x : Tensor
            Input of all branches.

        Returns
        -------
        Tensor
            (batch, sum of features).
        """
        outputs = [branch(x) for branch in self]
        self._widths = [output.shape[1] for output in outputs]
        return torch.cat(outputs, dim=1)

    def feedback_error(self, e: Tensor) -> Tensor:
        """Split the error, send each piece through its branch, and add what comes out."""
        self._pieces = (e, torch.split(e, self._widths, dim=1))
        errors = [branch.feedback_error(piece) for branch, piece in zip(self, self._pieces[1], strict=True)]
        if not all(branch.needs_feedback for branch in self):
            return e
        return torch.stack(errors).sum(0)

    def local_update(self, e: Tensor) -> None:
        """Let each branch write its updates."""
        if self._pieces is None or self._pieces[0] is not e:
            self.feedback_error(e)
        assert self._pieces is not None
        for branch, piece in zip(self, self._pieces[1], strict=True):
            branch.local_update(piece)

    def drop_feedback(self) -> None:
        """Give up the lowest feedback weights of every branch."""
        for branch in self:
            branch.drop_feedback()

    def release(self) -> None:
        """Forget the last batch."""
        self._pieces = None
        for branch in self:
            branch.release()

    def __getstate__(self) -> dict[str, Any]:
        """Pickles and copies do not carry a batch along."""
        return {**super().__getstate__(), "_pieces": None}


def build_layers(
    config: NetworkConfig,
    *,
    feedback_rule: str,
    generator: torch.Generator | None = None,
    feedback_init: str = "normal",
) -> list[DLLLayer]:
    """Build the DLL layers that a configuration describes.

    Parameters
    ----------
    config : NetworkConfig
        Layers and their settings.
    feedback_rule : str
        As in :class:`~seedbed.lightning_modules.dll.layers.DLLLinear`.
    generator : torch.Generator, optional
        Source of the initial weights; default one seeded with ``config.random_state``.
    feedback_init : {"normal", "sign"}
        Used where the configuration leaves it open.

    Returns
    -------
    list of DLLLayer
        Bottom to top.
    """
    source = generator or torch.Generator().manual_seed(config.random_state)
    options = {
        "form": config.form,
        "bias": config.bias,
        "feedback_rule": feedback_rule,
        "feedback_init": config.feedback_init or feedback_init,
        "weight_std": config.weight_std,
        "feedback_std": config.feedback_std,
        "kernel_feedback_std": config.kernel_feedback_std,
        "sigma": config.sigma,
        "clip_value": config.clip_value,
        "generator": source,
    }
    # In the outer form an activation belongs to the input of its layer: the first has none, and the
    # output layer takes that of the last hidden one.
    return _build(config.layers, config.input_shape, config.activation, options, lowest=True)


def _build(
    specs: Sequence[LayerSpec], shape: Shape, activation: str, options: dict[str, Any], *, lowest: bool
) -> list[DLLLayer]:
    built: list[DLLLayer] = []
    outer = options["form"] == "outer"
    below = "identity"
    for wanted, size_out in zip(specs, output_shapes(specs, shape), strict=True):
        own = wanted.activation or activation
        if wanted.weighted:
            settings = {**options, "activation": below if outer else own, "needs_feedback": not lowest}
            below = own
            lowest = False
            kernel_std = settings.pop("kernel_feedback_std")
            if wanted.kind == "linear":
                built.append(DLLLinear(shape[0], size_out[0], **settings))
            else:
                layer = DLLConv2d if wanted.kind == "conv2d" else DLLConv1d
                settings["feedback_std"] = kernel_std
                window = (int(wanted.kernel_size or 1), wanted.stride or 1, wanted.padding)
                built.append(layer(shape[0], size_out[0], *window, **settings))
        elif wanted.kind == "branches":
            stacks = [_build(branch, shape, activation, options, lowest=lowest) for branch in wanted.branches]
            built.append(DLLBranches(*(DLLSequential(*stack, needs_feedback=not lowest) for stack in stacks)))
            below = next(
                layer.activation or activation for layer in wanted.branches[0][::-1] if layer.weighted
            )
            lowest = False
        elif wanted.kind == "activation":
            built.append(shaping_layer("activation", activation=own))
        elif wanted.kind == "batch_norm":
            built.append(shaping_layer("batch_norm", num_features=shape[0]))
        elif wanted.kind in SPATIAL:
            pool = {"kernel_size": wanted.kernel_size, "stride": wanted.stride, "padding": wanted.padding}
            built.append(shaping_layer(wanted.kind, **pool))
        else:
            built.append(shaping_layer(wanted.kind))
        shape = size_out
    return built
