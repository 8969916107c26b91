"""A commit or a compaction as readers see it: which of its trials count, and the files that hold their rows."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import pyarrow as pa

from depthrate.storage.catalog.code_decisions import Decisions
from depthrate.storage.catalog.removals import Removals
from depthrate.storage.commits.commit import read_commit
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.files.parquet import SLACK_BYTES, DataFile, read_parquet
from depthrate.storage.files.paths import attempt_of_path, data_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import TRIALS, as_trials, concat_rows, empty_trials


@dataclass(frozen=True)
class Problem:
    """A file that is not what it should be, and what follows from it."""

    path: str
    reason: str
    trial_ids: tuple[str, ...] = ()
    """Committed trials that therefore do not count."""

    def __str__(self) -> str:
        lost = (
            f"; trials in it do not count ({len(self.trial_ids)}), run the sweep again to redo them"
            if self.trial_ids
            else ""
        )
        return f"{self.path}: {self.reason}{lost}"


@dataclass(frozen=True)
class Commit:
    """A commit or a compaction with all of its trials, whether they count or not."""

    path: str
    trials: pa.Table
    files: dict[str, list[DataFile]]
    manifest: Manifest | None = None


@dataclass(frozen=True)
class VisibleCommit:
    """A commit or a compaction whose rows are read."""

    path: str
    """Its trials file or manifest: what made it count."""
    trials: pa.Table
    """Those of its trials that count (the others have an earlier commit elsewhere), with the snapshot's columns."""
    all_trials: pa.Table
    """All of its trials."""
    is_fully_visible: bool
    """Whether all of its rows count."""
    files: dict[str, list[DataFile]]
    manifest: Manifest | None = None

    def trial_ids(self) -> list[str]:
        """Return the trials that are read from here."""
        ids: list[str] = self.trials["trial_id"].to_pylist()
        return ids


def parse_commit(path: str, content: bytes, columns: Sequence[str] = TRIALS.names, *, newer: bool = False) -> Commit:
    """Return the commit at `path`: its trials with some columns or all, also `newer` ones, and its own data files.

    Raises:
        pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError: it is none, or speaks of what is not
            its own; `ForeignFile` if depthrate did not write it.
    """
    trials, named = read_commit(content, columns, newer=newer)
    for table, file in named.items():
        if file.path != data_path(path, table):
            raise ValueError(f"names {file.path!r:.200} as its {table}, which is not its own")
    # in Python: a commit is small, and Arrow's own ways of telling its values apart import half of it
    if "attempt_id" in columns and set(trials["attempt_id"].to_pylist()) != {attempt_of_path(path)}:
        raise ValueError("holds trials of another attempt, or none")
    return Commit(path, trials, {table: [file] for table, file in named.items()})


def resolve(
    commits: list[Commit], decisions: Decisions | None = None, removals: Removals | None = None
) -> list[VisibleCommit]:
    """Return the commits with those of their trials that count: the earliest commit of each wins, whole.

    With `decisions` that is the earliest of those whose code counts; without them, the earliest of each version of the code,
    for who writes the rows anew must not choose between versions. Removed rows do not count. Copies of one row, which
    overlapping compactions leave, are taken from the first: compactions stand before commits.
    """
    if not commits:
        return []
    rows = concat_rows([commit.trials for commit in commits])
    counts = _both(
        None if decisions is None else decisions.visible_mask(rows),
        None if removals is None else removals.visible_mask(rows),
    )
    if counts is None and len(set(rows["trial_id"].to_pylist())) == rows.num_rows:
        return [VisibleCommit(c.path, c.trials, c.trials, True, c.files, c.manifest) for c in commits]
    import pyarrow.compute as pc  # 40 ms that a store without doubles does not need

    keys = rows.select(["trial_id", "committed_at", "attempt_id"]).append_column(
        "row", pa.array(range(rows.num_rows), pa.int64())
    )
    if decisions is None:
        code = pc.fill_null(rows["code_hash"], "")
        keys = keys.set_column(0, "trial_id", pc.binary_join_element_wise(rows["trial_id"], code, " "))
    if counts is not None:
        keys = keys.filter(counts)
    keys = keys.sort_by([(name, "ascending") for name in keys.column_names])
    ids = keys["trial_id"].combine_chunks()
    is_first = pa.concat_arrays([pa.array([True] * min(1, len(ids)), pa.bool_()), pc.not_equal(ids[1:], ids[:-1])])
    wins = pc.is_in(pa.array(range(rows.num_rows), pa.int64()), keys["row"].filter(is_first).combine_chunks())
    sources, start = [], 0
    for commit in commits:
        trials = commit.trials.filter(wins.slice(start, commit.trials.num_rows))
        start += commit.trials.num_rows
        is_whole = trials.num_rows == commit.trials.num_rows
        sources.append(VisibleCommit(commit.path, trials, commit.trials, is_whole, commit.files, commit.manifest))
    return sources


def _both(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    """Return which rows both masks let through; None where all may."""
    if first is None or second is None:
        return second if first is None else first
    import pyarrow.compute as pc

    return pc.and_(first, second)


def without_rows(source: VisibleCommit, rows: Set[tuple[str, str]]) -> VisibleCommit:
    """Return a source without those of its (trial, attempt)."""
    pairs = zip(source.trials["trial_id"].to_pylist(), source.trials["attempt_id"].to_pylist(), strict=True)
    keep = [pair not in rows for pair in pairs]
    return source if all(keep) else replace(source, trials=source.trials.filter(pa.array(keep)), is_fully_visible=False)


def read_commit_of(store: Store, source: VisibleCommit) -> Commit:
    """Return all of a source's trials, also those that do not count, with all their columns, also those of newer versions.

    Raises:
        FileNotFoundError: a compaction has replaced it meanwhile.
        pa.ArrowException, OSError: it is damaged.
    """
    if source.manifest is None:
        trials = parse_commit(source.path, store.read(source.path), newer=True).trials
    else:
        named = source.files.get("trials", ())
        parts = [as_trials(read_parquet(file.read(store)), newer=True) for file in named]
        trials = concat_rows([empty_trials(), *parts])
    return Commit(source.path, trials, source.files, source.manifest)


def visible_rows(source: VisibleCommit, table: pa.Table) -> pa.Table:
    """Return those of a source's rows that count."""
    if source.is_fully_visible:
        return table
    import pyarrow.compute as pc

    def keys(rows: pa.Table) -> pa.ChunkedArray:
        return pc.binary_join_element_wise(rows["trial_id"], rows["attempt_id"], " ")

    return table.filter(pc.is_in(keys(table), keys(source.trials).combine_chunks()))


def find_corrupt_files(store: Store, named: Sequence[DataFile]) -> list[str]:
    """Read files whole and return the paths of those that are missing or do not hold what was committed."""
    expected = {file.path: file for file in named}
    max_bytes = {file.path: file.size + SLACK_BYTES for file in named}
    return [
        path
        for path, content in store.read_many(list(expected), max_bytes)
        if isinstance(content, OSError) or not expected[path].has_content(content)
    ]


def first_line(error: Exception) -> str:
    """Return the beginning of an error's text."""
    return str(error).split("\n")[0][:200]
