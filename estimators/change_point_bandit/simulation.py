"""Run a policy many times on a known instance: how often it errs, and how long it takes."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta as beta_law
from sklearn.utils import Bunch
from sklearn.utils.parallel import Parallel, delayed

from seedbed.checks import check_number
from seedbed.datasets.bandits import Noise, check_noise, draw_rewards
from seedbed.estimators.change_point_bandit.engine import Engine, Rules
from seedbed.estimators.change_point_bandit.thresholds import Floats

CHUNK = 250
"""Runs that share a generator: results do not depend on the number of jobs."""

MAX_EVALS = 100_000


def simulate_policy(
    means: ArrayLike,
    estimator: Any = None,
    *,
    n_runs: int = 1000,
    noise: Noise = "gaussian",
    noise_scale: float | ArrayLike | None = None,
    max_evals: int | None = None,
    n_jobs: int | None = None,
    random_state: Any = None,
) -> Bunch:
    """Run a bandit on a known instance until it stops, many times over, all runs at once.

    Parameters
    ----------
    means : array-like of shape (n_arms,)
        True means, piecewise constant.
    estimator : ChangePointBandit, optional
        Its settings are those of the runs; default ones if None.
    n_runs : int
        How many runs.
    noise : {"gaussian", "bernoulli", "uniform"}
        Law of the rewards.
    noise_scale : float or array-like of shape (n_arms,), optional
        Standard deviation of the rewards; the estimator's ``sigma`` if None. Not used by "bernoulli".
    max_evals : int, optional
        Queries after which a run is given up; it then counts as not stopped. Default the estimator's, or
        100,000.
    n_jobs : int, optional
        Processes, see joblib; results do not depend on it.
    random_state : int, SeedSequence, Generator or None
        Source of the noise.

    Returns
    -------
    Bunch
        ``n_evals`` (n_runs,) and ``counts`` (n_runs, n_arms): queries, and of each arm; ``n_rounds``
        (n_runs,): batches; ``stopped`` (n_runs,); ``wrong`` (n_runs,): whether it stopped with a false
        report; ``change_points``: (n_runs, N) reported boundaries, or for objective "all" an
        (n_runs, K - 1) mask; ``error_rate`` with ``error_interval``, Clopper and Pearson's at 95 %;
        ``mean_evals`` with ``mean_interval``, normal at 95 %.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> from seedbed.estimators import simulate_policy
    >>> found = simulate_policy([0, 0, 0, 2, 2, 2], n_runs=100, random_state=0)
    >>> int(found.wrong.sum()), bool(found.stopped.all())
    (0, True)
    """
    from seedbed.estimators.change_point_bandit.bandit import ChangePointBandit

    bandit = ChangePointBandit() if estimator is None else estimator
    values = np.asarray(means, dtype=float)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(f"means must be 1-D, finite, of two arms or more, got shape {values.shape}")
    limit = max_evals if max_evals is not None else bandit.max_evals or MAX_EVALS
    for name, number in (("n_runs", n_runs), ("max_evals", limit)):
        check_number(name, number, low=1, integer=True)
    check_noise(noise, values)
    rules = bandit.rules(len(values))
    if rules.objective != "all" and np.count_nonzero(np.diff(values)) < rules.n_change_points:
        raise ValueError(f"means must have {rules.n_change_points} changes or more, as n_change_points says")
    scale = rules.sigma if noise_scale is None else np.asarray(noise_scale, dtype=float)
    sources = np.random.default_rng(random_state).spawn(-(-n_runs // CHUNK))
    sizes = [min(CHUNK, n_runs - CHUNK * place) for place in range(len(sources))]
    parts = Parallel(n_jobs=n_jobs)(
        delayed(_run)(rules, values, scale, noise, size, (limit, bandit.batch_size), rng)
        for size, rng in zip(sizes, sources, strict=True)
    )
    counts, rounds, stopped, reports = (np.concatenate(part) for part in zip(*parts, strict=True))
    evals = counts.sum(axis=1)
    wrong = stopped & _false(rules, values, reports)
    errors = int(wrong.sum())
    spread = float(evals.std(ddof=1)) / np.sqrt(n_runs) if n_runs > 1 else np.nan
    mean = float(evals.mean())
    return Bunch(
        n_evals=evals,
        counts=counts,
        n_rounds=rounds,
        stopped=stopped,
        wrong=wrong,
        change_points=reports,
        error_rate=errors / n_runs,
        error_interval=(
            0.0 if errors == 0 else float(beta_law.ppf(0.025, errors, n_runs - errors + 1)),
            1.0 if errors == n_runs else float(beta_law.ppf(0.975, errors + 1, n_runs - errors)),
        ),
        mean_evals=mean,
        mean_interval=(mean - 1.96 * spread, mean + 1.96 * spread),
    )


def _false(rules: Rules, means: Floats, reports: Any) -> Any:
    """Whether each report has a boundary that is no change or, for "all", lacks a large one."""
    jumps = np.abs(np.diff(means))
    if rules.objective == "all":
        return (reports & (jumps == 0)).any(axis=1) | (~reports & (jumps >= (rules.min_jump or 0))).any(
            axis=1
        )
    return (jumps[reports] == 0).any(axis=1)


def _run(
    rules: Rules, means: Floats, scale: Floats, noise: Noise, n_runs: int, limits: tuple[int, int], rng: Any
) -> tuple[Any, Any, Any, Any]:
    """Run some sessions to their ends; a session that has stopped is left behind."""
    max_evals, batch = limits
    engine = Engine(rules, n_runs)
    every = rules.objective == "all"
    width = rules.n_arms - 1 if every else rules.n_change_points
    counts = np.zeros((n_runs, rules.n_arms), dtype=np.int64)
    rounds = np.zeros(n_runs, dtype=np.int64)
    stopped = np.zeros(n_runs, dtype=bool)
    reports = np.zeros((n_runs, width), dtype=bool if every else np.int64)
    running = np.arange(n_runs)
    scale = np.broadcast_to(scale, means.shape)
    turn = 0
    while True:
        passed = engine.stopped()
        done = np.ones_like(passed) if engine.t >= max_evals else passed
        if done.any():
            ended = running[done]
            counts[ended], rounds[ended], stopped[ended] = engine.counts[done], turn, passed[done]
            if rules.trivial:
                reports[ended] = np.arange(width)
            elif every or engine.complete:
                reports[ended] = (engine.accepted if every else engine.changes)[done]
            running = running[~done]
            if not len(running):
                return counts, rounds, stopped, reports
            engine.keep(~done)
        for arms in _batch(engine, min(batch, max_evals - engine.t)):
            engine.observe(arms, draw_rewards(rng, means[arms], scale[arms], noise))
        turn += 1


def _batch(engine: Engine, size: int) -> list[Any]:
    """Choose the arms of one round, each as if those before had been answered."""
    first = engine.choose()
    if size == 1:
        return [first]
    chosen, rows = [first], np.arange(engine.n_runs)
    pending = np.zeros_like(engine.counts)
    while len(chosen) < size:
        pending[rows, chosen[-1]] += 1
        chosen.append(engine.choose(pending))
    return chosen
