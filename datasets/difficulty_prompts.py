"""Prompts that ask for a question of some difficulty, questions that answer them, and their data module."""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from seedbed.checks import check_number
from seedbed.datasets.letter_questions import LETTERS, make_letter_questions
from seedbed.datasets.loading import ArrayDataset
from seedbed.datasets.modules import TensorDataModule, split_rows
from seedbed.datasets.tokenizing import build_tokenizer, pad

TEMPLATE = "Write a question of difficulty {difficulty:.2f}.\nQuestion: "
LETTER_CHARACTERS = LETTERS + "0123456789+-.:"
LETTER_TEMPLATE = "{difficulty:+.2f}:"


class PromptBatch(NamedTuple):
    """Prompts and the questions that answer them.

    Prompts are padded in front and questions behind, so that all questions start at the same place.

    Parameters
    ----------
    prompt, prompt_mask : Tensor of int64, shape (n, prompt_length)
        Tokens, and 1 where there is one.
    answer, answer_mask : Tensor of int64, shape (n, answer_length)
        Tokens of the questions with the token that ends them; of length 0 where there are only prompts.
    difficulty : Tensor of float32, shape (n,)
        What the prompts ask for; large is hard.

    Examples
    --------
    >>> import torch
    >>> ids, mask = torch.tensor([[0, 5]]), torch.tensor([[0, 1]])
    >>> PromptBatch(ids, mask, ids[:, :0], mask[:, :0], torch.zeros(1)).answer.shape
    torch.Size([1, 0])
    """

    prompt: Tensor
    prompt_mask: Tensor
    answer: Tensor
    answer_mask: Tensor
    difficulty: Tensor

    def trimmed(self) -> "PromptBatch":
        """Leave out the padding that no row needs.

        Returns
        -------
        PromptBatch
            The rows, as wide as the longest prompt and the longest question.
        """
        before = self.prompt.shape[1] - int(self.prompt_mask.sum(dim=1).max())
        after = int(self.answer_mask.sum(dim=1).max()) if self.answer.shape[1] else 0
        return PromptBatch(
            self.prompt[:, before:],
            self.prompt_mask[:, before:],
            self.answer[:, :after],
            self.answer_mask[:, :after],
            self.difficulty,
        )


