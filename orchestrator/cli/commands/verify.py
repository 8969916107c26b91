"""`depthrate verify`: read every file of the store and compare it with what was committed; exit code 1 if something is
wrong.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.cli.options import declared, json_option, store_option
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_table
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.maintenance.findings import Verification
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import verify
from depthrate.sweeps.trial import canonical_json
from depthrate.tasks.registry import find_task

MAX_FINDINGS_SHOWN = 40
"""Findings printed; --json prints all."""


def run_verification(store: Store, with_repair: bool, as_json: bool, console: Console) -> bool:
    """Verify a store, repair it if asked, say what was found, and return whether all is well now."""
    if with_repair:
        require_clock(store)  # what is left over is told by its age
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        bar = progress.add_task("verifying", total=None)

        def show_progress(done: int, of: int) -> None:
            progress.update(bar, completed=done, total=of)

        found = verify(store, builtin_columns(), measured=_measured, hash_of=_hash_of, on_progress=show_progress)
    done = repair(store, found) if with_repair and found.findings else None
    if as_json:
        print_json(_as_json(found, done))
        return not found.findings or done is not None
    console.print(
        f"{counted(found.num_trials, 'trial')} in {counted(found.num_files, 'file')}, {found.num_bytes / 1e6:.1f} MB read: "
        + ("all as committed" if not found.findings else f"{len(found.findings)} findings"),
    )
    rows = [[f.kind, f.path, f.what, len(f.trial_ids) or None] for f in found.findings[:MAX_FINDINGS_SHOWN]]
    if rows:
        print_table(console, ["kind", "file", "what", "trials"], rows)
    if found.newer:
        text = (
            f"columns that a newer version of depthrate has written, left as they are: {', '.join(sorted(found.newer))}"
        )
        console.print(text)
    if len(found.findings) > MAX_FINDINGS_SHOWN:
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(f.kind for f in found.findings).most_common())
        console.print(f"and {len(found.findings) - MAX_FINDINGS_SHOWN} more (in all: {kinds}); --json prints them")
    if done is not None:
        console.print(f"moved {counted(len(done.moved), 'file')} to {done.quarantine}/")
        if done.saved:
            console.print(f"{counted(done.saved, 'trial')} beside damaged ones, written anew: counted again")
        if done.pending:
            console.print(
                f"{counted(len(done.pending), 'trial is', 'trials are')} pending again: run their sweep",
            )
    elif found.findings:
        console.print("move what is broken aside and make its trials pending: depthrate verify --repair")
    return not found.findings or done is not None


def _as_json(found: Verification, done: Any) -> dict[str, Any]:
    findings = [
        {"kind": f.kind, "path": f.path, "what": f.what, "trial_ids": list(f.trial_ids)} for f in found.findings
    ]
    report: dict[str, Any] = {"num_trials": found.num_trials, "num_files": found.num_files, "findings": findings}
    report["newer_columns"] = sorted(found.newer)
    if done is not None:
        report["repair"] = {
            "quarantine": done.quarantine,
            "moved": done.moved,
            "saved": done.saved,
            "pending": sorted(done.pending),
        }
    return report


def _hash_of(spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(spec).encode()).hexdigest()[:16]


def _measured(row: Mapping[str, Any]) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the (steps, layers) that a committed trial's task says it measures."""
    task = find_task(row["task"])
    if task is None or task.version != row["task_version"] or row["steps"] is None:
        return None
    try:
        return task.measured(task.schema.completed(parse_object(row["params"])), row["steps"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # parameters that the task never had: the commit was not written by us


@declared(__doc__)
@store_option
@click.option("--repair", is_flag=True, help="Move what is broken to quarantine/; its trials are pending again.")
@json_option
def command(store: str | None, repair: bool, json: bool) -> int:
    return 0 if run_verification(existing_store(store, writes=repair), repair, json, make_console()) else 1
