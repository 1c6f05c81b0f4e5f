"""The Lightning-fitting loop and the estimator bases, on two small facades."""

import copy
import logging
import pickle
import random
import signal
import subprocess
import sys
import warnings
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import RichProgressBar
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.utils._param_validation import Interval
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from seedbed.fitting import LightningClassifier, LightningRegressor, TensorBatches, fit_module, isolated_rng


class Net(LightningModule):
    """A perceptron with one hidden layer; ``manual`` steps its optimizer itself."""

    def __init__(self, n_in, n_out, task, *, hidden=16, lr=0.01, dropout=0.0, schedule=False, manual=False):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = not manual
        self.net = nn.Sequential(
            nn.Linear(n_in, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, n_out)
        )

    def training_step(self, batch, batch_idx):
        x, y, *weight = batch
        out = self.net(x)
        if self.hparams.task == "class":
            losses = nn.functional.cross_entropy(out, y, reduction="none")
        else:
            losses = (out - y).square().mean(dim=1)
        loss = (losses * weight[0]).sum() / weight[0].sum() if weight else losses.mean()
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss.detach()

    def on_train_epoch_end(self):
        if self.hparams.manual and self.lr_schedulers() is not None:
            self.lr_schedulers().step()

    def predict_step(self, batch, batch_idx):
        out = self.net(batch[0])
        return out.softmax(dim=1) if self.hparams.task == "class" else out

    def validation_step(self, batch, batch_idx):
        raise AssertionError("the loop scores through predict_step")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        if not self.hparams.schedule:
            return optimizer
        epochs = self.trainer.max_epochs
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / epochs)]


class _Settings:
    def __init__(
        self,
        hidden=16,
        lr=0.01,
        dropout=0.0,
        schedule=False,
        manual=False,
        *,
        batch_size=32,
        max_iter=40,
        max_steps=-1,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=20,
        tol=0.0,
        warm_start=False,
        accelerator="cpu",
        devices=1,
        strategy="auto",
        precision="32-true",
        callbacks=None,
        random_state=None,
        verbose=0,
    ):
        self.hidden = hidden
        self.lr = lr
        self.dropout = dropout
        self.schedule = schedule
        self.manual = manual
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.accelerator = accelerator
        self.devices = devices
        self.strategy = strategy
        self.precision = precision
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    def _net(self, n_out, task):
        return Net(
            self.n_features_in_,
            n_out,
            task,
            hidden=self.hidden,
            lr=self.lr,
            dropout=self.dropout,
            schedule=self.schedule,
            manual=self.manual,
        )


OWN_CONSTRAINTS = {
    "hidden": [Interval(Integral, 1, None, closed="left")],
    "lr": [Interval(Real, 0, None, closed="neither")],
    "dropout": [Interval(Real, 0, 1, closed="left")],
    "schedule": ["boolean"],
    "manual": ["boolean"],
}


class NetClassifier(_Settings, LightningClassifier):
    _parameter_constraints: ClassVar = {**LightningClassifier._parameter_constraints, **OWN_CONSTRAINTS}

    def _build_module(self):
        return self._net(len(self.classes_), "class")


class NetRegressor(_Settings, LightningRegressor):
    _parameter_constraints: ClassVar = {**LightningRegressor._parameter_constraints, **OWN_CONSTRAINTS}

    def _build_module(self):
        return self._net(self.n_outputs_, "values")


@parametrize_with_checks(
    [NetClassifier(manual=True, precision="64-true"), NetRegressor(precision="64-true")],
)
def test_sklearn_checks(estimator, check):
    check(estimator)


# --- what the sklearn checks do not ask ---------------------------------------------------------------------


@pytest.fixture
def flowers():
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X = ((X - X.mean(axis=0)) / X.std(axis=0))[order].astype(np.float32)
    return X, np.array(["setosa", "versicolor", "virginica"])[y[order]]


@pytest.fixture
def sugar():
    X, y = load_diabetes(return_X_y=True, scaled=True)
    return (X * 20).astype(np.float32), y


def weights(estimator):
    return torch.cat([parameter.detach().ravel() for parameter in estimator.module_.parameters()])


