"""What the report shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from depthrate.orchestrator.analysis.compare import FitPair
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.monitor.cost import SweepCost
from depthrate.orchestrator.report.curve_groups import unique, varying
from depthrate.orchestrator.report.figure_data import FigureContent
from depthrate.orchestrator.report.plot import Plot
from depthrate.storage.attempts.records import Record
from depthrate.tasks.metric import Metric, Per
from depthrate.tasks.panel import Panel

STATE_COLUMNS = ("trial_id", "state", "wall_s", "steps_done", "device", "host", "committed_at", "error")
"""The columns of `ReportData.trials` that are not parameters (`steps` is one of the task collapse)."""
TRIAL_STATE_ORDER = ("failed", "diverged", "running", "pending", "ok")
"""In the order of the table of trials: what needs a look comes first."""


@dataclass(frozen=True)
class SearchContent:
    """What the report shows of a search."""

    sentence: str
    columns: list[str]
    rows: list[list[Any]]
    """The best proposals, as `SearchView.table` gives them."""
    plots: list[Plot]
    """The objective against each searched number."""


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
    """trial_id, step, split, measurements."""
    fits: list[FittedCurve]
    store: str
    commands: list[str]
    """Shell commands that make this report again."""
    versions: dict[str, str]
    git: str | None
    created_at: str
    problems: list[str]
    """Damaged files and the like, shown as a warning."""
    measurements: dict[str, Metric] = field(default_factory=dict)
    """Name -> how it is shown, in the order of the figures; a column that none declares is shown by its name."""
    lists: pd.DataFrame = field(default_factory=pd.DataFrame)
    """trial_id and the vectors and matrices measured: of the last layer at the last step."""
    panels: tuple[Panel, ...] = ()
    """What the task wants drawn besides."""
    points: pd.DataFrame = field(default_factory=pd.DataFrame)
    """trial_id, step, kind, label, x, y: the features that these panels draw, of one trial of each of some settings."""
    layered: pd.DataFrame = field(default_factory=pd.DataFrame)
    """trial_id, step, layer and the measurements that these panels map over both: of finished trials, training split."""
    cost: SweepCost = field(default_factory=SweepCost)
    """What its attempts have cost, failed ones included."""
    attempts: Sequence[Record] = ()
    """The records of its attempts."""
    search: SearchContent | None = None
    figures: list[FigureContent] = field(default_factory=list)
    """What the sweep asks for under `figures:`."""
    parts: tuple[ReportData, ...] = ()
    """The sweeps that are overlaid in this report; empty for the report of one."""
    pairs: tuple[FitPair, ...] = ()
    """The curves that both of them have."""
    drawn_by: dict[Callable[..., list[Plot]], list[Plot]] = field(init=False, default_factory=dict, compare=False)
    """The figures that themes have made of this."""

    @property
    def is_underway(self) -> bool:
        """Whether trials are still to come, so that what is missing may come with them."""
        return self.trials.empty or bool(self.trials["state"].isin(["running", "pending", "failed"]).any())

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters."""
        return [str(column) for column in self.trials.columns if column not in STATE_COLUMNS]

    @cached_property
    def settings(self) -> list[str]:
        """Names of the parameters that take several values, but the seed: what tells one setting from another."""
        return [name for name in varying(self.trials, self.parameters) if name != "seed"]

    @property
    def x_name(self) -> str:
        """The parameter that the rates are over, by itself or in arithmetic."""
        return self.fits[0].asked.x_names[0] if self.fits else "depth"

    @property
    def group_names(self) -> list[str]:
        """The parameters that part the trials into one fit each."""
        return unique(name for curve in self.fits for name in curve.by)

    @property
    def layer_metrics(self) -> list[str]:
        """The measurements that are drawn by layer: those that always are, then the fitted ones."""
        names = unique([*(each.name for each in self.drawn("layer")), *(curve.metric for curve in self.fits)])
        return [name for name in names if name in self.metrics]

    def drawn(self, per: Per, panels: tuple[str, ...] = ("always",), kind: str = "scalar") -> list[Metric]:
        """Return the measurements that have such a panel, those with a known limit first."""
        chosen = [m for m in self.measurements.values() if m.per == per and m.kind == kind and m.panel in panels]
        return sorted(chosen, key=lambda each: each.gap == "")

    def measurement(self, name: str) -> Metric:
        """Return how a column is shown; one that none declares has its name, and a log axis where all of it is positive."""
        if name in self.measurements:
            return self.measurements[name]
        values = self.metrics[name] if name in self.metrics else pd.Series(dtype=float)
        positive = bool((pd.to_numeric(values, errors="coerce").dropna() > 0).all())
        return Metric(name, axis="log" if positive else "linear")
