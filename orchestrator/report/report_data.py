"""Content of the report, and its sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.monitor.cost import SweepCost
from depthrate.orchestrator.report.curve_groups import unique, varying_names
from depthrate.orchestrator.report.figure import Figure
from depthrate.orchestrator.search.search_view import SearchView
from depthrate.tasks.figure_request import FigureRequest
from depthrate.tasks.metric import Metric, Per

STATE_COLUMNS = ("trial_id", "state", "wall_s", "steps_done", "device", "host", "committed_at", "error")
"""Columns of `ReportData.trials` that are not parameters (`steps` is a parameter of the task collapse)."""
TRIAL_STATE_ORDER = ("failed", "diverged", "running", "pending", "ok")
"""Order in the table of trials, with problems first."""


@dataclass(frozen=True)
class FigureContent:
    """One requested figure with its values."""

    request: FigureRequest
    rows: pd.DataFrame
    """trial_id, step, layer, value, the positions x, y and along, a column `line_<number>` per reference line and
    `column_<number>` per column of a verdict, and height, weight (observations) and places (the order of rows and columns of a
    matrix). Of a scatter: trial_id, step, label, x, y."""
    problem: str = ""
    """Error in the figure's SQL."""
    of_task: bool = False
    """Whether the task requests it, not the sweep."""

    @property
    def message(self) -> str:
        """Problem, with the name of the figure."""
        request = self.request
        name = request.title or request.metric or request.condition or request.features
        return f"cannot draw the figure {name!r} ({request.kind}): {self.problem}"


@dataclass(frozen=True)
class ReportData:
    """Content of the report. Columns that are not listed are parameters."""

    name: str
    """Name of the sweep."""
    spec: dict[str, Any]
    """Sweep file."""
    trials: pd.DataFrame
    """One row per planned trial: STATE_COLUMNS, then the parameters. state is one of STATES."""
    results: pd.DataFrame
    """One row per committed trial used in the fits (for a search, the chosen trials), at the last step and layer."""
    metrics: pd.DataFrame
    """Columns trial_id, step, split, layer, is_last, measurements: all layers at the last step, the last layer at all steps."""
    curves: pd.DataFrame
    """Columns trial_id, step, split, measurements."""
    fits: list[FittedGroup]
    store: str
    commands: list[str]
    """Shell commands that reproduce this report."""
    versions: dict[str, str]
    git: str | None
    created_at: str
    problems: list[str]
    """Corrupt files and other problems, shown as a warning."""
    measurements: dict[str, Metric] = field(default_factory=dict)
    """Metrics by name, in the order of the figures. An undeclared column is shown by its name."""
    lists: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Columns trial_id, vectors and matrices of the last layer at the last step."""
    surfaces: Sequence[FittedGroup] = ()
    """Fits in several variables."""
    layer_laws: Sequence[FittedGroup] = ()
    """Fits over layers."""
    cost: SweepCost = field(default_factory=SweepCost)
    """Cost of the sweep's attempts, including failed attempts."""
    search: SearchView | None = None
    figures: list[FigureContent] = field(default_factory=list)
    """Figures that the task and the sweep request."""
    plot_cache: dict[Callable[..., list[Figure]], list[Figure]] = field(init=False, default_factory=dict, compare=False)
    """Figures by section function. They are made only once."""

    @property
    def is_underway(self) -> bool:
        """Whether trials are unfinished, so that missing content may still appear."""
        return self.trials.empty or bool(self.trials["state"].isin(["running", "pending", "failed"]).any())

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters."""
        return [str(column) for column in self.trials.columns if column not in STATE_COLUMNS]

    @cached_property
    def settings(self) -> list[str]:
        """Names of the parameters that take several values, excluding the seed."""
        return [name for name in varying_names(self.trials, self.parameters) if name != "seed"]

    def params_of(self, trial_ids: Iterable[Any]) -> list[dict[str, Any]]:
        """Return the parameters of trials, in the same order. Trials may occur several times."""
        trials = self.trials.drop_duplicates("trial_id").set_index("trial_id")
        rows = trials.loc[list(trial_ids), self.parameters].to_dict("records")
        return [{str(name): value for name, value in row.items()} for row in rows]

    @property
    def x_name(self) -> str:
        """Parameters that occur in the x of the fits."""
        return self.fits[0].asked.x_names[0] if self.fits else "depth"

    @property
    def group_names(self) -> list[str]:
        """Parameters that group the trials into fits."""
        return unique(name for curve in self.fits for name in curve.by)

    @property
    def layer_metrics(self) -> list[str]:
        """Metrics shown by layer: declared metrics first, then fitted metrics."""
        names = unique(
            [*(metric.name for metric in self.panel_metrics("layer")), *(curve.metric for curve in self.fits)]
        )
        return [name for name in names if name in self.metrics]

    def panel_metrics(self, per: Per, panels: tuple[str, ...] = ("always",), kind: str = "scalar") -> list[Metric]:
        """Return the metrics with one of these panels. Metrics with a known limit come first."""
        metrics = [m for m in self.measurements.values() if m.per == per and m.kind == kind and m.panel in panels]
        return sorted(metrics, key=lambda metric: metric.gap == "")

    def measurement(self, name: str) -> Metric:
        """Return a column's metric. An undeclared column has its name as label, and a log axis if all values are positive."""
        if name in self.measurements:
            return self.measurements[name]
        values = self.metrics[name] if name in self.metrics else pd.Series(dtype=float)
        positive = bool((pd.to_numeric(values, errors="coerce").dropna() > 0).all())
        return Metric(name, axis="log" if positive else "linear")


@dataclass(frozen=True)
class ReportSection:
    """Figures of one module, which calls it SECTION."""

    place: int
    """Position on the page. Sections are sorted by it."""
    section: str
    """Heading on the page. Consecutive sections with the same heading share it."""
    draw: Callable[[ReportData], list[Figure]]
    """Function that makes the figures, if any. `plots` caches them."""
    lead: Callable[[ReportData], str] = lambda data: ""
    """Explanation of the figures, as HTML."""
    empty: str = ""
    """Text shown if there are no figures. A section without content is omitted."""
    tables: Callable[[ReportData], str] = lambda data: ""
    """Tables above the figures, as HTML."""

    def plots(self, data: ReportData) -> list[Figure]:
        """Return the figures, shared by the page and the figure files."""
        if self.draw not in data.plot_cache:
            data.plot_cache[self.draw] = self.draw(data)
        return data.plot_cache[self.draw]