def generators():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def test_learns(flowers, sugar):
    assert NetClassifier(random_state=0).fit(*flowers).score(*flowers) > 0.96
    X, y = sugar
    fitted = NetRegressor(random_state=0).fit(X, y)
    assert fitted.score(X, y) > 0.5  # least squares: 0.518
    assert abs(fitted.predict(X).mean() - y.mean()) < 5  # in the unit of y, not standardised


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("seed", [None, 3, np.random.RandomState(0)])
def test_no_global_generator_is_touched(flowers, manual, seed):
    before = generators()
    estimator = NetClassifier(manual=manual, dropout=0.2, max_iter=2, random_state=seed, early_stopping=True)
    estimator.fit(*flowers).predict(flowers[0])
    estimator.warm_start = True
    estimator.fit(*flowers)
    assert generators() == before


def test_isolated_rng_restores_after_an_error_too():
    before = generators()
    with pytest.raises(ZeroDivisionError), isolated_rng(5):
        random.random(), np.random.random(), torch.rand(1)  # noqa: NPY002
        1 / 0  # noqa: B018
    assert generators() == before


def test_isolated_rng_seeds_all_three():
    def draw(seed):
        with isolated_rng(seed):
            return random.random(), np.random.random(), float(torch.rand(1))  # noqa: NPY002

    first = draw(1)
    assert draw(1) == first
    assert all(a != b for a, b in zip(first, draw(2)))


def test_epoch_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        batches = TensorBatches(torch.arange(50), batch_size=8, seed=seed)
        batches.set_epoch(epoch)
        return torch.cat([x for (x,) in batches]).tolist()

    forwards = [order(1, epoch) for epoch in range(4)]
    assert [order(1, epoch) for epoch in reversed(range(4))] == forwards[::-1]
    assert len({tuple(one) for one in [*forwards, order(2, 0)]}) == 5
    assert all(sorted(one) == list(range(50)) for one in forwards)


