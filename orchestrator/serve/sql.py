"""The box for SQL: `depthrate query`'s sandbox, with a limit of time, memory and rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.console.tables import format_value
from depthrate.orchestrator.serve.readers import Readers

MOST_ROWS = 1000
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Limits:
    """What one question may take."""

    timeout_s: float = 30.0
    memory_gb: float = 1.0


def ask(readers: Readers, query: str, sweep: str | None, limits: Limits) -> dict[str, Any]:
    """Return the columns and the first rows of an answer, as texts, and whether there are more.

    Raises:
        QueryError: it is not understood, does anything but read the views, or takes more than it may.
        BusyError: too much is asked at once.
        OSError, StoreError: the store does not answer.
    """
    with readers.fresh(PATIENCE_S) as results:
        chosen = results if sweep is None else results.of(sweep)
        relation = chosen.sql(query, timeout_s=limits.timeout_s, memory_gb=limits.memory_gb)
        rows = relation.limit(MOST_ROWS + 1).fetchall()
        problems = [str(problem) for problem in itertools.islice(chosen.problems, 5)]
        return {
            "columns": relation.columns,
            "rows": [[_cell(value) for value in row] for row in rows[:MOST_ROWS]],
            "more": len(rows) > MOST_ROWS,
            "problems": problems,
        }


def _cell(value: Any) -> Any:
    """Return a finite number as it is, by which a browser sorts; anything else as a text."""
    if value is None or isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    return format_value(value)
