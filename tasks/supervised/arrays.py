"""A user's data as splits, read from .npz, .parquet, a folder of images per class or of .npy, or a function.

Shapes: N samples, K classes.
"""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depthrate.tasks.code.explain import innermost_line
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.supervised import items
from depthrate.tasks.supervised.items import ArrayItems, DatasetItems, Items, check_size, read_pixels

ARRAYS = ("x", "y", "x_test", "y_test")
TOKENS = "vocabulary_size"
"""Key of the number of tokens, next to the arrays of texts."""
_IMAGES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


@dataclass(frozen=True)
class Splits:
    """Samples of the training split and, if it exists, of the test split."""

    training: Items
    test: Items | None = None
    vocabulary_size: int | None = None
    """Number of tokens, if samples are texts [N, tokens]. None: samples are numbers."""
    is_indexed: bool = True
    """Whether single samples can be read. Otherwise all are in memory."""
    is_from_loader: bool = False
    """Whether they were passed in torch loaders, of which only the data sets are used."""
    columns: Sequence[str] = ()
    """Columns of a table of samples."""

    @property
    def is_large(self) -> bool:
        """Whether the data are streamed by default, see `items.STREAMED_BYTES`."""
        return self.is_indexed and any(split.is_large for split in (self.training, self.test) if split is not None)

    def compare(self, again: "Splits") -> None:
        """Compare some samples with those of another reading.

        Raises:
            DatasetError: They differ.
        """
        for first, second in ((self.training, again.training), (self.test, again.test)):
            if first is not None and second is not None:
                indices = items.examined_indices(min(len(first), len(second)))
                second.check_reread(indices, *first.read(indices))


def read_file(path: Path, name: str) -> Splits:
    """Read an .npz, a .parquet file or a folder of images, or map a folder of .npy.

    Raises:
        DatasetError: It does not exist, is corrupt, exceeds the memory, or has another form.
    """
    if (path / "x.npy").is_file():
        return _map_folder(path, name)
    if path.is_dir():
        return _splits(_read_folder(path), name, is_indexed=False)
    readers = {".npz": _read_npz, ".parquet": _read_parquet}
    if not path.is_file() or path.suffix not in readers:
        raise DatasetError(
            f"{path} {'is not an .npz or .parquet file' if path.is_file() else 'does not exist'}. Give one, a folder with "
            "x.npy and y.npy, one with a folder of images per class, or a function: ./data.py:make."
        )
    try:
        return _splits(readers[path.suffix](path), name, is_indexed=False)
    except DatasetError:
        raise
    except Exception as error:  # decoders raise many kinds for a corrupt file
        raise DatasetError(f"{path} cannot be read ({type(error).__name__}: {error}). Write it again.") from error


