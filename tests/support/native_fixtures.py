"""Fixtures of the native tests: libraries are built in one folder, each once per test run, whatever the number of workers."""

import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def built_libraries(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own below that of the run
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "native-cache"))
        yield


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
