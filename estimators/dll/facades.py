"""Networks of :mod:`seedbed.lightning_modules.dll` with the scikit-learn interface."""

from collections.abc import Mapping, Sequence
from math import isqrt, prod
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import LightningModule
from sklearn.utils._param_validation import Interval, StrOptions

from seedbed.fitting import LightningClassifier, LightningEstimator, LightningRegressor
from seedbed.lightning_modules.dll.architecture import ACTIVATIONS, FEEDBACK_RULES
from seedbed.lightning_modules.dll.layers import DLLWeighted
from seedbed.lightning_modules.dll.modules import DLLClassifier, DLLRegressor
from seedbed.lightning_modules.dll.optimizing import OPTIMIZERS, SCHEDULES
from seedbed.lightning_modules.dll.rules import RULES
from seedbed.lightning_modules.dll.training import LocalModule

Shape = tuple[int, ...]


class _AlignmentCurve(LocalModule):
    """Adds a record of the alignment after each epoch to a module."""

    alignment_curve: list[list[float]]

    def on_train_epoch_end(self) -> None:
        """Advance the schedule and note the alignments."""
        super().on_train_epoch_end()
        curve = self.__dict__.setdefault("alignment_curve", [])
        curve.append([float(cosine) for cosine in self.network.alignments().values()])


class _Classifier(_AlignmentCurve, DLLClassifier):
    """A classifier that keeps the record."""


class _Regressor(_AlignmentCurve, DLLRegressor):
    """A regressor that keeps the record."""


