"""`depthrate trials`: the trials of a store: remove results, bring them back, tag."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.commands.sweeps import say_restored
from depthrate.orchestrator.cli.options import GRACE_NOTE, declared_group, store_option, yes_option
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.tables import counted, make_console, print_table
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.catalog.removals import RemovalKind, remove, restore
from depthrate.storage.catalog.tags import require_tag, write_tag
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.maintenance.sweep_removal import rows_of_trials
from depthrate.storage.query.results import Results
from depthrate.storage.query.views import names_sweep

MAX_TRIALS_SHOWN = 20
"""Trials printed before they go."""


def remove_trials(
    store: Store, prefixes: Sequence[str], where: str | None, *, is_sure: bool, grace_note: str, console: Console
) -> None:
    """Say which results go and which sweeps have to run their trials again, and remove them where that is wanted.

    Raises:
        UsageError: no trial is named, or one that there is not.
        QueryError: `where` is not understood.
    """
    results = results_of(store)
    chosen = chosen_trials(results, prefixes, where)
    members = results.membership().of_sweep
    rows = [[t, ", ".join(sorted(s for s, ids in members.items() if t in ids))] for t in chosen[:MAX_TRIALS_SHOWN]]
    print_table(console, ["trial", "asked for by"], rows)
    if len(chosen) > MAX_TRIALS_SHOWN:
        console.print(f"and {len(chosen) - MAX_TRIALS_SHOWN} more")
    said = f"the results of {counted(len(chosen), 'trial')}"
    if not is_sure:
        words = [*prefixes, *(["--where", where] if where else []), "--yes", "--store", store.url]
        again = next_call("trials", "rm", None, *words)
        console.print(f"nothing is removed yet; remove {said}: {again}")
        return
    require_clock(store)
    remove(store, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(store), chosen))
    words = [*prefixes, *(["--where", where] if where else [])]
    back = next_call("trials", "restore", None, *words, "--store", store.url)
    console.print(f"removed {said}; a sweep that asks for one runs it again")
    console.print(f"until {grace_note} they can be brought back: {back}")


def restore_trials(
    store: Store, prefixes: Sequence[str], where: str | None, *, all_of_them: bool, console: Console
) -> None:
    """Bring removed results back: those of the removals that named one of these trials, or one for which `where` holds, or all.

    Raises:
        UsageError: none of them was removed, or a compaction has taken them away.
        QueryError: `where` is not understood.
    """
    removals = [removal for removal in take_snapshot(store).removals.removals if removal.kind is RemovalKind.TRIALS]
    wanted = (*prefixes, *(trials_where(results_of(store).with_removed(), where) if where is not None else ()))
    found = [removal for removal in removals if all_of_them or any(t.startswith(wanted) for t, _ in removal.rows)]
    if not found or not (all_of_them or wanted):
        named = [*prefixes, *([f"trials where {where}"] if where is not None else [])]
        raise UsageError(
            f"no removed results of {', '.join(named) or 'named trials'} can be brought back in {store.url}; "
            f"{len(removals)} removals can: depthrate trials restore --all"
        )
    require_clock(store)
    restore(store, found)
    say_restored(store, found, "what was removed", console)


def tag_trials(
    store: Store, tag: str, prefixes: Sequence[str], where: str | None, *, is_set: bool, console: Console
) -> None:
    """Give some trials a tag, or take it away.

    Raises:
        UsageError: no trial is named, or one that there is not.
        StoreError: it is no tag.
    """
    require_tag(tag)
    chosen = chosen_trials(results_of(store), prefixes, where)
    require_clock(store)  # of two words about a trial the later one holds
    write_tag(store, tag, chosen, is_set=is_set)
    how = "have the tag" if is_set else "do not have the tag"
    console.print(f"{counted(len(chosen), 'trial')} {how} {tag} now")
    ask = f"select * from results where list_contains(tags, '{tag}')"
    console.print(f'find them: depthrate query "{ask}"')


def chosen_trials(results: Results, prefixes: Sequence[str], where: str | None) -> list[str]:
    """Return the committed trials whose identity begins so, or for which an SQL condition over results holds.

    Raises:
        UsageError: neither is given, or nothing is found.
        QueryError: the condition is not understood.
    """
    if not prefixes and where is None:
        raise UsageError("say which trials: their identities (or how they begin), or --where 'SQL over results'")
    known = sorted(results.snapshot.trial_ids())
    chosen = {t for t in known if prefixes and t.startswith(tuple(prefixes))}
    for prefix in prefixes:
        if not prefix or not any(t.startswith(prefix) for t in known):
            raise UsageError(
                f"no committed trial of {results.store.url} begins with {prefix!r}; list them: "
                'depthrate query "select trial_id from trials"'
            )
    if where is not None:
        found = trials_where(results, where)
        chosen.update(found)
        if not found:
            raise UsageError(f"for no trial of {results.store.url} holds {where}")
    return sorted(chosen)


def trials_where(results: Results, where: str) -> set[str]:
    """Return the trials for which an SQL condition over results holds.

    Raises:
        QueryError: it is not understood.
    """
    of_sweep = ", sweep" if names_sweep(where) else ""
    return {row[0] for row in results.sql(f"select trial_id{of_sweep} from results where ({where})").fetchall()}


command = declared_group(__doc__)
trials_argument = click.argument("trials", nargs=-1, help="Trials: their identities, or how they begin.")
where_option = click.option("--where", help="SQL over results: all trials for which it holds.")


@command.declared("rm")
@trials_argument
@where_option
@store_option
@yes_option
def rm(trials: Sequence[str], where: str | None, store: str | None, yes: bool) -> None:
    """Remove results; sweeps that ask for their trials run them again. Safe beside running sweeps."""
    opened, console = existing_store(store, writes=True), make_console()
    remove_trials(opened, trials, where, is_sure=yes, grace_note=GRACE_NOTE, console=console)


@command.declared("restore")
@trials_argument
@where_option
@store_option
@click.option("--all", "all_", is_flag=True, help="All results that were removed.")
def bring_back(trials: Sequence[str], where: str | None, store: str | None, all_: bool) -> None:
    """Bring removed results back, with all that were removed by the same call."""
    restore_trials(existing_store(store, writes=True), trials, where, all_of_them=all_, console=make_console())


@command.declared("tag")
@click.argument("tag", help="The word: letters, digits and _.:+-.")
@trials_argument
@where_option
@store_option
@click.option("--off", is_flag=True, help="Take the tag away.")
def give_tag(tag: str, trials: Sequence[str], where: str | None, store: str | None, off: bool) -> None:
    """Give trials a tag; the column `tags` of trials and results has it."""
    tag_trials(existing_store(store, writes=True), tag, trials, where, is_set=not off, console=make_console())
