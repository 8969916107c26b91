"""What a store holds at one moment: the committed trials, each once, and the files that hold their rows.

The rule for readers: a trial is there if a commit names it (a trials file, or a compaction with its manifest) and every
file that this commit was written with is there in full. Of several commits of one trial the earliest wins, whole, among
those whose code counts (`storage.catalog.code_decisions`) and that were not removed (`storage.catalog.removals`). What a
counting compaction replaces is not looked at.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from depthrate.storage.catalog.code_decisions import Decisions
from depthrate.storage.catalog.removals import Removals
from depthrate.storage.catalog.requested_trials import CorruptFileError
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.source import Commit, Problem, VisibleCommit, read_commit_of, resolve
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
"""How often a store is listed anew when files vanish while it is read, before they are reported as missing."""
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass
class Snapshot:
    """The committed trials and their files."""

    sources: list[VisibleCommit]
    superseded_commits: list[VisibleCommit]
    """Commits and compactions none of whose trials count: all of them are in `sources`."""
    problems: list[Problem]
    attempts: list[str]
    """Paths of the attempts' records that no compaction holds."""
    manifests: list[Manifest]
    """Compactions that count."""
    superseded_manifests: list[Manifest]
    """Compactions that a counting one replaces."""
    broken: list[Manifest]
    """Compactions that do not count, because a file of theirs is missing or damaged."""
    listing: dict[str, int]
    """Path -> bytes of everything that was there."""

    columns: Sequence[str]
    """Those of the trials table that were read."""
    decisions: Decisions = field(default_factory=Decisions)
    """Which versions of tasks' code count."""
    removals: Removals = field(default_factory=Removals)
    """What users removed."""

    @cached_property
    def trials(self) -> pa.Table:
        """The rows of the trials table, one a trial."""
        return pa.concat_tables([empty_trials(self.columns), *(source.trials for source in self.sources)])

    def trial_ids(self) -> set[str]:
        """Return the identities of all committed trials."""
        return set(self.trials["trial_id"].to_pylist())

    def files(self, table: str) -> list[DataFile]:
        """Return a table's files."""
        return [file for source in self.sources for file in source.files.get(table, ())]

    @cached_property
    def commit_index(self) -> dict[str, int]:
        """Trial -> index of the source its rows are read from."""
        return {trial_id: index for index, source in enumerate(self.sources) for trial_id in source.trial_ids()}

    @cached_property
    def sorted_trial_ids(self) -> list[str]:
        """The committed trials' identities in order."""
        return sorted(self.commit_index)

    def finished_attempts(self) -> set[str]:
        """Return the attempts whose one commit is there; those that commit in parts may still go on."""
        loose = [name_of_path(source.path) for source in self.sources if source.manifest is None]
        held = [name for manifest in (*self.manifests, *self.superseded_manifests) for name in manifest.commits]
        return {name for name in (*loose, *held) if "-" not in name}

    def num_loose(self) -> dict[str, int]:
        """Return how many commits of each sweep no compaction holds."""
        counts: dict[str, int] = {}
        for source in self.sources:
            if source.manifest is None:
                sweep = sweep_of_path(source.path)
                counts[sweep] = counts.get(sweep, 0) + 1
        return counts


