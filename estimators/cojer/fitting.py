"""The fitting side of CoJERRegressor: models, rows, and the scores they leave behind."""

import warnings
from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context, clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import ShuffleSplit
from sklearn.utils import Bunch, _safe_indexing, check_random_state, get_tags, indexable
from sklearn.utils.metaestimators import _BaseComposition
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_y, _num_samples, check_is_fitted, validate_data

from seedbed.estimators.cojer.aggregation import Aggregation, AggregationNull
from seedbed.estimators.cojer.calibrated import Calibrated
from seedbed.estimators.cojer.laws import Floats
from seedbed.estimators.cojer.quantile_band import QuantileBand
from seedbed.estimators.cojer.scores import Scorer, check_conformity_score, predictions
from seedbed.estimators.cojer.thresholds import Calibration, Template

_CALIBRATED = ("conformity_scores_", "n_calibration_", "levels_", "jer_", "lambda_", "_batch", "_calibrated")


class BaseCoJER(RegressorMixin, _BaseComposition):
    """Fit, conformalize and predict points; parameters and attributes as in :class:`CoJERRegressor`."""

    estimator: Any
    alpha: Any
    delta: float
    conformity_score: Any
    template: Template
    calibration: Calibration
    n_draws: int
    k_max: int | None
    simultaneous: bool
    prefit: bool
    calibration_size: float | int | None
    aggregation: Aggregation
    aggregation_null: AggregationNull
    quantile_gamma: float
    n_test: int | None
    n_jobs: int | None
    random_state: Any

    # -- scikit-learn's protocol ---------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Get parameters; those of named models as ``<name>__<parameter>``.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include the models' parameters.

        Returns
        -------
        dict
            Parameters by name.
        """
        if isinstance(self.estimator, list):
            return self._get_params("estimator", deep=deep)
        return super().get_params(deep=deep)

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also of models.

        Parameters
        ----------
        **params
            Parameters by name.

        Returns
        -------
        self
            The estimator.
        """
        if isinstance(params.get("estimator", self.estimator), list):
            self._set_params("estimator", **params)
        else:
            super().set_params(**params)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            inner = [get_tags(model).input_tags for _, model in self._named_models()]
        except (ValueError, TypeError, AttributeError):
            return tags
        tags.input_tags.sparse = all(tag.sparse for tag in inner)
        tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
        return tags

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: ArrayLike, y: ArrayLike, *, X_calibration: Any = None, y_calibration: Any = None
    ) -> Self:
        """Fit the models and calibrate; forgets whatever was learned before.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows. Without calibration arrays, ``calibration_size`` of them are set aside at random for
            calibration (with ``prefit=True``: all of them).
        y : array-like of shape (n_samples,)
            Targets.
        X_calibration : array-like of shape (n, n_features), optional
            Rows for calibration, exchangeable with those to be predicted. Then all of X trains.
        y_calibration : array-like of shape (n,), optional
            Their targets.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter or array is not allowed, or fewer than 2 rows are left for calibration.
        TypeError
            If a model has no ``predict``.
        NotFittedError
            If ``prefit=True`` and a model is not fitted.
        """
        if (X_calibration is None) != (y_calibration is None):
            missing = "y_calibration" if y_calibration is None else "X_calibration"
            raise ValueError(f"X_calibration and y_calibration must be given together, {missing} is missing")
        models = self._begin()
        X, target = self._rows(X, y, "y", reset=True)
        if self.prefit:
            self._adopt(models)
            if X_calibration is not None:
                X, target = self._rows(X_calibration, y_calibration, "y_calibration")
            return self._calibrate(X, target)
        held_out = None
        if X_calibration is not None:
            held_out = self._rows(X_calibration, y_calibration, "y_calibration")
        elif self.calibration_size is not None:
            splitter = ShuffleSplit(1, test_size=self.calibration_size, random_state=self._seed)
            train, rest = next(splitter.split(np.empty((_num_samples(X), 0))))
            held_out = _safe_indexing(X, rest), target[rest]
            X, target = _safe_indexing(X, train), target[train]
        if held_out is not None and len(held_out[1]) < 2:
            raise ValueError(f"at least 2 calibration rows are needed, got n_samples = {len(held_out[1])}")
        fitted = Parallel(n_jobs=self.n_jobs)(
            delayed(_fit_model)(self._seeded(clone(model)), self.conformity_score, X, target)
            for _, model in models
        )
        self._keep([name for name, _ in models], *zip(*fitted, strict=True))
        return self if held_out is None else self._calibrate(*held_out)

    def conformalize(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Calibrate on these rows, instead of any rows used before.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Rows that no model was trained on, exchangeable with those to be predicted.
        y : array-like of shape (n,)
            Targets.

        Returns
        -------
        self
            The calibrated estimator.

        Raises
        ------
        ValueError
            If an array is not allowed, has fewer than 2 rows or gives scores that are not finite.
        NotFittedError
            Before ``fit``, unless ``prefit=True``; or if a prefit model is not fitted.
        """
        if self.prefit:
            self._validate_params()
            models = self._begin()
            X, target = self._rows(X, y, "y", reset=True)
            self._adopt(models)
        else:
            check_is_fitted(self, "estimators_")
            X, target = self._rows(X, y, "y")
        return self._calibrate(X, target)

    def _forget_calibration(self) -> None:
        for name in _CALIBRATED:
            self.__dict__.pop(name, None)

    def _named_models(self) -> list[tuple[str, Any]]:
        """Models by name, checked."""
        given = LinearRegression() if self.estimator is None else self.estimator
        if not isinstance(given, list):
            given = [given]
        if not given:
            raise ValueError("estimator must hold at least one regressor, got an empty list")
        pairs = [
            item
            if isinstance(item, tuple) and len(item) == 2
            else (f"{type(item).__name__.lower()}-{i}", item)
            for i, item in enumerate(given, 1)
        ]
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError(f"estimator must have distinct names, got {names}")
        for name, model in pairs:
            if not hasattr(model, "predict") or isinstance(model, type):
                raise TypeError(f"estimator must be regressors with predict, got {model!r} for {name!r}")
        return pairs

    def _begin(self) -> list[tuple[str, Any]]:
        """Check what can be checked without data, forget the last fit."""
        self._alphas(self.alpha)
        check_conformity_score(self.conformity_score)
        models = self._named_models()
        if len(models) > 1 and self.aggregation != "harmonic" and self.aggregation_null == "independent":
            warnings.warn(
                f"aggregation={self.aggregation!r} with aggregation_null='independent' misses far more than "
                "alpha where the models' errors are alike; aggregation_null='split' holds for any models",
                UserWarning,
                stacklevel=3,
            )
        self._forget_calibration()
        if self.random_state is None:  # fresh entropy: the global generator is nobody's to advance
            self._seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 1
        else:
            self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        if self.conformity_score == "cqr" and not self.prefit:
            tail = float(np.max(self.alpha)) / 2
            models = [
                (
                    name,
                    model if hasattr(model, "predict_band") else QuantileBand(model, low=tail, high=1 - tail),
                )
                for name, model in models
            ]
        return models

    def _rows(self, X: Any, y: Any, name: str, *, reset: bool = False) -> tuple[Any, NDArray[Any]]:
        """Rows ready to be indexed and their targets, checked."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target {name} is None")
        shape = np.asarray(y).shape
        if len(shape) == 2 and shape[1] != 1:
            raise ValueError(f"{name} must have a single output, got shape {shape}")
        self._check_features(X, reset=reset)
        X, y = indexable(X, y)
        return X, _check_y(y, y_numeric=True, estimator=self)

    def _check_features(self, X: Any, *, reset: bool = False) -> None:
        """Check number and names of the features; whatever else X may hold is the models' matter."""
        kind = getattr(getattr(X, "dtype", None), "kind", "O")
        if (isinstance(X, dict) and not hasattr(X, "dtype")) or kind in "mMV":
            raise TypeError(f"X must hold rows of numbers, or of what the models take, got {_described(X)}")
        if isinstance(X, list) and any(None in row for row in X if isinstance(row, list)):
            raise ValueError("X must not contain None; use NaN where the models handle missing values")
        if getattr(X, "ndim", 2) == 1 and kind in "biuf":
            raise ValueError(
                f"X must be 2-dimensional, got shape {X.shape}. Reshape your data with X.reshape(-1, 1)"
            )
        validate_data(self, X, reset=reset, skip_check_array=True)

    def _seeded(self, model: Any) -> Any:
        """Set a model's random states that were left open, so that ``random_state`` fixes the whole fit."""
        if self.random_state is not None and hasattr(model, "get_params"):
            parameters = model.get_params(deep=True)
            names = [name for name in parameters if name == "random_state" or name.endswith("__random_state")]
            model.set_params(**{name: self._seed for name in names if parameters[name] is None})
        return model

    def _adopt(self, models: list[tuple[str, Any]]) -> None:
        """Take prefit models as they are."""
        for name, model in models:
            if isinstance(model, BaseEstimator):
                try:
                    check_is_fitted(model)
                except NotFittedError as error:
                    raise NotFittedError(
                        f"prefit=True needs fitted models, {name!r} is not: {error}"
                    ) from None
            if self.conformity_score == "cqr" and not hasattr(model, "predict_band"):
                raise TypeError(f"conformity_score='cqr' needs models with predict_band, got {model!r}")
        self._keep(
            [name for name, _ in models],
            [model for _, model in models],
            [Scorer(self.conformity_score, model) for _, model in models],
        )

    def _keep(self, names: Sequence[str], models: Sequence[Any], scorers: Sequence[Scorer]) -> None:
        self.estimators_ = list(models)
        self.named_estimators_ = Bunch(**dict(zip(names, models, strict=True)))
        self._scorers = list(scorers)

    def _calibrate(self, X: Any, y: NDArray[Any]) -> Self:
        """Score the calibration rows."""
        if len(y) < 2:
            raise ValueError(f"at least 2 calibration rows are needed, got n_samples = {len(y)}")
        y = y.astype(float)
        keep = np.arange(len(y))
        for scorer in self._scorers:
            if scorer.learns_scale:  # the same rows for all models: same seed
                keep = scorer.learn_scale_in_calibration(X, y, self._seed)
        if len(keep) < 2:
            raise ValueError(
                f"at least 2 calibration rows are needed beside the residual model's, got {len(keep)}"
            )
        if len(keep) < len(y):
            X, y = _safe_indexing(X, keep), y[keep]
        return self._set_scores(np.stack([scorer.band(X).score(y) for scorer in self._scorers]))

    def _set_scores(self, scores: Floats) -> Self:
        """Take calibration scores (n_models, n) in any order."""
        if not np.isfinite(scores).all():
            raise ValueError("conformity scores must be finite, got NaN or infinity in the calibration rows")
        self._forget_calibration()
        self._calibrated = Calibrated(
            scores=scores,
            alpha=float(np.max(self.alpha)),
            template=self.template,
            calibration=self.calibration,
            n_draws=self.n_draws,
            k_max=self.k_max,
            simultaneous=self.simultaneous,
            aggregation=self.aggregation,
            aggregation_null=self.aggregation_null,
            quantile_gamma=self.quantile_gamma,
            seed=self._seed,
        )
        self.conformity_scores_ = self._calibrated.ranked
        self.n_calibration_ = scores.shape[1]
        self.levels_: dict[int, NDArray[Any]] = {}
        return self

    def _recalibrated(self, X: Any, y: NDArray[Any]) -> Self:
        """Copy with the same models and other calibration rows."""
        other = copy(self)
        other.n_test = None
        return other._calibrate(X, y)

    def _alphas(self, alpha: Any) -> Floats:
        """Alpha as a checked vector."""
        values = np.atleast_1d(np.asarray(self.alpha if alpha is None else alpha, dtype=float))
        if values.ndim != 1 or not values.size or not np.all((values > 0) & (values < 1)):
            raise ValueError(f"alpha must be a number or a vector of numbers in (0, 1), got {alpha!r}")
        return values

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict points, the mean over the models.

        Parameters
        ----------
        X : array-like of shape (m, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (m,)
            Predictions, float32 where X is.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        """
        check_is_fitted(self, "estimators_")
        self._check_features(X)
        points = np.mean([predictions(model, X) for model in self.estimators_], axis=0)
        return points.astype(output_dtype(X))


def _described(X: Any) -> str:
    return f"an array of {X.dtype}" if hasattr(X, "dtype") else f"a {type(X).__name__}"


def output_dtype(X: Any) -> Any:
    """Return float32 for float32 input, else float64.

    Parameters
    ----------
    X : array-like
        Rows.

    Returns
    -------
    type
        Type of what is predicted for them.
    """
    dtypes = getattr(X, "dtypes", None)
    kinds = set(dtypes) if dtypes is not None and np.ndim(dtypes) else {getattr(X, "dtype", None)}
    return np.float32 if kinds == {np.dtype(np.float32)} else np.float64


def _fit_model(model: Any, conformity: Any, X: Any, y: NDArray[Any]) -> tuple[Any, Scorer]:
    """Fit one model and, where the score needs one, its residual model."""
    fitted = model.fit(X, y)
    scorer = Scorer(conformity, fitted)
    if scorer.learns_scale:
        scorer.learn_scale_in_training(X, y.astype(float))
    return fitted, scorer
