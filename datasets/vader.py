"""Human ratings of sentiment, and a machine's score of the same texts: four corpora."""

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from seedbed.checks import check_choice
from seedbed.datasets.archives import ArchiveError, read_members
from seedbed.datasets.resources import RESOURCES, PathLike

Corpus = Literal["tweets", "amazon", "nyt", "movies"]
CORPORA: dict[Corpus, tuple[str, int]] = {
    "tweets": ("tweets", 4200),
    "amazon": ("amazonReviewSnippets", 3708),
    "nyt": ("nytEditorialSnippets", 5190),
    "movies": ("movieReviewSnippets", 10605),
}
GROUPED = ("amazon", "nyt")
_DESCR = (
    "Sentiment of texts, mean of 20 human raters from -4 to 4 (C. Hutto, E. Gilbert, VADER: A Parsimonious "
    "Rule-based Model for Sentiment Analysis of Social Media Text, ICWSM 2014; MIT licence), with the "
    "compound score of vaderSentiment 3.3.2 from -1 to 1.\n"
)


def load_vader_ratings(corpus: Corpus = "tweets") -> Bunch:
    """Load human sentiment ratings of one corpus with a machine's score of each text.

    Parameters
    ----------
    corpus : {"tweets", "amazon", "nyt", "movies"}
        4,200 tweets; 3,708 snippets of 300 Amazon reviews; 5,190 of 498 New York Times editorials; 10,605
        of film reviews.

    Returns
    -------
    Bunch
        ``rating`` (n,): mean of 20 raters, from -4 to 4, to three digits; ``score`` (n,): VADER's compound
        score, from -1 to 1; ``group`` int64 (n,): the review or editorial, each text its own for tweets and
        films; and ``DESCR``. The texts come with :func:`fetch_vader_ratings`.

    Raises
    ------
    ValueError
        If there is no such corpus.

    Examples
    --------
    >>> from seedbed.datasets import load_vader_ratings
    >>> amazon = load_vader_ratings("amazon")
    >>> amazon.rating.shape, len(set(amazon.group.tolist()))
    ((3708,), 300)
    """
    check_choice("corpus", corpus, tuple(CORPORA))
    with (files("seedbed.datasets") / "data" / "vader_ratings.npz").open("rb") as file:
        table = np.load(file, allow_pickle=False)[corpus]
    return Bunch(
        rating=table[0] / 1000.0,
        score=table[1] / 10_000.0,
        group=table[2].astype(np.int64),
        DESCR=_DESCR,
    )


def fetch_vader_ratings(
    corpus: Corpus = "tweets", *, data_home: PathLike | None = None, download_if_missing: bool = True
) -> Bunch:
    """Fetch the texts and human ratings of one corpus (2 MB).

    Parameters
    ----------
    corpus : {"tweets", "amazon", "nyt", "movies"}
        As in :func:`load_vader_ratings`.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        ``data`` (list of str), ``rating`` (n,), ``group`` int64 (n,) and ``DESCR``.

    Raises
    ------
    ValueError
        If there is no such corpus.
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If the file cannot be downloaded; the message says where to put it by hand.
    """
    check_choice("corpus", corpus, tuple(CORPORA))
    stem, size = CORPORA[corpus]
    member = f"hutto_ICWSM_2014/{stem}_GroundTruth.txt"
    archive = RESOURCES["vader"]["archive"].path(data_home, download_if_missing)
    lines = read_members(archive, [member], max_size=1 << 26)[member].decode("latin-1").split("\n")
    rows = [line.rstrip("\r").split("\t", 2) for line in lines if line.strip()]
    if len(rows) != size or not all(len(row) == 3 for row in rows):
        raise ArchiveError(f"{member} must have {size} lines of id, rating and text, got {len(rows)}")
    try:
        rating = np.array([float(row[1]) for row in rows])
        group = [int(row[0].partition("_")[0]) for row in rows]
    except ValueError as error:
        raise ArchiveError(f"{member} must begin each line with numbers: {error}") from error
    if corpus not in GROUPED:
        group = list(range(size))
    return Bunch(
        data=[row[2] for row in rows], rating=rating, group=np.array(group, dtype=np.int64), DESCR=_DESCR
    )


def write_table(path: str | Path, scorer: Any, data_home: PathLike | None = None) -> None:
    """Write the table that :func:`load_vader_ratings` reads.

    Parameters
    ----------
    path : path-like
        The ``.npz`` file.
    scorer : callable
        Maps a text to a score from -1 to 1: in vaderSentiment 3.3.2,
        ``SentimentIntensityAnalyzer().polarity_scores(text)["compound"]``.
    data_home : path-like, optional
        Folder of downloaded data.
    """
    tables: dict[str, NDArray[np.int16]] = {}
    for corpus in CORPORA:
        fetched = fetch_vader_ratings(corpus, data_home=data_home)
        score = np.array([scorer(text) for text in fetched.data])
        columns = np.stack([np.rint(fetched.rating * 1000), np.rint(score * 10_000), fetched.group])
        tables[corpus] = columns.astype(np.int16)
    np.savez_compressed(path, **tables)  # type: ignore[arg-type]
