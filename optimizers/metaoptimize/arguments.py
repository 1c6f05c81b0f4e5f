"""What a MetaOptimize was asked to do, checked before any work is done."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from seedbed.checks import check_choice, check_number

Meta = Literal["lion", "adam", "adam_corrected", "rmsprop", "sgd"]
MetaParameter = Literal["lr", "weight_decay", "momentum"]
Blocks = str | Sequence[int] | Sequence[Sequence[str | Tensor]] | Callable[[str, Tensor], Hashable]

META_RULES = ("lion", "adam", "adam_corrected", "rmsprop", "sgd", None)
FINE_BLOCKS = ("nodewise", "weightwise")
NAMED_BLOCKS = ("scalar", "group", "layerwise", *FINE_BLOCKS)
META_PARAMETERS = ("lr", "weight_decay", "momentum")
DEFAULT_BETAS = {
    "lion": (0.99, 0.9),
    "adam": (0.9, 0.999),
    "adam_corrected": (0.9, 0.999),
    "rmsprop": (0.0, 0.999),
}

_NOT_LINEAR = "the step it takes is not proportional to its lr"
_ADAPTS = "it adapts the step size itself"
_REFUSED = {
    "LBFGS": "it evaluates the loss several times per step",
    "ASGD": _NOT_LINEAR,
    "Rprop": _NOT_LINEAR,
    "SparseAdam": "it takes sparse gradients only",
    "Adafactor": "it rescales its lr by the size of the weights",
}


@dataclass(frozen=True)
class Options:
    """The arguments of :class:`~seedbed.optimizers.MetaOptimize` other than the optimizer; see there.

    Raises
    ------
    TypeError
        If a value has the wrong type.
    ValueError
        If a value is not allowed, or two values do not go together.
    """

    meta: str | None = "lion"
    meta_lr: float = 1e-3
    gamma: float = 1.0
    meta_betas: tuple[float, float] | None = None
    meta_eps: float = 1e-10
    meta_weight_decay: float = 0.0
    blocks: Any = "scalar"
    parameterisation: str = "exp"
    trace: str = "update"
    hessian: str = "zero"
    approximation: str = "L"
    order: str = "base_first"
    normalised: bool = False
    meta_parameters: tuple[str, ...] = ("lr",)
    alpha_bounds: tuple[float, float] | None = None
    delta: str = "auto"
    state_dtype: torch.dtype = torch.float32
    compile: bool = False
    clip_decay: bool = False
    probes: int | str = 1
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_choices()
        self._check_combinations()

    def _check_numbers(self) -> None:
        check_number("meta_lr", self.meta_lr, low=0.0, closed="neither")
        check_number("gamma", self.gamma, low=0.0, high=1.0)
        check_number("meta_eps", self.meta_eps, low=0.0)
        check_number("meta_weight_decay", self.meta_weight_decay, low=0.0)
        check_number("seed", self.seed, low=0, integer=True)
        if self.probes != "exact":
            check_number("probes", self.probes, low=1, integer=True)
        if self.meta_betas is not None:
            _check_pair("meta_betas", self.meta_betas)
            for index, value in enumerate(self.meta_betas):
                check_number(f"meta_betas[{index}]", value, low=0.0, high=1.0, closed="left")
        if self.alpha_bounds is not None:
            _check_pair("alpha_bounds", self.alpha_bounds)
            low, high = self.alpha_bounds
            check_number("alpha_bounds[0]", low, low=0.0, closed="neither")
            check_number("alpha_bounds[1]", high, low=low, closed="neither")

    def _check_choices(self) -> None:
        check_choice("meta", self.meta, META_RULES)
        check_choice("parameterisation", self.parameterisation, ("exp", "identity", "smd"))
        check_choice("trace", self.trace, ("update", "gradient"))
        check_choice("hessian", self.hessian, ("zero", "diag", "hvp", "finite_difference"))
        check_choice("approximation", self.approximation, ("L", "2x2"))
        check_choice("order", self.order, ("base_first", "meta_first"))
        check_choice("delta", self.delta, ("auto", "difference", "analytic", "scratch"))
        for name in ("normalised", "compile", "clip_decay"):
            check_choice(name, getattr(self, name), (True, False))
        if isinstance(self.blocks, str):
            check_choice("blocks", self.blocks, NAMED_BLOCKS)
        elif not callable(self.blocks) and not isinstance(self.blocks, (list, tuple)):
            raise TypeError(
                f"blocks must be one of {', '.join(map(repr, NAMED_BLOCKS))}, a list of tensor counts, "
                f"a list of lists of parameters or names, or a callable; got {self.blocks!r}"
            )
        if not isinstance(self.state_dtype, torch.dtype) or not self.state_dtype.is_floating_point:
            raise TypeError(f"state_dtype must be a floating-point torch.dtype, got {self.state_dtype!r}")
        if not self.meta_parameters or len(set(self.meta_parameters)) != len(self.meta_parameters):
            raise ValueError(
                f"meta_parameters must name each of its members once, got {self.meta_parameters!r}"
            )
        for name in self.meta_parameters:
            check_choice("meta_parameters", name, META_PARAMETERS)

    def _check_combinations(self) -> None:
        def refuse(what: str, why: str) -> None:
            raise ValueError(f"{what}: {why}")

        if self.normalised and self.gamma == 1:
            refuse(
                "normalised=True needs gamma < 1",
                f"the weights 1 - gamma^t would all be 0, got {self.gamma!r}",
            )
        if self.parameterisation == "identity" and self.delta == "difference":
            refuse(
                "parameterisation='identity' does not go with delta='difference'",
                "a step of size zero shows no direction; use 'analytic' or 'scratch'",
            )
        if self.fine and self.delta in ("difference", "analytic"):
            refuse(
                f"blocks={self.blocks!r} does not go with delta={self.delta!r}",
                "the optimizer itself takes one step size per tensor; use 'auto' or 'scratch'",
            )
        if self.trace == "gradient" and self.delta == "difference":
            refuse(
                "trace='gradient' does not go with delta='difference'",
                "the change of a weight shows the whole update; use 'auto' or 'analytic'",
            )
        if self.hessian != "zero" and self.trace == "gradient":
            refuse("trace='gradient' needs hessian='zero'", f"it drops curvature, got {self.hessian!r}")
        if self.hessian != "zero" and self.delta == "difference":
            refuse(
                f"hessian={self.hessian!r} does not go with delta='difference'",
                "curvature needs the formula of the update; use 'auto'",
            )
        if set(self.meta_parameters) != {"lr"} and (
            self.fine or self.hessian != "zero" or self.trace != "update"
        ):
            refuse(
                f"meta_parameters={self.meta_parameters!r} needs one value per tensor, hessian='zero' and "
                "trace='update'",
                f"got blocks={self.blocks!r}, hessian={self.hessian!r}, trace={self.trace!r}",
            )
        if set(self.meta_parameters) != {"lr"} and (self.delta == "scratch" or self.compile):
            refuse(
                f"meta_parameters={self.meta_parameters!r} does not go with delta='scratch' or compile=True",
                "use delta='auto'",
            )
        if self.state_dtype.itemsize < 4 and (self.delta == "difference" or self.compile):
            refuse(
                f"state_dtype={self.state_dtype!r} does not go with delta='difference' or compile=True",
                "a trace that takes in whole weights needs 32 bits; use delta='auto'",
            )
        if self.approximation == "2x2" and self.hessian != "zero":
            allowed = (
                self.hessian in ("hvp", "finite_difference") and self.blocks == "scalar" and self.normalised
            )
            if not allowed:
                refuse(
                    "approximation='2x2' with curvature needs hessian='hvp' or 'finite_difference', "
                    "blocks='scalar' and normalised=True",
                    f"got hessian={self.hessian!r}, blocks={self.blocks!r}, normalised={self.normalised!r}",
                )
        if self.clip_decay and self.hessian != "diag":
            refuse(
                "clip_decay=True needs hessian='diag'", f"it clips 1 - alpha * diagonal, got {self.hessian!r}"
            )
        if self.compile and (
            self.trace != "update" or self.hessian != "zero" or self.delta != "auto" or self.fine
        ):
            refuse(
                "compile=True needs hessian='zero', trace='update', delta='auto' and blocks of whole tensors",
                f"got {self.hessian!r}, {self.trace!r}, {self.delta!r}, {self.blocks!r}",
            )

    @property
    def fine(self) -> bool:
        """Whether a tensor holds many blocks."""
        return isinstance(self.blocks, str) and self.blocks in FINE_BLOCKS

    @property
    def betas(self) -> tuple[float, float]:
        """``meta_betas`` or the rule's default."""
        return self.meta_betas or DEFAULT_BETAS.get(str(self.meta), (0.0, 0.0))


