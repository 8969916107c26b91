"""A user's data as arrays, from whatever it comes in: .npz, .parquet, a folder of images by class, or a function.

Shapes: N samples, K classes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.own.items import ArrayItems, DatasetItems, Items, check_size, named_array
from depthrate.tasks.user_code import innermost_line

ARRAYS = ("x", "y", "x_test", "y_test")
TOKENS = "vocabulary_size"
"""What stands beside them where samples are texts: how many tokens are told apart."""
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


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
            f"{path} does not exist; give an .npz, a .parquet file, a folder with x.npy and y.npy, or one with a folder of "
            "images a class"
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


@dataclass(frozen=True)
class Sets:
    """What a user's function returns, by index: the training split and, where there is one, the test split."""

    training: Items
    test: Items | None = None
    vocabulary_size: int | None = field(default=None, kw_only=True)
    is_from_loader: bool = field(default=False, kw_only=True)
    """Whether it came in torch's loaders, of which the data sets alone are taken."""

    @property
    def is_large(self) -> bool:
        """Whether they are rather streamed than held, see `items.STREAMED_BYTES`."""
        return any(each.is_large for each in (self.training, self.test) if each is not None)

    def arrays(self) -> Arrays:
        """Read all of them.

        Raises:
            DatasetError: they cannot be read, are not of one form, or do not fit into memory.
        """
        test = (None, None) if self.test is None else self.test.whole()
        return Arrays(*self.training.whole(), *test, vocabulary_size=self.vocabulary_size)


