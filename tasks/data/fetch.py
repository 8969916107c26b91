"""Download published data sets. Importable without torch and pooch."""

from collections.abc import Callable, Iterator
from pathlib import Path

from depthrate.errors import InputError
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.parameters import nearest


class UnknownDatasetError(InputError):
    """The data set does not exist or cannot be downloaded."""


class DownloadError(Exception):
    """A download failed."""

    def __init__(self, message: str, path: str):
        super().__init__(message)
        self.path = path
        """Path of the missing file, relative to the data folder."""


def downloads_of(name: str) -> list[tuple[str, str, str]]:
    """List the published files of a data set: (URL, SHA-256, path relative to the data folder).

    Raises:
        UnknownDatasetError: The data set is unknown or included in depthrate.
    """
    info = PUBLISHED.get(name)
    if info is None or not info.layouts:
        known = [key for key, other in PUBLISHED.items() if other.layouts]
        raise UnknownDatasetError(
            f"data set {name!r} cannot be downloaded{nearest(name, known)}. Allowed: {', '.join(known)}"
        )
    layout = info.layouts[0]
    paths = [layout.archive] if layout.archive else [f"{layout.folder}/{file}.gz" for file in layout.files]
    urls = [f"{info.files_url}/{path.rpartition('/')[2]}" for path in paths]
    return list(zip(urls, info.sha256, paths, strict=True))


def fetch_missing(name: str, exists: Callable[[str], bool], folder: Path) -> Iterator[str]:
    """Download the missing files of a data set below a folder, and yield each path once its checksum is verified.

    Args:
        name: Name of the data set.
        exists: Function that returns whether a path, relative to the data folder, exists there.
        folder: Local folder for the downloads.

    Raises:
        UnknownDatasetError: The data set is unknown.
        DownloadError: A download failed. Files downloaded before are not deleted.
    """
    for url, sha256, relative in downloads_of(name):
        if exists(relative):
            continue
        import pooch  # slow to import, and only needed here

        pooch.get_logger().setLevel("WARNING")
        path = folder / relative
        try:
            pooch.retrieve(url, known_hash=f"sha256:{sha256}", fname=path.name, path=path.parent)
        except (OSError, ValueError) as error:  # no network, no such file, or a different checksum
            raise DownloadError(
                f"cannot download {url} (sha256 {sha256}): {type(error).__name__}: {error}", relative
            ) from error
        yield relative
