"""A sweep's state and cost as Prometheus' node exporter reads them from a textfile, through Prometheus' client library."""

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
    """Check that the client library is there.

    Raises:
        UsageError: it is not.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"--prometheus needs Prometheus' library ({error}); install it: pip install 'depthrate[prometheus]'"
        ) from None


def write_textfile(path: Path, states: Sequence[SweepStatus], costs: Mapping[str, SweepCost]) -> None:
    """Write the file that the node exporter reads.

    Raises:
        UsageError: it cannot be written.
    """
    write_output(path, textfile(states, costs, time.time()))


def textfile(states: Sequence[SweepStatus], costs: Mapping[str, SweepCost], now: float) -> str:
    """Return the text in Prometheus' exposition format; `costs` are those of the same sweeps."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Families(Collector):
        """All that is told, at once."""

        def collect(self) -> Iterator[GaugeMetricFamily]:
            """Yield what has samples."""
            return (family for family in _families(states, costs, now) if family.samples)

    registry = CollectorRegistry()
    registry.register(Families())
    return generate_latest(registry).decode()


def _families(states: Sequence[SweepStatus], costs: Mapping[str, SweepCost], now: float) -> Iterator[GaugeMetricFamily]:
    from prometheus_client.core import GaugeMetricFamily

    trials = GaugeMetricFamily("depthrate_trials", "Trials of a sweep by state.", labels=["sweep", "state"])
    stalled = GaugeMetricFamily(
        "depthrate_attempts_stalled", "Attempts that run and come no further.", labels=["sweep"]
    )
    for state in states:
        for name, number in state.counts().items():
            trials.add_metric([state.name, name], number)
        stalled.add_metric([state.name], len(state.stalled))
    hours = GaugeMetricFamily(
        "depthrate_device_hours",
        "Hours for which slots were held, by device and by what for.",
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
    yield GaugeMetricFamily("depthrate_written_timestamp_seconds", "When this was written.", value=now)
