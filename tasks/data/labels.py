"""Check that labels are classes, one per sample, and describe the problem and its fix if they are not.

Importable without torch. Shapes: N samples, T tokens, m numbers per target.
"""

from typing import Any

import numpy as np


class LabelsError(ValueError):
    """Labels that are not classes. The message describes them and the labels needed."""


def as_array(labels: Any) -> np.ndarray:
    """Convert labels from numpy, torch or lists to an array.

    Raises:
        LabelsError: Samples have lists of different lengths.
    """
    if hasattr(labels, "detach"):
        return labels.detach().cpu().numpy()
    try:
        return np.asarray(labels)
    except ValueError as error:  # ragged
        raise LabelsError(f"labels are lists of different lengths: {_SEVERAL}") from error


def check_classes(labels: np.ndarray, num_samples: int) -> None:
    """Check that there is one class per sample.

    Regression targets have nearly as many distinct values as samples. As classes they would make collapse perfect.

    Raises:
        LabelsError: There are not `num_samples` labels, or they are targets, several per sample, one per token, or
            missing.
    """
    if labels.ndim and len(labels) != num_samples:
        raise LabelsError(
            f"{num_samples} samples have labels of shape {list(labels.shape)}, expected one label per sample"
        )
    if labels.shape == (num_samples,):
        _check_values(labels)
        return
    if labels.ndim != 2 or not labels.size:
        raise LabelsError(f"labels have shape {list(labels.shape)}, expected one label per sample")
    raise LabelsError(f"labels have shape {list(labels.shape)}: {_kind_of_rows(labels)}")


_SEVERAL = (
    "several labels per sample (multi-label), but collapse is measured between classes, one per sample. Measure one label at "
    "a time, or number the combinations."
)
_TARGETS = (
    "targets of a regression, not classes (with as many classes as values, collapse would be perfect for any features). Train "
    "on them with task: regression, measure them with depthrate.regression_collapse or probe(..., regression=True), or "
    "make classes: np.digitize(y, np.quantile(y, [.25, .5, .75]))."
)


def _kind_of_rows(labels: np.ndarray) -> str:
    is_binary = labels.dtype.kind in "iufb" and np.isin(labels, (0, 1)).all()
    if is_binary and labels.shape[1] > 1 and (labels.sum(1) == 1).all():
        return "one-hot rows. Use their numbers: y.argmax(1)."
    if labels.shape[1] == 1:
        return "a column. Use one label per sample: y[:, 0]."
    if is_binary or labels.dtype.kind not in "iuf":
        return _SEVERAL
    if labels.dtype.kind in "iu":
        return (
            "a label per token, or several per sample (multi-label). Train on next tokens with task: next_token, or measure "
            "every position as a sample, depthrate.measure(h_NTD.flatten(0, 1), y_NT.flatten()), or the last one, "
            "h_NTD[:, -1] with y_NT[:, -1]."
        )
    return f"{labels.shape[1]} numbers per sample, {_TARGETS}"


def _check_values(labels_N: np.ndarray) -> None:
    if labels_N.dtype.kind == "O":
        _check_objects(labels_N)
    elif labels_N.dtype.kind not in "iufbUSMm":
        raise LabelsError(f"labels are {labels_N.dtype}, expected int, str or bool")
    elif labels_N.dtype.kind == "f":
        if not np.isfinite(labels_N).all():
            raise LabelsError(_missing(int(np.flatnonzero(~np.isfinite(labels_N))[0]), labels_N))
        if (fractions := labels_N != np.round(labels_N)).any():
            raise LabelsError(f"labels are {labels_N.dtype} such as {labels_N[fractions][0]:.4g}, {_TARGETS}")


def _check_objects(labels_N: np.ndarray) -> None:
    for index, label in enumerate(labels_N):
        if isinstance(label, list | tuple | set | frozenset | dict | np.ndarray):
            raise LabelsError(f"labels are {type(label).__name__}s: {_SEVERAL}")
        if label is None or label != label:
            raise LabelsError(_missing(index, labels_N))
        if isinstance(label, float) and not label.is_integer():
            raise LabelsError(f"labels are numbers such as {label:.4g}, {_TARGETS}")
    kinds = {
        bool if isinstance(entry, bool) else int if isinstance(entry, int | float) else type(entry)
        for entry in labels_N
    }
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise LabelsError(f"labels are of several types ({names}), which have no order. Convert them to one type.")


def _missing(index: int, labels_N: np.ndarray) -> str:
    return f"the label of sample {index} is {labels_N[index]!s}. Remove samples without a label."
