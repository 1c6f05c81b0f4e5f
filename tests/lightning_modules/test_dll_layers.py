"""Layers, stacks and feed-forward networks of dendritic localized learning against the equations."""

import copy
import io
import math
import pickle
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from references import dll as reference
from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig, feedforward_layers
from seedbed.lightning_modules.dll.buffers import GradientBuffer
from seedbed.lightning_modules.dll.convolution import DLLConv1d, DLLConv2d
from seedbed.lightning_modules.dll.diagnostics import angles_to_backprop
from seedbed.lightning_modules.dll.functional import dll_gradients
from seedbed.lightning_modules.dll.layers import DLLLinear
from seedbed.lightning_modules.dll.networks import (
    Backpropagation,
    DendriticNetwork,
    DirectFeedbackAlignment,
    FeedbackAlignment,
    KolenPollack,
    SignSymmetry,
    differentiate,
)
from seedbed.lightning_modules.dll.optimizing import build_optimizer, schedule_factor
from seedbed.lightning_modules.dll.rules import RULES, build_network
from seedbed.lightning_modules.dll.sequential import DLLBranches, DLLSequential, build_layers
from seedbed.lightning_modules.dll.shaping import DLLAvgPool2d, DLLBatchNorm, DLLFlatten, DLLMaxPool2d

OUT = {"activation": "identity"}


@pytest.fixture(autouse=True)
def _float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def perceptron(sizes=(5, 7, 6, 3), *, output="softmax", clip_value=50.0, seed=0, **settings):
    layers = tuple(LayerSpec("linear", size) for size in sizes[1:-1])
    config = NetworkConfig(
        (*layers, LayerSpec("linear", sizes[-1], activation="identity")),
        (sizes[0],),
        output=output,
        weight_std=0.6,
        feedback_std=0.8,
        clip_value=clip_value,
        random_state=seed,
        **settings,
    )
    return DendriticNetwork.from_config(config)


def batch(rows=8, features=5, outputs=3, seed=1):
    source = draws(seed)
    x = torch.randn(rows, features, generator=source)
    target = torch.softmax(2 * torch.randn(rows, outputs, generator=source), 1)
    return x, target, torch.rand(rows, generator=source) * 2


def transport(network):
    """Θ := W, which only a test may do."""
    with torch.no_grad():
        for layer in network.body.weighted_layers():
            if layer.feedback is not None:
                layer.feedback.copy_(layer.weight)


def gradients(network):
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


# -- exact identities ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["inner", "outer"])
@pytest.mark.parametrize("output", ["softmax", "identity"])
@pytest.mark.parametrize(
    "activation", ["tanh", "sigmoid", "relu", "leaky_relu", "softplus", "gelu", "identity"]
)
def test_transported_feedback_is_backpropagation(form, output, activation):
    net = perceptron(form=form, output=output, activation=activation, bias=True, clip_value=None)
    transport(net)
    x, target, rows = batch()
    weights = [p for name, p in net.named_parameters() if "feedback" not in name]
    _, expected = differentiate(net, x, target, rows, weights, scale=2.0)
    net.learn(x, target, rows)
    for p, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["inner", "outer"])
@pytest.mark.parametrize("clip_value", [None, 0.3])
@pytest.mark.parametrize(
    "rule", ["hebbian", "anti_hebbian", "fixed", "kolen_pollack", "sign_symmetry", "dfa"]
)
def test_a_row_of_weight_two_counts_as_two_rows_and_of_weight_zero_as_none(rule, clip_value, form):
    """Also where errors meet their bound, and in Θ's update, which is of second order in the error."""
    others = {"sign_symmetry": SignSymmetry, "dfa": DirectFeedbackAlignment}
    build = others.get(rule, DendriticNetwork)
    config = NetworkConfig(
        (LayerSpec("linear", 7), LayerSpec("linear", 6), LayerSpec("linear", 3, **OUT)),
        (5,),
        feedback_rule=rule if build is DendriticNetwork else "hebbian",
        form=form,
        bias=True,
        clip_value=clip_value,
    )
    one, other = build.from_config(config), build.from_config(config)
    for net in (one, other):
        net.clip_value = None  # the bound on a sum is another one on each of two halves
    x, target, _ = batch()
    weight = torch.tensor([1.0, 2.0, 0.0, 1.0, 3.0, 1.0, 1.0, 0.0])
    a = one.learn(x, target, weight)
    times = weight.long()
    b = other.learn(x.repeat_interleave(times, 0), target.repeat_interleave(times, 0))
    assert float(a.loss) == pytest.approx(float(b.loss))
    found, expected = gradients(one), gradients(other)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-12)


