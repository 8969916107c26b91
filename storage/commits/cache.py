"""Cache of commits and manifests: they never change, so frequent readers keep the visible ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from depthrate.storage.catalog.code_decisions import Decision
from depthrate.storage.catalog.removals import PurgeRecord, Removal, RemovalKind, Removals
from depthrate.storage.catalog.requested_trials import ListCache, requested_ids
from depthrate.storage.commits.commit import ForeignFile, NewerFile
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.source import Commit, Problem, first_line, parse_commit
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, DataFile, read_parquet
from depthrate.storage.files.paths import is_purge_record
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.schema import STATE_COLUMNS, as_trials, empty_trials

COMMITS_PER_TABLE = 200
"""Commits read before they become slices of one table: until then each takes about ten times its memory."""


@dataclass
class SnapshotCache:
    """Commits and manifests already read, by path and size, as far as the last scan needed them."""

    columns: Sequence[str] = STATE_COLUMNS
    """Columns of the trials table to read."""
    commits: dict[tuple[str, int], Commit | Problem] = field(default_factory=dict)
    manifests: dict[tuple[str, int], Manifest | Problem] = field(default_factory=dict)
    decisions: dict[tuple[str, int], Decision | Problem] = field(default_factory=dict)
    removals: dict[tuple[str, int], Removal | PurgeRecord | Problem] = field(default_factory=dict)
    requested: ListCache = field(default_factory=dict)
    _needed: set[tuple[str, int]] = field(default_factory=set)
    """Keys used since the last `drop_unused`."""

    def drop_unused(self) -> None:
        """Drop entries not used since the last call: files replaced by a compaction, or deleted."""
        for cached in (self.commits, self.manifests, self.decisions, self.removals):
            for key in cached.keys() - self._needed:
                del cached[key]
        self._needed.clear()

    def manifests_of(self, store: Store, listed: Mapping[str, int]) -> list[Manifest | Problem]:
        """Return the manifests at these paths (path -> bytes), without vanished files."""
        self._needed.update(listed.items())
        new = [path for path, size in listed.items() if (path, size) not in self.manifests]
        for path, content in _read_all(store, new):
            if content is None:
                continue
            try:
                self.manifests[path, listed[path]] = Manifest.from_bytes(path, _require_valid(content))
            except UNREADABLE_ERRORS as error:
                reason = f"is not a manifest ({first_line(error)}). It is ignored"
                self.manifests[path, listed[path]] = Problem(path, reason)
        return [self.manifests[key] for key in listed.items() if key in self.manifests]

    def decisions_of(self, store: Store, listed: Mapping[str, int]) -> dict[str, Decision | Problem]:
        """Return the decisions at these paths (path -> bytes), without vanished files."""
        self._needed.update(listed.items())
        new = [path for path, size in listed.items() if (path, size) not in self.decisions]
        for path, content in _read_all(store, new):
            try:
                if content is not None:
                    self.decisions[path, listed[path]] = Decision.from_bytes(path, _require_valid(content))
            except UNREADABLE_ERRORS as error:
                reason = f"is not a decision ({first_line(error)}). It is ignored"
                self.decisions[path, listed[path]] = Problem(path, reason)
        return {path: self.decisions[path, size] for path, size in listed.items() if (path, size) in self.decisions}

    def removals_of(self, store: Store, listed: Mapping[str, int]) -> tuple[Removals, list[Problem]]:
        """Return the removals at these paths (path -> bytes), and the problems of invalid ones."""
        self._needed.update(listed.items())
        new = [path for path, size in listed.items() if (path, size) not in self.removals]
        for path, content in _read_all(store, new):
            try:
                if content is not None:
                    kind = PurgeRecord if is_purge_record(path) else Removal
                    self.removals[path, listed[path]] = kind.from_bytes(path, _require_valid(content))
            except UNREADABLE_ERRORS as error:
                reason = f"is not a removal ({first_line(error)}). The rows it removed are visible again"
                self.removals[path, listed[path]] = Problem(path, reason)
        results = [self.removals[key] for key in listed.items() if key in self.removals]
        entries = [entry for entry in results if not isinstance(entry, Problem)]
        of_sweeps = any(isinstance(entry, Removal) and entry.kind is RemovalKind.SWEEP for entry in entries)
        requested = requested_ids(store, self.requested) if of_sweeps else frozenset[str]()
        return Removals.from_entries(entries, requested), [entry for entry in results if isinstance(entry, Problem)]

    def compacted_trials(self, store: Store, file: DataFile) -> Commit | Problem | None:
        """Return the trials in a compaction's file, or None if it has vanished."""
        key = (file.path, file.size)
        self._needed.add(key)
        if key not in self.commits:
            for path, content in _read_all(store, [file.path], {file.path: file.size}):
                if content is not None:
                    self.commits[key] = self._parse_compacted(path, content, file)
        return self.commits.get(key)

    def _parse_compacted(self, path: str, content: bytes | InvalidFileError, file: DataFile) -> Commit | Problem:
        try:
            if not file.has_content(content := _require_valid(content)):
                raise ValueError("its sha256 differs")
            return Commit(path, as_trials(read_parquet(content, self.columns), self.columns), {})
        except UNREADABLE_ERRORS as error:
            reason = f"is corrupt ({first_line(error)}). Its trials ({file.rows}) are not visible. Run the sweep again"
            return Problem(path, reason)

    def commits_of(self, store: Store, listed: Mapping[str, int]) -> dict[str, Commit | Problem]:
        """Return the commits at these paths (path -> bytes), without vanished files."""
        self._needed.update(listed.items())
        self._read_commits(store, {key[0]: key[1] for key in listed.items() if key not in self.commits})
        return {path: self.commits[path, size] for path, size in listed.items() if (path, size) in self.commits}

    def _read_commits(self, store: Store, listed: Mapping[str, int]) -> None:
        commits: list[Commit] = []
        for path, content in _read_all(store, list(listed)):
            if content is None:
                continue
            if path.endswith(".parquet"):
                result = _parse_commit(path, content, self.columns)
            else:
                result = Problem(path, "is not a Parquet file. It is ignored. Move it away")
            if isinstance(result, Problem):
                self.commits[path, listed[path]] = result
            else:
                commits.append(result)
            if len(commits) == COMMITS_PER_TABLE:
                self._store(commits, listed)
                commits = []
        self._store(commits, listed)

    def _store(self, commits: Sequence[Commit], listed: Mapping[str, int]) -> None:
        """Cache commits as slices of one table."""
        rows = pa.concat_tables([empty_trials(self.columns), *(commit.trials for commit in commits)]).combine_chunks()
        start = 0
        for commit in commits:
            trials = rows.slice(start, commit.trials.num_rows)
            start += commit.trials.num_rows
            self.commits[commit.path, listed[commit.path]] = Commit(commit.path, trials, commit.files)


