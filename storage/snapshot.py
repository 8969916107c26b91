"""What a store holds at one moment: the committed trials, each once, and the files that hold their rows.

The rule for readers: a trial is there if a readable trials file names it and every data file that this trials file was
committed with is there in full. Of several commits of one trial the earliest wins, whole.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.commit import METADATA_KEY
from storage.files import Files, StoreError
from storage.layout import DATA_TABLES, attempt_of_table_path, attempt_path
from storage.schema import TRIALS

READ_THREADS = 16


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
class DataFile:
    """A data file that a commit names."""

    path: str
    size: int
    sha256: str
    own_columns: dict[str, str]
    """Columns beyond the standard ones, with their Arrow types."""


@dataclass
class Snapshot:
    """The committed trials and their files."""

    trials: pa.Table
    files: dict[str, list[DataFile]]
    problems: list[Problem] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    """Paths of all attempts' states."""

    def trial_ids(self) -> set[str]:
        """Return the identities of all committed trials."""
        return set(self.trials["trial_id"].to_pylist())


@dataclass(frozen=True)
class _Commit:
    path: str
    trials: pa.Table
    files: dict[str, DataFile]


CommitCache = dict[tuple[str, int], "_Commit | Problem"]
"""Trials files already read, by path and size: they never change, so who looks often keeps them."""


def take_snapshot(files: Files, *, ignore: Iterable[str] = (), cache: CommitCache | None = None) -> Snapshot:
    """List the store once and read its trials files; `ignore` names data files that are known to be broken.

    Damaged and foreign files are reported as problems and never counted.

    Raises:
        StoreError: a trials file is there and cannot be read just now; that must not make its trials pending.
    """
    listing = files.list()
    ignore = set(ignore)
    problems: list[Problem] = []
    paths = [path for path in listing if path.startswith("trials/")]
    cache = {} if cache is None else cache
    new = [path for path in paths if (path, listing[path]) not in cache]
    with ThreadPoolExecutor(READ_THREADS) as pool:
        for path, commit in zip(new, pool.map(lambda path: _read_commit(files, path), new), strict=True):
            cache[path, listing[path]] = commit
    read = [cache[path, listing[path]] for path in paths]
    commits = []
    for result in read:
        if isinstance(result, Problem):
            problems.append(result)
            continue
        broken = [
            problem
            for file in result.files.values()
            if (problem := _check_file(files, listing, file, result, ignore)) is not None
        ]
        problems += broken
        if not broken:
            commits.append(result)
    problems += _foreign_files(
        files, listing, {file.path for commit in commits for file in commit.files.values()}, problems
    )
    trials = _winners(commits)
    winning = set(trials["attempt_id"].to_pylist())
    by_table: dict[str, list[DataFile]] = {name: [] for name in DATA_TABLES}
    for commit in commits:
        if winning & set(commit.trials["attempt_id"].to_pylist()):
            for name, file in commit.files.items():
                by_table[name].append(file)
    attempts = [path for path in listing if path.startswith("attempts/") and path.endswith(".json")]
    return Snapshot(trials, by_table, problems, attempts)


def _read_commit(files: Files, path: str) -> _Commit | Problem:
    if not path.endswith(".parquet"):
        return Problem(path, "is not a Parquet file; it is ignored, move it away")
    try:
        content = _read_patiently(files, path)
    except FileNotFoundError:
        return Problem(path, "disappeared while it was read")
    try:
        # the pages' checksums are verified: a flipped bit is found and not counted
        with pq.ParquetFile(
            io.BytesIO(content), page_checksum_verification=True
        ) as parquet:  # read_table imports pandas
            table = parquet.read()
        raw = (table.schema.metadata or {}).get(METADATA_KEY)
        if raw is None or not set(TRIALS.names) <= set(table.column_names):
            return Problem(path, "is Parquet, but not written by depthrate; it is ignored, move it away")
        named = json.loads(raw)["files"]
        table = table.select(TRIALS.names).cast(TRIALS)
        data = {
            name: DataFile(entry["path"], entry["bytes"], entry["sha256"], entry["own_columns"])
            for name, entry in named.items()
            if name in DATA_TABLES
        }
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        return Problem(
            path, f"cannot be read as Parquet ({first_line(error)}); its trials do not count, run the sweep again"
        )
    return _Commit(path, table, data)


def _read_patiently(files: Files, path: str) -> bytes:
    for pause_s in (0.2, 1.0):
        try:
            return files.read(path)
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(pause_s)
    try:
        return files.read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} in {files.url} cannot be read: {error}; try again") from error


def _check_file(
    files: Files, listing: dict[str, int], file: DataFile, commit: _Commit, ignore: set[str]
) -> Problem | None:
    # A commit made while the listing ran may be missing from it: ask again before calling a file damaged.
    size = listing.get(file.path)
    if size != file.size:
        size = files.size(file.path)
    if file.path in ignore:
        reason = "its content is damaged"
    elif size is None:
        reason = f"is missing, though {commit.path} was committed with it"
    elif size != file.size:
        reason = f"is damaged: it has {size} bytes and was committed with {file.size}"
    else:
        return None
    return Problem(file.path, reason, tuple(commit.trials["trial_id"].to_pylist()))


def _foreign_files(files: Files, listing: dict[str, int], known: set[str], problems: list[Problem]) -> list[Problem]:
    """Return a problem for each data file that neither a commit nor any attempt of ours can have written."""
    named = known | {problem.path for problem in problems}
    foreign = []
    for path in listing:
        if path.split("/")[0] not in DATA_TABLES or path in named:
            continue
        attempt = attempt_path(*attempt_of_table_path(path))
        if attempt not in listing and files.size(attempt) is None:
            foreign.append(Problem(path, "was not written by depthrate; it is ignored, move it away"))
    return foreign


def _winners(commits: list[_Commit]) -> pa.Table:
    """Return one row a trial: that of its earliest commit."""
    table = pa.concat_tables([pa.Table.from_batches([], TRIALS), *(commit.trials for commit in commits)])
    if len(set(table["trial_id"].to_pylist())) == table.num_rows:
        return table
    keys = table.select(["committed_at", "attempt_id", "trial_id"]).to_pylist()
    earliest: dict[str, int] = {}
    for row in sorted(range(len(keys)), key=lambda row: (keys[row]["committed_at"], keys[row]["attempt_id"])):
        earliest.setdefault(keys[row]["trial_id"], row)
    return table.take(pa.array(sorted(earliest.values()), pa.int64()))


def read_states(files: Files, paths: Iterable[str]) -> list[dict[str, Any]]:
    """Return the attempts' states; one that cannot be read or is not ours is left out."""

    def read(path: str) -> dict[str, Any] | None:
        try:
            state = json.loads(files.read(path))
        except (OSError, ValueError):
            return None
        is_ours = (
            isinstance(state, dict) and {"attempt_id", "sweep", "trial_ids", "state", "started_at"} <= state.keys()
        )
        return state if is_ours else None

    with ThreadPoolExecutor(READ_THREADS) as pool:
        return [state for state in pool.map(read, paths) if state is not None]


def find_broken_files(files: Files, snapshot: Snapshot) -> list[str]:
    """Read every data file whole and return the paths of those whose content is not what was committed."""

    def is_broken(file: DataFile) -> bool:
        try:
            return hashlib.sha256(files.read(file.path)).hexdigest() != file.sha256
        except OSError:
            return True

    return [file.path for table in snapshot.files.values() for file in table if is_broken(file)]


def first_line(error: Exception) -> str:
    """Return the beginning of an error's text."""
    return str(error).split("\n")[0][:200]
