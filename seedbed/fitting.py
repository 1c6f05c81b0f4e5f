"""Estimators over Lightning modules: arrays in, ``fit`` / ``partial_fit`` / ``predict``.

A facade derives from :class:`LightningClassifier` or :class:`LightningRegressor`, lists its constructor
parameters (the shared ones of :class:`LightningEstimator` among them), extends ``_parameter_constraints``
with its own, and defines ``_build_module``.

What the module must offer:

- ``training_step(batch, batch_idx)`` for ``batch = (x, y)`` or ``(x, y, sample_weight)``, which returns the
  loss (or ``{"loss": loss}``), also under manual optimization;
- ``predict_step(batch, batch_idx)`` for ``batch = (x,)``, which returns probabilities ``(n, n_classes)`` or
  values ``(n, n_outputs)``;
- ``configure_optimizers`` as usual.

``y`` is int64 of shape (n,) for a classifier and floats of shape (n, n_outputs) for a regressor;
``sample_weight`` is floats of shape (n,).
"""

from copy import deepcopy
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, _fit_context
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from seedbed.batches import derive_seed
from seedbed.training import (
    Fit,
    LoopState,
    Score,
    TensorBatches,
    fit_module,
    isolated_rng,
    predict_batches,
    quiet,
)

__all__ = [
    "PRECISIONS",
    "Fit",
    "LightningClassifier",
    "LightningEstimator",
    "LightningRegressor",
    "LoopState",
    "TensorBatches",
    "fit_module",
    "isolated_rng",
]

PRECISIONS = ("32-true", "64-true", "16-mixed", "bf16-mixed")
"""Precisions the estimators offer; any other is a matter for a Trainer of one's own."""

PREDICT_ROWS = 1024
"""Least number of rows predicted at once; training's batch size where that is larger."""

# typing.Self says the same, but is refused by the shape checks that the tests switch on.
C = TypeVar("C", bound="LightningClassifier")
R = TypeVar("R", bound="LightningRegressor")


