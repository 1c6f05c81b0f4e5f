"""The recurrent network of dendritic localized learning against the equations."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from references import dll as reference
from references import dll_rules
from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
from seedbed.lightning_modules.dll.layers import DLLLinear
from seedbed.lightning_modules.dll.networks import DendriticNetwork, differentiate
from seedbed.lightning_modules.dll.recurrent import DLLRNN, DendriticRNN, FeedbackAlignmentRNN
from seedbed.lightning_modules.dll.rules import RULES, build_network
from seedbed.lightning_modules.dll.sequential import DLLSequential


@pytest.fixture(autouse=True)
def _float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def network(*, output="identity", clip_value=None, **settings):
    settings = {"weight_std": 0.5, "feedback_std": 0.6, **settings}
    return DendriticRNN(DLLRNN(3, 5, 2, generator=draws(), **settings), output, clip_value)


def sequences(rows=4, steps=6, seed=1):
    source = draws(seed)
    return torch.randn(rows, steps, 3, generator=source), torch.randn(rows, steps, 2, generator=source)


def transport(body):
    with torch.no_grad():
        body.feedback_hh.copy_(body.weight_hh)
        body.feedback_ho.copy_(body.weight_ho)


def matrices(body):
    names = ("weight_ih", "weight_hh", "weight_ho", "feedback_ho", "feedback_hh")
    return [getattr(body, name).detach().numpy().T for name in names]


@pytest.mark.parametrize("output", ["identity", "softmax"])
@pytest.mark.parametrize("activation", ["tanh", "softplus"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_transported_feedback_is_backpropagation_through_time(output, activation, batch_first):
    net = network(
        output=output, activation=activation, bias=True, initial_state="random", batch_first=batch_first
    )
    transport(net.body)
    x, target = sequences()
    if output == "softmax":
        target = torch.softmax(target, -1)
    if not batch_first:
        x, target = x.transpose(0, 1), target.transpose(0, 1)
    rows = torch.rand(target.shape[:2], generator=draws(2))
    weights = [p for name, p in net.named_parameters() if "feedback" not in name]
    assert len(weights) == 5
    _, expected = differentiate(net, x, target, rows, weights)
    net.learn(x, target, rows)
    for p, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", ["anti_hebbian", "hebbian", "fixed", "kolen_pollack"])
def test_a_sequence_of_weight_two_counts_as_two_and_of_weight_zero_as_none(rule):
    one, other = (network(feedback_rule=rule, bias=True) for _ in range(2))
    x, target = sequences()
    weight = torch.tensor([1.0, 2.0, 0.0, 3.0])
    times = weight.long()
    one.learn(x, target, weight)
    other.learn(x.repeat_interleave(times, 0), target.repeat_interleave(times, 0))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rule", "sign"), [("anti_hebbian", -1.0), ("hebbian", 1.0)])
@pytest.mark.parametrize("reach", [None, 1, 3, 6, 9])
def test_equals_the_reference(rule, sign, reach):
    net = network(feedback_rule=rule, truncate=reach)
    x, target = sequences()
    weights = torch.rand(4, 6, generator=draws(2))
    changes, hidden = reference.rnn_changes(
        *matrices(net.body), x.numpy(), target.numpy(), sign=sign, reach=reach, weights=weights.numpy()
    )
    np.testing.assert_allclose(
        net(x).numpy(), (hidden[1:] @ matrices(net.body)[2]).swapaxes(0, 1), atol=1e-13
    )
    net.learn(x, target, weights)
    names = {
        "Wx": "weight_ih",
        "Wh": "weight_hh",
        "Wy": "weight_ho",
        "Ty": "feedback_ho",
        "Th": "feedback_hh",
    }
    for short, name in names.items():
        found = -getattr(net.body, name).grad.numpy().T
        np.testing.assert_allclose(found, changes[short], rtol=0, atol=1e-12, err_msg=name)


def test_length_one_is_a_perceptron():
    net = network(feedback_rule="hebbian")
    body = net.body
    twin = DendriticNetwork(
        DLLSequential(DLLLinear(3, 5), DLLLinear(5, 2, activation="identity")), "identity", None
    )
    low, high = twin.body.weighted_layers()
    with torch.no_grad():
        low.weight.copy_(body.weight_ih)
        high.weight.copy_(body.weight_ho)
        high.feedback.copy_(body.feedback_ho)
    x, target = sequences(steps=1)
    net.learn(x, target)
    twin.learn(x[:, 0], target[:, 0])
    for ours, theirs in (
        (body.weight_ih, low.weight),
        (body.weight_ho, high.weight),
        (body.feedback_ho, high.feedback),
    ):
        # The perceptron's changes carry 2/σ², those of the recurrent network do not.
        torch.testing.assert_close(2 * ours.grad, theirs.grad, rtol=0, atol=1e-12)
    assert not body.feedback_hh.grad.any()
    assert not body.weight_hh.grad.any()


def test_padding_changes_nothing():
    net = network(feedback_rule="hebbian")
    x, target = sequences()
    net.learn(x, target)
    expected = {name: p.grad.clone() for name, p in net.named_parameters()}
    longer = torch.cat([x, torch.full((4, 3, 3), 7.0)], 1)
    weights = torch.cat([torch.ones(4, 6), torch.zeros(4, 3)], 1)
    net.learn(longer, torch.cat([target, torch.full((4, 3, 2), 9.0)], 1), weights)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=0, atol=1e-12)


def test_batches_of_any_size():
    net = network()
    x, target = sequences(rows=7)
    net.learn(x, target)
    whole = {name: p.grad.clone() for name, p in net.named_parameters()}
    parts = dict.fromkeys(whole, 0.0)
    for rows in (slice(0, 4), slice(4, 7)):
        net.learn(x[rows], target[rows])
        parts = {name: parts[name] + p.grad for name, p in net.named_parameters()}
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=0, atol=1e-12)


def test_tokens_are_one_hot_vectors():
    net = network(bias=True)
    tokens = torch.randint(3, (4, 6), generator=draws(3))
    _, target = sequences()
    assert torch.allclose(net(tokens), net(functional.one_hot(tokens, 3).double()))
    net.learn(tokens, target)
    expected = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.learn(functional.one_hot(tokens, 3).double(), target)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=0, atol=1e-12)


def test_noise_multiplies_the_errors_of_hidden_units():
    x, target = sequences()
    quiet, noisy = network(), network(noise=0.5)
    quiet.learn(x, target)
    noisy.seed(5)
    before = noisy.state_dict()["_extra_state"]
    noisy.learn(x, target)
    assert torch.equal(quiet.body.weight_ho.grad, noisy.body.weight_ho.grad)
    assert not torch.allclose(quiet.body.weight_hh.grad, noisy.body.weight_hh.grad)
    first = noisy.body.weight_hh.grad.clone()
    noisy.learn(x, target)
    assert not torch.equal(first, noisy.body.weight_hh.grad)
    twin = copy.deepcopy(noisy)
    twin.load_state_dict({**twin.state_dict(), "_extra_state": before})
    twin.learn(x, target)
    assert torch.equal(first, twin.body.weight_hh.grad)
    # One step long, the factor can be read off: it lies in [.5, 1.5].
    x, target = sequences(rows=1, steps=1)
    quiet.learn(x, target), noisy.learn(x, target)
    factor = noisy.body.weight_ih.grad[:, 0] / quiet.body.weight_ih.grad[:, 0]
    assert 0.5 <= float(factor.min()) < 1 < float(factor.max()) <= 1.5


def config(**settings):
    layers = (LayerSpec("recurrent", 5), LayerSpec("linear", 2, activation="identity"))
    return NetworkConfig(
        layers, (3,), **{"output": "identity", "weight_std": 0.5, "feedback_std": 0.1, **settings}
    )


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.sequence_network])
def test_every_sequence_rule_learns(rule):
    net = build_network(rule, config(feedback_rule="anti_hebbian"))
    x = torch.randn(16, 8, 3, generator=draws(1))
    target = torch.cat([torch.zeros(16, 1, 2), x[:, :-1, :2]], 1)  # remember the last input
    optimizer = torch.optim.Adam(net.parameter_groups(1e-2))
    losses = []
    for _ in range(150):
        losses.append(float(net.learn(x, target).loss))
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_feedback_alignment_is_fixed_feedback():
    fa = FeedbackAlignmentRNN.from_config(config(feedback_init="normal"))
    fixed = DendriticRNN.from_config(config(feedback_rule="fixed"))
    x, target = sequences()
    fa.learn(x, target)
    fixed.learn(x, target)
    for (name, one), (_, other) in zip(fa.named_parameters(), fixed.named_parameters(), strict=True):
        assert torch.equal(one, other), name
        if one.requires_grad:
            assert torch.equal(one.grad, other.grad), name
    signs = FeedbackAlignmentRNN.from_config(config()).body.feedback_hh
    assert signs.abs().unique().tolist() == pytest.approx([0.1])


def test_kolen_pollack_and_rates():
    net = build_network("kolen_pollack", config(options={"weight_decay": 0.1}))
    net.learn(*sequences())
    assert torch.equal(net.body.feedback_hh.grad, net.body.weight_hh.grad)
    assert torch.equal(net.body.feedback_ho.grad, net.body.weight_ho.grad)
    assert [(group["lr"], group["weight_decay"]) for group in net.parameter_groups(0.2)] == [(0.2, 0.1)] * 2
    dll = DendriticRNN.from_config(config(feedback_rule="anti_hebbian"))
    assert [group["lr"] for group in dll.parameter_groups(0.2)] == [0.2, 0.2]
    assert set(dll.alignments()) == {"hidden", "output"}
    dll.update_feedback = False
    dll.learn(*sequences())
    assert dll.body.feedback_hh.grad is None
    assert dll.body.weight_hh.grad is not None


def test_initial_state_is_per_unit():
    net = network(initial_state="random")
    assert net.body.initial.shape == (5,)
    assert net.body.initial.abs().min() > 0
    assert "body.initial" in net.state_dict()
    assert not network().body.initial.any()


def test_no_graph_and_no_global_draws():
    net = network(noise=0.3)
    net.seed(0)
    before = torch.get_rng_state()
    with torch.inference_mode():
        net.learn(*sequences())
    step = net.learn(*sequences())
    assert step.output.grad_fn is None
    assert all(p.grad.grad_fn is None for p in net.parameters())
    assert torch.equal(before, torch.get_rng_state())


def test_errors():
    net = network()
    x, target = sequences()
    body = net.body
    with pytest.raises(RuntimeError, match="forward in training mode"):
        body.learn(target)
    body(x)
    with pytest.raises(RuntimeError, match="DLL needs no autograd"):
        body.learn(target.clone().requires_grad_())
    body.eval()
    body(x)
    with pytest.raises(RuntimeError, match="forward in training mode"):
        body.learn(target)
    body.train()
    broken = target.clone()
    broken[0, 0, 0] = math.inf
    with pytest.raises(FloatingPointError, match="hidden units"):
        net.learn(x, broken)
    for kwargs in ({"truncate": 0}, {"noise": 1.5}, {"feedback_rule": "oja"}, {"initial_state": "ones"}):
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            DLLRNN(3, 5, 2, **kwargs)
    for sizes in ((0, 5, 2), (3, 0, 2), (3, 5, 0)):
        with pytest.raises(ValueError, match="_size must be in"):
            DLLRNN(*sizes)
    with pytest.raises(ValueError, match=r"\(batch, time, 3\)"):
        body(torch.zeros(4, 6, 2))
    with pytest.raises(ValueError, match=r"among.*'truncate'.*got.*'depth'"):
        DendriticRNN.from_config(config(options={"depth": 3}))
    deep = (LayerSpec("recurrent", 5), LayerSpec("linear", 4), LayerSpec("linear", 2, activation="identity"))
    with pytest.raises(ValueError, match="one recurrent layer"):
        DendriticRNN.from_config(NetworkConfig(deep, (3,)))


# -- predictive coding --------------------------------------------------------------------------------


def sequence_config(**settings):
    layers = (LayerSpec("recurrent", 5), LayerSpec("linear", 2, activation="identity"))
    settings = {"weight_std": 0.5, "feedback_std": 0.6, "clip_value": None, "bias": True, **settings}
    return NetworkConfig(layers, (3,), output="identity", **settings)


def gradients(net):
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("pc", {"n_steps": 7, "rate": 0.2}),
        ("pc_fa", {"n_steps": 3, "rate": 0.4}),
        ("ipc", {"rate": 0.6}),
        ("pc", {}),
    ],
)
def test_errors_settle_step_by_step(rule, options):
    net = build_network(rule, sequence_config(options=options))
    x, target = sequences()
    output, (_, hidden, slopes) = net.body.transform(x)
    e_y = (target - output).transpose(0, 1).detach().numpy()
    slopes = 1 - slopes.detach().numpy() ** 2
    down_y, down_h = (net.body.feedback_matrix(name).numpy() for name in ("ho", "hh"))
    n_steps, rate = options.get("n_steps", net.n_steps), options.get("rate", net.rate)
    assert (net.n_steps, net.rate) == (n_steps, rate)
    errors = dll_rules.recurrent_predictive_coding(e_y, slopes, down_y, down_h, n_steps, rate)
    delta = errors * slopes
    net.learn(x, target)
    hidden = hidden.detach().numpy()
    expected = {
        "weight_hh": np.einsum("tbi,tbj->ij", delta, hidden[:-1]),
        "weight_ih": np.einsum("tbi,tbj->ij", delta, x.transpose(0, 1).numpy()),
        "weight_ho": np.einsum("tbi,tbj->ij", e_y, hidden[1:]),
        "bias_h": delta.sum((0, 1)),
    }
    for name, change in expected.items():
        np.testing.assert_allclose(-getattr(net.body, name).grad.numpy(), change, rtol=0, atol=1e-12)
    assert (net.body.feedback_hh is None) == (rule != "pc_fa")
    if rule == "pc_fa":
        assert net.body.feedback_hh.grad is None


@pytest.mark.parametrize(("rule", "options"), [("pc", {"n_steps": 500}), ("ipc", {})])
def test_settled_predictive_coding_is_backpropagation_through_time(rule, options):
    net = build_network(rule, sequence_config(options=options))
    twin = build_network("bp", sequence_config())
    x, target = sequences()
    net.learn(x, target)
    twin.learn(x, target)
    found, expected = gradients(net), gradients(twin)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-12)


def test_settled_predictive_coding_by_random_weights_is_feedback_alignment():
    net = build_network("pc_fa", sequence_config(options={"n_steps": 500}))
    twin = build_network("fa", sequence_config(feedback_init="normal"))
    x, target = sequences()
    net.learn(x, target)
    twin.learn(x, target)
    for name, gradient in gradients(twin).items():
        torch.testing.assert_close(gradients(net)[name], gradient, rtol=0, atol=1e-12)


def test_predictive_coding_checks_its_options():
    for rule, options in (
        ("pc", {"n_steps": 0}),
        ("pc", {"rate": 0.0}),
        ("pc_fa", {"rate": 1.5}),
        ("ipc", {"n_steps": 2}),
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            build_network(rule, sequence_config(options=options))
    with pytest.raises(ValueError, match="rule_options must be among"):
        build_network("fa", sequence_config(options={"n_steps": 5}))
