"""Judge whether each trial's training converged.

A rate describes the optimum only if training reached it. A solver for stationary points reports whether it reached a stationary
point (`Optimum.reached_where`). Otherwise there are three checks, and none is a proof: the change of the objective over the
last quarter of the steps, its change over the last quarter of the learning rate spent (a cosine schedule spends little at its
end, so every objective looks flat there), and its height against shallower networks, which no optimum exceeds. A trial that
ends at the loss of constant predictions, while others train, is untrained: its features show the initialisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from depthrate.orchestrator.analysis.observations import Past
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.query.results import Results
from depthrate.storage.tables.custom_columns import quoted
from depthrate.sweeps.trial import Trial, canonical_json
from depthrate.tasks.interface import Task
from depthrate.tasks.metric import Metric
from depthrate.tasks.training.parameters import last_rate_quarter
from depthrate.tasks.training.training_plan import learning_rate_factor


@dataclass(frozen=True)
class Drift:
    """Change of a power law's exponent over the last quarter of training."""

    moved: float
    """Exponent now minus the exponent at the start of the last quarter."""
    could_move: float
    """Largest possible change if each value moved once more by the same amount, in the worst direction."""


def exponent_drift(rows: Sequence[Mapping[str, Any]], past: Past, ended: Mapping[str, Convergence]) -> Drift | None:
    """Compute the change of a power law's exponent (equal weights) over the last quarter of training.

    Args:
        rows: Dicts with trial_id, x and y.
        past: Earlier values of the metric per trial.
        ended: Convergence per trial.
    Returns:
        The drift, or None if a trial has no measurement from before its last quarter.
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
    """Return the rise of ln y since a step, interpolated between measurements."""
    measured = [(step, math.log(value)) for step, value in steps if value > 0]
    if not any(0 < step <= start for step, _ in measured):
        return None
    at, log_y = np.array(measured).T
    return float(log_y[-1] - np.interp(start, at, log_y))


MAX_MOVED = 0.01
"""Largest change of a converged trial's objective, as a share of its gap."""
FAILED_FACTOR = 3.0
"""Minimum ratio of a failed trial's objective to the median over the trials that differ from it only in the seed."""
MIN_SIBLINGS = 3
"""Minimum number of trials, including the judged trial, whose median is used for the comparison."""
GAP_RTOL = 1e-9
"""Tolerance for equal heights, as a share of the gap. In a chain, each depth starts where the previous one ended."""
MIN_UNTRAINED_LOSS = 0.85
"""Minimum loss of an untrained trial, as a share of the loss at zero weights, or of its own first loss if that is unknown.
The best constant prediction has a share of 1 for cross-entropy and (K - 1) / K for the squared error."""
MAX_TRAINED_LOSS = 0.5
"""Maximum share of a trial that proves that the sweep trains. Without one, a short sweep would have no trial left."""
UNTRAINED_ADVICE = "Lower lr, or raise steps."
LAST_QUARTER_START = 0.75
"""Start of the last quarter, as a share of the whole."""
UNCONVERGED_RULE = (
    "over the last quarter of its steps, or of the learning rate spent, its objective moved by more than 1 % of its height "
    "above its limit (of its value if no limit is known)"
)


@dataclass(frozen=True)
class Convergence:
    """State of one trial's training, from its training curve."""

    moved: float
    """Larger fall of the objective in the two checks of the last quarter, as a share of the gap. Negative if it rose.
    """
    from_step: float
    """Step at which the earlier of the two last quarters starts."""
    stationary: bool | None = None
    """Whether the solver ended at a stationary point. None without such a solver."""
    above: float = 0.0
    """Height of the objective above a shallower network's, as a share of the gap. 0 if it is not above."""
    has_failed: bool = False
    """Whether the objective is FAILED_FACTOR times the siblings', the trials that differ only in the seed."""
    is_untrained: bool = False
    """Whether the loss is that of constant predictions although other trials train."""

    @property
    def is_converged(self) -> bool:
        """Whether the solver reports convergence or, without a solver, the objective no longer moves."""
        return abs(self.moved) <= MAX_MOVED if self.stationary is None else self.stationary


def judge(results: Results, trials: Sequence[Trial], measurements: Iterable[Metric]) -> dict[str, Convergence]:
    """Return each trial's convergence. Trials without curves and diverged trials are omitted."""
    objective = _objective(measurements)
    return _judge(_read_curves(results, objective), trials, objective)


def exclusion(status: str, end: Convergence | None) -> str | None:
    """Return why a trial has no value to use: untrained, failed, or its status if that is not ok. None if it has one."""
    if end is not None and (end.is_untrained or end.has_failed):
        return "untrained" if end.is_untrained else "failed"
    return None if status == "ok" else status


