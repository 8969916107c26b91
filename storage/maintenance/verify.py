"""Verify a store: every file is as written, and every file is part of a commit."""

import time
from collections.abc import Callable, Iterator, Sequence

from depthrate.storage.attempts.records import Record, read_records
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import named_files, replaced_files, take_snapshot
from depthrate.storage.commits.visible_commits import NewerFile, first_line, parse_commit
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, DataFile, read_parquet
from depthrate.storage.files.paths import (
    DATA_TABLES,
    attempt_of_path,
    attempt_path,
    compaction_of_path,
    data_path,
    is_compacted,
    manifest_path,
    sweep_of_path,
)
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.findings import NEWER, ORPHANED_KINDS, Finding, Verification
from depthrate.storage.maintenance.replaced_files import ABANDONED_S
from depthrate.storage.maintenance.verify_metadata import HashOf, check_metadata_files
from depthrate.storage.maintenance.verify_rows import CommittedRows, FaultOf
from depthrate.storage.tables.custom_columns import custom_columns
from depthrate.storage.tables.schema import MEASURED_TABLES, Columns
from depthrate.storage.tables.states import AttemptState

YOUNG_S = 900.0
"""Age in seconds below which a file that no commit names is left alone, since its commit may follow."""
LIVE_S = 300.0
"""Age in seconds of an attempt's last heartbeat below which its files are left alone, since its commit may follow."""


