"""What else ranks a target population from positives and unlabeled rows: linear scores, one function each.

A baseline takes the data of :func:`seedbed.datasets.make_pu_digits` and returns scores of the test rows.
``truth`` holds what the method itself needs and could not know: labels of the target rows (the oracle), some
labelled negatives (PNU-AUC), class priors (nnPU).
"""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from pulearn import ElkanotoPuClassifier, NNPUClassifier
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from seedbed.estimators import PUAUCClassifier, RuLSIF
from seedbed.estimators.pu_auc_covariate_shift.losses import LOSSES
from seedbed.estimators.pu_auc_covariate_shift.risk import pair_sum

Floats = NDArray[np.float64]
L2 = 1e-3


def ours(data: Any, seed: int, **settings: Any) -> Floats:
    """PUAUCClassifier with these settings."""
    model = PUAUCClassifier(random_state=seed, **settings)
    model.fit(data.X, data.y, sample_domain=data.sample_domain)
    return model.decision_function(data.X_test)


def source(data: Any) -> tuple[Floats, Floats]:
    """Source rows, and 1 for labelled positives."""
    return np.vstack([data.X_positive, data.X_unlabeled]), np.repeat(
        [1, 0], [len(data.X_positive), len(data.X_unlabeled)]
    )


def unlabeled_as_negative(data: Any, seed: int) -> Floats:  # noqa: ARG001
    """Logistic regression of labelled against unlabeled."""
    return LogisticRegression(max_iter=1000).fit(*source(data)).decision_function(data.X_test)


def boosting(data: Any, seed: int) -> Floats:
    """Gradient boosting of labelled against unlabeled."""
    model = HistGradientBoostingClassifier(max_iter=60, random_state=seed).fit(*source(data))
    return model.decision_function(data.X_test)


def elkan_noto(data: Any, seed: int) -> Floats:
    """Elkan and Noto's reweighted probabilities (pulearn)."""
    X, y = source(data)
    model = ElkanotoPuClassifier(
        LogisticRegression(max_iter=1000), hold_out_ratio=0.2, random_state=seed
    ).fit(X, np.where(y == 1, 1, -1))
    return np.asarray(model.predict_proba(data.X_test))[:, 1]


def non_negative_pu(data: Any, seed: int) -> Floats:
    """The non-negative PU risk, given the class prior (pulearn)."""
    X, y = source(data)
    model = NNPUClassifier(prior=data.class_prior, learning_rate=0.1, random_state=seed)
    model.fit(X, np.where(y == 1, 1, -1))
    return data.X_test @ np.ravel(model.coef_)


def weighted_non_negative_pu(data: Any, seed: int) -> Floats:
    """The non-negative PU risk with importance weights, given the class prior (Sakai and Shimizu, 2019)."""
    ratio = RuLSIF(0.1, random_state=seed).fit(data.X_target, data.X_unlabeled)
    a, b = ratio.predict(data.X_positive), ratio.predict(data.X_unlabeled)
    # The prior of the weighted population, from the same weights.
    prior = min(0.9, data.class_prior * a.mean() / b.mean())
    a, b = a / a.sum(), b / b.sum()
    P, U = (np.column_stack([rows, np.ones(len(rows))]) for rows in (data.X_positive, data.X_unlabeled))

    def risk(v: Floats) -> tuple[float, Floats]:
        s, t = expit(P @ v), expit(U @ v)  # sigmoid loss: 1 - s for positives, s for negatives
        negative = b @ t - prior * a @ s
        grad_p, grad_n = -(P.T @ (a * s * (1 - s))), U.T @ (b * t * (1 - t)) - prior * P.T @ (a * s * (1 - s))
        value = prior * a @ (1 - s) + max(negative, 0.0) + L2 / 2 * v @ v
        return float(value), prior * grad_p + (grad_n if negative > 0 else 0.0) + L2 * v

    start = 0.1 * np.random.default_rng(seed).normal(size=P.shape[1])
    return data.X_test @ minimize(risk, start, jac=True, method="L-BFGS-B").x[:-1]


def _adapted(name: str, settings: Callable[[int], dict[str, Any]]) -> Callable[[Any, int], Floats]:
    """A reweighting of skada before logistic regression, unlabeled rows as negatives."""

    def baseline(data: Any, seed: int) -> Floats:
        X, y = source(data)
        domain = np.repeat([1, -2], [len(X), len(data.X_target)])
        labels = np.concatenate([y, np.full(len(data.X_target), -1)])
        # Importing skada switches metadata routing on for good: here it is on until the end of the block.
        with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            last = LogisticRegression(max_iter=1000).set_fit_request(sample_weight=True)
            model = getattr(import_module("skada"), name)(last, **settings(seed))
            model.fit(np.vstack([X, data.X_target]), labels, sample_domain=domain)
            return np.asarray(model.decision_function(data.X_test))

    return baseline


