"""A trial and its identity: a hash of everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def canonical_json(value: Any) -> str:
    """Return JSON that is the same text for the same value: sorted keys, no spaces, floats by shortest repr."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def trial_id_of(task: str, task_version: int, params: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of sha256 over the canonical JSON of task, version and all parameters."""
    identity = canonical_json({"task": task, "task_version": task_version, "params": dict(params)})
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def varying_parameters(trials: Sequence[Trial]) -> list[str]:
    """Return the names of the parameters that are not the same in all trials."""
    return [name for name in trials[0].params if len({repr(trial.params[name]) for trial in trials}) > 1]


@dataclass(frozen=True)
class Trial:
    """One task with one full set of parameters, seed included."""

    trial_id: str
    task: str
    task_version: int
    params: Mapping[str, Any]
    """Every parameter, typed, with defaults filled in."""
