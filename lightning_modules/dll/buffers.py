"""One flat tensor that holds the gradients of a whole network."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Elements: keeps every view on a 256-byte boundary in float32, which vectorised kernels want.
ALIGNMENT = 64


class GradientBuffer:
    """Gradients of several parameters as views into one tensor.

    Bounding, scaling and reducing across processes are then one operation each, whatever the number of
    layers, and no step allocates.
    """

    def __init__(self) -> None:
        self._parameters: list[nn.Parameter] = []
        self._views: list[Tensor] = []
        self._ends: list[int] = []
        self._offsets: list[int] = []
        self._flat: Tensor = torch.empty(0)

    def attach(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make ``.grad`` of each parameter a view into the buffer.

        Parameters
        ----------
        parameters : sequence of Parameter
            In the order in which they lie in the buffer; of one dtype, on one device.
        """
        if not self._fits(parameters):
            self._allocate(parameters)
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view

    def collect(self) -> None:
        """Copy gradients that were assigned rather than written in place into the buffer."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is not None and parameter.grad is not view:
                view.copy_(parameter.grad)
                parameter.grad = view

    @property
    def active(self) -> Tensor:
        """The part of the buffer up to the last parameter that has a gradient, 1-D."""
        used = [
            end
            for parameter, end in zip(self._parameters, self._ends, strict=True)
            if parameter.grad is not None
        ]
        return self._flat[: max(used, default=0)]

    def _fits(self, parameters: Sequence[nn.Parameter]) -> bool:
        # Module.to moves gradients by swapping what a view holds: its address tells that it left.
        start = self._flat.data_ptr()
        return len(parameters) == len(self._parameters) and all(
            new is old
            and view.data_ptr() == start + offset
            and new.device == view.device
            and new.dtype == view.dtype
            for new, old, view, offset in zip(
                parameters, self._parameters, self._views, self._offsets, strict=True
            )
        )

    def _allocate(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._views, self._ends = [], []
        starts, end = [], 0
        for parameter in parameters:
            starts.append(end)
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
            self._ends.append(end)
        like = parameters[0] if parameters else torch.empty(0)
        # Ordinary memory even when learning runs in inference mode: optimizers work on it outside.
        with torch.inference_mode(mode=False):
            self._flat = torch.zeros(end, dtype=like.dtype, device=like.device)
            self._offsets = [start * self._flat.element_size() for start in starts]
            self._views = [
                self._flat[start : start + parameter.numel()].view(parameter.shape)
                for parameter, start in zip(parameters, starts, strict=True)
            ]
