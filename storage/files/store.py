"""A store's files: paths checked, formats respected, reads bounded, one listing."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from depthrate.errors import InputError
from depthrate.storage.files.format import FORMAT_FILE, Format
from depthrate.storage.files.full import is_full
from depthrate.storage.files.local import LocalFiles
from depthrate.storage.files.paths import is_folder_of_store, is_safe, kind_of
from depthrate.storage.files.protocol import Files, InvalidFileError, Stamp, is_hidden
from depthrate.storage.files.remote import RemoteFiles, client_options

log = logging.getLogger("depthrate")

CLOCK_RESOLUTION_S = 2.5
"""Clock differences in seconds below this are noise: object stores report times in whole seconds and respond with a delay."""
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss")
"""Protocols whose paths are keys. `a//b` and `a/b` are two keys, and clients differ in which one they use."""


class StoreError(InputError):
    """A store cannot be opened, read or written. The message gives the cause and the fix."""


class NoStoreError(StoreError):
    """The store does not exist."""


def default_store() -> str:
    """Return the store of this process: DEPTHRATE_STORE or, if that is not set, ./results."""
    return os.environ.get("DEPTHRATE_STORE") or "./results"


class Store:
    """A folder, a bucket's prefix, or memory. Paths are relative and use `/`.

    Credentials and endpoints come from the environment and the files that the store's own tools read (AWS_PROFILE,
    ~/.aws, ...). The store's client retries throttling and server errors with backoff and jitter.

    Args:
        url: Folder or fsspec URL. Nothing is read or written yet.
        is_users_own: Whether the folder holds user data: links may lead anywhere, files may have any size and type.

    Raises:
        StoreError: The URL's protocol is unknown, its package is not installed, or it names no location.
    """

    def __init__(self, url: str | os.PathLike[str], *, is_users_own: bool = False):
        self.url = url = _validate_url(url)
        self.files: Files = _open_files(url, follows_links=is_users_own)
        self.root = self.files.root
        """Path of the store in its filesystem."""
        self.local_folder = self.files.local_folder
        """The store as a folder of this machine, or None for other stores."""
        self.address = url if self.local_folder is None else self.root
        """URL that is valid in processes with another working directory."""
        self.is_shared, self.uses_requests = self.files.is_shared, self.files.uses_requests
        """Whether other processes see the files, and whether each call is a request."""
        self.clock_ahead_s = 0.0
        """Offset of the local clock against the store's in seconds, measured by `check_writable`."""
        self.format = Format()
        """The store's format, set by `read_format`."""
        self._is_users_own = is_users_own
        self._warned: set[str] = set()
        """Paths of invalid files already logged."""

    @property
    def fs(self) -> Any:
        """The fsspec filesystem."""
        return self.files.fs

    def check_readable(self) -> None:
        """Check that the store responds. It may be empty.

        Raises:
            StoreError: The bucket does not exist or refuses access.
        """
        try:
            self.files.probe()
        except Exception as error:
            raise StoreError(
                f"cannot read store {self.url!r}: {type(error).__name__}: {error}. Check that bucket "
                f"{self.root.partition('/')[0]!r} exists and that your credentials give access (for S3: AWS_PROFILE or "
                "AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL)."
            ) from None

    def require_exists(self) -> None:
        """Check that the store exists, since a missing folder would be listed as an empty one.

        Raises:
            NoStoreError: The folder does not exist.
        """
        if not self.files.exists():
            raise NoStoreError(f"no store at {self.url!r}. Run a sweep first, or pass --store.")

    def read_format(self) -> None:
        """Read the store's format. A store without files may have none yet.

        Raises:
            StoreError: This version must not read it.
        """
        try:
            try:
                self.format = Format.from_bytes(self.read(FORMAT_FILE))
            except FileNotFoundError:
                # again, since another process may have written it and the other files in between
                is_new = not any(self.list_many(("sweeps", "trials", "manifest", "attempts")))
                self.format = Format() if is_new else Format.from_bytes(self.read(FORMAT_FILE))
        except FileNotFoundError:
            self.format = Format(2)  # of a version that did not write the file
        except NotADirectoryError:  # a write reports a file in place of the store's folder
            self.format = Format()
        except InvalidFileError as error:
            raise StoreError(f"cannot determine which versions may read store {self.url!r}: {error}") from None
        except OSError as error:
            raise StoreError(f"cannot read {FORMAT_FILE} in store {self.url!r}: {error}. Try again.") from error
        if (message := self.format.refusal_message(self.url, writing=False)) is not None:
            raise StoreError(message)

    def write_format(self, format: Format | None = None) -> None:
        """Set the store's format, by default that of this version, durably."""
        self.format = Format() if format is None else format
        self.files.write(FORMAT_FILE, self.format.to_bytes(), durable=True)

    def require_writer(self) -> None:
        """Check that this version may write to the store.

        Raises:
            StoreError: It must not.
        """
        if (message := self.format.refusal_message(self.url, writing=True)) is not None:
            raise StoreError(message)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return a file's content.

        Args:
            max_bytes: Maximum size. Default: the maximum of files of its kind.

        Raises:
            FileNotFoundError: The file does not exist.
            InvalidFileError: It is not a file of the store, or it is larger.
        """
        self.full_path(path)
        if max_bytes is None and not self._is_users_own and (kind := kind_of(path)) is not None:
            max_bytes = kind.max_bytes
        return self.files.read(path, max_bytes)

    def read_many(
        self, paths: Iterable[str], max_bytes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[str, bytes | OSError]]:
        """Yield (path, content or the error of reading it) in the order of `paths`."""
        limits = max_bytes or {}

        def content_or_error(path: str) -> tuple[str, bytes | OSError]:
            try:
                return path, self.read(path, limits.get(path))
            except OSError as error:
                if isinstance(error, InvalidFileError) and path not in self._warned:
                    self._warned.add(path)
                    log.warning("%s", error)
                return path, error

        return self.files.map(content_or_error, paths)

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` of a file, in one request.

        Raises:
            InvalidFileError: It is not a file of the store.
        """
        self.full_path(path)
        return self.files.read_range(path, start, stop)

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading in parts.

        Raises:
            InvalidFileError: It is not a file of the store.
        """
        self.full_path(path)
        return self.files.open(path)

    def require_file(self, path: str) -> str:
        """Return the filesystem path of a file, for other libraries to open.

        Raises:
            InvalidFileError: It is not a file of the store.
        """
        self.full_path(path)
        return self.files.readable_path(path)

    def write(self, path: str, content: bytes | Path, *, durable: bool = False) -> None:
        """Write a file atomically: a reader sees the old content or the new, and a killed writer leaves the old content.

        Args:
            content: The bytes, or a local file to copy.
            durable: Whether a local file is synced to the disk before this returns.

        Raises:
            OSError: The write failed. The old content is unchanged.
        """
        self._check_change(path)
        self.files.write(path, content, durable=durable)

    def create(self, path: str, content: bytes) -> bool:
        """Write a file durably, unless it exists. Return whether it was written. Of several writers at once, one succeeds.

        Raises:
            OSError: The write failed.
        """
        self._check_change(path)
        return self.files.create(path, content)

    def list(self, folder: str = "") -> dict[str, int]:
        """Return path -> size in bytes of all files below a folder, except files that are still being written."""
        self.full_path(folder)
        files = dict(self.files.walk(folder))
        joined = f"/{'/'.join(files)}/"
        if joined.isprintable() and "/." not in joined and "//" not in joined:  # far faster than path by path
            return files
        return {path: size for path, size in files.items() if not is_hidden(path) and is_safe(path)}

    def list_unsafe_paths(self) -> Sequence[str]:
        """List the files whose paths could lead out of the store. No store creates them."""
        return [path for path, _ in self.files.walk("") if not is_safe(path)]

    def invalid_files(self) -> Iterator[tuple[str, InvalidFileError]]:
        """Yield the paths that should hold a file but do not, or hold one too large for its kind."""
        return ((path, error) for path, error in self.files.invalid_files() if is_safe(path))

    def unfinished_writes(self, older_than_s: float) -> Sequence[str]:
        """List unfinished writes of killed processes: temporary files, or multipart uploads that still cost storage.

        Younger writes may be in progress.
        """
        return self.files.unfinished_writes(time.time() - self.clock_ahead_s - older_than_s)

    def remove_unfinished(self, path: str) -> bool:
        """Delete one of `unfinished_writes`. Return whether the path can be an unfinished write."""
        self._check_change(path.partition("?")[0])
        return self.files.remove_unfinished(path)

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """Return path -> stamp of all files below a folder. A stamp changes when the file is rewritten."""
        self.full_path(folder)
        return {path: stamp for path, stamp in self.files.stamps(folder) if not is_hidden(path) and is_safe(path)}

    def list_many(self, folders: Sequence[str]) -> dict[str, int]:
        """Return path -> size in bytes of all files below several folders, listed in parallel where that helps."""
        files: dict[str, int] = {}
        for listing in self.files.map(self.list, folders):
            files |= listing
        return files

    def size(self, path: str) -> int | None:
        """Return a file's current size in bytes, or None if it does not exist."""
        self.full_path(path)
        return self.files.size(path)

    def modified(self, path: str) -> float | None:
        """Return a file's modification time in seconds since 1970 by the store's clock, or None if it is missing."""
        self.full_path(path)
        return self.files.modified(path)

    def delete(self, path: str, *, durable: bool = False) -> None:
        """Delete a file, or a folder with its content, if it exists. With `durable`, it stays deleted after a power cut."""
        self._check_change(path)
        self.files.delete(path, durable=durable)

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete files. Missing files are ignored."""
        for path in paths:
            self._check_change(path)
        self.files.delete_many(paths)

    def move(self, path: str, to: str) -> None:
        """Move a file. At any moment at least one of the two paths exists.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        self._check_change(path)
        self._check_change(to)
        self.files.move(path, to)

    def check_location(self) -> None:
        """Check, without writing, that trials can write to the store.

        Only a write shows whether a bucket accepts writes.

        Raises:
            StoreError: They cannot.
        """
        if reason := self.files.write_obstacle():
            raise StoreError(
                f"cannot write to store {self.url!r}: {reason}. Pass a writable folder or a bucket with --store or "
                "DEPTHRATE_STORE."
            )

    def check_writable(self) -> None:
        """Write and delete a small file, and measure the clock's offset.

        Raises:
            StoreError: The write or the deletion failed.
        """
        probe = f"sweeps/.probe-{uuid.uuid4().hex}"
        try:
            self.write(probe, b"depthrate")
            now, received = time.time(), self.modified(probe)
            ahead_s = 0.0 if received is None else now - received
            self.clock_ahead_s = ahead_s if abs(ahead_s) > CLOCK_RESOLUTION_S else 0.0
            self.delete_many([probe])
        except Exception as error:
            remedy = "Free some space, or pass another store" if is_full(error) else "Pass a writable store"
            message = f"cannot write to store {self.url!r}: {str(error).removesuffix('.')}"
            raise StoreError(f"{message}. {remedy} with --store or DEPTHRATE_STORE.") from error

    def full_path(self, path: str) -> str:
        """Return the path in the filesystem.

        Raises:
            StoreError: The path leads out of the store.
        """
        if path and not is_safe(path):
            raise StoreError(f"path {path!r:.200} leads out of store {self.url}. Nothing was done.")
        return self.files.full_path(path)

    def _check_change(self, path: str) -> None:
        """Check that a path may be written, moved or deleted."""
        self.require_writer()
        self.full_path(path)
        self.files.require_inside(path)


