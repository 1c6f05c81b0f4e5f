"""Answers of language models to the questions of HELM, and difficulties fitted to them.

Published with S. T. Truong et al., Reliable and Efficient Amortized Model-based Evaluation (ICML 2025): 183
models, 22 sets of questions. What is published calls a question easy by a large z, P = sigma(theta + z); here
as everywhere in seedbed, difficulty is b = -z.
"""

import hashlib
import io
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Bunch

from seedbed.checks import check_choice, missing_extra
from seedbed.datasets.pickles import PickleError, read_pickled_table
from seedbed.datasets.resources import RESOURCES, PathLike, Resource

Floats = NDArray[np.float64]

SCENARIOS = (
    "air_bench_2024",
    "babi_qa",
    "bbq",
    "boolq",
    "civil_comments",
    "commonsense",
    "dyck_language_np=3",
    "entity_data_imputation",
    "entity_matching",
    "gsm",
    "imdb",
    "legal_support",
    "legalbench",
    "lsat_qa",
    "math",
    "med_qa",
    "mmlu",
    "raft",
    "synthetic_reasoning",
    "thai_exam",
    "truthful_qa",
    "wikifact",
)
"""Sets of questions."""
_HUB = "https://huggingface.co/datasets/stair-lab/reeval-difficulty/resolve/refs%2Fconvert%2Fparquet/default"
_DESCR = (
    "Answers of language models to questions of HELM (P. Liang et al., 2023), gathered for Reliable "
    "and Efficient Amortized Model-based Evaluation (S. T. Truong et al., ICML 2025): stair-lab/reeval.\n"
)
_FIELDS = ("data", "taker_names", "item_texts", "scenario", "subset")


def difficulty_from_easiness(z: ArrayLike) -> Floats:
    """Turn z of P = sigma(theta + z) into the difficulty b of P = sigma(theta - b).

    Parameters
    ----------
    z : array-like
        Easiness: the larger, the easier.

    Returns
    -------
    ndarray
        -z.
    """
    return -np.asarray(z, dtype=np.float64)


def fetch_helm_responses(
    scenario: str | None = None, *, data_home: PathLike | None = None, download_if_missing: bool = True
) -> Bunch:
    """Fetch which of 183 language models answered which of some 78,000 questions right.

    The published pickle is read without unpickling it, checked against the checksum of its first use, and
    kept beside it as a small ``.npz`` from then on.

    Parameters
    ----------
    scenario : str, optional
        One of ``seedbed.datasets.helm.SCENARIOS``: only its questions, and only the models that answered one.
        All when None.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        As from :func:`read_helm_responses`.

    Raises
    ------
    ValueError
        If there is no such scenario, or the file holds anything but a table of numbers; the message says what
        to convert.
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If it cannot be downloaded; the message says where to put it by hand.
    """
    check_choice("scenario", scenario, (None, *SCENARIOS))
    path = RESOURCES["helm"]["responses"].path(data_home, download_if_missing)
    packed = path.with_suffix(".npz")
    source = _sha256(path)
    found = None
    if packed.is_file():
        with np.load(packed, allow_pickle=False) as table:
            if str(table["source"]) == source:
                found = _unpack(table)
    if found is None:
        found = read_helm_responses(path)
        _write_packed(packed, found, source)
    return found if scenario is None else _only(found, scenario)


