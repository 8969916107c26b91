"""Code of custom tasks in the store: stored once per version by launches, loaded by workers."""

import contextlib
import functools
from collections.abc import Mapping

from depthrate.storage.catalog.code import read_code, store_code
from depthrate.storage.files.store import Store
from depthrate.tasks.code.trust import accept
from depthrate.tasks.interface import Task
from depthrate.tasks.loading import load_task


def code_hash(task: Task) -> str | None:
    """Return the hash of a custom task's code, or None for a built-in task."""
    return None if task.code is None else task.code.content_hash


def keep_source(store: Store, task: Task) -> str | None:
    """Store the code of a custom task, once per version, and return its hash.

    The user who launches code trusts it: later commands run it by the sweep's name, even if others can write to the store.

    Raises:
        OSError: The store refused a write.
    """
    if task.code is None:
        return None
    with contextlib.suppress(OSError):  # without a home folder, later commands ask for permission again
        accept(task.code.content_hash)
    return store_code(store, task.code.main, task.code.contents)


def load_stored_task(name: str, store: Store, version: str | None) -> Task:
    """Load a task from its stored code, or from its file if no version is given.

    Raises:
        OSError: The store does not answer, or the code is missing or corrupt.
        TaskError: The task cannot be loaded.
    """
    return load_task(name, files=None if version is None else _files(store.url, version))


@functools.lru_cache(maxsize=8)  # a worker runs many packs of the same task
def _files(url: str, version: str) -> Mapping[str, bytes]:
    files = read_code(Store(url), version)
    if files is None:
        raise OSError(f"stored code {version} of the task is missing in {url}, or corrupt")
    return files
