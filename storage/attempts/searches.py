"""What searches proposed, written before it runs, and what trials that may be pruned have reported.

Nothing is ever overwritten by something else: a batch is named by its content, so that two launches which propose at the
same moment lose neither's proposals, and who reads takes both in the order of their names.
"""

from __future__ import annotations

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
    """What a study proposed at once."""

    study_id: str
    number: int
    values: tuple[Mapping[str, Any], ...]
    """Of each proposal: searched parameter -> value."""
    trial_ids: tuple[tuple[str, ...], ...]
    """Of each proposal, the trials that it is."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Step -> the value that a trial must reach there to go on."""
    exhausted: bool = False
    """Whether there was nothing left to propose."""


@dataclass
class Report:
    """What one trial reported while it trained."""

    values: dict[int, float] = field(default_factory=dict)
    """Step -> value."""
    pruned_at: int | None = None


class SearchRecords:
    """The records of a sweep's searches; files once read are not read again, unless they have grown."""

    def __init__(self, store: Store, sweep: str):
        self.store, self.sweep = store, sweep
        self._read: dict[str, int] = {}
        self._batches: dict[str, Batch] = {}
        self.reports: dict[str, Report] = {}
        """By trial."""

    def refresh(self) -> None:
        """See what was written since."""
        listing = self.store.list(searches_folder(self.sweep))
        fresh = [path for path, size in listing.items() if path.endswith(".json") and self._read.get(path) != size]
        for path, content in self.store.read_many(fresh):
            if isinstance(content, OSError):
                raise content  # a batch that cannot be read just now must not be proposed anew
            self._take(path, content)
            self._read[path] = listing[path]

    def batches(self, study_id: str) -> list[list[Batch]]:
        """Return a study's batches in order; of two launches that proposed at the same moment, both."""
        found = sorted((path, batch) for path, batch in self._batches.items() if batch.study_id == study_id)
        rounds: dict[int, list[Batch]] = {}
        for _, batch in found:
            rounds.setdefault(batch.number, []).append(batch)
        return [rounds[number] for number in sorted(rounds)]

    def write(self, batch: Batch) -> None:
        """Keep a batch before it runs."""
        content = json.dumps(vars(batch) | {"sweep": self.sweep}, sort_keys=True).encode()
        digest = hashlib.sha256(content).hexdigest()[:8]
        path = batch_path(self.sweep, batch.study_id, batch.number, digest)
        self.store.write(path, content, durable=True)
        self._batches[path], self._read[path] = batch, len(content)

    def _take(self, path: str, content: bytes) -> None:
        try:
            fields = read_object(content)
            if "reports" in fields:
                self._take_reports(read_with_digest(content)["reports"])
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
            return  # damaged or foreign: the same results lead to the same proposals again

    def _take_reports(self, reports: Mapping[str, Any]) -> None:
        for trial_id, known in reports.items():
            report = self.reports.setdefault(trial_id, Report())
            report.values |= {int(step): float(value) for step, value in known["values"].items()}
            report.pruned_at = known.get("pruned_at", report.pruned_at)
