"""A Lightning callback that keeps and logs what a MetaOptimize has learned."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from seedbed.checks import check_number
from seedbed.optimizers.metaoptimize.display import summary
from seedbed.optimizers.metaoptimize.wrapper import MetaOptimize


class StepSizeMonitor(Callback):
    """Keeps step sizes, and logs them with meta-gradients and trace lengths, block by block.

    Lightning's own LearningRateMonitor shows the schedule, not what is learned on top of it.

    Parameters
    ----------
    every_n_steps : int, optional
        How often; as often as the trainer logs if None.
    target : float, optional
        A step size that training should be able to reach. If the run is too short for that at this
        ``meta_lr``, a warning says so at the start. None looks for nothing.

    Attributes
    ----------
    history : list of (int, dict)
        Number of the step, and step sizes by block (a float, or mean, smallest and largest of several), as
        often as ``every_n_steps`` says, since training began or was resumed.
        :class:`~seedbed.optimizers.StepSizeDisplay` draws it.

    Raises
    ------
    TypeError, ValueError
        If a number is none or out of its range.

    Examples
    --------
    >>> from lightning.pytorch import Trainer
    >>> from seedbed.optimizers import StepSizeMonitor
    >>> monitor = StepSizeMonitor(target=1e-3)
    >>> trainer = Trainer(callbacks=[monitor], accelerator="cpu", logger=False, enable_checkpointing=False)
    """

    def __init__(self, every_n_steps: int | None = None, target: float | None = 1e-3) -> None:
        if every_n_steps is not None:
            check_number("every_n_steps", every_n_steps, low=1, integer=True)
        if target is not None:
            check_number("target", target, low=0.0, closed="neither")
        self.every_n_steps = every_n_steps
        self.target = target
        self.history: list[tuple[int, dict[str, Any]]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Begin a history; warn if the run is too short to reach the target.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module.
        """
        self.history = []
        if self.target is None:
            return
        left = trainer.estimated_stepping_batches - trainer.global_step
        for _, optimizer in found(trainer):
            if (
                optimizer.meta in ("sgd", None)
                or "lr" not in optimizer.meta_parameters
                or max(summary(size)[2] for size in optimizer.step_sizes().values()) >= self.target
            ):
                continue
            needed = optimizer.steps_to_reach(self.target)
            if needed > left:
                rank_zero_warn(
                    f"learning step sizes takes {needed} steps to {self.target:g}, the run has {left}; "
                    "raise meta_lr or the initial lr"
                )

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:  # noqa: ARG002
        """Keep and log.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        *args
            Not used.
        """
        every = self.every_n_steps or trainer.log_every_n_steps
        if trainer.global_step % every:
            return
        optimizers = found(trainer)
        several = len(optimizers) > 1
        sizes: dict[str, Any] = {}
        values: dict[str, float] = {}
        for prefix, optimizer in optimizers:
            step_sizes = optimizer.step_sizes()
            for block, value in step_sizes.items():
                name = f"{prefix}/{block}" if several else block
                sizes[name] = summary(value) if isinstance(value, Tensor) else value
            if not trainer.loggers:
                continue
            for kind, entries in (
                ("alpha", step_sizes),
                ("z", optimizer.meta_gradients()),
                ("trace", optimizer.trace_norms()),
            ):
                for block, value in entries.items():
                    if isinstance(value, Tensor):
                        mean, _, largest = summary(value)
                        values[f"{prefix}/{kind}/{block}/mean"] = mean
                        values[f"{prefix}/{kind}/{block}/max"] = largest
                    else:
                        values[f"{prefix}/{kind}/{block}"] = value
        if sizes:
            self.history.append((trainer.global_step, sizes))
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)


def found(trainer: Trainer) -> list[tuple[str, MetaOptimize]]:
    """List a trainer's MetaOptimize optimizers with a name for each.

    Parameters
    ----------
    trainer : Trainer
        The trainer.

    Returns
    -------
    list of (str, MetaOptimize)
        Names are class names, numbered if there are several.
    """
    optimizers = [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, MetaOptimize)]
    names = [type(optimizer).__name__ for optimizer in optimizers]
    if len(names) > 1:
        names = [f"{name}-{number}" for number, name in enumerate(names)]
    return list(zip(names, optimizers))
