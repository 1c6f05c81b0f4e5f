"""CoJER: who keeps the promise for the batch, at what width, and how fast.

``python -m benchmarks cojer`` runs the claims on simulated data, diamonds and abalone. ``--size full`` adds
more splits, and the 17 OpenML tasks with the paper's settings; those alone, with other settings, are
``python -m benchmarks.cojer --splits 30 --models rf lasso mlp svr knn --n-jobs -1`` (hours; needs the
internet once).
"""

import argparse
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from crepes import WrapRegressor
from joblib import Parallel, delayed
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Lasso, LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from benchmarks.harness import Row, say, speed_row, time_pair, write
from seedbed.datasets import fetch_openml_regression, load_abalone, load_diamonds, make_fcp_regression
from seedbed.datasets.openml import OPENML_REGRESSION
from seedbed.estimators import (
    CoJERRegressor,
    cojer_confidence_level,
    cojer_level,
    cojer_thresholds,
    dkw_fcp_level,
    false_coverage_proportion,
    fcp_exceedance_probability,
)
from seedbed.estimators.cojer.calibrated import Calibrated
from seedbed.estimators.cojer.competitors import scp_level
from seedbed.estimators.cojer.laws import sample_ranks
from seedbed.estimators.cojer.thresholds import _cached as calibration_cache

PACKAGES = ("mapie", "crepes", "plotnine", "scikit-lego")

N, M, ALPHA, DELTA = 1000, 500, 0.1, 0.2
BOUNDS = {"split conformal": "marginal", "CoJER": "cojer", "DKW": "dkw"}

MODELS: dict[str, Callable[[], Any]] = {
    "ridge": lambda: make_pipeline(StandardScaler(), Ridge()),
    "kNN": lambda: make_pipeline(StandardScaler(), KNeighborsRegressor(10)),
    "boosting": lambda: HistGradientBoostingRegressor(max_iter=60, random_state=0),
}

PAPER_MODELS: dict[str, Callable[[], Any]] = {
    "rf": lambda: RandomForestRegressor(100, random_state=0),
    "lasso": lambda: make_pipeline(StandardScaler(), Lasso(0.01)),
    "mlp": lambda: make_pipeline(StandardScaler(), MLPRegressor(max_iter=500, random_state=0)),
    "svr": lambda: make_pipeline(StandardScaler(), SVR()),
    "knn": lambda: make_pipeline(StandardScaler(), KNeighborsRegressor()),
}


def run(size: str) -> list[Row]:
    """All rows; ``full`` has 200 instead of 40 splits and adds OpenML."""
    full = size == "full"
    rows = simulated(20000 if full else 3000)
    for name, (X, y), train in real_data():
        for model in MODELS:
            rows += on_real_data(name, X, y, train, model, splits=200 if full else 40)
    rows += aggregated_simulation(2000 if full else 600)
    rows += aggregated_real(splits=20 if full else 8)
    rows += speed() + peers(splits=200 if full else 40)
    if full:
        rows += openml([task.name for task in OPENML_REGRESSION], list(PAPER_MODELS), splits=30, n_jobs=-1)
    return rows


def real_data() -> list[tuple[str, tuple[Any, Any], int]]:
    """Name, rows and number of training rows."""
    X, price = load_diamonds(return_X_y=True)
    return [("diamonds", (X, np.log(price)), 2000), ("abalone", load_abalone(return_X_y=True), 1500)]


def exceeds(fcp: Any) -> bool:
    """Whether a batch has more misses than alpha allows."""
    return bool(fcp > ALPHA + 1e-9)


def standard_error(p: float, repeats: int) -> float:
    """Of a share."""
    return math.sqrt(p * (1 - p) / repeats)


def agreement(name: str, share: float, exact: float, draws: int) -> Row:
    """A simulated probability beside its exact value."""
    error = standard_error(exact, draws)
    return Row(
        name=name,
        kind="claim",
        value=abs(share - exact) / error,
        unit="standard errors from the exact value",
        better="lower",
        target=4.0,
        repeats=draws,
        note=f"simulated {share:.4f}, exact {exact:.5f}",
    )


# -- simulation --------------------------------------------------------------------------------------------


