"""`depthrate logs`: print every attempt of a trial: its node, its end and its output."""

from depthrate.orchestrator.api.logs import read_logs
from depthrate.orchestrator.cli.options import declared, store_option, trial_argument
from depthrate.orchestrator.console.tables import make_console
from depthrate.storage.files.store import existing_store


@declared(__doc__)
@trial_argument("trial")
@store_option
def command(trial: str, store: str | None) -> None:
    make_console().print(read_logs(existing_store(store), trial), end="")
