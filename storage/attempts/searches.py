"""Proposals of searches, written before they run, and reports of prunable trials.

No file is ever overwritten with different content: a batch is named by its content, so two launches that propose at the same
moment lose no proposals. Readers use both batches in the order of their names.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from depthrate.storage.catalog.requested_trials import is_batch
from depthrate.storage.files.json_objects import read_object, read_with_digest
from depthrate.storage.files.paths import batch_path, searches_folder
from depthrate.storage.files.store import Store


@dataclass(frozen=True)
class Batch:
    """Proposals that a study made together."""

    study_id: str
    number: int
    values: tuple[Mapping[str, Any], ...]
    """Searched parameter -> value, for each proposal."""
    trial_ids: tuple[tuple[str, ...], ...]
    """Trials of each proposal."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Step -> the value that a trial must reach at that step to continue."""
    exhausted: bool = False
    """Whether the study had nothing left to propose."""


@dataclass
class Report:
    """Values that one trial reported while it trained."""

    values: dict[int, float] = field(default_factory=dict)
    """Step -> value."""
    pruned_at: int | None = None


class SearchRecords:
    """The records of a sweep's searches. Files are read again only if they have grown."""

    def __init__(self, store: Store, sweep: str):
        self.store, self.sweep = store, sweep
        self._read: dict[str, int] = {}
        self._batches: dict[str, Batch] = {}
        self.reports: dict[str, Report] = {}
        """Trial -> its report."""

    def refresh(self) -> None:
        """Read the files written since the last call."""
        listing = self.store.list(searches_folder(self.sweep))
        fresh = [path for path, size in listing.items() if path.endswith(".json") and self._read.get(path) != size]
        for path, content in self.store.read_many(fresh):
            if isinstance(content, OSError):
                raise content  # a batch that is temporarily unreadable must not be proposed again
            self._add(path, content)
            self._read[path] = listing[path]

    def batches(self, study_id: str) -> list[list[Batch]]:
        """Return a study's batches in order. If two launches proposed at the same moment, both are included."""
        batches = [self._batches[path] for path in sorted(self._batches) if self._batches[path].study_id == study_id]
        numbers = sorted({batch.number for batch in batches})
        return [[batch for batch in batches if batch.number == number] for number in numbers]

    def trials_by_study(self) -> dict[str, set[str]]:
        """Return each study's proposed trials."""
        found: dict[str, set[str]] = {}
        for batch in self._batches.values():
            found.setdefault(batch.study_id, set()).update(*batch.trial_ids)
        return found

    def write(self, batch: Batch) -> None:
        """Write a batch before it runs."""
        content = json.dumps(vars(batch) | {"sweep": self.sweep}, sort_keys=True).encode()
        digest = hashlib.sha256(content).hexdigest()[:8]
        path = batch_path(self.sweep, batch.study_id, batch.number, digest)
        self.store.write(path, content, durable=True)
        self._batches[path], self._read[path] = batch, len(content)

    def _add(self, path: str, content: bytes) -> None:
        try:
            fields = read_object(content)
            if "reports" in fields:
                for trial_id, reported in read_with_digest(content)["reports"].items():
                    report = self.reports.setdefault(trial_id, Report())
                    report.values |= {int(step): float(value) for step, value in reported["values"].items()}
                    report.pruned_at = reported.get("pruned_at", report.pruned_at)
                return
            if not is_batch(path, content):
                return
            self._batches[path] = Batch(
                study_id=str(fields["study_id"]),
                number=int(fields["number"]),
                values=tuple(dict(values) for values in fields["values"]),
                trial_ids=tuple(tuple(ids) for ids in fields["trial_ids"]),
                thresholds=dict(fields["thresholds"]),
                exhausted=bool(fields["exhausted"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return  # corrupt or foreign: the same results lead to the same proposals again
