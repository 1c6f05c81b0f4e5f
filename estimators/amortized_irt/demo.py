"""Classifiers on digits: ranks from different images; how many questions an adaptive test needs."""

from typing import Any

import numpy as np

from seedbed.demos import Demo, DemoFigure, Report
from seedbed.estimators.amortized_irt.adaptive import AdaptiveTest
from seedbed.estimators.amortized_irt.amortized import AmortizedIRT
from seedbed.estimators.amortized_irt.models import RaschModel

ASKED, ROUNDS = 100, 40


def run(report: Report) -> Demo:
    """Rank classifiers that answered different images, predict difficulties, and test adaptively.

    Parameters
    ----------
    report : callable
        Told the share done and what is being done.

    Returns
    -------
    Demo
        Table and figures.
    """
    from seedbed.datasets import load_classifier_responses

    table = load_classifier_responses()
    X, features = table.data, table.item_features
    rng = np.random.default_rng(0)
    takers, items = rng.permutation(len(X)), rng.permutation(X.shape[1])
    bank, ranked = X[takers[:74]], X[takers[74:]]
    report(0.1, "calibrating 1,797 images on 74 classifiers")
    rasch = RaschModel().fit(bank)
    report(0.3, "predicting the difficulty of 397 images from their features")
    known, new = items[:1400], items[1400:]
    amortized = AmortizedIRT(l2=1.0).fit(bank[:, known], item_features=features[known])
    predicted = amortized.predict_difficulty(features[new])[0]
    correlation = float(np.corrcoef(predicted, rasch.difficulty_[new])[0, 1])

    order = np.argsort(rasch.difficulty_)
    thirds = np.array_split(order, 3)
    truth = ranked.mean(axis=1)
    wrong = {"average": 0, "ability (Rasch)": 0}
    pairs = 0
    for turn in range(ROUNDS):
        report(0.4 + 0.4 * turn / ROUNDS, f"round {turn + 1} of {ROUNDS}: {ASKED} images each")
        easy, hard = rng.choice(thirds[0], ASKED, replace=False), rng.choice(thirds[2], ASKED, replace=False)
        scores = {
            "average": (ranked[:, easy].mean(axis=1), ranked[:, hard].mean(axis=1)),
            "ability (Rasch)": (_abilities(rasch, ranked, easy), _abilities(rasch, ranked, hard)),
        }
        a, b = rng.permutation(len(ranked))[:36], rng.permutation(len(ranked))[:36]
        told = np.abs(truth[a] - truth[b]) > 0.01
        pairs += int(told.sum())
        for name, (on_easy, on_hard) in scores.items():
            wrong[name] += int((((on_easy[a] > on_hard[b]) != (truth[a] > truth[b])) & told).sum())
    errors = {name: count / pairs for name, count in wrong.items()}

    report(0.85, "adaptive and random tests of 74 classifiers")
    curves: dict[str, Any] = {}
    needed: dict[str, float] = {}
    for selection in ("mfi", "random"):
        test = AdaptiveTest(rasch, selection=selection, se_target=0.3, random_state=0)
        found = test.simulate(ranked)
        needed[selection] = float(found.n_items.mean())
        curves[selection] = found.n_items
    report(1.0, "done")

    rows: list[dict[str, str | float | int]] = [
        {
            "score": name,
            "pairs in the wrong order": f"{share:.0%}",
            "first of a pair answered": f"{ASKED} of the easiest third",
            "second answered": f"{ASKED} of the hardest third",
        }
        for name, share in errors.items()
    ]

    def compare(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for axis, (name, (on_easy, on_hard)) in zip((left, right), scores.items(), strict=True):
            axis.scatter(truth, on_easy, s=12, color="C0", label="on easy images")
            axis.scatter(truth, on_hard, s=12, color="C1", label="on hard images")
            axis.set(xlabel="Average of all images", ylabel=name[0].upper() + name[1:])
        left.legend()

    def lengths(figure: Any) -> None:
        ax = figure.subplots()
        edges = np.linspace(0, max(c.max() for c in curves.values()), 40)
        for i, (name, label) in enumerate((("mfi", "adaptive"), ("random", "random order"))):
            ax.hist(curves[name], bins=edges, alpha=0.6, color=f"C{i}", label=label)
        ax.set(xlabel="Images until the standard error is 0.3", ylabel="Classifiers")
        ax.legend()

    return Demo(
        headline=(
            f"Scored on different images, {errors['average']:.0%} of the pairs of classifiers are in the "
            f"wrong order by average and {errors['ability (Rasch)']:.0%} by ability; an adaptive test needs "
            f"{needed['mfi']:.0f} images where random order needs {needed['random']:.0f}; predicted and "
            f"calibrated difficulty of new images correlate at {correlation:.2f}."
        ),
        data="148 classifiers (scikit-learn) on its 1,797 digits; half calibrate, half are ranked",
        rows=rows,
        figures=(
            DemoFigure(
                "Averages rank the questions, abilities the takers",
                f"Each point is a classifier, scored on {ASKED} easy and on {ASKED} hard images.",
                compare,
            ),
            DemoFigure(
                "Asking what tells most",
                "Images that each classifier had to answer until its ability was known to 0.3 logits.",
                lengths,
            ),
        ),
    )


def _abilities(model: RaschModel, X: Any, items: Any) -> Any:
    """Abilities from some items alone."""
    seen = np.full(X.shape, np.nan)
    seen[:, items] = X[:, items]
    return model.transform(seen)[:, 0]
