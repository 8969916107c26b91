"""Copy the results of a sweep to another program."""

from collections.abc import Sequence

from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.export.exporter import ExportedSweep, select_exporter
from depthrate.storage.files.store import Store


def export_sweep(sweep_ref: str, store: Store, place: str | None = None, exporters: Sequence[str] = ()) -> str:
    """Copy a sweep's committed results, or its search, and return a message on the written files.

    Args:
        sweep_ref: Sweep file, or name of a shipped or launched sweep.
        store: Store of the sweep.
        place: Folder or URL to write to. Default: the exporter's default target.
        exporters: Name of a registered exporter. If empty, the place selects it.
    Raises:
        ValueError: The sweep is unknown, has nothing to copy, or cannot be copied to `place`.
    """
    exporter = select_exporter(exporters, place)
    checked, search = find_sweep(sweep_ref, store)
    return exporter.run(ExportedSweep(checked, search, store), place)
