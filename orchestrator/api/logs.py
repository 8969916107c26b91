"""Print the attempts of a trial: their node, their end and their output."""

import time
from collections.abc import Iterable

from rich.console import Console

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.registry import list_unreported_ends
from depthrate.storage.attempts.records import Record, compacted_log, read_records
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.paths import log_path
from depthrate.storage.files.store import Store


def print_logs(store: Store, prefix: str, console: Console) -> None:
    """Print the attempts of all trials whose trial_id starts with `prefix`: node, end and output.

    Raises:
        UsageError: No attempt ran a trial with this prefix.
    """
    snapshot = take_snapshot(store)
    states = {state["attempt_id"]: state for state in read_records(store, snapshot)}
    for sweep in newest_specs(store):
        states |= {state["attempt_id"]: state for state in list_unreported_ends(store, sweep)}
    print_attempts(store, snapshot, prefix, states.values(), console)


def print_attempts(store: Store, snapshot: Snapshot, prefix: str, records: Iterable[Record], console: Console) -> None:
    """Print the attempts among `records` that ran these trials, with their output, in the order in which they started.

    Raises:
        UsageError: No attempt ran a trial with this prefix.
    """
    matches = [s for s in records if any(trial_id.startswith(prefix) for trial_id in s.get("trial_ids") or ())]
    if not matches:
        raise UsageError(
            f'no attempt in {store.url} has a trial {prefix!r}. List all: depthrate query "select trial_id from trials"'
        )
    for state in sorted(matches, key=lambda s: s.get("started_at", 0)):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state["started_at"]))
        head = (
            f"attempt {state['attempt_id']} {state['state']}: started {when} on {state['host']}, pid {state['pid']}, "
        )
        head += f"{counted(len(state['trial_ids']), 'trial')}, step {state['step']}/{state['num_steps'] or '?'}"
        console.print(head)
        if state.get("error"):
            console.print(state.get("traceback") or state["error"])
        try:
            printed: bytes | None = store.read(log_path(state["sweep"], state["attempt_id"]))
        except FileNotFoundError:
            printed = compacted_log(store, snapshot, state["attempt_id"])
        if printed:
            console.print(printed.decode(errors="replace"), end="")
