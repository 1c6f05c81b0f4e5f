"""MetaOptimize with parameters first: over common optimizers, and as the older methods that it contains."""

from collections.abc import Mapping
from typing import Any, Literal

from torch.optim import SGD, AdamW
from torch.optim.optimizer import ParamsT

from seedbed.optimizers.lion import Lion
from seedbed.optimizers.metaoptimize.making import make_base
from seedbed.optimizers.metaoptimize.wrapper import MetaOptimize


class ParamsFirst(MetaOptimize):
    """A MetaOptimize that makes the optimizer it wraps."""

    @classmethod
    def build(cls, params: Any, **kwargs: Any) -> "ParamsFirst":  # type: ignore[override]
        """Construct from parameters and plain values.

        Parameters
        ----------
        params : iterable of Tensor, of (str, Tensor) or of dict
            What to optimize.
        **kwargs
            Keyword arguments of the class.

        Returns
        -------
        MetaOptimize
            The optimizer.
        """
        return cls(params, **kwargs)


class MetaAdamW(ParamsFirst):
    """AdamW with learned step sizes.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) or of dict
        What to optimize.
    lr : float
        Where step sizes start.
    betas : (float, float)
        Decays of both moments.
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Decoupled decay.
    amsgrad, foreach, maximize, fused
        As for :class:`torch.optim.AdamW`.
    **kwargs
        Of :class:`~seedbed.optimizers.MetaOptimize`.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import MetaAdamW
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = MetaAdamW(model.parameters(), lr=1e-6, meta_lr=1e-2, blocks="layerwise")
    >>> sorted(optimizer.step_sizes())
    ['param0', 'param1']
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-6,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        *,
        amsgrad: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        fused: bool | None = None,
        **kwargs: Any,
    ) -> None:
        base = AdamW(
            params,
            lr,
            (betas[0], betas[1]),
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            fused=fused,
        )
        super().__init__(base, **kwargs)


class MetaSGD(ParamsFirst):
    """SGD with learned step sizes.

    The meta rule is "adam" unless another is given: over SGD with momentum the steps of "lion" overshoot.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) or of dict
        What to optimize.
    lr : float
        Where step sizes start.
    momentum, dampening, weight_decay : float
        As for :class:`torch.optim.SGD`.
    nesterov : bool
        Whether to use Nesterov's form.
    foreach, maximize, fused
        As for :class:`torch.optim.SGD`.
    meta : {"adam", "adam_corrected", "rmsprop", "lion", "sgd"} or None
        Meta rule.
    **kwargs
        Further ones of :class:`~seedbed.optimizers.MetaOptimize`.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import MetaSGD
    >>> MetaSGD(torch.nn.Linear(4, 1).parameters(), lr=1e-4, momentum=0.9).step_sizes()
    {'all': 0.0001}
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-6,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        fused: bool | None = None,
        meta: Literal["lion", "adam", "adam_corrected", "rmsprop", "sgd"] | None = "adam",
        **kwargs: Any,
    ) -> None:
        base = SGD(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            foreach=foreach,
            maximize=maximize,
            fused=fused,
        )
        super().__init__(base, meta=meta, **kwargs)


class MetaLion(ParamsFirst):
    """Lion with learned step sizes.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) or of dict
        What to optimize.
    lr : float
        Where step sizes start.
    betas : (float, float)
        Interpolation and momentum.
    weight_decay : float
        Decoupled decay.
    foreach, maximize
        As for :class:`~seedbed.optimizers.Lion`.
    **kwargs
        Of :class:`~seedbed.optimizers.MetaOptimize`.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import MetaLion
    >>> MetaLion(torch.nn.Linear(4, 1).parameters(), lr=1e-5).steps_to_reach(1e-4)
    2303
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-6,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(Lion(params, lr, betas, weight_decay, foreach=foreach, maximize=maximize), **kwargs)


class HypergradientDescent(ParamsFirst):
    r"""Hypergradient descent: the step size follows the product of successive gradients.

    .. math::
        \alpha_t = \alpha_{t-1} + \eta\, g_t^\top u_{t-1} ,

    with :math:`u` the optimizer's direction, :math:`g` itself for SGD. It is MetaOptimize that looks one step
    ahead (:math:`\gamma = 0`), and shares the bias of all short horizons towards small steps.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) or of dict
        What to optimize.
    lr : float
        Where the step size starts.
    meta_lr : float
        :math:`\eta`; it scales with the inverse square of the loss.
    base : str
        Name of an optimizer of torch.optim, or "Lion".
    base_kwargs : mapping, optional
        Its keyword arguments other than lr.
    multiplicative : bool
        Whether to move :math:`\ln \alpha` in place of :math:`\alpha`.
    blocks : str
        As for :class:`~seedbed.optimizers.MetaOptimize`.
    alpha_bounds : (float, float), optional
        As for :class:`~seedbed.optimizers.MetaOptimize`.

    References
    ----------
    A. G. Baydin et al., Online Learning Rate Adaptation with Hypergradient Descent, ICLR 2018, algorithms 4
    and 5.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import HypergradientDescent
    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = HypergradientDescent([weight], lr=0.1, meta_lr=0.01)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     (0.5 * weight.square()).sum().backward()
    ...     optimizer.step()
    >>> round(optimizer.step_sizes()["all"], 6)  # 0.1 + 0.01 * 1.0 * 0.9
    0.109
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        meta_lr: float = 1e-4,
        base: str = "SGD",
        base_kwargs: Mapping[str, Any] | None = None,
        multiplicative: bool = False,
        blocks: str = "scalar",
        alpha_bounds: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(
            make_base(params, base, {**(base_kwargs or {}), "lr": lr}),
            meta="sgd",
            meta_lr=meta_lr,
            gamma=0.0,
            order="meta_first",
            parameterisation="exp" if multiplicative else "identity",
            blocks=blocks,
            alpha_bounds=alpha_bounds,
        )


