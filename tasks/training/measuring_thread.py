"""Measurements of a pack on a GPU in another thread, while kernels take the next steps."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from depthrate.tasks.training.engines import eager


class MeasuringThread:
    """Runs one measurement after another, on a separate stream. A measurement may not read what later steps change."""

    def __init__(self) -> None:
        # flushing of denormal numbers is a setting of each thread
        self._threads = ThreadPoolExecutor(1, "measurements", torch.set_flush_denormal, (True,))
        self._stream = eager.SideStream()
        self._running: Future[None] | None = None

    def start(self, measure: Callable[[], None]) -> None:
        """Start a measurement after the work that has been launched until now. The one before it has to be finished."""
        assert self._running is None
        self._running = self._threads.submit(self._stream.after_now(measure))

    def finish(self) -> None:
        """Wait for the running measurement, if there is one, and raise its exception."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the running measurement, ignoring its exception, and end the thread."""
        self._threads.shutdown()
