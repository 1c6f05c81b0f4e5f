"""What runs in other processes for the module tests; importable there by name."""

import os
import shutil
import signal
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer

from seedbed.catalog import load


def build(case):
    """A new module and its data."""
    return case.cls(**case.small), load(case.data)(**case.data_small)


def quiet_trainer(folder, **settings):
    """A Trainer on the CPU that writes into this folder only what is asked for."""
    defaults = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
        "num_sanity_val_steps": 0,
    }  # fmt: skip
    return Trainer(**{**defaults, **settings})


class Keep(Callback):
    """Saves a checkpoint every few steps, named after the step."""

    def __init__(self, folder, every):
        self.folder = folder
        self.every = every

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0:
            # In one step: a process that is killed leaves no half file under this name.
            unfinished = Path(self.folder) / "unfinished"
            trainer.save_checkpoint(unfinished)
            unfinished.rename(Path(self.folder) / f"{trainer.global_step}.ckpt")


class Collect(Callback):
    """Keeps the batches that training got."""

    def __init__(self):
        self.batches = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append(tuple(tensor.clone() for tensor in batch))


class Kill(Callback):
    """kill -9, in the middle of an epoch."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def fit_until_killed(case, folder, epochs, every, step):
    """Fit, keeping a checkpoint every few steps, until the process dies."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    module, data = build(case)
    trainer = quiet_trainer(folder, max_epochs=epochs, callbacks=[Keep(folder, every), Kill(step)])
    trainer.fit(module, datamodule=data)


def fit_rank(rank, case, folder):
    """Fit as one of two processes; return the weights and the batches that this one got."""
    warnings.filterwarnings("ignore")
    module, data = build(case)
    collect = Collect()
    trainer = quiet_trainer(folder, strategy="ddp", devices=2, max_epochs=1, callbacks=[collect])
    trainer.fit(module, datamodule=data)
    assert trainer.world_size == 2
    return module.state_dict(), collect.batches


def forward_both_ways(rank, case):
    """Outputs of the module for one batch, as it is and compiled."""
    warnings.filterwarnings("ignore")
    module, data = build(case)
    data.prepare_data()
    data.setup("fit")
    x = next(iter(data.train_dataloader()))[0]
    module.eval()
    compiled = torch.compile(module, backend="inductor" if shutil.which("g++") else "aot_eager")
    with torch.no_grad():
        return module(x), compiled(x)


def add_up(rank, scale):
    """Rank, number of ranks, and a sum over them."""
    total = torch.tensor([float(rank + 1) * scale])
    dist.all_reduce(total)
    return rank, dist.get_world_size(), total


def fail_on_one(rank):
    """Fail on rank 1 while rank 0 waits for it."""
    if rank == 1:
        raise ValueError("the first rank is fine")
    dist.barrier()


def hang(rank):
    """Do not come back."""
    time.sleep(600)
