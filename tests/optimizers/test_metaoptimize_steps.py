"""MetaOptimize's step: what it leaves alone, how far it goes, in which blocks, and how exactly."""

import math

import pytest
import torch
from torch import nn

from conformance import toy
from seedbed.optimizers import MetaAdamW, MetaOptimize, MetaSGD
from seedbed.optimizers.metaoptimize.arguments import Options
from seedbed.optimizers.metaoptimize.meta_rules import meta_rule
from seedbed.optimizers.metaoptimize.products import dots, foreach_dots

F64 = torch.float64
STILL = {"meta": "sgd", "meta_lr": 1e-300}

BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def run(wrap, steps=20, dtype=torch.float32):
    model = toy.network(dtype=dtype)
    optimizer = wrap(model.parameters())
    toy.train(model, optimizer, toy.batches(steps, dtype=dtype))
    return weights(model), optimizer


# --- what it leaves alone


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize(
    "options",
    [{"meta": None}, STILL, {**STILL, "blocks": "layerwise"}, {**STILL, "delta": "analytic"}],
    ids=["none", "still", "layerwise", "analytic"],
)
def test_step_sizes_at_rest_leave_the_optimizer_as_it_is_to_the_last_bit(name, options):
    bare, _ = run(BASES[name])
    wrapped, _ = run(lambda p: MetaOptimize(BASES[name](p), **options))
    assert torch.equal(bare, wrapped)


@pytest.mark.parametrize("blocks", ["scalar", "group", "layerwise", "nodewise", "weightwise", [1, 2, 1]])
def test_every_granularity_is_the_optimizer_itself_at_rest(blocks):
    bare, _ = run(BASES["adamw-loop"], dtype=F64)
    wrapped, _ = run(lambda p: MetaOptimize(BASES["adamw-loop"](p), blocks=blocks, **STILL), dtype=F64)
    torch.testing.assert_close(bare, wrapped, rtol=1e-13, atol=1e-15)


def test_a_loop_over_many_tensors_is_one_step_over_whole_groups():
    """From 16 blocks on, the step is taken once for all of them, with equal results."""
    deep = [nn.Parameter(torch.full((3,), 1.0 + i, dtype=F64)) for i in range(20)]
    other = [nn.Parameter(p.detach().clone()) for p in deep]
    results = []
    for params, delta in ((deep, "auto"), (other, "analytic")):
        optimizer = MetaAdamW(params, lr=1e-3, blocks="layerwise", meta_lr=0.1, delta=delta)
        for step in range(6):
            for index, p in enumerate(params):
                p.grad = p.detach() * math.cos(step + index)
            optimizer.step()
        results.append((torch.stack(params), list(optimizer.step_sizes().values())))
        assert f"delta={'scratch' if delta == 'auto' else delta}" in repr(optimizer)
        assert len(optimizer.base.param_groups) == (1 if delta == "auto" else 20)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-12)
    assert len(set(results[0][1])) > 3
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-12, atol=0)


# --- how far it goes


def test_lion_moves_by_its_rate_at_most_and_exactly_so_on_a_ramp():
    w = nn.Parameter(torch.tensor([1.0], dtype=F64))
    optimizer = MetaOptimize(torch.optim.SGD([w], lr=1e-6), meta_lr=0.01)
    for step in range(50):
        w.grad = torch.ones(1, dtype=F64)  # always downhill: every meta step but the first points up
        optimizer.step()
        beta = math.log(optimizer.step_sizes()["all"] / 1e-6)
        assert beta == pytest.approx(0.01 * step, abs=1e-12)
    assert optimizer.steps_to_reach(1e-6 * math.exp(0.59)) == 10


def test_lion_never_leaves_its_cone():
    model = toy.network()
    optimizer = MetaAdamW(model.parameters(), lr=1e-2, meta_lr=0.05, blocks="layerwise")
    for step, batch in enumerate(toy.batches(40)):
        toy.train(model, optimizer, [batch])
        for alpha in optimizer.step_sizes().values():
            assert abs(math.log(alpha / 1e-2)) <= 0.05 * (step + 1) + 1e-12


