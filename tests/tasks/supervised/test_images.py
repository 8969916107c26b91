"""Images and arrays of images keep their values, or are refused by name."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.supervised.arrays import read_file
from depthrate.tasks.supervised.data import CustomData
from depthrate.tasks.supervised.task import TARGETS
from tests.support.own_data import data_of_function

RNG = np.random.default_rng(0)
LABELS = np.arange(12) % 3


def grey(dtype, scale=1):
    return lambda value: Image.fromarray(np.full((4, 5), value * scale, dtype))


def colour(mode, *fixed, size=(5, 4)):
    return lambda value: Image.new(mode, size, (value, *fixed))


def big_endian(value):
    return Image.frombytes("I;16B", (5, 4), np.full((4, 5), value * 1000, ">u2").tobytes())


def palette(value):
    image = Image.new("P", (5, 4), value)
    image.putpalette([0, 0, 0, 10, 10, 10, 20, 20, 20])
    return image


def png_of_16_bits(colour_type, channels):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    def draw(value):
        rows = (b"\0" + np.full(5 * channels, value * 300, ">u2").tobytes()) * 4
        header = struct.pack(">IIBBBBB", 5, 4, 16, colour_type, 0, 0, 0)
        parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)

    return draw


def folder_of(path, suffix, draw, **options):
    for name, value in (("a", 1), ("b", 2)):
        (path / name).mkdir()
        for index in range(2):
            content = draw(value)
            if not isinstance(content, bytes):
                buffer = io.BytesIO()
                content.save(buffer, {".tif": "TIFF", ".jpg": "JPEG"}.get(suffix, suffix[1:]), **options)
                content = buffer.getvalue()
            (path / name / f"{index}{suffix}").write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("suffix", "draw", "shape", "value"),
    [
        (".png", grey(np.uint8), (1, 4, 5), 1),
        (".png", grey(np.uint16, 20000), (1, 4, 5), 20000),
        (".tif", grey(np.uint16, 20000), (1, 4, 5), 20000),
        (".tif", big_endian, (1, 4, 5), 1000),
        (".tif", grey(np.int32, 100_000), (1, 4, 5), 100_000),
        (".tif", grey(np.float32, 0.25), (1, 4, 5), 0.25),
        (".png", lambda value: Image.new("1", (5, 4), value > 1), (1, 4, 5), (0, 255)),
        (".png", colour("RGB", 7, 7), (3, 4, 5), 1),
        (".png", colour("RGBA", 7, 7, 255), (3, 4, 5), 1),
        (".png", colour("LA", 255), (3, 4, 5), 1),
        (".png", palette, (3, 4, 5), 10),
        (".gif", palette, (3, 4, 5), 10),
        (".webp", colour("RGB", 1, 1), (3, 4, 5), 1),
    ],
)
def test_folders_of_images_keep_their_values(tmp_path, suffix, draw, shape, value):
    options = {"lossless": True} if suffix == ".webp" else {}
    x, y = read_file(folder_of(tmp_path, suffix, draw, **options), "images").training.whole()
    first, second = value if isinstance(value, tuple) else (value, 2 * value)
    assert x.shape[1:] == shape and x.dtype.isnative
    assert (x[y == "a"][:, 0] == first).all() and (x[y == "b"][:, 0] == second).all()


@pytest.mark.parametrize(
    ("suffix", "draw", "options", "words"),
    [
        (".png", colour("RGBA", 0, 0, 100), {}, "transparent pixels"),
        (".png", colour("LA", 100), {}, "transparent pixels"),
        (".png", palette, {"transparency": 1}, "transparent pixels"),
        (".png", grey(np.uint8), {"transparency": 1}, "transparent pixels"),
        (".png", grey(np.uint16), {"transparency": 1}, "transparent pixels"),
        (".jpg", colour("CMYK", 0, 0, 0), {}, "mode CMYK"),
        (".tif", colour("LAB", 0, 0), {}, "mode LAB"),
        (".png", png_of_16_bits(2, 3), {}, "RGB;16B"),
        (".png", png_of_16_bits(6, 4), {}, "RGBA;16B"),
        (".ppm", lambda value: b"P6 2 2 65535\n" + bytes(24), {}, "fewer bits"),
        (".gif", palette, {"save_all": True, "append_images": [palette(2), palette(0)]}, "frames"),
        (".tif", grey(np.uint8), {"save_all": True, "append_images": [grey(np.uint8)(9)]}, "2 frames"),
        (".png", lambda value: b"\x89PNG\r\n\x1a\n1234", {}, "cannot be read as an image"),
    ],
)
def test_images_that_would_lose_values_are_refused(tmp_path, suffix, draw, options, words):
    with pytest.raises(DatasetError, match=rf"0\{suffix} .*{words}"):
        read_file(folder_of(tmp_path, suffix, draw, **options), "images")


SCENE = np.arange(20).reshape(4, 5)
PHOTOS = {
    ".png": Image.fromarray(SCENE.astype(np.uint8)),
    ".jpg": Image.fromarray(SCENE.astype(np.uint8) * 12),
    ".webp": Image.fromarray(np.stack([SCENE, SCENE + 1, SCENE], -1).astype(np.uint8)),
    ".tif": Image.fromarray(SCENE.astype(np.uint16) * 300),
    ".tiff": Image.fromarray(SCENE.astype(np.float32)),
}


@pytest.mark.parametrize("orientation", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("suffix", PHOTOS)
def test_photos_are_turned_as_they_are_shown(tmp_path, suffix, orientation):
    tag = Image.Exif()
    tag[0x0112] = orientation
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        PHOTOS[suffix].save(tmp_path / name / f"0{suffix}", exif=tag)
    with Image.open(tmp_path / "a" / f"0{suffix}") as image:
        shown = np.asarray(ImageOps.exif_transpose(image))
        shown = shown[None] if shown.ndim == 2 else np.moveaxis(shown, -1, 0)
        items = data_of_function(lambda: Items(lambda index: image)).read({})
    assert (read_file(tmp_path, "photos").training.whole()[0] == shown).all()
    assert items.sample_shape == shown.shape and (items.x_NI.reshape(-1, *shown.shape) == shown).all()


def test_corrupt_orientation_turns_nothing(tmp_path):
    folder_of(tmp_path, ".png", grey(np.uint8), exif=b"junk")
    assert read_file(tmp_path, "photos").training.whole()[0].shape == (4, 1, 4, 5)


def test_images_below_a_class_are_of_this_class(tmp_path):
    for name in ("a", "b"):
        for place in ("", "more/deep", ".thumbnails"):
            (tmp_path / name / place).mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4)).save(tmp_path / name / place / "0.png")
    assert read_file(tmp_path, "images").training.labels.tolist() == ["a", "a", "b", "b"]
    (tmp_path / "a" / "0.png").unlink()
    with pytest.raises(DatasetError, match="a is a class without images .* of its own, and 1 in folders below it"):
        read_file(tmp_path, "images")  # perhaps the folder of a split, with classes below it


def test_images_of_two_types_are_refused(tmp_path):
    folder_of(tmp_path, ".png", lambda value: grey(np.uint8 if value == 1 else np.uint16)(value))
    with pytest.raises(DatasetError, match=r"b/0\.png has 4 rows and 5 columns of uint16, .* of uint8"):
        read_file(tmp_path, "images")


class Items:
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return len(LABELS)

    def __getitem__(self, index):
        return self.draw(index), LABELS[index]


@pytest.mark.parametrize(
    ("draw", "shape"), [(colour("RGB", 3, 4), (3, 4, 5)), (grey(np.uint16), (1, 4, 5)), (palette, (3, 4, 5))]
)
def test_items_that_are_images_have_channels_first(draw, shape):
    data = data_of_function(lambda: Items(lambda index: draw(index % 3))).read({})
    assert data.sample_shape == shape
    listed = data_of_function(lambda: ([draw(index % 3) for index in range(12)], LABELS)).read({})
    assert listed.content_hash == data.content_hash
    pixels = data.x_NI.reshape(12, *shape)[:, 0, 0, 0]
    assert pixels.tolist() == np.repeat([0, 10, 20] if draw is palette else [0, 1, 2], 4).tolist()


def test_an_item_with_transparent_pixels_is_refused():
    with pytest.raises(DatasetError, match="an image has transparent pixels"):
        data_of_function(lambda: Items(colour("RGBA", 0, 0, 9))).read({})


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (6, 9, 4), (4, 4, 3), (8, 8, 8, 3)])
@pytest.mark.parametrize("target", ["own", "regression"])
def test_arrays_with_channels_last_are_refused(tmp_path, shape, target):
    np.savez(tmp_path / "d.npz", x=RNG.normal(size=(12, *shape)), y=LABELS)
    with pytest.raises(DatasetError, match=r"channels were last.*np\.moveaxis\(x, -1, 1\)"):
        CustomData(tmp_path / "d.npz", TARGETS[target]).read({})
    items = Items(lambda index: np.zeros(shape))
    with pytest.raises(DatasetError, match="channels were last"):
        data_of_function(lambda: items, target).read({}, stream=True)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 4, 4), (64, 2, 2), (3, 3, 3), (3, 8, 8, 8), (32, 3)])
def test_arrays_with_channels_first_are_read(shape):
    data = data_of_function(lambda: (RNG.normal(size=(12, *shape)), LABELS)).read({})
    assert data.sample_shape == (shape if len(shape) > 2 else (1, *shape))
