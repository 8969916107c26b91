"""The exporters that packages register in the entry-point group `depthrate.exporters`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import Exporter
from depthrate.tasks.plugins import load_plugin, load_plugins

GROUP = "depthrate.exporters"


@cache
def exporters() -> dict[str, Exporter]:
    """Import all registered exporters: name -> exporter. A faulty one of another package is logged and left out."""
    return load_plugins(GROUP, lambda name: load_plugin(GROUP, name, Exporter))


def select_exporter(names: Sequence[str], place: str | None) -> Exporter:
    """Return the exporter of a name, or without one that of a place.

    Raises:
        UsageError: There are several names or none, and no exporter takes the place.
    """
    if len(names) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in names)} are {len(names)} places; give one of them")
    if names:
        return exporters()[names[0]]
    for exporter in exporters().values():
        if place is not None and exporter.takes(place):
            return exporter
    own_place = " or ".join(f"--{exporter.name}" for exporter in exporters().values() if not exporter.needs_place)
    raise UsageError(
        f"say where to: a folder or URL, for which exporter (--{', --'.join(exporters())}), or {own_place} alone"
    )