@pytest.mark.parametrize("meta", ["lion", "adam", "adam_corrected", "rmsprop", "sgd"])
def test_nothing_moves_without_gradients(meta):
    w = nn.Parameter(torch.ones(3))
    optimizer = MetaOptimize(torch.optim.AdamW([w], lr=1e-3), meta=meta)
    for _ in range(5):
        w.grad = torch.zeros(3)
        optimizer.step()
    assert optimizer.step_sizes() == {"all": 1e-3}


@pytest.mark.parametrize(("meta", "options"), [("lion", {}), ("adam", {"meta_eps": 1e-30})])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_the_loss_does_not_matter(meta, options, scale):
    def train(factor):
        model = toy.network()
        base = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-30)
        optimizer = MetaOptimize(base, meta=meta, meta_lr=0.02, **options)
        for x, y in toy.batches(20):
            optimizer.zero_grad()
            (factor * nn.functional.mse_loss(model(x), y)).backward()
            optimizer.step()
        return weights(model), optimizer.step_sizes()["all"]

    (one, alpha), (other, scaled) = train(1.0), train(scale)
    assert abs(math.log(alpha / 1e-3)) > 0.1
    assert scaled == pytest.approx(alpha, rel=1e-4)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", [1e-3, 1e-2])
def test_bounds_hold(start):
    w = nn.Parameter(torch.tensor([1.0], dtype=F64))
    optimizer = MetaOptimize(torch.optim.SGD([w], lr=start), meta_lr=0.5, alpha_bounds=(1e-3, 2e-2))
    for _ in range(20):
        w.grad = torch.ones(1, dtype=F64)
        optimizer.step()
    assert optimizer.step_sizes()["all"] == pytest.approx(2e-2, rel=1e-12)
    for sign in [-1.0, 1.0] * 40:  # now every step is regretted
        w.grad = torch.full((1,), sign, dtype=F64)
        optimizer.step()
        assert 1e-3 * (1 - 1e-12) <= optimizer.step_sizes()["all"] <= 2e-2 * (1 + 1e-12)


@pytest.mark.parametrize("blocks", ["scalar", "weightwise"])
def test_a_gradient_to_climb_turns_the_sign_of_z(blocks):
    sizes = []
    for maximize in (False, True):
        w = nn.Parameter(torch.tensor([1.0, 2.0], dtype=F64))
        optimizer = MetaAdamW([w], lr=1e-3, maximize=maximize, meta_lr=0.1, weight_decay=0.0, blocks=blocks)
        for _ in range(4):
            w.grad = torch.ones(2, dtype=F64)
            optimizer.step()
        size = next(iter(optimizer.step_sizes().values()))
        sizes.append(float(torch.as_tensor(size).max()))
    assert sizes[0] == sizes[1] == pytest.approx(1e-3 * math.exp(0.3))


@pytest.mark.parametrize("learned", [("momentum", "weight_decay", "lr"), ("weight_decay", "lr", "momentum")])
def test_the_order_of_meta_parameters_does_not_matter(learned):
    results = []
    for names in (("lr", "weight_decay", "momentum"), learned):
        model = toy.network()
        optimizer = MetaAdamW(
            model.parameters(), lr=1e-2, meta_lr=0.1, meta_parameters=names, alpha_bounds=(9e-3, 1.5e-2)
        )
        toy.train(model, optimizer, toy.batches(12))
        results.append((weights(model), optimizer.step_sizes(), optimizer.learned_values()))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]
    learned_values = results[0][2]
    assert learned_values["weight_decay"]["all"] != pytest.approx(0.1)
    assert 0 < learned_values["momentum"]["all"] < 1
    assert learned_values["momentum"]["all"] != pytest.approx(0.9)
    assert 9e-3 <= results[0][1]["all"] <= 1.5e-2


