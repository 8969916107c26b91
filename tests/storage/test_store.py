"""The files of a store and of data sets, by URL."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest

import depthrate
from depthrate.storage.files.data_folder import CachedDataFolder, DataFolder, worker_data_folder
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store, StoreError
from tests.support.tests_rows import commit


def test_round_trip_replace_list_delete(store: Store) -> None:
    assert store.list() == {} and store.list("trials") == {}
    with pytest.raises(FileNotFoundError):
        store.read("nothing")
    store.write("a/b.txt", b"one")
    store.write("a/b.txt", b"three")
    store.write("a/c/d.txt", b"")
    assert store.read("a/b.txt") == b"three"
    assert store.list() == {"a/b.txt": 5, "a/c/d.txt": 0}
    assert store.list("a/c") == {"a/c/d.txt": 0}
    assert store.size("a/b.txt") == 5 and store.size("nothing") is None
    store.delete("a/c")
    store.delete("never there")
    assert store.list() == {"a/b.txt": 5}


def test_a_store_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write to store.*--store or DEPTHRATE_STORE"):
        Store(str(tmp_path / "file" / "store")).check_writable()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_content(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("x", b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="the file system is full"):
        folder.write("x", b"new", durable=True)
    assert folder.read("x") == b"old"
    assert os.listdir(folder.root) == ["x"], "nothing is left beside it"


def _write_for_ever(root: str) -> None:
    store, size = Store(root), 3_000_000
    for number in range(10**6):
        store.write("x", bytes([number % 256]) * size)


@pytest.mark.slow
def test_a_killed_writer_never_leaves_a_torn_file(folder: Store) -> None:
    context = multiprocessing.get_context("spawn")
    for delay in (0.0, 0.011, 0.023, 0.05):
        process = context.Process(target=_write_for_ever, args=(folder.root,))
        process.start()
        while folder.size("x") is None:
            time.sleep(0.01)
        time.sleep(delay)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        content = folder.read("x")
        assert len(content) == 3_000_000 and len(set(content)) == 1
        assert list(folder.list()) == ["x"], "a file being written is not listed"


def test_many_at_once(store: Store) -> None:
    for number in range(40):
        store.write(f"a/{number:02d}", str(number).encode())
    store.write("b/x", b"other")
    contents = list(store.read_many([*(f"a/{number:02d}" for number in range(40)), "a/none"]))
    assert [content for _, content in contents[:-1]] == [str(number).encode() for number in range(40)]
    assert contents[-1][0] == "a/none" and isinstance(contents[-1][1], FileNotFoundError)
    assert len(store.list_many(["a", "b", "none"])) == 41
    store.delete_many([f"a/{number:02d}" for number in range(1, 50)])
    store.delete_many([])
    assert store.list() == {"a/00": 1, "b/x": 5}


def test_move(store: Store) -> None:
    store.write("a/b", b"content")
    store.move("a/b", "quarantine/now/a/b")
    assert store.list() == {"quarantine/now/a/b": 7}
    with pytest.raises(FileNotFoundError):
        store.move("a/b", "c")


def test_modified_is_the_time_of_the_write(store: Store) -> None:
    store.write("a", b"")
    modified = store.modified("a")
    assert modified is not None and abs(modified - time.time()) < 30
    assert store.modified("nothing") is None


def test_killed_writers_leftovers_are_found(folder: Store) -> None:
    folder.write("metrics/a", b"whole")
    draft = Path(folder.root, "metrics", ".b.parquet.0123.tmp")
    draft.write_bytes(b"half")
    assert folder.unfinished_writes(older_than_s=60) == [], "it may be under way"
    os.utime(draft, (1, 1))
    assert folder.unfinished_writes(older_than_s=60) == ["metrics/.b.parquet.0123.tmp"]
    folder.remove_unfinished("metrics/.b.parquet.0123.tmp")
    assert not draft.exists() and folder.unfinished_writes(older_than_s=60) == []


def test_data_folder_finds_the_first_name(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "b.gz").write_bytes(b"content")
    source = DataFolder(str(tmp_path))
    assert source.find("mnist", ["a", "b.gz"]) == "mnist/b.gz"
    assert source.read("mnist/b.gz") == b"content"
    assert source.find("other", ["a"]) is None


def test_oversized_files_are_not_read(folder: Store) -> None:
    for path in ("sweeps/s/cancel", "sweeps/s/aaaa.json", "manifest/sweep=s/m.json", "trials/sweep=s/a.parquet"):
        folder.write(path, b"")
        with Path(folder.root, path).open("wb") as file:
            file.truncate(10 * 2**30)
        with pytest.raises(InvalidFileError, match=r"it has 10\.7 GB, expected at most .*Move it away"):
            folder.read(path)
    folder.write("checkpoints/p/a.ckpt", b"x" * 100)
    assert len(folder.read("checkpoints/p/a.ckpt", 100)) == 100
    with pytest.raises(InvalidFileError, match="has 100 B, expected at most 99 B"):
        folder.read("checkpoints/p/a.ckpt", 99)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket//x", "s3://", "s3:///x", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket/./x", "gs://b//x"),
        *(
            "nosuch://x",
            "github://x",
            "reference://x",
            "jupyter://x",
            "generic://x",
            "dir://x",
            "zip://no-such-file.zip",
        ),
        *("a\0b", "s3://bucket/a\0b", b"bytes", 7, None, ["a"]),
    ],
)
def test_invalid_url_is_refused(url: object) -> None:
    with pytest.raises(StoreError, match=r"(?s)cannot open .*://bucket"):
        Store(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/a/b/"])
def test_bucket_and_folder_urls(url: str) -> None:
    pytest.importorskip("s3fs")
    assert Store(url).root in ("bucket", "bucket/a/b")


def test_a_path_names_a_folder(tmp_path: Path) -> None:
    commit(Store(tmp_path / "store"), "20260101T000000_aaaaaaaaaaaa", ["t1"])
    assert depthrate.open(tmp_path / "store").sql("select trial_id from trials").fetchall() == [("t1",)]


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


def test_concurrent_readers_copy_once(source: Path, tmp_path: Path, opened: list[str]) -> None:
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


def test_truncated_copy_is_discarded(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = CachedDataFolder(str(source), str(tmp_path / "node"))
    with monkeypatch.context() as patch:
        patch.setattr("depthrate.storage.files.data_folder.os.replace", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            data.read("mnist/images")
    (copies,) = (tmp_path / "node").glob("*/*")
    assert not [path for path in copies.iterdir() if not path.name.endswith(".lock")]
    assert data.read("mnist/images") == b"first"


def test_unusable_cache_is_skipped(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert CachedDataFolder(str(source), str(tmp_path / "file")).read("mnist/images") == b"first"
    assert "data cache unusable" in caplog.text
    caplog.clear()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert CachedDataFolder(str(source), str(tmp_path / "node")).read("mnist/images") == b"first"
    assert "belongs to another user" in caplog.text, "what others put there may be anything"


def test_workers_read_through_the_cache(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(worker_data_folder(str(source))) is DataFolder
    monkeypatch.setenv("DEPTHRATE_DATA_CACHE", str(source / "cache"))
    assert type(worker_data_folder(str(source))) is CachedDataFolder