def read_helm_responses(path: PathLike) -> Bunch:
    """Read responses from a file: ``.npz``, ``.parquet``, a pickled DataFrame or a dictionary saved by torch.

    Parameters
    ----------
    path : path-like
        The file. ``.npz``: arrays ``data``, and if there are any ``taker_names``, ``item_texts``,
        ``scenario`` and ``subset``. ``.parquet`` (needs pyarrow): one row per answer, with columns
        ``request.model``, ``request.prompt``, ``scenario`` and ``dicho_score``. ``.pkl``: models by
        questions, the questions labelled by prompt, scenario and subset; read by
        :func:`~seedbed.datasets.pickles.read_pickled_table`, which runs nothing. ``.pt``: a dictionary with
        ``data``, ``subject_ids`` and ``item_contents``, loaded with ``weights_only=True``.

    Returns
    -------
    Bunch
        ``data`` float64 (n_models, n_questions): 1, 0 or NaN (scores of a half and more count as right);
        ``taker_names``, ``item_texts``, ``scenario`` and ``subset``: lists of str, empty strings where the
        file does not say; and ``DESCR``.

    Raises
    ------
    ValueError
        If the kind of file is unknown, or it holds other things than scores from 0 to 1 and their labels.
    ImportError
        If pyarrow is needed and not installed.
    """
    file = Path(path)
    readers = {".npz": _from_npz, ".parquet": _from_parquet, ".pkl": _from_pickle, ".pt": _from_torch}
    if file.suffix not in readers:
        raise ValueError(f"path must end in one of {', '.join(readers)}, got {file.name!r}")
    found = readers[file.suffix](file)
    scores = np.asarray(found["data"], dtype=np.float64)
    if scores.ndim != 2 or not (np.isnan(scores) | ((scores >= 0) & (scores <= 1))).all():
        raise ValueError(
            f"{file.name} must hold a table of scores from 0 to 1 or NaN, got shape {scores.shape}"
        )
    found["data"] = np.where(np.isnan(scores), np.nan, (scores >= 0.5).astype(np.float64))
    sizes = {"taker_names": scores.shape[0]} | dict.fromkeys(_FIELDS[2:], scores.shape[1])
    for name, size in sizes.items():
        labels = [str(label) for label in found.get(name, [""] * size)]
        if len(labels) != size:
            raise ValueError(f"{file.name}: {name} must have {size} entries, got {len(labels)}")
        found[name] = labels
    return Bunch(**found, DESCR=_DESCR)


