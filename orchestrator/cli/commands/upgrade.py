"""`depthrate upgrade`: upgrade a store to the current format. Safe during runs, and resumable."""

from dataclasses import replace

from depthrate.orchestrator.api.find_sweep import unlisted_launches, write_missing_lists
from depthrate.orchestrator.cli.options import declared, store_option
from depthrate.orchestrator.console.tables import counted, make_console
from depthrate.storage.files.format import FORMAT, FORMAT_FILE
from depthrate.storage.files.store import existing_store

OLD_VERIFY = (
    "warning: verify --repair of versions up to 07de987 moves files with newer columns to quarantine/, as if they were "
    "corrupt. Do not run it on this store (to undo it, move the files back to their paths)."
)


@declared(__doc__)
@store_option
def command(store: str | None) -> None:
    # it only adds files, and the format file last, so that running sweeps continue and an interrupted upgrade can be repeated
    opened, console = existing_store(store, writes=True), make_console()
    current = opened.format
    unlisted = [spec for spec in unlisted_launches(opened) if spec.trial_ids(opened) is None]
    if current.format >= FORMAT and not unlisted:
        console.print(f"store {opened.url} has format {current.format} already. Nothing to do.")
        console.print(OLD_VERIFY)
        return
    console.print(f"store {opened.url} has format {current.format}. Upgrading to {FORMAT} adds:")
    console.print(
        f"- a list of trials with a checksum for {counted(len(unlisted), 'launch', 'launches')} without an intact one"
    )
    console.print(f"- {FORMAT_FILE}, with the versions that may read and write the store (older versions ignore it)")
    write_missing_lists(opened)
    opened.write_format(replace(current, format=max(FORMAT, current.format)))
    console.print(f"done: the store has format {FORMAT}. Older versions can still read and write it.")
    console.print(OLD_VERIFY)
