"""PUAUCModule: the same risk as in NumPy, metrics over whole epochs, learned weights, forms of batches."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import CombinedLoader
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader

from conformance.workers import quiet_trainer
from seedbed.datasets import PUDataModule, make_pu_covariate_shift, make_pu_digits
from seedbed.estimators import weighted_pu_auc_score
from seedbed.estimators.pu_auc_covariate_shift.losses import LOSSES as NUMPY_LOSSES
from seedbed.estimators.pu_auc_covariate_shift.risk import PURisk, Weighted
from seedbed.lightning_modules import PUAUCModule
from seedbed.lightning_modules.pu_auc_covariate_shift import losses
from seedbed.lightning_modules.pu_auc_covariate_shift.losses import (
    LOSSES,
    SYMMETRIC,
    pair_sum,
    pu_risk,
    ratio_loss,
    relative_ratio,
)
from seedbed.lightning_modules.pu_auc_covariate_shift.metrics import weighted_auc
from seedbed.lightning_modules.pu_auc_covariate_shift.networks import feature_network


@pytest.fixture
def sample():
    rng = torch.Generator().manual_seed(0)
    scores = [torch.randn(n, generator=rng, dtype=torch.float64) for n in (6, 9, 7)]
    weights = [torch.rand(n, generator=rng, dtype=torch.float64) + 0.2 for n in (6, 9, 7)]
    return scores, weights


CASES = [
    pytest.param(loss, gamma, normalize, single_set, id=f"{loss}-{gamma}-{normalize}-{single_set}")
    for loss in LOSSES
    for gamma in (0.0, 0.3, 1.0)
    for normalize in (True, False)
    for single_set in (True, False)
]


@pytest.mark.parametrize(("loss", "gamma", "normalize", "single_set"), CASES)
def test_torch_equals_numpy(sample, loss, gamma, normalize, single_set, monkeypatch):
    monkeypatch.setattr(losses, "PAIRS", 20)  # several blocks
    scores, weights = sample
    prior = None if loss in SYMMETRIC else 0.4
    leaves = [score.clone().requires_grad_() for score in scores]
    found = pu_risk(
        *leaves,
        *weights,
        loss=loss,
        trade_off=gamma,
        normalize=normalize,
        class_prior_train=prior,
        single_set=single_set,
    )
    found.backward()
    function = PURisk(
        *(Weighted(weight.numpy(), np.ones(len(weight))) for weight in weights),
        loss=NUMPY_LOSSES[loss],
        trade_off=gamma,
        normalize=normalize,
        class_prior_train=prior,
        single_set=single_set,
    )
    value, *gradients = function(*(score.numpy() for score in scores))
    assert found.item() == pytest.approx(value, rel=1e-12)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        np.testing.assert_allclose(grad.numpy(), gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_pair_sum_gradient(sample, loss):
    (s, t, _), (a, b, _) = sample
    assert torch.autograd.gradcheck(
        lambda s, t: pair_sum(s, t, a, b, loss), (s.requires_grad_(), t.requires_grad_())
    )


def test_pairs_are_never_in_half_precision(sample):
    scores, weights = ([part.float() for part in parts] for parts in sample)
    expected = pair_sum(*scores[:2], *weights[:2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pair_sum(*scores[:2], *weights[:2])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_bad_losses(sample):
    scores, weights = sample
    with pytest.raises(ValueError, match="loss must be one of"):
        pu_risk(*scores, *weights, loss="hinge")
    with pytest.raises(ValueError, match="class_prior_train must be given"):
        pu_risk(*scores, *weights, loss="logistic")


def test_ratio_loss_is_least_at_the_relative_ratio():
    # Two points; p_te = (.8, .2), p_tr = (.3, .7), as rows.
    alpha = 0.25
    target, source = torch.tensor([0] * 8 + [1] * 2), torch.tensor([0] * 3 + [1] * 7)
    logit = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logit], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure():
        optimizer.zero_grad()
        ratio = relative_ratio(logit, alpha)
        loss = ratio_loss(ratio[target], ratio[source], alpha)
        loss.backward()
        return loss

    optimizer.step(closure)
    p_te, p_tr = np.array([0.8, 0.2]), np.array([0.3, 0.7])
    expected = p_te / (alpha * p_te + (1 - alpha) * p_tr)
    np.testing.assert_allclose(relative_ratio(logit, alpha).detach().numpy(), expected, rtol=1e-4)
    assert relative_ratio(torch.tensor([-50.0, 50.0]), 0.0).tolist() == pytest.approx([0.0, 50.0])


def test_weighted_auc_equals_numpy():
    rng = torch.Generator().manual_seed(0)
    s, t = (torch.randint(0, 6, (n,), generator=rng).float() for n in (30, 50))
    a, b = torch.rand(30, generator=rng), torch.rand(50, generator=rng)
    expected = weighted_pu_auc_score(s.numpy(), t.numpy(), a.numpy(), b.numpy())
    assert weighted_auc(s, t, a, b).item() == pytest.approx(expected, rel=1e-6)


# --- the module ---------------------------------------------------------------------------------------------


def fit(module, data, folder, **settings):
    trainer = quiet_trainer(folder, **{"max_epochs": 1, **settings})
    trainer.fit(module, datamodule=data)
    return trainer


def small(**changes):
    return PUAUCModule(**{"input_shape": 64, "hidden_layer_sizes": [16], "lr": 0.01, **changes})


def test_validation_is_over_all_pairs_whatever_the_batches(tmp_path):
    found = []
    for batch_size in (30, 5000):
        data = PUDataModule("digits", batch_size=batch_size)
        module = small(trade_off=0.3)
        (metrics,) = quiet_trainer(tmp_path).validate(module, datamodule=data, verbose=False)
        found.append(metrics)
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    (batch,) = PUDataModule("digits", batch_size=5000).val_dataloader()
    with torch.no_grad():
        p, u, t = (module(part).numpy().astype(float) for part in batch)
        a, b = (module.importance_weights(part).numpy().astype(float) for part in batch[:2])
    one = Weighted(a, np.ones(len(a))), Weighted(b, np.ones(len(b))), Weighted.ones(len(t))
    assert found[0]["val_loss"] == pytest.approx(PURisk(*one, trade_off=0.3)(p, u, t)[0], rel=1e-5)
    auc = 0.7 * weighted_pu_auc_score(p, u, a, b) + 0.3 * weighted_pu_auc_score(p, t, a)
    assert found[0]["val_pu_auc"] == pytest.approx(auc, rel=1e-5)
    assert found[0]["val_effective_positives"] == pytest.approx(a.sum() ** 2 / (a**2).sum(), rel=1e-5)


def test_test_auc_is_the_auc(tmp_path):
    data, module = PUDataModule("digits", batch_size=64), small()
    (metrics,) = quiet_trainer(tmp_path).test(module, datamodule=data, verbose=False)
    x, y = data._test.arrays()
    with torch.no_grad():
        expected = roc_auc_score(y.numpy(), module(x).numpy())
    assert metrics["test_auc"] == pytest.approx(expected, rel=1e-5)


def test_sanity_check_and_fast_dev_run(tmp_path):
    data = PUDataModule("digits", batch_size=50)
    fit(small(), data, tmp_path, num_sanity_val_steps=2, limit_train_batches=1)
    quiet_trainer(tmp_path, fast_dev_run=True).fit(small(), datamodule=data)


def test_learned_weights_follow_the_true_ratio(tmp_path):
    source = make_pu_covariate_shift(200, 3000, 3000, random_state=0)
    data = PUDataModule(source, batch_size=800, val_size=0.0, standardize=False)
    module = PUAUCModule(2, [64, 64], relative_alpha=0.5, lr=5e-3)
    fit(module, data, tmp_path, max_epochs=25, limit_val_batches=0)
    with torch.no_grad():
        found = module.importance_weights(torch.tensor(source.X_unlabeled, dtype=torch.float32))
    truth = source.weight_unlabeled / (0.5 * source.weight_unlabeled + 0.5)
    assert np.corrcoef(found.numpy(), truth)[0, 1] > 0.9
    assert found.max() <= 2


def test_the_ratio_does_not_move_the_features():
    module = small(trade_off=0.0, weight_input="features")
    batch = next(iter(PUDataModule("digits", batch_size=100).train_dataloader()))
    scores, weights, criterion = module._step(batch)
    assert not any(weight.requires_grad for weight in weights)
    criterion.backward()
    moved = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert moved == {f"weight_head.{place}.{kind}" for place in (0, 2) for kind in ("weight", "bias")}
    module.zero_grad()
    module._risk(scores, weights).backward()
    moved = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert "score_head.weight" in moved
    assert not any(name.startswith("weight_head") for name in moved)


def loss_of(module, batch):
    """What a training step returns, without a trainer to log to."""
    scores, weights, criterion = module._step(batch)
    return module._risk(scores, weights) + criterion


def given_weights(source):
    return source.weight_positive, source.weight_unlabeled, np.ones(len(source.X_target))


def test_two_step_takes_the_weights_of_the_batch(tmp_path):
    source = make_pu_covariate_shift(100, 1000, 1000, random_state=0)
    data = PUDataModule(source, weights=given_weights(source), batch_size=4000, standardize=False)
    module = PUAUCModule(2, [8], weighting="two_step", trade_off=0.4)
    (batch,) = data.train_dataloader()
    assert len(batch) == 6
    order = torch.argsort(batch.positive[:, 0])
    weights = batch.positive_weight[order]
    torch.testing.assert_close(weights, torch.exp(1.4 * batch.positive[order, 0]))
    scores, found, criterion = module._step(batch)
    assert criterion == 0
    assert torch.equal(found[0], batch.positive_weight)
    expected = pu_risk(*scores, *batch[3:], trade_off=0.4)
    torch.testing.assert_close(loss_of(module, batch), expected)
    assert module.weight_head is None
    trainer = fit(module, data, tmp_path, max_epochs=2)
    assert np.isfinite(float(trainer.callback_metrics["val_loss"]))
    with pytest.raises(ValueError, match="weights are learned only for weighting='dynamic'"):
        module.importance_weights(batch.positive)
    with pytest.raises(ValueError, match="'two_step' needs batches with weights"):
        module.training_step(batch[:3], 0)


def test_forms_of_batches():
    module = small(weighting="none")
    batch = next(iter(PUDataModule("digits", batch_size=100).train_dataloader()))
    expected = loss_of(module, batch)
    named = dict(zip(("target", "positive", "unlabeled"), (batch.target, batch.positive, batch.unlabeled)))
    torch.testing.assert_close(loss_of(module, named), expected)
    torch.testing.assert_close(loss_of(module, list(batch)), expected)
    with pytest.raises(ValueError, match=r"\['target'\] are missing"):
        module.training_step({"positive": batch.positive, "unlabeled": batch.unlabeled}, 0)
    with pytest.raises(ValueError, match="got 2 entries"):
        module.training_step(batch[:2], 0)


def test_loaders_of_ones_own(tmp_path):
    """Three DataLoaders under Lightning's CombinedLoader."""
    source = make_pu_digits(random_state=0)
    loaders = {
        name: DataLoader(
            torch.tensor(source[f"X_{name}"], dtype=torch.float32), batch_size=size, shuffle=True
        )
        for name, size in (("positive", 20), ("unlabeled", 60), ("target", 40))
    }
    module = small()
    trainer = quiet_trainer(tmp_path, max_epochs=2, limit_val_batches=0)
    trainer.fit(module, CombinedLoader(loaders, "max_size_cycle"), [])
    assert trainer.global_step == 2 * 7
    assert torch.isfinite(trainer.callback_metrics["train_loss"])