def test_sigma_enters_as_stated():
    sigma = 1.7
    net = perceptron((5, 7, 3), sigma=sigma, clip_value=None)
    transport(net)
    x, target, _ = batch()
    weights = [layer.weight for layer in net.body.weighted_layers()]
    _, expected = differentiate(net, x, target, None, weights)
    net.learn(x, target)
    # e_{l} is scaled by σ^{-2} per layer it has passed, and every change by 2/σ².
    torch.testing.assert_close(weights[1].grad, 2 / sigma**2 * expected[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(weights[0].grad, 2 / sigma**4 * expected[0], rtol=0, atol=1e-12)


CONV = (
    LayerSpec("conv2d", 4, kernel_size=3, stride=2, padding=1),
    LayerSpec("max_pool2d", kernel_size=2, stride=1),
    LayerSpec("conv2d", 3, kernel_size=2),
    LayerSpec("avg_pool2d", kernel_size=3, stride=1, padding=1),
    LayerSpec("flatten"),
    LayerSpec("linear", 5),
    LayerSpec("linear", 3, activation="identity"),
)
TEXT = (
    LayerSpec(
        "branches",
        branches=tuple(
            (
                LayerSpec("conv1d", 4, kernel_size=height, activation="identity"),
                LayerSpec("global_avg_pool"),
                LayerSpec("activation", activation="tanh"),
            )
            for height in (2, 3)
        ),
    ),
    LayerSpec("linear", 5),
    LayerSpec("linear", 3, activation="identity"),
)
NESTED = (
    LayerSpec("linear", 6),
    LayerSpec(
        "branches",
        branches=((LayerSpec("linear", 3), LayerSpec("linear", 4)), (LayerSpec("linear", 2),)),
    ),
    LayerSpec("linear", 3, activation="identity"),
)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [(CONV, (2, 12, 12)), (TEXT, (5, 9)), (NESTED, (4,))],
    ids=["images", "text", "nested"],
)
@pytest.mark.parametrize("rule", ["transport", "hebbian"])
def test_any_architecture_is_backpropagation_under_transport(layers, shape, rule):
    config = NetworkConfig(layers, shape, bias=True, clip_value=None, weight_std=0.4)
    net = DendriticNetwork(DLLSequential(*build_layers(config, feedback_rule=rule)), "softmax", None)
    transport(net)
    source = draws(3)
    x = torch.randn(6, *shape, generator=source)
    target = torch.softmax(torch.randn(6, 3, generator=source), 1)
    rows = torch.rand(6, generator=source)
    weights = [p for name, p in net.named_parameters() if "feedback" not in name]
    _, expected = differentiate(net, x, target, rows, weights, scale=2.0)
    net.learn(x, target, rows)
    for p, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=0, atol=1e-12)


def test_top_layer_is_exact_for_any_feedback():
    net = perceptron(clip_value=None)
    x, target, _ = batch()
    top = net.body.weighted_layers()[-1].weight
    (expected,) = differentiate(net, x, target, None, [top], scale=2.0)[1]
    net.learn(x, target)
    torch.testing.assert_close(top.grad, expected, rtol=0, atol=1e-12)
    below = net.body.weighted_layers()[0].weight
    (far,) = differentiate(net, x, target, None, [below], scale=2.0)[1]
    assert functional.cosine_similarity(below.grad.flatten(), far.flatten(), dim=0) < 0.9


@pytest.mark.parametrize("form", ["inner", "outer"])
@pytest.mark.parametrize(("rule", "sign"), [("hebbian", 1.0), ("anti_hebbian", -1.0)])
@pytest.mark.parametrize("clip", [None, 0.8])
def test_equals_the_reference(form, rule, sign, clip):
    net = perceptron(form=form, feedback_rule=rule, bias=True, sigma=1.3, clip_value=clip)
    layers = net.body.weighted_layers()
    with torch.no_grad():
        for layer in layers:
            layer.bias.normal_(generator=draws(9))
    x, target, rows = batch()
    net.learn(x, target, rows)
    dW, dT, db, _ = reference.mlp_changes(
        [layer.weight.detach().numpy().T for layer in layers],
        [None if layer.feedback is None else layer.feedback.detach().numpy().T for layer in layers],
        x.numpy(),
        target.numpy(),
        form=form,
        sign=sign,
        sigma=1.3,
        clip=clip,
        biases=[layer.bias.detach().numpy() for layer in layers],
        rows=rows.numpy(),
    )
    for place, layer in enumerate(layers):
        np.testing.assert_allclose(-layer.weight.grad.numpy().T, dW[place], rtol=0, atol=1e-12)
        np.testing.assert_allclose(-layer.bias.grad.numpy(), db[place], rtol=0, atol=1e-12)
        if place:
            np.testing.assert_allclose(-layer.feedback.grad.numpy().T, dT[place], rtol=0, atol=1e-12)
    assert layers[0].feedback is None


# -- the deterministic oracle -------------------------------------------------------------------------------


