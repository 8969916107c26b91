"""What the report shows, and how its trials part into groups."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from depthrate.orchestrator.aggregate import FittedCurve
from depthrate.orchestrator.report.figures.search import SearchContent
from depthrate.orchestrator.report.words import value_text

T = TypeVar("T")

STATE_COLUMNS = ("trial_id", "state", "wall_s", "steps_done", "device", "host", "committed_at", "error")
"""The columns of `ReportData.trials` that are not parameters (`steps` is one of the task collapse)."""
STATES = ("failed", "diverged", "running", "pending", "ok")
"""In the order of the table of trials: what needs a look comes first."""


@dataclass(frozen=True)
class ReportData:
    """All that the report shows; parameters are the columns beside those named."""

    name: str
    """Name of the sweep."""
    spec: dict[str, Any]
    """The sweep as in its file."""
    trials: pd.DataFrame
    """A row per planned trial: STATE_COLUMNS, then the parameters; state is one of STATES."""
    results: pd.DataFrame
    """A row per committed trial that the fits are about (of a search, the chosen ones): the last step and layer."""
    metrics: pd.DataFrame
    """trial_id, step, split, layer, is_last, measurements: all layers at the last step, the last layer at all steps."""
    curves: pd.DataFrame
    """trial_id, step, split, loss, objective, objective_gap, accuracy, grad_norm, lr."""
    fits: list[FittedCurve]
    store: str
    commands: list[str]
    """Shell commands that make this report again."""
    versions: dict[str, str]
    git: str | None
    created_at: str
    problems: list[str]
    """Damaged files and the like, shown as a warning."""
    geometry: pd.DataFrame = field(default_factory=pd.DataFrame)
    """trial_id, singular_values, class_gram: of the last layer at the last step."""
    device_hours: dict[str, float] = field(default_factory=dict)
    """Kind of device (cpu, cuda) -> hours that attempts held one, failed ones included."""
    search: SearchContent | None = None

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters."""
        return [str(column) for column in self.trials.columns if column not in STATE_COLUMNS]

    @property
    def x_name(self) -> str:
        """The parameter that the rates are over."""
        return self.fits[0].x if self.fits else "depth"

    @property
    def group_names(self) -> list[str]:
        """The parameters that part the trials into one fit each."""
        return unique(name for curve in self.fits for name in curve.by)

    @property
    def layer_metrics(self) -> list[str]:
        """The fitted metrics that are measured at layers, NC1 first."""
        names = unique(["nc1", *(curve.metric for curve in self.fits)])
        return [name for name in names if name in self.metrics]


def splits(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return (suffix, part) for each split; the suffix names it where there are several."""
    if frame.empty or "split" not in frame:
        return []
    parts = list(frame.groupby("split", sort=False))
    return [(f" ({split})" if len(parts) > 1 else "", part) for split, part in parts]


def grouped(trials: pd.DataFrame, frame: pd.DataFrame, by: list[str]) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """Return groups in the order of their parameters' values, keyed by these as text: some are lists or null."""
    if not by:
        return [((), frame)]
    # from the table of trials, as a parameter may have the name of a measurement (loss: ce)
    values = trials.drop_duplicates("trial_id").set_index("trial_id")[by]
    texts = [frame["trial_id"].map(values[name].map(value_text)) for name in by]
    groups = [(tuple(map(str, key)), part) for key, part in frame.groupby(texts)]
    return sorted(groups, key=lambda group: sort_key(tuple(values.loc[group[1]["trial_id"].iloc[0]])))


def sort_key(values: tuple[Any, ...]) -> list[tuple[bool, float, str]]:
    """Order numbers by size, then everything else by its text."""
    numeric = [isinstance(value, int | float | np.number) and math.isfinite(value) for value in values]
    return [(not n, float(v) if n else 0.0, "" if n else str(v)) for n, v in zip(numeric, values, strict=True)]


def unique(values: Iterable[T]) -> list[T]:
    """Return the values without repeats, in their order."""
    return list(dict.fromkeys(values))


def spread(values: list[T], limit: int) -> list[T]:
    """Return at most `limit` of the values, first and last among them."""
    return [values[index] for index in thin_indices(len(values), limit)]


def thin_indices(length: int, limit: int) -> list[int]:
    """Return at most `limit` indices, evenly spread, first and last among them."""
    if length <= limit:
        return list(range(length))
    return sorted(set(np.linspace(0, length - 1, max(limit, 2)).round().astype(int).tolist()))
