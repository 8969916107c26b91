"""`depthrate upgrade`: bring a store of an older version up to this one's format; safe beside running sweeps, and resumable."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from depthrate.orchestrator.api.find_sweep import unlisted_launches, write_missing_lists
from depthrate.orchestrator.cli.options import declared, store_option
from depthrate.orchestrator.console.tables import make_console
from depthrate.storage.files.format import FORMAT, FORMAT_FILE
from depthrate.storage.files.store import Store, existing_store

OLD_VERIFY = (
    "warning: verify --repair of versions up to 07de987 moves files with columns of later versions to quarantine/, as if they "
    "were damaged; do not run it on this store (to undo it, move the files back to their paths)"
)


def upgrade_store(store: Store, console: Console) -> None:
    """Bring a store to the newest format that this version knows; killed on the way, it goes on when it is called again.

    It only adds files, and the format last: what runs goes on beside it, also workers of the older version, which read and
    write the store as before.

    Raises:
        UsageError: which trials a launch asks for cannot be told.
        OSError: the store refused a write; call it again.
    """

    def say(text: str) -> None:
        console.print(text)

    known = store.format
    unlisted = [spec for spec in unlisted_launches(store) if spec.trial_ids(store) is None]
    if known.format >= FORMAT and not unlisted:
        say(f"store {store.url} is of format {known.format} already; nothing to do")
        say(OLD_VERIFY)
        return
    say(
        f"store {store.url} is of format {known.format}; this brings it to {FORMAT}, beside running sweeps too, by adding:"
    )
    say(f"- the list of its trials, with a checksum, for {len(unlisted)} launches that have none, or a damaged one")
    say(f"- {FORMAT_FILE}, which says who may read and write the store; versions that know the file obey it")
    write_missing_lists(store)
    store.write_format(replace(known, format=max(FORMAT, known.format)))
    say(f"done: the store is of format {FORMAT}; older versions still read and write it")
    say(OLD_VERIFY)


@declared(__doc__)
@store_option
def command(store: str | None) -> None:
    upgrade_store(existing_store(store, writes=True), make_console())
