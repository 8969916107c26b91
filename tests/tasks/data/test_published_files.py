"""CIFAR, STL-10 and IMDB in every published form: read exactly, or refused with a message that names file and remedy."""

import dataclasses
import gzip
import io
import logging
import os
import pickle
import tarfile

import numpy as np
import pytest

from depthrate.tasks.data import published, reviews
from depthrate.tasks.data.formats import read_cifar_binary, read_cifar_python, read_stl10_binary
from depthrate.tasks.data.published import PUBLISHED, check_dataset, load_dataset
from depthrate.tasks.data.reviews import build_corpus, tokenize
from depthrate.tasks.data.sources import DatasetError, IncompleteDatasetError
from tests.support.own_data import Folder

BATCH = 20
LABELS = np.arange(BATCH) % 10
IMAGES = np.random.default_rng(0).integers(0, 256, (BATCH, 3072), dtype=np.uint8)
CIFAR_FILES = [f"data_batch_{batch}.bin" for batch in range(1, 6)]


@pytest.fixture(autouse=True)
def small_sets(monkeypatch, tmp_path):
    """Expect twenty images where the real sets have thousands, and keep the token cache out of the user's home."""
    monkeypatch.setattr(published, "CIFAR_BATCH", BATCH)
    for name in ("cifar100", "stl10"):
        monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(PUBLISHED[name], num_samples=BATCH))
    monkeypatch.setattr(reviews, "REVIEWS_PER_CLASS", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def cifar_binary(labels=LABELS, images=IMAGES):
    return np.hstack([labels[:, None].astype(np.uint8), images]).tobytes()


def put(root, path, content):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)