class _DLLEstimator(LightningEstimator):
    """What the facades share: constraints, settings of the module, learned attributes."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LightningEstimator._parameter_constraints,
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "learning_rule": [StrOptions(set(RULES))],
        "feedback_rule": [StrOptions(set(FEEDBACK_RULES))],
        "rule_options": [dict, None],
        "solver": [StrOptions(set(OPTIMIZERS))],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "learning_rate": [StrOptions({*SCHEDULES, "constant"})],
        "feedback_lr_ratio": [Interval(Real, 0, None, closed="left"), None],
        "bias": ["boolean"],
        "weight_std": [Interval(Real, 0, None, closed="left")],
        "feedback_std": [Interval(Real, 0, None, closed="left")],
        "sigma": [Interval(Real, 0, None, closed="neither")],
        "clip_value": [Interval(Real, 0, None, closed="neither"), None],
    }

    def _settings(self) -> dict[str, Any]:
        """Arguments that every module takes."""
        return {
            "learning_rule": self.learning_rule,
            "feedback_rule": self.feedback_rule,
            "rule_options": dict(self.rule_options or {}),
            "optimizer": self.solver,
            "lr": float(self.learning_rate_init),
            "feedback_lr_ratio": self.feedback_lr_ratio,
            "lr_schedule": "none" if self.learning_rate == "constant" else self.learning_rate,
            "activation": self.activation,
            "bias": bool(self.bias),
            "weight_std": float(self.weight_std),
            "feedback_std": float(self.feedback_std),
            "sigma": float(self.sigma),
            "clip_value": self.clip_value,
            "random_state": self._seed,
        }

    def _hidden_sizes(self) -> list[int]:
        sizes = self.hidden_layer_sizes
        sizes = [sizes] if isinstance(sizes, Integral) else list(sizes)
        for size in sizes:
            if isinstance(size, bool | np.bool_) or not isinstance(size, Integral) or size < 1:
                raise ValueError(
                    f"hidden_layer_sizes must hold integers of at least 1, got {self.hidden_layer_sizes!r}"
                )
        return [int(size) for size in sizes]

    def _finish(self) -> None:
        """Read weights and the alignment off the module."""
        module = self.module_
        assert isinstance(module, _AlignmentCurve)
        layers = [layer for layer in module.network.modules() if isinstance(layer, DLLWeighted)]
        self.coefs_ = [_array(layer.weight) for layer in layers]
        readout = getattr(module.network, "readout", None)
        if readout is not None:
            self.coefs_.append(_array(readout))
        self.intercepts_ = [
            np.zeros(len(layer.weight), dtype=self._dtype) if layer.bias is None else _array(layer.bias)
            for layer in layers
        ]
        self.feedback_coefs_ = [_array(layer.feedback) for layer in layers[1:] if layer.feedback is not None]
        self.alignment_curve_ = np.array(getattr(module, "alignment_curve", []), dtype=np.float64)


class DLLMLPClassifier(LightningClassifier, _DLLEstimator):
    """Multilayer perceptron that learns by dendritic localized learning.

    Each layer has weights W for the signal on its way up and separate weights Θ for the error on its way
    down. Both learn from what meets at the layer itself: no autograd graph, no weight transport, one phase.
    ``learning_rule`` puts backpropagation or another biologically motivated rule in its place.

    Columns should be standardised. Without ``bias`` the network maps a row of zeros to equal probabilities.

    Parameters
    ----------
    hidden_layer_sizes : array-like of int
        Units of each hidden layer.
    activation : {"tanh", "sigmoid", "relu", "leaky_relu", "softplus", "gelu", "identity"}
        Of hidden layers.
    learning_rule : str
        ``"dll"``, ``"bp"`` (backpropagation), ``"fa"`` and ``"dfa"`` (feedback alignment, direct),
        ``"sign_symmetry"``, ``"kolen_pollack"``, ``"pc"``, ``"pc_fa"`` and ``"ipc"`` (predictive coding),
        ``"dtp"`` (target propagation), ``"ep"`` (equilibrium propagation), ``"ff"`` (forward-forward),
        ``"softhebb"`` or ``"local_loss"``.
    feedback_rule : {"hebbian", "anti_hebbian", "fixed", "kolen_pollack"}
        How Θ learns under ``"dll"``.
    rule_options : dict or None
        Settings that only the chosen rule knows, such as ``{"n_steps": 50}`` for ``"pc"``.
    solver : {"adam", "adamw", "sgd"}
        Optimizer.
    learning_rate_init : float
        Learning rate of W.
    learning_rate : {"linear", "cosine", "constant", "none"}
        Decay to zero over ``max_iter`` epochs; ``"none"`` is another name of ``"constant"``.
    feedback_lr_ratio : float or None
        Learning rate of Θ over that of W; None takes the rule's own.
    batch_size : int
        Rows per step.
    max_iter : int
        Epochs.
    max_steps : int
        Most optimizer steps; -1 means no limit.
    label_smoothing : float
        Share of the target spread over all classes, in [0, 1).
    bias : bool
        Whether layers have biases.
    weight_std, feedback_std : float
        Standard deviations of the initial W and Θ.
    sigma : float
        The energy's σ.
    clip_value : float or None
        Bound on errors and updates.
    early_stopping : bool
        Hold out rows and keep the weights that score best on them.
    validation_fraction : float
        Share of rows held out, in (0, 1).
    n_iter_no_change : int
        With early stopping: epochs without a score better by more than ``tol`` before training stops.
    tol : float
        See ``n_iter_no_change``.
    warm_start : bool
        ``fit`` continues from the present weights and optimizer state.
    accelerator, devices, strategy, precision
        As in :class:`lightning.pytorch.Trainer`.
    callbacks : list of lightning.pytorch.Callback or None
        Further callbacks.
    random_state : int, RandomState or None
        Seed of weights, order of the rows and held-out rows.
    verbose : int
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    coefs_ : list of ndarray of shape (d_{l-1}, d_l)
        W of each layer.
    intercepts_ : list of ndarray of shape (d_l,)
        Biases; zeros without ``bias``.
    feedback_coefs_ : list of ndarray of shape (d_{l-1}, d_l)
        Θ of each layer from the second on; empty for rules without.
    alignment_curve_ : ndarray of shape (n_iter_, layers with feedback)
        Cosine between W and Θ after each epoch.
    loss_curve_ : list of float
        Mean training loss of each epoch.
    n_iter_ : int
        Epochs run.
    validation_scores_ : list of float or None
        Accuracy on held-out rows after each epoch of the last fit; None without early stopping.
    best_validation_score_ : float or None
        The best of them.
    interrupted_ : bool
        Whether Ctrl-C ended the last fit.
    module_ : LightningModule
        The fitted :class:`~seedbed.lightning_modules.DLLClassifier`.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Their names, if X had names.

    See Also
    --------
    DLLMLPRegressor : Regression.
    DLLCNNClassifier : Images.
    AlignmentDisplay : Plot of ``alignment_curve_``.

    References
    ----------
    C. Lv et al., "Dendritic Localized Learning: Toward Biologically Plausible Algorithm", ICML 2025,
    PMLR 267:41682-41700.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from seedbed.estimators import DLLMLPClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> model = DLLMLPClassifier([16], learning_rate_init=0.01, max_iter=20, random_state=0)
    >>> bool(make_pipeline(StandardScaler(), model).fit(X, y).score(X, y) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_DLLEstimator._parameter_constraints,
        "label_smoothing": [Interval(Real, 0, 1, closed="left")],
    }

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int = (128, 64),
        *,
        activation: str = "tanh",
        learning_rule: str = "dll",
        feedback_rule: str = "hebbian",
        rule_options: Mapping[str, Any] | None = None,
        solver: str = "adam",
        learning_rate_init: float = 1e-3,
        learning_rate: str = "linear",
        feedback_lr_ratio: float | None = None,
        batch_size: int = 64,
        max_iter: int = 100,
        max_steps: int = -1,
        label_smoothing: float = 0.1,
        bias: bool = False,
        weight_std: float = 0.05,
        feedback_std: float = 1.0,
        sigma: float = 1.0,
        clip_value: float | None = 50.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 20,
        tol: float = 1e-4,
        warm_start: bool = False,
        accelerator: str = "auto",
        devices: Any = 1,
        strategy: Any = "auto",
        precision: str = "32-true",
        callbacks: list[Any] | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.learning_rule = learning_rule
        self.feedback_rule = feedback_rule
        self.rule_options = rule_options
        self.solver = solver
        self.learning_rate_init = learning_rate_init
        self.learning_rate = learning_rate
        self.feedback_lr_ratio = feedback_lr_ratio
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.label_smoothing = label_smoothing
        self.bias = bias
        self.weight_std = weight_std
        self.feedback_std = feedback_std
        self.sigma = sigma
        self.clip_value = clip_value
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.accelerator = accelerator
        self.devices = devices
        self.strategy = strategy
        self.precision = precision
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    def _build_module(self) -> LightningModule:
        return _Classifier(
            hidden_layer_sizes=self._hidden_sizes(),
            num_classes=len(self.classes_),
            input_shape=self.n_features_in_,
            label_smoothing=float(self.label_smoothing),
            **self._settings(),
        )


