"""Sums over pairs of scores, the risk of a batch, and the criterion of the relative density ratio."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from seedbed.checks import check_choice

PAIRS = 1 << 18
"""Pairs held at a time."""

Elementwise = Callable[[Tensor], tuple[Tensor, Tensor]]


def _sigmoid(z: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.sigmoid(-z)
    return value, value * (value - 1)


def _ramp(z: Tensor) -> tuple[Tensor, Tensor]:
    return ((1 - z) / 2).clamp(0, 1), -0.5 * (z.abs() < 1).to(z.dtype)


def _logistic(z: Tensor) -> tuple[Tensor, Tensor]:
    return softplus(-z), -torch.sigmoid(-z)


def _squared_hinge(z: Tensor) -> tuple[Tensor, Tensor]:
    margin = (1 - z).clamp_min(0)
    return margin * margin, -2 * margin


def _squared(z: Tensor) -> tuple[Tensor, Tensor]:
    margin = 1 - z
    return margin * margin, -2 * margin


LOSSES: dict[str, Elementwise] = {
    "sigmoid": _sigmoid,
    "ramp": _ramp,
    "logistic": _logistic,
    "squared_hinge": _squared_hinge,
    "squared": _squared,
}
"""Value and slope of each pair loss at ``z = s(x) - s(x')``."""

SYMMETRIC = ("sigmoid", "ramp")
"""Losses with ``l(z) + l(-z) = 1``."""

AT_ZERO = {"sigmoid": 0.5, "ramp": 0.5, "logistic": 0.6931471805599453, "squared_hinge": 1.0, "squared": 1.0}
"""``l(0)``."""


class _PairSum(torch.autograd.Function):
    """``sum_ij a_i b_j l(s_i - t_j)`` with its gradient, a block of rows at a time."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, a: Tensor, b: Tensor, loss: str) -> Tensor:
        evaluate = LOSSES[loss]
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        total = first.new_zeros(())
        to_first, to_second = torch.zeros_like(first), torch.zeros_like(second)
        rows = max(1, PAIRS // max(1, len(second)))
        # Sums of many small terms: never in half precision.
        with torch.autocast(device_type=first.device.type, enabled=False):
            for start in range(0, len(first), rows):
                part = slice(start, start + rows)
                value, slope = evaluate(first[part, None] - second)
                total = total + a[part] @ (value @ b)
                if wanted:
                    to_first[part] = a[part] * (slope @ b)
                    to_second -= a[part] @ slope
        if wanted:
            ctx.save_for_backward(to_first, to_second * b)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        to_first, to_second = ctx.saved_tensors
        return grads[0] * to_first, grads[0] * to_second, None, None, None


def pair_sum(
    first: Float[Tensor, " n"],
    second: Float[Tensor, " m"],
    first_weight: Float[Tensor, " n"],
    second_weight: Float[Tensor, " m"],
    loss: str = "sigmoid",
) -> Float[Tensor, ""]:
    """Sum ``a_i b_j l(s_i - t_j)`` over all pairs, which are never in memory together.

    Parameters
    ----------
    first, second : Tensor of shape (n,) and (m,)
        Scores s and t, with gradients.
    first_weight, second_weight : Tensor of shape (n,) and (m,)
        Weights a and b, without.
    loss : str
        A name of :data:`LOSSES`.

    Returns
    -------
    Tensor
        Scalar. It can be differentiated once.

    Examples
    --------
    >>> import torch
    >>> s = torch.tensor([2.0, 1.0], requires_grad=True)
    >>> pair_sum(s, torch.zeros(3), torch.ones(2), torch.ones(3), "squared")
    tensor(3., grad_fn=<_PairSumBackward>)
    """
    return _PairSum.apply(  # type: ignore[no-untyped-call, no-any-return]
        first, second, first_weight, second_weight, loss
    )


def _mean(
    s: Tensor, t: Tensor, a: Tensor, b: Tensor, loss: str, *, normalize: bool, same: bool = False
) -> Tensor:
    """Mean of the loss over pairs; ``same`` leaves out the pairs of a row of s with itself in t."""
    total = pair_sum(s, t, a, b, loss)
    first, second = (a, b) if normalize else (torch.ones_like(a), torch.ones_like(b))
    pairs = first.sum() * second.sum()
    if same:
        total = total - AT_ZERO[loss] * (a @ a)
        pairs = pairs - first @ first
    # One lone positive has no pair with another: then there is nothing to average.
    return total / pairs.clamp_min(torch.finfo(pairs.dtype).tiny)


def pu_risk(
    positive: Float[Tensor, " p"],
    unlabeled: Float[Tensor, " u"],
    target: Float[Tensor, " t"],
    positive_weight: Float[Tensor, " p"],
    unlabeled_weight: Float[Tensor, " u"],
    target_weight: Float[Tensor, " t"],
    *,
    loss: str = "sigmoid",
    trade_off: float = 0.2,
    normalize: bool = True,
    class_prior_train: float | None = None,
    single_set: bool = False,
) -> Float[Tensor, ""]:
    """Compute ``(1 - gamma) J1 + gamma J2`` of a batch, less ``pi_tr J_pp`` for a loss that is not symmetric.

    Parameters
    ----------
    positive, unlabeled, target : Tensor of shape (p,), (u,) and (t,)
        Scores. Without target rows ``trade_off`` is taken as 0.
    positive_weight, unlabeled_weight, target_weight : Tensor of shape (p,), (u,) and (t,)
        Importance weights (detached), and weights of the target rows.
    loss : str
        A name of :data:`LOSSES`.
    trade_off : float
        gamma.
    normalize : bool
        Divide by sums of weights, not by numbers of pairs.
    class_prior_train : float, optional
        ``pi_tr``.
    single_set : bool
        Whether positives and unlabeled rows together stand for the training population.

    Returns
    -------
    Tensor
        Scalar.

    Raises
    ------
    ValueError
        If ``loss`` is unknown, or not symmetric and ``class_prior_train`` missing.
    """
    check_choice("loss", loss, LOSSES)
    gamma = trade_off if len(target) else 0.0
    risk = positive.new_zeros(())
    if single_set:
        source = torch.cat([positive, unlabeled])
        source_weight = torch.cat([positive_weight, unlabeled_weight])
    else:
        source, source_weight = unlabeled, unlabeled_weight
    if gamma < 1:
        risk = risk + (1 - gamma) * _mean(
            positive, source, positive_weight, source_weight, loss, normalize=normalize, same=single_set
        )
    if gamma > 0:
        risk = risk + gamma * _mean(
            positive, target, positive_weight, target_weight, loss, normalize=normalize
        )
    if loss not in SYMMETRIC:
        if class_prior_train is None:
            raise ValueError(f"class_prior_train must be given for loss={loss!r}, got None")
        factor = class_prior_train * (positive_weight.mean() / source_weight.mean() if normalize else 1.0)
        risk = risk - factor * _mean(
            positive, positive, positive_weight, positive_weight, loss, normalize=normalize, same=True
        )
    return risk


def relative_ratio(logit: Tensor, alpha: float) -> Tensor:
    """Turn a network's output into a ratio in ``(0, 1 / alpha)``; any positive number for alpha 0.

    Parameters
    ----------
    logit : Tensor
        Output.
    alpha : float
        Share of the target density in the mixture.

    Returns
    -------
    Tensor
        Same shape.
    """
    return torch.sigmoid(logit) / alpha if alpha > 0 else softplus(logit)


def ratio_loss(target: Float[Tensor, " t"], source: Float[Tensor, " s"], alpha: float) -> Float[Tensor, ""]:
    """Squared error of a relative ratio up to a constant, ``E_mix[m^2] - 2 E_te[m]``.

    Parameters
    ----------
    target, source : Tensor of shape (t,) and (s,)
        Ratios m at target and at training rows.
    alpha : float
        Share of the target density in the mixture.

    Returns
    -------
    Tensor
        Scalar, least at the true relative ratio.
    """
    mixed = alpha * target.square().mean() + (1 - alpha) * source.square().mean()
    return mixed - 2 * target.mean()
