"""Train a Lightning module from inside a call and leave nothing else behind.

:func:`fit_module` is quiet: no logger, no checkpoint files, no change to a global random state, and Ctrl-C
keeps what was learned. The estimators of :mod:`seedbed.fitting` run on it.

What a module must offer to be trained here:

- ``training_step(batch, batch_idx)``, which returns the loss (or ``{"loss": loss}``), also under manual
  optimization, where the value only feeds the loss curve;
- with validation, ``predict_step(batch, batch_idx)`` for ``batch = (x,)``;
- ``configure_optimizers`` as usual.
"""

import logging
import math
import random
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden

from seedbed.batches import derive_seed, permutation, this_process

Score = Callable[[np.ndarray], float]
"""Turns predictions on the validation rows, shape (n, k), into a number; higher is better."""

LOGGERS = ("lightning.pytorch", "lightning.fabric")


def _uses_cuda(accelerator: str) -> bool:
    """Whether a fit on this accelerator draws from CUDA's generators, or they exist already."""
    wanted = accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    return wanted or bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _uses_mps(accelerator: str) -> bool:
    return accelerator in ("auto", "gpu", "mps") and torch.backends.mps.is_available()


@contextmanager
def isolated_rng(seed: int, accelerator: str = "cpu") -> Iterator[None]:
    """Seed Python's, NumPy's and torch's global generators inside, and put them back afterwards.

    Lightning and most modules draw from the global generators; inside this context they may, and nobody
    outside notices.

    Parameters
    ----------
    seed : int
        Non-negative seed of every generator.
    accelerator : str, default="cpu"
        Where the work runs. An accelerator's generators are saved and seeded only if it may be used, so that
        work on a CPU never starts CUDA.

    Yields
    ------
    None

    Examples
    --------
    >>> import torch
    >>> before = torch.get_rng_state()
    >>> with isolated_rng(0):
    ...     first = torch.rand(2)
    >>> with isolated_rng(0):
    ...     torch.equal(first, torch.rand(2))
    True
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    cuda, mps = _uses_cuda(accelerator), _uses_mps(accelerator)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the state to protect)
    cpu = torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if cuda else []
    metal = torch.mps.get_rng_state() if mps else None
    random.seed(seed)
    np.random.seed(derive_seed(seed) % 2**32)  # noqa: NPY002
    # Not torch.manual_seed: it would also queue a seed for a CUDA that someone else starts later.
    torch.default_generator.manual_seed(seed)
    if cuda:
        torch.cuda.manual_seed_all(seed)
    if mps:
        torch.mps.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(gpus)
        if metal is not None:
            torch.mps.set_rng_state(metal)


class TensorBatches:
    """Batches of tensors that share their first dimension.

    The order of epoch ``e`` depends on ``(seed, e)`` alone. Rows are sliced, not collated one by one, which
    is what makes small models on tables fast. With several processes each takes its equal share of every
    batch (a batch that does not divide is filled up with its own first rows), so the number of processes
    does not change what a step learns from.

    Parameters
    ----------
    *tensors : Tensor
        Each of shape (n, ...).
    batch_size : int
        Rows per step, over all processes together; the last batch of an epoch may be smaller.
    seed : int, optional
        Seed of the shuffling; None keeps the rows in order.
    first_epoch : int, default=0
        What a continued fit has behind it: its trainer counts from 0 again, the shuffling goes on.

    Examples
    --------
    >>> import torch
    >>> [x.tolist() for (x,) in TensorBatches(torch.arange(5), batch_size=2)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self, *tensors: torch.Tensor, batch_size: int, seed: int | None = None, first_epoch: int = 0
    ) -> None:
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1 or batch_size < 1:
            raise ValueError(
                f"tensors must share their length and batch_size be >= 1, got {lengths}, {batch_size}"
            )
        self.tensors = tensors
        self.rows = lengths.pop()
        self.batch_size = batch_size
        self.seed = seed
        self.first_epoch = first_epoch
        self.epoch = first_epoch

    @property
    def sampler(self) -> "TensorBatches":
        """Where Lightning looks for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration takes.

        Parameters
        ----------
        epoch : int
            Counted from 0.
        """
        self.epoch = self.first_epoch + epoch

    def __len__(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return self.share(*this_process())

    def share(self, rank: int, world: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield one process's share of every batch.

        Parameters
        ----------
        rank, world : int
            Number of the process and of all processes; ``share(0, 1)`` is everything.

        Yields
        ------
        tuple of Tensor
            One part of each tensor, all of the same length.
        """
        order = None if self.seed is None else permutation(self.rows, self.seed, self.epoch)
        for start in range(0, self.rows, self.batch_size):
            stop = min(start + self.batch_size, self.rows)
            if order is None and world == 1:
                yield tuple(tensor[start:stop] for tensor in self.tensors)
                continue
            rows = torch.arange(start, stop) if order is None else order[start:stop]
            if world > 1:
                share = math.ceil(len(rows) / world)
                rows = rows[torch.arange(rank * share, (rank + 1) * share) % len(rows)]
            yield tuple(tensor[rows] for tensor in self.tensors)


def predict_batches(
    module: LightningModule,
    batches: TensorBatches,
    device: torch.device,
    context: Callable[[], Any],
) -> Float[torch.Tensor, "n k"]:
    """Run ``predict_step`` over batches.

    Parameters
    ----------
    module : LightningModule
        Already on ``device``; it is put in evaluation mode and back.
    batches : TensorBatches
        Of ``(x,)``; every process predicts all of them.
    device : torch.device
        Where to compute.
    context : callable
        Returns the context manager of the precision, such as ``fabric.autocast``.

    Returns
    -------
    Tensor of shape (n, k)
        On the CPU, at least float32.
    """
    modes = {name: part.training for name, part in module.named_modules()}
    module.eval()
    parts = []
    try:
        with torch.no_grad(), context():
            for index, batch in enumerate(batches.share(0, 1)):
                output = module.predict_step(tuple(tensor.to(device) for tensor in batch), index)
                output = output.detach().to("cpu")
                parts.append(output.float() if output.dtype in (torch.float16, torch.bfloat16) else output)
    finally:
        for name, part in module.named_modules():
            part.training = modes[name]
    joined = torch.cat(parts)
    return joined[:, None] if joined.ndim == 1 else joined


@dataclass
class LoopState:
    """What a later fit needs to go on where this one stopped, besides the module's weights.

    Attributes
    ----------
    epochs : int
        Epochs run so far, over all calls.
    optimizers : list of dict
        The optimizers' ``state_dict``, on the CPU.
    generators : dict of str to Tensor
        States of torch's generators: "cpu" and, after work on a GPU, "cuda".
    """

    epochs: int = 0
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    generators: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class Fit:
    """What :func:`fit_module` found out; the module itself holds the best weights.

    Attributes
    ----------
    n_iter : int
        Epochs run in this call, one cut short by ``max_steps`` included.
    loss_curve : list of float
        Mean training loss of each.
    scores : list of float
        Validation score after each; empty without validation.
    best_score : float or None
        The largest of them, whose weights the module holds.
    interrupted : bool
        Whether Ctrl-C ended the fit.
    state : LoopState
        To be handed to the next call.
    """

    n_iter: int
    loss_curve: list[float]
    scores: list[float]
    best_score: float | None
    interrupted: bool
    state: LoopState


class _Recorder(Callback):
    """Keeps the loss curve, the best weights and the loop's state; stops early."""

    def __init__(
        self,
        *,
        validation: TensorBatches | None,
        score: Score | None,
        patience: int | None,
        tol: float,
        state: LoopState | None,
        hold_schedule: bool,
        outbox: Path,
        verbose: int,
    ) -> None:
        self.validation = validation
        self.score = score
        self.patience = patience
        self.tol = tol
        self.resumed = state
        self.hold_schedule = hold_schedule
        self.outbox = outbox
        self.verbose = verbose
        self.losses: list[float] = []
        self.scores: list[float] = []
        self.best: dict[str, Any] | None = None
        self.best_score: float | None = None
        self.waited = 0
        self.interrupted = False
        self.state = state or LoopState()
        self._sum: torch.Tensor | float = 0.0
        self._rows = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in a worker process, which has to be told to be quiet."""
        self.__dict__.update(state)
        _silence(self.verbose)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the optimizers and generators back to where the last call left them."""
        scheduled = {id(config.scheduler.optimizer) for config in trainer.lr_scheduler_configs}
        if self.resumed is not None and self.resumed.optimizers:
            for optimizer, saved in zip(trainer.optimizers, self.resumed.optimizers, strict=True):
                rates = (
                    [group["lr"] for group in optimizer.param_groups] if id(optimizer) in scheduled else None
                )
                # A copy, since processes may share the memory of what they were started with.
                optimizer.load_state_dict(deepcopy(saved))
                # A schedule runs anew in every call; a rate that the optimizer learned itself stays.
                for group, rate in zip(optimizer.param_groups, rates or (), strict=rates is not None):
                    group["lr"] = rate
            torch.set_rng_state(self.resumed.generators["cpu"])
            if "cuda" in self.resumed.generators and pl_module.device.type == "cuda":
                torch.cuda.set_rng_state(self.resumed.generators["cuda"], pl_module.device)
        if self.hold_schedule:
            for config in trainer.lr_scheduler_configs:
                for group in config.scheduler.optimizer.param_groups:
                    group["lr"] = group.get("initial_lr", group["lr"])
                config.scheduler.step = _stand_still

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Start the epoch's mean loss."""
        self._sum, self._rows = 0.0, 0

    def on_train_batch_end(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Add the batch's loss, without waiting for the device."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, torch.Tensor):
            raise TypeError(
                f"{type(pl_module).__name__}.training_step must return the loss, or a dict that holds it "
                f"under 'loss', got {outputs!r}"
            )
        rows = len(batch[0])
        self._sum = self._sum + loss.detach() * rows
        self._rows += rows

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the epoch: mean loss, validation score, best weights, patience."""
        mean = torch.as_tensor(self._sum, device=pl_module.device, dtype=torch.float32) / self._rows
        loss = float(trainer.strategy.reduce(mean, reduce_op="mean"))
        if not np.isfinite(loss):
            raise ValueError(
                f"training diverged: the loss of epoch {trainer.current_epoch + 1} is {loss}; scale the "
                "input columns (StandardScaler) or lower the learning rate"
            )
        self.losses.append(loss)
        if self.validation is None or self.score is None:
            return
        outputs = predict_batches(
            pl_module, self.validation, pl_module.device, trainer.precision_plugin.forward_context
        )
        score = float(self.score(outputs.numpy()))
        self.scores.append(score)
        threshold = -np.inf if self.best_score is None else self.best_score + self.tol
        self.waited = 0 if score > threshold else self.waited + 1
        if self.best_score is None or score > self.best_score:
            self.best_score = score
            self.best = {
                name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                for name, value in pl_module.state_dict().items()
            }
        if self.patience is not None and self.waited >= self.patience:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the state; a worker process leaves its findings where the main process looks for them."""
        self._capture(trainer, pl_module)
        if trainer.world_size > 1 and trainer.is_global_zero:
            found = {
                "losses": self.losses,
                "scores": self.scores,
                "best_score": self.best_score,
                "best": move_data_to_device(self.best, "cpu"),
                "state": vars(self.state),
            }
            torch.save(found, self.outbox)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Note an interrupt; what was learned until now counts."""
        self.interrupted = isinstance(exception, KeyboardInterrupt)
        if self.interrupted and trainer.training:
            self._capture(trainer, pl_module)

    def collect(self) -> None:
        """Take over what a worker process found, if one did the work."""
        if self.outbox.exists():
            found = torch.load(self.outbox, weights_only=True)
            self.losses, self.scores = found["losses"], found["scores"]
            self.best, self.best_score = found["best"], found["best_score"]
            self.state = LoopState(**found["state"])

    def _capture(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = 0 if self.resumed is None else self.resumed.epochs
        generators = {"cpu": torch.get_rng_state()}
        if pl_module.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(pl_module.device)
        self.state = LoopState(
            epochs=done + len(self.losses),
            optimizers=[
                move_data_to_device(optimizer.state_dict(), "cpu") for optimizer in trainer.optimizers
            ],
            generators=generators,
        )


def _stand_still(*args: Any, **kwargs: Any) -> None:
    """A schedule's step that changes nothing."""


def _silence(verbose: int) -> None:
    """Silence Lightning's announcements and two warnings that no caller can act on."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO if verbose > 1 else logging.ERROR)
    # Leaving an accelerator idle is what the caller asked for with accelerator="cpu".
    warnings.filterwarnings("ignore", message=r".* available but not used", category=UserWarning)
    # Lightning's own use of a torch class that is on its way out.
    warnings.filterwarnings("ignore", message=r".*treespec, LeafSpec", category=FutureWarning)


@contextmanager
def quiet(verbose: int) -> Iterator[None]:
    """Keep Lightning silent inside.

    Parameters
    ----------
    verbose : int
        2 lets its messages pass.

    Yields
    ------
    None
    """
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    try:
        with warnings.catch_warnings():
            _silence(verbose)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _trainer(strategy: str | Strategy, **settings: Any) -> Trainer:
    """Build a Trainer whose strategy can run from inside a call, or say why not."""

    def build(chosen: str | Strategy) -> Trainer:
        try:
            return Trainer(strategy=chosen, **settings)
        except MisconfigurationException as error:
            raise ValueError(
                f"accelerator={settings['accelerator']!r}, devices={settings['devices']!r}, "
                f"strategy={chosen!r}, precision={settings['precision']!r} do not work here: {error}"
            ) from error

    def restarts_script(trainer: Trainer) -> bool:
        launcher = trainer.strategy.launcher
        return (
            isinstance(launcher, _SubprocessScriptLauncher)
            and trainer.world_size > 1
            and not launcher.cluster_environment.creates_processes_externally
        )

    trainer = build(strategy)
    if strategy == "auto" and restarts_script(trainer):
        trainer = build("ddp_spawn")
    if restarts_script(trainer):
        raise ValueError(
            f"strategy={strategy!r} starts the whole script again in every process, which a call to fit "
            "cannot do; use 'ddp_spawn' ('ddp_notebook' in a notebook), or start the script with torchrun"
        )
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        raise ValueError(
            f"strategy={strategy!r} spreads one model over processes, which fit does not support; use "
            "'auto' or a DDP strategy here, or fit the LightningModule with a Trainer"
        )
    return trainer


def fit_module(
    module: LightningModule,
    train: Any,
    *,
    max_epochs: int,
    max_steps: int = -1,
    validation: TensorBatches | None = None,
    score: Score | None = None,
    patience: int | None = None,
    tol: float = 0.0,
    accelerator: str = "auto",
    devices: Any = 1,
    strategy: str | Strategy = "auto",
    precision: str = "32-true",
    callbacks: Sequence[Callback] | None = None,
    random_state: int = 0,
    state: LoopState | None = None,
    hold_schedule: bool = False,
    verbose: int = 0,
) -> Fit:
    """Train a module in place and leave nothing else behind.

    No logger, no files, no global random state touched. The module ends on the CPU, in evaluation mode and
    without a trainer, with the weights of its best validation score, or the latest where there is no
    validation. Ctrl-C ends the training with a warning and the same promise; in a run over several processes
    it is passed on and nothing is kept.

    Parameters
    ----------
    module : LightningModule
        With automatic or manual optimization; see the top of the module for its steps.
    train : iterable
        Training batches, such as :class:`TensorBatches` or a DataLoader.
    max_epochs : int
        Most epochs of this call.
    max_steps : int, default=-1
        Most optimizer steps of this call; -1 means no limit.
    validation : TensorBatches, optional
        Batches ``(x,)`` to predict after every epoch.
    score : callable, optional
        ``score(outputs) -> float`` of these predictions, higher is better. Needed with ``validation``; it
        must allow pickling where worker processes are started.
    patience : int, optional
        Stop after so many epochs in a row whose score is no better than the best by more than ``tol``.
    tol : float, default=0.0
        See ``patience``.
    accelerator, devices, strategy, precision
        As in :class:`lightning.pytorch.Trainer`. With several devices ``"auto"`` means ``"ddp_spawn"``.
    callbacks : sequence of Callback, optional
        Further callbacks.
    random_state : int, default=0
        Seed of all that is drawn during the fit.
    state : LoopState, optional
        Of the fit to continue: optimizer state and generators go on. The trainer counts its epochs from 0,
        so that a schedule of the learning rate runs anew and in full.
    hold_schedule : bool, default=False
        Keep the learning rate at its initial value.
    verbose : int, default=0
        1 shows a progress bar on a terminal, 2 also Lightning's messages.

    Returns
    -------
    Fit
        Curves, best score and the state to continue from.

    Raises
    ------
    ValueError
        If the loss stops being finite, or the strategy cannot run from inside a call.
    TypeError
        If ``training_step`` returns no loss.
    """
    if (validation is None) != (score is None):
        raise ValueError("validation and score go together, got one without the other")
    main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    with (
        tempfile.TemporaryDirectory() as folder,
        isolated_rng(derive_seed(random_state, 0 if state is None else state.epochs), accelerator),
        quiet(verbose),
    ):
        recorder = _Recorder(
            validation=validation,
            score=score,
            patience=patience,
            tol=tol,
            state=state,
            hold_schedule=hold_schedule,
            outbox=Path(folder) / "findings.pt",
            verbose=verbose,
        )
        bar = verbose > 0 and sys.stdout.isatty()
        trainer = _trainer(
            strategy,
            max_epochs=max_epochs,
            max_steps=max_steps,
            accelerator=accelerator,
            devices=devices,
            precision=precision,
            callbacks=[recorder, *(callbacks or ()), *([RichProgressBar()] if bar else ())],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=bar,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
        )
        module.train()
        try:
            # An empty list tells Lightning that a module's validation_step is left out on purpose.
            trainer.fit(module, train, [] if is_overridden("validation_step", module) else None)
        except SystemExit:
            # Lightning answers Ctrl-C by ending the program, with further interrupts ignored.
            if not recorder.interrupted:
                raise
            if trainer.world_size > 1:
                raise KeyboardInterrupt from None
        finally:
            if main_thread and handler is not None:
                signal.signal(signal.SIGINT, handler)
            module.trainer = None
        recorder.collect()
        if recorder.best is not None:
            module.load_state_dict(recorder.best)
        module.cpu().eval()
    if recorder.interrupted:
        kept = "the latest" if recorder.best is None else "the best"
        warnings.warn(
            f"training interrupted after {len(recorder.losses)} full epochs; {kept} weights are kept",
            UserWarning,
            stacklevel=2,
        )
    return Fit(
        n_iter=len(recorder.losses),
        loss_curve=recorder.losses,
        scores=recorder.scores,
        best_score=recorder.best_score,
        interrupted=recorder.interrupted,
        state=recorder.state,
    )
