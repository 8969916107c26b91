"""One curve of a metric over x with all that was fitted to it: what the fits table, the terminal and the report show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.analysis.convergence import Drift
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.fits.bounds import BoundCheck
from depthrate.tasks.fits.common_exponent import CommonFit
from depthrate.tasks.fits.cutoffs import Cutoff
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.rate_fit import RateFit

if TYPE_CHECKING:
    import pandas as pd

    from depthrate.tasks.metric import Metric


@dataclass(frozen=True)
class FittedCurve:
    """One curve of a metric over x, with every model fitted to it; no fits where it cannot have one."""

    metric: str
    x: str
    by: dict[str, Any]
    rows: list[dict[str, Any]]
    """The values used: trial_id, seed, x, y."""
    fits: list[RateFit]
    excluded: dict[str, int]
    """Why trials of this curve were left out -> how many."""
    note: str | None = None
    """Why there is no fit."""
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """The trials left out: trial_id, seed, x, y (null where there is none), reason."""
    unconverged: frozenset[str] = frozenset()
    """Those of the trials used that break UNCONVERGED_RULE."""
    request: FitRequest | None = None
    cutoff: Cutoff | None = None
    """The lower cut-off chosen, where the request asked for one."""
    sensitivity: list[dict[str, Any]] = field(default_factory=list)
    """The power law without the smallest x, the two smallest, ...: x_min, exponent, ci_low, ci_high, n_points."""
    common: CommonFit | None = None
    """The exponent that all groups of the request share, and the test that they do."""
    measurement: Metric | None = None
    """How the report shows the metric; null: by its name."""
    above: Mapping[str, float] = field(default_factory=dict)
    """Those of the trials used whose objective lies above a shallower network's, and by which share of its gap."""
    judged: int = 0
    """How many of the trials used have a curve that says how their training ended."""
    drift: Drift | None = None
    """Null where the metric was measured at the end alone."""
    draws: str = ""
    """What the interval is over, in words: `5 seeds`; empty where every value is a draw of its own."""
    stationary: frozenset[str] = frozenset()
    """Those of the trials used of which a solver says that they are stationary."""
    bound: BoundCheck | None = None
    """Whether the data fall as fast as a theorem's upper bound; null where there is none."""
    p_lack_of_fit: float | None = None
    """p-value of the test that the means lie on a power law, over whole seeds where they are known."""

    @property
    def is_stationary(self) -> bool:
        """Whether all the trials used are stationary: only then is what a theorem says of optima said of them."""
        return bool(self.rows) and {row["trial_id"] for row in self.rows} <= self.stationary

    @property
    def metric_label(self) -> str:
        """The metric for readers."""
        return self.metric if self.measurement is None else self.measurement.label

    @property
    def points(self) -> pd.DataFrame:
        """The values used, as a frame with the columns x, y, seed, trial_id."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=["x", "y", "seed", "trial_id"])

    @property
    def power(self) -> RateFit | None:
        """The power law c x^-a, if its exponent is finite."""
        return next((fit for fit in self.fits if fit.model == POWER.name and math.isfinite(fit.exponent)), None)

    @property
    def asked(self) -> FitRequest:
        """What was asked for."""
        return self.request or FitRequest(self.metric, self.x, tuple(self.by))

    @property
    def excluded_text(self) -> str:
        """How many trials were left out and why, as in `2 diverged, 1 not positive`."""
        return ", ".join(f"{count} {reason}" for reason, count in self.excluded.items() if count)

    def label(self) -> str:
        """Name the curve's group, as in `weight_decay = 0.005`, the layer where it is not the last, and options of the fit."""
        names = [f"{name} = {value}" for name, value in self.by.items()]
        names += [] if self.asked.layer is None else [f"layer {self.asked.layer}"]
        return ", ".join([*names, *self.asked.options])

    def table_rows(self, sweep: str) -> list[dict[str, Any]]:
        """Return the curve's rows of the fits table."""
        asked, common = self.asked, self.common
        shared = {
            "sweep": sweep,
            "metric": self.metric,
            "x": self.x,
            "by": json.dumps(self.by, sort_keys=True),
            "n_trials": len(self.rows) + sum(self.excluded.values()),
            "excluded": json.dumps(self.excluded, sort_keys=True),
            "n_unconverged": len(self.unconverged),
            "layer": asked.layer,
            "filter": asked.where,
            "weights": asked.weights,
            "target": asked.target,
            "x_min": self.cutoff.x_min if self.cutoff else None,
            "p_lack_of_fit": self.p_lack_of_fit,
            "over": self.draws or None,
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
        nothing = dict.fromkeys(power)
        return [{**fit.row(), **shared, **(power if fit.model == POWER.name else nothing)} for fit in self.fits]
