"""The LaTeX files of a sweep."""

from __future__ import annotations

from pathlib import Path

from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.export.latex.methods import methods_paragraph
from depthrate.orchestrator.export.latex.table import fits_table
from depthrate.orchestrator.report.report_data import ReportData

TABLE_FILE, METHODS_FILE = "fits.tex", "methods.tex"


def export_latex(data: ReportData, folder: Path) -> list[Path]:
    r"""Write fits.tex and methods.tex, each for \input, and return their paths; without a fit there is no table.

    Raises:
        UsageError: a file cannot be written.
    """
    contents = {TABLE_FILE: fits_table(data)} if data.fits else {}
    contents[METHODS_FILE] = methods_paragraph(data)
    for name, content in contents.items():
        write_output(folder / name, content)
    return [folder / name for name in contents]