def test_networks_of_ones_own(tmp_path):
    data = PUDataModule("digits", batch_size=200)
    whole = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 1))
    shared = nn.Sequential(nn.Linear(64, 8), nn.Tanh())
    for module in (
        PUAUCModule(net=whole, weighting="none"),
        PUAUCModule(net=whole, weight_head=nn.Linear(64, 1)),
        PUAUCModule(
            net=shared, score_head=nn.Linear(8, 1), weight_head=nn.Linear(8, 1), weight_input="features"
        ),
    ):
        trainer = fit(module, data, tmp_path)
        path = tmp_path / "module.ckpt"
        trainer.save_checkpoint(path)
        torch.load(path, weights_only=True)
        with torch.no_grad():
            assert module(torch.zeros(3, 64)).shape == (3,)
        path.unlink()


def test_images(tmp_path):
    source = make_pu_digits(random_state=0)
    names = ("X_positive", "X_unlabeled", "X_target", "X_test")
    images = {**source, **{name: source[name].reshape(-1, 1, 8, 8) for name in names}}
    data = PUDataModule(images, batch_size=200)
    module = PUAUCModule([1, 8, 8], [16], lr=3e-3)
    fit(module, data, tmp_path, max_epochs=2)
    (metrics,) = quiet_trainer(tmp_path).test(module, datamodule=data, verbose=False)
    assert 0 < metrics["test_auc"] < 1
    kinds = [type(layer).__name__ for layer in feature_network([3, 32, 32], [124, 124])]
    block = ["Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == [*block, *block, "Flatten", "Linear", "ReLU", "Linear", "ReLU"]
    channels = [
        layer.out_channels for layer in feature_network([3, 32, 32], [8]) if isinstance(layer, nn.Conv2d)
    ]
    assert channels == [6, 16]


def test_optimizer_and_schedule_of_ones_own(tmp_path):
    module = small(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    )
    trainer = fit(module, PUDataModule("digits", batch_size=300), tmp_path, max_epochs=2)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.025)
    assert isinstance(small(optimizer="adamw").configure_optimizers(), torch.optim.AdamW)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_losses_that_are_not_symmetric(loss, tmp_path):
    data = PUDataModule("digits", batch_size=300)
    for scenario in ("case_control", "single_set"):
        module = small(loss=loss, class_prior_train=0.15, scenario=scenario)
        trainer = fit(module, data, tmp_path)
        assert torch.isfinite(trainer.callback_metrics["val_loss"])


