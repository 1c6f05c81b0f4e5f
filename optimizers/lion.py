"""Lion (EvoLved Sign Momentum), with foreach kernels and decoupled weight decay."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from seedbed.checks import check_number


class Lion(Optimizer):
    r"""Lion: the sign of an interpolated momentum.

    .. math::
        u_t &= \operatorname{sign}(c\, m_t + (1 - c)\, g_t), \\
        w_{t+1} &= (1 - \alpha \kappa)\, w_t - \alpha\, u_t, \\
        m_{t+1} &= \rho\, m_t + (1 - \rho)\, g_t .

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) or of dict
        What to optimize.
    lr : float
        Step size α. Since every coordinate moves by α, choose 3 to 10 times less than for AdamW.
    betas : (float, float)
        Interpolation c and momentum ρ, each in [0, 1).
    weight_decay : float
        Decoupled decay κ; choose 3 to 10 times more than for AdamW.
    foreach : bool, optional
        Whether to handle all tensors of a group in one call. None means yes.
    maximize : bool
        Whether to ascend.

    Raises
    ------
    TypeError
        If a number is none.
    ValueError
        If a number is out of its range.
    RuntimeError
        From ``step``, if a gradient is sparse or complex.

    References
    ----------
    X. Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023, program 1.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import Lion
    >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = Lion([weight], lr=0.1)
    >>> weight.square().sum().backward()
    >>> optimizer.step()
    >>> weight
    Parameter containing:
    tensor([ 0.9000, -1.9000], requires_grad=True)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        check_number("lr", float(lr) if isinstance(lr, Tensor) else lr, low=0.0)
        for index, beta in enumerate(betas):
            check_number(f"betas[{index}]", beta, low=0.0, high=1.0, closed="left")
        check_number("weight_decay", weight_decay, low=0.0)
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    @classmethod
    def build(cls, params: ParamsT, **kwargs: Any) -> "Lion":
        """Construct from parameters and plain values.

        Parameters
        ----------
        params : iterable of Tensor, of (str, Tensor) or of dict
            What to optimize.
        **kwargs
            Keyword arguments of the class.

        Returns
        -------
        Lion
            The optimizer.
        """
        return cls(params, **kwargs)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the loss anew and fills the gradients.

        Returns
        -------
        object
            What the closure returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params, grads, momenta = self._collect(group)
            if not params:
                continue
            if group["foreach"] is False:
                for triple in zip(params, grads, momenta):
                    self._update(group, *([member] for member in triple))
            else:
                self._update(group, params, grads, momenta)
        return loss

    def _collect(self, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        params, grads, momenta = [], [], []
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse or p.grad.is_complex():
                raise RuntimeError("Lion takes dense real gradients only")
            state = self.state[p]
            if "exp_avg" not in state:
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            params.append(p)
            grads.append(p.grad)
            momenta.append(state["exp_avg"])
        return params, grads, momenta

    @staticmethod
    def _update(
        group: dict[str, Any], params: list[Tensor], grads: list[Tensor], momenta: list[Tensor]
    ) -> None:
        lr, (interpolation, momentum) = group["lr"], group["betas"]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        updates = torch._foreach_lerp(momenta, grads, 1 - interpolation)
        torch._foreach_sign_(updates)
        torch._foreach_lerp_(momenta, grads, 1 - momentum)
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        if isinstance(lr, Tensor):
            torch._foreach_mul_(updates, -lr)
            torch._foreach_add_(params, updates)
        else:
            torch._foreach_add_(params, updates, alpha=-lr)
