"""What a sweep has cost and what of it was wasted, from its attempts' records and its committed trials. Pure arithmetic.

An attempt holds one slot: a core, a GPU, or a share of one, from its start to its end (to its last sign of life where it died
without a word). The sum of that is what was *used*. Of it,

- *committed* is the time of the trials that count, as their commits state it, checkpoints of earlier attempts included;
- *failed* is the time of attempts that failed or died and left neither a trial nor a checkpoint;
- *repeated* is the time of attempts that were taken away (a node lost, a job cancelled or preempted) and left neither, and of
  those whose trials were committed by another attempt first;
- *around* is the rest: starting, loading, saving, committing, and what was trained after the last checkpoint.

*Idle* is beside that: while anything of a job (or, without a scheduler, of a machine) ran, its slots that ran nothing, where a
job has as many slots as it ever had attempts at once. *Waiting* is from a pack's submission to its start; it holds no slot.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from depthrate.orchestrator.attempts.retry import RULES
from depthrate.orchestrator.console.tables import duration
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.paths import is_attempt_id
from depthrate.storage.tables.states import AttemptState, FailureKind

COLUMNS = 80


def hours_text(hours: float) -> str:
    """Return hours with three digits, or whole ones; less than four seconds are none."""
    return f"{hours:.0f}" if hours >= 100 or hours < 0.001 else f"{hours:.3g}"


def cost_lines(sweep: str, cost: SweepCost) -> list[str]:
    """Return in words what a sweep has cost."""
    lines = []
    for device, hours in sorted(cost.devices.items()):
        if not hours.held:
            continue
        word = device_hours_unit(device)
        share = f", {hours.efficiency:.0%} of them in trials that count" if hours.efficiency is not None else ""
        lines.append(f"{sweep}: {hours_text(hours.held)} {word} held{share}")
        parts = [
            f"{name} {hours_text(getattr(hours, name))}"
            for name in ("committed", "failed", "repeated", "around", "idle")
        ]
        lines.append(f"  {', '.join(parts)}")
    if cost.failures:
        kinds = sorted(cost.failures.items(), key=lambda item: -item[1][0])
        parts = [f"{kind} {number} ({hours_text(hours)} h)" for kind, (number, hours) in kinds]
        lines += textwrap.wrap(f"failures: {', '.join(parts)}", COLUMNS, initial_indent="  ", subsequent_indent="    ")
        lines.append(f"  who failed where: depthrate nodes {sweep}")
    said = [] if cost.waited_s is None else [f"waited {duration(cost.waited_s)} (median) from submission to start"]
    said += [] if cost.cpu_share is None else [f"cores computed {cost.cpu_share:.0%} of the time"]
    return [*lines, f"  {'; '.join(said)}"] if said and lines else lines


MIN_BREAK_S = 300.0
"""A machine on which nothing ran for so long was not held."""


@dataclass
class Hours:
    """Hours of slots of one kind of device."""

    used: float = 0.0
    committed: float = 0.0
    failed: float = 0.0
    repeated: float = 0.0
    idle: float = 0.0

    @property
    def around(self) -> float:
        """What was used for neither of the others."""
        return max(0.0, self.used - self.committed - self.failed - self.repeated)

    @property
    def held(self) -> float:
        """All that slots were held for."""
        return self.used + self.idle

    @property
    def efficiency(self) -> float | None:
        """Which part of what was held went into trials that count."""
        return min(1.0, self.committed / self.held) if self.held else None


@dataclass
class NodeCost:
    """What happened on one node."""

    node: str
    attempts: int = 0
    done: int = 0
    hours: float = 0.0
    wasted_hours: float = 0.0
    """Failed and repeated."""
    failures: Counter[str] = field(default_factory=Counter)
    """Kind of failure -> attempts."""
    exclusion: str = ""
    """Why launches begin nothing more on it: how it fails beside the others; empty where they do not avoid it."""
    last_error: str = ""
    last_failed_at: float | None = None


@dataclass
class SweepCost:
    """What a sweep has cost."""

    devices: dict[str, Hours] = field(default_factory=dict)
    """Kind of device (cpu, cuda) -> hours."""
    nodes: dict[str, NodeCost] = field(default_factory=dict)
    failures: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Kind of failure -> attempts, and the hours that they wasted."""
    waits_s: list[float] = field(default_factory=list)
    """Of each attempt, the seconds from its submission to its start."""
    cpu_share: float | None = None
    """Of the time that attempts on CPUs held their cores, the part that these computed; null where no record says so."""

    @property
    def waited_s(self) -> float | None:
        """Return the median wait."""
        import statistics

        return statistics.median(self.waits_s) if self.waits_s else None

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "hours": {
                device: {
                    name: getattr(hours, name)
                    for name in ("used", "committed", "failed", "repeated", "around", "idle", "held", "efficiency")
                }
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
    """Return what an hour of a device is called."""
    return {"cuda": "GPU-hours", "cpu": "core-hours"}.get(device, f"{device}-hours")


def compute_cost(records: Sequence[Record], committed: Iterable[Mapping[str, Any]], now: float) -> SweepCost:
    """Sum up a sweep's attempts; `committed` are the trials that count (rows with trial_id, attempt_id and wall_s)."""
    found = SweepCost()
    counting: dict[str, float] = {}
    of_attempt: Counter[str] = Counter()
    done: set[str] = set()
    device_of = {record["attempt_id"]: _device(record) for record in records}
    share_of = {record["attempt_id"]: _share(record) for record in records}
    for row in committed:
        attempt_id = row["attempt_id"]
        of_attempt[attempt_id] += 1
        done.add(row["trial_id"])
        if attempt_id in device_of:  # else it was run in another sweep
            device, hours = device_of[attempt_id], (row["wall_s"] or 0.0) / 3600 * share_of[attempt_id]
            counting[device] = counting.get(device, 0.0) + hours
    for record in records:
        _add(found, record, now, _classify_waste(record, of_attempt[record["attempt_id"]], done))
    for device, held in found.devices.items():
        held.committed = min(counting.get(device, 0.0), max(0.0, held.used - held.failed - held.repeated))
    for device, idle in idle_hours(records, now).items():
        found.devices[device].idle = idle
    found.waits_s = [wait for record in records if (wait := wait_s(record)) is not None]
    found.cpu_share = _cpu_share(records, now)
    return found


def span_s(record: Record, now: float) -> float:
    """Return for how many seconds an attempt held its slot; one that runs, until its last sign of life."""
    ended = record["ended_at"]
    if record["state"] is AttemptState.RUNNING or ended is None:
        ended = record["heartbeat_at"] or record["started_at"]
    elif record["state"] is AttemptState.LOST:  # written down by somebody else, perhaps a day later
        ended = min(ended, record["heartbeat_at"] or ended)
    return max(0.0, min(ended, now) - record["started_at"])


def wait_s(record: Record) -> float | None:
    """Return the seconds from an attempt's submission, of which its name tells, to its start; None where they are unknown."""
    name = record["attempt_id"]
    if not is_attempt_id(name) or record["error_kind"] in (FailureKind.NOT_BEGUN, FailureKind.FAILED_TO_START_ANYWHERE):
        return None
    submitted = datetime.strptime(name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp()
    return max(0.0, record["started_at"] - submitted - 1.0) if record["started_at"] >= submitted - 1.0 else None


def idle_hours(records: Iterable[Record], now: float) -> dict[str, float]:
    """Return device -> hours for which slots of jobs and machines were held and ran nothing."""
    groups: dict[tuple[str, str, str, float], list[tuple[float, float]]] = {}
    for record in records:
        start = record["started_at"]
        where = (_device(record), record["job_id"] or "", record["host"] or "", _share(record))
        groups.setdefault(where, []).append((start, start + span_s(record, now)))
    idle: dict[str, float] = {}
    for (device, _, _, share), spans in groups.items():
        hours = sum(map(_idle_s, _stretches(sorted(spans)))) * share / 3600
        idle[device] = idle.get(device, 0.0) + hours
    return idle


def _stretches(spans: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Cut spans, in the order of their starts, where nothing ran for long."""
    stretches: list[list[tuple[float, float]]] = []
    last_end = float("-inf")
    for start, end in spans:
        if start - last_end > MIN_BREAK_S:
            stretches.append([])
        stretches[-1].append((start, end))
        last_end = max(last_end, end)
    return stretches


def _idle_s(spans: list[tuple[float, float]]) -> float:
    """Return the seconds that slots ran nothing, where there are as many as ever ran at once."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    at_once = slots = 0
    for _, change in changes:
        at_once += change
        slots = max(slots, at_once)
    whole = max(end for _, end in spans) - min(start for start, _ in spans)
    return max(0.0, slots * whole - sum(end - start for start, end in spans))


def _add(found: SweepCost, record: Record, now: float, wasted: str | None) -> None:
    hours = span_s(record, now) / 3600 * _share(record)
    device = found.devices.setdefault(_device(record), Hours())
    node = found.nodes.setdefault(record["host"] or "?", NodeCost(record["host"] or "?"))
    device.used += hours
    node.attempts, node.hours = node.attempts + 1, node.hours + hours
    node.done += record["state"] is AttemptState.DONE
    if wasted is not None:
        setattr(device, wasted, getattr(device, wasted) + hours)
        node.wasted_hours += hours
    if record["state"] in (AttemptState.FAILED, AttemptState.LOST):
        kind = str(record["error_kind"] or "unknown")
        number, before = found.failures.get(kind, (0, 0.0))
        found.failures[kind] = number + 1, before + (hours if wasted else 0.0)
        node.failures[kind] += 1
        ended = record["ended_at"] or record["started_at"]
        if node.last_failed_at is None or ended >= node.last_failed_at:
            node.last_failed_at, node.last_error = ended, record["error"] or ""


def _classify_waste(record: Record, num_counting: int, done: set[str]) -> str | None:
    """Return which kind of waste an attempt's time was; None where some of it counts, or may yet.

    `num_counting` of its commits count; `done` are the trials that somebody has committed. One that was done and committed
    nothing may have left out trials of a search.
    """
    state = record["state"]
    if state is AttemptState.RUNNING or num_counting:
        return None
    if state is AttemptState.DONE:
        return "repeated" if done.issuperset(record["trial_ids"]) else None
    if record.get("checkpoints"):
        return None
    kind = record["error_kind"]
    is_taken = state is AttemptState.INTERRUPTED or (kind is not None and RULES[kind].is_external)
    return "repeated" if is_taken else "failed"


def _cpu_share(records: Iterable[Record], now: float) -> float | None:
    known = [(r["cpu_s"], span_s(r, now)) for r in records if _device(r) == "cpu" and r.get("cpu_s") is not None]
    held = sum(span for _, span in known)
    return sum(cpu_s for cpu_s, _ in known) / held if held else None


def _device(record: Record) -> str:
    return device_kind(record["device"])


def _share(record: Record) -> float:
    return float(record.get("gpu_share") or 1.0) if _device(record) == "cuda" else 1.0
