"""Data sets: balanced draws, and IDX files that are read exactly or refused with a message that helps."""

import dataclasses
import functools
import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from depthrate.tasks.data.formats import read_idx
from depthrate.tasks.data.published import PUBLISHED, _load_digits, check_contents, check_dataset, load_dataset
from depthrate.tasks.data.sources import DatasetError
from tests.support.own_data import Folder

REAL_MNIST = PUBLISHED["mnist"]
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array, type_code=0x08, kind=">u1"):
    header = bytes([0, 0, type_code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(kind).tobytes()


def images_and_labels(samples=30):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (samples, 4, 3)), np.arange(samples)[::-1] % 10


@pytest.fixture(autouse=True)
def small_mnist(monkeypatch):
    """Expect thirty images of 4 x 3 where the real set has sixty thousand."""
    for name in ("mnist", "fashion_mnist", "kmnist"):
        small = dataclasses.replace(PUBLISHED[name], num_samples=30, smallest_class=3, image_shape=(1, 4, 3))
        monkeypatch.setitem(PUBLISHED, name, small)


@pytest.fixture
def source(tmp_path):
    """A folder with a small MNIST look-alike."""
    images, labels = images_and_labels()
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / IMAGES).write_bytes(idx(images))
    (tmp_path / "mnist" / LABELS).write_bytes(idx(labels))
    return Folder(str(tmp_path))


def load(source=None, name="mnist", per_class=None, data_seed=0, normalize="none"):
    return load_dataset(name, source, samples_per_class=per_class, data_seed=data_seed, normalize=normalize)


def test_digits_equal_scikit_learn():
    images, labels = _load_digits()
    assert images.dtype == np.uint8 and images.shape == (1797, 64) and images.max() == 16
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    digests = [hashlib.sha256(a.tobytes()).hexdigest()[:16] for a in (images.astype("<f8"), labels.astype("<i8"))]
    assert digests == ["20def7f70a702f0a", "a3c91c262eddcf7b"], "of sklearn.datasets.load_digits, 1.9.1"
    assert load(name="digits", normalize="global").content_hash[:16] == "bc0970e443e26d86"


