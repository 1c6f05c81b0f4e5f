"""The ``seedbed`` command: list, show, demo, fit, doctor.

Exit codes: 0 fine, 1 something failed, 2 wrong usage, 130 interrupted by Ctrl-C. With ``--json`` standard
output holds one JSON document and nothing else; progress and messages go to standard error.
"""

import argparse
import difflib
import json
import math
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seedbed import __version__
from seedbed.catalog import METHODS, Method

if TYPE_CHECKING:
    from rich.console import Console

    from seedbed.report import Outcome

FAILED, USAGE, INTERRUPTED = 1, 2, 130
REPORT = "seedbed-report.html"


class UsageError(Exception):
    """What was asked for does not exist; the message says what does."""


def find(slug: str) -> Method:
    """Return the method with this slug.

    Parameters
    ----------
    slug : str
        From the command line.

    Returns
    -------
    Method
        The catalog entry.

    Raises
    ------
    UsageError
        If there is none; with suggestions, also where a class's name was given.
    """
    names = {method.slug: method.slug for method in METHODS}
    if slug in names:
        return next(method for method in METHODS if method.slug == slug)
    names |= {
        public.name.rpartition(".")[2].lower(): method.slug for method in METHODS for public in method.public
    }
    close = difflib.get_close_matches(slug.lower(), names, n=3, cutoff=0.5)
    meant = list(dict.fromkeys(names[name] for name in close))
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    known = ", ".join(method.slug for method in METHODS)
    raise UsageError(f"no method {slug!r}{hint} (there are: {known})")


def main_names(method: Method) -> list[str]:
    """Name what a user of a method starts from: its estimators, optimizers and modules.

    Parameters
    ----------
    method : Method
        The catalog entry.

    Returns
    -------
    list of str
        Without their folder, in catalog order.
    """
    kinds = ("estimator", "optimizer", "module")
    return [public.name.rpartition(".")[2] for public in method.public if public.kind in kinds]


def describe(method: Method) -> dict[str, Any]:
    """Say what the catalog holds on a method, in plain values.

    Parameters
    ----------
    method : Method
        The catalog entry.

    Returns
    -------
    dict
        For ``--json``.
    """
    return {
        "slug": method.slug,
        "summary": method.summary,
        "title": method.title,
        "authors": method.authors,
        "where": method.where,
        "url": method.url,
        "folder": method.folder,
        "public": [{"path": method.path(public), "kind": public.kind} for public in method.public],
        "extras": list(method.extras),
    }


def plain(value: Any) -> Any:
    """Turn a demo's values into what JSON can hold: NumPy scalars unwrapped, NaN and infinities as null.

    Parameters
    ----------
    value : object
        A cell, or a nest of mappings and sequences of cells.

    Returns
    -------
    object
        The same in plain values.

    Examples
    --------
    >>> plain({"a": [1.5, float("nan")]})
    {'a': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_json(document: Any) -> None:
    text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(text + "\n")


def _console(*, error: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=error, highlight=False)


def _complain(text: str) -> None:
    sys.stderr.write(f"seedbed: {text}\n")


def _list(arguments: argparse.Namespace) -> int:
    if arguments.json:
        _print_json([describe(method) for method in METHODS])
        return 0
    from rich.table import Table
    from rich.text import Text

    table = Table("method", "what it gives", "classes")
    for method in METHODS:
        table.add_row(Text(method.slug, "bold"), Text(method.summary), Text(", ".join(main_names(method))))
    _console().print(table)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    method = find(arguments.slug)
    if arguments.json:
        _print_json(describe(method))
        return 0
    from rich.table import Table
    from rich.text import Text

    console = _console()
    console.print(Text(method.slug, "bold"), Text(method.summary))
    console.print(Text(f"{method.title}\n{method.authors}\n{method.where}\n{method.url}"))
    table = Table("import", "kind")
    for public in method.public:
        folder, _, name = method.path(public).rpartition(".")
        table.add_row(Text(f"from {folder} import {name}"), Text(public.kind))
    console.print(table)
    if method.extras:
        console.print(Text(f"demo and data: pip install 'seedbed[{','.join(method.extras)}]'"))
    console.print(Text(f"try it: seedbed demo {method.slug}"))
    return 0


def _print_outcome(console: "Console", outcome: "Outcome") -> None:
    """Print a demo's headline and table."""
    from rich.table import Table
    from rich.text import Text

    from seedbed.report import STATUS_WORDS, is_number, show

    slug, demo = outcome.method.slug, outcome.demo
    console.print()
    title = (
        f"{STATUS_WORDS[outcome.status]}: {outcome.reason}" if outcome.reason else f"{outcome.seconds:.1f} s"
    )
    console.print(Text(slug, "bold"), Text(title, "red" if outcome.status == "failed" else ""))
    if demo is None:
        return
    console.print(Text(demo.headline))
    console.print(Text(f"data: {demo.data}", "dim"))
    if demo.rows:
        table = Table()
        for column in demo.rows[0]:
            numeric = all(is_number(row[column]) for row in demo.rows)
            table.add_column(Text(column), justify="right" if numeric else "left")
        for row in demo.rows:
            table.add_row(*(Text(show(row[column])) for column in demo.rows[0]))
        console.print(table)


