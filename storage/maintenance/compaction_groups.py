"""Selection of the small files that a compaction merges, in groups that fit into memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from dataclasses import dataclass

from depthrate.storage.attempts.records import read_loose_records
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.commits.source import VisibleCommit
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState

GROUP_BYTES = 100e6
"""Maximum bytes of one table in memory that are merged at once (the process needs about three times that)."""
GROUP_ROWS = 1_000_000
"""Maximum rows of one table in a group."""
GROUP_RECORDS = 5_000
"""Maximum attempts' records in a group."""
MERGE_FEATURES_BELOW = 8_000_000
"""Size in bytes above which files of features are not rewritten, since merging them gains nothing."""
SETTLED_S = 60.0
"""Seconds after an attempt's end when its record is final."""


@dataclass(frozen=True)
class Group:
    """Input of one set of files: the visible rows of these commits and compactions, and these records."""

    sweep: str
    sources: list[VisibleCommit]
    records: list[str]
    """Paths of attempts' records."""
    drops: bool = False
    """Whether some of the rows were permanently removed."""

    @property
    def is_work(self) -> bool:
        """Whether writing the group reduces the number of files or rows."""
        return self.drops or len(self.sources) + len(self.records) > 1


def plan_groups(store: Store, snapshot: Snapshot, at_least: int, group_bytes: float) -> Iterator[Group]:
    """Yield the groups to merge: loose commits with small compactions, and copies with their originals."""
    sources: dict[str, list[VisibleCommit]] = {}
    for source in (*snapshot.sources, *snapshot.superseded_commits):
        sources.setdefault(sweep_of_path(source.path), []).append(source)
    records = _settled_records(store, snapshot)
    shrinking = {source.path for of_sweep in sources.values() for source in of_sweep if _has_gone(source, snapshot)}
    for sweep in sorted(sources.keys() | records.keys()):
        of_sweep = sources.get(sweep, [])
        small = [s for s in of_sweep if s.manifest is None or s.path in shrinking or _weight(s) < group_bytes / 2]
        loose = sum(source.manifest is None for source in small)
        is_enough = loose >= at_least or len(small) - loose > 1 or len(records.get(sweep, ())) >= at_least
        if is_enough or any(source.path in shrinking for source in small):
            yield from _cut(sweep, small, records.get(sweep, []), group_bytes, shrinking)
        taken = {source.path for source in small}
        yield from _copies(sweep, [source for source in of_sweep if source.path not in taken])


def _copies(sweep: str, large: list[VisibleCommit]) -> Iterator[Group]:
    """Yield each compaction that a concurrent one made redundant, together with that one."""
    originals = [source for source in large if source.trials.num_rows]
    for copy in (source for source in large if not source.trials.num_rows):
        trial_ids = set(copy.all_trials["trial_id"].to_pylist())
        original = next((source for source in originals if trial_ids <= set(source.trial_ids())), None)
        if original is not None:
            originals.remove(original)
            yield Group(sweep, [original, copy], [])


def _has_gone(source: VisibleCommit, snapshot: Snapshot) -> bool:
    """Return whether a source holds rows that were permanently removed."""
    counts = snapshot.removals.permanent_only().visible_mask(source.all_trials)
    return counts is not None and not all(counts.to_pylist())


def _cut(
    sweep: str, sources: list[VisibleCommit], records: list[str], group_bytes: float, shrinking: Set[str]
) -> Iterator[Group]:
    """Split a sweep's sources into groups that fit into memory."""

    def group() -> Group:
        drops = any(source.path in shrinking for source in selected)
        return Group(sweep, selected, records[:GROUP_RECORDS], drops)

    selected: list[VisibleCommit] = []
    weight, rows = 0.0, 0
    for source in sources:
        more_rows = max((file.rows for files in source.files.values() for file in files), default=0)
        if selected and (weight + _weight(source) > group_bytes or rows + more_rows > GROUP_ROWS):
            yield group()
            records, selected, weight, rows = records[GROUP_RECORDS:], [], 0.0, 0
        selected.append(source)
        weight, rows = weight + _weight(source), rows + more_rows
    while selected or records:
        last = group()
        if last.is_work:
            yield last
        records, selected = records[GROUP_RECORDS:], []


def _weight(source: VisibleCommit) -> float:
    """Estimate the bytes of a source's largest table in memory: its numbers, and data that compress badly."""
    weights = [0.0]
    for table, named in source.files.items():
        merged = [file for file in named if table != "features" or file.size < MERGE_FEATURES_BELOW]
        weights.append(sum(150.0 * file.rows + 1.2 * file.size for file in merged))
    return max(weights)


def _settled_records(store: Store, snapshot: Snapshot) -> dict[str, list[str]]:
    """Return sweep -> paths of the records of attempts that ended a while ago."""
    settled: dict[str, list[str]] = {}
    now = time.time()
    for path, record in read_loose_records(store, snapshot.attempts):
        ended_at = record["ended_at"]
        if record.get("is_newer"):
            continue  # the table has no columns for fields of newer versions
        if record["state"] is not AttemptState.RUNNING and ended_at is not None and now - ended_at > SETTLED_S:
            settled.setdefault(sweep_of_path(path), []).append(path)
    return settled
