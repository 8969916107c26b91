"""The figures that a sweep requests under `figures:`."""

from depthrate.orchestrator.report.figures.kinds import figures_section
from depthrate.orchestrator.report.report_data import ReportData


def _lead(data: ReportData) -> str:
    return "Requested under <code>figures:</code>, at each trial's last step."


SECTION = figures_section(30, "Requested figures", _lead, of_task=False)
