"""What the figures that a sweep asks for are made of, read from the store: a value a trial, by SQL of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError
from depthrate.sweeps.spec import FigureRequest

if TYPE_CHECKING:
    import pandas as pd

_LAST = "(select trial_id, step, split from results)"


@dataclass(frozen=True)
class FigureContent:
    """One figure that a sweep asks for, with its values."""

    request: FigureRequest
    rows: pd.DataFrame
    """trial_id, value, and one column `line_<number>` for each reference line; of a spectrum also layer, of a matrix
    also places (of its rows and columns) and height."""
    problem: str = ""
    """Why it cannot be drawn: its SQL is not understood."""

    @property
    def said(self) -> str:
        """The problem, with what it is about."""
        asked = self.request.title or self.request.metric or self.request.condition
        return f"the figure {asked!r} ({self.request.kind}) cannot be drawn: {self.problem}"


def read_figures(results: Results, requests: Sequence[FigureRequest], trial_ids: Sequence[str]) -> list[FigureContent]:
    """Return each figure with the values of those of these trials that are committed and did not diverge."""
    import pandas as pd

    contents = []
    for request in requests:
        try:
            rows = results.sql(_query(request)).df()
        except QueryError as error:
            contents.append(FigureContent(request, pd.DataFrame(), str(error)))
            continue
        known = rows[rows["trial_id"].isin(list(trial_ids))]
        contents.append(FigureContent(request, known.reset_index(drop=True)))
    return contents


def _query(request: FigureRequest) -> str:
    shown = f"select trial_id from results where status = 'ok' and ({request.where or 'true'})"
    lines = "".join(f", ({text}) as line_{number}" for number, text in enumerate(request.lines.values()))
    return (
        f"select v.*, l.* exclude (trial_id) from ({_values(request)}) v semi join ({shown}) using (trial_id) "
        f"join (select trial_id{lines}, {_height(request)} as height from results) l using (trial_id) order by v.trial_id"
    )


def _values(request: FigureRequest) -> str:
    if request.kind == "share":
        return f"select trial_id, ({request.condition}) as value from results"
    if request.kind == "spectrum":
        last = f"metrics semi join {_LAST} using (trial_id, step, split)"
        return f"select trial_id, layer, ({request.metric}) as value from {last}"
    own = f"trial_id, ({request.metric}) as value" + (f", ({request.order}) as places" if request.order else "")
    if request.layer is None:
        return f"select {own} from results"
    deepest = "select *, max(layer) over (partition by trial_id, step, split) as deepest from metrics"
    layer = str(request.layer) if request.layer >= 0 else f"deepest + 1 {request.layer}"
    return f"select {own} from ({deepest}) semi join {_LAST} using (trial_id, step, split) where layer = {layer}"


def _height(request: FigureRequest) -> str:
    return f"({request.lowest})" if request.lowest else "0"
