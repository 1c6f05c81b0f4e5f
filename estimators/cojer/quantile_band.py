"""A low, a middle and a high quantile regressor in one model, for conformalized quantile regression."""

from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, _fit_context, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.validation import check_is_fitted, validate_data


def _quantile_parameter(estimator: Any) -> str:
    """Name of the (possibly nested) parameter that holds the quantile."""
    prefix = ""
    while isinstance(estimator, Pipeline):
        prefix += estimator.steps[-1][0] + "__"
        estimator = estimator.steps[-1][1]
    parameters = estimator.get_params(deep=False)
    if "quantile" in parameters:
        if parameters.get("loss", "quantile") != "quantile":
            raise ValueError(f"estimator must have loss='quantile', got {estimator!r}")
        return prefix + "quantile"
    if "alpha" in parameters and "quantile" in (parameters.get("loss"), parameters.get("objective")):
        return prefix + "alpha"
    raise ValueError(
        "estimator must be a quantile regressor (QuantileRegressor, or boosting with loss='quantile'), "
        f"got {estimator!r}"
    )


class QuantileBand(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """Fit one quantile regressor at three quantiles.

    The model behind ``CoJERRegressor(..., conformity_score="cqr")``: its conformity score is ``max(q_low(x) -
    y, y - q_high(x))`` (Romano, Patterson and Candès, NeurIPS 2019), one number a point, so that the joint
    law of the ranks applies. Correcting the two sides by two quantiles would not keep it.

    Parameters
    ----------
    estimator : regressor
        With a quantile to set: ``QuantileRegressor``, ``HistGradientBoostingRegressor(loss="quantile")``,
        ``GradientBoostingRegressor(loss="quantile")``, LightGBM's with ``objective="quantile"``, or a
        pipeline that ends in one of them.
    low, high : float, default=0.05, 0.95
        Quantiles of the band, in (0, 1). The point prediction is the median.

    Attributes
    ----------
    estimators_ : list of 3 regressors
        For the low, the middle and the high quantile.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import QuantileRegressor
    >>> from seedbed.estimators import QuantileBand
    >>> X = np.arange(20.0)[:, None]
    >>> QuantileBand(QuantileRegressor(alpha=0), low=0.1, high=0.9).fit(X, X[:, 0]).predict_band(X[:1]).shape
    (1, 2)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["fit", "predict"])],
        "low": [Interval(Real, 0, 1, closed="neither")],
        "high": [Interval(Real, 0, 1, closed="neither")],
    }

    def __init__(self, estimator: Any, *, low: float = 0.05, high: float = 0.95) -> None:
        self.estimator = estimator
        self.low = low
        self.high = high

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the three models.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            Targets.

        Returns
        -------
        self
            The fitted band.

        Raises
        ------
        ValueError
            If ``low`` is not below ``high`` or the estimator has no quantile to set.
        """
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got low={self.low} and high={self.high}")
        name = _quantile_parameter(self.estimator)
        validate_data(self, X, skip_check_array=True)
        self.estimators_ = [
            clone(self.estimator).set_params(**{name: quantile}).fit(X, y)
            for quantile in (self.low, 0.5, self.high)
        ]
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the median.

        Parameters
        ----------
        X : array-like of shape (m, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (m,)
            Medians.
        """
        check_is_fitted(self)
        return np.asarray(self.estimators_[1].predict(X))

    def predict_band(self, X: ArrayLike) -> NDArray[Any]:
        """Predict both quantiles.

        Parameters
        ----------
        X : array-like of shape (m, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (m, 2)
            The low and the high quantile, put in order where the two models cross.
        """
        check_is_fitted(self)
        ends = np.stack([self.estimators_[0].predict(X), self.estimators_[2].predict(X)], axis=1)
        return np.sort(ends, axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator).input_tags
        tags.input_tags.sparse = inner.sparse
        tags.input_tags.allow_nan = inner.allow_nan
        return tags
