"""What every optimizer of the catalog promises: it goes wherever a ``torch.optim.Optimizer`` goes.

Each class is built as ``cls.build(params, **small)`` with the catalog's ``small``.
"""

import copy
import inspect
import io
import pickle
import random
import warnings

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader

from conformance import toy
from conformance.ddp import run_ranks
from conformance.ddp_optimizers import train_ranks
from seedbed import catalog

PUBLICS = catalog.publics("optimizer")
PATHS = [method.path(public) for method, public in PUBLICS]
SMALL = {method.path(public): dict(public.small) for method, public in PUBLICS}


@pytest.fixture(params=PATHS, ids=[path.rpartition(".")[2] for path in PATHS])
def path(request):
    return request.param


def build(path, params):
    return catalog.load(path).build(params, **SMALL[path])


@pytest.fixture
def pair(path):
    """A network and its optimizer."""
    model = toy.network()
    return model, build(path, model.parameters())


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def through_a_file(state):
    """Save and load as a stranger would be allowed to: no code runs."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def flattened(value, prefix=""):
    """Leaves of nested dicts, lists and tuples, by path."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {prefix: value}
    return {key: leaf for name, inner in items for key, leaf in flattened(inner, f"{prefix}/{name}").items()}


def assert_same(one, other):
    one, other = flattened(one), flattened(other)
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[key].dtype, key
            assert torch.equal(value, other[key]), key
        else:
            assert value == other[key], key


# --- a torch optimizer


def test_is_a_torch_optimizer(pair):
    model, optimizer = pair
    assert isinstance(optimizer, Optimizer)
    assert [set(map(id, group["params"])) for group in optimizer.param_groups] == [
        set(map(id, model.parameters()))
    ]
    assert all(group["lr"] > 0 for group in optimizer.param_groups)
    assert type(optimizer).__name__ in repr(optimizer)
    assert set(optimizer.state_dict()) == {"state", "param_groups"}


def test_learns(path):
    model = toy.network()
    optimizer = build(path, model.parameters())
    losses = toy.train(model, optimizer, toy.batches(1) * 120)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_step_hooks_run_once_a_step(pair):
    model, optimizer = pair
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    toy.train(model, optimizer, toy.batches(3))
    assert calls == ["before", "after"] * 3


def test_groups_keep_their_own_learning_rate(path):
    model = toy.network()
    first, second = model[0], model[2]
    rate = build(path, toy.network().parameters()).param_groups[0]["lr"]
    groups = [{"params": list(first.parameters())}, {"params": list(second.parameters()), "lr": rate / 2}]
    optimizer = build(path, groups)
    assert [group["lr"] for group in optimizer.param_groups] == [rate, rate / 2]
    before = weights(model)
    toy.train(model, optimizer, toy.batches(3))
    assert (weights(model) != before).all()


def test_named_parameters_are_accepted(path):
    model = toy.network()
    optimizer = build(path, model.named_parameters())
    toy.train(model, optimizer, toy.batches(3))
    plain = toy.network()
    toy.train(plain, build(path, plain.parameters()), toy.batches(3))
    assert torch.equal(weights(model), weights(plain))


# --- state that can be saved


def test_resume_is_bit_equal(path, pair):
    model, optimizer = pair
    data = toy.batches(10)
    toy.train(model, optimizer, data[:5])
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    loaded = through_a_file(saved)
    kept = copy.deepcopy(loaded)
    resumed = toy.network(seed=9)
    fresh = build(path, resumed.parameters())
    resumed.load_state_dict(loaded["model"])
    fresh.load_state_dict(loaded["optimizer"])
    assert_same(loaded, kept)  # loading leaves the dict alone
    assert_same(fresh.state_dict(), optimizer.state_dict())
    assert toy.train(resumed, fresh, data[5:]) == toy.train(model, optimizer, data[5:])
    assert torch.equal(weights(resumed), weights(model))


def test_load_into_a_used_optimizer(path, pair):
    model, optimizer = pair
    data = toy.batches(8)
    toy.train(model, optimizer, data[:4])
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    losses = toy.train(model, optimizer, data[4:])
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert toy.train(model, optimizer, data[4:]) == losses


def test_load_refuses_another_shape(path, pair):
    model, optimizer = pair
    toy.train(model, optimizer, toy.batches(2))
    with pytest.raises(ValueError):
        build(path, nn.Linear(2, 2).parameters()).load_state_dict(optimizer.state_dict())


