"""Sweeps' states and costs as a textfile for Prometheus' node exporter, made with Prometheus' client library."""

from collections.abc import Mapping, Sequence
from typing import Any

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.monitor.cost import HOUR_LABELS, SweepCost
from depthrate.orchestrator.monitor.status import SweepStatus


def require_client() -> None:
    """Check that Prometheus' client library is installed.

    Raises:
        UsageError: It is not.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"--prometheus needs the package prometheus-client ({error}). Install it: pip install 'depthrate[prometheus]'"
        ) from None


def textfile(states: Sequence[SweepStatus], costs: Mapping[str, SweepCost], now: float) -> str:
    """Return the states and costs of the same sweeps in Prometheus' exposition format."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()

    def add(name: str, doc: str, labels: Sequence[str], samples: Mapping[Any, float]) -> None:
        if samples:
            gauge = Gauge(name, doc, labels, registry=registry)
            for values, number in samples.items():
                gauge.labels(*values).set(number)

    trials = {(state.name, name): number for state in states for name, number in state.counts().items()}
    stalled = {(state.name,): len(state.stalled) for state in states}
    hours = {
        (sweep, device, kind): getattr(of_device, kind)
        for sweep, cost in costs.items()
        for device, of_device in sorted(cost.devices.items())
        for kind in HOUR_LABELS
    }
    failures = {
        (sweep, node.node, kind): number
        for sweep, cost in costs.items()
        for node in cost.nodes.values()
        for kind, number in sorted(node.failures.items())
    }
    waits = {(sweep,): wait_s for sweep, cost in costs.items() if (wait_s := cost.waited_s) is not None}
    add("depthrate_trials", "Trials of a sweep by state.", ["sweep", "state"], trials)
    add("depthrate_attempts_stalled", "Running attempts without progress.", ["sweep"], stalled)
    add("depthrate_device_hours", "Allocated hours, by device and use.", ["sweep", "device", "for"], hours)
    add("depthrate_failed_attempts", "Attempts that failed, by node and kind.", ["sweep", "node", "kind"], failures)
    add("depthrate_wait_seconds", "Median time from a pack's submission to its start.", ["sweep"], waits)
    Gauge("depthrate_written_timestamp_seconds", "Time of writing.", registry=registry).set(now)
    return generate_latest(registry).decode()
