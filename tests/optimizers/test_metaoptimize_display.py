"""The plot of learned step sizes."""

import math
import warnings

import lightning.pytorch as pl
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from seedbed.optimizers import MetaOptimize, StepSizeDisplay, StepSizeMonitor

mpl.use("agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def run(steps=6, **options):
    """Step sizes after each step of a small regression, and the optimizer."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 3, generator=draws), torch.randn(32, 1, generator=draws)
    layer = nn.Linear(3, 1)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(generator=draws)
    optimizer = MetaOptimize(torch.optim.SGD(layer.named_parameters(), lr=1e-2), meta_lr=0.1, **options)
    history = []
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        optimizer.step()
        history.append(optimizer.step_sizes())
    return history, optimizer


def test_a_line_per_block():
    history, _ = run(blocks="layerwise")
    display = StepSizeDisplay.from_history(history, name="learned")
    assert [line.get_label() for line in display.lines_] == ["weight", "bias"]
    np.testing.assert_array_equal(display.lines_[0].get_xdata(), np.arange(1, 7))
    np.testing.assert_array_equal(display.lines_[0].get_ydata(), [entry["weight"] for entry in history])
    assert history[0]["weight"] != history[-1]["weight"]
    assert display.bands_ == []
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.get_title() == "learned"
    assert display.figure_ is display.ax_.figure


def test_a_band_where_a_block_has_several():
    history, _ = run(blocks="weightwise", meta="sgd")
    _, ax = plt.subplots()
    display = StepSizeDisplay.from_history(history, steps=range(0, 60, 10), ax=ax)
    assert display.ax_ is ax
    assert len(display.bands_) == 1  # the bias has one value
    mean, low, high = display.step_sizes["weight"].T
    last = history[-1]["weight"]
    assert mean[-1] == pytest.approx(float(last.mean()))
    assert (low[-1], high[-1]) == (float(last.min()), float(last.max()))
    assert low[-1] < high[-1]
    np.testing.assert_array_equal(display.steps, [0, 10, 20, 30, 40, 50])


def test_what_is_not_positive_is_drawn_on_a_plain_scale():
    display = StepSizeDisplay.from_history([{"all": 0.1}, {"all": -0.1}])
    assert display.ax_.get_yscale() == "linear"


def test_a_block_that_comes_later():
    display = StepSizeDisplay.from_history([{"a": 0.1}, {"a": 0.1, "b": 0.2}])
    assert math.isnan(display.step_sizes["b"][0, 0])
    assert display.step_sizes["b"][1, 0] == 0.2


class Regression(pl.LightningModule):
    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = nn.Linear(3, 1), options

    def training_step(self, batch, index):
        return (self.layer(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return MetaOptimize(torch.optim.SGD(self.layer.named_parameters(), lr=1e-2), **self.options)


@pytest.mark.parametrize("blocks", ["scalar", "weightwise"])
def test_from_a_monitor_without_a_logger(blocks):
    draws = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(32, 3, generator=draws), torch.randn(32, 1, generator=draws))
    monitor = StepSizeMonitor(every_n_steps=2, target=None)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, callbacks=[monitor],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    module = Regression(blocks=blocks, meta_lr=0.1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of training batches")
        trainer.fit(module, DataLoader(data, batch_size=4))
    display = StepSizeDisplay.from_monitor(monitor)
    np.testing.assert_array_equal(display.steps, [2, 4, 6, 8])
    now = trainer.optimizers[0].step_sizes()
    for block, value in now.items():
        tensor = torch.as_tensor(value, dtype=torch.float64)
        expected = [float(tensor.mean()), float(tensor.min()), float(tensor.max())]
        np.testing.assert_allclose(display.step_sizes[block][-1], expected, rtol=1e-6)


@pytest.mark.parametrize("history", [[], [{}]])
def test_nothing_to_plot(history):
    with pytest.raises(ValueError, match="history must hold"):
        StepSizeDisplay.from_history(history)
    with pytest.raises(ValueError, match="history must hold"):
        StepSizeDisplay.from_monitor(StepSizeMonitor())


def test_wrong_arguments():
    with pytest.raises(ValueError, match="one entry for each of 1 steps"):
        StepSizeDisplay.from_history([{"all": 0.1}], steps=[1, 2])
    with pytest.raises(TypeError, match="StepSizeMonitor, got Linear"):
        StepSizeDisplay.from_monitor(nn.Linear(1, 1))