def test_deepcopy_goes_its_own_way(pair):
    model, optimizer = pair
    data = toy.batches(8)
    toy.train(model, optimizer, data[:4])
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    before = weights(model)
    losses = toy.train(twin, its_optimizer, data[4:])
    assert torch.equal(weights(model), before)
    assert toy.train(model, optimizer, data[4:]) == losses


def test_pickle_goes_its_own_way(pair):
    model, optimizer = pair
    data = toy.batches(8)
    toy.train(model, optimizer, data[:4])
    twin, its_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    losses = toy.train(twin, its_optimizer, data[4:])
    assert toy.train(model, optimizer, data[4:]) == losses


# --- steps


def test_closure_gives_the_same_run(path, pair):
    model, optimizer = pair
    data = toy.batches(6)
    losses = toy.train(model, optimizer, data)
    other = toy.network()
    its_optimizer = build(path, other.parameters())

    def closure():
        assert torch.is_grad_enabled()
        its_optimizer.zero_grad()
        loss = nn.functional.mse_loss(other(x), y)
        toy.backward(its_optimizer, loss)
        return loss

    returned = []
    for x, y in data:  # noqa: B007 - the closure reads them
        with torch.no_grad():
            returned.append(its_optimizer.step(closure).item())
    assert returned == losses
    assert torch.equal(weights(other), weights(model))


def test_step_without_closure_returns_nothing(pair):
    model, optimizer = pair
    x, y = toy.batches(1)[0]
    toy.backward(optimizer, nn.functional.mse_loss(model(x), y))
    assert optimizer.step() is None


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad(pair, to_none):
    model, optimizer = pair
    toy.train(model, optimizer, toy.batches(1))
    optimizer.zero_grad(set_to_none=to_none)
    assert all(p.grad is None if to_none else not p.grad.any() for p in model.parameters())


def test_add_param_group(path):
    model = toy.network()
    optimizer = build(path, model[0].parameters())
    data = toy.batches(6)
    toy.train(model, optimizer, data[:3])
    before = weights(model[2])
    optimizer.add_param_group({"params": list(model[2].parameters())})
    assert len(optimizer.param_groups) == 2
    toy.train(model, optimizer, data[3:])
    assert (weights(model[2]) != before).all()
    assert torch.isfinite(weights(model)).all()
    again = toy.network()
    resumed = build(path, again[0].parameters())
    resumed.add_param_group({"params": list(again[2].parameters())})
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    again.load_state_dict(model.state_dict())
    assert toy.train(again, resumed, data) == toy.train(model, optimizer, data)


def test_frozen_missing_and_empty_parameters(path):
    model = toy.network()
    model[0].bias.requires_grad_(False)
    unused, empty = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(0, 4))
    optimizer = build(path, [*model.parameters(), unused, empty])
    before = copy.deepcopy(model.state_dict())
    for x, y in toy.batches(4):
        optimizer.zero_grad()
        toy.backward(optimizer, nn.functional.mse_loss(model(x), y) + empty.sum())
        optimizer.step()
    assert torch.equal(model[0].bias, before["0.bias"])
    assert torch.equal(unused, torch.ones(3))
    assert empty.shape == (0, 4)
    assert (model[0].weight != before["0.weight"]).any()
    through_a_file(optimizer.state_dict())


def test_a_parameter_thawed_later_joins(path):
    model = toy.network()
    optimizer = build(path, model.parameters())
    model[2].requires_grad_(False)
    toy.train(model, optimizer, toy.batches(3))
    before = weights(model[2])
    model[2].requires_grad_(True)
    toy.train(model, optimizer, toy.batches(3))
    assert (weights(model[2]) != before).all()


def test_all_gradients_missing_changes_nothing(pair):
    model, optimizer = pair
    before = weights(model)
    optimizer.step()
    assert torch.equal(weights(model), before)


def test_gradients_are_left_as_they_were(pair):
    model, optimizer = pair
    for x, y in toy.batches(3):
        optimizer.zero_grad()
        toy.backward(optimizer, nn.functional.mse_loss(model(x), y))
        before = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_global_random_states_are_left_alone(path, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # beartype itself draws from `random`
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    model = toy.network()
    toy.train(model, build(path, model.parameters()), toy.batches(4))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]


