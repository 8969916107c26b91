"""Addresses and checksums of the published data sets, and their download. Importable without torch and pooch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from depthrate.tasks.parameters import nearest


class UnknownDatasetError(ValueError):
    """The data set does not exist or cannot be downloaded."""


class DownloadError(Exception):
    """A download failed."""

    def __init__(self, message: str, path: str):
        super().__init__(message)
        self.path = path
        """Path of the missing file, relative to the data folder."""


@dataclass(frozen=True)
class Download:
    """A published file."""

    url: str
    sha256: str
    """Checksum used by established libraries, since publishers provide an MD5 or none."""
    path: str
    """Destination relative to DEPTHRATE_DATA."""


def _idx(folder: str, base: str, images_sha256: str, labels_sha256: str) -> tuple[Download, ...]:
    names = (("train-images-idx3-ubyte.gz", images_sha256), ("train-labels-idx1-ubyte.gz", labels_sha256))
    return tuple(Download(f"{base}/{name}", sha256, f"{folder}/{name}") for name, sha256 in names)


def _archive(url: str, sha256: str) -> tuple[Download, ...]:
    return (Download(url, sha256, url.rpartition("/")[2]),)


_CIFAR10 = _archive(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
DOWNLOADS = {
    "mnist": _idx(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "fashion_mnist": _idx(
        "fashion_mnist",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "kmnist": _idx(
        "kmnist",
        "https://codh.rois.ac.jp/kmnist/dataset/kmnist",
        "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
    ),
    "cifar10": _CIFAR10,
    "cifar10_batch1": _CIFAR10,
    "cifar100": _archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    "stl10": _archive(
        "https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    ),
    "imdb": _archive(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    ),
}


def fetch_missing(name: str, exists: Callable[[str], bool], folder: Path) -> Iterator[str]:
    """Download the missing files of a data set below a folder, and yield each path once its checksum is verified.

    Args:
        name: Name of the data set.
        exists: Function that returns whether a path, relative to the data folder, exists there.
        folder: Local folder for the downloads.

    Raises:
        UnknownDatasetError: The data set is unknown.
        DownloadError: A download failed. Earlier files are kept.
    """
    if name not in DOWNLOADS:
        raise UnknownDatasetError(
            f"data set {name!r} cannot be downloaded{nearest(name, DOWNLOADS)}. Allowed: {', '.join(DOWNLOADS)}"
        )
    for download in DOWNLOADS[name]:
        if exists(download.path):
            continue
        import pooch  # slow to import, and only needed here

        pooch.get_logger().setLevel("WARNING")
        path = folder / download.path
        try:
            pooch.retrieve(download.url, known_hash=f"sha256:{download.sha256}", fname=path.name, path=path.parent)
        except (OSError, ValueError) as error:  # no network, no such file, or another checksum
            raise DownloadError(
                f"cannot download {download.url} (sha256 {download.sha256}): {type(error).__name__}: {error}",
                download.path,
            ) from error
        yield download.path
