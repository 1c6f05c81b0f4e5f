"""Odd digits that nobody labelled: ranking a population from positives of another one."""

from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

from seedbed.demos import Demo, DemoFigure, Report
from seedbed.estimators.pu_auc_covariate_shift.classifier import PUAUCClassifier
from seedbed.estimators.pu_auc_covariate_shift.display import PUAUCDisplay

SEEDS = 20
METHODS: dict[str, dict[str, Any]] = {
    "no correction": {"density_ratio": "none", "trade_off": 0.0},
    "target rows, no weights": {"density_ratio": "none", "trade_off": 1.0},
    "J1: weighted pairs": {"trade_off": 0.0},
    "J1 + J2 (default)": {},
    "J2: weighted positives": {"trade_off": 1.0},
}


def run(report: Report) -> Demo:
    """Rank digits 6 to 9 by oddness from odd digits that are mostly 1, 3 and 5.

    Parameters
    ----------
    report : callable
        Told the share done and what is being done.

    Returns
    -------
    Demo
        Table and figures.
    """
    from seedbed.datasets import make_pu_digits

    auc: dict[str, list[float]] = {name: [] for name in METHODS}
    for seed in range(SEEDS):
        report(seed / SEEDS, f"split {seed + 1} of {SEEDS}: 60 positives, 400 and 200 unlabeled digits")
        data = make_pu_digits(random_state=seed)
        for name, settings in METHODS.items():
            model = PUAUCClassifier(random_state=seed, **settings)
            model.fit(data.X, data.y, sample_domain=data.sample_domain)
            auc[name].append(float(roc_auc_score(data.y_test, model.decision_function(data.X_test))))
    data = make_pu_digits(random_state=0)
    shown = PUAUCClassifier(random_state=0).fit(data.X, data.y, sample_domain=data.sample_domain)
    report(1.0, "done")

    values = {name: np.array(found) for name, found in auc.items()}
    plain, corrected = values["no correction"], values["J1: weighted pairs"]
    table: list[dict[str, str | float | int]] = []
    for name, found in values.items():
        gain = found - plain
        error = float(student.ppf(0.975, SEEDS - 1) * gain.std(ddof=1) / np.sqrt(SEEDS))
        table.append(
            {
                "objective": name,
                "AUC on the target digits": f"{found.mean():.3f}",
                "gain": "" if found is plain else f"{gain.mean():+.3f} ± {error:.3f}",
                "splits won": "" if found is plain else f"{int((gain > 0).sum())} of {SEEDS}",
            }
        )

    def gains(figure: Any) -> None:
        ax = figure.subplots()
        for place, found in enumerate(values.values()):
            jitter = np.linspace(-0.15, 0.15, SEEDS)
            ax.plot(found, place + jitter, "o", alpha=0.5, markersize=4, color=f"C{place}")
            ax.plot([found.mean()] * 2, [place - 0.3, place + 0.3], color=f"C{place}", linewidth=2.5)
        ax.set_yticks(range(len(values)), list(values))
        ax.invert_yaxis()
        ax.set(xlabel="AUC on target digits, one dot per split")

    def scores(figure: Any) -> None:
        PUAUCDisplay.from_estimator(
            shown, data.X, data.y, sample_domain=data.sample_domain, ax=figure.subplots(1, 2)
        )

    return Demo(
        headline=(
            f"Weighting the pairs lifts the AUC on digits of another mix from {plain.mean():.3f} to "
            f"{corrected.mean():.3f}, without one negative label from either side."
        ),
        data="scikit-learn's digits: odd or even, mostly 0 to 5 in the source, 6 to 9 in the target",
        rows=table,
        figures=(
            DemoFigure(
                "Weighted pairs win; weighted positives alone do not",
                "Bars are means. J2 alone rewards telling source and target apart.",
                gains,
            ),
            DemoFigure(
                "What can be seen without negatives",
                "Left: scores of the samples. Right: the curve whose area compares models, and the cut.",
                scores,
            ),
        ),
    )