def judgements(
    results: Results, sweeps: Iterable[Collection[str]], find_task: Callable[[str], Task | None]
) -> dict[str, str]:
    """Judge trials: ok, unconverged, untrained, failed, or diverged.

    Args:
        sweeps: Trials of each sweep. They are compared with one another. A trial of several sweeps is judged in the first.
        find_task: Returns a task by its name, with the metric that its training minimises.
    Returns:
        Trial -> judgement. A trial without a training curve is not judged, and is ok unless it diverged.
    """
    rows = results.sql("select trial_id, task, task_version, params, status from trials order by trial_id").fetchall()
    statuses = {trial_id: status for trial_id, *_, status in rows}
    of_task: dict[str, dict[str, Trial]] = {}
    for trial_id, task, version, params, _ in rows:
        of_task.setdefault(task, {})[trial_id] = Trial(trial_id, task, version, parse_object(params))
    ends: dict[str, Convergence] = {}
    sweeps = list(sweeps)
    for name, trials in of_task.items():
        task = find_task(name)
        objective = _objective(task.measurements if task is not None else ())
        curves = _read_curves(results, objective)
        for trial_ids in sweeps:
            members = [trials[trial_id] for trial_id in sorted(trial_ids) if trial_id in trials]
            of_sweep = {trial.trial_id: curves[trial.trial_id] for trial in members if trial.trial_id in curves}
            ends = _judge(of_sweep, members, objective) | ends
    return {trial_id: _word(status, ends.get(trial_id)) for trial_id, status in statuses.items()}


def _word(status: str, end: Convergence | None) -> str:
    return exclusion(status, end) or ("ok" if end is None or end.is_converged else "unconverged")


def _objective(measurements: Iterable[Metric]) -> Metric | None:
    return next((measurement for measurement in measurements if measurement.optimum is not None), None)


def _judge(curves: Mapping[str, Curve], trials: Sequence[Trial], objective: Metric | None) -> dict[str, Convergence]:
    schedules = {trial.trial_id: trial.params.get("schedule") for trial in trials}
    ends = {
        trial_id: end
        for trial_id, rows in curves.items()
        if (end := _curve_end(rows, schedules.get(trial_id))) is not None
    }
    flags = {trial_id: float(rows["reached"][-1]) for trial_id, rows in curves.items()}
    reached = {trial_id: flag == 1 for trial_id, flag in flags.items() if math.isfinite(flag)}
    above = {} if objective is None else _above_shallower(ends, trials, objective)
    failed = set() if objective is None else _failed(ends, trials)
    untrained = set() if objective is None else _untrained(curves, trials, objective)
    return {
        trial_id: Convergence(
            moved, from_step, reached.get(trial_id), above.get(trial_id, 0.0), trial_id in failed, trial_id in untrained
        )
        for trial_id, (moved, from_step, _, _) in ends.items()
    }


Curve = dict[str, np.ndarray]
CurveEnd = tuple[float, float, float, float]
"""Share by which the objective moved, first step of the last quarter, last height, last gap."""


def _read_curves(results: Results, declared: Metric | None) -> dict[str, Curve]:
    """Return each trial's training curve: step, height, gap, lr and loss, in the order of the steps."""
    names = results.sql("select * from curves limit 0").columns
    height = "coalesce(objective, loss)" if declared is None else quoted(declared.name)
    gap = quoted(declared.gap) if declared is not None and declared.gap in names else "null"
    columns = {"step": "step", "height": height, "gap": gap, "lr": "lr" if "lr" in names else "null", "loss": "loss"}
    reached = "" if declared is None or declared.optimum is None else declared.optimum.reached_where
    columns["reached"] = quoted(reached) if reached in names else "null"
    selected = ", ".join(f"{text} as {name}" for name, text in columns.items())
    query = f"select trial_id, {selected} from curves where split = 'train' and {height} is not null order by trial_id, step"
    table = results.sql(query).to_arrow_table()
    if not table.num_rows:
        return {}
    ids = table["trial_id"].combine_chunks().dictionary_encode()
    index_of_row, trial_ids = ids.indices.to_numpy(), ids.dictionary.to_pylist()
    values = {name: table[name].cast("float64").to_numpy(zero_copy_only=False) for name in columns}
    starts = np.flatnonzero(np.diff(index_of_row, prepend=-1))
    ends = np.r_[starts[1:], table.num_rows]
    return {
        trial_id: {name: column[start:end] for name, column in values.items()}
        for trial_id, start, end in zip(trial_ids, starts, ends, strict=True)
    }


