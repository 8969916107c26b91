"""A trial and its identity: a hash of everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.tasks.schema import OncePerObject

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
_FIXED = (str, int, float, type(None))
_NOTHING = object()


def canonical_json(value: Any) -> str:
    """Return JSON that is the same text for the same value: sorted keys, no spaces, floats by shortest repr."""
    return _ENCODER.encode(value)


def trial_id_of(task: str, task_version: int, params: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of sha256 over the canonical JSON of task, version and all parameters."""
    identity = canonical_json({"task": task, "task_version": task_version, "params": dict(params)})
    return _short_hash(identity)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CanonicalWriter:
    """Writes the canonical JSON of many mappings; what is the same as in the mapping before is not written anew."""

    def __init__(self, names: Iterable[str]):
        """Write the entries called `names`."""
        self._last: dict[str, Any] = {name: _NOTHING for name in sorted(names)}
        self._keys = {name: canonical_json(name) + ":" for name in self._last}
        self._parts = dict(self._keys)
        self._once = OncePerObject(canonical_json)

    def write(self, values: Mapping[str, Any]) -> str:
        """Return `canonical_json` of the named entries of `values`."""
        # by identity: 1, 1.0 and True are equal but not one text, and trials of a sweep share their values
        for name in [name for name, last in self._last.items() if values[name] is not last]:
            value = values[name]
            fixed = isinstance(value, _FIXED)  # a list may change, so its text is not remembered
            self._parts[name] = self._keys[name] + (self._once(value) if fixed else canonical_json(value))
            self._last[name] = value if fixed else _NOTHING
        return "{" + ",".join(self._parts.values()) + "}"


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
    all_params = [trial.params for trial in trials]
    return [  # trials of a sweep share their values, so that most need no repr
        name
        for name, first in all_params[0].items()
        if any(params[name] is not first and repr(params[name]) != repr(first) for params in all_params)
    ]


@dataclass(frozen=True, slots=True)
class Trial:
    """One task with one full set of parameters, seed included."""

    trial_id: str
    task: str
    task_version: int
    params: Mapping[str, Any]
    """Every parameter, typed, with defaults filled in."""
