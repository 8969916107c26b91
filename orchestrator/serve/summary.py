"""Progress of a sweep for the pages, with the lines of `depthrate status`."""

from typing import Any

from depthrate.orchestrator.api.status import MAX_EVENTS_SHOWN, StatusSnapshot, job_text
from depthrate.orchestrator.attempts.record import stalled_text
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.registry import schedulers
from depthrate.orchestrator.monitor.cost import cost_lines, device_hours_unit, hours_text
from depthrate.orchestrator.monitor.status import SweepStatus

MAX_LINES_SHOWN = 5


def summaries(status: StatusSnapshot) -> list[dict[str, Any]]:
    """Return one summary per sweep, running sweeps first."""
    sweeps = [summary(status, state) for state in status.states]
    return sorted(sweeps, key=lambda sweep: (not sweep["counts"]["running"], sweep["name"]))


def summary(status: StatusSnapshot, state: SweepStatus) -> dict[str, Any]:
    """Return the counts by state, cost, failures and events of a sweep."""
    cost, launch = status.costs.get(state.name), status.launches.get(state.name, {})
    devices = {} if cost is None else cost.devices
    errors = [
        f"{counted(count, 'trial')} failed with: {message}"
        for message, count in state.errors().most_common(MAX_LINES_SHOWN)
    ]
    stalled = [f"{state.name}: {stalled_text(record)}" for record in state.stalled[:MAX_LINES_SHOWN]]
    jobs = status.jobs[status.states.index(state)]
    waiting = [job_text(count, schedulers()[executor].title) for executor, count in jobs.items() if count is not None]
    events = [{"at": event["at"], "text": event["text"]} for event in launch.get("events", [])[-MAX_EVENTS_SHOWN:]]
    return {
        "name": state.name,
        "trials": len(state.states),
        "counts": state.counts(),
        "trial_hours": round(state.trial_hours(), 3),
        "allocated": ", ".join(
            f"{hours_text(h.held)} {device_hours_unit(d)}" for d, h in sorted(devices.items()) if h.held
        ),
        "failures": 0 if cost is None else sum(number for number, _ in cost.failures.values()),
        "note": next(iter([*stalled, *errors]), events[-1]["text"] if events else ""),
        "lines": [*([] if cost is None else cost_lines(state.name, cost)), *waiting, *stalled, *errors],
        "events": events,
    }
