"""README's Python blocks run as printed, its commands exist, and its tables quote the results on record."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from benchmarks import tables
from seedbed.catalog import METHODS, get
from seedbed.cli import make_parser


@pytest.fixture(scope="module")
def readme(root):
    return (root / "README.md").read_text(encoding="utf-8")


def blocks(text, language):
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


# Runs every Python block in a namespace of its own, then the config, and prints a line between them.
RUN = """
import json, pathlib, sys
from seedbed.cli import main
for code in json.loads(sys.argv[1]):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    print("=====", flush=True)
assert main(["fit", "--config", "run.yaml"]) == 0
"""


@pytest.fixture(scope="module")
def outputs(readme, tmp_path_factory):
    """What the blocks print, and the folder in which the config was run."""
    folder = tmp_path_factory.mktemp("readme")
    (config,) = blocks(readme, "yaml")
    config = yaml.safe_load(config)
    config["trainer"].update(max_epochs=1, limit_train_batches=2, limit_val_batches=1)
    (folder / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(blocks(readme, "python"))],
        cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("====="), folder


def test_estimator_block(outputs):
    misses = float(re.search(r"misses: ([\d.]+)%", outputs[0][0])[1])
    assert 0 < misses <= 10


def test_module_block(outputs):
    accuracy = float(re.search(r"test_accuracy[^\d]*([\d.]+)", outputs[0][1])[1])
    assert accuracy > 0.93


def test_optimizer_block(outputs):
    loss, rate = map(float, re.search(r"loss ([\d.]+), step size ([\d.e+-]+)", outputs[0][2]).groups())
    assert loss < 1.2  # starts at log(10) = 2.3
    assert rate > 1e-3  # starts at 1e-5


def test_config_fits(outputs):
    assert len(outputs[0]) == 4
    assert list(outputs[1].rglob("*.ckpt"))


def test_commands_exist(readme, root):
    named = set(re.findall(r"^ {4}seedbed (\w+)", readme, flags=re.MULTILINE))
    actions = [action for action in make_parser()._actions if action.dest == "command"]
    assert named == set(actions[0].choices)
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    text = readme + (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:`|^ {4})make ([a-z]+)", text, flags=re.MULTILINE))
    known = set(re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)[1].split())
    assert {"demo", "test", "lint", "readme"} <= targets
    assert targets <= known


def test_links_lead_somewhere(readme, root):
    for name in re.findall(r"\]\((?!https?:|#)([^)#]+)", readme):
        assert (root / name).exists(), name


def test_tables_are_fresh(root):
    stale = [path.name for path, old, new in tables.documents() if old != new]
    assert stale == [], "run `make readme`"
    assert tables.main(["--check"]) == 0


def test_stale_tables_are_found_and_rewritten(root, tmp_path):
    shutil.copy(root / "README.md", tmp_path)
    (tmp_path / "seeds").mkdir()
    for method in METHODS:
        card = tmp_path / "seeds" / f"{method.slug}.md"
        card.write_text("# a\n<!-- results:begin -->\nSTALE\n<!-- results:end -->\nz\n", encoding="utf-8")
    assert tables.main(["--check"], tmp_path) == 1
    assert tables.main([], tmp_path) == 0
    assert tables.main(["--check"], tmp_path) == 0
    for method in METHODS:
        text = (tmp_path / "seeds" / f"{method.slug}.md").read_text(encoding="utf-8")
        assert text.startswith("# a\n<!-- results:begin -->\n")
        assert text.endswith("\n<!-- results:end -->\nz\n")
        assert "STALE" not in text
    card.write_text("no markers\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"^{card.name} must hold <!-- results:begin -->"):
        tables.main(["--check"], tmp_path)


def test_citation_names_every_paper(root):
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    titles = {reference["title"] for reference in citation["references"]}
    assert titles == {method.title for method in METHODS}
    from seedbed import __version__

    assert str(citation["version"]) == __version__
    urls = {reference["title"]: reference["url"] for reference in citation["references"]}
    assert urls[get("cojer").title] == get("cojer").url
