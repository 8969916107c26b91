"""The LaTeX file of a sweep."""

from __future__ import annotations

from pathlib import Path

from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.export.latex.table import fits_table
from depthrate.orchestrator.report.report_data import ReportData


def export_latex(data: ReportData, folder: Path) -> list[Path]:
    r"""Write fits.tex, for \input, and return its path. Without a fit, write nothing.

    Raises:
        UsageError: The file cannot be written.
    """
    if not data.fits:
        return []
    path = folder / "fits.tex"
    write_output(path, fits_table(data))
    return [path]