class LightningEstimator(BaseEstimator):
    """Base of :class:`LightningClassifier` and :class:`LightningRegressor`.

    Its constructor parameters are those that every facade shares and lists in its own constructor.

    Parameters
    ----------
    batch_size : int
        Rows per optimizer step; on several devices, over all of them together.
    max_iter : int
        Most epochs of a call to ``fit``.
    max_steps : int
        Most optimizer steps of a call to ``fit``; -1 means no limit.
    early_stopping : bool
        Hold out rows and keep the weights that score best on them.
    validation_fraction : float
        Share of rows held out, in (0, 1).
    n_iter_no_change : int
        With early stopping: stop after so many epochs without a score better by more than ``tol``.
    tol : float
        See ``n_iter_no_change``.
    warm_start : bool
        ``fit`` continues from the present weights and optimizer state.
    accelerator, devices, strategy, precision
        As in :class:`lightning.pytorch.Trainer`.
    callbacks : list of Callback or None
        Further Lightning callbacks, used as they are.
    random_state : int, RandomState or None
        Seed of the weights, the order of the rows and the held-out rows. None draws a fresh one.
    verbose : int
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    module_ : LightningModule
        The fitted module.
    n_iter_ : int
        Epochs run, over all calls that continued one another.
    loss_curve_ : list of float
        Mean training loss of each epoch.
    validation_scores_ : list of float or None
        Score on the held-out rows after each epoch of the last fit; None without early stopping.
    best_validation_score_ : float or None
        The best of them.
    interrupted_ : bool
        Whether Ctrl-C ended the last fit.
    n_features_in_ : int
        Number of input columns.
    feature_names_in_ : ndarray of str
        Their names, if X had names.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "max_steps": [Interval(Integral, 1, None, closed="left"), Options(Integral, {-1})],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "accelerator": [StrOptions({"auto", "cpu", "gpu", "cuda", "mps"})],
        "devices": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"}), list],
        "strategy": [str, Strategy],
        "precision": [StrOptions(set(PRECISIONS))],
        "callbacks": [list, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _target_checks: ClassVar[dict[str, Any]] = {}

    module_: LightningModule
    loss_curve_: list[float]
    n_iter_: int
    _seed: int
    _state: LoopState | None

    def _build_module(self) -> LightningModule:
        """Return a new module; ``n_features_in_`` and ``classes_`` or ``n_outputs_`` are known.

        Torch's global generator is seeded here, so weights may be drawn from it.
        """
        raise NotImplementedError

    def _finish(self) -> None:
        """Read learned attributes off ``module_`` after a fit."""

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        """Turn checked rows into what the module takes; a facade for images reshapes here.

        Parameters
        ----------
        X : ndarray of shape (n, n_features_in_)
            In the dtype of the module.

        Returns
        -------
        Tensor of shape (n, ...)
            A copy.
        """
        return torch.tensor(X)

    def _encode(
        self, y: np.ndarray, *, first: bool, sample_weight: np.ndarray | None, classes: Any
    ) -> np.ndarray:
        """Turn checked targets into what the module learns from."""
        raise NotImplementedError

    def _score(self, target: np.ndarray, sample_weight: np.ndarray | None) -> Score:
        """Return the validation score for encoded targets."""
        raise NotImplementedError

    @property
    def _dtype(self) -> type:
        return np.float64 if self.precision == "64-true" else np.float32

    def _narrow(self, X: np.ndarray) -> np.ndarray:
        """Bring X to the module's dtype, refusing what does not fit into it."""
        with np.errstate(over="ignore"):
            narrow: np.ndarray = X.astype(self._dtype)
        if not np.isfinite(narrow).all():
            raise ValueError(
                f"X has a value too large for {np.dtype(self._dtype)}: {np.abs(X).max():g}; scale it"
            )
        return narrow

    def _learn(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        go_on: bool,
        one_pass: bool = False,
        classes: Any = None,
    ) -> None:
        """Check the arrays, split, train, and set the attributes."""
        if one_pass and self.early_stopping:
            raise ValueError(
                "partial_fit does not support early_stopping=True: a stream has no held-out rows"
            )
        for callback in self.callbacks or ():
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks must be lightning.pytorch.Callback instances, got {callback!r}")
        first = not (go_on and hasattr(self, "module_"))
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), reset=first, **self._target_checks)
        X = self._narrow(X)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            kept = weight > 0
            if not kept.any():
                raise ValueError("sample_weight must have a positive entry, got zeros only")
            if not kept.all():  # a row without weight is a row left out
                X, y, weight = X[kept], y[kept], weight[kept]
        target = self._encode(y, first=first, sample_weight=weight, classes=classes)
        if first:
            self._seed = _draw_seed(self.random_state)
            self._state = None
            with isolated_rng(self._seed):
                module = self._build_module()
        else:
            module = self.module_
        columns = [X, target] if weight is None else [X, target, weight.astype(self._dtype)]
        score = validation = None
        if self.early_stopping:
            held = train_test_split(
                *columns,
                test_size=self.validation_fraction,
                random_state=derive_seed(self._seed, 1) % 2**32,
                stratify=target if isinstance(self, ClassifierMixin) else None,
            )
            columns, (X_val, target_val, *weight_val) = held[::2], held[1::2]
            score = self._score(target_val, weight_val[0] if weight_val else None)
            validation = TensorBatches(self._inputs(X_val), batch_size=max(self.batch_size, PREDICT_ROWS))
        train = TensorBatches(
            self._inputs(columns[0]),
            *(torch.tensor(column) for column in columns[1:]),
            batch_size=self.batch_size,
            seed=None if one_pass else self._seed,
            first_epoch=0 if self._state is None else self._state.epochs,
        )
        result = fit_module(
            module,
            train,
            max_epochs=1 if one_pass else self.max_iter,
            max_steps=-1 if one_pass else self.max_steps,
            validation=validation,
            score=score,
            patience=self.n_iter_no_change if self.early_stopping else None,
            tol=self.tol,
            accelerator=self.accelerator,
            devices=self.devices,
            strategy=self.strategy,
            precision=self.precision,
            callbacks=self.callbacks,
            random_state=self._seed,
            state=self._state,
            hold_schedule=one_pass,
            verbose=int(self.verbose),
        )
        self.module_ = module
        self.loss_curve_ = [*([] if first else self.loss_curve_), *result.loss_curve]
        self.n_iter_ = result.n_iter + (0 if first else self.n_iter_)
        self.validation_scores_ = result.scores if self.early_stopping else None
        self.best_validation_score_ = result.best_score
        self.interrupted_ = result.interrupted
        self._state = result.state
        self._finish()

    def _outputs(self, X: Any) -> tuple[np.ndarray, np.dtype]:
        """Predictions in float64, and the dtype the answer should have: float32 for float32 X."""
        check_is_fitted(self, "module_")
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        batches = TensorBatches(self._inputs(self._narrow(X)), batch_size=max(self.batch_size, PREDICT_ROWS))
        # Seeded, so that a module that samples while it predicts gives the same answer every time.
        with quiet(0), isolated_rng(self._seed, self.accelerator):
            fabric = _fabric(self.accelerator, self.precision)
            module = self.module_.to(fabric.device)
            outputs = predict_batches(module, batches, fabric.device, fabric.autocast).numpy()
        if not np.isfinite(outputs).all():
            raise ValueError(
                "predictions are not finite: X lies too far from the rows that were learned from; scale it"
            )
        return outputs.astype(np.float64), X.dtype

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the module from the CPU, so that it loads where there is no accelerator."""
        state = dict(super().__getstate__())
        module = state.get("module_")
        if module is not None and module.device.type != "cpu":  # moved there by a prediction
            state["module_"] = deepcopy(module).cpu()
        return state


def _fabric(accelerator: str, precision: str) -> Fabric:
    """One device to predict on: the accelerator where there is one, else the CPU.

    A model that was trained on an accelerator and pickled goes on working where there is none.
    """
    try:
        return Fabric(accelerator=accelerator, devices=1, precision=precision)
    except (MisconfigurationException, RuntimeError, ValueError):
        if accelerator == "cpu":
            raise
        return Fabric(accelerator="cpu", devices=1, precision=precision)


def _draw_seed(random_state: Any) -> int:
    """A non-negative seed; None gives a fresh one without touching NumPy's global generator."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _accuracy(outputs: np.ndarray, *, target: np.ndarray, sample_weight: np.ndarray | None) -> float:
    return float(accuracy_score(target, outputs.argmax(axis=1), sample_weight=sample_weight))


