"""A store's content at one moment: the committed trials, without duplicates, and the files that hold their rows.

The rule for readers: a trial exists if a commit names it (a trials file, or a compaction with its manifest) and every
file written with this commit exists in full. If a trial has several commits, the earliest one applies as a whole, among the
commits whose code is accepted (`storage.catalog.code_decisions`) and that were not removed (`storage.catalog.removals`).
Commits replaced by a visible compaction are not read.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from depthrate.storage.catalog.code_decisions import Decision, Decisions
from depthrate.storage.catalog.removals import Removal, RemovalKind, Removals
from depthrate.storage.catalog.requested_trials import CorruptFileError, requested_ids
from depthrate.storage.commits.cache import Entry, SnapshotCache
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.visible_commits import Commit, Problem, VisibleCommit, read_trials, resolve
from depthrate.storage.files.parquet import DataFile
from depthrate.storage.files.paths import (
    DATA_TABLES,
    FOLDERS,
    ForeignNameError,
    attempt_of_path,
    attempt_path,
    is_attempt_id,
    is_compacted,
    name_of_path,
    sweep_of_path,
)
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import TRIALS, empty_trials

MAX_SCANS = 5
"""Maximum number of scans while files vanish during reading, before they are reported as missing."""


@dataclass
class Snapshot:
    """The committed trials and their files."""

    sources: list[VisibleCommit]
    superseded_commits: list[VisibleCommit]
    """Commits and compactions without visible trials, since all of their trials are in `sources`."""
    problems: list[Problem]
    attempts: list[str]
    """Paths of the attempts' records that are not compacted."""
    manifests: list[Manifest]
    """Visible compactions."""
    superseded_manifests: list[Manifest]
    """Compactions that a visible one replaces."""
    broken: list[Manifest]
    """Compactions that are not visible, because one of their files is missing or corrupt."""
    listing: dict[str, int]
    """Path -> bytes of every file listed."""

    columns: Sequence[str]
    """Columns of the trials table that were read."""
    decisions: Decisions = field(default_factory=Decisions)
    """Accepted versions of tasks' code."""
    removals: Removals = field(default_factory=Removals)
    """Rows removed by users."""

    @cached_property
    def trials(self) -> pa.Table:
        """The rows of the trials table, one per trial."""
        parts = (source.trials.select(self.columns) for source in self.sources)
        return pa.concat_tables([empty_trials(self.columns), *parts])

    def trial_ids(self) -> set[str]:
        """Return the IDs of all committed trials."""
        return set(self.trials["trial_id"].to_pylist())

    def files(self, table: str) -> list[DataFile]:
        """Return a table's files."""
        return [file for source in self.sources for file in source.files.get(table, ())]

    @cached_property
    def commit_index(self) -> dict[str, int]:
        """Trial -> index of the source from which its rows are read."""
        return {trial_id: index for index, source in enumerate(self.sources) for trial_id in source.trial_ids()}

    @cached_property
    def sorted_trial_ids(self) -> list[str]:
        """IDs of the committed trials in order."""
        return sorted(self.commit_index)

    def finished_attempts(self) -> set[str]:
        """Return the attempts whose only commit exists. Attempts that commit in parts may still be running."""
        loose = [name_of_path(source.path) for source in self.sources if source.manifest is None]
        compacted = [name for manifest in (*self.manifests, *self.superseded_manifests) for name in manifest.commits]
        return {name for name in (*loose, *compacted) if "-" not in name}

    def num_loose(self) -> dict[str, int]:
        """Return the number of each sweep's commits that are not compacted."""
        return Counter(sweep_of_path(source.path) for source in self.sources if source.manifest is None)


RESCAN_DELAYS_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Delays in seconds between scans of a store whose files are being replaced."""
UNSTABLE_LISTING = (
    "files were replaced during every scan, so trials may be missing from this result. Try again, "
    "and compact with longer retention"
)


def take_snapshot(store: Store, *, ignore: Iterable[str] = (), cache: SnapshotCache | None = None) -> Snapshot:
    """List the store and read its commits.

    Corrupt and foreign files are reported as problems and are never visible. If a file vanishes during reading (a
    compaction has replaced it), the store is scanned again.

    Args:
        ignore: Paths of files known to be corrupt, or commits to leave out.
        cache: Cache with the columns of trials to read.

    Raises:
        StoreError: An existing commit cannot be read at the moment. Its trials must not become pending.
    """
    cache = SnapshotCache() if cache is None else cache
    previous: set[str] = set()
    for _ in range(MAX_SCANS):
        listing, is_stable = list_stable(store)
        scan = _StoreScan(store, listing, set(ignore), cache)
        if not is_stable:
            scan.problems.append(Problem("manifest", UNSTABLE_LISTING))
        snapshot = scan.snapshot()
        commits = {path for path in listing if path.startswith(("manifest/", "trials/"))}
        if not scan.missing or commits == previous:
            break  # complete, or permanently missing: nothing has changed since the last scan
        previous = commits
    cache.drop_unused()
    return snapshot


VISIBILITY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Delays in seconds between scans: long enough for a listing that lags by half a minute."""


