"""`depthrate compact` and `depthrate verify`: the store's upkeep, with progress and a summary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress

from orchestrator.show import print_json, print_table
from storage.compact import COMPACT_AT, CompactionResult, compact
from storage.files import Files
from storage.snapshot import Snapshot
from storage.verify import Verification, repair, verify
from tasks.task import builtin_tasks

SHOWN = 40
"""Findings printed; --json prints all."""


def run_compaction(files: Files, grace_s: float, console: Console) -> None:
    """Compact a store and say what came of it."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("compacting", total=None)

        def tell(result: CompactionResult, num_groups: int) -> None:
            progress.update(bar, total=num_groups, completed=result.groups)

        result = compact(files, grace_s=grace_s, tell=tell)
    if result.groups:
        text = (
            f"{result.commits} commits and {result.records} records of attempts put together in {result.groups} groups"
        )
        console.print(f"{text} ({result.trials} trials)", highlight=False)
    else:
        console.print("nothing to put together", highlight=False)
    if result.deleted:
        console.print(f"{result.deleted} replaced files deleted", highlight=False)
    if result.waiting:
        wait = f"{grace_s / 3600:g} h" if grace_s else "until they can be deleted safely"
        console.print(f"{result.waiting} replaced files stay for {wait}; a later compact deletes them", highlight=False)
    for path in result.damaged:
        console.print(f"left alone, because it is damaged: {path}; see: depthrate verify", highlight=False)


class Upkeep:
    """Compacts the store beside a launch, in a process of its own, whenever a sweep has many loose commits."""

    def __init__(self, store: str, threshold: int = COMPACT_AT):
        self._store, self._threshold = store, threshold
        self._process: subprocess.Popen[bytes] | None = None

    def look(self, snapshot: Snapshot) -> bool:
        """Start a compaction if it is worth it and none runs, and return whether one was started."""
        if max(snapshot.num_loose().values(), default=0) < self._threshold:
            return False
        if self._process is not None and self._process.poll() is None:
            return False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "compact", "--store", self._store],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONSAFEPATH": "1"},  # a folder `orchestrator` where we stand is not ours
            start_new_session=True,  # Ctrl-C is for the launch, which then ends this
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 10)  # training comes first
        return True

    def close(self, *, wait: bool) -> None:
        """Let a running compaction finish, or end it: what it has not finished stays as it was."""
        if self._process is None:
            return
        if not wait:
            self._process.terminate()
        self._process.wait()


def run_verification(files: Files, with_repair: bool, as_json: bool, console: Console) -> bool:
    """Verify a store, repair it if asked, say what was found, and return whether all is well now."""
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        bar = progress.add_task("verifying", total=None)
        found = verify(files, measured=_measured, tell=lambda done, of: progress.update(bar, completed=done, total=of))
    done = repair(files, found) if with_repair and found.findings else None
    if as_json:
        print_json(_as_json(found, done))
        return not found.findings or done is not None
    console.print(
        f"{found.num_trials} trials in {found.num_files} files, {found.num_bytes / 1e6:.1f} MB read: "
        + ("all as committed" if not found.findings else f"{len(found.findings)} findings"),
        highlight=False,
    )
    rows = [[f.kind, f.path, f.what, len(f.trial_ids) or None] for f in found.findings[:SHOWN]]
    if rows:
        print_table(console, ["kind", "file", "what", "trials"], rows)
    if len(found.findings) > SHOWN:
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(f.kind for f in found.findings).most_common())
        console.print(f"and {len(found.findings) - SHOWN} more (in all: {kinds}); --json prints them", highlight=False)
    if done is not None:
        console.print(f"moved {len(done.moved)} files to {done.quarantine}/", highlight=False)
        if done.saved:
            console.print(f"{done.saved} trials beside damaged ones were written anew and count", highlight=False)
        if done.pending:
            console.print(f"{len(done.pending)} trials are pending again: run their sweep", highlight=False)
    elif found.findings:
        console.print(
            "move what is broken aside and make its trials pending: depthrate verify --repair", highlight=False
        )
    return not found.findings or done is not None


def _as_json(found: Verification, done: Any) -> dict[str, Any]:
    findings = [
        {"kind": f.kind, "path": f.path, "what": f.what, "trial_ids": list(f.trial_ids)} for f in found.findings
    ]
    report: dict[str, Any] = {"num_trials": found.num_trials, "num_files": found.num_files, "findings": findings}
    if done is not None:
        report["repair"] = {
            "quarantine": done.quarantine,
            "moved": done.moved,
            "saved": done.saved,
            "pending": sorted(done.pending),
        }
    return report


def _measured(row: Mapping[str, Any]) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the (steps, layers) that a committed trial's task says it measures."""
    task = builtin_tasks().get(row["task"])
    if task is None or task.measured is None or task.version != row["task_version"] or row["steps"] is None:
        return None
    return task.measured(json.loads(row["params"]), row["steps"])
