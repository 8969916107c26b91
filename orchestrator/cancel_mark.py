"""The mark in the store by which every launch of a sweep, wherever it runs, learns that it was cancelled."""

from __future__ import annotations

import secrets

from depthrate.storage.layout import cancel_path
from depthrate.storage.store import Store


def read_cancel_mark(store: Store, sweep: str) -> bytes | None:
    """Return the mark of the last cancellation, new with each; None if there was none or the store does not answer."""
    try:
        return store.read(cancel_path(sweep))
    except OSError:
        return None


def write_cancel_mark(store: Store, sweep: str) -> None:
    """Ask all launches of a sweep that run now to stop."""
    store.write(cancel_path(sweep), secrets.token_hex(8).encode())
