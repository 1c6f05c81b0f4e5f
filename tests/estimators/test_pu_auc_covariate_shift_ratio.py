"""Density ratios: the closed form, its cross-validation, and how near the truth they come."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import rbf_kernel

from conformance.cases import no_global_generator
from references.pu_auc_covariate_shift import rulsif
from seedbed.datasets import make_pu_covariate_shift
from seedbed.estimators import RuLSIF
from seedbed.estimators.density_ratio import LogisticRatio, median_distance, relative_ratio
from seedbed.estimators.pu_auc_covariate_shift.networks import NeuralRatio


@pytest.fixture(scope="module")
def data():
    return make_pu_covariate_shift(1, 1000, 1000, random_state=0)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_equals_a_linear_solve(data, alpha):
    model = RuLSIF(alpha, n_centers=30, bandwidths=[0.7], regularizations=[0.05], random_state=0)
    model.fit(data.X_target, data.X_unlabeled)
    gamma = 0.5 / model.bandwidth_**2
    phi = [rbf_kernel(part, model.centers_, gamma) for part in (data.X_target, data.X_unlabeled)]
    np.testing.assert_allclose(model.dual_coef_, rulsif(*phi, alpha, 0.05), atol=1e-9)
    plain = phi[1] @ model.dual_coef_
    expected = np.clip(plain, 0, 1 / alpha if alpha else None)
    np.testing.assert_allclose(model.predict(data.X_unlabeled), expected, rtol=1e-9, atol=1e-9)
    assert model.regularization_ == 0.05
    rows = np.vstack([data.X_target, data.X_unlabeled])[:400]
    median = median_distance(rows, np.random.RandomState(0))
    apart = np.sqrt(((rows[:, None] - rows) ** 2).sum(axis=2))[np.triu_indices(400, 1)]
    assert median == pytest.approx(np.median(apart))


def test_cross_validation_equals_loops(data):
    numerator, denominator = data.X_target[:60], data.X_unlabeled[:45]
    bandwidths, penalties = [0.5, 1.0], [1e-2, 1e-1, 1.0]
    model = RuLSIF(
        0.2, n_centers=10, bandwidths=bandwidths, regularizations=penalties, n_splits=4, random_state=3
    )
    model.fit(numerator, denominator)
    # The same draws: centres, then the folds of each sample.
    rng = np.random.RandomState(3)
    rng.choice(60, 10, replace=False)
    folds = [rng.permutation(np.arange(n) % 4) for n in (60, 45)]
    median = median_distance(np.vstack([numerator, denominator]), rng)
    for i, bandwidth in enumerate(bandwidths):
        gamma = 0.5 / (bandwidth * median) ** 2
        phi = [rbf_kernel(part, model.centers_, gamma) for part in (numerator, denominator)]
        for j, rho in enumerate(penalties):
            losses = []
            for k in range(4):
                train = [part[fold != k] for part, fold in zip(phi, folds)]
                held = [part[fold == k] for part, fold in zip(phi, folds)]
                theta = rulsif(*train, 0.2, rho)
                w = [part @ theta for part in held]
                losses.append(0.1 * np.mean(w[0] ** 2) + 0.4 * np.mean(w[1] ** 2) - np.mean(w[0]))
            assert model.cv_losses_[i, j] == pytest.approx(np.mean(losses), abs=1e-10)
    best = np.unravel_index(np.argmin(model.cv_losses_), (2, 3))
    assert model.bandwidth_ == pytest.approx(bandwidths[best[0]] * median)
    assert model.regularization_ == penalties[best[1]]


@pytest.mark.parametrize("make", [RuLSIF, LogisticRatio, NeuralRatio])
def test_near_the_truth(make):
    correlations = []
    for seed in range(3):
        data = make_pu_covariate_shift(1, 1000, 1000, random_state=seed)
        model = make(0.1, **({} if make is LogisticRatio else {"random_state": 0}))
        found = model.fit(data.X_target, data.X_unlabeled).predict(data.X_unlabeled)
        truth = relative_ratio(data.weight_unlabeled, 0.1)
        assert np.mean((found - truth) ** 2) < 0.06 * np.var(truth)
        correlations.append(np.corrcoef(found, truth)[0, 1])
        assert found.min() >= 0
        assert found.max() <= 10 + 1e-6
        whole = 0.1 * model.predict(data.X_target).mean() + 0.9 * found.mean()
        assert whole == pytest.approx(1, abs=0.05)
    assert np.mean(correlations) > 0.98


def test_alpha_near_one_says_nothing(data):
    found = RuLSIF(0.999, random_state=0).fit(data.X_target, data.X_unlabeled).predict(data.X_unlabeled)
    assert np.abs(found - 1).mean() < 0.1
    same = RuLSIF(0.1, random_state=0).fit(data.X_target[:500], data.X_target[500:])
    assert same.pearson_divergence_ < 0.05
    apart = RuLSIF(0.1, random_state=0).fit(data.X_target, data.X_unlabeled)
    assert 0.5 < apart.pearson_divergence_ < 1.0


def test_relative_ratio():
    w = np.array([0.0, 0.5, 1.0, np.inf])
    np.testing.assert_allclose(relative_ratio(w, 0.25), [0, 0.5 / (0.125 + 0.75), 1, 4])
    np.testing.assert_array_equal(relative_ratio(w, 0.0), w)


def test_kinds_of_rows(data):
    numerator, denominator = data.X_target[:100], data.X_unlabeled[:100]
    with no_global_generator():
        dense = RuLSIF(random_state=0).fit(numerator, denominator)
        RuLSIF().fit(numerator, denominator)
    expected = dense.predict(denominator)
    again = pickle.loads(pickle.dumps(clone(dense).fit(numerator, denominator)))
    np.testing.assert_array_equal(again.predict(denominator), expected)
    thin = RuLSIF(random_state=0).fit(sparse.csr_array(numerator), sparse.csc_matrix(denominator))
    np.testing.assert_allclose(thin.predict(sparse.coo_array(denominator)), expected, rtol=1e-6, atol=1e-8)
    single = RuLSIF(random_state=0).fit(numerator.astype(np.float32), denominator.astype(np.float32))
    assert single.predict(denominator.astype(np.float32)).dtype == np.float32
    frame = pd.DataFrame(numerator, columns=["a", "b"])
    named = RuLSIF(random_state=0).fit(frame, frame)
    assert list(named.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        named.predict(frame[["b", "a"]])
    few = RuLSIF(random_state=0).fit(numerator[:2], denominator[:3])
    assert np.isfinite(few.predict(denominator)).all()
    equal = RuLSIF(random_state=0).fit(np.ones((5, 2)), np.ones((5, 2)))
    np.testing.assert_allclose(equal.predict(np.ones((1, 2))), 1, atol=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"alpha": -0.1}, "alpha"),
        ({"n_centers": 0}, "n_centers"),
        ({"bandwidths": [0.0, 1.0]}, "bandwidths must be a list of positive numbers"),
        ({"regularizations": [-1.0]}, "regularizations must be a list of positive numbers"),
        ({"regularizations": [[1.0]]}, "regularizations must be a list"),
        ({"n_splits": 1}, "n_splits"),
    ],
)
def test_bad_settings(data, settings, message):
    with pytest.raises(ValueError, match=message):
        RuLSIF(**settings).fit(data.X_target, data.X_unlabeled)


def test_bad_rows(data):
    with pytest.raises(ValueError, match="minimum of 2"):
        RuLSIF().fit(data.X_target[:1], data.X_unlabeled)
    with pytest.raises(ValueError, match="minimum of 2"):
        RuLSIF().fit(data.X_target, data.X_unlabeled[:1])
    with pytest.raises(ValueError, match="features"):
        RuLSIF().fit(data.X_target, data.X_unlabeled[:, :1])
    with pytest.raises(ValueError, match="NaN"):
        RuLSIF().fit(data.X_target, np.full((5, 2), np.nan))
    with pytest.raises(ValueError, match="too large to take distances"):
        RuLSIF().fit(np.array([[1e200, 1e200], [-1e200, 1e200]]), data.X_unlabeled)
    with pytest.raises(NotFittedError):
        RuLSIF().predict(data.X_target)
