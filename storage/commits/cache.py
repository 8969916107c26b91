"""Cache of commits and manifests: they never change, so frequent readers keep the visible ones."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa

from depthrate.storage.catalog.requested_trials import ListCache
from depthrate.storage.commits.visible_commits import Commit, ForeignFile, NewerFile, Problem, first_line, parse_commit
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, DataFile, read_parquet
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.schema import STATE_COLUMNS, as_trials

COMMITS_PER_TABLE = 200
"""Number of commits read before they become slices of one table. Until then each takes about ten times as much memory."""
Entry = TypeVar("Entry")


@dataclass
class SnapshotCache:
    """Commits and manifests already read that the last scan needed, by path and size."""

    columns: Sequence[str] = STATE_COLUMNS
    """Standard columns of the trials table to read, among them those in `STATE_COLUMNS`."""
    commit_columns: Sequence[str] = ()
    """Columns to read of trials that are not compacted, if they differ from `columns`."""
    keeps_files: bool = False
    """Whether to keep these small trials files in memory, for queries of other columns."""
    entries: dict[tuple[str, int], Any] = field(default_factory=dict)
    """(Path, bytes) -> the content, or the problem of an invalid file."""
    requested: ListCache = field(default_factory=dict)
    _schemas: dict[pa.Schema, pa.Schema] = field(default_factory=dict)
    _needed: set[tuple[str, int]] = field(default_factory=set)
    """Keys used since the last `drop_unused`."""

    def drop_unused(self) -> None:
        """Drop entries not used since the last call: files replaced by a compaction, or deleted."""
        self.entries = {key: entry for key, entry in self.entries.items() if key in self._needed}
        self._needed.clear()

    def read(
        self, store: Store, listed: Mapping[str, int], parse: Callable[[str, bytes], Entry], reason: str
    ) -> dict[str, Entry | Problem]:
        """Return the contents of the files at these paths (path -> bytes), except for vanished files.

        Args:
            parse: Function (path, content) -> the cached value.
            reason: Reason of the problem of an invalid file, with `{}` in place of the error.
        """
        self._needed.update(listed.items())
        for path, content in _read_all(store, [path for path in listed if (path, listed[path]) not in self.entries]):
            self.entries[path, listed[path]] = _parse(path, content, parse, reason)
        return {path: self.entries[path, size] for path, size in listed.items() if (path, size) in self.entries}

    def compacted_trials(self, store: Store, file: DataFile) -> Commit | Problem | None:
        """Return the trials in a compaction's file, or None if it has vanished."""

        def parse(path: str, content: bytes) -> Commit:
            if not file.has_content(content):
                raise ValueError("its sha256 differs")
            return Commit(path, as_trials(read_parquet(content, self.columns), self.columns), {})

        key = (file.path, file.size)
        self._needed.add(key)
        if key not in self.entries:
            reason = f"is corrupt ({{}}). Its trials ({file.rows}) are not visible. Run the sweep again"
            for path, content in _read_all(store, [file.path], {file.path: file.size}):
                self.entries[key] = _parse(path, content, parse, reason)
        entry: Commit | Problem | None = self.entries.get(key)
        return entry

    def commits(self, store: Store, listed: Mapping[str, int]) -> dict[str, Commit | Problem]:
        """Return the commits at these paths (path -> bytes), except for vanished files."""
        new = [path for path, size in listed.items() if (path, size) not in self.entries]
        for start in range(0, len(new), COMMITS_PER_TABLE):
            some = {path: listed[path] for path in new[start : start + COMMITS_PER_TABLE]}
            reason = "cannot be read as Parquet ({}). Its trials are not visible. Run the sweep again"
            read = self.read(store, some, self._parse_commit, reason)
            commits = [commit for commit in read.values() if isinstance(commit, Commit)]
            if not commits:
                continue
            rows, first = pa.concat_tables([commit.trials for commit in commits]).combine_chunks(), 0
            for commit in commits:
                trials = rows.slice(first, commit.trials.num_rows)
                first += commit.trials.num_rows
                self.entries[commit.path, some[commit.path]] = replace(commit, trials=trials)
        self._needed.update(listed.items())
        return {path: self.entries[path, size] for path, size in listed.items() if (path, size) in self.entries}

    def _parse_commit(self, path: str, content: bytes) -> Commit:
        if not path.endswith(".parquet"):
            raise ForeignFile("is not a Parquet file")
        commit = parse_commit(path, content, self.commit_columns or self.columns)
        if not self.keeps_files:
            return replace(commit, content=None, schema=None)
        # one object per schema, since most commits have the same
        return replace(commit, schema=self._schemas.setdefault(commit.schema, commit.schema))


def _parse(
    path: str, content: bytes | InvalidFileError, parse: Callable[[str, bytes], Entry], reason: str
) -> Entry | Problem:
    try:
        if isinstance(content, InvalidFileError):
            raise content
        return parse(path, content)
    except ForeignFile as error:
        return Problem(path, f"{error}. It is ignored. Move it away")
    except NewerFile as error:
        return Problem(path, f"{error}. Its trials are not visible. Upgrade depthrate where this command runs")
    except UNREADABLE_ERRORS as error:
        return Problem(path, reason.format(first_line(error)))


def _read_all(
    store: Store, paths: list[str], max_bytes: Mapping[str, int] | None = None
) -> Iterator[tuple[str, bytes | InvalidFileError]]:
    """Yield the contents of the files that have not vanished. Failed reads are retried."""
    for path, content in store.read_many(paths, max_bytes):
        for delay_s in (0.0, 0.2, 1.0, None):
            if not isinstance(content, OSError) or isinstance(content, FileNotFoundError | InvalidFileError):
                break
            if delay_s is None:
                raise StoreError(f"cannot read {path} in {store.url}: {content}. Try again.") from content
            time.sleep(delay_s)
            ((_, content),) = store.read_many([path])
        if isinstance(content, bytes | InvalidFileError):
            yield path, content
