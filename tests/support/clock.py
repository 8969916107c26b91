"""The one invented clock of the tests: time passes as a test says, beside real time or without it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Time that a test moves. It also passes by `step_s` with every look, and with the time of a `source`."""

    def __init__(self, now: float = 0.0, *, step_s: float = 0.0, source: Callable[[], float] = lambda: 0.0) -> None:
        self.now, self._step_s, self._source = now, step_s, source

    def __call__(self) -> float:
        """Return the time, as everybody in a test has it."""
        self.now += self._step_s
        return self._source() + self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Do what happens elsewhere in no time."""
        before = self._source()
        try:
            yield
        finally:
            self.now -= self._source() - before


def running_clock() -> Clock:
    """Return a clock that runs as the real one, and jumps where a test lets it."""
    return Clock(source=time.time)
