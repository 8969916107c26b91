"""Prune trials of a search while they train, by thresholds on the metrics that they report."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.storage.files.json_objects import with_digest
from depthrate.storage.files.paths import reports_path
from depthrate.storage.files.store import Store

Judge = Callable[[int, Mapping[str, float]], Collection[str]]
"""Function of a step and the values that trials report there (trial -> value), which returns the trials to prune."""


class Pruning:
    """Metrics that a pack's trials reported while they trained, and the pruned trials."""

    def __init__(self, job: AttemptSpec, judge: Judge | None = None):
        self._job = job
        self._judge = judge
        self.reports: dict[str, dict[str, Any]] = {}
        """Trial -> values (step -> value) and, for a pruned trial, pruned_at."""

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Record reported metrics and return the positions of trials to prune.

        A trial is pruned if it is worse than its search's threshold at this step, or if the judge, which compares all packs,
        selects it.

        Args:
            values: Position in the pack -> metric -> value.
        """
        reported: dict[str, float] = {}
        pruned = set()
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
                pruned.add(index)  # this also holds if the value is NaN
        if self._judge is not None and reported:
            judged_ids = self._judge(step, reported)
            pruned |= {index for index in values if self._job.trial_ids[index] in judged_ids}
        for index in pruned:
            self.reports[self._job.trial_ids[index]]["pruned_at"] = step
        return pruned

    def write(self, store: Store) -> None:
        """Write the reports to the store. Call it before the commit, so that pruned trials are never pending after it."""
        if self.reports:
            content = with_digest({"sweep": self._job.sweep, "reports": self.reports})
            store.write(reports_path(self._job.sweep, self._job.attempt_id), content)
