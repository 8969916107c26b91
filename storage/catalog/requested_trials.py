"""Which trials sweeps ask for: the identities that stand beside their specs, and what their searches proposed."""

from __future__ import annotations

from collections.abc import Callable

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.local import Stamp
from depthrate.storage.files.paths import searches_folder, sweep_folder
from depthrate.storage.files.store import Store

Known = dict[tuple[str, Stamp], frozenset[str]]
"""What was read, by path and by what changes when it is written anew."""


def asked_for(store: Store, known: Known | None = None, *, without: str | None = None) -> frozenset[str]:
    """Return the trials that any launch of a sweep of the store asks for; `without` those that one sweep alone does.

    Raises:
        OSError: a list is there and cannot be read just now; that must not make its trials nobody's.
    """
    known = {} if known is None else known
    stamps = {path: stamp for folder in ("sweeps", "searches") for path, stamp in store.stamps(folder).items()}
    own = () if without is None else (sweep_folder(without), searches_folder(without))
    listed = {
        path: stamp
        for path, stamp in stamps.items()
        if _reader(path) is not None and not path.startswith(tuple(f"{folder}/" for folder in own))
    }
    fresh = [path for path, stamp in listed.items() if (path, stamp) not in known]
    for path, content in store.read_many(fresh):
        reader = _reader(path)
        if isinstance(content, FileNotFoundError) or reader is None:
            continue  # its sweep was removed meanwhile
        if isinstance(content, OSError):
            raise content
        known[path, listed[path]] = reader(content)
    return frozenset().union(*(known.get(key, frozenset()) for key in listed.items()))


def _reader(path: str) -> Callable[[bytes], frozenset[str]] | None:
    if path.startswith("sweeps/"):
        return _of_list if path.endswith(".trials") else None
    return _of_batch if path.endswith(".json") and "/reports/" not in path else None


def _of_list(content: bytes) -> frozenset[str]:
    return frozenset(content.decode("ascii", errors="replace").split())


def _of_batch(content: bytes) -> frozenset[str]:
    try:
        return frozenset(str(each) for ids in read_object(content)["trial_ids"] for each in ids)
    except (ValueError, KeyError, TypeError):
        return frozenset()  # damaged: the same results lead to the same proposals again
