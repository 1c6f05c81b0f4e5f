"""Calibration with features of the items: jointly, by marginal likelihood, or in two stages."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logit
from sklearn.base import clone
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold
from sklearn.utils.validation import has_fit_parameter

from seedbed.estimators.amortized_irt.em import Fitted, FreeStep, Latent, expect, run_em
from seedbed.estimators.amortized_irt.item_features import Design, Matrix
from seedbed.estimators.amortized_irt.item_steps import DISCRIMINATION_PRIOR, FeatureStep, profile
from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.predictors import (
    DENSE_FEATURES,
    LinearPredictor,
    NetworkPredictor,
    Predictor,
    linear_uncertainty,
)
from seedbed.estimators.amortized_irt.responses import Responses, components

Floats = NDArray[np.float64]

FREE_STD = 4.0
"""Standard deviation of the prior of difficulties that nothing predicts; it holds extreme items back."""
RIDGE_ALPHAS = tuple(10.0**k for k in range(-3, 4))
N_SPREADS = 3
"""Rounds of estimates of tau and of the coefficients' error."""
N_FOLDS = 5
"""Folds that the error of a two-stage prediction is measured on."""


@dataclass(frozen=True)
class Forecast:
    """What the difficulty of any item is, given its features.

    Attributes
    ----------
    predictor : object
        Has ``predict``: features to difficulties.
    tau : float
        Standard deviation of a difficulty about them.
    center, covariance : ndarray, optional
        Of the coefficients, as :func:`~seedbed.estimators.amortized_irt.predictors.linear_uncertainty` has
        them; None where their error is in tau already, or too large to hold.
    """

    predictor: Any
    tau: float
    center: Floats | None = None
    covariance: Floats | None = None

    def predict(self, X: Matrix) -> Floats:
        """Difficulties of items with features X."""
        return np.asarray(self.predictor.predict(X), dtype=float)

    def std(self, X: Matrix) -> Floats:
        """Standard deviation of the difficulties of items with features X."""
        variance = np.full(X.shape[0], self.tau**2)
        if self.center is not None and self.covariance is not None:
            own, rest = self.covariance[0, 0], self.covariance[1:, 1:]
            spread = np.asarray((X @ rest) * (X.toarray() if hasattr(X, "toarray") else X)).sum(axis=1)
            offset = np.asarray(X @ (rest @ self.center))
            variance += own + np.maximum(spread - 2 * offset + self.center @ rest @ self.center, 0)
        return np.sqrt(variance)


@dataclass(frozen=True)
class Calibration:
    """A fitted model.

    Attributes
    ----------
    items : Items
        With the standard deviations of the difficulties.
    fitted : Fitted
        What EM returned.
    forecast : Forecast
        Difficulties of any items.
    """

    items: Items
    fitted: Fitted
    forecast: Forecast


def check_answers(responses: Responses, design: Design, allow_disconnected: bool) -> None:
    """Check that every ability and difficulty has something to go by.

    Parameters
    ----------
    responses : Responses
        Answers.
    design : Design
        Features of the items, which link all that have some.
    allow_disconnected : bool
        Whether, without features, parts may hang together by no answer.

    Raises
    ------
    ValueError
        If a taker has no answer, an item has neither answers nor features, or there are several parts.
    """
    silent = np.flatnonzero(responses.seen_by_taker == 0)
    if len(silent):
        raise ValueError(f"X must have an answer of every taker, got none in row {silent[0]}")
    described = design.known & (design.n_features > 0)
    unseen = np.flatnonzero((responses.seen_by_item == 0) & ~described)
    if len(unseen):
        raise ValueError(
            f"X must have an answer to every item without features, got none in column {unseen[0]}"
        )
    if design.n_features == 0 and not allow_disconnected:
        parts = components(responses)
        if len(parts) > 1:
            sizes = ", ".join(f"{takers} x {items}" for takers, items in parts)
            raise ValueError(
                f"X falls into {len(parts)} parts of takers x items that no answer links ({sizes}): "
                "abilities are not comparable. Pass item_features, or set allow_disconnected=True"
            )


