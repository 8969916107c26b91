"""What a store holds at one moment: the committed trials, each once, and the files that hold their rows.

The rule for readers: a trial is there if a commit names it (a trials file, or a compaction with its manifest) and every
file that this commit was written with is there in full. Of several commits of one trial the earliest wins, whole. What
a counting compaction replaces is not looked at.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from depthrate.storage.commit import ForeignFile, read_commit
from depthrate.storage.layout import (
    DATA_TABLES,
    FOLDERS,
    attempt_of_path,
    attempt_path,
    is_attempt_id,
    is_compacted,
    name_of_path,
    sweep_of_path,
)
from depthrate.storage.manifest import Manifest
from depthrate.storage.parquet import DataFile, read_parquet
from depthrate.storage.schema import STATE_COLUMNS, as_trials, no_rows
from depthrate.storage.store import Store, StoreError

LOOKS = 5
"""How often a store is listed anew when files vanish while it is read, before they are reported as missing."""
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Problem:
    """A file that is not what it should be, and what follows from it."""

    path: str
    reason: str
    trial_ids: tuple[str, ...] = ()
    """Committed trials that therefore do not count."""

    def __str__(self) -> str:
        lost = (
            f"; {len(self.trial_ids)} trials in it do not count, run the sweep again to redo them"
            if self.trial_ids
            else ""
        )
        return f"{self.path}: {self.reason}{lost}"


@dataclass(frozen=True)
class Source:
    """A commit or a compaction whose rows are read."""

    path: str
    """Its trials file or manifest: what made it count."""
    trials: pa.Table
    """Those of its trials that count (the others have an earlier commit elsewhere), with the snapshot's columns."""
    held: pa.Table
    """All of its trials."""
    is_whole: bool
    """Whether all of its rows count."""
    files: dict[str, list[DataFile]]
    manifest: Manifest | None = None

    def trial_ids(self) -> list[str]:
        """Return the trials that are read from here."""
        ids: list[str] = self.trials["trial_id"].to_pylist()
        return ids


@dataclass
class Snapshot:
    """The committed trials and their files."""

    sources: list[Source]
    beaten: list[Source]
    """Commits and compactions none of whose trials count: all of them are in `sources`."""
    problems: list[Problem]
    attempts: list[str]
    """Paths of the attempts' records that no compaction holds."""
    manifests: list[Manifest]
    """Compactions that count."""
    superseded: list[Manifest]
    """Compactions that a counting one replaces."""
    broken: list[Manifest]
    """Compactions that do not count, because a file of theirs is missing or damaged."""
    listing: dict[str, int]
    """Path -> bytes of everything that was there."""

    columns: Sequence[str]
    """Those of the trials table that were read."""

    @cached_property
    def trials(self) -> pa.Table:
        """The rows of the trials table, one a trial."""
        return pa.concat_tables([no_rows(self.columns), *(source.trials for source in self.sources)])

    def trial_ids(self) -> set[str]:
        """Return the identities of all committed trials."""
        return set(self.trials["trial_id"].to_pylist())

    def store(self, table: str) -> list[DataFile]:
        """Return a table's files."""
        return [file for source in self.sources for file in source.files.get(table, ())]

    @cached_property
    def source_of(self) -> dict[str, int]:
        """Trial -> index of the source its rows are read from."""
        return {trial_id: index for index, source in enumerate(self.sources) for trial_id in source.trial_ids()}

    @cached_property
    def sorted_trial_ids(self) -> list[str]:
        """The committed trials' identities in order."""
        return sorted(self.source_of)

    def finished_attempts(self) -> set[str]:
        """Return the attempts whose one commit is there; those that commit in parts may still go on."""
        loose = [name_of_path(source.path) for source in self.sources if source.manifest is None]
        held = [name for manifest in (*self.manifests, *self.superseded) for name in manifest.commits]
        return {name for name in (*loose, *held) if "-" not in name}

    def num_loose(self) -> dict[str, int]:
        """Return how many commits of each sweep no compaction holds."""
        counts: dict[str, int] = {}
        for source in self.sources:
            if source.manifest is None:
                sweep = sweep_of_path(source.path)
                counts[sweep] = counts.get(sweep, 0) + 1
        return counts


@dataclass
class SnapshotCache:
    """Commits and manifests already read, by path and size: they never change, so who looks often keeps them."""

    columns: Sequence[str] = STATE_COLUMNS
    """Of the trials table, what to read."""
    commits: dict[tuple[str, int], Commit | Problem] = field(default_factory=dict)
    manifests: dict[tuple[str, int], Manifest | Problem] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    """A commit or a compaction with all of its trials, whether they count or not."""

    path: str
    trials: pa.Table
    files: dict[str, list[DataFile]]
    manifest: Manifest | None = None


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
    for _ in range(LOOKS):
        listing = store.list_many(FOLDERS)
        look = _Look(store, listing, set(ignore), cache)
        snapshot = look.snapshot()
        commits = {path for path in listing if path.startswith(("manifest/", "trials/"))}
        if not look.missing or commits == before:
            break  # all there, or missing for good: nothing has changed since the last look
        before = commits
    return snapshot


