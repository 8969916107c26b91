"""Files below one fsspec URL: whole reads, whole writes that are never seen half done, one listing."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from depthrate.storage.files.format import FORMAT_FILE, Format
from depthrate.storage.files.full import is_full
from depthrate.storage.files.local import (
    Stamp,
    UnfitFileError,
    is_hidden,
    move_whole,
    open_regular,
    read_whole,
    require_regular,
    require_size,
    size_of,
    sync_folder,
    walk,
    walk_stamps,
    write_whole,
)
from depthrate.storage.files.paths import is_safe, kind_of

log = logging.getLogger("depthrate")

if TYPE_CHECKING:
    from concurrent.futures import Future


def client_options(url: str) -> dict[str, Any]:
    """Return what a kind of store is opened with; what users set in their environment stays theirs to set."""
    if not url.startswith(("s3://", "s3a://")):
        return {}
    config: dict[str, Any] = {"connect_timeout": 10, "read_timeout": 60}
    if not {"AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS"} & os.environ.keys():
        config["retries"] = {"mode": "standard", "max_attempts": 6}  # back-off with jitter on throttling and 5xx
    return {"use_listings_cache": False, "config_kwargs": config}


@contextlib.contextmanager
def as_os_error(url: str) -> Iterator[None]:
    """Turn what a store's client raises into OSError, which callers know: it names the store."""
    try:
        yield
    except (OSError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except Exception as error:
        raise OSError(f"store {url}: {type(error).__name__}: {error}") from error


IN_FLIGHT = 24
"""Requests that are under way at once when many files of a remote store are read."""
COARSE_S = 2.5
"""Clocks that differ by less cannot be told apart: object stores tell times in whole seconds, and answer late."""
_TELLING = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created")
"""What filesystems say of a file by which it is seen that it was written anew."""
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss")
"""Where a path is a key: `a//b` and `a/b` are two, and clients do not agree which of them is meant."""


class StoreError(ValueError):
    """A place cannot be opened, read or written; the message says which and what to do."""


class NoStoreError(StoreError):
    """There is no store yet where one was looked for."""


def default_store() -> str:
    """Return the store of this process: DEPTHRATE_STORE, else ./results."""
    return os.environ.get("DEPTHRATE_STORE") or "./results"


class Store:
    """A folder on a disk, a bucket's prefix, or memory; paths are relative and use `/`.

    Credentials and endpoints come from where the store's own tools look for them (AWS_PROFILE, ~/.aws, ...), never from
    us. Throttling and server errors are tried again by the store's own client, with back-off and jitter.
    """

    def __init__(self, url: str | os.PathLike[str], *, is_users_own: bool = False):
        """Open `url`; nothing is read or written yet.

        A place that is the user's own is not looked at with suspicion: links lead where they lead, and files are what they are.

        Raises:
            StoreError: the URL's protocol is unknown or its package is not installed, or it names no place.
        """
        self.url = url = _checked(url)
        folder = _folder_of(url)
        self.is_local = folder is not None
        self.root = folder if folder is not None else self._open_client()
        self.clock_ahead_s = 0.0
        """By how much this machine's clock is ahead of the store's, since `check_writable` looked."""
        self.format = Format()
        """What the store says of its format, once `read_format` has looked."""
        self._is_users_own = is_users_own
        self._inside: set[str] = set()
        """Folders that were seen to be in the store, also through links."""
        self._passed_over: set[str] = set()
        self.is_s3 = url.startswith(("s3://", "s3a://"))
        if self.is_s3:
            self.fs.retries = 2  # s3fs's own rounds, each of all the attempts that botocore makes

    def _open_client(self) -> str:
        """Open the client of a URL and return the path of the store in its filesystem."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        try:
            self.fs, root = url_to_fs(os.path.expanduser(self.url), **client_options(self.url))
        except Exception as error:  # each protocol has its own way of saying that a URL does not suit it
            raise StoreError(
                f"cannot open {self.url!r}: {str(error) or type(error).__name__}; give a folder or an fsspec URL such as "
                "s3://bucket/store (S3 needs pip install 'depthrate[s3]')"
            ) from None
        self.is_local = isinstance(self.fs, LocalFileSystem)
        return str(root).rstrip("/")

    @cached_property
    def fs(self) -> Any:
        """The client: for a folder, whose files need none to be read and written, opened when it is asked for."""
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    @property
    def address(self) -> str:
        """Its URL as processes in other folders need it."""
        return self.root if self.is_local else self.url

    @property
    def is_shared(self) -> bool:
        """Whether other processes see what is written here."""
        return self.is_local or "memory" not in self.fs.protocol

    def check_readable(self) -> None:
        """Look at the store's top folder; that there is nothing yet is fine.

        Raises:
            StoreError: there is no such bucket, or it refuses us.
        """
        if self.is_local or not self.is_shared:
            return
        bucket = self.root.partition("/")[0]
        try:
            if self.is_s3:
                self.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=self.root.partition("/")[2], MaxKeys=1)
            else:
                self.fs.exists(self.root)
        except Exception as error:
            raise StoreError(
                f"store {self.url!r} cannot be read: {type(error).__name__}: {error}; check that bucket {bucket!r} exists and "
                "that your credentials reach it (for S3: AWS_PROFILE or AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL)"
            ) from None

    def require_there(self) -> None:
        """Check that there is a store: a folder that has gone lists as an empty one.

        Raises:
            NoStoreError: there is no such folder.
        """
        if self.is_local and not os.path.isdir(self.root):
            raise NoStoreError(f"there is no store at {self.url!r}; run a sweep first, or name its place with --store")

    def read_format(self) -> None:
        """Look which versions of depthrate may read the store and write to it.

        Raises:
            StoreError: this one must not read it.
        """
        try:
            self.format = Format.of(self.read(FORMAT_FILE))
        except (
            FileNotFoundError,
            NotADirectoryError,
        ):  # a file where the store's folder would be is said by who writes
            self.format = Format()
        except UnfitFileError as error:
            raise StoreError(f"which versions may read store {self.url!r} is not known: {error}") from None
        except OSError as error:
            raise StoreError(f"{FORMAT_FILE} in store {self.url!r} cannot be read: {error}; try again") from error
        if (refusal := self.format.refusal(self.url, writing=False)) is not None:
            raise StoreError(refusal)

    def write_format(self, format: Format) -> None:
        """Say what the store's format is from now on, durably.

        Raises:
            OSError: the store refused the write.
        """
        self.write(FORMAT_FILE, format.to_bytes(), durable=True)
        self.format = format

    def require_writer(self) -> None:
        """Check that this version may write to a store of its format.

        Raises:
            StoreError: it must not.
        """
        if (refusal := self.format.refusal(self.url, writing=True)) is not None:
            raise StoreError(refusal)

    def read(self, path: str, most_bytes: int | None = None) -> bytes:
        """Return a file's content; of at most so many bytes, else as many as its kind can have.

        Raises:
            FileNotFoundError: there is no such file.
            UnfitFileError: what stands there is no file of the store, or larger.
        """
        full = self._readable_path(path)
        if most_bytes is None and not self._is_users_own and (kind := kind_of(path)) is not None:
            most_bytes = kind.most_bytes
        if self.is_local:
            return Path(full).read_bytes() if self._is_users_own else read_whole(full, self.root, most_bytes)
        options = {"max_concurrency": 1} if self.is_s3 else {}  # else s3fs asks for the size first
        with as_os_error(self.url):
            content: bytes = self.fs.cat_file(full, **options)
        require_size(path, len(content), most_bytes)
        return content

    def read_many(
        self, paths: Iterable[str], most_bytes: Mapping[str, int] | None = None
    ) -> Iterator[tuple[str, bytes | OSError]]:
        """Yield (path, content) in the order of `paths`; a file that cannot be read comes with its error instead."""
        most = {} if most_bytes is None else most_bytes
        if self.is_local or not self.is_shared:
            yield from ((path, self._content_or_error(path, most.get(path))) for path in paths)
            return
        from concurrent.futures import ThreadPoolExecutor

        waiting: deque[tuple[str, Future[bytes | OSError]]] = deque()
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            for path in paths:
                waiting.append((path, pool.submit(self._content_or_error, path, most.get(path))))
                if len(waiting) >= IN_FLIGHT:
                    first, content = waiting.popleft()
                    yield first, content.result()
            for path, content in waiting:
                yield path, content.result()

    def _content_or_error(self, path: str, most_bytes: int | None) -> bytes | OSError:
        try:
            return self.read(path, most_bytes)
        except UnfitFileError as error:
            if path not in self._passed_over:
                self._passed_over.add(path)
                log.warning("%s", error)
            return error
        except OSError as error:
            return error

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Return a stretch of a file's bytes, in one request.

        Raises:
            UnfitFileError: what stands there is no file of the store.
        """
        if self.is_local:
            with self.open(path) as file:
                file.seek(start)
                return file.read(stop - start)
        with as_os_error(self.url):
            return bytes(self.fs.cat_file(self.full_path(path), start=start, end=stop))

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading in parts.

        Raises:
            UnfitFileError: what stands there is no file of the store.
        """
        full = self._readable_path(path)
        if self.is_local:
            return Path(full).open("rb") if self._is_users_own else open(open_regular(full, self.root), "rb")
        opened: IO[bytes] = self.fs.open(full, "rb")
        return opened

    def require_file(self, path: str) -> str:
        """Return the path in its filesystem of what can be opened by name; a local one is a file of the store.

        Raises:
            UnfitFileError: what stands there is none.
        """
        full = self._readable_path(path)
        return require_regular(full, self.root) if self.is_local else full

    def _readable_path(self, path: str) -> str:
        """Return the path in its filesystem for reading.

        Raises:
            UnfitFileError: a folder on the way to it is a link out of the store.
        """
        full = self.full_path(path)
        folder = os.path.dirname(full)
        if self.is_local and not self._is_users_own and folder not in self._inside:
            if (outside := self._outside(folder)) is not None:
                raise UnfitFileError(
                    f"{path} leads out of store {self.url} through a link, to {outside}; it was not read: give the place "
                    "itself with --store, or remove the link"
                )
            self._inside.add(folder)
        return full

    def _outside(self, folder: str) -> str | None:
        """Return where a local folder leads if that is out of the store."""
        root, real = os.path.realpath(self.root), os.path.realpath(folder)
        return real if os.path.commonpath([root, real]) != root else None

    def write(self, path: str, content: bytes | Path, *, durable: bool = False) -> None:
        """Write a file whole, of bytes or of a local file: a reader sees the old or the new, a killed writer leaves the old.

        With `durable`, a local file is on the disk (not only in the system's memory) when this returns.

        Raises:
            OSError: it could not be written; the old content is still there.
        """
        full = self._own_path(path)
        if self.is_local:
            write_whole(full, content, durable=durable)
            return
        with as_os_error(self.url):  # object stores show an object when its one PUT, or its last part, is in
            self.fs.put_file(str(content), full) if isinstance(content, Path) else self.fs.pipe_file(full, content)

    def list(self, folder: str = "") -> dict[str, int]:
        """Return path -> bytes of all files in a folder and below it; files being written are not among them."""
        return {path: size for path, size in self._list(folder).items() if not is_hidden(path) and is_safe(path)}

    def list_foreign(self) -> Sequence[str]:
        """Return the files of the whole store whose paths no store makes: they would lead elsewhere."""
        return [path for path in self._list("") if not is_safe(path)]

    def unfit(self) -> Iterator[tuple[str, UnfitFileError]]:
        """Yield what stands where a file of a local store belongs and is none, or is larger than it can be."""
        for path, size in self._list("").items() if self.is_local else ():
            kind = kind_of(path)
            try:
                self.require_file(path)
                require_size(self.full_path(path), size, None if kind is None else kind.most_bytes)
            except UnfitFileError as error:
                yield path, error
            except (OSError, StoreError):
                continue  # gone meanwhile, or a path that no store makes

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """Return path -> what changes when a file is written anew, of the files in a folder and below it."""
        if self.is_local:
            found = walk_stamps(self.full_path(folder), self.root)
        else:
            found = ((path, tuple(info.get(each) for each in _TELLING)) for path, info in self._find(folder))
        return {path: stamp for path, stamp in found if not is_hidden(path) and is_safe(path)}

    def _list(self, folder: str) -> dict[str, int]:
        if self.is_local:
            return dict(walk(self.full_path(folder), len(self.root) + 1))
        return {path: info["size"] for path, info in self._find(folder)}

    def _find(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (path, what its filesystem says of it) of the files in a folder of a remote store."""
        self.fs.invalidate_cache()
        full = self.full_path(folder)
        with as_os_error(self.url):
            try:
                found = self.fs.find(full, detail=True)
            except FileNotFoundError:
                return
        start = len(self.root) + 1
        for full, info in sorted(found.items()):
            # folders may be among them: empty objects that web consoles make, and what fills while s3fs looks
            if info["type"] == "file" and not full.endswith("/"):
                yield full[start:], info

    def list_many(self, folders: Sequence[str]) -> dict[str, int]:
        """Return path -> bytes of all files in some folders; a remote store is asked for all of them at once."""
        if self.is_local or not self.is_shared:
            listed = [self.list(folder) for folder in folders]
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(len(folders)) as pool:
                listed = list(pool.map(self.list, folders))
        return {path: size for each in listed for path, size in each.items()}

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes, asked for anew, or None if there is no such file."""
        if self.is_local:
            try:
                return size_of(self.full_path(path))
            except FileNotFoundError:
                return None
        self.fs.invalidate_cache()
        with as_os_error(self.url):
            try:
                return int(self.fs.info(self.full_path(path))["size"])
            except FileNotFoundError as error:
                cause = error.__cause__  # over HTTP fsspec says so too of a server that cannot be reached
                if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                    raise cause from None
                return None

    def modified(self, path: str) -> float | None:
        """Return when a file was written, in seconds since the epoch by the store's clock; None if it is not there."""
        try:
            when: float = self.fs.modified(self.full_path(path)).timestamp()
        except (FileNotFoundError, NotImplementedError, IsADirectoryError):
            return None
        return when

    def delete(self, path: str, *, durable: bool = False) -> None:
        """Delete a file or a folder with all in it; what is not there is no error; `durable`: nor back after a power cut."""
        full = self._own_path(path)
        with as_os_error(self.url), contextlib.suppress(FileNotFoundError):
            if not self.is_local or os.path.lexists(full):
                self.fs.rm(full, recursive=True)
                if durable and self.is_local:
                    sync_folder(os.path.dirname(full))

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete files; what is not there is no error."""
        full_paths = [self._own_path(path) for path in paths]
        if self.is_s3 and paths:
            with as_os_error(self.url):
                self.fs.rm(full_paths)  # a thousand a request
            return
        remove = os.remove if self.is_local else self.fs.rm_file
        for full in full_paths:
            with contextlib.suppress(FileNotFoundError):
                remove(full)

    def move(self, path: str, to: str) -> None:
        """Give a file another path; it is never missing from both.

        Raises:
            FileNotFoundError: there is no such file.
        """
        source, target = self._own_path(path), self._own_path(to)
        if self.is_local:
            move_whole(source, target)
            return
        with as_os_error(self.url):
            self.fs.cp_file(source, target)
            self.fs.rm_file(source)

    def check_writable(self) -> None:
        """Write and delete a small file, and see by how much our clock is ahead of the store's.

        Raises:
            StoreError: that did not work.
        """
        probe = f"sweeps/.probe-{uuid.uuid4().hex}"
        try:
            self.write(probe, b"depthrate")
            now, received = time.time(), self.modified(probe)
            ahead_s = 0.0 if received is None else now - received
            self.clock_ahead_s = ahead_s if abs(ahead_s) > COARSE_S else 0.0
            self.delete_many([probe])
        except Exception as error:
            way = "make room there, or give another place" if is_full(error) else "give a place you may write to"
            what = f"store {self.url!r} cannot be written: {error}"
            raise StoreError(f"{what}; {way} with --store or DEPTHRATE_STORE") from error

    def full_path(self, path: str) -> str:
        """Return the path in its filesystem.

        Raises:
            StoreError: it leads out of the store.
        """
        if path and not is_safe(path):
            raise StoreError(f"path {path!r:.200} leads out of store {self.url}; nothing was done")
        return f"{self.root}/{path}" if path else self.root

    def _own_path(self, path: str) -> str:
        """Return the path in its filesystem for writing, moving or deleting: also through links it stays in the store.

        Raises:
            StoreError, OSError: it leads out of the store, or this version must not write there.
        """
        self.require_writer()
        full = self.full_path(path)
        if self.is_local and path:
            if (outside := self._outside(os.path.dirname(full))) is not None:
                raise OSError(
                    f"{path} leads out of store {self.url} through a link, to {outside}; nothing was written, moved or "
                    "deleted there: give the place itself with --store, or remove the link"
                )
        return full


def _checked(url: object) -> str:
    """Return a store's URL as a text.

    Raises:
        StoreError: it is none, or names a place where what is written would not be found.
    """
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str) or "\0" in text:
        raise StoreError(f"cannot open {url!r}: a store is a folder or an fsspec URL such as s3://bucket/store")
    protocol, separator, rest = text.partition("://")
    parts = rest.rstrip("/").split("/")
    if separator and protocol in _OBJECT_STORES and {"", ".", ".."}.intersection(parts):
        raise StoreError(
            f"cannot open {text!r}: between its slashes stands nothing, or no name; write {protocol}://bucket/folder"
        )
    return text


def _folder_of(url: str) -> str | None:
    """Return the absolute path of a store that is a folder; None where fsspec says what a URL means."""
    path = os.path.expanduser(url.removeprefix("file://"))
    if ":" in path or (url.startswith("file://") and not path.startswith("/")):
        return None
    path = path if path.startswith("/") else f"{os.getcwd()}/{'' if path == '.' else path.removeprefix('./')}"
    return path.rstrip("/")


def open_store(url: str | os.PathLike[str] | None = None) -> Store:
    """Open the store at `url`, else that of this process, whether or not there is one yet.

    Raises:
        StoreError: the place cannot be read.
    """
    store = Store(url or default_store())
    store.check_readable()
    store.read_format()
    return store


def existing_store(url: str | os.PathLike[str] | None = None, *, writes: bool = False) -> Store:
    """Open a store that is there; `writes` says that it is about to be changed.

    Raises:
        StoreError: there is none at `url`, it cannot be read, or only newer versions of depthrate may read it or write to it.
    """
    store = open_store(url)
    store.require_there()
    if writes:
        store.require_writer()
    return store
