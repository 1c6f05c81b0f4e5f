"""Change points under bandit feedback: errors, stopping times and their limit, peers, speed.

``python -m benchmarks change_point_bandit [--size full]``; full has more arms, more runs and smaller deltas.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ruptures

from benchmarks.harness import Row, speed_row, time_pair
from seedbed.datasets import load_nile_bandit
from seedbed.estimators import (
    ChangePointBandit,
    characteristic_time,
    noisy_binary_search,
    segment_means,
    sequential_halving,
    simulate_policy,
)
from seedbed.estimators.change_point_bandit.thresholds import Floats

PACKAGES = ("ruptures", "statsmodels")
DELTA = 0.05


def run(size: str) -> list[Row]:
    """All rows."""
    full = size == "full"
    return [
        *error_rows(10_000 if full else 2000),
        *limit_rows(400 if full else 100),
        *policy_rows((10, 20, 50, 100, 200) if full else (10, 20, 50), 1000 if full else 200),
        *ruptures_rows(300 if full else 100),
        nile_row(60 if full else 20),
        *speed_rows(),
    ]


def steps(levels: Any, length: int) -> Floats:
    """Levels of equal length."""
    return np.repeat(np.asarray(levels, dtype=float), length)


def _claim(name: str, value: float, unit: str, better: Any, **rest: Any) -> Row:
    return Row(name=name, kind="claim", value=value, unit=unit, better=better, **rest)


# --- errors


def error_rows(runs: int) -> Iterator[Row]:
    """A small jump, delta = .1: the certified rules, and two that lack what certifies."""
    instance, delta = steps([0, 0.4], 10), 0.1

    def lone(left: Any, right: Any, t: Any, n_arms: int, error: float) -> Any:  # noqa: ARG001
        return (1 + 2 / left) * (math.log(1 / error) + 0.5 * np.log1p(left / 2))

    limit = delta + 3 * math.sqrt(delta * (1 - delta) / runs)
    rules: dict[str, tuple[dict[str, Any], bool]] = {
        "paired mixture": ({}, True),
        "paired mixture, the paper's forced exploration": ({"forced_exploration": 1.0}, True),
        "pooled mixture": ({"statistic": "pooled"}, True),
        "Kaufmann and Koolen": ({"statistic": "pooled", "threshold": "kaufmann-koolen"}, True),
        "paired mixture without the union over boundaries": ({"threshold": lone}, False),
        "rule of thumb log((1 + log t) / delta)": ({"statistic": "pooled", "threshold": "heuristic"}, False),
    }
    for name, (settings, certified) in rules.items():
        bandit = ChangePointBandit(delta=delta, **settings)
        found = simulate_policy(instance, bandit, n_runs=runs, random_state=0)
        low, high = found.error_interval
        yield _claim(
            f"error rate at delta = 0.1, jump 0.4, 20 points: {name}",
            found.error_rate,
            "share",
            "lower",
            target=limit if certified else None,
            repeats=runs,
            note=f"95 % interval {low:.3f} to {high:.3f}; {found.mean_evals:.0f} queries on average"
            + ("" if certified else "; not certified"),
        )


def limit_rows(runs: int) -> Iterator[Row]:
    """Queries over T* log(1 / delta), which approaches one."""
    instances = {1: steps([0, 1], 5), 2: np.repeat([0.0, 1.0, 0.0], [3, 4, 3]), 3: steps([0, 1, 0, 1], 3)}
    for n, means in instances.items():
        for delta, target in ((1e-2, None), (1e-10, None), (1e-50, 1.2), (1e-300, 1.06)):
            few = max(runs // 5, 20) if n == 3 else runs
            bandit = ChangePointBandit(n, delta=delta)
            found = simulate_policy(means, bandit, n_runs=few, random_state=0)
            least = characteristic_time(means) * math.log(1 / delta)
            yield _claim(
                f"queries over T* log(1/delta), {n} change(s), delta = {delta:g}",
                found.mean_evals / least,
                "x",
                "lower",
                target=target,
                repeats=few,
                spread=float(found.n_evals.std() / least),
            )


# --- other rules


def policy_rows(sizes: tuple[int, ...], runs: int) -> Iterator[Row]:
    """Mean queries until a jump of one is certain at 95 %, by rule."""
    rules: dict[str, dict[str, Any]] = {
        "MCPI, forced exploration 1": {"forced_exploration": 1.0},
        "MCPI, forced exploration 0.1": {"forced_exploration": 0.1},
        "uniform": {"sampling": "uniform"},
        "elimination": {"sampling": "elimination"},
        "clusters without order": {"sampling": "cluster"},
    }
    for k in sizes:
        means = steps([0, 1], k // 2)
        ours = simulate_policy(means, n_runs=runs, random_state=0)
        for name, settings in rules.items():
            few = min(runs, 40) if name.startswith("clusters") else runs
            theirs = simulate_policy(means, ChangePointBandit(**settings), n_runs=few, random_state=0)
            target = None
            if name == "uniform" and k >= 20:
                target = theirs.mean_evals * (0.5 if k == 20 else 0.25)
            yield _claim(
                f"queries until certain, {k} points: MCPI beside {name}",
                ours.mean_evals,
                "queries",
                "lower",
                peer=name,
                peer_value=theirs.mean_evals,
                target=target,
                repeats=runs,
                note=f"errors {int(ours.wrong.sum())} of {runs}, peer {int(theirs.wrong.sum())} of {few}",
            )
        for name, row in _by_hand(means, ours.mean_evals, min(runs, 100)).items():
            yield _claim(
                f"queries until certain, {k} points: MCPI beside {name}",
                ours.mean_evals,
                "queries",
                "lower",
                peer=name,
                repeats=runs,
                **row,
            )


def _by_hand(means: Floats, budget: float, runs: int) -> dict[str, dict[str, Any]]:
    """Bisection, and sequential halving at our mean number of queries."""
    k, truth = len(means), len(means) // 2 - 1
    counts, right, halved, used = [], 0, 0, []
    rounds = math.ceil(math.log2(k - 1))
    for seed in range(runs):
        rng = np.random.default_rng(seed)

        def oracle(arms: Any, rng: Any = rng) -> Any:
            return means[arms] + rng.standard_normal(len(arms))

        found = noisy_binary_search(oracle, k)
        counts.append(found.n_evals)
        right += found.change_point == truth
        half = sequential_halving(oracle, k, max(round(budget), k * rounds))
        halved += half.change_point == truth
        used.append(half.n_evals)
    return {
        "noisy bisection": {
            "peer_value": float(np.mean(counts)),
            "note": f"peer right in {right} of {runs}; it knows that there is one change",
        },
        "sequential halving": {
            "peer_value": float(np.mean(used)),
            "note": f"peer right in {halved} of {runs}, and has no statement on its error",
        },
    }


def ruptures_rows(runs: int) -> Iterator[Row]:
    """The offline peer on uniform data, with as many queries as ours takes on average."""
    for k in (50, 100):
        means, truth = steps([0, 1], k // 2), k // 2 - 1
        ours = simulate_policy(means, n_runs=runs, random_state=0)
        each = max(round(ours.mean_evals / k), 1)
        right = 0
        for seed in range(runs):
            rng = np.random.default_rng(seed)
            signal = means + rng.standard_normal(k) / math.sqrt(each)
            fitted = ruptures.Dynp(model="l2", min_size=1, jump=1).fit(signal).predict(n_bkps=1)
            right += fitted[0] - 1 == truth
        exact = float((ours.change_points[:, 0] == truth).mean())
        yield _claim(
            f"right boundary, {k} points, equal queries: MCPI beside ruptures on uniform data",
            exact,
            "share",
            "higher",
            peer="ruptures Dynp (l2), no certificate",
            peer_value=right / runs,
            target=1 - DELTA,
            repeats=runs,
            note=f"{ours.mean_evals:.0f} queries on average, peer {each * k}",
        )


def nile_row(runs: int) -> Row:
    """The Nile's change, by replay of its residuals."""
    counts, right = [], 0
    for seed in range(runs):
        nile = load_nile_bandit(random_state=seed)
        model = ChangePointBandit(sigma=nile.sigma, forced_exploration=0.1).fit(nile)
        counts.append(model.n_evals_)
        right += model.change_points_.tolist() == nile.change_points.tolist()
    return _claim(
        "Nile, 100 years, residuals replayed: year of the change right",
        right / runs,
        "share",
        "higher",
        target=1 - DELTA,
        repeats=runs,
        note=f"{np.mean(counts):.0f} queries on average, forced exploration 0.1",
    )