def fetch_helm_difficulties(
    scenario: str, *, data_home: PathLike | None = None, download_if_missing: bool = True
) -> Bunch:
    """Fetch difficulties that the paper's authors fitted to the questions of one scenario (needs pyarrow).

    Parameters
    ----------
    scenario : str
        One of ``seedbed.datasets.helm.SCENARIOS``.
    data_home : path-like, optional
        Folder of downloaded data (:func:`~seedbed.datasets.get_data_home`).
    download_if_missing : bool
        Whether to download.

    Returns
    -------
    Bunch
        ``difficulty`` float64 (n_questions,): b, large for hard questions (the file's z with its sign
        changed); ``item_texts``: the prompts; and ``DESCR``.

    Raises
    ------
    ValueError
        If there is no such scenario, or the file lacks its columns or a finite z.
    ImportError
        If pyarrow is not installed.
    FileNotFoundError
        If the file is missing and may not be downloaded.
    FetchError
        If it cannot be downloaded; the message says where to put it by hand.
    """
    check_choice("scenario", scenario, SCENARIOS)
    split = scenario.replace("=", "_")
    resource = Resource((f"{_HUB}/{quote(split)}/0000.parquet",), f"helm/difficulty-{split}.parquet", None)
    path = resource.path(data_home, download_if_missing)
    columns = _parquet(path, ("request.prompt", "z"), "fetch_helm_difficulties")
    z = np.array([np.nan if value is None else value for value in columns["z"]], dtype=np.float64)
    if not np.isfinite(z).all():
        raise ValueError(f"{path.name} must hold a finite z for every question")
    return Bunch(
        difficulty=difficulty_from_easiness(z),
        item_texts=[str(text) for text in columns["request.prompt"]],
        DESCR=_DESCR.replace("Answers of language models to", "Difficulties of", 1),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as table:
        if "source" in table:
            return dict(_unpack(table))
        if "data" not in table:
            raise ValueError(f"{path.name} must hold an array named data, got {sorted(table)}")
        return {name: table[name] for name in _FIELDS if name in table}


def _from_pickle(path: Path) -> dict[str, Any]:
    table = read_pickled_table(path)
    labels = [column if isinstance(column, tuple) else (column,) for column in table.columns]
    padded = [(*label, "", "")[:3] for label in labels]
    if any(len(label) > 3 for label in labels):
        raise PickleError(f"{path.name}: its columns must be labelled by prompt, scenario and subset")
    text, scenario, subset = (list(part) for part in zip(*padded, strict=True))
    return {
        "data": table.values,
        "taker_names": table.rows,
        "item_texts": text,
        "scenario": scenario,
        "subset": subset,
    }


def _from_torch(path: Path) -> dict[str, Any]:
    import torch

    found = torch.load(path, weights_only=True, map_location="cpu")
    if not isinstance(found, dict) or "data" not in found or "subject_ids" not in found:
        raise ValueError(f"{path.name} must hold a dictionary with data, subject_ids and item_contents")
    ids = [str(name) for name in found.get("item_ids", [])]
    named = {"scenario": [name.rpartition(":")[0] for name in ids]} if ids else {}
    texts = found.get("item_contents", ids)
    return {
        "data": found["data"].numpy(),
        "taker_names": found["subject_ids"],
        **({"item_texts": texts} if texts else {}),
        **named,
    }


def _from_parquet(path: Path) -> dict[str, Any]:
    """One row per answer; of a pair that comes twice, the first counts."""
    wanted = ("request.model", "request.prompt", "scenario", "dicho_score")
    columns = _parquet(path, wanted, "read_helm_responses")
    models = [str(name) for name in columns["request.model"]]
    pairs = list(zip(map(str, columns["scenario"]), map(str, columns["request.prompt"]), strict=True))
    takers = {name: k for k, name in enumerate(sorted(set(models)))}
    items = {pair: k for k, pair in enumerate(sorted(set(pairs)))}
    row = np.array([takers[name] for name in models], dtype=np.int64)
    column = np.array([items[pair] for pair in pairs], dtype=np.int64)
    _, first = np.unique(row * len(items) + column, return_index=True)
    score = np.array([np.nan if value is None else float(value) for value in columns["dicho_score"]])
    data = np.full((len(takers), len(items)), np.nan)
    data[row[first], column[first]] = score[first]
    return {
        "data": data,
        "taker_names": list(takers),
        "item_texts": [text for _, text in items],
        "scenario": [name for name, _ in items],
    }


def _parquet(path: Path, columns: tuple[str, ...], purpose: str) -> dict[str, list[Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "helm", purpose) from error
    known = set(parquet.read_schema(path).names)
    if missing := [name for name in columns if name not in known]:
        wanted = ", ".join(columns)
        raise ValueError(f"{path.name} must have the columns {wanted}; it lacks {', '.join(missing)}")
    found: dict[str, list[Any]] = parquet.read_table(path, columns=list(columns)).to_pydict()
    return found


def _write_packed(path: Path, found: Bunch, source: str) -> None:
    """Keep the answers as bits and the labels as UTF-8."""
    seen = ~np.isnan(found.data)
    table: dict[str, Any] = {
        "source": np.array(source),
        "shape": np.array(found.data.shape),
        "right": np.packbits(seen & (found.data == 1)),
        "seen": np.packbits(seen),
    }
    for name in _FIELDS[1:]:
        parts = [label.encode("utf-8", "surrogatepass") for label in found[name]]
        table[name] = np.frombuffer(b"".join(parts), dtype=np.uint8)
        table[f"{name}_ends"] = np.cumsum([len(part) for part in parts], dtype=np.int64)
    content = io.BytesIO()
    np.savez_compressed(content, **table)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(content.getvalue())
    temporary.replace(path)


def _unpack(table: Any) -> Bunch:
    shape = tuple(int(size) for size in table["shape"])
    right, seen = (
        np.unpackbits(table[kind], count=shape[0] * shape[1]).reshape(shape) for kind in ("right", "seen")
    )
    labels = {}
    for name in _FIELDS[1:]:
        whole, ends = table[name].tobytes(), table[f"{name}_ends"].tolist()
        starts = [0, *ends[:-1]]
        labels[name] = [
            whole[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends, strict=True)
        ]
    return Bunch(data=np.where(seen == 1, right.astype(np.float64), np.nan), **labels, DESCR=_DESCR)


def _only(found: Bunch, scenario: str) -> Bunch:
    """One scenario's questions, and the models that answered one."""
    columns = np.flatnonzero(np.array(found.scenario) == scenario)
    if not len(columns):
        raise ValueError(f"scenario {scenario!r} is not in the file; it has {sorted(set(found.scenario))}")
    data = found.data[:, columns]
    rows = np.flatnonzero(~np.isnan(data).all(axis=1))
    return Bunch(
        data=data[rows],
        taker_names=[found.taker_names[k] for k in rows],
        **{name: [found[name][k] for k in columns] for name in _FIELDS[2:]},
        DESCR=found.DESCR,
    )
