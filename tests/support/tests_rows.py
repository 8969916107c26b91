"""Commits for the storage tests, through the real writer."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.files.format import FORMAT_FILE
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.schema import Columns

A, B, C = (f"20260101T000000_{letter * 12}" for letter in "abc")
"""Attempts, in the order of their names."""


def tables_of(trial_id: str, attempt_id: str, value: float = 1.0, width: int = 3, dtype: type = np.float32) -> Any:
    """One trial's tables: two steps, three layers, two samples of features at layers 1 and 2."""
    places = [(s, k) for s in (0, 5) for k in range(3)]
    metrics = [{"step": s, "layer": k, "nc1": value + 0.1 * k + s, "singular_values": [2.0, 1.0]} for s, k in places]
    curves = {"step": [0, 5], "loss": [2.0, float("nan")], "lr": [0.1, 0.0]}
    features = {"step": [5] * 4, "layer": [1, 1, 2, 2], "kind": ["sample"] * 4, "label": [0, 1, 0, 1]}
    vectors = (np.arange(4 * width).reshape(4, width) + value).astype(dtype)
    features |= {"sample_index": [0, 1, 0, 1], "feature": vectors}
    contents = {"metrics": metrics, "curves": curves, "features": features}
    return {
        n: task_table(n, c, builtin_columns(), trial_id=trial_id, attempt_id=attempt_id) for n, c in contents.items()
    }


def commit(
    store: Store,
    attempt_id: str,
    trial_ids: Sequence[str],
    *,
    hour: int = 0,
    at: datetime | None = None,
    value: float = 1.0,
    params: dict[str, Any] | None = None,
    part: int | None = None,
    sweep: str = "s",
    code_hash: str | None = None,
    task: str = "t",
    **shape: Any,
) -> None:
    """Commit trials as a launch does: the store's format, a record, the data, the trials file."""
    if store.size(FORMAT_FILE) is None:
        store.write_format()
    record = {"attempt_id": attempt_id, "sweep": sweep, "trial_ids": list(trial_ids), "state": "done"}
    record |= {"started_at": 1e9, "heartbeat_at": 1e9, "ended_at": 1e9}
    store.write(attempt_path(sweep, attempt_id), json.dumps(record).encode())
    each = [tables_of(trial_id, attempt_id, value, **shape) for trial_id in trial_ids]
    rows = [
        {
            "trial_id": trial_id,
            "sweep": sweep,
            "task": task,
            "attempt_id": attempt_id,
            "status": "ok",
            "committed_at": at or datetime(2026, 1, 1, hour, tzinfo=UTC),
            "params": json.dumps({"depth": 2 + index, "lr": 0.1, "steps": 5} if params is None else params),
            "code_hash": code_hash,
        }
        for index, trial_id in enumerate(trial_ids)
    ]
    tables = {name: [tables[name] for tables in each] for name in ("metrics", "curves", "features")}
    commit_trials(
        store, sweep=sweep, attempt_id=attempt_id, part=part, trials=rows, tables=tables, columns=builtin_columns()
    )


def commit_rows(
    store: Store,
    attempt_id: str,
    trials: Mapping[str, Mapping[str, Any]],
    *,
    sweep: str = "s",
    columns: Columns | None = None,
    fields: Callable[[str], Mapping[str, Any]] = lambda trial_id: {},
) -> None:
    """Commit what a task returned for each trial (table -> rows, or the table itself), with these fields of its row."""
    columns, tables = columns or builtin_columns(), defaultdict(list)
    for trial_id, contents in trials.items():
        for name, rows in contents.items():
            made = isinstance(rows, pa.Table)
            table = rows if made else task_table(name, rows, columns, trial_id=trial_id, attempt_id=attempt_id)
            tables[name].append(table)
    usual = {"sweep": sweep, "task": "t", "attempt_id": attempt_id, "status": "ok", "params": "{}"}
    rows = [usual | {"trial_id": trial_id} | dict(fields(trial_id)) for trial_id in trials]
    commit_trials(
        store, sweep=sweep, attempt_id=attempt_id, part=None, trials=rows, tables=dict(tables), columns=columns
    )
