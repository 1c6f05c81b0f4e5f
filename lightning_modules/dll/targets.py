"""Targets of classification: checked labels, smoothed one-hot vectors."""

import torch
from torch import Tensor
from torch.nn import functional

PADDING = -100
"""Label of a step that counts for nothing, torch's default ``ignore_index``."""


def class_targets(y: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Smoothed one-hot targets.

    Parameters
    ----------
    y : Tensor of int, any shape
        Labels.
    num_classes : int
        K.
    smoothing : float
        Share s spread over all classes.

    Returns
    -------
    Tensor
        ``(1 - s) · onehot + s / K``, with K behind the shape of ``y``.
    """
    onehot = functional.one_hot(y.long(), num_classes).to(torch.get_default_dtype())
    return onehot if smoothing == 0.0 else onehot.mul_(1.0 - smoothing).add_(smoothing / num_classes)


def check_labels(y: Tensor, num_classes: int, padding: int | None = None) -> None:
    """Raise unless labels are integers in ``[0, num_classes)``.

    Labels on an accelerator are not looked at: that would wait for the device in every step, and one-hot
    encoding refuses them there by an assertion of its own.

    Parameters
    ----------
    y : Tensor
        Labels.
    num_classes : int
        How many there are.
    padding : int, optional
        A value that is allowed as well.

    Raises
    ------
    ValueError
        If one is outside; the message has it.
    TypeError
        If they are no integers.
    """
    if y.is_floating_point() or y.is_complex():
        raise TypeError(f"labels must be integers, got {y.dtype}")
    if not y.is_cpu:
        return
    labels = y if padding is None else y[y != padding]
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(
            f"labels must be in [0, {num_classes}), as num_classes says; got {int(labels.min())} to "
            f"{int(labels.max())}"
        )
