"""Trials that their search leaves out while they train: what they reported, and the thresholds that they must reach."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from depthrate.orchestrator.executors.base import AttemptSpec
from depthrate.storage.files.json_objects import with_digest
from depthrate.storage.files.paths import reports_path
from depthrate.storage.files.store import Store

Judge = Callable[[int, Mapping[str, float]], Collection[str]]
"""Told a step and what trials report there (trial -> value), says which of them are to be left out."""


class Pruning:
    """What the trials of a pack reported while they trained, and which of them their search left out."""

    def __init__(self, job: AttemptSpec, judge: Judge | None = None):
        self._job = job
        self._judge = judge
        self.reports: dict[str, dict[str, Any]] = {}
        """Trial -> values (step -> value) and, for one that was left out, pruned_at."""

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Note what trials report (position in the pack -> metric -> value); return the positions of those to leave out.

        They are those worse than the threshold of this step, which the search set when it proposed them, and those that
        whoever watches all packs at once leaves out.
        """
        reported: dict[str, float] = {}
        left_out = set()
        for index, metrics in values.items():
            rule = self._job.pruning[index] if self._job.pruning else None
            value = None if rule is None else metrics.get(rule["metric"])
            if rule is None or value is None:
                continue
            trial_id = self._job.trial_ids[index]
            reported[trial_id] = value
            self.reports.setdefault(trial_id, {"values": {}})["values"][str(step)] = value
            threshold = rule["thresholds"].get(str(step))
            if threshold is not None and not (value >= threshold if rule["maximize"] else value <= threshold):
                left_out.add(index)  # also where the value is not a number
        if self._judge is not None and reported:
            chosen = self._judge(step, reported)
            left_out |= {index for index in values if self._job.trial_ids[index] in chosen}
        for index in left_out:
            self.reports[self._job.trial_ids[index]]["pruned_at"] = step
        return left_out

    def write(self, store: Store) -> None:
        """Put the reports into the store; before the commit, so that a pruned trial is never pending after it."""
        if self.reports:
            content = with_digest({"sweep": self._job.sweep, "reports": self.reports})
            store.write(reports_path(self._job.sweep, self._job.attempt_id), content)
