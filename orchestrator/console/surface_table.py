"""Print fits in several variables, one row per form and variable, and what they leave undecided."""

from collections.abc import Sequence
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
    rows: list[list[Any]] = []
    for row in found.rows():
        interval = "" if row["ci_low"] is None else f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        tests = ["" if row[name] is None else f"{row[name]:.2g}" for name in ("p_half", "p_one")]
        rows.append([row["form"], row["x"], f"{row['exponent']:.4f}", interval, *tests])
    print_table(console, ["form", "x", "exponent a", "95 %", "p(a = 1/2)", "p(a = 1)"], rows)
    name = f"{found.y} ({title})" if title else found.y
    for fit in found.surfaces.fits:
        mark = "preferred" if fit in found.preferred else "" if fit.is_adequate else "inadequate"
        floor = f"E in [{fit.floor_interval[0]:.4g}, {fit.floor_interval[1]:.4g}]" if fit.floor_interval else ""
        constant = (
            ""
            if fit.form == "sum" or fit.coefficient_intervals[0] is None
            else (f"c in [{fit.coefficient_intervals[0][0]:.4g}, {fit.coefficient_intervals[0][1]:.4g}]")
        )
        log_power = (
            f"b in [{fit.log_power_interval[0]:.3g}, {fit.log_power_interval[1]:.3g}]" if fit.log_power_interval else ""
        )
        left_out = f"left out {fit.left_out:.3g}" if fit.left_out == fit.left_out else ""
        facts = [mark, floor, constant, log_power, f"R^2 {fit.r2:.3f}", f"AICc {fit.aicc:.1f}", left_out]
        console.print(f"{fit.form}: {name} = {law_text(fit)}", soft_wrap=True, markup=False, highlight=False)
        console.print(f"  {', '.join(filter(None, facts))}", markup=False, highlight=False)
    first, tests = found.surfaces.fits[0], found.rows()[0]["num_tests"]
    methods = " and ".join(dict.fromkeys(fit.method for fit in found.surfaces.fits if fit.method))
    intervals = f"intervals by {methods}" if methods else "too few units for intervals"
    console.print(
        f"{first.n_points} values of {first.n_units} units, {intervals}, p-values corrected for {tests} tests (Holm)",
        markup=False,
        highlight=False,
    )
    for sentence in found.words():
        console.print(sentence, markup=False, highlight=False)
