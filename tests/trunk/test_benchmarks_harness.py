import json
import math
import types

import pytest

from benchmarks import __main__ as command
from benchmarks import harness, tables
from benchmarks.harness import Row, results_file, speed_row, time_pair, write


def row(**changes):
    fields = {"name": "a", "kind": "claim", "value": 0.5, "unit": "", "better": "higher"}
    return Row(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [
        ({"peer_value": None}, None),
        ({"peer_value": 0.25}, 2.0),
        ({"peer_value": 0.25, "better": "lower"}, 0.5),
        ({"peer_value": 0.25, "ratio": 3.0}, 3.0),
        ({"peer_value": 0.0}, math.inf),
    ],
)
def test_ratio_above_one_is_ours(changes, ratio):
    assert row(**changes).won == ratio


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({"target": None}, True),
        ({"target": 0.5}, True),
        ({"target": 0.51}, False),
        ({"target": 0.5, "better": "lower"}, True),
        ({"target": 0.49, "better": "lower"}, False),
        # a claim is judged by its value, whatever the peer did
        ({"target": 0.4, "peer_value": 100.0}, True),
        # speed and memory by the ratio where there is a peer
        ({"kind": "speed", "better": "lower", "target": 2.0, "peer_value": 1.0}, True),
        ({"kind": "speed", "better": "lower", "target": 2.1, "peer_value": 1.0}, False),
        ({"kind": "memory", "better": "lower", "target": 2.0, "peer_value": 0.9}, False),
        ({"kind": "speed", "better": "lower", "target": 2.0, "peer_value": 9.0, "ratio": 1.5}, False),
        # and by the value where there is none
        ({"kind": "speed", "better": "lower", "target": 0.5}, True),
        ({"kind": "speed", "better": "lower", "target": 0.4}, False),
    ],
)
def test_holds(changes, holds):
    assert row(**changes).holds is holds


@pytest.mark.parametrize("target", [0.5, None])
def test_nan_does_not_hold(target):
    found = row(value=math.nan, target=target)
    assert found.holds is (target is None)
    assert found.as_json()["value"] is None


def test_as_json_rounds_and_orders():
    document = row(value=1 / 3, peer="p", peer_value=0.0).as_json()
    assert document["value"] == 0.333333
    assert document["ratio"] is None  # infinite
    assert list(document) == [
        "name", "kind", "value", "unit", "better", "peer", "peer_value", "ratio", "target", "holds",
        "repeats", "spread", "note",
    ]  # fmt: skip


def test_time_pair_alternates_and_takes_medians(monkeypatch):
    calls, now = [], [0.0]
    cost = {"a": iter([9, 1, 1, 2]), "b": iter([9, 4, 2, 6])}

    def work(name):
        calls.append(name)
        now[0] += next(cost[name])

    monkeypatch.setattr(harness.time, "perf_counter", lambda: now[0])
    timing = time_pair(lambda: work("a"), lambda: work("b"), repeats=3, warmup=1)
    assert "".join(calls) == "abababab"
    assert (timing.ours, timing.peer, timing.ratio, timing.repeats) == (1, 4, 3, 3)
    found = speed_row("s", timing, peer="p 1.0", target=3.0)
    assert (found.value, found.peer_value, found.won, found.holds) == (1, 4, 3, True)
    assert timing.spread == 2.0  # of the ratios 2, 3, 4


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_write(results):
    path = write("cojer", "small", [row(target=0.5)], 1.234, ("no-such-distribution", "rich"))
    assert path == results_file("cojer", "small") == results / "cojer.json"
    assert results_file("cojer", "full").name == "cojer.full.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    assert list(document) == ["slug", "size", "seedbed", "machine", "packages", "seconds", "rows"]
    assert document["rows"][0]["holds"] is True
    assert "rich" in document["packages"]
    assert "no-such-distribution" not in document["packages"]
    assert [file.name for file in results.iterdir()] == ["cojer.json"], "no temporary file is left"
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.fixture
def benchmark(monkeypatch, results):
    """A stand-in for benchmarks.cojer, whose rows the test sets."""
    module = types.SimpleNamespace(PACKAGES=(), rows=[], sizes=[])
    module.run = lambda size: module.sizes.append(size) or module.rows
    monkeypatch.setattr(command, "import_module", lambda name: module)
    return module