def tar(members, compressed=True):
    """Archive with the same bytes at any time: gzip's header would hold the second, and caches go by content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0) if compressed else buffer.getvalue()


def load(root, name, **options):
    settings = {"samples_per_class": None, "data_seed": 0, "normalize": "none", "dtype": "float32"}
    return load_dataset(name, Folder(str(root)), **{**settings, **options})


def by_class(images, labels):
    return images[np.argsort(labels, kind="stable")].astype(np.float32)


def put_cifar10(root, form):
    members = {f"cifar-10-batches-bin/{file}": cifar_binary() for file in CIFAR_FILES}
    if form == "folder":
        for path, content in members.items():
            put(root, path, content)
    elif form == "folder of .gz":
        for path, content in members.items():
            put(root, path + ".gz", gzip.compress(content))
    elif form == "tar.gz":
        put(root, "cifar-10-binary.tar.gz", tar(members))
    elif form == "tar":
        put(root, "cifar-10-binary.tar", tar(members, compressed=False))
    elif form == "archive in its folder":
        put(root, "cifar-10-batches-bin/cifar-10-binary.tar.gz", tar(members))
    else:
        batch = pickle.dumps({b"data": IMAGES, b"labels": LABELS.tolist()}, protocol=3)
        put(root, "cifar-10-python.tar.gz", tar({f"./cifar-10-batches-py/data_batch_{n}": batch for n in range(1, 6)}))


@pytest.mark.parametrize("form", ["folder", "folder of .gz", "tar.gz", "tar", "archive in its folder", "python"])
@pytest.mark.parametrize(("name", "batches"), [("cifar10", 5), ("cifar10_batch1", 1)])
def test_cifar10_is_read_in_every_form(tmp_path, form, name, batches):
    put_cifar10(tmp_path, form)
    found = load(tmp_path, name)
    assert np.array_equal(found.x_NI, by_class(np.tile(IMAGES, (batches, 1)), np.tile(LABELS, batches)))
    assert found.class_counts_K.tolist() == [2 * batches] * 10 and found.x_NI.dtype == np.float32


def test_cifar100_takes_the_fine_label(tmp_path):
    fine, coarse = LABELS * 10, LABELS
    put(
        tmp_path,
        "b/cifar-100-binary/train.bin",
        cifar_binary(coarse, np.hstack([fine[:, None].astype(np.uint8), IMAGES])),
    )
    batch = {b"data": IMAGES, b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist()}
    put(tmp_path, "p/cifar-100-python.tar.gz", tar({"cifar-100-python/train": pickle.dumps(batch, protocol=3)}))
    for form in ("b", "p"):
        found = load(tmp_path / form, "cifar100")
        assert np.array_equal(found.x_NI, by_class(IMAGES, fine)) and len(found.class_counts_K) == 100
        assert set(found.labels_N) == set(fine)


def test_stl10_labels_and_channel_order(tmp_path):
    images_NCYX = np.random.default_rng(1).integers(0, 256, (BATCH, 3, 96, 96), dtype=np.uint8)
    members = {
        "stl10_binary/train_X.bin": images_NCYX.transpose(0, 1, 3, 2).tobytes(),
        "stl10_binary/train_y.bin": (LABELS + 1).astype(np.uint8).tobytes(),
    }
    put(tmp_path, "stl10_binary.tar.gz", tar(members))
    found = load(tmp_path, "stl10")
    assert np.array_equal(found.x_NI, by_class(images_NCYX.reshape(BATCH, -1), LABELS))


class Malice:
    def __reduce__(self):
        return os.system, ("echo you should not see this",)


GOOD_PICKLE = pickle.dumps({b"data": IMAGES, b"labels": LABELS.tolist()}, protocol=3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Malice()), r"here is not a CIFAR batch.*it loads \w+\.system"),
        (GOOD_PICKLE[:-40], "here is not a CIFAR batch"),
        (b"", "here is not a CIFAR batch"),
        (b"<html>", "here is not a CIFAR batch"),
        (pickle.dumps({b"labels": [1]}, protocol=3), "here is not a CIFAR batch.*data"),
        (pickle.dumps({b"data": IMAGES[:3], b"labels": [1, 2, 3]}, protocol=3), r"expected uint8, \(20, 3072\)"),
        (pickle.dumps({b"data": IMAGES.astype(float), b"labels": LABELS.tolist()}, protocol=3), "has float64 images"),
    ],
)
def test_pickled_batches_hold_only_arrays(content, message):
    with pytest.raises(DatasetError, match=message):
        read_cifar_python(content, "here", num_images=BATCH, labels=b"labels")


def test_labels_beyond_the_classes_are_refused(tmp_path):
    put(tmp_path, "cifar-10-batches-bin/data_batch_1.bin", cifar_binary(labels=LABELS + 1))
    with pytest.raises(DatasetError, match=r"data_batch_1\.bin .*labels outside 0\.\.9\. Download it again"):
        load(tmp_path, "cifar10_batch1")


def test_incomplete_files_are_named(tmp_path):
    put_cifar10(tmp_path, "folder")
    (tmp_path / "cifar-10-batches-bin/data_batch_4.bin").unlink()
    with pytest.raises(IncompleteDatasetError) as caught:
        check_dataset("cifar10", Folder(str(tmp_path)))
    assert caught.value.missing == ["cifar-10-batches-bin/data_batch_4.bin"]
    for part in ("not cifar-10-batches-bin/data_batch_4.bin", "depthrate data fetch cifar10", "cs.toronto.edu"):
        assert part in str(caught.value)
    put_cifar10(tmp_path, "tar.gz")  # what `data fetch` brings counts, whatever lies beside it
    assert check_dataset("cifar10", Folder(str(tmp_path))).archive == "cifar-10-binary.tar.gz"


@pytest.mark.parametrize("name", [name for name, info in PUBLISHED.items() if info.layouts])
def test_a_missing_set_says_what_to_put_where(tmp_path, name):
    with pytest.raises(DatasetError) as caught:
        check_dataset(name, Folder(str(tmp_path)))
    layout = PUBLISHED[name].layouts[0]
    for part in (layout.describe(), str(tmp_path), "http", f"depthrate data fetch {name}", "DEPTHRATE_DATA"):
        assert part in str(caught.value)


WHOLE = tar({f"cifar-10-batches-bin/{file}": cifar_binary() for file in CIFAR_FILES})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WHOLE[: len(WHOLE) // 2], "is corrupt|lacks"),
        (WHOLE[:5], "is corrupt"),
        (b"", "is corrupt"),
        (b"<!DOCTYPE html>404", "is corrupt"),
        (WHOLE[:-9] + b"\xff" * 9, "is corrupt|lacks"),
        (gzip.compress(gzip.decompress(WHOLE)[: 512 * 3]), "is corrupt|lacks"),
        (tar({"something/else.bin": b"1"}), r"lacks cifar-10-batches-bin/data_batch_1\.bin"),
        (tar({f"cifar-10-batches-bin/{CIFAR_FILES[0]}": cifar_binary()}), r"lacks cifar-10-.*/data_batch_2\.bin"),
    ],
    ids=["half", "header", "empty", "a web page", "tail", "tar cut", "another archive", "one batch only"],
)
def test_damaged_archives_are_refused_by_name(tmp_path, content, message):
    put(tmp_path, "cifar-10-binary.tar.gz", content)
    try:
        load(tmp_path, "cifar10")
    except DatasetError as error:
        assert "cifar-10-binary.tar.gz" in str(error) and "Download it again" in str(error)
        import re

        assert re.search(message, str(error))
    else:  # the five files stand before the damage, and were read whole
        assert message == "is corrupt|lacks" and content[:-9] == WHOLE[:-9]


def test_cut_or_padded_binary_files_are_refused():
    whole, pixels = cifar_binary(), b"\0" * (BATCH * 3 * 96 * 96)
    for content in (whole[:-1], whole[:3073], b"", whole + b"\0"):
        message = rf"here has {len(content)} bytes, expected {BATCH * 3073}, .*Download it again"
        with pytest.raises(DatasetError, match=message):
            read_cifar_binary(content, "here", num_images=BATCH)
    for images, labels, message in (
        (pixels, b"\1" * 19, r"labels\.bin has 19 bytes, expected 20"),
        (pixels[1:], b"\1" * 20, r"images\.bin has .*expected 552960"),
    ):
        with pytest.raises(DatasetError, match=message):
            read_stl10_binary((images, "images.bin"), (labels, "labels.bin"), num_images=BATCH)


REVIEWS = {
    "aclImdb/train/pos/1_9.txt": b"A great film, great!<br /><br />It's GREAT",
    "aclImdb/train/pos/0_8.txt": b"fine",
    "aclImdb/train/pos/2_10.txt": b"a film",
    "aclImdb/train/neg/0_1.txt": b"bad bad film",
    "aclImdb/train/neg/2_2.txt": "naïve bad".encode(),
    "aclImdb/train/neg/1_3.txt": b"it isn't a film",
    "aclImdb/train/unsup/9_0.txt": b"unseen words",
    "aclImdb/test/pos/0_9.txt": b"tested words",
    "aclImdb/README": b"about",
}
# counts: film 4, bad 3, great 3, a 3; then one each, by alphabet
VOCABULARY = ["film", "a", "bad", "great", "fine", "isn't", "it", "it's", "na", "ve"]


def reviews_loaded(root, members, length=4, size=100, **options):
    put(root, "aclImdb_v1.tar.gz", tar(members))
    return load(root, "imdb", context_length=length, vocabulary_size=size, **options)


def words(rows):
    names = dict(enumerate(["-", "?", *VOCABULARY]))
    return [" ".join(names[number] for number in row) for row in rows]


def test_reviews_become_their_last_tokens_numbered_by_frequency(tmp_path):
    assert tokenize("It's GREAT<br />Don't-miss 10/10; naïve") == [
        "it's",
        "great",
        "don't",
        "miss",
        "10",
        "10",
        "na",
        "ve",
    ]
    found = reviews_loaded(tmp_path, REVIEWS)
    expected = ["- bad bad film", "it isn't a film", "- na ve bad", "- - - fine", "film great it's great", "- - a film"]
    assert words(found.x_NI) == expected
    assert found.labels_N.tolist() == [0, 0, 0, 1, 1, 1] and found.class_counts_K.tolist() == [3, 3]
    small = reviews_loaded(tmp_path, REVIEWS, size=4).x_NI
    assert np.array_equal(small, np.where(found.x_NI < 4, found.x_NI, 1)), "a smaller vocabulary is a prefix"
    reordered = reviews_loaded(tmp_path, dict(reversed(REVIEWS.items())))
    assert np.array_equal(reordered.x_NI, found.x_NI), "the order in the archive does not matter"
    drawn = reviews_loaded(tmp_path, REVIEWS, samples_per_class=2)
    assert {tuple(row) for row in drawn.x_NI} <= {tuple(row) for row in found.x_NI}
    assert drawn.class_counts_K.tolist() == [2, 2]


def test_corpus_is_tokenised_once(tmp_path, monkeypatch, caplog):
    built = []
    logger = logging.getLogger(reviews.__name__)  # whatever earlier tests of this process did to logging
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    caplog.set_level(logging.WARNING, logger=logger.name)
    monkeypatch.setattr(reviews, "build_corpus", lambda found: built.append(1) or build_corpus(found))
    first = reviews_loaded(tmp_path, REVIEWS).x_NI
    assert np.array_equal(reviews_loaded(tmp_path, REVIEWS).x_NI, first) and len(built) == 1
    (cached,) = (tmp_path / "cache/depthrate/tokens").iterdir()
    content = bytearray(cached.read_bytes())
    content[len(content) // 2] ^= 1
    cached.write_bytes(content)
    assert np.array_equal(reviews_loaded(tmp_path, REVIEWS).x_NI, first) and len(built) == 2
    assert "cannot be used" in caplog.text
    assert np.array_equal(reviews_loaded(tmp_path, REVIEWS).x_NI, first) and len(built) == 2
    changed = {**REVIEWS, "aclImdb/train/neg/0_1.txt": b"good"}
    assert not np.array_equal(reviews_loaded(tmp_path, changed).x_NI, first) and len(built) == 3


def test_unwritable_cache_is_harmless(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert reviews_loaded(tmp_path, REVIEWS).x_NI.shape == (6, 4) and "XDG_CACHE_HOME" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole[: len(whole) // 2], "corrupt|reviews in aclImdb/train/"),
        (lambda whole: b"\x1f\x8b" + whole[20:], "corrupt"),
        (
            lambda whole: tar({k: v for k, v in REVIEWS.items() if "2_2" not in k}),
            "2 reviews in aclImdb/train/neg, expected 3",
        ),
    ],
    ids=["half", "garbage", "a review short"],
)
def test_damaged_review_archives_are_refused(tmp_path, change, message):
    put(tmp_path, "aclImdb_v1.tar.gz", change(tar(REVIEWS)))
    with pytest.raises(DatasetError, match=rf"aclImdb_v1\.tar\.gz .*({message}).*Download it again"):
        load(tmp_path, "imdb", context_length=4, vocabulary_size=9)


def test_archive_escapes_are_ignored(tmp_path):
    at = "aclImdb/train/pos"
    strangers = {f"../../{at}/9_9.txt": b"evil", f"/{at}/8_9.txt": b"evil", f"{at}/x/7_9.txt": b"evil"}
    found = reviews_loaded(tmp_path, {**strangers, **REVIEWS})
    assert np.array_equal(found.x_NI, reviews_loaded(tmp_path, REVIEWS).x_NI)
    assert not [path for path in tmp_path.rglob("*9.txt")]  # nothing is ever unpacked
    with pytest.raises(DatasetError, match="0 reviews in aclImdb/train/neg, expected 3"):
        reviews_loaded(tmp_path, strangers)


def real(name):
    root = os.environ.get("DEPTHRATE_DATA")
    try:
        return root and check_dataset(name, Folder(root)) and Folder(root)
    except DatasetError:
        return None


@pytest.mark.slow
def test_the_real_cifar_batch_is_read(monkeypatch):
    monkeypatch.setattr(published, "CIFAR_BATCH", 10_000)
    source = real("cifar10_batch1") or pytest.skip("DEPTHRATE_DATA is not set, or holds no CIFAR-10 batch")
    found = load(source.url, "cifar10_batch1", normalize="global")
    assert found.x_NI.shape == (10_000, 3072) and found.class_counts_K.sum() == 10_000
    assert abs(found.x_NI.mean()) < 1e-3 and found.x_NI.std() == pytest.approx(1, abs=1e-3)
    assert found.class_counts_K.min() > 900


@pytest.mark.slow
def test_the_real_reviews_are_read(monkeypatch):
    monkeypatch.setattr(reviews, "REVIEWS_PER_CLASS", 12_500)
    source = real("imdb") or pytest.skip("DEPTHRATE_DATA is not set, or holds no IMDB")
    found = load(source.url, "imdb", context_length=8, vocabulary_size=50, samples_per_class=100)
    assert found.x_NI.shape == (200, 8) and found.x_NI.max() < 50 and found.class_counts_K.tolist() == [100, 100]
    assert (found.x_NI[:, -1] != 0).all()  # every review ends with a word