def test_three_steps_of_the_oracle():
    wave = lambda n: torch.sin(1.7 * torch.arange(float(n)) + 0.3)
    net = DendriticNetwork(DLLSequential(DLLLinear(3, 4), DLLLinear(4, 2, **OUT)), "softmax")
    low, high = net.body.weighted_layers()
    with torch.no_grad():
        low.weight.copy_((0.5 * wave(12)).view(3, 4).T)
        high.weight.copy_((0.5 * wave(8)).view(4, 2).T)
        high.feedback.copy_((-wave(8) + 0.2).view(4, 2).T)
    x = torch.tensor([[0.5, -1, 2], [1, 0, -0.5]])
    target = torch.tensor([[0.95, 0.05], [0.05, 0.95]])
    close = lambda found, wanted: torch.testing.assert_close(
        found.detach(), torch.tensor(wanted), rtol=0, atol=1e-9
    )
    output = torch.softmax(net(x), 1)
    close(output, [[0.4365910542, 0.5634089458], [0.5452258356, 0.4547741644]])
    close(
        high.feedback_error(target - output),
        [
            [0.3151187156, -0.1247215864, -0.0739575070, 0.2677255546],
            [-0.3039583367, 0.1203043935, 0.0713381964, -0.2582436722],
        ],
    )
    optimizer = build_optimizer(net, "adam", lr=1e-2, feedback_lr_ratio=0.1)
    twins = {"W1": reference.Adam(1e-2), "W2": reference.Adam(1e-2), "T2": reference.Adam(1e-3)}
    values = {"W1": low.weight, "W2": high.weight, "T2": high.feedback}
    values = {name: value.detach().numpy().T.copy() for name, value in values.items()}
    for _ in range(3):
        net.learn(x, target)
        optimizer.step()
        dW, dT, _, _ = reference.mlp_changes(
            [values["W1"], values["W2"]], [None, values["T2"]], x.numpy(), target.numpy()
        )
        for name, change in (("W1", dW[0]), ("W2", dW[1]), ("T2", dT[1])):
            values[name] = twins[name].step(values[name], change)
    close(
        high.weight.T,
        [
            [0.1777887281, 0.4246200886],
            [-0.2949671479, -0.3563331663],
            [0.3344520170, 0.3224910996],
            [-0.4098068216, -0.2091556995],
        ],
    )
    close(
        high.feedback.T,
        [
            [-0.0925209771, -0.7122966564],
            [0.7268364173, 0.9757642111],
            [-0.5319692933, -0.3819169397],
            [1.0826950482, 0.5552299940],
        ],
    )
    assert float(low.weight.detach().sum()) == pytest.approx(0.1040210653, abs=1e-9)
    np.testing.assert_allclose(low.weight.detach().numpy().T, values["W1"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "expected"), [("hebbian", 0.7653091927386976), ("anti_hebbian", 0.6392275420933023)]
)
def test_scalar_feedback_dynamics(rule, expected):
    layer = DLLLinear(1, 1, feedback_rule=rule, **OUT)
    with torch.no_grad():
        layer.feedback.fill_(0.7)
    for _ in range(5):
        layer(torch.ones(1, 1))
        layer.local_update(torch.full((1, 1), 0.3))
        with torch.no_grad():
            layer.feedback -= 0.1 * layer.feedback.grad
    assert layer.feedback.item() == pytest.approx(expected, abs=1e-14)


# -- locality -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["dll", "fa", "dfa", "sign_symmetry", "kolen_pollack"])
def test_no_graph_exists_while_learning(rule, monkeypatch):
    config = NetworkConfig(CONV, (1, 12, 12), weight_std=0.3)
    net = build_network(rule, config)
    target = torch.eye(3)
    x = torch.randn(3, 1, 12, 12, generator=draws())
    seen = []
    original = DLLSequential.learn

    def watch(self, e_top, *args):
        seen.append(e_top.grad_fn)
        for layer in self:
            seen.extend(tensor.grad_fn for tensor in layer.recalled())
        return original(self, e_top, *args)

    monkeypatch.setattr(DLLSequential, "learn", watch)
    with torch.inference_mode():
        net.learn(x, target)
        inside = gradients(net)
    assert seen
    assert not any(seen)
    step = net.learn(x, target)  # and with autograd on
    assert step.output.grad_fn is None
    assert step.loss.grad_fn is None
    assert not any(seen)
    assert all(p.requires_grad for name, p in net.named_parameters() if name.endswith("weight"))
    for name, gradient in gradients(net).items():
        torch.testing.assert_close(gradient, inside[name], rtol=0, atol=0)


def test_an_update_uses_only_its_own_synapse():
    def swept(corrupt=None):
        net = perceptron((5, 7, 6, 4, 3))
        x, target, _ = batch()
        e = target - torch.softmax(net(x), 1)
        layers = net.body.weighted_layers()
        if corrupt is not None:
            corrupt(layers)
        net.body.learn(e)
        return gradients(net)

    def given(corrupt):
        """ΔW of layer 0 for one and the same error at its output."""
        net = perceptron((5, 7, 6, 4, 3))
        x, _, _ = batch()
        net(x)
        layers = net.body.weighted_layers()
        corrupt(layers)
        layers[0].local_update(torch.randn(8, 7, generator=draws(4)))
        return layers[0].weight.grad

    @torch.no_grad()
    def upper(layers):
        for layer in layers[2:]:
            layer.weight.fill_(math.nan)
            layer.feedback.fill_(math.nan)
            layer._saved = tuple(torch.full_like(tensor, math.nan) for tensor in layer._saved)

    assert torch.equal(given(lambda layers: None), given(upper))

    @torch.no_grad()
    def forward_weights(layers):
        for layer in layers:
            layer.weight.normal_(generator=draws(8))

    clean, corrupted = swept(), swept(forward_weights)
    for name, gradient in clean.items():
        assert torch.equal(gradient, corrupted[name]), name


def test_feedback_is_never_a_copy_of_the_weights():
    net = perceptron((20, 300, 200, 10))
    for layer in net.body.weighted_layers()[1:]:
        assert layer.weight.data_ptr() != layer.feedback.data_ptr()
        assert abs(float(layer.alignment())) < 4 / math.sqrt(layer.weight.numel())


# -- dynamics -----------------------------------------------------------------------------------------------


