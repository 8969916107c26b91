"""Files of an fsspec filesystem: a bucket's prefix, memory, or any other."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from depthrate.storage.files.protocol import InvalidFileError, Item, Result, Stamp, require_size

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_IN_FLIGHT = 24
"""Number of parallel requests."""
_STAMP_KEYS = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created")
"""Fields of fsspec's file information that change when a file is rewritten."""
_UPLOAD = "?uploadId="
"""Separator between a key and the ID of a multipart upload that was never completed."""


@contextlib.contextmanager
def as_os_error(url: str) -> Iterator[None]:
    """Convert exceptions of a store's client into OSError with the store's URL."""
    try:
        yield
    except (OSError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except Exception as error:
        raise OSError(f"store {url}: {type(error).__name__}: {error}") from error


def client_options(url: str) -> dict[str, Any]:
    """Return the options of a store's client. Settings in the user's environment take precedence."""
    if not url.startswith(("s3://", "s3a://")):
        return {}
    config: dict[str, Any] = {"connect_timeout": 10, "read_timeout": 60}
    if not {"AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS"} & os.environ.keys():
        config["retries"] = {"mode": "standard", "max_attempts": 6}  # back-off with jitter on throttling and 5xx
    return {"use_listings_cache": False, "config_kwargs": config}


class RemoteFiles:
    """Implementation of `Files` over an fsspec filesystem."""

    local_folder = None
    uses_requests = True

    def __init__(self, fs: Any, root: str, url: str):
        self.fs, self.root, self._url = fs, root, url
        self.is_shared = "memory" not in fs.protocol
        self.time_unit_s = 1.0 if self.is_shared else 0.0
        self.is_s3 = url.startswith(("s3://", "s3a://"))
        if self.is_s3:
            fs.retries = 2  # rounds of s3fs, each with all of botocore's attempts

    def arrow_filesystem(self) -> Any:
        from depthrate.storage.files.reads_at_exit import remote_files

        return remote_files(self.fs)

    def full_path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def probe(self) -> None:
        bucket, _, prefix = self.root.partition("/")
        if self.is_s3:
            self.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
        elif self.is_shared:
            self.fs.exists(self.root)

    def exists(self) -> bool:
        return True

    def write_obstacle(self) -> str | None:
        return None if self.is_shared else "it exists only in this process, and trials run in other processes"

    def read(self, path: str, max_bytes: int | None) -> bytes:
        options = {"max_concurrency": 1} if self.is_s3 else {}  # otherwise s3fs requests the size first
        with as_os_error(self._url):
            content: bytes = self.fs.cat_file(self.full_path(path), **options)
        require_size(path, len(content), max_bytes)
        return content

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        with as_os_error(self._url):
            return bytes(self.fs.cat_file(self.full_path(path), start=start, end=stop))

    def open(self, path: str) -> IO[bytes]:
        file: IO[bytes] = self.fs.open(self.full_path(path), "rb")
        return file

    def readable_path(self, path: str) -> str:
        return self.full_path(path)

    def write(self, path: str, content: bytes | Path, *, durable: bool) -> None:
        """Write an object, which becomes visible with its single PUT or its last part."""
        full = self.full_path(path)
        with as_os_error(self._url):
            self.fs.put_file(str(content), full) if isinstance(content, Path) else self.fs.pipe_file(full, content)

    def create(self, path: str, content: bytes) -> bool:
        try:
            with as_os_error(self._url):
                self.fs.pipe_file(self.full_path(path), content, mode="create")
        except OSError:
            if self.size(path) is None:
                raise
            return False
        return True

    def walk(self, folder: str) -> Iterator[tuple[str, int]]:
        return ((path, info["size"]) for path, info in self._find(folder))

    def stamps(self, folder: str) -> Iterator[tuple[str, Stamp]]:
        return ((path, tuple(map(info.get, _STAMP_KEYS))) for path, info in self._find(folder))

    def _find(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (path, fsspec's information) of the files below a folder."""
        self.fs.invalidate_cache()
        with as_os_error(self._url):
            try:
                entries = self.fs.find(self.full_path(folder), detail=True)
            except FileNotFoundError:
                return
        for full, info in sorted(entries.items()):
            # entries include folders: empty objects made by web consoles, and prefixes that fill while s3fs lists
            if info["type"] == "file" and not full.endswith("/"):
                yield full[len(self.root) + 1 :], info

    def invalid_files(self) -> Iterator[tuple[str, InvalidFileError]]:
        """Yield nothing, since keys have no types and `read` checks sizes."""
        return iter(())

    def unfinished_writes(self, before: float) -> list[str]:
        """List the multipart uploads that were never completed, which still cost storage."""
        if not self.is_s3:
            return []
        bucket, _, prefix = self.root.partition("/")
        with as_os_error(self._url):
            response = self.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "")
        return [
            f"{upload['Key'][len(prefix) :].lstrip('/')}{_UPLOAD}{upload['UploadId']}"
            for upload in response.get("Uploads", [])
            if upload["Initiated"].timestamp() < before
        ]

    def remove_unfinished(self, path: str) -> bool:
        key, _, upload = path.partition(_UPLOAD)
        if upload:
            bucket, _, full = self.full_path(key).partition("/")
            with as_os_error(self._url), contextlib.suppress(FileNotFoundError):
                self.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=full, UploadId=upload)
        return bool(upload)

    def size(self, path: str) -> int | None:
        self.fs.invalidate_cache()
        with as_os_error(self._url):
            try:
                return int(self.fs.info(self.full_path(path))["size"])
            except FileNotFoundError as error:
                cause = error.__cause__  # fsspec also raises it over HTTP when the server cannot be reached
                if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                    raise cause from None
                return None

    def modified(self, path: str) -> float | None:
        try:
            when: float = self.fs.modified(self.full_path(path)).timestamp()
        except (FileNotFoundError, NotImplementedError, IsADirectoryError):
            return None
        return when

    def delete(self, path: str, *, durable: bool) -> None:
        with as_os_error(self._url), contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.full_path(path), recursive=True)

    def delete_many(self, paths: Sequence[str]) -> None:
        full_paths = list(map(self.full_path, paths))
        if self.is_s3 and paths:
            with as_os_error(self._url):
                self.fs.rm(full_paths)  # a thousand per request
            return
        for full in full_paths:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(full)

    def move(self, path: str, to: str) -> None:
        with as_os_error(self._url):
            self.fs.cp_file(self.full_path(path), self.full_path(to))
            self.fs.rm_file(self.full_path(path))

    def require_inside(self, path: str) -> None:
        """Do nothing, since keys have no links."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        if not self.is_shared:  # memory has no latency
            yield from map(function, items)
            return
        from concurrent.futures import ThreadPoolExecutor

        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(MAX_IN_FLIGHT) as pool:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= MAX_IN_FLIGHT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
