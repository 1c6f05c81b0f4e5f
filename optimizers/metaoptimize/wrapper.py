"""MetaOptimize: a torch optimizer whose step sizes are learned while it trains."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from seedbed.optimizers.metaoptimize import checkpoint, curvature
from seedbed.optimizers.metaoptimize.arguments import (
    Blocks,
    Meta,
    MetaParameter,
    Options,
    check_base,
    check_group,
    check_learning_rates,
)
from seedbed.optimizers.metaoptimize.blocks import Partition, cells
from seedbed.optimizers.metaoptimize.directions import Direction, check_known, choose
from seedbed.optimizers.metaoptimize.fused import Compiled, check_compiled
from seedbed.optimizers.metaoptimize.learned import Learner, learners
from seedbed.optimizers.metaoptimize.making import make_base
from seedbed.optimizers.metaoptimize.meta_rules import meta_rule
from seedbed.optimizers.metaoptimize.products import BlockSum
from seedbed.optimizers.metaoptimize.readings import Readings
from seedbed.optimizers.metaoptimize.step_sizes import ElementStepSizes, SharedStepSizes
from seedbed.optimizers.metaoptimize.updates import decay_of
from seedbed.optimizers.metaoptimize.work import Work


class MetaOptimize(Readings, Optimizer):
    r"""Wraps an optimizer and learns its step sizes while it trains.

    A step size :math:`\alpha = \mathrm{lr} \cdot e^\beta` is moved down the gradient of a discounted sum of
    *future* losses. Seen from the present, that is :math:`z_t = h_t^\top g_t`: the gradient times a trace of
    how the weights have come to depend on :math:`\beta`,

    .. math::
        h_{t+1} = \gamma (1 - \kappa \alpha_t)\, h_t + \Delta w_t ,

    where :math:`\Delta w_t` is the step just taken (paper: L-approximation without Hessian; the default). It
    costs one tensor of the size of the weights and a few passes over it.

    It is a :class:`torch.optim.Optimizer` in every respect: put it where the wrapped one was.
    ``param_groups`` belong to the wrapper; a scheduler on ``lr`` multiplies the learned factor
    :math:`e^\beta`, and ``group["meta_alpha"]`` shows the product.

    Parameters
    ----------
    base : Optimizer
        Any optimizer whose step is proportional to its ``lr``; its ``lr`` is where step sizes start. 1e-6 is
        a safe start if nothing is known.
    meta : {"lion", "adam", "adam_corrected", "rmsprop", "sgd"} or None
        How :math:`\beta` follows z. "lion" moves it by ``meta_lr`` per step whatever the scale of the loss;
        "adam" is steadier over SGD with momentum (it is the authors' form: m is a sum, not a mean;
        "adam_corrected" is the textbook's); "sgd" depends on the loss's scale; None leaves the optimizer as
        it is, to the last bit.
    meta_lr : float
        Meta step size. With "lion", getting from 1e-6 to 1e-3 takes ``6.9 / meta_lr`` steps: 1e-3 suits runs
        of more than 10 000 steps, 1e-2 those of 1000. See :meth:`steps_to_reach`.
    gamma : float
        Discount in [0, 1]. 1 never forgets: right for a stationary problem; 0.999 or 0.9999 where it drifts.
        Much less drives step sizes to zero, since a small step is best for the next few losses.
    meta_betas : (float, float), optional
        "lion": momentum and interpolation, (0.99, 0.9). "adam" and "rmsprop": both decays, (0.9, 0.999). (A
        Lion that updates its momentum first has the same form, with interpolation ``c * rho``.)
    meta_eps : float
        Keeps "adam" and "rmsprop" from dividing by zero.
    meta_weight_decay : float
        Pulls :math:`\beta` to 0, and so the step size back to ``lr``.
    blocks : str, list or callable
        Which weights share a step size: all ("scalar"), a parameter group ("group"), a tensor ("layerwise"),
        an output unit, that is an index of a tensor's first dimension ("nodewise"), or none ("weightwise");
        or a list of tensor counts, a list of lists of parameters or names, or ``callable(name, parameter) ->
        key``. Names need an optimizer made from ``named_parameters()``.
    parameterisation : {"exp", "identity", "smd"}
        ``lr * exp(beta)``; ``lr / lr0 * (lr0 + beta)``, which without a scheduler is ``lr0 + beta``; or "exp"
        moved by the factor ``max(1/2, 1 - meta_lr * d)``.
    trace : {"update", "gradient"}
        What enters the trace: the update, or the gradient over the optimizer's denominator, without momentum
        or decay (the authors' released class).
    hessian : {"zero", "diag", "hvp", "finite_difference"}
        How curvature bends the trace, for SGD, Adam, AdamW, RMSprop and Lion. "hvp" (exact with one block;
        with several it propagates the sum over blocks) and "diag" (exact for weightwise blocks if the Hessian
        is diagonal; estimated from random signs) need ``loss.backward(create_graph=True)``;
        "finite_difference" needs ``step(closure)`` and calls it twice.
    approximation : {"L", "2x2"}
        Whether to leave out how :math:`\beta` answers to the weights, or not. They differ only where
        curvature is kept, and not for "lion". The whole recursion is
        :func:`~seedbed.optimizers.metaoptimize_reference`.
    order : {"base_first", "meta_first"}
        Whether :math:`z_t` acts from the next step on or in this one.
    normalised : bool
        Weights :math:`\gamma^{t-1-s} (1 - \gamma^{s+1})` in place of :math:`\gamma^{t-1-s}`; needs ``gamma <
        1``.
    meta_parameters : tuple of {"lr", "weight_decay", "momentum"}
        What to learn. Decoupled decay is learned as ``weight_decay * exp(beta)``, the momentum of SGD and the
        first beta of Adam and AdamW through a logistic function.
    alpha_bounds : (float, float), optional
        Keeps the step size, before any schedule, within bounds. Wise with "lion" over SGD, needed with
        "weightwise".
    delta : {"auto", "difference", "analytic", "scratch"}
        How the direction of a step is found: see :mod:`seedbed.optimizers.metaoptimize.directions`. "auto" is
        settled at the first step and shown by ``repr``.
    state_dtype : torch.dtype
        Type of the traces; those of float64 parameters are float64.
    process_group : ProcessGroup, optional
        Sums z over processes that each hold a part of every parameter outside DTensor (FSDP1, sharded state).
        Not for DDP, whose gradients are whole, nor for FSDP2, which is recognised. Not kept by pickle.
    compile : bool
        Whether to run step and trace as one kernel from the second step on: SGD, Adam, AdamW, RMSprop and
        Lion. Hooks of the wrapped optimizer do not run then.
    clip_decay : bool
        With ``hessian="diag"`` over SGD without momentum: the factor ``1 - alpha * diagonal`` is at least 0
        (IDBD).
    probes : int or "exact"
        Random signs per step for ``hessian="diag"``; "exact" takes one product per weight.
    seed : int
        Of those signs.
    allow_nonlinear : bool
        Let Adafactor pass, with a trace that is off by its own change of lr.

    Attributes
    ----------
    base : Optimizer
        The wrapped optimizer. Its groups are rewritten: set hyperparameters on the wrapper's.
    skipped_meta_steps : int
        Steps in which some z was not finite: those blocks did not move.

    Raises
    ------
    TypeError
        If ``base`` is no optimizer, or a MetaOptimize, or an argument has the wrong type.
    ValueError
        If ``base`` does not take steps proportional to lr, an argument is not allowed, or lists of blocks are
        not a partition.
    KeyError
        If a list of blocks names a parameter that is not there.

    Notes
    -----
    Clipped gradients enter z as they are clipped. Parameters without a gradient are left out of a step, and
    so are blocks without any. Wherever the wrapped optimizer takes a float for lr, a step waits once for the
    device; with a tensor for lr (``fused`` or ``capturable``) it does not, and a warning about skipped meta
    steps comes when they are next looked at.

    Curvature from the graph of the gradients ("hvp", "diag") cannot pass DDP, which takes the gradients out
    of their graph, nor a GradScaler, whose unscaling the graph does not see; "finite_difference" works under
    DDP and FSDP2. ``needs_graph`` tells whether it is asked for.

    References
    ----------
    A. Sharifnassab, S. Salehkaleybar, R. S. Sutton, MetaOptimize: A Framework for Optimizing Step Sizes and
    Other Meta-parameters, ICML 2025.

    Examples
    --------
    >>> import torch
    >>> from seedbed.optimizers import MetaOptimize
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = MetaOptimize(torch.optim.AdamW(model.parameters(), lr=1e-6), meta_lr=1e-2)
    >>> inputs = torch.ones(8, 4)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     model(inputs).square().mean().backward()
    ...     optimizer.step()
    >>> round(optimizer.step_sizes()["all"] / 1e-6, 4)  # up by exp(meta_lr) in each step but the first
    1.0202
    >>> optimizer.steps_to_reach(1e-3)
    689
    """

    _OWN: ClassVar[tuple[str, ...]] = (
        "base",
        "_options",
        "_partition",
        "_scales",
        "_learners",
        "_direction",
        "_parts",
        "_templates",
        "_base_ready",
        "_total",
        "_warned",
    )

    def __init__(
        self,
        base: Optimizer,
        *,
        meta: Meta | None = "lion",
        meta_lr: float = 1e-3,
        gamma: float = 1.0,
        meta_betas: tuple[float, float] | None = None,
        meta_eps: float = 1e-10,
        meta_weight_decay: float = 0.0,
        blocks: Blocks = "scalar",
        parameterisation: Literal["exp", "identity", "smd"] = "exp",
        trace: Literal["update", "gradient"] = "update",
        hessian: Literal["zero", "diag", "hvp", "finite_difference"] = "zero",
        approximation: Literal["L", "2x2"] = "L",
        order: Literal["base_first", "meta_first"] = "base_first",
        normalised: bool = False,
        meta_parameters: tuple[MetaParameter, ...] = ("lr",),
        alpha_bounds: tuple[float, float] | None = None,
        delta: Literal["auto", "difference", "analytic", "scratch"] = "auto",
        state_dtype: torch.dtype = torch.float32,
        process_group: Any = None,
        compile: bool = False,  # noqa: A002
        clip_decay: bool = False,
        probes: int | Literal["exact"] = 1,
        seed: int = 0,
        allow_nonlinear: bool = False,
    ) -> None:
        check_base(base, MetaOptimize, allow_nonlinear=allow_nonlinear)
        self._options = Options(
            meta=meta,
            meta_lr=meta_lr,
            gamma=gamma,
            meta_betas=meta_betas,
            meta_eps=meta_eps,
            meta_weight_decay=meta_weight_decay,
            blocks=blocks,
            parameterisation=parameterisation,
            trace=trace,
            hessian=hessian,
            approximation=approximation,
            order=order,
            normalised=normalised,
            meta_parameters=tuple(meta_parameters),
            alpha_bounds=alpha_bounds,
            delta=delta,
            state_dtype=state_dtype,
            compile=compile,
            clip_decay=clip_decay,
            probes=probes,
            seed=seed,
        )
        check_learning_rates(base, self._options)
        check_known(base, self._options)
        if compile:
            check_compiled(base)
        self._base_ready = False
        self._direction: Direction | None = None
        self._total = BlockSum(process_group)
        self._warned = False
        self.base = base
        super().__init__([dict(group) for group in base.param_groups], dict(base.defaults))
        self.state = base.state
        self._partition = Partition(blocks, self.param_groups)
        self._templates = [_template(group) for group in base.param_groups]
        for group in base.param_groups:
            group.pop("param_names", None)
        self._parts: list[tuple[int, dict[str, Any]]] = []
        for group in self.param_groups:
            self._begin(group)
        rule = meta_rule(self._options)
        self._scales: SharedStepSizes | ElementStepSizes | None = None
        if rule is not None and self._options.fine:
            self._scales = ElementStepSizes(self._options, rule, self._total)
        elif rule is not None:
            self._scales = SharedStepSizes(
                self._options, rule, self._partition, self.param_groups, self._total
            )
        self._learners: list[Learner] = learners(base, self._options)
        self._publish()

    @classmethod
    def build(
        cls,
        params: ParamsT,
        base: str | Callable[..., Optimizer] = "AdamW",
        base_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> "MetaOptimize":
        """Construct wrapped optimizer and wrapper from parameters and plain values.

        Parameters
        ----------
        params : iterable of Tensor, of (str, Tensor) or of dict
            What to optimize.
        base : str or callable
            Name of an optimizer of torch.optim, "Lion", or anything that makes an optimizer of parameters.
        base_kwargs : mapping, optional
            Its keyword arguments.
        **kwargs
            Those of the wrapper.

        Returns
        -------
        MetaOptimize
            The optimizer.

        Raises
        ------
        ValueError
            If there is no optimizer of that name.
        """
        return cls(make_base(params, base, base_kwargs), **kwargs)

    # ------------------------------------------------------------------ one step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the wrapped optimizer and the meta-parameters.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the loss anew and fills the gradients. With ``hessian="finite_difference"`` it is
            needed, must return the loss, and is called twice with the same draws of torch's generators.

        Returns
        -------
        object
            What the closure returned, or None.

        Raises
        ------
        RuntimeError
            If a gradient is sparse or complex, or carries no graph where ``hessian`` needs one.
        ValueError
            If ``hessian="finite_difference"`` gets no closure, or one that returns None.
        """
        loss, random_state = self._evaluate(closure)
        self._prepare()
        scales = self._scales
        if scales is None:
            for number, cell in self._parts:
                cell["lr"] = self.param_groups[number]["lr"]
            self.base.step()
            return loss
        works = self._collect()
        if not works:
            return loss
        bent = self._measure(works, closure, random_state)
        z = scales.meta_gradient(works)  # from the traces as they are: this step must not be in them
        turn = None
        if self._options.approximation == "2x2" and bent is not None:
            turn = scales.meta_gradient(works, bent)
        if self._options.order == "meta_first":
            self._meta_step(z, turn, works)
        self._set_step_sizes(works)
        self._base_step(works, bent)
        if self._options.order == "base_first":
            self._meta_step(z, turn, works)
        return loss

    def _evaluate(self, closure: Callable[[], Any] | None) -> tuple[Any, curvature.RandomState | None]:
        twice = self._options.hessian == "finite_difference"
        if closure is None:
            if twice and not self._only_filling():
                raise ValueError("step needs a closure with hessian='finite_difference'")
            return None, None
        random_state = None
        if twice:
            random_state = curvature.RandomState(
                {p.device for group in self.param_groups for p in group["params"]}
            )
        with torch.enable_grad():
            loss = closure()
        if twice and loss is None:
            raise ValueError(
                "closure must return the loss with hessian='finite_difference', it returned None"
            )
        return loss, random_state

    def _only_filling(self) -> bool:
        """Whether this is the step of size 0 by which distributed checkpoints have the state made."""
        first = self.param_groups[0]["meta_taken"] == 0
        return first and all(float(group["lr"]) == 0 for group in self.param_groups)

    def _prepare(self) -> None:
        """Bring the wrapped optimizer's groups up to date: one per part with a step size of its own."""
        if not self._base_ready:
            if self._direction is None:
                self._direction = self._choose_direction()
            whole = self._direction.whole_groups or self._scales is None
            parts = cells(None if whole else self._partition, self.param_groups)
            self._parts = []
            for number, members in parts:
                lr = self.param_groups[number]["lr"]
                own = lr.clone() if isinstance(lr, Tensor) else lr
                self._parts.append((number, {**self._templates[number], "params": members, "lr": own}))
            self.base.param_groups = [cell for _, cell in self._parts]
            self._base_ready = True
        for number, cell in self._parts:
            group = self.param_groups[number]
            for key in cell:
                if key not in ("params", "lr"):
                    cell[key] = group[key]

    def _choose_direction(self) -> Direction:
        if self._options.compile:
            return Compiled(float(self._options.gamma))
        parameters = [p for group in self.param_groups for p in group["params"]]
        return choose(
            self.base,
            self._options,
            half=any(min(p.dtype.itemsize, self._trace_dtype(p).itemsize) < 4 for p in parameters),
            smallest=min(group["meta_reference_lr"] for group in self.param_groups),
            parts=len(cells(self._partition, self.param_groups)),
        )

    def _collect(self) -> list[Work]:
        """Gather what has a gradient."""
        learned = [name for learner in self._learners for name in learner.entries]
        works = []
        for number, cell in self._parts:
            group = self.param_groups[number]
            decay, coupled = decay_of(self.base, group)
            sign = -1.0 if group.get("maximize") else 1.0
            work = Work(
                group, cell, extra={name: [] for name in learned}, sign=sign, decay=decay, coupled=coupled
            )
            for p in cell["params"]:
                if p.grad is not None:
                    work.add(p, self.state[p], self._partition[p], self._trace_dtype(p))
            if work.params:
                works.append(work)
        return works

    def _trace_dtype(self, parameter: Tensor) -> torch.dtype:
        return torch.float64 if parameter.dtype == torch.float64 else self._options.state_dtype

    def _measure(
        self, works: list[Work], closure: Callable[[], Any] | None, random_state: curvature.RandomState | None
    ) -> curvature.Lists | None:
        if self._options.hessian == "zero":
            return None
        if self._only_filling():
            return [[torch.zeros_like(trace) for trace in work.traces] for work in works]
        if random_state is not None:
            assert closure is not None
            with random_state.again():
                return curvature.by_difference(self._options, works, closure, self._total)
        with torch.enable_grad():
            return curvature.measure(self._options, works, self.param_groups[0]["meta_taken"])

    def _set_step_sizes(self, works: list[Work]) -> None:
        """Turn beta into step sizes, in the wrapped optimizer's groups and in ``works``."""
        if isinstance(self._scales, ElementStepSizes):
            for work in works:
                work.alpha, work.slope = self._scales.alphas(work)
        else:
            assert self._scales is not None
            self._warn_skipped(self._scales.apply(self._parts, self.param_groups, works, self._learners))
        gamma = self._options.gamma
        if self._options.normalised:
            first = self._options.order == "meta_first"
            for work in works:
                share = work.group["meta_y"][0]
                work.weight = share if first else gamma * share + 1 - gamma

    def _base_step(self, works: list[Work], bent: curvature.Lists | None) -> None:
        """Step the wrapped optimizer; move the traces."""
        assert self._direction is not None
        turns = None if bent is None else curvature.turns(self._options, bent, works)
        for learner in self._learners:
            learner.before(works)
        self._direction.step(self.base, works, turns)
        for learner in self._learners:
            learner.after(works)
        for work in works:
            for state, key, value in work.new:
                state[key] = value
        for group in self.param_groups:
            group["meta_taken"] += 1

    def _meta_step(self, z: Any, turn: Any, works: list[Work]) -> None:
        """Move beta by the meta rule, and Y if it is kept."""
        scales = self._scales
        assert scales is not None
        if self._options.normalised:
            for group in self.param_groups:
                group["meta_y"] = scales.history(group["meta_y"], z, turn)
        scales.move(z, works)
        if isinstance(scales, ElementStepSizes):
            self._warn_skipped(scales.skipped)

    # ------------------------------------------------------------------ state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to wrapper and wrapped optimizer.

        With "scalar" blocks it joins the one block; a listed partition gets a new block for it.

        Parameters
        ----------
        param_group : dict
            Parameters and their hyperparameters.

        Raises
        ------
        ValueError
            If its lr cannot be started from.
        """
        super().add_param_group(param_group)
        if "_partition" not in self.__dict__:  # called by the constructor of the superclass
            return
        group = self.param_groups[-1]
        try:
            check_group(group, f"group {len(self.param_groups) - 1}", self._options)
            self.base.add_param_group(
                {**_template(group), "params": list(group["params"]), "lr": group["lr"]}
            )
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._templates.append(_template(self.base.param_groups[-1]))
        self._base_ready = False
        self._partition.extend(group)
        self._begin(group)
        if isinstance(self._scales, SharedStepSizes):
            self._scales.extend(self.param_groups)
        self._publish()

    def _begin(self, group: dict[str, Any]) -> None:
        """Set a group's own entries as they are before the first step."""
        group["meta_alpha"] = None if self._options.fine else group["lr"]
        group["meta_reference_lr"] = float(group["lr"])
        group["meta_taken"] = 0
        group["meta_y"] = [0.0, 0.0, 0.0]  # of beta and of up to two entries of the rule's memory

    def _publish(self) -> None:
        for group in self.param_groups:
            group.update(checkpoint.signature(self._options, self._partition, group))
            group.update(meta_beta=[], meta_m=[], meta_v=[], meta_step=[], meta_skipped=0.0)
            if self._scales is not None:
                self._scales.publish(group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, in the shape that torch gives it.

        Returns
        -------
        dict
            ``state`` holds the wrapped optimizer's entries and the traces; ``param_groups`` the rest.
        """
        self._publish()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state.

        That of a bare optimizer of the wrapped class loads too: learning starts from here then.

        Parameters
        ----------
        state_dict : dict
            From :meth:`state_dict`.

        Raises
        ------
        ValueError
            If it was made with another meta rule, other meta-parameters or other blocks.
        """
        self._publish()
        filled = checkpoint.complete(state_dict, self.param_groups)
        super().load_state_dict(filled)
        checkpoint.restore_types(filled, self.param_groups, self.state, self._trace_dtype)
        if self._scales is not None:
            for group in self.param_groups:
                self._scales.restore(group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in self._OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "state" in state and "base" in self.__dict__:
            self.base.__setstate__({"state": self.state, "param_groups": self.base.param_groups})

    def __repr__(self) -> str:
        how = self._options.delta if self._direction is None else self._direction.name
        blocks = (
            self._options.blocks
            if isinstance(self._options.blocks, str)
            else f"{len(self._partition)} blocks"
        )
        head = f"{type(self).__name__} over {type(self.base).__name__}"
        return f"{head}: meta={self._options.meta}, blocks={blocks}, delta={how}\n{super().__repr__()}"


def _template(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a group, without what is the wrapper's."""
    own = ("params", "param_names", "lr", *checkpoint.KEYS)
    return {key: value for key, value in group.items() if key not in own}
