"""The source of tasks as it ran, once for each version of it: `code/<hash>/`, an index and the files.

The hash is that of the index, which holds the hash of every file: what is read back is what was kept, or it is refused, for
it is executed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import code_file_path, code_folder, code_index_path, is_safe
from depthrate.storage.files.regular import InvalidFileError
from depthrate.storage.files.store import Store, StoreError

_HASH = re.compile(r"[0-9a-f]{32}")


def build_index(main: str, files: Mapping[str, bytes]) -> bytes:
    """Return what says of a task's code which file is the task's own, and what each holds."""
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    return json.dumps({"files": hashes, "main": main}, sort_keys=True, separators=(",", ":")).encode()


def hash_index(index: bytes) -> str:
    """Return the first 32 hex digits of sha256 over an index: the name of a version of a task's code."""
    return hashlib.sha256(index).hexdigest()[:32]


def store_code(store: Store, main: str, files: Mapping[str, bytes]) -> str:
    """Keep a task's code, unless it is there already, and return its hash.

    Raises:
        OSError: the store refused a write.
    """
    index = build_index(main, files)
    code_hash = hash_index(index)
    if read_code(store, code_hash) is None:
        for path, content in files.items():
            store.write(code_file_path(code_hash, path), content, durable=True)
        store.write(code_index_path(code_hash), index, durable=True)
    return code_hash


def read_code(store: Store, code_hash: str) -> dict[str, bytes] | None:
    """Return path -> content of a version of a task's code; None where it is not kept, or not as it was.

    Raises:
        OSError: the store does not answer.
    """
    if _HASH.fullmatch(code_hash) is None:
        return None
    try:
        index = store.read(code_index_path(code_hash))
        if hash_index(index) != code_hash:
            return None
        said = read_object(index)
        main, hashes = str(said["main"]), dict(said["files"])
        files = {path: store.read(code_file_path(code_hash, path)) for path in hashes if path and is_safe(path)}
    except (FileNotFoundError, InvalidFileError, ValueError, KeyError, TypeError):
        return None
    is_whole = files.keys() == hashes.keys()
    return files if is_whole and index == build_index(main, files) else None


def find_code(store: Store, prefix: str) -> tuple[str, dict[str, bytes]]:
    """Return the version of a task's code whose hash begins with `prefix`: its hash, and path -> content.

    Raises:
        StoreError: none begins so, or several, or it is damaged.
    """
    found = [kept_hash for kept_hash in list_code_hashes(store) if kept_hash.startswith(prefix)]
    if len(found) != 1:
        there_is = ", ".join(each[:12] for each in found[:10]) or "none"
        raise StoreError(
            f"{len(found)} versions of a task's code in {store.url} begin with {prefix!r}: {there_is}; list them: "
            'depthrate query "select sweep, code_hash, count(*) from trials group by all"'
        )
    files = read_code(store, found[0])
    if files is None:
        raise StoreError(f"{code_folder(found[0])} in {store.url} is damaged: it does not hold what its name says")
    return found[0], files


def list_code_hashes(store: Store) -> list[str]:
    """Return the versions of tasks' code that are kept."""
    names = {path.split("/")[1] for path in store.list("code") if path.count("/") >= 2}
    return sorted(name for name in names if _HASH.fullmatch(name))


def iter_corrupt_code(store: Store) -> Iterator[tuple[str, str]]:
    """Yield (index, what is wrong) of the kept code that is not what was kept."""
    for code_hash in list_code_hashes(store):
        if read_code(store, code_hash) is None:
            yield code_index_path(code_hash), "is not the code that its name says; the next launch of it keeps it anew"
