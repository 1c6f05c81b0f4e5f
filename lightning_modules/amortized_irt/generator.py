"""QuestionGeneratorModule: a language model that writes questions of a requested difficulty."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanMetric

from seedbed.checks import check_number
from seedbed.datasets.difficulty_prompts import PromptBatch, PromptFormat, default_wording
from seedbed.datasets.tokenizing import CharacterTokenizer
from seedbed.lightning_modules.amortized_irt.difficulty import (
    DifficultyFunction,
    difficulty_function,
    predict_difficulty,
)
from seedbed.lightning_modules.amortized_irt.language_model import build_language_model
from seedbed.lightning_modules.amortized_irt.policy import Policy
from seedbed.lightning_modules.amortized_irt.sampling import positions, uniforms
from seedbed.lightning_modules.amortized_irt.settings import SAMPLES, check_settings
from seedbed.lightning_modules.amortized_irt.stages import (
    EVALUATE,
    GENERATE,
    PREDICT,
    TRAIN,
    Samples,
    Stages,
)
from seedbed.training import derive_seed, isolated_rng

OptimizerCallable = Callable[[Iterable[Any]], torch.optim.Optimizer]
SchedulerCallable = Callable[[torch.optim.Optimizer], Any]
"""Lightning's types of these names, which the command line fills from class paths and their arguments."""


