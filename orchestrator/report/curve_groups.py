"""Group the report's trials, and thin groups and points for drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.plot import MAX_GROUPS, omission_notes, viridis
from depthrate.orchestrator.report.text import value_text

T = TypeVar("T")


def splits(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return (suffix, rows) per split. The suffix names the split if there are several."""
    if frame.empty or "split" not in frame:
        return []
    if (frame["split"] == frame["split"].iloc[0]).all():
        return [("", frame)]  # not a copy
    parts = list(frame.groupby("split", sort=False))
    return [(f" ({split})" if len(parts) > 1 else "", part) for split, part in parts]


def group_trials(
    trials: pd.DataFrame, frame: pd.DataFrame, by: list[str]
) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """Return the rows of each group, keyed by its parameters' values as strings, in the order of the values."""
    if not by:
        return [((), frame)]
    # taken from the trials, since a parameter may have the name of a metric (loss: ce)
    values = trials.drop_duplicates("trial_id").set_index("trial_id")[by]
    # group by numbers, since a frame may have a hundred rows per trial
    keys = list(zip(*(value_texts(values[name]) for name in by), strict=True))
    place = {key: number for number, key in enumerate(sorted(set(keys)))}
    numbers = frame["trial_id"].map(pd.Series([place[key] for key in keys], index=values.index)).astype("float64")
    ordered = list(place)
    groups = [(ordered[int(cast(float, number))], part) for number, part in frame.groupby(numbers.to_numpy())]
    return sorted(groups, key=lambda group: sort_key(tuple(values.loc[group[1]["trial_id"].iloc[0]])))


def colour_groups(
    trials: pd.DataFrame, rows: pd.DataFrame, by: list[str], noun: str = "settings"
) -> tuple[list[tuple[tuple[str, ...], pd.DataFrame, str]], list[str]]:
    """Return (values of `by`, rows, colour) of at most MAX_GROUPS groups, and a note on omitted groups."""
    groups = group_trials(trials, rows, by)
    shown = spread(groups, MAX_GROUPS)
    coloured = [(key, part, colour) for (key, part), colour in zip(shown, viridis(len(shown)), strict=True)]
    return coloured, omission_notes(len(shown), len(groups), noun=noun)


def value_texts(values: pd.Series[Any]) -> list[str]:
    """Return a parameter's values as strings, formatting each distinct value once."""
    if values.dtype == object:  # keyed by id, because lists have no hash, and 1 and True are the same dict key
        objects = list(values)  # keeps the objects alive, so that ids are unique
        text_by_id = {key: value_text(value) for key, value in {id(value): value for value in objects}.items()}
        return [text_by_id[id(value)] for value in objects]
    codes, distinct = pd.factorize(values, use_na_sentinel=False)
    distinct_texts = [value_text(value) for value in distinct.astype(object)]
    return [distinct_texts[code] for code in codes]


def sort_key(values: tuple[Any, ...]) -> list[tuple[bool, float, str]]:
    """Return a key that sorts numbers by size, and after them all other values by their strings."""
    numeric = [isinstance(value, int | float | np.number) and math.isfinite(value) for value in values]
    return [(not n, float(v) if n else 0.0, "" if n else str(v)) for n, v in zip(numeric, values, strict=True)]


def varying_names(trials: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return the parameters that take several values."""
    return [name for name in names if len(set(value_texts(trials[name]))) > 1]


def unique(values: Iterable[T]) -> list[T]:
    """Return the values without duplicates, in order."""
    return list(dict.fromkeys(values))


def spread(values: list[T], limit: int) -> list[T]:
    """Return at most `limit` values, evenly spread, with the first and the last."""
    return [values[index] for index in thin_indices(len(values), limit)]


def setting_text(names: Iterable[str], values: Iterable[str]) -> str:
    """Format a group's parameters, as in `depth = 2, width = 64`."""
    return ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))


def thin_indices(length: int, limit: int) -> list[int]:
    """Return at most `limit` indices, evenly spread, with the first and the last."""
    if length <= limit:
        return list(range(length))
    return sorted(set(np.linspace(0, length - 1, max(limit, 2)).round().astype(int).tolist()))


def thinned_curves(
    rows: pd.DataFrame, names: Iterable[str], max_points: int, digits: int
) -> dict[str, dict[str, dict[str, list[float | None]]]]:
    """Map trials to splits, and splits to step and the logged columns, each with at most `max_points` values."""
    curves: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    rows = rows.assign(split=rows["split"].fillna("train"))
    for (trial_id, split), part in rows.groupby(["trial_id", "split"], sort=False, observed=True):
        thin = part.sort_values("step", kind="stable").iloc[thin_indices(len(part), max_points)]
        columns: dict[str, list[float | None]] = {"step": [int(step) for step in thin["step"]]}
        for name in names:
            values = pd.to_numeric(thin[name], errors="coerce")
            if values.notna().any():
                columns[name] = [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values]
        curves.setdefault(str(trial_id), {})[str(split)] = columns
    return curves


def mean_array(arrays: list[np.ndarray]) -> np.ndarray:
    """Return the mean of the arrays with the shape of the first."""
    return np.mean([array for array in arrays if array.shape == arrays[0].shape], axis=0)


def finite_arrays(trials: pd.DataFrame, lists: pd.DataFrame, column: str) -> list[tuple[str, np.ndarray]]:
    """Return (trial_id, values) for the trials with finite lists."""
    if column not in lists:
        return []
    pairs = [
        (str(trial_id), np.asarray(values, dtype=np.float64))
        for trial_id, values in zip(lists["trial_id"], lists[column], strict=True)
        if isinstance(values, list | np.ndarray)  # pandas represents missing lists by several null values
    ]
    trial_ids = set(trials["trial_id"])
    return [(trial_id, values) for trial_id, values in pairs if np.isfinite(values).all() and trial_id in trial_ids]
