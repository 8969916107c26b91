"""`depthrate verify`: compare every file of the store with its commit, and its rows with one another. Exit code 1 if any is
corrupt."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import combinations, islice
from typing import Any

import click
from rich.progress import Progress

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.analysis.fitted_group import EQUI_SEPARATION
from depthrate.orchestrator.cli.options import declared, json_option, store_option
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_table
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.files.store import existing_store
from depthrate.storage.maintenance.findings import Verification
from depthrate.storage.maintenance.repair import Repair, repair
from depthrate.storage.maintenance.verify import verify
from depthrate.sweeps.trial import canonical_json, identifying, is_trial_id
from depthrate.tasks.fits.models import FORMS
from depthrate.tasks.interface import CUSTOM, ResultStatus
from depthrate.tasks.registry import find_schema, find_task

MAX_SUBSETS = 4096
"""Maximum number of sets of parameters that may be missing from the identity of a trial whose task is not installed."""
MAX_FINDINGS_SHOWN = 40
"""Maximum number of findings printed. --json prints all."""


def _as_json(verification: Verification, done: Repair | None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "num_trials": verification.num_trials,
        "num_files": verification.num_files,
        "findings": [asdict(finding) for finding in verification.findings],
    }
    return report | ({} if done is None else {"repair": vars(done) | {"pending": sorted(done.pending)}})


def _hash_of(spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(spec).encode()).hexdigest()[:16]


def fault_of(table: str, row: Mapping[str, Any]) -> str | None:
    """Return the fault of a row of trials, with `params` parsed, or of fits, that only the tasks' declarations show."""
    if table == "fits":
        is_known = row["model"] in {*FORMS, EQUI_SEPARATION}
        return None if is_known else f"has the unknown model {row['model']!r:.80}"
    if row["status"] not in set(ResultStatus):
        return f"has the unknown status {row['status']!r:.80}"
    name, version, params = row["task"], row["task_version"], row["params"]
    task = find_task(name)
    is_current = task is not None and task.version == version
    names = set(identifying(params, find_schema(name).added_later if is_current or task is None else {}))
    # code that is not installed may have added other parameters, whose values in earlier trials are unknown
    most = 0 if is_current and name != CUSTOM else len(names)
    subsets = (names.difference(later) for size in range(most + 1) for later in combinations(sorted(names), size))
    is_hash = is_trial_id(row["trial_id"], name, version, params, islice(subsets, MAX_SUBSETS))
    return None if is_hash else "has an id that is not the hash of its task, version and parameters"


@declared(__doc__)
@store_option
@click.option(
    "--repair", "with_repair", is_flag=True, help="Move corrupt files to quarantine/ and make their trials pending."
)
@json_option
def command(store: str | None, with_repair: bool, json: bool) -> int:
    opened, console = existing_store(store, writes=with_repair), make_console()
    if with_repair:
        require_clock(opened)  # orphaned files are recognised by age
    with Progress(console=console, transient=True, disable=json or not console.is_terminal) as progress:
        bar = progress.add_task("verifying", total=None)

        def show_progress(done: int, of: int) -> None:
            progress.update(bar, completed=done, total=of)

        columns = builtin_columns()
        verification = verify(opened, hash_of=_hash_of, fault_of=fault_of, columns=columns, on_progress=show_progress)
    done = repair(opened, verification) if with_repair and verification.findings else None
    is_intact = not verification.findings or done is not None
    if json:
        print_json(_as_json(verification, done))
        return 0 if is_intact else 1
    console.print(
        f"{counted(verification.num_trials, 'trial')} in {counted(verification.num_files, 'file')}, "
        f"{verification.num_bytes / 1e6:.1f} MB read: "
        + ("all as committed" if not verification.findings else counted(len(verification.findings), "finding")),
    )
    rows = [[f.kind, f.path, f.what, len(f.trial_ids) or None] for f in verification.findings[:MAX_FINDINGS_SHOWN]]
    if rows:
        print_table(console, ["kind", "file", "finding", "trials"], rows)
    if len(verification.findings) > MAX_FINDINGS_SHOWN:
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(f.kind for f in verification.findings).most_common())
        console.print(f"and {len(verification.findings) - MAX_FINDINGS_SHOWN} more (total: {kinds}). Print all: --json")
    if done is not None:
        console.print(f"moved {counted(len(done.moved), 'file')} to {done.quarantine}/")
        if done.pending:
            console.print(
                f"{counted(len(done.pending), 'trial is', 'trials are')} pending again. Run their sweeps.",
            )
    elif verification.findings:
        console.print("move corrupt files aside and make their trials pending: depthrate verify --repair")
    return 0 if is_intact else 1
