"""Define a trial and its identity, a hash of everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from depthrate.tasks.parameters import OncePerObject

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
_FIXED = (str, int, float, type(None))
_NOTHING = object()


def canonical_json(value: Any) -> str:
    """Encode as canonical JSON: sorted keys, no spaces, floats by shortest repr."""
    return _ENCODER.encode(value)


def trial_id_of(
    task: str, task_version: int, params: Mapping[str, Any], added: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the first 16 hex digits of sha256 over the canonical JSON of task, version and parameters.

    Parameters that the task gained later are left out if they have the value in `added` (`ParameterSchema.added_later`),
    so that the ids of earlier trials stay valid.
    """
    content = {"task": task, "task_version": task_version, "params": identifying(params, added)}
    return _short_hash(canonical_json(content))


def identifying(params: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that enter the identity: all except those equal to their value in `added`."""
    return {
        name: value
        for name, value in params.items()
        if name not in added or canonical_json(value) != canonical_json(added[name])
    }


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CanonicalWriter:
    """Encodes many mappings as canonical JSON, reusing the parts that equal the previous mapping's."""

    def __init__(self, names: Iterable[str], omitted: Mapping[str, Any] = MappingProxyType({})):
        """Encode the entries `names`, without those equal to their value in `omitted`."""
        self._last: dict[str, Any] = {name: _NOTHING for name in sorted(names)}
        self._keys = {name: canonical_json(name) + ":" for name in self._last}
        self._omitted = {
            name: self._keys[name] + canonical_json(omitted[name]) for name in self._last if name in omitted
        }
        self._parts = dict(self._keys)
        self._once = OncePerObject(canonical_json)

    def write(self, values: Mapping[str, Any]) -> str:
        """Return `canonical_json` of the named entries of `values`."""
        # Compare by identity: 1, 1.0 and True are equal but have different JSON. Trials of a sweep share their values.
        for name in [name for name, last in self._last.items() if values[name] is not last]:
            value = values[name]
            fixed = isinstance(value, _FIXED)  # lists are mutable, so their JSON is not cached
            part = self._keys[name] + (self._once(value) if fixed else canonical_json(value))
            self._parts[name] = "" if part == self._omitted.get(name) else part
            self._last[name] = value if fixed else _NOTHING
        return "{" + ",".join(filter(None, self._parts.values()) if self._omitted else self._parts.values()) + "}"


class TrialMaker:
    """Makes many trials of one task, with ids as from `trial_id_of`."""

    def __init__(
        self, task: str, task_version: int, names: Iterable[str], added: Mapping[str, Any] = MappingProxyType({})
    ):
        """Prepare for a task with parameters `names`. `added` is as for `trial_id_of`."""
        self._task, self._task_version = task, task_version
        self._params = CanonicalWriter(names, omitted=added)
        self._tail = f',"task":{canonical_json(task)},"task_version":{canonical_json(task_version)}}}'

    def make(self, params: Mapping[str, Any]) -> Trial:
        """Make a trial with these parameters."""
        identity = f'{{"params":{self._params.write(params)}{self._tail}'
        return Trial(_short_hash(identity), self._task, self._task_version, params)


def varying_parameters(trials: Sequence[Trial]) -> list[str]:
    """Return the names of the parameters that differ between trials."""
    all_params = [trial.params for trial in trials]
    return [  # trials of a sweep share their values, so most need no repr
        name
        for name, first in all_params[0].items()
        if any(params[name] is not first and repr(params[name]) != repr(first) for params in all_params)
    ]


@dataclass(frozen=True, slots=True)
class Trial:
    """One task with one full parameter set, seed included."""

    trial_id: str
    task: str
    task_version: int
    params: Mapping[str, Any]
    """All parameters, typed, with defaults."""
