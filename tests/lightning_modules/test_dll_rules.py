"""The comparison rules against plain readings of their equations, exact limits and autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from references import dll_rules as plain
from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
from seedbed.lightning_modules.dll.rules import RULES, build_network

MLP = (LayerSpec("linear", 6), LayerSpec("linear", 5), LayerSpec("linear", 3, activation="identity"))
CNN = (
    LayerSpec("conv2d", 4, kernel_size=3, padding=1),
    LayerSpec("max_pool2d", kernel_size=2),
    LayerSpec("conv2d", 5, kernel_size=2, stride=1),
    LayerSpec("avg_pool2d", kernel_size=2, stride=1),
    LayerSpec("flatten"),
    LayerSpec("linear", 6),
    LayerSpec("linear", 3, activation="identity"),
)
MINE = ("pc", "pc_fa", "ipc", "dtp", "ep", "ff", "softhebb", "local_loss")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network_of(rule, layers=MLP, input_shape=(4,), **changes):
    options = {"weight_std": 0.5, "clip_value": None, "random_state": 1, **changes}
    return build_network(rule, NetworkConfig(layers, input_shape, **options)).double()


def batch(input_shape=(4,), rows=7, outputs=3):
    x = normal(rows, *input_shape, seed=2)
    target = torch.softmax(normal(rows, outputs, seed=3), dim=1)
    return x, target


def weights_of(network):
    return [stage.head.weight.detach().numpy() for stage in network.stages]


def cosine(a, b):
    return float(functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def backprop_gradients(network, x, target):
    """Gradients of the loss's sum over the batch with respect to the stages' weights, by autograd."""
    bare = []
    h = x
    for stage in network.stages:
        weight = stage.head.weight.detach().clone().requires_grad_()
        bare.append(weight)
        kind = functional.linear if weight.ndim == 2 else None
        if kind:
            h = functional.linear(h, weight)
        else:
            h = functional.conv2d(h, weight, stride=stage.head.stride, padding=stage.head.padding)
        h = torch.tanh(h) if stage is not network.stages[-1] else h
        for layer in stage.tail or ():
            h = layer.evaluate(h)
    loss = -(target * torch.log_softmax(h, 1)).sum()
    return torch.autograd.grad(loss, bare)


# --- predictive coding


@pytest.mark.parametrize(("layers", "shape"), [(MLP, (4,)), (CNN, (2, 8, 8))])
def test_settled_predictive_coding_is_backpropagation(layers, shape):
    network = network_of("pc", layers, shape, options={"n_steps": 500})
    x, target = batch(shape)
    network.learn(x, target)
    for stage, gradient in zip(network.stages, backprop_gradients(network, x, target)):
        assert cosine(stage.head.weight.grad, gradient) > 0.999
        torch.testing.assert_close(stage.head.weight.grad, 2 * gradient, rtol=1e-9, atol=1e-12)


def test_unsettled_predictive_coding_is_not_backpropagation():
    network = network_of("pc", options={"n_steps": 3})
    x, target = batch()
    network.learn(x, target)
    truth = backprop_gradients(network, x, target)
    # Three steps at rate .2: e = (1 - .8³) of the error one stage down.
    torch.testing.assert_close(network.stages[1].head.weight.grad, 2 * (1 - 0.8**3) * truth[1])


@pytest.mark.parametrize(("rule", "steps"), [("pc", 1), ("pc", 4), ("pc_fa", 6)])
def test_predictive_coding_equals_the_plain_reading(rule, steps):
    network = network_of(rule, options={"n_steps": steps, "rate": 0.3})
    x, target = batch()
    network.learn(x, target)
    weights = weights_of(network)
    feedback = (
        weights if rule == "pc" else [None, *(s.head.feedback.detach().numpy() for s in network.stages[1:])]
    )
    expected = [np.zeros_like(w) for w in weights]
    for row, t in zip(x.numpy(), target.numpy()):
        for total, change in zip(
            expected, plain.predictive_coding(row, t, weights, feedback, steps, 0.3), strict=True
        ):
            total += change
    for stage, change in zip(network.stages, expected, strict=True):
        found = stage.head.weight.grad
        found = np.zeros_like(change) if found is None else found.numpy()
        np.testing.assert_allclose(found, -2 * change, rtol=1e-10, atol=1e-12)


def test_predictive_coding_by_random_weights_settles_to_feedback_alignment():
    x, target = batch()
    settled = network_of("pc_fa", options={"n_steps": 500})
    aligned = network_of("fa", feedback_init="normal")
    aligned.load_state_dict(
        {
            name.replace("stages.", "net.layers.").replace("head.", ""): value
            for name, value in settled.state_dict().items()
        },
        strict=False,
    )
    heads = [module for module in aligned.modules() if hasattr(module, "feedback_rule")]
    for head, stage in zip(heads, settled.stages, strict=True):
        head.weight.data.copy_(stage.head.weight)
        if head.feedback is not None:
            head.feedback.data.copy_(stage.head.feedback)
    settled.learn(x, target)
    aligned.learn(x, target)
    for head, stage in zip(heads, settled.stages, strict=True):
        torch.testing.assert_close(stage.head.weight.grad, head.weight.grad, rtol=1e-9, atol=1e-12)


def test_one_sweep_scales_the_gradient_by_the_rate_per_stage():
    network = network_of("ipc", options={"rate": 0.5})
    x, target = batch()
    network.learn(x, target)
    for height, (stage, gradient) in enumerate(
        zip(reversed(network.stages), reversed(backprop_gradients(network, x, target)))
    ):
        torch.testing.assert_close(stage.head.weight.grad, 2 * 0.5**height * gradient)


def test_incremental_predictive_coding_takes_one_step_only():
    with pytest.raises(ValueError, match=r"n_steps must be in \[1, 1\]"):
        network_of("ipc", options={"n_steps": 2})


# --- equilibrium propagation


def gentle(layers=MLP, shape=(4,), **options):
    settings = {"free_steps": 400, "nudged_steps": 400, "nudge": 1e-3, **options}
    return network_of("ep", layers, shape, weight_std=0.2, options=settings)


def settled_gradients(network, x, target, steps=400):
    """Gradient of the loss at the free equilibrium, by autograd through the whole settling."""
    free = [stage.head.weight.detach().clone().requires_grad_() for stage in network.stages]
    *hidden, top = free
    states = [x.new_zeros(len(x), weight.shape[0]) for weight in hidden]
    for _ in range(steps):
        moved = []
        for place, weight in enumerate(hidden):
            drive = (x if place == 0 else states[place - 1]) @ weight.T
            if place + 1 < len(hidden):
                drive = drive + states[place + 1] @ hidden[place + 1]
            moved.append(torch.tanh(drive))
        states = moved
    loss = -(target * torch.log_softmax(states[-1] @ top.T, 1)).sum()
    return torch.autograd.grad(loss, free)


def test_equilibrium_propagation_tends_to_the_gradient_as_the_nudge_vanishes():
    x, target = batch()
    truth = settled_gradients(gentle(), x, target)
    misses = []
    for nudge in (0.4, 0.2, 1e-3):
        network = gentle(nudge=nudge)
        network.learn(x, target)
        found = [stage.head.weight.grad for stage in network.stages]
        misses.append(max(float((a - b).abs().max()) for a, b in zip(found, truth, strict=True)))
    assert misses[2] < 1e-6
    # Nudging both ways leaves an error of second order.
    assert 3 < misses[0] / misses[1] < 5


def test_equilibrium_propagation_with_one_hidden_layer_is_backpropagation():
    layers = (MLP[0], MLP[2])
    network = gentle(layers, nudge=1e-4)
    x, target = batch()
    network.learn(x, target)
    for stage, gradient in zip(network.stages, backprop_gradients(network, x, target), strict=True):
        torch.testing.assert_close(stage.head.weight.grad, gradient, rtol=1e-5, atol=1e-7)


def test_free_states_equal_the_plain_reading():
    network = gentle()
    x, _ = batch()
    states = network.settle(x, steps=300)[1:]
    for row, *found in zip(x.numpy(), *(state.numpy() for state in states)):
        for a, b in zip(found, plain.settle(row, weights_of(network), 300), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_nudged_states_equal_the_plain_reading():
    network = gentle()
    x, target = batch()
    states = network.settle(x, steps=300, nudge=0.7, target=target)[1:]
    for row, t, *found in zip(x.numpy(), target.numpy(), *(state.numpy() for state in states)):
        expected = plain.settle(row, weights_of(network), 300, nudge=0.7, target=t)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_equilibrium_propagation_through_convolutions_and_pools():
    """Against a finite difference of the loss at the free equilibrium."""
    network = gentle(CNN, (2, 8, 8), nudge=1e-3, free_steps=80, nudged_steps=80)
    x, target = batch((2, 8, 8), rows=3)
    network.learn(x, target)
    network.eval()
    for stage in network.stages:
        weight = stage.head.weight
        gradient = weight.grad.clone()
        place = int(gradient.abs().argmax())
        losses = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight.view(-1)[place] += step
                losses.append(network.loss(network(x), target) * len(x))
                weight.view(-1)[place] -= step
        slope = float(losses[0] - losses[1]) / 2e-5
        assert slope == pytest.approx(float(gradient.view(-1)[place]), rel=1e-3)


def test_equilibrium_propagation_needs_a_bounded_activation():
    with pytest.raises(ValueError, match="activation among"):
        network_of("ep", activation="relu")


# --- target propagation


def test_difference_targets_equal_the_plain_reading():
    network = network_of("dtp", options={"step": 0.3, "noise": 0.0})
    x, target = batch()
    weights = weights_of(network)
    inverses = [None, *(v.detach().numpy().T for v in network.inverses)]
    expected = [np.zeros_like(w) for w in weights[:-1]]
    for row, t in zip(x.numpy(), target.numpy()):
        states, targets = plain.difference_targets(row, t, weights, inverses, 0.3)
        for layer, total in enumerate(expected):
            h = states[layer + 1]
            total += np.outer(2 * (h - targets[layer + 1]) * (1 - h**2), states[layer])
    network.learn(x, target)
    for stage, gradient in zip(network.stages, expected):
        np.testing.assert_allclose(stage.head.weight.grad.numpy(), gradient, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        network.stages[-1].head.weight.grad, backprop_gradients(network, x, target)[-1]
    )


def test_exact_inverses_of_linear_stages_move_the_output_as_the_gauss_newton_step_does():
    """Square linear stages, ``V = W⁻¹``: every target maps to the top target exactly."""
    layers = (LayerSpec("linear", 4), LayerSpec("linear", 4), LayerSpec("linear", 3, activation="identity"))
    network = network_of("dtp", layers, activation="identity", options={"step": 0.2})
    x, target = batch()
    W = network.stages[1].head.weight
    with torch.no_grad():
        network.inverses[0].copy_(torch.linalg.inv(W).T)
        h1 = x @ network.stages[0].head.weight.T
        h2 = h1 @ W.T
        states = [x, h1, h2, network(x)]
        error = network.top_error(states[-1], target)
        low, high = network.targets(states, error)
    torch.testing.assert_close(low @ W.T, high)
    # J⁺ (t - h) is the Gauss-Newton step of ‖f(h₁) - t₂‖².
    step = torch.linalg.lstsq(W.detach(), (high - h2).T).solution.T
    torch.testing.assert_close(low - h1, step)


@pytest.mark.parametrize("top", ["gradient", "inverse"])
@pytest.mark.parametrize(("layers", "shape"), [(MLP, (4,)), (CNN, (2, 8, 8))])
def test_inverses_descend_their_reconstruction_loss(layers, shape, top):
    network = network_of("dtp", layers, shape, options={"noise": 0.0, "top": top})
    x, target = batch(shape)
    with torch.no_grad():
        states = [x]
        for stage in network.stages:
            states.append(stage(states[-1]))
    network.learn(x, target)
    for place, inverse in enumerate(network.inverses, start=1):
        gradient = inverse.grad.clone()

        def loss(place=place):
            stage, h = network.stages[place], states[place]
            code = stage(h)
            return float(((network.invert(place, code, h) - h) ** 2).sum())

        at = int(gradient.abs().argmax())
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                inverse.view(-1)[at] += step
                values.append(loss())
                inverse.view(-1)[at] -= step
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(gradient.view(-1)[at]), rel=1e-5)


def test_noise_comes_from_the_networks_own_generator_and_resumes():
    x, target = batch()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one = network_of("dtp")
    one.learn(x, target)
    copy = network_of("dtp", random_state=9)
    copy.load_state_dict(one.state_dict())
    one.learn(x, target)
    copy.learn(x, target)
    assert torch.equal(one.inverses[0].grad, copy.inverses[0].grad)
    assert torch.equal(before, torch.random.get_rng_state())


# --- forward-forward


@pytest.mark.parametrize(("layers", "shape"), [(MLP, (4,)), (CNN, (2, 8, 8))])
def test_forward_forward_descends_each_layers_own_loss(layers, shape):
    network = network_of("ff", layers, shape)
    x, target = batch(shape)
    state = network.generator.get_state()
    step = network.learn(x, target)
    found = [stage.head.weight.grad.clone() for stage in network.stages]
    draw = torch.Generator()
    draw.set_state(state)
    right = target.argmax(1)
    wrong = (right + torch.randint(1, 3, right.shape, generator=draw)) % 3
    assert (wrong != right).all()
    total = 0.0
    inputs = [network.label(x, right), network.label(x, wrong)]
    for stage, gradient in zip(network.stages, found, strict=True):
        weight = stage.head.weight.detach().clone().requires_grad_()
        outputs = []
        for h in inputs:
            norm = h.flatten(1).norm(dim=1).clamp_min(1e-8).view(-1, *[1] * (h.ndim - 1))
            h = h / norm * h[0].numel() ** 0.5
            if weight.ndim == 2:
                h = functional.linear(h, weight)
            else:
                h = functional.conv2d(h, weight, stride=stage.head.stride, padding=stage.head.padding)
            h = torch.relu(h)
            for layer in stage.tail or ():
                h = layer.evaluate(h)
            outputs.append(h)
        n = outputs[0][0].numel()
        margins = [10.0 / n**0.5 * ((h**2).flatten(1).sum(1) - 0.1 * n) for h in outputs]
        nothing = torch.zeros(())
        loss = torch.logaddexp(nothing, -margins[0]) + torch.logaddexp(nothing, margins[1])
        (expected,) = torch.autograd.grad(loss.sum(), weight)
        torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-10)
        total += float(loss.detach().mean())
        inputs = [h.detach() for h in outputs]
    assert float(step.loss) == pytest.approx(total)


def test_forward_forward_reads_out_the_goodness_of_every_label():
    network = network_of("ff").eval()
    x, _ = batch()
    logits = network(x)
    for label in range(3):
        activities = network.activities(x, torch.full((len(x),), label))
        torch.testing.assert_close(logits[:, label], sum(network.goodness(h) for h in activities))


def test_forward_forward_refuses_what_it_cannot_contrast():
    with pytest.raises(ValueError, match="output='identity'"):
        network_of("ff", output="identity")
    with pytest.raises(ValueError, match="at least one hidden layer"):
        network_of("ff", MLP[2:])


# --- SoftHebb


@pytest.mark.parametrize("anti", [False, True])
def test_softhebb_equals_the_plain_equation(anti):
    network = network_of("softhebb", options={"temperature": 0.7, "anti_hebbian": anti})
    x, target = batch()
    h = x.numpy()
    network.learn(x, target)
    for stage in network.stages:
        W = stage.head.weight.detach().numpy()
        rows = (h - h.mean(1, keepdims=True)) / h.std(1, keepdims=True)
        expected = sum(plain.soft_hebb(row, W, 0.7, anti=anti) for row in rows)
        np.testing.assert_allclose(stage.head.weight.grad.numpy(), -expected, rtol=1e-9, atol=1e-12)
        u = rows @ W.T
        h = np.maximum(u - u.mean(1, keepdims=True), 0)


def test_softhebb_of_a_convolution_sums_the_equation_over_positions():
    network = network_of("softhebb", CNN, (2, 8, 8))
    x, target = batch((2, 8, 8), rows=2)
    network.learn(x, target)
    W = network.stages[0].head.weight.detach()
    rows = (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True, correction=0)
    patches = functional.unfold(rows, 3, padding=1).transpose(1, 2).reshape(-1, W[0].numel())
    flat = W.flatten(1).numpy()
    expected = sum(plain.soft_hebb(patch, flat, 1.0, anti=False) for patch in patches.numpy())
    np.testing.assert_allclose(
        network.stages[0].head.weight.grad.flatten(1).numpy(), -expected, rtol=1e-9, atol=1e-12
    )


def test_softhebb_weights_settle_at_unit_norm():
    network = network_of("softhebb", (LayerSpec("linear", 3), MLP[2]), (6,))
    x, target = batch((6,), rows=200)
    optimizer = torch.optim.SGD(list(network.stages.parameters()), lr=1e-3)
    for _ in range(1500):
        network.learn(x, target)
        optimizer.step()
    weight = network.stages[0].head.weight
    # At rest Δw = 0: w_k = Σ y x / Σ y u, so that u-weighted means of the drive are one unit of norm squared.
    assert float(weight.grad.abs().max()) < 1e-3 * len(x)
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(3, dtype=weight.dtype), atol=0.02, rtol=0)


def test_softhebb_features_do_not_see_the_target():
    x, target = batch()
    one, other = network_of("softhebb"), network_of("softhebb")
    one.learn(x, target)
    other.learn(x, target.roll(1, dims=1))
    assert torch.equal(one.stages[0].head.weight.grad, other.stages[0].head.weight.grad)
    assert not torch.equal(one.readout.grad, other.readout.grad)


# --- local losses


@pytest.mark.parametrize("output", ["softmax", "identity"])
@pytest.mark.parametrize(("layers", "shape"), [(MLP, (4,)), (CNN, (2, 8, 8))])
def test_local_loss_is_the_gradient_of_each_classifiers_loss(layers, shape, output):
    network = network_of("local_loss", layers, shape, output=output)
    x, target = batch(shape)
    network.learn(x, target)
    *hidden, top = network.stages
    classifiers = [*network.classifiers, top.head.weight]
    h = x
    for stage, classifier in zip(hidden, classifiers, strict=True):
        weight = stage.head.weight.detach().clone().requires_grad_()
        readout = classifier.detach().clone().requires_grad_()
        if weight.ndim == 2:
            h = functional.linear(h, weight)
        else:
            h = functional.conv2d(h, weight, stride=stage.head.stride, padding=stage.head.padding)
        h = torch.tanh(h)
        for layer in stage.tail or ():
            h = layer.evaluate(h)
        logits = h.flatten(1) @ readout.T
        if output == "softmax":
            loss = -(target * torch.log_softmax(logits, 1)).sum()
        else:
            loss = 0.5 * ((target - logits) ** 2).sum()
        expected = torch.autograd.grad(loss, [weight, readout])
        torch.testing.assert_close(stage.head.weight.grad, expected[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(classifier.grad, expected[1], rtol=1e-9, atol=1e-12)
        h = h.detach()


# --- all of them


@pytest.mark.parametrize("rule", MINE)
@pytest.mark.parametrize(("layers", "shape"), [(MLP, (4,)), (CNN, (2, 8, 8))])
def test_nothing_carries_a_graph(rule, layers, shape):
    """A training step runs in inference mode, where autograd cannot record."""
    network = network_of(rule, layers, shape)
    x, target = batch(shape)
    with torch.inference_mode():
        step = network.learn(x, target)
        assert network(x).grad_fn is None
    assert step.loss.grad_fn is None
    assert all(not p.grad.requires_grad for p in network.parameters() if p.grad is not None)
    assert any(p.grad is not None for p in network.parameters())
    step = network.learn(x, target)
    assert step.loss.grad_fn is None
    assert network(x).grad_fn is None


@pytest.mark.parametrize("rule", MINE)
@pytest.mark.parametrize(("layers", "shape"), [(MLP, (4,)), (CNN, (2, 8, 8))])
def test_a_row_of_weight_two_counts_as_two_rows_and_of_weight_zero_as_none(rule, layers, shape):
    options = {"noise": 0.0} if rule == "dtp" else {}
    x, target = batch(shape)
    weight = torch.tensor([1, 2, 0, 1, 1, 1, 1], dtype=torch.float64)
    repeated = weight.long()
    one, other = (network_of(rule, layers, shape, options=options) for _ in range(2))
    if rule == "ff":  # the same wrong label for the same row
        fixed = torch.ones(len(x), dtype=torch.int64)
        one_draw, other_draw = fixed, fixed.repeat_interleave(repeated)
        draws = iter([one_draw, other_draw])

        def randint(*_, **__):
            return next(draws)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randint", randint)
            a = one.learn(x, target, weight)
            b = other.learn(x.repeat_interleave(repeated, 0), target.repeat_interleave(repeated, 0))
    else:
        a = one.learn(x, target, weight)
        b = other.learn(x.repeat_interleave(repeated, 0), target.repeat_interleave(repeated, 0))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-8, atol=1e-10)
    assert float(a.loss) == pytest.approx(float(b.loss))


@pytest.mark.parametrize("rule", MINE)
def test_unknown_option_and_outer_form_are_refused(rule):
    with pytest.raises(ValueError, match="rule_options must be among"):
        network_of(rule, options={"unheard_of": 1})
    with pytest.raises(ValueError, match="form='inner'"):
        network_of(rule, form="outer")


@pytest.mark.parametrize("rule", sorted(set(MINE) - {"pc", "pc_fa", "ipc", "local_loss"}))
def test_layers_without_a_definition_are_refused(rule):
    layers = (*CNN[:2], LayerSpec("batch_norm"), *CNN[2:])
    with pytest.raises(ValueError, match="no layers of the kind 'batch_norm'"):
        network_of(rule, layers, (2, 8, 8))


@pytest.mark.parametrize("rule", MINE)
def test_initial_weights_depend_on_the_seed_alone(rule):
    config = NetworkConfig(MLP, (4,), random_state=3)
    torch.manual_seed(0)
    one = build_network(rule, config)
    torch.manual_seed(1)
    two = build_network(rule, config)
    other = build_network(rule, replace(config, random_state=4))
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q)
    assert any(not torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("rule", MINE)
@pytest.mark.parametrize(("layers", "shape"), [(MLP, (4,)), (CNN, (2, 8, 8))])
def test_the_differentiable_form_is_the_network(rule, layers, shape):
    network = network_of(rule, layers, shape).eval()
    x, _ = batch(shape)
    output = network.evaluate(x)
    assert (output is None) == (rule in ("ep", "ff", "softhebb"))
    if output is not None:
        assert output.requires_grad
        torch.testing.assert_close(output.detach(), network(x))
    assert bool(network.alignments()) == (rule == "pc_fa")


def test_every_rule_says_which_criteria_it_meets():
    assert set(MINE) < set(RULES)
    assert [r for r in RULES.values() if r.separate_weights == r.local_error == r.single_phase == "yes"]
    assert RULES["bp"].separate_weights == RULES["bp"].local_error == RULES["bp"].single_phase == "no"
