"""Data modules: splits, scaling, shapes; and a resumed fit that equals an uninterrupted one, bit for bit."""

import gzip

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from conformance.ddp import run_ranks
from seedbed import datasets
from seedbed.datasets import (
    ArrayDataModule,
    CharDataModule,
    CIFAR10DataModule,
    DiabetesDataModule,
    DigitsDataModule,
    MNISTDataModule,
    SeriesDataModule,
)
from seedbed.datasets.modules import split_rows

NO_ARGUMENT = [CharDataModule, DiabetesDataModule, DigitsDataModule, MNISTDataModule, SeriesDataModule]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty folder of downloaded data."""
    monkeypatch.setenv("SEEDBED_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("cls", NO_ARGUMENT)
def test_no_argument_is_needed(cls):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    module = cls()
    module.prepare_data()
    for stage in ("fit", "validate", "test", "predict"):
        module.setup(stage)
    x, y = next(iter(module.train_dataloader()))
    assert x.dtype == torch.float32
    assert y.dtype in (torch.int64, torch.float32)
    assert len(x) == len(y) == module.batch_size
    assert tuple(x.shape[1:]) == module.input_shape
    for name in ("val", "test", "predict"):
        loader = getattr(module, f"{name}_dataloader")()
        dataset = module.val_set if name == "val" else module.test_set
        rows = torch.cat([y for _, y in loader])
        assert torch.equal(rows, dataset.y)
    again = cls(**module.hparams)
    for (a, b), (c, d) in zip(module.train_dataloader(), again.train_dataloader(), strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_digits_are_the_documented_split():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X / 16, y, test_size=0.3, stratify=y, random_state=0)
    module = DigitsDataModule(val_size=0.0)
    assert torch.equal(module.train_set.y, torch.from_numpy(y_train))
    assert torch.equal(module.test_set.y, torch.from_numpy(y_test))
    scaled = (X_test - X_train.mean()) / X_train.std()
    assert np.allclose(module.test_set.arrays()[0], scaled, atol=1e-6)
    assert len(module.val_set) == 0
    with_val = DigitsDataModule()
    assert len(with_val.val_set) == 126
    assert len(with_val.train_set) == 1131
    assert torch.equal(with_val.test_set.y, module.test_set.y)
    counts = torch.bincount(with_val.val_set.y)
    assert counts.min() >= 12
    assert counts.max() <= 13


def test_digits_scaling_and_shape():
    pixel = DigitsDataModule(standardize="feature")
    x = pixel.train_set.arrays()[0]
    varies = x.std(dim=0) > 0
    assert torch.allclose(x.mean(dim=0), torch.zeros(64), atol=1e-5)
    assert torch.allclose(x[:, varies].std(dim=0, correction=0), torch.ones(int(varies.sum())), atol=1e-4)
    assert not varies.all()  # some pixels are always white, and stay finite
    plain = DigitsDataModule(standardize=None, flatten=False)
    x = plain.train_set.arrays()[0]
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert plain.input_shape == (1, 8, 8)
    assert DigitsDataModule(flatten=False, standardize="feature").input_shape == (1, 8, 8)
    assert plain.num_classes == 10


def test_seed_of_the_split_and_of_the_order():
    a, b = DigitsDataModule(random_state=0), DigitsDataModule(random_state=1)
    assert not torch.equal(a.train_set.y, b.train_set.y)
    c = DigitsDataModule(random_state=0, shuffle_seed=5)
    assert torch.equal(a.train_set.y, c.train_set.y)
    assert not torch.equal(next(iter(a.train_dataloader()))[1], next(iter(c.train_dataloader()))[1])


def test_diabetes_brings_predictions_back():
    from sklearn.datasets import load_diabetes

    module = DiabetesDataModule()
    y = torch.cat([part.y for part in (module.train_set, module.val_set, module.test_set)])
    original = y * module.target_std + module.target_mean
    assert np.allclose(np.sort(original[:, 0]), np.sort(load_diabetes().target), atol=1e-3)
    assert torch.allclose(module.train_set.y.mean(), torch.tensor(0.0), atol=1e-6)
    assert module.train_set.y.std(correction=0) == pytest.approx(1.0, abs=1e-5)
    assert abs(module.test_set.y.mean()) > 1e-4  # scaled by the training rows, not its own
    raw = DiabetesDataModule(standardize=False, standardize_target=False)
    assert raw.train_set.y.min() >= 25
    with pytest.raises(AttributeError, match="no classes"):
        _ = module.num_classes


def test_array_data_module():
    rng = np.random.default_rng(0)
    X, y = rng.normal(3.0, 2.0, size=(100, 3, 4)), np.repeat([0, 1, 1, 1], 25)
    module = ArrayDataModule(X, y, test_size=0.2, val_size=0.25, stratify=True, standardize="channel")
    assert [len(part) for part in (module.train_set, module.val_set, module.test_set)] == [60, 20, 20]
    assert [int((part.y == 0).sum()) for part in (module.train_set, module.val_set, module.test_set)] == [
        15,
        5,
        5,
    ]
    x = module.train_set.arrays()[0]
    assert torch.allclose(x.mean(dim=(0, 2)), torch.zeros(3), atol=1e-6)
    rows = torch.cat([part.arrays()[0] for part in (module.train_set, module.val_set, module.test_set)])
    assert len(torch.unique(rows, dim=0)) == 100  # a partition
    assert "X" not in module.hparams
    assert module.hparams["val_size"] == 0.25
    last = ArrayDataModule(X, y, drop_last=True, batch_size=32, test_size=0.0, val_size=0.0)
    assert [len(y) for _, y in last.train_dataloader()] == [32, 32, 32]
    assert last.test_dataloader() == []
    numbers = ArrayDataModule(X, rng.normal(size=(100, 2)), standardize_target=True)
    assert next(iter(numbers.train_dataloader()))[1].shape == (64, 2)
    assert numbers.target_mean.shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"X": np.ones((3, 2))}, ValueError, "same number of rows, got 3 and 4"),
        ({"X": np.full((4, 2), np.nan)}, ValueError, "X must be finite"),
        ({"y": [0.0, 1.0, np.inf, 2.0]}, ValueError, "y must be finite"),
        ({"X": np.ones(4)}, ValueError, "at least one axis"),
        ({"X": np.ones((0, 2))}, ValueError, "at least one row"),
        ({"X": [["a"]] * 4}, TypeError, "X must be numeric"),
        ({"y": list("abcd")}, TypeError, "y must be numeric"),
        ({"y": [0, 1, -1, 2]}, ValueError, "classes from 0"),
        ({"y": np.zeros((4, 2), dtype=int)}, ValueError, r"classes must have shape \(n,\)"),
        ({"y": np.ones(4), "stratify": True}, ValueError, "stratify=True needs classes"),
        ({"standardize_target": True}, ValueError, "standardize_target=True needs numbers"),
        ({"standardize": "pixel"}, ValueError, "standardize must be one of None, 'feature'"),
        ({"standardize": "channel"}, ValueError, "standardize='channel' needs X of shape"),
        ({"batch_size": 0}, ValueError, "batch_size must be"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an integer"),
        ({"val_size": 1.0}, ValueError, "val_size must be"),
        ({"test_size": -0.1}, ValueError, "test_size must be"),
        ({"random_state": -1}, ValueError, "random_state must be"),
        ({"shuffle_seed": -1}, ValueError, "shuffle_seed must be"),
        ({"num_workers": -1}, ValueError, "num_workers must be"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    good = {"X": np.ones((4, 2)), "y": np.array([0, 1, 0, 1])}
    with pytest.raises(error, match=message):
        ArrayDataModule(**{**good, **arguments})


def test_split_rows():
    train, val, test = split_rows(100, test_size=0.2, val_size=0.25, chronological=True)
    assert [part.tolist() for part in (train, val, test)] == [
        list(range(60)), list(range(60, 80)), list(range(80, 100))
    ]  # fmt: skip
    train, val, test = split_rows(100, test_size=0.2, val_size=0.25)
    assert sorted([*train, *val, *test]) == list(range(100))
    with pytest.raises(ValueError, match="leave no training row of 1"):
        split_rows(1, test_size=0.9, val_size=0.0, chronological=True)


def test_characters():
    text = "".join(chr(97 + i % 26) for i in range(1000))
    module = CharDataModule(text=text, seq_len=9, test_size=0.2, val_size=0.1, encoding="index", batch_size=5)
    x, y = module.train_set.arrays()
    assert x.shape == y.shape == (72, 9)
    assert x.dtype == torch.int64
    assert module.decode(x[:2]) == text[:9] + text[10:19]
    assert module.decode(y[0]) == text[1:10]
    assert module.decode(module.val_set.x[0]) == text[720:729]
    assert module.decode(module.test_set.x[0]) == text[800:809]
    assert module.vocabulary == "abcdefghijklmnopqrstuvwxyz"
    assert module.num_classes == 26
    hot = CharDataModule(text=text, seq_len=9, batch_size=5)
    assert torch.equal(hot.train_set.arrays()[0].argmax(dim=2), x)
    overlapping = CharDataModule(text=text, seq_len=9, stride=3, encoding="index")
    assert overlapping.decode(overlapping.train_set.x[1]) == text[3:12]


def test_characters_of_the_help_pages():
    module = CharDataModule()
    text = datasets.load_topics().text
    assert module.input_shape == (32, module.num_classes)
    assert len(module.train_set) == round(round(len(text) * 0.8) * 0.9) // 33
    assert module.decode(module.train_set.x[1]) == text[33:65]


def test_characters_from_a_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\u00e9ab" * 100, encoding="utf-8")
    assert CharDataModule(path=str(path), seq_len=5).vocabulary == "ab\u00e9"
    with pytest.raises(ValueError, match="text or path, not both"):
        CharDataModule(text="a", path=str(path))
    with pytest.raises(ValueError, match="less than seq_len"):
        CharDataModule(text="abcdef", seq_len=50).setup()
    with pytest.raises(ValueError, match="encoding must be one of"):
        CharDataModule(encoding="bytes")


def test_series_forecast():
    data = np.random.default_rng(0).normal(5.0, 3.0, size=(200, 3)).cumsum(axis=0)
    module = SeriesDataModule(data, seq_len=10, horizon=3, stride=2)
    x, y = module.train_set.arrays()
    assert x.shape == y.shape == (66, 10, 3)
    train = data[:144]
    standard = (data - train.mean(axis=0)) / train.std(axis=0)
    assert np.allclose(x[4], standard[8:18], atol=1e-4)
    assert np.allclose(y[4], standard[11:21], atol=1e-4)
    assert np.allclose(module.val_set.x[0], standard[144:154], atol=1e-4)
    assert np.allclose(module.test_set.x[0], standard[160:170], atol=1e-4)
    assert np.allclose(module.test_set.x[0] * module.scale + module.mean, data[160:170], rtol=1e-4)


def test_series_contemporaneous():
    data = np.random.default_rng(0).normal(size=(100, 4))
    module = SeriesDataModule(data, mode="contemporaneous", seq_len=8, stride=8)
    x, y = module.train_set.arrays()
    assert x.shape == (9, 8, 3)
    assert y.shape == (9, 8, 1)
    standard = (data - data[:72].mean(axis=0)) / data[:72].std(axis=0)
    assert np.allclose(x[1], standard[8:16, :3], atol=1e-5)
    assert np.allclose(y[1], standard[8:16, 3:], atol=1e-5)


def test_named_series(publish):
    text = "\n".join(f"{i},{i * i % 7}" for i in range(100))
    publish("exchange_rate", "text", gzip.compress(text.encode()))
    module = SeriesDataModule("exchange_rate", seq_len=5)
    module.prepare_data()
    assert module.input_shape == (5, 2)
    assert module.hparams["data"] == "exchange_rate"
    for arguments, message in [
        ({"data": "weather"}, "data must be one of 'txhousing'"),
        ({"data": np.ones(5)}, r"shape \(n_times, n_series\), got \(5,\)"),
        ({"data": np.full((5, 2), np.nan)}, "data must be finite"),
        ({"mode": "both"}, "mode must be one of"),
        ({"horizon": 0}, "horizon must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            SeriesDataModule(**arguments)
    with pytest.raises(ValueError, match="needs at least two series"):
        SeriesDataModule(np.ones((50, 1)), mode="contemporaneous").setup()
    with pytest.raises(ValueError, match="less than seq_len"):
        SeriesDataModule(np.ones((10, 1)), seq_len=12).setup()


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()
    )


def test_mnist_takes_the_full_set_where_it_is_at_hand(publish, home):
    assert MNISTDataModule().num_classes == 10
    module = MNISTDataModule(flatten=False)
    module.prepare_data()
    assert module.input_shape == (1, 28, 28)
    assert module.source_ == "packaged"
    assert list(home.iterdir()) == []
    rng = np.random.default_rng(0)
    for prefix, n in (("train", 100), ("t10k", 20)):
        publish(
            "mnist",
            f"{prefix}-images-idx3",
            gzip.compress(idx(rng.integers(256, size=(n, 28, 28), dtype=np.uint8))),
        )
        publish("mnist", f"{prefix}-labels-idx1", gzip.compress(idx((np.arange(n) % 10).astype(np.uint8))))
    auto = MNISTDataModule()
    auto.prepare_data()
    auto.setup()
    assert auto.source_ == "packaged"  # "auto" downloads nothing
    full = MNISTDataModule(source="full", val_size=0.2)
    full.prepare_data()
    assert [len(part) for part in (full.train_set, full.val_set, full.test_set)] == [80, 20, 20]
    assert full.source_ == "full"
    x, y = full.train_set.arrays()
    assert x.shape == (80, 784)
    assert full.train_set.x.dtype == torch.uint8
    assert (float(x.mean()), float(x.std())) == pytest.approx((0.0, 1.0), abs=1e-3)
    assert torch.equal(full.test_set.y, torch.arange(20) % 10)
    assert torch.bincount(y).tolist() == [8] * 10
    auto = MNISTDataModule(standardize="half")
    auto.setup()
    assert auto.source_ == "full"
    x = auto.train_set.arrays()[0]
    assert (x.min(), x.max()) == (-1.0, 1.0)
    x = MNISTDataModule(standardize=None).train_set.arrays()[0]
    assert (x.min(), x.max()) == (0.0, 1.0)


def test_cifar10(monkeypatch):
    rng = np.random.default_rng(0)
    parts = {"train": 50, "test": 20}
    content = {
        name: (rng.integers(256, size=(n, 3, 32, 32), dtype=np.uint8), np.arange(n) % 10)
        for name, n in parts.items()
    }
    from seedbed.datasets import image_modules

    monkeypatch.setattr(image_modules, "fetch_cifar10", lambda subset, **_: content[subset])
    module = CIFAR10DataModule(val_size=0.2)
    assert module.input_shape == (3, 32, 32)
    assert [len(part) for part in (module.train_set, module.val_set, module.test_set)] == [40, 10, 20]
    assert np.allclose(module.test_set.arrays()[0], content["test"][0] / 127.5 - 1, atol=1e-6)
    flat = CIFAR10DataModule(val_size=0.2, flatten=True, standardize="channel")
    cube = CIFAR10DataModule(val_size=0.2, standardize="channel")
    assert flat.input_shape == (3072,)
    assert torch.equal(flat.train_set.arrays()[0].reshape(-1, 3, 32, 32), cube.train_set.arrays()[0])
    assert torch.allclose(cube.train_set.arrays()[0].mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)


class Net(pl.LightningModule):
    """A linear classifier whose optimizer remembers: any change of order shows in its weights."""

    def __init__(self, random_state=1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(64, 10)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.1, 0.1, parameter.numel()).reshape(parameter.shape))

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.layer(x), y)

    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))

    def test_step(self, batch, index):
        self.log("accuracy", (self.layer(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def predict_step(self, batch, index):
        return self.layer(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Rows(Callback):
    """Record the labels of every training batch, and save after some steps."""

    def __init__(self, path=None, step=None):
        self.seen = []
        self.path, self.step = path, step

    def on_train_batch_start(self, trainer, module, batch, index):
        self.seen.append(tuple(batch[1].tolist()))

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def trainer(folder, *callbacks, **arguments):
    return pl.Trainer(
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        callbacks=list(callbacks),
        **arguments,
    )


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("limit", [{"max_epochs": 3}, {"max_steps": 12, "max_epochs": -1}])
@pytest.mark.parametrize("stop", [3, 4, 6, 8, 11])
def test_a_resumed_fit_is_bit_equal_to_an_uninterrupted_one(tmp_path, stop, limit, workers):
    """Four batches an epoch; saved in the middle of epochs and after their last batches."""

    def data():
        return DigitsDataModule(batch_size=300, num_workers=workers)

    path = tmp_path / "saved.ckpt"
    whole, rows = Net(), Rows(path, stop)
    trainer(tmp_path, rows, **limit).fit(whole, data())
    assert len(rows.seen) == len(set(rows.seen)) == 12

    resumed, rest = Net(), Rows()
    trainer(tmp_path, rest, **limit).fit(resumed, data(), ckpt_path=path, weights_only=True)
    assert rest.seen == rows.seen[stop:]
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key])


def test_another_loader_order_would_be_noticed(tmp_path):
    """The comparison above can fail: another shuffle seed gives other weights."""
    nets = Net(), Net()
    for seed, net in enumerate(nets):
        trainer(tmp_path, max_epochs=1).fit(net, DigitsDataModule(batch_size=300, shuffle_seed=seed))
    assert not torch.equal(nets[0].layer.weight, nets[1].layer.weight)


def test_the_whole_round_of_a_trainer(tmp_path):
    """Validate, test and predict; hyperparameters of the same name do not clash in the logger."""
    from lightning.pytorch.loggers import CSVLogger

    net, data = Net(random_state=5), DigitsDataModule(batch_size=128)
    run = trainer(tmp_path, max_epochs=10, log_every_n_steps=1)
    run.logger = CSVLogger(tmp_path)
    run.fit(net, data)
    (result,) = run.test(net, data, verbose=False)
    assert result["accuracy"] > 0.9
    outputs = torch.cat(run.predict(net, data))
    assert outputs.shape == (540, 10)
    accuracy = (outputs.argmax(dim=1) == data.test_set.y).float().mean()
    assert float(accuracy) == pytest.approx(result["accuracy"], abs=1e-6)
    no_validation = DigitsDataModule(batch_size=128, val_size=0.0)
    assert no_validation.val_dataloader() == []
    trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(Net(), no_validation)


def _fit_rank(rank, folder):
    rows = Rows()
    pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[rows],
    ).fit(Net(), DigitsDataModule(batch_size=300, val_size=0.0))
    return rows.seen


@pytest.mark.slow
def test_two_ranks_share_the_rows_of_each_epoch(tmp_path):
    one, two = run_ranks(_fit_rank, 2, str(tmp_path))
    y = DigitsDataModule(val_size=0.0).train_set.y
    for epoch in (0, 1):
        half = len(one) // 2
        labels = [label for seen in (one, two) for batch in seen[epoch * half :][:half] for label in batch]
        assert len(labels) == 1258  # 1257 rows, one of them twice to make the shares equal
        excess = np.bincount(labels) - np.bincount(y)
        assert excess.sum() == 1
        assert (excess >= 0).all()
    assert one[0] != two[0]
    assert one[0] != one[half]  # another order in the second epoch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Lightning calls what jsonargparse has deprecated
@pytest.mark.parametrize(
    "cls", [DigitsDataModule, MNISTDataModule, CharDataModule, DiabetesDataModule, SeriesDataModule]
)
def test_yaml_is_enough(tmp_path, monkeypatch, cls):
    """LightningCLI builds the module from a file, its own defaults included."""
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    monkeypatch.setattr("sys.argv", ["prog"])
    config = tmp_path / "run.yaml"
    extra = "  standardize: null\n" if cls in (DigitsDataModule, MNISTDataModule) else ""
    config.write_text(f"data:\n  batch_size: 7\n  val_size: 0.25\n{extra}trainer:\n  logger: false\n")
    cli = LightningCLI(Net, cls, args=["--config", str(config)], run=False, seed_everything_default=False)
    assert cli.datamodule.hparams["batch_size"] == 7
    assert len(next(iter(cli.datamodule.val_dataloader()))[1]) == 7
    if extra:
        assert cli.datamodule.standardize is None
