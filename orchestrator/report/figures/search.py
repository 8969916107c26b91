"""Plot the objective of a search against each searched number."""

from collections.abc import Sequence

from depthrate.orchestrator.report.curve_groups import split_facets
from depthrate.orchestrator.report.figure import Axis, Facet, Figure, Mark, trial_dots
from depthrate.orchestrator.search.search_view import ProposalState, SearchView, StudyState
from depthrate.orchestrator.sheet.names import shorten


def search_plots(view: SearchView) -> list[Figure]:
    """Plot the objective against each searched number."""
    searched = [dimension for dimension in view.states[0].study.dimensions if dimension.values is None]
    figures = [_plot(view.states, dimension.name, is_log=dimension.is_log) for dimension in searched]
    return [figure for figure in figures if figure is not None]


def _plot(states: Sequence[StudyState], name: str, *, is_log: bool) -> Figure | None:
    """Plot one colour per study, with one dot per proposal and a ring around the best proposal."""
    objective = states[0].study.search.objective[0]
    drawn = [((state.study.label(),), (state, points)) for state in states if (points := _points(state, name))]
    if not drawn:
        return None
    y_values = [y for _, (_, points) in drawn for _, y, _ in points]
    y_log = min(y_values) > 0 and max(y_values) > 3 * min(y_values)
    ((title, studies),), omissions = split_facets(["study"], drawn, "studies")
    marks: list[Mark] = []
    for study in studies:
        state, points = study.content
        label, colour = study.key[0] or "proposals", study.colour
        best = [(x, y) for x, y, number in points if number in state.best()]
        marks.append(trial_dots([x for x, _ in best], [y for _, y in best], label, colour, size=11, symbol="ring"))
        x, y, _ = zip(*sorted(points), strict=True)
        marks.append(trial_dots(x, y, label, colour, size=5, is_named=len(studies) > 1))
    axes = Axis(title=shorten(name), is_log=is_log), Axis(title=shorten(objective), is_log=y_log)
    notes = ["Dots: proposals. Rings: best of each study.", *omissions]
    facet = Facet(title=title, x=axes[0], y=axes[1], marks=marks)
    return Figure(f"{shorten(objective)} against {shorten(name)}", [facet], notes)


def _points(state: StudyState, name: str) -> list[tuple[float, float, int]]:
    """Return (parameter, first objective, number) of the complete proposals."""
    return [
        (float(proposal.values[name]), outcome.values[0], proposal.number)
        for proposal, outcome in zip(state.proposals, state.outcomes, strict=True)
        if outcome.state is ProposalState.COMPLETE and name in proposal.values
    ]
