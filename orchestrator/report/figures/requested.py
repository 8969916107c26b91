"""The figures that a sweep requests under `figures:`."""

from depthrate.orchestrator.report.figures.kinds import figures_section

LEAD = "Requested under <code>figures:</code>, at each trial's last step."
SECTION = figures_section(30, "Requested figures", LEAD, of_task=False)