class Questions(NamedTuple):
    """Written questions.

    Parameters
    ----------
    text : list of n str
        Questions.
    difficulty : Tensor of float32, shape (n,), optional
        Their predicted difficulties.

    Examples
    --------
    >>> Questions(["What is 2 + 2?"]).text
    ['What is 2 + 2?']
    """

    text: list[str]
    difficulty: Tensor | None = None


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
    games the predictor shows in the last three.

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
        self.save_hyperparameters(ignore=[name for name, value in given.items() if not _is_plain(value)])
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
            self.policy.model.gradient_checkpointing_enable({"use_reentrant": False})
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
            model, self.format.tokenizer, self.format.pad_token_id, derive_seed(self.random_state, 0)
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

    # -- difficulty ----------------------------------------------------------------------------------------

    @property
    def predicts_difficulty(self) -> bool:
        """Whether there is a ``difficulty_fn``."""
        return self._given["difficulty_fn"] is not None

    def predict_difficulty(self, texts: list[str]) -> Float[Tensor, "n"]:
        """Predict how hard questions are.

        Parameters
        ----------
        texts : list of n str
            Questions.

        Returns
        -------
        Tensor of float32, shape (n,)
            Difficulties.

        Raises
        ------
        ValueError
            If there is no ``difficulty_fn``, or it returns another number of values, NaN or infinity.
        """
        return predict_difficulty(self._difficulty_function(), texts).to(self.device)

    def _difficulty_function(self) -> DifficultyFunction:
        """The function, imported at first use."""
        if self._difficulty is None:
            source = self._given["difficulty_fn"]
            if source is None:
                raise ValueError("this needs difficulty_fn, which says how hard a question is; got None")
            if not self._trusted and not source.startswith("seedbed."):
                raise ValueError(
                    f"the checkpoint names difficulty_fn={source!r}, code that is not run on its word; pass "
                    f"difficulty_fn={source!r} to load_from_checkpoint if you trust it"
                )
            self._difficulty = difficulty_function(source)
        assert self._difficulty is not None
        return self._difficulty

    # -- what the model says -------------------------------------------------------------------------------

    def forward(
        self, input_ids: Int[Tensor, "n t"], attention_mask: Int[Tensor, "n t"] | None = None
    ) -> Float[Tensor, "n t v"]:
        """Logits of the token that follows each token.

        Parameters
        ----------
        input_ids : Tensor of int64, shape (n, t)
            Tokens.
        attention_mask : Tensor of int64, shape (n, t), optional
            1 where there is one; everywhere by default.

        Returns
        -------
        Tensor of shape (n, t, v)
            Logits.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.policy.model(
            input_ids=input_ids, attention_mask=mask, position_ids=positions(mask), use_cache=False
        ).logits

    def decode(self, tokens: Int[Tensor, "n t"], mask: Int[Tensor, "n t"] | None = None) -> list[str]:
        """Turn tokens of questions into text.

        Parameters
        ----------
        tokens : Tensor of int64, shape (n, t)
            Tokens.
        mask : Tensor of int64, shape (n, t), optional
            1 up to the end; found from the first token that ends a text by default.

        Returns
        -------
        list of n str
            Questions.
        """
        if mask is None:
            ended = (tokens == self.policy.eos_token_id).long().cumsum(dim=1)
            mask = (ended == 0).long()
        lengths = mask.sum(dim=1).tolist()
        decode = self.format.tokenizer.decode
        return [
            decode(row[:length], skip_special_tokens=True)
            for row, length in zip(tokens.tolist(), lengths, strict=True)
        ]

    def _sample(
        self, prompt: Tensor, prompt_mask: Tensor, copies: int, seed: int, temperature: float = 1.0
    ) -> Samples:
        """Draw some answers to each prompt; copies of a prompt stand together."""
        prompt, prompt_mask = (part.repeat_interleave(copies, 0) for part in (prompt, prompt_mask))
        u = uniforms(len(prompt), self.max_new_tokens, seed)
        tokens, mask = self.policy.sample(prompt, prompt_mask, u, temperature=temperature)
        # Lightning's precision context remembers weights that were cast without a gradient.
        torch.clear_autocast_cache()
        return Samples(prompt, prompt_mask, tokens, mask, self.decode(tokens, mask))

    def _best(
        self,
        prompt: Tensor,
        prompt_mask: Tensor,
        difficulty: Tensor,
        copies: int,
        seed: int,
        temperature: float,
    ) -> tuple[Tensor, list[str], Tensor | None]:
        """Of the candidates for each prompt the closest in difficulty: tokens, texts, difficulty."""
        samples = self._sample(prompt, prompt_mask, copies, seed, temperature)
        if not self.predicts_difficulty:
            return samples.tokens, samples.texts, None
        predicted = self.predict_difficulty(samples.texts).reshape(-1, copies)
        error = (predicted - difficulty.unsqueeze(1)).abs()
        # An empty question is none, however well its difficulty would fit.
        blank = torch.tensor([not text.strip() for text in samples.texts], device=error.device)
        best = error.masked_fill(blank.reshape(error.shape), torch.inf).argmin(dim=1)
        rows = torch.arange(len(error), device=best.device) * copies + best
        return samples.tokens[rows], [samples.texts[row] for row in rows.tolist()], predicted.flatten()[rows]

    @torch.no_grad()
    def generate(
        self,
        difficulties: ArrayLike,
        n_candidates: int = 64,
        *,
        contexts: Sequence[str] | None = None,
        temperature: float = 1.0,
        random_state: int | None = None,
        batch_size: int = 1024,
    ) -> Questions:
        """Write questions: of some candidates each time the one whose predicted difficulty comes closest.

        Predictions are no answers: calibrate the questions on answers before use.

        Parameters
        ----------
        difficulties : array-like of shape (n,)
            Requested difficulties; large is hard.
        n_candidates : int
            Candidates for each; more than one needs ``difficulty_fn``.
        contexts : sequence of n str, optional
            What fills ``{context}`` of the template.
        temperature : float
            Divides the logits.
        random_state : int, optional
            Seed of the samples; the module's by default.
        batch_size : int
            Candidates drawn at a time, as far as those of one question are not more.

        Returns
        -------
        Questions
            n questions, and their predicted difficulties where there is a ``difficulty_fn``.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range.
        """
        check_number("n_candidates", n_candidates, low=1, integer=True)
        check_number("batch_size", batch_size, low=1, integer=True)
        check_number("temperature", temperature, low=0, closed="neither")
        if random_state is not None:
            check_number("random_state", random_state, low=0, integer=True)
        if n_candidates > 1 and not self.predicts_difficulty:
            raise ValueError(f"n_candidates={n_candidates} needs difficulty_fn to choose by, got None")
        prompt, mask = (part.to(self.device) for part in self.format.encode(difficulties, contexts))
        target = torch.as_tensor(difficulties, dtype=torch.float32, device=self.device)
        seed = self.random_state if random_state is None else random_state
        texts: list[str] = []
        predicted: list[Tensor] = []
        rows = torch.arange(len(prompt), device=self.device)
        for part in torch.split(rows, max(1, batch_size // n_candidates)):
            start = derive_seed(seed, GENERATE, len(texts))
            _, found, values = self._best(
                prompt[part], mask[part], target[part], n_candidates, start, temperature
            )
            texts += found
            predicted += [] if values is None else [values]
        return Questions(texts, torch.cat(predicted) if predicted else None)

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
        if isinstance(theirs, PromptFormat) and not _same_prompts(self.format, theirs):
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
            The loss; under ``"ppo"``, whose steps are taken here, that of the last.
        """
        rows = _trimmed(batch)
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
        rows = _trimmed(batch)
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

    def predict_step(self, batch: Sequence[Tensor], batch_idx: int = 0) -> Int[Tensor, "n t"]:
        """Write a question to each prompt, the best of ``n_candidates``.

        Parameters
        ----------
        batch : PromptBatch
            Prompts.
        batch_idx : int
            Number of the batch, on which the random numbers depend.

        Returns
        -------
        Tensor of int64, shape (n, max_new_tokens)
            Tokens, padded behind; see :meth:`decode`.
        """
        rows = _trimmed(batch)
        seed = derive_seed(self.random_state, PREDICT, batch_idx, self.global_rank)
        if self.n_candidates == 1:
            tokens = self._sample(rows.prompt, rows.prompt_mask, 1, seed).tokens
        else:
            tokens, _, _ = self._best(
                rows.prompt, rows.prompt_mask, rows.difficulty, self.n_candidates, seed, 1.0
            )
        wider = (0, self.max_new_tokens - tokens.shape[1])
        return nn.functional.pad(tokens, wider, value=self.policy.pad_token_id)

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
            kinds: dict[str, Any] = {
                "adam": torch.optim.Adam,
                "adamw": torch.optim.AdamW,
                "sgd": torch.optim.SGD,
            }
            built = kinds[self.optimizer](trained, lr=self.lr, weight_decay=self.weight_decay)
        if self.lr_scheduler is None:
            return built
        if callable(self.lr_scheduler):
            return {"optimizer": built, "lr_scheduler": self.lr_scheduler(built)}
        steps = self.trainer.estimated_stepping_batches
        if not math.isfinite(steps):
            raise ValueError(
                "lr_scheduler='cosine' needs a Trainer with max_epochs or max_steps, got neither"
            )
        schedule = torch.optim.lr_scheduler.LambdaLR(built, _cosine(int(steps), self.warmup))
        return {"optimizer": built, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold a setting."""
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


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


def _same_prompts(a: PromptFormat, b: PromptFormat) -> bool:
    """Whether two wordings encode alike."""
    if a.template != b.template:
        return False
    contexts = ["a"] if a.takes_context else None
    return torch.equal(a.encode([-0.37], contexts)[0], b.encode([-0.37], contexts)[0])


def _trimmed(batch: Sequence[Tensor]) -> PromptBatch:
    """Without the padding that no row of the batch needs."""
    batch = PromptBatch(*batch)
    before = batch.prompt.shape[1] - int(batch.prompt_mask.sum(dim=1).max())
    after = int(batch.answer_mask.sum(dim=1).max()) if batch.answer.shape[1] else 0
    return PromptBatch(
        batch.prompt[:, before:],
        batch.prompt_mask[:, before:],
        batch.answer[:, :after],
        batch.answer_mask[:, :after],
        batch.difficulty,
    )


def _cosine(steps: int, warmup: float) -> Callable[[int], float]:
    """Share of the learning rate at each step: a linear rise, then half a cosine down to zero."""
    rising = round(warmup * steps)

    def share(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / max(1, steps - rising))))

    return share
