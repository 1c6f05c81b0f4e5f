"""What MetaOptimize refuses, and that it says why before it does anything."""

import re

import pytest
import schedulefree
import torch
from dadaptation import DAdaptAdam
from mechanic_pytorch import mechanize
from prodigyopt import Prodigy
from torch import nn
from torch.optim import SGD, AdamW

from seedbed.optimizers import HypergradientDescent, MetaAdamW, MetaOptimize, MetaSGD


@pytest.fixture(autouse=True)
def _own_errors_only(monkeypatch):
    """The shape checker of the test run would object first."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


def parameter():
    return nn.Parameter(torch.ones(2))


def refuses(error, match, make):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("base", [None, "AdamW", [torch.ones(2)], schedulefree.ScheduleFreeWrapper])
def test_what_is_no_optimizer(base):
    refuses(TypeError, "base must be a torch.optim.Optimizer", lambda: MetaOptimize(base))


def test_a_wrapped_optimizer():
    refuses(TypeError, "already", lambda: MetaOptimize(MetaAdamW([parameter()])))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.LBFGS(p), "several times"),
        (lambda p: torch.optim.ASGD(p), "not proportional"),
        (lambda p: torch.optim.Rprop(p), "not proportional"),
        (lambda p: torch.optim.SparseAdam(p), "sparse"),
        (lambda p: torch.optim.Adafactor(p), "allow_nonlinear=True"),
        (lambda p: schedulefree.AdamWScheduleFree(p), "adapts the step size"),
        (lambda p: Prodigy(p), "adapts the step size"),
        (lambda p: DAdaptAdam(p), "adapts the step size"),
        (lambda p: mechanize(SGD)(p, lr=1e-3), "adapts the step size"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_optimizers_that_do_not_step_in_proportion_to_lr(make, reason):
    refuses(ValueError, reason, lambda: MetaOptimize(make([parameter()])))


def test_adafactor_on_request():
    p = parameter()
    optimizer = MetaOptimize(torch.optim.Adafactor([p]), allow_nonlinear=True)
    p.grad = torch.ones(2)
    optimizer.step()
    refuses(ValueError, "Rprop", lambda: MetaOptimize(torch.optim.Rprop([p]), allow_nonlinear=True))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"meta": "adagrad"}, ValueError, "meta must be one of"),
        ({"meta_lr": 0.0}, ValueError, "meta_lr must be"),
        ({"meta_lr": -1.0}, ValueError, "meta_lr must be"),
        ({"meta_lr": float("nan")}, ValueError, "meta_lr must be"),
        ({"meta_lr": "slow"}, TypeError, "meta_lr must be"),
        ({"gamma": -0.1}, ValueError, "gamma must be"),
        ({"gamma": 1.1}, ValueError, "gamma must be"),
        ({"meta_betas": (0.9, 1.0)}, ValueError, re.escape("meta_betas[1] must be in [0, 1)")),
        ({"meta_betas": (-0.1, 0.9)}, ValueError, re.escape("meta_betas[0]")),
        ({"meta_betas": 0.9}, TypeError, "meta_betas must be a pair"),
        ({"meta_eps": -1e-3}, ValueError, "meta_eps must be"),
        ({"meta_weight_decay": -1.0}, ValueError, "meta_weight_decay must be"),
        ({"normalised": True}, ValueError, "gamma < 1"),
        ({"normalised": "yes"}, ValueError, "normalised must be one of"),
        ({"alpha_bounds": (0.0, 1.0)}, ValueError, re.escape("alpha_bounds[0]")),
        ({"alpha_bounds": (1.0, 1.0)}, ValueError, re.escape("alpha_bounds[1]")),
        ({"alpha_bounds": 1.0}, TypeError, "alpha_bounds must be a pair"),
        ({"alpha_bounds": (0.1, 1.0)}, ValueError, "lr must lie inside alpha_bounds"),
        ({"blocks": "rows"}, ValueError, "blocks must be one of"),
        ({"blocks": 3}, TypeError, "blocks must be one of"),
        ({"parameterisation": "softplus"}, ValueError, "parameterisation must be one of"),
        ({"trace": "both"}, ValueError, "trace must be one of"),
        ({"hessian": "full"}, ValueError, "hessian must be one of"),
        ({"approximation": "full"}, ValueError, "approximation must be one of"),
        ({"order": "both"}, ValueError, "order must be one of"),
        ({"delta": "guess"}, ValueError, "delta must be one of"),
        ({"probes": 0}, ValueError, "probes must be"),
        ({"probes": "all"}, TypeError, "probes must be"),
        ({"seed": -1}, ValueError, "seed must be"),
        ({"state_dtype": torch.int32}, TypeError, "state_dtype must be"),
        ({"state_dtype": "float32"}, TypeError, "state_dtype must be"),
        ({"meta_parameters": ()}, ValueError, "meta_parameters must name"),
        ({"meta_parameters": ("lr", "lr")}, ValueError, "meta_parameters must name"),
        ({"meta_parameters": ("eps",)}, ValueError, "meta_parameters must be one of"),
        ({"meta_parameters": ("lr", "momentum"), "blocks": "weightwise"}, ValueError, "one value per tensor"),
        ({"meta_parameters": ("lr", "momentum"), "delta": "scratch"}, ValueError, "does not go with"),
        ({"parameterisation": "identity", "delta": "difference"}, ValueError, "size zero"),
        ({"blocks": "weightwise", "delta": "difference"}, ValueError, "one step size per tensor"),
        ({"trace": "gradient", "delta": "difference"}, ValueError, "whole update"),
        ({"trace": "gradient", "hessian": "hvp"}, ValueError, "drops curvature"),
        ({"hessian": "hvp", "delta": "difference"}, ValueError, "needs the formula"),
        ({"hessian": "hvp", "approximation": "2x2"}, ValueError, "normalised=True"),
        ({"state_dtype": torch.bfloat16, "delta": "difference"}, ValueError, "32 bits"),
        ({"clip_decay": True}, ValueError, "needs hessian='diag'"),
        ({"clip_decay": True, "hessian": "diag"}, ValueError, "SGD without momentum"),
        ({"compile": True, "blocks": "weightwise"}, ValueError, "compile=True needs"),
        ({"compile": True, "hessian": "hvp"}, ValueError, "compile=True needs"),
    ],
)
def test_arguments(options, error, match):
    refuses(error, match, lambda: MetaOptimize(AdamW([parameter()], lr=1e-3), **options))


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0)])
def test_a_start_of_zero(lr):
    refuses(ValueError, "lr must be in", lambda: MetaOptimize(AdamW([parameter()], lr=lr, foreach=False)))


@pytest.mark.parametrize(
    ("make", "options", "match"),
    [
        (lambda p: torch.optim.Adadelta(p), {"delta": "analytic"}, "formula is known, not Adadelta"),
        (lambda p: torch.optim.Adadelta(p), {"trace": "gradient"}, "formula is known, not Adadelta"),
        (lambda p: torch.optim.NAdam(p), {"hessian": "hvp"}, "not NAdam"),
        (lambda p: torch.optim.NAdam(p), {"compile": True}, "not NAdam"),
        (lambda p: AdamW(p, amsgrad=True), {"compile": True}, "amsgrad"),
        (lambda p: AdamW(p, lr=torch.tensor(1e-3), foreach=False), {"compile": True}, "lr as a tensor"),
        (lambda p: torch.optim.Adam(p), {"meta_parameters": ("weight_decay",)}, "weight_decay must be"),
        (
            lambda p: torch.optim.Adam(p, weight_decay=0.1),
            {"meta_parameters": ("weight_decay",)},
            "decoupled",
        ),
        (lambda p: SGD(p, lr=0.1), {"meta_parameters": ("momentum",)}, r"momentum in \(0, 1\)"),
        (lambda p: torch.optim.RMSprop(p, momentum=0.9), {"meta_parameters": ("momentum",)}, "RMSprop"),
    ],
)
def test_optimizers_that_lack_what_is_asked_for(make, options, match):
    refuses(ValueError, match, lambda: MetaOptimize(make([parameter()]), **options))


def test_an_unknown_decay_in_half_precision():
    p = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = MetaOptimize(torch.optim.Adadelta([p], weight_decay=0.1))
    p.grad = torch.ones_like(p)
    refuses(ValueError, "weight_decay=0 for Adadelta", optimizer.step)


# --- blocks


def named(blocks):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    return MetaAdamW(model.named_parameters(), blocks=blocks)


@pytest.mark.parametrize(
    ("blocks", "error", "match"),
    [
        ([1, 2], ValueError, r"0\.weight, 0\.bias, 1\.weight, 1\.bias.*sums to 3"),
        ([5, -1], ValueError, "positive counts"),
        ([], ValueError, "sums to 0"),
        ([["0.weight", "0.bias"], ["1.weight"]], ValueError, r"missing: 1\.bias"),
        ([["0.weight", "0.bias"], ["1.weight", "1.bias", "0.bias"]], ValueError, r"twice: 0\.bias"),
        ([["0.weight", "0.bias"], ["1.weight", "2.bias"]], KeyError, r"'2\.bias'.*0\.weight"),
        ([["0.weight"], [nn.Parameter(torch.ones(7))]], KeyError, r"\(7,\)"),
        (["0.weight"], TypeError, r"blocks\[0\] must be a list"),
    ],
)
def test_lists_that_are_no_partition(blocks, error, match):
    refuses(error, match, lambda: named(blocks))


def test_names_need_named_parameters():
    model = nn.Linear(2, 1)
    refuses(
        KeyError, "named_parameters", lambda: MetaAdamW(model.parameters(), blocks=[["weight"], ["bias"]])
    )


# --- steps


def test_gradients_of_the_wrong_kind():
    p = parameter()
    optimizer = MetaSGD([p])
    p.grad = torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True)
    refuses(RuntimeError, "sparse", optimizer.step)
    wave = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    wave.grad = torch.ones(2, dtype=torch.complex64)
    refuses(RuntimeError, "complex", MetaSGD([wave]).step)


@pytest.mark.parametrize("hessian", ["hvp", "diag"])
def test_gradients_without_a_graph(hessian):
    p = parameter()
    optimizer = MetaSGD([p], hessian=hessian)
    p.square().sum().backward()
    before = p.detach().clone()
    refuses(RuntimeError, re.escape("create_graph=True"), optimizer.step)
    assert torch.equal(p, before)


def test_a_second_gradient_needs_a_closure_that_returns_the_loss():
    p = parameter()
    optimizer = MetaSGD([p], hessian="finite_difference")
    p.square().sum().backward()
    refuses(ValueError, "needs a closure", optimizer.step)
    refuses(ValueError, "must return the loss", lambda: optimizer.step(lambda: None))


@pytest.mark.parametrize("lr", [0.0, -1.0, float("inf"), "far"])
def test_steps_to_reach_needs_a_place_to_go(lr):
    refuses((ValueError, TypeError), "lr must be", lambda: MetaAdamW([parameter()]).steps_to_reach(lr))


def test_steps_to_reach_needs_steps_of_a_length():
    refuses(
        ValueError, "steps of a set length", lambda: HypergradientDescent([parameter()]).steps_to_reach(1.0)
    )


@pytest.mark.parametrize("base", ["Adamw", "Optimizer", "lr_scheduler"])
def test_an_unknown_name(base):
    refuses(ValueError, "base must be the name", lambda: MetaOptimize.build([parameter()], base))