def _demo(arguments: argparse.Namespace) -> int:
    chosen = [find(slug) for slug in dict.fromkeys(arguments.slug)] or list(METHODS)
    from seedbed.report import check_writable, page, write_atomic
    from seedbed.tour import run_demos

    check_writable(arguments.report)
    drawn = find_spec("matplotlib") is not None
    if not drawn:
        _complain("figures need matplotlib: pip install 'seedbed[plot]'")
    outcomes = run_demos(chosen, _console(error=True), draw=drawn)
    write_atomic(arguments.report, page(outcomes, drawn=drawn))
    if arguments.json:
        rows = [
            {
                "slug": outcome.method.slug,
                "status": outcome.status,
                "reason": outcome.reason,
                "seconds": round(outcome.seconds, 3),
                "headline": outcome.demo and outcome.demo.headline,
                "data": outcome.demo and outcome.demo.data,
                "rows": list(outcome.demo.rows) if outcome.demo else [],
                "figures": [figure.title for figure in outcome.figures],
                "warnings": outcome.warnings,
            }
            for outcome in outcomes
        ]
        _print_json({"report": str(arguments.report), "demos": rows})
    else:
        console = _console()
        for outcome in outcomes:
            _print_outcome(console, outcome)
        console.print(f"\nreport: {arguments.report}", markup=False, soft_wrap=True)
    if any(outcome.status == "interrupted" for outcome in outcomes):
        return INTERRUPTED
    return 0 if all(outcome.status == "ok" for outcome in outcomes) else FAILED


def _doctor(arguments: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError

    from seedbed.doctor import advice, examine

    try:
        findings = examine()
    except PackageNotFoundError as error:
        _complain(
            f"{error.name} is on the path but not installed: pip install it, so that its version is known"
        )
        return FAILED
    if arguments.json:
        _print_json(findings.as_json())
        return 0 if findings.ok else FAILED
    from rich.table import Table
    from rich.text import Text

    console = _console()
    for name, found in findings.versions.items():
        console.print(Text(f"{name} {found}"))
    table = Table("needs", "range", "installed")
    for package in findings.core:
        table.add_row(
            Text(package.name),
            Text(package.required),
            Text(package.version or "missing", "" if package.ok else "red"),
        )
    console.print(table)
    table = Table("extra", "lacks", "install")
    for extra in findings.extras:
        table.add_row(
            Text(extra.name),
            Text(", ".join(extra.lacking) or "nothing"),
            Text(extra.install if extra.lacking else ""),
        )
    console.print(table)
    console.print(Text(f"devices: {', '.join(findings.devices)}"))
    console.print(
        Text("threads: " + ", ".join(f"{name} {count}" for name, count in findings.threads.items()))
    )
    console.print(Text(f"data home: {findings.data_home}"))
    good = sum(not part.error for part in findings.parts)
    console.print(Text(f"imports: {good} of {len(findings.parts)} public names and packages"))
    for line in advice(findings):
        console.print(Text(line, "red"))
    return 0 if findings.ok else FAILED


def _fit(arguments: Sequence[str]) -> int:
    from seedbed.checks import missing_extra

    for package in ("jsonargparse", "docstring_parser", "typeshed_client"):
        if find_spec(package) is None:
            raise missing_extra(package, "cli", "seedbed fit")
    from seedbed.lightning_cli import fit

    try:
        fit(arguments)
    except Exception:  # noqa: BLE001 - training can fail in any way; the whole traceback is shown
        traceback.print_exc()
        return FAILED
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Returns
    -------
    argparse.ArgumentParser
        With a subparser per command.
    """
    parser = argparse.ArgumentParser(
        prog="seedbed",
        description="ICML 2025 papers as scikit-learn estimators, optimizers and Lightning modules.",
    )
    parser.add_argument("--version", action="version", version=f"seedbed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print JSON on standard output")

    listing = commands.add_parser("list", parents=[as_json], help="list the methods")
    listing.set_defaults(run=_list)
    showing = commands.add_parser("show", parents=[as_json], help="show one method")
    showing.add_argument("slug", help="as in `seedbed list`")
    showing.set_defaults(run=_show)
    demo = commands.add_parser(
        "demo", parents=[as_json], help="run methods on real data and write an HTML report"
    )
    demo.add_argument("slug", nargs="*", help="methods; none means all")
    demo.add_argument(
        "--report", type=Path, default=Path(REPORT), help=f"where to write it (default {REPORT})"
    )
    demo.set_defaults(run=_demo)
    doctor = commands.add_parser("doctor", parents=[as_json], help="check versions, extras, devices, imports")
    doctor.set_defaults(run=_doctor)
    commands.add_parser(
        "fit",
        add_help=False,
        help="train a Lightning module from a config (LightningCLI): fit --config run.yaml",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process when None.

    Returns
    -------
    int
        The exit code.

    Raises
    ------
    SystemExit
        From the argument parser: 2 for wrong usage, 0 for ``--help`` and ``--version``.

    Examples
    --------
    >>> main(["show", "cojer", "--json"])  # doctest: +ELLIPSIS
    {
      "slug": "cojer",
    ...
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        # What follows `fit` belongs to LightningCLI, help included.
        if words[:1] == ["fit"]:
            return _fit(words[1:])
        arguments = make_parser().parse_args(words)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        _complain(str(error))
        return USAGE
    except BrokenPipeError:
        # The reader (such as `head`) has gone; keep the interpreter from flushing into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ImportError, OSError) as error:
        _complain(str(error))
        return FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    return code