def _curve_end(curve: Curve, schedule: Any = None) -> CurveEnd | None:
    step, height = curve["step"], curve["height"]
    last = float(step[-1])
    if len(step) < 2 or last <= 0:
        return None
    gap = float(curve["gap"][-1])
    scale = gap if math.isfinite(gap) and gap > 0 else abs(float(height[-1]))
    if not scale > 0:
        return None
    starts = {LAST_QUARTER_START * last, _last_lr_quarter(step, curve["lr"], last, schedule)}
    moved = [float(np.interp(start, step, height) - height[-1]) / scale for start in starts]
    return max(moved, key=abs), min(starts), float(height[-1]), scale


def _last_lr_quarter(step: np.ndarray, lr: np.ndarray, last: float, schedule: Any = None) -> float:
    """Return the step at which three quarters of the learning rate, summed over steps, are spent.

    It is exact if the curve has the learning rates of one of depthrate's schedules. Otherwise the rates are interpolated.
    """
    if not np.isfinite(lr).all() or not (lr[:-1] > 0).all():
        return LAST_QUARTER_START * last
    if isinstance(schedule, str):
        factors = np.array([learning_rate_factor(schedule, int(at), int(last)) for at in step])
        if np.allclose(lr / lr.max(), factors / factors.max(), rtol=1e-6, atol=1e-9):
            return last_rate_quarter(schedule) * last
    spent = np.r_[0.0, np.cumsum(np.diff(step) * (lr[1:] + lr[:-1]) / 2)]
    return float(np.interp(LAST_QUARTER_START * spent[-1], spent, step))


def _above_shallower(ends: Mapping[str, CurveEnd], trials: Sequence[Trial], declared: Metric) -> dict[str, float]:
    """Return the height of objectives above a shallower network's with the same optimum, as a share of the gap."""
    assert declared.optimum is not None
    depth, holds = declared.optimum.falls_with, declared.optimum.holds
    free = {depth, *declared.optimum.free}
    alike: dict[str, list[tuple[Any, str]]] = {}
    for trial in trials:
        has_depth = trial.trial_id in ends and isinstance(trial.params.get(depth), int | float)
        if has_depth and (holds is None or holds(trial.params)):
            key = canonical_json({name: value for name, value in trial.params.items() if name not in free})
            alike.setdefault(key, []).append((trial.params[depth], trial.trial_id))
    above: dict[str, float] = {}
    for group in alike.values():
        lowest = math.inf  # lowest objective of the shallower networks
        for value in sorted({value for value, _ in group}):
            trial_ids = [trial_id for other, trial_id in group if other == value]
            for trial_id in trial_ids:
                _, _, height, scale = ends[trial_id]
                if height - lowest > GAP_RTOL * scale:
                    above[trial_id] = (height - lowest) / scale
            lowest = min(lowest, *(ends[trial_id][2] for trial_id in trial_ids))
    return above


def _failed(ends: Mapping[str, CurveEnd], trials: Sequence[Trial]) -> set[str]:
    """Return the trials whose objective is far above their siblings', the trials that differ only in the seed."""
    siblings: dict[str, list[str]] = {}
    for trial in trials:
        if trial.trial_id in ends:
            key = canonical_json({name: value for name, value in trial.params.items() if name != "seed"})
            siblings.setdefault(key, []).append(trial.trial_id)
    failed: set[str] = set()
    for trial_ids in siblings.values():
        if len(trial_ids) >= MIN_SIBLINGS:
            limit = FAILED_FACTOR * float(np.median([ends[trial_id][2] for trial_id in trial_ids]))
            failed |= {trial_id for trial_id in trial_ids if ends[trial_id][2] > limit > 0}
    return failed


def _untrained(curves: Mapping[str, Curve], trials: Sequence[Trial], declared: Metric) -> set[str]:
    """Return the trials whose loss ends at the level of constant predictions, if other trials train.

    A limit of the objective near its value at zero weights explains such a loss: decay is strong, and zero is optimal.
    """
    known = [trial for trial in trials if trial.trial_id in curves]
    zeros = [None] * len(known) if declared.at_zero is None else declared.at_zero([trial.params for trial in known])
    shares: dict[str, float] = {}
    for trial, zero in zip(known, zeros, strict=True):
        curve = curves[trial.trial_id]
        level = curve["loss"][0] if zero is None and curve["step"][0] == 0 else zero
        limit = curve["height"][-1] - curve["gap"][-1]
        if level is not None and level > 0 and not limit > MIN_UNTRAINED_LOSS * level:
            shares[trial.trial_id] = float(curve["loss"][-1] / level)
    if min(shares.values(), default=math.inf) > MAX_TRAINED_LOSS:
        return set()
    return {trial_id for trial_id, share in shares.items() if share >= MIN_UNTRAINED_LOSS}
