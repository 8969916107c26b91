"""-o writes files whole, creates their folders, and writes into devices, pipes and links without replacing them."""

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from depthrate.orchestrator.console.output_file import output_file
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.files.store import Store
from tests.support.here import invoke, refused
from tests.support.tests_rows import commit

SQL = "select trial_id from trials"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path / "store"))
    commit(made, "20260101T000000_aaaaaaaaaaaa", ["t1"])
    return made


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def query(store: Store, output: object, *more: str) -> tuple[int, str]:
    return invoke("query", SQL, "--store", store.url, "-o", output, *more)


def test_link_target_is_written(store: Store, tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("a long content of before\n" * 10)
    link.symlink_to(target)
    assert query(store, link)[0] == 0
    assert link.is_symlink() and target.read_text() == "trial_id\nt1\n"


def test_a_pipe_is_written_into(store: Store, tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert query(store, pipe, "--format", "csv")[0] == 0
    reader.join(timeout=30)
    assert read == ["trial_id\nt1\n"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_one(store: Store, tmp_path: Path) -> None:
    """Not /dev/null itself: where this fails, root would lose it."""
    link = tmp_path / "null.parquet"
    link.symlink_to("/dev/null")
    assert query(store, link)[0] == 0 and link.is_symlink() and stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("format", ["csv", "json", "parquet", "txt"])
def test_file_is_written_atomically(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"rows.{format}"
    path.write_text("before")
    with pytest.raises(KeyError), output_file(path) as stream:
        stream.write("half")
        raise KeyError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("given", ["", ".", "{folder}", "{folder}/file/rows.csv", "{folder}/file/none/rows.csv"])
def test_impossible_path_is_refused_early(store: Store, tmp_path: Path, given: str) -> None:
    (tmp_path / "file").write_text("mine")
    code, output = query(store, given.format(folder=tmp_path))
    assert code == 2 and "cannot write" in output
    assert "cannot write" in refused("report", "s", "--store", store.url, "-o", given.format(folder=tmp_path))


def test_a_folder_is_created(store: Store, tmp_path: Path) -> None:
    assert query(store, tmp_path / "new" / "inner" / "rows.csv")[0] == 0
    assert (tmp_path / "new" / "inner" / "rows.csv").read_text() == "trial_id\nt1\n"


def test_what_the_system_refuses_is_named(store: Store) -> None:
    code, output = query(store, "/proc/none/rows.csv")
    assert code == 2 and "cannot write /proc/none/rows.csv" in output


@pytest.mark.parametrize("made", [os.mkfifo, make_socket])
@pytest.mark.parametrize("words", [["query", SQL, "-o"], ["query", SQL, "--format", "parquet", "-o"]])
def test_a_pipe_that_no_program_reads_is_refused(
    store: Store, tmp_path: Path, made: Callable[[Path], None], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depthrate.orchestrator.console.output_file.READER_TIMEOUT_S", 0.2)
    write_spec(store, "s", "s1", {"name": "s", "task": "collapse"}, ["t1"])
    made(tmp_path / "x.csv")
    assert "no program reads" in refused(*words, tmp_path / "x.csv", "--store", store.url)
    assert not stat.S_ISREG((tmp_path / "x.csv").lstat().st_mode)


def test_figures_go_into_a_folder(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    words = ["report", "s", "--store", store.url, "-o", tmp_path / "r.html", "--figures", file]
    assert "is not a folder" in refused(*words) and file.read_text() == "mine"
