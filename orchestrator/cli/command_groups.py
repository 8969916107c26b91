"""The groups of commands (`data`, `sweeps`, `trials`) and those for a start; arguments and what they mean, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depthrate.orchestrator.cli.exit_codes import exits
from depthrate.orchestrator.cli.options import JsonOption, StoreOption

data_app = typer.Typer(help="The data sets: what is here, and getting what is not.", no_args_is_help=True)
sweeps_app = typer.Typer(help="The sweeps of a store: list, remove, rename, bring back.", no_args_is_help=True)
trials_app = typer.Typer(help="The trials of a store: remove results, bring them back, tag.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="A sweep that was launched.")]
TrialsArgument = Annotated[list[str] | None, typer.Argument(help="Trials: their identities, or how they begin.")]
WhereOption = Annotated[str | None, typer.Option("--where", help="SQL over results: all trials for which it holds.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it this only shows what would go.")]
GRACE_NOTE = "the first compaction an hour or more from now"


@data_app.command("list")
@exits
def data_list() -> None:
    """Show which data sets are at DEPTHRATE_DATA, and which files of them are read."""
    from depthrate.orchestrator.cli.commands.data import print_datasets
    from depthrate.storage.files.data_folder import open_data_folder

    print_datasets(open_data_folder())


@data_app.command("fetch")
@exits
def data_fetch(name: Annotated[str, typer.Argument(help="A data set: its name in depthrate data list.")]) -> int:
    """Download a data set from its publisher to DEPTHRATE_DATA, checksums checked."""
    from depthrate.orchestrator.cli.commands.data import fetch_and_print
    from depthrate.storage.files.data_folder import open_data_folder

    return 0 if fetch_and_print(name, open_data_folder()) else 1


@sweeps_app.command("list")
@exits
def sweeps_list(store: StoreOption = None, json: JsonOption = False) -> None:
    """Show every sweep of a store: how many trials it asks for, how many of them are committed."""
    from depthrate.orchestrator.cli.commands.sweeps import list_sweeps
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    list_sweeps(existing_store(store), json, make_console())


@sweeps_app.command("rm")
@exits
def sweeps_rm(sweep: NameArgument, store: StoreOption = None, yes: YesOption = False) -> None:
    """Remove a sweep with those of its trials that no other sweep asks for; safe beside running sweeps."""
    from depthrate.orchestrator.cli.commands.sweeps import remove_named
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    remove_named(existing_store(store, writes=True), sweep, is_sure=yes, grace_note=GRACE_NOTE, console=make_console())


@sweeps_app.command("restore")
@exits
def sweeps_restore(sweep: Annotated[str, typer.Argument(help="A removed sweep.")], store: StoreOption = None) -> None:
    """Bring a removed sweep back, until a compaction has taken its trials away."""
    from depthrate.orchestrator.cli.commands.sweeps import restore_named
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    restore_named(existing_store(store, writes=True), sweep, make_console())


@sweeps_app.command("rename")
@exits
def sweeps_rename(
    sweep: NameArgument, name: Annotated[str, typer.Argument(help="Its new name.")], store: StoreOption = None
) -> None:
    """Give a sweep another name."""
    from depthrate.orchestrator.cli.commands.sweeps import rename
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    rename(existing_store(store, writes=True), sweep, name, make_console())


@trials_app.command("rm")
@exits
def trials_rm(
    trials: TrialsArgument = None, where: WhereOption = None, store: StoreOption = None, yes: YesOption = False
) -> None:
    """Remove results; sweeps that ask for their trials run them again. Safe beside running sweeps."""
    from depthrate.orchestrator.cli.commands.trials import remove_trials
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    opened, console = existing_store(store, writes=True), make_console()
    remove_trials(opened, trials or [], where, is_sure=yes, grace_note=GRACE_NOTE, console=console)


@trials_app.command("restore")
@exits
def trials_restore(
    trials: TrialsArgument = None,
    store: StoreOption = None,
    all_: Annotated[bool, typer.Option("--all", help="All results that were removed.")] = False,
) -> None:
    """Bring removed results back, with all that were removed by the same call."""
    from depthrate.orchestrator.cli.commands.trials import restore_trials
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    restore_trials(existing_store(store, writes=True), trials or [], all_of_them=all_, console=make_console())


@trials_app.command("tag")
@exits
def trials_tag(
    tag: Annotated[str, typer.Argument(help="The word: letters, digits and _.:+-.")],
    trials: TrialsArgument = None,
    where: WhereOption = None,
    store: StoreOption = None,
    off: Annotated[bool, typer.Option("--off", help="Take the tag away.")] = False,
) -> None:
    """Give trials a tag; the column `tags` of trials and results has it."""
    from depthrate.orchestrator.cli.commands.trials import tag_trials
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    tag_trials(existing_store(store, writes=True), tag, trials or [], where, is_set=not off, console=make_console())


@exits
def init(folder: Annotated[Path, typer.Argument(help="A folder; default: this one.")] = Path()) -> None:
    """Write a commented sweep and a task of your own to start from."""
    from depthrate.orchestrator.cli.commands.init import write_start
    from depthrate.orchestrator.console.tables import make_console

    write_start(folder, make_console())


@exits
def schema() -> None:
    """Print the JSON schema of sweep files, by which editors check and complete them."""
    from depthrate.orchestrator.cli.commands.init import schema_text

    print(schema_text(), end="")
