"""Where data sets are downloaded from: addresses and checksums of the files that training reads. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """One published file."""

    url: str
    md5: str
    """As its publisher, or the libraries that have fetched it for years, state it."""
    path: str
    """Where it goes below DEPTHRATE_DATA."""


def _idx(folder: str, base: str, images_md5: str, labels_md5: str) -> tuple[Download, ...]:
    names = (("train-images-idx3-ubyte.gz", images_md5), ("train-labels-idx1-ubyte.gz", labels_md5))
    return tuple(Download(f"{base}/{name}", md5, f"{folder}/{name}") for name, md5 in names)


def _archive(url: str, md5: str) -> tuple[Download, ...]:
    return (Download(url, md5, url.rpartition("/")[2]),)


_CIFAR10 = _archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
DOWNLOADS = {
    "mnist": _idx(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
    ),
    "fashion_mnist": _idx(
        "fashion_mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
    ),
    "kmnist": _idx(
        "kmnist",
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
    ),
    "cifar10": _CIFAR10,
    "cifar10_batch1": _CIFAR10,
    "cifar100": _archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"
    ),
    "stl10": _archive("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb"),
    "imdb": _archive(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", "7c2ac02c03563afcf9b574c7e56c153a"
    ),
}
