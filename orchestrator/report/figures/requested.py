"""Plot the figures that a sweep requests under `figures:`."""

from __future__ import annotations

from depthrate.orchestrator.report.figures.requested_maps import map_plot, matrix_plots, spectrum_plot
from depthrate.orchestrator.report.figures.requested_points import curve_plot, distribution_plot, share_plot
from depthrate.orchestrator.report.plot import Plot
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.section import ReportSection


def requested_plots(data: ReportData) -> list[Plot]:
    """Plot each requested figure that has values."""
    plot_functions = {"curve": curve_plot, "share": share_plot, "distribution": distribution_plot}
    plot_functions |= {"map": map_plot, "spectrum": spectrum_plot}
    plots: list[Plot | None] = []
    for content in data.figures:
        if content.problem or content.rows.empty:
            continue
        make_plot = plot_functions.get(content.request.kind)
        plots += matrix_plots(data, content) if make_plot is None else [make_plot(data, content)]
    return [plot for plot in plots if plot is not None]


def _lead(data: ReportData) -> str:
    return "Requested under <code>figures:</code>, at each trial's last step."


REQUESTED = ReportSection("Requested figures", requested_plots, _lead)
