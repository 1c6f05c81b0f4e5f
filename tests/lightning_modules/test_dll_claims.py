"""What DLL reaches on real data, how its update comes to agree with the gradient, and what a step costs."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from benchmarks import _local_learning as runs
from benchmarks.dll import _autograd_step, _local_step, main

SEEDS = (0, 1, 2)


def digits_run(name, seed, *, epochs, schedule="linear", angles_at=(), **settings):
    data = runs.digits()
    net = runs.network(name, data, hidden=(128, 64), seed=seed, **settings)
    run = runs.train(net, data, epochs=epochs, lr=1e-3, seed=seed, schedule=schedule, angles_at=angles_at)
    return net, run


def test_the_update_turns_towards_the_gradient():
    """Angles to backpropagation start near 90 degrees and fall; the output layer's update is the gradient."""
    _, run = digits_run("dll", 0, epochs=15, schedule="none", angles_at=(1, 15))
    first, last = run.angles[1], run.angles[15]
    assert first[0] > 80
    assert first[1] > 75
    assert last[0] < first[0] - 10
    assert last[1] < first[1] - 20
    assert last[2] < 1e-2
    assert run.accuracy > 0.95


@pytest.mark.slow
def test_alignment_of_the_update_after_forty_epochs():
    angles = {1: [], 40: []}
    for seed in SEEDS:
        _, run = digits_run("dll", seed, epochs=40, schedule="none", angles_at=(1, 40))
        for epoch, found in run.angles.items():
            angles[epoch].append(found[:2])
    first, last = (np.mean(angles[epoch], axis=0) for epoch in (1, 40))
    assert last[0] < 65
    assert last[1] < 55
    assert (first - last > 20).all()


@pytest.mark.slow
def test_feedback_rules_order_the_alignment_of_the_weights():
    cosines = {}
    for name in ("dll", "fixed", "anti"):
        found = []
        for seed in SEEDS:
            net, _ = digits_run(name, seed, epochs=40, feedback_std=0.05)
            found.append(float(next(iter(net.alignments().values()))))
        cosines[name] = np.mean(found)
    assert cosines["dll"] > cosines["fixed"] + 0.04
    assert cosines["fixed"] > cosines["anti"] + 0.04


@pytest.mark.slow
def test_digits_within_a_point_and_a_half_of_backpropagation():
    accuracy = {
        name: np.mean([digits_run(name, seed, epochs=100)[1].accuracy for seed in SEEDS])
        for name in ("bp", "dll", "fixed")
    }
    assert accuracy["dll"] >= 0.970
    assert accuracy["dll"] >= accuracy["bp"] - 0.015
    assert accuracy["dll"] >= accuracy["fixed"] - 0.005


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dfa", "pc", "pc_fa", "ipc", "dtp", "ep", "ff", "softhebb", "local_loss"])
def test_every_rule_reads_digits(name):
    options = {"n_steps": 20} if name in ("pc", "pc_fa") else {}
    assert digits_run(name, 0, epochs=40, options=options)[1].accuracy > 0.94


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bp", "dll", "pc", "dtp", "ep", "ff", "softhebb", "local_loss"])
def test_every_rule_trains_convolutions(name):
    data = runs.digits(images=True)
    options = {"n_steps": 10} if name == "pc" else {}
    net = runs.network(name, data, layers=runs.DIGITS_CNN, options=options)
    assert runs.train(net, data, epochs=15, lr=3e-3).accuracy > 0.85


@pytest.mark.slow
def test_mnist_with_a_small_network():
    data = runs.mnist5k()
    accuracy = {
        name: runs.train(
            runs.network(name, data, hidden=(256, 128)), data, epochs=40, lr=5e-4, batch_size=128
        ).accuracy
        for name in ("bp", "dll")
    }
    assert accuracy["dll"] > 0.91
    assert accuracy["dll"] > accuracy["bp"] - 0.03


@pytest.mark.slow
def test_a_step_costs_little_more_than_backpropagation(request):
    """In a process of its own: here every call would also check its shapes."""
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from benchmarks.dll import _autograd_step, _local_step\n"
        "from benchmarks.harness import time_pair\n"
        "print(time_pair(_local_step(128).call, _autograd_step(128).call, repeats=61, warmup=5).ratio)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert float(done.stdout) > 1 / 1.35


def test_the_two_timed_networks_do_the_same_work():
    """Same widths, no bias, so that the time is compared with like."""
    ours, theirs = _local_step(4).net, _autograd_step(4).net
    forward = [p.shape for name, p in ours.named_parameters() if name.endswith("weight")]
    assert forward == [p.shape for p in theirs.parameters()]


def test_table_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.harness.RESULTS", tmp_path)
    arguments = "--data digits --model cnn --rules bp,dll,fixed --epochs 2 --lr 3e-3 --device cpu"
    with torch.random.fork_rng():
        assert main(arguments.split()) == 0
    text = (tmp_path / "dll.digits-cnn.json").read_text(encoding="utf-8")
    assert all(f"test accuracy of {name}: digits, cnn, 2 epochs" in text for name in ("bp", "dll", "fixed"))
    with pytest.raises(SystemExit):
        main(["--rules", "magic"])
