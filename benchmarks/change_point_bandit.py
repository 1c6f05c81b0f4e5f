"""Change points under bandit feedback: errors, stopping times and their limit, peers, speed.

``python -m benchmarks change_point_bandit [--size full]``; full has more points and more runs. A table of
rules over points and deltas alone is
``python -m benchmarks.change_point_bandit --K 10 20 50 --runs 10000 --n-jobs -1``.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ruptures

from benchmarks.harness import Row, say, speed_row, time_pair, write
from seedbed.datasets import load_nile_bandit
from seedbed.estimators import (
    ChangePointBandit,
    characteristic_time,
    noisy_binary_search,
    optimal_allocation,
    segment_means,
    sequential_halving,
    simulate_policy,
)
from seedbed.estimators.change_point_bandit.thresholds import Floats

PACKAGES = ("ruptures", "statsmodels")
DELTA = 0.05


RULES: dict[str, dict[str, Any]] = {
    "MCPI, forced exploration 1": {"forced_exploration": 1.0},
    "MCPI, forced exploration 0.1": {"forced_exploration": 0.1},
    "MCPI, largest neighbouring jumps": {"estimator": "pairwise"},
    "MCPI, C-tracking": {"tracking": "C"},
    "plain track-and-stop": {"sampling": "track-and-stop"},
    "uniform": {"sampling": "uniform"},
    "elimination": {"sampling": "elimination"},
    "clusters without order": {"sampling": "cluster"},
}
# A Python call per run and query: fewer runs, and no more points than these.
SLOW = {"plain track-and-stop": 20, "clusters without order": 50}


def run(size: str) -> list[Row]:
    """All rows."""
    full = size == "full"
    return [
        *error_rows(10_000 if full else 2000),
        *objective_rows(2000 if full else 500),
        *limit_rows(400 if full else 100),
        *cost_rows(100 if full else 20),
        *policy_rows((10, 20, 50, 100, 200) if full else (10, 20, 50, 100), 1000 if full else 200),
        *batch_rows(1000 if full else 200),
        *ruptures_rows(300 if full else 100),
        nile_row(60 if full else 20),
        *equality_rows(),
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
            "lower" if certified else "higher",
            target=limit if certified else 1.5 * delta,
            repeats=runs,
            note=f"95 % interval {low:.3f} to {high:.3f}; {found.mean_evals:.0f} queries on average"
            + ("" if certified else "; not certified, and shown to fail"),
        )


def objective_rows(runs: int) -> Iterator[Row]:
    """An unknown number of changes: some true ones, or all of a size."""
    for n in (1, 2):
        bandit = ChangePointBandit(n, objective="any", delta=0.1)
        found = simulate_policy(steps([0, 1, 0.4, 2], 4), bandit, n_runs=runs, random_state=0)
        yield _claim(
            f"error rate at delta = 0.1, 3 changes, any {n} of them",
            found.error_rate,
            "share",
            "lower",
            target=0.1 + 3 * math.sqrt(0.09 / runs),
            repeats=runs,
            note=f"{found.mean_evals:.0f} queries on average",
        )
    truth = np.repeat([0.0, 1.0, 2.5], 4)
    bandit = ChangePointBandit(objective="all", min_jump=0.8, delta=DELTA)
    found = simulate_policy(truth, bandit, n_runs=runs, random_state=0)
    yield _claim(
        "every jump of 0.8 or more, their number unknown: the set exactly right",
        float((found.change_points == (np.diff(truth) != 0)).all(axis=1).mean()),
        "share",
        "higher",
        target=1 - DELTA,
        repeats=runs,
        note=f"{found.mean_evals:.0f} queries on average, 12 points, 2 changes",
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
    bandit = ChangePointBandit(2, delta=1e-300, forced_exploration=0.1)
    found = simulate_policy(instances[2], bandit, n_runs=runs, random_state=0)
    least = characteristic_time(instances[2]) * math.log(1e300)
    yield _claim(
        "queries over T* log(1/delta), 2 change(s), delta = 1e-300, forced exploration 0.1",
        found.mean_evals / least,
        "x",
        "lower",
        target=1.04,
        repeats=runs,
        spread=float(found.n_evals.std() / least),
    )


def cost_rows(runs: int) -> Iterator[Row]:
    """Where samples go, and what more points cost, as delta falls."""
    bandit = ChangePointBandit(2, delta=1e-100)
    counts = simulate_policy(np.repeat([0.0, 1.0, 3.0], 4), bandit, n_runs=runs, random_state=0).counts
    near = counts[:, [3, 4, 7, 8]]
    yield _claim(
        "share of the queries beside the changes, jumps 1 and 2, 12 points, delta = 1e-100",
        float(near.sum() / counts.sum()),
        "share",
        "higher",
        target=0.94,
        repeats=runs,
    )
    ratios = near[:, :2].sum(axis=1) / near[:, 2:].sum(axis=1)
    yield _claim(
        "queries beside the jump of 1 over those beside the jump of 2: distance to the optimal 4",
        abs(float(ratios.mean()) - 4),
        "x",
        "lower",
        target=1.2,
        repeats=runs,
        spread=float(ratios.std()),
    )
    for delta, target in ((1e-100, 1.95), (1e-300, 1.5)):
        few, many = (
            simulate_policy(
                steps([0, 1], k // 2), ChangePointBandit(delta=delta), n_runs=runs, random_state=0
            ).mean_evals
            for k in (10, 100)
        )
        yield _claim(
            f"queries with 100 points over queries with 10, delta = {delta:g}",
            many / few,
            "x",
            "lower",
            target=target,
            repeats=runs,
            note=f"{few:.0f} and {many:.0f} queries",
        )


# --- other rules


def policy_rows(sizes: tuple[int, ...], runs: int) -> Iterator[Row]:
    """Mean queries until a jump of one is certain at 95 %, by rule."""
    for k in sizes:
        means = steps([0, 1], k // 2)
        ours = simulate_policy(means, n_runs=runs, random_state=0)
        for name, settings in RULES.items():
            if k > SLOW.get(name, k):
                continue
            few = min(runs, 40) if name in SLOW else runs
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


def batch_rows(runs: int) -> Iterator[Row]:
    """Queries and rounds when several points are asked for at once."""
    means = steps([0, 1], 10)
    single = simulate_policy(means, n_runs=runs, random_state=0)
    for size, target in ((5, 1.3), (20, 1.5), (50, 2.0)):
        found = simulate_policy(means, ChangePointBandit(batch_size=size), n_runs=runs, random_state=0)
        yield _claim(
            f"queries in batches of {size} over queries one by one, 20 points",
            found.mean_evals / single.mean_evals,
            "x",
            "lower",
            target=target,
            repeats=runs,
            note=f"{found.n_rounds.mean():.1f} rounds instead of {single.n_rounds.mean():.0f}; "
            f"errors {int(found.wrong.sum())}",
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


# --- what must be equal


def equality_rows() -> Iterator[Row]:
    """A session that is saved and taken up at every step; a simulation in two processes."""
    means, steps_taken = steps([0, 1, 0], 4), 300
    noise = np.random.default_rng(0).standard_normal(steps_taken)
    whole, broken = (ChangePointBandit(2, delta=1e-50).start(np.arange(12)) for _ in range(2))
    same = 0
    for step in range(steps_taken):
        x = whole.ask()
        same += bool((x == broken.ask()).all())
        y = means[x[:, 0].astype(int)] + noise[step]
        whole.tell(x, y)
        state = json.dumps(broken.tell(x, y).state_dict())
        broken = ChangePointBandit(2, delta=1e-50).load_state_dict(json.loads(state))
    same += bool((whole.log_e_values_ == broken.log_e_values_).all())
    yield _claim(
        "a session through JSON at every step: asks, and e-values at the end, equal to the last digit",
        same / (steps_taken + 1),
        "share",
        "higher",
        target=1.0,
        repeats=steps_taken,
    )
    one, two = (
        simulate_policy(means, ChangePointBandit(2), n_runs=500, n_jobs=n, random_state=0) for n in (1, 2)
    )
    yield _claim(
        "simulated runs in two processes: equal to those in one",
        float(((one.n_evals == two.n_evals) & (one.counts == two.counts).all(axis=1)).mean()),
        "share",
        "higher",
        target=1.0,
        repeats=500,
    )


# --- speed


def speed_rows() -> Iterator[Row]:
    """Seconds per ask and tell; targets and fits beside other ways to them; a million queries at once."""
    cases: tuple[tuple[int, int, str, float], ...] = (
        (100, 1, "pairwise", 60e-6),
        (100, 1, "segmentation", 150e-6),
        (100, 3, "segmentation", 1e-3),
        (10_000, 1, "pairwise", 200e-6),
        (10_000, 1, "segmentation", 400e-6),
        (10_000, 3, "pairwise", 400e-6),
    )
    for k, n, estimator, target in cases:
        yield Row(
            name=f"one ask and one tell, {k} points, {n} change(s), {estimator}",
            kind="speed",
            value=_seconds_per_query(k, n, estimator),
            unit="s",
            better="lower",
            target=target,
            repeats=7,
        )
    for k, n, target in ((20, 1, 10.0), (12, 3, 10.0)):
        means = steps(np.arange(n + 1) % 2, k // (n + 1))
        yield speed_row(
            f"target shares, {k} points, {n} change(s)",
            time_pair(
                lambda means=means: optimal_allocation(means),
                lambda means=means: optimal_allocation(means, method="numeric"),
                repeats=25,
                warmup=2,
            ),
            peer="the program solved, as plain track-and-stop does",
            target=target,
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
    bandit = ChangePointBandit(delta=1e-300, max_evals=1000)
    start = time.perf_counter()
    simulate_policy(steps([0, 0.3], 10), bandit, n_runs=1000, random_state=0)
    yield Row(
        name="simulation of 1000 runs of 1000 queries over 20 points",
        kind="speed",
        value=time.perf_counter() - start,
        unit="s",
        better="lower",
        target=10.0,
    )


def _seconds_per_query(k: int, n: int, estimator: str) -> float:
    rng = np.random.default_rng(0)
    means = steps(np.arange(n + 1) % 2, -(-k // (n + 1)))[:k]
    model = ChangePointBandit(n, estimator=estimator, delta=1e-300).start(np.arange(k))
    model.tell(np.arange(k), means + rng.standard_normal(k))
    noise, best = rng.standard_normal(5000), math.inf
    repeats = 500 if k <= 1000 else 100
    for part in range(8):  # the first to warm up
        start = time.perf_counter()
        for i in range(repeats):
            x = model.ask()
            model.tell(x, means[int(x[0, 0])] + noise[part * repeats + i : part * repeats + i + 1])
        if part:
            best = min(best, (time.perf_counter() - start) / repeats)
    return best


# --- the table alone


def main() -> int:
    """Run rules over points and deltas; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.change_point_bandit", description=__doc__)
    parser.add_argument("--K", nargs="+", type=int, default=[10, 20, 50, 100, 200, 500], metavar="POINTS")
    parser.add_argument("--deltas", nargs="+", type=float, default=[1e-1, 1e-2, 1e-5])
    parser.add_argument("--policies", nargs="+", choices=["all", *RULES], default=["all"], metavar="RULE")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--n-jobs", type=int, default=1)
    arguments = parser.parse_args()
    chosen = RULES if "all" in arguments.policies else {name: RULES[name] for name in arguments.policies}
    start, rows = time.perf_counter(), []
    for k in arguments.K:
        for delta in arguments.deltas:
            for name, settings in {"MCPI": {}, **chosen}.items():
                found = simulate_policy(
                    steps([0, 1], k // 2),
                    ChangePointBandit(delta=delta, **settings),
                    n_runs=arguments.runs,
                    n_jobs=arguments.n_jobs,
                    random_state=0,
                )
                row = _claim(
                    f"queries until certain, {k} points, delta = {delta:g}: {name}",
                    found.mean_evals,
                    "queries",
                    "lower",
                    repeats=arguments.runs,
                    spread=float(found.n_evals.std()),
                    note=f"error rate {found.error_rate:.4f}",
                )
                say(f"{row.name}: {row.value:.1f}; {row.note}")
                rows.append(row)
    write("change_point_bandit", "table", rows, time.perf_counter() - start, PACKAGES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
