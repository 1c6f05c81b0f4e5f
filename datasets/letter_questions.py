"""Toy questions of letters, whose difficulty is known."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from seedbed.checks import check_number

LETTERS = "abcdefgh"
_LENGTH = 12


def letter_difficulty(texts: Sequence[str]) -> NDArray[np.float64]:
    """Difficulty of the questions of :func:`make_letter_questions`, linear in the counts of their letters.

    ``a`` makes a question easier, ``h`` harder, the letters between evenly so. Twelve letters drawn evenly
    have a difficulty of mean 0 and variance 1. Other characters count nothing.

    Parameters
    ----------
    texts : sequence of str
        Questions.

    Returns
    -------
    ndarray of shape (n,)
        Difficulties; large is hard.

    Examples
    --------
    >>> letter_difficulty(["aah", "hha", "h"]).round(3).tolist()
    [-0.441, 0.441, 0.441]
    """
    steps = np.arange(len(LETTERS)) - (len(LETTERS) - 1) / 2
    weights = dict(zip(LETTERS, steps / (steps.std() * math.sqrt(_LENGTH)), strict=True))
    return np.array([sum(weights.get(character, 0.0) for character in text) for text in texts], dtype=float)


def make_letter_questions(n_questions: int = 1000, *, random_state: Any = None) -> Bunch:
    """Draw toy questions of twelve letters whose difficulty is known.

    Parameters
    ----------
    n_questions : int
        Number of questions.
    random_state : int, Generator or None
        Source of randomness; None for a fresh seed.

    Returns
    -------
    Bunch
        ``text``, a list of strings over ``a`` to ``h``; ``difficulty`` of shape (n_questions,), close to
        normal with mean 0 and variance 1, see :func:`letter_difficulty`.

    Raises
    ------
    ValueError
        If ``n_questions`` is below 1.

    Examples
    --------
    >>> make_letter_questions(1, random_state=0).text
    ['gfeccaaabgfh']
    """
    check_number("n_questions", n_questions, low=1, integer=True)
    codes = np.random.default_rng(random_state).integers(len(LETTERS), size=(n_questions, _LENGTH))
    text = ["".join(LETTERS[code] for code in row) for row in codes]
    return Bunch(text=text, difficulty=letter_difficulty(text))