def call(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["benchmarks", *arguments])
    return command.main()


def test_check_fails_only_where_a_row_that_held_no_longer_does(benchmark, monkeypatch, results, capsys):
    benchmark.rows = [row(name="holds", target=0.4), row(name="never held", target=0.9)]
    assert call(monkeypatch, "cojer") == 0
    before = (results / "cojer.json").read_bytes()
    assert call(monkeypatch, "cojer", "--check") == 0
    benchmark.rows = [row(name="holds", target=0.4, value=0.39), row(name="never held", target=0.9)]
    assert call(monkeypatch, "cojer", "--check") == 1
    assert "FAIL cojer: holds: no longer holds" in capsys.readouterr().err
    benchmark.rows = []
    assert call(monkeypatch, "cojer", "--check") == 1
    assert "FAIL cojer: holds: missing" in capsys.readouterr().err
    assert (results / "cojer.json").read_bytes() == before, "--check writes nothing"


def test_check_without_record_fails(benchmark, monkeypatch, capsys):
    assert call(monkeypatch, "cojer", "--size", "full", "--check") == 1
    assert benchmark.sizes == ["full"]
    assert "no results on record" in capsys.readouterr().err


def test_unknown_slug_is_refused(benchmark, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, "nope")
    assert stopped.value.code == 2
    assert "nope" in capsys.readouterr().err


def test_tables(results, tmp_path):
    rows = [
        row(name="share | of misses", value=0.025, better="lower", target=0.2, unit="of splits"),
        row(name="second claim", target=0.1),
        row(name="lost", target=0.9, note="too few rows"),
        row(
            name="fit", kind="speed", value=0.25, unit="s", better="lower", peer="peer 1.0", peer_value=1.0,
            ratio=4.1, spread=0.3, target=2.0,
        ),
        row(name="only reported"),
    ]  # fmt: skip
    write("cojer", "small", rows, 12.0, ())
    card = tables.results_table("cojer", results).splitlines()
    assert card[2] == "| share \\| of misses | 0.025 of splits |  |  | ≤ 0.2 | yes |"
    assert card[4] == "| lost<br><small>too few rows</small> | 0.5 |  |  | ≥ 0.9 | **does not hold** |"
    assert card[5] == "| fit | 0.25 s | peer 1.0: 1 s | 4.1 ± 0.3 | ratio ≥ 2 | yes |"
    assert card[6] == "| only reported | 0.5 |  |  |  | no target |"
    assert "python -m benchmarks cojer" in card[-1]

    line = next(line for line in tables.methods_table(results).splitlines() if "seeds/cojer.md" in line)
    assert "share \\| of misses: 0.025 of splits (≤ 0.2)<br>" in line
    assert "second claim" not in line
    assert "lost: 0.5 (≥ 0.9) **does not hold**<br>" in line
    assert "fit: 0.25 s, peer 1.0 1 s (ratio ≥ 2)<br>" in line
    assert line.endswith("3 of 4 targets met, 5 rows |")
    assert "not measured yet" in tables.methods_table(tmp_path / "none")
    assert tables.results_table("cojer", tmp_path / "none").startswith("Not measured yet")


def test_replace_needs_its_markers():
    text = "a\n<!-- m:begin -->\nold\n<!-- m:end -->\nb"
    assert tables.replace(text, "m", r"new \1", "f") == "a\n<!-- m:begin -->\nnew \\1\n<!-- m:end -->\nb"
    for broken in ("a", text + text, "<!-- m:end --><!-- m:begin -->"):
        with pytest.raises(ValueError, match=r"^f must hold <!-- m:begin -->"):
            tables.replace(broken, "m", "new", "f")
