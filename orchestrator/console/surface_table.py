"""Print fits in several variables, one row per form and variable, and what they leave undecided."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console

from depthrate.orchestrator.analysis.fitted_surface import FittedSurface
from depthrate.orchestrator.analysis.table_fit import TableFit, law_text
from depthrate.orchestrator.console.tables import print_table


def print_surfaces(console: Console, surfaces: Sequence[FittedSurface]) -> None:
    """Print the fits of a sweep in several variables."""
    for surface in surfaces:
        if surface.fit is None:
            console.print(f"{surface.values.metric} over {surface.values.x}: no fit, {surface.note}")
        else:
            print_surface(console, surface.fit, surface.values.label())


def print_surface(console: Console, found: TableFit, title: str = "") -> None:
    """Print the forms of one table: exponents with intervals and tests, the formulas, and sentences."""
    show = partial(console.print, markup=False, highlight=False)
    rows: list[list[Any]] = []
    for row in found.rows():
        interval = "" if row["ci_low"] is None else f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        tests = ["" if row[name] is None else f"{row[name]:.2g}" for name in ("p_half", "p_one")]
        rows.append([row["form"], row["x"], f"{row['exponent']:.4f}", interval, *tests])
    print_table(console, ["form", "x", "exponent a", "95 %", "p(a = 1/2)", "p(a = 1)"], rows)
    name = f"{found.y} ({title})" if title else found.y
    for fit in found.surfaces.fits:
        mark = "preferred" if fit in found.preferred else "" if fit.is_adequate else "inadequate"
        constant = None if len(fit.coefficients) > 1 else fit.coefficient_intervals[0]
        named = (("E", fit.floor_interval), ("c", constant), ("b", fit.log_power_interval))
        intervals = [f"{letter} in [{ends[0]:.4g}, {ends[1]:.4g}]" for letter, ends in named if ends is not None]
        left_out = "" if fit.left_out is None else f"left out {fit.left_out:.3g}"
        r2, aicc = (
            text.format(value) if value is not None else ""
            for text, value in (("R^2 {:.3f}", fit.r2), ("AICc {:.1f}", fit.aicc))
        )
        facts = [mark, *intervals, r2, aicc, left_out]
        show(f"{fit.form}: {name} = {law_text(fit)}", soft_wrap=True)
        show(f"  {', '.join(filter(None, facts))}")
    first, tests = found.surfaces.fits[0], found.rows()[0]["num_tests"]
    methods = " and ".join(dict.fromkeys(fit.method for fit in found.surfaces.fits if fit.method))
    by = f"intervals by {methods}" if methods else "too few units for intervals"
    show(f"{first.n_points} values of {first.n_units} units, {by}, p-values corrected for {tests} tests (Holm)")
    for sentence in found.words():
        show(sentence)
