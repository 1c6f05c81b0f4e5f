"""Texts from the network: sentences with labels, and word vectors to read them with."""

import io
from collections.abc import Collection, Iterable
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from seedbed.checks import check_choice
from seedbed.datasets.archives import ArchiveError, files, read_members
from seedbed.datasets.resources import RESOURCES, PathLike

GLOVE_DIMS = (50, 100, 200, 300)


def fetch_sst2(
    *,
    subset: Literal["train", "val"] = "train",
    data_home: PathLike | None = None,
    download_if_missing: bool = True,
) -> Bunch:
    """Fetch SST-2: phrases of film reviews, negative (0) or positive (1) (7 MB).

    Parameters
    ----------
    subset : {"train", "val"}
        The 67,349 phrases for training or the 872 for validation. The labels of the test are not published.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        ``data`` (list of str), ``target`` int64 (n,), ``target_names`` and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    check_choice("subset", subset, ("train", "val"))
    member = f"SST-2/{'train' if subset == 'train' else 'dev'}.tsv"
    archive = RESOURCES["sst2"]["archive"].path(data_home, download_if_missing)
    lines = read_members(archive, [member], max_size=1 << 28)[member].decode("utf-8").split("\n")
    if lines[0] != "sentence\tlabel":
        raise ArchiveError(f"{member} must begin with 'sentence' and 'label', got {lines[0]!r}")
    rows = [line.rpartition("\t") for line in lines[1:] if line]
    if not all(label in ("0", "1") for _, _, label in rows):
        raise ArchiveError(f"{member} must have 0 or 1 at the end of each line")
    return Bunch(
        data=[sentence.strip() for sentence, _, _ in rows],
        target=np.array([int(label) for _, _, label in rows], dtype=np.int64),
        target_names=["negative", "positive"],
        DESCR="SST-2 (Socher et al., 2013; in the edition of GLUE): phrases of film reviews.\n",
    )


def fetch_subj(*, data_home: PathLike | None = None, download_if_missing: bool = True) -> Bunch:
    """Fetch Subj: sentences about films, objective (0) or subjective (1), 5,000 of each.

    Nobody publishes its checksum, so the SHA-256 is recorded at the first use.

    Parameters
    ----------
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        ``data`` (list of str), ``target`` int64 (n,), ``target_names`` and ``DESCR``. Objective sentences
        come first: shuffle before splitting.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    members = ["plot.tok.gt9.5000", "quote.tok.gt9.5000"]
    archive = RESOURCES["subj"]["archive"].path(data_home, download_if_missing)
    content = read_members(archive, members, max_size=1 << 26)
    sentences: list[str] = []
    labels: list[int] = []
    for label, member in enumerate(members):
        lines = [line.strip() for line in content[member].decode("latin-1").split("\n") if line.strip()]
        sentences += lines
        labels += [label] * len(lines)
    return Bunch(
        data=sentences,
        target=np.array(labels, dtype=np.int64),
        target_names=["objective", "subjective"],
        DESCR="Subjectivity (Pang and Lee, 2004): plot summaries and quotes of reviews.\n",
    )


def fetch_glove(
    *,
    dim: Literal[50, 100, 200, 300] = 300,
    vocabulary: Collection[str] | None = None,
    data_home: PathLike | None = None,
    download_if_missing: bool = True,
) -> Bunch:
    """Fetch GloVe's word vectors, trained on 6 billion words (862 MB).

    Parameters
    ----------
    dim : {50, 100, 200, 300}
        Length of the vectors.
    vocabulary : collection of str, optional
        Words to read, in lower case; all 400,000 when None (480 MB in memory for dimension 300).
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        ``data`` float32 (n_words, dim), ``words`` (word -> row) and ``DESCR``. Words of the vocabulary that
        GloVe does not know are left out.

    Raises
    ------
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    check_choice("dim", dim, GLOVE_DIMS)
    archive = RESOURCES["glove"]["archive"].path(data_home, download_if_missing)
    for name, handle in files(archive):
        if name == f"glove.6B.{dim}d.txt":
            words, data = read_glove(_text_lines(handle), dim=dim, vocabulary=vocabulary)
            return Bunch(data=data, words=words, DESCR="GloVe 6B (Pennington, Socher, Manning, 2014).\n")
    raise ArchiveError(f"{archive.name} does not hold glove.6B.{dim}d.txt")


def _text_lines(handle: IO[bytes]) -> Iterable[str]:
    return io.TextIOWrapper(handle, encoding="utf-8", newline="\n")


def read_glove(
    lines: Iterable[str], *, dim: int, vocabulary: Collection[str] | None = None
) -> tuple[dict[str, int], NDArray[np.float32]]:
    """Read word vectors from text: a word and ``dim`` numbers in each line, separated by blanks.

    Parameters
    ----------
    lines : iterable of str
        The lines.
    dim : int
        Length of the vectors.
    vocabulary : collection of str, optional
        Words to keep; all when None.

    Returns
    -------
    words : dict of str to int
        Row of each word.
    vectors : ndarray of float32, shape (n_words, dim)
        The vectors.

    Raises
    ------
    ValueError
        If a line has another number of entries, or one that is no finite number.
    """
    wanted: Any = None if vocabulary is None else frozenset(vocabulary)
    words: dict[str, int] = {}
    rows: list[NDArray[np.float32]] = []
    for number, line in enumerate(lines, 1):
        # From the right: a few words of the larger sets contain blanks.
        word, *entries = line.rstrip("\r\n").rsplit(" ", dim)
        if len(entries) != dim or not word:
            raise ValueError(f"line {number} must hold a word and {dim} numbers, got {len(entries)} numbers")
        if (wanted is not None and word not in wanted) or word in words:
            continue
        row = np.array(entries, dtype=np.float32)
        if not np.isfinite(row).all():
            raise ValueError(f"line {number} must hold finite numbers")
        words[word] = len(rows)
        rows.append(row)
    return words, np.stack(rows) if rows else np.empty((0, dim), dtype=np.float32)
