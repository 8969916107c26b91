"""Group the report's trials, and thin groups and points for drawing."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pandas as pd

from depthrate.grouping import grouped
from depthrate.orchestrator.report.figure import MAX_FACETS, MAX_LINES, Axis, Facet, Mark, colours_of, omission_notes
from depthrate.orchestrator.sheet.names import shorten, value_text

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


@dataclass(frozen=True)
class Group(Generic[T]):
    """One group of a figure."""

    key: tuple[str, ...]
    """Values of all parameters that group the trials."""
    name: str
    """Values of the parameters that differ within a facet, as in `width 64`."""
    colour: str
    content: T


def split_facets(
    names: Sequence[str], groups: Sequence[tuple[tuple[str, ...], T]], noun: str = "settings"
) -> tuple[list[tuple[str, list[Group[T]]]], list[str]]:
    """Distribute groups over facets with at most MAX_LINES groups, and give them colours.

    The facets separate the parameters that give the fewest facets. If more than MAX_FACETS are needed, a selection is shown.

    Returns:
        (title, groups) of each facet, and a note on omitted groups.
    """
    groups = [(tuple(map(shorten, key)), content) for key, content in groups]
    by = _facet_parameters([key for key, _ in groups])
    facets = grouped(groups, lambda group: tuple(group[0][place] for place in by))
    selected = {title: spread(facets[title], MAX_LINES) for title in spread(list(facets), MAX_FACETS)}
    keys = [key for part in selected.values() for key, _ in part]
    within = [place for place in varying_places(keys) if place not in by]

    def name_of(key: tuple[str, ...]) -> str:
        return setting_text([names[place] for place in within], [key[place] for place in within])

    common = unique(tuple(key[place] for place in within) for key in keys)
    result = []
    for title, part in selected.items():
        lines = common if len(common) <= MAX_LINES else [tuple(key[place] for place in within) for key, _ in part]
        colours = dict(zip(lines, colours_of([", ".join(line) for line in lines]), strict=True))
        shown = [
            Group(key, name_of(key), colours[tuple(key[place] for place in within)], content) for key, content in part
        ]
        result.append((setting_text([names[place] for place in by], title), shown))
    return result, omission_notes(len(keys), len(groups), noun=noun)


def _facet_parameters(keys: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    """Return the places of the parameters that separate the facets."""
    if len(keys) <= MAX_LINES:
        return ()
    places = varying_places(keys)
    choices = []
    for number in range(1, len(places)):
        for choice in itertools.combinations(places, number):
            sizes = collections.Counter(tuple(key[place] for place in choice) for key in keys)
            if max(sizes.values()) <= MAX_LINES:
                choices.append((len(sizes), choice))
    return min(choices)[1] if choices else ()


def varying_places(keys: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the places of tuples that hold several values."""
    return [place for place, values in enumerate(zip(*keys, strict=True)) if len(set(values)) > 1]


def facet_groups(
    trials: pd.DataFrame, rows: pd.DataFrame, by: Sequence[str], noun: str = "settings"
) -> tuple[list[tuple[str, list[Group[pd.DataFrame]]]], list[str]]:
    """Return the rows of each group, distributed over facets as by `split_facets`."""
    return split_facets(by, group_trials(trials, rows, list(by)), noun)


def facets_of(
    groups: Sequence[tuple[str, Sequence[Group[T]]]], x: Axis, y: Axis, marks_of: Callable[[Group[T]], Iterable[Mark]]
) -> list[Facet]:
    """Return a facet per (title, groups), with each group's marks."""
    return [Facet(title=title, x=x, y=y, marks=[m for g in part for m in marks_of(g)]) for title, part in groups]


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
    """Format a group's parameters, as in `depth 2, width 64`."""
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def thin_indices(length: int, limit: int) -> list[int]:
    """Return at most `limit` indices, evenly spread, with the first and the last."""
    if length <= limit:
        return list(range(length))
    return sorted(set(np.linspace(0, length - 1, max(limit, 2)).round().astype(int).tolist()))


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
