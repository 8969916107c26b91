"""`depthrate export`: copy metrics to TensorBoard or W&B, or a search to Optuna."""

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
@click.argument("to", required=False, help="Folder, or Optuna database (sqlite:///x.db), to write to.")
@_exporter_flags
@store_option
def command(sweep: str, to: str | None, store: str | None, **flags: bool) -> None:
    opened = existing_store(store)
    exporter = select_exporter([name for name in exporters() if flags[_destination(name)]], to)
    for line in exporter.run(ExportedSweep(*find_sweep(sweep, opened), opened), to).splitlines():
        print_line(line)
