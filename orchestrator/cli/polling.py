"""Repeated polling of a store, for commands that watch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from depthrate.orchestrator.console.tables import print_line
from depthrate.storage.commits.source import first_line
from depthrate.storage.files.store import Store, StoreError

T = TypeVar("T")


def poll_until_closed(
    store: Store, poll: Callable[[], T], interval_s: float, sleep: Callable[[float], None]
) -> Iterator[T]:
    """Call `poll` every `interval_s` seconds and yield its results. Errors after the first result are only printed.

    Raises:
        OSError, StoreError: The first poll failed.
    """
    has_result = False
    while True:
        try:
            result = poll()
        except (OSError, StoreError) as error:
            if not has_result:
                raise
            print_line(f"warning: store {store.url} does not answer ({first_line(error)}). Retrying.", stderr=True)
        else:
            has_result = True
            yield result
        sleep(interval_s)