def sets_of_function(make: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> Sets:
    """Call a user's function and return what it gives: a tuple, a mapping, or map-style torch data sets, also in loaders.

    Raises:
        DatasetError: it raises, or gives something else.
    """
    try:
        given = make(**arguments)
    except Exception as error:
        raise DatasetError(f"{name} fails: {innermost_line(error)}{type(error).__name__}: {error}") from error
    if isinstance(given, Mapping):
        if not {"x", "y"} <= given.keys() <= {*ARRAYS, TOKENS}:
            raise DatasetError(
                f"{name} returns a mapping with {', '.join(map(str, given))}; allowed: {', '.join(ARRAYS)}, {TOKENS}"
            )
        return _sets(_arrays({key: named_array(value, name) for key, value in given.items()}, name), name)
    parts = list(given) if isinstance(given, tuple) else [given]
    loaders = [part for part in parts if _is_loader(part)]
    parts = [part.dataset if _is_loader(part) else part for part in parts]
    for part in parts:
        _refuse_stream(part, name)
    if parts and all(_is_dataset(part) for part in parts) and len(parts) <= 2:
        if not all(len(part) for part in parts):
            raise DatasetError(f"{name} returns a data set without samples")
        training, *test = [DatasetItems(part, name) for part in parts]
        return Sets(training, *test, is_from_loader=bool(loaders))
    if len(parts) in (2, 4):
        return _sets(Arrays(*[named_array(part, name) for part in parts]), name)
    raise DatasetError(
        f"{name} returns {type(given).__name__}{f' of {len(parts)}' if isinstance(given, tuple) else ''}; return (x, y), "
        "(x, y, x_test, y_test), a mapping with these names, or map-style torch data sets (training, test)"
    )


def is_of_mapped_arrays(path: Path) -> bool:
    """Whether a path is a folder of arrays as numpy saves them one by one."""
    return (path / "x.npy").is_file()


def sets_of_folder(path: Path, name: str) -> Sets:
    """Return the arrays `x.npy`, `y.npy`, and `x_test.npy`, `y_test.npy` where they are there, mapped from their files.

    Raises:
        DatasetError: one is missing, damaged or holds objects.
    """
    named = {}
    for part in (*ARRAYS, TOKENS):
        file = path / f"{part}.npy"
        if not file.is_file():
            continue
        try:
            named[part] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DatasetError(f"{file} cannot be read ({type(error).__name__}: {error}); write it anew") from error
    if "y" not in named:
        raise DatasetError(f"{path} has x.npy and no y.npy; give it the labels")
    return _sets(_arrays(named, path), name)


def _sets(arrays: Arrays, name: str) -> Sets:
    if (arrays.x_test is None) != (arrays.y_test is None):
        raise DatasetError(f"{name} has one of x_test and y_test; give both, or none")
    test = None
    if arrays.x_test is not None and arrays.y_test is not None:
        test = ArrayItems(arrays.x_test, arrays.y_test, name)
    return Sets(ArrayItems(arrays.x, arrays.y, name), test, vocabulary_size=arrays.vocabulary_size)


def _arrays(named: Mapping[str, np.ndarray], where: Path | str) -> Arrays:
    """Return arrays by name, the number of tokens among them."""
    arrays, size = Arrays(named["x"], named["y"], named.get("x_test"), named.get("y_test")), named.get(TOKENS)
    if size is None:
        return arrays
    if size.ndim or size.dtype.kind not in "iu" or size < 2:
        raise DatasetError(f"{where}: {TOKENS} is {size!s:.50}; give one whole number, how many tokens are told apart")
    return replace(arrays, vocabulary_size=int(size))


def _refuse_stream(given: Any, name: str) -> None:
    """Refuse what only gives batches or samples one after another: trials draw from all samples, under seeds of theirs."""
    kind = type(given).__name__
    if not _is_iterable_dataset(given):
        if _is_dataset(given) or isinstance(given, np.ndarray | list | str | Mapping) or hasattr(given, "detach"):
            return
        if hasattr(given, "__getitem__") and not hasattr(given, "__len__"):
            raise DatasetError(f"{name} returns {kind}, which has no __len__; define it: trials draw indices below it")
        if not hasattr(given, "__iter__"):
            return
    raise DatasetError(
        f"{name} returns {kind}, which gives samples in an order of its own, and trials draw batches under seeds of theirs; "
        "return a map-style data set, with __len__ and __getitem__(index), which is streamed where it is large (docs: Your "
        "network, your data, your loop: data too large to hold), or train in a loop of your own (depthrate.task)"
    )


def _is_loader(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("dataset", "batch_size", "collate_fn"))


def _is_iterable_dataset(value: Any) -> bool:
    return any(kind.__name__ == "IterableDataset" for kind in type(value).__mro__)


def _is_dataset(value: Any) -> bool:
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return has_items and not isinstance(value, np.ndarray | list | str) and not hasattr(value, "detach")


def _read_npz(path: Path) -> Arrays:
    check_size(path, sum(_unpacked_bytes(path)))
    with np.load(path, allow_pickle=False) as content:
        names = set(content.files)
        if not {"x", "y"} <= names:
            raise DatasetError(
                f"{path} has the arrays {', '.join(sorted(names)) or 'none'}; it needs x and y, "
                "and may have x_test and y_test"
            )
        return _arrays({name: content[name] for name in (*ARRAYS, TOKENS) if name in names}, path)


def _unpacked_bytes(path: Path) -> list[int]:
    with zipfile.ZipFile(path) as archive:
        return [info.file_size for info in archive.infolist()]


def _read_parquet(path: Path) -> Arrays:
    """Read a table: labels in `y` or `label`, in `split` train or test, numbers in lists in `x` or in the other columns."""
    import pandas as pd  # its own reader: pyarrow lives in storage

    check_size(path, 4 * path.stat().st_size)
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
        if len(images) == 1:
            check_size(file.parent.parent, len(files) * images[0].nbytes)
        if images[-1].shape != images[0].shape:
            raise DatasetError(
                f"{file} has {images[-1].shape[0]} rows and {images[-1].shape[1]} columns, {files[0]} has "
                f"{images[0].shape[0]} and {images[0].shape[1]}; bring all images to one size"
            )
    return [image[..., 0][None] if is_grey else np.moveaxis(image, -1, 0) for image in images]