class DLLMLPRegressor(LightningRegressor, _DLLEstimator):
    """Multilayer perceptron for regression that learns by dendritic localized learning.

    Like :class:`DLLMLPClassifier` with a linear output and half the squared error. Targets are standardised
    inside, since errors drive the updates of every layer.

    Parameters
    ----------
    hidden_layer_sizes, activation, learning_rule, feedback_rule, rule_options, solver, learning_rate_init
        As in :class:`DLLMLPClassifier`.
    learning_rate, feedback_lr_ratio, batch_size, max_iter, max_steps, bias, weight_std, feedback_std, sigma
        As in :class:`DLLMLPClassifier`.
    clip_value, early_stopping, validation_fraction, n_iter_no_change, tol, warm_start, accelerator, devices
        As in :class:`DLLMLPClassifier`.
    strategy, precision, callbacks, random_state, verbose
        As in :class:`DLLMLPClassifier`. The rule ``"ff"``, which contrasts class labels, is refused.

    Attributes
    ----------
    coefs_, intercepts_, feedback_coefs_, alignment_curve_, loss_curve_, n_iter_, validation_scores_
        As in :class:`DLLMLPClassifier`; scores are R².
    best_validation_score_, interrupted_, module_, n_features_in_, feature_names_in_
        As in :class:`DLLMLPClassifier`.
    y_mean_, y_scale_ : ndarray of shape (n_outputs_,)
        What targets are standardised by.
    n_outputs_ : int
        Number of target columns.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from seedbed.estimators import DLLMLPRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DLLMLPRegressor(learning_rate_init=0.01, max_iter=20, random_state=0)
    >>> bool(make_pipeline(StandardScaler(), model).fit(X, y).score(X, y) > 0.4)
    True
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int = (32, 16),
        *,
        activation: str = "tanh",
        learning_rule: str = "dll",
        feedback_rule: str = "hebbian",
        rule_options: Mapping[str, Any] | None = None,
        solver: str = "adam",
        learning_rate_init: float = 1e-3,
        learning_rate: str = "linear",
        feedback_lr_ratio: float | None = None,
        batch_size: int = 64,
        max_iter: int = 100,
        max_steps: int = -1,
        bias: bool = False,
        weight_std: float = 0.05,
        feedback_std: float = 1.0,
        sigma: float = 1.0,
        clip_value: float | None = 50.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 20,
        tol: float = 1e-4,
        warm_start: bool = False,
        accelerator: str = "auto",
        devices: Any = 1,
        strategy: Any = "auto",
        precision: str = "32-true",
        callbacks: list[Any] | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.learning_rule = learning_rule
        self.feedback_rule = feedback_rule
        self.rule_options = rule_options
        self.solver = solver
        self.learning_rate_init = learning_rate_init
        self.learning_rate = learning_rate
        self.feedback_lr_ratio = feedback_lr_ratio
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.bias = bias
        self.weight_std = weight_std
        self.feedback_std = feedback_std
        self.sigma = sigma
        self.clip_value = clip_value
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.accelerator = accelerator
        self.devices = devices
        self.strategy = strategy
        self.precision = precision
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    def _build_module(self) -> LightningModule:
        return _Regressor(
            hidden_layer_sizes=self._hidden_sizes(),
            num_targets=self.n_outputs_,
            input_shape=self.n_features_in_,
            **self._settings(),
        )


class DLLCNNClassifier(LightningClassifier, _DLLEstimator):
    """Convolutional network that learns by dendritic localized learning.

    Rows of X are flattened images, channels first. Each entry of ``channels`` adds a convolution that keeps
    the size, and a pool of 2 where both sides allow it: max first, average after the others. Fully connected
    layers follow.

    Parameters
    ----------
    image_shape : tuple of int or None
        (channels, height, width), whose product is the number of columns. None takes one channel: a square
        where the number of columns is a square number, else a single row of pixels.
    channels : array-like of int
        Channels of each convolution.
    kernel_size : int
        Odd side of the kernels.
    hidden_layer_sizes : array-like of int
        Units of the fully connected hidden layers.
    activation, learning_rule, feedback_rule, rule_options, solver, learning_rate_init, learning_rate
        As in :class:`DLLMLPClassifier`.
    feedback_lr_ratio, batch_size, max_iter, max_steps, label_smoothing, bias, weight_std, feedback_std, sigma
        As in :class:`DLLMLPClassifier`.
    kernel_feedback_std : float
        Standard deviation of the initial feedback kernels.
    clip_value, early_stopping, validation_fraction, n_iter_no_change, tol, warm_start, accelerator, devices
        As in :class:`DLLMLPClassifier`.
    strategy, precision, callbacks, random_state, verbose
        As in :class:`DLLMLPClassifier`.

    Attributes
    ----------
    image_shape_ : tuple of int
        Shape of an image.
    coefs_, feedback_coefs_ : list of ndarray
        As in :class:`DLLMLPClassifier`; kernels have shape (out channels, in channels, height, width).
    classes_, intercepts_, alignment_curve_, loss_curve_, n_iter_, validation_scores_
        As in :class:`DLLMLPClassifier`.
    best_validation_score_, interrupted_, module_, n_features_in_, feature_names_in_
        As in :class:`DLLMLPClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from seedbed.estimators import DLLCNNClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> X = (X - X.mean()) / X.std()
    >>> model = DLLCNNClassifier((1, 8, 8), channels=[8], max_iter=5, random_state=0)
    >>> bool(model.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) > 0.7)
    True
    >>> [kernel.shape for kernel in model.coefs_]
    [(8, 1, 3, 3), (128, 64), (64, 10)]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_DLLEstimator._parameter_constraints,
        "image_shape": ["array-like", None],
        "channels": ["array-like"],
        "kernel_size": [Interval(Integral, 1, None, closed="left")],
        "kernel_feedback_std": [Interval(Real, 0, None, closed="left")],
        "label_smoothing": [Interval(Real, 0, 1, closed="left")],
    }

    def __init__(
        self,
        image_shape: Sequence[int] | None = None,
        *,
        channels: Sequence[int] = (16, 32),
        kernel_size: int = 3,
        hidden_layer_sizes: Sequence[int] | int = (64,),
        activation: str = "tanh",
        learning_rule: str = "dll",
        feedback_rule: str = "hebbian",
        rule_options: Mapping[str, Any] | None = None,
        solver: str = "adam",
        learning_rate_init: float = 3e-3,
        learning_rate: str = "linear",
        feedback_lr_ratio: float | None = None,
        batch_size: int = 64,
        max_iter: int = 100,
        max_steps: int = -1,
        label_smoothing: float = 0.1,
        bias: bool = False,
        weight_std: float = 0.05,
        feedback_std: float = 1.0,
        kernel_feedback_std: float = 0.05,
        sigma: float = 1.0,
        clip_value: float | None = 50.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 20,
        tol: float = 1e-4,
        warm_start: bool = False,
        accelerator: str = "auto",
        devices: Any = 1,
        strategy: Any = "auto",
        precision: str = "32-true",
        callbacks: list[Any] | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.image_shape = image_shape
        self.channels = channels
        self.kernel_size = kernel_size
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.learning_rule = learning_rule
        self.feedback_rule = feedback_rule
        self.rule_options = rule_options
        self.solver = solver
        self.learning_rate_init = learning_rate_init
        self.learning_rate = learning_rate
        self.feedback_lr_ratio = feedback_lr_ratio
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.label_smoothing = label_smoothing
        self.bias = bias
        self.weight_std = weight_std
        self.feedback_std = feedback_std
        self.kernel_feedback_std = kernel_feedback_std
        self.sigma = sigma
        self.clip_value = clip_value
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.accelerator = accelerator
        self.devices = devices
        self.strategy = strategy
        self.precision = precision
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    def _build_module(self) -> LightningModule:
        if self.kernel_size % 2 == 0:
            raise ValueError(
                f"kernel_size must be odd, so that images keep their size; got {self.kernel_size}"
            )
        return _Classifier(
            layers=self._layers(),
            num_classes=len(self.classes_),
            input_shape=list(self.image_shape_),
            label_smoothing=float(self.label_smoothing),
            kernel_feedback_std=float(self.kernel_feedback_std),
            **self._settings(),
        )

    def _layers(self) -> list[dict[str, Any]]:
        """The network as a list of layers; sets ``image_shape_`` first."""
        self.image_shape_ = self._shape()
        height, width = self.image_shape_[1:]
        layers: list[dict[str, Any]] = []
        for place, size in enumerate(self.channels):
            kernel = {"kernel_size": int(self.kernel_size), "padding": int(self.kernel_size) // 2}
            layers.append({"kind": "conv2d", "size": size, **kernel})
            if min(height, width) >= 2:
                layers.append({"kind": "avg_pool2d" if place else "max_pool2d", "kernel_size": 2})
                height, width = height // 2, width // 2
        layers.append({"kind": "flatten"})
        return layers + [{"kind": "linear", "size": size} for size in self._hidden_sizes()]

    def _shape(self) -> Shape:
        columns = self.n_features_in_
        if self.image_shape is None:
            side = isqrt(columns)
            return (1, side, side) if side * side == columns else (1, 1, columns)
        shape = tuple(int(size) for size in self.image_shape)
        if len(shape) != 3 or min(shape) < 1 or prod(shape) != columns:
            raise ValueError(
                "image_shape must be (channels, height, width) with as many pixels as X has columns "
                f"({columns}); got {self.image_shape!r}"
            )
        return shape

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        return torch.tensor(X).view(len(X), *self.image_shape_)


def _array(parameter: torch.Tensor) -> np.ndarray:
    """Weights as (inputs, outputs), kernels as they are."""
    values: np.ndarray = parameter.detach().cpu().numpy().copy()
    return values.T if values.ndim == 2 else values
