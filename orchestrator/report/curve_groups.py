"""How the report's trials part into groups, and how many of a thing are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.text import value_text

T = TypeVar("T")

SWEEP_COLUMN = "sweep"
"""The parameter that tells the trials of overlaid sweeps apart."""


def splits(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return (suffix, part) for each split; the suffix names it where there are several."""
    if frame.empty or "split" not in frame:
        return []
    parts = list(frame.groupby("split", sort=False))
    return [(f" ({split})" if len(parts) > 1 else "", part) for split, part in parts]


def group_trials(
    trials: pd.DataFrame, frame: pd.DataFrame, by: list[str]
) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """Return groups in the order of their parameters' values, keyed by these as text: some are lists or null.

    Overlaid sweeps are in the order in which they are named.
    """
    if not by:
        return [((), frame)]
    # from the table of trials, as a parameter may have the name of a measurement (loss: ce)
    values = trials.drop_duplicates("trial_id").set_index("trial_id")[by]
    # by numbers, as a frame may have a hundred rows of each trial: a group's is that of its place in the order of texts
    keys = list(zip(*(value_texts(values[name]) for name in by), strict=True))
    place = {key: number for number, key in enumerate(sorted(set(keys)))}
    numbers = frame["trial_id"].map(pd.Series([place[key] for key in keys], index=values.index)).astype("float64")
    ordered = list(place)
    groups = [(ordered[int(cast(float, number))], part) for number, part in frame.groupby(numbers.to_numpy())]
    if SWEEP_COLUMN in by:
        values = values.assign(**{SWEEP_COLUMN: pd.factorize(values[SWEEP_COLUMN])[0]})
    return sorted(groups, key=lambda group: sort_key(tuple(values.loc[group[1]["trial_id"].iloc[0]])))


def value_texts(values: pd.Series[Any]) -> list[str]:
    """Return parameter's values as text; each that the column holds is put into words once."""
    if values.dtype == object:  # it may hold lists, or 1 and True, which are one key of a dict: told apart as objects
        objects = list(values)  # holds them, so that no two have one id
        worded = {key: value_text(value) for key, value in {id(value): value for value in objects}.items()}
        return [worded[id(value)] for value in objects]
    codes, known = pd.factorize(values, use_na_sentinel=False)
    in_words = [value_text(value) for value in known.astype(object)]
    return [in_words[code] for code in codes]


def sort_key(values: tuple[Any, ...]) -> list[tuple[bool, float, str]]:
    """Order numbers by size, then everything else by its text."""
    numeric = [isinstance(value, int | float | np.number) and math.isfinite(value) for value in values]
    return [(not n, float(v) if n else 0.0, "" if n else str(v)) for n, v in zip(numeric, values, strict=True)]


def varying_names(trials: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return the parameters of these names that take several values."""
    return [name for name in names if len(set(value_texts(trials[name]))) > 1]


def unique(values: Iterable[T]) -> list[T]:
    """Return the values without repeats, in their order."""
    return list(dict.fromkeys(values))


def spread(values: list[T], limit: int) -> list[T]:
    """Return at most `limit` of the values, first and last among them."""
    return [values[index] for index in thin_indices(len(values), limit)]


def spread_alike(groups: list[T], limit: int, parts: Callable[[T], tuple[Hashable, Hashable]]) -> list[T]:
    """Return at most `limit` of the groups, of each overlaid sweep the same: `parts` are a group's sweep and the rest of it."""
    sweeps, rests = (unique(part) for part in zip(*map(parts, groups), strict=True)) if groups else ([], [])
    kept = spread(rests, max(limit // max(len(sweeps), 1), 1))
    return [group for group in groups if parts(group)[1] in kept]


def key_parts(by: list[str], key: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return of a group's key the sweep, empty where nothing is overlaid, and the rest."""
    sweep = key[by.index(SWEEP_COLUMN)] if SWEEP_COLUMN in by else ""
    return sweep, tuple(value for name, value in zip(by, key, strict=True) if name != SWEEP_COLUMN)


def thin_indices(length: int, limit: int) -> list[int]:
    """Return at most `limit` indices, evenly spread, first and last among them."""
    if length <= limit:
        return list(range(length))
    return sorted(set(np.linspace(0, length - 1, max(limit, 2)).round().astype(int).tolist()))


def finite_arrays(trials: pd.DataFrame, lists: pd.DataFrame, column: str) -> list[tuple[str, np.ndarray]]:
    """Return (trial_id, values) of the trials whose lists are there and finite."""
    if column not in lists:
        return []
    pairs = [
        (str(trial_id), np.asarray(values, dtype=np.float64))
        for trial_id, values in zip(lists["trial_id"], lists[column], strict=True)
        if isinstance(values, list | np.ndarray)  # missing ones are null of whatever kind pandas chose
    ]
    known = set(trials["trial_id"])
    return [(trial_id, values) for trial_id, values in pairs if np.isfinite(values).all() and trial_id in known]