class IDBD(ParamsFirst):
    r"""IDBD: a step size for every weight of a linear model.

    .. math::
        \beta \leftarrow \beta - \theta\, g \circ h, \qquad \alpha = e^\beta, \qquad
        w \leftarrow w - \alpha \circ g, \qquad
        h \leftarrow (1 - \alpha \circ \operatorname{diag} \nabla^2 f)^+ \circ h - \alpha \circ g ,

    where for the loss ``0.5 * (y - w @ x) ** 2`` the gradient is ``-(y - w @ x) * x`` and the diagonal ``x **
    2``. Needs ``loss.backward(create_graph=True)``.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) or of dict
        What to optimize.
    lr : float
        Where step sizes start.
    meta_lr : float
        :math:`\theta`.
    clip_decay : bool
        Whether the factor of h is at least 0.
    probes : int or "exact"
        How the diagonal is found: by one product per weight, or estimated from that many random signs, for
        models with many weights.
    seed : int
        Of the signs.

    References
    ----------
    R. S. Sutton, Adapting Bias by Gradient Descent: An Incremental Version of Delta-Bar-Delta, AAAI 1992,
    figure 2.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import IDBD
    >>> weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    >>> optimizer = IDBD([weight], lr=0.1, meta_lr=0.1)
    >>> for _ in range(3):
    ...     x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    ...     weight.grad, = torch.autograd.grad(0.5 * (1 - weight @ x) ** 2, weight, create_graph=True)
    ...     optimizer.step()
    >>> optimizer.step_sizes()["param0"]
    tensor([0.1024, 0.1000], dtype=torch.float64)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.05,
        *,
        meta_lr: float = 1e-2,
        clip_decay: bool = True,
        probes: int | Literal["exact"] = "exact",
        seed: int = 0,
    ) -> None:
        super().__init__(
            SGD(params, lr),
            meta="sgd",
            meta_lr=meta_lr,
            blocks="weightwise",
            hessian="diag",
            order="meta_first",
            clip_decay=clip_decay,
            probes=probes,
            seed=seed,
        )


class SMD(ParamsFirst):
    r"""Stochastic meta-descent: a step size for every weight, with the whole Hessian.

    .. math::
        \alpha \leftarrow \alpha \circ \max(\tfrac12, 1 - \mu\, h \circ g), \qquad
        w \leftarrow w - \alpha \circ g, \qquad
        h \leftarrow \lambda (h - \alpha \circ \nabla^2 f\, h) - \alpha \circ g .

    Needs ``loss.backward(create_graph=True)``.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) or of dict
        What to optimize.
    lr : float
        Where step sizes start.
    meta_lr : float
        :math:`\mu`.
    gamma : float
        :math:`\lambda`.

    References
    ----------
    N. N. Schraudolph, Local Gain Adaptation in Stochastic Gradient Descent, ICANN 1999.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import SMD
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = SMD([weight], lr=0.1, meta_lr=0.1, gamma=0.9)
    >>> for _ in range(3):
    ...     loss = weight[0] ** 2 + weight[0] * weight[1] + weight[1] ** 2
    ...     weight.grad, = torch.autograd.grad(loss, weight, create_graph=True)
    ...     optimizer.step()
    >>> optimizer.step_sizes()["param0"]
    tensor([0.1125, 0.1125])
    """

    def __init__(
        self, params: ParamsT, lr: float = 0.01, *, meta_lr: float = 1e-2, gamma: float = 0.99
    ) -> None:
        super().__init__(
            SGD(params, lr),
            meta="sgd",
            meta_lr=meta_lr,
            gamma=gamma,
            blocks="weightwise",
            hessian="hvp",
            parameterisation="smd",
            order="meta_first",
        )
