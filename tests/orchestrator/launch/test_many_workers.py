"""Costs of a large sweep: requests per pack, heartbeats per node, polls that read only changes."""

import errno
import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from depthrate.orchestrator.api.status import SchedulerPoller
from depthrate.orchestrator.attempts.record import read_attempt
from depthrate.orchestrator.executors.base import JobCounts, SchedulerAnswer
from depthrate.orchestrator.worker.node_heartbeat import NodeHeartbeat
from depthrate.storage.attempts.heartbeats import NodeHeartbeats, write_heartbeats
from depthrate.storage.attempts.records import RecordReader, read_loose_records
from depthrate.storage.files.paths import attempt_path, heartbeat_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState
from tests.support.clock import Clock
from tests.support.counted_files import CountedFileSystem
from tests.support.launches import attempt_of
from tests.support.thousand_workers import simulate


@pytest.mark.slow
@pytest.mark.parametrize("as_jobs", [False, True])
def test_requests_a_pack_are_few_and_flat(tmp_path: Path, as_jobs: bool) -> None:
    few, many = (
        simulate(tmp_path, workers=40, packs=packs, pack_s=30, delay_s=0, as_jobs=as_jobs) for packs in (80, 240)
    )
    assert few.per_pack < 12 and many.per_pack < 12, (few.kinds, many.kinds)
    assert many.per_pack < few.per_pack + 0.5, "not more of them the more packs there are"
    assert many.requests["workers"] == 8 * 240, "record twice, checkpoint, four for the commit, log"
    assert many.kinds["driver", "read"] < 4 * 240


def test_what_has_not_changed_is_not_read_again() -> None:
    store = Store("counted://reads")
    assert isinstance(store.fs, CountedFileSystem)
    for name in ("a", "b", "c"):
        attempt_of(name).beat(store)
    write_heartbeats(store, "s", "n1", {"a": {"heartbeat_at": time.time() + 5, "step": 7}})
    reader = RecordReader(store, "s")
    everything = reader.refresh(lambda path: True)
    assert everything[attempt_path("s", "a")]["step"] == 7 and len(everything) == 3
    before = store.fs.requests["driver", "read"]
    assert reader.refresh(lambda path: True) == everything
    assert store.fs.requests["driver", "read"] == before, "two listings, nothing else"
    attempt_of("b", state=AttemptState.DONE).beat(store)
    assert reader.refresh(lambda path: True)[attempt_path("s", "b")]["state"] is AttemptState.DONE
    assert store.fs.requests["driver", "read"] == before + 1
    store.delete_many([attempt_path("s", "b")])
    assert len(reader.refresh(lambda path: True)) == 2


def test_heartbeats_describe_running_attempts(folder: Store) -> None:
    attempt_of("a").write(folder)
    attempt_of("b", state=AttemptState.FAILED, step=3).write(folder)
    later = time.time() + 10
    write_heartbeats(folder, "s", "n", {name: {"heartbeat_at": later, "step": 9, "num_steps": 10} for name in "ab"})
    records = {r["attempt_id"]: r for _, r in read_loose_records(folder, folder.list("attempts"))}
    assert (records["a"]["step"], records["a"]["heartbeat_at"]) == (9, later) and records["b"]["step"] == 3
    record = read_attempt(folder, "s", "a")
    assert record is not None and record["num_steps"] == 10


@pytest.mark.parametrize("content", [b"", b"[]", b'{"at": "x", "attempts": {}}', b'{"at": 1, "attempts": {"a": 3}}'])
def test_what_is_no_beat_is_left_out(folder: Store, content: bytes) -> None:
    attempt_of("a").write(folder)
    folder.write(heartbeat_path("s", "n"), content)
    ((_, record),) = read_loose_records(folder, folder.list("attempts"))
    assert record["step"] == 0 and NodeHeartbeats(folder, "s").poll() == {}


def test_wrong_node_clock_is_corrected(folder: Store) -> None:
    wrong = time.time() - 7200
    beat = {"at": wrong, "attempts": {"a": {"heartbeat_at": wrong - 3, "step": 1}}}
    folder.write(heartbeat_path("s", "n"), json.dumps(beat).encode())
    assert abs(NodeHeartbeats(folder, "s").poll()["a"]["heartbeat_at"] - (time.time() - 3)) < 2


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The node's folder in which its workers share heartbeats."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    yield tmp_path / "tmp"


