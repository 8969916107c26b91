"""`depthrate report`: write the report of a sweep as one self-contained HTML file."""

from pathlib import Path
from typing import Any

import click

from depthrate.orchestrator.api.report import ReportOptions, report_sweep
from depthrate.orchestrator.cli.options import FILE, declared, store_option, sweep_argument
from depthrate.orchestrator.console.output_file import is_replaceable
from depthrate.orchestrator.console.tables import print_line, print_warnings
from depthrate.orchestrator.report.drawing.style import PaperWidth, StyleName


@declared(
    __doc__,
    {
        "--compare": "To compare two sweeps: depthrate compare SWEEP SWEEP",
        "--watch": "To watch a running sweep: depthrate serve",
    },
)
@sweep_argument("sweep")
@store_option
@click.option("-o", "--output", type=FILE, default=Path("report.html"), help="HTML file to write.")
@click.option(
    "--interactive",
    is_flag=True,
    help="Write the explorer: one page with the trials and curves, to filter and to send.",
)
@click.option("--figures", type=FILE, help="Folder for the figures as SVG, PDF and CSV.")
@click.option("--dark", is_flag=True, help="Render --figures for a dark background.")
@click.option(
    "--style", type=click.Choice([*StyleName]), help="Style of --figures: screen or paper (serif). Default: screen."
)
@click.option(
    "--width",
    type=click.Choice([*PaperWidth]),
    help="Width with --style paper: column (3.25 in), text (5.5 in) or page (6.75 in). Default: column.",
)
@click.option("--latex", type=FILE, help="Folder for fits.tex and surfaces.tex, the fits as LaTeX tables.")
def command(sweep: str, store: str | None, output: Path, **options: Any) -> None:
    written = report_sweep(sweep, store, output, ReportOptions(**options))
    print_warnings([*written.problems, *written.mixtures])
    aside = not is_replaceable(output)  # the page itself may have been written to stdout
    print_line(f"wrote {output} ({written.megabytes:.1f} MB). Open it in a browser.", stderr=aside)
    if options["figures"]:
        print_line(f"wrote {written.num_figures} figures to {options['figures']}", stderr=aside)
    if options["latex"]:
        names = ", ".join(map(str, written.latex))
        print_line(f"wrote {names}" if names else "no fits.tex: the sweep has no fits", stderr=aside)
    if written.replaced is not None:
        print_line(f"This replaced the report on {written.replaced} in {output}. To keep both, use -o FILE.")
