"""Each example runs from start to end, in a process of its own, in under a minute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.catalog import METHODS

LIMIT = 60.0

# Runs a script as `python script.py` would and fails unless it drew something.
RUN = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
import matplotlib.pyplot as plt
assert plt.get_fignums(), "no figure"
"""


def test_every_method_has_an_example_and_no_other_is_left_over(root):
    scripts = {path.stem for path in (root / "examples").glob("*.py")}
    assert scripts == {method.slug for method in METHODS}


@pytest.mark.parametrize("slug", [method.slug for method in METHODS])
def test_example(slug, root, tmp_path):
    path = Path(root) / "examples" / f"{slug}.py"
    environment = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3 * LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list(tmp_path.iterdir()), "an example leaves no files behind"
