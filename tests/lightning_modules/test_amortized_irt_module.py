"""AmortizedIRTModule: its likelihoods against plain readings, its optimum against EM, and its data."""

import math

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from scipy import sparse
from torch import nn

from conformance.ddp import run_ranks
from references.amortized_irt_torch import gradients_of_two, joint, marginal, seven_takers
from seedbed.datasets import ResponseBatches, ResponseDataModule, load_lsat6, make_irt_responses
from seedbed.estimators import RaschModel, TwoPLModel
from seedbed.lightning_modules import AmortizedIRTModule
from seedbed.training import fit_module


def all_cells(table):
    """Cells and answers of a table with NaN."""
    where = np.argwhere(~np.isnan(table))
    return torch.tensor(where), torch.tensor(table[tuple(where.T)], dtype=torch.float32)


def set_items(module, difficulty, discrimination=None, scale=1.0):
    a = np.ones(len(difficulty)) if discrimination is None else discrimination
    with torch.no_grad():
        module.items.free.copy_(torch.as_tensor(-a * difficulty))
        if discrimination is not None:
            module.items.slope.copy_(torch.as_tensor(np.log(np.expm1(a))))
        module.log_scale.fill_(math.log(scale))


def log_likelihood(module, table):
    return float(module.marginal(*all_cells(table))[1].log_likelihood.detach().sum())


def quiet(folder, **settings):
    defaults = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
    }  # fmt: skip
    return Trainer(**{**defaults, **settings})


def random_answers(n_takers, n_items, seed, missing=0.3):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 2, (n_takers, n_items)).astype(float)
    table[rng.random(table.shape) < missing] = np.nan
    table[:, 0] = rng.integers(0, 2, n_takers)
    return table


# -- likelihoods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "value"), [("rasch", -2466.938), ("2pl", -2466.653)])
def test_marginal_likelihood_is_that_of_em(model, value):
    X = load_lsat6().data
    module = AmortizedIRTModule(1000, 5, model=model, n_quadrature=21)
    if model == "rasch":
        fitted = RaschModel().fit(X)
        set_items(module, fitted.difficulty_, scale=fitted.latent_scale_)
    else:
        fitted = TwoPLModel(discrimination_prior=None).fit(X)
        set_items(module, fitted.difficulty_, fitted.discrimination_)
    assert log_likelihood(module, X) == pytest.approx(value, abs=0.01)
    assert log_likelihood(module, X) == pytest.approx(fitted.log_likelihood_, abs=1e-3)
    takers, found = module.marginal(*all_cells(X))
    assert takers.tolist() == list(range(1000))
    np.testing.assert_allclose(found.mean[:, 0], fitted.ability_, atol=1e-4)
    np.testing.assert_allclose(found.factor[:, 0, 0], fitted.ability_std_, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "dims", "loadings"),
    [("rasch", 1, "softmax"), ("3pl", 1, "softmax"), ("2pl", 2, "softmax"), ("3pl", 2, "free")],
)
def test_marginal_likelihood_of_a_plain_reading(model, dims, loadings):
    table = random_answers(3, 6, seed=1)
    rng = np.random.default_rng(2)
    scale = 1.3
    module = AmortizedIRTModule(
        3, 6, model=model, n_dimensions=dims, loadings=loadings, n_quadrature=25, latent_scale=scale
    ).double()
    with torch.no_grad():
        for value in module.items.parameters():
            value += torch.as_tensor(rng.normal(0, 0.7, value.shape))
    found = module.marginal(*all_cells(table))[1]
    a = module.items.discrimination().detach().numpy()[:, None]
    if dims == 1:
        loading = np.ones((6, 1))
    elif loadings == "softmax":
        raw = np.exp(module.items.loading.detach().numpy())
        loading = raw / raw.sum(axis=1, keepdims=True)
    else:
        raw = module.items.loading.detach().numpy()
        loading = raw / np.sqrt((raw**2).sum(axis=1, keepdims=True))
    c = np.zeros(6) if model != "3pl" else 1 / (1 + np.exp(-module.items.guessing.detach().numpy()))
    for n in range(3):
        value, mean, covariance = marginal(
            table[n], (a * loading).tolist(), module.items.free.tolist(), c.tolist(), scale
        )
        assert float(found.log_likelihood[n].detach()) == pytest.approx(value, abs=2e-5)
        np.testing.assert_allclose(found.mean[n], mean, atol=2e-4)
        factor = found.factor[n].numpy()
        np.testing.assert_allclose(factor @ factor.T, covariance, atol=1e-3)


