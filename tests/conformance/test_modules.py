"""Every Lightning module of the catalog: Trainer, checkpoints, resume, kill -9, DDP, bf16, command line."""

import ast
import inspect
import multiprocessing
import re
import signal
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader

import seedbed.lightning_modules
import seedbed.optimizers
from conformance.cases import cases, no_global_generator
from conformance.ddp import run_ranks
from conformance.workers import Keep, build, fit_rank, fit_until_killed, forward_both_ways, quiet_trainer

MODULES = cases("module")
each = pytest.mark.parametrize("case", MODULES)
# What starts processes runs for the first module; the others wait for a slow run.
first_fast = pytest.mark.parametrize(
    "case",
    [
        param if index == 0 else pytest.param(*param.values, id=param.id, marks=pytest.mark.slow)
        for index, param in enumerate(MODULES)
    ],
)
pytestmark = [
    # Arrays in memory need no workers, and a resumed fit no further checkpoints.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]

EPOCHS = 3


def predictions(module, data, folder):
    return torch.cat(quiet_trainer(folder).predict(module, datamodule=data))


def assert_equal_state(a, b, path="state"):
    """Nested states are equal, bit by bit."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_equal_state(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for index, (left, right) in enumerate(zip(a, b)):
            assert_equal_state(left, right, f"{path}[{index}]")
    else:
        assert a == b, path


def assert_same_end(trainer, module, other_trainer, other):
    """Two fits ended in the same weights, optimizer state and epoch."""
    assert_equal_state(module.state_dict(), other.state_dict())
    for left, right in zip(trainer.optimizers, other_trainer.optimizers, strict=True):
        assert_equal_state(left.state_dict(), right.state_dict(), "optimizer")
    assert (trainer.current_epoch, trainer.global_step) == (
        other_trainer.current_epoch,
        other_trainer.global_step,
    )


def uninterrupted(case, folder, keep):
    """A whole fit that left checkpoints behind."""
    module, data = build(case)
    trainer = quiet_trainer(
        folder, max_epochs=EPOCHS, enable_checkpointing=isinstance(keep, ModelCheckpoint), callbacks=[keep]
    )
    trainer.fit(module, datamodule=data)
    return trainer, module


def step_of(checkpoint):
    return int(re.search(r"(\d+)\.ckpt$", checkpoint.name)[1])


def resumed(case, folder, checkpoint):
    module, data = build(case)
    trainer = quiet_trainer(folder, max_epochs=EPOCHS)
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    return trainer, module


def steps_per_epoch(case):
    _, data = build(case)
    data.prepare_data()
    data.setup("fit")
    return len(data.train_dataloader())


@each
def test_fit_validate_test_predict(case, tmp_path):
    module, data = build(case)
    before = {name: value.clone() for name, value in module.named_parameters()}
    trainer = quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(module, datamodule=data)
    metrics = trainer.callback_metrics
    assert {"train_loss", "val_loss"} <= set(metrics), set(metrics)
    assert all(torch.isfinite(value).all() for value in metrics.values()), metrics
    assert any(not torch.equal(value, before[name]) for name, value in module.named_parameters())
    assert all(value.isfinite().all() for value in module.parameters())
    (validated,) = trainer.validate(module, datamodule=data, verbose=False)
    (tested,) = trainer.test(module, datamodule=data, verbose=False)
    assert "val_loss" in validated
    assert "test_loss" in tested
    found = predictions(module, data, tmp_path)
    assert found.isfinite().all()
    assert len(found) == sum(len(batch[0]) for batch in data.predict_dataloader())
    assert not list(tmp_path.iterdir())


@each
def test_no_global_generator_is_moved(case, tmp_path):
    # The shape checks that tests switch on draw from Python's generator.
    with no_global_generator(but="python"):
        module, data = build(case)
        quiet_trainer(tmp_path, max_epochs=1).fit(module, datamodule=data)
        predictions(module, data, tmp_path)


@each
def test_same_settings_same_fit(case, tmp_path):
    ends = []
    for _ in range(2):
        module, data = build(case)
        quiet_trainer(tmp_path, max_epochs=1).fit(module, datamodule=data)
        ends.append(module.state_dict())
    assert_equal_state(*ends)


@each
def test_checkpoint_gives_the_same_predictions(case, tmp_path):
    module, data = build(case)
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(module, datamodule=data)
    path = tmp_path / "module.ckpt"
    trainer.save_checkpoint(path)
    torch.load(path, weights_only=True)  # a file from a stranger runs no code
    loaded = case.cls.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(predictions(loaded, data, tmp_path), predictions(module, data, tmp_path))
    assert dict(loaded.hparams) == dict(module.hparams)


@each
def test_hyperparameters_are_saved(case):
    module, _ = build(case)
    saved = dict(module.hparams)
    names = [name for name in inspect.signature(case.cls.__init__).parameters if name != "self"]
    assert set(saved) == set(names)
    assert {name: saved[name] for name in case.small} == dict(case.small)


@each
@pytest.mark.parametrize("where", ["between epochs", "within an epoch"])
def test_resume_equals_uninterrupted(case, where, tmp_path):
    per_epoch = steps_per_epoch(case)
    assert per_epoch >= 3, "the small data have too few batches to stop within an epoch"
    if where == "between epochs":
        keep = ModelCheckpoint(tmp_path, save_top_k=-1)
    else:
        keep = Keep(tmp_path, per_epoch + per_epoch // 2)
    whole = uninterrupted(case, tmp_path, keep)
    saved = min(tmp_path.glob("*.ckpt"), key=step_of)
    assert step_of(saved) < whole[0].global_step
    assert_same_end(*whole, *resumed(case, tmp_path, saved))


@first_fast
def test_killed_and_resumed_equals_uninterrupted(case, tmp_path):
    per_epoch = steps_per_epoch(case)
    # Killed one step after a checkpoint, and that within the second epoch.
    every, step = 2, per_epoch + (2 if per_epoch % 2 else 3)
    (tmp_path / "whole").mkdir()
    whole = uninterrupted(case, tmp_path / "whole", Keep(tmp_path / "whole", every))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    process = context.Process(target=fit_until_killed, args=(case, str(tmp_path), EPOCHS, every, step))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == -signal.SIGKILL
    last = max(tmp_path.glob("*.ckpt"), key=step_of)
    assert step_of(last) == step - 1
    assert_same_end(*whole, *resumed(case, tmp_path, last))


@first_fast
def test_two_processes_equal_one_on_the_joined_batches(case, tmp_path):
    (first, shares), (second, other_shares) = run_ranks(fit_rank, 2, case, str(tmp_path))
    assert_equal_state(first, second)
    joined = [
        tuple(torch.cat(parts) for parts in zip(*both, strict=True))
        for both in zip(shares, other_shares, strict=True)
    ]
    assert len(joined) > 1
    assert not any(torch.equal(a[0], b[0]) for a, b in zip(shares, other_shares)), "both got the same rows"
    module, _ = build(case)
    quiet_trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(
        module, DataLoader(joined, batch_size=None), []
    )
    for name, value in module.state_dict().items():
        torch.testing.assert_close(
            first[name], value, atol=2e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@each
def test_bf16_mixed(case, tmp_path):
    module, data = build(case)
    trainer = quiet_trainer(tmp_path, max_epochs=1, precision="bf16-mixed")
    trainer.fit(module, datamodule=data)
    assert all(torch.isfinite(value).all() for value in trainer.callback_metrics.values())
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in module.parameters())
    found = torch.cat(quiet_trainer(tmp_path, precision="bf16-mixed").predict(module, datamodule=data))
    assert found.isfinite().all()


# --- LightningCLI -------------------------------------------------------------------------------------------


def command_line(arguments, **options):
    return LightningCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=None,
        seed_everything_default=False,
        args=arguments,
        **options,
    )


def written(case, folder, path):
    """A configuration file as a user would write it."""
    trainer = {
        "max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
        "default_root_dir": str(folder),
    }  # fmt: skip
    settings = {
        "trainer": trainer,
        "model": {"class_path": case.path, "init_args": dict(case.small)},
        "data": {"class_path": case.data, "init_args": dict(case.data_small)},
    }
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


@each
def test_command_line_round_trip(case, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["seedbed"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning's own calls
    config = written(case, tmp_path, tmp_path / "run.yaml")
    with pytest.raises(SystemExit) as ended:
        command_line(["fit", "--config", str(config), "--print_config"])
    assert ended.value.code == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out, encoding="utf-8")
    run = command_line(["fit", "--config", str(printed)])
    assert type(run.model) is case.cls
    module, data = build(case)
    saved = dict(run.model.hparams)
    assert {name: saved[name] for name in case.small} == dict(case.small)
    # What ran from the file is what runs from Python.
    quiet_trainer(tmp_path, max_epochs=1).fit(module, datamodule=data)
    assert_equal_state(run.model.state_dict(), module.state_dict())


# --- devices ------------------------------------------------------------------------------------------------


def device_literals(text):
    """Lines that name a device: ``.cuda()``, or a device as an argument."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            found.append(node.lineno)
        given = [*node.args, *(word.value for word in node.keywords)]
        names = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        found += [node.lineno for name in names if name.partition(":")[0] in ("cuda", "mps", "xpu")]
        found += [
            node.lineno
            for word in node.keywords
            if word.arg == "device" and isinstance(word.value, ast.Constant) and word.value.value == "cpu"
        ]
    return found


@pytest.mark.parametrize("package", [seedbed.lightning_modules, seedbed.optimizers])
def test_no_device_literals(package):
    assert device_literals("x.cuda()\ny.to('cuda:0')\nf(device='cpu')\nx.type == 'cuda'") == [1, 2, 3]
    (folder,) = (Path(path) for path in package.__path__)
    files = list(folder.rglob("*.py"))
    assert files
    found = {path.name: device_literals(path.read_text(encoding="utf-8")) for path in files}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.slow
@each
def test_compiled_forward(case):
    # In a process of its own: the shape checks that tests switch on cannot be compiled.
    ((eager, compiled),) = run_ranks(forward_both_ways, 1, case)
    torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@each
def test_accelerator_agrees_with_the_cpu(case, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    ends = []
    for accelerator in ("cpu", "gpu"):
        module, data = build(case)
        trainer = quiet_trainer(tmp_path, accelerator=accelerator, max_epochs=1, limit_train_batches=3)
        trainer.fit(module, datamodule=data)
        ends.append(predictions(module, data, tmp_path))
    torch.testing.assert_close(*ends, atol=1e-3, rtol=1e-3)
