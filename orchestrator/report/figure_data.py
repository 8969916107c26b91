"""Read the data of a sweep's requested figures: one value per trial, computed with the user's SQL."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError
from depthrate.storage.tables.custom_columns import quoted
from depthrate.sweeps.spec import FigureRequest

_LAST = "(select trial_id, step, split from results)"


@dataclass(frozen=True)
class FigureContent:
    """One requested figure with its values."""

    request: FigureRequest
    rows: pd.DataFrame
    """trial_id, value, and a column `line_<number>` per reference line. Spectra add layer. Matrices add places (the order of
    rows and columns) and height."""
    problem: str = ""
    """Error in the figure's SQL."""

    @property
    def message(self) -> str:
        """Problem, with the name of the figure."""
        name = self.request.title or self.request.metric or self.request.condition
        return f"cannot draw the figure {name!r} ({self.request.kind}): {self.problem}"


def read_figures(results: Results, requests: Sequence[FigureRequest], trial_ids: Sequence[str]) -> list[FigureContent]:
    """Return each figure with the values of the given trials that are committed and did not diverge."""
    contents = []
    columns = [name for view in ("results", "metrics") for name in results.sql(f"select * from {view} limit 0").columns]
    for request in requests:
        try:
            is_column = request.metric in columns  # such as `val/loss`, otherwise an SQL expression
            rows = results.sql(_query(request.replace(metric=quoted(request.metric)) if is_column else request)).df()
        except QueryError as error:
            contents.append(FigureContent(request, pd.DataFrame(), str(error)))
            continue
        rows = rows[rows["trial_id"].isin(list(trial_ids))]
        contents.append(FigureContent(request, rows.reset_index(drop=True)))
    return contents


def _query(request: FigureRequest) -> str:
    selected = f"select trial_id from results where status = 'ok' and ({request.where or 'true'})"
    height = f"({request.lowest})" if request.lowest else "0"
    lines = "".join(f", ({text}) as line_{number}" for number, text in enumerate(request.lines.values()))
    return (
        f"select v.*, l.* exclude (trial_id) from ({_values(request)}) v semi join ({selected}) using (trial_id) "
        f"join (select trial_id{lines}, {height} as height from results) l using (trial_id) order by v.trial_id"
    )


def _values(request: FigureRequest) -> str:
    if request.kind == "share":
        return f"select trial_id, ({request.condition}) as value from results"
    if request.kind == "spectrum":
        last = f"metrics semi join {_LAST} using (trial_id, step, split)"
        return f"select trial_id, layer, ({request.metric}) as value from {last}"
    columns = f"trial_id, ({request.metric}) as value" + (f", ({request.order}) as places" if request.order else "")
    if request.layer is None:
        return f"select {columns} from results"
    deepest = "select *, max(layer) over (partition by trial_id, step, split) as deepest from metrics"
    layer = str(request.layer) if request.layer >= 0 else f"deepest + 1 {request.layer}"
    return f"select {columns} from ({deepest}) semi join {_LAST} using (trial_id, step, split) where layer = {layer}"
