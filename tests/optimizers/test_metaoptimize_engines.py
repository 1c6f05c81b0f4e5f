"""MetaOptimize under Lightning: the monitor, and construction from a configuration file."""

import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import DataLoader

from conformance import toy
from seedbed.optimizers import MetaAdamW, MetaOptimize, MetaSGD, StepSizeMonitor

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning", "ignore::FutureWarning:lightning", "ignore::DeprecationWarning:lightning"
)


class Memory(Logger):
    """Keeps what is logged."""

    name, version = "memory", 0

    def __init__(self):
        super().__init__()
        self.entries = []

    def log_metrics(self, metrics, step=None):
        self.entries.append((step, dict(metrics)))

    def log_hyperparams(self, params, *args, **kwargs):
        pass


class Regression(pl.LightningModule):
    def __init__(self, make=None):
        super().__init__()
        self.model, self.make = toy.network(), make

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return self.make(self.model.named_parameters())


class Batches(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(toy.batches(6), batch_size=None)


def fit(make, monitor, steps=6, **options):
    logger, module = Memory(), Regression(make)
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", devices=1, logger=logger, callbacks=[monitor],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, **options,
    )  # fmt: skip
    trainer.fit(module, Batches())
    return logger.entries, trainer.optimizers[0]


def test_the_monitor_logs_every_block():
    entries, optimizer = fit(
        lambda p: MetaAdamW(p, lr=1e-3, meta_lr=0.05, blocks="layerwise"), StepSizeMonitor(every_n_steps=2)
    )
    learned = [(step, values) for step, values in entries if any("alpha" in key for key in values)]
    assert [step for step, _ in learned] == [2, 4, 6]
    last = learned[-1][1]
    for block, size in optimizer.step_sizes().items():
        assert last[f"MetaAdamW/alpha/{block}"] == size
        assert last[f"MetaAdamW/trace/{block}"] > 0
        assert last[f"MetaAdamW/z/{block}"] == optimizer.meta_gradients()[block]
    assert len(last) == 12


def test_the_monitor_sums_up_fine_blocks():
    entries, optimizer = fit(
        lambda p: MetaAdamW(p, lr=1e-3, meta_lr=0.05, blocks="weightwise"), StepSizeMonitor(every_n_steps=6)
    )
    (last,) = [values for _, values in entries if any("alpha" in key for key in values)]
    sizes = optimizer.step_sizes()[
        "model.0.weight" if "model.0.weight" in optimizer.step_sizes() else "0.weight"
    ]
    assert last["MetaAdamW/alpha/0.weight/mean"] == pytest.approx(sizes.mean().item())
    assert last["MetaAdamW/alpha/0.weight/max"] == pytest.approx(sizes.max().item())


@pytest.mark.parametrize(
    ("make", "target", "warned"),
    [
        (lambda p: MetaAdamW(p, lr=1e-6, meta_lr=1e-3), 1e-3, True),
        (lambda p: MetaAdamW(p, lr=1e-4, meta_lr=0.5), 1e-3, False),
        (lambda p: MetaAdamW(p, lr=1e-6, meta_lr=1e-3), None, False),
        (lambda p: MetaAdamW(p, lr=1e-2, meta_lr=1e-3), 1e-3, False),
        (lambda p: MetaSGD(p, lr=1e-6, meta="sgd"), 1e-3, False),
        (lambda p: torch.optim.SGD(p, lr=1e-6), 1e-3, False),
    ],
)
def test_a_run_too_short_is_said_at_the_start(make, target, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(make, StepSizeMonitor(target=target))
    said = [str(entry.message) for entry in caught if "raise meta_lr" in str(entry.message)]
    assert len(said) == warned
    if warned:
        assert "6908 steps" in said[0]
        assert "the run has 6" in said[0]


@pytest.mark.parametrize(
    "options", [{"every_n_steps": 0}, {"every_n_steps": 1.5}, {"target": 0.0}, {"target": "far"}]
)
def test_the_monitor_checks_its_arguments(options, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        StepSizeMonitor(**options)


CONFIGURED = {
    "MetaAdamW": {"lr": 1e-4, "weight_decay": 0.2, "meta_lr": 0.01, "blocks": "layerwise", "gamma": 0.999},
    "MetaSGD": {"lr": 1e-4, "momentum": 0.9, "alpha_bounds": [1e-6, 0.3]},
    "MetaLion": {"lr": 1e-5, "meta": "adam", "meta_parameters": ["lr"]},
    "HypergradientDescent": {"lr": 1e-3, "base": "Adam", "base_kwargs": {"betas": [0.8, 0.9]}},
    "Lion": {"lr": 1e-5, "betas": [0.8, 0.9]},
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_lightning_cli_makes_it_from_yaml(name, tmp_path):
    import yaml

    config = {
        "trainer": {
            "max_steps": 3, "accelerator": "cpu", "devices": 1, "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": str(tmp_path),
        },
        "optimizer": {"class_path": f"seedbed.optimizers.{name}", "init_args": CONFIGURED[name]},
    }  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config))

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = toy.network()

        training_step = Regression.training_step

    cli = LightningCLI(
        Net,
        Batches,
        args=["fit", "--config", str(path)],
        save_config_callback=None,
        seed_everything_default=False,
    )
    (optimizer,) = (o.optimizer if hasattr(o, "optimizer") else o for o in cli.trainer.optimizers)
    assert type(optimizer).__name__ == name
    assert "class_path: seedbed.optimizers" in cli.parser.dump(cli.config)
    group = optimizer.param_groups[0]
    assert group["lr"] == CONFIGURED[name]["lr"]
    if name == "MetaAdamW":
        assert group["weight_decay"] == 0.2
        assert list(optimizer.step_sizes()) == ["param0", "param1", "param2", "param3"]
        assert optimizer._options.gamma == 0.999
    if name == "HypergradientDescent":
        assert isinstance(optimizer.base, torch.optim.Adam)
        assert tuple(group["betas"]) == (0.8, 0.9)
    assert isinstance(optimizer, MetaOptimize) == (name != "Lion")
