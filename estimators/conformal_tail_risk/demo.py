"""Amazon reviews: a threshold on a machine's score, so that human raters find the worst quarter mild."""

from typing import Any

import numpy as np

from seedbed.demos import Demo, DemoFigure, Report
from seedbed.estimators.conformal_tail_risk.controller import ConformalTailRiskController
from seedbed.estimators.conformal_tail_risk.display import TailRiskDisplay

ALPHA, DELTA, PROMPTS, RUNS = 0.25, 0.1, 500, 40
BOUNDS = {
    "none (estimate)": "plug_in",
    "L-statistic": "l_statistic",
    "Berk-Jones": "berk_jones",
    "DKW": "dkw",
}


def run(report: Report) -> Demo:
    """Choose thresholds on VADER's score so that human raters find the worst quarter of reviews mild enough.

    Parameters
    ----------
    report : callable
        Told the share done and what is being done.

    Returns
    -------
    Demo
        Table and figure.
    """
    from seedbed.datasets import load_vader_ratings

    data = load_vader_ratings("amazon")
    machine, human = tables(data)
    rng = np.random.default_rng(0)
    found: dict[str, list[tuple[bool, float, float, float]]] = {name: [] for name in BOUNDS}
    example: Any = None
    for run_ in range(RUNS):
        report(run_ / RUNS, f"Amazon reviews, calibration set {run_ + 1} of {RUNS}")
        rows = rng.integers(0, len(machine), PROMPTS)
        for name, bound in BOUNDS.items():
            model = ConformalTailRiskController(alpha=ALPHA, delta=DELTA, bound=bound)
            model.fit(machine[rows], human[rows])
            told = model.evaluate(machine, human)
            found[name].append(
                (told["risk"] > ALPHA, told["risk"], told["abstention_rate"], told["expected_samples"])
            )
            if name == "L-statistic" and example is None:
                example = model
    report(1.0, "Amazon reviews")
    rows_of_table: list[dict[str, str | float | int]] = []
    for name, runs in found.items():
        broken, risk, abstention, samples = np.array(runs, dtype=float).mean(axis=0)
        rows_of_table.append(
            {
                "bound": name,
                "risk above 0.25": f"{broken:.0%}",
                "risk": round(float(risk), 3),
                "reviews without an answer": f"{abstention:.0%}",
                "snippets read until one is shown": round(float(samples), 2),
            }
        )
    curve, threshold = example.curve(), example.lambda_

    def draw(figure: Any) -> None:
        TailRiskDisplay(curve=curve, alpha=ALPHA, threshold=threshold).plot(ax=figure.subplots())

    none, ours = (
        np.mean([broken for broken, *_ in found[name]]) for name in ("none (estimate)", "L-statistic")
    )
    return Demo(
        headline=(
            f"A threshold set by the estimate breaks its promise in {none:.0%} of calibration sets, one set "
            f"by the bound in {ours:.0%} (allowed: 10 %)."
        ),
        data="3,708 snippets of 300 Amazon reviews, each rated by 20 people (Hutto and Gilbert, 2014)",
        rows=rows_of_table,
        figures=(
            DemoFigure(
                "Risk, its bound, and what it costs",
                "Mean human disapproval of the worst quarter of reviews by threshold on VADER's score, "
                "its upper bound, and the share of reviews of which no snippet is acceptable.",
                draw,
            ),
        ),
    )


def tables(data: Any) -> tuple[Any, Any]:
    """Bring a corpus into tables of one row per group.

    Parameters
    ----------
    data : Bunch
        From :func:`~seedbed.datasets.load_vader_ratings`.

    Returns
    -------
    (ndarray, ndarray)
        Machine scores ``(1 - compound) / 2``, NaN where there is no snippet, and human losses,
        ``-rating / 4`` cut to [0, 1].
    """
    _, prompt = np.unique(data.group, return_inverse=True)
    counts = np.bincount(prompt)
    order = np.argsort(prompt, kind="stable")
    place = np.arange(len(prompt)) - np.repeat(np.cumsum(counts) - counts, counts)
    machine = np.full((len(counts), counts.max()), np.nan)
    human = machine.copy()
    machine[prompt[order], place] = (1 - data.score[order]) / 2
    human[prompt[order], place] = np.clip(-data.rating[order] / 4, 0, 1)
    return machine, human
