"""Plot metrics by layer, from the first to the last."""

from depthrate.orchestrator.report.curve_groups import splits
from depthrate.orchestrator.report.figure import Axis, Figure
from depthrate.orchestrator.report.line_plot import line_groups, lines_plot
from depthrate.orchestrator.report.report_data import ReportData, ReportSection


def layer_plots(data: ReportData) -> list[Figure]:
    """Plot each metric against layer / depth, at each trial's last step."""
    frame = data.metrics
    if frame.empty or "layer" not in frame:
        return []
    is_last_step = frame["step"] == frame.groupby("trial_id", observed=True)["step"].transform("max")
    frame = frame if is_last_step.all() else frame[is_last_step]
    last_layer = frame.groupby("trial_id", observed=True)["layer"].transform("max")
    frame = frame.assign(relative_layer=frame["layer"] / last_layer.where(last_layer > 0, 1))
    by = line_groups(data, "depth" if "depth" in data.trials else data.x_name)
    plots = []
    for suffix, part in splits(frame):
        for metric in map(data.measurement, data.layer_metrics):
            # a metric of the last weight matrix is equal at every layer and has no profile
            of_trials = part.groupby("trial_id", observed=True)[metric.name]
            if (of_trials.max() > of_trials.min()).any():
                y = Axis(title=f"{metric.label}{suffix}", is_log=metric.axis == "log")
                plots.append(
                    lines_plot(data, part, ("relative_layer", metric.name), (Axis(title="Layer / depth"), y), by)
                )
    return [plot for plot in plots if plot is not None]


def _lead(data: ReportData) -> str:
    return (
        "At each trial's last step, from the first measured layer (left) to the last (right). Bands: range over trials."
    )


SECTION = ReportSection(60, "Layers", layer_plots, _lead, "No metrics of several layers yet.")