def test_other_meta_parameters_may_be_learned_alone():
    model = toy.network()
    optimizer = MetaAdamW(model.parameters(), lr=1e-2, meta_lr=0.1, meta_parameters=("weight_decay",))
    toy.train(model, optimizer, toy.batches(5))
    assert optimizer.step_sizes() == {"all": 1e-2}
    assert optimizer.learned_values()["weight_decay"]["all"] != pytest.approx(0.1)
    assert list(optimizer.meta_gradients()) == ["all.weight_decay"]
    used = optimizer.base.param_groups[0]["weight_decay"]
    assert used != 0.1
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


# --- meta rules


def plain_rule(name, zs, lr, betas, eps):
    """Betas after each z, from the definitions."""
    beta = m = v = 0.0
    path = []
    for t, z in enumerate(zs, start=1):
        first, second = betas
        if name == "sgd":
            direction = z
        elif name == "lion":
            mixed = second * m + (1 - second) * z
            direction, m = math.copysign(1.0, mixed) if mixed else 0.0, first * m + (1 - first) * z
        elif name == "adam_corrected":
            m, v = first * m + (1 - first) * z, second * v + (1 - second) * z * z
            direction = m / (1 - first**t) / (math.sqrt(v / (1 - second**t)) + eps)
        else:
            m, v = first * m + z if name == "adam" else z, second * v + z * z
            direction = m / math.sqrt((1 - second) / (1 - second**t) * v + eps)
        beta -= lr * direction
        path.append(beta)
    return path


@pytest.mark.parametrize("name", ["sgd", "lion", "rmsprop", "adam", "adam_corrected"])
def test_meta_rules(name):
    zs = [0.3, -0.1, 0.0, 2.0, -3.0, -0.5]
    rule = meta_rule(Options(meta=name, meta_lr=0.1, meta_betas=(0.8, 0.95), meta_eps=1e-3))
    beta = [torch.zeros(1, dtype=F64)]
    slots = {slot: [torch.zeros(1, dtype=F64)] for slot in rule.slots}
    path = []
    for t, z in enumerate(zs, start=1):
        beta, slots = rule.move(beta, [torch.tensor([z], dtype=F64)], slots, [float(t)])
        path.append(beta[0].item())
    assert path == pytest.approx(plain_rule(name, zs, 0.1, (0.8, 0.95), 1e-3), rel=1e-12)


def test_a_meta_decay_pulls_the_step_size_to_lr():
    rule = meta_rule(Options(meta="sgd", meta_lr=0.5, meta_weight_decay=0.2))
    moved, _ = rule.move([torch.tensor([2.0])], [torch.zeros(1)], {}, [1.0])
    assert moved[0].item() == pytest.approx(1.8)


# --- blocks


def test_z_of_a_block_is_its_inner_product():
    model = toy.network(dtype=F64)
    optimizer = MetaOptimize(torch.optim.AdamW(model.parameters(), lr=1e-2), blocks=[1, 2, 1])
    data = toy.batches(4, dtype=F64)
    toy.train(model, optimizer, data[:3])
    traces = [optimizer.state[p]["meta_trace"].clone() for p in model.parameters()]
    toy.train(model, optimizer, data[3:])
    products = [(h * p.grad).sum().item() for h, p in zip(traces, model.parameters())]
    z = optimizer.meta_gradients()
    assert list(z) == ["block0", "block1", "block2"]
    wanted = [products[0], products[1] + products[2], products[3]]
    assert list(z.values()) == pytest.approx(wanted, rel=1e-12)


