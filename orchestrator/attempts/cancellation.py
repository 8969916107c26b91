"""The cancel mark in the store, which every launch of a sweep reads."""

import secrets
from collections.abc import Iterable

from depthrate.storage.files.paths import cancel_path
from depthrate.storage.files.store import Store


def read_cancel_mark(store: Store, sweep: str) -> bytes | None:
    """Return the mark of the last cancellation, which identifies it, or None if no mark exists or the store is not readable."""
    try:
        return store.read(cancel_path(sweep))
    except OSError:
        return None


def forced_attempts(mark: bytes | None) -> set[str]:
    """Return the attempts that must exit immediately instead of at their task's next check."""
    words = (mark or b"").decode(errors="replace").split()
    return set(words[1:])


def write_cancel_mark(store: Store, sweep: str, force: Iterable[str] = ()) -> None:
    """Ask all current launches of a sweep to stop, and the attempts in `force` to exit immediately."""
    store.write(cancel_path(sweep), " ".join([secrets.token_hex(8), *force]).encode())
