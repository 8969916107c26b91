"""Compute the cost of a sweep from its attempts' records and its visible trials.

An attempt occupies one slot (a core, a GPU or a GPU share) from its start to its end, or to its last heartbeat if it was lost.
The sum of these times is *used*. Its parts are:

- *committed* (printed as "useful"): time of the visible trials as recorded in their commits, including earlier attempts up to
  the checkpoint.
- *failed*: time of attempts that failed without a visible trial or a checkpoint.
- *repeated*: time of attempts that were interrupted from outside (node lost, job cancelled or preempted) without a visible
  trial or a checkpoint, and of attempts whose trials another attempt committed first.
- *around* (printed as "overhead"): the remaining time, spent on starting, loading, saving, committing, and training after the
last checkpoint.

*Idle* is not part of *used*: the unused slots of a job (without a scheduler: of a launch on a node) while its attempts follow
one another. A job has as many slots as attempts ever ran in it at once. *Waiting*, from submission to start, occupies none.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from depthrate.orchestrator.attempts.retry_policy import RULES
from depthrate.orchestrator.console.tables import duration
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.paths import is_attempt_id
from depthrate.storage.tables.states import AttemptState, FailureKind

COLUMNS = 80
"""Width of the printed lines, in characters."""
HOUR_LABELS = {"committed": "useful", "failed": "failed", "repeated": "repeated", "around": "overhead", "idle": "idle"}
"""Field of `Hours` -> printed label."""


def hours_text(hours: float) -> str:
    """Format hours with three digits, or as an integer from 100 on. Values below 0.001 h are printed as 0."""
    return f"{hours:.0f}" if hours >= 100 or hours < 0.001 else f"{hours:.3g}"


def cost_lines(sweep: str, cost: SweepCost) -> list[str]:
    """Return printable lines about the cost of a sweep."""
    lines = []
    for device, hours in sorted(cost.devices.items()):
        if not hours.held:
            continue
        share = f", {hours.efficiency:.0%} useful" if hours.efficiency is not None else ""
        lines.append(f"{sweep}: {hours_text(hours.held)} {device_hours_unit(device)} allocated{share}")
        parts = [f"{label} {hours_text(getattr(hours, name))}" for name, label in HOUR_LABELS.items()]
        lines.append(f"  {', '.join(parts)}")
    if cost.failures:
        kinds = sorted(cost.failures.items(), key=lambda item: -item[1][0])
        parts = [f"{kind} {number} ({hours_text(hours)} h)" for kind, (number, hours) in kinds]
        lines += textwrap.wrap(f"failures: {', '.join(parts)}", COLUMNS, initial_indent="  ", subsequent_indent="    ")
        lines.append(f"  failures by node: depthrate nodes {sweep}")
    parts = [] if cost.waited_s is None else [f"median wait from submission to start {duration(cost.waited_s)}"]
    parts += [] if cost.cpu_share is None else [f"CPU utilisation {cost.cpu_share:.0%}"]
    return [*lines, f"  {', '.join(parts)}"] if parts and lines else lines


MIN_BREAK_S = 300.0
"""Seconds without an attempt after which a job or node does not count as allocated."""


@dataclass
class Hours:
    """Slot hours of one kind of device."""

    used: float = 0.0
    committed: float = 0.0
    failed: float = 0.0
    repeated: float = 0.0
    idle: float = 0.0

    @property
    def around(self) -> float:
        """Overhead hours: used, but not committed, failed or repeated."""
        return max(0.0, self.used - self.committed - self.failed - self.repeated)

    @property
    def held(self) -> float:
        """Allocated hours: used plus idle."""
        return self.used + self.idle

    @property
    def efficiency(self) -> float | None:
        """Useful share of the allocated hours, or None without any."""
        return min(1.0, self.committed / self.held) if self.held else None


@dataclass
class NodeCost:
    """Attempts, hours and failures on one node."""

    node: str
    attempts: int = 0
    done: int = 0
    hours: float = 0.0
    wasted_hours: float = 0.0
    """Hours of failed and repeated attempts."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failure kind -> number of attempts."""
    avoided: str = ""
    """Reason why launches exclude the node. Empty if it is not excluded."""
    last_error: str = ""
    last_failed_at: float | None = None


