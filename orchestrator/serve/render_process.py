"""The process that renders figures and reports of sweeps into compressed files.

It is a separate process because rendering takes seconds of CPU time, and because a crash in a task's code must not stop the
server.
"""

import gzip
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.find_sweep import find_launch
from depthrate.orchestrator.api.report import read_sweep
from depthrate.orchestrator.console.tables import json_text
from depthrate.orchestrator.report.page import all_plots, render_report
from depthrate.orchestrator.serve.child_process import receive_requests
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results

MAX_RENDERS_PER_PROCESS = 20
"""Maximum number of renders before the process is replaced, to free memory."""
NICENESS = 5
"""Niceness of the process, so that trials on the same machine and the pages have priority."""


def main() -> None:
    """Render the sweeps requested on stdin. Argument: the store."""
    os.nice(NICENESS)
    store, results = Store(sys.argv[1]), None
    for request, answers in itertools.islice(receive_requests(), MAX_RENDERS_PER_PROCESS):
        try:
            store.require_exists()
            results = results_of(store) if results is None else results.refresh()
            _render(store, results, request["sweep"], Path(request["figures"]), Path(request["page"]))
            problem = ""
        except (ValueError, OSError) as error:
            problem = first_line(error)
        print(json.dumps({"error": problem}), file=answers, flush=True)


def _render(store: Store, results: Results, sweep: str, figures: Path, page: Path) -> None:
    """Write both files."""
    checked, _ = find_launch(newest_specs(store)[sweep], store)
    data = read_sweep(checked, store, results, ["depthrate", "run", sweep, "--store", store.url])
    plots: list[dict[str, Any]] = [
        {
            "title": plot.title,
            "notes": " ".join(plot.notes),
            "rows": plot.rows,
            "data": plot.traces,
            "layout": plot.page_layout(),
            "frames": plot.frames,
        }
        for plot in all_plots(data)
    ]
    figures.write_bytes(gzip.compress(json_text(plots), 4))
    page.write_bytes(gzip.compress(render_report(data).encode(), 4))


if __name__ == "__main__":
    main()
