"""Plot the objective of a search against each searched number."""

from collections.abc import Sequence

from depthrate.orchestrator.report.plot import (
    Axes,
    Plot,
    Trace,
    dots,
    log_range,
    make_layout,
    make_trace,
    omission_notes,
    viridis,
)
from depthrate.orchestrator.report.text import escape_for_plotly, shorten
from depthrate.orchestrator.search.search_view import ProposalState, SearchView, StudyState

MAX_STUDIES = 12
"""Maximum number of studies in one figure."""


def search_plots(view: SearchView) -> list[Plot]:
    """Plot the objective against each searched number."""
    numbers = [dimension for dimension in view.states[0].study.dimensions if dimension.values is None]
    plots = [_plot(view.states, dimension.name, dimension.is_log) for dimension in numbers]
    return [plot for plot in plots if plot is not None]


def _plot(states: Sequence[StudyState], name: str, x_log: bool) -> Plot | None:
    """Plot one colour per study, with one dot per proposal and a ring around the best proposal."""
    objective = states[0].study.search.objective[0]
    drawn = [(state, points) for state in states if (points := _points(state, name))]
    if not drawn:
        return None
    drawn = drawn[:MAX_STUDIES]
    y_values = [y for _, points in drawn for _, y, _ in points]
    y_log = min(y_values) > 0 and max(y_values) > 3 * min(y_values)
    traces: list[Trace] = []
    for (state, points), colour in zip(drawn, viridis(len(drawn)), strict=True):
        group, label = state.study.study_id, escape_for_plotly(state.study.label() or "proposals")
        ordered = sorted(points)
        trace = dots([x for x, _, _ in ordered], [y for _, y, _ in ordered], group, colour, 0.7, size=6)
        traces.append(trace | {"name": label, "showlegend": True, "hoverinfo": "x+y"})
        best = [(x, y) for x, y, number in points if number in state.best()]
        ring = {"color": colour, "size": 14, "symbol": "circle-open", "line": {"width": 2.5}}
        traces.append(make_trace([x for x, _ in best], [y for _, y in best], group, mode="markers", marker=ring))
    layout = make_layout(Axes(name, objective, shorten(name), shorten(objective), x_log, y_log), y_values)
    if x_log:
        layout["xaxis"] |= {"range": log_range([x for _, points in drawn for x, _, _ in points], 0.05)}
    notes = ["Dots: proposals. Rings: best of each study."]
    notes += omission_notes(len(drawn), len(states), noun="studies")
    return Plot(f"{shorten(objective)} against {shorten(name)}", traces, layout, notes)


def _points(state: StudyState, name: str) -> list[tuple[float, float, int]]:
    """Return (parameter, first objective, number) of the complete proposals."""
    return [
        (float(proposal.values[name]), outcome.values[0], proposal.number)
        for proposal, outcome in zip(state.proposals, state.outcomes, strict=True)
        if outcome.state is ProposalState.COMPLETE and name in proposal.values
    ]
