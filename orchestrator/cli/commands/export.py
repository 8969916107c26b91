"""`depthrate export`: copy curves and metrics to TensorBoard, MLflow, W&B or Delta tables, or a search to an Optuna storage
(for optuna-dashboard).
"""

from collections.abc import Callable
from typing import Any

import click

from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.cli.options import declared, store_option, sweep_argument
from depthrate.orchestrator.console.tables import print_line
from depthrate.orchestrator.export.exporter import ExportedSweep, exporters, select_exporter
from depthrate.storage.files.store import existing_store


def _exporter_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, exporter in reversed(exporters().items()):
        command = click.option(f"--{name}", _destination(name), is_flag=True, help=exporter.doc)(command)
    return command


def _destination(name: str) -> str:
    return f"to_{name}".replace("-", "_")


@declared(__doc__)
@sweep_argument("sweep")
@click.argument("to", required=False, help="Folder, Optuna database (sqlite:///x.db) or MLflow server to write to.")
@_exporter_flags
@store_option
def command(sweep: str, to: str | None, store: str | None, **flags: bool) -> None:
    names = [name for name in exporters() if flags[_destination(name)]]
    opened, exporter = existing_store(store), select_exporter(names, to)
    for line in exporter.run(ExportedSweep(*find_sweep(sweep, opened), opened), to).splitlines():
        print_line(line)
