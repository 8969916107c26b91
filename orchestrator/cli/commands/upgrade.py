"""`depthrate upgrade`: a store of an older version brought up to this one's format, step by step, said before it is done."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from depthrate.orchestrator.cli.find_sweep import unlisted_launches, write_missing_lists
from depthrate.orchestrator.console.tables import printable
from depthrate.storage.files.format import FORMAT, FORMAT_FILE
from depthrate.storage.files.store import Store


def upgrade_store(store: Store, console: Console) -> None:
    """Bring a store to the newest format that this version knows; killed on the way, it goes on when it is called again.

    It only adds files, and the format last: what runs goes on beside it, also workers of the older version, which read and
    write the store as before.

    Raises:
        UsageError: which trials a launch asks for cannot be told.
        OSError: the store refused a write; call it again.
    """

    def say(text: str) -> None:
        console.print(printable(text), highlight=False, markup=False)

    known = store.format
    unlisted = [spec for spec in unlisted_launches(store) if spec.trial_ids(store) is None]
    if known.format >= FORMAT and not unlisted:
        say(f"store {store.url} is of format {known.format} already; nothing to do")
        return
    say(
        f"store {store.url} is of format {known.format}; this brings it to {FORMAT}, beside running sweeps too, by adding:"
    )
    say(f"- the list of its trials, with a checksum, for {len(unlisted)} launches that have none, or a damaged one")
    say(f"- {FORMAT_FILE}, which says who may read and write the store; versions that know the file obey it")
    write_missing_lists(store)
    store.write_format(replace(known, format=max(FORMAT, known.format)))
    say(f"done: the store is of format {FORMAT}; older versions go on reading and writing it")