def _r2(outputs: np.ndarray, *, target: np.ndarray, sample_weight: np.ndarray | None) -> float:
    return float(r2_score(target, outputs, sample_weight=sample_weight))


class LightningClassifier(ClassifierMixin, LightningEstimator):
    """Classifier over a LightningModule that gets class numbers and predicts probabilities.

    The module gets ``y`` as int64 of shape (n,), values ``0 .. len(classes_) - 1``; its ``predict_step``
    returns probabilities of shape (n, len(classes_)). The validation score is the accuracy.

    Parameters
    ----------
    **parameters
        Each facade lists its own; the shared ones are described in :class:`LightningEstimator`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self: C, X: Any, y: Any, sample_weight: Any = None) -> C:
        """Train the module.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows.
        y : array-like of shape (n,)
            Class labels, of any kind.
        sample_weight : array-like of shape (n,), optional
            Non-negative weight of each row's loss.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            If y has fewer than two classes, the arrays are not finite or do not fit together, a warm start
            meets a new label, or the loss stops being finite.
        """
        self._learn(X, y, sample_weight, go_on=self.warm_start)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self: C, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> C:
        """Train on one pass over these rows, in their order, from where the last call stopped.

        Two calls on the halves of some batches do exactly what one call on all of them does. The learning
        rate stays at its initial value: a stream has no end for a schedule to run to.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows.
        y : array-like of shape (n,)
            Class labels.
        classes : array-like, optional
            All labels that will ever come; needed in the first call.
        sample_weight : array-like of shape (n,), optional
            Non-negative weight of each row's loss.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            If ``classes`` is missing in the first call or differs later, or as in :meth:`fit`.
        """
        fitted = hasattr(self, "module_")
        if classes is None and not fitted:
            raise ValueError("classes must list all labels in the first call to partial_fit")
        if classes is not None and fitted and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must stay {self.classes_!r} after the first call, got {classes!r}")
        self._learn(X, y, sample_weight, go_on=True, one_pass=True, classes=classes)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n, len(classes_))
            Rows sum to one; float32 for float32 input, else float64.

        Raises
        ------
        ValueError
            If X is malformed or a probability is not finite.
        """
        outputs, dtype = self._outputs(X)
        if outputs.shape[1] != len(self.classes_) or outputs.min() < 0:
            raise ValueError(
                f"{type(self.module_).__name__}.predict_step must return probabilities of "
                f"{len(self.classes_)} classes, got shape {outputs.shape} and least value {outputs.min():g}"
            )
        return (outputs / outputs.sum(axis=1, keepdims=True)).astype(dtype)

    def predict(self, X: Any) -> np.ndarray:
        """Most probable class.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n,)
            Labels out of ``classes_``.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def _encode(
        self,
        y: np.ndarray,
        *,
        first: bool,
        sample_weight: np.ndarray | None,  # noqa: ARG002
        classes: Any,
    ) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(y if classes is None else column_or_1d(classes))
            if len(self.classes_) < 2:
                raise ValueError(f"y must have at least 2 classes, got 1 class: {self.classes_!r}")
        unseen = np.setdiff1d(y, self.classes_)
        if len(unseen):
            raise ValueError(f"y has labels that are not among the classes {self.classes_!r}: {unseen!r}")
        return np.searchsorted(self.classes_, y)

    def _score(self, target: np.ndarray, sample_weight: np.ndarray | None) -> Score:
        return partial(_accuracy, target=target, sample_weight=sample_weight)


class LightningRegressor(RegressorMixin, LightningEstimator):
    """Regressor over a LightningModule.

    Targets are standardised inside (weighted mean and standard deviation of the first fit), so that a
    learning rate means the same whatever their unit; predictions come back in theirs. The module gets ``y``
    as floats of shape (n, n_outputs_); its ``predict_step`` returns that shape. The validation score is R².

    Parameters
    ----------
    **parameters
        Each facade lists its own; the shared ones are described in :class:`LightningEstimator`.

    Attributes
    ----------
    n_outputs_ : int
        Number of target columns.
    y_mean_, y_scale_ : ndarray of shape (n_outputs_,)
        What targets are standardised by.
    """

    _target_checks: ClassVar[dict[str, Any]] = {"multi_output": True, "y_numeric": True}

    def __sklearn_tags__(self) -> Any:
        """Several target columns are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self: R, X: Any, y: Any, sample_weight: Any = None) -> R:
        """Train the module.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows.
        y : array-like of shape (n,) or (n, n_outputs)
            Targets.
        sample_weight : array-like of shape (n,), optional
            Non-negative weight of each row's loss.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            If the arrays are not finite or do not fit together, or the loss stops being finite.
        """
        self._learn(X, y, sample_weight, go_on=self.warm_start)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self: R, X: Any, y: Any, sample_weight: Any = None) -> R:
        """Train on one pass over these rows, in their order, from where the last call stopped.

        After a first call, which sets the scale of the targets, two calls on the halves of some batches do
        exactly what one call on all of them does. The learning rate stays at its initial value: a stream has
        no end for a schedule to run to.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows.
        y : array-like of shape (n,) or (n, n_outputs)
            Targets.
        sample_weight : array-like of shape (n,), optional
            Non-negative weight of each row's loss.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            As in :meth:`fit`.
        """
        self._learn(X, y, sample_weight, go_on=True, one_pass=True)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predicted targets.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n,) or (n, n_outputs_)
            As y was; float32 for float32 input, else float64.

        Raises
        ------
        ValueError
            If X is malformed or a prediction is not finite.
        """
        outputs, dtype = self._outputs(X)
        with np.errstate(over="ignore"):
            values = (outputs * self.y_scale_ + self.y_mean_).astype(dtype)
        if not np.isfinite(values).all():
            raise ValueError(f"predictions do not fit into {dtype}, the dtype of X; pass X as float64")
        return values[:, 0] if self._flat else values

    def _encode(
        self,
        y: np.ndarray,
        *,
        first: bool,
        sample_weight: np.ndarray | None,
        classes: Any,  # noqa: ARG002
    ) -> np.ndarray:
        flat = y.ndim == 1
        target = y.astype(np.float64).reshape(len(y), -1)
        if first:
            with np.errstate(over="ignore", invalid="ignore"):
                mean = np.average(target, axis=0, weights=sample_weight)
                scale = np.sqrt(np.average((target - mean) ** 2, axis=0, weights=sample_weight))
            if not np.isfinite(scale).all():
                raise ValueError(f"y spreads too far: its largest absolute value is {np.abs(target).max():g}")
            # Of a constant column only rounding is left.
            scale[scale <= 10 * np.finfo(np.float64).eps * np.abs(mean)] = 1.0
            self.n_outputs_, self._flat, self.y_mean_, self.y_scale_ = target.shape[1], flat, mean, scale
        elif target.shape[1] != self.n_outputs_ or flat != self._flat:
            raise ValueError(f"y must keep the shape (n, {self.n_outputs_}) of the first fit, got {y.shape}")
        return ((target - self.y_mean_) / self.y_scale_).astype(self._dtype)

    def _score(self, target: np.ndarray, sample_weight: np.ndarray | None) -> Score:
        return partial(_r2, target=target, sample_weight=sample_weight)
