"""The HTML report of ``seedbed demo``: one file, no script, nothing loaded from elsewhere.

Every figure is drawn twice, for a light and for a dark page; style sheets alone choose which one shows.
"""

import io
import math
import os
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from seedbed import __version__
from seedbed.catalog import Method
from seedbed.demos import Demo, DemoFigure

Status = Literal["ok", "failed", "missing", "interrupted"]
Theme = Literal["light", "dark"]

STATUS_WORDS: Mapping[Status, str] = {
    "ok": "done",
    "failed": "failed",
    "missing": "not installed",
    "interrupted": "interrupted",
}

GROUND: Mapping[Theme, str] = {"light": "#ffffff", "dark": "#14171c"}
INK: Mapping[Theme, str] = {"light": "#1b1f26", "dark": "#e6eaf0"}
RULE: Mapping[Theme, str] = {"light": "#d5dae1", "dark": "#353c47"}
# One hue per place in both lists. Each colour has a contrast of at least 3:1 with its ground, and any two
# differ by at least 8 (OKLab x 100) with protanopia, deuteranopia and tritanopia; the tests compute both.
PALETTE: Mapping[Theme, tuple[str, ...]] = {
    "light": ("#1762ca", "#d86808", "#009a70", "#ab398f", "#7a5c00", "#44337f"),
    "dark": ("#6ab3fe", "#faa956", "#57e1ad", "#f573be", "#f2e159", "#8c80ff"),
}

PROBE_BYTES = 4 * 2**20
"""Room that a report may need; proved to be there before any work starts."""


@dataclass(frozen=True)
class Rendered:
    """A demo's figure as SVG text, for both themes.

    Attributes
    ----------
    title, caption : str
        From the :class:`~seedbed.demos.DemoFigure`.
    light, dark : str
        ``<svg>`` elements.
    """

    title: str
    caption: str
    light: str
    dark: str


@dataclass(frozen=True)
class Outcome:
    """What became of one method's demo.

    Attributes
    ----------
    method : Method
        The catalog entry.
    status : {"ok", "failed", "missing", "interrupted"}
        ``"missing"``: an extra is not installed.
    seconds : float
        Wall-clock time.
    demo : Demo, optional
        Its result, where there is one.
    figures : sequence of Rendered
        Its figures; empty without matplotlib.
    reason : str
        Why it did not succeed, one line.
    trace : str
        The traceback of a failure.
    warnings : sequence of str
        Warnings raised while it ran.
    """

    method: Method
    status: Status
    seconds: float
    demo: Demo | None = None
    figures: Sequence[Rendered] = field(default_factory=tuple)
    reason: str = ""
    trace: str = ""
    warnings: Sequence[str] = field(default_factory=tuple)


def show(value: object) -> str:
    """Format a table cell: 4 significant digits, thousands grouped, strings as they are.

    Parameters
    ----------
    value : object
        A str, int, float or NumPy scalar.

    Returns
    -------
    str
        The text.

    Examples
    --------
    >>> show(0.123456), show(53940), show(1234567.8), show("a")
    ('0.1235', '53,940', '1,234,568', 'a')
    """
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if math.isfinite(value) and abs(value) >= 1e4 else f"{value:.4g}"


def is_number(value: object) -> bool:
    """Tell whether a cell is right-aligned.

    Parameters
    ----------
    value : object
        A cell of a demo's table.

    Returns
    -------
    bool
        True for numbers, not for bools.
    """
    return not isinstance(value, (str, bool)) and hasattr(value, "__float__")


def figure_style(theme: Theme) -> dict[str, Any]:
    """Matplotlib parameters of a theme, on top of the default style.

    Parameters
    ----------
    theme : {"light", "dark"}
        Which page the figure stands on.

    Returns
    -------
    dict
        For :func:`matplotlib.style.context`.
    """
    from cycler import cycler

    ink, rule, ground = INK[theme], RULE[theme], GROUND[theme]
    return {
        "axes.prop_cycle": cycler(color=PALETTE[theme]),
        "svg.fonttype": "none",
        "svg.hashsalt": "seedbed",
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "text.color": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": rule,
        "lines.color": PALETTE[theme][0],
        "patch.facecolor": PALETTE[theme][0],
        "patch.edgecolor": ink,
        "hatch.color": ink,
        "legend.facecolor": ground,
        "legend.edgecolor": rule,
        "legend.labelcolor": ink,
        "boxplot.boxprops.color": ink,
        "boxplot.capprops.color": ink,
        "boxplot.flierprops.color": ink,
        "boxplot.flierprops.markeredgecolor": ink,
        "boxplot.whiskerprops.color": ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "font.size": 11.0,
        "axes.titlesize": 12.0,
        "legend.fontsize": 10.0,
    }


def _svg(figure: DemoFigure, theme: Theme, prefix: str) -> str:
    from matplotlib import style
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with style.context(["default", figure_style(theme)]):
        canvas = Figure(figsize=(6.4, 3.9), layout="constrained")
        figure.draw(canvas)
        blank = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        canvas.savefig(buffer, format="svg", metadata=blank)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Inside HTML a style element would reach the whole page, and ids must be unique on it.
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{prefix}-", text)
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(?:width|height)="[^"]*"', "", opening)
    label = escape(f"{figure.title}. {figure.caption}")
    return f'{opening} role="img" aria-label="{label}">{rest}'.strip()


