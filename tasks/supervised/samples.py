"""Checks of a user's samples, and their flat form. Importable without torch.

Shapes: N samples, I numbers per sample.
"""

from __future__ import annotations

import numpy as np

from depthrate.tasks.data.sources import DatasetError


def check_not_empty(x: np.ndarray, name: str, split: str) -> None:
    """Reject a split without samples, or with empty samples.

    Raises:
        DatasetError: Names the split.
    """
    if x.size:
        return
    content = "no samples" if not len(x) else f"{len(x)} samples without numbers"
    remedy = "Leave x_test and y_test out, or add samples." if split == "test" else "Add samples."
    raise DatasetError(f"{name}: the {split} split has {content} (its x has shape {list(x.shape)}). {remedy}")


def check_numbers(x: np.ndarray, name: str, split: str) -> None:
    """Reject samples that are not numbers [N, ...]. NaN and infinity are accepted.

    Raises:
        DatasetError: Names the split.
    """
    check_not_empty(x, name, split)
    if x.ndim < 2 or x.dtype.kind not in "iufb":
        raise DatasetError(
            f"{name}: the {split} split's samples are {x.dtype} of shape {list(x.shape)}, expected numbers [N, ...] (images: "
            "[N, channels, rows, columns])"
        )


def check_samples(x: np.ndarray, name: str, split: str) -> None:
    """Reject samples that are not finite numbers [N, ...].

    Raises:
        DatasetError: Names the split.
    """
    check_numbers(x, name, split)
    if (bad := first_not_finite(x)) is not None:
        raise DatasetError(
            f"{name}: sample {bad} of the {split} split has a number that is NaN or infinite. Remove it."
        )


def first_not_finite(x: np.ndarray) -> int | None:
    """Return the index of the first sample with a number that is NaN or infinite, or None."""
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return None
    return int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0])


def flattened(x: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Flatten samples to [N, I], bool as bytes, and return the shape of one. Images without a channel axis get one channel."""
    x = x[:, None] if x.ndim == 3 else x
    flat_NI = x.reshape(len(x), -1)
    return flat_NI.astype(np.uint8) if flat_NI.dtype.kind == "b" else flat_NI, x.shape[1:]
