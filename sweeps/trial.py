"""A trial and its identity: a hash of everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_UNCHANGING = (str, int, float, type(None))


def canonical_json(value: Any) -> str:
    """Return JSON that is the same text for the same value: sorted keys, no spaces, floats by shortest repr."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def trial_id_of(task: str, task_version: int, params: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of sha256 over the canonical JSON of task, version and all parameters."""
    identity = canonical_json({"task": task, "task_version": task_version, "params": dict(params)})
    return _short_hash(identity)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CanonicalWriter:
    """Writes the canonical JSON of many mappings; a value that comes again (the very same object) is written once."""

    def __init__(self, names: Iterable[str]):
        """Write the entries called `names`."""
        self._parts: dict[str, dict[int, str]] = {name: {} for name in sorted(names)}
        self._kept: list[Any] = []

    def write(self, values: Mapping[str, Any]) -> str:
        """Return `canonical_json` of the named entries of `values`."""
        parts = [known.get(id(values[name])) or self._part(name, values[name]) for name, known in self._parts.items()]
        return "{" + ",".join(parts) + "}"

    def _part(self, name: str, value: Any) -> str:
        part = f"{canonical_json(name)}:{canonical_json(value)}"
        if isinstance(value, _UNCHANGING):  # a list's text is not remembered: it may change
            self._parts[name][id(value)] = part
            self._kept.append(value)  # the id of a freed object is used again
        return part


class TrialMaker:
    """Makes many trials of one task, each named as `trial_id_of` names it."""

    def __init__(self, task: str, task_version: int, names: Iterable[str]):
        """Make trials of a task whose parameters are called `names`."""
        self._task, self._task_version = task, task_version
        self._params = CanonicalWriter(names)
        self._tail = f',"task":{canonical_json(task)},"task_version":{canonical_json(task_version)}}}'

    def make(self, params: Mapping[str, Any]) -> Trial:
        """Return the trial with these parameters."""
        identity = f'{{"params":{self._params.write(params)}{self._tail}'
        return Trial(_short_hash(identity), self._task, self._task_version, params)


def varying_parameters(trials: Sequence[Trial]) -> list[str]:
    """Return the names of the parameters that are not the same in all trials."""
    return [name for name in trials[0].params if len({repr(trial.params[name]) for trial in trials}) > 1]


@dataclass(frozen=True, slots=True)
class Trial:
    """One task with one full set of parameters, seed included."""

    trial_id: str
    task: str
    task_version: int
    params: Mapping[str, Any]
    """Every parameter, typed, with defaults filled in."""