def test_every_epoch_is_shuffled_anew(flowers):
    seen = []

    class Spy(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append((trainer.current_epoch, batch[0][0].tolist()))

    NetClassifier(max_iter=3, random_state=0, callbacks=[Spy()]).fit(*flowers)
    firsts = [next(row for epoch, row in seen if epoch == wanted) for wanted in range(3)]
    assert firsts[0] != firsts[1] != firsts[2]


@pytest.mark.parametrize("estimator", [NetClassifier(dropout=0.3), NetClassifier(manual=True, dropout=0.3)])
def test_same_seed_same_fit(flowers, estimator):
    X, y = flowers
    first = clone(estimator).set_params(random_state=1, max_iter=3).fit(X, y)
    torch.rand(7)  # the state outside is of no account
    again = clone(first).fit(X, y)
    assert torch.equal(weights(first), weights(again))
    np.testing.assert_array_equal(first.predict_proba(X), again.predict_proba(X))
    assert not torch.equal(weights(first), weights(clone(first).set_params(random_state=2).fit(X, y)))


@pytest.mark.parametrize("manual", [False, True])
def test_warm_start_goes_on_as_if_never_stopped(flowers, manual):
    X, y = flowers
    settings = {"manual": manual, "dropout": 0.3, "random_state": 0}
    whole = NetClassifier(max_iter=5, **settings).fit(X, y)
    parts = NetClassifier(max_iter=2, warm_start=True, **settings).fit(X, y)
    parts.set_params(max_iter=3).fit(X, y)
    assert torch.equal(weights(whole), weights(parts))
    assert (parts.n_iter_, parts.loss_curve_) == (5, whole.loss_curve_)
    # A pickle carries what is needed to go on.
    parts = NetClassifier(max_iter=2, warm_start=True, **settings).fit(X, y)
    parts = pickle.loads(pickle.dumps(parts)).set_params(max_iter=3).fit(X, y)
    assert torch.equal(weights(whole), weights(parts))


def test_without_warm_start_a_fit_starts_anew(flowers):
    estimator = NetClassifier(max_iter=2, random_state=0).fit(*flowers)
    before = weights(estimator)
    assert torch.equal(before, weights(estimator.fit(*flowers)))
    assert estimator.n_iter_ == 2


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("schedule", [False, True])
def test_partial_fit_in_halves_is_one_pass(flowers, manual, schedule):
    X, y = flowers
    settings = {"manual": manual, "schedule": schedule, "dropout": 0.3, "batch_size": 16, "random_state": 0}
    whole = NetClassifier(**settings).partial_fit(X[:128], y[:128], classes=np.unique(y))
    halves = NetClassifier(**settings).partial_fit(X[:64], y[:64], classes=np.unique(y))
    halves.partial_fit(X[64:128], y[64:128])
    assert torch.equal(weights(whole), weights(halves))
    # The optimizer's state is part of it: a new optimizer would give other weights.
    forgetful = NetClassifier(**settings).partial_fit(X[:64], y[:64], classes=np.unique(y))
    forgetful._state.optimizers = []
    assert not torch.equal(weights(whole), weights(forgetful.partial_fit(X[64:128], y[64:128])))


def test_regressor_partial_fit_keeps_the_first_scale(sugar):
    X, y = sugar

    def begin():
        return NetRegressor(batch_size=16, random_state=0).partial_fit(X[:64], y[:64])

    whole, halves = begin().partial_fit(X[64:192], y[64:192]), begin()
    halves.partial_fit(X[64:128], y[64:128]).partial_fit(X[128:192], y[128:192])
    assert torch.equal(weights(whole), weights(halves))
    np.testing.assert_allclose(whole.y_mean_, y[:64].mean())


def test_partial_fit_holds_the_learning_rate(flowers):
    X, y = flowers
    rates = []

    class Spy(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    for manual in (False, True):
        estimator = NetClassifier(schedule=True, manual=manual, max_iter=4, callbacks=[Spy()], random_state=0)
        rates.clear()
        estimator.fit(X, y)
        assert rates[0] == 0.01
        assert rates[-1] == pytest.approx(0.0025)
        rates.clear()
        estimator.partial_fit(X, y).partial_fit(X, y)
        assert set(rates) == {0.01}
        rates.clear()
        estimator.set_params(warm_start=True).fit(X, y)  # a schedule runs anew
        assert (rates[0], rates[-1]) == (0.01, pytest.approx(0.0025))


def test_partial_fit_names_what_is_wrong(flowers):
    X, y = flowers
    with pytest.raises(ValueError, match="classes must list all labels"):
        NetClassifier().partial_fit(X, y)
    estimator = NetClassifier().partial_fit(X, y, classes=np.unique(y))
    with pytest.raises(ValueError, match="classes must stay"):
        estimator.partial_fit(X, y, classes=["a", "b"])
    with pytest.raises(ValueError, match="not among the classes"):
        estimator.partial_fit(X, np.full(len(y), "rose"))
    with pytest.raises(ValueError, match="early_stopping"):
        NetClassifier(early_stopping=True).partial_fit(X, y, classes=np.unique(y))


class Spoil(Callback):
    """Ruins the weights after some epoch, so that the best epoch is not the last."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch >= self.epoch:
            with torch.no_grad():
                for parameter in pl_module.parameters():
                    parameter.zero_()


@pytest.mark.parametrize("manual", [False, True])
def test_early_stopping_restores_the_best_weights(flowers, manual):
    X, y = flowers
    estimator = NetClassifier(
        manual=manual, early_stopping=True, validation_fraction=0.2, n_iter_no_change=4, max_iter=60,
        callbacks=[Spoil(12)], random_state=0,
    ).fit(X, y)  # fmt: skip
    scores = estimator.validation_scores_
    best = int(np.argmax(scores))
    assert best < 12
    assert estimator.best_validation_score_ == scores[best] > 0.8
    assert estimator.n_iter_ == len(scores) == len(estimator.loss_curve_) == best + 1 + 4
    # The weights are those of the epoch with the best score, bit by bit.
    until = clone(estimator).set_params(max_iter=best + 1, callbacks=None).fit(X, y)
    assert torch.equal(weights(estimator), weights(until))


def test_tol_asks_for_more_than_a_bit(sugar):
    settings = {"early_stopping": True, "n_iter_no_change": 3, "random_state": 0, "max_iter": 30}
    assert NetRegressor(tol=10.0, **settings).fit(*sugar).n_iter_ == 4
    assert NetRegressor(tol=0.0, **settings).fit(*sugar).n_iter_ > 4


def test_held_out_rows_are_stratified(flowers):
    X, y = flowers
    seen = []

    class Spy(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.extend(batch[1].tolist())

    NetClassifier(early_stopping=True, validation_fraction=0.2, max_iter=1, callbacks=[Spy()]).fit(X, y)
    assert sorted(seen) == [0] * 40 + [1] * 40 + [2] * 40


def test_max_steps(flowers):
    estimator = NetClassifier(max_steps=7, max_iter=100, batch_size=50, random_state=0).fit(*flowers)
    assert estimator.n_iter_ == 3  # 3 + 3 + 1 steps
    assert int(estimator._state.optimizers[0]["state"][0]["step"]) == 7


class Press(Callback):
    """Ctrl-C, as Python delivers it."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == self.epoch and batch_idx == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("manual", [False, True])
def test_interrupt_keeps_the_best_weights(flowers, manual):
    X, y = flowers
    handler = signal.getsignal(signal.SIGINT)
    settings = {"manual": manual, "early_stopping": True, "validation_fraction": 0.2, "random_state": 0}
    estimator = NetClassifier(callbacks=[Spoil(3), Press(5)], **settings)
    with pytest.warns(UserWarning, match="interrupted after 5 full epochs; the best weights"):
        estimator.fit(X, y)
    assert signal.getsignal(signal.SIGINT) is handler
    assert estimator.interrupted_
    assert estimator.n_iter_ == len(estimator.loss_curve_) == 5
    best = int(np.argmax(estimator.validation_scores_))
    until = NetClassifier(max_iter=best + 1, **settings).fit(X, y)
    assert torch.equal(weights(estimator), weights(until))
    assert estimator.score(X, y) > 0.5
    pickle.loads(pickle.dumps(estimator)).predict(X)
    estimator.set_params(callbacks=None, max_iter=2).fit(X, y)
    assert not estimator.interrupted_


def test_interrupt_without_validation_keeps_the_latest_and_can_go_on(flowers):
    X, y = flowers
    estimator = NetClassifier(callbacks=[Press(2)], warm_start=True, random_state=0)
    with pytest.warns(UserWarning, match="after 2 full epochs; the latest"):
        estimator.fit(X, y)
    reference = NetClassifier(max_iter=2, random_state=0).fit(X, y)
    assert not torch.equal(weights(estimator), weights(reference))  # two steps further
    estimator.set_params(callbacks=None, max_iter=2).fit(X, y)
    assert estimator.n_iter_ == 4


def test_interrupt_before_the_first_epoch_ends(flowers):
    estimator = NetClassifier(callbacks=[Press(0)], early_stopping=True, random_state=0)
    with pytest.warns(UserWarning, match="after 0 full epochs"):
        estimator.fit(*flowers)
    assert estimator.best_validation_score_ is None
    assert np.isfinite(estimator.predict_proba(flowers[0])).all()


SIGNALLED = """
import os, signal, sys, threading, warnings
sys.path[:0] = {path!r}
import numpy as np
from trunk.test_fitting import NetClassifier
from lightning.pytorch import Callback

class Ready(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            print("ready", flush=True)

X = np.random.default_rng(0).normal(size=(200, 3)); y = X[:, 0] > 0
estimator = NetClassifier(max_iter=10**6, early_stopping=True, n_iter_no_change=10**6, callbacks=[Ready()])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    estimator.fit(X, y)
assert any("interrupted" in str(one.message) for one in caught), caught
assert estimator.interrupted_ and estimator.n_iter_ >= 2 and estimator.score(X, y) > 0.7
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print("usable", flush=True)
"""


def test_a_real_ctrl_c(tmp_path):
    path = [str(Path(__file__).parents[1])]
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNALLED.format(path=path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "usable\n"), err
    assert not list(tmp_path.iterdir())


def test_quiet_and_traceless(flowers, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    level = logging.getLogger("lightning.pytorch").level
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for manual in (False, True):
            estimator = NetClassifier(manual=manual, max_iter=2, early_stopping=True, accelerator="auto")
            estimator.set_params(verbose=1)  # no terminal, no bar
            estimator.fit(*flowers).predict(flowers[0])
            pickle.loads(pickle.dumps(estimator)).predict(flowers[0])
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("lightning.pytorch").level == level


def test_progress_bar_on_a_terminal(flowers, monkeypatch):
    shown = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("seedbed.training.RichProgressBar", lambda: shown.append(1) or RichProgressBar())
    NetClassifier(max_iter=1, verbose=1).fit(*flowers)
    assert shown == [1]
    NetClassifier(max_iter=1, verbose=0).fit(*flowers)
    assert shown == [1]


def test_pickle_and_copies(flowers):
    X, y = flowers
    estimator = NetClassifier(max_iter=2, random_state=0).fit(X, y)
    for copied in (pickle.loads(pickle.dumps(estimator)), copy.deepcopy(estimator)):
        np.testing.assert_array_equal(copied.predict_proba(X), estimator.predict_proba(X))
        assert copied.module_ is not estimator.module_
    assert b"Trainer" not in pickle.dumps(estimator)
    assert not hasattr(clone(estimator), "module_")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator here")
@pytest.mark.parametrize("accelerator", ["gpu", "cuda"])
def test_a_model_from_an_accelerator_predicts_without_one(flowers, accelerator):
    X, y = flowers
    estimator = NetClassifier(max_iter=2, random_state=0).fit(X, y)
    expected = estimator.predict_proba(X)
    estimator.set_params(accelerator=accelerator)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).predict_proba(X), expected)


def test_dtypes(flowers, sugar):
    X, y = flowers
    estimator = NetClassifier(max_iter=1).fit(X, y)
    assert estimator.predict_proba(X).dtype == np.float32
    assert estimator.predict_proba(X.astype(np.float64)).dtype == np.float64
    X, y = sugar
    assert NetRegressor(max_iter=1).fit(X, y).predict(X).dtype == np.float32
    assert NetRegressor(max_iter=1, precision="64-true").fit(X, y).module_.dtype == torch.float64


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_precision(flowers, precision):
    estimator = NetClassifier(precision=precision, random_state=0).fit(*flowers)
    assert estimator.score(*flowers) > 0.95


def test_target_columns_and_shapes(sugar):
    X, y = sugar
    both = np.column_stack([y, -1000 * y])
    fitted = NetRegressor(random_state=0).fit(X, both)
    assert fitted.predict(X).shape == both.shape
    assert fitted.score(X, both) > 0.4
    assert NetRegressor(max_iter=1).fit(X, y[:, None]).predict(X).shape == (len(y), 1)
    assert NetRegressor(max_iter=1).fit(X, y).predict(X).shape == (len(y),)
    with pytest.raises(ValueError, match="must keep the shape"):
        fitted.partial_fit(X, y)


def test_constant_target(sugar):
    X, y = sugar
    fitted = NetRegressor(max_iter=60, random_state=0).fit(X, np.full(len(y), 0.1))
    np.testing.assert_array_equal(fitted.y_scale_, [1.0])
    np.testing.assert_allclose(fitted.predict(X), 0.1, atol=0.1)


def test_scale_of_targets_is_weighted(sugar):
    X, y = sugar
    weight = np.random.default_rng(0).integers(0, 3, size=len(y))
    fitted = NetRegressor(max_iter=1, random_state=0).fit(X, y, sample_weight=weight)
    repeated = np.repeat(y, weight)
    np.testing.assert_allclose([fitted.y_mean_[0], fitted.y_scale_[0]], [repeated.mean(), repeated.std()])


def test_a_row_without_weight_is_no_row(flowers):
    X, y = flowers
    weight = (np.arange(len(y)) % 3 > 0).astype(float)
    kept = weight > 0
    settings = {"max_iter": 3, "dropout": 0.2, "random_state": 0}
    with_zeros = NetClassifier(**settings).fit(X, y, sample_weight=weight)
    without = NetClassifier(**settings).fit(X[kept], y[kept], sample_weight=weight[kept])
    assert torch.equal(weights(with_zeros), weights(without))
    for bad, message in ((np.zeros(len(y)), "positive|non-zero"), (-np.ones(len(y)), "[Nn]egative")):
        with pytest.raises(ValueError, match=message):
            NetClassifier().fit(X, y, sample_weight=bad)


def test_divergence_is_an_error(flowers, sugar):
    X, y = sugar
    with pytest.raises(ValueError, match=r"diverged: the loss of epoch \d+ is (nan|inf)"):
        NetRegressor(lr=1e30).fit(X, y)
    fitted = NetRegressor(max_iter=1).fit(X, y)
    with torch.no_grad():
        fitted.module_.net[3].bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="predictions are not finite"):
        fitted.predict(X)
    with pytest.raises(ValueError, match="too large for"):
        fitted.predict(np.full((1, X.shape[1]), 1e300))
    with pytest.raises(ValueError, match="y spreads too far"):
        NetRegressor().fit(X, np.where(y > 100, 1e300, -1e300))


