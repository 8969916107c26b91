"""How far from its end each trial's training still is: what its objective did last, and whether a deeper network lies above.

A rate is one of the optimum only if training reached it. A solver that looks for stationary points says whether it ended at
one (`Optimum.reached_where`). Of all else there are three looks, none of them a proof: how the objective moved over the
last quarter of the steps, over the last quarter of the learning rate that was spent (a cosine spends little at its end, so
that everything looks still), and against shallower networks, which the optimum cannot lie above.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from depthrate.orchestrator.analysis.observations import Past
from depthrate.storage.query.results import Results
from depthrate.storage.tables.custom_columns import quoted
from depthrate.sweeps.trial import Trial, canonical_json
from depthrate.tasks.metric import Metric


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


MAX_MOVED = 0.01
"""A trial whose objective still moves by more than this share of its gap is unconverged."""
GAP_RTOL = 1e-9
"""A height above another by no more than this share of its gap is the same one: a chain's depths begin where others ended."""
LAST_QUARTER_START = 0.75
"""Where the last quarter begins."""
UNCONVERGED_RULE = (
    "over the last quarter of its steps, or of the learning rate spent, its objective moved by more than 1 % of what it is "
    "above its limit (of itself where no limit is known)"
)


@dataclass(frozen=True)
class Convergence:
    """What one trial's curve says of its training."""

    moved: float
    """By which share of the gap the objective fell over the last quarter; negative where it rose. The larger of both looks."""
    from_step: float
    """Where the earlier of both last quarters begins: what moved since then may move again."""
    stationary: bool | None = None
    """Whether a solver that looks for stationary points ended at one; null where none did."""
    above: float = 0.0
    """By which share of the gap its objective lies above that of a shallower network; 0 where it does not."""

    @property
    def is_converged(self) -> bool:
        """Whether a solver says so, or, where none was at work, whether the objective no longer moves."""
        return abs(self.moved) <= MAX_MOVED if self.stationary is None else self.stationary


def judge(results: Results, trials: Sequence[Trial], measurements: Iterable[Metric]) -> dict[str, Convergence]:
    """Return trial -> how its training ended; one without curves, or that diverged, is not judged."""
    declared = next((measurement for measurement in measurements if measurement.optimum is not None), None)
    curves = _curves(results, declared)
    judged = {trial_id: _judged(rows) for trial_id, rows in curves.items()}
    ends = {trial_id: float(rows["reached"][-1]) for trial_id, rows in curves.items()}
    said = {trial_id: end == 1 for trial_id, end in ends.items() if math.isfinite(end)}
    found = {trial_id: each for trial_id, each in judged.items() if each is not None}
    above = {} if declared is None else _above_shallower(found, trials, declared)
    return {
        trial_id: Convergence(moved, from_step, said.get(trial_id), above.get(trial_id, 0.0))
        for trial_id, (moved, from_step, _, _) in found.items()
    }


Curve = dict[str, np.ndarray]
Ended = tuple[float, float, float, float]
"""Share moved, where the last quarter begins, the last height and the last gap."""


def _curves(results: Results, declared: Metric | None) -> dict[str, Curve]:
    """Return trial -> step, height, gap and lr of its training curve, in the order of the steps."""
    known = results.sql("select * from curves limit 0").columns
    height = "coalesce(objective, loss)" if declared is None else quoted(declared.name)
    gap = quoted(declared.gap) if declared is not None and declared.gap in known else "null"
    columns = {"step": "step", "height": height, "gap": gap, "lr": "lr" if "lr" in known else "null"}
    reached = "" if declared is None or declared.optimum is None else declared.optimum.reached_where
    columns["reached"] = quoted(reached) if reached in known else "null"
    chosen = ", ".join(f"{text} as {name}" for name, text in columns.items())
    query = (
        f"select trial_id, {chosen} from curves where split = 'train' and {height} is not null order by trial_id, step"
    )
    table = results.sql(query).to_arrow_table()
    ids = np.array(table["trial_id"].to_pylist(), dtype=object)
    if not len(ids):
        return {}
    values = {name: table[name].cast("float64").to_numpy(zero_copy_only=False) for name in columns}
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    ends = np.r_[starts[1:], len(ids)]
    return {
        str(ids[start]): {name: column[start:end] for name, column in values.items()}
        for start, end in zip(starts, ends, strict=True)
    }


def _judged(curve: Curve) -> Ended | None:
    step, height = curve["step"], curve["height"]
    last = float(step[-1])
    if len(step) < 2 or last <= 0:
        return None
    gap = float(curve["gap"][-1])
    scale = gap if math.isfinite(gap) and gap > 0 else abs(float(height[-1]))
    if not scale > 0:
        return None
    begins = {LAST_QUARTER_START * last, _spent(step, curve["lr"], last)}
    moved = [float(np.interp(start, step, height) - height[-1]) / scale for start in begins]
    return max(moved, key=abs), min(begins), float(height[-1]), scale


def _spent(step: np.ndarray, lr: np.ndarray, last: float) -> float:
    """Return the step at which three quarters of the learning rate are spent: all steps' sum."""
    if not np.isfinite(lr).all() or not (lr[:-1] > 0).all():
        return LAST_QUARTER_START * last
    spent = np.r_[0.0, np.cumsum(np.diff(step) * (lr[1:] + lr[:-1]) / 2)]
    return float(np.interp(LAST_QUARTER_START * spent[-1], spent, step))


def _above_shallower(found: Mapping[str, Ended], trials: Sequence[Trial], declared: Metric) -> dict[str, float]:
    """Return the trials whose objective lies above a shallower network's with the same optimum to reach, and by how much."""
    assert declared.optimum is not None
    depth, holds = declared.optimum.falls_with, declared.optimum.holds
    free = {depth, *declared.optimum.free}
    alike: dict[str, list[tuple[Any, str]]] = {}
    for trial in trials:
        has_depth = trial.trial_id in found and isinstance(trial.params.get(depth), int | float)
        if has_depth and (holds is None or holds(trial.params)):
            key = canonical_json({name: value for name, value in trial.params.items() if name not in free})
            alike.setdefault(key, []).append((trial.params[depth], trial.trial_id))
    above: dict[str, float] = {}
    for group in alike.values():
        least = math.inf  # of the networks that are shallower
        for value in sorted({value for value, _ in group}):
            here = [trial_id for other, trial_id in group if other == value]
            for trial_id in here:
                _, _, height, scale = found[trial_id]
                if height - least > GAP_RTOL * scale:
                    above[trial_id] = (height - least) / scale
            least = min(least, *(found[trial_id][2] for trial_id in here))
    return above
