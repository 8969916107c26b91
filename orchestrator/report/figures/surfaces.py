"""Plot fits in several variables: contours with the data, residuals, and exponents between neighbouring values.

Shapes: K variables, N values, C cells (distinct values of the variables), U units.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.table_fit import TableFit
from depthrate.orchestrator.report.figure import (
    MAX_LINES,
    MUTED,
    RAMP_STEPS,
    Axis,
    Facet,
    Figure,
    Key,
    Mark,
    Range,
    Series,
    colours_of,
    mean_line,
    trial_dots,
    value_axis,
)
from depthrate.orchestrator.sheet.markup import minus_signs, typeset
from depthrate.orchestrator.sheet.names import shorten
from depthrate.orchestrator.sheet.value_sheets import surface_title
from depthrate.tasks.fits.bootstrap_and_profile import t_quantile
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS

Line: TypeAlias = tuple[tuple[float, ...], np.ndarray]
"""Values of the variables that are the same along a line of cells, and the cells."""
MAX_LEVELS = 7
MAX_FORMS = 3
"""Maximum number of forms whose residuals are shown."""
FINE = 80
"""Number of points of a contour."""


def surface_plot(found: TableFit, title: str) -> Figure | None:
    """Return the figure of a fit. None if no value of a variable occurs twice, so that no line connects values."""
    cells = _Cells(found)
    names = [minus_signs(shorten(name)) for name in found.surfaces.fits[0].variables]
    lines = cells.lines(0)
    if not lines:
        return None
    best = (found.preferred or found.surfaces.fits)[0]
    facets = [_contours(found, cells, best, names)] if len(names) == 2 else []
    facets += [_residuals(cells, fit, names, lines) for fit in found.surfaces.fits[:MAX_FORMS]]
    notes = []
    if len(names) > 1:
        along = [(k, cells.lines(k)) for k in range(len(names))]
        facets += [_local_exponents(cells, best, names, k, lines_of_k) for k, lines_of_k in along if lines_of_k]
        notes.append(f"Contours and dashed lines: {best.form}. Dots: geometric means.")
        notes.append("Exponents between neighbouring values, with 95 % bands over whole units.")
    keys = [Key(_setting(names, 0, at), colour, "dot") for (at, _), colour in zip(lines, _colours(lines), strict=True)]
    return Figure(title, facets, notes, keys if len(keys) > 1 else [], has_common_axes=False)


def surface_figure(group: FittedGroup) -> Figure | None:
    """Return the figure of a sweep's fit. None without a fit, or if no line connects its values."""
    return None if group.table is None else surface_plot(group.table, typeset(surface_title(group)))


