"""One group of trials of a fit request with its fits: over one variable, over several, or over layers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.convergence import Drift
from depthrate.orchestrator.analysis.preference import GroupState, LogMeans, Preference, judge, places_of, power_of
from depthrate.orchestrator.analysis.table_fit import TableFit
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.fits.common_exponent import CommonFit
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.layer_law import LayerFit
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.rates import BoundCheck
from depthrate.tasks.metric import Metric

if TYPE_CHECKING:
    import pandas as pd

EQUI_SEPARATION = "equi_separation"
"""Model of a law's row in the fits table."""


@dataclass(frozen=True)
class FittedGroup:
    """A metric's values in one group of trials, with every form fitted to them if a fit is possible."""

    metric: str
    x: str
    by: dict[str, Any]
    rows: list[dict[str, Any]]
    """Values used: trial_id, seed, x, y. In several variables also `variables`, their values, and over layers `layers`, the
    value of each layer."""
    fits: list[Fit]
    excluded: dict[str, int]
    """Number of excluded trials per reason."""
    note: str | None = None
    """Reason for the missing fit."""
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """Excluded trials: trial_id, seed, x, y (None if missing), reason."""
    unconverged: frozenset[str] = frozenset()
    """Unconverged trials (see UNCONVERGED_RULE) among the used trials."""
    request: FitRequest | None = None
    sensitivity: list[dict[str, Any]] = field(default_factory=list)
    """Power law without the smallest x, the two smallest, ...: x_min, exponent, ci_low, ci_high, n_points."""
    common: CommonFit | None = None
    """Common exponent of the request's groups, with the test for it."""
    measurement: Metric | None = None
    """Declaration of the metric for the report. If None, the report shows the metric's name."""
    above: Mapping[str, float] = field(default_factory=dict)
    """Used trials with an objective above a shallower network's -> the excess, as a share of the gap."""
    judged: int = 0
    """Number of used trials whose convergence is known."""
    drift: Drift | None = None
    """Change of the exponent late in training. None if the metric was measured only at the end."""
    draws: str = ""
    """Replicates of the interval, such as `5 seeds`. Empty if every value is its own replicate."""
    stationary: frozenset[str] = frozenset()
    """Used trials that a solver reports as stationary."""
    bound: BoundCheck | None = None
    """Comparison of the data with a theorem's upper bound, if one exists."""
    num_waiting: int = 0
    """Number of x at which no trial has run yet, and some are running or pending."""
    table: TableFit | None = None
    """Fit in several variables."""
    last_layer: int | None = None
    """Depth L of the trials of a law over layers. None for trials that measured the metric at no layer."""
    law: LayerFit | None = None
    """Law over layers."""

    @property
    def is_stationary(self) -> bool:
        """Whether all used trials are stationary. Theorems on optima apply only then."""
        return bool(self.rows) and {row["trial_id"] for row in self.rows} <= self.stationary

    @property
    def metric_label(self) -> str:
        """Label of the metric."""
        return self.metric if self.measurement is None else self.measurement.label

    @property
    def points(self) -> pd.DataFrame:
        """Values used, as a frame with the columns x, y, seed, trial_id."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=["x", "y", "seed", "trial_id"])

    @property
    def power(self) -> Fit | None:
        """Power law c x^-a, if its exponent is finite."""
        return power_of(self.fits)

    @cached_property
    def log_means(self) -> LogMeans:
        """Mean of log y at each x, over the positive values."""
        rows = grouped((row for row in self.rows if row["y"] > 0), lambda row: float(row["x"]))
        return {(x,): math.fsum(math.log(row["y"]) for row in at_x) / len(at_x) for x, at_x in rows.items()}

    @cached_property
    def preference(self) -> Preference:
        """The models that describe a curve, by the rule for all fits."""
        if self.num_waiting:
            num_run = len(self.run_x - {None})
            reason = f"{num_run} of {num_run + self.num_waiting} {places_of([self.x])}"
            return Preference(GroupState.NOT_YET, (), "", reason)
        if self.power is None:
            return Preference(GroupState.TOO_FEW, (), "", self.note or "no fit")
        return judge(self.fits, self.log_means, [self.x])

    @property
    def asked(self) -> FitRequest:
        """Fit request, or the default request of this metric and x."""
        return self.request or FitRequest(self.metric, self.x, tuple(self.by))

    @property
    def run_x(self) -> set[Any]:
        """Values of x at which a trial has run, excluded trials included."""
        return {row["x"] for row in [*self.rows, *self.left_out]}

    @property
    def untrained(self) -> frozenset[str]:
        """Excluded trials that did not train."""
        return frozenset(row["trial_id"] for row in self.left_out if row["reason"] == "untrained")

    @property
    def excluded_text(self) -> str:
        """Number of excluded trials per reason, as in `2 diverged, 1 not positive`."""
        return ", ".join(f"{count} {reason}" for reason, count in self.excluded.items() if count)

    def label(self) -> str:
        """Name the group, as in `weight_decay = 0.005`, the layer unless it is the last layer, and the options of the fit."""
        names = [f"{name} = {value}" for name, value in self.by.items()]
        names += [f"layer {layer}"] if (layer := self.asked.layer_text) else []
        return ", ".join([*names, *self.asked.options])

    def table_rows(self, sweep: str, preferred: str = "") -> list[dict[str, Any]]:
        """Return the group's rows of the fits table. `preferred`: the forms that describe a curve, in words."""
        if self.table is not None:
            return self._rows_of_variables(self.table, sweep)
        if self.law is not None:
            return self._rows_of_law(self.law, sweep)
        return self._rows_of_curve(sweep, preferred)

    def _columns_of_values(self, sweep: str, by: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns on the values used, whatever is fitted to them."""
        is_fraction = isinstance(self.asked.layer, float)
        return {
            "sweep": sweep,
            "metric": self.metric,
            "by": json.dumps(by, sort_keys=True),
            "n_trials": len(self.rows) + sum(self.excluded.values()),
            "excluded": json.dumps(self.excluded, sort_keys=True),
            "n_unconverged": len(self.unconverged),
            "layer": None if is_fraction else self.asked.layer,
            "layer_fraction": self.asked.layer if is_fraction else None,
            "filter": self.asked.where,
            "over": self.draws or None,
        }

    def _rows_of_variables(self, table: TableFit, sweep: str) -> list[dict[str, Any]]:
        """Return one row per form and variable."""
        preferred = " or ".join(fit.form for fit in table.preferred) or "none"
        shared = self._columns_of_values(sweep, self.by) | {"variables": self.x, "preferred": preferred}
        copied = ["x", "exponent", "ci_low", "ci_high", "floor", "r2", "aicc"]
        copied += ["p_half", "p_one", "p_lack_of_fit", "n_points", "huber"]
        return [
            {name: row[name] for name in copied}
            | {"model": row["form"], "prefactor": row["coefficient"], "ci_method": row["method"] or None}
            | {"n_seeds": row["n_units"] if self.draws else None, "is_adequate": row["adequate"]}
            | {"loss_function": row["loss"]}
            | shared
            for row in table.rows()
        ]

    def _rows_of_law(self, law: LayerFit, sweep: str) -> list[dict[str, Any]]:
        """Return the law's row. Its `by` has the depth as `last_layer`."""
        shared = self._columns_of_values(sweep, {**self.by, "last_layer": self.last_layer})
        row = law.fit.row() | {"model": EQUI_SEPARATION, "aicc": None, "weight": None}
        return [row | shared | {"x": self.x, "x_min": self.asked.x_min}]

    def _rows_of_curve(self, sweep: str, preferred: str) -> list[dict[str, Any]]:
        """Return one row per model."""
        request, common = self.asked, self.common
        shared = self._columns_of_values(sweep, self.by) | {
            "x": self.x,
            "target": request.target,
            "x_min": request.x_min,
            "preferred": preferred or None,
            "n_above_shallower": len(self.above),
        }
        power = {
            "common_exponent": common.exponent if common else None,
            "common_low": common.ci_low if common else None,
            "common_high": common.ci_high if common else None,
            "p_common": common.p_common if common else None,
            "sensitivity": json.dumps(self.sensitivity) if self.sensitivity else None,
            "bound_exponent": self.bound.exponent if self.bound else None,
            "bound_ratio": self.bound.ratio if self.bound else None,
            "bound_ratio_low": self.bound.ci_low if self.bound else None,
            "bound_ratio_high": self.bound.ci_high if self.bound else None,
            "exponent_moved": self.drift.moved if self.drift else None,
            "exponent_could_move": self.drift.could_move if self.drift else None,
        }
        if self.sensitivity:  # its last row is the power law over the three largest x
            names = {"exponent": "local_exponent", "ci_low": "local_low", "ci_high": "local_high"}
            power |= {column: self.sensitivity[-1][name] for name, column in names.items()}
        empty = dict.fromkeys(power)
        return [{**fit.row(), **shared, **(power if fit.form == POWER.name else empty)} for fit in self.fits]