def test_joint_loss_of_a_plain_reading():
    table = random_answers(5, 4, seed=3)
    module = AmortizedIRTModule(
        5, 4, model="2pl", loss="joint", item_prior=(0.2, 1.5), discrimination_prior=(0.1, 0.4),
        ability_prior=2.0, n_cells=17,
    )  # fmt: skip
    rng = np.random.default_rng(4)
    with torch.no_grad():
        for value in module.parameters():
            value += torch.as_tensor(rng.normal(0, 0.5, value.shape), dtype=torch.float32)
    cells, y = all_cells(table)
    theta = module.ability_mean.detach().double().numpy()
    found = {name: value.double().numpy() for name, value in module.item_parameters().items()}
    a, b = found["discrimination"], found["difficulty"]
    likelihood = joint(table.tolist(), theta.tolist(), a[:, None].tolist(), (-a * b).tolist(), [0.0] * 4)

    def normal(x, mean, std):
        return sum(-0.5 * ((v - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi) for v in x)

    prior = normal(b, 0.2, 1.5) + normal(np.log(a), 0.1, 0.4) + normal(theta[:, 0], 0, 2.0)
    loss = float(module.training_loss((cells, y)).detach())
    assert loss == pytest.approx(-likelihood / len(y) - prior / 17, rel=1e-5)
    # Takers of weight two are takers that come twice.
    twice = torch.where(cells[:, 0] < 2, 2.0, 1.0)
    again = torch.cat([cells, cells[cells[:, 0] < 2]]), torch.cat([y, y[cells[:, 0] < 2]])
    assert float(module._joint_loss(cells, y, twice).detach()) == pytest.approx(
        float(module._joint_loss(*again, None).detach()), rel=1e-5
    )


def test_gradient_of_the_marginal_loss():
    # Nodes are constants in it, and still it is that of the integral, because their place does not matter.
    table = random_answers(20, 6, seed=5, missing=0.2)
    cells, y = all_cells(table)
    module = AmortizedIRTModule(20, 6, model="rasch", n_quadrature=21, item_prior=(0.0, 1.0)).double()
    module.training_loss((cells, y)).backward()
    for value, place in ((module.items.free, 2), (module.log_scale, ...)):
        with torch.no_grad():
            ends = []
            for step in (1e-4, -2e-4):
                value[place] += step
                ends.append(float(module.training_loss((cells, y))))
            value[place] += 1e-4
        assert float(value.grad[place]) == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-6)