def verify(
    store: Store,
    *,
    hash_of: HashOf = lambda spec: None,
    fault_of: FaultOf = lambda table, row: None,
    columns: Columns | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Read every file of a store and compare it with its commit, and its rows with one another.

    Args:
        hash_of: Function that returns the hash of a spec.
        fault_of: Function that returns the fault of a row of trials or fits. Storage knows neither ids nor models.
        columns: The measured columns of every file. None: they are not checked.
        on_progress: Function called after each file with the number of files read and their total.

    Raises:
        StoreError, OSError: The store cannot be read at the moment.
    """
    check = _Check(store)
    check.commits(on_progress, columns, fault_of)
    check.orphans()
    check.metadata(hash_of, fault_of)
    check.recheck()
    return check.result


class _Check:
    def __init__(self, store: Store):
        self.store, self.cache = store, SnapshotCache()
        self.snapshot = take_snapshot(store, cache=self.cache)
        self.result = Verification(num_trials=self.snapshot.trials.num_rows)
        self.records: dict[str, Record] = {r["attempt_id"]: r for r in read_records(store, self.snapshot)}
        self._named = named_files(self.snapshot) | replaced_files(self.snapshot)

    def find(self, path: str, kind: str, what: str, trial_ids: Sequence[str] = ()) -> None:
        self.result.findings.append(Finding(path, kind, what, tuple(trial_ids)))

    def commits(self, on_progress: Callable[[int, int], None], columns: Columns | None, fault_of: FaultOf) -> None:
        """Check every file of every commit and compaction, visible or not."""
        visible = (*self.snapshot.sources, *self.snapshot.superseded_commits)
        commits = [(source.path, source.files, source.trial_ids()) for source in visible]
        commits += self._invisible_commits({source.path for source in visible})
        claimed = {table: custom_columns(self.store, table) for table in MEASURED_TABLES}
        total = sum(len(named) for _, files, _ in commits for named in files.values())
        total += sum(path.startswith("trials/") for path, *_ in commits)
        for path, files, trial_ids in commits:
            named = [(table, file) for table, of_table in files.items() for file in of_table]
            self._named.update((path, *(file.path for _, file in named)))
            itself = [("trials", None)] if path.startswith("trials/") else []
            rows: CommittedRows | None = CommittedRows(path, claimed, columns, fault_of)
            for table, file in (*itself, *sorted(named, key=lambda entry: entry[0] != "trials")):
                if (fault := self._fault(path, table, file, rows)) is not None:
                    self.find(path if file is None else file.path, *fault, sorted(filter(None, trial_ids)))
                    self.result.lost[path] = set(trial_ids)
                    self.result.files[path] = [file.path for _, file in named]
                    rows = rows if table != "trials" else None  # the other tables cannot be compared with them
                self.result.num_files += 1
                on_progress(self.result.num_files, total)

    def _invisible_commits(self, visible: set[str]) -> Iterator[tuple[str, dict[str, list[DataFile]], list[str]]]:
        """Yield (path, data files by table, trials) of the commits and compactions of which a file is missing or corrupt."""
        unread = [manifest for manifest in self.snapshot.manifests if manifest.path not in visible]
        for manifest in (*self.snapshot.broken, *unread):
            trial_ids = [i for file in manifest.files.get("trials", ()) for i in self._trial_ids(file)]
            yield manifest.path, manifest.files, trial_ids
        for path in self.snapshot.listing:
            if not path.startswith("trials/") or is_compacted(path) or path in self._named:
                continue
            try:
                commit = parse_commit(path, self.store.read(path))
            except FileNotFoundError:
                continue
            except NewerFile as error:
                self.find(path, NEWER, f"{error}. It is left unchanged")
                self._named.update((path, *(data_path(path, table) for table in DATA_TABLES)))
            except UNREADABLE_ERRORS as error:
                self._unreadable_commit(path, error)
            else:
                yield path, commit.files, commit.trials["trial_id"].to_pylist()

    def _trial_ids(self, file: DataFile) -> list[str]:
        try:
            ids: list[str] = read_parquet(file.read(self.store), ["trial_id"])["trial_id"].to_pylist()
        except UNREADABLE_ERRORS:
            return []
        return ids

    def _unreadable_commit(self, path: str, error: Exception) -> None:
        """Report a corrupt trials file. The record of its attempt may name the trials that were in it."""
        attempt = self.records.get(attempt_of_path(path), {})
        committed = self.snapshot.trial_ids()
        trial_ids = [trial_id for trial_id in attempt.get("trial_ids") or () if trial_id not in committed]
        self._named.add(path)
        if not attempt and not any(data_path(path, table) in self.snapshot.listing for table in DATA_TABLES):
            self.find(path, "foreign", f"was not written by depthrate ({first_line(error)})")
            return
        self.find(path, "damaged", f"is not a valid commit ({first_line(error)})", trial_ids)
        self.result.lost[path] = set(trial_ids)

    def _fault(
        self, commit: str, table: str, file: DataFile | None, rows: CommittedRows | None
    ) -> tuple[str, str] | None:
        """Return (kind, fault) of a commit's file, or of the commit itself without `file`, or None."""
        try:
            content = self.store.read(commit) if file is None else file.read(self.store)
        except FileNotFoundError:
            return "missing", f"{commit} was committed with it"
        except InvalidFileError as error:
            return "damaged", str(error)
        self.result.num_bytes += len(content)
        if file is None or file.has_content(content):
            text = None if rows is None else rows.fault(table, content, file)
            return None if text is None else ("damaged", text)
        size = "" if len(content) == file.size else f". It has {len(content)} of {file.size} bytes"
        return "damaged", f"differs from the committed file by its sha256{size}"

    def orphans(self) -> None:
        """Check the files in the tables' folders that no commit names."""
        for path in self.snapshot.listing:
            table = path.partition("/")[0]
            if path in self._named or table not in ("trials", *DATA_TABLES, "attempts"):
                continue
            if is_compacted(path):
                self._check_compacted(path)
            elif table == "attempts":
                if not path.endswith((".json", ".log")):
                    self.find(path, "foreign", "was not written by depthrate")
            elif not path.endswith(".parquet") or path.count("/") != 2:
                self.find(path, "foreign", "was not written by depthrate")
            else:
                self._check_orphan(path)

    def _check_compacted(self, path: str) -> None:
        manifest = manifest_path(sweep_of_path(path), compaction_of_path(path))
        if manifest not in self.snapshot.listing and self._age_s(path) > ABANDONED_S:
            self.find(path, "leftover", f"its manifest {manifest} does not exist")
        elif manifest in self._named:  # otherwise it cannot be read, which is reported
            self.find(manifest, "damaged", f"does not name {path}, which was written for it")

    def _age_s(self, path: str) -> float:
        """Return a file's age in seconds, or 0 if it is gone."""
        modified = self.store.modified(path)
        return 0.0 if modified is None else time.time() - self.store.clock_ahead_s - modified

    def _check_orphan(self, path: str) -> None:
        commit = data_path(path, "trials")
        if path != commit and commit in self.snapshot.listing and commit not in self.result.lost:
            sources = [source for source in self.snapshot.sources if source.path == commit]
            trial_ids = [trial_id for source in sources for trial_id in source.trial_ids()]
            self.find(commit, "damaged", f"does not name {path}, which was written for it", trial_ids)
            self.result.lost[commit] = set(trial_ids)
            self.result.files[commit] = [file.path for source in sources for file in source.data_files()]
            return
        if self._age_s(path) < YOUNG_S:
            return
        attempt = self.records.get(attempt_of_path(path))
        if attempt is None:
            # if its record exists but cannot be read, which is reported, it may be running
            if attempt_path(sweep_of_path(path), attempt_of_path(path)) not in self.snapshot.listing:
                self.find(path, "foreign", "was not written by depthrate: no commit and no attempt names it")
        elif attempt["state"] is not AttemptState.RUNNING or time.time() - (attempt["heartbeat_at"] or 0.0) > LIVE_S:
            is_done = attempt["state"] is AttemptState.DONE
            reason = f"is done, but its commit {commit} is gone" if is_done else "ended before its commit"
            self.find(path, "leftover", f"attempt {attempt_of_path(path)} {reason}")

    def metadata(self, hash_of: HashOf, fault_of: FaultOf) -> None:
        """Check the files that are not Parquet files of a commit."""
        for path in self.snapshot.listing:
            if path.startswith("manifest/") and path not in self._named:
                self.find(path, "damaged", "is not a manifest. Its compacted rows are not visible")
        for path in self.snapshot.attempts:
            if attempt_of_path(path) not in self.records:
                self.find(path, "damaged", "is not an attempt record")
        self.result.findings += check_metadata_files(self.store, self.snapshot.trial_ids(), hash_of, fault_of)
        found = {finding.path for finding in self.result.findings}
        for path, error in self.store.invalid_files():
            if path not in found:
                self.find(path, "damaged", str(error))

    def recheck(self) -> None:
        """Drop findings caused only by commits and compactions made during the verification.

        A file that a commit names may be missing because a compaction has replaced the commit, and deleted both.
        """
        if not self.result.findings:
            return
        now, result = take_snapshot(self.store, cache=self.cache), self.result
        named, replaced = named_files(now), replaced_files(now)
        gone = {path for path in result.lost if path not in now.listing or path in replaced}
        remaining = {file for path, files in result.files.items() if path not in gone for file in files}
        resolved = gone | {file for path in gone for file in result.files.get(path, ()) if file not in remaining}
        resolved |= {
            p for p in self.snapshot.listing if p.startswith(("attempts/", "manifest/")) and p not in now.listing
        }
        result.lost = {path: lost for path, lost in result.lost.items() if path not in gone}
        result.findings = [
            finding
            for finding in result.findings
            if finding.path not in resolved and not (finding.kind in ORPHANED_KINDS and finding.path in named)
        ]
