"""A user's metric of a layer, named in `measure`.

Shapes: N samples, D feature dimensions, K classes or numbers per target.
"""

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.interface import TaskError
from depthrate.tasks.metric import Metric
from depthrate.tasks.networks.module_report import format_error
from depthrate.tasks.parameters import format_value
from depthrate.tasks.supervised.user_callable import UserCallable

MIN_EXAMPLE_SAMPLES = 200
SIGNATURE = "f(features, labels, weight), a function that returns a number, None, or a dict of them"


class CustomMetric:
    """A function of features [N, D], labels [N] or targets [N, K], and the last weight [K, D], None at other widths.

    It gets copies on the CPU. Random numbers of torch are the same in each call. An example shows its columns.
    """

    def __init__(self, function: UserCallable, has_targets: bool):
        self.function, self.name, self._has_targets = function, function.name, has_targets
        self._row: dict[str, float] = {}
        self._checked: set[tuple[int, int, str]] = set()
        for example in self._examples(64, 10, "float32"):
            self._row |= self._call(*example)
        signs = {name: value > 0 for name, value in self._row.items()} or {function.name.rpartition(":")[2]: True}
        doc = f"custom metric {self.name}"
        self.metrics = [Metric(name, doc=doc, axis="log" if is_log else "linear") for name, is_log in signs.items()]
        self._row, self.columns = dict.fromkeys(signs, math.nan), ", ".join(signs)

    def check(self, widths: Sequence[int], num_outputs: int, dtype: str) -> None:
        """Call the function with the shapes of a network's layers.

        Raises:
            TaskError: It fails, or returns something else than numbers by the names of the first example.
        """
        for shape in {(width, num_outputs, dtype) for width in widths} - self._checked:
            for example in self._examples(*shape):
                self(*example)
            self._checked.add(shape)

    def __call__(self, h_ND: Tensor, labels: Tensor, weight_KD: Tensor | None) -> dict[str, float]:
        """Return each column's number, NaN where it is undefined or the features are not finite.

        Raises:
            TaskError: See `check`.
        """
        row = self._row | (self._call(h_ND, labels, weight_KD) if torch.isfinite(h_ND).all() else {})
        if len(row) > len(self._row):
            raise TaskError(
                f"{self.name} returned the name {[*row][-1]!r}, but only {self.columns} for an example. Return the "
                "same names in each call."
            )
        return row

    def _call(self, *tensors: Tensor | None) -> dict[str, float]:
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.default_generator.manual_seed(0)
                result = self.function.make(*(t if t is None else t.detach().to("cpu", copy=True) for t in tensors))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            shapes = ", ".join("None" if tensor is None else str([*tensor.shape]) for tensor in tensors)
            raise TaskError(
                f"measure: {self.name} failed on features, labels and weight of shape {shapes}: {format_error(error)}. "
                f"Expected {SIGNATURE}."
            ) from error
        single = {} if result is None else {self.function.name.rpartition(":")[2]: result}
        values = result if isinstance(result, Mapping) else single
        return {name: self._number(name, value) for name, value in values.items()}

    def _number(self, name: str, value: Any) -> float:
        """Convert None (to NaN) or a number, also of numpy or torch."""
        try:
            if value is None:
                return math.nan
            if isinstance(value, numbers.Real) or (not isinstance(value, str) and value.shape == ()):
                return float(value)
        except (AttributeError, TypeError, ValueError, OverflowError, RuntimeError):
            pass
        raise TaskError(
            f"measure: {self.name} returned {format_value(value)} ({type(value).__name__}) for {name!r}, expected "
            f"{SIGNATURE}."
        )

    def _examples(self, width: int, num_outputs: int, dtype: str) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Yield random features, labels (equally many per class) or targets, and a weight, then the same without weight."""
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(num_outputs).repeat_interleave(max(2, -(-MIN_EXAMPLE_SAMPLES // num_outputs)))
        h_ND = torch.randn(len(labels), width, generator=generator, dtype=getattr(torch, dtype))
        if self._has_targets:
            labels = torch.randn(len(labels), num_outputs, generator=generator, dtype=torch.float64)
        yield h_ND, labels, torch.randn(num_outputs, width, generator=generator, dtype=h_ND.dtype)
        yield h_ND, labels, None
