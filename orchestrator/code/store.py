"""The code of a user's task in the store: stored once per version by launches, loaded from there by workers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping

from depthrate.storage.catalog.code import read_code, store_code
from depthrate.storage.files.store import Store
from depthrate.tasks.code.trust import accept
from depthrate.tasks.interface import Task
from depthrate.tasks.loading import load_task


def code_hash(task: Task) -> str | None:
    """Return the version of a user's task by its source; None for a task that comes with depthrate."""
    return None if task.code is None else task.code.content_hash


def keep_source(store: Store, task: Task) -> str | None:
    """Keep a user's task in the store, once for each version, and return that version.

    Who launches it has accepted it: by the sweep's name it may be executed from now on, whoever can write to the store.

    Raises:
        OSError: the store refused a write.
    """
    if task.code is None:
        return None
    with contextlib.suppress(OSError):  # without a home the user is asked again
        accept(task.code.content_hash)
    return store_code(store, task.code.main, task.code.contents)


def load_stored_task(name: str, store: Store, version: str | None) -> Task:
    """Return a task as its source was when a launch kept it; as its file is now where no launch did.

    Raises:
        OSError: the store does not answer, or no longer has that source.
        TaskError: it cannot be loaded.
    """
    return load_task(name, files=None if version is None else _files(store.url, version))


@functools.lru_cache(maxsize=8)  # a worker takes one pack after another of the same task
def _files(url: str, version: str) -> Mapping[str, bytes]:
    files = read_code(Store(url), version)
    if files is None:
        raise OSError(f"the source of the task as it was launched, {version}, is not in {url} any more, or is damaged")
    return files
