"""The wheel holds everything, and works installed, away from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from trunk.stray import FOLDERS

from seedbed.catalog import METHODS

KEPT_OUT = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "lightning_logs", "tests", "docs", "results"
)


def run(*command, **options):
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    # built from a copy, so that no build folder is left in the checkout and none from before gets in
    source = tmp_path_factory.mktemp("source") / "seedbed"
    shutil.copytree(root, source, ignore=KEPT_OUT)
    target = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source),
        cwd=target,
    )  # fmt: skip
    (found,) = target.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def members(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def packages_on_disk(root):
    """Import names of every folder with Python files under the trunk and the mapped folders."""
    names = set()
    for top in ("seedbed", *FOLDERS):
        prefix = "seedbed" if top == "seedbed" else f"seedbed.{top}"
        for path in (root / top).rglob("*.py"):
            relative = path.parent.relative_to(root / top)
            names.add(".".join([prefix, *relative.parts]))
    return names


def test_every_package_is_listed(root):
    listed = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "packages"
    ]
    assert set(listed) == packages_on_disk(root)
    assert len(listed) == len(set(listed))
    for package in listed:
        parts = package.split(".")[1:]
        folder = root.joinpath(*parts) if parts else root / "seedbed"
        assert (folder / "__init__.py").is_file(), package


def test_wheel_holds_every_file(root, members):
    wanted = set()
    for top in ("seedbed", *FOLDERS):
        prefix = Path("seedbed") if top == "seedbed" else Path("seedbed") / top
        for path in (root / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                wanted.add((prefix / path.relative_to(root / top)).as_posix())
    assert wanted - members == set()
    assert {"seedbed/py.typed", "seedbed/report.css", "seedbed/estimators/__init__.pyi"} <= members
    for method in METHODS:
        assert f"seedbed/{method.folder}/{method.slug}/demo.py" in members


def test_wheel_holds_nothing_else(members):
    stray = {name.partition("/")[0] for name in members}
    assert {name for name in stray if name != "seedbed" and not name.endswith(".dist-info")} == set()
    assert any(name.endswith("licenses/LICENSE") for name in members)
    assert not any(name.endswith((".pyc", ".so", ".json")) for name in members)


def test_installed_wheel_works_away_from_the_checkout(wheel, tmp_path):
    """In a fresh environment that borrows only the dependencies of this one."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    paths = {key: str(home) for key in ("base", "platbase")}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=paths))
    python = Path(sysconfig.get_path("scripts", scheme="venv", vars=paths)) / "python"
    run(
        sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--quiet",
        "--disable-pip-version-check", "--target", str(site), str(wheel),
    )  # fmt: skip
    # A folder named in a .pth file is a plain path entry: the .pth files inside it, and with them the
    # checkout's editable finder, are not read.
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n", encoding="utf-8")
    code = f"""
import sys
from importlib import import_module
from pathlib import Path
import seedbed
site = Path({str(site)!r}).resolve()
def inside(module):
    assert site in Path(module.__file__).resolve().parents, module.__file__
inside(seedbed)
count = 0
for branch in {FOLDERS!r}:
    module = import_module(f"seedbed.{{branch}}")
    inside(module)
    for name in module.__all__:
        found = getattr(module, name)
        owner = sys.modules[getattr(found, "__module__", module.__name__)]
        if owner.__name__.startswith("seedbed"):
            inside(owner)
        count += 1
from seedbed.catalog import METHODS
for method in METHODS:
    method.demo()
assert not [name for name in sys.modules if name.startswith("__editable__")]
print(count)
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    assert int(run(str(python), "-c", code, cwd=tmp_path, env=clean)) > 0
    shown = run(str(python), "-m", "seedbed", "list", "--json", cwd=tmp_path, env=clean)
    assert all(method.slug in shown for method in METHODS)