def await_commits(store: Store, trial_ids: Set[str], sleep: Callable[[float], None] = time.sleep) -> Snapshot:
    """Return a snapshot with the commits of these trials, or the last snapshot taken if some do not become visible.

    Raises:
        StoreError, OSError: The store cannot be read.
    """
    snapshot = take_snapshot(store)
    for delay_s in VISIBILITY_DELAYS_S:
        if trial_ids <= snapshot.trial_ids():
            break
        sleep(delay_s)
        snapshot = take_snapshot(store)
    return snapshot


def list_stable(store: Store) -> tuple[dict[str, int], bool]:
    """List the store until two scans agree. Return the listing and whether two scans agreed.

    A listing is not atomic: if a compaction replaces files meanwhile, it may contain neither the old files nor the new ones.
    New commits do not require another scan.
    """
    listing = _list_files(store, FOLDERS)
    for delay_s in RESCAN_DELAYS_S:
        second = _list_files(store, ("trials", "manifest"))
        first = {path: size for path, size in listing.items() if path.startswith(("trials/", "manifest/"))}
        new = second.keys() - first.keys()
        if first.items() <= second.items() and not any(path.startswith("manifest/") for path in new):
            return listing, True
        time.sleep(delay_s)
        listing = _list_files(store, FOLDERS)
    return listing, False


def _list_files(store: Store, folders: Sequence[str]) -> dict[str, int]:
    """List files without the tables' Delta logs, which are for other programs."""
    return {path: size for path, size in store.list_many(folders).items() if "/_delta_log/" not in path}


def require_intact(snapshot: Snapshot, folders: tuple[str, ...] = ("manifest/", "removals/", "decisions/")) -> None:
    """Check that all files in some folders could be read, since deleting and hiding rely on all of them.

    Raises:
        CorruptFileError: A file could not be read. The message names the first one.
    """
    for problem in snapshot.problems:
        if problem.path.startswith(folders):
            raise CorruptFileError(
                f"{problem.path} {problem.reason}. Nothing is removed until this is fixed. Restore the file from a backup, or "
                "move it aside (depthrate verify --repair)."
            )


def named_files(snapshot: Snapshot) -> set[str]:
    """Return the files, commits and manifests that make up the visible commits and compactions."""
    sources = (*snapshot.sources, *snapshot.superseded_commits)
    manifests = (*snapshot.manifests, *snapshot.superseded_manifests)
    files = {file.path for source in sources for file in source.data_files()}
    files |= {file.path for manifest in manifests for file in manifest.all_files()}
    return files | {source.path for source in sources} | {manifest.path for manifest in manifests}


def replaced_files(snapshot: Snapshot) -> set[str]:
    """Return the files of commits that visible compactions replace."""
    return {path for m in (*snapshot.manifests, *snapshot.superseded_manifests) for path in m.replaced_paths()}


