"""Convolutions of three-compartment neurons."""

from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn import grad as conv_grad

from seedbed.checks import check_number
from seedbed.lightning_modules.dll.layers import DLLWeighted, autocast


class _DLLConv(DLLWeighted):
    """What the convolutions share; see :class:`DLLConv2d`."""

    positions: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        *,
        feedback_std: float = 0.05,
        **options: Any,
    ) -> None:
        check_number("in_channels", in_channels, low=1, integer=True)
        check_number("out_channels", out_channels, low=1, integer=True)
        self_kernel = self._each("kernel_size", kernel_size, 1)
        super().__init__((out_channels, in_channels, *self_kernel), feedback_std=feedback_std, **options)
        self.kernel_size = self_kernel
        self.stride = self._each("stride", stride, 1)
        self.padding = self._each("padding", padding, 0)

    @classmethod
    def _each(cls, name: str, value: int | tuple[int, ...], low: int) -> tuple[int, ...]:
        values = (value,) * cls.positions if isinstance(value, int) else tuple(value)
        if len(values) != cls.positions:
            raise ValueError(f"{name} must be an integer or {cls.positions} integers, got {value!r}")
        for entry in values:
            check_number(name, entry, low=low, integer=True)
        return values

    def _check_input(self, x: Tensor) -> None:
        super()._check_input(x)
        sizes = [size + 2 * pad for size, pad in zip(x.shape[2:], self.padding, strict=True)]
        if any(size < kernel for size, kernel in zip(sizes, self.kernel_size, strict=True)):
            raise ValueError(
                f"the input of shape {tuple(x.shape)}, padded to {tuple(sizes)}, is smaller than the "
                f"kernel {self.kernel_size}"
            )


class DLLConv2d(_DLLConv):
    """Convolution of three-compartment neurons over images.

    The error goes down through the transposed convolution with the feedback kernels, and both kernels
    learn from the same correlation: of δ with the input for W, of δ with the error sent down for Θ.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels.
    kernel_size, stride, padding : int or tuple of int
        As in ``torch.nn.Conv2d``; padding is with zeros.
    feedback_std : float
        Standard deviation of the feedback kernels at the start.
    **options
        ``activation``, ``form``, ``bias``, ``feedback_rule``, ``feedback_init``, ``weight_std``, ``sigma``,
        ``clip_value``, ``needs_feedback`` and ``generator``, as in :class:`DLLLinear`.

    Attributes
    ----------
    weight, feedback : Parameter of shape (out_channels, in_channels, height, width)
        W and Θ.

    Examples
    --------
    >>> import torch
    >>> layer = DLLConv2d(1, 4, 3, padding=1, generator=torch.Generator().manual_seed(0))
    >>> y = layer(torch.ones(2, 1, 8, 8))
    >>> layer.feedback_error(1.0 - y).shape
    torch.Size([2, 1, 8, 8])
    """

    positions = 2

    def drive(self, x: Float[Tensor, "batch inputs h w"]) -> Float[Tensor, "batch outputs h2 w2"]:
        """Basal drive: the convolution."""
        return functional.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def _send(
        self,
        delta: Float[Tensor, "batch outputs h2 w2"],
        matrix: Float[Tensor, "outputs inputs kh kw"],
        x: Float[Tensor, "batch inputs h w"],
    ) -> Float[Tensor, "batch inputs h w"]:
        delta, matrix = autocast(delta, matrix)
        return conv_grad.conv2d_input(x.shape, matrix, delta, self.stride, self.padding)  # type: ignore[no-untyped-call]

    def _correlate(
        self,
        delta: Float[Tensor, "batch outputs h2 w2"],
        pre: Float[Tensor, "batch inputs h w"],
        scale: float,
        out: Float[Tensor, "outputs inputs kh kw"],
    ) -> None:
        delta, pre = autocast(delta, pre)
        found = conv_grad.conv2d_weight(pre, out.shape, delta, self.stride, self.padding)  # type: ignore[no-untyped-call]
        out.copy_(found).mul_(scale)


class DLLConv1d(_DLLConv):
    """Convolution of three-compartment neurons over sequences; see :class:`DLLConv2d`.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels.
    kernel_size, stride, padding : int or tuple of int
        As in ``torch.nn.Conv1d``.
    feedback_std : float
        Standard deviation of the feedback kernels at the start.
    **options
        As in :class:`DLLConv2d`.

    Examples
    --------
    >>> import torch
    >>> layer = DLLConv1d(2, 4, 3, generator=torch.Generator().manual_seed(0))
    >>> layer(torch.ones(5, 2, 10)).shape
    torch.Size([5, 4, 8])
    """

    positions = 1

    def drive(self, x: Float[Tensor, "batch inputs n"]) -> Float[Tensor, "batch outputs m"]:
        """Basal drive: the convolution."""
        return functional.conv1d(x, self.weight, self.bias, self.stride, self.padding)

    def _send(
        self,
        delta: Float[Tensor, "batch outputs m"],
        matrix: Float[Tensor, "outputs inputs k"],
        x: Float[Tensor, "batch inputs n"],
    ) -> Float[Tensor, "batch inputs n"]:
        delta, matrix = autocast(delta, matrix)
        return conv_grad.conv1d_input(x.shape, matrix, delta, self.stride, self.padding)  # type: ignore[no-untyped-call]

    def _correlate(
        self,
        delta: Float[Tensor, "batch outputs m"],
        pre: Float[Tensor, "batch inputs n"],
        scale: float,
        out: Float[Tensor, "outputs inputs k"],
    ) -> None:
        delta, pre = autocast(delta, pre)
        found = conv_grad.conv1d_weight(pre, out.shape, delta, self.stride, self.padding)  # type: ignore[no-untyped-call]
        out.copy_(found).mul_(scale)
