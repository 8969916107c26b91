"""Fixtures for the tests of tasks: an import path of their own."""

import sys
from collections.abc import Iterator

import pytest

from depthrate.tasks.code import load


@pytest.fixture
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the import path and the modules of the other tests as they were, and see nothing of theirs."""
    load.activate(None)  # the code of the task that was loaded last would be looked in first
    monkeypatch.setattr(load, "_inactive", {})
    path, modules = list(sys.path), set(sys.modules)
    yield
    load.activate(None)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
