"""A trial and its identity: a hash of everything that decides its result."""

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
    """Return JSON that is the same text for the same value: sorted keys, no spaces, floats by shortest repr."""
    return _ENCODER.encode(value)


def trial_id_of(
    task: str, task_version: int, params: Mapping[str, Any], added: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the first 16 hex digits of sha256 over the canonical JSON of task, version and parameters.

    These are all parameters but those that the task gained later and that stand at the value which `added` has for them
    (`ParameterSchema.added_later`): there the trial is what it was before the task knew them.
    """
    content = {"task": task, "task_version": task_version, "params": identifying(params, added)}
    return _short_hash(canonical_json(content))


def identifying(params: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that an identity is made of: without those that stand at the value `added` has for them."""
    return {
        name: value
        for name, value in params.items()
        if name not in added or canonical_json(value) != canonical_json(added[name])
    }


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CanonicalWriter:
    """Writes the canonical JSON of many mappings; what is the same as in the mapping before is not written anew."""

    def __init__(self, names: Iterable[str], omitted: Mapping[str, Any] = MappingProxyType({})):
        """Write the entries called `names`, without those that have the value they have in `omitted`."""
        self._last: dict[str, Any] = {name: _NOTHING for name in sorted(names)}
        self._keys = {name: canonical_json(name) + ":" for name in self._last}
        self._omitted = {
            name: self._keys[name] + canonical_json(omitted[name]) for name in self._last if name in omitted
        }
        self._parts = dict(self._keys)
        self._once = OncePerObject(canonical_json)

    def write(self, values: Mapping[str, Any]) -> str:
        """Return `canonical_json` of the named entries of `values`."""
        # by identity: 1, 1.0 and True are equal but not one text, and trials of a sweep share their values
        for name in [name for name, last in self._last.items() if values[name] is not last]:
            value = values[name]
            fixed = isinstance(value, _FIXED)  # a list may change, so its text is not remembered
            part = self._keys[name] + (self._once(value) if fixed else canonical_json(value))
            self._parts[name] = "" if part == self._omitted.get(name) else part
            self._last[name] = value if fixed else _NOTHING
        return "{" + ",".join(filter(None, self._parts.values()) if self._omitted else self._parts.values()) + "}"


class TrialMaker:
    """Makes many trials of one task, each named as `trial_id_of` names it."""

    def __init__(
        self, task: str, task_version: int, names: Iterable[str], added: Mapping[str, Any] = MappingProxyType({})
    ):
        """Make trials of a task whose parameters are called `names`; `added` is as for `trial_id_of`."""
        self._task, self._task_version = task, task_version
        self._params = CanonicalWriter(names, omitted=added)
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
