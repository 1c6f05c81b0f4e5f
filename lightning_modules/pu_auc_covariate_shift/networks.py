"""Networks that turn rows or images into features."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from seedbed.checks import check_number

FILTERS = (6, 16)
"""Channels of the two convolution blocks."""


def check_shape(input_shape: int | Sequence[int]) -> tuple[int, ...]:
    """Check the shape of one input.

    Parameters
    ----------
    input_shape : int or sequence of int
        Columns, or (channels, height, width).

    Returns
    -------
    tuple of int
        One or three sizes.

    Raises
    ------
    TypeError, ValueError
        If it is anything else.
    """
    shape = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
    if len(shape) not in (1, 3):
        raise ValueError(f"input_shape must be columns or (channels, height, width), got {input_shape!r}")
    for size in shape:
        check_number("input_shape", size, low=1, integer=True)
    return shape


def feature_network(input_shape: int | Sequence[int], hidden_layer_sizes: Sequence[int]) -> nn.Sequential:
    """Build a perceptron for rows; for images two convolution blocks come first.

    A block is a convolution of 5 x 5 that keeps the size, a ReLU, and a pool of 2 where both sides allow it.
    Weights are drawn from torch's global generator.

    Parameters
    ----------
    input_shape : int or sequence of int
        Columns, or (channels, height, width).
    hidden_layer_sizes : sequence of int
        Units of the hidden layers, all with ReLU.

    Returns
    -------
    Sequential
        Maps (n, *input_shape) to (n, k), k the last hidden size.
    """
    shape = check_shape(input_shape)
    for size in hidden_layer_sizes:
        check_number("hidden_layer_sizes", size, low=1, integer=True)
    layers: list[nn.Module] = []
    if len(shape) == 3:
        channels, height, width = shape
        for filters in FILTERS:
            layers += [nn.Conv2d(channels, filters, 5, padding=2), nn.ReLU()]
            channels = filters
            if min(height, width) >= 2:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        layers.append(nn.Flatten())
        shape = (channels, height, width)
    width_in = prod(shape)
    for size in hidden_layer_sizes:
        layers += [nn.Linear(width_in, size), nn.ReLU()]
        width_in = size
    return nn.Sequential(*layers)


def feature_size(input_shape: int | Sequence[int], network: nn.Sequential) -> int:
    """Width of what a feature network returns.

    Parameters
    ----------
    input_shape : int or sequence of int
        Shape of one input.
    network : Sequential
        From :func:`feature_network`.

    Returns
    -------
    int
        Its k.
    """
    with torch.no_grad():
        return int(network(torch.zeros(1, *check_shape(input_shape))).shape[1])


def as_column(output: Tensor, name: str) -> Tensor:
    """One number per row, from a network that returns (n,) or (n, 1).

    Parameters
    ----------
    output : Tensor
        What it returned.
    name : str
        Whose output, for the message.

    Returns
    -------
    Tensor of shape (n,)
        At least float32.

    Raises
    ------
    ValueError
        If it has more than one number per row.
    """
    if output.ndim == 2 and output.shape[1] == 1:
        output = output[:, 0]
    if output.ndim != 1:
        raise ValueError(f"{name} must return shape (n,) or (n, 1), got {tuple(output.shape)}")
    return output if output.dtype == torch.float64 else output.float()
