"""A sentence for who waits and sees nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 5.0
"""How long a command may be silent."""


@contextmanager
def said_when_slow(sentence: str) -> Iterator[None]:
    """Say on stderr what is being done if it is not over by then."""
    timer = threading.Timer(PATIENCE_S, lambda: print(sentence, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
