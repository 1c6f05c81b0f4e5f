import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import lightning.pytorch  # noqa: F401 - its log handler keeps the stderr of its import: not that of one test
import numpy as np
import pytest
import torch
from rich.console import Console

from seedbed import catalog, cli, doctor, report, tour
from seedbed.catalog import METHODS, Method, Public
from seedbed.checks import missing_extra
from seedbed.demos import Demo, DemoFigure


@dataclasses.dataclass(frozen=True)
class Fake(Method):
    """A method whose demo is given."""

    run: Callable = None

    def demo(self):
        return self.run


def fake(slug, run, **changes):
    fields = {
        "slug": slug, "title": f"Title of {slug}", "authors": "A. Author", "where": "ICML 2025",
        "url": "https://example.org/?a=1&b=2", "summary": f"What {slug} gives.", "folder": "estimators",
        "public": (Public("Thing", "estimator"),),
    }  # fmt: skip
    return Fake(**{**fields, **changes}, run=run)


def draw(figure):
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="<line> & more")
    axes.scatter([0, 1], [1, 0], label="points")
    axes.set_title("inside <title>")
    axes.legend()


DEMO = Demo(
    headline='Misses <b>7.9 %</b> & "more"',
    data="diamonds <53 940 rows>",
    rows=[
        {"method": "<i>ours</i>", "share": 0.0251234, "n": np.int64(53940)},
        {"method": "peer", "share": 0.5, "n": 7},
    ],
    figures=[DemoFigure("First <figure>", 'A caption with "quotes" & <tags>.', draw)],
)  # fmt: skip


def good(progress):
    progress(0.5, "half-way")
    progress(2.0, "more than all")
    return DEMO


def bad(progress):
    progress(0.1, "about to fail")
    raise ValueError("the <reason> it failed\nsecond line")


def lacking(progress):
    raise missing_extra("pandas", "data", "load_diamonds")


def stopped(progress):
    progress(0.3, "at work")
    raise KeyboardInterrupt


def stopped_by_trainer(progress):
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        sys.exit(1)


