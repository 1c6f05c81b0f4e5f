"""Draw answers from a language model, from random numbers that are given, not a device's."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside, and each of its parts back as it was afterwards.

    Parameters
    ----------
    model : Module
        The model.

    Yields
    ------
    None
    """
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def uniforms(rows: int, columns: int, seed: int) -> Float[Tensor, "rows columns"]:
    """Uniform numbers in [0, 1) from a generator of their own.

    Parameters
    ----------
    rows, columns : int
        How many.
    seed : int
        Non-negative seed.

    Returns
    -------
    Tensor of shape (rows, columns)
        The same on every machine, whatever device works on them.
    """
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))


def draw(logits: Float[Tensor, "n v"], u: Float[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Draw one token per row by inverting the distribution function at ``u``.

    Parameters
    ----------
    logits : Tensor of shape (n, v)
        Logits.
    u : Tensor of shape (n,)
        Uniform numbers in [0, 1).

    Returns
    -------
    Tensor of int64, shape (n,)
        Tokens.
    """
    total = torch.softmax(logits.float(), dim=-1).cumsum(dim=-1)
    # The sum is 1 only up to rounding.
    found = torch.searchsorted(total, u.unsqueeze(-1) * total[:, -1:], right=True).squeeze(-1)
    return found.clamp_max(logits.shape[-1] - 1)


def positions(mask: Int[Tensor, "n t"]) -> Int[Tensor, "n t"]:
    """Place of each token in its text, 0 for padding in front.

    Parameters
    ----------
    mask : Tensor of int64, shape (n, t)
        1 where there is a token.

    Returns
    -------
    Tensor of int64, shape (n, t)
        Counted from 0.
    """
    return (mask.cumsum(dim=1) - 1).clamp_min(0)


@torch.no_grad()
def sample_answers(
    model: Any,
    prompt: Int[Tensor, "n p"],
    prompt_mask: Int[Tensor, "n p"],
    u: Float[Tensor, "n t"],
    *,
    eos_token_id: int,
    pad_token_id: int,
    temperature: float = 1.0,
) -> tuple[Int[Tensor, "n a"], Int[Tensor, "n a"]]:
    """Draw an answer to each prompt, token by token.

    Parameters
    ----------
    model : PreTrainedModel
        Causal language model.
    prompt, prompt_mask : Tensor of int64, shape (n, p)
        Prompts, padded in front.
    u : Tensor of shape (n, t)
        Uniform numbers, one for each token; t is the greatest length.
    eos_token_id : int
        Token that ends an answer; it belongs to the answer.
    pad_token_id : int
        What stands behind the end.
    temperature : float
        Divides the logits.

    Returns
    -------
    tokens, mask : Tensor of int64, shape (n, a)
        Answers, padded behind; a is the length of the longest.
    """
    mask = prompt_mask
    tokens: list[Tensor] = []
    kept: list[Tensor] = []
    going = torch.ones(len(prompt), dtype=torch.bool, device=prompt.device)
    given, place, cache = prompt, positions(prompt_mask), None
    # transformers has renamed it; the old name still works there, with a warning.
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    cached = "cache" if "cache" in inspect.signature(plain.forward).parameters else "past_key_values"
    with evaluating(model):
        for step in range(u.shape[1]):
            output = model(
                input_ids=given,
                attention_mask=mask,
                position_ids=place,
                use_cache=True,
                logits_to_keep=1,
                **{cached: cache},
            )
            cache = getattr(output, cached)
            found = draw(output.logits[:, -1] / temperature, u[:, step])
            found = torch.where(going, found, pad_token_id)
            tokens.append(found)
            kept.append(going.long())
            going = going & (found != eos_token_id)
            if not going.any():
                break
            given, place = found.unsqueeze(1), place[:, -1:] + 1
            # What stands behind an end is never read: its row is finished.
            mask = torch.cat([mask, torch.ones_like(given)], dim=1)
    return torch.stack(tokens, dim=1), torch.stack(kept, dim=1)
