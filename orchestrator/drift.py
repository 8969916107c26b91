"""By how much an exponent could still move: what the last quarter of training did to the values it is fitted to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from depthrate.orchestrator.convergence import Convergence
from depthrate.orchestrator.fitted_values import Past


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
