"""QuestionGeneratorModule: a language model that writes questions of a requested difficulty."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanMetric

from seedbed.batches import derive_seed
from seedbed.datasets.difficulty_prompts import PromptBatch, PromptFormat, default_wording
from seedbed.datasets.tokenizing import CharacterTokenizer
from seedbed.lightning_modules.amortized_irt.difficulty import difficulty_function
from seedbed.lightning_modules.amortized_irt.language_model import build_language_model, recompute_activations
from seedbed.lightning_modules.amortized_irt.optimizing import cosine, named_optimizer
from seedbed.lightning_modules.amortized_irt.policy import Policy
from seedbed.lightning_modules.amortized_irt.settings import SAMPLES, check_settings, is_plain
from seedbed.lightning_modules.amortized_irt.stages import Stages
from seedbed.lightning_modules.amortized_irt.writer import EVALUATE, TRAIN
from seedbed.training import isolated_rng

OptimizerCallable = Callable[[Iterable[Any]], torch.optim.Optimizer]
SchedulerCallable = Callable[[torch.optim.Optimizer], Any]
"""Lightning's types of these names, which the command line fills from class paths and their arguments."""


class QuestionGeneratorModule(Stages):
    """Language model that writes questions of a requested difficulty.

    It is trained in stages. ``"sft"``, supervised fine-tuning: next-token loss of questions whose difficulty
    is known, given the prompt. ``"ppo"`` and ``"dpo"``: reinforcement of its own samples, whose reward is
    ``-|zhat - z*|``, minus the distance of predicted and requested difficulty. Batches are
    :class:`~seedbed.datasets.PromptBatch`, such as those of
    :class:`~seedbed.datasets.DifficultyPromptDataModule` with the same tokenizer and template.

    Parameters
    ----------
    model : dict, str or PreTrainedModel, optional
        Settings of a ``transformers`` configuration with its ``model_type``, for random weights; a name or
        folder, whose weights must be safetensors; or a model, which is taken over, not copied.
    tokenizer : dict, str or Tokenizer, optional
        ``{"characters": "abc"}``, a name or folder, or a tokenizer. None for the one that a named model comes
        with, or for the characters of :func:`~seedbed.datasets.make_letter_questions`.
    stage : {"sft", "ppo", "dpo"}
        What is learned.
    difficulty_fn : callable, estimator or str, optional
        Difficulties of a list of str: a function, a fitted estimator with ``predict_difficulty`` or
        ``predict``, or the import path of one. Needed but for ``"sft"``, which it gives a further metric.
    template : str, optional
        Wording of prompts with ``{difficulty}`` and perhaps ``{context}``; None for that of the data module.
    chat_template : bool
        Whether prompts are messages to a chat model.
    lora : dict, optional
        Train low-rank adapters only, with these settings of ``peft.LoraConfig`` beside the paper's
        (r = 64, alpha = 128, dropout 0.1); {} for the paper's alone.
    start_from : str, optional
        Checkpoint of an earlier stage instead of ``model``: its model (adapters merged), tokenizer and
        template. In Python see :meth:`next_stage`.
    num_samples : int, optional
        Samples K per prompt; None for 4 under ``"ppo"`` and 8 under ``"dpo"``.
    max_new_tokens : int
        Greatest length of a question, its end included.
    advantage : {"rloo", "gae"}
        PPO's advantages: the reward minus the mean of the other samples of the prompt; or generalised
        advantage estimation with a value head.
    kl_coef : float
        beta of PPO's reward ``R - beta log(pi / pi_ref)``.
    clip : float in (0, 1)
        How far PPO's ratio may move from 1 with a gain.
    ppo_epochs : int
        Passes over each batch of samples.
    mini_batch_size : int, optional
        Samples of an optimizer step under ``"ppo"``; None for all of a batch.
    discount, gae_lambda : float in [0, 1]
        Of generalised advantage estimation.
    value_coef : float
        Weight of the value head's squared error.
    dpo_beta : float
        beta of DPO.
    n_candidates : int
        Candidates per prompt in ``predict``; more than one needs ``difficulty_fn``.
    optimizer : {"adam", "adamw", "sgd"} or callable
        Name, or a callable from parameters to an optimizer.
    lr : float
        Learning rate of a named optimizer. The paper's are 1e-4 for ``"sft"`` and 1e-5 for ``"ppo"``.
    weight_decay : float
        Of a named optimizer.
    lr_scheduler : "cosine" or callable, optional
        Cosine decay to zero, by step, after a linear warm-up; or a callable from the optimizer to a schedule,
        stepped once an epoch.
    warmup : float in [0, 1)
        Share of the steps that warm up.
    max_grad_norm : float or None
        Bound on the norm of the gradient.
    gradient_checkpointing : bool
        Recompute activations rather than keep them.
    random_state : int
        Seed of random weights, adapters, dropout and samples. No global generator is used.

    Raises
    ------
    ImportError
        If ``transformers``, or with ``lora`` ``peft``, is missing.
    TypeError, ValueError
        If a parameter is out of range; the message has its name and what is allowed.

    Notes
    -----
    The reference of PPO and DPO is the model before the stage: without adapters a frozen copy, which belongs
    to the checkpoint, with adapters the model without them. Dropout is off in these stages.

    The random numbers of a training step depend on ``random_state``, the number of the step and the rank
    alone. That number is the whole state of the sampler and part of a checkpoint.

    Logged are ``train_loss``, ``val_loss`` and ``test_loss`` (cross-entropy per token under ``"sft"``, else
    the mean of ``|zhat - z*|``), with ``difficulty_fn`` ``val_difficulty_error`` and
    ``test_difficulty_error``, and while samples are drawn ``train_difficulty_error``, ``train_kl`` (nats per
    question), ``train_length`` (tokens) and ``train_distinct`` (share of different texts): a generator that
    games the predictor shows in the last three. Under ``"dpo"`` the distance from the reference is
    that of the chosen and the rejected samples alone, good for a trend only. Under ``"ppo"`` there is
    ``train_clip_fraction``, the share of tokens whose ratio was out of bounds.

    The predicted difficulty stands in for answers. Before its use in a test a written question is answered by
    real takers and calibrated, and what all or none of them get right is dropped; see :meth:`generate`.

    A checkpoint of a stranger may name any function as ``difficulty_fn``. After ``load_from_checkpoint`` a
    function outside seedbed is called only if it was passed there.

    References
    ----------
    S. T. Truong et al., *Reliable and Efficient Amortized Model-based Evaluation*, ICML 2025, section 4.2.

    Examples
    --------
    >>> module = QuestionGeneratorModule(
    ...     {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 32},
    ...     difficulty_fn="seedbed.datasets.letter_difficulty",
    ...     max_new_tokens=5,
    ... )
    >>> questions = module.generate([-0.5, 0.5], n_candidates=8)
    >>> len(questions.text), questions.difficulty.shape
    (2, torch.Size([2]))
    """

    def __init__(
        self,
        model: dict[str, Any] | str | nn.Module | None = None,
        tokenizer: dict[str, Any] | str | Any = None,
        stage: str = "sft",
        difficulty_fn: str | Callable[[list[str]], Any] | Any = None,
        template: str | None = None,
        chat_template: bool = False,
        lora: dict[str, Any] | None = None,
        start_from: str | None = None,
        num_samples: int | None = None,
        max_new_tokens: int = 64,
        advantage: str = "rloo",
        kl_coef: float = 0.02,
        clip: float = 0.2,
        ppo_epochs: int = 4,
        mini_batch_size: int | None = None,
        discount: float = 0.99,
        gae_lambda: float = 0.95,
        value_coef: float = 0.5,
        dpo_beta: float = 0.5,
        n_candidates: int = 1,
        optimizer: OptimizerCallable | str = "adamw",
        lr: float = 1e-4,
        weight_decay: float = 0.0,
        lr_scheduler: SchedulerCallable | str | None = None,
        warmup: float = 0.1,
        max_grad_norm: float | None = 1.0,
        gradient_checkpointing: bool = False,
        random_state: int = 0,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        check_settings(given)
        self._given = given
        # Code and models are no values that a checkpoint could hold without running code when it is read.
        self.save_hyperparameters(ignore=[name for name, value in given.items() if not is_plain(value)])
        self.stage, self.random_state = stage, int(random_state)
        self.num_samples = SAMPLES[stage] if num_samples is None else int(num_samples)
        self.max_new_tokens, self.n_candidates = int(max_new_tokens), int(n_candidates)
        self.advantage, self.kl_coef, self.clip = advantage, float(kl_coef), float(clip)
        self.ppo_epochs, self.mini_batch_size = int(ppo_epochs), mini_batch_size
        self.discount, self.gae_lambda = float(discount), float(gae_lambda)
        self.value_coef, self.dpo_beta = float(value_coef), float(dpo_beta)
        self.optimizer, self.lr, self.weight_decay = optimizer, float(lr), float(weight_decay)
        self.lr_scheduler, self.warmup, self.max_grad_norm = lr_scheduler, float(warmup), max_grad_norm
        self.draws = 0
        """Training steps that drew random numbers: the state of the sampler."""
        self._trusted = True
        self._difficulty = None if isinstance(difficulty_fn, str) else difficulty_function(difficulty_fn)
        if start_from is not None:
            model, tokenizer, template, chat_template = _handed_on(
                start_from, tokenizer, template, chat_template
            )
        self._build(model, tokenizer, template, chat_template, lora)
        if gradient_checkpointing:
            recompute_activations(self.policy.model)
        self.automatic_optimization = stage != "ppo"
        self.mean_losses = nn.ModuleDict({name: MeanMetric() for name in ("val", "test")})
        self.errors = nn.ModuleDict({name: MeanAbsoluteError() for name in ("val", "test")})

    def _build(
        self,
        model: Any,
        tokenizer: Any,
        template: str | None,
        chat_template: bool,
        lora: dict[str, Any] | None,
    ) -> None:
        """The wording of prompts, and the policy."""
        if tokenizer is None and isinstance(model, str):
            tokenizer = model
        if tokenizer is None and isinstance(model, nn.Module):
            raise ValueError("a model needs its tokenizer, got tokenizer=None")
        template, tokenizer = default_wording(template, tokenizer)
        self.format = PromptFormat(template, tokenizer, chat_template=chat_template)
        built = build_language_model(
            model,
            self.format.tokenizer,
            self.format.pad_token_id,
            derive_seed(self.random_state, 0),
            frozen=lora is not None,
        )
        if isinstance(model, nn.Module):  # the checkpoint says by itself what its weights belong to
            self.hparams.update(
                model=built.config.to_dict(), start_from=None, template=template, chat_template=chat_template
            )
            named = _name_of(self.format.tokenizer)
            if named is not None:
                self.hparams["tokenizer"] = named
        self.policy = Policy(
            built,
            eos_token_id=self.format.tokenizer.eos_token_id,
            pad_token_id=self.format.pad_token_id,
            lora=lora,
            reference=self.stage != "sft",
            value_head=self.stage == "ppo" and self.advantage == "gae",
            seed=derive_seed(self.random_state, 1),
        )

    def next_stage(self, stage: str, **changes: Any) -> "QuestionGeneratorModule":
        """Build the module of a further stage, whose model and reference are this one's model.

        Parameters
        ----------
        stage : {"sft", "ppo", "dpo"}
            What is learned next.
        **changes
            Parameters that shall differ.

        Returns
        -------
        QuestionGeneratorModule
            With a copy of the model, adapters merged; this module stays as it is.

        Raises
        ------
        TypeError, ValueError
            If a change is none that the module takes.
        """
        kept = {
            "tokenizer": self.format.tokenizer,
            "template": self.format.template,
            "chat_template": self.format.chat_template,
            "num_samples": None,
            "start_from": None,
        }
        return type(self)(
            **(self._given | kept | {"model": self.policy.plain_model(), "stage": stage} | changes)
        )

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, *args: Any, **kwargs: Any
    ) -> "QuestionGeneratorModule":
        """Load a module, as Lightning does; a function that the file names is not trusted.

        Parameters
        ----------
        checkpoint_path : str, Path or file
            The checkpoint.
        *args, **kwargs
            As for :meth:`lightning.pytorch.LightningModule.load_from_checkpoint`; settings that the file
            cannot hold, such as a ``difficulty_fn`` that is no import path, or that shall differ.

        Returns
        -------
        QuestionGeneratorModule
            The module.
        """
        loaded: QuestionGeneratorModule = super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
        loaded._trusted = "difficulty_fn" in kwargs
        return loaded

    # -- training ------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Find the difficulty function, and compare the wording of prompts with the data module's.

        Raises
        ------
        ValueError
            If the function cannot be found, or the data module words or encodes prompts otherwise.
        """
        if self.predicts_difficulty:
            self._difficulty_function()
        theirs = getattr(getattr(self.trainer, "datamodule", None), "format", None)
        if isinstance(theirs, PromptFormat) and not self.format.agrees_with(theirs):
            raise ValueError(
                "module and data module must have the same template, tokenizer and chat_template; got "
                f"{self.format.template!r} and {theirs.template!r}"
            )

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        """One step of the stage's objective.

        Parameters
        ----------
        batch : PromptBatch
            Prompts, and under ``"sft"`` questions.
        batch_idx : int
            Not used.

        Returns
        -------
        Tensor of shape ()
            The loss; under ``"ppo"``, whose steps are taken here, their mean.
        """
        rows = PromptBatch(*batch).trimmed()
        with isolated_rng(derive_seed(self.random_state, TRAIN, self.draws, self.global_rank, 1)):
            loss = {"sft": self._sft_step, "ppo": self._ppo_step, "dpo": self._dpo_step}[self.stage](rows)
        self.draws += 1
        self.log(
            "train_loss",
            loss.detach(),
            on_step=False,
            on_epoch=True,
            batch_size=len(rows.prompt),
            sync_dist=True,
        )
        return loss

    # -- evaluation ----------------------------------------------------------------------------------------

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Loss of the questions; and how close one sample for each prompt comes."""
        self._evaluate("val", batch, batch_idx)

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Loss of the questions; and how close one sample for each prompt comes."""
        self._evaluate("test", batch, batch_idx)

    def _evaluate(self, name: str, batch: Sequence[Tensor], batch_idx: int) -> None:
        rows = PromptBatch(*batch).trimmed()
        loss: Any = self.mean_losses[name]
        if self.stage == "sft":
            loss.update(-self._answer_log_probs(rows).sum() / rows.answer_mask.sum(), rows.answer_mask.sum())
        if self.predicts_difficulty:
            seed = derive_seed(self.random_state, EVALUATE, batch_idx, self.global_rank)
            predicted = self.predict_difficulty(self._sample(rows.prompt, rows.prompt_mask, 1, seed).texts)
            error: Any = self.errors[name]
            error.update(predicted, rows.difficulty)
            self.log(f"{name}_difficulty_error", error, on_step=False, on_epoch=True, prog_bar=True)
            if self.stage != "sft":
                loss.update((predicted - rows.difficulty).abs().mean(), len(predicted))
        self.log(f"{name}_loss", loss, on_step=False, on_epoch=True, prog_bar=True)

    # -- Lightning -----------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the state of the sampler."""
        checkpoint["draws"] = self.draws

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state of the sampler."""
        self.draws = int(checkpoint["draws"])

    def on_train_epoch_end(self) -> None:
        """Step a schedule of the user's under manual optimization."""
        if not self.automatic_optimization and callable(self.lr_scheduler):
            self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Bound the gradient by the Trainer's setting, or by ``max_grad_norm``."""
        if gradient_clip_val is None:
            gradient_clip_val, gradient_clip_algorithm = self.max_grad_norm, "norm"
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self) -> Any:
        """Build the optimizer of what is trained, and the schedule if there is one.

        Raises
        ------
        ValueError
            If ``lr_scheduler="cosine"`` meets a Trainer without an end.
        """
        trained = [weight for weight in self.parameters() if weight.requires_grad]
        if callable(self.optimizer):
            built = self.optimizer(trained)
        else:
            built = named_optimizer(self.optimizer, trained, lr=self.lr, weight_decay=self.weight_decay)
        if self.lr_scheduler is None:
            return built
        if callable(self.lr_scheduler):
            return {"optimizer": built, "lr_scheduler": self.lr_scheduler(built)}
        if self.trainer.max_steps < 0 and (self.trainer.max_epochs or -1) < 0:
            raise ValueError(
                "lr_scheduler='cosine' needs a Trainer with max_epochs or max_steps, got neither"
            )
        # A plain function: of anything else the schedule would save the attributes.
        schedule = torch.optim.lr_scheduler.LambdaLR(built, lambda step: self._rate(step))  # noqa: PLW0108
        return {"optimizer": built, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _rate(self, step: int) -> float:
        """Share of the learning rate after some steps of the schedule.

        The number of all steps is asked for only then: the Trainer's own estimate would read the data before
        a checkpoint could say where to go on in them.
        """
        if step == 0:
            return cosine(0, 1.0, self.warmup)
        trainer = self.trainer
        totals = []
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            taken = 1 if self.stage == "ppo" else trainer.accumulate_grad_batches
            totals.append(math.ceil(trainer.num_training_batches / taken) * trainer.max_epochs)
        if trainer.max_steps > 0:
            # It counts steps of the optimizer, of which PPO takes several at one of the schedule.
            totals.append(trainer.max_steps * step / max(1, trainer.global_step))
        return cosine(step, float(min(totals)), self.warmup)


def _handed_on(
    path: str, tokenizer: Any, template: str | None, chat_template: bool
) -> tuple[Any, Any, str, bool]:
    """Model, tokenizer, template and chat_template of the checkpoint of an earlier stage."""
    earlier = QuestionGeneratorModule.load_from_checkpoint(path, map_location="cpu", weights_only=True)
    return (
        earlier.policy.plain_model(),
        earlier.format.tokenizer if tokenizer is None else tokenizer,
        earlier.format.template if template is None else template,
        chat_template or earlier.format.chat_template,
    )


def _name_of(tokenizer: Any) -> Any:
    """What a checkpoint says about a tokenizer; None if it has no name."""
    if isinstance(tokenizer, CharacterTokenizer):
        return {"characters": tokenizer.characters}
    return getattr(tokenizer, "name_or_path", None) or None
