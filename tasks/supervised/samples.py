"""Checks of a user's samples, and their flat form. Importable without torch.

Shapes: N samples, I numbers of a sample.
"""

from __future__ import annotations

import numpy as np

from depthrate.tasks.data.sources import DatasetError


def check_not_empty(x: np.ndarray, name: str, split: str) -> None:
    """Refuse a split without samples, or with samples without numbers.

    Raises:
        DatasetError: naming the split.
    """
    if x.size:
        return
    what = "no samples" if not len(x) else f"{len(x)} samples of no numbers"
    way_on = ", or leave x_test and y_test out" if split == "test" else ""
    raise DatasetError(f"{name}: the {split} split has {what} (its x has shape {list(x.shape)}); give some{way_on}")


def check_numbers(x: np.ndarray, name: str, split: str) -> None:
    """Refuse samples that are not numbers [N, ...], finite or not.

    Raises:
        DatasetError: naming the split.
    """
    check_not_empty(x, name, split)
    if x.ndim < 2 or x.dtype.kind not in "iufb":
        raise DatasetError(
            f"{name}: the {split} split's samples are {x.dtype} of shape {list(x.shape)}; give numbers [N, ...], images as "
            "[N, channels, rows, columns]"
        )


def check_samples(x: np.ndarray, name: str, split: str) -> None:
    """Refuse samples that are not finite numbers [N, ...].

    Raises:
        DatasetError: naming the split.
    """
    check_numbers(x, name, split)
    if (bad := first_not_finite(x)) is not None:
        raise DatasetError(f"{name}: sample {bad} of the {split} split has a number that is NaN or infinite; remove it")


def first_not_finite(x: np.ndarray) -> int | None:
    """Return the index of the first sample with a number that is NaN or infinite, or None."""
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return None
    return int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0])


def flattened(x: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return samples [N, I], bool as bytes, and the shape of one. Images without a channel axis get one channel."""
    x = x[:, None] if x.ndim == 3 else x
    flat_NI = x.reshape(len(x), -1)
    return flat_NI.astype(np.uint8) if flat_NI.dtype.kind == "b" else flat_NI, x.shape[1:]
