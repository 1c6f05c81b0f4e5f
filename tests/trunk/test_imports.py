import ast
import json
import subprocess
import sys
import time
import types

import pytest
from trunk.stray import stray_modules

from seedbed.catalog import publics

# What the extras install, by import name; of these only what core packages need themselves may be loaded.
OPTIONAL = (
    "crepes", "dadaptation", "densratio", "dog", "jsonargparse", "lion_pytorch", "matplotlib",
    "mechanic_pytorch", "mlxtend", "pandas", "plotnine", "prodigyopt", "pulearn", "ruptures", "schedulefree",
    "skada", "sklego", "statsmodels",
)  # fmt: skip


def run(code, *options):
    """Standard output of a fresh interpreter, started outside the checkout."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=120, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(code, names):
    """Which of these top-level modules are loaded after running some code."""
    answer = run(
        f"import sys, json\n{code}\nprint(json.dumps([n for n in {list(names)!r} if n in sys.modules]))"
    )
    return json.loads(answer.splitlines()[-1])


def seconds(code, repeats=7):
    """Least wall-clock time of fresh interpreters: what else the machine does only ever adds to it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(code)
        times.append(time.perf_counter() - start)
    return min(times)


def test_import_is_quick():
    assert seconds("import seedbed") - seconds("pass") < 0.15


def test_command_line_is_quick():
    """`seedbed list --json` needs neither rich nor torch."""
    code = "from seedbed.cli import main; main(['list', '--json'])"
    assert loaded(code, ("torch", "sklearn", "rich", "numpy", "lightning")) == []
    assert seconds(code) - seconds("pass") < 0.25


@pytest.mark.parametrize(
    "code",
    ["import seedbed", "import seedbed.catalog", "from seedbed.cli import main; main(['show', 'cojer'])"],
)
def test_no_heavy_import(code):
    assert loaded(code, ("torch", "sklearn", "scipy", "lightning", "pandas", "matplotlib")) == []


def test_branches_are_lazy():
    code = "import seedbed.datasets, seedbed.estimators, seedbed.lightning_modules, seedbed.optimizers"
    assert loaded(code, ("torch", "sklearn", "scipy", "lightning")) == []


def test_numpy_estimator_loads_no_torch():
    code = "from seedbed.estimators import CoJERRegressor; CoJERRegressor()"
    assert loaded(code, ("torch", "lightning")) == []


def test_optimizers_load_no_lightning():
    code = "from seedbed.optimizers import MetaOptimize"
    assert loaded(code, ("sklearn", "lightning")) == []


def test_no_public_name_imports_an_extra():
    """Core packages may load an extra that happens to be there; no module of seedbed may."""
    paths = [method.path(public) for method, public in publics()]
    code = f"""
import builtins, json
from importlib import import_module
original, blame = builtins.__import__, set()
def watched(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {{}}).get("__name__", "")
    if level == 0 and importer.startswith("seedbed") and name.partition(".")[0] in {OPTIONAL!r}:
        blame.add(f"{{importer}} imports {{name}}")
    return original(name, globals, locals, fromlist, level)
builtins.__import__ = watched
paths = {paths!r}
for branch in ("datasets", "estimators", "lightning_modules", "optimizers"):
    module = import_module(f"seedbed.{{branch}}")
    paths += [f"seedbed.{{branch}}.{{name}}" for name in module.__all__]
for path in paths:
    module, _, name = path.rpartition(".")
    getattr(import_module(module), name)
print(json.dumps(sorted(blame)))
"""
    assert json.loads(run(code).splitlines()[-1]) == []


def test_mapped_folders_are_loaded_under_seedbed_only(root, monkeypatch):
    assert stray_modules(root) == []
    stray = types.ModuleType("datasets")
    stray.__file__ = str(root / "datasets" / "__init__.py")
    monkeypatch.setitem(sys.modules, "datasets", stray)
    assert stray_modules(root) == ["datasets"]


@pytest.mark.parametrize("name", ["catalog", "checks", "cli", "demos", "doctor", "report", "tour"])
def test_trunk_imports_no_branch(name, root):
    tree = ast.parse((root / "seedbed" / f"{name}.py").read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    branches = tuple(
        f"seedbed.{name}" for name in ("datasets", "estimators", "lightning_modules", "optimizers")
    )
    assert [name for name in names if name.startswith(branches)] == []
