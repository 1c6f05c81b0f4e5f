"""A progress bar for sessions that query an oracle."""

import sys
from types import TracebackType
from typing import Any, Self


class Progress:
    """Shows how far the weakest reported change is from being certain.

    Parameters
    ----------
    session : ChangePointBandit
        With ``verbose``; nothing is shown at 0 or where standard error is no terminal.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._session.verbose and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("queries", total=1.0)
            self._bar.start()
        return self

    def show(self) -> None:
        """Show where the session is."""
        if self._bar is not None and len(self._session.stopping_curve_):
            share = self._session.stopping_curve_[-1, 1] / self._session._engine.rules.log_odds
            self._bar.update(
                self._task,
                completed=min(max(share, 0.0), 1.0),
                description=f"{self._session.n_evals_} queries",
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
