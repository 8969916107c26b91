"""Verify a store: every file is as written, every committed trial is complete, and every file is part of a commit."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from depthrate.storage.attempts.records import Record, read_records
from depthrate.storage.attempts.searches import SearchRecords
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import named_files, replaced_files, take_snapshot
from depthrate.storage.commits.source import NewerFile, VisibleCommit, first_line, parse_commit
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, DataFile, open_parquet, read_parquet
from depthrate.storage.files.paths import (
    DATA_TABLES,
    attempt_of_path,
    attempt_path,
    compaction_of_path,
    data_path,
    is_compacted,
    is_identity,
    manifest_path,
    sweep_of_path,
)
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.findings import (
    NEWER,
    ORPHANED_KINDS,
    Finding,
    Verification,
    diagnose,
    newer_columns,
    read_intact_rows,
    wrong_columns,
)
from depthrate.storage.maintenance.merge import SETTLED_S
from depthrate.storage.maintenance.replaced_files import ABANDONED_S
from depthrate.storage.maintenance.type_conflicts import find_type_conflicts, read_column_types
from depthrate.storage.maintenance.verify_metadata import HashOf, check_metadata_files
from depthrate.storage.tables.schema import STATE_COLUMNS, TRIALS, Columns, as_trials, concat_rows, empty_trials
from depthrate.storage.tables.states import AttemptState

YOUNG_S = 900.0
"""Age in seconds below which a file that no commit names is left alone, since its commit may follow."""
LIVE_S = 300.0
"""Age in seconds of an attempt's last heartbeat below which its files are left alone, since its commit may follow."""

Measured = Callable[[Mapping[str, Any]], tuple[Sequence[int], Sequence[int]] | None]
"""Function: row of the trials table -> (steps, layers) that its task measures, or None if undeclared."""


