"""Events of a launch: one counted line per kind, in `run`, in the store and in `status`."""

import logging
from pathlib import Path

import pytest

from depthrate.orchestrator.attempts.events import log_event
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.launch.events import EVENT_REPEAT_INTERVAL_S, EventLog, read_last_launch
from depthrate.storage.files.store import Store
from tests.support.clock import Clock
from tests.support.here import answer, printed

log = logging.getLogger("depthrate")
BROKEN = """
import depthrate

@depthrate.task(version=1)
def broken(*, depth: int, context):
    raise ValueError(f"no such depth")
"""


class Follower:
    """Collects the published lines."""

    def __init__(self, store: Store) -> None:
        self.clock, self.lines = Clock(), list[str]()
        self.log = EventLog(store, "s", self.lines.append, clock=self.clock, calls={"squeue": 3})

    def after(self, seconds: float) -> list[str]:
        """Advance the clock and return the lines published then."""
        before = len(self.lines)
        self.clock.sleep(seconds)
        self.log.publish()
        return self.lines[before:]


def test_equal_events_share_a_line(folder: Store) -> None:
    follower = Follower(folder)
    with follower.log:
        for job, node in (("17_0", "n1"), ("17_4", "n1"), ("18_1", "n2")):
            log_event("pack", f"split in two: job {job} out of memory at 3.8 of 4 GB", where=node)
        log_event("pack", "retried: ValueError: boom", where="n1")
        assert follower.after(0) == [
            "3 packs on n1, n2 split in two: job 18_1 out of memory at 3.8 of 4 GB",
            "1 pack on n1 retried: ValueError: boom",
        ]
        log_event("pack", "split in two: job 19_0 out of memory at 3.8 of 4 GB", where="n1")
        assert follower.after(1) == [], "counted until its kind may be published again"
        log_event("pack", "split in two: job 19_1 out of memory at 3.8 of 4 GB", where="n1")
        assert follower.after(EVENT_REPEAT_INTERVAL_S) == [
            "2 packs on n1 split in two: job 19_1 out of memory at 3.8 of 4 GB"
        ]
        assert follower.after(EVENT_REPEAT_INTERVAL_S) == []


def test_errors_share_a_line(folder: Store) -> None:
    follower = Follower(folder)
    with follower.log:
        for node, outcome in (("n1", "retried"), ("n2", "retried"), ("n2", "given up")):
            log_event("pack", "RuntimeError: a bug", where=node, outcome=outcome)
        assert follower.after(0) == ["2 packs retried, 1 given up on n1, n2: RuntimeError: a bug"]
        log_event("pack", "RuntimeError: a bug", where="n3", outcome="given up")
        log_event("pack", "RuntimeError: another", where="n3", outcome="retried")
        log_event("pack", "RuntimeError: a third", where="n3", outcome="given up")
    assert follower.lines[1:] == ["1 pack on n3 retried: RuntimeError: another"], "the summary lists the others"
    launch = read_last_launch(folder, "s")
    assert launch is not None
    assert [event["text"] for event in launch["events"]][1] == "1 pack on n3 given up: RuntimeError: a bug"


def test_packs_without_a_node_get_their_own_line(folder: Store) -> None:
    follower = Follower(folder)
    with follower.log:
        log_event("pack", "job 7_0 was cancelled on n4", where="n4", outcome="left pending, submission stopped")
        for job in ("7_1", "7_2"):
            log_event("pack", f"job {job} was cancelled", outcome="left pending, submission stopped")
        assert follower.after(0) == [
            "1 pack on n4 left pending, submission stopped: job 7_0 was cancelled on n4",
            "2 packs left pending, submission stopped: job 7_2 was cancelled",
        ]


def test_what_is_so_is_told_when_it_changes(folder: Store) -> None:
    follower = Follower(folder)
    with follower.log:
        lines = []
        for count in (8, 8, 8, 7):
            log_event("job", "waiting: PartitionDown", count=count, is_state=True)
            lines.append(follower.after(EVENT_REPEAT_INTERVAL_S))
    assert lines == [["8 jobs waiting: PartitionDown"], [], [], ["7 jobs waiting: PartitionDown"]]


def test_warnings_and_failures_end_the_launch(
    folder: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    follower = Follower(folder)
    with follower.log:
        for tried in range(3):
            log.warning("store not read: error %d", 100 + tried)
        follower.after(0)
        log.warning("store not read: error 200")
    assert capsys.readouterr().err == "store not read: error 102 (3 times)\nstore not read: error 200\n"
    assert log.level == logging.NOTSET or not log.handlers, "nothing is left of it"
    launch = read_last_launch(folder, "s")
    assert launch is not None and launch["scheduler_calls"] == {"squeue": 3}
    assert [event["text"] for event in launch["events"]][-1] == "store not read: error 200"
    (path,) = [path for path in folder.list("launches/sweep=s") if path.endswith(".log")]
    assert folder.read(path).decode().count("\n") == 2
    folder.write("launches/sweep=s/99990101T000000_000000000000.json", b'{"events": 3}')
    assert read_last_launch(folder, "s") == launch, "a damaged file is passed over"


def test_equal_errors_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "s.yaml").write_text(f"name: s\ntask: {tmp_path}/broken.py:broken\ngrid: {{depth: [1, 2]}}\n")
    said = printed("run", tmp_path / "s.yaml", "--store", tmp_path / "store", "--workers", "1", code=1)
    assert "2 trials in 2 packs" in said and said.count("See: depthrate logs") == 1
    assert "1 packs" not in said and said.count("ValueError: no such depth") <= 2, "and at the end"
    (state,) = answer("status", "--store", tmp_path / "store")
    text = " ".join(event["text"] for event in state["events"])
    assert "ValueError: no such depth" in text and "given up" in text
    assert state["scheduler_calls"] == {}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 trials are"), (1, "1 trial is"), (2, "2 trials are"), (1234, "1,234 trials are")]
)
def test_nouns_are_counted(count: int, text: str) -> None:
    assert counted(count, "trial is", "trials are") == text
    assert counted(1, "node") == "1 node" and counted(3, "node") == "3 nodes"
