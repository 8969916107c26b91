"""Write sweeps' states and costs to a textfile for Prometheus' node exporter, with Prometheus' client library."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.monitor.cost import SweepCost
from depthrate.orchestrator.monitor.status import SweepStatus

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

KINDS_OF_HOURS = ("committed", "failed", "repeated", "around", "idle")


def check_library() -> None:
    """Check that the client library is installed.

    Raises:
        UsageError: If it is not.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"--prometheus needs the package prometheus-client ({error}). Install it: pip install 'depthrate[prometheus]'"
        ) from None


def write_textfile(path: Path, states: Sequence[SweepStatus], costs: Mapping[str, SweepCost]) -> None:
    """Write the file for the node exporter.

    Raises:
        UsageError: If it cannot be written.
    """
    write_output(path, textfile(states, costs, time.time()))


def textfile(states: Sequence[SweepStatus], costs: Mapping[str, SweepCost], now: float) -> str:
    """Return the states and costs of the same sweeps in Prometheus' exposition format."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Families(Collector):
        """Collector of all metric families."""

        def collect(self) -> Iterator[GaugeMetricFamily]:
            """Yield the families that have samples."""
            return (family for family in _families(states, costs, now) if family.samples)

    registry = CollectorRegistry()
    registry.register(Families())
    return generate_latest(registry).decode()


def _families(states: Sequence[SweepStatus], costs: Mapping[str, SweepCost], now: float) -> Iterator[GaugeMetricFamily]:
    from prometheus_client.core import GaugeMetricFamily

    trials = GaugeMetricFamily("depthrate_trials", "Trials of a sweep by state.", labels=["sweep", "state"])
    stalled = GaugeMetricFamily("depthrate_attempts_stalled", "Running attempts without progress.", labels=["sweep"])
    for state in states:
        for name, number in state.counts().items():
            trials.add_metric([state.name, name], number)
        stalled.add_metric([state.name], len(state.stalled))
    hours = GaugeMetricFamily(
        "depthrate_device_hours",
        "Allocated hours, by device and use.",
        labels=["sweep", "device", "for"],
    )
    failures = GaugeMetricFamily(
        "depthrate_failed_attempts", "Attempts that failed, by node and kind.", labels=["sweep", "node", "kind"]
    )
    waits = GaugeMetricFamily(
        "depthrate_wait_seconds", "Median time from a pack's submission to its start.", labels=["sweep"]
    )
    for sweep, cost in costs.items():
        for device, of_device in sorted(cost.devices.items()):
            for kind in KINDS_OF_HOURS:
                hours.add_metric([sweep, device, kind], getattr(of_device, kind))
        for node in cost.nodes.values():
            for failure, number in sorted(node.failures.items()):
                failures.add_metric([sweep, node.node, failure], number)
        if cost.waited_s is not None:
            waits.add_metric([sweep], cost.waited_s)
    yield from (trials, stalled, hours, failures, waits)
    yield GaugeMetricFamily("depthrate_written_timestamp_seconds", "Time of writing.", value=now)
