"""A temporarily full store: no result is lost, the needed space is reported, and the launch continues by itself."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.record import read_attempt
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.launch import supervisor
from depthrate.orchestrator.worker import attempt_runner, context
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files import local
from depthrate.storage.files.full import StoreFullError, is_full, size_text
from depthrate.storage.files.store import Store, StoreError
from tests.support.clock import Clock
from tests.support.launches import IdleExecutor, attempt_of, drive, job_options, plan_of_depths, spec_of

TASK = """
import depthrate

@depthrate.task(version=1)
def wide(*, depth: int, rows: int, trace: str, context):
    import os, random
    with open(trace, "a") as file:
        file.write(f"{depth}\\n")
    return {"metrics": [{"step": step, "layer": depth, "nc1": random.random()} for step in range(rows)]}
"""


class SmallDisk:
    """Disk that refuses files whose path contains a word, a given number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, word: str, times: int) -> None:
        self.word, self.left, self.refused = word, times, 0
        replace = os.replace

        def full(source: str, target: str) -> None:
            if self.word in str(target) and self.left > 0:
                self.left -= 1
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            replace(source, target)

        monkeypatch.setattr(local.os, "replace", full)
        monkeypatch.setattr(attempt_runner, "FULL_RETRY_INTERVAL_S", 0.01)


def job_of(folder: Store, tmp_path: Path, depths: list[int]) -> AttemptSpec:
    (tmp_path / "wide.py").write_text(TASK)
    params = [{"depth": depth, "rows": 3, "trace": str(tmp_path / "trace")} for depth in depths]
    ids, task = [f"t{depth}" for depth in depths], f"{tmp_path}/wide.py:wide"
    name = "20260101T000000_aaaaaaaaaaaa"
    return spec_of(name, task=task, trial_ids=ids, params=params, options=job_options(folder))


@pytest.mark.parametrize("word", ["/trials/", "/metrics/", "/attempts/"])
def test_finished_rows_are_kept_until_there_is_room(
    folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    disk = SmallDisk(monkeypatch, word, 3)
    attempt = run_job(job_of(folder, tmp_path, [2, 3]), StopFlag())
    assert disk.refused == 3 and attempt.state == "done", attempt.error
    assert take_snapshot(folder).trial_ids() == {"t2", "t3"}
    assert len((tmp_path / "trace").read_text().split()) == 2, "each was trained once"
    assert len(folder.list("metrics")) == len(folder.list("trials")), "the refused commit leaves no files"
    record = read_attempt(folder, "s", attempt.attempt_id)
    assert record is not None and record["state"] == "done"


def test_termination_meanwhile_is_no_failure(folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SmallDisk(monkeypatch, "/trials/", 10**9)
    stop = StopFlag()
    monkeypatch.setattr(attempt_runner.time, "sleep", lambda seconds: stop.set("time is up"))
    assert run_job(job_of(folder, tmp_path, [2]), stop).state == "interrupted"


def test_checkpoint_is_held_on_the_node(folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.tempfile, "gettempdir", lambda: str(tmp_path))
    SmallDisk(monkeypatch, "store/checkpoints/" if "store" in folder.root else f"{folder.root}/checkpoints/", 1)
    job = job_of(folder, tmp_path, [2])

    def opened() -> context.WorkerContext:
        attempt = attempt_of(job.attempt_id, trial_ids=["t2"])
        pruning = attempt_runner.Pruning(job, None)
        return context.WorkerContext(folder, job, None, attempt, StopFlag(), ["t2"], pruning)  # type: ignore[arg-type]

    first = opened()
    first.started -= 100  # it has trained for longer than the next, however slow this machine is
    first.save_checkpoint(b"at step 5")
    assert first.attempt.checkpoints == 1 and not folder.list("checkpoints")
    assert opened().load_checkpoint() == b"at step 5"
    opened().save_checkpoint(b"at step 1")  # there is room again, of an attempt that began elsewhere
    assert opened().load_checkpoint() == b"at step 5", "the one that is further"
    (tmp_path / f"depthrate-kept-{os.getuid()}").chmod(0o777)
    assert opened().load_checkpoint() == b"at step 1", "a folder that others may write to is not believed"
    os.truncate(folder.full_path("checkpoints/p/pack.ckpt"), 10 * 2**30)
    assert opened().load_checkpoint() is None, "far larger than the saved checkpoint"


def test_error_names_file_and_space(folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SmallDisk(monkeypatch, "/fits/", 1)
    with pytest.raises(StoreFullError) as caught:
        folder.write("fits/a.json", b"x" * 1500)
    text = str(caught.value)
    assert f"{folder.root}/fits" in text and "1.5 kB needed for a.json" in text and " free, " in text
    assert is_full(caught.value) and is_full(OSError("store s3://b: ClientError: QuotaExceeded"))
    assert not is_full(OSError(errno.EIO, "Input/output error")) and not is_full(ValueError("QuotaExceeded"))
    assert [size_text(count) for count in (5, 1500, 2e6, 3e9)] == ["5 B", "1.5 kB", "2 MB", "3 GB"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]).returncode:
        pytest.skip("only root mounts file systems")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_a_store_that_fills_and_is_enlarged(small_disk: Path, tmp_path: Path) -> None:
    """Check that one launch exits with code 0 and trains every trial once."""
    (tmp_path / "wide.py").write_text(TASK)
    trace = tmp_path / "trace"
    lines = ["name: s", f"task: {tmp_path}/wide.py:wide", f"params: {{rows: 12000, trace: {trace}}}"]
    (tmp_path / "s.yaml").write_text("\n".join([*lines, f"grid: {{depth: {list(range(16))}}}"]))
    store = small_disk / "store"
    words = ["run", str(tmp_path / "s.yaml"), "--store", str(store), "--workers", "2"]
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen([sys.executable, "-m", "depthrate", *words], stdout=out, stderr=subprocess.STDOUT)
    until = time.monotonic() + 120
    while " is full" not in (output := (tmp_path / "out").read_text()) and time.monotonic() < until:
        assert run.poll() is None, output
        time.sleep(0.2)
    assert f"store {store} is full" in output and "Nothing is lost. Free some space to continue." in output
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert run.wait(timeout=240) == 0, (tmp_path / "out").read_text()
    assert results_of(Store(str(store))).sql("select count(*) from trials").fetchall() == [(16,)]
    assert len(trace.read_text().split()) == 16, "nothing was trained twice"


def test_failed_write_with_free_space(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota is not in the file system's free space."""
    entry = SimpleNamespace(beat={"needs_bytes": 176_000})

    class Full(supervisor.AttemptSupervisor):
        def __init__(self) -> None:
            self._store, self.running = folder, {"a": entry}  # type: ignore[dict-item]

    noted: list[str] = []
    monkeypatch.setattr(supervisor, "log_event", lambda _, text, **__: noted.append(text))
    monkeypatch.setattr(supervisor, "free_bytes", lambda _: 5_710_000)
    Full()._check_store()
    assert "a write failed although 5.71 MB are free" in noted[0] and "176 kB" in noted[0]


def test_a_full_disk_is_called_one(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store) -> None:
        raise StoreError(f"store {self.url!r} cannot be written: [Errno 28] No space left on device")

    monkeypatch.setattr(Store, "check_writable", full)
    outcome = drive(plan_of_depths(folder, 1), folder, IdleExecutor(), clock=Clock(step_s=5.0))
    assert "No space left on device" in outcome.failures[0].error
