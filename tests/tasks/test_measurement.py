"""Declarations of measurements: what is refused, and that the built-in ones are what stores were written with."""

from typing import Any

import pytest

from depthrate.tasks.metric import MeasurementError, Metric, by_name, scalars
from depthrate.tasks.registry import registered_tasks
from depthrate.tasks.supervised.metrics import core_measurements


def test_labels_and_entries_fall_back_to_names() -> None:
    assert Metric("bend").label == "bend" and Metric("bend", "Bend").entry == "Bend"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": " "}, "expected the name of a column"),
        ({"name": "bend", "axis": "logarithmic"}, "axis is 'logarithmic', expected one of log, linear"),
        ({"name": "bend", "per": "epoch"}, "per is 'epoch', expected one of layer, step"),
        ({"name": "bend", "kind": "tensor"}, "expected one of scalar, vector, matrix"),
        ({"name": "bend", "panel": "spectrum"}, "panel 'spectrum' needs kind 'vector'"),
        ({"name": "bend", "kind": "vector", "per": "step"}, "per is 'step', but a vector"),
    ],
)
def test_what_cannot_be_kept_or_drawn_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        Metric(**given)


def test_names_are_unique_and_gaps_are_measured() -> None:
    with pytest.raises(MeasurementError, match="'a' is declared twice"):
        by_name([Metric("a"), Metric("a", per="step")])
    with pytest.raises(MeasurementError, match="'A' is declared twice"):
        by_name([Metric("a"), Metric("A")])
    with pytest.raises(MeasurementError, match="gap is 'b'"):
        by_name([Metric("a", gap="b")])
    assert scalars([Metric("a"), Metric("v", kind="vector"), Metric("s", per="step")]) == ["a", "s"]


def test_every_builtin_measurement_says_what_it_is() -> None:
    declared = [measurement for task in registered_tasks().values() for measurement in task.measurements]
    assert {measurement.name for measurement in core_measurements()} < {measurement.name for measurement in declared}
    assert all(measurement.doc and measurement.label for measurement in declared)
