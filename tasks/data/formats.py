"""Decoders from published image formats to arrays of bytes.

Shapes: N images, I = channels x rows x columns numbers per image, in that order.
"""

import io
import pickle
import struct
from typing import Any

import numpy as np

from depthrate.tasks.data.sources import DatasetError, unzipped

CIFAR_PIXELS = 3 * 32 * 32
STL10_SIDE = 96
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(content: bytes, origin: str) -> np.ndarray:
    """Decode an IDX file, plain or gzipped.

    Raises:
        DatasetError: The content is not IDX, is truncated or has trailing bytes. The message names `origin`.
    """
    content = unzipped(content, origin)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        start = content[:4].hex() or "nothing"
        raise DatasetError(f"{origin} is not an IDX file (it starts with {start}). Download it again.")
    dtype, num_dimensions = np.dtype(_IDX_TYPES[content[2]]), content[3]
    offset = 4 + 4 * num_dimensions
    if len(content) < offset:
        raise DatasetError(f"{origin} is corrupt: it ends within its header. Download it again.")
    shape = struct.unpack_from(f">{num_dimensions}I", content, 4)
    expected = offset + int(np.prod(shape, dtype=np.float64)) * dtype.itemsize
    if len(content) != expected:
        raise DatasetError(
            f"{origin} is corrupt: it has {len(content)} bytes, expected {expected} for shape {list(shape)} in its header. "
            "Download it again."
        )
    return np.frombuffer(content, dtype, offset=offset).reshape(shape)


def read_idx_pair(
    images: tuple[bytes, str], labels: tuple[bytes, str], *, num_images: int, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Decode images [N, I] and labels [N], each passed as (content, origin).

    Raises:
        DatasetError: A file is corrupt, or does not hold exactly `num_images` labels or images of that size.
    """
    images_NYX, labels_N = read_idx(*images), read_idx(*labels)
    for array, shape, origin in (
        (images_NYX, (num_images, rows, columns), images[1]),
        (labels_N, (num_images,), labels[1]),
    ):
        if array.shape != shape:
            raise DatasetError(
                f"{origin} has an array of shape {array.shape}, expected {shape}. It is another file, such as the test set's. "
                "Download it again."
            )
    return images_NYX.reshape(num_images, -1), labels_N.astype(np.int64)


def read_cifar_binary(
    content: bytes, origin: str, *, num_images: int, label_bytes: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Decode images [N, I] and labels [N] of a CIFAR binary file.

    The label is the last label byte (the fine label of CIFAR-100).

    Raises:
        DatasetError: The file does not have exactly `num_images` records.
    """
    record = label_bytes + CIFAR_PIXELS
    records = _records(content, origin, num_images, record, f"{label_bytes} label and {CIFAR_PIXELS} pixel bytes")
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def read_cifar_python(content: bytes, origin: str, *, num_images: int, labels: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Decode images [N, I] and labels [N] of a pickled CIFAR batch.

    Only arrays and plain values are unpickled, so the file cannot execute code.

    Raises:
        DatasetError: The file is corrupt, contains other objects, or does not have exactly `num_images` images.
    """
    try:
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        images_NI, labels_N = np.asarray(batch[b"data"]), np.asarray(batch[labels], dtype=np.int64)
    except Exception as error:  # A corrupt pickle can raise any exception.
        raise DatasetError(
            f"{origin} is not a CIFAR batch for Python ({type(error).__name__}: {error}). Download it again."
        ) from error
    if images_NI.dtype != np.uint8 or images_NI.shape != (num_images, CIFAR_PIXELS) or labels_N.shape != (num_images,):
        raise DatasetError(
            f"{origin} has {images_NI.dtype} images of shape {images_NI.shape} and labels of shape {labels_N.shape}, "
            f"expected uint8, {(num_images, CIFAR_PIXELS)} and {(num_images,)}. Download it again."
        )
    return images_NI, labels_N


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.zeros(0).__reduce__()[0]  # the same function, independent of its module in this numpy
        raise pickle.UnpicklingError(f"it loads {module}.{name}, which no CIFAR batch needs")


def read_stl10_binary(
    images: tuple[bytes, str], labels: tuple[bytes, str], *, num_images: int
) -> tuple[np.ndarray, np.ndarray]:
    """Decode images [N, I] and labels [N] (0 to 9) of STL-10, each passed as (content, origin).

    The files store labels from 1 to 10 and each channel column by column.

    Raises:
        DatasetError: A file does not have exactly `num_images` records.
    """
    pixels = 3 * STL10_SIDE**2
    columns_NCXY = _records(*images, num_images, pixels, f"{pixels} pixel bytes").reshape(-1, 3, STL10_SIDE, STL10_SIDE)
    labels_N = _records(*labels, num_images, 1, "1 label byte")[:, 0].astype(np.int64) - 1
    return columns_NCXY.transpose(0, 1, 3, 2).reshape(num_images, pixels), labels_N


def _records(content: bytes, origin: str, count: int, size: int, fields: str) -> np.ndarray:
    if len(content) != count * size:
        raise DatasetError(
            f"{origin} has {len(content)} bytes, expected {count * size}, {count} records of {fields}. It is truncated or "
            "another file. Download it again."
        )
    return np.frombuffer(content, np.uint8).reshape(count, size)