class _StoreScan:
    """One listing of a store, and the snapshot derived from it."""

    def __init__(self, store: Store, listing: dict[str, int], ignore: set[str], cache: SnapshotCache):
        self.store, self.listing, self.ignore, self.cache = store, listing, ignore, cache
        self.problems: list[Problem] = []
        self.missing = False
        self._named: set[str] = set()
        """Data files named by a commit or a compaction."""

    def snapshot(self) -> Snapshot:
        results = self._read("manifest/", Manifest.from_bytes, "is not a manifest ({}). It is ignored")
        manifests = list(results.values())
        broken = [manifest for manifest in manifests if not self._is_complete(manifest)]
        replaced = {compaction for m in manifests if m not in broken for compaction in m.compactions}
        superseded = [manifest for manifest in manifests if manifest.compaction_id in replaced]
        broken = [manifest for manifest in broken if manifest not in superseded]
        current = [manifest for manifest in manifests if manifest not in broken and manifest not in superseded]
        # relative to the table's folder: building the path of each file in all tables took a third of a scan
        replaced = {f"sweep={m.sweep}/{name}.parquet" for m in (*current, *superseded) for name in m.commits}
        commits = [commit for manifest in current if (commit := self._compacted(manifest)) is not None]
        commits += self._complete_commits(replaced)
        compacted = {
            (f"attempts/sweep={manifest.sweep}/{attempt}.json", size)
            for manifest in (*current, *superseded)
            for attempt, size in manifest.attempts.items()
        }
        self._find_foreign(replaced)
        decisions = Decisions.from_decisions(
            self._read("decisions/", Decision.from_bytes, "is not a decision ({}). It is ignored")
        )
        entries = self._read(
            "removals/", Removal.from_bytes, "is not a removal ({}). The rows it removed are visible again"
        ).values()
        of_sweeps = any(entry.kind is RemovalKind.SWEEP for entry in entries)
        requested = requested_ids(self.store, self.cache.requested) if of_sweeps else frozenset[str]()
        removals = Removals.from_entries(entries, requested)
        sources = resolve(commits, decisions, removals)
        return Snapshot(
            sources=[source for source in sources if source.trials.num_rows],
            superseded_commits=[source for source in sources if not source.trials.num_rows],
            problems=self.problems,
            attempts=[
                path
                for path, size in self.listing.items()
                if path.startswith("attempts/") and path.endswith(".json") and (path, size) not in compacted
            ],
            manifests=current,
            superseded_manifests=superseded,
            broken=broken,
            listing=self.listing,
            columns=self.cache.columns,
            decisions=decisions,
            removals=removals,
        )

    def _read(self, folder: str, parse: Callable[[str, bytes], Entry], reason: str) -> dict[str, Entry]:
        """Return path -> content of the files in a folder. Invalid files are left out and reported."""
        listed = {p: size for p, size in self.listing.items() if p.startswith(folder) and p not in self.ignore}
        results = self.cache.read(self.store, listed, parse, reason)
        self.missing = self.missing or len(results) < len(listed)
        self.problems += [result for result in results.values() if isinstance(result, Problem)]
        return {path: result for path, result in results.items() if not isinstance(result, Problem)}

    def _is_complete(self, manifest: Manifest) -> bool:
        faults = self._faults(manifest.all_files(), manifest.path)
        effect = "Its compaction is not visible, nor are its trials unless the files it replaced still exist"
        self.problems += [Problem(path, f"{fault}. {effect}") for path, fault in faults]
        return not faults

    def _compacted(self, manifest: Manifest) -> Commit | None:
        """Return a visible compaction with its trials."""
        tables = []
        for file in manifest.files.get("trials", ()):
            result = self.cache.compacted_trials(self.store, file)
            self.missing = self.missing or result is None
            if not isinstance(result, Commit):
                self.problems += [result] if isinstance(result, Problem) else []
                return None
            tables.append(result.trials)
        return Commit(
            manifest.path, pa.concat_tables([empty_trials(self.cache.columns), *tables]), manifest.files, manifest
        )

    def _complete_commits(self, replaced: set[str]) -> Iterator[Commit]:
        paths = [p for p in self.listing if p.startswith("trials/") and p.partition("/")[2] not in replaced]
        paths = [path for path in paths if not is_compacted(path) and path not in self.ignore]
        results = self.cache.commits(self.store, {path: self.listing[path] for path in paths})
        self.missing = self.missing or len(results) < len(paths)
        for path, commit in results.items():
            if isinstance(commit, Problem):
                self.problems.append(commit)
            else:
                faults = self._faults([file for tables in commit.files.values() for file in tables], path)
                if not faults:
                    yield commit
                    continue
                trial_ids = tuple(commit.trials["trial_id"].to_pylist())
                self.problems += [Problem(data_path, fault, trial_ids) for data_path, fault in faults]

    def _faults(self, named: Sequence[DataFile], commit: str) -> list[tuple[str, str]]:
        """Return (path, fault) of the files that differ from the entries of a commit or manifest."""
        self._named.update(file.path for file in named)
        return [(file.path, fault) for file in named if (fault := self._fault(file, commit)) is not None]

    def _fault(self, file: DataFile, commit: str) -> str | None:
        """Return a description of the difference between a file and its commit's entry, or None."""
        # A commit made during the listing may be missing from it: check again before reporting a file as corrupt.
        size = self.listing.get(file.path)
        if size != file.size:
            size = self.store.size(file.path)
        if file.path in self.ignore:
            return "its content is corrupt"
        if size is None:
            self.missing = True
            return f"is missing, though {commit} was committed with it"
        if size != file.size:
            return f"is corrupt: it has {size} bytes and was committed with {file.size}"
        return None

    def _find_foreign(self, replaced: set[str]) -> None:
        """Report data files that no commit names and that no attempt or compaction could have written."""
        for path in self.listing:
            table, _, below = path.partition("/")
            if table not in DATA_TABLES or path in self._named or below in replaced or is_compacted(path):
                continue
            attempt = attempt_of_path(path)
            if path.endswith(".parquet") and (is_attempt_id(attempt) or self._has_record(path, attempt)):
                continue  # orphaned by an attempt that ended before its commit, or being written
            self.problems.append(Problem(path, "was not written by depthrate. It is ignored. Move it away"))

    def _has_record(self, path: str, attempt: str) -> bool:
        try:
            record = attempt_path(sweep_of_path(path), attempt)
        except ForeignNameError:  # depthrate does not create such names
            return False
        return record in self.listing or self.store.size(record) is not None


def sample_trials(store: Store, snapshot: Snapshot, at_least: int) -> pa.Table:
    """Return all columns of at least `at_least` of the last committed trials, or of all trials if there are fewer."""
    tables = [empty_trials()]
    for source in reversed(snapshot.sources):
        if sum(table.num_rows for table in tables) >= at_least:
            break
        with contextlib.suppress(FileNotFoundError):
            tables += [part.select(TRIALS.names) for part in read_trials(store, source)]
    return pa.concat_tables(tables)