@pytest.fixture
def methods(monkeypatch, tmp_path):
    """Sets the catalog that the command line sees; works in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def use(**runs):
        monkeypatch.setattr(cli, "METHODS", tuple(fake(slug, run) for slug, run in runs.items()))

    return use


def call(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class Page(HTMLParser):
    """Collects a page's elements and checks that they nest."""

    VOID = frozenset({"meta", "input", "br", "link", "img"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


# list and show


def test_list(capsys):
    code, out, err = call(capsys, "list")
    assert (code, err) == (0, "")
    assert all(method.slug in out for method in METHODS)


def test_list_json(capsys):
    code, out, _ = call(capsys, "list", "--json")
    document = json.loads(out)
    assert code == 0
    assert [entry["slug"] for entry in document] == [method.slug for method in METHODS]
    cojer = next(entry for entry in document if entry["slug"] == "cojer")
    assert cojer["public"][0] == {"path": "seedbed.estimators.CoJERRegressor", "kind": "estimator"}


def test_show(capsys):
    code, out, _ = call(capsys, "show", "cojer")
    assert code == 0
    assert catalog.get("cojer").title in out
    assert "from seedbed.estimators import CoJERRegressor" in out
    code, out, _ = call(capsys, "show", "cojer", "--json")
    assert code == 0
    assert json.loads(out) == cli.describe(catalog.get("cojer"))


@pytest.mark.parametrize("command", ["show", "demo"])
@pytest.mark.parametrize(
    ("slug", "meant"),
    [
        ("cojjer", "did you mean cojer?"),
        ("CoJERRegresor", "did you mean cojer"),
        ("zzzz", "'zzzz' (there are:"),
    ],
)
def test_unknown_slug_is_wrong_usage_and_gets_suggestions(
    command, slug, meant, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, command, slug)
    assert (code, out) == (2, "")
    assert meant in err
    assert ", ".join(method.slug for method in METHODS) in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [(), ("grow",), ("show",), ("list", "--nope"), ("demo", "--report")])
def test_wrong_usage(arguments, capsys):
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("usage: seedbed")


def test_version_and_help(capsys):
    assert call(capsys, "--version")[:2] == (0, "seedbed 0.1.0\n")
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert all(word in out for word in ("list", "show", "demo", "fit", "doctor"))


def test_reader_that_goes_away_leaves_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -m seedbed list --json | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""


# demo


def test_demo(methods, capsys):
    methods(one=good, two=good)
    code, out, err = call(capsys, "demo")
    assert code == 0
    for text in (
        'Misses <b>7.9 %</b> & "more"',
        "<i>ours</i>",
        "0.02512",
        "53,940",
        "report: seedbed-report.html",
    ):
        assert text in out
    # not a terminal: a line per step
    assert err.splitlines()[:3] == ["one:   0% starting", "one:  50% half-way", "one: 100% more than all"]
    assert re.search(r"^two: done in [\d.]+ s$", err, re.MULTILINE)
    assert Path("seedbed-report.html").is_file()
    assert [path.name for path in Path().iterdir()] == ["seedbed-report.html"], "no temporary file is left"


def test_lines_do_not_flood_a_log(methods, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(tour.time, "monotonic", lambda: now[0])

    def run(progress):
        for number in range(200):
            progress(number / 200, f"batch {number}")
        now[0] += 6
        progress(0.996, "the last one takes long")
        return DEMO

    methods(one=run)
    code, _, err = call(capsys, "demo")
    lines = err.splitlines()
    assert code == 0
    assert 10 <= len(lines) <= 13
    assert lines[-2] == "one: 100% the last one takes long"


def test_demo_of_some(methods, capsys):
    methods(one=good, two=bad, three=good)
    code, out, _ = call(capsys, "demo", "three", "one", "three", "--report", "here.html", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["report"] == "here.html"
    assert [demo["slug"] for demo in document["demos"]] == ["three", "one"]
    demo = document["demos"][0]
    assert demo["status"] == "ok"
    assert demo["rows"] == [
        {"method": "<i>ours</i>", "share": 0.0251234, "n": 53940},
        {"method": "peer", "share": 0.5, "n": 7},
    ]
    assert demo["figures"] == ["First <figure>"]
    assert Path("here.html").is_file()


def test_demo_json_has_no_nan(methods, capsys):
    rows = [{"a": float("nan"), "b": np.float32("inf"), "c": np.float32(0.5)}]
    methods(one=lambda progress: Demo("h", "d", rows))
    code, out, _ = call(capsys, "demo", "--json")
    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail)["demos"][0]["rows"] == [
        {"a": None, "b": None, "c": 0.5}
    ]


def test_one_failure_does_not_stop_the_others(methods, capsys):
    methods(one=good, two=bad, three=lacking, four=good)
    code, out, err = call(capsys, "demo")
    assert code == 1
    assert "two failed: ValueError: the <reason> it failed" in out
    assert "two: failed in" in err
    assert "Traceback" not in out + err
    text = Path("seedbed-report.html").read_text(encoding="utf-8")
    assert "<details><summary>traceback</summary><pre>" in text
    assert "ValueError: the &lt;reason&gt; it failed" in text
    assert "<reason>" not in text
    assert "load_diamonds needs pandas: pip install &#x27;seedbed[data]&#x27;" in text
    assert "2 of 4 demos done" in text
    code, out, _ = call(capsys, "demo", "--json")
    assert [demo["status"] for demo in json.loads(out)["demos"]] == ["ok", "failed", "missing", "ok"]


def test_missing_package_without_a_pip_line_is_reported_as_missing(methods, capsys, monkeypatch):
    def run(progress):
        import a_package_that_is_not_there  # noqa: F401

    monkeypatch.setattr(cli, "METHODS", (fake("one", run, extras=("data", "plot")), fake("two", run)))
    code, out, _ = call(capsys, "demo", "--json")
    first, second = json.loads(out)["demos"]
    assert code == 1
    assert first["status"] == "missing"
    assert first["reason"] == "the demo needs a_package_that_is_not_there: pip install 'seedbed[data,plot]'"
    assert second["status"] == "failed", "no extra is to blame"


def test_figure_that_cannot_be_drawn_fails_its_method(methods, capsys):
    def broken(figure):
        raise RuntimeError("no ink")

    methods(one=lambda progress: dataclasses.replace(DEMO, figures=[DemoFigure("t", "c", broken)]), two=good)
    code, out, _ = call(capsys, "demo", "--json")
    first, second = json.loads(out)["demos"]
    assert (code, first["status"], first["reason"]) == (1, "failed", "RuntimeError: no ink")
    assert first["rows"], "the table is kept"
    assert second["status"] == "ok"


@pytest.mark.parametrize("run", [stopped, stopped_by_trainer])
def test_ctrl_c_writes_what_was_done(run, methods, capsys):
    methods(one=good, two=run, three=good)
    code, out, _ = call(capsys, "demo")
    assert code == 130
    assert "two interrupted" in out
    text = Path("seedbed-report.html").read_text(encoding="utf-8")
    assert "1 of 2 demos done" in text
    assert 'id="one"' in text
    assert 'id="three"' not in text


def test_exit_inside_a_demo_is_a_failure_not_an_exit(methods, capsys):
    methods(one=lambda progress: sys.exit(0), two=good)
    code, out, _ = call(capsys, "demo", "--json")
    assert code == 1
    assert [demo["status"] for demo in json.loads(out)["demos"]] == ["failed", "ok"]


def test_warnings_are_kept_for_the_report(methods, capsys):
    def run(progress):
        for _ in range(2):
            warnings.warn("take <care>", UserWarning, stacklevel=1)
        return DEMO

    methods(one=run)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, out, err = call(capsys, "demo", "--json")
    assert code == 0
    assert json.loads(out)["demos"][0]["warnings"] == ["UserWarning: take <care>"]
    assert "care" not in err
    assert "UserWarning: take &lt;care&gt;" in Path("seedbed-report.html").read_text(encoding="utf-8")


def test_without_matplotlib_the_report_has_no_figures(methods, capsys, monkeypatch):
    methods(one=good)
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    code, _, err = call(capsys, "demo")
    assert code == 0
    assert "figures need matplotlib: pip install 'seedbed[plot]'" in err
    text = Path("seedbed-report.html").read_text(encoding="utf-8")
    assert "<svg" not in text
    assert "Figures need matplotlib" in text


def never(progress):
    pytest.fail("work began before the path was checked")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no/such/folder/r.html", "there is no directory"),
        (".", "is a directory"),
        ("/proc/r.html", "cannot write"),
    ],
)
def test_unwritable_report_fails_before_the_work(path, reason, methods, capsys):
    methods(one=never)
    code, out, err = call(capsys, "demo", "--report", path)
    assert (code, out) == (1, "")
    assert err.startswith("seedbed: cannot write the report to ")
    assert reason in err