class _Look:
    """One listing of a store, and what follows from it."""

    def __init__(self, store: Store, listing: dict[str, int], ignore: set[str], cache: SnapshotCache):
        self.store, self.listing, self.ignore, self.cache = store, listing, ignore, cache
        self.problems: list[Problem] = []
        self.missing = False
        self._known: set[str] = set()
        """Data files that something of ours names."""

    def snapshot(self) -> Snapshot:
        manifests = self._read_manifests()
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
        sources = resolve(commits)
        return Snapshot(
            sources=[source for source in sources if source.trials.num_rows],
            beaten=[source for source in sources if not source.trials.num_rows],
            problems=self.problems,
            attempts=[p for p in self.listing if p.startswith("attempts/") and p.endswith(".json") and p not in held],
            manifests=current,
            superseded=superseded,
            broken=broken,
            listing=self.listing,
            columns=self.cache.columns,
        )

    def _read_manifests(self) -> list[Manifest]:
        paths = [path for path in self.listing if path.startswith("manifest/") and path not in self.ignore]
        known = self.cache.manifests
        new = [path for path in paths if (path, self.listing[path]) not in known]
        for path, content in _read_all(self.store, new):
            if content is None:
                self.missing = True
                continue
            try:
                known[path, self.listing[path]] = Manifest.of(content)
            except _UNREADABLE as error:
                known[path, self.listing[path]] = Problem(path, f"is no manifest ({first_line(error)}); it is ignored")
        found = [known[path, self.listing[path]] for path in paths if (path, self.listing[path]) in known]
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
            key = (file.path, file.size)
            if key not in self.cache.commits:
                self._read_compacted_trials(file)
            read = self.cache.commits.get(key)
            if not isinstance(read, Commit):
                self.problems += [read] if isinstance(read, Problem) else []
                return None
            tables.append(read.trials)
        return Commit(manifest.path, pa.concat_tables([no_rows(self.cache.columns), *tables]), manifest.files, manifest)

    def _read_compacted_trials(self, file: DataFile) -> None:
        for path, content in _read_all(self.store, [file.path]):
            if content is None:
                self.missing = True
                return
            try:
                if not file.has_content(content):
                    raise ValueError("its sha256 differs")
                columns = self.cache.columns
                table = as_trials(read_parquet(content, columns), columns)
                self.cache.commits[path, file.size] = Commit(path, table, {})
            except _UNREADABLE as error:
                reason = f"is damaged ({first_line(error)}); its {file.rows} trials do not count, run the sweep again"
                self.cache.commits[path, file.size] = Problem(path, reason)

    def _whole_commits(self, hidden: set[str]) -> Iterator[Commit]:
        paths = [p for p in self.listing if p.startswith("trials/") and not is_compacted(p)]
        paths = [path for path in paths if path not in hidden and path not in self.ignore]
        self._read_commits([path for path in paths if (path, self.listing[path]) not in self.cache.commits])
        for path in paths:
            commit = self.cache.commits.get((path, self.listing[path]))
            if isinstance(commit, Problem):
                self.problems.append(commit)
            elif commit is not None:
                named = [file for tables in commit.files.values() for file in tables]
                self._known.update(file.path for file in named)
                faults = [(file.path, fault) for file in named if (fault := self._fault(file, path)) is not None]
                if not faults:
                    yield commit
                    continue
                trial_ids = tuple(commit.trials["trial_id"].to_pylist())
                self.problems += [Problem(faulty, fault, trial_ids) for faulty, fault in faults]

    def _read_commits(self, paths: list[str]) -> None:
        read: list[Commit] = []
        for path, content in _read_all(self.store, paths):
            if content is None:
                self.missing = True
            elif not path.endswith(".parquet"):
                reason = "is not a Parquet file; it is ignored, move it away"
                self.cache.commits[path, self.listing[path]] = Problem(path, reason)
            else:
                result = _parse_commit(path, content, self.cache.columns)
                if isinstance(result, Problem):
                    self.cache.commits[path, self.listing[path]] = result
                else:
                    read.append(result)
        # one table with slices of it takes a tenth of the memory of thousands of small tables
        empty = no_rows(self.cache.columns)
        rows = pa.concat_tables([empty, *(commit.trials for commit in read)]).combine_chunks()
        start = 0
        for commit in read:
            trials = rows.slice(start, commit.trials.num_rows)
            start += commit.trials.num_rows
            self.cache.commits[commit.path, self.listing[commit.path]] = Commit(commit.path, trials, commit.files)

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
        record = attempt_path(sweep_of_path(path), attempt)
        return record in self.listing or self.store.size(record) is not None


