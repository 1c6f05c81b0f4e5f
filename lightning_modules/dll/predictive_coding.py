"""Predictive coding with fixed predictions: by W transposed or by random weights, settled or in one sweep.

Whittington & Bogacz, Neural Computation 29(5), 2017, https://doi.org/10.1162/NECO_a_00949. With fixed
predictions, and the limit, the gradient of backpropagation: Millidge, Tschantz & Buckley, 2020,
arXiv:2006.04182. One sweep: Song, Lukasiewicz, Xu & Bogacz, "Can the Brain Do Backpropagation?",
NeurIPS 2020.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from seedbed.checks import check_number
from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import DLLLayer
from seedbed.lightning_modules.dll.row_weights import weighted
from seedbed.lightning_modules.dll.rules import LearnStep
from seedbed.lightning_modules.dll.stages import Stage, StagedNetwork, build_stages

Network = TypeVar("Network", bound="PredictiveCoding")


class PredictiveCoding(StagedNetwork):
    r"""Network of value and error units that settles before it learns.

    Every stage has a prediction ``u_l = f_l(u_{l-1})`` and a value ``x_l``, which starts there; the top value
    is held at the target. The errors ``e_l = x_l - u_l`` relax by descent on the energy ``½ Σ ‖e_l‖²``,

    .. math:: e_l \leftarrow e_l + γ\,(J_{l+1}^T e_{l+1} - e_l),

    with the predictions, and so the Jacobians ``J``, held where the forward pass left them. Then each
    weight learns from its own layer, ``ΔW_l = 2/σ² x_{l-1}ᵀ δ_l``, as in DLL. At the fixed point ``e_l``
    is the error of backpropagation.

    Parameters
    ----------
    stem : sequence of DLLLayer
        Layers without weights in front of the first stage.
    stages : sequence of Stage
        Bottom to top, the output layer last. Their heads' feedback weights carry the errors down.
    n_steps : int
        Relaxation steps T.
    rate : float
        Relaxation rate γ in (0, 1].
    **options
        ``output`` and ``clip_value``, see :class:`~seedbed.lightning_modules.dll.rules.LocalNetwork`.

    Examples
    --------
    >>> import torch
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = (LayerSpec("linear", 8), LayerSpec("linear", 3, activation="identity"))
    >>> network = PredictiveCoding.from_config(NetworkConfig(layers, input_shape=(4,)))
    >>> network.learn(torch.ones(5, 4), torch.full((5, 3), 1 / 3)).output.shape
    torch.Size([5, 3])
    """

    rule: ClassVar[str] = "pc"
    feedback_rule: ClassVar[str] = "transport"
    default_steps: ClassVar[int] = 100

    def __init__(
        self,
        stem: Sequence[DLLLayer],
        stages: Sequence[Stage],
        *,
        n_steps: int = 100,
        rate: float = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(stem, stages, **options)
        check_number("n_steps", n_steps, low=1, integer=True)
        check_number("rate", rate, low=0, high=1, closed="right")
        self.n_steps = n_steps
        self.rate = rate

    @classmethod
    def from_config(cls: type[Network], config: NetworkConfig) -> Network:
        """Build from a description; options: ``n_steps`` and ``rate``."""
        options = config.rule_options(n_steps=cls.default_steps, rate=0.2)
        built = build_stages(config, cls.rule, feedback_rule=cls.feedback_rule, branches=True)
        return cls(*built, output=config.output, clip_value=config.clip_value, **options)

    def relax(self, top: Tensor) -> list[Tensor | None]:
        """Settle the errors.

        Parameters
        ----------
        top : Tensor of shape (batch, outputs)
            Error at the output, held fixed.

        Returns
        -------
        list of Tensor or None
            Error at the output of each stage after the last step; None where nothing has arrived yet.
        """
        stack = self.stack
        errors: list[Tensor | None] = [*[None] * (len(stack) - 1), top]
        for _ in range(self.n_steps):
            # Bottom to top, so that each unit reads what the ones above it held before this step.
            for place, above in enumerate(errors[1:]):
                if above is None:
                    continue
                arriving, own = stack[place + 1].descend(above), errors[place]
                errors[place] = arriving * self.rate if own is None else own.lerp(arriving, self.rate)
        return errors

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        output = self(x)
        errors = self.relax(self.top_error(output, target))
        for stage, error in zip(self.stack, errors, strict=True):
            if error is not None:
                stage.update(weighted(error, sample_weight))
                continue
            for parameter in stage.parameters():
                parameter.grad = None
        return LearnStep(self.loss(output, target, sample_weight), output)


class PredictiveCodingFA(PredictiveCoding):
    """Predictive coding whose errors come down by fixed random weights instead of W transposed.

    At the fixed point it is feedback alignment (Lillicrap et al., Nature Communications 7:13276, 2016).

    Parameters
    ----------
    stem, stages, n_steps, rate, **options
        As in :class:`PredictiveCoding`; the heads have ``feedback_rule="fixed"``.

    Examples
    --------
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = (LayerSpec("linear", 8), LayerSpec("linear", 3, activation="identity"))
    >>> network = PredictiveCodingFA.from_config(NetworkConfig(layers, input_shape=(4,)))
    >>> network.stages[1].head.feedback.shape
    torch.Size([3, 8])
    """

    rule: ClassVar[str] = "pc_fa"
    feedback_rule: ClassVar[str] = "fixed"


class IncrementalPredictiveCoding(PredictiveCoding):
    r"""Predictive coding that learns while the errors come down: one sweep, no settling.

    ``e_l = γ J_{l+1}ᵀ e_{l+1}`` from the top stage to the bottom one, each weight learning as its error
    arrives. With fixed predictions this is the gradient of backpropagation times ``γ^{L-l}``, the
    gradient itself at ``γ = 1`` (Song et al., 2020). An optimizer that normalises each weight's step, as
    Adam does, hardly sees the factor.

    Parameters
    ----------
    stem, stages, rate, **options
        As in :class:`PredictiveCoding`.
    n_steps : int
        Must be 1.

    Examples
    --------
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = (LayerSpec("linear", 8), LayerSpec("linear", 3, activation="identity"))
    >>> IncrementalPredictiveCoding.from_config(NetworkConfig(layers, input_shape=(4,))).n_steps
    1
    """

    rule: ClassVar[str] = "ipc"
    default_steps: ClassVar[int] = 1

    def __init__(
        self, stem: Sequence[DLLLayer], stages: Sequence[Stage], *, n_steps: int = 1, **options: Any
    ) -> None:
        check_number("n_steps", n_steps, low=1, high=1, integer=True)
        super().__init__(stem, stages, n_steps=n_steps, **options)

    def relax(self, top: Tensor) -> list[Tensor | None]:
        """Sweep the errors down once; see :meth:`PredictiveCoding.relax`."""
        errors: list[Tensor | None] = [top]
        error = top
        for stage in self.stack[:0:-1]:
            error = stage.descend(error).mul_(self.rate)
            errors.insert(0, error)
        return errors