class PromptFormat:
    """How a prompt is worded and turned into tokens.

    Parameters
    ----------
    template : str
        With ``{difficulty}``, which may carry a format such as ``{difficulty:.2f}``, and perhaps
        ``{context}``.
    tokenizer : dict, str or Tokenizer
        As for :func:`~seedbed.datasets.tokenizing.build_tokenizer`.
    chat_template : bool
        Whether the prompt is a user's message to a chat model, worded by the tokenizer's own template.

    Raises
    ------
    TypeError, ValueError
        If the template lacks the difficulty, has another field, or the tokenizer is none.

    Examples
    --------
    >>> wording = PromptFormat("{difficulty:.1f}:", {"characters": "0123456789.:-"})
    >>> wording.texts([0.25, -1.0])
    ['0.2:', '-1.0:']
    >>> wording.encode([0.25, -1.0])[1].tolist()
    [[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
    """

    def __init__(self, template: str, tokenizer: Any, *, chat_template: bool = False) -> None:
        if not isinstance(template, str):
            raise TypeError(f"template must be a str, got {template!r} of type {type(template).__name__}")
        fields = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        if "difficulty" not in fields or fields - {"difficulty", "context"}:
            raise ValueError(
                f"template must have the field {{difficulty}} and may have {{context}}, got {template!r}"
            )
        self.template = template
        self.takes_context = "context" in fields
        self.tokenizer = build_tokenizer(tokenizer)
        if chat_template and not hasattr(self.tokenizer, "apply_chat_template"):
            raise ValueError(f"chat_template=True needs a tokenizer with a chat template, not {tokenizer!r}")
        self.chat_template = chat_template

    @property
    def pad_token_id(self) -> int:
        """Token of padding; that of the end where there is none. Masks tell them apart."""
        found = getattr(self.tokenizer, "pad_token_id", None)
        return int(self.tokenizer.eos_token_id if found is None else found)

    def texts(self, difficulties: ArrayLike, contexts: Sequence[str] | None = None) -> list[str]:
        """Word the prompts.

        Parameters
        ----------
        difficulties : array-like of shape (n,)
            What they ask for.
        contexts : sequence of n str, optional
            What fills ``{context}``.

        Returns
        -------
        list of str
            The prompts.

        Raises
        ------
        ValueError
            If the difficulties are not finite, or contexts are missing, not asked for or of another number.
        """
        values = check_difficulties(difficulties)
        if self.takes_context != (contexts is not None):
            raise ValueError(
                f"contexts and the field {{context}} go together, got template={self.template!r} and "
                f"contexts={'None' if contexts is None else 'some'}"
            )
        given = [""] * len(values) if contexts is None else list(contexts)
        if len(given) != len(values):
            raise ValueError(f"contexts must have one entry per difficulty, {len(values)}; got {len(given)}")
        return [
            self.template.format(difficulty=value, context=context)
            for value, context in zip(values.tolist(), given, strict=True)
        ]

    def encode(self, difficulties: ArrayLike, contexts: Sequence[str] | None = None) -> tuple[Tensor, Tensor]:
        """Word prompts and turn them into tokens, padded in front.

        Parameters
        ----------
        difficulties : array-like of shape (n,)
            What they ask for.
        contexts : sequence of n str, optional
            What fills ``{context}``.

        Returns
        -------
        tokens, mask : Tensor of int64, shape (n, prompt_length)
            Tokens, and 1 where there is one.
        """
        texts = self.texts(difficulties, contexts)
        if self.chat_template:
            texts = [
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                )
                for text in texts
            ]
        rows = self.tokenizer(texts, add_special_tokens=not self.chat_template)["input_ids"]
        empty = next((text for text, row in zip(texts, rows) if not len(row)), None)
        if empty is not None:
            raise ValueError(f"a prompt must have at least one token, got none for {empty!r}")
        return pad(rows, self.pad_token_id, left=True)

    def encode_answers(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Turn questions into tokens, each with the token that ends it, padded behind.

        Parameters
        ----------
        texts : sequence of n str
            Questions.

        Returns
        -------
        tokens, mask : Tensor of int64, shape (n, answer_length)
            Tokens, and 1 where there is one.
        """
        rows = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if len(texts) else []
        return pad([[*row, int(self.tokenizer.eos_token_id)] for row in rows], self.pad_token_id)

    def agrees_with(self, other: "PromptFormat") -> bool:
        """Whether another format words and encodes prompts alike.

        Parameters
        ----------
        other : PromptFormat
            The other.

        Returns
        -------
        bool
            Judged by the template and the tokens of one prompt.
        """
        if self.template != other.template:
            return False
        contexts = ["a"] if self.takes_context else None
        return torch.equal(self.encode([-0.37], contexts)[0], other.encode([-0.37], contexts)[0])


def check_difficulties(difficulties: ArrayLike) -> NDArray[np.float64]:
    """Check difficulties that are asked for.

    Parameters
    ----------
    difficulties : array-like of shape (n,)
        The difficulties.

    Returns
    -------
    ndarray of float64, shape (n,)
        As an array.

    Raises
    ------
    ValueError
        If they are no vector with an entry, or not finite.
    """
    values = np.asarray(difficulties, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"difficulties must be a vector of at least one entry, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("difficulties must be finite, got NaN or infinity")
    return values


class PromptDataset(ArrayDataset):
    """Rows of a :class:`PromptBatch`.

    Parameters
    ----------
    batch : PromptBatch
        All rows.
    """

    def __init__(self, batch: PromptBatch) -> None:
        super().__init__(batch.prompt, batch.difficulty)
        self.batch = batch

    def __getitems__(self, rows: Sequence[int]) -> PromptBatch:  # type: ignore[override]
        """Return the rows as one batch.

        Parameters
        ----------
        rows : sequence of int
            Row numbers.

        Returns
        -------
        PromptBatch
            These rows.
        """
        index = torch.as_tensor(rows)
        return PromptBatch(*(part[index] for part in self.batch))

    def __getitem__(self, row: int) -> PromptBatch:  # type: ignore[override]
        return PromptBatch(*(part[row] for part in self.batch))


class DifficultyPromptDataModule(TensorDataModule):
    r"""Pairs of a prompt that asks for a difficulty and a question that has it; or the prompts alone.

    For supervised fine-tuning of :class:`~seedbed.lightning_modules.QuestionGeneratorModule` give texts and
    their calibrated difficulties; for its later stages prompts suffice. Without any, toy questions are drawn
    by :func:`make_letter_questions`.

    Parameters
    ----------
    texts : list of str, optional
        Questions.
    difficulties : list of float, optional
        Their difficulties, large is hard; without ``texts`` what the prompts ask for.
    contexts : list of str, optional
        Such as a description of the data set each question comes from, for the field ``{context}``.
    path : str, optional
        Instead of these, a file of JSON Lines, each an object with ``difficulty`` and perhaps ``text`` and
        ``context``.
    n_prompts : int, optional
        Or so many prompts alone, whose difficulties are drawn from N(0, 1).
    n_questions : int
        Or so many toy questions.
    template : str, optional
        Wording of a prompt, see :class:`PromptFormat`. None for
        ``"Write a question of difficulty {difficulty:.2f}.\nQuestion: "`` or ``"{difficulty:+.2f}:"``, if no
        tokenizer is given.
    tokenizer : dict or str or Tokenizer, optional
        ``{"characters": "abc"}``, a name or folder of ``transformers``, or a tokenizer; the generator's.
        None for the characters of toy questions.
    chat_template : bool
        Whether prompts are messages to a chat model.
    batch_size : int
        Rows of a batch.
    test_size : float
        Share of all rows for the test; the predict loader hands out these, too.
    val_size : float
        Share of the remaining rows for validation.
    random_state : int
        Seed of the split and of what is drawn.
    shuffle_seed : int, optional
        Seed of the order of the training rows; ``random_state`` when None.
    num_workers : int
        Worker processes of each loader.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> data = DifficultyPromptDataModule(["ab", "b"] * 5, [0.5, -0.5] * 5, batch_size=4)
    >>> batch = next(iter(data.train_dataloader()))
    >>> batch.prompt.shape, batch.answer.shape, data.decode(batch.prompt[0])
    (torch.Size([4, 6]), torch.Size([4, 3]), '-0.50:')
    """

    def __init__(
        self,
        texts: list[str] | None = None,
        difficulties: list[float] | None = None,
        contexts: list[str] | None = None,
        path: str | None = None,
        n_prompts: int | None = None,
        n_questions: int = 1000,
        template: str | None = None,
        tokenizer: dict[str, Any] | str | Any = None,
        chat_template: bool = False,
        batch_size: int = 40,
        test_size: float = 0.2,
        val_size: float = 0.1,
        random_state: int = 0,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            test_size=test_size,
            val_size=val_size,
            random_state=random_state,
            shuffle_seed=shuffle_seed,
            num_workers=num_workers,
        )
        given = texts is not None or difficulties is not None
        if (path is not None) + (n_prompts is not None) + given > 1:
            raise ValueError("give one of path, n_prompts, and texts with difficulties; got several")
        if given and difficulties is None:
            raise ValueError("texts need their difficulties, got difficulties=None")
        check_number("n_questions", n_questions, low=1, integer=True)
        if n_prompts is not None:
            check_number("n_prompts", n_prompts, low=1, integer=True)
        if texts is not None and difficulties is not None:
            check_texts(texts, len(difficulties))
        self.texts, self.contexts, self.path = texts, contexts, path
        self.difficulties = None if difficulties is None else check_difficulties(difficulties)
        self.n_prompts, self.n_questions = n_prompts, n_questions
        self.format = PromptFormat(*default_wording(template, tokenizer), chat_template=chat_template)

    def make_sets(self) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
        """Word, encode and split the rows.

        Returns
        -------
        tuple of ArrayDataset
            Training, validation and test rows.
        """
        texts, difficulties, contexts = self._rows()
        values = check_difficulties(difficulties)
        prompt, prompt_mask = self.format.encode(values, contexts)
        if texts is None:
            answer, answer_mask = prompt[:, :0], prompt_mask[:, :0]
        else:
            answer, answer_mask = self.format.encode_answers(texts)
        target = torch.from_numpy(values).float()
        split = split_rows(
            len(values), test_size=self.test_size, val_size=self.val_size, random_state=self.random_state
        )
        parts = (prompt, prompt_mask, answer, answer_mask, target)
        train, val, test = (
            PromptDataset(PromptBatch(*(part[torch.from_numpy(rows)] for part in parts))) for rows in split
        )
        return train, val, test

    def _rows(self) -> tuple[list[str] | None, ArrayLike, list[str] | None]:
        """Texts, difficulties and contexts, as far as there are any."""
        if self.path is not None:
            return read_questions(self.path)
        if self.difficulties is not None:
            return self.texts, self.difficulties, self.contexts
        if self.n_prompts is not None:
            return None, np.random.default_rng(self.random_state).normal(size=self.n_prompts), self.contexts
        toy = make_letter_questions(self.n_questions, random_state=self.random_state)
        return toy.text, toy.difficulty, self.contexts

    def decode(self, tokens: Any) -> str:
        """Turn tokens back into text, without the token that ends or pads it.

        Parameters
        ----------
        tokens : Tensor or sequence of int, shape (length,)
            Tokens of a prompt or a question.

        Returns
        -------
        str
            The text.
        """
        return str(self.format.tokenizer.decode(tokens, skip_special_tokens=True))


def default_wording(template: str | None, tokenizer: Any) -> tuple[str, Any]:
    """Fill in a template and a tokenizer that are not given.

    Parameters
    ----------
    template : str or None
        The wording of prompts.
    tokenizer : dict, str, Tokenizer or None
        The tokenizer.

    Returns
    -------
    template, tokenizer
        Those given, or what suits toy questions where no tokenizer is given.
    """
    if tokenizer is None:
        return LETTER_TEMPLATE if template is None else template, {"characters": LETTER_CHARACTERS}
    return TEMPLATE if template is None else template, tokenizer


def check_texts(texts: Sequence[str], count: int) -> None:
    """Check questions.

    Parameters
    ----------
    texts : sequence of str
        Questions.
    count : int
        How many there have to be.

    Raises
    ------
    TypeError
        If they are no sequence of strings.
    ValueError
        If there are more or fewer.
    """
    if isinstance(texts, str):
        raise TypeError(f"texts must be a sequence of str, got the str {texts[:40]!r}")
    wrong = next((text for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        raise TypeError(f"texts must hold str only, got {wrong!r} of type {type(wrong).__name__}")
    if len(texts) != count:
        raise ValueError(f"texts and difficulties must have the same length, got {len(texts)} and {count}")


def read_questions(path: str | Path) -> tuple[list[str] | None, list[float], list[str] | None]:
    """Read questions from JSON Lines.

    Parameters
    ----------
    path : str or Path
        File with one object per line: ``difficulty``, and in all lines or none ``text`` and ``context``.

    Returns
    -------
    texts : list of str or None
        Questions.
    difficulties : list of float
        Their difficulties.
    contexts : list of str or None
        Their contexts.

    Raises
    ------
    ValueError
        If the file is empty, a line is no such object, or only some have a text or a context.
    """
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of {path} is no JSON: {error}") from None
        if not isinstance(row, dict) or isinstance(row.get("difficulty"), bool):
            raise ValueError(
                f"line {number} of {path} must be an object with a difficulty, got {line[:80]!r}"
            )
        if not isinstance(row.get("difficulty"), int | float):
            raise ValueError(f"line {number} of {path} must have a number as difficulty, got {line[:80]!r}")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} has no line")
    found: list[list[str] | None] = []
    for name in ("text", "context"):
        values = [row.get(name) for row in rows]
        if all(value is None for value in values):
            found.append(None)
        elif all(isinstance(value, str) for value in values):
            found.append(values)  # type: ignore[arg-type]
        else:
            raise ValueError(f"all lines of {path} or none must have a str as {name!r}")
    return found[0], [float(row["difficulty"]) for row in rows], found[1]
