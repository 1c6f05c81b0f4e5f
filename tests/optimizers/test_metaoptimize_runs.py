"""Training runs: digits from step sizes four decades apart, and a regression that drifts."""

import types

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import _digits, _training
from benchmarks import metaoptimize as bench
from seedbed.datasets import make_drifting_regression, make_noisy_quadratic
from seedbed.optimizers import MetaOptimize

LION = {"meta": "lion", "meta_lr": 1e-2, "gamma": 0.9999}


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch):
    """Thousands of steps: shapes are checked in the other tests."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


def test_digits_from_a_step_size_that_is_a_thousand_times_too_small():
    far = _digits.repeat(bench.meta(bench.adamw, 1e-6, **LION), [0], steps=2000)
    assert far.loss <= 0.01
    assert far.accuracy >= 0.96
    # a short horizon keeps the step size small
    short = _digits.repeat(bench.meta(bench.adamw, 1e-6, **LION | {"gamma": 0.0}), [0], steps=2000)
    assert short.loss / far.loss >= 5
    assert short.alpha < far.alpha / 10


def test_the_ramp_is_as_fast_as_the_sign_rule_allows():
    outcome = _digits.repeat(bench.meta(bench.adamw, 1e-6, meta="lion", meta_lr=1e-3), [0], steps=200)
    assert outcome.alpha == pytest.approx(1e-6 * np.exp(1e-3 * 199), rel=1e-4)  # the first step has z = 0


def test_noise_brings_the_step_size_down_again():
    """On a noisy quadratic the best step size is large at first and small in the end."""
    problem = make_noisy_quadratic(2000, 10, random_state=0)
    A, centers = torch.as_tensor(problem.A), torch.as_tensor(problem.centers)
    w = nn.Parameter(20 * torch.as_tensor(problem.w0))
    optimizer = MetaOptimize(torch.optim.SGD([w], lr=1e-4), meta="lion", meta_lr=1e-2, gamma=0.999)
    alphas = []
    for c in centers:
        optimizer.zero_grad()
        (0.5 * (w - c) @ A @ (w - c)).backward()
        optimizer.step()
        alphas.append(optimizer.step_sizes()["all"])
    excess = 0.5 * float(w.detach() @ A @ w.detach())
    assert max(alphas) > 30 * 1e-4
    assert alphas[-1] < max(alphas) / 5
    assert excess < 0.1 * problem.optimal_loss


def test_learned_rates_tell_relevant_inputs_from_others():
    stream = make_drifting_regression(4000, random_state=0)
    best = min(float(bench.lms(stream.X, stream.y, a)[-1333:].mean()) for a in (0.02, 0.03, 0.04, 0.05, 0.06))
    mse, rates, _ = bench.track(
        stream,
        lambda p: MetaOptimize(
            torch.optim.SGD(p, lr=0.05), meta="lion", meta_lr=3e-3, gamma=0.9, blocks="weightwise",
            state_dtype=torch.float64,
        ),
    )  # fmt: skip
    assert mse < 0.8 * best
    assert rates[stream.relevant].mean() > 3 * rates[~stream.relevant].mean()


@pytest.mark.slow
@pytest.mark.parametrize("alpha", bench.ALPHAS)
def test_digits_from_any_step_size(alpha):
    outcome = _digits.repeat(bench.meta(bench.adamw, alpha, **LION), range(3))
    assert outcome.loss <= 0.01
    assert outcome.accuracy >= 0.97


@pytest.mark.slow
def test_tracking_beats_the_best_constant_rate():
    rows = list(bench.tracking_rows(range(2)))
    assert len(rows) == 4
    assert all(row.holds for row in rows), [(row.name, row.value, row.target) for row in rows]


def test_augmentation_crops_and_mirrors():
    x = torch.arange(2 * 3 * 8 * 8).float().reshape(2, 3, 8, 8) + 1
    rng = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(200):
        for picture, source in zip(_training.augmented(x, rng), x, strict=True):
            padded = nn.functional.pad(source, (4, 4, 4, 4))
            found = [
                (i, j, mirrored)
                for i in range(9)
                for j in range(9)
                for mirrored, crop in enumerate((padded[:, i : i + 8, j : j + 8],) * 2)
                if torch.equal(crop.flip(2) if mirrored else crop, picture)
            ]
            assert len(found) == 1
            seen.update(found)
    assert len(seen) > 140  # of 162


def command(text):
    return _training.parse(f"--device cpu --alpha0 1e-4 --lr 1e-3 {text}".split())


def test_language_models_train_from_the_command_line():
    options = command(
        "--task text --steps 3 --accumulate 2 --length 16 --dim 16 --layers 2 --batch-size 4 --blocks 3"
    )
    rows = list(_training.measure(options))
    assert [row.name.split(",")[0].split(" ")[0] for row in rows] == [
        "MetaOptimize(adamw)", "adamw", "adamw", "Schedule-Free", "Prodigy",
    ]  # fmt: skip
    assert all(4 < row.value < 7 for row in rows)  # ln 256 = 5.5


@pytest.mark.slow
def test_image_models_train_from_the_command_line(monkeypatch):
    rng = np.random.default_rng(0)
    made = lambda subset: types.SimpleNamespace(
        data=rng.integers(256, size=(40, 3, 32, 32), dtype=np.uint8), target=np.arange(40) % 10
    )
    monkeypatch.setattr(_training, "fetch_cifar10", made)
    options = command(
        "--task cifar10 --epochs 1 --batch-size 20 --blocks scalar,6 --augment 1 --base adamw,sgdm"
    )
    rows = list(_training.measure(options))
    assert len(rows) == 4 + 4 + 1 + 1
    assert all(0 <= row.value <= 1 for row in rows)


def test_the_command_line_refuses_what_it_does_not_know(capsys):
    for wrong in ("--base rprop", "--model llama", "--peers adam"):
        with pytest.raises(SystemExit):
            command(f"--task cifar10 {wrong}")
    with pytest.raises(SystemExit, match="--blocks"):
        list(_training.arms(command("--task cifar10 --blocks 5"), [1, 2]))
    capsys.readouterr()