def first_items(responses: Responses) -> Items:
    """Guess difficulties from the share of right answers to each item."""
    share = (responses.right_by_item + 0.5) / (responses.seen_by_item + 1.0)
    return Items.of(-1.16 * logit(share))


def calibrate_joint(
    responses: Responses,
    design: Design,
    predictor: Predictor,
    latent: Latent,
    *,
    residual: bool,
    **settings: Any,
) -> Calibration:
    """Maximise the marginal likelihood over a difficulty function.

    Parameters
    ----------
    responses : Responses
        Answers.
    design : Design
        Features.
    predictor : Predictor
        f to begin with.
    latent : Latent
        Abilities to begin with.
    residual : bool
        Whether difficulties have a normal residual about f.
    **settings
        For ``run_em``.

    Returns
    -------
    Calibration
        The maximum.
    """
    step = FeatureStep(design, predictor, tau=0.5 if residual else None)
    fitted = run_em(responses, step.start(first_items(responses)), latent, step, **settings)
    found = profile(fitted.items, fitted.expectation, step.discrimination_prior)
    known, error = design.known, 1 / found.curvature
    target = fitted.items.difficulty + found.gradient * error
    if isinstance(predictor, NetworkPredictor):
        # A network comes closer to the items it was trained on than to any others.
        tau = _held_out_tau(predictor, design, target, error, fitted.n_iter)
        assert isinstance(step.predictor, NetworkPredictor)
        forecast = Forecast(step.predictor.frozen(), tau)
    else:
        assert isinstance(step.predictor, LinearPredictor)
        forecast = _linear_forecast(design, step.predictor, target, error)
    if step.tau is None:
        variance = np.where(known, forecast.std(design.matrix) ** 2, error)
    else:
        variance = np.where(known, 1 / (found.curvature + step.tau**-2), error)
    return Calibration(replace(fitted.items, difficulty_std=np.sqrt(variance)), fitted, forecast)


def _linear_forecast(design: Design, predictor: LinearPredictor, target: Floats, error: Floats) -> Forecast:
    """Estimate tau and the error of the coefficients, each with the other taken into account."""
    rows, known = design.rows(), design.known
    left, error = target[known] - predictor.predict(rows), error[known]
    if design.n_features > DENSE_FEATURES:
        return Forecast(predictor, residual_std(left, error, 0))
    tau = residual_std(left, error, 0)
    for _ in range(N_SPREADS):
        center, covariance = linear_uncertainty(rows, 1 / (tau**2 + error), predictor.l2)
        # Coefficients that the penalty holds at 0 are not free.
        free = 1 + design.n_features - predictor.l2 * float(np.trace(covariance[1:, 1:]))
        tau = residual_std(left, error, free)
    return Forecast(predictor, tau, center, covariance)


