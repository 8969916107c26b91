"""Files below one fsspec URL: whole reads, whole writes that are never seen half done, one listing."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import IO, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem


class StoreError(ValueError):
    """A place cannot be opened, read or written; the message says which and what to do."""


def default_store() -> str:
    """Return the store of this process: DEPTHRATE_STORE, else ./results."""
    return os.environ.get("DEPTHRATE_STORE") or "./results"


class Files:
    """A folder on a disk, a bucket's prefix, or memory; paths are relative and use `/`."""

    def __init__(self, url: str):
        """Open `url`; nothing is read or written yet.

        Raises:
            StoreError: the URL's protocol is unknown or its package is not installed.
        """
        self.url = url
        options: dict[str, Any] = {"use_listings_cache": False} if url.startswith("s3://") else {}
        try:
            self.fs, root = url_to_fs(os.path.expanduser(url), **options)
        except (ValueError, ImportError) as error:
            raise StoreError(
                f"cannot open {url!r}: {error}; give a folder or an fsspec URL such as s3://bucket/store "
                "(S3 needs pip install 'depthrate[s3]')"
            ) from None
        self.root = root.rstrip("/")
        self.is_local = isinstance(self.fs, LocalFileSystem)

    @property
    def is_shared(self) -> bool:
        """Whether other processes see what is written here."""
        return "memory" not in self.fs.protocol

    def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            FileNotFoundError: there is no such file.
        """
        content: bytes = self.fs.cat_file(self.full_path(path))
        return content

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading in parts."""
        opened: IO[bytes] = self.fs.open(self.full_path(path), "rb")
        return opened

    def write(self, path: str, content: bytes, *, durable: bool = False) -> None:
        """Write a file whole: a reader sees the old content or the new, and a killed writer leaves the old.

        With `durable`, a local file is on the disk (not only in the system's memory) when this returns.
        """
        full = self.full_path(path)
        if not self.is_local:
            self.fs.pipe_file(full, content)  # object stores show an object when its PUT is complete
            return
        folder, name = os.path.split(full)
        os.makedirs(folder, exist_ok=True)
        aside = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
        try:
            with open(aside, "wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(aside, full)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise

    def list(self, folder: str = "") -> dict[str, int]:
        """Return path -> bytes of all files in a folder and below it; files being written are not among them."""
        self.fs.invalidate_cache()
        found = self.fs.find(self.full_path(folder), detail=True)
        start = len(self.root) + 1
        return {
            full[start:]: info["size"]
            for full, info in sorted(found.items())
            if not os.path.basename(full).startswith(".")
        }

    def list_many(self, folders) -> dict[str, int]:
        found = {}
        for folder in folders:
            found |= self.list(folder)
        return found

    def read_many(self, paths):
        for path in paths:
            try:
                yield path, self.read(path)
            except OSError as error:
                yield path, error

    def delete_many(self, paths) -> None:
        for path in paths:
            self.delete(path)

    def modified(self, path):
        return self.fs.modified(self.full_path(path)).timestamp()

    def unfinished_writes(self, older_than_s):
        return []

    def is_unfinished(self, path):
        return False

    def remove_unfinished(self, paths):
        pass

    def move(self, path, to):
        self.write(to, self.read(path))
        self.delete(path)

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes, asked for anew, or None if there is no such file."""
        self.fs.invalidate_cache()
        try:
            return int(self.fs.info(self.full_path(path))["size"])
        except FileNotFoundError:
            return None

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all in it; what is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.full_path(path), recursive=True)

    def check_writable(self) -> None:
        """Write and delete a small file.

        Raises:
            StoreError: that did not work.
        """
        probe = f"sweeps/.probe-{uuid.uuid4().hex}"
        try:
            self.write(probe, b"depthrate")
            self.delete(probe)
        except Exception as error:
            raise StoreError(
                f"store {self.url!r} cannot be written: {error}; give a place you may write to with --store or DEPTHRATE_STORE"
            ) from error

    def full_path(self, path: str) -> str:
        """Return the path in its filesystem."""
        return f"{self.root}/{path}" if path else self.root


class DataFolder:
    """The place data sets are read from (`tasks.datasets.DataSource`)."""

    def __init__(self, url: str):
        self.files = Files(url)

    @property
    def url(self) -> str:
        """The place, as the user gave it."""
        return self.files.url

    def find(self, folder: str, names: list[str]) -> str | None:
        """Return the path of the first of `names` that exists in `folder`, or None."""
        paths = [f"{folder}/{name}" for name in names]
        return next((path for path in paths if self.files.size(path) is not None), None)

    def read(self, path: str) -> bytes:
        """Return the bytes of a file that `find` gave."""
        return self.files.read(path)
