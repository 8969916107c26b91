"""Parameters become columns, including those that a task gained after its first trials."""

import json

import pyarrow as pa
import pytest

from depthrate.storage.tables.parameters import with_parameter_columns
from depthrate.storage.tables.schema import TRIALS

ADDED = {("law", 1): {"eps": 0.5, "sizes": [1, 2], "mode": "a"}, ("other", 1): {}}


def columns(*rows, added=ADDED):
    """Return the columns of rows (task, version, attempt, parameters)."""
    fields = {name: [None] * len(rows) for name in TRIALS.names}
    for name, values in zip(("task", "task_version", "attempt_id", "params"), zip(*rows, strict=True), strict=True):
        fields[name] = [json.dumps(value) for value in values] if name == "params" else list(values)
    table = with_parameter_columns(pa.table(fields, TRIALS), lambda task, version: added.get((task, version), {}))
    return {name: table[name].to_pylist() for name in table.column_names[len(TRIALS) :]}


@pytest.mark.parametrize("times", [1, 600])  # large numbers use another reader
def test_trials_from_before_show_the_value_of_before(times):
    table = columns(*[("law", 1, "a1", {"depth": 2}), ("law", 1, "a2", {"depth": 3, "eps": 1.5, "mode": "b"})] * times)
    expected = {"depth": [2, 3], "eps": [0.5, 1.5], "mode": ["a", "b"], "sizes": [[1.0, 2.0]] * 2}
    assert table == {name: values * times for name, values in expected.items()}


def test_a_column_that_no_trial_has_is_there():
    assert columns(("law", 1, "a1", {})) == {"eps": [0.5], "sizes": [[1.0, 2.0]], "mode": ["a"]}


def test_null_is_a_value_and_other_tasks_and_versions_stay_as_they_are():
    rows = [("law", 1, "a1", {"eps": None}), ("law", 2, "a2", {"depth": 1}), ("other", 1, "a3", {"depth": 2})]
    table = columns(*rows, added={("law", 1): {"eps": 0.5}, ("other", 1): {}})
    assert table == {"eps": [None, None, None], "depth": [None, 1, 2]}


def test_a_text_that_looks_like_the_key_is_none():
    assert columns(("law", 1, "a1", {"note": '"eps": 3, "mode":'}))["eps"] == [0.5]


def test_without_added_parameters_nothing_is_filled_in():
    assert columns(("law", 1, "a1", {"depth": 2}), added={}) == {"depth": [2]}


@pytest.mark.parametrize("values", [[[], None], [[], [None]], [[None, None], [], None]])
def test_lists_without_a_number_are_lists_of_numbers(values):
    rows = [("law", 1, f"a{index}", {"milestones": value}) for index, value in enumerate(values)]
    assert columns(*rows, added={}) == {"milestones": values}
