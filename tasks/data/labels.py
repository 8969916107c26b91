"""Check that labels are classes, one per sample, and describe the problem and its fix if they are not.

Importable without torch. Shapes: N samples, T tokens, m numbers per target.
"""

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from depthrate.errors import InputError


class LabelsError(InputError):
    """Labels that are not classes. The message describes them and the labels needed."""


def as_array(values: Any) -> np.ndarray:
    """Convert labels or samples from numpy, pandas, torch or lists to an array.

    Raises:
        LabelsError: They are masked, sparse, or lists of different lengths or of several types.
    """
    check_dense(values)
    try:
        array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    except (TypeError, RuntimeError) as error:  # bfloat16, subclasses of tensors
        raise LabelsError(f"{error}. Convert the tensor: x.float().") from None
    except ValueError as error:  # ragged
        raise LabelsError(f"labels are lists of different lengths: {_SEVERAL}") from error
    if isinstance(values, list | tuple) and array.ndim == 1 and array.dtype.kind != "O":
        _check_types(values)  # numpy converts [0, "a"] to text, and [True, 2] to int
    return array


def check_dense(values: Any, error: type[ValueError] = LabelsError) -> None:
    """Reject arrays that conversion to numpy or torch would misread.

    Raises:
        LabelsError: They are masked, sparse or nested. `error` replaces its type.
    """
    is_packed = hasattr(values, "detach") and (values.is_nested or str(values.layout) != "torch.strided")
    if is_packed or hasattr(values, "todense") or hasattr(values, "get_mask") or np.ma.is_masked(values):
        raise error(
            f"a {type(values).__name__} has masked, sparse or nested entries. Remove samples with masked entries, and convert "
            "others with .toarray() (SciPy) or .to_dense() (torch)."
        )


def is_missing(value: Any) -> bool:
    """Return whether a label or a seed is None, NaN, NaT or NA."""
    return value is None or str(value == value) != "True"  # these do not equal themselves, and NA has no truth value


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
        _check_marker(np.unique(labels).tolist())
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
    elif labels_N.dtype.kind in "Mm" and np.isnat(labels_N).any():
        raise LabelsError(_missing(int(np.flatnonzero(np.isnat(labels_N))[0]), labels_N))
    elif labels_N.dtype.kind == "f":
        if not np.isfinite(labels_N).all():
            raise LabelsError(_missing(int(np.flatnonzero(~np.isfinite(labels_N))[0]), labels_N))
        if (fractions := labels_N != np.round(labels_N)).any():
            raise LabelsError(f"labels are {labels_N.dtype} such as {labels_N[fractions][0]:.4g}, {_TARGETS}")


def _check_objects(labels_N: np.ndarray) -> None:
    for index, label in enumerate(labels_N):
        if isinstance(label, list | tuple | set | frozenset | dict | np.ndarray):
            raise LabelsError(f"labels are {type(label).__name__}s: {_SEVERAL}")
        if is_missing(label):
            raise LabelsError(_missing(index, labels_N))
        if isinstance(label, float) and not label.is_integer():
            raise LabelsError(f"labels are numbers such as {label:.4g}, {_TARGETS}")
    _check_types(labels_N)


def _check_types(labels: Iterable[Any]) -> None:
    types = (("bool", bool | np.bool_), ("int", numbers.Real), ("str", str))
    kinds = {next((k for k, t in types if isinstance(entry, t)), type(entry).__name__) for entry in labels}
    if len(kinds) > 1:
        names = ", ".join(sorted(kinds))
        raise LabelsError(f"labels are of several types ({names}), which have no order. Convert them to one type.")


def _check_marker(classes: list[Any]) -> None:
    """Reject a single negative class, which usually marks samples without a label. -1 and 1 alone are two classes."""
    negative = [label for label in classes if isinstance(label, numbers.Real) and label < 0]
    if len(negative) == 1 < len(classes) and classes != [negative[0], -negative[0]]:
        raise LabelsError(
            f"{negative[0]} is the only negative label, as if it marked samples without a label. Remove these: x[y >= 0], "
            "y[y >= 0]. If it is a class, number the classes from 0: np.unique(y, return_inverse=True)[1]."
        )


def _missing(index: int, labels_N: np.ndarray) -> str:
    return f"the label of sample {index} is {labels_N[index]!s}. Remove samples without a label."
