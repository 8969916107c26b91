"""What a sweep has cost, in words that fit into a terminal of 80 columns."""

from __future__ import annotations

import textwrap

from depthrate.orchestrator.reckoning import Reckoning, device_word
from depthrate.orchestrator.terminal import duration

COLUMNS = 80


def hours_text(hours: float) -> str:
    """Return hours with three digits, or whole ones; less than four seconds are none."""
    return f"{hours:.0f}" if hours >= 100 or hours < 0.001 else f"{hours:.3g}"


def cost_lines(sweep: str, cost: Reckoning) -> list[str]:
    """Return in words what a sweep has cost."""
    lines = []
    for device, hours in sorted(cost.devices.items()):
        if not hours.held:
            continue
        word = device_word(device)
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