def test_hebbian_feedback_under_sgd():
    def chain(clip_value):
        layers = [DLLLinear(1, 1, clip_value=clip_value, **OUT) for _ in range(2)]
        net = DendriticNetwork(DLLSequential(*layers), "identity", clip_value)
        with torch.no_grad():
            for layer, value in zip(net.body.weighted_layers(), (0.0, 0.0), strict=True):
                layer.weight.fill_(value)
            layers[1].feedback.fill_(0.5)
        return net, layers[1]

    net, top = chain(None)
    with pytest.raises(ValueError, match=r"hebbian.*allow_unstable"):
        build_optimizer(net, "sgd", lr=0.1)
    with pytest.raises(ValueError, match="hebbian"):
        build_optimizer(net, lambda groups: torch.optim.SGD(groups, lr=0.1))
    with pytest.warns(UserWarning, match="hebbian"):
        build_optimizer(chain(50.0)[0], "sgd")
    optimizer = build_optimizer(net, "sgd", lr=0.1, feedback_lr_ratio=1.0, allow_unstable=True)
    for _ in range(40):
        net.learn(torch.zeros(1, 1), torch.ones(1, 1))
        optimizer.step()
    # Each step multiplies Θ by 1 + 2 η e² with e = 1.
    assert top.feedback.item() == pytest.approx(0.5 * 1.2**40, rel=1e-10)
    assert top.feedback.item() > 10 * 0.5
    build_optimizer(perceptron(feedback_rule="anti_hebbian", clip_value=None), "sgd")


def test_scale_of_fixed_feedback_does_not_matter_under_adam():
    def trained(factor):
        net = perceptron(feedback_rule="fixed", clip_value=None)
        with torch.no_grad():
            for layer in net.body.weighted_layers()[1:]:
                layer.feedback *= factor
        optimizer = torch.optim.Adam(net.parameter_groups(1e-2), eps=1e-30)
        x, target, _ = batch()
        for _ in range(50):
            net.learn(x, target)
            optimizer.step()
        return [layer.weight.detach() for layer in net.body.weighted_layers()]

    for one, seven in zip(trained(1.0), trained(7.0), strict=True):
        torch.testing.assert_close(one, seven, rtol=0, atol=1e-6)


def test_kolen_pollack_brings_feedback_and_weights_together():
    lr, decay = 0.05, 0.3
    config = perceptron_config(options={"weight_decay": decay})
    net = KolenPollack.from_config(config)
    layer = net.body.weighted_layers()[1]
    before = (layer.weight - layer.feedback).detach().clone()
    x, target, _ = batch()
    optimizer = build_optimizer(net, "sgd", lr=lr)
    assert {group["lr"] for group in optimizer.param_groups} == {lr}
    for _ in range(20):
        net.learn(x, target)
        assert torch.equal(layer.weight.grad, layer.feedback.grad)
        optimizer.step()
    torch.testing.assert_close(
        layer.weight - layer.feedback, (1 - lr * decay) ** 20 * before, rtol=1e-9, atol=1e-12
    )
    assert isinstance(build_optimizer(net, "adam"), torch.optim.AdamW)


# -- comparison rules ---------------------------------------------------------------------------------------


def perceptron_config(sizes=(5, 7, 6, 3), **settings):
    hidden = tuple(LayerSpec("linear", size) for size in sizes[1:-1])
    output = LayerSpec("linear", sizes[-1], activation="identity")
    return NetworkConfig(
        (*hidden, output), (sizes[0],), **{"weight_std": 0.5, "clip_value": None, **settings}
    )


