"""Call a function if a block of code takes too long: to interrupt it, to end the process, or to print a notice."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def call_after(seconds: float | None, function: Callable[..., object], *args: object) -> Iterator[None]:
    """Call `function(*args)` in a thread if the block takes longer than `seconds`, or never if that is None."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, function, args)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # afterwards nothing may refer to `args`, or DuckDB would report an open connection at exit
