import ast
import inspect
import re
import typing
from importlib import import_module
from inspect import isabstract

import pytest
from lightning.pytorch import Callback
from sklearn.base import BaseEstimator
from torch import nn
from torch.optim import Optimizer

from seedbed import catalog
from seedbed.catalog import METHODS, Method, Public, get, load, publics

EVERY = [pytest.param(method, id=method.slug) for method in METHODS]
PUBLIC = [
    pytest.param(method, public, id=f"{method.slug}-{public.name}")
    for method in METHODS
    for public in method.public
]
KINDS = typing.get_args(catalog.Kind)


def test_slugs_and_names_are_unique():
    slugs = [method.slug for method in METHODS]
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", slug) for slug in slugs)
    paths = [method.path(public) for method, public in publics()]
    assert len(set(paths)) == len(paths)


def test_get():
    assert get("cojer").slug == "cojer"
    with pytest.raises(KeyError, match=r"no method 'nope'; there are .*cojer"):
        get("nope")


def test_publics_filters_by_kind():
    every = publics()
    assert every
    assert len(every) == sum(len(method.public) for method in METHODS)
    assert all(public.kind == "estimator" for _, public in publics("estimator"))
    assert sum(len(publics(kind)) for kind in KINDS) == len(every)


def test_path():
    method = Method("a", "t", "x", "w", "u", "s", "estimators", ())
    assert method.path(Public("B", "estimator")) == "seedbed.estimators.B"
    assert method.path(Public("seedbed.datasets.C", "function")) == "seedbed.datasets.C"
    assert method.module == "seedbed.estimators.a"


@pytest.mark.parametrize("method", EVERY)
def test_entry_is_complete(method):
    for name in ("title", "authors", "where", "summary"):
        assert getattr(method, name).strip(), name
    assert method.url.startswith("https://")
    assert method.public, "a method has public names"
    assert len(method.summary) <= 110


@pytest.mark.parametrize("method", EVERY)
def test_every_file_is_there(method, root):
    wanted = [
        f"seeds/{method.slug}.md",
        f"examples/{method.slug}.py",
        f"benchmarks/{method.slug}.py",
        f"benchmarks/results/{method.slug}.json",
        f"{method.folder}/{method.slug}/demo.py",
        f"tests/references/{method.slug}.py",
    ]
    assert [path for path in wanted if not (root / path).is_file()] == []
    assert list((root / "tests").glob(f"{method.folder}/test_{method.slug}*.py"))


@pytest.mark.parametrize("method", EVERY)
def test_demo_and_benchmark_have_the_agreed_interface(method):
    demo = method.demo()
    assert list(inspect.signature(demo).parameters) == ["report"]
    benchmark = import_module(f"benchmarks.{method.slug}")
    assert list(inspect.signature(benchmark.run).parameters) == ["size"]
    assert isinstance(benchmark.PACKAGES, tuple)
    assert all(isinstance(name, str) for name in benchmark.PACKAGES)


@pytest.mark.parametrize("method", EVERY)
def test_card(method, root):
    text = (root / "seeds" / f"{method.slug}.md").read_text(encoding="utf-8")
    assert method.title in " ".join(text.split())
    assert text.count("<!-- results:begin -->") == text.count("<!-- results:end -->") == 1
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert any({"not", "use"} <= set(heading.lower().split()) for heading in headings), "when not to use it"


@pytest.mark.parametrize("method", EVERY)
def test_example_is_a_gallery_script(method, root):
    text = (root / "examples" / f"{method.slug}.py").read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "a gallery script opens with its title"
    assert text.count("\n# %%") >= 2


@pytest.mark.parametrize("method", EVERY)
def test_extras_exist(method):
    from importlib.metadata import metadata

    assert set(method.extras) <= set(metadata("seedbed").get_all("Provides-Extra"))


@pytest.mark.parametrize(("method", "public"), PUBLIC)
def test_public_name_resolves(method, public):
    assert public.kind in KINDS
    path = method.path(public)
    found = load(path)
    assert callable(found)
    module, _, name = path.rpartition(".")
    assert found.__name__ == name
    assert found.__module__.startswith("seedbed.")
    assert name in import_module(module).__all__
    if public.data is not None:
        assert load(public.data).__name__ == public.data.rpartition(".")[2]


@pytest.mark.parametrize(("method", "public"), PUBLIC)
def test_public_name_is_documented(method, public):
    found = load(method.path(public))
    doc = inspect.getdoc(found) or ""
    assert doc.splitlines(), "no docstring"
    assert doc.splitlines()[0].endswith("."), "the first line is a sentence"
    # C code and builtins aside, whatever takes arguments says what they are
    names = [
        name
        for name, parameter in inspect.signature(found).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if names:
        assert re.search(r"^Parameters\n-+$", doc, re.MULTILINE), "no Parameters section"
    section = re.split(r"^\w[\w ]*\n-{3,}$", doc[doc.find("Parameters\n") + 1 :], flags=re.MULTILINE)
    listed = " ".join(
        line for line in (section[1] if len(section) > 1 else "").splitlines() if line[:1].strip()
    )
    missing = [name for name in names if not re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", listed)]
    assert missing == []
    if inspect.isclass(found):
        assert ">>> " in doc, "no doctest example"


@pytest.mark.parametrize("branch", ["datasets", "estimators", "lightning_modules", "optimizers"])
def test_every_name_of_a_branch_resolves(branch):
    module = import_module(f"seedbed.{branch}")
    assert module.__all__
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert load(f"seedbed.{branch}.{name}").__doc__, name


def test_branches_hold_nothing_the_catalog_does_not_know():
    """An estimator, optimizer, module or callback outside the catalog would escape the conformance tests."""
    bases = (BaseEstimator, Optimizer, nn.Module, Callback)
    public = {
        load(f"seedbed.{branch}.{name}"): f"seedbed.{branch}.{name}"
        for branch in ("estimators", "lightning_modules", "optimizers")
        for name in import_module(f"seedbed.{branch}").__all__
    }
    known = {method.path(public) for method, public in publics()}
    assert {
        path
        for found, path in public.items()
        if isinstance(found, type) and issubclass(found, bases) and not isabstract(found)
    } <= known