def test_feedback_alignment_is_fixed_feedback():
    fa = FeedbackAlignment.from_config(perceptron_config(feedback_init="normal"))
    fixed = DendriticNetwork.from_config(perceptron_config(feedback_rule="fixed"))
    x, target, _ = batch()
    optimizers = [build_optimizer(net, lr=1e-2) for net in (fa, fixed)]
    for _ in range(3):
        for net, optimizer in zip((fa, fixed), optimizers, strict=True):
            net.learn(x, target)
            optimizer.step()
    for (name, one), (_, other) in zip(fa.named_parameters(), fixed.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    signs = FeedbackAlignment.from_config(perceptron_config()).body.weighted_layers()[1].feedback
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert [group["name"] for group in fa.parameter_groups(0.1)] == ["forward"]


def test_direct_feedback_alignment():
    config = perceptron_config((5, 7, 3), feedback_init="normal")
    fa, dfa = FeedbackAlignment.from_config(config), DirectFeedbackAlignment.from_config(config)
    with torch.no_grad():
        dfa.direct[0].copy_(fa.body.weighted_layers()[1].feedback)
        for one, other in zip(dfa.body.weighted_layers(), fa.body.weighted_layers(), strict=True):
            one.weight.copy_(other.weight)
    x, target, rows = batch()
    for net in (fa, dfa):
        net.learn(x, target, rows)
    for one, other in zip(dfa.body.weighted_layers(), fa.body.weighted_layers(), strict=True):
        torch.testing.assert_close(one.weight.grad, other.weight.grad, rtol=0, atol=1e-14)

    deep = DirectFeedbackAlignment.from_config(perceptron_config((5, 7, 6, 4, 3)))
    assert [tuple(matrix.shape) for matrix in deep.direct] == [(3, 7), (3, 6), (3, 4)]
    e = target - torch.softmax(deep(x), 1)
    deep.learn(x, target)
    states, drives = reference.mlp_forward(
        [layer.weight.detach().numpy().T for layer in deep.body.weighted_layers()], x.numpy()
    )
    delta = e.numpy() @ deep.direct[0].numpy() * (1 - np.tanh(drives[0]) ** 2)
    np.testing.assert_allclose(
        -deep.body.weighted_layers()[0].weight.grad.numpy().T, 2 * states[0].T @ delta, rtol=0, atol=1e-12
    )
    signs = DirectFeedbackAlignment.from_config(perceptron_config(feedback_std=0.3)).direct[0]
    assert signs.unique().tolist() == pytest.approx([-0.3, 0.3])
    images = DirectFeedbackAlignment.from_config(NetworkConfig(CONV, (2, 12, 12)))
    images.learn(torch.randn(3, 2, 12, 12, generator=draws()), torch.eye(3))
    assert [tuple(matrix.shape) for matrix in images.direct] == [(3, 4 * 5 * 5), (3, 48), (3, 5)]


def test_sign_symmetry():
    net = SignSymmetry.from_config(perceptron_config(feedback_std=0.3))
    x, target, _ = batch()
    net.learn(x, target)
    layers = net.body.weighted_layers()
    dW, _, _, _ = reference.mlp_changes(
        [layer.weight.detach().numpy().T for layer in layers],
        [0.3 * np.sign(layer.weight.detach().numpy().T) for layer in layers],
        x.numpy(),
        target.numpy(),
    )
    np.testing.assert_allclose(-layers[0].weight.grad.numpy().T, dW[0], rtol=0, atol=1e-12)
    assert all(layer.feedback is None for layer in layers)


@pytest.mark.parametrize("rule", ["dll", "fa", "dfa", "sign_symmetry", "kolen_pollack", "bp"])
def test_every_rule_keeps_the_contract(rule):
    config = perceptron_config(clip_value=0.5)
    net = build_network(rule, config)
    x, target, rows = batch()
    step = net.learn(x, target, rows)
    assert torch.equal(step.output, net(x))
    assert float(step.loss) == pytest.approx(
        float((rows * -(target * torch.log_softmax(net(x), 1)).sum(1)).sum() / rows.sum())
    )
    moved = [p for group in net.parameter_groups(0.1) for p in group["params"]]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in moved)
    assert all(p.grad.abs().max() <= 0.5 for p in moved)
    whole = build_network(rule, replace(config, clip_value=None))
    whole.learn(x, target, clip=False)
    total = gradients(whole)
    halves = [build_network(rule, replace(config, clip_value=None)) for _ in range(2)]
    for half, rows_of in zip(halves, (slice(0, 3), slice(3, 8)), strict=True):
        half.learn(x[rows_of], target[rows_of])
    for name in total:
        summed = sum(dict(half.named_parameters())[name].grad for half in halves)
        if "feedback" not in name or rule == "kolen_pollack":
            torch.testing.assert_close(summed, total[name], rtol=0, atol=1e-12)
    for row in range(8):  # a row of weight zero is a row left out
        rows = torch.ones(8).index_fill_(0, torch.tensor([row]), 0.0)
        whole.learn(x, target, rows)
        weighted = gradients(whole)
        kept = [other for other in range(8) if other != row]
        whole.learn(x[kept], target[kept])
        for name, gradient in gradients(whole).items():
            torch.testing.assert_close(weighted[name], gradient, rtol=0, atol=1e-12)


def test_backpropagation_is_autograd():
    net = Backpropagation.from_config(perceptron_config())
    x, target, rows = batch()
    net.learn(x, target, rows)
    logits = net.evaluate(x)
    loss = 2 * (rows * functional.cross_entropy(logits, target, reduction="none")).sum()
    weights = [layer.weight for layer in net.body.weighted_layers()]
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=0, atol=1e-12)


def test_angles_to_backpropagation():
    net = perceptron(clip_value=None)
    x, target, rows = batch()
    net.learn(x, target, rows)
    angles = angles_to_backprop(net, x, target, rows)
    assert float(angles["body.layers.2.weight"]) < 1e-4
    transport(net)
    net.learn(x, target, rows)
    assert all(float(angle) < 1e-4 for angle in angles_to_backprop(net, x, target, rows).values())


def test_every_rule_is_listed_with_its_criteria():
    assert set(RULES) == {
        *("dll", "fa", "dfa", "sign_symmetry", "kolen_pollack", "bp"),
        *("pc", "pc_fa", "ipc", "dtp", "ep", "ff", "softhebb", "local_loss"),
    }
    dll = RULES["dll"]
    assert (dll.separate_weights, dll.local_error, dll.single_phase) == ("yes", "yes", "yes")
    with pytest.raises(ValueError, match="learning_rule must be one of 'dll', 'fa'"):
        build_network("hebb", perceptron_config())
    recurrent = NetworkConfig(
        (LayerSpec("recurrent", 4), LayerSpec("linear", 2, activation="identity")), (3,)
    )
    with pytest.raises(ValueError, match=r"'dfa' cannot train.*'rnn'.*'dll'"):
        build_network("dfa", recurrent)


