"""The doctests of every module of the package.

They run on imported modules: collecting them by path would import the mapped folders' files a second time,
under another name.
"""

import doctest
import inspect
import pkgutil
from importlib import import_module

import pytest
from trunk.stray import FOLDERS

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Finder(doctest.DocTestFinder):
    """Also finds the examples of functions that the shape checker has wrapped."""

    def _from_module(self, module, found):
        return super()._from_module(module, inspect.unwrap(found))


def modules():
    """Names of all modules of the package."""
    names = ["seedbed"]
    # In an editable install the folders lie outside the package's own directory
    for parent in ("seedbed", *(f"seedbed.{folder}" for folder in FOLDERS)):
        names.append(parent)
        names += [info.name for info in pkgutil.walk_packages(import_module(parent).__path__, f"{parent}.")]
    return sorted({name for name in names if not name.endswith("__main__")})


def run(module):
    """Run a module's examples; returns attempted and failed."""
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in Finder().find(module, module.__name__):
        runner.run(test)
    return runner.summarize(verbose=False)


def test_the_mapped_folders_are_walked():
    names = set(modules())
    assert {f"seedbed.{folder}" for folder in FOLDERS} <= names
    assert any(name.startswith("seedbed.estimators.") for name in names)


def test_wrapped_functions_are_found():
    def example():
        """>>> 1 + 1
        3
        """

    def wrapper():
        return example()

    wrapper.__wrapped__ = example
    wrapper.__doc__, wrapper.__name__, wrapper.__module__ = example.__doc__, "example", "toy"
    toy = type(doctest)("toy")
    example = type(example)(example.__code__, toy.__dict__, "example", None, example.__closure__)
    wrapper.__wrapped__ = example
    toy.example = wrapper
    found = [test for test in Finder().find(toy, "toy") if test.examples]
    assert [test.name for test in found] == ["toy.example"]


@pytest.mark.parametrize("name", modules())
def test_doctests(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write files
    assert run(import_module(name)).failed == 0
