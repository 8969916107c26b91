"""`depthrate export`: a search's studies for other programs."""

from __future__ import annotations

from depthrate.orchestrator.commands.find_sweep import find_sweep
from depthrate.orchestrator.usage import UsageError
from depthrate.storage.store import Store


def export_search(given: str, store: Store, storage: str) -> None:
    """Copy a sweep's search into an Optuna storage.

    Raises:
        ValueError: there is no such sweep, it has no search, or Optuna is not installed.
    """
    _, view = find_sweep(given, store)
    if view is None:
        raise UsageError(f"sweep {given!r} has no search; export is for searches")
    try:
        from depthrate.orchestrator.search.export import export_studies
    except ImportError as error:
        raise UsageError(f"export needs Optuna ({error}); install it: pip install 'depthrate[search]'") from None
    for name in export_studies(view, storage):
        print(f"wrote study {name!r} to {storage}")
