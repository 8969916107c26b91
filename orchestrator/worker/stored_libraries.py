"""Share kernel libraries through the store with similar nodes that have no compiler.

Libraries are executable code, so they are loaded only from a store that no other user can write to.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from depthrate.orchestrator.code.permission import list_writers
from depthrate.storage.files.paths import library_path
from depthrate.storage.files.store import Store, StoreError

log = logging.getLogger("depthrate")


class StoredLibraries:
    """The kernel libraries of a store (`tasks.interface.SharedLibraries`)."""

    def __init__(self, store: Store):
        self._store = store

    def iter_matching(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield the name and content of each library whose name starts with `prefix`.

        Raises:
            OSError: If other users can write to the store or a library, or a library cannot be read.
        """
        self._require_private("")
        for path in self._store.list("libraries"):
            name = path.rpartition("/")[2]
            if name.startswith(prefix) and path == library_path(name.removesuffix(".so")):
                self._require_private(path)
                yield name, self._store.read(path)

    def keep(self, path: Path) -> None:
        """Store a library, unless it exists or other users can write to the store, in which case it would not be loaded."""
        stored_path = library_path(path.stem)
        try:
            if list_writers(self._store, "") is None and self._store.size(stored_path) is None:
                self._store.write(stored_path, path)
        except (OSError, StoreError) as error:
            log.warning("kernel library not stored: %s", error)

    def _require_private(self, path: str) -> None:
        if (reason := list_writers(self._store, path)) is not None:
            raise PermissionError(f"kernel libraries of store {self._store.url} not loaded: {reason}")
