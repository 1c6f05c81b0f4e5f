"""Run the methods' demos one after the other, with one progress bar each.

A demo that fails, or that needs an extra which is not there, does not stop the others; Ctrl-C does, and
keeps what was done.
"""

import logging
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from seedbed.catalog import Method
from seedbed.demos import Report
from seedbed.report import STATUS_WORDS, Outcome, Rendered, render

if TYPE_CHECKING:
    from rich.console import Console

TRACE_LINES = 40
LINE_SHARE, LINE_SECONDS = 0.1, 5.0


class Watch(Protocol):
    """Shows how far the demos are."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def start(self, method: Method) -> Report:
        """Show that a demo starts and return what it reports to."""

    def stop(self, outcome: Outcome) -> None:
        """Show how a demo ended."""


class Bars:
    """A progress bar per method, for terminals.

    Parameters
    ----------
    console : rich.console.Console
        Where to draw.
    methods : sequence of Method
        All that will run.
    """

    def __init__(self, console: "Console", methods: Sequence[Method]) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.fields[slug]}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self._tasks = {
            method.slug: self._progress.add_task("waiting", start=False, total=1.0, slug=method.slug)
            for method in methods
        }

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self, method: Method) -> Report:
        """Start the method's clock and return what its demo reports to.

        Parameters
        ----------
        method : Method
            The one that starts.

        Returns
        -------
        callable
            ``report(share, what)``.
        """
        task = self._tasks[method.slug]
        self._progress.start_task(task)

        def report(share: float, what: str) -> None:
            self._progress.update(task, completed=min(max(share, 0.0), 1.0), description=what)

        return report

    def stop(self, outcome: Outcome) -> None:
        """Stop the method's clock and say how it ended.

        Parameters
        ----------
        outcome : Outcome
            Of the method started last.
        """
        task = self._tasks[outcome.method.slug]
        if outcome.status == "ok":
            self._progress.update(task, completed=1.0)
        self._progress.update(task, description=STATUS_WORDS[outcome.status])
        self._progress.stop_task(task)


class Lines:
    """A line per step, for files and pipes.

    Parameters
    ----------
    console : rich.console.Console
        Where to write.
    """

    def __init__(self, console: "Console") -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, method: Method) -> Report:
        """Return what the method's demo reports to: a line when it is a tenth, or some seconds, further on.

        Parameters
        ----------
        method : Method
            The one that starts.

        Returns
        -------
        callable
            ``report(share, what)``.
        """
        shown, said, due = -1.0, "", 0.0

        def report(share: float, what: str) -> None:
            nonlocal shown, said, due
            share, now = min(max(share, 0.0), 1.0), time.monotonic()
            if what != said and (share >= shown + LINE_SHARE or now >= due):
                shown, said, due = share, what, now + LINE_SECONDS
                self._say(f"{method.slug}: {share:4.0%} {what}")

        return report

    def stop(self, outcome: Outcome) -> None:
        """Write how the method ended.

        Parameters
        ----------
        outcome : Outcome
            Of the method started last.
        """
        why = f": {outcome.reason}" if outcome.reason else ""
        self._say(f"{outcome.method.slug}: {STATUS_WORDS[outcome.status]} in {outcome.seconds:.1f} s{why}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's start-up notes out of the progress bars."""
    loggers = [logging.getLogger(name) for name in ("lightning", "lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def interrupted(error: BaseException) -> bool:
    """Tell whether an exception stands for Ctrl-C.

    Parameters
    ----------
    error : BaseException
        A KeyboardInterrupt, or the SystemExit that Lightning's trainer makes of one.

    Returns
    -------
    bool
        Whether to stop.
    """
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt)
    )


def _missing(method: Method, error: BaseException) -> str | None:
    """Why a demo cannot run for want of a package, or None where that is not what went wrong."""
    if not isinstance(error, ImportError):
        return None
    if "pip install 'seedbed[" in str(error):
        return str(error)
    package = (error.name or "").partition(".")[0]
    if not package or package == "seedbed" or find_spec(package) is not None or not method.extras:
        return None
    return f"the demo needs {package}: pip install 'seedbed[{','.join(method.extras)}]'"


def run_demo(method: Method, report: Report, *, draw: bool) -> Outcome:
    """Run one demo and draw its figures; whatever happens ends up in the outcome.

    Parameters
    ----------
    method : Method
        The catalog entry.
    report : callable
        ``report(share, what)``.
    draw : bool
        Whether to draw the figures.

    Returns
    -------
    Outcome
        With status "interrupted" after Ctrl-C.
    """
    start = time.perf_counter()
    demo = None
    figures: list[Rendered] = []
    with warnings.catch_warnings(record=True) as caught:
        try:
            report(0.0, "starting")
            demo = method.demo()(report)
            for number, figure in enumerate(demo.figures if draw else ()):
                figures.append(render(figure, f"{method.slug}-{number}"))
        except BaseException as error:  # noqa: BLE001 - one demo's failure must not take the others with it
            seconds = time.perf_counter() - start
            noted = _noted(caught)
            if interrupted(error):
                return Outcome(method, "interrupted", seconds, demo, figures, "Ctrl-C", warnings=noted)
            missing = _missing(method, error)
            if missing is not None:
                return Outcome(method, "missing", seconds, demo, figures, missing, warnings=noted)
            lines = "".join(traceback.format_exception(error)).splitlines()
            said = str(error).splitlines()
            reason = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
            trace = "\n".join(lines[-TRACE_LINES:])
            return Outcome(method, "failed", seconds, demo, figures, reason, trace, noted)
        return Outcome(method, "ok", time.perf_counter() - start, demo, figures, warnings=_noted(caught))


def _noted(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    return list(dict.fromkeys(f"{note.category.__name__}: {note.message}" for note in caught))


def run_demos(
    methods: Sequence[Method],
    console: "Console",
    *,
    draw: bool,
    done: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run demos in turn until all are done or Ctrl-C is pressed.

    Parameters
    ----------
    methods : sequence of Method
        What to run.
    console : rich.console.Console
        Where progress goes: bars on a terminal, else lines.
    draw : bool
        Whether to draw figures.
    done : callable, optional
        Called with each outcome.

    Returns
    -------
    list of Outcome
        One per method started; the last one's status is "interrupted" after Ctrl-C.
    """
    watch: Watch = Bars(console, methods) if console.is_terminal else Lines(console)
    outcomes: list[Outcome] = []
    with _quiet(), watch:
        for method in methods:
            outcome = run_demo(method, watch.start(method), draw=draw)
            watch.stop(outcome)
            outcomes.append(outcome)
            if done is not None:
                done(outcome)
            if outcome.status == "interrupted":
                break
    return outcomes
