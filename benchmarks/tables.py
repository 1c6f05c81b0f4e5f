"""Write the tables that quote measured results: ``python -m benchmarks.tables [--check]``.

The table of methods in README.md comes from the catalog and the results, the table of a card
(``seeds/<slug>.md``) from that method's results. Both stand between a pair of marker comments; everything
outside the markers is left alone. ``--check`` writes nothing and fails where a file is stale.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, say
from seedbed.catalog import METHODS, Method
from seedbed.cli import main_names
from seedbed.report import show, write_atomic

ROOT = Path(__file__).parent.parent
NO_RESULTS = "not measured yet"
LOSS = "**does not hold**"

Row = Mapping[str, Any]


def read(slug: str, size: str, folder: Path = RESULTS) -> Mapping[str, Any] | None:
    """A method's results document, or None where there is none."""
    path = folder / (f"{slug}.json" if size == "small" else f"{slug}.{size}.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def cell(text: str) -> str:
    """Text that cannot break out of a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit; what was not finite is null in the file and shown as such."""
    if value is None:
        return "not finite"
    return f"{show(value)} {unit}".strip()


def target(row: Row) -> str:
    """A row's target as an inequality on what it is compared with."""
    if row["target"] is None:
        return ""
    if row["kind"] != "claim" and row["ratio"] is not None:
        return f"ratio ≥ {show(row['target'])}"
    return f"{'≥' if row['better'] == 'higher' else '≤'} {show(row['target'])}"


def verdict(row: Row) -> str:
    """Whether a row holds; nothing for a row without a target."""
    if row["target"] is None:
        return "no target"
    return "yes" if row["holds"] else LOSS


def headline(row: Row) -> str:
    """A row in one phrase."""
    text = f"{row['name']}: {quantity(row['value'], row['unit'])}"
    if row["peer"] is not None and row["peer_value"] is not None:
        text += f", {row['peer']} {quantity(row['peer_value'], row['unit'])}"
    goal = target(row)
    text += f" ({goal})" if goal else ""
    return text if row["holds"] else f"{text} {LOSS}"


def headlines(rows: list[Row]) -> Iterator[str]:
    """What the README quotes: the first row of each kind with a target, all that do not hold, the count."""
    aimed = [row for row in rows if row["target"] is not None]
    seen = set()
    for row in aimed:
        if not row["holds"] or row["kind"] not in seen:
            yield headline(row)
        seen.add(row["kind"])
    held = sum(row["holds"] for row in aimed)
    yield f"{held} of {len(aimed)} targets met, {len(rows)} rows"


def methods_table(folder: Path = RESULTS) -> str:
    """The README's table: one line per method of the catalog."""

    def line(method: Method) -> str:
        found = read(method.slug, "small", folder)
        measured = "<br>".join(cell(text) for text in headlines(found["rows"])) if found else NO_RESULTS
        names = ", ".join(f"`{name}`" for name in main_names(method))
        what = cell(method.summary) + (f"<br>{names}" if names else "")
        return f"| [{method.slug}](seeds/{method.slug}.md) | {what} | {measured} |"

    return "\n".join(["| method | what it gives | measured |", "| --- | --- | --- |", *map(line, METHODS)])


def results_table(slug: str, folder: Path = RESULTS) -> str:
    """A card's table, for each size on record: every row, and what it was measured with."""
    parts = []
    for size in ("small", "full"):
        found = read(slug, size, folder)
        if found is None:
            continue
        machine = found["machine"]
        versions = ", ".join(f"{name} {number}" for name, number in found["packages"].items())
        where = f"{machine['system']} {machine['processor']}, {machine['cores']} cores, "
        where += f"{machine['threads']} threads" + (f", {machine['gpu']}" if machine["gpu"] else "")
        lines = [
            "| what | seedbed | peer | ratio | target | holds |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for row in found["rows"]:
            name = cell(row["name"]) + (f"<br><small>{cell(row['note'])}</small>" if row["note"] else "")
            peer = ""
            if row["peer"] is not None:
                peer = f"{cell(row['peer'])}: {quantity(row['peer_value'], row['unit'])}"
            ratio = "" if row["ratio"] is None else show(row["ratio"])
            spread = f" ± {show(row['spread'])}" if row["spread"] is not None else ""
            on_ratio = row["kind"] == "speed" and row["ratio"] is not None
            value = cell(quantity(row["value"], row["unit"]))
            if on_ratio:
                ratio += spread
            else:
                value += spread
            lines.append(f"| {name} | {value} | {peer} | {ratio} | {target(row)} | {verdict(row)} |")
        flag = "" if size == "small" else f" --size {size}"
        command = f"`python -m benchmarks {slug}{flag}`: {show(found['seconds'])} s"
        made = f"seedbed {found['seedbed']} on {where}, Python {machine['python']}, {versions}"
        lines += ["", f"{command} with {made}. A ratio above 1 is in seedbed's favour."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) if parts else f"Not measured yet: `python -m benchmarks {slug}`."


def replace(text: str, marker: str, content: str, name: str) -> str:
    """Put content between a file's markers.

    Raises
    ------
    ValueError
        If the file does not hold the pair of markers exactly once.
    """
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if text.count(begin) != 1 or text.count(end) != 1 or pattern.search(text) is None:
        raise ValueError(f"{name} must hold {begin} and then {end}, each once")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def documents(root: Path = ROOT, folder: Path = RESULTS) -> Iterator[tuple[Path, str, str]]:
    """Each file with tables: path, text now, text as it should be. Files that are not there are left out."""
    wanted = [(root / "README.md", "methods", methods_table(folder))]
    wanted += [
        (root / "seeds" / f"{method.slug}.md", "results", results_table(method.slug, folder))
        for method in METHODS
    ]
    for path, marker, content in wanted:
        if path.exists():
            text = path.read_text(encoding="utf-8")
            yield path, text, replace(text, marker, content, path.name)


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the tables; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table is stale")
    check = parser.parse_args(argv).check
    stale = [(path, new) for path, old, new in documents(root) if new != old]
    for path, new in stale:
        if check:
            say(f"FAIL {path.name} is stale: run make readme")
        else:
            write_atomic(path, new)
            say(f"     {path.name} rewritten")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