def test_a_draw_is_balanced_and_sorted_by_class():
    digits = load(name="digits", per_class=20)
    assert digits.is_balanced and digits.x_NI.shape == (200, 64)
    assert digits.labels_N.tolist() == np.repeat(np.arange(10), 20).tolist()
    first, again, other = (load(name="digits", per_class=5, data_seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.x_NI, again.x_NI) and not np.array_equal(first.x_NI, other.x_NI)
    small, large = (load(name="digits", per_class=n).x_NI.reshape(10, n, 64) for n in (5, 12))
    assert np.array_equal(small, large[:, :5]), "a smaller one is a prefix"
    drawn = {row.tobytes() for row in load(name="digits", per_class=100).x_NI}
    assert len(drawn) == 1000 and drawn <= {row.tobytes() for row in load(name="digits").x_NI}


def test_too_few_samples_name_class_and_number(source):
    with pytest.raises(DatasetError, match=r"'mnist' has 3 samples of class 0.*samples_per_class is 4.*at most 3"):
        load(source, per_class=4)


def test_normalisation_global_or_per_feature():
    raw_ND = load(name="digits", per_class=9).x_NI
    scaled_ND = (raw_ND - raw_ND.mean()) / raw_ND.std()
    np.testing.assert_allclose(load(name="digits", per_class=9, normalize="global").x_NI, scaled_ND, atol=1e-12)
    x_NI = load(name="digits", normalize="per_feature").x_NI
    deviations_D = x_NI.std(0)
    np.testing.assert_allclose(x_NI.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(deviations_D[deviations_D > 0], 1)
    assert (deviations_D == 0).sum() == 3 and np.isfinite(x_NI).all()  # three pixels of digits never light up


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("stems", [(IMAGES, LABELS), ("train-images.idx3-ubyte", "train-labels.idx1-ubyte")])
def test_idx_files_are_read_plain_and_compressed(tmp_path, stems, suffix):
    images, labels = images_and_labels()
    (tmp_path / "kmnist").mkdir()
    for stem, array in zip(stems, (images, labels), strict=True):
        content = idx(array)
        (tmp_path / "kmnist" / (stem + suffix)).write_bytes(gzip.compress(content) if suffix else content)
    found = load(Folder(str(tmp_path)), "kmnist")
    order = np.argsort(labels, kind="stable")
    assert np.array_equal(found.x_NI, images.reshape(30, 12)[order].astype(float))
    assert np.array_equal(found.labels_N, labels[order])


@pytest.mark.parametrize(
    ("code", "kind"), [(0x08, ">u1"), (0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")]
)
def test_every_idx_type_is_decoded(code, kind):
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(read_idx(idx(array, code, kind), "here"), array)


PLAIN = idx(np.arange(24).reshape(2, 3, 4))
DAMAGED = {
    "truncated": PLAIN[:-1],
    "bytes left over": PLAIN + b"\0",
    "header cut": PLAIN[:9],
    "empty": b"",
    "three bytes": PLAIN[:3],
    "wrong magic": b"PK\3\4" + PLAIN[4:],
    "unknown type": PLAIN[:2] + b"\x0a" + PLAIN[3:],
    "gzip cut": gzip.compress(PLAIN)[:-9],
    "gzip header only": gzip.compress(PLAIN)[:5],
    "gzip checksum": gzip.compress(PLAIN)[:-8] + b"\0" * 8,
    "gzip garbage": gzip.compress(PLAIN)[:10] + b"\xff" * 20,
    "huge shape": PLAIN[:4] + b"\xff" * 12 + PLAIN[16:],
    "a web page": b"<!DOCTYPE html><html>404</html>",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_refused_by_name(content):
    with pytest.raises(DatasetError, match=r"s3://bucket/mnist/x\.gz is .*Download it again"):
        read_idx(content, "s3://bucket/mnist/x.gz")


@pytest.mark.parametrize("missing", [IMAGES, LABELS])
def test_a_missing_file_names_file_place_and_remedy(source, missing):
    (Path(source.url) / "mnist" / missing).unlink()
    for attempt in (lambda: check_dataset("mnist", source), lambda: load(source)):
        with pytest.raises(DatasetError) as caught:
            attempt()
        for part in (f"mnist/{missing}", source.url, "http", "DEPTHRATE_DATA"):
            assert part in str(caught.value)


@pytest.mark.parametrize(
    ("stem", "array", "message"),
    [
        (LABELS, np.arange(29) % 10, rf"{LABELS} has .*\(29,\), expected \(30,\).*Download it again"),
        (LABELS, np.zeros((30, 1)), rf"{LABELS} has .*\(30, 1\)"),
        (IMAGES, np.zeros((30, 12)), rf"{IMAGES} has .*\(30, 12\), expected \(30, 4, 3\)"),
        (IMAGES, np.zeros((30, 3, 4)), rf"{IMAGES} has .*\(30, 3, 4\), expected \(30, 4, 3\)"),
        (IMAGES, np.zeros((10, 4, 3)), rf"{IMAGES} has .*such as the test set's"),
        (LABELS, np.arange(30), r"labels outside 0\.\.9"),
    ],
    ids=["count mismatch", "labels not flat", "images flat", "other size", "test set", "label 29"],
)
@pytest.mark.parametrize("attempt", [load, functools.partial(check_contents, "mnist")], ids=["load", "check"])
def test_files_of_another_set_are_refused(source, stem, array, message, attempt):
    (Path(source.url) / "mnist" / stem).write_bytes(idx(array))
    with pytest.raises(DatasetError, match=message):
        attempt(source)
    labels = np.where(np.arange(30) == 7, -1, np.arange(30) % 10)
    (Path(source.url) / "mnist" / IMAGES).write_bytes(idx(images_and_labels()[0]))
    (Path(source.url) / "mnist" / LABELS).write_bytes(idx(labels, 0x09, ">i1"))
    with pytest.raises(DatasetError, match=r"labels outside 0\.\.9"):
        attempt(source)


class Unreadable(Folder):
    def read(self, path):
        raise PermissionError(13, "Permission denied", path)


def test_unreadable_place_names_its_fix(source):
    with pytest.raises(DatasetError, match=rf"{IMAGES} cannot be read \(PermissionError: .*DEPTHRATE_DATA"):
        load(Unreadable(source.url))


def test_what_is_whole_passes_the_check(source):
    check_contents("mnist", source)
    check_contents("digits", Folder("/nowhere"))


@pytest.mark.slow
def test_real_mnist_has_its_published_class_counts(monkeypatch):
    monkeypatch.setitem(PUBLISHED, "mnist", REAL_MNIST)
    root = os.environ.get("DEPTHRATE_DATA")
    if root is None or Folder(root).find("mnist", [IMAGES, IMAGES + ".gz"]) is None:
        pytest.skip("DEPTHRATE_DATA is not set, or holds no mnist")
    mnist = load(Folder(root))
    assert mnist.x_NI.shape == (60_000, 784)
    assert mnist.class_counts_K.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
