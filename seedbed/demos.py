"""What a method's demo returns.

Each method has a module ``<its module>.demo`` with ``run(report) -> Demo``: the method on real data in under
20 seconds. The command line runs it and renders the result; a demo prints and plots nothing itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Report = Callable[[float, str], None]
"""Called by a demo with the share done in [0, 1] and what it is doing."""


@dataclass(frozen=True)
class DemoFigure:
    """One figure of a demo.

    Attributes
    ----------
    title : str
        What the figure shows, as a headline.
    caption : str
        How to read it, one or two sentences.
    draw : callable
        ``draw(figure)`` fills an empty :class:`matplotlib.figure.Figure`. It is called once for the light
        and once for the dark report, so it takes its colours from the style's cycle and hard-codes none.
    """

    title: str
    caption: str
    draw: Callable[[Any], None]


@dataclass(frozen=True)
class Demo:
    """Result of a method's demo.

    Attributes
    ----------
    headline : str
        One sentence with the main number in it.
    data : str
        The data it ran on.
    rows : sequence of mapping
        Table rows, all with the same keys: column title -> str, int or float.
    figures : sequence of DemoFigure
        Figures for the report.
    """

    headline: str
    data: str
    rows: Sequence[Mapping[str, str | float | int]]
    figures: Sequence[DemoFigure] = field(default_factory=tuple)
