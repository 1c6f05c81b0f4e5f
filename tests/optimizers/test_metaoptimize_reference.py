"""The recursion of the paper against brute force: closed forms, unrolled autograd, the forward view."""

import math

import jaxtyping
import pytest
import torch

from references import metaoptimize as plain
from seedbed.optimizers import metaoptimize_reference, reference_base, reference_meta
from seedbed.optimizers.metaoptimize.reference import BaseMap

F64 = torch.float64


@pytest.fixture
def unchecked(monkeypatch):
    """A caller without run-time type checks: our own errors must do."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def quartic(n=5, seed=0):
    rng = torch.Generator().manual_seed(seed)
    M = torch.randn(n, n, generator=rng, dtype=F64)
    f = plain.QuarticPlusQuadratic(M @ M.T / n + 0.3 * torch.eye(n, dtype=F64), 0.4)
    return f, torch.randn(n, generator=rng, dtype=F64)


def run(f, w0, alpha0, meta, approximation, gamma, steps, base="sgd", **kwargs):
    base = reference_base(base) if isinstance(base, str) else base
    return metaoptimize_reference(
        base, meta, approximation, gamma, loss=f, weights=w0,
        beta=torch.tensor([math.log(alpha0)], dtype=w0.dtype), steps=steps, **kwargs,
    )  # fmt: skip


@pytest.mark.parametrize("approximation", ["full", "2x2", "L"])
def test_closed_form_on_a_one_dimensional_quadratic(approximation):
    w0 = torch.tensor([1.5], dtype=F64)
    parabola = lambda w, t: (w**2).sum()
    direct = run(parabola, w0, 0.1, reference_meta(None), approximation, 0.9, 12)
    a, alpha, gamma, T = 2.0, 0.1, 0.9, 12
    closed = -alpha * a * (1 - alpha * a) ** (T - 1) * 1.5 * (1 - gamma**T) / (1 - gamma)
    assert direct.trace[-1].item() == pytest.approx(closed, abs=1e-12)
    assert direct.trace[-1].item() == pytest.approx(-0.1849165004033801, abs=1e-12)
    weighted = run(parabola, w0, 0.1, reference_meta(None), approximation, 0.9, 12, normalised=True)
    assert weighted.trace[-1].item() == pytest.approx(-0.09757865557543595, abs=1e-12)
    assert weighted.beta_total[-1].item() == pytest.approx(0.71757046351900, abs=1e-12)


def test_without_curvature_the_trace_is_the_sum_of_steps():
    f, w0 = quartic()
    path = run(f, w0, 0.05, reference_meta(None), "zero", 1.0, 10, base=reference_base("adamw"))
    torch.testing.assert_close(path.trace[-1][:, 0], path.weights[-1] - w0, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("gamma", [0.0, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("name", sorted(plain.BASES))
def test_one_jvp_a_step_equals_autograd_through_the_run(name, gamma):
    f, w0 = quartic(6, 1)
    kappa, T = 0.05, 12
    step = lambda *arguments: plain.BASES[name](*arguments, kappa=kappa)
    if name == "heavy_ball":  # torch's momentum is not among the paper's bases
        base = BaseMap(lambda x, g, alpha, t: heavy_ball(x, g, alpha, kappa), 1)
    else:
        base = reference_base({"delayed_momentum": "sgdm"}.get(name, name), kappa=kappa)
    wanted = plain.direct_trace(step, lambda w, t: f.gradient(w), w0, [math.log(0.02)] * T, gamma)
    path = run(f, w0, 0.02, reference_meta(None), "L", gamma, T, base=base)
    torch.testing.assert_close(path.trace[-1][:, 0], wanted, rtol=1e-12, atol=1e-12)
    assert wanted.abs().max() > 1e-3


def heavy_ball(x, g, alpha, kappa):
    m = 0.9 * x[1] + g
    return torch.stack([x[0] - alpha * (m + kappa * x[0]), m])


@pytest.mark.parametrize("order", ["base_first", "meta_first"])
@pytest.mark.parametrize(("eta", "gamma"), [(0.0, 0.9), (1e-3, 0.99), (1e-2, 0.9), (1e-1, 0.99)])
def test_full_equals_brute_force_through_the_coupled_system(eta, gamma, order):
    f, w0 = quartic()
    late = order == "meta_first"
    w, beta, h, total = plain.coupled_run(f, w0, math.log(0.05), eta, gamma, 12, late=late)
    path = run(f, w0, 0.05, reference_meta("sgd", eta), "full", gamma, 12, order=order)
    torch.testing.assert_close(path.weights[-1], w, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(path.trace[-1][:, 0], h, rtol=1e-12, atol=1e-12)
    assert path.beta[-1].item() == pytest.approx(beta, abs=1e-12)
    torch.testing.assert_close(path.total[-1][:, 0], total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ["base_first", "meta_first"])
def test_full_equals_brute_force_when_the_trace_itself_is_the_normalised_one(order):
    f, w0 = quartic()
    path = run(f, w0, 0.05, reference_meta("sgd", 0.1), "full", 0.9, 12, normalised=True, order=order)
    late = order == "meta_first"
    direct = (
        [Y.item() for Y in path.beta_total[1:]] if late else [0.9 * Y.item() + 0.1 for Y in path.beta_total]
    )
    w, _, h, total = plain.coupled_run(f, w0, math.log(0.05), 0.1, 0.9, 12, direct, late=late)
    torch.testing.assert_close(path.weights[-1], w, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(path.trace[-1][:, 0], h, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(path.total[-1][:, 0], total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(path.trace, path.total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.9, 0.99])
def test_dropping_rows_costs_first_order_in_the_meta_step(gamma):
    f, w0 = quartic()
    errors = {}
    for approximation in ("2x2", "L"):
        for eta in (0.0, 1e-3, 1e-2):
            total = plain.coupled_run(f, w0, math.log(0.05), eta, gamma, 20)[3]
            path = run(f, w0, 0.05, reference_meta("sgd", eta), approximation, gamma, 20)
            errors[approximation, eta] = ((path.total[-1][:, 0] - total).norm() / total.norm()).item()
        assert errors[approximation, 0.0] < 1e-12
        slope = math.log10(errors[approximation, 1e-2] / errors[approximation, 1e-3])
        assert slope == pytest.approx(1.0, abs=0.15)
    assert 1e-5 < errors["2x2", 1e-3] < errors["L", 1e-3]
    assert errors["2x2", 1e-2] < errors["L", 1e-2]


def test_a_sign_rule_makes_the_approximations_agree():
    f, w0 = quartic()
    paths = [run(f, w0, 0.05, reference_meta("lion", 0.02), a, 0.9, 12) for a in ("full", "2x2", "L")]
    for path in paths[1:]:
        torch.testing.assert_close(path.total, paths[0].total, rtol=1e-12, atol=1e-13)
    without = run(f, w0, 0.05, reference_meta("lion", 0.02), "zero", 0.9, 12)
    assert (without.total - paths[0].total).abs().max() > 1e-3


def test_forward_and_backward_sums_agree_while_beta_stands_still():
    f, w0 = quartic()
    _, derivatives = plain.forward_view(f, w0, math.log(0.05), 0.0, 0.9, 12)
    path = run(f, w0, 0.05, reference_meta(None), "full", 0.9, 12, normalised=True)
    assert path.meta_gradients.sum().item() == pytest.approx(sum(derivatives), abs=1e-12)
    assert abs(sum(derivatives)) > 0.1


def test_forward_and_backward_views_part_at_second_order():
    f, w0 = quartic()
    gaps = []
    for eta in (1e-3, 5e-4, 2.5e-4):
        forward, _ = plain.forward_view(f, w0, math.log(0.05), eta, 0.9, 12)
        path = run(f, w0, 0.05, reference_meta("sgd", eta), "full", 0.9, 12, normalised=True)
        gaps.append(abs(path.beta[-1].item() - forward))
    assert gaps[0] / gaps[1] == pytest.approx(4.0, abs=0.05)
    assert gaps[1] / gaps[2] == pytest.approx(4.0, abs=0.05)


ORACLE = {  # base, its parameters, meta rule: beta_10 and w_10
    ("sgd", "lion"): (-4.515168, (0.891606, -1.295178, 0.185548)),
    ("sgd", "adam"): (-4.222271, (0.882651, -1.245636, 0.169206)),
    ("sgdm", "lion"): (-4.515168, (0.953378, -1.693267, 0.337916)),
    ("sgdm", "adam"): (-4.260645, (0.948687, -1.661061, 0.321055)),
    ("rmsprop", "rmsprop"): (-4.461633, (0.886953, -1.875102, 0.394926)),
    ("adamw", "lion"): (-4.515168, (0.566517, -1.551011, 0.086726)),
    ("adamw", "adam"): (-4.241482, (0.520191, -1.502464, 0.045198)),
    ("lion", "lion"): (-4.515168, (0.886456, -1.876134, 0.391617)),
}


@pytest.mark.parametrize(("base", "meta"), sorted(ORACLE))
def test_ten_steps_equal_the_authors_class(base, meta):
    beta, weights = ORACLE[base, meta]
    curvature = torch.tensor([1.0, 4.0, 9.0])
    path = run(
        lambda w, t: 0.5 * (curvature * w**2).sum(), torch.tensor([1.0, -2.0, 0.5]), 0.01,
        reference_meta(meta, 0.01), "zero", 0.99, 10,
        base=reference_base(base, kappa=0.1, rho=0.99 if base == "lion" else 0.9),
    )  # fmt: skip
    assert path.beta[-1].item() == pytest.approx(beta, abs=2e-6)
    assert path.weights[-1].tolist() == pytest.approx(list(weights), abs=2e-6)


def meta_path(rule, zs, beta0=0.3):
    y, path = torch.zeros(1 + rule.slots, 1, dtype=F64), []
    y[0] = beta0
    for t, z in enumerate(zs, start=1):
        y = rule.step(y, z, t)
        path.append(y[0].item())
    return path


@pytest.mark.parametrize("momentum_first", [False, True])
def test_lion_rule(momentum_first):
    zs = torch.randn(200, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    m, beta, wanted = 0.0, 0.3, []
    for z in zs.flatten().tolist():
        new = 0.9 * m + 0.1 * z
        beta = (1 - 0.01 * 0.5) * beta - 0.01 * math.copysign(
            1, 0.8 * (new if momentum_first else m) + 0.2 * z
        )
        m = new
        wanted.append(beta)
    rule = reference_meta("lion", 0.01, rho=0.9, c=0.8, kappa=0.5, momentum_first=momentum_first)
    assert meta_path(rule, zs) == pytest.approx(wanted, abs=1e-14)
    if (
        momentum_first
    ):  # the other order with c rho in place of c, as c (rho m + (1 - rho) z) + (1 - c) z shows
        other = reference_meta("lion", 0.01, rho=0.9, c=0.8 * 0.9, kappa=0.5)
        assert meta_path(other, zs) == pytest.approx(wanted, abs=1e-14)


def test_bias_corrected_adam_rule_is_torchs_adam():
    zs = torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    p = torch.nn.Parameter(torch.tensor([0.3], dtype=F64))
    optimizer, wanted = torch.optim.Adam([p], lr=0.01, betas=(0.8, 0.95), eps=0.0), []
    for z in zs:
        p.grad = z.clone()
        optimizer.step()
        wanted.append(p.item())
    rule = reference_meta("adam", 0.01, rho=0.8, lam=0.95, eps=1e-300, bias_corrected=True)
    assert meta_path(rule, zs) == pytest.approx(wanted, abs=1e-13)


def test_hypergradient_descent_is_gamma_zero():
    rng = torch.Generator().manual_seed(3)
    X, y = torch.randn(30, 4, generator=rng, dtype=F64), torch.randn(30, generator=rng, dtype=F64)
    path = metaoptimize_reference(
        reference_base("sgd"), reference_meta("sgd", 1e-4), "L", 0.0,
        loss=lambda w, t: 0.5 * (X[t] @ w - y[t]) ** 2, weights=torch.zeros(4, dtype=F64),
        beta=torch.tensor([0.02], dtype=F64), steps=30, sigma="identity", order="meta_first",
    )  # fmt: skip
    steps = list(plain.hypergradient_descent(X.numpy(), y.numpy(), 0.02, 1e-4))
    assert path.beta[1:, 0].tolist() == pytest.approx([alpha for _, alpha in steps], abs=1e-14)
    assert path.weights[-1].tolist() == pytest.approx(steps[-1][0].tolist(), abs=1e-14)
    assert abs(path.beta[-1].item() - 0.02) > 1e-5


def test_blocks_see_their_own_weights_where_curvature_is_dropped():
    f, w0 = quartic(6, 2)
    path = metaoptimize_reference(
        reference_base("adamw"), reference_meta("lion", 0.01), "zero", 0.95, loss=f, weights=w0,
        beta=torch.full((3,), -4.0, dtype=F64), steps=8, blocks=[0, 0, 1, 2, 2, 2],
    )  # fmt: skip
    mine = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], dtype=torch.bool).T
    assert (path.trace[-1][~mine] == 0).all()
    assert (path.trace[-1][mine] != 0).all()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"approximation": "half"}, ValueError, "approximation must be one of"),
        ({"gamma": 1.5}, ValueError, "gamma must be in"),
        ({"gamma": 1.0, "normalised": True}, ValueError, "below 1"),
        ({"steps": 0}, ValueError, "steps must be in"),
        ({"order": "last"}, ValueError, "order must be one of"),
        ({"blocks": [0, 0, 1, 0, 0]}, ValueError, "blocks must be 5 integers"),
        ({"sigma": "log"}, ValueError, "sigma must be one of"),
        ({"loss": 3}, TypeError, "loss must be callable"),
        ({"step_fn": "sgd"}, TypeError, "step_fn must be a BaseMap"),
        ({"beta": torch.zeros(1)}, ValueError, "one dtype"),
    ],
)
def test_bad_arguments(change, error, words, unchecked):
    f, w0 = quartic()
    arguments = {
        "step_fn": reference_base("sgd"), "meta_rule": reference_meta("lion"), "approximation": "L",
        "gamma": 0.9, "loss": f, "weights": w0, "beta": torch.zeros(1, dtype=F64), "steps": 2,
    }  # fmt: skip
    with pytest.raises(error, match=words):
        metaoptimize_reference(**(arguments | change))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: reference_base("adagrad"), "name must be one of"),
        (lambda: reference_base("sgdm", rho=1.0), "rho must be in"),
        (lambda: reference_base("sgd", kappa=-1), "kappa must be in"),
        (lambda: reference_meta("nadam"), "name must be one of"),
        (lambda: reference_meta("lion", -0.1), "eta must be in"),
        (lambda: reference_meta("adam", lam=1.0), "lam must be in"),
    ],
)
def test_bad_step_arguments(make, words, unchecked):
    with pytest.raises(ValueError, match=words):
        make()


def test_divergence_is_an_error_not_a_nan():
    with pytest.raises(FloatingPointError, match="not finite after step"):
        run(lambda w, t: (w**4).sum(), torch.ones(1, dtype=F64), 50.0, reference_meta(None), "zero", 0.9, 12)