def test_what_a_module_must_offer(flowers):
    X, y = flowers

    class Silent(Net):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)

    class Logits(Net):
        def predict_step(self, batch, batch_idx):
            return self.net(batch[0])

    class Facade(NetClassifier):
        def _build_module(self):
            return self.callbacks[0].net(self.n_features_in_, 3, "class", manual=True)

    class Carry(Callback):
        def __init__(self, net):
            self.net = net

    with pytest.raises(TypeError, match=r"Silent.training_step must return the loss"):
        Facade(callbacks=[Carry(Silent)]).fit(X, y)
    with pytest.raises(ValueError, match=r"Logits.predict_step must return probabilities"):
        Facade(callbacks=[Carry(Logits)], max_iter=1).fit(X, y).predict(X)
    with pytest.raises(TypeError, match="callbacks must be"):
        NetClassifier(callbacks=["a"]).fit(X, y)
    with pytest.raises(ValueError, match="go together"):
        fit_module(Net(4, 3, "class"), TensorBatches(torch.ones(2, 4), batch_size=2), max_epochs=1, score=len)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "ddp", "devices": 2}, "starts the whole script again"),
        ({"strategy": "fsdp"}, "fsdp"),
        ({"strategy": "no such"}, "no such"),
        ({"accelerator": "gpu", "devices": 4096}, "gpu|4096"),
    ],
)
def test_what_cannot_run_says_so(flowers, settings, message):
    with pytest.raises(ValueError, match=message):
        NetClassifier(**settings).fit(*flowers)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_every_batch(world, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)
    shares = []
    for rank in range(world):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        shares.append([x.tolist() for (x,) in TensorBatches(torch.arange(20), batch_size=12, seed=3)])
    monkeypatch.undo()
    alone = [x.tolist() for (x,) in TensorBatches(torch.arange(20), batch_size=12, seed=3)]
    for step, batch in enumerate(alone):
        parts = [share[step] for share in shares]
        assert len({len(part) for part in parts}) == 1
        assert set(chain(*parts)) == set(batch)
    assert list(chain(*(share[0] for share in shares))) == alone[0]


@pytest.mark.parametrize(
    ("strategy", "manual"),
    [("ddp_fork", False), ("ddp_fork", True), pytest.param("ddp_spawn", False, marks=pytest.mark.slow)],
)
def test_two_processes_learn_what_one_does(flowers, strategy, manual, capfd):
    X, y = flowers
    settings = {
        "batch_size": 30, "max_iter": 4, "early_stopping": True, "validation_fraction": 0.2,
        "random_state": 0, "warm_start": True, "manual": manual,
    }  # fmt: skip
    one = NetClassifier(**settings).fit(X, y)
    two = NetClassifier(devices=2, strategy=strategy, **settings).fit(X, y)
    for _ in range(2):
        torch.testing.assert_close(weights(one), weights(two), atol=1e-6, rtol=0)
        np.testing.assert_allclose(one.loss_curve_, two.loss_curve_, atol=1e-6)
        assert one.validation_scores_ == two.validation_scores_
        one.fit(X, y), two.fit(X, y)
    assert capfd.readouterr() == ("", "")