def _read_all(
    store: Store, paths: list[str], max_bytes: Mapping[str, int] | None = None
) -> Iterator[tuple[str, bytes | InvalidFileError | None]]:
    """Yield the files' contents, or None for vanished files. Failed reads are retried."""
    for path, content in store.read_many(paths, max_bytes):
        if isinstance(content, FileNotFoundError):
            yield path, None
        elif isinstance(content, InvalidFileError):
            yield path, content
        elif isinstance(content, OSError):
            yield path, _read_with_retries(store, path)
        else:
            yield path, content


def _require_valid(content: bytes | InvalidFileError) -> bytes:
    if isinstance(content, InvalidFileError):
        raise content
    return content


def _read_with_retries(store: Store, path: str) -> bytes | None:
    for delay_s in (0.2, 1.0, None):
        try:
            return store.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if delay_s is None:
                raise StoreError(f"cannot read {path} in {store.url}: {error}. Try again.") from error
            time.sleep(delay_s)
    raise AssertionError("the last round returned or raised")


def _parse_commit(path: str, content: bytes | InvalidFileError, columns: Sequence[str]) -> Commit | Problem:
    try:
        return parse_commit(path, _require_valid(content), columns)
    except ForeignFile as error:
        return Problem(path, f"{error}. It is ignored. Move it away")
    except NewerFile as error:
        return Problem(path, f"{error}. Its trials are not visible. Upgrade depthrate where this command runs")
    except UNREADABLE_ERRORS as error:
        reason = f"cannot be read as Parquet ({first_line(error)}). Its trials are not visible. Run the sweep again"
        return Problem(path, reason)
