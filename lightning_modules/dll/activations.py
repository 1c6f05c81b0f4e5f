"""Activations and their gates: ``φ(z)`` and ``e ∘ φ'(z)`` in one kernel each.

A gate is computed at the pre-activation ``z``. Where ``φ'`` is a function of ``y = φ(z)`` (tanh:
``1 - y²``) the output is kept instead, which the next layer keeps anyway, so nothing is stored twice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from seedbed.checks import check_choice

_aten = torch.ops.aten
LEAK = 0.01


@dataclass(frozen=True)
class Activation:
    """An elementwise nonlinearity.

    Attributes
    ----------
    name : str
        Its name.
    function : callable
        ``z -> φ(z)``.
    gradient : callable
        ``(e, kept) -> e ∘ φ'(z)``, where ``kept`` is ``φ(z)`` or ``z``.
    keeps_output : bool
        Whether ``kept`` is the output.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    keeps_output: bool

    def keep(self, z: Tensor, y: Tensor) -> Tensor:
        """Of pre-activation and output, the one that :meth:`gate` needs.

        Parameters
        ----------
        z, y : Tensor
            Pre-activation and output.

        Returns
        -------
        Tensor
            One of them.
        """
        return y if self.keeps_output else z

    def gate(self, error: Tensor, kept: Tensor) -> Tensor:
        """Multiply an error by the slope: ``e ∘ φ'(z)``.

        Parameters
        ----------
        error : Tensor
            Error at the output.
        kept : Tensor
            From :meth:`keep`, of the same shape.

        Returns
        -------
        Tensor
            Error at the pre-activation.
        """
        return self.gradient(error.to(kept.dtype), kept)


_ACTIVATIONS = {
    activation.name: activation
    for activation in (
        Activation("tanh", torch.tanh, _aten.tanh_backward, keeps_output=True),
        Activation("sigmoid", torch.sigmoid, _aten.sigmoid_backward, keeps_output=True),
        # The slope at 0 is 0, as torch has it.
        Activation("relu", torch.relu, lambda e, y: _aten.threshold_backward(e, y, 0.0), keeps_output=True),
        Activation(
            "leaky_relu",
            lambda z: functional.leaky_relu(z, LEAK),
            lambda e, z: _aten.leaky_relu_backward(e, z, LEAK, self_is_result=False),
            keeps_output=False,
        ),
        Activation(
            "softplus",
            functional.softplus,
            lambda e, z: _aten.softplus_backward(e, z, 1.0, 20.0),
            keeps_output=False,
        ),
        Activation("gelu", functional.gelu, _aten.gelu_backward, keeps_output=False),
        Activation("identity", lambda z: z, lambda e, _: e, keeps_output=True),
    )
}


def get_activation(name: str) -> Activation:
    """Look an activation up.

    Parameters
    ----------
    name : str
        ``"tanh"``, ``"sigmoid"``, ``"relu"``, ``"leaky_relu"``, ``"softplus"``, ``"gelu"`` or
        ``"identity"``.

    Returns
    -------
    Activation
        The function and its gate.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    check_choice("activation", name, tuple(_ACTIVATIONS))
    return _ACTIVATIONS[name]
