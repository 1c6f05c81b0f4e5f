"""Streams for self-tuning optimizers: laws, ground truth, reproducibility."""

import numpy as np
import pytest

from seedbed.datasets import (
    make_drifting_regression,
    make_linear_losses,
    make_noisy_quadratic,
    make_task_sequence,
)


def test_noisy_quadratic_has_the_stated_law():
    problem = make_noisy_quadratic(20_000, 4, random_state=0)
    assert np.linalg.eigvalsh(problem.A).min() >= 0.3
    np.testing.assert_allclose(np.cov(problem.centers.T), 0.25 * np.eye(4), atol=0.01)
    at_optimum = 0.5 * np.einsum("ti,ij,tj->t", problem.centers, problem.A, problem.centers).mean()
    assert at_optimum == pytest.approx(problem.optimal_loss, rel=0.03)


def test_drifting_regression_flips_one_relevant_sign_each_period():
    stream = make_drifting_regression(2000, random_state=1)
    assert set(np.unique(np.abs(stream.weights[:, :5]))) == {1.0}
    assert (stream.weights[:, 5:] == 0).all()
    assert stream.relevant.tolist() == [True] * 5 + [False] * 15
    changes = (np.diff(stream.weights, axis=0) != 0).sum(axis=1)
    assert (np.flatnonzero(changes) == np.arange(19, 1999, 20)).all()
    assert (changes[changes > 0] == 1).all()
    flips = (np.diff(stream.weights[:, :5], axis=0) != 0).sum(axis=0)
    assert flips.min() > 5  # 99 flips over 5 inputs
    np.testing.assert_allclose(stream.y, (stream.X * stream.weights).sum(axis=1), atol=1e-12)


def test_task_sequence_permutes_labels():
    stream = make_task_sequence(3, 4, 16, random_state=0)
    assert stream.permutations[0].tolist() == list(range(10))
    assert all(sorted(row) == list(range(10)) for row in stream.permutations.tolist())
    assert len({tuple(row) for row in stream.permutations.tolist()}) == 3
    for t in range(12):
        wanted = stream.permutations[stream.task[t]][stream.target[stream.rows[t]]]
        np.testing.assert_array_equal(stream.labels[t], wanted)
    assert stream.data.dtype == np.float32
    assert 0 <= stream.data.min() < stream.data.max() == 1


MAKERS = {
    make_noisy_quadratic: "centers",
    make_drifting_regression: "X",
    make_linear_losses: "gradients",
    make_task_sequence: "rows",
}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_the_seed_decides_and_the_global_state_is_left_alone(make):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (make(60, random_state=seed)[MAKERS[make]] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: make_noisy_quadratic(0), ValueError, "n_steps"),
        (lambda: make_noisy_quadratic(noise=-1), ValueError, "noise"),
        (lambda: make_drifting_regression(n_relevant=21), ValueError, "n_relevant"),
        (lambda: make_drifting_regression(drift_every=1.5), TypeError, "drift_every"),
        (lambda: make_linear_losses(n_weights=0), ValueError, "n_weights"),
        (lambda: make_task_sequence(batch_size=0), ValueError, "batch_size"),
    ],
)
def test_bad_numbers(call, error, name):
    with pytest.raises(error, match=name):
        call()