def test_full_disk_fails_before_the_work(methods, capsys, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    methods(one=never)
    monkeypatch.setattr(report.os, "fsync", full)
    code, _, err = call(capsys, "demo")
    assert code == 1
    assert err == "seedbed: cannot write the report to seedbed-report.html: No space left on device\n"
    assert list(Path().iterdir()) == []


def test_write_is_atomic(tmp_path, monkeypatch):
    path, link = tmp_path / "r.html", tmp_path / "link.html"
    report.write_atomic(path, "old")
    link.symlink_to(path)
    report.write_atomic(link, "neü\n")
    assert link.is_symlink()
    assert path.read_bytes() == "neü\n".encode()
    assert path.stat().st_mode & 0o777 == 0o644

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        report.write_atomic(path, "newer")
    assert path.read_bytes() == "neü\n".encode()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.html", "r.html"]


def test_bars_on_a_terminal(methods):
    chosen = [fake("one", good), fake("two", bad)]
    console = Console(force_terminal=True, width=100, record=True)
    outcomes = tour.run_demos(chosen, console, draw=False)
    assert [outcome.status for outcome in outcomes] == ["ok", "failed"]
    text = console.export_text()
    assert re.search(r"one .*100%.* done", text)
    assert re.search(r"two .*10%.* failed", text)


# the report


@pytest.fixture(scope="module")
def outcomes():
    made = tour.run_demos([fake("one", good), fake("two", bad)], Console(quiet=True), draw=True)
    assert [outcome.status for outcome in made] == ["ok", "failed"]
    return made


@pytest.fixture(scope="module")
def text(outcomes):
    return report.page(outcomes)


def test_report_loads_nothing_and_runs_nothing(text):
    page = Page(text)
    assert {"script", "link", "img", "iframe", "image", "object"} & {tag for tag, _ in page.elements} == set()
    assert not re.search(r"@import|url\((?!#)", text)
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name, value in attributes.items():
            if tag != "a" and not name.startswith("xmlns"):
                assert "http" not in (value or ""), (tag, name)
    assert all(link["href"].startswith(("#", "https://")) for link in page.all("a"))


def test_report_escapes_everything(text):
    page = Page(text)
    for raw in (
        "First <figure>",
        "<tags>",
        "<i>",
        "<b>",
        "<53 940 rows>",
        "<line>",
        "inside <title>",
        "<reason>",
    ):
        assert raw not in text
    assert "First <figure>" in page.texts
    assert 'Misses <b>7.9 %</b> & "more"' in page.texts
    assert page.all("a")[-1]["href"] == "https://example.org/?a=1&b=2"


def test_report_reads_on_phones_and_by_ear(text):
    page = Page(text)
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    figures = page.all("svg")
    assert len(figures) == 2
    for figure in figures:
        assert figure["role"] == "img"
        assert figure["aria-label"] == 'First <figure>. A caption with "quotes" & <tags>.'
        assert "viewbox" in figure
        assert "width" not in figure
    headings = [tag for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert headings == ["h1", "h2", "h2"]
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    assert any("overflow-x: auto" in rule for rule in re.findall(r"\.wide \{[^}]*\}", text))


def test_report_ids_are_unique_and_referred_to_correctly(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    used = set(re.findall(r"url\(#([^)]+)\)", text))
    used |= {value[1:] for _, attributes in page.elements for name, value in attributes.items()
             if name.endswith("href") and value.startswith("#")}  # fmt: skip
    assert used
    assert used <= set(ids)
    labelled = {attributes["for"] for attributes in page.all("label") if "for" in attributes}
    assert labelled <= set(ids)


def test_report_switches_colours_without_script(text):
    assert "@media (prefers-color-scheme: dark)" in text
    assert text.count('class="on-light"') == text.count('class="on-dark"') == 1
    light, dark = re.findall(r'<div class="on-(?:light|dark)">(.*?)</div>', text, re.DOTALL)
    assert report.PALETTE["light"][0] in light
    assert report.PALETTE["dark"][0] in dark
    assert report.INK["light"] in light
    assert report.INK["dark"] in dark
    for theme, svg in (("light", light), ("dark", dark)):
        other = "dark" if theme == "light" else "light"
        assert report.INK[other] not in svg
        assert report.PALETTE[other][0] not in svg
        assert not re.search(r"(?:fill|stroke): #000000", svg)
    # the page's colours are those that the figures assume
    for theme in ("light", "dark"):
        assert f"--ground: {report.GROUND[theme]}" in text
        assert f"--ink: {report.INK[theme]}" in text


def test_report_is_reproducible(outcomes):
    assert report.render(DEMO.figures[0], "x") == report.render(DEMO.figures[0], "x")
    assert report.page(outcomes) == report.page(outcomes)


def test_render_leaves_matplotlib_alone():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    report.render(DEMO.figures[0], "x")
    assert dict(mpl.rcParams) == before


def linear(colour):
    """A colour's linear RGB."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(first, second):
    """The WCAG contrast ratio."""
    lights = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] + 0.05 for colour in (first, second))
    return lights[1] / lights[0]


def oklab(rgb):
    """Ottosson's OKLab of linear RGB, times 100."""
    lms = np.array(
        [[0.4122214708, 0.5363325363, 0.0514459929],
         [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]
    ) @ np.clip(rgb, 0, 1)  # fmt: skip
    lab = np.array(
        [[0.2104542553, 0.7936177850, -0.0040720468],
         [1.9779984951, -2.4285922050, 0.4505937099],
         [0.0259040371, 0.7827717662, -0.8086757660]]
    )  # fmt: skip
    return 100 * lab @ np.cbrt(lms)


# Machado, Oliveira and Fernandes (2009), severity 1
SIGHT = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_told_apart(theme):
    colours, ground = report.PALETTE[theme], report.GROUND[theme]
    assert min(contrast(colour, ground) for colour in colours) >= 3
    assert contrast(report.INK[theme], ground) >= 7
    for matrix in SIGHT.values():
        seen = [oklab(matrix @ linear(colour)) for colour in colours]
        gaps = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
        assert min(gaps) >= 8


@pytest.mark.parametrize("dark", [False, True])
def test_page_colours_have_the_contrast_text_needs(dark):
    css = (Path(report.__file__).parent / "report.css").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"\{([^{}]*)\}", css) if "--ground:" in block]
    assert len(blocks) == 3
    assert blocks[1].split() == blocks[2].split(), "the system's dark and the chosen one are the same"
    colours = dict(re.findall(r"--(\w+): (#\w{6})", blocks[1 if dark else 0]))
    for name in ("ink", "soft", "link", "good", "bad", "wait"):
        for ground in ("ground", "raised"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


def test_show_value():
    values = [0.000123456, 1234.56, 12345.6, 10**6, True, "text", float("nan"), np.float32(0.25)]
    shown = ["0.0001235", "1235", "12,346", "1,000,000", "True", "text", "nan", "0.25"]
    assert [report.show(value) for value in values] == shown


# doctor


def test_doctor(capsys):
    code, out, _ = call(capsys, "doctor")
    assert code == 0, out
    for text in ("scikit-learn", "devices: cpu", "data home: ", "threads: usable cores"):
        assert text in out
    code, out, _ = call(capsys, "doctor", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["ok"] is True
    assert {package["name"] for package in document["core"]} >= {"numpy", "torch", "lightning"}
    names = [part["name"] for part in document["parts"]]
    assert "seedbed.datasets" in names
    assert "seedbed.estimators.CoJERRegressor" in names


@pytest.mark.parametrize(
    ("installed", "ok"), [(None, False), ("0.9", False), ("1.6", True), ("2.0rc1", True), ("1.6rc1", False)]
)
def test_doctor_finds_old_and_missing_core_packages(installed, ok, monkeypatch, capsys):
    real = doctor.version

    def version(name):
        if name != "scikit-learn":
            return real(name)
        if installed is None:
            raise doctor.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(doctor, "version", version)
    code, out, _ = call(capsys, "doctor", "--json")
    (found,) = [package for package in json.loads(out)["core"] if package["name"] == "scikit-learn"]
    assert found == {"name": "scikit-learn", "required": ">=1.6", "version": installed, "ok": ok}
    assert code == (0 if ok else 1)
    code, out, _ = call(capsys, "doctor")
    assert ("pip install 'scikit-learn>=1.6'" in out) is not ok


def test_doctor_lists_missing_extras_and_is_content(monkeypatch, capsys):
    real = doctor.version

    def version(name):
        if name == "pandas":
            raise doctor.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor, "version", version)
    code, out, _ = call(capsys, "doctor", "--json")
    extras = {extra["name"]: extra for extra in json.loads(out)["extras"]}
    assert code == 0, "an extra is optional"
    assert extras["data"]["lacking"] == ["pandas>=2.2"]
    assert extras["data"]["install"] == "pip install 'seedbed[data]'"
    assert "pandas>=2.2" in extras["demo"]["lacking"], "extras named by an extra count"
    assert extras["cli"]["lacking"] == []


def test_doctor_finds_what_does_not_import(monkeypatch, capsys):
    broken = (Method("a", "t", "x", "w", "u", "s", "estimators", (Public("NotThere", "estimator"),)),)
    monkeypatch.setattr(doctor, "METHODS", broken)
    code, out, _ = call(capsys, "doctor")
    assert code == 1
    assert "seedbed.estimators.NotThere does not import" in " ".join(out.split())


# fit


def test_fit_without_jsonargparse_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    code, out, err = call(capsys, "fit", "--config", "run.yaml")
    assert (code, out) == (1, "")
    assert err == "seedbed: seedbed fit needs jsonargparse: pip install 'seedbed[cli]'\n"


CONFIG = """
model:
  class_path: lightning.pytorch.demos.boring_classes.BoringModel
data:
  class_path: lightning.pytorch.demos.boring_classes.BoringDataModule
trainer:
  accelerator: cpu
  limit_train_batches: 2
  limit_val_batches: 1
  enable_progress_bar: false
  enable_model_summary: false
"""


def fit(folder, *arguments, config=CONFIG, **options):
    """Run ``seedbed fit`` in a process of its own: it seeds and logs globally."""
    (folder / "run.yaml").write_text(config, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "seedbed", "fit", "--config", "run.yaml", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, **options,
    )  # fmt: skip


def test_fit_trains_the_users_own_module_with_safe_defaults(tmp_path):
    done = fit(tmp_path)
    assert done.returncode == 0, done.stderr
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    assert checkpoint.name == "epoch=9-step=20.ckpt", "10 epochs where the config sets no end"
    (saved,) = tmp_path.rglob("config.yaml")
    text = saved.read_text(encoding="utf-8")
    assert re.search(r"^seed_everything: 0$", text, re.MULTILINE)
    assert re.search(r"^weights_only: true$", text, re.MULTILINE)
    assert f"written: {checkpoint}" in done.stderr


# Lightning calls what jsonargparse has deprecated.
JSONARGPARSE = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def in_process(tmp_path, monkeypatch, capsys):
    """Runs ``seedbed fit`` in this process, and takes back the seeds it sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002

    def run(*arguments, config=CONFIG):
        Path("run.yaml").write_text(config, encoding="utf-8")
        return call(capsys, "fit", "--config", "run.yaml", *arguments)

    yield run
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.random.set_rng_state(states[2])


@JSONARGPARSE
def test_fit_resolves_short_names(in_process):
    config = CONFIG.replace(
        "lightning.pytorch.demos.boring_classes.BoringModel",
        "DLLClassifier\n  init_args: {hidden_layer_sizes: [8], input_shape: [64], num_classes: 10}",
    ).replace("lightning.pytorch.demos.boring_classes.BoringDataModule", "DigitsDataModule")
    code, out, err = in_process("--print_config", config=config)
    assert code == 0, err
    assert re.search(r"class_path: seedbed\.lightning_modules\.(\w+\.)*DLLClassifier$", out, re.MULTILINE)
    assert re.search(r"class_path: seedbed\.datasets\.(\w+\.)*DigitsDataModule$", out, re.MULTILINE)


@JSONARGPARSE
def test_fit_refuses_a_wrong_config(in_process, tmp_path):
    code, _, err = in_process("--model.nope=3")
    assert code == 2
    assert "'nope' is not accepted" in err
    code, _, err = in_process("--config", "not-there.yaml")
    assert code == 2
    assert "not-there.yaml" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@JSONARGPARSE
def test_fit_that_fails_exits_with_1_and_a_traceback(in_process):
    code, _, err = in_process("--trainer.devices=0", "--trainer.logger=false")
    assert code == 1
    assert "Traceback" in err
    assert "MisconfigurationException" in err


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_fit_ctrl_c(tmp_path):
    (tmp_path / "pressing.py").write_text(
        "import os, signal\n"
        "from lightning.pytorch import Callback\n"
        "class Pressing(Callback):\n"
        "    def on_train_batch_end(self, *arguments):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n",
        encoding="utf-8",
    )
    done = fit(tmp_path, "--trainer.callbacks=pressing.Pressing", "--trainer.max_epochs=1000")
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith("seedbed: interrupted\n")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_fit_in_two_processes_then_resume_in_one(tmp_path):
    optimizer = "optimizer: {class_path: MetaAdamW, init_args: {lr: 0.001}}"
    config = CONFIG.replace(
        "lightning.pytorch.demos.boring_classes.BoringModel",
        "DLLClassifier\n  init_args:\n    {hidden_layer_sizes: [8], input_shape: 64, num_classes: 10, "
        f"{optimizer}}}",
    ).replace("lightning.pytorch.demos.boring_classes.BoringDataModule", "DigitsDataModule")
    two = ("--trainer.max_epochs=1", "--trainer.devices=2", "--trainer.strategy=ddp")
    done = fit(tmp_path, *two, config=config)
    assert done.returncode == 0, done.stderr
    assert "Starting with 2 processes" in done.stderr
    (first,) = tmp_path.rglob("*.ckpt")
    done = fit(tmp_path, "--trainer.max_epochs=2", "--ckpt_path", str(first), config=config)
    assert done.returncode == 0, done.stderr
    assert f"Restored all states from the checkpoint at {first}" in done.stderr
    assert {path.name.partition("-")[0] for path in tmp_path.rglob("*.ckpt")} == {"epoch=0", "epoch=1"}