@dataclass
class SweepCost:
    """The cost of a sweep."""

    devices: dict[str, Hours] = field(default_factory=dict)
    """Kind of device (cpu, cuda) -> hours."""
    nodes: dict[str, NodeCost] = field(default_factory=dict)
    failures: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Failure kind -> number of attempts, wasted hours."""
    waits_s: list[float] = field(default_factory=list)
    """Seconds from submission to start, per attempt."""
    cpu_share: float | None = None
    """CPU seconds per allocated core second of attempts on CPUs, or None if no record has them."""

    @property
    def waited_s(self) -> float | None:
        """Median seconds from submission to start, or None."""
        import statistics

        return statistics.median(self.waits_s) if self.waits_s else None

    def to_json(self) -> dict[str, Any]:
        """Return the cost as JSON values."""
        return {
            "hours": {
                device: {name: getattr(hours, name) for name in ("used", *HOUR_LABELS, "held", "efficiency")}
                | {label: getattr(hours, name) for name, label in (HOUR_LABELS | {"held": "allocated"}).items()}
                for device, hours in self.devices.items()
            },
            "failures": {kind: {"attempts": n, "hours": hours} for kind, (n, hours) in self.failures.items()},
            "median_wait_s": self.waited_s,
            "cpu_share": self.cpu_share,
        }


def device_kind(device: str | None) -> str:
    """Return the kind of a device: cuda of cuda:0."""
    return (device or "cpu").partition(":")[0]


def device_hours_unit(device: str) -> str:
    """Return the unit of a device's hours."""
    return {"cuda": "GPU-hours", "cpu": "core-hours"}.get(device, f"{device}-hours")


def compute_cost(records: Sequence[Record], committed: Iterable[Mapping[str, Any]], now: float) -> SweepCost:
    """Sum up a sweep's attempts.

    Args:
        records: Records of the sweep's attempts.
        committed: Visible trials, rows with trial_id, attempt_id and wall_s.
        now: Seconds since the epoch.
    """
    cost = SweepCost()
    useful_hours: dict[str, float] = {}
    visible_by_attempt: Counter[str] = Counter()
    done: set[str] = set()
    device_of = {record["attempt_id"]: _device(record) for record in records}
    share_of = {record["attempt_id"]: _share(record) for record in records}
    for row in committed:
        attempt_id = row["attempt_id"]
        visible_by_attempt[attempt_id] += 1
        done.add(row["trial_id"])
        if attempt_id in device_of:  # otherwise the trial was run in another sweep
            device, hours = device_of[attempt_id], (row["wall_s"] or 0.0) / 3600 * share_of[attempt_id]
            useful_hours[device] = useful_hours.get(device, 0.0) + hours
    for record in records:
        _add(cost, record, now, _classify_waste(record, visible_by_attempt[record["attempt_id"]], done))
    for device, device_hours in cost.devices.items():
        max_useful = max(0.0, device_hours.used - device_hours.failed - device_hours.repeated)
        device_hours.committed = min(useful_hours.get(device, 0.0), max_useful)
    for device, idle in idle_hours(records, now).items():
        cost.devices[device].idle = idle
    cost.waits_s = [wait for record in records if (wait := wait_s(record)) is not None]
    cost.cpu_share = _cpu_share(records, now)
    return cost


def span_s(record: Record, now: float) -> float:
    """Return the seconds that an attempt occupied its slot, up to the last heartbeat if it runs."""
    ended = record["ended_at"]
    if record["state"] is AttemptState.RUNNING or ended is None:
        ended = record["heartbeat_at"] or record["started_at"]
    elif record["state"] is AttemptState.LOST:  # recorded by another process, perhaps a day later
        ended = min(ended, record["heartbeat_at"] or ended)
    return max(0.0, min(ended, now) - record["started_at"])