# -- layers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), (1, 2)])
def test_convolution_equals_explicit_sums(stride, padding):
    layer = DLLConv2d(
        2,
        3,
        3,
        stride,
        padding,
        weight_std=0.5,
        feedback_std=0.7,
        clip_value=None,
        bias=True,
        generator=draws(),
    )
    x = torch.randn(2, 2, 7, 6, generator=draws(1))
    y = layer(x)
    K, Theta = layer.weight.detach().numpy(), layer.feedback.detach().numpy()
    z = reference.conv_forward(x.numpy(), K, stride, padding)
    np.testing.assert_allclose(y.numpy(), np.tanh(z), atol=1e-13)
    e = torch.randn(y.shape, generator=draws(2))
    e_in = layer.feedback_error(e)
    layer.local_update(e)
    delta = e.numpy() * (1 - np.tanh(z) ** 2)
    down = reference.conv_error_down(delta, Theta, x.shape, stride, padding)
    np.testing.assert_allclose(e_in.numpy(), down, atol=1e-12)
    change = 2 * reference.conv_kernel_change(x.numpy(), delta, 3, stride, padding)
    np.testing.assert_allclose(-layer.weight.grad.numpy(), change, atol=1e-12)
    change = 2 * reference.conv_kernel_change(down, delta, 3, stride, padding)
    np.testing.assert_allclose(-layer.feedback.grad.numpy(), change, atol=1e-12)
    np.testing.assert_allclose(-layer.bias.grad.numpy(), 2 * delta.sum((0, 2, 3)), atol=1e-12)


def test_scrambled_kernel_change_is_unrelated():
    """The released code reshapes without permuting; what comes out has little to do with the sum above."""
    layer = DLLConv2d(2, 4, 3, weight_std=0.5, feedback_std=0.5, clip_value=None, generator=draws())
    x = torch.randn(16, 2, 8, 8, generator=draws(1))
    y = layer(x)
    e = torch.randn(y.shape, generator=draws(2))
    e_in = layer.feedback_error(e)
    layer.local_update(e)
    delta = e * (1 - y**2)
    patches = functional.unfold(e_in, 3)  # (B, C k², P)
    scrambled = patches.reshape(18, -1) @ delta.reshape(4, -1).T
    cosine = functional.cosine_similarity(
        -layer.feedback.grad.flatten(), scrambled.reshape(layer.feedback.shape).flatten(), dim=0
    )
    assert abs(float(cosine)) < 0.35
    right = torch.einsum("bcp,bfp->fc", patches, delta.flatten(2)).reshape(layer.feedback.shape)
    torch.testing.assert_close(-layer.feedback.grad, 2 * right, rtol=0, atol=1e-11)


def test_one_dimensional_convolution_is_the_two_dimensional_one_of_height_one():
    one = DLLConv1d(2, 3, 4, 2, 1, weight_std=0.5, generator=draws())
    two = DLLConv2d(2, 3, (1, 4), (1, 2), (0, 1), weight_std=0.5, generator=draws())
    x = torch.randn(5, 2, 9, generator=draws(1))
    y, y2 = one(x), two(x.unsqueeze(2))
    torch.testing.assert_close(y, y2.squeeze(2))
    e = torch.randn(y.shape, generator=draws(2))
    torch.testing.assert_close(one.feedback_error(e), two.feedback_error(e.unsqueeze(2)).squeeze(2))
    one.local_update(e)
    two.local_update(e.unsqueeze(2))
    torch.testing.assert_close(one.feedback.grad, two.feedback.grad.squeeze(2))


@pytest.mark.parametrize("layer", [DLLMaxPool2d(3, 2, 1), DLLAvgPool2d(3, 2, 1), DLLFlatten()])
def test_shaping_layers_send_the_adjoint(layer):
    x = torch.randn(2, 3, 7, 8, generator=draws(), requires_grad=True)
    y = layer.evaluate(x)
    e = torch.randn(y.shape, generator=draws(1))
    (expected,) = torch.autograd.grad(y, x, e)
    layer(x)
    torch.testing.assert_close(layer.feedback_error(e), expected)


def test_average_pool_may_repeat_the_error():
    mean, total = DLLAvgPool2d(2), DLLAvgPool2d(2, scale="sum")
    x, e = torch.randn(1, 1, 4, 4, generator=draws()), torch.randn(1, 1, 2, 2, generator=draws(1))
    mean(x), total(x)
    torch.testing.assert_close(4 * mean.feedback_error(e), total.feedback_error(e))


def test_batch_norm_has_statistics_only():
    layer = DLLBatchNorm(3)
    assert not list(layer.parameters())
    x = 5 + 2 * torch.randn(200, 3, generator=draws())
    y = layer(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(3), atol=1e-10, rtol=0)
    e = torch.randn(200, 3, generator=draws(1))
    assert torch.equal(layer.feedback_error(e), e)
    assert not torch.equal(layer.eval()(x), y)


def test_errors_are_bounded_and_the_share_is_measured():
    layer = DLLLinear(4, 3, clip_value=0.5, feedback_std=5.0, generator=draws())
    layer.monitor = True
    y = layer(torch.randn(50, 4, generator=draws(1)))
    e = torch.randn(y.shape, generator=draws(2))
    e_in = layer.feedback_error(e)
    assert float(e_in.abs().max()) == 0.5
    assert float(layer.clipped) == pytest.approx(float((e_in.abs() == 0.5).double().mean()), abs=1e-6)


def test_update_alone_equals_update_in_a_sweep():
    net = perceptron()
    x, target, _ = batch()
    e = target - torch.softmax(net(x), 1)
    top = net.body.weighted_layers()[-1]
    top.local_update(e)
    alone = top.feedback.grad.clone()
    net.body.learn(e)
    assert torch.equal(top.feedback.grad, alone)


