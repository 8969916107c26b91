"""Locate and read the files of a data set: plain or compressed in a folder, or in the published archive."""

import functools
import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Protocol

from depthrate.errors import InputError


class DatasetError(InputError):
    """Missing or corrupt data set. The message names the file, the expected content and the remedy."""


class IncompleteDatasetError(DatasetError):
    """Data set with only some of its files present."""

    def __init__(self, message: str, missing: Sequence[str]):
        super().__init__(message)
        self.missing = list(missing)
        """Paths of the missing files."""


class DataSource(Protocol):
    """Source of data sets: a folder, or any other storage with files in folders."""

    @property
    def url(self) -> str:
        """Path or URL of the source, as passed by the user."""

    def find(self, folder: str, names: list[str]) -> str | None:
        """Return the path of the first of `names` that exists in `folder` (`` for the source itself), or None."""

    def read(self, path: str) -> bytes:
        """Read a file at a path returned by `find`."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file at a path returned by `find`, for reading in parts."""


@dataclass(frozen=True)
class Layout:
    """Layout of a published data set: files in a folder, or an archive of that folder."""

    folder: str
    files: tuple[str, ...]
    """File names in the folder. Empty if only the archive is read."""
    archive: str | None = None
    """Name of the published, compressed archive. The name without .gz is accepted too."""
    is_python: bool = False
    """True if the files are Python pickles."""

    def describe(self) -> str:
        """Describe the files and archive expected, for messages."""
        parts = [f"{self.folder}/{' and '.join(self.files)} (or .gz)"] if self.files else []
        return " or ".join(parts + ([self.archive] if self.archive else []))


@dataclass(frozen=True)
class Located:
    """Location of a data set's files."""

    layout: Layout
    paths: Mapping[str, str]
    """Path of each file. Empty for an archive."""
    archive: str | None = None

    @property
    def where(self) -> list[str]:
        """Paths to read."""
        return [self.archive] if self.archive else list(self.paths.values())


def locate(name: str, layouts: Sequence[Layout], source: DataSource, homepage: str) -> Located:
    """Locate a data set in the first of its layouts that is present.

    Args:
        name: Name of the data set, for messages.
        layouts: Supported layouts, preferred one first.
        source: Folder or other place to search.
        homepage: Web page of the data set, for messages.

    Raises:
        DatasetError: No layout is present and complete. The message lists the paths searched and how to get the files.
    """
    incomplete: IncompleteDatasetError | None = None

    def find(folder: str, names: list[str]) -> str | None:
        with _reading(f"{source.url}/{folder}" if folder else source.url):
            return source.find(folder, names)

    for layout in layouts:
        path_of_file = {file: find(layout.folder, [file, file + ".gz"]) for file in layout.files}
        paths = {file: path for file, path in path_of_file.items() if path is not None}
        if layout.files and len(paths) == len(path_of_file):
            return Located(layout, paths)
        if paths:
            missing = [f"{layout.folder}/{file}" for file in layout.files if file not in paths]
            incomplete = incomplete or IncompleteDatasetError(
                f"data set {name!r} in {source.url} is incomplete: it has {next(iter(paths.values()))}, but not "
                f"{', '.join(missing)}. {_remedy(name, layouts, homepage)}",
                missing,
            )
        if layout.archive:
            names = [layout.archive, layout.archive.removesuffix(".gz")]
            archive = find("", names) or find(layout.folder, names)
            if archive is not None:
                return Located(layout, {}, archive)
    if incomplete is not None:
        raise incomplete
    expected = ", or ".join(layout.describe() for layout in layouts)
    raise DatasetError(
        f"data set {name!r} not found in {source.url}, expected {expected}. {_remedy(name, layouts, homepage)}"
    )


def _remedy(name: str, layouts: Sequence[Layout], homepage: str) -> str:
    return (
        f"Run depthrate data fetch {name}, or download {layouts[0].describe()} from {homepage} to a folder and set "
        "DEPTHRATE_DATA to it."
    )


def read_files(located: Located, source: DataSource) -> dict[str, tuple[bytes, str]]:
    """Read a data set's files, decompressed: file -> (content, origin for messages).

    Raises:
        DatasetError: A file is corrupt or unreadable, or the archive lacks one.
    """
    contents: dict[str, tuple[bytes, str]] = {}
    if located.archive is None:
        origins = {file: f"{source.url}/{path}" for file, path in located.paths.items()}
        for file, path in located.paths.items():
            with _reading(origins[file]):
                raw = source.read(path)
            contents[file] = unzipped(raw, origins[file]), origins[file]
        return contents
    origin = f"{source.url}/{located.archive}"
    wanted = {f"{located.layout.folder}/{file}": file for file in located.layout.files}
    with opened_archive(located, source) as opened:
        for member, content in archive_members(opened, origin):
            if member in wanted:
                contents[wanted[member]] = (content(), f"{member} in {origin}")
                if len(contents) == len(wanted):
                    return contents
    missing = ", ".join(member for member, file in wanted.items() if file not in contents)
    raise DatasetError(f"{origin} lacks {missing}. It is truncated or another archive. Download it again.")


@contextmanager
def opened_archive(located: Located, source: DataSource) -> Iterator[IO[bytes]]:
    """Open the located archive.

    Raises:
        DatasetError: The archive cannot be opened or read.
    """
    assert located.archive is not None
    origin = f"{source.url}/{located.archive}"
    with _reading(origin), source.open(located.archive) as opened:
        yield opened


def archive_members(opened: IO[bytes], origin: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield (path, function that reads the content) for each file in a tar archive, compressed or not.

    Raises:
        DatasetError: The file is corrupt or not a tar archive.
    """
    with _decoding(origin), tarfile.open(fileobj=opened, mode="r:*") as archive:
        for member in archive:
            if member.isfile():
                yield member.name.removeprefix("./"), functools.partial(_read_member, archive, member, origin)


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, origin: str) -> bytes:
    with _decoding(origin):
        file = archive.extractfile(member)
        assert file is not None
        return file.read()


def unzipped(content: bytes, origin: str) -> bytes:
    """Return the content of a file, decompressed if it is gzipped.

    Raises:
        DatasetError: The content is corrupt.
    """
    with _decoding(origin):
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


@contextmanager
def _reading(origin: str) -> Iterator[None]:
    """Convert read errors to a DatasetError that names the file and the remedy."""
    try:
        yield
    except IsADirectoryError as error:
        raise DatasetError(f"{origin} is a folder, expected a file. Replace it by the file.") from error
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(
            f"{origin} cannot be read ({type(error).__name__}: {reason}). Check that it exists and that you may read it, "
            "or set DEPTHRATE_DATA to another folder."
        ) from error


@contextmanager
def _decoding(origin: str) -> Iterator[None]:
    """Convert decoder errors for corrupt files to a DatasetError that names the file and the remedy."""
    try:
        yield
    except (EOFError, OSError, zlib.error, tarfile.TarError) as error:
        reason = str(error).partition("\n")[0]  # tarfile lists every compression it tried
        raise DatasetError(f"{origin} is corrupt ({reason}). Download it again.") from error