def simulated(draws: int) -> list[Row]:
    """Violations and half-widths with t5 noise; probability of the joint guarantee from ranks."""
    levels = {
        "split conformal": scp_level(N, ALPHA),
        "pointwise": cojer_level(N, M, ALPHA, DELTA, simultaneous=False),
        "CoJER": cojer_level(N, M, ALPHA, DELTA),
        "DKW": dkw_fcp_level(N, M, ALPHA, DELTA),
    }
    half: dict[str, list[float]] = {name: [] for name in levels}
    broken = dict.fromkeys(levels, 0)
    for draw in range(draws):
        problem = make_fcp_regression(200, N, M, random_state=draw)
        model = LinearRegression().fit(problem.X_train, problem.y_train)
        scores = np.sort(np.abs(problem.y_cal - model.predict(problem.X_cal)))
        errors = np.abs(problem.y_test - model.predict(problem.X_test))
        for name, level in levels.items():
            cut = float(scores[N - level])
            half[name].append(cut)
            broken[name] += exceeds(np.mean(errors > cut))
    rows = [
        agreement(
            f"P(FCP > alpha), simulated t5 noise: {name}",
            broken[name] / draws,
            fcp_exceedance_probability(N, M, level, ALPHA),
            draws,
        )
        for name, level in levels.items()
        if name != "DKW"  # too small to be seen
    ]
    ranks = sample_ranks(N, M, draws, np.random.default_rng(0))
    g = cojer_thresholds(N, M, DELTA)
    share = float(np.mean(np.any(1 + ranks[:, : len(g)] < g, axis=1)))
    rows.append(agreement("P(some alpha is exceeded), simulated: CoJER", share, 0.19994, draws))
    width = {name: statistics.fmean(values) for name, values in half.items()}
    rows += [
        Row(
            name=f"half-width, simulated t5 noise: CoJER beside {name}",
            kind="claim",
            value=width["CoJER"],
            unit="y",
            better="lower",
            peer=name,
            peer_value=width[name],
            target=0.9 * width["DKW"] if name == "DKW" else None,
            repeats=draws,
            note=f"split conformal {width['split conformal']:.4f}",
        )
        for name in ("DKW", "pointwise")
    ]
    return rows


# -- real data ---------------------------------------------------------------------------------------------


def split(rows: int, sizes: Sequence[int], seed: int) -> list[Any]:
    """Disjoint random parts."""
    order = np.random.default_rng(seed).permutation(rows)
    return np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])


def one_split(
    X: Any, y: Any, train: int, make: Callable[[], Any], seed: int
) -> dict[str, tuple[float, float]]:
    """FCP and mean length of each bound."""
    fit, cal, test = split(len(y), (train, N, M), seed)
    model = CoJERRegressor(make(), alpha=ALPHA, delta=DELTA)
    model.fit(X[fit], y[fit], X_calibration=X[cal], y_calibration=y[cal])
    found = {name: model.predict_interval(X[test], bound=bound)[1] for name, bound in BOUNDS.items()}
    model.set_params(simultaneous=False)
    found["pointwise"] = model.conformalize(X[cal], y[cal]).predict_interval(X[test])[1]
    return {
        name: (float(false_coverage_proportion(y[test], ends)[0]), float(np.mean(ends[:, 1] - ends[:, 0])))
        for name, ends in found.items()
    }


def on_real_data(name: str, X: Any, y: Any, train: int, model: str, *, splits: int) -> list[Row]:
    """Violation shares and lengths over random splits."""
    found = [one_split(X, y, train, MODELS[model], seed) for seed in range(splits)]
    share = {bound: statistics.fmean(exceeds(one[bound][0]) for one in found) for bound in found[0]}
    length = {bound: statistics.fmean(one[bound][1] for one in found) for bound in found[0]}
    where = f"{name}, {model}"
    return [
        Row(
            name=f"share of splits with FCP > alpha, {where}: split conformal fails",
            kind="claim",
            value=share["split conformal"],
            unit="share",
            better="higher",
            target=0.3,
            repeats=splits,
            spread=standard_error(share["split conformal"], splits),
        ),
        Row(
            name=f"share of splits with FCP > alpha, {where}: CoJER",
            kind="claim",
            value=share["CoJER"],
            unit="share",
            better="lower",
            peer="split conformal",
            peer_value=share["split conformal"],
            target=DELTA,
            repeats=splits,
            spread=standard_error(share["CoJER"], splits),
            note=f"pointwise {share['pointwise']:.3f}, DKW {share['DKW']:.3f}",
        ),
        Row(
            name=f"mean length, {where}: CoJER beside DKW",
            kind="claim",
            value=length["CoJER"] / length["split conformal"],
            unit="times split conformal",
            better="lower",
            peer="DKW",
            peer_value=length["DKW"] / length["split conformal"],
            target=0.9 * length["DKW"] / length["split conformal"],
            repeats=splits,
            note=f"pointwise {length['pointwise'] / length['split conformal']:.3f}",
        ),
        Row(
            name=f"mean length, {where}: CoJER beside split conformal",
            kind="claim",
            value=length["CoJER"] / length["split conformal"],
            unit="times split conformal",
            better="lower",
            target=1.25,
            repeats=splits,
        ),
    ]


