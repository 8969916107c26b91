"""Close reads by Arrow's threads before the interpreter exits, since a thread that calls it afterwards aborts the process.

A query with a limit returns while Arrow still reads ahead, so a script may end before its reads do.
"""

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
from pyarrow.fs import FSSpecHandler, PyFileSystem

EXIT_TIMEOUT_S = 10.0
"""Maximum seconds that a process waits at its exit for Arrow's threads."""
IDLE_READ_TIMEOUT_S = 1.0
"""Seconds without reads after which open batches belong to an abandoned query."""
LAST_S = 0.1
"""Wait in seconds for the last Arrow thread to leave the interpreter."""


class _Ending(OSError):
    """This process is ending."""


class _Reads:
    """Python objects held by Arrow's threads. While any exists, the threads may call the interpreter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._references: list[weakref.ref[Any]] = []  # without callbacks, which would run in Arrow's threads
        self._last = 0.0
        self._num_active = 0
        self._is_closed = False

    def register(self, resource: Any) -> Any:
        """Register an object passed to Arrow."""
        with self._lock:
            self._last = time.monotonic()
            self._references = [ref for ref in self._references if ref() is not None] + [weakref.ref(resource)]
        return resource

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a read by Arrow.

        Raises:
            OSError: This process is ending.
        """
        if self._is_closed:
            raise self.register(_Ending("this process is ending"))
        with self._lock:
            self._num_active += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_active -= 1
                self._last = time.monotonic()

    def close(self) -> None:
        """Make reads fail from now on, and wait until Arrow has released all objects."""
        self._is_closed, until = True, time.monotonic() + EXIT_TIMEOUT_S
        self._last = time.monotonic()
        while any(ref() is not None for ref in self._references):
            now = time.monotonic()
            if now > until or (not self._num_active and now - self._last > IDLE_READ_TIMEOUT_S):
                return
            time.sleep(0.01)
        time.sleep(LAST_S if self._references else 0.0)


class _File:
    """A file read by Arrow."""

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
            file = _reads.register(self.fs.open(path, mode="rb"))
            return pa.PythonFile(_reads.register(_File(file)), mode="r")


def remote_files(fs: Any) -> PyFileSystem:
    """Wrap an fsspec file system for Arrow's threads."""
    return PyFileSystem(_reads.register(_RemoteFiles(fs)))


def until_exit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Wrap batches produced in Python so that Arrow can read ahead until the process exits."""

    def counted() -> Iterator[pa.RecordBatch]:
        while True:
            with _reads.one():
                batch: Any = next(batches, None)
            if batch is None:
                return
            yield batch

    return _reads.register(counted())


_reads = _Reads()
# runs before the thread pools used by reads in progress shut down, whereas `atexit` runs after that
threading._register_atexit(_reads.close)  # type: ignore[attr-defined]
