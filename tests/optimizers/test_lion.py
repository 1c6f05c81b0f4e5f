"""Lion: equal to lion-pytorch, and to its formula."""

import lion_pytorch
import pytest
import torch

from conformance import toy
from seedbed.optimizers import Lion


@pytest.mark.parametrize("foreach", [None, True, False])
def test_equals_lion_pytorch(foreach):
    model, other = toy.network(), toy.network()
    options = {"lr": 1e-3, "betas": (0.8, 0.95), "weight_decay": 0.1}
    data = toy.batches(20)
    mine = toy.train(model, Lion(model.parameters(), foreach=foreach, **options), data)
    theirs = toy.train(other, lion_pytorch.Lion(other.parameters(), **options), data)
    assert mine == pytest.approx(theirs, rel=1e-5)
    for p, q in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


def test_two_steps_by_hand():
    w = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = Lion([w], lr=0.1, betas=(0.5, 0.9), weight_decay=0.2)
    w.grad = torch.tensor([3.0, 1.0], dtype=torch.float64)
    optimizer.step()  # m = 0, so u = sign(g)
    first = torch.tensor([1.0 * 0.98 - 0.1, -2.0 * 0.98 - 0.1], dtype=torch.float64)
    torch.testing.assert_close(w.detach(), first, rtol=1e-15, atol=0)
    w.grad = torch.tensor([-0.2, -0.05], dtype=torch.float64)
    optimizer.step()  # m = (0.3, 0.1): 0.5 m + 0.5 g = (+, +), while momentum-free Lion would go down
    torch.testing.assert_close(w.detach(), first * 0.98 - 0.1, rtol=1e-15, atol=0)
    torch.testing.assert_close(
        optimizer.state[w]["exp_avg"], torch.tensor([0.25, 0.085], dtype=torch.float64), rtol=1e-14, atol=0
    )


def test_maximize_is_minimizing_the_negative():
    w, v = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    up, down = Lion([w], lr=0.1, maximize=True), Lion([v], lr=0.1)
    for _ in range(3):
        w.grad, v.grad = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([-1.0, 1.0, -2.0])
        up.step()
        down.step()
    assert torch.equal(w, v)


@pytest.mark.parametrize("foreach", [True, False])
def test_lr_may_be_a_tensor(foreach):
    model, other = toy.network(), toy.network()
    data = toy.batches(5)
    rate = torch.tensor(1e-3)
    toy.train(model, Lion(model.parameters(), lr=rate, weight_decay=0.1, foreach=foreach), data)
    toy.train(other, Lion(other.parameters(), lr=1e-3, weight_decay=0.1, foreach=foreach), data)
    for p, q in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"lr": -1.0}, ValueError, "lr must be"),
        ({"lr": float("nan")}, ValueError, "lr must be"),
        ({"betas": (0.9, 1.0)}, ValueError, r"betas\[1\] must be"),
        ({"betas": (-0.1, 0.9)}, ValueError, r"betas\[0\] must be"),
        ({"weight_decay": -0.1}, ValueError, "weight_decay must be"),
        ({"weight_decay": "much"}, TypeError, "weight_decay must be"),
    ],
)
def test_bad_arguments(options, error, match, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(error, match=match):
        Lion([torch.nn.Parameter(torch.ones(1))], **options)