def test_functional_twin(monkeypatch):
    # Dynamo cannot trace the shape checks that the tests switch on.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for rule in ("hebbian", "anti_hebbian"):
        net = perceptron(feedback_rule=rule, sigma=1.2, clip_value=2.0)
        x, target, _ = batch()
        step = net.learn(x, target)
        layers = net.body.weighted_layers()
        weights = [layer.weight.detach() for layer in layers]
        feedbacks = [layer.feedback.detach() for layer in layers[1:]]
        settings = {"feedback_rule": rule, "sigma": 1.2, "clip_value": 2.0}
        for function in (dll_gradients, torch.compile(dll_gradients, backend="aot_eager")):
            dW, dT, loss = function(weights, feedbacks, x, target, **settings)
            torch.testing.assert_close(loss, step.loss)
            for layer, gradient in zip(layers, dW, strict=True):
                torch.testing.assert_close(layer.weight.grad, gradient)
            for layer, gradient in zip(layers[1:], dT, strict=True):
                torch.testing.assert_close(layer.feedback.grad, gradient)


# -- bookkeeping --------------------------------------------------------------------------------------------


def test_gradients_lie_in_one_buffer():
    net = perceptron()
    x, target, _ = batch()
    net.learn(x, target)
    views = [p.grad for p in net.parameters()]
    flat = net._buffer.active
    assert all(view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for view in views)
    assert all(view.data_ptr() % 64 == flat.data_ptr() % 64 for view in views)
    pointers = [view.data_ptr() for view in views]
    before = gradients(net)
    net.zero_grad(set_to_none=True)
    net.learn(x, target)
    assert [p.grad.data_ptr() for p in net.parameters()] == pointers
    assert all(torch.equal(before[name], gradient) for name, gradient in gradients(net).items())
    net.float()
    net.learn(x.float(), target.float())
    assert all(p.grad.dtype == torch.float32 for p in net.parameters())
    net.reduce_updates(lambda flat: flat * 2)
    torch.testing.assert_close(
        gradients(net), {name: 2 * g.float() for name, g in before.items()}, rtol=1e-5, atol=1e-6
    )


def test_buffer_collects_assigned_gradients_and_skips_none():
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(5))]
    buffer = GradientBuffer()
    buffer.attach(parameters)
    parameters[0].grad.fill_(1.0)
    parameters[1].grad = torch.full((2, 2), 2.0)
    parameters[2].grad = None
    buffer.collect()
    assert len(buffer.active) == 128
    assert float(buffer.active.sum()) == 3 + 8
    parameters[1].grad.zero_()
    assert float(buffer.active.sum()) == 3


def test_resting_feedback_has_no_gradient():
    net = perceptron()
    optimizer = build_optimizer(net, lr=1e-2)
    x, target, _ = batch()
    net.learn(x, target)
    optimizer.step()
    layer = net.body.weighted_layers()[1]
    rest = layer.feedback.detach().clone()
    longer = len(net._buffer.active)
    net.update_feedback = False
    net.learn(x, target)
    assert layer.feedback.grad is None
    assert len(net._buffer.active) < longer
    optimizer.step()
    assert torch.equal(layer.feedback, rest)
    net.update_feedback = True
    net.learn(x, target)
    optimizer.step()
    assert not torch.equal(layer.feedback, rest)


def test_copies_and_pickles_stand_alone():
    net = perceptron()
    x, target, _ = batch()
    net.learn(x, target)
    expected = gradients(net)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        other.learn(x, target)
        assert other._buffer.active.data_ptr() != net._buffer.active.data_ptr()
        other.reduce_updates(lambda flat: flat.zero_())
        assert all(torch.equal(gradient, expected[name]) for name, gradient in gradients(net).items())
        assert all(not gradient.any() for gradient in gradients(other).values())
    # Neither gradients nor activations travel along.
    size = len(pickle.dumps(perceptron()))
    assert len(pickle.dumps(net)) < size + 1000
    net(torch.randn(10_000, 5, generator=draws()))
    assert len(pickle.dumps(net)) < size + 1000


def test_state_round_trip():
    one, other = perceptron(seed=0), perceptron(seed=1)
    stream = io.BytesIO()
    torch.save(one.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True))
    x, _, _ = batch()
    assert torch.equal(one(x), other(x))


def test_initial_weights_come_from_the_seed_alone():
    before = torch.get_rng_state()
    one, same, other = (perceptron(seed=seed) for seed in (3, 3, 4))
    x, target, _ = batch()
    one.learn(x, target)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one.body.weighted_layers()[1].feedback, same.body.weighted_layers()[1].feedback)
    assert not torch.equal(one.body.weighted_layers()[1].feedback, other.body.weighted_layers()[1].feedback)
    big = NetworkConfig(
        (LayerSpec("linear", 400), LayerSpec("linear", 300, activation="identity")), (10,), random_state=0
    )
    layer = DendriticNetwork.from_config(big).body.weighted_layers()[1]
    assert float(layer.weight.detach().std()) == pytest.approx(0.05, rel=0.02)
    assert float(layer.feedback.detach().std()) == pytest.approx(1.0, rel=0.02)


def test_outer_form_is_the_same_function():
    x, _, _ = batch()
    inner, outer = perceptron(form="inner"), perceptron(form="outer")
    torch.testing.assert_close(inner(x), outer(x))


def test_schedules():
    assert [schedule_factor("linear", 5, epoch) for epoch in (0, 1, 5)] == pytest.approx([1.0, 0.8, 0.0])
    assert schedule_factor("cosine", 4, 2) == pytest.approx(0.5)
    assert schedule_factor("none", 4, 3) == 1.0


# -- errors -------------------------------------------------------------------------------------------------


