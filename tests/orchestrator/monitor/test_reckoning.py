"""Cost of a sweep: the arithmetic on constructed records, and the commands' output after a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.monitor.cost import SweepCost, compute_cost, cost_lines, idle_hours, span_s, wait_s
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from tests.support.here import answer, printed

HOUR = 3600.0
NOW = 100 * HOUR


def record(name: str, state: str, start_h: float, end_h: float | None, **fields: Any) -> Record:
    made: Record = {"attempt_id": name, "sweep": "s", "trial_ids": [f"t{name}"], "state": AttemptState(state)}
    made |= {"started_at": start_h * HOUR, "ended_at": None if end_h is None else end_h * HOUR, "heartbeat_at": None}
    made |= {"host": "n1", "pid": 1, "job_id": "1", "device": "cpu", "error_kind": None, "error": None}
    return made | fields


def row(name: str, hours: float) -> dict[str, Any]:
    return {"trial_id": f"t{name}", "attempt_id": name, "wall_s": hours * HOUR}


def cpu(records: list[Record], rows: list[dict[str, Any]]) -> dict[str, float]:
    hours = compute_cost(records, rows, NOW).devices["cpu"]
    return {n: round(getattr(hours, n), 6) for n in ("used", "committed", "failed", "repeated", "around", "idle")}


def test_each_hour_is_counted_once() -> None:
    lost = {"heartbeat_at": 4 * HOUR, "error_kind": FailureKind.NODE_LOST}
    records = [record("a", "done", 0, 2), record("b", "failed", 2, 3, error_kind=FailureKind.TASK)]
    records += [record("c", "lost", 3, 9, **lost), record("d", "interrupted", 4, 5, checkpoints=2)]
    records += [record("e", "done", 5, 6)]
    rows = [row("a", 1.5), row("e", 1.75)]
    documented = compute_cost(records, rows, NOW).to_json()["hours"]["cpu"]
    parts = ("useful", "failed", "repeated", "overhead", "idle", "allocated")
    assert [documented[name] for name in parts] == pytest.approx([3.25, 1, 1, 0.75, 0, 6])
    cost = cpu(records, rows)
    assert cost == {"used": 6, "committed": 3.25, "failed": 1, "repeated": 1, "around": 0.75, "idle": 0}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"state": "failed", "error_kind": FailureKind.OUT_OF_MEMORY}, "failed"),
        ({"state": "failed", "error_kind": FailureKind.TASK, "checkpoints": 1}, None),
        ({"state": "lost", "error_kind": FailureKind.WORKER_LOST}, "failed"),
        ({"state": "lost", "error_kind": FailureKind.CANCELLED}, "repeated"),
        ({"state": "interrupted"}, "repeated"),
        ({"state": "running", "heartbeat_at": 1 * HOUR}, None),
        ({"state": "done"}, None),
        ({"state": "done", "trial_ids": ["tother"]}, "repeated"),
    ],
)
def test_what_is_wasted(fields: dict[str, Any], kind: str | None) -> None:
    """The last two cases: pruned trials, and trials that another attempt committed first."""
    state = fields.pop("state")
    records = [record("x", state, 0, 1, **fields), record("other", "done", 1, 2)]
    hours = compute_cost(records, [row("other", 1)], NOW).devices["cpu"]
    found = {name: getattr(hours, name) for name in ("failed", "repeated")}
    assert found == {name: float(name == kind) for name in found}


def test_gpu_share_scales_hours() -> None:
    records = [record(name, "done", 0, 2, device="cuda", gpu_share=0.5) for name in "ab"]
    hours = compute_cost(records, [row("a", 2), row("b", 1)], NOW).devices["cuda"]
    assert (hours.used, hours.committed, hours.idle, hours.efficiency) == (2, 1.5, 0, 0.75)


def test_slots_idle_beside_others() -> None:
    long, short, later = record("a", "done", 0, 4), record("b", "done", 0, 1), record("c", "done", 2, 3)
    assert idle_hours([long, short, later], NOW) == {"cpu": 2.0}
    assert idle_hours([long, short, later | {"job_id": "2"}], NOW) == {"cpu": 3.0}
    assert idle_hours([short, later], NOW) == {"cpu": 0.0}, "not allocated between them"


@pytest.mark.parametrize("job_id", [None, "1"])
def test_pauses_between_launches_are_not_idle(job_id: str | None) -> None:
    """Nor those before a restarted job. Between two attempts of a process its slots are allocated."""
    minute = 1 / 60
    first = [record(name, "done", 0, minute, pid=pid, job_id=job_id) for pid, name in enumerate("ab")]
    second = record("c", "done", 5 * minute, 6 * minute, pid=2, job_id=job_id)
    assert idle_hours([*first, second], NOW) == {"cpu": 0.0}
    assert idle_hours([*first, second | {"pid": 1}], NOW)["cpu"] == pytest.approx(9 * minute)


def test_spans_and_waits() -> None:
    assert span_s(record("a", "running", 1, None, heartbeat_at=3 * HOUR), NOW) == 2 * HOUR
    assert span_s(record("a", "running", 1, None), NOW) == 0
    submitted = record("19700101T010000_000000000000", "done", 1.5, 2)
    assert wait_s(submitted) == HOUR / 2 - 1, "ids contain whole seconds"
    assert wait_s(record("a", "done", 1, 2)) is None


def test_nodes_and_kinds_of_failures() -> None:
    lost = {"error_kind": FailureKind.NODE_LOST, "host": "bad", "heartbeat_at": 3 * HOUR}
    failed = {"host": "bad", "error_kind": FailureKind.TASK, "error": "RuntimeError: x"}
    records = [record("a", "done", 0, 1), record("b", "lost", 1, 3, **lost, error="node bad is gone")]
    records += [record("c", "failed", 3, 4, **failed)]
    cost = compute_cost(records, [row("a", 1)], NOW)
    bad = cost.nodes["bad"]
    assert (bad.attempts, bad.done, bad.hours, bad.wasted_hours) == (2, 0, 3.0, 3.0)
    assert dict(bad.failures) == {"node_lost": 1, "task": 1} and bad.last_error == "RuntimeError: x"
    assert cost.failures == {"node_lost": (1, 2.0), "task": (1, 1.0)} and cost.nodes["n1"].done == 1


def test_words_fit_into_80_columns() -> None:
    records = [record(str(kind), "lost", 0, 1234.5, error_kind=kind) for kind in list(FailureKind)[:4]]
    lines = cost_lines("a_long_name", compute_cost([*records, record("a", "done", 0, 9000.25)], [row("a", 9000)], 9e9))
    assert max(map(len, lines)) <= 80, lines
    assert lines[0] == "a_long_name: 45001 core-hours allocated, 20% useful"


def test_nothing_has_cost_nothing() -> None:
    assert compute_cost([], [], NOW) == SweepCost() and cost_lines("s", SweepCost()) == []


@pytest.mark.slow
def test_a_sweep_that_was_run(tiny_sweep: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    printed("run", tiny_sweep, "--store", store, "--workers", "1")
    broken = {"attempt_id": "20260101T000000_000000000000", "sweep": "tiny", "pack_id": "p", "trial_ids": ["x"]}
    broken |= {"state": "failed", "error_kind": "task", "error": "RuntimeError: no", "host": "bad", "device": "cpu"}
    broken |= {"started_at": 1767225600.0, "heartbeat_at": 1767229200.0, "ended_at": 1767229200.0}
    Store(store).write(f"attempts/sweep=tiny/{broken['attempt_id']}.json", json.dumps(broken).encode())
    shown = printed("status", "tiny", "--store", store)
    assert "core-hours allocated" in shown and "failures: task 1 (1 h)" in shown
    cost = answer("status", "tiny", "--store", store)[0]["cost"]
    hours = cost["hours"]["cpu"]
    assert hours["failed"] == 1.0 and 0 < hours["committed"] < hours["used"] - 1 and cost["cpu_share"] > 0
    nodes = printed("nodes", "tiny", "--store", store)
    assert "task 1" in nodes and "RuntimeError: no" in nodes
    first, second = answer("nodes", "tiny", "--store", store)
    assert first["node"] == "bad" and second["done"] > 0
    printed("compact", "--store", store, "--retain-hours", "0")
    again = answer("status", "tiny", "--store", store)[0]["cost"]
    assert again["hours"]["cpu"]["used"] == pytest.approx(hours["used"]), "also for compacted records"