def _read_all(store: Store, paths: list[str]) -> Iterator[tuple[str, bytes | None]]:
    """Yield the files' contents, None for those that have vanished; a store that stutters is asked again."""
    for path, content in store.read_many(paths):
        if isinstance(content, FileNotFoundError):
            yield path, None
        elif isinstance(content, OSError):
            yield path, _read_patiently(store, path)
        else:
            yield path, content


def _read_patiently(store: Store, path: str) -> bytes | None:
    for pause_s in (0.2, 1.0, None):
        try:
            return store.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if pause_s is None:
                raise StoreError(f"{path} in {store.url} cannot be read: {error}; try again") from error
            time.sleep(pause_s)
    raise AssertionError("the last round returned or raised")


def _parse_commit(path: str, content: bytes, columns: Sequence[str]) -> Commit | Problem:
    try:
        trials, data = read_commit(content, columns)
    except ForeignFile as error:
        return Problem(path, f"{error}; it is ignored, move it away")
    except _UNREADABLE as error:
        reason = f"cannot be read as Parquet ({first_line(error)}); its trials do not count, run the sweep again"
        return Problem(path, reason)
    return Commit(path, trials, {name: [file] for name, file in data.items()})


def resolve(commits: list[Commit]) -> list[Source]:
    """Return the commits with those of their trials that count: the earliest commit of each wins, whole.

    Copies of one row, which overlapping compactions leave, are taken from the first: compactions stand before commits.
    """
    if not commits:
        return []
    rows = pa.concat_tables([commit.trials for commit in commits])
    if len(set(rows["trial_id"].to_pylist())) == rows.num_rows:
        return [Source(c.path, c.trials, c.trials, True, c.files, c.manifest) for c in commits]
    import pyarrow.compute as pc  # 40 ms that a store without doubles does not need

    keys = rows.select(["trial_id", "committed_at", "attempt_id"]).append_column(
        "row", pa.array(range(rows.num_rows), pa.int64())
    )
    keys = keys.sort_by([(name, "ascending") for name in keys.column_names])
    ids = keys["trial_id"].combine_chunks()
    is_first = pa.concat_arrays([pa.array([True]), pc.not_equal(ids[1:], ids[:-1])])
    wins = pc.is_in(pa.array(range(rows.num_rows), pa.int64()), keys["row"].filter(is_first).combine_chunks())
    sources, start = [], 0
    for commit in commits:
        trials = commit.trials.filter(wins.slice(start, commit.trials.num_rows))
        start += commit.trials.num_rows
        is_whole = trials.num_rows == commit.trials.num_rows
        sources.append(Source(commit.path, trials, commit.trials, is_whole, commit.files, commit.manifest))
    return sources


def read_commit_of(store: Store, source: Source) -> Commit:
    """Return all of a source's trials, also those that do not count, with all their columns.

    Raises:
        FileNotFoundError: a compaction has replaced it meanwhile.
        pa.ArrowException, OSError: it is damaged.
    """
    if source.manifest is None:
        trials = read_commit(store.read(source.path))[0]
    else:
        named = source.files.get("trials", ())
        trials = pa.concat_tables([no_rows(), *(as_trials(read_parquet(store.read(file.path))) for file in named)])
    return Commit(source.path, trials, source.files, source.manifest)


def sample_trials(store: Store, snapshot: Snapshot, at_least: int) -> pa.Table:
    """Return all columns of some trials, those committed last, or of all if there are fewer."""
    tables = [no_rows()]
    for source in reversed(snapshot.sources):
        if sum(table.num_rows for table in tables) >= at_least:
            break
        with contextlib.suppress(FileNotFoundError):
            tables.append(read_commit_of(store, source).trials)
    return pa.concat_tables(tables)


def counting_rows(source: Source, table: pa.Table) -> pa.Table:
    """Return those of a source's rows that count."""
    if source.is_whole:
        return table
    import pyarrow.compute as pc

    return table.filter(pc.is_in(table["trial_id"], source.trials["trial_id"].combine_chunks()))


def find_broken_files(store: Store, named: Sequence[DataFile]) -> list[str]:
    """Read files whole and return the paths of those that are missing or do not hold what was committed."""
    expected = {file.path: file for file in named}
    return [
        path
        for path, content in store.read_many(list(expected))
        if isinstance(content, OSError) or not expected[path].has_content(content)
    ]


def first_line(error: Exception) -> str:
    """Return the beginning of an error's text."""
    return str(error).split("\n")[0][:200]