class _Cells:
    """Means of log y of the distinct values of the variables."""

    def __init__(self, found: TableFit):
        self.x_KC, self._cell_N, self.log_y_C = found.cells
        self._log_y_N, self._unit_N = np.log(found.y_N), found.unit_N

    def lines(self, k: int) -> list[Line]:
        """Return the cells along variable k, ascending, by the values of the other variables: at most MAX_LINES."""
        others = [other for other in range(len(self.x_KC)) if other != k]
        lines = grouped(np.argsort(self.x_KC[k]).tolist(), lambda cell: tuple(self.x_KC[others, cell].tolist()))
        long = sorted((at, np.array(cells)) for at, cells in lines.items() if len(cells) > 1)
        places = np.linspace(0, len(long) - 1, MAX_LINES).astype(int) if long else ()
        return [long[place] for place in np.unique(places).astype(int)]

    def local_exponents(self, k: int, line_C: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return -d log y / d log x_k between neighbouring cells, and its 95 % interval over units. NaN with too few."""
        step = np.diff(np.log(self.x_KC[k, line_C]))
        means = -np.diff(self.log_y_C[line_C]) / step
        num_units = int(self._unit_N.max()) + 1
        if num_units < MIN_SEEDS or num_units == len(self._unit_N):
            return means, np.full(len(means), np.nan), np.full(len(means), np.nan)
        reach = np.full(len(means), np.nan)
        unit_means = [self._unit_means(cell, num_units) for cell in line_C.tolist()]
        for place, slope_U in enumerate(-np.diff(unit_means, axis=0) / step[:, None]):
            own_U = slope_U[np.isfinite(slope_U)]
            if len(own_U) >= MIN_SEEDS:
                reach[place] = t_quantile(len(own_U) - 1) * own_U.std(ddof=1) / len(own_U) ** 0.5
        return means, means - reach, means + reach

    def _unit_means(self, cell: int, num_units: int) -> np.ndarray:
        """Return the mean of log y of each unit in a cell, NaN without one."""
        is_here = self._cell_N == cell
        counts = np.bincount(self._unit_N[is_here], minlength=num_units)
        sums = np.bincount(self._unit_N[is_here], self._log_y_N[is_here], minlength=num_units)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _contours(found: TableFit, cells: _Cells, fit: Fit, names: Sequence[str]) -> Facet:
    """Return the plane of both variables, with lines of equal prediction and a dot per cell, coloured by its mean."""
    low, high = float(cells.log_y_C.min()), float(cells.log_y_C.max())
    levels = sorted({float(f"{level:.2g}") for level in np.exp(np.linspace(low, high, MAX_LEVELS + 2)[1:-1])})
    colours = [f"ramp-{round(place)}" for place in np.linspace(0, RAMP_STEPS - 1, len(levels))]
    ends = [(float(x.min()), float(x.max())) for x in cells.x_KC]
    fine_x, fine_y = np.geomspace(*ends[0], FINE), np.geomspace(*ends[1], 4 * FINE)
    predicted_XY = fit.predict(np.meshgrid(fine_x, fine_y, indexing="ij"))
    marks: list[Mark] = []
    for level, colour in zip(levels, colours, strict=True):
        line = [_crossing(row, fine_y, level) for row in predicted_XY]
        if np.isfinite(line).sum() > 1:
            marks.append(Series(x=fine_x.tolist(), y=line, colour=colour, name=f"{level:g}", is_named=True, width=1.4))
    nearest = np.abs(np.log(levels)[:, None] - cells.log_y_C).argmin(0)
    for number, colour in enumerate(colours):
        is_near = nearest == number
        if is_near.any():
            x, y = cells.x_KC[:, is_near]
            marks.append(trial_dots(x, y, f"near {levels[number]:g}", colour, size=6, opacity=0.9))
    axes = [value_axis(name, x, is_log=True) for name, x in zip(names, cells.x_KC, strict=True)]
    return Facet(title=f"{shorten(found.y)}, {fit.form}", x=axes[0], y=axes[1], marks=marks)


def _crossing(values: np.ndarray, places: np.ndarray, level: float) -> float:
    """Return the first place where values cross a level. NaN if they do not."""
    above = values > level
    crossed = np.flatnonzero(above[1:] != above[:-1])
    if not len(crossed):
        return float("nan")
    at = int(crossed[0])
    share = np.log(level / values[at]) / np.log(values[at + 1] / values[at])
    return float(places[at] * (places[at + 1] / places[at]) ** share)


def _residuals(cells: _Cells, fit: Fit, names: Sequence[str], lines: Sequence[Line]) -> Facet:
    residual_C = cells.log_y_C - np.log(fit.predict(cells.x_KC))
    ends = [float(cells.x_KC[0].min()), float(cells.x_KC[0].max())]
    marks: list[Mark] = [Series(x=ends, y=[0.0, 0.0], colour=MUTED, width=1.0)]
    for (at, line_C), colour in zip(lines, _colours(lines), strict=True):
        x, name = cells.x_KC[0, line_C], _setting(names, 0, at)
        marks.append(mean_line(x, residual_C[line_C], name, colour, is_named=False, width=1.0))
    axes = value_axis(names[0], cells.x_KC[0], is_log=True), Axis(title="residual of log y")
    return Facet(title=f"residuals, {fit.form}", x=axes[0], y=axes[1], marks=marks)


def _local_exponents(cells: _Cells, fit: Fit, names: Sequence[str], k: int, lines: Sequence[Line]) -> Facet:
    bands, means = list[Mark](), list[Mark]()
    for (at, line_C), colour in zip(lines, _colours(lines), strict=True):
        name, along = _setting(names, k, at), cells.x_KC[k, line_C]
        middle = np.sqrt(along[1:] * along[:-1])
        exponent, low, high = cells.local_exponents(k, line_C)
        if np.isfinite(low).any():
            bands.append(Range(x=middle.tolist(), low=low.tolist(), high=high.tolist(), colour=colour, name=name))
        means.append(mean_line(middle, exponent, name, colour, is_named=False, width=1.0))
        steps = -np.diff(np.log(fit.predict(cells.x_KC[:, line_C]))) / np.diff(np.log(along))
        means.append(mean_line(middle, steps, name, colour, is_named=False, width=1.4, dash="dash", symbol=""))
    x_axis = value_axis(names[k], cells.x_KC[k], is_log=True)
    return Facet(title=f"local exponent in {names[k]}", x=x_axis, y=Axis(title="a"), marks=[*bands, *means])


def _colours(lines: Sequence[Line]) -> list[str]:
    return colours_of([" ".join(f"{value:g}" for value in at) for at, _ in lines])


def _setting(names: Sequence[str], k: int, values: Sequence[float]) -> str:
    others = [name for other, name in enumerate(names) if other != k]
    return ", ".join(f"{name} {value:g}" for name, value in zip(others, values, strict=True))
