"""The function that predicts how hard a question is: named, called and checked."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

DifficultyFunction = Callable[[list[str]], Any]


def difficulty_function(source: Any) -> DifficultyFunction | None:
    """Find the function that a setting names.

    Parameters
    ----------
    source : callable, estimator, str or None
        A function from a list of n texts to n difficulties; a fitted estimator with ``predict_difficulty`` or
        ``predict`` on texts; or the import path of either.

    Returns
    -------
    callable or None
        From a list of str to difficulties; None for None.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If the path leads nowhere.
    """
    if source is None:
        return None
    if isinstance(source, str):
        module, _, name = source.rpartition(".")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"difficulty_fn must be a function's import path, got {source!r}: {error}"
            ) from error
        return difficulty_function(found)
    for method in ("predict_difficulty", "predict"):
        if hasattr(source, method):
            return getattr(source, method)  # type: ignore[no-any-return]
    if not callable(source):
        raise TypeError(
            "difficulty_fn must be a function of a list of str, an estimator with predict_difficulty or "
            f"predict, or an import path; got {source!r} of type {type(source).__name__}"
        )
    return source  # type: ignore[no-any-return]


def predict_difficulty(function: DifficultyFunction, texts: list[str]) -> Tensor:
    """Call a difficulty function and check what it says.

    Parameters
    ----------
    function : callable
        From a list of n str to n numbers, or to a pair of difficulties and their standard deviations.
    texts : list of n str
        Questions.

    Returns
    -------
    Tensor of float32, shape (n,)
        Difficulties, on the device where the function left them.

    Raises
    ------
    ValueError
        If there are not n, or one is not finite.
    """
    found = function(texts)
    if isinstance(found, tuple) and len(found) == 2:
        found = found[0]
    values = torch.as_tensor(found).detach().float()
    if values.shape != (len(texts),):
        raise ValueError(
            f"difficulty_fn must return one number per text, shape ({len(texts)},); got {tuple(values.shape)}"
        )
    wrong = ~values.isfinite()
    if wrong.any():
        first = int(wrong.nonzero()[0])
        raise ValueError(
            f"difficulty_fn must return finite numbers, got {float(values[first])} for {texts[first]!r}"
        )
    return values
