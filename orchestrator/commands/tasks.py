"""`depthrate tasks`: the tasks there are, and the parameters of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from depthrate.orchestrator.terminal import print_table
from depthrate.tasks.builtin import builtin_tasks
from depthrate.tasks.loading import load_task
from depthrate.tasks.schema import REQUIRED


def show_tasks(name: str | None, console: Console) -> None:
    """Print the tasks, or the parameters of one.

    Raises:
        TaskError: there is no such task.
    """
    if name is None:
        print_tasks(console)
    else:
        print_parameters(name, console)


def print_tasks(console: Console) -> None:
    """Print one row a task."""
    print_table(
        console, ["task", "version", "what"], [[t.name, str(t.version), t.doc] for t in builtin_tasks().values()]
    )


def print_parameters(name: str, console: Console) -> None:
    """Print one row a parameter of a task.

    Raises:
        TaskError: there is no such task.
    """
    task = load_task(name, Path.cwd())
    console.print(f"{task.name}, version {task.version}. {task.doc}", highlight=False, markup=False)
    rows = []
    for p in task.schema.values():
        default = "required" if p.default is REQUIRED else _literal(p.default)
        rows.append([p.name, p.allowed, default, "yes" if p.fusible else "", p.doc])
    print_table(console, ["parameter", "allowed", "default", "fusible", "meaning"], rows)


def _literal(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
