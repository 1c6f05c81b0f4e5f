"""Lightning modules that train any learning rule of :data:`~seedbed.lightning_modules.dll.rules.RULES`."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torchmetrics import MeanSquaredError, Metric
from torchmetrics.classification import MulticlassAccuracy

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig, Shape, feedforward_layers
from seedbed.lightning_modules.dll.optimizing import OptimizerCallable
from seedbed.lightning_modules.dll.targets import PADDING, check_labels, class_targets
from seedbed.lightning_modules.dll.training import Batch, LocalModule

STAGES = ("train", "val", "test")


class DLLClassifier(LocalModule):
    """Classifier that learns without backpropagation.

    Dendritic localized learning by default: each layer keeps weights ``W`` for the signal up and separate
    weights ``Θ`` for the error down, and both learn from what meets at the layer itself.

    Parameters
    ----------
    hidden_layer_sizes : list of int, optional
        Widths of a multilayer perceptron.
    layers : list of mapping, optional
        Or hidden layers one by one, each with the keys of
        :class:`~seedbed.lightning_modules.dll.architecture.LayerSpec`. The output layer is added. Without
        either the paper's perceptron for its images is built, 1024-512-256.
    num_classes : int
        Classes.
    input_shape : int or list of int
        Shape of one sample, such as 784 or [1, 28, 28].
    learning_rule : str
        ``"dll"``, ``"bp"``, ``"fa"``, ``"dfa"``, ``"sign_symmetry"``, ``"kolen_pollack"``, ``"pc"``,
        ``"pc_fa"``, ``"ipc"``, ``"dtp"``, ``"ep"``, ``"ff"``, ``"softhebb"`` or ``"local_loss"``.
    feedback_rule : {"hebbian", "anti_hebbian", "fixed", "kolen_pollack"}
        How Θ learns under ``"dll"``.
    rule_options : mapping, optional
        Settings that only the chosen rule knows.
    optimizer : {"adam", "adamw", "sgd"} or callable
        Name, or a callable from parameter groups to an optimizer.
    lr : float
        Learning rate of a named optimizer.
    feedback_lr_ratio : float, optional
        Learning rate of Θ over that of W; None takes the rule's own (0.1 for ``"dll"``).
    lr_schedule : {"linear", "cosine", "none"}
        Decay to zero over the epochs of the fit.
    label_smoothing : float
        Share of the target spread over all classes, in [0, 1).
    activation : str
        Of hidden layers.
    form : {"inner", "outer"}
        ``φ(x W)``, or ``φ(x) W``.
    bias : bool
        Whether layers have biases.
    weight_std, feedback_std : float
        Standard deviations of the initial W and Θ.
    kernel_feedback_std : float
        Standard deviation of the initial feedback kernels of convolutions.
    feedback_init : {"normal", "sign"}, optional
        ``N(0, std²)`` or ``±std``; None takes the rule's own.
    sigma : float
        The energy's σ.
    clip_value : float or None
        Bound on errors and updates.
    max_update_norm : float, optional
        Bound on the norm of all updates together.
    update_feedback_every : int
        Θ learns in every so-manieth step only.
    feedback_start_epoch : int
        And not before this epoch.
    allow_unstable : bool
        Accept Hebbian feedback under SGD without bound or decay.
    log_alignment, log_bp_angle : bool
        See :class:`LocalModule`.
    random_state : int
        Seed of the initial weights and of draws made while learning. No global generator is used.

    Raises
    ------
    ValueError
        If a parameter is out of range; the message has its name and what is allowed.

    References
    ----------
    C. Lv et al., *Dendritic Localized Learning: Toward Biologically Plausible Algorithm*, ICML 2025.

    Examples
    --------
    >>> import torch
    >>> module = DLLClassifier(hidden_layer_sizes=[16], num_classes=3, input_shape=4)
    >>> module.predict_step(torch.zeros(2, 4)).sum(1)
    tensor([1., 1.])
    """

    def __init__(
        self,
        hidden_layer_sizes: list[int] | None = None,
        layers: list[dict[str, Any]] | None = None,
        num_classes: int = 10,
        input_shape: int | list[int] = 784,
        learning_rule: str = "dll",
        feedback_rule: str = "hebbian",
        rule_options: dict[str, Any] | None = None,
        optimizer: OptimizerCallable | str = "adam",
        lr: float = 1e-4,
        feedback_lr_ratio: float | None = None,
        lr_schedule: str = "linear",
        label_smoothing: float = 0.1,
        activation: str = "tanh",
        form: str = "inner",
        bias: bool = False,
        weight_std: float = 0.05,
        feedback_std: float = 1.0,
        kernel_feedback_std: float = 0.05,
        feedback_init: str | None = None,
        sigma: float = 1.0,
        clip_value: float | None = 50.0,
        max_update_norm: float | None = None,
        update_feedback_every: int = 1,
        feedback_start_epoch: int = 0,
        allow_unstable: bool = False,
        log_alignment: bool = True,
        log_bp_angle: bool = False,
        random_state: int = 42,
    ) -> None:
        check_number("num_classes", num_classes, low=2, integer=True)
        check_number("label_smoothing", label_smoothing, low=0, high=1, closed="left")
        super().__init__(
            _feedforward_config(
                hidden_layer_sizes,
                layers,
                input_shape,
                num_classes,
                output="softmax",
                activation=activation,
                form=form,
                bias=bias,
                feedback_rule=feedback_rule,
                feedback_init=feedback_init,
                weight_std=weight_std,
                feedback_std=feedback_std,
                kernel_feedback_std=kernel_feedback_std,
                sigma=sigma,
                clip_value=clip_value,
                random_state=random_state,
                options=rule_options or {},
            ),
            learning_rule=learning_rule,
            optimizer=optimizer,
            lr=lr,
            feedback_lr_ratio=feedback_lr_ratio,
            lr_schedule=lr_schedule,
            max_update_norm=max_update_norm,
            update_feedback_every=update_feedback_every,
            feedback_start_epoch=feedback_start_epoch,
            allow_unstable=allow_unstable,
            log_alignment=log_alignment,
            log_bp_angle=log_bp_angle,
        )
        # A callable is no value a checkpoint could hold without running code when it is read.
        self.save_hyperparameters(ignore=["optimizer"] if callable(optimizer) else [])
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing
        self.metrics = nn.ModuleDict(
            {f"{stage}_metric": MulticlassAccuracy(num_classes, average="micro") for stage in STAGES}
        )

    def on_fit_start(self) -> None:
        """Compare the number of classes with the data module's, where it tells.

        Raises
        ------
        ValueError
            If the data have more classes than the network outputs.
        """
        _check_classes(self.trainer, self.num_classes)

    def unpack(self, batch: Any, *, smooth: bool) -> Batch:
        """Split a batch; labels become probabilities ``(1 - s) · onehot + s / K``."""
        x, y, *rest = batch
        check_labels(y, self.num_classes)
        target = class_targets(y, self.num_classes, self.label_smoothing if smooth else 0.0)
        return x, target.to(_float_of(x)), rest[0] if rest else None

    def predictions(self, output: Tensor) -> Tensor:
        """Probabilities of the classes, (batch, num_classes)."""
        return torch.softmax(output.float() if output.dtype != torch.float64 else output, dim=-1)

    def measure(self, stage: str, output: Tensor, batch: Any) -> None:
        """Update and log the accuracy."""
        metric: Metric = self.metrics[f"{stage}_metric"]  # type: ignore[assignment]
        metric.update(output.argmax(-1), batch[1])
        self._log_metric(stage, "accuracy", metric)


class DLLRegressor(LocalModule):
    """Regressor that learns without backpropagation, by half the squared error.

    Targets should be standardised: errors drive the updates of every layer, and so their size matters.

    Parameters
    ----------
    hidden_layer_sizes : list of int, optional
        Widths of a multilayer perceptron; default [32, 16] where ``layers`` is not given either.
    layers : list of mapping, optional
        Or hidden layers one by one, as in :class:`DLLClassifier`.
    num_targets : int
        Width of the output.
    input_shape : int or list of int
        Shape of one sample.
    learning_rule, feedback_rule, rule_options, optimizer, lr, feedback_lr_ratio, lr_schedule
        As in :class:`DLLClassifier`.
    activation, form, bias, weight_std, feedback_std, kernel_feedback_std, feedback_init, sigma, clip_value
        As in :class:`DLLClassifier`.
    max_update_norm, update_feedback_every, feedback_start_epoch, allow_unstable
        As in :class:`DLLClassifier`.
    log_alignment, log_bp_angle, random_state
        As in :class:`DLLClassifier`.

    Raises
    ------
    ValueError
        If a parameter is out of range; the message has its name and what is allowed.

    Examples
    --------
    >>> import torch
    >>> module = DLLRegressor(hidden_layer_sizes=[8], input_shape=3, num_targets=2)
    >>> module.predict_step(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        hidden_layer_sizes: list[int] | None = None,
        layers: list[dict[str, Any]] | None = None,
        num_targets: int = 1,
        input_shape: int | list[int] = 10,
        learning_rule: str = "dll",
        feedback_rule: str = "hebbian",
        rule_options: dict[str, Any] | None = None,
        optimizer: OptimizerCallable | str = "adam",
        lr: float = 1e-3,
        feedback_lr_ratio: float | None = None,
        lr_schedule: str = "linear",
        activation: str = "tanh",
        form: str = "inner",
        bias: bool = False,
        weight_std: float = 0.05,
        feedback_std: float = 1.0,
        kernel_feedback_std: float = 0.05,
        feedback_init: str | None = None,
        sigma: float = 1.0,
        clip_value: float | None = 50.0,
        max_update_norm: float | None = None,
        update_feedback_every: int = 1,
        feedback_start_epoch: int = 0,
        allow_unstable: bool = False,
        log_alignment: bool = True,
        log_bp_angle: bool = False,
        random_state: int = 42,
    ) -> None:
        check_number("num_targets", num_targets, low=1, integer=True)
        super().__init__(
            _feedforward_config(
                [32, 16] if hidden_layer_sizes is None and layers is None else hidden_layer_sizes,
                layers,
                input_shape,
                num_targets,
                output="identity",
                activation=activation,
                form=form,
                bias=bias,
                feedback_rule=feedback_rule,
                feedback_init=feedback_init,
                weight_std=weight_std,
                feedback_std=feedback_std,
                kernel_feedback_std=kernel_feedback_std,
                sigma=sigma,
                clip_value=clip_value,
                random_state=random_state,
                options=rule_options or {},
            ),
            learning_rule=learning_rule,
            optimizer=optimizer,
            lr=lr,
            feedback_lr_ratio=feedback_lr_ratio,
            lr_schedule=lr_schedule,
            max_update_norm=max_update_norm,
            update_feedback_every=update_feedback_every,
            feedback_start_epoch=feedback_start_epoch,
            allow_unstable=allow_unstable,
            log_alignment=log_alignment,
            log_bp_angle=log_bp_angle,
        )
        self.save_hyperparameters(ignore=["optimizer"] if callable(optimizer) else [])
        self.num_targets = num_targets
        self.metrics = nn.ModuleDict({f"{stage}_metric": MeanSquaredError() for stage in STAGES})

    def unpack(self, batch: Any, *, smooth: bool) -> Batch:  # noqa: ARG002
        """Split a batch; a target of shape (batch,) is one column."""
        x, y, *rest = batch
        return x, self._target(y).to(_float_of(x)), rest[0] if rest else None

    def predictions(self, output: Tensor) -> Tensor:
        """Values, (batch, num_targets)."""
        return output

    def measure(self, stage: str, output: Tensor, batch: Any) -> None:
        """Update and log the mean squared error."""
        metric: Metric = self.metrics[f"{stage}_metric"]  # type: ignore[assignment]
        metric.update(output.float(), self._target(batch[1]).float())
        self._log_metric(stage, "mse", metric)

    def _target(self, y: Tensor) -> Tensor:
        target = y.unsqueeze(1) if y.ndim == 1 else y
        if target.shape[1:] != (self.num_targets,):
            raise ValueError(
                f"targets must have shape (batch, {self.num_targets}) for num_targets={self.num_targets}, "
                f"got {tuple(y.shape)}"
            )
        return target