def test_runs_repeat(path):
    runs = []
    for _ in range(2):
        model = toy.network()
        runs.append(toy.train(model, build(path, model.parameters()), toy.batches(6)))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(path, dtype):
    model = toy.network(dtype=dtype)
    optimizer = build(path, model.parameters())
    before = weights(model)
    toy.train(model, optimizer, toy.batches(4, dtype=dtype))
    saved = through_a_file(optimizer.state_dict())
    assert weights(model).dtype == dtype
    assert torch.isfinite(weights(model)).all()
    twin = copy.deepcopy(model)
    fresh = build(path, twin.parameters())
    fresh.load_state_dict(saved)
    assert_same(fresh.state_dict(), optimizer.state_dict())
    data = toy.batches(3, seed=4, dtype=dtype)
    assert toy.train(twin, fresh, data) == toy.train(model, optimizer, data)
    assert (weights(model) != before).any()


# --- learning-rate schedulers

SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 8),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-3, 2, cycle_momentum=_has_momentum(o)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-3, 12, cycle_momentum=_has_momentum(o)),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 2), lr_scheduler.CosineAnnealingLR(o, 6)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def _has_momentum(optimizer):
    return bool({"momentum", "betas"} & optimizer.defaults.keys())


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_set_lr_as_on_any_optimizer(path, name):
    model, plain = toy.network(), toy.network()
    optimizer = build(path, model.parameters())
    ordinary = torch.optim.AdamW(plain.parameters(), lr=optimizer.param_groups[0]["lr"])
    scheduler, its_scheduler = SCHEDULERS[name](optimizer), SCHEDULERS[name](ordinary)
    for batch in toy.batches(6):
        toy.train(model, optimizer, [batch], scheduler)
        toy.train(plain, ordinary, [batch], its_scheduler)
        for mine, its in zip(optimizer.param_groups, ordinary.param_groups, strict=True):
            assert mine["lr"] == pytest.approx(its["lr"], rel=1e-12)
    assert torch.isfinite(weights(model)).all()
    state = through_a_file(scheduler.state_dict()) if name != "SequentialLR" else scheduler.state_dict()
    SCHEDULERS[name](build(path, toy.network().parameters())).load_state_dict(state)


def test_a_schedule_at_zero_stops_the_weights(path):
    """lr = 0 is legal after construction: the weights hold, then go on."""
    model = toy.network()
    optimizer = build(path, model.parameters())
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step in (2, 3) else 1.0)
    data = toy.batches(6)
    toy.train(model, optimizer, data[:2], scheduler)
    before = weights(model)
    toy.train(model, optimizer, data[2:4], scheduler)
    assert torch.equal(weights(model), before)
    toy.train(model, optimizer, data[4:], scheduler)
    assert torch.isfinite(weights(model)).all()
    assert (weights(model) != before).any()


def test_reduce_on_plateau(path, pair):
    model, optimizer = pair
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    rate = optimizer.param_groups[0]["lr"]
    for _ in range(4):
        toy.train(model, optimizer, toy.batches(1))
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(rate / 8)


# --- engines


def test_grad_scaler_skips_a_step_with_an_overflow(path):
    model, plain = toy.network(), toy.network()
    optimizer, unscaled = build(path, model.parameters()), build(path, plain.parameters())
    if toy.needs_graph(optimizer):
        pytest.skip("GradScaler unscales gradients, not the graph that curvature is taken from")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    data = toy.batches(6)
    for turn, (x, y) in enumerate(data):
        optimizer.zero_grad()
        toy.backward(optimizer, scaler.scale(nn.functional.mse_loss(model(x), y)))
        overflow = turn == 3
        if overflow:
            with torch.no_grad():
                next(model.parameters()).grad[0, 0] = torch.inf
            before = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        scaler.step(optimizer)
        scaler.update()
        if overflow:
            assert_same([model.state_dict(), optimizer.state_dict()], before)
    assert scaler.get_scale() == 512.0
    toy.train(plain, unscaled, data[:3] + data[4:])
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-5, atol=1e-7)


class Regression(pl.LightningModule):
    """The toy regression under Lightning's automatic or manual optimization."""

    def __init__(self, path, manual=False):
        super().__init__()
        self.path, self.automatic_optimization = path, not manual
        self.model = toy.network()
        self.losses = []

    def configure_optimizers(self):
        return build(self.path, self.model.parameters())

    def backward(self, loss, *args, **kwargs):
        toy.backward(self.optimizers().optimizer, loss)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.losses.append(loss.item())
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss


def loader(n=4):
    return DataLoader(toy.batches(n), batch_size=None)


