"""By how much an exponent could still move: what the last quarter of training did to the values it is fitted to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from depthrate.orchestrator.convergence import Convergence
from depthrate.storage.columns import quoted
from depthrate.storage.query import Results
from depthrate.sweeps.fit_requests import FitRequest

Past = Mapping[str, Sequence[tuple[float, float]]]
"""Trial -> (step, value) at each step the metric was measured at, rising."""


@dataclass(frozen=True)
class Drift:
    """What the trials' last quarter of training did to a power law's exponent."""

    moved: float
    """The exponent now minus what it was where the last quarter began."""
    could_move: float
    """How far it would go if each value moved once more by as much, each in the worst direction."""


def drift_of(rows: Sequence[Mapping[str, Any]], past: Past, ended: Mapping[str, Convergence]) -> Drift | None:
    """Return by how much these trials' power law (all weights equal) moved since the last quarter of their training began.

    rows: trial_id, x and y of each. Null where one of them has no measurement from before its last quarter.
    """
    log_x, changes = [], []
    for row in rows:
        steps = past.get(row["trial_id"], ())
        if row["trial_id"] not in ended or len(steps) < 2 or steps[-1][1] != row["y"]:
            return None
        change = _change(steps, ended[row["trial_id"]].from_step)
        if change is None:
            return None
        log_x.append(math.log(row["x"]))
        changes.append(change)
    u_N = np.array(log_x) - np.mean(log_x)
    moved_N = -u_N / (u_N @ u_N) * np.array(changes)
    return Drift(float(moved_N.sum()), float(np.abs(moved_N).sum()))


def _change(steps: Sequence[tuple[float, float]], start: float) -> float | None:
    """Return by how much ln y rose since a step, which may lie between two measurements."""
    measured = [(step, math.log(value)) for step, value in steps if value > 0]
    if not any(0 < step <= start for step, _ in measured):
        return None
    at, log_y = np.array(measured).T
    return float(log_y[-1] - np.interp(start, at, log_y))


def measured_before(results: Results, request: FitRequest) -> dict[str, list[tuple[float, float]]]:
    """Return trial -> the metric of a request at each step it was measured at."""
    tables = {table: results.sql(f"select * from {table} limit 0").columns for table in ("metrics", "curves")}
    table = next((table for table, columns in tables.items() if request.metric in columns), None)
    if table is None:
        return {}
    column, where = f"t.{quoted(request.metric)}", ""
    if table == "metrics":
        counted = "" if request.layer is None or request.layer >= 0 else "r.layer + 1 "
        where = "and t.is_last" if request.layer is None else f"and t.layer = {counted}{request.layer}"
    rows = results.sql(
        f"select t.trial_id, t.step, {column} from {table} t join results r on t.trial_id = r.trial_id "
        f"and t.split = r.split where {column} is not null {where} order by t.trial_id, t.step"
    ).fetchall()
    past: dict[str, list[tuple[float, float]]] = {}
    for trial_id, step, value in rows:
        past.setdefault(trial_id, []).append((float(step), float(value)))
    return past