class DLLSequenceModel(LocalModule):
    """Recurrent network that learns without backpropagation, one target per step.

    Parameters
    ----------
    input_size : int
        Features of a step, or the number of tokens where inputs are integers.
    output_size : int
        Classes or targets of a step.
    hidden_size : int
        Hidden units.
    task : {"char", "regression"}
        Integer targets (batch, time), of which -100 marks padding; or floats (batch, time, output_size).
    output : {"identity", "softmax"}
        For ``"char"``: regress the one-hot target, as the paper does, or softmax with cross-entropy.
    learning_rule : str
        ``"dll"``, ``"bp"``, ``"fa"``, ``"sign_symmetry"``, ``"kolen_pollack"`` or another rule that trains
        recurrent networks.
    feedback_rule : str
        How Θ learns under ``"dll"``. ``"hebbian"`` needs an adaptive optimizer.
    rule_options : mapping, optional
        Such as ``truncate`` (steps an error travels back), ``noise`` and ``initial_state`` of
        :class:`~seedbed.lightning_modules.dll.recurrent.DLLRNN`.
    optimizer : {"adam", "adamw", "sgd"} or callable
        Name, or a callable from parameter groups to an optimizer.
    lr : float
        Learning rate of a named optimizer. Updates are sums over batch and time.
    feedback_lr_ratio : float, optional
        Learning rate of Θ over that of W; None takes 1.
    lr_schedule : {"linear", "cosine", "none"}
        Decay to zero over the epochs of the fit.
    label_smoothing : float
        Share of the target spread over all classes, in [0, 1).
    activation : str
        Of hidden units.
    bias : bool
        Whether there are biases.
    weight_std, feedback_std : float
        Standard deviations of the initial W and Θ.
    feedback_init : {"normal", "sign"}, optional
        ``N(0, std²)`` or ``±std``; None takes the rule's own.
    clip_value : float or None
        Bound on each entry of the updates.
    max_update_norm, update_feedback_every, feedback_start_epoch, allow_unstable
        As in :class:`DLLClassifier`.
    log_alignment, log_bp_angle, random_state
        As in :class:`DLLClassifier`.

    Raises
    ------
    ValueError
        If a parameter is out of range; the message has its name and what is allowed.

    Examples
    --------
    >>> import torch
    >>> module = DLLSequenceModel(input_size=5, output_size=5, hidden_size=8)
    >>> module.predict_step(torch.randint(5, (2, 7), generator=torch.Generator().manual_seed(0))).shape
    torch.Size([2, 7, 5])
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        hidden_size: int = 128,
        task: str = "char",
        output: str = "identity",
        learning_rule: str = "dll",
        feedback_rule: str = "anti_hebbian",
        rule_options: dict[str, Any] | None = None,
        optimizer: OptimizerCallable | str = "sgd",
        lr: float = 1e-3,
        feedback_lr_ratio: float | None = None,
        lr_schedule: str = "none",
        label_smoothing: float = 0.0,
        activation: str = "tanh",
        bias: bool = False,
        weight_std: float = 0.05,
        feedback_std: float = 0.05,
        feedback_init: str | None = None,
        clip_value: float | None = 50.0,
        max_update_norm: float | None = None,
        update_feedback_every: int = 1,
        feedback_start_epoch: int = 0,
        allow_unstable: bool = False,
        log_alignment: bool = True,
        log_bp_angle: bool = False,
        random_state: int = 42,
    ) -> None:
        check_choice("task", task, ("char", "regression"))
        check_choice("output", output, ("identity", "softmax"))
        if task == "regression" and output == "softmax":
            raise ValueError("output='softmax' needs task='char', got task='regression'")
        check_number("input_size", input_size, low=1, integer=True)
        check_number("hidden_size", hidden_size, low=1, integer=True)
        check_number("output_size", output_size, low=2 if task == "char" else 1, integer=True)
        check_number("label_smoothing", label_smoothing, low=0, high=1, closed="left")
        super().__init__(
            NetworkConfig(
                (
                    LayerSpec("recurrent", hidden_size),
                    LayerSpec("linear", output_size, activation="identity"),
                ),
                (input_size,),
                output="softmax" if output == "softmax" else "identity",
                activation=activation,
                bias=bias,
                feedback_rule=feedback_rule,
                feedback_init=feedback_init,
                weight_std=weight_std,
                feedback_std=feedback_std,
                clip_value=clip_value,
                random_state=random_state,
                options=rule_options or {},
            ),
            learning_rule=learning_rule,
            optimizer=optimizer,
            lr=lr,
            feedback_lr_ratio=feedback_lr_ratio,
            lr_schedule=lr_schedule,
            max_update_norm=max_update_norm,
            update_feedback_every=update_feedback_every,
            feedback_start_epoch=feedback_start_epoch,
            allow_unstable=allow_unstable,
            log_alignment=log_alignment,
            log_bp_angle=log_bp_angle,
        )
        self.save_hyperparameters(ignore=["optimizer"] if callable(optimizer) else [])
        self.task = task
        self.output_size = output_size
        self.label_smoothing = label_smoothing
        self.metrics = nn.ModuleDict({f"{stage}_metric": self._metric() for stage in STAGES})

    def on_fit_start(self) -> None:
        """Compare the number of classes with the data module's, where it tells."""
        if self.task == "char":
            _check_classes(self.trainer, self.output_size)

    def unpack(self, batch: Any, *, smooth: bool) -> Batch:
        """Split a batch; padded steps get weight zero."""
        x, y, *rest = batch
        weight: Tensor | None = rest[0] if rest else None
        dtype = x.dtype if x.is_floating_point() else next(self.network.parameters()).dtype
        if self.task == "regression":
            return x, y.to(dtype), weight
        check_labels(y, self.output_size, padding=PADDING)
        real = y != PADDING
        target = class_targets(y.where(real, 0), self.output_size, self.label_smoothing if smooth else 0.0)
        if weight is not None and weight.ndim == 1:
            weight = weight.unsqueeze(1)
        mask = real.to(dtype)
        return x, target.to(dtype), mask if weight is None else mask * weight

    def predictions(self, output: Tensor) -> Tensor:
        """Probabilities of the classes, or values, at each step.

        A linear output that regresses one-hot targets estimates probabilities: its negative part is cut off
        and the rest made to sum to one.
        """
        if self.task == "regression":
            return output
        if self.network.output == "softmax":
            return torch.softmax(output, dim=-1)
        positive = output.clamp_min(torch.finfo(output.dtype).eps)
        return positive / positive.sum(-1, keepdim=True)

    def measure(self, stage: str, output: Tensor, batch: Any) -> None:
        """Update and log accuracy or mean squared error."""
        metric: Metric = self.metrics[f"{stage}_metric"]  # type: ignore[assignment]
        if self.task == "char":
            metric.update(output.argmax(-1), batch[1])
            self._log_metric(stage, "accuracy", metric)
        else:
            metric.update(output.float().contiguous(), batch[1].float())
            self._log_metric(stage, "mse", metric)

    def _metric(self) -> Metric:
        if self.task == "char":
            return MulticlassAccuracy(self.output_size, average="micro", ignore_index=PADDING)
        return MeanSquaredError()


def _check_classes(trainer: pl.Trainer, num_classes: int) -> None:
    found = getattr(getattr(trainer, "datamodule", None), "num_classes", None)
    if isinstance(found, int) and found > num_classes:
        raise ValueError(f"the data have {found} classes, but the network has outputs for {num_classes}")


def _float_of(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def _feedforward_config(
    hidden_layer_sizes: list[int] | None,
    layers: list[dict[str, Any]] | None,
    input_shape: int | list[int] | tuple[int, ...],
    num_outputs: int,
    **settings: Any,
) -> NetworkConfig:
    shape: Shape = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
    if hidden_layer_sizes is None and layers is None:
        hidden_layer_sizes = [1024, 512, 256]
    specs = feedforward_layers(
        hidden_layer_sizes=hidden_layer_sizes, layers=layers, input_shape=shape, num_outputs=num_outputs
    )
    return NetworkConfig(specs, shape, **settings)
