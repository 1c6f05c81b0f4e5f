"""Layers without weights: pools, flattening, normalisation. Each routes the error that arrives at it."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.dll.activations import get_activation
from seedbed.lightning_modules.dll.layers import DLLLayer

_aten = torch.ops.aten


class _Pool2d(DLLLayer):
    def __init__(self, kernel_size: int, stride: int | None = None, padding: int = 0) -> None:
        super().__init__()
        check_number("kernel_size", kernel_size, low=1, integer=True)
        check_number("padding", padding, low=0, high=kernel_size // 2, integer=True)
        if stride is not None:
            check_number("stride", stride, low=1, integer=True)
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    @property
    def _window(self) -> tuple[list[int], list[int], list[int]]:
        return [self.kernel_size] * 2, [self.stride] * 2, [self.padding] * 2


class DLLMaxPool2d(_Pool2d):
    """Max-pool: the error goes to the winner of each window.

    Parameters
    ----------
    kernel_size : int
        Side of the window.
    stride : int, optional
        Default ``kernel_size``. Windows may overlap: a unit that wins twice gets both errors.
    padding : int
        At most half the window.

    Examples
    --------
    >>> import torch
    >>> layer = DLLMaxPool2d(2)
    >>> y = layer(torch.tensor([[[[1.0, 2.0], [3.0, 0.0]]]]))
    >>> layer.feedback_error(torch.ones_like(y)).tolist()
    [[[[0.0, 0.0], [1.0, 0.0]]]]
    """

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Pool, and remember the winners."""
        y, winners = functional.max_pool2d(x, *self._window, return_indices=True)
        return y, (x, winners)

    def feedback_error(self, e: Tensor) -> Tensor:
        """Route the error to the winners."""
        x, winners = self.recalled()
        with torch.no_grad():
            e = e.detach().to(x.dtype)
            return _aten.max_pool2d_with_indices_backward(e, x, *self._window, [1, 1], False, winners)


class DLLAvgPool2d(_Pool2d):
    """Average pool: the error is spread over the window.

    Parameters
    ----------
    kernel_size : int
        Side of the window.
    stride : int, optional
        Default ``kernel_size``.
    padding : int
        Zeros count in the average.
    scale : {"mean", "sum"}
        ``"mean"`` divides the error by the window's size, the adjoint of the average; ``"sum"`` repeats it
        undivided, which differs by a constant.

    Examples
    --------
    >>> import torch
    >>> layer = DLLAvgPool2d(2)
    >>> y = layer(torch.ones(1, 1, 2, 2))
    >>> layer.feedback_error(y).tolist()
    [[[[0.25, 0.25], [0.25, 0.25]]]]
    """

    def __init__(
        self,
        kernel_size: int,
        stride: int | None = None,
        padding: int = 0,
        scale: str = "mean",
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        check_choice("scale", scale, ("mean", "sum"))
        self.scale = scale

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Pool; only the shape need be remembered."""
        return functional.avg_pool2d(x, *self._window), (x,)

    def feedback_error(self, e: Tensor) -> Tensor:
        """Spread the error."""
        (x,) = self.recalled()
        divisor = 1 if self.scale == "sum" else None
        with torch.no_grad():
            e = e.detach().to(x.dtype)
            return _aten.avg_pool2d_backward(e, x, *self._window, False, True, divisor)


class DLLGlobalAvgPool(DLLLayer):
    """Mean over all positions: (batch, channels, ...) to (batch, channels).

    Examples
    --------
    >>> import torch
    >>> DLLGlobalAvgPool()(torch.ones(2, 3, 7)).shape
    torch.Size([2, 3])
    """

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Average."""
        return x.flatten(2).mean(-1), (x,)

    def feedback_error(self, e: Tensor) -> Tensor:
        """Spread the error evenly."""
        (x,) = self.recalled()
        share = e.detach() / x[0, 0].numel()
        return share.reshape(*share.shape, *(1,) * (x.ndim - 2)).expand(x.shape)


class DLLFlatten(DLLLayer):
    """Flatten all but the batch; the error is reshaped back.

    Examples
    --------
    >>> import torch
    >>> DLLFlatten()(torch.ones(2, 3, 4)).shape
    torch.Size([2, 12])
    """

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Flatten."""
        return x.flatten(1), (x,)

    def feedback_error(self, e: Tensor) -> Tensor:
        """Reshape the error."""
        (x,) = self.recalled()
        return e.detach().reshape(x.shape)


class DLLActivation(DLLLayer):
    """An activation of its own, for one that follows a pool.

    Parameters
    ----------
    activation : str
        As in :class:`~seedbed.lightning_modules.dll.layers.DLLLinear`.

    Examples
    --------
    >>> import torch
    >>> layer = DLLActivation("relu")
    >>> y = layer(torch.tensor([[-1.0, 2.0]]))
    >>> layer.feedback_error(torch.ones(1, 2)).tolist()
    [[0.0, 1.0]]
    """

    def __init__(self, activation: str = "tanh") -> None:
        super().__init__()
        self.activation = get_activation(activation).name

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Apply it."""
        phi = get_activation(self.activation)
        y = phi.function(x)
        return y, (phi.keep(x, y),)

    def feedback_error(self, e: Tensor) -> Tensor:
        """Gate the error."""
        (kept,) = self.recalled()
        with torch.no_grad():
            return get_activation(self.activation).gate(e.detach(), kept)


class DLLBatchNorm(DLLLayer):
    """Batch normalisation without scale and shift; the error passes straight through.

    Parameters
    ----------
    num_features : int
        Features or channels.
    momentum : float
        Share of the new batch in the running statistics.
    eps : float
        Added to the variance.

    Examples
    --------
    >>> import torch
    >>> layer = DLLBatchNorm(2)
    >>> layer(torch.tensor([[0.0, 1.0], [2.0, 3.0]])).round(decimals=2).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        check_number("num_features", num_features, low=1, integer=True)
        check_number("momentum", momentum, low=0, high=1)
        check_number("eps", eps, low=0, closed="neither")
        self.momentum = momentum
        self.eps = eps
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def transform(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Normalise by the batch in training mode, by running statistics otherwise."""
        y = functional.batch_norm(
            x, self.running_mean, self.running_var, None, None, self.training, self.momentum, self.eps
        )
        return y, ()

    def feedback_error(self, e: Tensor) -> Tensor:
        """Pass the error on."""
        self.recalled()
        return e.detach()


def shaping_layer(kind: str, **options: Any) -> DLLLayer:
    """Build a layer without weights.

    Parameters
    ----------
    kind : str
        As in :class:`~seedbed.lightning_modules.dll.architecture.LayerSpec`.
    **options
        Arguments of the layer.

    Returns
    -------
    DLLLayer
        The layer.
    """
    return _KINDS[kind](**options)


_KINDS: dict[str, type[DLLLayer]] = {
    "max_pool2d": DLLMaxPool2d,
    "avg_pool2d": DLLAvgPool2d,
    "global_avg_pool": DLLGlobalAvgPool,
    "flatten": DLLFlatten,
    "activation": DLLActivation,
    "batch_norm": DLLBatchNorm,
}