def test_weights_in_the_marginal_loss_are_copies():
    module, cells, y = seven_takers(AmortizedIRTModule, 0)
    weight = torch.where(cells[:, 0] == 3, 3.0, 1.0)
    weighted = module._marginal_loss(cells, y, weight)
    each = module.marginal(cells, y)[1].log_likelihood
    expected = -(each.sum() + 2 * each[3]) / 9 * 7 / 35
    assert float(weighted.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_half_precision_touches_the_encoder_only():
    module, cells, y = seven_takers(AmortizedIRTModule, 0)
    free = AmortizedIRTModule(7, 5, model="2pl")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = module._marginal_loss(cells, y, None)
        unchanged = free._marginal_loss(cells, y, None)
    assert torch.equal(unchanged, free._marginal_loss(cells, y, None))
    assert half.dtype == torch.float32
    full = module._marginal_loss(cells, y, None)
    assert 0 < abs(float((half - full).detach())) < 0.01


@pytest.mark.slow
def test_two_processes_with_unequal_shares():
    (first, means), (second, other) = run_ranks(gradients_of_two, 2, 0)
    assert torch.equal(first, second)
    assert torch.equal(means, other)
    grads, whole = gradients_of_two(None, 0)
    torch.testing.assert_close(first, grads, atol=1e-7, rtol=1e-4)
    torch.testing.assert_close(means, whole, atol=1e-6, rtol=1e-5)


# -- training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "lr", "epochs", "near"), [("rasch", 0.2, 60, 0.06), ("2pl", 0.1, 120, 0.3)]
)
def test_training_reaches_the_optimum_of_em(model, lr, epochs, near):
    X = load_lsat6().data
    data = ResponseDataModule(X, batch_size=500, val_size=0, test_size=0)
    module = AmortizedIRTModule(
        1000, 5, model=model, discrimination_prior=None, lr=lr,
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs),
    )  # fmt: skip
    fit_module(module, data.train_dataloader(), max_epochs=epochs)
    best = (RaschModel() if model == "rasch" else TwoPLModel(discrimination_prior=None)).fit(X)
    assert abs(log_likelihood(module, X) - best.log_likelihood_) < 0.05
    np.testing.assert_allclose(module.item_parameters()["difficulty"], best.difficulty_, atol=near)
    if model == "rasch":
        assert float(module.latent_scale.detach()) == pytest.approx(best.latent_scale_, abs=0.03)


def test_difficulties_from_features(tmp_path):
    data = make_irt_responses(300, 80, feature_dim=4, residual_std=0.0, random_state=0)
    X = data.data.copy()
    X[:, :10] = np.nan  # nobody has met these items
    X[0, :10] = 1.0
    module = AmortizedIRTModule(300, 80, n_features=4, lr=0.1)
    feed = ResponseDataModule({"data": X, "item_features": data.item_features}, batch_size=100, val_size=0.05)
    trainer = quiet(tmp_path, max_epochs=25)
    trainer.fit(module, datamodule=feed)
    assert trainer.callback_metrics["val_auroc"] > 0.75
    found = module.item_parameters()["difficulty"].numpy()
    assert np.corrcoef(found[:10], data.difficulty[:10])[0, 1] > 0.98
    assert np.sqrt(np.mean((found - data.difficulty) ** 2)) < 0.15
    # All of it comes back from a checkpoint, the features included.
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    loaded = AmortizedIRTModule.load_from_checkpoint(tmp_path / "it.ckpt", weights_only=True)
    cells = torch.tensor([[5, 3], [299, 70]])
    assert torch.equal(loaded(cells), module(cells))


def test_one_hot_features_are_free_difficulties():
    table = random_answers(30, 6, seed=6)
    cells, y = all_cells(table)
    free = AmortizedIRTModule(30, 6)
    linear = AmortizedIRTModule(30, 6, n_features=6, item_inputs=np.eye(6))
    b = torch.linspace(-1, 1, 6)
    with torch.no_grad():
        free.items.free.copy_(-b)
        linear.items.encoder[0].weight.copy_(b[None])
        linear.items.encoder[0].bias.zero_()
    torch.testing.assert_close(linear._marginal_loss(cells, y, None), free._marginal_loss(cells, y, None))


