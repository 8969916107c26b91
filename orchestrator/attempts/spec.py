"""The work of one attempt: its packs, in the format that workers receive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from depthrate.orchestrator.attempts.options import JobOptions

BATCH_S = 0.5
"""Longest time in seconds for which a batched attempt starts further packs, and for which a finished pack stays uncommitted.
It bounds the work that is repeated when a worker is killed."""


@dataclass(frozen=True, kw_only=True)
class PackTrials:
    """A pack in the format that workers receive."""

    pack_id: str
    trial_ids: list[str]
    params: list[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class AttemptSpec(PackTrials):
    """Everything that a worker needs for one attempt at a pack or at several short packs, as plain JSON."""

    attempt_id: str
    sweep: str
    task: str
    """Task name, or a file with an absolute path."""
    options: JobOptions
    pruning: list[Mapping[str, Any] | None] | None = None
    """Pruning rule of each trial of a search: metric, maximize, and thresholds (step -> value below which the trial is pruned).
    The rule asha has from_step and factor instead, for a comparison across all trials of the study."""
    estimated_s: float | None = None
    """Estimated seconds on one core, which determine the planned length of a job."""
    then: Sequence[PackTrials] = ()
    """Further packs of a batched attempt. They start within `BATCH_S` of its start and are committed together."""
    avoid: Sequence[str] = ()
    """Nodes where the pack failed. Other nodes are preferred."""
    shares_memory: bool = True
    """False if the pack ran out of memory before, so that it needs the memory of a job for itself."""

    def packs(self) -> Iterator[AttemptSpec]:
        """Yield a separate spec for each pack."""
        yield replace(self, then=()) if self.then else self
        for pack in self.then:
            yield replace(self, pack_id=pack.pack_id, trial_ids=pack.trial_ids, params=pack.params, then=())

    @property
    def all_trial_ids(self) -> list[str]:
        """Trials of all packs of the attempt."""
        return [*self.trial_ids, *(trial_id for pack in self.then for trial_id in pack.trial_ids)]

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> AttemptSpec:
        """Parse the JSON of `to_json`."""
        fields = json.loads(text)
        then = [PackTrials(**pack) for pack in fields.get("then", ())]
        return AttemptSpec(**{**fields, "options": JobOptions(**fields["options"]), "then": then})
