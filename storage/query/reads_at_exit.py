"""What threads of Arrow read through Python, ended before the interpreter is: one that asks for it then aborts the process.

A query with a limit is answered while Arrow still reads ahead, so that a script may be over before its reads are.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
from pyarrow.fs import FSSpecHandler, PyFileSystem

EXIT_TIMEOUT_S = 10.0
"""How long the end of a process waits for threads of Arrow."""
IDLE_READ_TIMEOUT_S = 1.0
"""What stays unused for so long is kept by somebody who does not read on."""

LAST_S = 0.1
"""For the thread that let go last to leave the interpreter."""


class _Ending(OSError):
    """This process is ending."""


class _Reads:
    """What threads of Arrow hold of Python: while any of it is there they may ask for the interpreter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[weakref.ref[Any]] = []  # without callbacks, which would run in Arrow's threads
        self._last = 0.0
        self._under_way = 0
        self._is_over = False

    def hold(self, given: Any) -> Any:
        """Note what is given to Arrow."""
        with self._lock:
            self._last = time.monotonic()
            self._held = [ref for ref in self._held if ref() is not None] + [weakref.ref(given)]
        return given

    @contextmanager
    def one(self) -> Iterator[None]:
        """Note a read by Arrow.

        Raises:
            OSError: this process is ending.
        """
        if self._is_over:
            raise self.hold(_Ending("this process is ending"))
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last = time.monotonic()

    def end(self) -> None:
        """Have reads fail from now on, and wait until Arrow has let go of all."""
        self._is_over, until = True, time.monotonic() + EXIT_TIMEOUT_S
        self._last = time.monotonic()
        while any(ref() is not None for ref in self._held):
            now = time.monotonic()
            if now > until or (not self._under_way and now - self._last > IDLE_READ_TIMEOUT_S):
                return
            time.sleep(0.01)
        time.sleep(LAST_S if self._held else 0.0)


class _File:
    """A file that Arrow reads."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def read(self, size: int = -1) -> bytes:
        with _reads.one():
            return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


class _RemoteFiles(FSSpecHandler):  # type: ignore[misc]  # pyarrow has no types
    """Files of a remote store, for reading."""

    def open_input_file(self, path: str) -> pa.PythonFile:
        """Open a file for Arrow."""
        with _reads.one():
            file = _reads.hold(self.fs.open(path, mode="rb"))
            return pa.PythonFile(_reads.hold(_File(file)), mode="r")


def remote_files(fs: Any) -> PyFileSystem:
    """Return a file system of fsspec for threads of Arrow."""
    return PyFileSystem(_reads.hold(_RemoteFiles(fs)))


def until_exit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return batches that are made in Python, for Arrow to read ahead."""

    def counted() -> Iterator[pa.RecordBatch]:
        while True:
            with _reads.one():
                batch: Any = next(batches, None)
            if batch is None:
                return
            yield batch

    return _reads.hold(counted())


_reads = _Reads()
# before the pools of threads shut down, which reads under way rest on; `atexit` would come after that
threading._register_atexit(_reads.end)  # type: ignore[attr-defined]