def _held_out_tau(
    network: NetworkPredictor, design: Design, target: Floats, variance: Floats, n_refits: int
) -> float:
    """Train a network alike on four fifths of the items, and see how far the others are from it."""
    known = np.flatnonzero(design.known)
    rows = np.random.default_rng(0).permutation(known)
    test, train = np.split(rows, [max(len(rows) // N_FOLDS, 1)])
    for _ in range(max(n_refits, 1)):
        network = network.refit(design.matrix[train], 1 / variance[train], target[train] / variance[train])
    left = target[test] - network.predict(design.matrix[test])
    return residual_std(left, variance[test], 0)


def residual_std(left: Floats, variance: Floats, n_free: float) -> float:
    """Estimate tau from values with variances tau^2 + v_i by their weighted squares (Paule and Mandel).

    Parameters
    ----------
    left : ndarray of shape (n,)
        Values about 0.
    variance : ndarray of shape (n,)
        v, above 0.
    n_free : float
        Coefficients that were fitted to the values.

    Returns
    -------
    float
        tau with ``sum left^2 / (tau^2 + v) = n - n_free``; 0 where the values vary less than v.
    """
    freedom = max(len(left) - n_free, 1.0)

    def excess(squared: float) -> float:
        return float((left**2 / (squared + variance)).sum()) - freedom

    if excess(0.0) <= 0:
        return 0.0
    top = float((left**2).sum()) / freedom
    return float(np.sqrt(brentq(excess, 0.0, top, xtol=1e-12)))


def calibrate_plugin(
    responses: Responses,
    design: Design,
    regressor: Any,
    latent: Latent,
    *,
    residual: bool,
    n_quadrature: int,
    **settings: Any,
) -> Calibration:
    """Calibrate each item on its own, then regress the difficulties on features.

    Parameters
    ----------
    responses : Responses
        Answers.
    design : Design
        Features.
    regressor : regressor or None
        Is cloned; None for ridge regression with a penalty found by leave-one-out.
    latent : Latent
        Abilities to begin with.
    residual : bool
        Whether difficulties have a normal residual about the regression; otherwise they are its values.
    n_quadrature : int
        For the E-step.
    **settings
        For ``run_em``.

    Returns
    -------
    Calibration
        The fit. Items whose error is small count more: weights are 1 / (SE^2 + tau^2).
    """
    n_items = responses.n_items
    two = bool(settings.get("slopes"))
    prior = np.zeros(n_items), np.full(n_items, FREE_STD)
    step = FreeStep(2 if two else 1, prior, discrimination_prior=DISCRIMINATION_PRIOR if two else None)
    start = first_items(responses)
    fitted = run_em(responses, start, latent, step, n_quadrature=n_quadrature, **settings)
    found = profile(fitted.items, fitted.expectation)
    known, variance = design.known, 1 / found.curvature
    b = fitted.items.difficulty
    regressor = RidgeCV(alphas=RIDGE_ALPHAS) if regressor is None else regressor
    model, tau = _regress(regressor, design.rows(), b[known], variance[known])
    function = np.zeros(n_items)
    function[known] = model.predict(design.rows())
    squared = max(tau, 1e-8) ** 2
    if residual:
        share = np.where(known, squared / (squared + variance), 1.0)
        difficulty, std = function + share * (b - function), np.sqrt(share * variance)
    else:
        difficulty, std = np.where(known, function, b), np.where(known, tau, np.sqrt(variance))
    difficulty = np.where(known, difficulty, b)
    items = replace(fitted.items, difficulty=difficulty)
    again = expect(responses, items, fitted.latent, n_quadrature=n_quadrature)
    fitted = replace(
        fitted,
        items=items,
        expectation=again,
        log_likelihood=float(again.log_likelihood @ responses.weight),
    )
    return Calibration(replace(items, difficulty_std=std), fitted, Forecast(model, tau))


def _regress(regressor: Any, X: Matrix, b: Floats, variance: Floats) -> tuple[Any, float]:
    """Fit a regressor with weights 1 / (v + tau^2), tau from errors on items that it has not seen."""
    weighted = has_fit_parameter(regressor, "sample_weight")

    def fit(rows: NDArray[Any], tau: float) -> Any:
        extra = {"sample_weight": 1 / (variance[rows] + tau**2)} if weighted else {}
        return clone(regressor).fit(X[rows], b[rows], **extra)

    everyone = np.arange(len(b))
    tau = float(b.std())
    if len(b) >= 2 * N_FOLDS:
        # Once for weights, and once with them.
        for _ in range(2):
            left = np.empty(len(b))
            for train, test in KFold(N_FOLDS, shuffle=True, random_state=0).split(b):
                left[test] = b[test] - fit(train, tau).predict(X[test])
            tau = residual_std(left, variance, 0)
    return fit(everyone, tau), tau
