"""MetaOptimize against brute force and against the methods that it contains."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from references import metaoptimize as plain
from seedbed.datasets import make_linear_losses
from seedbed.optimizers import (
    IDBD,
    SMD,
    HypergradientDescent,
    Lion,
    MetaOptimize,
    metaoptimize_reference,
    reference_meta,
)
from seedbed.optimizers.metaoptimize.reference import BaseMap

F64 = torch.float64
STILL = {"meta": "sgd", "meta_lr": 1e-300, "state_dtype": F64}  # traces run, beta does not move


def close(one, other, rel):
    """Largest difference as a share of the largest entry."""
    scale = other.abs().max()
    assert scale > 0
    assert (one - other).abs().max() <= rel * scale, ((one - other).abs().max() / scale).item()


# --- losses c_t'w: curvature is zero, so dropping it costs nothing

BASES = {
    "sgd": partial(torch.optim.SGD, weight_decay=0.1),
    "sgd momentum": partial(torch.optim.SGD, momentum=0.9),
    "sgd damped": partial(torch.optim.SGD, momentum=0.9, dampening=0.5),
    "sgd nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "sgd maximize": partial(torch.optim.SGD, momentum=0.9, maximize=True),
    "adam": torch.optim.Adam,
    "adam amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, weight_decay=0.1),
    "adamw for-loop": partial(torch.optim.AdamW, weight_decay=0.1, foreach=False),
    "adamw fused": partial(torch.optim.AdamW, weight_decay=0.1, fused=True),
    "adamw maximize": partial(torch.optim.AdamW, weight_decay=0.1, maximize=True),
    "rmsprop": torch.optim.RMSprop,
    "rmsprop centered": partial(torch.optim.RMSprop, centered=True, momentum=0.5),
    "adagrad": partial(torch.optim.Adagrad, lr_decay=0.01),
    "adamax": torch.optim.Adamax,
    "nadam": partial(torch.optim.NAdam, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": partial(torch.optim.RAdam, weight_decay=0.1, decoupled_weight_decay=True),
    "adadelta": torch.optim.Adadelta,
    "lion": partial(Lion, weight_decay=0.1),
}
PROVIDERS = [
    (base, delta)
    for base in BASES
    for delta in ("difference", "analytic", "scratch")
    if (base, delta) != ("adadelta", "analytic")  # its formula is not known to the wrapper
]


def linear_problem(steps=15):
    problem = make_linear_losses(steps, 6, random_state=0)
    values = (0.02 * np.random.default_rng(1).uniform(0.5, 2.0, size=steps)).tolist()
    return torch.as_tensor(problem.w0), torch.as_tensor(problem.gradients), values


def wrapped_trace(base, w0, gradients, values, gamma, **options):
    p = torch.nn.Parameter(w0.clone())
    optimizer = MetaOptimize(base([p], lr=values[0]), gamma=gamma, **STILL | options)
    for g, value in zip(gradients, values, strict=True):
        optimizer.param_groups[0]["lr"] = value
        p.grad = g.clone()
        optimizer.step()
    return optimizer, p


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize(("base", "delta"), PROVIDERS)
def test_the_trace_is_exact_on_linear_losses(base, delta, gamma):
    w0, gradients, values = linear_problem()
    optimizer, p = wrapped_trace(BASES[base], w0, gradients, values, gamma, delta=delta)
    wanted = plain.linear_trace(partial(BASES[base], lr=0.1), w0, gradients, values, gamma)
    close(optimizer.state[p]["meta_trace"], wanted, 1e-10)
    close(p.detach(), plain.run_linear(partial(BASES[base], lr=0.1), w0, gradients, values), 1e-12)


@pytest.mark.parametrize("base", ["ASGD", "Rprop"])
def test_steps_that_are_not_linear_in_lr_are_refused_and_rightly(base):
    w0, gradients, values = linear_problem()
    cls = getattr(torch.optim, base)
    with pytest.raises(ValueError, match=f"base must not be {base}"):
        MetaOptimize(cls([torch.nn.Parameter(w0)], lr=0.1))
    p = torch.nn.Parameter(w0.clone())
    trace, optimizer = torch.zeros_like(w0), cls([p], lr=values[0])
    for g in gradients:
        before = p.detach().clone()
        p.grad = g.clone()
        optimizer.step()
        trace = 0.9 * trace + p.detach() - before
    wanted = plain.linear_trace(partial(cls, lr=values[0]), w0, gradients, [values[0]] * 15, 0.9)
    assert (trace - wanted).abs().max() > 0.05 * wanted.abs().max()


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_weight_decay_trace_is_exact(gamma):
    w0, gradients, _ = linear_problem()
    kappas = np.random.default_rng(2).uniform(0.05, 0.3, size=15).tolist()
    base = partial(torch.optim.AdamW, lr=0.05)
    p = torch.nn.Parameter(w0.clone())
    optimizer = MetaOptimize(
        base([p], weight_decay=kappas[0]), gamma=gamma, meta_parameters=("lr", "weight_decay"), **STILL
    )
    for g, kappa in zip(gradients, kappas, strict=True):
        optimizer.param_groups[0]["weight_decay"] = kappa
        p.grad = g.clone()
        optimizer.step()
    wanted = plain.linear_trace(base, w0, gradients, kappas, gamma, key="weight_decay")
    close(optimizer.state[p]["meta_trace_weight_decay"], wanted, 1e-12)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_momentum_trace_is_exact_for_adamw(gamma):
    w0, gradients, _ = linear_problem()
    kwargs = {"lr": 0.05, "weight_decay": 0.2, "eps": 1e-8}
    p = torch.nn.Parameter(w0.clone())
    optimizer = MetaOptimize(
        torch.optim.AdamW([p], betas=(0.8, 0.99), **kwargs),
        gamma=gamma,
        meta_parameters=("lr", "momentum"),
        **STILL,
    )
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    wanted = plain.adam_momentum_trace(w0, gradients, 0.05, 0.8, 0.99, 0.2, 1e-8, gamma)
    close(optimizer.state[p]["meta_trace_momentum"], wanted, 1e-11)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_trace_is_exact_for_sgd(gamma, nesterov):
    w0, gradients, _ = linear_problem()
    base = partial(torch.optim.SGD, lr=0.05, nesterov=nesterov)
    p = torch.nn.Parameter(w0.clone())
    optimizer = MetaOptimize(
        base([p], momentum=0.8), gamma=gamma, meta_parameters=("lr", "momentum"), **STILL
    )
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    start = partial(base, momentum=0.8)
    wanted = plain.linear_trace(start, w0, gradients, [0.8] * 15, gamma, key="momentum", slope=[0.16] * 15)
    close(optimizer.state[p]["meta_trace_momentum"], wanted, 1e-11)


# --- with curvature: the L approximation of any base


def quadratic(n=6):
    rng = torch.Generator().manual_seed(1)
    M = torch.randn(n, n, generator=rng, dtype=F64)
    f = plain.QuarticPlusQuadratic(M @ M.T / n + 0.3 * torch.eye(n, dtype=F64), 0.4)
    return f, torch.randn(n, generator=rng, dtype=F64)


def torch_adamw(x, g, alpha, t):
    m, v = 0.9 * x[1] + 0.1 * g, 0.999 * x[2] + 0.001 * g**2
    u = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    return torch.stack([x[0] - alpha * (u + 0.05 * x[0]), m, v])


def torch_rmsprop(x, g, alpha, t):
    v = 0.99 * x[1] + 0.01 * g**2
    buffer = 0.5 * x[2] + g / (v.sqrt() + 1e-8)
    return torch.stack([x[0] - alpha * buffer, v, buffer])


def torch_momentum(x, g, alpha, t):
    m = 0.9 * x[1] + g
    return torch.stack([x[0] - alpha * (g + 0.9 * m), m])


def plain_sgd(x, g, alpha, t):
    return (x[0] - alpha * (g + 0.05 * x[0]))[None]


CURVED = {
    "sgd": (partial(torch.optim.SGD, weight_decay=0.05), BaseMap(plain_sgd, 0)),
    "nesterov": (partial(torch.optim.SGD, momentum=0.9, nesterov=True), BaseMap(torch_momentum, 1)),
    "rmsprop": (partial(torch.optim.RMSprop, momentum=0.5), BaseMap(torch_rmsprop, 2)),
    "adamw": (partial(torch.optim.AdamW, weight_decay=0.05), BaseMap(torch_adamw, 2)),
}


@pytest.mark.parametrize("gamma", [0.0, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("name", CURVED)
def test_hessian_vector_products_give_the_l_approximation(name, gamma):
    base, step = CURVED[name]
    f, w0 = quadratic()
    p = torch.nn.Parameter(w0.clone())
    optimizer = MetaOptimize(
        base([p], lr=0.02), meta="lion", meta_lr=0.03, gamma=gamma, hessian="hvp", state_dtype=F64
    )
    for _ in range(12):
        optimizer.zero_grad()
        f(p).backward(create_graph=True)
        optimizer.step()
    path = metaoptimize_reference(
        step, reference_meta("lion", 0.03), "L", gamma, loss=f, weights=w0,
        beta=torch.tensor([math.log(0.02)], dtype=F64), steps=12,
    )  # fmt: skip
    close(p.detach(), path.weights[-1], 1e-11)
    close(optimizer.state[p]["meta_trace"], path.trace[-1][:, 0], 1e-11)
    assert optimizer.step_sizes()["all"] == pytest.approx(path.alpha[-1].item(), rel=1e-12)


# --- the shipped recursion against the functional one, whole runs

RULES = {
    "lion": ({"meta": "lion", "meta_lr": 0.03}, reference_meta("lion", 0.03)),
    "adam": ({"meta": "adam", "meta_lr": 0.01}, reference_meta("adam", 0.01)),
    "rmsprop": ({"meta": "rmsprop", "meta_lr": 0.01}, reference_meta("rmsprop", 0.01)),
    "sgd": ({"meta": "sgd", "meta_lr": 0.05}, reference_meta("sgd", 0.05)),
    "decayed": (
        {"meta": "adam", "meta_lr": 0.01, "meta_weight_decay": 0.5, "meta_betas": (0.5, 0.9)},
        reference_meta("adam", 0.01, rho=0.5, lam=0.9, kappa=0.5),
    ),
}


@pytest.mark.parametrize("order", ["base_first", "meta_first"])
@pytest.mark.parametrize("rule", RULES)
def test_blocks_without_curvature_equal_the_reference(rule, order):
    options, meta = RULES[rule]
    f, w0 = quadratic()
    pieces = [torch.nn.Parameter(w0[:2].clone()), torch.nn.Parameter(w0[2:].clone())]
    optimizer = MetaOptimize(
        torch.optim.AdamW(pieces, lr=0.02, weight_decay=0.05), gamma=0.95, blocks="layerwise", order=order,
        state_dtype=F64, **options,
    )  # fmt: skip
    for _ in range(12):
        optimizer.zero_grad()
        f(torch.cat(pieces)).backward()
        optimizer.step()
    # beta here is measured from ln lr, which matters to a decay of beta alone
    path = metaoptimize_reference(
        torch_adamw_from(0.02), meta, "zero", 0.95, loss=f, weights=w0, beta=torch.zeros(2, dtype=F64),
        steps=12, blocks=[0, 0, 1, 1, 1, 1], order=order,
    )  # fmt: skip
    close(torch.cat(pieces).detach(), path.weights[-1], 1e-12)
    traces = torch.cat([optimizer.state[p]["meta_trace"] for p in pieces])
    close(traces, path.trace[-1].sum(dim=1), 1e-12)
    alphas = torch.tensor(list(optimizer.step_sizes().values()), dtype=F64)
    close(alphas, 0.02 * path.alpha[-1], 1e-12)
    assert (path.beta[-1] != 0).all()


def torch_adamw_from(lr):
    return BaseMap(lambda x, g, alpha, t: torch_adamw(x, g, lr * alpha, t), 2)


@pytest.mark.parametrize(
    ("normalised", "wanted"), [(False, -0.1849165004033801), (True, -0.09757865557543595)]
)
def test_closed_form_on_a_one_dimensional_quadratic(normalised, wanted):
    w = torch.nn.Parameter(torch.tensor([1.5], dtype=F64))
    optimizer = MetaOptimize(
        torch.optim.SGD([w], lr=0.1), gamma=0.9, hessian="hvp", normalised=normalised, **STILL
    )
    for _ in range(12):
        optimizer.zero_grad()
        (w**2).sum().backward(create_graph=True)
        optimizer.step()
    assert optimizer.state[w]["meta_trace"].item() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("approximation", ["L", "2x2"])
@pytest.mark.parametrize("order", ["base_first", "meta_first"])
@pytest.mark.parametrize(("name", "rule"), [("sgd", "adam"), ("adamw", "sgd"), ("adamw", "lion")])
def test_the_normalised_recursion_equals_the_reference(name, rule, order, approximation):
    base, step = CURVED[name]
    options, meta = RULES[rule]
    f, w0 = quadratic()
    p = torch.nn.Parameter(w0.clone())
    optimizer = MetaOptimize(
        base([p], lr=0.02), gamma=0.9, hessian="hvp", normalised=True, approximation=approximation,
        order=order, state_dtype=F64, **options,
    )  # fmt: skip
    for _ in range(12):
        optimizer.zero_grad()
        f(p).backward(create_graph=True)
        optimizer.step()
    run = partial(
        metaoptimize_reference, step, meta, gamma=0.9, loss=f, weights=w0,
        beta=torch.tensor([math.log(0.02)], dtype=F64), steps=12, normalised=True, order=order,
    )  # fmt: skip
    path = run(approximation)
    close(optimizer.state[p]["meta_trace"], path.trace[-1][:, 0], 1e-11)
    close(p.detach(), path.weights[-1], 1e-12)
    other = run("2x2" if approximation == "L" else "L")
    apart = (other.trace[-1] - path.trace[-1]).abs().max()
    assert apart < 1e-14 if rule == "lion" else apart > 1e-6


def test_the_released_trace_is_the_gradient_over_adams_denominator():
    f, w0 = quadratic()
    p = torch.nn.Parameter(w0.clone())
    optimizer = MetaOptimize(
        torch.optim.AdamW([p], lr=0.02, weight_decay=0.05), gamma=0.9, trace="gradient", **STILL
    )
    h, v = torch.zeros_like(w0), torch.zeros_like(w0)
    for t in range(1, 13):
        optimizer.zero_grad()
        f(p).backward()
        v = 0.999 * v + 0.001 * p.grad**2
        h = 0.9 * (1 - 0.02 * 0.05) * h - 0.02 * p.grad / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        optimizer.step()
    close(optimizer.state[p]["meta_trace"], h, 1e-12)


# --- the methods that it contains, on 30 random regression steps


def regression(n=4, steps=30):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((steps, n))
    return X, X @ rng.standard_normal(n) + 0.1 * rng.standard_normal(steps)


def run_regression(optimizer, w, X, y, create_graph=False):
    """Steps on 1/2 (y - w'x)^2; yields after each."""
    for x, target in zip(torch.as_tensor(X), torch.as_tensor(y), strict=True):
        optimizer.zero_grad()
        (0.5 * (target - w @ x) ** 2).backward(create_graph=create_graph)
        optimizer.step()
        yield w.detach().numpy().copy()


def start(n=4):
    return torch.nn.Parameter(torch.zeros(n, dtype=F64))


def idbd_by_hand(w, order="meta_first", clip=True):
    """IDBD spelled out as options, the diagonal of the Hessian by exact products."""
    return MetaOptimize(
        torch.optim.SGD([w], lr=0.05), meta="sgd", meta_lr=0.01, gamma=1.0, blocks="weightwise",
        hessian="diag", order=order, clip_decay=clip, probes="exact", state_dtype=F64,
    )  # fmt: skip


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("by_hand", [True, False])
def test_idbd(by_hand, clip):
    X, y = regression()
    w = start()
    optimizer = idbd_by_hand(w, clip=clip) if by_hand else IDBD([w], 0.05, meta_lr=0.01, clip_decay=clip)
    runs = zip(
        plain.idbd(X, y, math.log(0.05), 0.01, clip=clip),
        run_regression(optimizer, w, X, y, True),
        strict=True,
    )
    for (weights, beta, h), ours in runs:
        np.testing.assert_allclose(ours, weights, rtol=0, atol=1e-14)
        np.testing.assert_allclose(optimizer.state[w]["meta_beta"], beta - math.log(0.05), rtol=0, atol=1e-14)
        np.testing.assert_allclose(optimizer.state[w]["meta_trace"], h, rtol=0, atol=1e-14)
    assert np.abs(beta - math.log(0.05)).max() > 0.05


def test_the_base_first_order_is_not_idbd():
    X, y = regression()
    w = start()
    optimizer = idbd_by_hand(w, order="base_first")
    *_, (_, beta, _) = plain.idbd(X, y, math.log(0.05), 0.01)
    list(run_regression(optimizer, w, X, y, True))
    assert np.abs(optimizer.state[w]["meta_beta"].numpy() - (beta - math.log(0.05))).max() > 1e-4


@pytest.mark.parametrize("lam", [1.0, 0.9])
def test_smd(lam):
    X, y = regression()
    w = start()
    optimizer = SMD([w], 0.05, meta_lr=2.0, gamma=lam)
    halved, last = False, np.full(4, 0.05)
    for (weights, alpha, v), ours in zip(
        plain.smd(X, y, 0.05, 2.0, lam), run_regression(optimizer, w, X, y, True), strict=True
    ):
        np.testing.assert_allclose(ours, weights, rtol=0, atol=1e-14)
        ours_alpha = 0.05 * np.exp(optimizer.state[w]["meta_beta"].numpy())
        np.testing.assert_allclose(ours_alpha, alpha, rtol=0, atol=1e-14)
        np.testing.assert_allclose(optimizer.state[w]["meta_trace"], v, rtol=0, atol=1e-14)
        halved |= bool(np.isclose(alpha, last / 2, rtol=1e-12).any())
        last = alpha
    assert halved  # the trust region took part


@pytest.mark.parametrize("multiplicative", [False, True])
def test_hypergradient_descent(multiplicative):
    X, y = regression()
    w = start()
    eta = 1e-3 if multiplicative else 1e-4
    optimizer = HypergradientDescent([w], 0.02, meta_lr=eta, multiplicative=multiplicative)
    wanted = plain.hypergradient_descent(X, y, 0.02, eta, multiplicative)
    for (weights, alpha), ours in zip(wanted, run_regression(optimizer, w, X, y), strict=True):
        np.testing.assert_allclose(ours, weights, rtol=0, atol=1e-14)
        assert optimizer.step_sizes()["all"] == pytest.approx(alpha, abs=1e-14)
    assert abs(alpha - 0.02) > 1e-6


def test_hypergradient_descent_on_adam():
    X, y = regression()
    w = start()
    optimizer = HypergradientDescent([w], 0.02, meta_lr=1e-4, base="Adam")
    for (weights, alpha), ours in zip(
        plain.adam_hd(X, y, 0.02, 1e-4), run_regression(optimizer, w, X, y), strict=True
    ):
        np.testing.assert_allclose(ours, weights, rtol=0, atol=1e-14)
        assert optimizer.step_sizes()["all"] == pytest.approx(alpha, abs=1e-14)
    assert abs(alpha - 0.02) > 1e-5
