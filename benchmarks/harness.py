"""Rows, side-by-side timing and the results file: one schema for all benchmarks."""

import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One measured line of a results file.

    ``ratio`` is how many times better seedbed is than the peer (> 1 is a win). A claim's target is compared
    with its value, a speed or memory row's target with its ratio (with its value where it has no peer).
    A row without a target reports only; its ``holds`` is True.
    """

    name: str
    kind: Literal["claim", "speed", "memory"]
    value: float
    unit: str
    better: Literal["higher", "lower"]
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    target: float | None = None
    repeats: int = 1
    spread: float | None = None
    note: str = ""

    @property
    def won(self) -> float | None:
        """The ratio: the given one (a median of pairs) or that of the two values."""
        if self.ratio is not None or self.peer_value is None:
            return self.ratio
        best, worst = (
            (self.value, self.peer_value) if self.better == "higher" else (self.peer_value, self.value)
        )
        return best / worst if worst else math.inf

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        if self.target is None:
            return True
        if self.kind != "claim" and self.won is not None:
            return self.won >= self.target
        return self.value >= self.target if self.better == "higher" else self.value <= self.target

    def as_json(self) -> dict[str, Any]:
        """The row in the schema's order, numbers rounded to 6 significant digits, non-finite ones as null."""

        def plain(number: float | None) -> float | None:
            return float(f"{number:.6g}") if number is not None and math.isfinite(number) else None

        return {
            "name": self.name,
            "kind": self.kind,
            "value": plain(self.value),
            "unit": self.unit,
            "better": self.better,
            "peer": self.peer,
            "peer_value": plain(self.peer_value),
            "ratio": plain(self.won),
            "target": plain(self.target),
            "holds": self.holds,
            "repeats": self.repeats,
            "spread": plain(self.spread),
            "note": self.note,
        }


@dataclass(frozen=True)
class Timing:
    """Median seconds of two callables timed in turn, and the median and range of the pairwise ratio."""

    ours: float
    peer: float
    ratio: float
    spread: float
    repeats: int


def time_pair(
    ours: Callable[[], object], peer: Callable[[], object], *, repeats: int = 7, warmup: int = 1
) -> Timing:
    """Time two callables A B A B … so that a drifting machine hits both alike.

    Parameters
    ----------
    ours, peer : callable
        Identical work, ours and the peer's.
    repeats : int
        Counted pairs.
    warmup : int
        Pairs before them.

    Returns
    -------
    Timing
        ``ratio`` is peer / ours (> 1: ours is faster); ``spread`` its interquartile range.
    """
    pairs = []
    for turn in range(warmup + repeats):
        seconds = []
        for call in (ours, peer):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        if turn >= warmup:
            pairs.append(seconds)
    ratios = [b / a for a, b in pairs]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return Timing(
        ours=statistics.median(a for a, _ in pairs),
        peer=statistics.median(b for _, b in pairs),
        ratio=statistics.median(ratios),
        spread=quartiles[2] - quartiles[0],
        repeats=repeats,
    )


def speed_row(name: str, timing: Timing, *, peer: str, target: float | None = None, note: str = "") -> Row:
    """A speed row from a timing.

    Parameters
    ----------
    name : str
        What was timed.
    timing : Timing
        From :func:`time_pair`.
    peer : str
        The peer's name and version.
    target : float, optional
        Least ratio (peer / ours).
    note : str
        Anything a reader should know.

    Returns
    -------
    Row
        Of kind "speed".
    """
    return Row(
        name=name,
        kind="speed",
        value=timing.ours,
        unit="s",
        better="lower",
        peer=peer,
        peer_value=timing.peer,
        ratio=timing.ratio,
        target=target,
        repeats=timing.repeats,
        spread=timing.spread,
        note=note,
    )


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.system(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def packages(names: Sequence[str]) -> dict[str, str]:
    """Installed versions of these distributions; those not installed are left out."""
    found = {}
    for name in ("numpy", "scipy", "scikit-learn", "torch", "lightning", *names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def results_file(slug: str, size: str) -> Path:
    """Path of a method's results."""
    return RESULTS / (f"{slug}.json" if size == "small" else f"{slug}.{size}.json")


def write(slug: str, size: str, rows: Sequence[Row], seconds: float, names: Sequence[str]) -> Path:
    """Write the results file in one step: a reader never sees half of it."""
    from seedbed import __version__

    document = {
        "slug": slug,
        "size": size,
        "seedbed": __version__,
        "machine": machine(),
        "packages": packages(names),
        "seconds": round(seconds, 1),
        "rows": [row.as_json() for row in rows],
    }
    target = results_file(slug, size)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, suffix=".tmp", delete=False, encoding="utf-8"
    ) as handle:
        unfinished = Path(handle.name)
        try:
            handle.write(text)
            handle.close()
            unfinished.chmod(0o644)
            unfinished.replace(target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    return target


def say(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
