"""Data sets cached on a node: copied once for all readers, again after a change, and never a reason to fail."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from depthrate.storage.files.data_folder import CachedDataFolder, DataFolder, worker_data_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    (tmp_path / "data" / "mnist" / "images").write_bytes(b"first")
    return tmp_path / "data"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the reads of the original files."""
    paths: list[str] = []

    def note(self: Any, path: str, really: Any = DataFolder.open) -> IO[bytes]:
        paths.append(path)
        file: IO[bytes] = really(self, path)
        return file

    monkeypatch.setattr(DataFolder, "open", note)
    return paths


def test_a_file_is_copied_once_however_many_want_it(source: Path, tmp_path: Path, opened: list[str]) -> None:
    cache = str(tmp_path / "node")
    with ThreadPoolExecutor(8) as pool:  # each with its own lock, like processes
        jobs = [pool.submit(CachedDataFolder(str(source), cache).read, "mnist/images") for _ in range(32)]
    assert {job.result() for job in jobs} == {b"first"} and opened == ["mnist/images"]
    with CachedDataFolder(str(source), cache).open("mnist/images") as file:
        assert file.read() == b"first" and len(opened) == 1
    assert CachedDataFolder(str(source), cache).find("mnist", ["labels", "images"]) == "mnist/images"


def test_a_file_that_changes_is_copied_anew(source: Path, tmp_path: Path, opened: list[str]) -> None:
    data = CachedDataFolder(str(source), str(tmp_path / "node"))
    data.read("mnist/images")
    (source / "mnist" / "images").write_bytes(b"other")
    os.utime(source / "mnist" / "images", (1, 1))
    assert data.read("mnist/images") == b"other" and len(opened) == 2
    twin = tmp_path / "twin" / "mnist"
    twin.mkdir(parents=True)
    (twin / "images").write_bytes(b"third")
    assert CachedDataFolder(str(twin.parent), str(tmp_path / "node")).read("mnist/images") == b"third"


def test_a_copy_that_was_cut_off_is_no_copy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = CachedDataFolder(str(source), str(tmp_path / "node"))
    with monkeypatch.context() as patch:
        patch.setattr(
            "depthrate.storage.files.data_folder.os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            data.read("mnist/images")
    (copies,) = (tmp_path / "node").glob("*/*")
    assert not [path for path in copies.iterdir() if not path.name.endswith(".lock")]
    assert data.read("mnist/images") == b"first"


def test_a_cache_that_cannot_be_used_costs_time_only(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert CachedDataFolder(str(source), str(tmp_path / "file")).read("mnist/images") == b"first"
    assert "data cache unusable" in caplog.text
    caplog.clear()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert CachedDataFolder(str(source), str(tmp_path / "node")).read("mnist/images") == b"first"
    assert "belongs to another user" in caplog.text, "what others put there may be anything"


def test_workers_read_through_the_cache_where_one_is_set(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(worker_data_folder(str(source))) is DataFolder
    monkeypatch.setenv("DEPTHRATE_DATA_CACHE", str(source / "cache"))
    assert type(worker_data_folder(str(source))) is CachedDataFolder
