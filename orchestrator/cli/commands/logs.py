"""`depthrate logs`: print every attempt of a trial: its node, its end and its output."""

from depthrate.orchestrator.api.logs import print_attempts
from depthrate.orchestrator.cli.options import declared, store_option, trial_argument
from depthrate.orchestrator.console.tables import make_console
from depthrate.orchestrator.executors.registry import list_unreported_ends
from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import existing_store


@declared(__doc__)
@trial_argument("trial")
@store_option
def command(trial: str, store: str | None) -> None:
    opened = existing_store(store)
    snapshot = take_snapshot(opened)
    states = {state["attempt_id"]: state for state in read_records(opened, snapshot)}
    for sweep in newest_specs(opened):
        states |= {state["attempt_id"]: state for state in list_unreported_ends(opened, sweep)}
    print_attempts(opened, snapshot, trial, states.values(), make_console())
