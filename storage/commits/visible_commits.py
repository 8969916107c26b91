"""A commit or a compaction as readers see it: its visible trials, and the files that hold their rows."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import pyarrow as pa

from depthrate.errors import InputError
from depthrate.storage.catalog.code_decisions import Decisions
from depthrate.storage.catalog.removals import Removals
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import SLACK_BYTES, DataFile, is_intact, open_parquet, read_parquet
from depthrate.storage.files.paths import DATA_TABLES, attempt_of_path, data_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import (
    SCHEMA_VERSION,
    TRIALS,
    as_trials,
    row_keys,
)


@dataclass(frozen=True)
class Problem:
    """A corrupt or foreign file, and its consequences."""

    path: str
    reason: str
    trial_ids: tuple[str, ...] = ()
    """Committed trials that are therefore not visible."""

    def __str__(self) -> str:
        lost = f". Its trials ({len(self.trial_ids)}) are not visible. Run the sweep again" if self.trial_ids else ""
        return f"{self.path}: {self.reason}{lost}"


@dataclass(frozen=True)
class Commit:
    """A commit or a compaction with all of its trials, visible or not."""

    path: str
    trials: pa.Table
    files: dict[str, list[DataFile]]
    manifest: Manifest | None = None
    content: bytes | None = None
    """The trials file of a commit that is not compacted, if it is kept in memory."""
    schema: pa.Schema | None = None
    """Its columns."""


@dataclass(frozen=True)
class VisibleCommit:
    """A commit or a compaction whose rows are read."""

    path: str
    """Its trials file or manifest, whose write made it visible."""
    trials: pa.Table
    """Its visible trials, with the snapshot's columns. Its other trials have an earlier commit elsewhere."""
    all_trials: pa.Table
    """All of its trials, visible or not."""
    is_fully_visible: bool
    """Whether all of its rows are visible."""
    files: dict[str, list[DataFile]]
    manifest: Manifest | None = None
    content: bytes | None = None
    """The trials file of a commit that is not compacted, if it is kept in memory."""
    schema: pa.Schema | None = None
    """Its columns."""

    def data_files(self) -> list[DataFile]:
        """Return the files of all tables."""
        return [file for named in self.files.values() for file in named]

    def trial_ids(self) -> list[str]:
        """Return the trials whose rows are read from this commit."""
        ids: list[str] = self.trials["trial_id"].to_pylist()
        return ids


class ForeignFile(InputError):
    """A file that depthrate did not write."""


class NewerFile(InputError):
    """A file of a format that this version of depthrate is too old to read. The file is intact."""


def parse_commit(path: str, content: bytes, columns: Sequence[str] | None = None) -> Commit:
    """Parse the commit at `path`: its trials with some of the standard columns, or with all columns, and its data files.

    The result keeps the content. A caller that does not need it drops it.

    Raises:
        ForeignFile, NewerFile: Another program, or a newer version of depthrate, wrote it.
        pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError: The content is not a commit, or
            names files of others.
    """
    with open_parquet(content) as parquet:
        metadata = parquet.metadata.metadata or {}
        raw, schema = metadata.get(METADATA_KEY), parquet.schema_arrow.remove_metadata()
        if raw is None or not set(TRIALS.names) <= set(schema.names):
            raise ForeignFile("is Parquet, but was not written by depthrate")
        fields = read_object(raw)
        if (version := fields["schema_version"]) > SCHEMA_VERSION:
            raise NewerFile(
                f"was written by a newer version of depthrate (schema {version}, this one supports {SCHEMA_VERSION})"
            )
        if not is_intact(content, metadata):
            raise ValueError("its checksum differs")
        trials = as_trials(parquet.read(columns, use_threads=False), columns)
    named = {name: DataFile.from_fields(entry) for name, entry in fields["files"].items() if name in DATA_TABLES}
    for table, file in named.items():
        if file.path != data_path(path, table):
            raise ValueError(f"names {file.path!r:.200} as its {table}, which is not a file of this commit")
    # in Python: a commit is small, and Arrow's function for unique values imports half of Arrow
    if set(trials["attempt_id"].to_pylist()) != {attempt_of_path(path)}:
        raise ValueError("holds trials of another attempt, or no trials")
    return Commit(path, trials, {table: [file] for table, file in named.items()}, None, content, schema)


