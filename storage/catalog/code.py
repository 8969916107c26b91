"""The source code of tasks as it ran. Each version is stored once, under `code/<hash>/`, as an index and the files.

The hash is computed from the index, which holds the hash of every file. Code is executed, so code that differs from the
stored version is rejected when it is read.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import code_file_path, code_index_path, is_safe
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store, StoreError

_HASH = re.compile(r"[0-9a-f]{32}")


def build_index(main: str, files: Mapping[str, bytes]) -> bytes:
    """Return the index of a task's code: the path of the main file, and the hash of each file."""
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    return json.dumps({"files": hashes, "main": main}, sort_keys=True, separators=(",", ":")).encode()


def hash_index(index: bytes) -> str:
    """Return the first 32 hex digits of sha256 over an index: the name of a version of a task's code."""
    return hashlib.sha256(index).hexdigest()[:32]


def store_code(store: Store, main: str, files: Mapping[str, bytes]) -> str:
    """Store a task's code, unless it is stored already, and return its hash."""
    index = build_index(main, files)
    code_hash = hash_index(index)
    if read_code(store, code_hash) is None:
        for path, content in files.items():
            store.write(code_file_path(code_hash, path), content, durable=True)
        store.write(code_index_path(code_hash), index, durable=True)
    return code_hash


def read_code(store: Store, code_hash: str) -> dict[str, bytes] | None:
    """Return path -> content of a version of a task's code, or None if the version is missing or corrupt."""
    if _HASH.fullmatch(code_hash) is None:
        return None
    try:
        index = store.read(code_index_path(code_hash))
        if hash_index(index) != code_hash:
            return None
        fields = read_object(index)
        main, hashes = str(fields["main"]), dict(fields["files"])
        files = {path: store.read(code_file_path(code_hash, path)) for path in hashes if path and is_safe(path)}
    except (FileNotFoundError, InvalidFileError, ValueError, KeyError, TypeError):
        return None
    is_complete = files.keys() == hashes.keys()
    return files if is_complete and index == build_index(main, files) else None


def find_code(store: Store, prefix: str) -> tuple[str, dict[str, bytes]]:
    """Find the version of a task's code whose hash starts with `prefix` and return its hash, and path -> content.

    Raises:
        StoreError: No version matches, or several do, or the version is corrupt.
    """
    matches = [code_hash for code_hash in list_code_hashes(store) if code_hash.startswith(prefix)]
    if len(matches) != 1:
        listed = ", ".join(code_hash[:12] for code_hash in matches[:10]) or "none"
        raise StoreError(
            f"{len(matches)} code versions in {store.url} start with {prefix!r}, expected 1: {listed}. List them: "
            'depthrate query "select sweep, code_hash, count(*) from trials group by all"'
        )
    files = read_code(store, matches[0])
    if files is None:
        raise StoreError(f"code {matches[0]} in {store.url} is corrupt: its content does not match its hash.")
    return matches[0], files


def list_code_hashes(store: Store) -> list[str]:
    """List the stored versions of tasks' code."""
    names = {path.split("/")[1] for path in store.list(code_index_path.folder()) if path.count("/") >= 2}
    return sorted(name for name in names if _HASH.fullmatch(name))


def iter_corrupt_code(store: Store) -> Iterator[tuple[str, str]]:
    """Yield (index, fault) of the stored code that is corrupt."""
    for code_hash in list_code_hashes(store):
        if read_code(store, code_hash) is None:
            yield code_index_path(code_hash), "does not match its hash. The next launch with this code stores it again"
