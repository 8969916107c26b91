"""The mark in the store by which every launch of a sweep, wherever it runs, learns that it was cancelled."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from depthrate.storage.files.paths import cancel_path
from depthrate.storage.files.store import Store


def read_cancel_mark(store: Store, sweep: str) -> bytes | None:
    """Return the mark of the last cancellation, new with each; None if there was none or the store does not answer."""
    try:
        return store.read(cancel_path(sweep))
    except OSError:
        return None


def forced_attempts(mark: bytes | None) -> set[str]:
    """Return the attempts that are to end at once, and not when their task next looks."""
    words = (mark or b"").decode(errors="replace").split()
    return set(words[1:])


def write_cancel_mark(store: Store, sweep: str, force: Iterable[str] = ()) -> None:
    """Ask all launches of a sweep that run now to stop; the attempts in `force` end themselves at once."""
    store.write(cancel_path(sweep), " ".join([secrets.token_hex(8), *force]).encode())
