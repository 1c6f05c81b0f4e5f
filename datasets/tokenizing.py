"""Tokenizers: one of single characters that needs no files, and a common way to name any other."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from seedbed.checks import missing_extra


@runtime_checkable
class Tokenizer(Protocol):
    """What is asked of a tokenizer; those of ``transformers`` have it all.

    Attributes
    ----------
    eos_token_id : int
        Token that ends a text.
    pad_token_id : int or None
        Token of padding, if there is one of its own.
    """

    eos_token_id: Any
    pad_token_id: Any

    def __call__(self, text: list[str], *, add_special_tokens: bool = True) -> Mapping[str, Any]:
        """Return ``{"input_ids": list of list of int}``."""
        ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        """Return the text of some tokens."""
        ...

    def __len__(self) -> int: ...


class CharacterTokenizer:
    """One token per character; token 0 ends a text and pads.

    Parameters
    ----------
    characters : str
        The alphabet, each character once. Its i-th character is token i + 1.

    Raises
    ------
    TypeError, ValueError
        If ``characters`` is no string, empty or has a character twice.

    Examples
    --------
    >>> tokenizer = CharacterTokenizer("abc")
    >>> tokenizer(["cab"])["input_ids"]
    [[3, 1, 2]]
    >>> tokenizer.decode([3, 1, 2, 0], skip_special_tokens=True)
    'cab'
    """

    def __init__(self, characters: str) -> None:
        if not isinstance(characters, str):
            raise TypeError(
                f"characters must be a str, got {characters!r} of type {type(characters).__name__}"
            )
        if not characters or len(set(characters)) != len(characters):
            raise ValueError(f"characters must hold each character once and at least one, got {characters!r}")
        self.characters = characters
        self.eos_token_id = self.pad_token_id = 0
        self._code = {character: code for code, character in enumerate(characters, 1)}

    def __len__(self) -> int:
        return len(self.characters) + 1

    def __call__(self, text: list[str], *, add_special_tokens: bool = True) -> dict[str, list[list[int]]]:  # noqa: ARG002
        """Turn texts into tokens.

        Parameters
        ----------
        text : list of str
            The texts.
        add_special_tokens : bool
            Not used: there is none to add.

        Returns
        -------
        dict
            ``{"input_ids": list of list of int}``.

        Raises
        ------
        ValueError
            If a text has a character that is not in the alphabet.
        """
        try:
            return {"input_ids": [[self._code[character] for character in one] for one in text]}
        except KeyError as error:
            raise ValueError(
                f"the alphabet {self.characters!r} has no character {error.args[0]!r}; add it to characters"
            ) from None

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        """Turn tokens into a text.

        Parameters
        ----------
        token_ids : sequence or Tensor of int
            Tokens.
        skip_special_tokens : bool
            Whether to leave out the end; it shows as ``"<end>"`` otherwise.

        Returns
        -------
        str
            The text.
        """
        end = "" if skip_special_tokens else "<end>"
        return "".join(self.characters[int(code) - 1] if int(code) else end for code in token_ids)


def build_tokenizer(tokenizer: Any) -> Any:
    """Build the tokenizer that a setting names.

    Parameters
    ----------
    tokenizer : dict, str or Tokenizer
        ``{"characters": "abc"}`` for a :class:`CharacterTokenizer`; a name or folder of ``transformers``; or
        a tokenizer. Code that comes with a named tokenizer is never run.

    Returns
    -------
    Tokenizer
        With an ``eos_token_id``.

    Raises
    ------
    ImportError
        If a name is given and ``transformers`` is missing.
    TypeError, ValueError
        If it is none of these, or has no token that ends a text.
    """
    if isinstance(tokenizer, Mapping):
        if set(tokenizer) != {"characters"}:
            raise ValueError(f"tokenizer must have the single key 'characters', got {dict(tokenizer)!r}")
        return CharacterTokenizer(tokenizer["characters"])
    if isinstance(tokenizer, str):
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise missing_extra("transformers", "lm", f"tokenizer={tokenizer!r}") from error
        tokenizer = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)  # type: ignore[no-untyped-call]
    if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
        raise TypeError(
            f"tokenizer must be a dict with 'characters', a name, or a tokenizer; got {tokenizer!r}"
        )
    if getattr(tokenizer, "eos_token_id", None) is None:
        raise ValueError(
            f"tokenizer must have an eos_token_id, a token that ends a text; {tokenizer!r} has none"
        )
    return tokenizer


def pad(rows: Sequence[Sequence[int]], value: int, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Stack rows of unequal length.

    Parameters
    ----------
    rows : sequence of sequence of int
        Tokens of each text.
    value : int
        What to fill up with.
    left : bool
        Whether to fill up in front rather than behind.

    Returns
    -------
    tokens : Tensor of int64, shape (n, longest)
        The rows.
    mask : Tensor of int64, shape (n, longest)
        1 for a token, 0 for padding.
    """
    width = max((len(row) for row in rows), default=0)
    tokens = torch.full((len(rows), width), value, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for index, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        tokens[index, where] = torch.as_tensor(list(row), dtype=torch.int64)
        mask[index, where] = 1
    return tokens, mask
