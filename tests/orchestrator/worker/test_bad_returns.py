"""A value that the tables do not support fails its trial by name, and the other trials of its pack are committed."""

from pathlib import Path

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.files.store import Store
from tests.support.launches import drive_task

TASK = """
import datetime
import numpy as np
import depthrate

class Unprintable:
    def __float__(self):
        raise RuntimeError("no number")

BAD = {
    "large": {"nc1": 10**5000}, "inexact": {"nc1": 2**53 + 1}, "bytes": {"nc1": b"12"},
    "date": {"x": datetime.date(2020, 1, 1)},
    "nanoseconds": {"nc1": np.datetime64("2020-01-01", "ns")}, "set": {"x": {1, 2}}, "mapping": {"x": {"a": 1}},
    "number": {"nc1": Unprintable()}, "nested": {"x": [[1], [2]]}, "step": {"step": float("nan")}, "layer": {"layer": -1},
    "missing": {"step": None}, "key": {3: 1.0}, "case": {"NC1": 1.0}, "type": {"good": "text"}, "spelling": {"Good": 1.0},
}

def tables(kind):
    row = {"layer": 1, "nc1": 0.5, "good": 1.0}
    whole = {"none": None, "integer": 3, "table": {"metric": [row]}, "rows": {"metrics": [row, 3]}, "text": {"metrics": "abc"},
        "lengths": {"metrics": {"nc1": [1.0, 2.0], "layer": [1]}}, "letters": {"metrics": {"split": "ab", "nc1": [1.0, 2.0]}},
        "generator": {"metrics": (row for _ in range(1))},
        "ragged": {"features": [{"layer": 1, "kind": "sample", "feature": [0.0] * n} for n in (1, 2)]}}
    return whole[kind] if kind in whole else {"metrics": [row | BAD.get(kind, {})]}

@depthrate.task()
def alone(*, kind: str, seed: int = 0):
    return tables(kind)

@depthrate.task(fusible=["kind"])
def fused(*, kind: str, seed: int = 0):
    return [tables(one) for one in kind]
"""
BAD = (
    *("large", "inexact", "bytes", "date", "nanoseconds", "set", "mapping", "number", "nested", "step", "layer"),
    *("missing", "key", "case", "type", "spelling"),
    *("none", "integer", "table", "rows", "text", "lengths", "letters", "generator", "ragged"),
)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["alone", "fused"])
def test_bad_returns_fail_their_trials_alone(folder: Store, tmp_path: Path, task: str) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    outcome = drive_task(folder, f"{tmp_path}/mine.py:{task}", grid={"kind": ["first", *BAD, "last"]})
    assert outcome.failures[0].error.startswith("TableError: table 'metrics', column 'nc1' holds a value of type int")
    assert results_of(folder).sql("select kind from trials order by 1").fetchall() == [("first",), ("last",)]
    tracebacks = str(results_of(folder).sql("select traceback from attempts").fetchall())
    trials = [trial for failure in outcome.failures for trial in failure.pack.trials]
    # None from a fused task means that the trial was pruned
    failed = {trial.params["kind"] for trial in trials if trial.trial_id in tracebacks}
    assert failed | {"none"} == set(BAD) and "'kind': 'large'" in tracebacks.replace("\\", "")
