"""A remote store in memory that counts its requests and takes a while for each, as an fsspec filesystem."""

import contextlib
import io
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

KEYS_A_LISTING = 1000
"""What object stores return of a listing at once."""
_here = threading.local()


class CountedFileSystem(AbstractFileSystem):
    """Every request is counted, by who asks and by what it is; those of `DRIVER` also take `delay_s`."""

    protocol = "counted"
    cachable = True
    root_marker = ""
    DRIVER = "driver"

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.delay_s = 0.0
        self.requests: Counter[tuple[str, str]] = Counter()
        self.files: dict[str, tuple[bytes, datetime]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def acting(self, who: str) -> Iterator[None]:
        """Count what this thread asks for as somebody else's, whose time is not ours."""
        before = getattr(_here, "who", None)
        _here.who = who
        try:
            yield
        finally:
            _here.who = before

    def count(self, who: str) -> int:
        """Return how many requests somebody made."""
        return sum(number for (item, _), number in self.requests.items() if item == who)

    def _ask(self, what: str, times: int = 1) -> None:
        who = getattr(_here, "who", None) or self.DRIVER
        with self._lock:
            self.requests[who, what] += times
        if who == self.DRIVER and self.delay_s:
            time.sleep(times * self.delay_s)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self._ask("read")
        return self._content(path)[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._ask("write")
        self.files[self._strip_protocol(path)] = (bytes(value), datetime.now(UTC))

    def find(self, path: str, maxdepth: int | None = None, detail: bool = False, **_: Any) -> Any:
        prefix = self._strip_protocol(path).rstrip("/") + "/"
        found = {name: self._info(name) for name in list(self.files) if name.startswith(prefix)}
        self._ask("list", max(1, -(-len(found) // KEYS_A_LISTING)))
        return found if detail else sorted(found)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self._ask("look at")
        return self._info(self._strip_protocol(path))

    def modified(self, path: str) -> datetime:
        self._ask("look at")
        self._content(path)
        return self.files[self._strip_protocol(path)][1]

    def exists(self, path: str, **options: Any) -> bool:
        self._ask("look at")
        return self._strip_protocol(path) in self.files

    def rm_file(self, path: str) -> None:
        self._ask("delete")
        if self.files.pop(self._strip_protocol(path), None) is None:
            raise FileNotFoundError(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for name in self.find(path):
            self.rm_file(name)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self._ask("copy")
        self.files[self._strip_protocol(path2)] = (self._content(path1), datetime.now(UTC))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._ask("read")
        return io.BytesIO(self._content(path))

    def _content(self, path: str) -> bytes:
        try:
            return self.files[self._strip_protocol(path)][0]
        except KeyError:
            raise FileNotFoundError(path) from None

    def _info(self, name: str) -> dict[str, Any]:
        if name not in self.files:
            raise FileNotFoundError(name)
        content, written = self.files[name]
        return {"name": name, "size": len(content), "type": "file", "created": written}


fsspec.register_implementation("counted", CountedFileSystem, clobber=True)
