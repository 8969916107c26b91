"""The figures that a task requests: features as points, vectors and layers with predictions, shares and verdicts."""

from depthrate.orchestrator.report.figures.kinds import figures_section

LEAD = "Solid: measured, with bands for the range over trials. Dashed: prediction for a trial's parameters."
SECTION = figures_section(40, "Collapse and theory", LEAD, of_task=True)