def test_inner_products_in_few_kernels():
    g = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (500,), (0, 2), (), (7, 1)]
    ones, others = ([torch.randn(shape, generator=g, dtype=F64) for shape in shapes] for _ in range(2))
    wanted = [(a * b).sum().item() for a, b in zip(ones, others)]
    for found in (dots(ones, others), foreach_dots(ones, others)):
        assert [value.item() for value in found] == pytest.approx(wanted, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize(
    ("blocks", "same"),
    [
        ([1, 1, 1, 1], "layerwise"),
        (lambda name, p: name, "layerwise"),
        ([4], "scalar"),
        ("group", "scalar"),
        (lambda name, p: 0, "scalar"),
        ([["0.weight", "0.bias", "2.weight", "2.bias"]], "scalar"),
        ([["2.bias"], ["0.weight"], ["2.weight"], ["0.bias"]], "layerwise"),
    ],
    ids=["ones", "by name", "one count", "group", "one key", "one list", "lists"],
)
def test_blocks_that_say_the_same_do_the_same(blocks, same):
    results = []
    for choice in (blocks, same):
        model = toy.network()
        optimizer = MetaAdamW(model.named_parameters(), lr=1e-2, meta_lr=0.05, blocks=choice)
        toy.train(model, optimizer, toy.batches(12))
        results.append((weights(model), sorted(optimizer.step_sizes().values())))
    assert results[0][1] == results[1][1]
    assert torch.equal(results[0][0], results[1][0])


def test_a_callable_groups_by_its_key():
    model = toy.network()
    optimizer = MetaAdamW(
        model.named_parameters(), blocks=lambda name, p: "bias" if p.ndim == 1 else "matrix"
    )
    assert set(optimizer.step_sizes()) == {"matrix", "bias"}


def test_nodewise_is_weightwise_where_a_parameter_has_one_dimension():
    results = []
    for blocks in ("nodewise", "weightwise"):
        w = nn.Parameter(torch.linspace(-1, 1, 7, dtype=F64))
        optimizer = MetaAdamW([w], lr=1e-2, meta_lr=0.05, blocks=blocks)
        for step in range(10):
            w.grad = w.detach() * torch.cos(torch.arange(7, dtype=F64) * step)
            optimizer.step()
        results.append((w.detach(), optimizer.step_sizes()["param0"]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert len(set(results[0][1].tolist())) > 2


def test_nodewise_has_one_step_size_for_each_row():
    """Each row runs as if it were a parameter with its own scalar step size."""
    g = torch.Generator().manual_seed(0)
    start, grads = torch.randn(3, 4, generator=g, dtype=F64), torch.randn(9, 3, 4, generator=g, dtype=F64)
    whole = nn.Parameter(start.clone())
    rows = [nn.Parameter(row.clone()) for row in start]
    options = {"lr": 1e-2, "weight_decay": 0.1, "meta_lr": 0.1, "meta": "adam"}
    together = MetaAdamW([whole], blocks="nodewise", **options)
    apart = MetaAdamW(rows, blocks="layerwise", **options)
    for grad in grads:
        whole.grad = grad.clone()
        for row, part in zip(rows, grad):
            row.grad = part.clone()
        together.step()
        apart.step()
    torch.testing.assert_close(whole.detach(), torch.stack(rows).detach(), rtol=1e-12, atol=0)
    sizes = torch.tensor(list(apart.step_sizes().values()), dtype=F64)
    torch.testing.assert_close(together.step_sizes()["param0"].squeeze(), sizes, rtol=1e-12, atol=0)


@pytest.mark.parametrize("blocks", ["scalar", "weightwise"])
def test_a_block_without_gradients_waits(blocks):
    model = toy.network()
    optimizer = MetaAdamW(
        model.parameters(), lr=1e-3, meta_lr=0.1, blocks=[2, 2] if blocks == "scalar" else blocks
    )
    data = toy.batches(8)
    toy.train(model, optimizer, data[:4])
    model[2].requires_grad_(False)
    waiting = model[2].weight
    before = optimizer.state[waiting]["meta_trace"].clone(), list(optimizer.step_sizes().values())[-1]
    toy.train(model, optimizer, data[4:])
    assert torch.equal(optimizer.state[waiting]["meta_trace"], before[0])
    assert torch.equal(torch.as_tensor(list(optimizer.step_sizes().values())[-1]), torch.as_tensor(before[1]))


# --- exactness


def test_tiny_steps_need_the_formula():
    """At a step of 1e-6 the change of a float32 weight keeps one digit, the optimizer's state all of them."""
    errors = {}
    for delta in ("analytic", "difference"):
        traces = []
        for dtype in (F64, torch.float32):
            g = torch.Generator().manual_seed(0)
            p = nn.Parameter(torch.randn(500, generator=g, dtype=F64).to(dtype))
            optimizer = MetaOptimize(
                torch.optim.AdamW([p], lr=1e-6, weight_decay=0.0), gamma=0.9, delta=delta, **STILL
            )
            for _ in range(100):
                p.grad = torch.randn(500, generator=g, dtype=F64).to(dtype)
                optimizer.step()
            traces.append(optimizer.state[p]["meta_trace"].to(F64))
        errors[delta] = ((traces[0] - traces[1]).norm() / traces[0].norm()).item()
    assert errors["analytic"] <= 1e-5
    assert 1e-3 < errors["difference"] < 1


@pytest.mark.parametrize(
    ("dtype", "lr", "base", "wanted"),
    [
        (torch.bfloat16, 1e-3, torch.optim.AdamW, "analytic"),
        (torch.float32, 1e-6, torch.optim.AdamW, "analytic"),
        (torch.float32, 1e-3, torch.optim.AdamW, "difference"),
        (torch.float32, 1e-6, torch.optim.Adadelta, "difference"),
        (torch.bfloat16, 1e-3, torch.optim.Adadelta, "scratch"),
    ],
)
def test_auto_takes_the_provider_that_is_exact_enough(dtype, lr, base, wanted):
    p = nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = MetaOptimize(base([p], lr=lr))
    assert "delta=auto" in repr(optimizer)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert f"delta={wanted}" in repr(optimizer)
    assert optimizer.state[p]["meta_trace"].dtype == torch.float32


def test_half_precision_traces_on_request():
    p = nn.Parameter(torch.ones(3))
    optimizer = MetaAdamW([p], lr=1e-3, state_dtype=torch.bfloat16)
    p.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.state[p]["meta_trace"].dtype == torch.bfloat16
    assert "delta=analytic" in repr(optimizer)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_tensor_for_lr_is_written_in_place(kind):
    """With lr as a tensor the step size never leaves the device, and training is the same."""
    results = []
    for rate in (1e-3, torch.tensor(1e-3, dtype=F64)):
        model = toy.network(dtype=F64)
        base = kind(model.parameters(), lr=rate, foreach=False, weight_decay=0.1)
        optimizer = MetaOptimize(base, meta_lr=0.05, blocks=[2, 2], delta="difference")
        toy.train(model, optimizer, toy.batches(10, dtype=F64))
        results.append((weights(model), list(optimizer.step_sizes().values())))
    assert isinstance(optimizer.base.param_groups[0]["lr"], torch.Tensor)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(1e-3)  # the user's own is not touched
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-12)
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-12, atol=0)


def skipped_after_step(optimizer):
    optimizer.step()
    return optimizer.skipped_meta_steps


def test_a_meta_gradient_that_is_not_finite_is_skipped_and_counted():
    for blocks in ("scalar", "weightwise"):
        w = nn.Parameter(torch.ones(2))
        optimizer = MetaSGD([w], lr=1e-3, blocks=blocks)
        for value in (1.0, 1.0, float("inf")):
            w.grad = torch.full((2,), value)
            if value == 1.0:
                optimizer.step()
                before = {k: torch.as_tensor(v).clone() for k, v in optimizer.step_sizes().items()}
        with pytest.warns(UserWarning, match="not finite"):
            assert skipped_after_step(optimizer) == 1
        assert all(torch.equal(torch.as_tensor(v), before[k]) for k, v in optimizer.step_sizes().items())
        assert optimizer.skipped_meta_steps == 1  # no second warning


# --- curvature from probes and from a second gradient


def test_probes_estimate_the_diagonal():
    """The mean over many seeds is the diagonal; a diagonal Hessian is met by a single probe."""
    matrix = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 3.0]], dtype=F64)

    def trace_after_two(a, **options):
        w = nn.Parameter(torch.ones(3, dtype=F64))
        base = torch.optim.SGD([w], lr=0.1)
        optimizer = MetaOptimize(base, blocks="weightwise", hessian="diag", **STILL, **options)
        for _ in range(2):
            optimizer.zero_grad()
            (0.5 * w @ a @ w).backward(create_graph=True)
            optimizer.step()
        return optimizer.state[w]["meta_trace"]

    exact = trace_after_two(matrix, probes="exact")
    diagonal = torch.diag(matrix)
    first = -0.1 * (matrix @ torch.ones(3, dtype=F64))
    second_gradient = matrix @ (1 + first)
    torch.testing.assert_close(
        exact, (1 - 0.1 * diagonal) * first - 0.1 * second_gradient, rtol=1e-13, atol=0
    )
    one = trace_after_two(torch.diag(diagonal), probes="exact")
    torch.testing.assert_close(one, trace_after_two(torch.diag(diagonal), probes=1), rtol=1e-13, atol=0)
    estimates = torch.stack([trace_after_two(matrix, probes=4, seed=seed) for seed in range(200)])
    assert (estimates.std(dim=0) > 0).any()
    deviation = estimates.std(dim=0) / math.sqrt(200) + 1e-12
    assert ((estimates.mean(dim=0) - exact).abs() <= 4 * deviation).all()
    assert torch.equal(trace_after_two(matrix, seed=5), trace_after_two(matrix, seed=5))