def resolve(
    commits: list[Commit], decisions: Decisions | None = None, removals: Removals | None = None
) -> list[VisibleCommit]:
    """Return the commits with their visible trials: the earliest commit of each trial applies, as a whole.

    With `decisions`, that is the earliest commit whose code is accepted. Without them, it is the earliest commit of each
    version of the code, since rewriting rows must not choose between versions. Removed rows are not visible. If overlapping
    compactions hold copies of the same row, the first copy is used. Compactions precede commits.
    """
    if not commits:
        return []
    keys = ["trial_id", "committed_at", "attempt_id", "code_hash"]
    rows = pa.concat_tables([commit.trials.select(keys) for commit in commits])
    masks = [rule.visible_mask(rows) for rule in (decisions, removals) if rule is not None]
    masks = [mask for mask in masks if mask is not None]
    if not masks and len(set(rows["trial_id"].to_pylist())) == rows.num_rows:
        return [_visible(commit, commit.trials) for commit in commits]
    import pyarrow.compute as pc  # 40 ms that a store without duplicates does not need

    order = rows.drop_columns(["code_hash"]).append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    if decisions is None:
        code = pc.fill_null(rows["code_hash"], "")
        order = order.set_column(0, "trial_id", pc.binary_join_element_wise(rows["trial_id"], code, " "))
    for mask in masks[:1]:
        order = order.filter(pc.and_(mask, masks[-1]))
    order = order.sort_by([(name, "ascending") for name in order.column_names])
    ids = order["trial_id"].combine_chunks()
    is_first = pa.concat_arrays([pa.array([True] * min(1, len(ids)), pa.bool_()), pc.not_equal(ids[1:], ids[:-1])])
    is_earliest = pc.is_in(pa.array(range(rows.num_rows), pa.int64()), order["row"].filter(is_first).combine_chunks())
    sources, start = [], 0
    for commit in commits:
        trials = commit.trials.filter(is_earliest.slice(start, commit.trials.num_rows))
        start += commit.trials.num_rows
        sources.append(_visible(commit, trials))
    return sources


def _visible(commit: Commit, trials: pa.Table) -> VisibleCommit:
    is_full = trials.num_rows == commit.trials.num_rows
    rest = commit.files, commit.manifest, commit.content, commit.schema
    return VisibleCommit(commit.path, trials, commit.trials, is_full, *rest)


def without_rows(source: VisibleCommit, rows: Set[tuple[str, str]]) -> VisibleCommit:
    """Return a source without some of its (trial, attempt) rows."""
    return _selected(source, [key not in rows for key in row_keys(source.trials)])


def only_trials(source: VisibleCommit, trial_ids: Set[str]) -> VisibleCommit:
    """Return a source with only some of its trials."""
    return _selected(source, [trial_id in trial_ids for trial_id in source.trial_ids()])


def _selected(source: VisibleCommit, selected: list[bool]) -> VisibleCommit:
    if all(selected):
        return source
    return replace(source, trials=source.trials.filter(pa.array(selected)), is_fully_visible=False)


def read_trials(store: Store, source: VisibleCommit | Commit) -> list[pa.Table]:
    """Read all of a source's trials, visible or not, with all columns: one table per file.

    Raises:
        FileNotFoundError: A compaction has replaced it meanwhile.
        pa.ArrowException, OSError, ValueError, KeyError: It is corrupt.
    """
    if source.manifest is None:
        return [parse_commit(source.path, store.read(source.path)).trials]
    return [as_trials(read_parquet(file.read(store)), None) for file in source.files.get("trials", ())]


def visible_rows(source: VisibleCommit, table: pa.Table) -> pa.Table:
    """Return the visible rows of one of a source's tables."""
    mask = visible_mask(source, table)
    return table if mask is None else table.filter(mask)


def visible_mask(source: VisibleCommit, table: pa.Table) -> pa.ChunkedArray | None:
    """Return the mask of the visible rows of one of a source's tables, or None if all are visible."""
    if source.is_fully_visible:
        return None
    import pyarrow.compute as pc

    def keys(rows: pa.Table) -> pa.ChunkedArray:
        return pc.binary_join_element_wise(rows["trial_id"], rows["attempt_id"], " ")

    return pc.is_in(keys(table), keys(source.trials).combine_chunks())


def find_corrupt_files(store: Store, named: Sequence[DataFile]) -> list[str]:
    """Read files in full and return the paths of missing and corrupt ones."""
    expected = {file.path: file for file in named}
    max_bytes = {file.path: file.size + SLACK_BYTES for file in named}
    return [
        path
        for path, content in store.read_many(list(expected), max_bytes)
        if isinstance(content, OSError) or not expected[path].has_content(content)
    ]


def first_line(error: Exception) -> str:
    """Return the start of an error's message."""
    return str(error).split("\n")[0][:200]