# -- several models ----------------------------------------------------------------------------------------


def aggregated_simulation(runs: int) -> list[Row]:
    """Harmonic aggregate of five models with partly shared errors: violations under each null."""
    n, m, alpha, delta = 300, 100, ALPHA, 0.1
    nulls = ("split", "independent", "single")
    broken = {(null, together): 0 for null in nulls for together in (True, False)}
    broken_bonferroni = 0
    rng = np.random.default_rng(0)
    for _ in range(runs):
        common = rng.normal(size=(n + m, 1))
        scores = np.abs(common + np.linspace(0.3, 1.5, 5) * rng.normal(size=(n + m, 5))).T
        for null, together in broken:
            rule = Calibrated(
                scores[:, :n], alpha, "quantile", "exact", 2000, None, together, "harmonic", null, 0.3, 7
            )
            ((k, family),) = rule.families(m, np.array([alpha]), delta)
            p = p_values(rule.ranked, scores[:, n:])
            missed = np.mean(rule.aggregate(p) < rule.cut(family, k).t * (1 - 1e-12))
            broken[null, together] += exceeds(missed)
        level = scp_level(n, alpha / 5)
        own = p_values(np.sort(scores[:, :n], axis=1), scores[:, n:])
        broken_bonferroni += exceeds(np.mean(np.any(own * (n + 1) <= level + 0.5, axis=0)))
    return [
        Row(
            name=f"share of batches with FCP > alpha, five models of dependent errors: {null} null, {how}",
            kind="claim",
            value=broken[null, together] / runs,
            unit="share",
            better="lower",
            peer="Bonferroni over models",
            peer_value=broken_bonferroni / runs,
            target=delta + 3 * standard_error(delta, runs),
            repeats=runs,
            note="delta = 0.1 and three standard errors"
            + (
                "; the paper's threshold, of which nothing is promised for one alpha"
                if null == "single"
                else ""
            ),
        )
        for together, how in ((True, "all alpha"), (False, "one alpha"))
        for null in nulls
    ]


def p_values(ranked: Any, scores: Any) -> Any:
    """Conformal p-values (n_models, m)."""
    n = ranked.shape[1]
    return np.stack(
        [(1 + n - np.searchsorted(own, s)) / (n + 1) for own, s in zip(ranked, scores, strict=True)]
    )