def _open_files(url: str, *, follows_links: bool) -> Files:
    """Open a URL. A folder is opened without fsspec, whose import is slow, and any other URL with it."""
    if (folder := _folder_of(url)) is not None:
        return LocalFiles(folder, url, follows_links=follows_links)
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    try:
        fs, root = url_to_fs(os.path.expanduser(url), **client_options(url))
    except Exception as error:  # each protocol raises its own exceptions
        raise StoreError(
            f"cannot open {url!r}: {str(error) or type(error).__name__}. Pass a folder or an fsspec URL, for example "
            "s3://bucket/store (S3 needs pip install 'depthrate[s3]')."
        ) from None
    root = str(root).rstrip("/")
    if isinstance(fs, LocalFileSystem):
        return LocalFiles(root, url, follows_links=follows_links)
    return RemoteFiles(fs, root, url)


def _validate_url(url: object) -> str:
    """Return a store's URL as a str."""
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str) or "\0" in text:
        raise StoreError(f"cannot open {url!r}: expected a folder or an fsspec URL, for example s3://bucket/store.")
    protocol, separator, rest = text.partition("://")
    parts = rest.rstrip("/").split("/")
    if separator and protocol in _OBJECT_STORES and {"", ".", ".."}.intersection(parts):
        raise StoreError(
            f"cannot open {text!r}: a part of its path is empty, '.' or '..'. Write {protocol}://bucket/folder."
        )
    return text