def _check_pair(name: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise TypeError(f"{name} must be a pair of numbers, got {value!r}")


def check_base(base: Any, wrapper: type, *, allow_nonlinear: bool) -> None:
    """Raise unless ``base`` is an optimizer whose step is proportional to its lr.

    Parameters
    ----------
    base : object
        What was passed.
    wrapper : type
        The wrapping class, which cannot be wrapped again.
    allow_nonlinear : bool
        Let Adafactor pass: its trace is then off by its change of lr with the size of the weights.

    Raises
    ------
    TypeError
        If ``base`` is no optimizer or a wrapped one.
    ValueError
        If its steps are not proportional to its lr, or it adapts the step size itself.
    """
    if not isinstance(base, Optimizer):
        raise TypeError(f"base must be a torch.optim.Optimizer, got {base!r} of type {type(base).__name__}")
    if isinstance(base, wrapper):
        raise TypeError(f"base is a {type(base).__name__} already; wrap the optimizer inside it")
    name = type(base).__name__
    reason = _REFUSED.get(name)
    if "ScheduleFree" in name or name in ("DoG", "LDoG") or name.startswith(("Prodigy", "DAdapt", "Mechan")):
        reason = _ADAPTS
    if reason and not (allow_nonlinear and name == "Adafactor"):
        hint = "; allow_nonlinear=True accepts that" if name == "Adafactor" else ""
        raise ValueError(f"base must not be {name}: {reason}{hint}")


def check_learning_rates(base: Optimizer, options: Options) -> None:
    """Raise unless every group can start from its lr.

    Parameters
    ----------
    base : Optimizer
        The wrapped optimizer.
    options : Options
        What is asked for.

    Raises
    ------
    ValueError
        If an lr is not positive (the step size is a multiple of it) or outside ``alpha_bounds``, or a decay
        or momentum that is to be learned is not inside its range.
    """
    for index, group in enumerate(base.param_groups):
        if "lr" not in group:
            raise ValueError(f"base must have an lr in every group, group {index} has {sorted(group)}")
        check_group(group, f"group {index}", options)


def check_group(group: dict[str, Any], where: str, options: Options) -> None:
    """Raise unless one group can start; see :func:`check_learning_rates`.

    Parameters
    ----------
    group : dict
        A parameter group.
    where : str
        Its name, for the message.
    options : Options
        What is asked for.

    Raises
    ------
    ValueError
        If it cannot.
    """
    lr = float(group["lr"])
    if not lr > 0:
        raise ValueError(
            f"lr must be in (0, inf) where step sizes are learned as multiples of it; {where} has {lr!r}"
        )
    if options.alpha_bounds is not None:
        low, high = options.alpha_bounds
        if not low <= lr <= high:
            raise ValueError(f"lr must lie inside alpha_bounds [{low:g}, {high:g}]; {where} has {lr!r}")
    if "weight_decay" in options.meta_parameters and not group.get("weight_decay", 0) > 0:
        raise ValueError(
            f"weight_decay must be in (0, inf) to be learned; {where} has {group.get('weight_decay', 0)!r}"
        )
