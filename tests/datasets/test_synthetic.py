"""Synthetic data: the ground truth is the truth."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from seedbed.datasets import make_delayed_sum, make_fcp_regression, make_teacher_network

MAKERS = [make_fcp_regression, make_teacher_network, make_delayed_sum]


@pytest.mark.parametrize("make", MAKERS)
def test_the_seed_decides_and_the_global_state_is_left_alone(make):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    one, same, other = make(random_state=3), make(random_state=3), make(random_state=4)
    assert_array_equal(one.X_train, same.X_train)
    assert_array_equal(one.y_test, same.y_test)
    assert not np.array_equal(one.X_train, other.X_train)
    assert not np.array_equal(make().X_train, make().X_train)
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    make(random_state=np.random.RandomState(0))
    make(random_state=np.random.default_rng(0))


@pytest.mark.parametrize("noise", ["t5", "normal", "laplace", "heteroscedastic"])
def test_fcp_regression(noise):
    problem = make_fcp_regression(11, 7, 400_000, noise=noise, random_state=0)
    assert problem.X_train.shape == (11, 5)
    assert problem.y_cal.shape == (7,)
    X = problem.X_test
    assert_allclose(problem.mean_test, 2 * X[:, 0] + np.sin(3 * X[:, 1]))
    error = problem.y_test - problem.mean_test
    assert error.mean() == pytest.approx(0.0, abs=0.01)
    assert error.var() == pytest.approx(0.49 * 5 / 3, rel=0.02)
    assert (error / problem.noise_scale_test).std() == pytest.approx(1.0, abs=0.01)
    kurtosis = ((error / problem.noise_scale_test) ** 4).mean()
    if noise in ("normal", "heteroscedastic"):
        assert kurtosis == pytest.approx(3.0, abs=0.1)
    if noise == "laplace":
        assert kurtosis == pytest.approx(6.0, abs=0.3)
    if noise == "t5":  # upper decile of |t| with 5 degrees of freedom
        assert np.quantile(np.abs(error), 0.9) == pytest.approx(0.7 * 2.015048, rel=0.01)
    near = np.abs(X[:, 0]) < 0.1
    far = np.abs(X[:, 0]) > 2
    ratio = error[far].std() / error[near].std()
    assert (ratio > 2.5) if noise == "heteroscedastic" else (0.9 < ratio < 1.1)


def test_teacher_network():
    problem = make_teacher_network(300, 200, n_features=6, n_hidden=4, n_classes=3, random_state=0)
    W1, W2 = problem.weights
    assert (W1.shape, W2.shape) == ((6, 4), (4, 3))
    for part in ("train", "test"):
        scores = np.tanh(problem[f"X_{part}"] @ W1) @ W2
        assert_allclose(problem[f"scores_{part}"], scores)
        assert_array_equal(problem[f"y_{part}"], scores.argmax(axis=1))
    assert problem.y_train.dtype == np.int64
    assert problem.X_train.shape == (300, 6)
    assert problem.X_test.shape == (200, 6)
    assert make_teacher_network(random_state=0).X_train.shape == (2000, 20)
    assert set(make_teacher_network(random_state=0).y_train) == set(range(5))


def test_delayed_sum():
    problem = make_delayed_sum(4, 3, length=9, random_state=0)
    assert problem.X_train.shape == problem.y_train.shape == (4, 9, 1)
    X, y = problem.X_test[:, :, 0], problem.y_test[:, :, 0]
    for t in range(9):
        expected = (X[:, t - 1] if t >= 1 else 0) + 0.5 * (X[:, t - 3] if t >= 3 else 0)
        assert_allclose(y[:, t], expected)
    noisy = make_delayed_sum(2000, 3, noise=0.3, random_state=0)
    assert (noisy.y_train - noisy.mean_train).std() == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (make_fcp_regression, {"n_cal": 0}, "n_cal must be"),
        (make_fcp_regression, {"noise": "cauchy"}, "noise must be one of 't5'"),
        (make_teacher_network, {"n_classes": 1}, "n_classes must be"),
        (make_teacher_network, {"n_hidden": 0}, "n_hidden must be"),
        (make_delayed_sum, {"length": 3}, "length must be"),
        (make_delayed_sum, {"noise": -1.0}, "noise must be"),
    ],
)
def test_bad_arguments_are_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)
