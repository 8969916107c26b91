"""A sweep's state and cost as Prometheus' node exporter reads them from a textfile."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from depthrate.orchestrator.console.output_file import output_file
from depthrate.orchestrator.monitor.cost import Reckoning
from depthrate.orchestrator.monitor.status import SweepStatus

Sample = tuple[Mapping[str, str], float]
KINDS_OF_HOURS = ("committed", "failed", "repeated", "around", "idle")


def write_textfile(path: Path, states: Sequence[SweepStatus], costs: Mapping[str, Reckoning]) -> None:
    """Write what a scrape is to see: whole, in place of what was there.

    Raises:
        OSError: it cannot be written.
    """
    with output_file(path) as stream:
        stream.write(textfile(states, costs, time.time()))


def textfile(states: Sequence[SweepStatus], costs: Mapping[str, Reckoning], now: float) -> str:
    """Return the text in Prometheus' exposition format; `costs` are those of the same sweeps."""
    metrics: dict[str, tuple[str, list[Sample]]] = {
        "trials": (
            "Trials of a sweep by state.",
            [({"sweep": each.name, "state": state}, n) for each in states for state, n in each.counts().items()],
        ),
        "attempts_stalled": (
            "Attempts that run and come no further.",
            [({"sweep": each.name}, len(each.stalled)) for each in states],
        ),
        "device_hours": ("Hours for which slots were held, by device and by what for.", _hours(costs)),
        "failed_attempts": ("Attempts that failed, by node and kind.", _failures(costs)),
        "wait_seconds": (
            "Median time from a pack's submission to its start.",
            [({"sweep": sweep}, cost.waited_s) for sweep, cost in costs.items() if cost.waited_s is not None],
        ),
        "written_timestamp_seconds": ("When this was written.", [({}, now)]),
    }
    return "".join(_lines(name, what, samples) for name, (what, samples) in metrics.items() if samples)


def _hours(costs: Mapping[str, Reckoning]) -> list[Sample]:
    return [
        ({"sweep": sweep, "device": device, "for": kind}, float(getattr(hours, kind)))
        for sweep, cost in costs.items()
        for device, hours in sorted(cost.devices.items())
        for kind in KINDS_OF_HOURS
    ]


def _failures(costs: Mapping[str, Reckoning]) -> list[Sample]:
    return [
        ({"sweep": sweep, "node": node.node, "kind": kind}, float(number))
        for sweep, cost in costs.items()
        for node in cost.nodes.values()
        for kind, number in sorted(node.failures.items())
    ]


def _lines(name: str, what: str, samples: Iterable[Sample]) -> str:
    def lines() -> Iterator[str]:
        yield f"# HELP depthrate_{name} {what}"
        yield f"# TYPE depthrate_{name} gauge"
        for labels, value in samples:
            words = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            yield f"depthrate_{name}{{{words}}} {value:.10g}" if words else f"depthrate_{name} {value:.10g}"

    return "".join(f"{line}\n" for line in lines())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
