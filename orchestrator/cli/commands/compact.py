"""`depthrate compact`: merge small files into large, sorted ones. Safe during runs and queries."""

import click
from rich.progress import Progress

from depthrate.orchestrator.cli.options import NOT_NEGATIVE, declared, store_option
from depthrate.orchestrator.console.tables import counted, make_console, print_line
from depthrate.storage.files.store import existing_store
from depthrate.storage.maintenance.compact import CompactionResult, compact


@declared(__doc__)
@store_option
@click.option(
    "--retain-hours",
    type=NOT_NEGATIVE,
    default=1.0,
    help="Hours to keep replaced files for processes that still read them, and removed rows with --purge.",
)
@click.option("--purge", is_flag=True, help="Delete removed rows permanently. They can then not be restored.")
@click.option("--delta", is_flag=True, help="Also write Delta logs of the tables, which later compactions update.")
def command(store: str | None, retain_hours: float, purge: bool, delta: bool) -> int:
    opened, console = existing_store(store, writes=True), make_console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("compacting", total=None)

        def show_progress(result: CompactionResult, num_groups: int) -> None:
            progress.update(bar, total=num_groups, completed=result.groups)

        result = compact(opened, grace_s=retain_hours * 3600, purge=purge, delta=delta, on_progress=show_progress)
    if result.groups:
        text = f"merged {result.commits} commits and {result.records} attempt records into {result.groups} groups"
        console.print(f"{text} ({counted(result.trials, 'trial')})")
    else:
        console.print("nothing to merge")
    if result.deleted:
        console.print(f"{result.deleted} replaced files deleted")
    if result.waiting:
        wait = f"for {retain_hours:g} h" if retain_hours else "until they can be deleted safely"
        console.print(f"{result.waiting} replaced files are kept {wait}. A later compact deletes them.")
    for path in result.damaged:
        console.print(f"skipped corrupt file {path}. See: depthrate verify")
    for text in result.refused:
        print_line(f"depthrate: {text}", stderr=True)
    return 1 if result.refused else 0
