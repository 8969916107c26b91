"""Fit any table in Python: `depthrate.fit`, with a figure and a LaTeX table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.analysis.table_fit import TableFit, fit_table
from depthrate.orchestrator.sheet.value_sheets import remarks, table_sheet
from depthrate.tasks.fits import DEFAULT_FORMS
from depthrate.tasks.fits.points import FitError

if TYPE_CHECKING:
    import pandas as pd

    from depthrate.orchestrator.report.figure_files import Picture


class Fit(TableFit):
    """The forms fitted to a table, shown in a notebook as rows and sentences."""

    def plot(self) -> Picture:
        """Plot contours with the data, residuals, and exponents between neighbouring values.

        Raises:
            FitError: No two values differ in one variable only.
        """
        from depthrate.orchestrator.report.figure_files import Picture
        from depthrate.orchestrator.report.figures.surfaces import surface_plot

        names = ", ".join(self.surfaces.fits[0].variables)
        figure = surface_plot(self, f"{self.y} over {names}")
        if figure is None:
            raise FitError(f"nothing to draw: no two values of {names} differ in one variable only")
        return Picture(figure)

    def latex(self) -> str:
        r"""Return a LaTeX table of the exponents. It needs \usepackage{booktabs}."""
        from depthrate.orchestrator.export.latex import tabular

        return tabular(table_sheet(self))

    def words(self) -> list[str]:
        """Return what the values do not decide, one sentence each."""
        return remarks(self)

    def _repr_html_(self) -> str:
        from depthrate.orchestrator.report.sheet_html import paragraphs, sheet_table

        sheet = table_sheet(self)
        return sheet_table(sheet) + paragraphs(sheet.remarks)


def fit(
    frame: pd.DataFrame,
    y: str,
    x: str | Sequence[str],
    over: str | None = None,
    *,
    forms: str | Sequence[str] = DEFAULT_FORMS,
    **options: Any,
) -> Fit:
    """Fit a column over one to three variables.

    Args:
        frame: The table, one row per observation.
        y: Column to fit.
        x: Columns, or arithmetic over columns such as `depth - 2`.
        over: Column of the independent units, such as a seed or a run. Default: each row.
        forms: Forms to fit: `power`, `power_floor`, `power_log`, `power_log2`, `proportional`, and of one variable also
            `power_correction`, `exponential`, `log_linear`.
        **options: loss (`log`, squares of the residuals of log y, the default; `y`, squares of those of y; or `huber`), huber
            (the residual of log y from which Huber's function is linear), num_resamples (default: 1,000), seed.

    Returns:
        Exponents, intervals and sentences: `.rows()`, `.words()`, `.plot()`, `.latex()`.

    Raises:
        FitError: A column is unknown or not numeric, or there are too few values.
        ExpressionError: A variable is not arithmetic.
    """
    variables, named = ([value] if isinstance(value, str) else value for value in (x, forms))
    return Fit(**vars(fit_table(frame, y, variables, over, forms=named, **options)))
