"""Sets that are not at hand, as files of the published form and size, made up: read, and cut short."""

import struct

import numpy as np
import pytest

from depthrate.storage.files.data_folder import DataFolder
from depthrate.tasks.data.published import PUBLISHED, check_contents, load_dataset
from depthrate.tasks.data.sources import DatasetError

pytestmark = pytest.mark.slow


def fashion_mnist(root):
    """60,000 images of 28 x 28 behind 16 bytes, as many labels behind 8."""
    folder = root / "fashion_mnist"
    folder.mkdir()
    labels = np.arange(60_000, dtype=np.uint8) % 10
    pixels = np.repeat(labels, 28 * 28)
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 60_000, 28, 28) + pixels.tobytes())
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 60_000) + labels.tobytes())
    return folder / "train-images-idx3-ubyte", 47_040_016


def stl10(root):
    """5,000 images of 3 x 96 x 96, channel by channel and column by column; labels 1 to 10."""
    folder = root / "stl10_binary"
    folder.mkdir()
    labels = np.arange(5000, dtype=np.uint8) % 10
    (folder / "train_X.bin").write_bytes(np.repeat(labels, 3 * 96 * 96).tobytes())
    (folder / "train_y.bin").write_bytes((labels + 1).tobytes())
    return folder / "train_X.bin", 138_240_000


def cifar100(root):
    """50,000 records of a coarse and a fine label and 3,072 pixels."""
    folder = root / "cifar-100-binary"
    folder.mkdir()
    fine = np.arange(50_000, dtype=np.uint8) % 100
    records = np.empty((50_000, 3074), np.uint8)
    records[:, 0], records[:, 1], records[:, 2:] = fine // 5, fine, fine[:, None]
    (folder / "train.bin").write_bytes(records.tobytes())
    return folder / "train.bin", 153_700_000


@pytest.mark.parametrize("make", [fashion_mnist, stl10, cifar100], ids=lambda make: make.__name__)
def test_published_size_passes_and_less_is_named(tmp_path, make):
    name = make.__name__
    path, size = make(tmp_path)
    assert path.stat().st_size == size
    source = DataFolder(str(tmp_path))
    settings = {"samples_per_class": 2, "data_seed": 0, "normalize": "none", "dtype": "float32"}
    found = load_dataset(name, source, **settings)
    info = PUBLISHED[name]
    assert found.x_NI.shape == (2 * info.num_classes, int(np.prod(info.image_shape)))
    assert (found.x_NI == found.labels_N[:, None]).all(), "each image is filled with its label"
    with path.open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(DatasetError, match=rf"{path.name}.*{size}.*Download it again"):
        check_contents(name, DataFolder(str(tmp_path)))