def render(figure: DemoFigure, name: str) -> Rendered:
    """Draw a demo's figure for the light and for the dark page.

    Parameters
    ----------
    figure : DemoFigure
        What to draw.
    name : str
        Unique on the page; starts every id inside the figure.

    Returns
    -------
    Rendered
        Equal input gives equal text.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    return Rendered(
        title=figure.title,
        caption=figure.caption,
        light=_svg(figure, "light", f"{name}-light"),
        dark=_svg(figure, "dark", f"{name}-dark"),
    )


def _table(rows: Sequence[Mapping[str, object]], label: str) -> str:
    if not rows:
        return ""
    columns = list(rows[0])
    numeric = {column for column in columns if all(is_number(row[column]) for row in rows)}

    def cell(tag: str, column: str, text: str, extra: str = "") -> str:
        kind = ' class="number"' if column in numeric else ""
        return f"<{tag}{kind}{extra}>{escape(text)}</{tag}>"

    head = "".join(cell("th", column, column, ' scope="col"') for column in columns)
    body = "\n".join(
        "<tr>"
        + "".join(
            cell("th", column, show(row[column]), ' scope="row"')
            if column == columns[0] and column not in numeric
            else cell("td", column, show(row[column]))
            for column in columns
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{escape(label)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _mark(outcome: Outcome) -> str:
    return f'<span class="mark {outcome.status}">{STATUS_WORDS[outcome.status]}</span>'


def _summary(outcomes: Sequence[Outcome]) -> str:
    rows = "\n".join(
        f'<tr><th scope="row"><a href="#{escape(outcome.method.slug)}">{escape(outcome.method.slug)}</a></th>'
        f"<td>{_mark(outcome)}</td>"
        f"<td>{escape(outcome.demo.headline if outcome.demo and not outcome.reason else outcome.reason)}</td>"
        f'<td class="number">{outcome.seconds:.1f} s</td></tr>'
        for outcome in outcomes
    )
    return (
        '<div class="wide"><table class="summary"><thead><tr><th scope="col">method</th>'
        '<th scope="col">demo</th><th scope="col">result</th><th scope="col" class="number">time</th></tr>'
        f"</thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _figure(figure: Rendered) -> str:
    return (
        f'<figure><div class="on-light">{figure.light}</div>\n<div class="on-dark">{figure.dark}</div>\n'
        f"<figcaption><strong>{escape(figure.title)}</strong>{escape(figure.caption)}</figcaption></figure>"
    )


def _fold(summary: str, text: str) -> str:
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def _section(outcome: Outcome, *, drawn: bool) -> str:
    method, demo = outcome.method, outcome.demo
    cited = f'<a href="{escape(method.url)}">{escape(method.title)}</a>. {escape(method.authors)}'
    parts = [
        f'<section id="{escape(method.slug)}" aria-labelledby="{escape(method.slug)}-title">',
        f'<h2 id="{escape(method.slug)}-title">{escape(method.slug)}</h2>',
        f"<p>{escape(method.summary)}</p>",
        f'<p class="soft">{cited}. {escape(method.where)}.</p>',
    ]
    if outcome.reason:
        parts.append(f"<p>{_mark(outcome)}: {escape(outcome.reason)}</p>")
    if outcome.trace:
        parts.append(_fold("traceback", outcome.trace))
    if demo is not None:
        parts += [
            f'<p class="headline">{escape(demo.headline)}</p>',
            f'<p class="soft">Data: {escape(demo.data)}</p>',
            _table(demo.rows, f"{method.slug}: results"),
            *(_figure(figure) for figure in outcome.figures),
        ]
        if demo.figures and not drawn:
            parts.append(
                "<p class=\"soft\">Figures need matplotlib: <code>pip install 'seedbed[plot]'</code></p>"
            )
    if outcome.warnings:
        parts.append(_fold(f"warnings ({len(outcome.warnings)})", "\n".join(outcome.warnings)))
    return "\n".join([*parts, "</section>"])


def page(outcomes: Sequence[Outcome], *, drawn: bool = True) -> str:
    """Write the report's HTML.

    Parameters
    ----------
    outcomes : sequence of Outcome
        In the order shown.
    drawn : bool
        Whether figures could be drawn (matplotlib is there).

    Returns
    -------
    str
        A whole document.
    """
    style = files("seedbed").joinpath("report.css").read_text(encoding="utf-8")
    choices = "".join(
        f'<label><input type="radio" name="theme" id="theme-{name}"{checked}>{word}</label>'
        for name, word, checked in (
            ("auto", "as the system", " checked"),
            ("light", "light", ""),
            ("dark", "dark", ""),
        )
    )
    sections = "\n".join(_section(outcome, drawn=drawn) for outcome in outcomes)
    done = sum(outcome.status == "ok" for outcome in outcomes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>seedbed report</title>
<style>
{style}</style>
</head>
<body>
<fieldset class="theme"><legend>colours</legend>{choices}</fieldset>
<header>
<h1>seedbed report</h1>
<p class="soft">{done} of {len(outcomes)} demos done, each on the data named beside it.</p>
</header>
<main>
{_summary(outcomes)}
{sections}
</main>
<footer class="soft"><p>seedbed {escape(__version__)}, Python {escape(platform.python_version())},
{escape(platform.system())} {escape(platform.machine())}</p></footer>
</body>
</html>
"""


def check_writable(path: Path) -> None:
    """Raise unless a report can be written there: the folder exists, takes files and has room.

    Parameters
    ----------
    path : Path
        Where the report goes.

    Raises
    ------
    OSError
        Saying which path and why.
    """
    if path.is_dir():
        raise OSError(f"cannot write the report to {path}: it is a directory")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise OSError(f"cannot write the report to {path}: there is no directory {folder}")
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise OSError(f"cannot write the report to {path}: {error.strerror or error}") from error


def write_atomic(path: Path, text: str) -> None:
    """Write a text file in one step: a reader sees the old file or the new one, never half of it.

    Parameters
    ----------
    path : Path
        The file; a link is followed.
    text : str
        Its content, written as UTF-8.

    Raises
    ------
    OSError
        If it cannot be written; the old file is untouched.
    """
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
