"""A paragraph on methods with the numbers in it: only what the store knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from depthrate.orchestrator.analysis.convergence import UNCONVERGED_RULE
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import adequate_power
from depthrate.orchestrator.export.latex.numbers import interval, number, power_of, value, values
from depthrate.orchestrator.export.latex.table import table_label
from depthrate.orchestrator.export.latex.text import code, latex
from depthrate.orchestrator.monitor.cost import device_hours_unit
from depthrate.orchestrator.report.curve_groups import unique, varying
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import curve_label, group_text, is_null
from depthrate.tasks.fits.models import MODELS, POWER

INTERVALS = {
    "seeds": "Student's $t$ over whole seeds, so that all values of a seed belong together",
    "bca": "a bootstrap (BCa) over the trials at each $x$",
    "t": "Student's $t$ over the trials",
}
"""`RateFit.ci_method` -> how that interval is made."""
WEIGHT_TEXTS = {
    "spread": "the variance may follow a power of $x$",
    "robust": "values far from their seeds are pulled in",
}


def methods_paragraph(data: ReportData) -> str:
    """Return what was trained, with which parameters and seeds, what came of it, and how its rates were fitted."""
    parts = data.parts or (data,)
    sentences = [sentence for part in parts for sentence in (*_sweep(part), *_outcome(part))]
    sentences += [*_fits(data), *_rates(data)]
    return "\n".join(sentence for sentence in sentences if sentence) + "\n"


def _sweep(data: ReportData) -> list[str]:
    """Say what was varied, what was set and what was left at its default."""
    trials = data.trials
    if trials.empty:
        return [f"The sweep {code(data.name)} has no trials."]
    derived = dict(data.spec.get("derive", {}))
    differing = [name for name in varying(trials, data.parameters) if name not in derived and name != "seed"]
    task = f" of the task {code(_without_folder(data.spec['task']))}" if "task" in data.spec else ""
    versions = ", ".join(f"{latex(name)} {latex(version)}" for name, version in data.versions.items())
    made = f" ({versions}{f'; commit {code(data.git[:12])}' if data.git else ''})" if versions else ""
    grid = ", ".join(rf"{code(name)} in {values(trials[name])}" for name in differing)
    size = f"{len(trials)} trials{f': {grid}' if grid else ''}{_seeds(trials, differing)}"
    sentences = [f"The sweep {code(data.name)}{task}{made} has {size}."]
    sentences += [f"Derived from these: {_pairs(derived.items())}."] if derived else []
    same = {name: trials[name].iloc[0] for name in data.parameters if name not in (*differing, *derived, "seed")}
    given = set(data.spec.get("params", {}))
    chosen = [(name, each) for name, each in same.items() if name in given]
    default = [(name, each) for name, each in same.items() if name not in given and not _is_off(each)]
    sentences += [f"All trials have {_pairs(chosen)}."] if chosen else []
    sentences += [f"Left at their defaults: {_pairs(default)}."] if default else []
    return sentences


def _without_folder(task: str) -> str:
    """Return a task's name; of a file only the file's own name, for where it lay says nothing to a reader."""
    return task.replace("\\", "/").rpartition("/")[2] if ".py:" in task else task


def _is_off(value: Any) -> bool:
    return is_null(value) or value is False or (isinstance(value, list) and not value)


def _seeds(trials: pd.DataFrame, differing: Sequence[str]) -> str:
    """Say how many seeds there are of each combination."""
    if "seed" not in trials:
        return ""
    seeds = trials["seed"].nunique()
    word = "seed" if seeds == 1 else "seeds"
    cells = trials.groupby([trials[name].map(str) for name in differing])["seed"].nunique() if differing else [seeds]
    return f", {seeds} {word} each" if min(cells) == seeds else f", {min(cells)} to {max(cells)} of {seeds} {word} each"


def _pairs(items: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{code(name)} = {value(each)}" for name, each in items)


def _outcome(data: ReportData) -> list[str]:
    """Say how many trials ended how, and what that took."""
    if data.trials.empty:
        return []
    counts, total = data.trials["state"].value_counts(), len(data.trials)
    told = ", ".join(f"{counts[state]} {_STATES.get(state, state)}" for state in counts.index)
    ended = f"All {total} trials finished" if counts.get("ok", 0) == total else f"Of {total} trials {told}"
    devices = sorted(data.cost.devices.items())
    held = ", ".join(f"{number(hours.held)} {latex(device_hours_unit(kind))}" for kind, hours in devices)
    return [f"{ended}{f'; all attempts together held {held}' if held else ''}."]


_STATES = {"ok": "finished", "running": "are running", "pending": "are pending"}


def _fits(data: ReportData) -> list[str]:
    """Say how rates and intervals were made, and what of the trials is not in them or in doubt."""
    fitted = [curve for curve in data.fits if curve.power]
    if not fitted:
        return []
    layers = unique(curve.asked.layer for curve in fitted)
    where = "at the last step" + (" and layer" if layers == [None] else "")
    sentences = [
        rf"Rates are least-squares fits of $\log y = \log c - a \log x$ to the values of every trial {where}"
        f"{_weights(fitted)}{_cutoffs(fitted)}."
    ]
    sentences += [_intervals(fitted)]
    rivals = unique(MODELS[fit.model].words for curve in fitted for fit in curve.fits if fit.model != POWER.name)
    if rivals:
        sentences.append(f"The power law was compared with other models by AICc: {', '.join(rivals)}.")
    used = {row["trial_id"] for curve in fitted for row in curve.rows}
    if any(curve.judged for curve in fitted):
        falling = len(frozenset().union(*(curve.unconverged for curve in fitted)))
        none = "None" if not falling else f"Of these, {falling}"
        verb = "is" if not falling else "are"
        sentences.append(f"The fits are of {len(used)} trials. {none} {verb} unconverged: {latex(UNCONVERGED_RULE)}.")
    for curve in data.fits:
        if excluded := curve.excluded_text:
            sentences.append(f"Left out of {_name(curve)}: {latex(excluded)}.")
    return sentences


def _weights(fitted: Sequence[FittedCurve]) -> str:
    used = unique(curve.asked.weights for curve in fitted if curve.asked.weights in WEIGHT_TEXTS)
    return "".join(f"; {code(name)} weights: {WEIGHT_TEXTS[name]}" for name in used)


def _cutoffs(fitted: Sequence[FittedCurve]) -> str:
    cut = [curve for curve in fitted if curve.cutoff is not None and curve.cutoff.passed]
    return "".join(
        f"; {_name(curve)} from {latex(curve.x)} = {number(curve.cutoff.x_min)} on" for curve in cut if curve.cutoff
    )


def _intervals(fitted: Sequence[FittedCurve]) -> str:
    powers = [(curve, power) for curve in fitted if (power := curve.power)]
    ways = unique(power.ci_method for _, power in powers if power.ci_method)
    if not ways:
        return r"There are too few points or seeds for an interval of $a$."
    over = unique(curve.draws for curve, power in powers if power.ci_method == "seeds" and curve.draws)
    draws = f" ({latex('; '.join(over))})" if over else ""
    return rf"Intervals of $a$ are at 95\,\%: {'; '.join(INTERVALS[way] for way in ways)}{draws}."


def _rates(data: ReportData) -> list[str]:
    """Say each curve's rate; the table has the same numbers."""
    told = [_rate(curve) for curve in data.fits if curve.power]
    return [rf"The rates (Table~\ref{{{table_label(data)}}}): {'; '.join(told)}."] if told else []


def _rate(curve: FittedCurve) -> str:
    power = adequate_power(curve)
    if power is None:
        return f"no power law fits {_name(curve)}"
    has_interval = power.ci_low is not None or power.ci_high is not None
    ends = f", $a$ in {interval(power, '.2f')}" if has_interval else ", without an interval"
    return f"{_name(curve)} goes as {power_of(curve, -power.exponent)}{ends}"


def _name(curve: FittedCurve) -> str:
    by = group_text(curve.by)
    return latex(curve_label(curve) + (f" at {by}" if by else ""))