def verify(
    store: Store,
    columns: Columns,
    *,
    deep: bool = False,
    measured: Measured = lambda row: None,
    hash_of: HashOf = lambda spec: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Read every file of a store and compare it with its commit.

    Args:
        deep: Whether to decode even files whose digests are right, and check their columns, row counts and metrics.
        measured: Function that returns the measured steps and layers of a trial.
        hash_of: Function that returns the hash of a spec.
        on_progress: Function called after each file with the number of files read and their total.

    Raises:
        StoreError, OSError: The store cannot be read at the moment.
    """
    check = _Check(store, columns, measured, hash_of, on_progress, deep)
    check.commits()
    check.orphans()
    check.metadata()
    check.lost_trials()
    check.recheck()
    return check.result


class _Check:
    def __init__(
        self,
        store: Store,
        columns: Columns,
        measured: Measured,
        hash_of: HashOf,
        on_progress: Callable[[int, int], None],
        deep: bool,
    ):
        self.store, self.columns, self.measured, self.hash_of = store, columns, measured, hash_of
        self.on_progress, self.deep = on_progress, deep
        names = TRIALS.names if deep else (*STATE_COLUMNS, "sweep")
        self.snapshot_cache = SnapshotCache(columns=names, commit_columns=TRIALS.names)
        self.snapshot = snapshot = take_snapshot(store, cache=self.snapshot_cache)
        self._visible = (*snapshot.sources, *snapshot.superseded_commits)
        self._manifests = (*snapshot.manifests, *snapshot.superseded_manifests)
        self.result = Verification(num_trials=snapshot.trials.num_rows)
        self.records: dict[str, Record] = {r["attempt_id"]: r for r in read_records(store, snapshot)}
        self._named: set[str] = set()
        self._types = read_column_types(store)

    def find(self, path: str, kind: str, what: str, trial_ids: Sequence[str] = ()) -> None:
        self.result.findings.append(Finding(path, kind, what, tuple(trial_ids)))

    def commits(self) -> None:
        """Check every commit and compaction, visible or not."""
        sources = [*self._visible, *self._broken_sources()]
        total = sum(len(source.data_files()) for source in sources)
        for source in sources:
            num_findings = len(self.result.findings)
            lost = self._check_source(source, total)
            if len(self.result.findings) > num_findings or source.path in self.result.lost:
                self.result.lost.setdefault(source.path, set()).update(lost)
                self.result.sources[source.path] = source

    def _broken_sources(self) -> Iterator[VisibleCommit]:
        """Yield the commits and compactions that are not visible, with their readable rows."""
        visible = {source.path for source in self._visible}
        unread = [manifest for manifest in self.snapshot.manifests if manifest.path not in visible]
        for manifest in (*self.snapshot.broken, *unread):
            trials = [self._intact_trials(file) for file in manifest.files.get("trials", ())]
            table = concat_rows([empty_trials(), *trials])
            yield VisibleCommit(manifest.path, table, table, True, manifest.files, manifest)
        replaced = {path for manifest in self._manifests for path in manifest.replaced_trials()}
        for path in self.snapshot.listing:
            is_commit = path.startswith("trials/") and not is_compacted(path)
            if not is_commit or path in visible or path in replaced:
                continue
            try:
                commit = parse_commit(path, self.store.read(path), newer=True)
            except FileNotFoundError:
                continue
            except NewerFile as error:
                self.find(path, NEWER, f"{error}. It is left unchanged")
                self._named.update((path, *(data_path(path, table) for table in DATA_TABLES)))
                continue
            except UNREADABLE_ERRORS as error:
                self._unreadable_commit(path, error)
                continue
            yield VisibleCommit(path, commit.trials, commit.trials, True, commit.files)

    def _intact_trials(self, file: DataFile) -> pa.Table:
        try:
            return as_trials(read_intact_rows(file.read(self.store)), newer=True)
        except UNREADABLE_ERRORS:
            return empty_trials()

    def _unreadable_commit(self, path: str, error: Exception) -> None:
        """Report a corrupt trials file. The record of its attempt may name the trials that were in it."""
        attempt = self.records.get(attempt_of_path(path), {})
        committed = self.snapshot.trial_ids()
        trial_ids = [trial_id for trial_id in attempt.get("trial_ids") or () if trial_id not in committed]
        self._named.add(path)
        if not attempt and not any(data_path(path, table) in self.snapshot.listing for table in DATA_TABLES):
            self.find(path, "foreign", f"was not written by depthrate ({first_line(error)})")
            return
        kind = "wrong schema"
        try:
            read_parquet(self.store.read(path))
        except UNREADABLE_ERRORS:
            kind = "damaged"
        self.find(path, kind, f"is not a valid commit ({first_line(error)})", trial_ids)
        self.result.lost[path] = set(trial_ids)

    def _check_source(self, source: VisibleCommit, total: int) -> set[str]:
        """Check a commit's files and return the trials that cannot be used because of them."""
        trial_ids = set(source.trial_ids())
        lost: set[str] = set()
        steps_and_layers: list[pa.Table] = []
        self._named.add(source.path)
        for name, file in ((name, file) for name, named in source.files.items() for file in named):
            self._named.add(file.path)
            lost |= self._check_file(name, file, source, trial_ids, steps_and_layers)
            self.result.num_files += 1
            self.on_progress(self.result.num_files, total)
        if source.path.startswith("trials/"):
            self.result.num_files += 1
        lost |= self._check_rows(source)
        self.result.findings += find_type_conflicts(source, self._types)
        return lost | (self._check_complete(source, lost, steps_and_layers) if self.deep else set())

    def _check_file(
        self, name: str, file: DataFile, source: VisibleCommit, trial_ids: set[str], steps_and_layers: list[pa.Table]
    ) -> set[str]:
        try:
            content = file.read(self.store)
        except FileNotFoundError:
            self.find(file.path, "missing", f"{source.path} was committed with it", sorted(trial_ids))
            return trial_ids
        except InvalidFileError as error:
            self.find(file.path, "damaged", str(error), sorted(trial_ids))
            return trial_ids
        self.result.num_bytes += len(content)
        if not file.has_content(content):
            kind, fault, lost = diagnose(name, content, file, trial_ids, self.columns)
            self.find(file.path, kind, fault, sorted(lost))
            return lost
        if name == "attempts" or not self.deep:
            return set()
        with open_parquet(content) as parquet:
            wrong = wrong_columns(name, parquet.schema_arrow, self.columns)
            newer = newer_columns(name, parquet.schema_arrow, file, self.columns)
            self.result.newer |= {f"{name}.{column}" for column in newer}
            rows = parquet.read(columns=["trial_id", "step", "layer"] if name == "metrics" else ["trial_id"])
        if wrong:
            self.find(file.path, "wrong schema", wrong, sorted(trial_ids))
            return trial_ids
        if rows.num_rows != file.rows:
            self.find(file.path, "miscounted", f"has {rows.num_rows} rows and was committed with {file.rows}")
            return trial_ids
        if source.is_fully_visible and (unnamed := set(rows["trial_id"].unique().to_pylist()) - trial_ids):
            self.find(file.path, "miscounted", f"has rows of {len(unnamed)} trials that {source.path} does not name")
        if name == "metrics":
            steps_and_layers.append(rows)
        return set()

    def _check_rows(self, source: VisibleCommit) -> set[str]:
        """Return the trials whose parameters cannot be read, or that name another sweep.

        The parameters in a compaction, whose files have digests, are read only with `deep`.
        """
        invalid, sweep = set(), sweep_of_path(source.path)
        ids, sweeps = (source.trials[name].to_pylist() for name in ("trial_id", "sweep"))
        texts = source.trials["params"].to_pylist() if "params" in source.trials.column_names else ["{}"] * len(ids)
        for trial_id, named, text in zip(ids, sweeps, texts, strict=True):
            try:
                if text != "{}":
                    read_object((text or "").encode())
                if named == sweep and is_identity(trial_id):
                    continue
                fault = f"has ID {trial_id!r:.80} and sweep {named!r:.80}"
            except ValueError as error:
                fault = f"has parameters that cannot be read ({first_line(error)})"
            self.find(source.path, "damaged", f"trial {trial_id!r:.80} {fault}", [trial_id])
            invalid.add(trial_id)
        return invalid

    def _check_complete(self, source: VisibleCommit, lost: set[str], tables: list[pa.Table]) -> set[str]:
        """Return the trials without some of the metrics that their task declares."""
        incomplete = set()
        measured: dict[str, set[tuple[int, int]]] = {}
        for table in tables:
            columns = (table[name].to_pylist() for name in ("trial_id", "step", "layer"))
            for trial_id, step, layer in zip(*columns, strict=True):
                measured.setdefault(trial_id, set()).add((step, layer))
        for row in source.trials.select(["trial_id", "task", "task_version", "status", "steps", "params"]).to_pylist():
            if row["trial_id"] in lost or row["status"] != "ok":
                continue  # a diverged trial is measured up to its last step
            declared = self.measured(row)
            if declared is None:
                continue
            steps, layers = declared
            of_trial = measured.get(row["trial_id"], set())
            missing = [(step, layer) for step in steps for layer in layers if (step, layer) not in of_trial]
            if missing:
                fault = f"trial {row['trial_id']} is missing {len(missing)} of {len(steps) * len(layers)} measurements"
                first = f"the first at step {missing[0][0]}, layer {missing[0][1]}"
                self.find(source.path, "incomplete", f"{fault}, {first}")
                incomplete.add(row["trial_id"])
        if incomplete:
            self.result.lost.setdefault(source.path, set())
        return incomplete

    def orphans(self) -> None:
        """Check the files in the tables' folders that no commit names."""
        for manifest in (*self._manifests, *self.snapshot.broken):
            self._named.update((manifest.path, *(file.path for file in manifest.all_files())))
        self._named |= replaced_files(self.snapshot)
        for path in self.snapshot.listing:
            if path in self._named or path.split("/")[0] not in ("trials", *DATA_TABLES):
                continue
            if is_compacted(path):
                self._check_abandoned(path)
            elif not path.endswith(".parquet") or path.count("/") != 2:
                self.find(path, "foreign", "was not written by depthrate")
            else:
                self._check_orphan(path)

    def _check_abandoned(self, path: str) -> None:
        manifest = manifest_path(sweep_of_path(path), compaction_of_path(path))
        if manifest in self.snapshot.listing:
            if manifest in self._named:  # otherwise it cannot be read, which is reported
                self.find(manifest, "damaged", f"does not name {path}, which was written for it")
            return
        modified = self.store.modified(path)
        age_s = 0.0 if modified is None else time.time() - self.store.clock_ahead_s - modified
        if path.startswith("trials/") and age_s >= YOUNG_S and (lost := self._committed_only_in(path)):
            # replaced files are kept until the manifest exists, so this compaction had a manifest
            fault = (
                f"its manifest {manifest} is gone. {len(lost)} of its trials are committed nowhere else and are pending"
            )
            self.find(path, "leftover", fault, lost)
        elif age_s > ABANDONED_S:
            self.find(path, "leftover", "a compaction was killed before its manifest")

    def _committed_only_in(self, path: str) -> list[str]:
        """Return the trials of a compaction without a manifest that are committed nowhere else."""
        try:
            ids = read_parquet(self.store.read(path))["trial_id"].to_pylist()
        except UNREADABLE_ERRORS:
            return []  # orphaned, whatever its content was
        known = self.snapshot.trial_ids() | self.snapshot.removals.trial_ids()
        return sorted({trial_id for trial_id in ids if isinstance(trial_id, str)} - known)

    def _check_orphan(self, path: str) -> None:
        commit = data_path(path, "trials")
        if path != commit and commit in self.snapshot.listing and commit not in self.result.lost:
            source = next((source for source in self.snapshot.sources if source.path == commit), None)
            trial_ids = [] if source is None else source.trial_ids()
            self.find(commit, "damaged", f"does not name {path}, which was written for it", trial_ids)
            self.result.lost[commit] = set(trial_ids)
            self.result.sources |= {} if source is None else {commit: source}
            return
        modified = self.store.modified(path)
        if modified is None or time.time() - self.store.clock_ahead_s - modified < YOUNG_S:
            return
        attempt = self.records.get(attempt_of_path(path))
        if attempt is None and attempt_path(sweep_of_path(path), attempt_of_path(path)) in self.snapshot.listing:
            return  # its record exists but cannot be read, which is reported: it may be running
        if attempt is None:
            self.find(path, "foreign", "was not written by depthrate: no commit and no attempt names it")
        elif attempt["state"] is not AttemptState.RUNNING or time.time() - (attempt["heartbeat_at"] or 0.0) > LIVE_S:
            is_done = attempt["state"] is AttemptState.DONE
            reason = f"is done, but its commit {commit} is gone" if is_done else "ended before its commit"
            self.find(path, "leftover", f"attempt {attempt_of_path(path)} {reason}")

    def lost_trials(self) -> None:
        """Check that the trials of successfully finished attempts exist.

        A commit whose files have all vanished leaves no other trace. Rows that users removed or that a repair moved aside are
        excluded, as are trials that a search pruned, and sweeps compacted by an older version, which did not record the rows it
        left out.
        """
        lost = self._unexplained_losses()
        if not lost:
            return
        quarantined = {attempt_of_path(path) for path in self.store.list("quarantine") if "/trials/" in path}
        searches = {sweep: SearchRecords(self.store, sweep) for sweep in {record["sweep"] for record, _ in lost}}
        for search in searches.values():
            search.refresh()
        for record, trial_ids in lost:
            reports = searches[record["sweep"]].reports
            pruned = {trial_id for trial_id, report in reports.items() if report.pruned_at is not None}
            if record["attempt_id"] not in quarantined and (missing := trial_ids - pruned):
                fault = (
                    f"the attempt is done, but {len(missing)} of its {len(record['trial_ids'])} trials are in no commit"
                )
                path = attempt_path(record["sweep"], record["attempt_id"])
                self.find(path, "missing", f"{fault}: files are gone. Run the sweep again", sorted(missing))

    def _unexplained_losses(self) -> list[tuple[Record, set[str]]]:
        """Return (record, trials) of attempts that finished a while ago and whose trials have vanished without explanation."""
        sources = (*self._visible, *self.result.sources.values())
        explained_ids = _all_ids(sources) | self.snapshot.removals.trial_ids()
        explained_ids |= {trial_id for finding in self.result.findings for trial_id in finding.trial_ids}
        manifests = (*self._manifests, *self.snapshot.broken)
        unrecorded = {manifest.sweep for manifest in manifests if manifest.gone is None}
        explained = {attempt for manifest in manifests for attempt in manifest.gone or ()}
        explained |= {attempt_of_path(finding.path) for finding in self.result.findings if finding.kind == NEWER}
        before = time.time() - self.store.clock_ahead_s - SETTLED_S
        return [
            (record, lost)
            for record in self.records.values()
            if record["state"] is AttemptState.DONE and (record["ended_at"] or before) < before
            if record["sweep"] not in unrecorded and record["attempt_id"] not in explained
            if (lost := set(record["trial_ids"]))
            and not lost & explained_ids  # a partial loss may be an earlier removal
        ]

    def recheck(self) -> None:
        """Drop findings caused only by commits and compactions made during the verification.

        A file can be reported as missing only from a later scan: it may be committed after the commits were listed, and
        a commit that lacks its files may have been replaced, with them, by a compaction.
        """
        if not self.result.findings:
            return
        now = take_snapshot(self.store, cache=self.snapshot_cache)
        named = named_files(now)
        vanished = {
            p for p in self.snapshot.listing if p.startswith(("attempts/", "manifest/")) and p not in now.listing
        }
        gone = {path for path in self.result.lost if path not in now.listing or path in replaced_files(now)}
        self.result.lost = {path: lost for path, lost in self.result.lost.items() if path not in gone}
        sources = self.result.sources
        of_gone = {file.path for path in gone & sources.keys() for file in sources[path].data_files()}
        remaining = self.result.lost.keys() & sources.keys()
        of_remaining = {file.path for path in remaining for file in sources[path].data_files()}
        committed = _all_ids((*now.sources, *now.superseded_commits))
        resolved = gone | vanished | (of_gone - of_remaining)
        resolved |= {
            f.path
            for f in self.result.findings
            if f.kind == "missing" and f.path.startswith("attempts/") and committed.intersection(f.trial_ids)
        }
        findings = [finding for finding in self.result.findings if finding.path not in resolved]
        self.result.findings = [f for f in findings if f.kind not in ORPHANED_KINDS or f.path not in named]

    def metadata(self) -> None:
        """Check the files that are not Parquet files of a commit."""
        loose = set(self.snapshot.attempts)
        for path in self.snapshot.listing:
            if path.startswith("manifest/") and path not in self._named:
                self.find(path, "damaged", "is not a manifest. Its compacted rows are not visible")
            if path in loose and attempt_of_path(path) not in self.records:
                self.find(path, "damaged", "is not an attempt record")
            elif path.startswith("attempts/") and not path.endswith((".json", ".log")) and path not in self._named:
                if is_compacted(path):
                    self._check_abandoned(path)
                else:
                    self.find(path, "foreign", "was not written by depthrate")
        self.result.findings += check_metadata_files(self.store, self.snapshot.trial_ids(), self.hash_of)
        named = {finding.path for finding in self.result.findings}
        for path, error in self.store.invalid_files():
            if path not in named:
                self.find(path, "damaged", str(error))


def _all_ids(sources: Iterable[VisibleCommit]) -> set[str]:
    return {trial_id for source in sources for trial_id in source.all_trials["trial_id"].to_pylist()}
