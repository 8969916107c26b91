"""Load the exporters that packages register in the entry-point group `depthrate.exporters`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import Exporter
from depthrate.tasks.plugins import load_plugin, load_plugins

GROUP = "depthrate.exporters"


@cache
def exporters() -> dict[str, Exporter]:
    """Return the registered exporters by name. A faulty one of another package is logged and skipped."""
    return load_plugins(GROUP, lambda name: load_plugin(GROUP, name, Exporter))


def select_exporter(names: Sequence[str], place: str | None) -> Exporter:
    """Return the exporter with a name or, without a name, for a place.

    Raises:
        UsageError: Several names are given, or no name and no exporter takes the place.
    """
    if len(names) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in names)} exclude each other. Give one of them.")
    if names:
        return exporters()[names[0]]
    for exporter in exporters().values():
        if place is not None and exporter.takes(place):
            return exporter
    default_place = " or ".join(f"--{exporter.name}" for exporter in exporters().values() if not exporter.needs_place)
    raise UsageError(
        f"export needs a folder or URL, with an exporter (--{', --'.join(exporters())}), or {default_place} alone"
    )