def test_a_second_gradient_gives_the_hessian_vector_product():
    traces = []
    for hessian in ("hvp", "finite_difference", "zero"):
        model = toy.network(dtype=F64)
        optimizer = MetaAdamW(
            model.parameters(), lr=1e-2, gamma=0.9, meta_lr=0.05, meta="adam", hessian=hessian
        )
        for x, y in toy.batches(10, dtype=F64):

            def closure(x=x, y=y, hessian=hessian, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward(create_graph=hessian == "hvp")
                return loss

            optimizer.step(closure)
        traces.append(torch.cat([optimizer.state[p]["meta_trace"].flatten() for p in model.parameters()]))
    exact, by_difference, without = traces
    assert (exact - without).norm() > 1e-3 * exact.norm()
    assert (exact - by_difference).norm() < 1e-5 * exact.norm()


def test_a_second_gradient_sees_the_same_dropout_and_leaves_no_trace():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3)).to(F64)
    optimizer = MetaSGD(model.parameters(), lr=1e-3, hessian="finite_difference", gamma=0.9)
    masks, gradients = [], []

    def closure():
        optimizer.zero_grad()
        hidden = model[1](torch.ones(40, dtype=F64))
        masks.append(hidden != 0)
        loss = (model[2](hidden * model[0](x)) - y).square().mean()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        return loss

    for x, y in toy.batches(3, dtype=F64):  # noqa: B007 - the closure reads them
        optimizer.step(closure)
    assert len(masks) == 5  # the first step has no trace to follow
    assert torch.equal(masks[1], masks[2])
    assert torch.equal(masks[3], masks[4])
    assert not torch.equal(masks[1], masks[3])
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients[3]))


