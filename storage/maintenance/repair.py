"""Move aside the files that a verification found, so that their trials are pending again. Nothing is ever deleted."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.commits.snapshot import named_files, replaced_files, take_snapshot
from depthrate.storage.files.paths import DATA_TABLES, data_path, is_safe, quarantine_path
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.findings import NEWER, ORPHANED_KINDS, Verification


@dataclass
class Repair:
    """Files moved and trials affected by a repair."""

    quarantine: str
    """Folder of the store that holds the moved files."""
    moved: list[str] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)
    """Trials that were committed and must run again."""


def repair(store: Store, verification: Verification) -> Repair:
    """Move aside the files that `verify` found, with all files of corrupt commits. Nothing is deleted.

    Raises:
        ClockError: The local clock or the store's is wrong.
        OSError: The store refused a read or a write. Run `verify` and `repair` again.
    """
    require_clock(store)
    result = Repair(quarantine_path.folder(f"{datetime.now(UTC):%Y%m%dT%H%M%S}"))
    intact = take_snapshot(store, ignore=verification.lost)
    elsewhere = intact.trial_ids()
    needed = {
        file.path for manifest in (*intact.manifests, *intact.superseded_manifests) for file in manifest.all_files()
    }
    replaced, named_now = replaced_files(intact), named_files(intact)
    for path, lost in verification.lost.items():
        if path in replaced:
            continue  # deleted by a compaction since the verification
        result.pending |= lost - elsewhere
        _move(store, result, path)  # the commit is moved first: after that its data files are not visible
        for file in verification.files.get(path, ()):
            if file not in needed:
                _move(store, result, file)
    for finding in verification.findings:
        if not is_safe(finding.path) or finding.kind == NEWER:
            continue  # moving it would move a different file, or the file is intact
        if finding.path.endswith(".trials"):
            continue  # without it, purges would assume that the sweep requests nothing. The finding gives the fix.
        if finding.path.startswith("checkpoints/") or (finding.kind == "damaged" and "/_delta_log/" in finding.path):
            for path in store.list(finding.path.rpartition("/")[0]):
                _move(store, result, path)
        elif finding.kind in ORPHANED_KINDS:
            if finding.path not in named_now and not _is_committed_now(store, finding.path):
                _move(store, result, finding.path)
                if _is_committed_now(store, finding.path):  # the file's attempt was only suspended
                    store.move(f"{result.quarantine}/{finding.path}", finding.path)
                    result.moved.remove(finding.path)
        elif finding.path not in needed or finding.kind == "damaged":
            _move(store, result, finding.path)
    return result


def _is_committed_now(store: Store, path: str) -> bool:
    """Return whether a data file that no commit named has since been committed."""
    table = path.partition("/")[0]
    return table in DATA_TABLES and store.size(data_path(path, "trials")) is not None


def _move(store: Store, result: Repair, path: str) -> None:
    if not store.remove_unfinished(path):
        if store.size(path) is None:
            return
        store.move(path, f"{result.quarantine}/{path}")
    result.moved.append(path)
