"""Shared set-up: shape checks on, one thread, no test touches the global random state."""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")

from jaxtyping import install_import_hook

# Before any of these is imported: every annotated shape is checked while the tests run.
install_import_hook(
    ["seedbed.fitting", "seedbed.lightning_modules", "seedbed.optimizers"], "beartype.beartype"
)

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _settings_of_scikit_learn():
    """A test that leaves other settings of scikit-learn behind fails itself, not the one after it."""
    sklearn = sys.modules.get("sklearn")
    before = None if sklearn is None else sklearn.get_config()
    yield
    if before is not None:
        after = sklearn.get_config()
        sklearn.set_config(**before)
        assert after == before, "settings of scikit-learn were changed"