density_reweighting = _adapted("DensityReweight", lambda _: {})
kliep_reweighting = _adapted("KLIEPReweight", lambda seed: {"gamma": [0.01, 0.1, 1.0], "random_state": seed})


def _minimised(risk: Callable[[Floats], tuple[float, Floats]], width: int, seed: int) -> Floats:
    """Coefficients of the best of three starts, with an L2 penalty."""

    def penalised(v: Floats) -> tuple[float, Floats]:
        value, gradient = risk(v)
        return value + L2 / 2 * float(v @ v), gradient + L2 * v

    starts = 0.1 * np.random.default_rng(seed).normal(size=(3, width))
    found = [minimize(penalised, start, jac=True, method="L-BFGS-B") for start in starts]
    return min(found, key=lambda one: one.fun).x


def _pairs(first: Floats, second: Floats, v: Floats) -> tuple[float, Floats]:
    """Mean sigmoid loss over pairs and its gradient in the coefficients."""
    ones = np.full(len(first), 1 / len(first)), np.full(len(second), 1 / len(second))
    value, to_first, to_second = pair_sum(first @ v, second @ v, *ones, LOSSES["sigmoid"])
    return value, first.T @ to_first + second.T @ to_second


def positive_shift(data: Any, seed: int) -> Floats:
    """AUC for a shift of the positives alone, given the prior: ``E_te E_tr l - pi_tr E_te E_tr+ l``."""

    def risk(v: Floats) -> tuple[float, Floats]:
        whole, gradient = _pairs(data.X_target, data.X_unlabeled, v)
        part, other = _pairs(data.X_target, data.X_positive, v)
        return whole - data.class_prior * part, gradient - data.class_prior * other

    return data.X_test @ _minimised(risk, data.X.shape[1], seed)


def pnu_auc(data: Any, seed: int) -> Floats:
    """Half PU-AUC, half AUC against 30 labelled negatives of the source (Sakai et al., 2018)."""
    negative = data.X_unlabeled[np.flatnonzero(data.truth_unlabeled == 0)[:30]]

    def risk(v: Floats) -> tuple[float, Floats]:
        one, gradient = _pairs(data.X_positive, data.X_unlabeled, v)
        other, other_gradient = _pairs(data.X_positive, negative, v)
        return (one + other) / 2, (gradient + other_gradient) / 2

    return data.X_test @ _minimised(risk, data.X.shape[1], seed)


def aligned(data: Any, seed: int) -> Floats:
    """PU-AUC of a score whose distribution is alike in both populations: a penalty on their MMD."""
    P, U, T = (torch.tensor(rows) for rows in (data.X_positive, data.X_unlabeled, data.X_target))
    generator = torch.Generator().manual_seed(seed)
    v = (0.1 * torch.randn(P.shape[1], generator=generator, dtype=torch.float64)).requires_grad_()

    def kernel(a: torch.Tensor, b: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
        return torch.exp(-((a[:, None] - b) ** 2) / (2 * width)).mean()

    optimizer = torch.optim.LBFGS([v], max_iter=150, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        p, u, t = P @ v, U @ v, T @ v
        width = torch.cat([u, t]).var().detach() + 1e-9
        mmd = kernel(u, u, width) + kernel(t, t, width) - 2 * kernel(u, t, width)
        loss = torch.sigmoid(u - p[:, None]).mean() + 0.3 * mmd + L2 / 2 * v @ v
        loss.backward()
        return loss

    optimizer.step(closure)
    return data.X_test @ v.detach().numpy()


def oracle(data: Any, seed: int) -> Floats:  # noqa: ARG001
    """Logistic regression on the target rows with their labels: what cannot be had."""
    model = LogisticRegression(max_iter=1000).fit(data.X_target, data.truth_target)
    return model.decision_function(data.X_test)


BASELINES: dict[str, Callable[[Any, int], Floats]] = {
    "unlabeled as negative, logistic": unlabeled_as_negative,
    "unlabeled as negative, boosting": boosting,
    "Elkan-Noto (pulearn)": elkan_noto,
    "nnPU (pulearn), true prior": non_negative_pu,
    "importance-weighted nnPU, true prior": weighted_non_negative_pu,
    "DensityReweight (skada), unlabeled as negative": density_reweighting,
    "KLIEP (skada), unlabeled as negative": kliep_reweighting,
    "positive-shift AUC, true prior": positive_shift,
    "PU-AUC with MMD penalty": aligned,
    "PNU-AUC, 30 labelled negatives": pnu_auc,
    "oracle: 200 labelled target rows": oracle,
}