def test_encoder_of_token_ids_and_items_without_inputs(tmp_path):
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.EmbeddingBag(20, 3)
            self.head = nn.Linear(3, 1)

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

    tokens = np.random.default_rng(0).integers(0, 20, (5, 7))
    module = AmortizedIRTModule(10, 5, encoder=Text(), item_inputs=tokens, residual_std=0.5)
    cells, y = all_cells(random_answers(10, 5, seed=7))
    module.training_loss((cells, y)).backward()
    assert module.items.encoder.embedding.weight.grad.abs().sum() > 0
    assert module.items.free.grad.abs().sum() > 0
    trainer = quiet(tmp_path, max_epochs=0)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "it.ckpt", weights_only=True)
    loaded = AmortizedIRTModule.load_from_checkpoint(tmp_path / "it.ckpt", encoder=Text(), weights_only=True)
    assert torch.equal(loaded(cells), module(cells))
    # A row of NaN: no residual, a difficulty of its own.
    features = np.random.default_rng(1).normal(size=(5, 2))
    features[2] = np.nan
    module = AmortizedIRTModule(10, 5, n_features=2, item_inputs=features)
    with torch.no_grad():
        module.items.free.fill_(0.7)
    found = module.item_parameters()["difficulty"]
    assert float(found[2]) == pytest.approx(0.7)
    assert (found[[0, 1, 3, 4]] != 0.7).all()


def test_residuals_have_their_prior():
    inputs = np.zeros((4, 2))
    module = AmortizedIRTModule(3, 4, n_features=2, item_inputs=inputs, residual_std=0.5)
    with torch.no_grad():
        module.items.free.copy_(torch.tensor([0.5, 0.0, 0.0, -1.0]))
    none = AmortizedIRTModule(3, 4, n_features=2, item_inputs=inputs, residual_std=0.5)
    assert float((module._log_prior() - none._log_prior()).detach()) == pytest.approx(-0.5 * (1 + 4))


