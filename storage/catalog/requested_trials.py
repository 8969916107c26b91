"""Which trials sweeps ask for: the identities that stand beside their specs, and what their searches proposed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping

from depthrate.storage.catalog.specs import parse_spec
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import searches_folder, sweep_folder, trial_ids_path
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store, StoreError

ListCache = dict[tuple[str, Stamp], frozenset[str]]
"""What was read, by path and by what changes when it is written anew."""


def requested_ids(store: Store, known: ListCache | None = None, *, without: str | None = None) -> frozenset[str]:
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


class CorruptFileError(StoreError):
    """A list, a spec, a batch or a manifest that is not as it was written: nobody may delete on what it says."""


LIST_RETRY_DELAYS_S = (0.2, 1.0, None)
"""Between two looks at lists that do not fit their specs: a launch that is just written down is waited for."""


def verified_requested_ids(store: Store, *, without: str | None = None, all_listed: bool = True) -> frozenset[str]:
    """Return the same for who deletes by it: every list is read anew and compared with the checksum in its spec.

    With `all_listed` a launch of an early version, which has no list, is refused too.

    Raises:
        CorruptFileError: what some sweep asks for cannot be told; the message names the file and what to do.
        OSError: the store does not answer.
    """
    for pause_s in LIST_RETRY_DELAYS_S:
        try:
            return _checked(store, without, all_listed)
        except CorruptFileError:
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError("the last round returned or raised")


def _checked(store: Store, without: str | None, all_listed: bool) -> frozenset[str]:
    but = () if without is None else (f"{sweep_folder(without)}/", f"{searches_folder(without)}/")
    paths = [path for path in (*store.list("sweeps"), *store.list("searches")) if not path.startswith(but)]
    relevant = [
        path for path in paths if _reader(path) is not None or (path.startswith("sweeps/") and path.endswith(".json"))
    ]
    contents: dict[str, bytes] = {}
    for path, content in store.read_many(relevant):
        if isinstance(content, OSError) and not isinstance(content, FileNotFoundError):
            raise content
        if not isinstance(content, OSError):  # else its sweep was removed meanwhile
            contents[path] = content
    lists = {path: content for path, content in contents.items() if path.endswith(".trials")}
    unclaimed = lists.keys() - _claimed_lists(contents, lists, all_listed)
    for path in sorted(unclaimed):  # its spec is not written yet, or was damaged and moved aside
        if not lists[path].split():
            raise _unsound(path, "is empty")
    wanted = [_of_list(content) for content in lists.values()]
    for path, content in contents.items():
        if path.startswith("searches/"):
            if not is_batch(path, content):
                raise _unsound(path, "was changed after it was written")
            wanted.append(_of_batch(content))
    return frozenset().union(*wanted)


def _claimed_lists(contents: Mapping[str, bytes], lists: Mapping[str, bytes], all_listed: bool) -> set[str]:
    """Return the lists that have a spec, each compared with it."""
    claimed = set()
    for path, content in contents.items():
        if not path.startswith("sweeps/") or not path.endswith(".json"):
            continue
        try:
            spec = parse_spec(path, content)
        except (ValueError, KeyError, TypeError) as error:
            raise _unsound(path, f"is no spec ({str(error)[:200]})") from None
        listed = trial_ids_path(spec.sweep, spec.spec_hash)
        if listed in lists:
            claimed.add(listed)
            if spec.trials_sha256 not in (None, hashlib.sha256(lists[listed]).hexdigest()):
                raise _unsound(listed, "is not as it was written")
        elif spec.trials_sha256 is not None or all_listed:
            raise _unsound(listed, "is missing")
    return claimed


def _unsound(path: str, what: str) -> CorruptFileError:
    sweep = path.split("/")[1].removeprefix("sweep=")
    return CorruptFileError(
        f"{path} {what}, so that which trials sweep {sweep!r} asks for cannot be told, and nothing is removed until it can: "
        f"launch that sweep again, or write its list anew (depthrate upgrade), or remove it (depthrate sweeps rm {sweep} --yes)"
    )


def is_batch(path: str, content: bytes) -> bool:
    """Whether a file holds what its name says, which is made from its content."""
    return path.rpartition("-")[2] == f"{hashlib.sha256(content).hexdigest()[:8]}.json"


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
