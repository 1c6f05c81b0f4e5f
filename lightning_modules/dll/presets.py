"""The paper's networks, by data set."""

from typing import Any

from seedbed.checks import check_choice
from seedbed.lightning_modules.dll.modules import DLLClassifier

SHAPES: dict[str, tuple[int, list[int]]] = {
    "mnist": (10, [1, 28, 28]),
    "fashion_mnist": (10, [1, 28, 28]),
    "svhn": (10, [3, 32, 32]),
    "cifar10": (10, [3, 32, 32]),
    "cifar100": (100, [3, 32, 32]),
    "tiny_imagenet": (200, [3, 64, 64]),
}
"""Classes and shape of an image."""

KERNEL_HEIGHTS: dict[str, tuple[int, int, int]] = {"sst2": (3, 4, 5), "subj": (1, 2, 3)}


def _conv(channels: int, kernel_size: int = 3, padding: int = 1) -> dict[str, Any]:
    return {"kind": "conv2d", "size": channels, "kernel_size": kernel_size, "padding": padding}


def _linear(size: int) -> dict[str, Any]:
    return {"kind": "linear", "size": size}


MAX: dict[str, Any] = {"kind": "max_pool2d", "kernel_size": 2}
AVG: dict[str, Any] = {"kind": "avg_pool2d", "kernel_size": 2}
FLAT: dict[str, Any] = {"kind": "flatten"}

CONVOLUTIONAL: dict[str, list[dict[str, Any]]] = {
    "mnist": [_conv(32, 5, 0), MAX, _conv(64, 3, 0), MAX, _conv(16, 3, 0), FLAT, _linear(200)],
    "fashion_mnist": [_conv(64, 5, 0), MAX, _conv(128, 3, 0), AVG, _conv(64, 3, 0), FLAT, _linear(128)],
    "svhn": [_conv(64), MAX, _conv(128), MAX, _conv(64), FLAT, _linear(256)],
    "cifar10": [_conv(64), MAX, _conv(128), MAX, _conv(64), AVG, FLAT, _linear(256)],
    "cifar100": [_conv(64), _conv(64), MAX, _conv(128), MAX, _conv(64), AVG, FLAT, _linear(1024)],
    "tiny_imagenet": [
        _conv(64),
        _conv(64),
        MAX,
        _conv(128),
        _conv(128),
        MAX,
        _conv(64),
        AVG,
        FLAT,
        _linear(1024),
    ],
}


def dll_mlp(dataset: str = "mnist", **options: Any) -> DLLClassifier:
    """Build the paper's perceptron for a data set: hidden layers 1024-512-256, tanh.

    Parameters
    ----------
    dataset : str
        Gives input shape and classes.
    **options
        Further arguments of :class:`DLLClassifier`, such as ``learning_rule``.

    Returns
    -------
    DLLClassifier
        Untrained.

    Examples
    --------
    >>> [tuple(layer.weight.shape) for layer in dll_mlp("mnist").network.body.weighted_layers()]
    [(1024, 784), (512, 1024), (256, 512), (10, 256)]
    """
    check_choice("dataset", dataset, tuple(SHAPES))
    num_classes, shape = SHAPES[dataset]
    defaults: dict[str, Any] = {"hidden_layer_sizes": [1024, 512, 256]}
    return DLLClassifier(num_classes=num_classes, input_shape=shape, **{**defaults, **options})


def dll_cnn(dataset: str = "mnist", **options: Any) -> DLLClassifier:
    """Build the paper's convolutional network for a data set: tanh, no bias.

    Parameters
    ----------
    dataset : str
        Which network.
    **options
        Further arguments of :class:`DLLClassifier`; ``lr`` is 5e-5 unless given.

    Returns
    -------
    DLLClassifier
        Untrained.

    Examples
    --------
    >>> [tuple(layer.weight.shape) for layer in dll_cnn("mnist").network.body.weighted_layers()]
    [(32, 1, 5, 5), (64, 32, 3, 3), (16, 64, 3, 3), (200, 144), (10, 200)]
    """
    check_choice("dataset", dataset, tuple(CONVOLUTIONAL))
    num_classes, shape = SHAPES[dataset]
    defaults: dict[str, Any] = {"lr": 5e-5}
    return DLLClassifier(
        layers=CONVOLUTIONAL[dataset], num_classes=num_classes, input_shape=shape, **{**defaults, **options}
    )


def dll_text_cnn(
    dataset: str = "sst2",
    *,
    length: int = 64,
    embedding: int = 300,
    filters: int = 100,
    hidden_layer_sizes: tuple[int, ...] = (512, 256, 128),
    **options: Any,
) -> DLLClassifier:
    """Build the paper's text network: kernels of three heights side by side, mean over time, tanh.

    Parameters
    ----------
    dataset : {"sst2", "subj"}
        Kernels of 3, 4, 5 or of 1, 2, 3 words.
    length : int
        Words of a text.
    embedding : int
        Numbers that describe a word; the input is (batch, embedding, length).
    filters : int
        Kernels of each height.
    hidden_layer_sizes : tuple of int
        Layers between the filters and the two classes.
    **options
        Further arguments of :class:`DLLClassifier`; ``lr`` is 5e-5 unless given.

    Returns
    -------
    DLLClassifier
        Untrained.

    Examples
    --------
    >>> import torch
    >>> dll_text_cnn("subj", length=20, embedding=8).predict_step(torch.zeros(2, 8, 20)).shape
    torch.Size([2, 2])
    """
    check_choice("dataset", dataset, tuple(KERNEL_HEIGHTS))
    branches = [
        [
            {"kind": "conv1d", "size": filters, "kernel_size": height, "activation": "identity"},
            {"kind": "global_avg_pool"},
            {"kind": "activation", "activation": "tanh"},
        ]
        for height in KERNEL_HEIGHTS[dataset]
    ]
    layers: list[dict[str, Any]] = [
        {"kind": "branches", "branches": branches},
        *map(_linear, hidden_layer_sizes),
    ]
    defaults: dict[str, Any] = {"lr": 5e-5}
    return DLLClassifier(
        layers=layers, num_classes=2, input_shape=[embedding, length], **{**defaults, **options}
    )