def wait_s(record: Record) -> float | None:
    """Return the seconds from an attempt's submission, which its id contains, to its start. Return None if unknown."""
    name = record["attempt_id"]
    if not is_attempt_id(name) or record["error_kind"] in (FailureKind.NOT_BEGUN, FailureKind.FAILED_TO_START_ANYWHERE):
        return None
    submitted = datetime.strptime(name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp()
    return max(0.0, record["started_at"] - submitted - 1.0) if record["started_at"] >= submitted - 1.0 else None


def idle_hours(records: Iterable[Record], now: float) -> dict[str, float]:
    """Map each device to the hours of unused slots of jobs and nodes."""
    groups: dict[tuple[str, str, str, float], list[tuple[float, float, int | None]]] = {}
    for record in records:
        start = record["started_at"]
        key = (_device(record), record["job_id"] or "", record["host"] or "", _share(record))
        groups.setdefault(key, []).append((start, start + span_s(record, now), record["pid"]))
    idle: dict[str, float] = {}
    for (device, _, _, share), spans in groups.items():
        hours = sum(map(_idle_s, _stretches(sorted(spans, key=itemgetter(0))))) * share / 3600
        idle[device] = idle.get(device, 0.0) + hours
    return idle


def _stretches(spans: list[tuple[float, float, int | None]]) -> list[list[tuple[float, float]]]:
    """Split spans, sorted by start, at gaps longer than `MIN_BREAK_S`, and at gaps before another process.

    A process of a launch or job runs many attempts, so another one behind a gap belongs to a new launch or a restarted job.
    """
    stretches: list[list[tuple[float, float]]] = []
    pids: set[int | None] = set()
    last_end = float("-inf")
    for start, end, pid in spans:
        if start - last_end > (MIN_BREAK_S if pid in pids else 0.0):
            stretches.append([])
            pids.clear()
        stretches[-1].append((start, end))
        pids.add(pid)
        last_end = max(last_end, end)
    return stretches


def _idle_s(spans: list[tuple[float, float]]) -> float:
    """Return the idle slot seconds. The number of slots is the largest number of spans that ever overlapped."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    num_running = slots = 0
    for _, change in changes:
        num_running += change
        slots = max(slots, num_running)
    total_s = max(end for _, end in spans) - min(start for start, _ in spans)
    return max(0.0, slots * total_s - sum(end - start for start, end in spans))


def _add(cost: SweepCost, record: Record, now: float, waste: str | None) -> None:
    hours = span_s(record, now) / 3600 * _share(record)
    device = cost.devices.setdefault(_device(record), Hours())
    node = cost.nodes.setdefault(record["host"] or "?", NodeCost(record["host"] or "?"))
    device.used += hours
    node.attempts, node.hours = node.attempts + 1, node.hours + hours
    node.done += record["state"] is AttemptState.DONE
    if waste is not None:
        setattr(device, waste, getattr(device, waste) + hours)
        node.wasted_hours += hours
    if record["state"] in (AttemptState.FAILED, AttemptState.LOST):
        kind = str(record["error_kind"] or "unknown")
        number, wasted_hours = cost.failures.get(kind, (0, 0.0))
        cost.failures[kind] = number + 1, wasted_hours + (hours if waste else 0.0)
        node.failures[kind] += 1
        ended = record["ended_at"] or record["started_at"]
        if node.last_failed_at is None or ended >= node.last_failed_at:
            node.last_failed_at, node.last_error = ended, record["error"] or ""


def _classify_waste(record: Record, num_visible: int, done: set[str]) -> str | None:
    """Classify an attempt's time as "failed" or "repeated", or None if it was or may become useful.

    A finished attempt without visible trials may have pruned its trials, which is not waste.
    """
    state = record["state"]
    if state is AttemptState.RUNNING or num_visible:
        return None
    if state is AttemptState.DONE:
        return "repeated" if done.issuperset(record["trial_ids"]) else None
    if record.get("checkpoints"):
        return None
    kind = record["error_kind"]
    is_external = state is AttemptState.INTERRUPTED or (kind is not None and RULES[kind].is_external)
    return "repeated" if is_external else "failed"


def _cpu_share(records: Iterable[Record], now: float) -> float | None:
    times = [(r["cpu_s"], span_s(r, now)) for r in records if _device(r) == "cpu" and r.get("cpu_s") is not None]
    allocated_s = sum(span for _, span in times)
    return sum(cpu_s for cpu_s, _ in times) / allocated_s if allocated_s else None


def _device(record: Record) -> str:
    return device_kind(record["device"])


def _share(record: Record) -> float:
    return float(record.get("gpu_share") or 1.0) if _device(record) == "cuda" else 1.0
