"""What the comparison rules are put together from: a layer with weights and the pools that follow it.

    x ──▶ head: φ(W x + b) ──▶ tail: pools, flatten ──▶ h

Rules that hold a state, a target or a loss of their own per layer hold one per stage, so that a pool is
never a layer in their eyes. Stages keep no graph: they remember their own last batch, as the layers do.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import DLLLayer, DLLWeighted
from seedbed.lightning_modules.dll.rules import LocalNetwork, Output
from seedbed.lightning_modules.dll.sequential import DLLBranches, DLLSequential, build_layers


class Stage(nn.Module):
    """A layer with weights followed by layers without.

    Parameters
    ----------
    head : DLLLayer
        The layer with weights.
    tail : sequence of DLLLayer
        Pools, flattening and the like behind it.

    Examples
    --------
    >>> import torch
    >>> from seedbed.lightning_modules.dll.convolution import DLLConv2d
    >>> from seedbed.lightning_modules.dll.shaping import DLLFlatten
    >>> stage = Stage(DLLConv2d(1, 2, 3, feedback_rule="transport"), [DLLFlatten()])
    >>> h = stage(torch.ones(5, 1, 4, 4))
    >>> h.shape, stage.descend(torch.ones_like(h)).shape
    (torch.Size([5, 8]), torch.Size([5, 1, 4, 4]))
    """

    def __init__(self, head: DLLLayer, tail: Sequence[DLLLayer] = ()) -> None:
        super().__init__()
        self.head = head
        self.tail = DLLSequential(*tail, needs_feedback=True) if tail else None

    @property
    def unit(self) -> DLLWeighted:
        """The head, where it is one layer rather than several side by side."""
        assert isinstance(self.head, DLLWeighted)
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        """Apply head and tail; in training mode they remember the batch."""
        return self.shape(self.head(x))

    def shape(self, y: Tensor) -> Tensor:
        """Apply the tail alone.

        Parameters
        ----------
        y : Tensor
            Output of the head.

        Returns
        -------
        Tensor
            Output of the stage.
        """
        return y if self.tail is None else self.tail(y)

    def unshape(self, e: Tensor) -> Tensor:
        """Adjoint of the tail at the last batch.

        Parameters
        ----------
        e : Tensor
            Of the shape of the stage's output.

        Returns
        -------
        Tensor
            Of the shape of the head's output.
        """
        return e if self.tail is None else self.tail.feedback_error(e)

    def descend(self, e: Tensor) -> Tensor:
        """Carry an error from the stage's output to its input by the head's feedback weights.

        Parameters
        ----------
        e : Tensor
            Of the shape of the stage's output.

        Returns
        -------
        Tensor
            Of the shape of its input.
        """
        return self.head.feedback_error(self.unshape(e))

    def update(self, e: Tensor) -> None:
        """Write the head's gradients.

        Parameters
        ----------
        e : Tensor
            Direction of descent at the stage's output. For ``-∂loss/∂h`` twice the gradient of the loss,
            summed over the batch, is written: the layers' factor ``2/σ²``.
        """
        self.head.local_update(self.unshape(e))

    def release(self) -> None:
        """Forget the last batch."""
        self.head.release()
        if self.tail is not None:
            self.tail.release()

    def send(self, y: Tensor, matrix: Tensor, like: Tensor) -> Tensor:
        """Adjoint of the head's linear map, with other weights.

        Parameters
        ----------
        y : Tensor
            In the space of the head's output.
        matrix : Tensor
            In the shape of the head's weights.
        like : Tensor
            Input of the head, for the shape.

        Returns
        -------
        Tensor
            In the space of the head's input.
        """
        return self.unit._send(y, matrix, like)

    def correlate(self, y: Tensor, x: Tensor, scale: float, out: Tensor) -> None:
        """Write ``scale`` times the sum over batch and positions of ``y ⊗ x`` into ``out``.

        Parameters
        ----------
        y, x : Tensor
            In the spaces of the head's output and input.
        scale : float
            Factor.
        out : Tensor
            In the shape of the head's weights.
        """
        self.unit._correlate(y, x, scale, out)


class StagedNetwork(LocalNetwork):
    """A network of stages.

    Parameters
    ----------
    stem : sequence of DLLLayer
        Layers without weights in front of the first stage.
    stages : sequence of Stage
        Bottom to top, the output layer last.
    output : {"softmax", "identity"}
        See :class:`~seedbed.lightning_modules.dll.rules.LocalNetwork`.
    clip_value : float or None
        Bound on each entry of each gradient.
    """

    def __init__(
        self,
        stem: Sequence[DLLLayer],
        stages: Sequence[Stage],
        *,
        output: Output = "softmax",
        clip_value: float | None = 50.0,
    ) -> None:
        super().__init__(output, clip_value)
        self.stem = DLLSequential(*stem) if stem else None
        self.stages = nn.ModuleList(stages)

    @property
    def stack(self) -> list[Stage]:
        """The stages, bottom to top."""
        return list(self.stages)  # type: ignore[arg-type]

    def enter(self, x: Tensor) -> Tensor:
        """Apply the stem.

        Parameters
        ----------
        x : Tensor
            A batch.

        Returns
        -------
        Tensor
            Input of the first stage.
        """
        return x if self.stem is None else self.stem(x)

    def forward(self, x: Tensor) -> Tensor:
        """Output before the softmax."""
        x = self.enter(x)
        for stage in self.stages:
            x = stage(x)
        return x

    def evaluate(self, x: Tensor) -> Tensor | None:
        """Return the same as ``forward``, differentiable."""
        layers = [self.stem, *(part for stage in self.stack for part in (stage.head, stage.tail))]
        for layer in layers:
            x = x if layer is None else layer.evaluate(x)
        return x

    def alignments(self) -> dict[str, Tensor]:
        """Cosine between forward and feedback weights of each head that has both."""
        return {
            name: cosine
            for name, layer in self.named_modules()
            if isinstance(layer, DLLWeighted) and (cosine := layer.alignment()) is not None
        }


def normalise(h: Tensor) -> Tensor:
    """Scale each sample to mean square one.

    Parameters
    ----------
    h : Tensor of shape (batch, ...)
        A batch.

    Returns
    -------
    Tensor
        Direction of each sample, times the root of its size; zeros stay zeros.
    """
    flat = h.flatten(1)
    norm = flat.norm(dim=1, keepdim=True).clamp_min(1e-8)
    return (flat / norm * flat.shape[1] ** 0.5).view_as(h)


def build_stages(
    config: NetworkConfig,
    rule: str,
    *,
    feedback_rule: str = "transport",
    activation: str | None = None,
    branches: bool = False,
    **changes: Any,
) -> tuple[list[DLLLayer], list[Stage]]:
    """Build the stages of a feed-forward network, output layer last.

    Parameters
    ----------
    config : NetworkConfig
        The network.
    rule : str
        Name of the rule, for messages.
    feedback_rule : {"transport", "fixed"}
        What :meth:`Stage.descend` goes through.
    activation : str, optional
        Of all hidden heads, whatever the config says.
    branches : bool
        Whether the rule can train layers side by side and normalise batches.
    **changes
        Fields of the config to replace.

    Returns
    -------
    stem : list of DLLLayer
        Layers without weights in front of the first stage.
    stages : list of Stage
        Bottom to top.

    Raises
    ------
    ValueError
        If the network has a kind of layer, or a form, that the rule does not define.
    """
    if config.form != "inner":
        raise ValueError(f"learning_rule={rule!r} is defined for form='inner' only, got form={config.form!r}")
    if not branches:
        for spec in config.layers:
            if spec.kind in ("branches", "batch_norm", "activation"):
                raise ValueError(f"learning_rule={rule!r} trains no layers of the kind {spec.kind!r}")
    if activation is not None:
        *hidden, top = config.layers
        hidden = [replace(spec, activation=activation) if spec.weighted else spec for spec in hidden]
        config = replace(config, layers=(*hidden, top))
    layers = build_layers(replace(config, **changes), feedback_rule=feedback_rule)  # type: ignore[arg-type]
    heads = [place for place, layer in enumerate(layers) if isinstance(layer, DLLWeighted | DLLBranches)]
    ends = [*heads[1:], len(layers)]
    stages = [Stage(layers[start], layers[start + 1 : end]) for start, end in zip(heads, ends, strict=True)]
    return layers[: heads[0]], stages
