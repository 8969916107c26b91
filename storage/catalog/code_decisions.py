"""Which version of a task's code counts, where a trial was run by several: what users decided, in order.

Without a decision the earliest commit of a trial counts, whatever code ran it. A decision names trials and the versions that
count from then on: rows of other versions stay in the store and are not read, also those that are committed later. Of several
decisions about a trial the last one holds, by number.
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
    """What was decided when a task's code had changed."""

    RERUN = "rerun"
    """Only the new code counts: its trials run again."""
    ACCEPT = "accept"
    """What the old code gave counts as if the new one had given it."""


@dataclass(frozen=True)
class Decision:
    """That of these trials only rows of these versions of the code count."""

    kind: DecisionKind
    sweep: str
    code_hash: str
    """The code with which the sweep was launched then."""
    counting: frozenset[str | None]
    """The versions that count; null for rows whose code is not known."""
    trial_ids: tuple[str, ...]
    decided_at: str

    def to_json(self) -> dict[str, Any]:
        """Return what stands in the store."""
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
        """Return the decision that the file at `path` holds.

        Raises:
            ValueError, KeyError, TypeError: it holds none, or not the one that was written there.
        """
        fields = read_object(content)
        counting, trial_ids = fields["counting"], fields["trial_ids"]
        if not isinstance(counting, list) or not all(each is None or isinstance(each, str) for each in counting):
            raise ValueError("its versions are no texts")
        if not isinstance(trial_ids, list) or not all(isinstance(trial_id, str) for trial_id in trial_ids):
            raise ValueError("its trials are no texts")
        if path != decision_path(fields["sweep"], number_of_decision(path), _digest(content)):
            raise ValueError("it is not what was written there")
        kind, code_hash = DecisionKind(fields["kind"]), str(fields["code_hash"])
        counting_codes, decided_at = frozenset(counting), str(fields["decided_at"])
        return Decision(kind, fields["sweep"], code_hash, counting_codes, tuple(trial_ids), decided_at)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


@dataclass(frozen=True)
class Decisions:
    """All decisions of a store, in order."""

    by_trial: Mapping[str, Decision] = field(default_factory=dict)
    """Trial -> the last decision about it."""
    last: int = 0
    """The highest number of a decision."""

    @staticmethod
    def from_decisions(decisions: Mapping[str, Decision]) -> Decisions:
        """Bring decisions (path -> decision) into order."""
        ordered = sorted(decisions, key=lambda path: (number_of_decision(path), path))
        last = max(map(number_of_decision, ordered), default=0)
        return Decisions(
            {trial_id: decisions[path] for path in ordered for trial_id in decisions[path].trial_ids}, last
        )

    def visible_mask(self, trials: pa.Table) -> pa.Array | None:
        """Return which rows of the trials table may count; None where all may."""
        if not self.by_trial:
            return None
        ids, codes = trials["trial_id"].to_pylist(), trials["code_hash"].to_pylist()
        return pa.array(
            [t not in self.by_trial or c in self.by_trial[t].counting for t, c in zip(ids, codes, strict=True)],
            pa.bool_(),
        )


def decide(
    store: Store,
    known: Decisions,
    kind: DecisionKind,
    sweep: str,
    code_hash: str,
    counting: Iterable[str | None],
    trial_ids: Iterable[str],
) -> None:
    """Write a decision into the store; it holds from now on.

    Raises:
        OSError: the store refused the write.
    """
    now = datetime.now(UTC).isoformat()
    decision = Decision(kind, sweep, code_hash, frozenset(counting), tuple(trial_ids), now)
    content = json.dumps(decision.to_json()).encode()
    store.write(decision_path(sweep, known.last + 1, _digest(content)), content, durable=True)
