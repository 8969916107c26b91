"""Trials requested by sweeps: the lists of trial IDs next to their specs, and the proposals of their searches."""

import hashlib
import time
from collections.abc import Callable, Mapping

from depthrate.storage.catalog.specs import parse_spec
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import searches_folder, spec_path, trial_ids_path
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store, StoreError

ListCache = dict[tuple[str, Stamp], frozenset[str]]
"""Lists already read: (path, stamp) -> trial IDs."""


def requested_ids(store: Store, cache: ListCache | None = None) -> frozenset[str]:
    """Return the trials requested by any launch of any sweep in the store. A list or a search without a spec does not count.

    Args:
        cache: Lists already read.

    Raises:
        OSError: An existing list cannot be read at the moment. Its trials must not count as unrequested.
    """
    cache = {} if cache is None else cache
    stamps = {path: stamp for folder in ("sweeps", "searches") for path, stamp in store.stamps(folder).items()}
    specs = {path.removesuffix(".json") for path in stamps if path.startswith("sweeps/") and path.endswith(".json")}
    launched = specs | {searches_folder(path.split("/")[1]) for path in specs}
    of_launch = {
        path: {path.removesuffix(".trials"), "/".join(path.split("/")[:2])} for path in stamps if _reader(path)
    }
    listed = {path: stamps[path] for path, names in of_launch.items() if names & launched}
    fresh = [path for path, stamp in listed.items() if (path, stamp) not in cache]
    for path, content in store.read_many(fresh):
        reader = _reader(path)
        if isinstance(content, FileNotFoundError) or reader is None:
            continue  # its sweep has been removed meanwhile
        if isinstance(content, OSError):
            raise content
        cache[path, listed[path]] = reader(content)
    return frozenset().union(*(cache.get(key, frozenset()) for key in listed.items()))


class CorruptFileError(StoreError):
    """A list, spec, batch or manifest differs from what was written. Nothing may be deleted based on it."""


LIST_RETRY_DELAYS_S = (0.2, 1.0, None)
"""Delays in seconds between reads of lists that do not match their specs: a launch may be in the middle of writing."""


def verified_requested_ids(store: Store, *, without: str | None = None) -> frozenset[str]:
    """Return the same trials, for a deletion: read every list again and compare it with the checksum in its spec.

    Raises:
        CorruptFileError: The requests of some sweep are unknown. The message gives the file and the fix.
    """
    for pause_s in LIST_RETRY_DELAYS_S:
        try:
            return _read_verified(store, without)
        except CorruptFileError:
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError("the last round returned or raised")


def _read_verified(store: Store, without: str | None) -> frozenset[str]:
    excluded = () if without is None else (f"{spec_path.folder(without)}/", f"{searches_folder(without)}/")
    paths = [path for path in (*store.list("sweeps"), *store.list("searches")) if not path.startswith(excluded)]
    relevant = [
        path for path in paths if _reader(path) is not None or (path.startswith("sweeps/") and path.endswith(".json"))
    ]
    contents: dict[str, bytes] = {}
    for path, content in store.read_many(relevant):
        if isinstance(content, OSError) and not isinstance(content, FileNotFoundError):
            raise content
        if not isinstance(content, OSError):  # otherwise its sweep has been removed meanwhile
            contents[path] = content
    lists = {path: content for path, content in contents.items() if path.endswith(".trials")}
    unclaimed = lists.keys() - _claimed_lists(contents, lists)
    for path in sorted(unclaimed):  # its spec is not written yet, or was corrupt and moved aside
        if not lists[path].split():
            raise _corrupt(path, "is empty")
    wanted = [_of_list(content) for content in lists.values()]
    for path, content in contents.items():
        if path.startswith("searches/"):
            if not is_batch(path, content):
                raise _corrupt(path, "was changed after it was written")
            wanted.append(_of_batch(content))
    return frozenset().union(*wanted)


def _claimed_lists(contents: Mapping[str, bytes], lists: Mapping[str, bytes]) -> set[str]:
    """Return the lists that have a spec, after comparing each with its spec."""
    claimed = set()
    for path, content in contents.items():
        if not path.startswith("sweeps/") or not path.endswith(".json"):
            continue
        try:
            spec = parse_spec(path, content)
        except (ValueError, KeyError, TypeError) as error:
            raise _corrupt(path, f"is not a spec ({str(error)[:200]})") from None
        listed = trial_ids_path(spec.sweep, spec.spec_hash)
        if listed not in lists:
            raise _corrupt(listed, "is missing")
        claimed.add(listed)
        if spec.trials_sha256 != hashlib.sha256(lists[listed]).hexdigest():
            raise _corrupt(listed, "was changed after it was written")
    return claimed


def _corrupt(path: str, fault: str) -> CorruptFileError:
    sweep = path.split("/")[1].removeprefix("sweep=")
    return CorruptFileError(
        f"{path} {fault}, so the trials requested by sweep {sweep!r} are unknown. Nothing was removed. Launch the sweep "
        f"again, or remove it (depthrate sweeps rm {sweep} --yes)."
    )


def is_batch(path: str, content: bytes) -> bool:
    """Return whether a file's content matches its name, which contains a digest of the content."""
    return path.rpartition("-")[2] == f"{hashlib.sha256(content).hexdigest()[:8]}.json"


def _reader(path: str) -> Callable[[bytes], frozenset[str]] | None:
    if path.startswith("sweeps/"):
        return _of_list if path.endswith(".trials") else None
    return _of_batch if path.endswith(".json") and "/reports/" not in path else None


def _of_list(content: bytes) -> frozenset[str]:
    return frozenset(content.decode("ascii", errors="replace").split())


def _of_batch(content: bytes) -> frozenset[str]:
    try:
        return frozenset(str(trial_id) for ids in read_object(content)["trial_ids"] for trial_id in ids)
    except (ValueError, KeyError, TypeError):
        return frozenset()  # corrupt: the same results lead to the same proposals again
