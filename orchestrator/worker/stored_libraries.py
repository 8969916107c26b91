"""Kernels that nodes leave in the store for those like them without a compiler: code, so only in a store that is mine alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from depthrate.orchestrator.code.permission import list_writers
from depthrate.storage.files.paths import library_path
from depthrate.storage.files.store import Store, StoreError

log = logging.getLogger("depthrate")


class StoredLibraries:
    """The libraries of a store (`tasks.task.SharedLibraries`)."""

    def __init__(self, store: Store):
        self._store = store

    def iter_matching(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of those whose name begins so.

        Raises:
            OSError: others may write to the store or to one of them, or they cannot be read.
        """
        self._require_private("")
        for path in self._store.list("libraries"):
            name = path.rpartition("/")[2]
            if name.startswith(prefix) and path == library_path(name):
                self._require_private(path)
                yield name, self._store.read(path)

    def keep(self, path: Path) -> None:
        """Leave one there, unless it is there already, or others may write there: then nobody would load it."""
        place = library_path(path.name)
        try:
            if list_writers(self._store, "") is None and self._store.size(place) is None:
                self._store.write(place, path)
        except (OSError, StoreError) as error:
            log.warning("a library of kernels was not left in the store: %s", error)

    def _require_private(self, path: str) -> None:
        if (reason := list_writers(self._store, path)) is not None:
            raise PermissionError(f"libraries of store {self._store.url} are not loaded, since {reason}")
