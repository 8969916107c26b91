"""Native tests build their libraries in one folder of their own: each library once a test run."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def built_libraries(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("native")))
        yield


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
