"""Sphinx configuration: the site reads the package's docstrings, the cards and the example scripts."""

from pathlib import Path

from seedbed import __version__
from seedbed.catalog import METHODS

ROOT = Path(__file__).parent.parent
BRANCHES = ("estimators", "optimizers", "lightning_modules", "datasets")

project = "seedbed"
author = "The seedbed developers"
release = version = __version__
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
autosummary_generate = True
numpydoc_show_class_members = False
autodoc_typehints = "none"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]
# Docstrings inherited from scikit-learn refer to its site. Without a network these links stay plain text.
intersphinx_mapping = {"sklearn": ("https://scikit-learn.org/stable", None)}
intersphinx_timeout = 5
html_theme = "alabaster"
html_theme_options = {"description": "ICML 2025 papers as parts you know how to use", "page_width": "64rem"}

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 0,
}


def write_pages(source: Path) -> None:
    """Write the pages that follow from the catalog: one of all public names, one per card.

    Parameters
    ----------
    source : Path
        Sphinx's source folder.
    """
    import importlib

    lines = ["API", "===", ""]
    for branch in BRANCHES:
        module = f"seedbed.{branch}"
        names = sorted(importlib.import_module(module).__all__)
        lines += [module, "-" * len(module), "", f".. currentmodule:: {module}", "", ".. autosummary::"]
        lines += ["   :toctree: generated", "   :nosignatures:", "", *(f"   {name}" for name in names), ""]
    (source / "api.rst").write_text("\n".join(lines), encoding="utf-8")

    cards = source / "cards"
    cards.mkdir(exist_ok=True)
    for method in METHODS:
        card = ROOT / "seeds" / f"{method.slug}.md"
        (cards / card.name).write_text(card.read_text(encoding="utf-8"), encoding="utf-8")
    entries = "\n".join(f"   {method.slug}" for method in METHODS)
    text = f"Methods\n=======\n\n.. toctree::\n   :maxdepth: 1\n\n{entries}\n"
    (cards / "index.rst").write_text(text, encoding="utf-8")


def setup(app: object) -> None:
    """Hook the generated pages into the build.

    Parameters
    ----------
    app : sphinx.application.Sphinx
        The build.
    """
    write_pages(Path(app.srcdir))  # type: ignore[attr-defined]