def _folder_of(url: str) -> str | None:
    """Return the absolute path of a store that is a folder, or None for other URLs."""
    path = os.path.expanduser(url.removeprefix("file://"))
    if ":" in path or (url.startswith("file://") and not path.startswith("/")):
        return None
    path = path if path.startswith("/") else f"{os.getcwd()}/{'' if path == '.' else path.removeprefix('./')}"
    return path.rstrip("/")


def open_store(url: str | os.PathLike[str] | None = None) -> Store:
    """Open the store at `url` or, without one, the store of this process. The store need not exist.

    Raises:
        StoreError: The store cannot be read.
    """
    store = Store(url or default_store())
    store.check_readable()
    store.read_format()
    return store


def existing_store(url: str | os.PathLike[str] | None = None, *, writes: bool = False) -> Store:
    """Open an existing store.

    Args:
        writes: Whether the store is about to be changed.

    Raises:
        StoreError: No store exists at `url`, it cannot be read, or only newer versions of depthrate may read or write
            it.
    """
    store = open_store(url)
    store.require_exists()
    names = [] if store.local_folder is None else sorted(os.listdir(store.root))
    if names and FORMAT_FILE not in names and not any(is_folder_of_store(name) for name in names):
        raise NoStoreError(f"{store.url!r} is not a store: it holds {', '.join(names[:3])}. Pass another --store.")
    if writes:
        store.require_writer()
    return store
