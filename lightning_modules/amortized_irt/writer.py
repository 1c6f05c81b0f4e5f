"""What a question generator writes: samples of its policy, how hard they look, the best of several."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from lightning.pytorch import LightningModule
from numpy.typing import ArrayLike
from torch import Tensor, nn

from seedbed.batches import derive_seed
from seedbed.checks import check_number
from seedbed.datasets.difficulty_prompts import PromptBatch, PromptFormat
from seedbed.lightning_modules.amortized_irt.difficulty import (
    DifficultyFunction,
    difficulty_function,
    predict_difficulty,
)
from seedbed.lightning_modules.amortized_irt.policy import Policy
from seedbed.lightning_modules.amortized_irt.sampling import positions, uniforms

# What random numbers are for: the first entry of the path that their seed is derived from.
TRAIN, EVALUATE, PREDICT, GENERATE = range(4)

OWN_DIFFICULTY = "seedbed.datasets.letter_difficulty"
"""What a checkpoint of a stranger may name: any other function, given texts of its model, may do harm."""


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


class Samples(NamedTuple):
    """Sampled answers with their prompts."""

    prompt: Tensor
    prompt_mask: Tensor
    tokens: Tensor
    mask: Tensor
    texts: list[str]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return prompts and answers with their masks."""
        return self.prompt, self.prompt_mask, self.tokens, self.mask

    def rows(self, index: Tensor) -> "Samples":
        """Keep some of them."""
        prompt, prompt_mask, tokens, mask = (part[index] for part in self.tensors())
        return Samples(prompt, prompt_mask, tokens, mask, [self.texts[row] for row in index.tolist()])


class Writer(LightningModule):
    """What :class:`~seedbed.lightning_modules.QuestionGeneratorModule` does without learning."""

    policy: Policy
    format: PromptFormat
    random_state: int
    max_new_tokens: int
    n_candidates: int
    _given: dict[str, Any]
    _difficulty: DifficultyFunction | None
    _trusted: bool

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
            if not self._trusted and source != OWN_DIFFICULTY:
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

        Predictions are no answers. Before use the questions are answered, calibrated on the scale of the old
        ones and rid of those that say nothing, as in the example.

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

        Examples
        --------
        Takers who answered a bank answer the written questions as well; answers are drawn here. One fit
        puts old and new questions on one scale, and what all takers or none get right is dropped.

        >>> import numpy as np
        >>> from seedbed.estimators import Items, RaschModel, simulate_responses
        >>> from seedbed.lightning_modules import QuestionGeneratorModule
        >>> module = QuestionGeneratorModule(
        ...     {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 32},
        ...     difficulty_fn="seedbed.datasets.letter_difficulty",
        ...     max_new_tokens=8,
        ... )
        >>> written = module.generate(np.linspace(-1, 1, 10), n_candidates=16)
        >>> takers = np.random.default_rng(0).standard_normal(50)
        >>> old, new = Items.of(np.linspace(-2, 2, 20)), Items.of(written.difficulty.numpy())
        >>> answers = np.hstack([simulate_responses(takers, items, random_state=0) for items in (old, new)])
        >>> model = RaschModel(extreme_items="drop").fit(answers)
        >>> useful = ~model.extreme_items_[20:]
        >>> bank = list(zip(np.array(written.text)[useful], model.difficulty_[20:][useful]))
        >>> len(bank)
        10
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
        rows = PromptBatch(*batch).trimmed()
        seed = derive_seed(self.random_state, PREDICT, batch_idx, self.global_rank)
        if self.n_candidates == 1:
            tokens = self._sample(rows.prompt, rows.prompt_mask, 1, seed).tokens
        else:
            tokens, _, _ = self._best(
                rows.prompt, rows.prompt_mask, rows.difficulty, self.n_candidates, seed, 1.0
            )
        wider = (0, self.max_new_tokens - tokens.shape[1])
        return nn.functional.pad(tokens, wider, value=self.policy.pad_token_id)
