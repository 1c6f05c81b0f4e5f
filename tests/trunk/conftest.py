"""Shared by the trunk's tests."""

import pytest
from trunk.stray import stray_modules


@pytest.fixture(scope="session")
def root(request):
    """Root of the checkout."""
    return request.config.rootpath


@pytest.fixture(autouse=True, scope="session")
def _no_stray_modules(root):
    """At the end of the session, no mapped folder was imported under its bare name."""
    yield
    assert stray_modules(root) == []
