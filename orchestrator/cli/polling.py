"""Looking at a store again and again, for commands that watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from depthrate.orchestrator.console.tables import print_line
from depthrate.storage.commits.source import first_line
from depthrate.storage.files.store import Store, StoreError

T = TypeVar("T")


def poll_until_closed(
    store: Store, look: Callable[[], T], every_s: float, sleep: Callable[[float], None]
) -> Iterator[T]:
    """Yield what `look` returns, every so often; a store that stops answering after the first time is asked again.

    Raises:
        OSError, StoreError: it did not answer at first.
    """
    has_looked = False
    while True:
        try:
            found = look()
        except (OSError, StoreError) as error:
            if not has_looked:
                raise
            said = f"{store.url} does not answer ({first_line(error)})"
            print_line(f"warning: {said}; asking it again", stderr=True)
        else:
            has_looked = True
            yield found
        sleep(every_s)
