"""A user's data as arrays, from whatever it comes in: .npz, .parquet, a folder of images by class, or a function.

Shapes: N samples, K classes.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from depthrate.tasks.data.labels import LabelsError, as_array
from depthrate.tasks.data.sources import DatasetError

ARRAYS = ("x", "y", "x_test", "y_test")
TOKENS = "vocabulary_size"
"""What stands beside them where samples are texts: how many tokens are told apart."""
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
USABLE_SHARE = 0.5
"""Of this machine's memory, which data may take while it is read: once as it comes, once as it is trained on."""


@dataclass(frozen=True)
class Arrays:
    """Samples [N, ...] and labels [N] of any type, and those of a test split where there is one."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    vocabulary_size: int | None = field(default=None, kw_only=True)
    """Tokens that are told apart, where samples are texts [N, tokens]; null: samples are numbers."""


def arrays_of_file(path: Path) -> Arrays:
    """Read an .npz, a .parquet file or a folder of images.

    Raises:
        DatasetError: it is not there, damaged, larger than memory, or has another form.
    """
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise DatasetError(
            f"{path} does not exist; give an .npz, a .parquet file or a folder with a folder of images a class"
        )
    try:
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix == ".parquet":
            return _read_parquet(path)
    except DatasetError:
        raise
    except Exception as error:  # whatever a decoder raises for a file that is no such file
        raise DatasetError(f"{path} cannot be read ({type(error).__name__}: {error}); write it anew") from error
    raise DatasetError(f"{path} is no .npz, .parquet or folder; give one of them, or a function: ./data.py:make")


def arrays_of_function(make: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> Arrays:
    """Call a user's function and return what it gives: a tuple, a mapping, or map-style torch data sets.

    Raises:
        DatasetError: it raises, or gives something else.
    """
    try:
        given = make(**arguments)
    except Exception as error:
        from depthrate.tasks.user_code import innermost_line

        raise DatasetError(f"{name} fails: {innermost_line(error)}{type(error).__name__}: {error}") from error
    if isinstance(given, Mapping):
        if not {"x", "y"} <= given.keys() <= {*ARRAYS, TOKENS}:
            raise DatasetError(
                f"{name} returns a mapping with {', '.join(map(str, given))}; allowed: {', '.join(ARRAYS)}, {TOKENS}"
            )
        return _arrays({key: _array(value, name) for key, value in given.items()}, name)
    parts = list(given) if isinstance(given, tuple) else [given]
    for part in parts:
        _refuse_stream(part, name)
    if parts and all(_is_dataset(part) for part in parts) and len(parts) <= 2:
        pairs = [_read_items(part, name) for part in parts]
        return Arrays(*[array for pair in pairs for array in pair])
    if len(parts) in (2, 4):
        arrays = [_array(part, name) for part in parts]
        _check_size(name, sum(array.nbytes for array in arrays))
        return Arrays(*arrays)
    raise DatasetError(
        f"{name} returns {type(given).__name__}{f' of {len(parts)}' if isinstance(given, tuple) else ''}; return (x, y), "
        "(x, y, x_test, y_test), a mapping with these names, or map-style torch data sets (training, test)"
    )


def _arrays(named: Mapping[str, np.ndarray], where: Path | str) -> Arrays:
    """Return arrays by name, the number of tokens among them."""
    arrays, size = Arrays(named["x"], named["y"], named.get("x_test"), named.get("y_test")), named.get(TOKENS)
    if size is None:
        return arrays
    if size.ndim or size.dtype.kind not in "iu" or size < 2:
        raise DatasetError(f"{where}: {TOKENS} is {size!s:.50}; give one whole number, how many tokens are told apart")
    return replace(arrays, vocabulary_size=int(size))


def _array(value: Any, name: str) -> np.ndarray:
    try:
        return as_array(value)
    except LabelsError as error:
        raise DatasetError(f"{name}: {error}") from error


def _refuse_stream(given: Any, name: str) -> None:
    """Refuse what only gives batches or samples one after another: trials draw from all samples, under seeds of theirs."""
    if _is_dataset(given) or isinstance(given, np.ndarray | list | str) or not hasattr(given, "__iter__"):
        return
    kind = type(given).__name__
    if isinstance(given, Mapping) or hasattr(given, "detach"):
        return
    if hasattr(given, "dataset"):
        way = "return its data set, loader.dataset: trials cut batches themselves (batch_size)"
    else:
        way = (
            "return its samples as arrays, (np.stack([x for x, _ in items]), [y for _, y in items]) with "
            "items = list(itertools.islice(stream, N)), or train in a loop of your own (depthrate.task)"
        )
    raise DatasetError(f"{name} returns {kind}, which gives samples in an order of its own; {way}")


def _is_dataset(value: Any) -> bool:
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return has_items and not isinstance(value, np.ndarray | list | str) and not hasattr(value, "detach")


def _read_items(dataset: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    if not len(dataset):
        raise DatasetError(f"{name} returns a data set without samples")
    first = dataset[0]
    if isinstance(first, tuple | list) and len(first) == 2:
        _check_size(name, len(dataset) * _array(first[0], name).nbytes)
    items = [first, *(dataset[index] for index in range(1, len(dataset)))]
    if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise DatasetError(f"{name} returns a data set whose items are no pairs; each must be (sample, label)")
    labels = [_array(y, name) for _, y in items]
    is_one_each = all(label.size == 1 for label in labels)
    return np.stack([_array(x, name) for x, _ in items]), _array([y.item() if is_one_each else y for y in labels], name)


def _read_npz(path: Path) -> Arrays:
    _check_size(path, sum(_unpacked_bytes(path)))
    with np.load(path, allow_pickle=False) as content:
        names = set(content.files)
        if not {"x", "y"} <= names:
            raise DatasetError(
                f"{path} has the arrays {', '.join(sorted(names)) or 'none'}; it needs x and y, x_test and y_test"
            )
        return _arrays({name: content[name] for name in (*ARRAYS, TOKENS) if name in names}, path)


def _unpacked_bytes(path: Path) -> list[int]:
    with zipfile.ZipFile(path) as archive:
        return [info.file_size for info in archive.infolist()]


def _check_size(path: Path | str, num_bytes: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if num_bytes > USABLE_SHARE * memory:
        raise DatasetError(
            f"{path} takes {num_bytes / 1e9:.1f} GB unpacked, and this machine has {memory / 1e9:.1f} GB of memory, where "
            f"training keeps a second copy; keep a part of it, or fewer numbers a sample (float32, smaller images)"
        )


def _read_parquet(path: Path) -> Arrays:
    """Read a table: labels in `y` or `label`, in `split` train or test, numbers in lists in `x` or in the other columns."""
    import pandas as pd  # its own reader: pyarrow lives in storage

    _check_size(path, 4 * path.stat().st_size)
    table = pd.read_parquet(path)
    label = next((name for name in ("y", "label") if name in table), None)
    if label is None:
        raise DatasetError(f"{path} has the columns {', '.join(map(str, table))}; it needs y or label")
    split = table["split"].to_numpy() if "split" in table else np.full(len(table), "train")
    if unknown := sorted(set(map(str, split)) - {"train", "test"}):
        raise DatasetError(f"{path}: split is {unknown[0]!r} in a row; allowed: train, test")
    if "x" in table:
        x = np.stack([np.asarray(row) for row in table["x"]])
    else:
        x = table.drop(columns=[label, *(["split"] if "split" in table else [])]).to_numpy()
    y, is_test = table[label].to_numpy(), split == "test"
    if not is_test.any():
        return Arrays(x, y)
    return Arrays(x[~is_test], y[~is_test], x[is_test], y[is_test])


def _read_folder(path: Path) -> Arrays:
    """Read `CLASS/*.png`, or `train/CLASS/*.png` and `test/CLASS/*.png`."""
    folders = sorted(each.name for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    if set(folders) == {"train", "test"}:
        return Arrays(*_read_classes(path / "train"), *_read_classes(path / "test"))
    return Arrays(*_read_classes(path))


def _read_classes(path: Path) -> tuple[np.ndarray, np.ndarray]:
    files: list[tuple[str, Path]] = []
    for folder in sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")):
        found = sorted(each for each in folder.iterdir() if each.suffix.lower() in _IMAGES)
        if not found:
            raise DatasetError(
                f"{folder} is a class without images ({', '.join(_IMAGES)}); put some there, or remove it"
            )
        files += [(folder.name, file) for file in found]
    if not files:
        raise DatasetError(f"{path} has no folders of images; it needs one a class")
    return np.stack(_read_images([file for _, file in files])), np.array([name for name, _ in files])


def _read_images(files: Sequence[Path]) -> list[np.ndarray]:
    """Return images [channels, rows, columns] of bytes, of one size: grey where all are, else of three colours."""
    from PIL import Image

    images = []
    is_grey = True
    for file in files:
        try:
            with Image.open(file) as image:
                is_grey = is_grey and image.mode in ("L", "1")
                images.append(np.asarray(image.convert("RGB")))
        except OSError as error:
            raise DatasetError(f"{file} is no image that can be read ({error}); remove it or write it anew") from error
        if images[-1].shape != images[0].shape:
            raise DatasetError(
                f"{file} has {images[-1].shape[0]} rows and {images[-1].shape[1]} columns, {files[0]} has "
                f"{images[0].shape[0]} and {images[0].shape[1]}; bring all images to one size"
            )
    return [image[..., 0][None] if is_grey else np.moveaxis(image, -1, 0) for image in images]
