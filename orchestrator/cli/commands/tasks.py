"""`depthrate tasks`: list the tasks, or the parameters and metrics of one task."""

from pathlib import Path

import click

from depthrate.orchestrator.cli.options import declared
from depthrate.orchestrator.console.tables import make_console, print_described, print_table
from depthrate.tasks.citations import titles_cited
from depthrate.tasks.loading import load_task
from depthrate.tasks.parameters import REQUIRED
from depthrate.tasks.registry import registered_tasks


@declared(__doc__)
@click.argument("name", required=False, help="Name of a task, or file.py:function.")
def command(name: str | None) -> None:
    console = make_console()
    if name is None:
        rows = [[task.name, str(task.version), task.doc] for task in registered_tasks().values()]
        print_table(console, ["task", "version", "description"], rows)
        return
    task = load_task(name, Path.cwd())
    console.print(f"{task.name}, version {task.version}. {task.doc}")
    rows = []
    for p in task.schema.values():
        default = "required" if p.default is REQUIRED else "null" if p.default is None else str(p.default)
        default = default.lower() if isinstance(p.default, bool) else default
        rows.append([p.name, p.allowed, default, "yes" if p.fusible else "", p.doc])
    print_described(console, ["parameter", "allowed", "default", "fusible", "meaning"], rows)
    if task.measurements:
        ordered = sorted(task.measurements, key=lambda metric: metric.per)
        rows = [[metric.name, metric.label, metric.per, metric.kind, metric.axis, metric.doc] for metric in ordered]
        print_described(console, ["metric", "label", "per", "kind", "axis", "meaning"], rows)
    else:
        console.print("It declares no metrics. All columns that it returns are stored.")
    docs = [p.doc for p in task.schema.values()] + [metric.doc for metric in task.measurements]
    if titles := titles_cited(" ".join(docs)):
        console.print(titles)
