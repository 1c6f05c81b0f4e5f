"""How a network that writes its own gradients is trained by Lightning.

Optimization is manual, since there is nothing to call ``backward`` on. A step is::

    learn (writes .grad) ─▶ sum over processes ─▶ bound ─▶ scale (16-mixed) ─▶ optimizer.step()

No gradient hook ever fires without a backward pass, so data-parallel strategies are served by one explicit
reduction of the flat gradient buffer, before the bound: two processes equal one on the joined batch.
"""

import math
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import Metric

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.diagnostics import angles_to_backprop
from seedbed.lightning_modules.dll.optimizing import (
    OPTIMIZERS,
    SCHEDULES,
    OptimizerCallable,
    build_optimizer,
    schedule_factor,
)
from seedbed.lightning_modules.dll.rules import LearnStep, build_network

Batch = tuple[Tensor, Tensor, Tensor | None]


class LocalModule(pl.LightningModule):
    """What the modules share: a step without ``backward``, optimizers, logging.

    Parameters
    ----------
    config : NetworkConfig
        The network.
    learning_rule : str
        A key of :data:`~seedbed.lightning_modules.dll.rules.RULES`.
    optimizer : {"adam", "adamw", "sgd"} or callable
        Name, or a callable from parameter groups to an optimizer (what LightningCLI passes).
    lr : float
        Learning rate of a named optimizer; a callable has its own.
    feedback_lr_ratio : float, optional
        Learning rate of feedback weights over that of forward weights; None takes the rule's own.
    lr_schedule : {"linear", "cosine", "none"}
        Decay to zero over the epochs of the fit, once per epoch.
    max_update_norm : float, optional
        Bound on the norm of all gradients together.
    update_feedback_every : int
        Feedback weights learn in every so-manieth step only.
    feedback_start_epoch : int
        And not before this epoch.
    allow_unstable : bool
        Accept Hebbian feedback under plain SGD without bound or decay, which grows exponentially.
    log_alignment : bool
        Log the cosine between forward and feedback weights and the share of bounded errors, per epoch.
    log_bp_angle : bool
        Log the angle between updates and backpropagation's gradient on the first batch of each epoch, which
        costs a backward pass.
    """

    def __init__(
        self,
        config: NetworkConfig,
        *,
        learning_rule: str,
        optimizer: OptimizerCallable | str,
        lr: float,
        feedback_lr_ratio: float | None,
        lr_schedule: str,
        max_update_norm: float | None,
        update_feedback_every: int,
        feedback_start_epoch: int,
        allow_unstable: bool,
        log_alignment: bool,
        log_bp_angle: bool,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if not callable(optimizer):
            check_choice("optimizer", optimizer, OPTIMIZERS)
        check_number("lr", lr, low=0, closed="neither")
        if feedback_lr_ratio is not None:
            check_number("feedback_lr_ratio", feedback_lr_ratio, low=0)
        check_choice("lr_schedule", lr_schedule, SCHEDULES)
        if max_update_norm is not None:
            check_number("max_update_norm", max_update_norm, low=0, closed="neither")
        check_number("update_feedback_every", update_feedback_every, low=1, integer=True)
        check_number("feedback_start_epoch", feedback_start_epoch, low=0, integer=True)
        self.network = build_network(learning_rule, config)
        self.optimizer = optimizer
        self.lr = lr
        self.feedback_lr_ratio = feedback_lr_ratio
        self.lr_schedule = lr_schedule
        self.max_update_norm = max_update_norm
        self.update_feedback_every = update_feedback_every
        self.feedback_start_epoch = feedback_start_epoch
        self.allow_unstable = allow_unstable
        self.log_alignment = log_alignment
        self.log_bp_angle = log_bp_angle
        self._steps = 0
        if not callable(optimizer):
            # Refuses what is known to diverge now rather than when training starts.
            self._make_optimizer()

    def forward(self, x: Tensor) -> Tensor:
        """Output of the network.

        Parameters
        ----------
        x : Tensor
            Inputs, batch first.

        Returns
        -------
        Tensor
            Logits or values.
        """
        return self.network(x)

    def unpack(self, batch: Any, *, smooth: bool) -> Batch:
        """Split a batch into inputs, target and sample weight.

        Parameters
        ----------
        batch : tuple
            ``(x, y)`` or ``(x, y, sample_weight)``.
        smooth : bool
            Whether class targets are smoothed.

        Returns
        -------
        tuple
            ``(x, target, sample_weight or None)`` as :meth:`LocalNetwork.learn` takes them.
        """
        raise NotImplementedError

    def predictions(self, output: Tensor) -> Tensor:
        """Turn the network's output into what ``predict_step`` reports.

        Parameters
        ----------
        output : Tensor
            From the network.

        Returns
        -------
        Tensor
            Probabilities or values.
        """
        raise NotImplementedError

    def measure(self, stage: str, output: Tensor, batch: Any) -> None:
        """Update and log the metrics of a stage.

        Parameters
        ----------
        stage : {"train", "val", "test"}
            Which.
        output : Tensor
            From the network.
        batch : tuple
            As the loader gave it.
        """
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Learn from one batch.

        Parameters
        ----------
        batch : tuple
            ``(x, y)`` or ``(x, y, sample_weight)``.
        batch_idx : int
            Its place in the epoch.

        Returns
        -------
        Tensor
            Loss before the update.
        """
        network = self.network
        x, target, weight = self.unpack(batch, smooth=True)
        network.update_feedback = (
            self._steps % self.update_feedback_every == 0 and self.current_epoch >= self.feedback_start_epoch
        )
        self._steps += 1
        watched = self.log_alignment and batch_idx == 0
        if watched:
            network.monitor(True)
        step: LearnStep = network.learn(x, target, weight, clip=False)
        if watched:
            network.monitor(False)
            self._log_clipping()
        if self.log_bp_angle and batch_idx == 0:
            for name, angle in angles_to_backprop(network, x, target, weight).items():
                self.log(f"bp_angle/{name}", angle, batch_size=len(x))
        if self.trainer.world_size > 1:
            network.reduce_updates(partial(self.trainer.strategy.reduce, reduce_op="sum"))
        network.clip_updates(self.max_update_norm)
        self._scale_updates()
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.step()
        self.log("train_loss", step.loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=len(x))
        if step.output is not None:
            self.measure("train", step.output, batch)
        return step.loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Log loss and metrics of a validation batch.

        Parameters
        ----------
        batch : tuple
            As in :meth:`training_step`.
        batch_idx : int
            Its place.
        """
        self._evaluate("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Log loss and metrics of a test batch.

        Parameters
        ----------
        batch : tuple
            As in :meth:`training_step`.
        batch_idx : int
            Its place.
        """
        self._evaluate("test", batch)

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Tensor:  # noqa: ARG002
        """Predict.

        Parameters
        ----------
        batch : Tensor or tuple
            Inputs, or a tuple that starts with them.
        batch_idx : int
            Its place.

        Returns
        -------
        Tensor
            Probabilities of the classes, or values.
        """
        return self.predictions(self.network(batch if isinstance(batch, Tensor) else batch[0]))

    def configure_optimizers(self) -> dict[str, Any]:
        """Build the optimizer over forward and feedback weights, and the schedule.

        Returns
        -------
        dict
            ``optimizer`` and, unless ``lr_schedule="none"``, ``lr_scheduler``.

        Raises
        ------
        ValueError
            If the schedule has no end to run to, or the optimizer makes the rule diverge.
        """
        optimizer = self._make_optimizer()
        if self.lr_schedule == "none":
            return {"optimizer": optimizer}
        factor = partial(schedule_factor, self.lr_schedule, self._planned_epochs())
        return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, factor)}

    def configure_callbacks(self) -> list[pl.Callback]:
        """Add no callback; refuse clipping by the Trainer, which would not reach manual optimization.

        Returns
        -------
        list
            Empty.

        Raises
        ------
        MisconfigurationException
            If the Trainer has ``gradient_clip_val``.
        """
        if self.trainer.gradient_clip_val:
            raise MisconfigurationException(
                f"Trainer(gradient_clip_val={self.trainer.gradient_clip_val}) does not reach networks that "
                f"learn without backward; use {type(self).__name__}(clip_value=...) to bound each entry "
                "or max_update_norm=... to bound their norm"
            )
        return []

    def on_train_epoch_end(self) -> None:
        """Advance the schedule and log how far feedback and forward weights agree."""
        scheduler = self.lr_schedulers()
        if isinstance(scheduler, LambdaLR):
            scheduler.step()
        if self.log_alignment:
            for name, cosine in self.network.alignments().items():
                self.log(f"alignment/{name}", cosine)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the step counter, by which feedback updates are timed."""
        checkpoint["local_learning_steps"] = self._steps

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the step counter."""
        self._steps = checkpoint.get("local_learning_steps", 0)

    def _evaluate(self, stage: str, batch: Any) -> None:
        x, target, weight = self.unpack(batch, smooth=False)
        output = self.network(x)
        loss = self.network.loss(output, target, weight)
        self.log(f"{stage}_loss", loss, on_epoch=True, prog_bar=True, batch_size=len(x), sync_dist=True)
        self.measure(stage, output, batch)

    def _log_metric(self, stage: str, name: str, metric: Metric) -> None:
        self.log(f"{stage}_{name}", metric, on_step=False, on_epoch=True, prog_bar=stage != "train")

    def _log_clipping(self) -> None:
        share = self.network.clipped_share()
        if share is not None:
            self.log("clipped_share", share, on_step=False, on_epoch=True, batch_size=1)

    def _scale_updates(self) -> None:
        """Scale gradients for a GradScaler, which will divide them by a scale that no backward applied."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            factor = scaler.scale(torch.ones((), device=self.device))
            self.network.reduce_updates(lambda flat: flat.mul_(factor))

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return build_optimizer(
            self.network,
            self.optimizer,
            lr=self.lr,
            feedback_lr_ratio=self.feedback_lr_ratio,
            allow_unstable=self.allow_unstable,
        )

    def _planned_epochs(self) -> int:
        """Epochs this fit will run, whether bounded by epochs or by steps."""
        trainer = self.trainer
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            return max(trainer.max_epochs - trainer.current_epoch, 1)
        steps = trainer.estimated_stepping_batches
        if not math.isfinite(steps):
            raise ValueError(
                f"lr_schedule={self.lr_schedule!r} needs an end: give Trainer max_epochs or max_steps, or "
                "use lr_schedule='none'"
            )
        trainer.fit_loop.setup_data()
        return max(math.ceil(steps / max(int(trainer.num_training_batches), 1)), 1)
