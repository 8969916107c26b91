"""Users' decisions, in order, on which versions of a task's code are visible for trials that several versions ran.

Without a decision, the earliest commit of a trial is visible, whichever version ran it. A decision names trials and the code
versions that are visible from then on. Rows of other versions, including rows committed later, stay in the store but are not
read. If several decisions name a trial, the one with the highest number applies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import decision_path, number_of_decision
from depthrate.storage.files.store import Store


class DecisionKind(StrEnum):
    """Decision after a change of a task's code."""

    RERUN = "rerun"
    """Only rows of the new code are visible, so the trials run again."""
    ACCEPT = "accept"
    """Rows of the old code are visible as if the new code had produced them."""


@dataclass(frozen=True)
class Decision:
    """Restriction of some trials to rows of some code versions."""

    kind: DecisionKind
    sweep: str
    code_hash: str
    """Code version of the sweep's launch at the time of the decision."""
    counting: frozenset[str | None]
    """Visible code versions. None means rows whose code version is unknown."""
    trial_ids: tuple[str, ...]
    decided_at: str

    def to_json(self) -> dict[str, Any]:
        """Return the decision as stored."""
        return {
            "kind": self.kind.value,
            "sweep": self.sweep,
            "code_hash": self.code_hash,
            "counting": sorted(self.counting, key=str),
            "trial_ids": list(self.trial_ids),
            "decided_at": self.decided_at,
        }

    @staticmethod
    def from_bytes(path: str, content: bytes) -> Decision:
        """Parse the decision in the file at `path`.

        Raises:
            ValueError, KeyError, TypeError: The content is invalid, or does not match the path.
        """
        fields = read_object(content)
        counting, trial_ids = fields["counting"], fields["trial_ids"]
        if not isinstance(counting, list) or not all(code is None or isinstance(code, str) for code in counting):
            raise ValueError("its versions are not strings")
        if not isinstance(trial_ids, list) or not all(isinstance(trial_id, str) for trial_id in trial_ids):
            raise ValueError("its trial IDs are not strings")
        if path != decision_path(fields["sweep"], number_of_decision(path), _digest(content)):
            raise ValueError("its content does not match its path")
        kind, code_hash = DecisionKind(fields["kind"]), str(fields["code_hash"])
        counting_codes, decided_at = frozenset(counting), str(fields["decided_at"])
        return Decision(kind, fields["sweep"], code_hash, counting_codes, tuple(trial_ids), decided_at)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


@dataclass(frozen=True)
class Decisions:
    """All decisions of a store, in order."""

    by_trial: Mapping[str, Decision] = field(default_factory=dict)
    """Trial -> the last decision on it."""
    last: int = 0
    """Highest number of a decision."""

    @staticmethod
    def from_decisions(decisions: Mapping[str, Decision]) -> Decisions:
        """Sort decisions (path -> decision) by number."""
        ordered = sorted(decisions, key=lambda path: (number_of_decision(path), path))
        last = max(map(number_of_decision, ordered), default=0)
        by_trial = {trial_id: decisions[path] for path in ordered for trial_id in decisions[path].trial_ids}
        return Decisions(by_trial, last)

    def visible_mask(self, trials: pa.Table) -> pa.Array | None:
        """Return the mask of visible rows of the trials table, or None if all are visible."""
        if not self.by_trial:
            return None
        ids, codes = trials["trial_id"].to_pylist(), trials["code_hash"].to_pylist()
        return pa.array(
            [t not in self.by_trial or c in self.by_trial[t].counting for t, c in zip(ids, codes, strict=True)],
            pa.bool_(),
        )


def decide(
    store: Store,
    decisions: Decisions,
    kind: DecisionKind,
    sweep: str,
    code_hash: str,
    counting: Iterable[str | None],
    trial_ids: Iterable[str],
) -> None:
    """Write a decision to the store. It applies from now on."""
    now = datetime.now(UTC).isoformat()
    decision = Decision(kind, sweep, code_hash, frozenset(counting), tuple(trial_ids), now)
    content = json.dumps(decision.to_json()).encode()
    store.write(decision_path(sweep, decisions.last + 1, _digest(content)), content, durable=True)