def call_function(make: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> Splits:
    """Call a user's function and return its result: a tuple, a mapping, or map-style torch data sets, possibly in loaders.

    Raises:
        DatasetError: It raises, or returns something else.
    """
    try:
        result = make(**arguments)
    except Exception as error:
        raise DatasetError(f"{name} fails: {innermost_line(error)}{type(error).__name__}: {error}") from error
    if isinstance(result, Mapping):
        if not {"x", "y"} <= result.keys() <= {*ARRAYS, TOKENS}:
            raise DatasetError(
                f"{name} returns a mapping with {', '.join(map(str, result))}, expected {', '.join(ARRAYS)}, {TOKENS}"
            )
        return _splits(result, name)
    parts = list(result) if isinstance(result, tuple) else [result]
    is_from_loader = any(map(_is_loader, parts))
    parts = [part.dataset if _is_loader(part) else part for part in parts]
    for part in parts:
        _reject_iterables(part, name)
    if parts and all(_is_dataset(part) for part in parts) and len(parts) <= 2:
        if not all(len(part) for part in parts):
            raise DatasetError(f"{name} returns a data set without samples")
        training, *test = [DatasetItems(part, name) for part in parts]
        return Splits(training, test[0] if test else None, is_from_loader=is_from_loader)
    if len(parts) in (2, 4):
        return _splits(dict(zip(ARRAYS, parts, strict=False)), name)
    raise DatasetError(
        f"{name} returns {type(result).__name__}{f' of {len(parts)}' if isinstance(result, tuple) else ''}, expected (x, y), "
        "(x, y, x_test, y_test), a mapping with these names, or map-style torch data sets (training, test)"
    )


def _map_folder(path: Path, name: str) -> Splits:
    """Map the arrays `x.npy`, `y.npy`, and `x_test.npy`, `y_test.npy` if they exist, from their files."""
    arrays = {}
    for part in (*ARRAYS, TOKENS):
        file = path / f"{part}.npy"
        if not file.is_file():
            continue
        try:
            arrays[part] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DatasetError(f"{file} cannot be read ({type(error).__name__}: {error}). Write it again.") from error
    if "y" not in arrays:
        raise DatasetError(f"{path} has x.npy, but no y.npy. Add the labels.")
    return _splits(arrays, name)


def _splits(parts: Mapping[str, Any], name: str, *, is_indexed: bool = True) -> Splits:
    if ("x_test" in parts) != ("y_test" in parts):
        raise DatasetError(f"{name} has only one of x_test and y_test. Add the other, or remove it.")
    readers = {"x": items.numbers_of, "x_test": items.numbers_of}
    arrays = {key: readers.get(key, items.named_array)(part, name) for key, part in parts.items()}
    size = arrays.get(TOKENS)
    if size is not None and (size.ndim or size.dtype.kind not in "iu" or size < 2):
        raise DatasetError(f"{name}: {TOKENS} is {size!s:.50}, expected an int >= 2, the number of distinct tokens")
    test = ArrayItems(arrays["x_test"], arrays["y_test"], name) if "x_test" in arrays else None
    training, columns = ArrayItems(arrays["x"], arrays["y"], name), items.column_names(parts["x"])
    return Splits(training, test, None if size is None else int(size), is_indexed=is_indexed, columns=columns)


def _reject_iterables(data: Any, name: str) -> None:
    """Reject data that can only be iterated, since each trial draws from all samples with its seed."""
    kind = type(data).__name__
    if all(base.__name__ != "IterableDataset" for base in type(data).__mro__):
        if _is_dataset(data) or isinstance(data, Mapping) or _is_array(data):
            return
        if hasattr(data, "__getitem__") and not hasattr(data, "__len__"):
            raise DatasetError(f"{name} returns {kind} without __len__. Define it, since trials draw indices below it.")
        if not hasattr(data, "__iter__"):
            return
    raise DatasetError(
        f"{name} returns {kind}, which determines the order of its samples, but trials draw batches by their own seeds. "
        "Return a map-style data set with __len__ and __getitem__(index), which is streamed if large (docs: Your "
        "network, your data, your loop: data too large to hold), or write a training loop (depthrate.task)."
    )


def _is_loader(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("dataset", "batch_size", "collate_fn"))


def _is_array(value: Any) -> bool:
    """Return whether a value is an array, a table or column of pandas, a tensor or a list."""
    is_convertible = any(hasattr(value, name) for name in ("__array__", "detach", "todense"))
    return is_convertible or isinstance(value, list | str)


def _is_dataset(value: Any) -> bool:
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not _is_array(value)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        check_size(path, sum(info.file_size for info in archive.infolist()))
    with np.load(path, allow_pickle=False) as content:
        names = set(content.files)
        if not {"x", "y"} <= names or "label" in names:
            raise DatasetError(
                f"{path} has the arrays {', '.join(sorted(names)) or 'none'}, expected x and y, optionally x_test, y_test"
            )
        return {name: content[name] for name in (*ARRAYS, TOKENS) if name in names}


def _read_parquet(path: Path) -> dict[str, Any]:
    """Read a table: labels in `y` or `label`, train or test in `split`, numbers as lists in `x` or in all other columns."""
    import pandas as pd  # pandas reads Parquet, since only storage imports pyarrow

    check_size(path, 4 * path.stat().st_size)
    table = pd.read_parquet(path)
    if len(labels := [name for name in ("y", "label") if name in table]) != 1:
        raise DatasetError(
            f"{path} has the columns {', '.join(map(str, table))}, expected either y or label. Rename others."
        )
    split = table["split"].to_numpy() if "split" in table else np.full(len(table), "train")
    if unknown := sorted(set(map(str, split)) - {"train", "test"}):
        raise DatasetError(f"{path}: split is {unknown[0]!r} in a row, expected train or test")
    x = table["x"] if "x" in table else table.drop(columns=[*labels, "split"], errors="ignore")
    y, is_test = table[labels[0]].to_numpy(), split == "test"
    test = {"x_test": x[is_test], "y_test": y[is_test]} if is_test.any() else {}
    return {"x": x[~is_test], "y": y[~is_test], **test}


def _read_folder(path: Path) -> dict[str, np.ndarray]:
    """Read `CLASS/*.png`, or `train/CLASS/*.png` and `test/CLASS/*.png`."""
    is_split = {folder.name for folder in _folders(path)} == {"train", "test"}
    splits = [path / "train", path / "test"] if is_split else [path]
    return dict(zip(ARRAYS, (array for split in splits for array in _read_classes(split)), strict=False))


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _read_classes(path: Path) -> tuple[np.ndarray, np.ndarray]:
    files: list[tuple[str, Path]] = []
    for folder in _folders(path):
        below = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _IMAGES)
        images = [file for file in below if "/." not in file.parent.as_posix().removeprefix(folder.as_posix())]
        if all(file.parent != folder for file in images):
            raise DatasetError(
                f"{folder} is a class without images ({', '.join(_IMAGES)}) of its own, and {len(images)} in folders below it. "
                "Add images, or remove the folder."
            )
        files += [(folder.name, file) for file in images]
    if not files:
        raise DatasetError(f"{path} has no folders of images, expected one per class")
    return np.stack(_read_images([file for _, file in files])), np.array([name for name, _ in files])


def _read_images(files: Sequence[Path]) -> list[np.ndarray]:
    """Read images of one size and type as [channels, rows, columns], with one channel if all are grey, else three."""
    from PIL import Image

    images: list[np.ndarray] = []
    for file in files:
        try:
            with Image.open(file) as image:
                pixels = read_pixels(image, str(file))
        except DatasetError:
            raise
        except Exception as error:  # decoders raise many kinds for a corrupt file
            raise DatasetError(f"{file} cannot be read as an image ({error}). Remove it or write it again.") from error
        images.append(pixels.astype(np.uint8) * 255 if pixels.dtype == bool else pixels)
        if len(images) == 1:
            check_size(file.parent.parent, len(files) * images[0].nbytes)
        (form, shape), (first, first_shape) = ((image.dtype, image.shape[-2:]) for image in (images[-1], images[0]))
        if (form, shape) != (first, first_shape):
            raise DatasetError(
                f"{file} has {shape[0]} rows and {shape[1]} columns of {form}, {files[0]} has {first_shape[0]} and "
                f"{first_shape[1]} of {first}. Convert all images to one size and type."
            )
    num_channels = max(1 if image.ndim == 2 else 3 for image in images)
    return [np.broadcast_to(image, (num_channels, *image.shape[-2:])) for image in images]
