"""The whole recursion of MetaOptimize for any differentiable step, by forward-mode differentiation.

For research and for tests: it stores the sensitivity of every weight to every meta-parameter, so memory and
time grow with their product (and with its square where nothing is dropped). Training uses
:class:`~seedbed.optimizers.MetaOptimize`, which keeps one vector.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, jvp, vmap

from seedbed.checks import check_choice, check_number

Approximation = Literal["full", "2x2", "L", "zero"]
Sigma = Literal["exp", "identity"] | Callable[[Tensor], Tensor]


class BaseMap(NamedTuple):
    """One step of a base optimizer, as a function.

    Attributes
    ----------
    step : callable
        ``step(x, g, alpha, t) -> x`` with x of shape (1 + slots, n): the weights in row 0, the optimizer's
        own state below; g and alpha of shape (n,); t = 1, 2, ... counts steps.
    slots : int
        Rows of optimizer state; they start at zero.
    """

    step: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    slots: int


class MetaMap(NamedTuple):
    """One step of a meta rule, as a function.

    Attributes
    ----------
    step : callable
        ``step(y, z, t) -> y`` with y of shape (1 + slots, m): beta in row 0; z of shape (m,) is the
        meta-gradient.
    slots : int
        Rows of state; they start at zero.
    """

    step: Callable[[Tensor, Tensor, int], Tensor]
    slots: int


@dataclass(frozen=True)
class ReferencePath:
    """What :func:`metaoptimize_reference` records over T steps, n weights and m meta-parameters.

    Attributes
    ----------
    weights : Tensor of shape (T + 1, n)
        w_0 ... w_T.
    beta : Tensor of shape (T + 1, m)
        The meta-parameters.
    alpha : Tensor of shape (T + 1, m)
        sigma(beta): the step sizes.
    meta_gradients : Tensor of shape (T, m)
        z_t = H_t^T g_t.
    trace : Tensor of shape (T + 1, n, m)
        The H_t that z_t is made of.
    total : Tensor of shape (T + 1, n, m)
        (1 - gamma) sum over s < t of gamma^(t-1-s) dw_t / dbeta_s, where a change of beta_s also moves
        every later beta; as exact as the approximation is. Equal to ``trace`` if ``normalised``; zero if
        gamma = 1.
    beta_total : Tensor of shape (T + 1, m, m)
        The same sum of dbeta_t / dbeta_s (the paper's Y).
    losses : Tensor of shape (T,)
        f_t(w_t).
    """

    weights: Tensor
    beta: Tensor
    alpha: Tensor
    meta_gradients: Tensor
    trace: Tensor
    total: Tensor
    beta_total: Tensor
    losses: Tensor


def reference_base(
    name: Literal["sgd", "sgdm", "rmsprop", "adamw", "lion"],
    *,
    rho: float = 0.9,
    lam: float = 0.999,
    c: float = 0.9,
    kappa: float = 0.0,
    eps: float = 1e-10,
) -> BaseMap:
    """Return a base optimizer in the form that the paper's experiments use.

    They differ from torch's: momentum of "sgdm" acts one step late, that of "adamw" has no factor 1 - rho
    and no bias correction (so its step size is 1 - rho times torch's), eps stands inside the root, and
    weight decay is decoupled everywhere.

    Parameters
    ----------
    name : {"sgd", "sgdm", "rmsprop", "adamw", "lion"}
        Which optimizer.
    rho : float in [0, 1)
        Momentum ("sgdm", "adamw", "lion").
    lam : float in [0, 1)
        Decay of the mean square ("rmsprop", "adamw").
    c : float in [0, 1)
        Share of old momentum in the sign ("lion").
    kappa : float >= 0
        Decoupled weight decay.
    eps : float > 0
        Added under the root ("rmsprop", "adamw").

    Returns
    -------
    BaseMap
        The step and its number of state rows.

    Raises
    ------
    ValueError
        If the name is unknown or a number is out of range.
    TypeError
        If a parameter that must be a number is none.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import reference_base
    >>> sgd = reference_base("sgd", kappa=0.5)
    >>> sgd.step(torch.tensor([[1.0]]), torch.tensor([2.0]), torch.tensor([0.1]), 1)
    tensor([[0.7500]])
    """
    check_choice("name", name, ("sgd", "sgdm", "rmsprop", "adamw", "lion"))
    check_number("rho", rho, low=0, high=1, closed="left")
    check_number("lam", lam, low=0, high=1, closed="left")
    check_number("c", c, low=0, high=1, closed="left")
    check_number("kappa", kappa, low=0)
    check_number("eps", eps, low=0, closed="neither")

    def decayed(w: Tensor, u: Tensor, alpha: Tensor) -> Tensor:
        return w - alpha * (u + kappa * w)

    def scale(v: Tensor, t: int) -> Tensor:
        return torch.sqrt(v * ((1 - lam) / (1 - lam**t)) + eps)

    def sgd(x: Tensor, g: Tensor, alpha: Tensor, _: int) -> Tensor:
        return decayed(x[0], g, alpha)[None]

    def sgdm(x: Tensor, g: Tensor, alpha: Tensor, _: int) -> Tensor:
        w, m = x
        return torch.stack([decayed(w, m, alpha), rho * m + (1 - rho) * g])

    def rmsprop(x: Tensor, g: Tensor, alpha: Tensor, t: int) -> Tensor:
        v = lam * x[1] + g**2
        return torch.stack([decayed(x[0], g / scale(v, t), alpha), v])

    def adamw(x: Tensor, g: Tensor, alpha: Tensor, t: int) -> Tensor:
        m, v = rho * x[1] + g, lam * x[2] + g**2
        return torch.stack([decayed(x[0], m / scale(v, t), alpha), m, v])

    def lion(x: Tensor, g: Tensor, alpha: Tensor, _: int) -> Tensor:
        w, m = x
        return torch.stack([decayed(w, torch.sign(c * m + (1 - c) * g), alpha), rho * m + (1 - rho) * g])

    steps = {
        "sgd": BaseMap(sgd, 0),
        "sgdm": BaseMap(sgdm, 1),
        "rmsprop": BaseMap(rmsprop, 1),
        "adamw": BaseMap(adamw, 2),
        "lion": BaseMap(lion, 1),
    }
    return steps[name]


def reference_meta(
    name: Literal["sgd", "rmsprop", "adam", "lion"] | None,
    eta: float = 1e-3,
    *,
    rho: float | None = None,
    lam: float = 0.999,
    c: float = 0.9,
    kappa: float = 0.0,
    eps: float = 1e-10,
    bias_corrected: bool = False,
    momentum_first: bool = False,
) -> MetaMap:
    """Return a meta rule: how beta moves, given the meta-gradient z.

    Parameters
    ----------
    name : {"sgd", "rmsprop", "adam", "lion"} or None
        Which rule; None keeps beta where it is.
    eta : float > 0
        Meta step size.
    rho : float in [0, 1), optional
        Momentum; 0.9 for "adam", 0.99 for "lion".
    lam : float in [0, 1)
        Decay of the mean square ("rmsprop", "adam").
    c : float in [0, 1)
        Share of old momentum in the sign ("lion").
    kappa : float >= 0
        Decay of beta towards zero (not "sgd").
    eps : float > 0
        Added under the root ("rmsprop", "adam").
    bias_corrected : bool
        Adam of Kingma and Ba: m <- rho m + (1 - rho) z, divided by 1 - rho^t. Otherwise m <- rho m + z.
    momentum_first : bool
        Lion takes the sign of c m + (1 - c) z with m updated already, as the released torch class does.

    Returns
    -------
    MetaMap
        The step and its number of state rows.

    Raises
    ------
    ValueError
        If the name is unknown or a number is out of range.
    TypeError
        If a parameter that must be a number is none.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import reference_meta
    >>> lion = reference_meta("lion", 0.01)
    >>> lion.step(torch.zeros(2, 1), torch.tensor([-3.0]), 1)
    tensor([[ 0.0100],
            [-0.0300]])
    """
    check_choice("name", name, (None, "sgd", "rmsprop", "adam", "lion"))
    check_number("eta", eta, low=0)
    rho = {"lion": 0.99}.get(str(name), 0.9) if rho is None else rho
    check_number("rho", rho, low=0, high=1, closed="left")
    check_number("lam", lam, low=0, high=1, closed="left")
    check_number("c", c, low=0, high=1, closed="left")
    check_number("kappa", kappa, low=0)
    check_number("eps", eps, low=0, closed="neither")

    def moved(beta: Tensor, direction: Tensor) -> Tensor:
        return (1 - eta * kappa) * beta - eta * direction

    def scale(v: Tensor, t: int) -> Tensor:
        return torch.sqrt(v * ((1 - lam) / (1 - lam**t)) + eps)

    def none(y: Tensor, _z: Tensor, _t: int) -> Tensor:
        return y

    def sgd(y: Tensor, z: Tensor, _: int) -> Tensor:
        return y - eta * z[None]

    def rmsprop(y: Tensor, z: Tensor, t: int) -> Tensor:
        v = lam * y[1] + z**2
        return torch.stack([moved(y[0], z / scale(v, t)), v])

    def adam(y: Tensor, z: Tensor, t: int) -> Tensor:
        m, v = rho * y[1] + (1 - rho if bias_corrected else 1.0) * z, lam * y[2] + z**2
        mean = m / (1 - rho**t) if bias_corrected else m
        return torch.stack([moved(y[0], mean / scale(v, t)), m, v])

    def lion(y: Tensor, z: Tensor, _: int) -> Tensor:
        beta, old = y
        m = rho * old + (1 - rho) * z
        return torch.stack([moved(beta, torch.sign(c * (m if momentum_first else old) + (1 - c) * z)), m])

    rules = {
        None: MetaMap(none, 0),
        "sgd": MetaMap(sgd, 0),
        "rmsprop": MetaMap(rmsprop, 1),
        "adam": MetaMap(adam, 2),
        "lion": MetaMap(lion, 1),
    }
    return rules[name]


def metaoptimize_reference(
    step_fn: BaseMap,
    meta_rule: MetaMap,
    approximation: Approximation = "L",
    gamma: float = 1.0,
    *,
    loss: Callable[[Tensor, int], Tensor],
    weights: Float[Tensor, "n"],
    beta: Float[Tensor, "m"],
    steps: int,
    blocks: Int[Tensor, "n"] | Sequence[int] | None = None,
    sigma: Sigma = "exp",
    normalised: bool = False,
    order: Literal["base_first", "meta_first"] = "base_first",
) -> ReferencePath:
    """Run MetaOptimize (Sharifnassab et al., ICML 2025) with a chosen part of its G matrix.

    With G_t the derivative of (meta state y, base state x, trace h) at t + 1 by the same at t, the
    discounted sums of their derivatives by earlier betas follow ``[Y; X; Q] <- G (gamma [Y; X; Q] + (1 -
    gamma) [E; 0; 0])``.

    Parameters
    ----------
    step_fn : BaseMap
        The base optimizer; :func:`reference_base` has five, any differentiable step will do.
    meta_rule : MetaMap
        How beta moves; from :func:`reference_meta`, or your own.
    approximation : {"full", "2x2", "L", "zero"}
        "full" keeps G; "2x2" drops the row and column of h (no third derivatives of the loss); "L" drops
        dy'/dx as well, which leaves one Hessian-vector product per meta-parameter; "zero" is L with every
        Hessian of the loss set to zero, what the paper runs on networks.
    gamma : float in [0, 1]
        Discount of future losses.
    loss : callable
        ``loss(w, t) -> scalar`` for t = 0 ... steps - 1, twice differentiable in w (three times for "full").
    weights : Tensor of shape (n,)
        w_0.
    beta : Tensor of shape (m,)
        beta_0; step sizes are ``sigma(beta)``.
    steps : int
        T, number of steps.
    blocks : sequence of int of shape (n,), optional
        Which of the m meta-parameters drives each weight; by default the first drives all.
    sigma : {"exp", "identity"} or callable
        Step size from beta, elementwise. ``step_fn`` receives the result, so with another reading of its
        third argument this runs any other meta-parameter (weight decay, momentum) as well.
    normalised : bool
        False: the trace holds beta_s's direct effects only, sum of gamma^(t-1-s) dw_t/dbeta_s with the
        other betas fixed, as the released code does; gamma = 1 makes sense and "full", "2x2" and "L" run
        alike (they differ in ``total``). True: the trace is the recursion above with its factor (1 -
        gamma).
    order : {"base_first", "meta_first"}
        Whether the base step uses beta_t or the beta_{t+1} that z_t leads to.

    Returns
    -------
    ReferencePath
        Everything along the way.

    Raises
    ------
    ValueError
        If an argument is out of range or shapes do not fit, or ``normalised`` is asked for with gamma = 1.
    TypeError
        If an argument is of the wrong type.
    FloatingPointError
        If a weight, beta or meta-gradient is no longer finite.

    Examples
    --------
    On a quadratic from a step size that is far too small, beta grows and the loss falls:

    >>> import torch
    >>> from seedbed.optimizers import metaoptimize_reference, reference_base, reference_meta
    >>> path = metaoptimize_reference(
    ...     reference_base("sgd"), reference_meta("lion", 0.1), "L", 0.99,
    ...     loss=lambda w, t: 0.5 * (w**2).sum(), weights=torch.tensor([1.0, -2.0], dtype=torch.float64),
    ...     beta=torch.tensor([-6.0], dtype=torch.float64), steps=50,
    ... )
    >>> bool(path.alpha[-1] > 10 * path.alpha[0])
    True
    >>> bool(path.losses[-1] < path.losses[0] / 10)
    True
    """
    check_choice("approximation", approximation, ("full", "2x2", "L", "zero"))
    check_number("gamma", gamma, low=0, high=1)
    check_number("steps", steps, low=1, integer=True)
    check_choice("order", order, ("base_first", "meta_first"))
    check_choice("normalised", normalised, (False, True))
    if normalised and gamma == 1:
        raise ValueError("normalised=True weighs by 1 - gamma, which is zero: gamma must be below 1, got 1")
    if not callable(loss):
        raise TypeError(f"loss must be callable as loss(w, t), got {type(loss).__name__}")
    for name, value, kind in (("step_fn", step_fn, BaseMap), ("meta_rule", meta_rule, MetaMap)):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    n, m = weights.numel(), beta.numel()
    if n == 0 or m == 0 or weights.dtype != beta.dtype:
        raise ValueError(
            f"weights and beta must be non-empty and of one dtype, got {n} of {weights.dtype} "
            f"and {m} of {beta.dtype}"
        )
    owner = torch.as_tensor([0] * n if blocks is None else blocks, device=weights.device).long()
    if owner.shape != (n,) or bool(((owner < 0) | (owner >= m)).any()):
        raise ValueError(f"blocks must be {n} integers in [0, {m - 1}], one per weight, got {blocks!r}")
    to_alpha = _sigma(sigma)
    late = order == "meta_first"

    x = torch.cat([weights.detach()[None], weights.new_zeros(step_fn.slots, n)])
    y = torch.cat([beta.detach()[None], beta.new_zeros(meta_rule.slots, m)])
    h = x.new_zeros(*x.shape, m)  # sensitivity of the whole base state; its row 0 is H
    Y, X, Q = y.new_zeros(*y.shape, m), torch.zeros_like(h), x.new_zeros(*h.shape, m)
    E = torch.cat([torch.eye(m, dtype=x.dtype, device=x.device)[None], y.new_zeros(meta_rule.slots, m, m)])
    records: dict[str, list[Tensor]] = {
        key: [] for key in ("weights", "beta", "meta_gradients", "trace", "total", "beta_total", "losses")
    }

    def record() -> None:
        for key, value in (
            ("weights", x[0]),
            ("beta", y[0]),
            ("trace", h[0]),
            ("total", X[0]),
            ("beta_total", Y[0]),
        ):
            records[key].append(value)

    record()
    for t in range(1, steps + 1):
        free = _Step(step_fn, meta_rule, loss, to_alpha, owner, late, t)
        g = free.gradient(x)
        z = h[0].T @ g
        records["losses"].append(loss(x[0], t - 1).detach())
        records["meta_gradients"].append(z)
        # What an approximation drops is passed as a value, so no derivative goes through it.
        step = replace(
            free,
            fixed_g=g if approximation == "zero" else None,
            fixed_z=z if approximation in ("L", "zero") else None,
            fixed_h=None if approximation == "full" else h,
        )
        seeds = (gamma * Y + (1 - gamma) * E, gamma * X, gamma * Q)
        Y, X = _push(step.coupled, (y, x, h), seeds)
        direct = ((Y if late else seeds[0]) if normalised else E)[0]
        next_h = partial(step.next_h, gamma=gamma, direct=direct)
        if approximation == "full":
            (Q,) = _push(next_h, (y, x, h), seeds)
        (h,), (y, x) = next_h(y, x, h), step.coupled(y, x, h)
        for quantity, now in (("weights", x[0]), ("beta", y[0]), ("meta-gradient", z)):
            if not torch.isfinite(now).all():
                raise FloatingPointError(f"{quantity} not finite after step {t}; the step size is too large")
        record()
    stacked = {key: torch.stack(values) for key, values in records.items()}
    return ReferencePath(alpha=to_alpha(stacked["beta"]), **stacked)


@dataclass(frozen=True)
class _Step:
    """The maps of step t, as functions of the state alone; a fixed quantity is no function of it."""

    base_map: BaseMap
    meta_map: MetaMap
    loss: Callable[[Tensor, int], Tensor]
    to_alpha: Callable[[Tensor], Tensor]
    owner: Tensor
    late: bool
    t: int
    fixed_g: Tensor | None = None
    fixed_z: Tensor | None = None
    fixed_h: Tensor | None = None

    def gradient(self, x: Tensor) -> Tensor:
        return grad(lambda w: self.loss(w, self.t - 1))(x[0])

    def base(self, x: Tensor, b: Tensor) -> Tensor:
        g = self.gradient(x) if self.fixed_g is None else self.fixed_g
        return self.base_map.step(x, g, self.to_alpha(b)[self.owner], self.t)

    def meta(self, y: Tensor, x: Tensor, h: Tensor) -> Tensor:
        z = (h if self.fixed_h is None else self.fixed_h)[0].T @ self.gradient(x)
        return self.meta_map.step(y, z if self.fixed_z is None else self.fixed_z, self.t)

    def coupled(self, y: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """(y, x) of the next step."""
        new = self.meta(y, x, h)
        return new, self.base(x, (new if self.late else y)[0])

    def next_h(self, y: Tensor, x: Tensor, h: Tensor, gamma: float, direct: Tensor) -> tuple[Tensor, ...]:
        """The next trace: derivative of the base map along (gamma h, ``direct``)."""
        b = (self.meta(y, x, h) if self.late else y)[0]
        return _push(lambda p, q: (self.base(p, q),), (x, b), (gamma * h, direct))


def _push(
    function: Callable[..., tuple[Tensor, ...]], point: tuple[Tensor, ...], directions: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Derivative of ``function`` at ``point`` along each last-axis column of ``directions``."""
    moved = vmap(lambda *direction: jvp(function, point, direction)[1], in_dims=-1)(*directions)
    return tuple(entry.movedim(0, -1) for entry in moved)


def _sigma(sigma: Sigma) -> Callable[[Tensor], Tensor]:
    if callable(sigma):
        return sigma
    check_choice("sigma", sigma, ("exp", "identity"))
    return torch.exp if sigma == "exp" else lambda b: b