# --- one compiled kernel


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler uses what torch.jit deprecates
@pytest.mark.parametrize("blocks", ["scalar", [2, 2]], ids=["scalar", "two"])
@pytest.mark.parametrize("name", ["adamw", "adam", "nesterov", "rmsprop", "lion", "plain"])
def test_compiled_steps_are_the_same(name, blocks, monkeypatch):
    from seedbed.optimizers import Lion

    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    make = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, maximize=True),
        "nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
        "lion": lambda p: Lion(p, lr=1e-3, weight_decay=0.1),
        "plain": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1),
    }[name]
    results = []
    for compiled in (False, True):
        model = toy.network()
        options = {"delta": "auto"} if compiled else {"delta": "difference"}
        optimizer = MetaOptimize(
            make(model.parameters()), meta_lr=0.01, gamma=0.99, blocks=blocks, compile=compiled, **options
        )
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        toy.train(model, optimizer, toy.batches(8), scheduler)
        trace = torch.cat([optimizer.state[p]["meta_trace"].flatten() for p in model.parameters()])
        results.append((weights(model), trace, list(optimizer.step_sizes().values())))
    (w, h, alpha), (w2, h2, alpha2) = results
    torch.testing.assert_close(w, w2, rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(h, h2, rtol=1e-3, atol=2e-5)
    assert alpha == pytest.approx(alpha2, rel=1e-6)
