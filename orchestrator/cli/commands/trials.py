"""`depthrate trials`: remove and restore results, tag trials."""

from collections.abc import Iterable, Sequence

import click
from rich.console import Console

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.options import declared_group, store_option, yes_option
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.tables import counted, make_console, print_table
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.catalog.removals import Removal, RemovalKind, remove, restore
from depthrate.storage.catalog.tags import annotate, require_tag
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.maintenance.sweep_removal import rows_of_trials
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import names_sweep

MAX_TRIALS_SHOWN = 20
"""Maximum number of trials printed before a removal."""


def chosen_trials(results: Results, prefixes: Sequence[str], where: str | None) -> list[str]:
    """Return the committed trials that match a prefix of trial_id or an SQL condition over results.

    Raises:
        UsageError: Neither is given, or nothing matches.
        QueryError: The condition is not valid SQL.
    """
    if not prefixes and where is None:
        raise UsageError("no trials given. Give trial_ids (or prefixes), or --where 'SQL over results'.")
    committed = sorted(results.snapshot.trial_ids())
    chosen = {t for t in committed if prefixes and t.startswith(tuple(prefixes))}
    for prefix in prefixes:
        if not prefix or not any(t.startswith(prefix) for t in committed):
            raise UsageError(
                f"no committed trial of {results.store.url} starts with {prefix!r}. List all: "
                'depthrate query "select trial_id from trials"'
            )
    if where is not None:
        matches = trials_where(results, where)
        chosen.update(matches)
        if not matches:
            raise UsageError(f"no trial of {results.store.url} satisfies {where}")
    return sorted(chosen)


def print_restored(store: Store, removals: Iterable[Removal], name: str, console: Console) -> None:
    """Print how many trials were restored. A concurrent compaction may have purged some."""
    rows = frozenset(row for removal in removals for row in removal.rows)
    purged = rows & take_snapshot(store).removals.hidden
    text = f"restored {name}: {counted(len({trial_id for trial_id, _ in rows - purged}), 'trial')}"
    text += f". {len({t for t, _ in purged})} more were purged by a compaction. Run them again." if purged else ""
    console.print(text)


def trials_where(results: Results, where: str) -> set[str]:
    """Return the trials that satisfy an SQL condition over results.

    Raises:
        QueryError: It is not valid SQL.
    """
    of_sweep = ", sweep" if names_sweep(where) else ""
    return {row[0] for row in results.sql(f"select trial_id{of_sweep} from results where ({where})").fetchall()}


command = declared_group(__doc__)
trials_argument = click.argument("trials", nargs=-1, help="trial_ids, or prefixes of them.")
where_option = click.option("--where", help="SQL condition over results that selects trials.")


@command.declared("rm")
@trials_argument
@where_option
@store_option
@yes_option
def rm(trials: Sequence[str], where: str | None, store: str | None, yes: bool) -> None:
    """Remove results. Sweeps that request these trials run them again. Safe during runs."""
    opened, console = existing_store(store, writes=True), make_console()
    results = results_of(opened)
    chosen = chosen_trials(results, trials, where)
    members = results.membership().of_sweep
    rows = [[t, ", ".join(sorted(s for s, ids in members.items() if t in ids))] for t in chosen[:MAX_TRIALS_SHOWN]]
    print_table(console, ["trial", "requested by"], rows)
    if len(chosen) > MAX_TRIALS_SHOWN:
        console.print(f"and {len(chosen) - MAX_TRIALS_SHOWN} more")
    selection = [*trials, *(["--where", where] if where else [])]
    results_text = f"the results of {counted(len(chosen), 'trial')}"
    if not yes:
        command = next_call("trials", "rm", None, *selection, "--yes", "--store", opened.url)
        console.print(f"nothing was removed. To remove {results_text}: {command}")
        return
    require_clock(opened)
    remove(opened, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(opened), chosen))
    command = next_call("trials", "restore", None, *selection, "--store", opened.url)
    console.print(f"removed {results_text}. A sweep that requests one runs it again.")
    console.print(f"They can be restored until depthrate compact --purge deletes them: {command}")


@command.declared("restore")
@trials_argument
@where_option
@store_option
@click.option("--all", "all_", is_flag=True, help="Restore all removed results.")
def restore_results(trials: Sequence[str], where: str | None, store: str | None, all_: bool) -> None:
    """Restore removed results, with all others removed by the same command."""
    opened, console = existing_store(store, writes=True), make_console()
    removals = [removal for removal in take_snapshot(opened).removals.removals if removal.kind is RemovalKind.TRIALS]
    requested = (*trials, *(trials_where(results_of(opened).with_removed(), where) if where is not None else ()))
    matches = [removal for removal in removals if all_ or any(t.startswith(requested) for t, _ in removal.rows)]
    if not matches or not (all_ or requested):
        names = [*trials, *([f"trials where {where}"] if where is not None else [])]
        raise UsageError(
            f"no removed results of {', '.join(names) or 'given trials'} to restore in {opened.url}. "
            f"Restore all {counted(len(removals), 'removal')}: depthrate trials restore --all"
        )
    require_clock(opened)
    restore(opened, matches)
    print_restored(opened, matches, "results", console)


@command.declared("tag")
@click.argument("tag", help="Tag of letters, digits and _.:+-.")
@trials_argument
@where_option
@store_option
@click.option("--off", is_flag=True, help="Remove the tag.")
def tag_command(tag: str, trials: Sequence[str], where: str | None, store: str | None, off: bool) -> None:
    """Tag trials, in the column `tags` of trials and results."""
    opened, console = existing_store(store, writes=True), make_console()
    require_tag(tag)
    chosen = chosen_trials(results_of(opened), trials, where)
    require_clock(opened)  # the later of two changes wins
    annotate(opened, chosen, add=[] if off else [tag], remove=[tag] if off else [])
    action = "removed from" if off else "set on"
    console.print(f"tag {tag} {action} {counted(len(chosen), 'trial')}")
    console.print(f"trials with it: depthrate query \"select * from results where list_contains(tags, '{tag}')\"")
