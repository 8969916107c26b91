"""Process that answers SQL queries. Arguments: store, seconds and GB per query.

A query is a line of JSON. The reply has two lines: an empty line once the store is read, then a line with one character and the
answer: `=` a result, `?` a refusal, `!` an unreachable store. The process exits when idle, and after a query that ran out of
memory.
"""

import contextlib
import json
import math
import sys
from typing import Any

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.console.tables import format_value, json_text
from depthrate.orchestrator.serve.child_process import receive_requests
from depthrate.orchestrator.serve.sql import MAX_ROWS
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.store import Store
from depthrate.storage.query.query_limits import limited_memory
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError, QueryMemoryError

MAX_CELL_CHARACTERS = 10_000
"""Maximum length of a cell. Longer cells are truncated."""
MAX_ANSWER_BYTES = 20_000_000


def main() -> None:
    """Answer the queries on standard input."""
    with contextlib.ExitStack() as limits:
        _answer_all(limits)


def _answer_all(limits: contextlib.ExitStack) -> None:
    store, results = Store(sys.argv[1]), None
    timeout_s, memory_gb = map(float, sys.argv[2:4])
    for request, answers in receive_requests():
        is_read = is_last = False
        try:
            store.require_exists()
            if results is None:
                results = results_of(store)
                limits.enter_context(limited_memory(memory_gb))
            else:
                results.refresh()
            print(file=answers, flush=True)
            is_read = True
            reply = "=" + _answer(results, request["sql"], request["sweep"], timeout_s, memory_gb)
        except QueryMemoryError as error:  # freed memory may stay with this process
            reply, is_last = _refusal("?", str(error)), True
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or "start new thread" in str(
                error
            ):  # a thread needs memory for its stack
                more = f"Allow more with --memory-gb (now {memory_gb:g} per query), or select less."
                text = f"the query needs more memory than allowed. {more}"
            else:
                text = f"the query failed: {type(error).__name__}: {first_line(error)}"
            reply, is_last = _refusal("?", text), True
        except QueryError as error:
            reply = _refusal("?", str(error))
        except (OSError, ValueError) as error:
            reply = _refusal("!", f"{store.url} does not answer ({first_line(error)})")
        print("" if is_read else "\n", reply, sep="", file=answers, flush=True)
        if is_last:
            return


def _refusal(kind: str, text: str) -> str:
    return kind + json.dumps(text)


def _answer(results: Results, query: str, sweep: str | None, timeout_s: float, memory_gb: float) -> str:
    """Return the columns and first rows of a result as JSON, and whether more rows exist."""
    results.require_sweeps(query)
    chosen, note = (results, None) if sweep is None else (results.for_sweep(sweep), results.membership().note(sweep))
    relation = chosen.sql(query, timeout_s=timeout_s, memory_gb=memory_gb)
    rows = relation.limit(MAX_ROWS + 1).fetchall()
    answer = json_text(
        {
            "columns": relation.columns,
            "rows": [[_cell(value) for value in row] for row in rows[:MAX_ROWS]],
            "more": len(rows) > MAX_ROWS,
            "problems": [*filter(None, [note]), *map(str, chosen.problems[:5])],
        }
    )
    if len(answer) > MAX_ANSWER_BYTES:
        raise QueryError(f"the answer has {len(answer):,} bytes, expected at most {MAX_ANSWER_BYTES:,}. Select less.")
    return answer.decode()


def _cell(value: Any) -> Any:
    """Return finite numbers unchanged, for sorting in the browser, and other values as strings."""
    if value is None or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    text = value if isinstance(value, str) else format_value(value)
    return text if len(text) <= MAX_CELL_CHARACTERS else f"{text[:MAX_CELL_CHARACTERS]}… ({len(text):,} characters)"


if __name__ == "__main__":
    main()
