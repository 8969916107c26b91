"""`depthrate tag`: show, add and remove tags and notes of a sweep or of its trials."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from depthrate.orchestrator.cli.options import declared, json_option, launched_argument, store_option
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_line, print_table, printable
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.catalog.specs import LaunchedSpec, newest_specs
from depthrate.storage.catalog.tags import Marks, annotate, read_annotations
from depthrate.storage.files.store import Store, existing_store


@declared(__doc__)
@launched_argument
@click.argument("trials", nargs=-1, help="trial_ids, or prefixes of them. Default: the sweep itself.")
@click.option("--where", help="SQL condition over results that selects trials.")
@click.option("--add", multiple=True, help="Tag to add, of letters, digits and _.:+-.")
@click.option("--remove", multiple=True, help="Tag to remove.")
@click.option("--note", help="Note, which replaces an earlier one. An empty note removes it.")
@json_option
@store_option
def command(
    sweep: str,
    trials: Sequence[str],
    where: str | None,
    add: Sequence[str],
    remove: Sequence[str],
    note: str | None,
    json: bool,
    store: str | None,
) -> None:
    changes = bool(add or remove or note is not None)
    opened = existing_store(store, writes=changes)
    launched = newest_specs(opened).get(sweep)
    if launched is None:
        names = ", ".join(sorted(newest_specs(opened))) or "none"
        raise UsageError(f"no sweep {sweep!r} was launched in {opened.url}, which has: {names}")
    ids = launched.trial_ids(opened) or []
    chosen = _chosen(opened, launched, ids, trials, where)
    if changes:
        require_clock(opened)  # the later of two changes wins
        annotate(opened, sweep if chosen is None else chosen, add=add, remove=remove, note=note)
    found = read_annotations(opened)
    marks = {trial_id: found.trials[trial_id] for trial_id in chosen or ids if trial_id in found.trials}
    of_sweep = found.sweeps.get(sweep, Marks())
    if json:
        print_json({"sweep": asdict(of_sweep), "trials": {trial_id: asdict(of) for trial_id, of in marks.items()}})
        return
    if chosen is None:
        print_line(f"{sweep}: {_text(of_sweep)}")
    if marks:
        print_table(
            make_console(), ["trial", "tags and note"], [[trial_id, _text(of)] for trial_id, of in marks.items()]
        )
    elif chosen is not None:
        print_line(f"{counted(len(chosen), 'trial')} without tags and notes")


def _chosen(
    store: Store, launched: LaunchedSpec, ids: Sequence[str], prefixes: Sequence[str], where: str | None
) -> list[str] | None:
    """Return the trials that prefixes or a condition select, in the sweep's order, or None for the sweep itself."""
    if not prefixes and where is None:
        return None
    for prefix in prefixes:
        if not prefix or not any(trial_id.startswith(prefix) for trial_id in ids):
            raise UsageError(
                f"no trial of sweep {launched.sweep!r} starts with {prefix!r}. List all: depthrate query "
                f"\"select trial_id from trials where sweep = '{launched.sweep}'\""
            )
    chosen = {trial_id for trial_id in ids if prefixes and trial_id.startswith(tuple(prefixes))}
    if where is not None:
        from depthrate.orchestrator.analysis.open_results import results_of  # imports duckdb

        rows = (
            results_of(store).for_sweep(launched.sweep).sql(f"select trial_id from results where ({where})").fetchall()
        )
        chosen |= {trial_id for (trial_id,) in rows}
        if not chosen:
            raise UsageError(f"no trial of sweep {launched.sweep!r} satisfies {where}")
    return [trial_id for trial_id in ids if trial_id in chosen]


def _text(marks: Marks) -> str:
    tags = ", ".join(marks.tags)
    return printable("; ".join(filter(None, [tags, marks.note]))) or "no tags and no note"
