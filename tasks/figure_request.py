"""The figures of a report, as a task or a sweep file requests them. Importable without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

SEED = "seed"
"""Parameter whose values are the replicates, unless another one is named."""
VARYING = "*"
"""Entry of `by` for every parameter that takes several values, except those on the axes and the replicates."""
STEP, LAYER = "step", "layer"
"""Axes of a map that vary within a trial."""
Scale = Literal["log", "linear", ""]


@dataclass(frozen=True, kw_only=True)
class FigureRequest:
    """A figure or table that a task or a sweep adds to the report."""

    ALLOWED: ClassVar[Mapping[str, str]] = {
        "by": "expected a list of parameter names",
        "layer": "expected an int (negative values count from the last layer)",
        "lines": "expected a mapping from name to SQL expression",
        "columns": "expected a list of metrics",
        "words": "expected a list of strings",
        **dict.fromkeys(("x_axis", "y_axis", "colours"), "expected log or linear"),
    }
    """Descriptions of the allowed values of keys whose types do not describe them well."""
    kind: Literal[
        "curve", "share", "map", "distribution", "spectrum", "matrix", "collapse", "path", "scatter", "verdict"
    ]
    """curve: metric over an axis. share: share of trials with a condition over an axis. map: metric over two axes.
    distribution: values of a metric. spectrum: vector by entry. matrix: matrix of one trial. collapse: L^a metric
    over (L - layer) / L^b, with the exponents for which the depths L coincide. path: metric of each layer over another
    one. scatter: vectors of the table `features` as points. verdict: table of a metric that is a code, in words."""
    metric: str = ""
    """Metric, or SQL expression over a trial's row in `results` (by layer: in `metrics`)."""
    condition: str = ""
    """SQL condition over a trial's row in `results`, as in "solution = 'dnc'". With `observations`, a share from 0 to 1."""
    observations: str = ""
    """SQL expression: number of observations behind a trial's share. The intervals then are over observations."""
    features: str = ""
    """Kind of the rows of `features`."""
    label: str = "label"
    """Name of the labels that colour the points of a scatter."""
    x: str = ""
    """Parameter on the horizontal axis. A map also takes step and layer. A path, and a curve with `along`, take a metric. For
    a spectrum and a scatter, the name of the axis."""
    y: str = ""
    """The same for the vertical axis of a map or scatter."""
    along: str = ""
    """Parameter along which a curve joins the means of two metrics."""
    by: tuple[str, ...] = ()
    """Parameters that split the trials into curves, maps or rows. "*": all that vary, except those on the axes and `over`."""
    layer: int | None = None
    """Layer index. Default: the last, for a spectrum each. -2 is the one before the last."""
    where: str = ""
    """SQL condition over a trial's row in `results` that selects the trials."""
    lines: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Reference lines: name to SQL expression over `results` (of a path and a spectrum: over the row of the metric), averaged
    over the trials at each x. A verdict shows the one with a column's name after the column."""
    columns: tuple[str, ...] = ()
    """Metrics that a verdict shows as means over trials."""
    words: tuple[str, ...] = ()
    """Meanings of the codes 0, 1, 2, ... of a verdict."""
    order: str = ""
    """Vector metric that orders rows and columns of a matrix in a second map."""
    lowest: str = ""
    """SQL expression over `results`. A matrix shows the trial where it is lowest. Default: the first trial."""
    over: str = SEED
    """Parameter whose values are the replicates."""
    title: str = ""
    """Title above the figure."""
    note: str = ""
    """First sentence below the figure."""
    x_axis: Scale = ""
    """log or linear. Default: log if all values are positive and span a factor of 8 or more, for a spectrum linear."""
    y_axis: Scale = ""
    """log or linear, with the default of `x_axis`."""
    colours: Scale = ""
    """log or linear colours of a map. Default: linear."""

    @property
    def row_axes(self) -> dict[str, str]:
        """Axes of the row of a value: axis -> metric, SQL expression, step or layer."""
        if self.kind == "path" or self.along:
            return {"x": self.x}
        axes = {"x": self.x, "y": self.y} if self.kind == "map" else {}
        return {axis: name for axis, name in axes.items() if name in (STEP, LAYER)}

    @property
    def parameter_axes(self) -> dict[str, str]:
        """Axes of a trial: axis -> parameter."""
        if self.kind in ("spectrum", "scatter"):  # x and y are titles
            return {}
        axes = {"x": self.x, "y": self.y, "along": self.along}
        return {axis: name for axis, name in axes.items() if name and axis not in self.row_axes}

    @property
    def measured(self) -> set[str]:
        """The metrics that it shows, and SQL expressions."""
        shown = {self.metric, self.condition, *self.row_axes.values(), *self.columns, *self.lines.values()}
        return shown - {"", STEP, LAYER}


_COMMON_KEYS = ("where", "title", "note")
_KEYS_OF_KIND: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "curve": (("metric", "x"), ("by", "along", "over", "layer", "lines", "x_axis", "y_axis")),
    "share": (("condition", "x"), ("by", "observations", "x_axis")),
    "map": (("metric", "x", "y"), ("by", "layer", "colours", "x_axis", "y_axis")),
    "distribution": (("metric",), ("by", "layer", "lines", "y_axis")),
    "spectrum": (("metric",), ("by", "layer", "lines", "x", "x_axis", "y_axis")),
    "matrix": (("metric",), ("layer", "order", "lowest")),
    "collapse": (("metric",), ("by", "over")),
    "path": (("metric", "x"), ("by", "lines", "y_axis")),
    "scatter": (("features",), ("by", "layer", "label", "x", "y")),
    "verdict": (("metric", "words"), ("by", "columns", "lines")),
}
FIGURE_KEYS = {kind: (needed, (*more, *_COMMON_KEYS)) for kind, (needed, more) in _KEYS_OF_KIND.items()}
"""Required and optional keys per kind of figure."""
