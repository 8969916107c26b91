"""Processes of ours import what is installed, whatever lies in the folder where they are started."""

import subprocess
from pathlib import Path

import pytest

from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.orchestrator.launch.launch import AutoCompactor
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.tasks.python_process import start_python
from tests.support.tests_rows import commit


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that modules in the working folder write when they are imported: installed ones, Python's own, and ours."""
    mark, folder = tmp_path / "executed", tmp_path / "working"
    folder.mkdir()
    for name in ("depthrate", "gzip", "pandas", "tempfile", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name} ')\nraise SystemExit(3)\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return mark


def test_working_folder_module_is_not_executed(executed: Path) -> None:
    given = {"PYTHONSAFEPATH": "", "COLUMNS": "77"}
    process = start_python("depthrate", "--version", variables=given, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0].strip() and process.returncode == 0 and not executed.exists()


@pytest.mark.slow
def test_nor_by_workers_compactions_and_drawing(executed: Path, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    for number in range(2):
        commit(store, f"20260101T000000_{number:012x}", [f"t{number}"], sweep="s")
    executor = LocalExecutor(1)
    worker = executor._start(0).process
    executor.close()
    assert worker.returncode == 0
    compactor = AutoCompactor(store.address, threshold=1)
    assert compactor.refresh(take_snapshot(store))
    compactor.close(wait=True)
    assert len(take_snapshot(store).sources) == 1, "it has compacted"
    assert not executed.exists()