def aggregated_real(splits: int) -> list[Row]:
    """Five models of the paper's kinds on diamonds: length and violations."""
    X, price = load_diamonds(return_X_y=True)
    y = np.log(price)
    models = {
        "rf": RandomForestRegressor(30, random_state=0),
        "lasso": make_pipeline(StandardScaler(), Lasso(0.01)),
        "mlp": make_pipeline(
            StandardScaler(), MLPRegressor(hidden_layer_sizes=(50,), max_iter=60, random_state=0)
        ),
        "svr": make_pipeline(StandardScaler(), SVR()),
        "knn": make_pipeline(StandardScaler(), KNeighborsRegressor()),
    }
    m, delta = 100, 0.2
    lengths: dict[str, list[float]] = {}
    broken: dict[str, int] = {}
    for seed in range(splits):
        fit, cal, test = split(len(y), (1000, N, m), seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the network stops early
            fitted = [(name, clone(model).fit(X[fit], y[fit])) for name, model in models.items()]
        found = {}
        for null in ("independent", "single", "split"):
            model = CoJERRegressor(
                fitted, alpha=ALPHA, delta=delta, prefit=True, aggregation_null=null, random_state=0
            )
            model.conformalize(X[cal], y[cal])
            found[f"{null} null"] = model.predict_interval(X[test])[1]
            if null == "single":
                for bound in ("bonferroni", "cv_plus_like"):
                    found[bound] = model.predict_interval(X[test], bound=bound)[1]
        singles = [
            CoJERRegressor(one, alpha=ALPHA, delta=delta, prefit=True)
            .conformalize(X[cal], y[cal])
            .predict_interval(X[test])[1]
            for _, one in fitted
        ]
        widths = [float(np.mean(ends[:, 1] - ends[:, 0])) for ends in singles]
        found["best single model"] = singles[int(np.argmin(widths))]
        found["median single model"] = singles[int(np.argsort(widths)[2])]
        for name, ends in found.items():
            lengths.setdefault(name, []).append(float(np.mean(ends[:, 1] - ends[:, 0])))
            missed = float(false_coverage_proportion(y[test], ends)[0])
            broken[name] = broken.get(name, 0) + exceeds(missed)
    mean = {name: statistics.fmean(values) for name, values in lengths.items()}
    others = ", ".join(f"{name} {mean[name]:.4f} ({broken[name]} of {splits} exceed alpha)" for name in mean)
    return [
        Row(
            name=f"mean length, diamonds, five models: harmonic aggregate, {null} null",
            kind="claim",
            value=mean[f"{null} null"],
            unit="log price",
            better="lower",
            peer="median single model",
            peer_value=mean["median single model"],
            target=mean["median single model"],
            repeats=splits,
            note=others if null == "independent" else "",
        )
        for null in ("independent", "single", "split")
    ]


# -- speed -------------------------------------------------------------------------------------------------


def grid_loop(models: Sequence[Any], scores: Any, X: Any, grid: Any, threshold: float) -> Any:
    """Intervals from a grid, as in the paper's experiments: one prediction a point, model and grid value."""
    n = scores.shape[1]
    ends = np.empty((len(X), 2))
    for j, x in enumerate(X):
        kept = []
        for y in grid:
            inverse = 0.0
            for model, own in zip(models, scores, strict=True):
                score = abs(y - model.predict(x[None, :]).item())
                inverse += (n + 1) / (1 + np.sum(own >= score))
            if len(models) / inverse >= threshold:
                kept.append(y)
        ends[j] = (kept[0], kept[-1]) if kept else (grid[0], grid[-1])
    return ends


def bisection_over_diagonals(n: int, m: int, delta: float, size: int) -> Any:
    """Calibration in the plain way: 40 halvings of lambda, the recursion by anti-diagonals."""
    from scipy.stats import betabinom

    cdf = np.stack([np.cumsum(betabinom(n, k, m + 1 - k).pmf(np.arange(n + 1))) for k in range(1, size + 1)])

    def error(g: Any) -> float:
        needed = np.append(g - 1, 0)
        alive = np.zeros(size + 1)
        alive[0] = 1.0
        done = 0.0
        j = np.arange(size + 1)
        for d in range(n + size):
            i, rest = d - j, n + m - d
            up = np.where(i >= needed, alive * (m - j) / rest, 0.0)
            alive = alive * np.maximum(n - i, 0) / rest
            alive[1:] += up[:-1]
            done += alive[size]
            alive[size] = 0.0
        return 1 - done

    low, high = 0.0, 1.0
    best = np.ones(size, dtype=int)
    for _ in range(40):
        middle = (low + high) / 2
        g = 1 + np.sum(cdf < middle, axis=1)
        if error(g) <= delta:
            low, best = middle, g
        else:
            high = middle
    return best


def speed() -> list[Row]:
    """Aggregated intervals beside the loop; calibration cold and cached."""
    X, price = load_diamonds(return_X_y=True)
    y = np.log(price)
    fit, cal, test = split(len(y), (1000, N, 40), 0)
    models = [
        (name, PAPER_MODELS[name]() if name != "mlp" else make_pipeline(StandardScaler(), Ridge()))
        for name in PAPER_MODELS
    ]
    model = CoJERRegressor(
        [(name, one.fit(X[fit], y[fit])) for name, one in models],
        alpha=ALPHA,
        delta=DELTA,
        prefit=True,
        aggregation_null="single",
        n_test=M,
    ).conformalize(X[cal], y[cal])
    grid = np.linspace(y[cal].min(), y[cal].max(), 50)
    exact = model.predict_interval(X[test])[1][:, :, 0]
    threshold = float(model.levels_[M]["t"][50])
    loop = partial(grid_loop, model.estimators_, model.conformity_scores_, X[test], grid, threshold)
    coarse = loop()
    rows = [
        Row(
            name="grid values outside of the exact aggregated interval",
            kind="claim",
            value=float(np.mean((coarse[:, 0] < exact[:, 0]) | (coarse[:, 1] > exact[:, 1]))),
            unit="share of points",
            better="lower",
            target=0.0,
            repeats=len(test),
        ),
        speed_row(
            "aggregated intervals, 40 points, 5 models: exact, beside 50 grid values",
            time_pair(lambda: model.predict_interval(X[test]), loop, repeats=2, warmup=0),
            peer="loop over points, grid values and models",
            target=200,
            note="both include the models' predictions",
        ),
    ]

    def cold() -> Any:
        calibration_cache.cache_clear()
        return cojer_thresholds(N, M, DELTA)

    if not np.array_equal(cold(), bisection_over_diagonals(N, M, DELTA, M // 2)):
        raise AssertionError("the two calibrations differ")
    rows.append(
        speed_row(
            "calibration, n = 1000, m = 500, cold",
            time_pair(cold, partial(bisection_over_diagonals, N, M, DELTA, M // 2), repeats=5),
            peer="40 halvings over anti-diagonals, NumPy",
            target=5,
            note="same thresholds",
        )
    )
    cold()
    start = time.perf_counter()
    for _ in range(1000):
        cojer_thresholds(N, M, DELTA)
    rows.append(
        Row(
            name="calibration, n = 1000, m = 500, cached",
            kind="speed",
            value=(time.perf_counter() - start) / 1000,
            unit="s",
            better="lower",
            target=1e-3,
            repeats=1000,
        )
    )
    return rows


# -- other libraries ---------------------------------------------------------------------------------------


def peers(splits: int) -> list[Row]:
    """MAPIE and crepes on the same fitted model and rows."""
    X, y = load_abalone(return_X_y=True)
    fit, cal, test = split(len(y), (1500, N, M), 0)
    ridge = MODELS["ridge"]().fit(X[fit], y[fit])

    def ours() -> Any:
        model = CoJERRegressor(ridge, alpha=ALPHA, delta=DELTA, prefit=True)
        return model.conformalize(X[cal], y[cal]).predict_interval(X[test])[1]

    def mapie(level: float = 1 - ALPHA) -> Any:
        model = SplitConformalRegressor(ridge, confidence_level=level, prefit=True)
        return model.conformalize(X[cal], y[cal]).predict_interval(X[test])[1]

    def crepes() -> Any:
        model = WrapRegressor(ridge)
        model.calibrate(X[cal], y[cal])
        return model.predict_int(X[test], confidence=1 - ALPHA)

    same = mapie(cojer_confidence_level(N, M, ALPHA, DELTA))
    rows = [
        Row(
            name="largest difference to MAPIE at cojer_confidence_level",
            kind="claim",
            value=float(np.max(np.abs(ours() - same))),
            unit="y",
            better="lower",
            target=1e-12,
        ),
        speed_row(
            "conformalize and predict 500 intervals, ridge",
            time_pair(ours, mapie, repeats=15, warmup=2),
            peer="MAPIE SplitConformalRegressor",
            note="thresholds cached, as for every batch but the first of a size",
        ),
        speed_row(
            "conformalize and predict 500 intervals, ridge, beside crepes",
            time_pair(ours, crepes, repeats=15, warmup=2),
            peer="crepes WrapRegressor",
        ),
    ]
    broken = dict.fromkeys(("CoJER", "MAPIE split", "MAPIE cross (CV+)", "crepes"), 0)
    for seed in range(splits):
        fit, cal, test = split(len(y), (1500, N, M), seed)
        ridge = MODELS["ridge"]().fit(X[fit], y[fit])
        both = np.concatenate([fit, cal])
        cross = CrossConformalRegressor(MODELS["ridge"](), confidence_level=1 - ALPHA, random_state=seed)
        found = {
            "CoJER": ours()[:, :, 0],
            "MAPIE split": mapie()[:, :, 0],
            "MAPIE cross (CV+)": cross.fit_conformalize(X[both], y[both]).predict_interval(X[test])[1][
                :, :, 0
            ],
            "crepes": crepes(),
        }
        for name, ends in found.items():
            broken[name] += exceeds(false_coverage_proportion(y[test], ends))
    rows += [
        Row(
            name=f"share of splits with FCP > alpha, abalone, ridge: CoJER beside {name}",
            kind="claim",
            value=broken["CoJER"] / splits,
            unit="share",
            better="lower",
            peer=name,
            peer_value=broken[name] / splits,
            target=DELTA,
            repeats=splits,
        )
        for name in broken
        if name != "CoJER"
    ]
    return rows


# -- the paper's tasks -------------------------------------------------------------------------------------


def openml_split(X: Any, y: Any, model: str, seed: int) -> dict[str, tuple[float, float]]:
    """A third of the rows for testing (500 of them are the batch), a third of the rest for calibration."""
    rows = min(len(y), 20000)  # support vector machines do not take more
    test = rows // 3
    cal = (rows - test) // 3
    fit_rows, cal_rows, test_rows = split(len(y), (rows - test - cal, cal, test), seed)
    estimator = TransformedTargetRegressor(PAPER_MODELS[model](), transformer=StandardScaler())
    fitted = CoJERRegressor(estimator, alpha=ALPHA, delta=DELTA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # networks that stop early
        fitted.fit(X[fit_rows], y[fit_rows], X_calibration=X[cal_rows], y_calibration=y[cal_rows])
    batch = test_rows[:M]
    return {
        name: (float(false_coverage_proportion(y[batch], ends)[0]), float(np.mean(ends[:, 1] - ends[:, 0])))
        for name, bound in BOUNDS.items()
        for ends in (fitted.predict_interval(X[batch], bound=bound)[1],)
    }


def openml(tasks: Sequence[str], models: Sequence[str], *, splits: int, n_jobs: int) -> list[Row]:
    """Violations and lengths on OpenML's tasks, all splits and models in parallel."""
    rows = []
    for task in tasks:
        X, y = fetch_openml_regression(task, return_X_y=True)
        jobs = [(model, seed) for model in models for seed in range(splits)]
        found = Parallel(n_jobs=n_jobs)(delayed(openml_split)(X, y, model, seed) for model, seed in jobs)
        for model in models:
            own = [one for one, (name, _) in zip(found, jobs, strict=True) if name == model]
            share = {b: statistics.fmean(exceeds(one[b][0]) for one in own) for b in BOUNDS}
            length = {b: statistics.fmean(one[b][1] for one in own) for b in BOUNDS}
            where = f"{task}, {model}"
            rows += [
                Row(
                    name=f"share of splits with FCP > alpha, OpenML {where}: CoJER",
                    kind="claim",
                    value=share["CoJER"],
                    unit="share",
                    better="lower",
                    peer="split conformal",
                    peer_value=share["split conformal"],
                    target=DELTA,
                    repeats=splits,
                ),
                Row(
                    name=f"mean length, OpenML {where}: CoJER beside DKW",
                    kind="claim",
                    value=length["CoJER"] / length["split conformal"],
                    unit="times split conformal",
                    better="lower",
                    peer="DKW",
                    peer_value=length["DKW"] / length["split conformal"],
                    target=length["DKW"] / length["split conformal"],
                    repeats=splits,
                ),
            ]
    return rows


def main() -> int:
    """Run the paper's tasks alone; returns the exit code."""
    names = [task.name for task in OPENML_REGRESSION]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cojer", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=names, default=names, metavar="TASK")
    parser.add_argument("--models", nargs="+", choices=list(PAPER_MODELS), default=list(PAPER_MODELS))
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--n-jobs", type=int, default=1)
    arguments = parser.parse_args()
    start = time.perf_counter()
    rows = openml(arguments.tasks, arguments.models, splits=arguments.splits, n_jobs=arguments.n_jobs)
    for row in rows:
        say(
            f"{'ok  ' if row.holds else 'LOSS'} {row.name}: {row.value:.4g} "
            f"({row.peer}: {row.peer_value:.4g})"
        )
    write("cojer", "openml", rows, time.perf_counter() - start, PACKAGES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
