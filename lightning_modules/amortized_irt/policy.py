"""Policy: a language model, the reference that it is held to, and perhaps a value head."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from seedbed.lightning_modules.amortized_irt.language_model import (
    add_adapters,
    frozen_copy,
    merged_copy,
    switch_off_dropout,
)
from seedbed.lightning_modules.amortized_irt.objectives import token_log_probs
from seedbed.lightning_modules.amortized_irt.sampling import positions, sample_answers


class Policy(nn.Module):
    """Log-probabilities of answers and samples of them.

    Parameters
    ----------
    model : PreTrainedModel
        Causal language model; it is changed in place.
    eos_token_id, pad_token_id : int
        Tokens that end and that pad an answer.
    lora : mapping, optional
        Train adapters with these settings only.
    reference : bool
        Whether a reference is kept: the model as it is now. Dropout is switched off then.
    value_head : bool
        Whether to learn the value of the state before each token.
    seed : int
        Seed of the adapters.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_token_id: int,
        pad_token_id: int,
        lora: Mapping[str, Any] | None = None,
        reference: bool = False,
        value_head: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.eos_token_id, self.pad_token_id = int(eos_token_id), int(pad_token_id)
        self.reference: nn.Module | None = None
        self.value_head: nn.Linear | None = None
        if reference:
            switch_off_dropout(model)
            if lora is None:
                self.reference = frozen_copy(model)
        self.model: Any = model if lora is None else add_adapters(model, lora, seed)
        self.adapted = lora is not None
        if reference:
            switch_off_dropout(self.model)  # that of the adapters
        if value_head:
            width = model.get_input_embeddings().embedding_dim
            # On the meta device first: initial values drawn only to be overwritten would move a generator.
            self.value_head = nn.Linear(width, 1, device="meta").to_empty(
                device=model.get_input_embeddings().weight.device
            )
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def plain_model(self) -> Any:
        """Copy of the language model with its adapters merged.

        Returns
        -------
        PreTrainedModel
            Without reference or value head.
        """
        return merged_copy(self.model)

    def check_length(self, length: int) -> None:
        """Raise ValueError if a prompt and its answer are longer than the model can read.

        Parameters
        ----------
        length : int
            Tokens of both.

        Raises
        ------
        ValueError
            If there are too many.
        """
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and length > limit:
            raise ValueError(
                f"prompt and answer may have {limit} tokens together, they have or might have {length}; "
                "lower max_new_tokens, shorten the template or take a model of a longer context"
            )

    def evaluate(
        self,
        prompt: Int[Tensor, "n p"],
        prompt_mask: Int[Tensor, "n p"],
        answer: Int[Tensor, "n a"],
        answer_mask: Int[Tensor, "n a"],
        *,
        values: bool = False,
        model: Any = None,
    ) -> tuple[Float[Tensor, "n a"], Float[Tensor, "n a"] | None]:
        """Log-probability of each token of the answers, and the value before it.

        Parameters
        ----------
        prompt, prompt_mask : Tensor of int64, shape (n, p)
            Prompts, padded in front.
        answer, answer_mask : Tensor of int64, shape (n, a)
            Answers, padded behind.
        values : bool
            Whether values are wanted.
        model : PreTrainedModel, optional
            Another model than the policy's.

        Returns
        -------
        log_probs : Tensor of float32, shape (n, a)
            0 where there is no token.
        values : Tensor of float32, shape (n, a), or None
            Likewise.
        """
        mask = torch.cat([prompt_mask, answer_mask], dim=1)
        self.check_length(mask.shape[1])
        output = (self.model if model is None else model)(
            input_ids=torch.cat([prompt, answer], dim=1),
            attention_mask=mask,
            position_ids=positions(mask),
            use_cache=False,
            output_hidden_states=values,
            logits_to_keep=answer.shape[1] + 1,
        )
        # What stands at a place predicts the token at the next.
        log_probs = token_log_probs(output.logits[:, :-1], answer) * answer_mask
        if not values or self.value_head is None:
            return log_probs, None
        hidden = output.hidden_states[-1][:, prompt.shape[1] - 1 : -1]
        return log_probs, self.value_head(hidden.float()).squeeze(-1).float() * answer_mask

    @torch.no_grad()
    def evaluate_reference(
        self,
        prompt: Int[Tensor, "n p"],
        prompt_mask: Int[Tensor, "n p"],
        answer: Int[Tensor, "n a"],
        answer_mask: Int[Tensor, "n a"],
    ) -> Float[Tensor, "n a"]:
        """Log-probability of each token of the answers under the reference.

        Parameters
        ----------
        prompt, prompt_mask, answer, answer_mask : Tensor of int64
            As in :meth:`evaluate`.

        Returns
        -------
        Tensor of float32, shape (n, a)
            0 where there is no token.
        """
        without = self.model.disable_adapter() if self.adapted else nullcontext()
        with without:
            return self.evaluate(prompt, prompt_mask, answer, answer_mask, model=self.reference)[0]

    def sample(
        self,
        prompt: Int[Tensor, "n p"],
        prompt_mask: Int[Tensor, "n p"],
        u: Float[Tensor, "n t"],
        *,
        temperature: float = 1.0,
    ) -> tuple[Int[Tensor, "n a"], Int[Tensor, "n a"]]:
        """Draw an answer to each prompt.

        Parameters
        ----------
        prompt, prompt_mask : Tensor of int64, shape (n, p)
            Prompts, padded in front.
        u : Tensor of shape (n, t)
            Uniform numbers, one for each token.
        temperature : float
            Divides the logits.

        Returns
        -------
        tokens, mask : Tensor of int64, shape (n, a)
            Answers, padded behind; a is the length of the longest.
        """
        self.check_length(prompt.shape[1] + u.shape[1])
        return sample_answers(
            self.model,
            prompt,
            prompt_mask,
            u.to(prompt.device),
            eos_token_id=self.eos_token_id,
            pad_token_id=self.pad_token_id,
            temperature=temperature,
        )