def trainer(folder, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about workers and devices
        return pl.Trainer(
            accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, default_root_dir=folder, log_every_n_steps=1, **options,
        )  # fmt: skip


lightning = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning:lightning")


@lightning
@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_lightning_trains_as_a_loop_would(path, tmp_path, manual):
    module = Regression(path, manual)
    trainer(tmp_path, max_epochs=2).fit(module, loader())
    model = toy.network()
    losses = toy.train(model, build(path, model.parameters()), toy.batches(4) * 2)
    assert module.losses == losses
    assert torch.equal(weights(module.model), weights(model))


@lightning
def test_lightning_clips_and_accumulates(path, tmp_path):
    module = Regression(path)
    trainer(tmp_path, max_epochs=2, gradient_clip_val=0.1, accumulate_grad_batches=2).fit(module, loader())
    model = toy.network()
    optimizer = build(path, model.parameters())
    data = toy.batches(4) * 2
    for first, second in zip(data[::2], data[1::2], strict=True):
        optimizer.zero_grad()
        for x, y in (first, second):
            toy.backward(optimizer, nn.functional.mse_loss(model(x), y) / 2)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    torch.testing.assert_close(weights(module.model), weights(model), rtol=0, atol=0)


@lightning
def test_lightning_resumes_bit_equal(path, tmp_path):
    whole = Regression(path)
    trainer(tmp_path, max_epochs=4).fit(whole, loader())
    half = Regression(path)
    first = trainer(tmp_path, max_epochs=2)
    first.fit(half, loader())
    first.save_checkpoint(tmp_path / "half.ckpt")
    rest = Regression(path)
    trainer(tmp_path, max_epochs=4).fit(rest, loader(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert half.losses + rest.losses == whole.losses
    assert torch.equal(weights(rest.model), weights(whole.model))


@pytest.fixture(scope="module")
def ranks():
    """Every optimizer on two ranks of half a batch each, in one run."""
    return run_ranks(train_ranks, 2, SMALL) if SMALL else []


def test_two_ranks_equal_the_joined_batch(path, ranks):
    model = toy.network(dtype=torch.float64)
    optimizer = build(path, model.parameters())
    if toy.needs_graph(optimizer):
        pytest.skip("DDP refuses to keep the graph of a backward pass")
    toy.train(model, optimizer, toy.batches(6, dtype=torch.float64))
    first, second = (rank[path] for rank in ranks)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, weights(model), rtol=1e-6, atol=1e-9)


# --- bad arguments

BAD = {
    "lr": [-1.0, float("nan"), "fast"],
    "weight_decay": [-1.0, "some"],
    "betas": [(1.0, 0.9), (-0.1, 0.9)],
    "meta_lr": [0.0, -1.0, float("nan"), "slow"],
    "gamma": [-0.1, 1.5, float("nan"), "none"],
    "meta": ["adagrad", 3],
    "blocks": ["rows", 3.5],
    "alpha_bounds": [(0.0, 1.0), (2.0, 1.0), 3.0],
}


def arguments(path):
    """Names that ``build`` takes; where it passes keywords on, those of the constructor too."""
    cls = catalog.load(path)
    names = dict(inspect.signature(cls.build).parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values()):
        names |= inspect.signature(cls).parameters
    return names.keys()


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path in PATHS for name in BAD if name in arguments(path)]
)
def test_bad_hyperparameters_are_refused(path, name, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # our own errors must do
    for value in BAD[name]:
        with pytest.raises((ValueError, TypeError)):
            catalog.load(path).build(toy.network().parameters(), **SMALL[path] | {name: value})


def test_bad_parameters_are_refused(path):
    with pytest.raises(ValueError, match="empty parameter list"):
        build(path, [])
    with pytest.raises(TypeError):
        build(path, [torch.ones(2).numpy()])
    with pytest.raises(ValueError, match="non-leaf"):
        build(path, [torch.ones(2, requires_grad=True) * 2])
    with pytest.raises(TypeError, match="no_such_option"):
        catalog.load(path).build(toy.network().parameters(), **SMALL[path], no_such_option=1)


def test_sparse_and_complex_gradients_are_refused(path):
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = build(path, embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"sparse|dense"):
        optimizer.step()
    wave = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer = build(path, [wave])
    wave.abs().sum().backward()
    with pytest.raises(RuntimeError, match=r"complex|real"):
        optimizer.step()