BAD = {
    "trade_off": (1.5, "trade_off must be in"),
    "relative_alpha": (1.0, "relative_alpha must be in"),
    "loss": ("hinge", "loss must be one of"),
    "weighting": ("later", "weighting must be one of"),
    "weight_input": ("scores", "weight_input must be one of"),
    "scenario": ("both", "scenario must be one of"),
    "class_prior_train": (1.0, "class_prior_train must be in"),
    "weight_floor": (-1.0, "weight_floor must be in"),
    "optimizer": ("lion", "optimizer must be one of"),
    "lr": (-1.0, "lr must be in"),
    "input_shape": ([3, 4], "input_shape must be columns or"),
    "hidden_layer_sizes": ([0], "hidden_layer_sizes must be in"),
    "score_head": (nn.Linear(2, 1), "give net, too"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings(name):
    value, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        PUAUCModule(**{name: value})


def test_bad_combinations(tmp_path):
    with pytest.raises(ValueError, match="class_prior_train must be given for loss='squared'"):
        PUAUCModule(loss="squared")
    with pytest.raises(ValueError, match="weight_input='features' needs a score_head"):
        PUAUCModule(net=nn.Linear(2, 1), weight_head=nn.Linear(2, 1), weight_input="features")
    with pytest.raises(ValueError, match="weight_head must be given with net"):
        PUAUCModule(net=nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"net must return shape \(n,\) or \(n, 1\)"):
        PUAUCModule(net=nn.Linear(2, 2), weighting="none")(torch.zeros(3, 2))
    module = small()
    module.test_scores.update([torch.zeros(3), torch.zeros(0)], [torch.ones(3), torch.zeros(0)])
    with pytest.raises(ValueError, match="test rows need both labels, got 3 positives and 0 negatives"):
        module.on_test_epoch_end()
    empty = torch.zeros(0)
    module.val_scores.update([torch.zeros(3), torch.zeros(2), empty], [torch.ones(3), torch.ones(2), empty])
    with pytest.raises(ValueError, match="validation needs rows of all of"):
        module.on_validation_epoch_end()
    assert isinstance(quiet_trainer(tmp_path), Trainer)
