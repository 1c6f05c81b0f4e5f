"""MetaOptimize's state: what a checkpoint holds, what resumes from it, what schedules and new groups do."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import lr_scheduler

from conformance import toy
from seedbed.optimizers import MetaAdamW, MetaOptimize, MetaSGD

VARIANTS = {
    "scalar": {},
    "adam": {"meta": "adam", "delta": "analytic"},
    "layerwise": {"blocks": "layerwise", "meta": "rmsprop"},
    "nodewise": {"blocks": "nodewise", "meta": "adam"},
    "weightwise": {"blocks": "weightwise", "alpha_bounds": (1e-5, 1e-1)},
    "normalised": {"normalised": True, "gamma": 0.9},
    "learned": {"meta_parameters": ("lr", "weight_decay", "momentum"), "meta": "adam"},
    "meta first": {"order": "meta_first", "parameterisation": "smd", "meta": "adam_corrected"},
    "additive": {"parameterisation": "identity", "meta": "sgd", "meta_lr": 1e-7},
    "curved": {"hessian": "hvp", "gamma": 0.9},
    "diagonal": {"hessian": "diag", "gamma": 0.9, "blocks": "weightwise"},
    "twice curved": {
        "hessian": "hvp",
        "gamma": 0.9,
        "approximation": "2x2",
        "normalised": True,
        "meta": "adam",
    },
    "none": {"meta": None},
}


def build(model, variant, **options):
    return MetaAdamW(model.parameters(), lr=1e-3, **{"meta_lr": 0.02, **VARIANTS[variant], **options})


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("way", ["file", "pickle", "deepcopy", "distributed", "flat"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_resuming_is_to_the_last_bit(variant, way):
    model = toy.network()
    optimizer = build(model, variant)
    data = toy.batches(10)
    toy.train(model, optimizer, data[:5])
    if way == "pickle":
        twin, its = pickle.loads(pickle.dumps((model, optimizer)))
    elif way == "deepcopy":
        twin, its = copy.deepcopy((model, optimizer))
    else:
        twin = toy.network(seed=9)
        its = build(twin, variant)
        twin.load_state_dict(copy.deepcopy(model.state_dict()))
        if way == "file":
            its.load_state_dict(through_a_file(optimizer.state_dict()))
        else:
            how = StateDictOptions(flatten_optimizer_state_dict=way == "flat")
            state = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=how))
            set_optimizer_state_dict(twin, its, state, options=how)
    assert its.state is its.base.state
    assert its.step_sizes().keys() == optimizer.step_sizes().keys()
    for name, size in optimizer.step_sizes().items():
        assert torch.equal(torch.as_tensor(its.step_sizes()[name]), torch.as_tensor(size))
    assert its.learned_values() == optimizer.learned_values()
    rest = toy.train(model, optimizer, data[5:])
    assert toy.train(twin, its, data[5:]) == rest
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters()))


def test_a_state_dict_has_torchs_shape():
    model = toy.network()
    optimizer = build(model, "scalar")
    toy.train(model, optimizer, toy.batches(3))
    state = optimizer.state_dict()
    assert set(state) == {"state", "param_groups"}
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq", "meta_trace"}
    assert state["param_groups"][0]["params"] == [0, 1, 2, 3]
    assert state["param_groups"][0]["meta_beta"] == [[pytest.approx(0.04, abs=1e-12)]]


def test_traces_keep_their_bits_beside_half_precision_weights():
    model = toy.network(dtype=torch.bfloat16)
    optimizer = build(model, "scalar")
    toy.train(model, optimizer, toy.batches(4, dtype=torch.bfloat16))
    twin = toy.network(dtype=torch.bfloat16)
    its = build(twin, "scalar")
    its.load_state_dict(through_a_file(optimizer.state_dict()))
    for p, q in zip(model.parameters(), twin.parameters()):
        mine, loaded = optimizer.state[p]["meta_trace"], its.state[q]["meta_trace"]
        assert loaded.dtype == torch.float32
        assert torch.equal(mine, loaded)
        assert not torch.equal(mine, mine.bfloat16().float())


def test_a_bare_optimizers_checkpoint_is_where_learning_can_start():
    model, twin = toy.network(), toy.network()
    bare = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    data = toy.batches(6)
    toy.train(model, bare, data[:3])
    twin.load_state_dict(model.state_dict())
    optimizer = build(twin, "scalar", meta_lr=1e-300)
    optimizer.load_state_dict(through_a_file(bare.state_dict()))
    assert toy.train(twin, optimizer, data[3:]) == toy.train(model, bare, data[3:])
    assert "meta_trace" in optimizer.state[twin[0].weight]


def test_an_optimizer_may_be_wrapped_in_mid_training():
    model, plain = toy.network(), toy.network()
    data = toy.batches(8)
    base = torch.optim.AdamW(model.parameters(), lr=1e-3)
    alone = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    toy.train(model, base, data[:4])
    toy.train(plain, alone, data)
    toy.train(model, MetaOptimize(base, meta_lr=1e-300), data[4:])
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters()))


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"meta": "adam"}, "other meta in group 0"),
        ({"blocks": "layerwise"}, "other blocks"),
        ({"blocks": "weightwise"}, "other blocks"),
        ({"blocks": [1, 3]}, "other blocks"),
        ({"meta_parameters": ("lr", "momentum")}, "other meta_parameters"),
    ],
)
def test_a_state_of_other_blocks_or_rule_is_refused(other, what):
    model = toy.network()
    optimizer = build(model, "scalar")
    toy.train(model, optimizer, toy.batches(2))
    fresh = build(toy.network(), "scalar", **other)
    before = copy.deepcopy(fresh.state_dict())
    with pytest.raises(ValueError, match=what):
        fresh.load_state_dict(optimizer.state_dict())
    assert fresh.state_dict() == before


# --- schedules

SCHEDULERS = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 12),
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, 14),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
}


@pytest.mark.parametrize("blocks", ["scalar", "layerwise", "weightwise"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_multiplies_what_is_learned(name, blocks):
    model = toy.network()
    optimizer = MetaAdamW(model.parameters(), lr=1e-3, meta_lr=0.05, blocks=blocks)
    scheduler = SCHEDULERS[name](optimizer)
    group = optimizer.param_groups[0]
    moved = False
    for batch in toy.batches(10):
        toy.train(model, optimizer, [batch])
        sizes = optimizer.step_sizes()
        betas = optimizer.state_dict()["param_groups"][0]["meta_beta"]
        if blocks == "weightwise":
            for size, p in zip(sizes.values(), model.parameters()):
                torch.testing.assert_close(size, group["lr"] * optimizer.state[p]["meta_beta"].exp())
        else:
            wanted = [group["lr"] * math.exp(beta) for beta in betas[0]]
            assert list(sizes.values()) == pytest.approx(wanted, rel=1e-12)
            moved = moved or any(betas[0])
        if name == "plateau":
            scheduler.step(1.0)
        else:
            scheduler.step()
        if name == "one cycle":
            toy.train(model, optimizer, [batch])
            assert all(cell["betas"] == group["betas"] for cell in optimizer.base.param_groups)
            assert group["betas"][0] != 0.9
    assert moved or blocks == "weightwise"


def test_the_step_size_used_is_in_the_group():
    model = toy.network()
    optimizer = MetaAdamW(model.parameters(), lr=1e-3, meta_lr=0.05)
    for batch in toy.batches(4):
        before = optimizer.step_sizes()["all"]
        toy.train(model, optimizer, [batch])
        assert optimizer.param_groups[0]["meta_alpha"] == before == optimizer.base.param_groups[0]["lr"]


def test_hyperparameters_follow_the_wrappers_groups():
    model = toy.network()
    optimizer = MetaAdamW(model.parameters(), lr=1e-3, meta_lr=0.05, blocks="layerwise")
    toy.train(model, optimizer, toy.batches(2))
    optimizer.param_groups[0]["weight_decay"] = 0.7
    toy.train(model, optimizer, toy.batches(1))
    assert all(cell["weight_decay"] == 0.7 for cell in optimizer.base.param_groups)


def test_a_block_over_groups_has_a_step_size_in_each():
    model = toy.network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-4}]
    optimizer = MetaAdamW(groups, lr=1e-3, meta_lr=0.05)
    toy.train(model, optimizer, toy.batches(6))
    sizes = optimizer.step_sizes()
    assert list(sizes) == ["all@group0", "all@group1"]
    assert sizes["all@group0"] == pytest.approx(10 * sizes["all@group1"])


# --- groups and parameters that come and go


@pytest.mark.parametrize(
    ("blocks", "labels"),
    [
        ("scalar", ["all"]),
        ("group", ["group0", "group1"]),
        ("layerwise", ["param0", "param1", "param2", "param3"]),
        ([1, 1], ["block0", "block1", "group1"]),
        ("weightwise", ["param0", "param1", "param2", "param3"]),
    ],
)
def test_a_group_that_joins_later(blocks, labels):
    model = toy.network()
    optimizer = MetaAdamW(model[0].parameters(), lr=1e-3, meta_lr=0.05, blocks=blocks)
    toy.train(model, optimizer, toy.batches(5))
    before = list(optimizer.step_sizes().values())
    optimizer.add_param_group({"params": list(model[2].parameters()), "weight_decay": 0.3})
    assert list(optimizer.step_sizes()) == labels
    assert all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        for a, b in zip(before, optimizer.step_sizes().values())
    )
    weights = model[2].weight.detach().clone()
    toy.train(model, optimizer, toy.batches(5))
    assert not torch.equal(model[2].weight, weights)
    assert "meta_trace" in optimizer.state[model[2].weight]
    decays = {cell["weight_decay"] for cell in optimizer.base.param_groups}
    assert decays == {0.1, 0.3}


def test_a_group_that_cannot_start_does_not_join():
    model = toy.network()
    optimizer = MetaAdamW(model[0].parameters(), lr=1e-3)
    with pytest.raises(ValueError, match="lr must be"):
        optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.0})
    assert len(optimizer.param_groups) == len(optimizer.base.param_groups) == 1
    toy.train(model, optimizer, toy.batches(2))


def test_an_empty_parameter_and_one_without_gradient():
    empty, unused, used = (nn.Parameter(torch.ones(shape)) for shape in ((0, 3), (2,), (2,)))
    optimizer = MetaSGD([empty, unused, used], lr=0.1)
    for _ in range(3):
        empty.grad, used.grad = torch.zeros(0, 3), torch.ones(2)
        optimizer.step()
    assert torch.equal(unused, torch.ones(2))
    assert "meta_trace" not in optimizer.state.get(unused, {})
    assert used[0] < 0.8
    assert optimizer.trace_norms()["all"] > 0