RESCAN_DELAYS_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Between two looks at a store whose files are being replaced."""
UNSTABLE_LISTING = (
    "files were replaced during every look, so trials may be missing from this answer: ask again, "
    "and compact with a longer grace"
)


def take_snapshot(store: Store, *, ignore: Iterable[str] = (), cache: SnapshotCache | None = None) -> Snapshot:
    """List the store and read its commits; `ignore` names files that are known to be broken, or commits to leave out.

    The trials come with the columns that the cache is for.

    Damaged and foreign files are reported as problems and never counted. A file that vanishes meanwhile (a compaction
    has replaced it) makes it look again.

    Raises:
        StoreError: a commit is there and cannot be read just now; that must not make its trials pending.
    """
    cache = SnapshotCache() if cache is None else cache
    before: set[str] = set()
    for _ in range(MAX_SCANS):
        listing, is_settled = list_stable(store)
        look = _StoreScan(store, listing, set(ignore), cache)
        if not is_settled:
            look.problems.append(Problem("manifest", UNSTABLE_LISTING))
        snapshot = look.snapshot()
        commits = {path for path in listing if path.startswith(("manifest/", "trials/"))}
        if not look.missing or commits == before:
            break  # all there, or missing for good: nothing has changed since the last look
        before = commits
    cache.drop_unused()
    return snapshot


def list_stable(store: Store) -> tuple[dict[str, int], bool]:
    """List what readers need until nothing vanishes between two looks; return it, and whether that was reached.

    A listing is no moment: files that a compaction replaces while it runs may be in it neither as they were nor as they
    are. New commits are no reason to look again.
    """
    listing = store.list_many(FOLDERS)
    for pause_s in RESCAN_DELAYS_S:
        again = store.list_many(("trials", "manifest"))
        seen = {path: size for path, size in listing.items() if path.startswith(("trials/", "manifest/"))}
        new = again.keys() - seen.keys()
        if seen.items() <= again.items() and not any(path.startswith("manifest/") for path in new):
            return listing, True
        time.sleep(pause_s)
        listing = store.list_many(FOLDERS)
    return listing, False


def require_intact(snapshot: Snapshot, folders: tuple[str, ...] = ("manifest/", "removals/", "decisions/")) -> None:
    """Check that all files in some folders could be read: who deletes or hides rests on all of them.

    Raises:
        CorruptFileError: naming the first that could not.
    """
    for problem in snapshot.problems:
        if problem.path.startswith(folders):
            raise CorruptFileError(
                f"{problem.path} {problem.reason}; while that is so nothing is removed: put it back from a backup, or move it "
                "aside: depthrate verify --repair"
            )


def named_files(snapshot: Snapshot) -> set[str]:
    """Return the files, commits and manifests that commits and compactions rest on."""
    sources = (*snapshot.sources, *snapshot.superseded_commits)
    manifests = (*snapshot.manifests, *snapshot.superseded_manifests)
    files = {file.path for source in sources for named in source.files.values() for file in named}
    files |= {file.path for manifest in manifests for file in manifest.all_files()}
    return files | {source.path for source in sources} | {manifest.path for manifest in manifests}


def replaced_files(snapshot: Snapshot) -> set[str]:
    """Return the files of commits that counting compactions replace."""
    return {path for m in (*snapshot.manifests, *snapshot.superseded_manifests) for path in m.replaced_paths()}


class _StoreScan:
    """One listing of a store, and what follows from it."""

    def __init__(self, store: Store, listing: dict[str, int], ignore: set[str], cache: SnapshotCache):
        self.store, self.listing, self.ignore, self.cache = store, listing, ignore, cache
        self.problems: list[Problem] = []
        self.missing = False
        self._known: set[str] = set()
        """Data files that something of ours names."""

    def snapshot(self) -> Snapshot:
        manifests = self._manifests()
        broken = [manifest for manifest in manifests if not self._is_whole(manifest)]
        replaced = {compaction for m in manifests if m not in broken for compaction in m.compactions}
        superseded = [manifest for manifest in manifests if manifest.compaction_id in replaced]
        broken = [manifest for manifest in broken if manifest not in superseded]
        current = [manifest for manifest in manifests if manifest not in broken and manifest not in superseded]
        hidden = {path for manifest in (*current, *superseded) for path in manifest.replaced_trials()}
        for manifest in (*current, *superseded):
            self._known.update(manifest.replaced_paths())
        commits = [commit for manifest in current if (commit := self._compacted(manifest)) is not None]
        commits += self._whole_commits(hidden)
        held = {
            path
            for manifest in (*current, *superseded)
            for path, size in manifest.replaced_records().items()
            if self.listing.get(path) == size
        }
        self._find_foreign()
        decisions = self._read_decisions()
        removals = self._read_removals()
        sources = resolve(commits, decisions, removals)
        return Snapshot(
            sources=[source for source in sources if source.trials.num_rows],
            superseded_commits=[source for source in sources if not source.trials.num_rows],
            problems=self.problems,
            attempts=[p for p in self.listing if p.startswith("attempts/") and p.endswith(".json") and p not in held],
            manifests=current,
            superseded_manifests=superseded,
            broken=broken,
            listing=self.listing,
            columns=self.cache.columns,
            decisions=decisions,
            removals=removals,
        )

    def _read_decisions(self) -> Decisions:
        listed = {path: size for path, size in self.listing.items() if path.startswith("decisions/")}
        found = self.cache.decisions_of(self.store, {p: size for p, size in listed.items() if p not in self.ignore})
        self.problems += [each for each in found.values() if isinstance(each, Problem)]
        return Decisions.from_decisions({path: each for path, each in found.items() if not isinstance(each, Problem)})

    def _read_removals(self) -> Removals:
        listed = {p: size for p, size in self.listing.items() if p.startswith("removals/") and p not in self.ignore}
        removals, problems = self.cache.removals_of(self.store, listed)
        self.problems += problems
        return removals

    def _manifests(self) -> list[Manifest]:
        paths = [path for path in self.listing if path.startswith("manifest/") and path not in self.ignore]
        found = self.cache.manifests_of(self.store, {path: self.listing[path] for path in paths})
        self.missing = self.missing or len(found) < len(paths)
        self.problems += [each for each in found if isinstance(each, Problem)]
        return [each for each in found if isinstance(each, Manifest)]

    def _is_whole(self, manifest: Manifest) -> bool:
        named = manifest.all_files()
        self._known.update(file.path for file in named)
        faults = [(file.path, fault) for file in named if (fault := self._fault(file, manifest.path)) is not None]
        unread = "its compaction does not count, nor do its trials unless the files it replaced are still there"
        self.problems += [Problem(faulty, f"{fault}; {unread}") for faulty, fault in faults]
        return not faults

    def _compacted(self, manifest: Manifest) -> Commit | None:
        """Return a counting compaction with its trials."""
        tables = []
        for file in manifest.files.get("trials", ()):
            read = self.cache.compacted_trials(self.store, file)
            self.missing = self.missing or read is None
            if not isinstance(read, Commit):
                self.problems += [read] if isinstance(read, Problem) else []
                return None
            tables.append(read.trials)
        return Commit(
            manifest.path, pa.concat_tables([empty_trials(self.cache.columns), *tables]), manifest.files, manifest
        )

    def _whole_commits(self, hidden: set[str]) -> Iterator[Commit]:
        paths = [p for p in self.listing if p.startswith("trials/") and not is_compacted(p)]
        paths = [path for path in paths if path not in hidden and path not in self.ignore]
        found = self.cache.commits_of(self.store, {path: self.listing[path] for path in paths})
        self.missing = self.missing or len(found) < len(paths)
        for path, commit in found.items():
            if isinstance(commit, Problem):
                self.problems.append(commit)
            else:
                named = [file for tables in commit.files.values() for file in tables]
                self._known.update(file.path for file in named)
                faults = [(file.path, fault) for file in named if (fault := self._fault(file, path)) is not None]
                if not faults:
                    yield commit
                    continue
                trial_ids = tuple(commit.trials["trial_id"].to_pylist())
                self.problems += [Problem(faulty, fault, trial_ids) for faulty, fault in faults]

    def _fault(self, file: DataFile, commit: str) -> str | None:
        """Return how a file is not as its commit says."""
        # A commit made while the listing ran may be missing from it: ask again before calling a file damaged.
        size = self.listing.get(file.path)
        if size != file.size:
            size = self.store.size(file.path)
        if file.path in self.ignore:
            return "its content is damaged"
        if size is None:
            self.missing = True
            return f"is missing, though {commit} was committed with it"
        if size != file.size:
            return f"is damaged: it has {size} bytes and was committed with {file.size}"
        return None

    def _find_foreign(self) -> None:
        """Report data files that neither a commit names nor any attempt or compaction of ours can have written."""
        for path in self.listing:
            if path.split("/")[0] not in DATA_TABLES or path in self._known or is_compacted(path):
                continue
            attempt = attempt_of_path(path)
            if path.endswith(".parquet") and (is_attempt_id(attempt) or self._has_record(path, attempt)):
                continue  # left by an attempt that died before its commit, or being written
            self.problems.append(Problem(path, "was not written by depthrate; it is ignored, move it away"))

    def _has_record(self, path: str, attempt: str) -> bool:
        try:
            record = attempt_path(sweep_of_path(path), attempt)
        except ForeignNameError:  # nor has anything else of ours such a name
            return False
        return record in self.listing or self.store.size(record) is not None


def sample_trials(store: Store, snapshot: Snapshot, at_least: int) -> pa.Table:
    """Return all columns of some trials, those committed last, or of all if there are fewer."""
    tables = [empty_trials()]
    for source in reversed(snapshot.sources):
        if sum(table.num_rows for table in tables) >= at_least:
            break
        with contextlib.suppress(FileNotFoundError):
            tables.append(read_commit_of(store, source).trials.select(TRIALS.names))
    return pa.concat_tables(tables)
