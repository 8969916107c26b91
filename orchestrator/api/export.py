"""Copy the results of a sweep to another program."""

from __future__ import annotations

from collections.abc import Sequence

from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.export.exporter import ExportedSweep
from depthrate.orchestrator.export.registry import select_exporter
from depthrate.storage.files.store import Store


def export_sweep(sweep_ref: str, store: Store, place: str | None = None, exporters: Sequence[str] = ()) -> str:
    """Copy a sweep's committed results, or its search, and return what was written where.

    Args:
        sweep_ref: Sweep file, or name of a shipped or launched sweep.
        store: Store with its results.
        place: Folder or URL to write to; None for the exporter's own.
        exporters: Name of a registered exporter; empty for the one that takes the place.
    Raises:
        ValueError: There is no such sweep, nothing in it can be copied there, or the place refuses.
    """
    exporter = select_exporter(exporters, place)
    checked, search = find_sweep(sweep_ref, store)
    return exporter.run(ExportedSweep(checked, search, store), place)
