"""A progress bar for EM."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def reporter(verbose: int, max_iter: int) -> Iterator[Callable[[int, float], None] | None]:
    """Show iterations and the log-likelihood on a terminal.

    Parameters
    ----------
    verbose : int
        Nothing is shown at 0, nor where standard error is no terminal.
    max_iter : int
        Most iterations.

    Yields
    ------
    callable or None
        Takes the iteration and the log-likelihood.
    """
    if not verbose or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("EM", total=max_iter)

        def report(n_iter: int, value: float) -> None:
            bar.update(task, completed=n_iter, description=f"log-likelihood {value:.2f}")

        yield report
