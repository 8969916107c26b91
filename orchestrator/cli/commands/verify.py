"""`depthrate verify`: compare every file of the store with the digest in its commit. Exit code 1 if any is corrupt."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.progress import Progress

from depthrate.orchestrator.cli.options import declared, json_option, store_option
from depthrate.orchestrator.console.tables import counted, make_console, print_json, print_table
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.files.store import existing_store
from depthrate.storage.maintenance.findings import Verification
from depthrate.storage.maintenance.repair import Repair, repair
from depthrate.storage.maintenance.verify import verify
from depthrate.sweeps.trial import canonical_json

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

        verification = verify(opened, hash_of=_hash_of, on_progress=show_progress)
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
