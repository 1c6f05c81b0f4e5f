"""From a calibrated MAPIE regressor to CoJER, without another look at the data."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator

from seedbed.estimators.cojer.quantile_band import QuantileBand
from seedbed.estimators.cojer.regressor import CoJERRegressor

_SUPPORTED = ("SplitConformalRegressor", "ConformalizedQuantileRegressor")


def _conformalized(fitted: Any) -> Any:
    """The regressor inside MAPIE's wrapper, which holds what conformalize learned."""
    name = type(fitted).__name__
    if name not in _SUPPORTED:
        raise TypeError(
            f"fitted must be a MAPIE {' or '.join(_SUPPORTED)}, got {name}: cross-conformal and jackknife "
            "scores are not exchangeable with those of test points, so their ranks have no known joint law"
        )
    if not getattr(fitted, "_is_conformalized", False):
        raise ValueError(f"fitted must be conformalized: call {name}.conformalize(X, y) first")
    return fitted._mapie_regressor if name == "SplitConformalRegressor" else fitted._mapie_quantile_regressor


def _frozen(model: Any) -> Any:
    return FrozenEstimator(model) if isinstance(model, BaseEstimator) else model


def from_mapie(
    fitted: Any, *, alpha: float = 0.1, delta: float = 0.1, n_test: int | None = None, **options: Any
) -> CoJERRegressor:
    """Build a calibrated CoJERRegressor from a conformalized MAPIE regressor.

    Parameters
    ----------
    fitted : mapie.regression.SplitConformalRegressor or ConformalizedQuantileRegressor
        After ``conformalize``. Of the latter's three scores the pointwise maximum is used.
    alpha : float, default=0.1
        Allowed share of misses in the batch, in (0, 1).
    delta : float, default=0.1
        Probability with which the guarantee may fail, in (0, 1).
    n_test : int, optional
        Size of the batch, see :class:`CoJERRegressor`.
    **options
        Further parameters of :class:`CoJERRegressor`, such as ``template``.

    Returns
    -------
    CoJERRegressor
        Ready for ``predict_interval``.

    Raises
    ------
    TypeError
        If ``fitted`` is another class; cross-conformal regressors in particular.
    ValueError
        If it is not conformalized, or its score is not symmetric.

    Examples
    --------
    >>> from mapie.regression import SplitConformalRegressor
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from seedbed.estimators import from_mapie
    >>> X, y = load_diabetes(return_X_y=True)
    >>> split = SplitConformalRegressor(Ridge(), confidence_level=0.8, prefit=False).fit(X[:150], y[:150])
    >>> split = split.conformalize(X[150:342], y[150:342])
    >>> points, intervals = from_mapie(split, alpha=0.2).predict_interval(X[342:])
    >>> intervals.shape
    (100, 2, 1)
    """
    inner = _conformalized(fitted)
    scores = np.asarray(fitted.conformity_scores, dtype=float)
    if type(fitted).__name__ == "ConformalizedQuantileRegressor":
        low, high, middle = inner.estimators_
        model: Any = QuantileBand(middle, low=fitted._alpha / 2, high=1 - fitted._alpha / 2)
        model.estimators_ = [low, middle, high]
        conformity: Any = "cqr"
        scores = scores[2]
    else:
        model = inner.estimator
        conformity = fitted._conformity_score
    result = CoJERRegressor(
        _frozen(model),
        alpha=alpha,
        delta=delta,
        n_test=n_test,
        conformity_score=conformity,
        prefit=True,
        **options,
    )
    result._validate_params()
    result._adopt(result._begin())
    for scorer in result._scorers:
        if scorer.learns_scale:
            scorer.adopt_scale(conformity.residual_estimator_, log=not conformity.prefit)
    # MAPIE marks the rows that its residual model was fitted on by NaN.
    result._set_scores(scores[np.isfinite(scores)][None, :])
    features = getattr(model, "n_features_in_", None)
    if features is not None:
        result.n_features_in_ = features
    if hasattr(model, "feature_names_in_"):
        result.feature_names_in_ = model.feature_names_in_
    return result
