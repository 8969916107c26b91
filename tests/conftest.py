"""Fixtures for all tests: a clean environment, stores of every kind, a small sweep."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from s3_server import S3Server, s3_server

from storage.files import Files

os.environ["OMP_NUM_THREADS"] = "1"  # before any import of torch: tests run side by side, and waiting threads spin

TINY = {
    "name": "tiny",
    "task": "collapse",
    "params": {"arch": "rn1", "samples_per_class": 5, "steps": 40, "width": 16},
    "grid": {"depth": [2, 3]},
    "seeds": 2,
    "fit": [{"metric": "nc1"}, {"metric": "objective_gap"}],
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the user's own store out of the tests."""
    monkeypatch.delenv("DEPTHRATE_STORE", raising=False)


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    pytest.importorskip("moto.server", reason="needs pip install 'moto[server]'")
    pytest.importorskip("s3fs", reason="needs pip install s3fs")
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A real S3 server, to which this process and those it starts are led by the usual environment variables."""
    from s3fs import S3FileSystem

    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # an instance made before knows another environment
    _s3_server.reset()
    yield _s3_server
    S3FileSystem.clear_instance_cache()


@pytest.fixture(params=["folder", "memory", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """An empty store of each kind: what uses it is the suite that every kind has to pass."""
    if request.param == "s3":
        return Files(request.getfixturevalue("s3").new_url())
    return Files(str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def folder(tmp_path: Path) -> Files:
    """An empty store in a folder."""
    return Files(str(tmp_path / "store"))


@pytest.fixture
def tiny_sweep(tmp_path: Path) -> Path:
    """A sweep file of four trials that train in a second."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def is_root() -> bool:
    """Whether permissions do not bind this process."""
    return os.geteuid() == 0