# --- speed


def speed_rows() -> Iterator[Row]:
    """Seconds per ask and tell; the fit beside the peer's; a thousand runs at once."""
    cases: tuple[tuple[int, int, str, float | None], ...] = (
        (100, 1, "pairwise", 60e-6),
        (100, 1, "segmentation", 150e-6),
        (100, 3, "segmentation", 1e-3),
        (10_000, 1, "segmentation", None),
    )
    for k, n, estimator, target in cases:
        yield Row(
            name=f"one ask and one tell, {k} points, {n} change(s), {estimator}",
            kind="speed",
            value=_seconds_per_query(k, n, estimator),
            unit="s",
            better="lower",
            target=target,
            repeats=5,
        )
    rng = np.random.default_rng(0)
    for k, target in ((50, 20.0), (100, 20.0)):
        counts, sums = np.full(k, 3.0), 3.0 * (steps([0, 1], k // 2) + rng.standard_normal(k))
        means = sums / counts
        yield speed_row(
            f"least squares with two changes on {k} means",
            time_pair(
                lambda counts=counts, sums=sums: segment_means(counts, sums, 2),
                lambda means=means: (
                    ruptures.Dynp(model="l2", min_size=1, jump=1).fit(means).predict(n_bkps=2)
                ),
                repeats=25,
                warmup=2,
            ),
            peer="ruptures Dynp (l2)",
            target=target,
        )
    start = time.perf_counter()
    found = simulate_policy(steps([0, 0.3], 10), n_runs=1000, random_state=0)
    seconds = time.perf_counter() - start
    yield Row(
        name="simulation of 1000 runs over 20 points until all have stopped",
        kind="speed",
        value=seconds,
        unit="s",
        better="lower",
        target=20.0,
        repeats=1,
        note=f"{found.n_evals.sum():.3g} queries in all",
    )


def _seconds_per_query(k: int, n: int, estimator: str) -> float:
    rng = np.random.default_rng(0)
    means = steps(np.arange(n + 1) % 2, -(-k // (n + 1)))[:k]
    model = ChangePointBandit(n, estimator=estimator, delta=1e-300).start(np.arange(k))
    model.tell(np.arange(k), means + rng.standard_normal(k))
    noise, best = rng.standard_normal(5000), math.inf
    repeats = 500 if k <= 1000 else 100
    for part in range(5):
        start = time.perf_counter()
        for i in range(repeats):
            x = model.ask()
            model.tell(x, means[int(x[0, 0])] + noise[part * repeats + i : part * repeats + i + 1])
        best = min(best, (time.perf_counter() - start) / repeats)
    return best