def _beat_once(store: str, name: str, ready: Any, go_on: Any) -> None:
    node = NodeHeartbeat(Store(store), attempt_of(name, step=5), 0.2)
    node.beat()
    ready.set()
    go_on.wait(20)


def test_node_reporter_is_replaced(folder: Store, here: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, go_on = context.Event(), context.Event()
    first = context.Process(target=_beat_once, args=(folder.root, "a", ready, go_on))
    first.start()
    assert ready.wait(20)
    second = NodeHeartbeat(folder, attempt_of("b", step=6), 30.0)
    second.beat()
    assert NodeHeartbeats(folder, "s").poll().keys() == {"a"}, "the first reports, and has not reported since"
    first.kill()
    first.join()
    second.beat()
    assert len(folder.list("beats")) == 1 and NodeHeartbeats(folder, "s").poll()["b"]["step"] == 6
    assert folder.list("attempts") == {}, "records are not written for it"
    second.close()
    assert not list(here.rglob("b.json"))


def test_a_host_may_have_any_name(folder: Store, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "café_2")
    node = NodeHeartbeat(folder, attempt_of("a", step=5), 1.0)
    node.beat()
    node.close()
    assert NodeHeartbeats(folder, "s").poll()["a"]["step"] == 5


@pytest.mark.parametrize("is_full_at_first", [True, False])
def test_reporter_disk_full(folder: Store, here: Path, monkeypatch: pytest.MonkeyPatch, is_full_at_first: bool) -> None:
    node = NodeHeartbeat(folder, attempt_of("a"), 0.1)
    if not is_full_at_first:
        node.beat()
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "no space left on device"))
    monkeypatch.setattr("depthrate.orchestrator.worker.node_heartbeat._write", full)
    time.sleep(0.5)
    before = time.time()
    node.beat()
    node.close()
    (heartbeat,) = (NodeHeartbeats(folder, "s").poll() | RecordReader(folder).refresh(lambda path: True)).values()
    assert heartbeat["heartbeat_at"] >= before


def test_who_is_not_spoken_of_speaks_for_itself(folder: Store, here: Path) -> None:
    """The reporting worker is stopped, as by SIGSTOP."""
    context = multiprocessing.get_context("fork")
    ready, go_on = context.Event(), context.Event()
    still = context.Process(target=_beat_once, args=(folder.root, "a", ready, go_on))
    still.start()
    assert ready.wait(20)
    node = NodeHeartbeat(folder, attempt_of("b"), 0.1)
    node.beat()
    time.sleep(0.5)
    node.beat()
    go_on.set()
    still.join()
    assert list(folder.list("attempts")) == [attempt_path("s", "b")]


def test_old_beats_are_taken_away(folder: Store) -> None:
    write_heartbeats(folder, "s", "over", {"a": {"heartbeat_at": time.time()}})
    write_heartbeats(folder, "s", "alive", {"a": {"heartbeat_at": time.time()}, "b": {"heartbeat_at": time.time()}})
    beats = NodeHeartbeats(folder, "s")
    beats.poll()
    beats.delete_ended({"a"})
    assert list(folder.list("beats")) == [heartbeat_path("s", "alive")]


def test_watchers_share_one_answer(folder: Store) -> None:
    clock, poll_times, waiting = Clock(), [], [5]

    def ask(store: Store, sweep: str) -> dict[str, SchedulerAnswer | None]:
        poll_times.append(clock.now)
        return {"slurm": SchedulerAnswer(JobCounts(waiting[0], 1), [])}

    controllers = SchedulerPoller(folder, ask, clock)
    for clock.now in range(0, 300, 2):
        seen = controllers.poll("s")["slurm"]
    assert len(poll_times) == 7 and poll_times[1] == 16 and poll_times[-1] - poll_times[-2] >= 60, poll_times
    waiting[0] = 3
    for clock.now in range(300, 400, 2):
        seen = controllers.poll("s")["slurm"]
    assert seen is not None and seen.counts.waiting == 3
    assert poll_times[-1] - poll_times[-2] < 40, "soon again after something changed"
