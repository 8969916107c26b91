"""Read the attempts of a trial: their node, their end and their output."""

import time
from collections.abc import Iterable

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.registry import poll_schedulers, unreported_ends
from depthrate.storage.attempts.records import Record, compacted_log, read_records
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.paths import log_path
from depthrate.storage.files.store import Store


def read_logs(store: Store, prefix: str) -> str:
    """Describe the attempts of all trials whose trial_id starts with `prefix`: node, end and output.

    Raises:
        UsageError: No attempt ran a trial with this prefix.
    """
    snapshot = take_snapshot(store)
    states = {state["attempt_id"]: state for state in read_records(store, snapshot)}
    for sweep in newest_specs(store):
        states |= {state["attempt_id"]: state for state in unreported_ends(poll_schedulers(store, sweep))}
    return attempts_text(store, snapshot, prefix, states.values())


def attempts_text(store: Store, snapshot: Snapshot, prefix: str, records: Iterable[Record]) -> str:
    """Describe the attempts among `records` that ran these trials, with their output, in the order in which they started.

    Raises:
        UsageError: No attempt ran a trial with this prefix.
    """
    matches = [s for s in records if any(trial_id.startswith(prefix) for trial_id in s.get("trial_ids") or ())]
    if not matches:
        raise UsageError(
            f'no attempt in {store.url} has a trial {prefix!r}. List all: depthrate query "select trial_id from trials"'
        )
    parts = []
    for state in sorted(matches, key=lambda s: s.get("started_at", 0)):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state["started_at"]))
        place = f"started {when} on {state['host']}, pid {state['pid']}"
        progress = f"{counted(len(state['trial_ids']), 'trial')}, step {state['step']}/{state['num_steps'] or '?'}"
        parts.append(f"attempt {state['attempt_id']} {state['state']}: {place}, {progress}\n")
        if state.get("error"):
            parts.append(f"{state.get('traceback') or state['error']}\n")
        try:
            output: bytes | None = store.read(log_path(state["sweep"], state["attempt_id"]))
        except FileNotFoundError:
            output = compacted_log(store, snapshot, state["attempt_id"])
        parts.append((output or b"").decode(errors="replace"))
    return "".join(parts)