def test_mlp_and_the_optimizer_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["seedbed"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning's own calls
    config = tmp_path / "run.yaml"
    config.write_text(
        f"""
trainer: {{max_epochs: 1, accelerator: cpu, devices: 1, logger: false, enable_checkpointing: false,
  enable_progress_bar: false, enable_model_summary: false, default_root_dir: "{tmp_path}"}}
model:
  class_path: seedbed.lightning_modules.AmortizedIRTModule
  init_args:
    n_takers: 40
    n_items: 12
    n_features: 3
    hidden_layer_sizes: [5]
    item_prior: [0.0, 2.0]
    optimizer: {{class_path: torch.optim.SGD, init_args: {{lr: 0.1}}}}
data:
  class_path: seedbed.datasets.ResponseDataModule
  init_args:
    data: simulated
    batch_size: 20
    settings: {{n_takers: 40, n_items: 12, feature_dim: 3}}
"""
    )
    run = LightningCLI(
        LightningModule, LightningDataModule, subclass_mode_model=True, subclass_mode_data=True,
        save_config_callback=None, seed_everything_default=False, args=["fit", "--config", str(config)],
    )  # fmt: skip
    assert [type(part).__name__ for part in run.model.items.encoder] == ["Linear", "ELU", "Linear"]
    assert isinstance(run.trainer.optimizers[0], torch.optim.SGD)
    assert run.model.priors[0] == (0.0, 2.0)


def test_abilities_of_new_answers():
    X = load_lsat6().data
    fitted = RaschModel().fit(X)
    module = AmortizedIRTModule(2, 5, n_quadrature=21)
    set_items(module, fitted.difficulty_, scale=fitted.latent_scale_)
    table = np.array([[1, 1, 0, 1, 1], [0, np.nan, 0, np.nan, 1]])
    module.update_abilities(*all_cells(table))
    np.testing.assert_allclose(module.ability_mean, fitted.transform(table), atol=1e-4)
    # Predictions integrate over what is not known of the ability.
    b = torch.tensor(fitted.difficulty_[2])
    theta = module.ability_mean[0] + module.ability_factor[0, 0] * torch.linspace(-6, 6, 2001)
    mass = torch.exp(-0.5 * torch.linspace(-6, 6, 2001) ** 2)
    expected = float((mass * torch.sigmoid(theta - b)).sum() / mass.sum())
    assert float(module(torch.tensor([[0, 2]])).detach()[0]) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="loss='joint'"):
        AmortizedIRTModule(2, 5, loss="joint").update_abilities(*all_cells(table))


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_takers": 1}, "n_takers"),
        ({"model": "4pl"}, "model must be one of"),
        ({"n_dimensions": 2}, "model must be '2pl' or '3pl'"),
        ({"n_quadrature": 2}, "n_quadrature must be in"),
        ({"loss": "both"}, "loss must be one of"),
        ({"loadings": "relu"}, "loadings must be one of"),
        (
            {"model": "2pl", "loss": "joint", "discrimination_prior": None},
            "discrimination_prior must be given",
        ),
        ({"model": "3pl", "guessing_prior": None, "n_takers": 49}, "n_takers=49"),
        ({"guessing_prior": (0.5, 2.0)}, r"guessing_prior\[0\]"),
        ({"item_prior": (0.0, 0.0)}, r"item_prior\[1\]"),
        ({"item_inputs": np.zeros((5, 2))}, "item_inputs needs an encoder"),
        ({"residual_std": 0.1}, "residual_std needs an encoder"),
        ({"hidden_layer_sizes": [3]}, "hidden_layer_sizes need n_features"),
        ({"n_features": 2, "encoder": nn.Linear(2, 1)}, "not both"),
        ({"n_features": 2, "item_inputs": np.zeros((4, 2))}, "one row for each of 5 items"),
        ({"n_features": 2, "item_inputs": np.array([[np.nan, 0.0]] * 5)}, r"item_inputs\[0\]"),
        ({"optimizer": "lbfgs"}, "optimizer must be one of"),
        ({"lr": -1.0}, "lr must be in"),
        ({"latent_scale": 0.0}, "latent_scale must be in"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AmortizedIRTModule(**{"n_takers": 60, "n_items": 5, **settings})


def test_batches_and_encoders_that_are_refused(tmp_path):
    module = AmortizedIRTModule(6, 5)
    with pytest.raises(ValueError, match="a batch must be"):
        module.training_loss((torch.zeros(2, 2, dtype=torch.int64),))
    with pytest.raises(ValueError, match="cells must have shape"):
        module.training_loss((torch.zeros(2, 2, dtype=torch.int64), torch.zeros(3)))
    with pytest.raises(ValueError, match="item_inputs must be set"):
        AmortizedIRTModule(6, 5, n_features=2)(torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="one number for each of 1 items"):
        AmortizedIRTModule(6, 5, encoder=nn.Linear(2, 2), item_inputs=np.zeros((5, 2)))(
            torch.zeros(1, 2, dtype=torch.int64)
        )
    with pytest.raises(ValueError, match=r"must be \(1000, 5\) for these data"):
        quiet(tmp_path, max_epochs=1).fit(module, datamodule=ResponseDataModule("lsat6"))


# -- data --------------------------------------------------------------------------------------------------


def test_held_out_cells_leave_everybody_an_answer():
    drawn = make_irt_responses(60, 20, missing="mcar", missing_rate=0.5, random_state=0)
    data = ResponseDataModule(drawn.data, batch_size=25, val_size=0.2, test_size=0.3)
    parts = [loader() for loader in (data.train_dataloader, data.val_dataloader, data.test_dataloader)]
    n = int((~np.isnan(drawn.data)).sum())
    assert [len(part.y) for part in parts[1:]] == [round(0.2 * n), round(0.3 * n)]
    found = np.full(drawn.data.shape, np.nan)
    for part in parts:
        cells = part.cells.numpy()
        assert np.isnan(found[tuple(cells.T)]).all()
        found[tuple(cells.T)] = part.y
    np.testing.assert_array_equal(found, drawn.data)
    train = parts[0].cells.numpy()
    assert len(np.unique(train[:, 0])) == 60
    assert len(np.unique(train[:, 1])) == 20
    again = ResponseDataModule(drawn.data, batch_size=25, val_size=0.2, test_size=0.3)
    assert torch.equal(again.train_dataloader().cells, parts[0].cells)
    other = ResponseDataModule(drawn.data, val_size=0.2, test_size=0.3, random_state=1)
    assert not torch.equal(other.train_dataloader().cells, parts[0].cells)


def test_batches_hold_whole_takers_in_an_order_of_seed_and_epoch():
    cells, y = all_cells(random_answers(11, 4, seed=0))
    batches = ResponseBatches(cells, y, batch_size=3, seed=5)
    assert len(batches) == 4
    first = [batch.cells for batch in batches]
    for batch in first:
        takers, counts = batch[:, 0].unique(return_counts=True)
        assert 2 <= len(takers) <= 3
        assert counts.tolist() == [int((cells[:, 0] == taker).sum()) for taker in takers]
    assert sorted(torch.cat(first).tolist()) == sorted(cells.tolist())
    batches.set_epoch(1)
    assert not torch.equal(torch.cat([batch.cells for batch in batches]), torch.cat(first))
    batches.set_epoch(0)
    assert all(torch.equal(a.cells, b) for a, b in zip(batches, first, strict=True))
    for whole, *shares in zip(batches.share(0, 1), batches.share(0, 2), batches.share(1, 2), strict=True):
        assert torch.equal(torch.cat([share.cells for share in shares]), whole.cells)
        assert not set(shares[0].cells[:, 0].tolist()) & set(shares[1].cells[:, 0].tolist())
    batches.load_state_dict({"epoch": 0, "taken": 2})
    assert all(torch.equal(a.cells, b) for a, b in zip(batches, first[2:], strict=True))
    single = ResponseBatches(cells, y, batch_size=5, unit="cells", seed=0)
    assert max(len(batch.y) for batch in single) <= 5
    assert sorted(torch.cat([batch.cells for batch in single]).tolist()) == sorted(cells.tolist())


def test_predictions_are_the_table(tmp_path):
    module = AmortizedIRTModule(1000, 5)
    with torch.no_grad():
        module.items.free.copy_(torch.arange(5.0))
    data = ResponseDataModule("lsat6", batch_size=300)
    found = torch.cat(quiet(tmp_path).predict(module, datamodule=data)).reshape(data.shape)
    np.testing.assert_allclose(found[17], found[0], rtol=1e-6)
    assert (found[0].diff() > 0).all()


def test_sparse_table_with_a_mask():
    table = random_answers(8, 5, seed=9)
    seen = ~np.isnan(table)
    dense = ResponseDataModule(table, val_size=0, test_size=0)
    thin = ResponseDataModule(
        sparse.csr_array(np.nan_to_num(table)), mask=sparse.csr_array(seen), val_size=0, test_size=0
    )
    a, b = dense.train_dataloader(), thin.train_dataloader()
    assert torch.equal(a.cells, b.cells)
    assert torch.equal(a.y, b.y)
    with pytest.raises(ValueError, match="mask must tell"):
        ResponseDataModule(sparse.csr_array(np.nan_to_num(table))).setup()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "lsat8"}, "data must be one of"),
        ({"data": np.full((3, 3), 0.5)}, r"data\[0, 0\] must be 0, 1 or missing"),
        ({"data": np.ones((1, 3))}, "at least 2 takers by 2 items"),
        ({"data": {"table": 1}}, "under 'data'"),
        ({"data": np.ones((3, 3)), "mask": np.ones((2, 3))}, "mask must have the shape"),
        ({"val_size": 0.6, "test_size": 0.5}, "less than 1"),
        ({"unit": "items"}, "unit must be one of"),
        ({"data": np.eye(3), "val_size": 0.6, "test_size": 0.3}, "only"),
        ({"data": np.eye(3), "val_size": 0.01, "test_size": 0}, "leaves no cell"),
        ({"settings": {"n_takers": 3}}, "settings are for"),
    ],
)
def test_data_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ResponseDataModule(**settings).setup()