def test_learning_needs_a_forward_in_training_mode():
    net = perceptron()
    x, target, _ = batch()
    e = torch.zeros(8, 3)
    with pytest.raises(RuntimeError, match="forward in training mode"):
        net.body.learn(e)
    net(x)
    net.eval()
    net(x)
    with pytest.raises(RuntimeError, match="forward in training mode"):
        net.body.learn(e)
    net.train()
    net.learn(x, target)
    with pytest.raises(RuntimeError, match="forward in training mode"):
        net.body.learn(e)


def test_learning_refuses_a_graph_at_the_top_and_drops_it_below():
    net = perceptron()
    x, _target, _ = batch()
    net(x)
    e = torch.zeros(8, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="DLL needs no autograd"):
        net.body.learn(e)
    layer = net.body.weighted_layers()[-1]
    e_in = layer.feedback_error(e * 1.0)
    layer.local_update(e * 1.0)
    assert e_in.grad_fn is None
    assert layer.weight.grad.grad_fn is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_non_finite_error_names_its_layer(place):
    net = perceptron()
    x, target, _ = batch()
    if place == 2:
        target = target.clone()
        target[0, 0] = math.nan
    else:
        with torch.no_grad():
            net.body.weighted_layers()[place + 1].feedback[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match=f"layer {place} "):
        net.learn(x, target)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"activation": "swish"}, "activation must be one of 'tanh'"),
        ({"form": "upper"}, "form must be one of 'inner', 'outer'"),
        ({"feedback_rule": "oja"}, "feedback_rule must be one of 'hebbian'"),
        ({"feedback_init": "ones"}, "feedback_init must be one of"),
        ({"sigma": 0.0}, r"sigma must be in \(0"),
        ({"clip_value": 0.0}, r"clip_value must be in \(0"),
        ({"clip_value": -1.0}, r"clip_value must be in \(0"),
        ({"weight_std": -1.0}, "weight_std"),
        ({"feedback_std": math.inf}, "feedback_std"),
    ],
)
def test_layer_arguments_are_checked(kwargs, match):
    with pytest.raises(ValueError, match=match):
        DLLLinear(3, 2, **kwargs)
    with pytest.raises(ValueError, match=match):
        perceptron_config(**kwargs)


def test_sizes_are_checked():
    for wrong in (0, -3):
        with pytest.raises(ValueError, match="out_features must be in"):
            DLLLinear(3, wrong)
    with pytest.raises(ValueError, match="kernel_size must be an integer or 2"):
        DLLConv2d(1, 1, (3, 3, 3))
    with pytest.raises(ValueError, match="stride"):
        DLLConv2d(1, 1, 3, stride=0)
    layer = DLLConv2d(1, 2, 5)
    with pytest.raises(ValueError, match="smaller than the kernel"):
        layer(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"3 features or channels.*\(2, 4\)"):
        DLLLinear(3, 2)(torch.zeros(2, 4))
    with pytest.raises(RuntimeError, match="needs_feedback=False"):
        bottom = DLLLinear(3, 2, needs_feedback=False)
        bottom(torch.zeros(1, 3))
        bottom.feedback_error(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="at least one layer"):
        DLLSequential()
    with pytest.raises(TypeError, match="DLL layers"):
        DLLSequential(nn.Linear(2, 2))
    shared = DLLLinear(3, 3)
    with pytest.raises(ValueError, match="twice"):
        DLLSequential(shared, shared)
    with pytest.raises(TypeError, match="DLLSequential"):
        DLLBranches(shared)


def test_shapes_are_worked_out_at_construction():
    def built(*layers, shape=(1, 8, 8)):
        return feedforward_layers(hidden_layer_sizes=None, layers=layers, input_shape=shape, num_outputs=10)

    with pytest.raises(
        ValueError, match=r"layer 1 \(conv2d\).*shape \(4, 2, 2\).*\(-1, -1\)|layer 1.*\(0, 0\)"
    ):
        built(
            {"kind": "conv2d", "size": 4, "kernel_size": 7}, {"kind": "conv2d", "size": 4, "kernel_size": 3}
        )
    with pytest.raises(ValueError, match=r"layer 1 \(linear\).*flat.*\(4, 6, 6\)"):
        built({"kind": "conv2d", "size": 4, "kernel_size": 3}, {"kind": "linear", "size": 5})
    with pytest.raises(ValueError, match=r"channels first.*64"):
        built({"kind": "conv2d", "size": 4, "kernel_size": 3}, shape=(64,))
    with pytest.raises(ValueError, match=r"keys.*filters"):
        built({"kind": "conv2d", "filters": 4})
    with pytest.raises(ValueError, match="kind must be one of"):
        built({"kind": "attention"})
    with pytest.raises(ValueError, match="needs a 'kind'"):
        built({"size": 4})
    with pytest.raises(TypeError, match="mapping"):
        built(64)
    with pytest.raises(ValueError, match="at least one entry"):
        built()
    with pytest.raises(ValueError, match="either hidden_layer_sizes or layers"):
        feedforward_layers(hidden_layer_sizes=[3], layers=[], input_shape=(3,), num_outputs=2)
    layers = built({"kind": "conv2d", "size": 4, "kernel_size": 3}, {"kind": "max_pool2d", "kernel_size": 2})
    assert [layer.kind for layer in layers] == ["conv2d", "max_pool2d", "flatten", "linear"]
    with pytest.raises(ValueError, match="steps"):
        DendriticNetwork.from_config(perceptron_config(options={"steps": 3}))
