"""`depthrate logs`: print every attempt of a trial: its node, its end and its output."""

from depthrate.orchestrator.api.logs import print_logs
from depthrate.orchestrator.cli.options import declared, store_option, trial_argument
from depthrate.orchestrator.console.tables import make_console
from depthrate.storage.files.store import existing_store


@declared(__doc__)
@trial_argument("trial")
@store_option
def command(trial: str, store: str | None) -> None:
    print_logs(existing_store(store), trial, make_console())
