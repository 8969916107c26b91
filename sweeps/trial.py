"""Define a trial and its identity, a hash of everything that determines its result."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, overload

from depthrate.tasks.parameters import OncePerObject

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
_FIXED = (str, int, float, type(None))
_NOTHING = object()


def canonical_json(value: Any) -> str:
    """Encode a value as canonical JSON: sorted keys, no spaces, floats with their shortest repr."""
    return _ENCODER.encode(value)


def identifying(params: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that enter the identity: all except parameters equal to their value in `added`."""
    return {
        name: value
        for name, value in params.items()
        if name not in added or canonical_json(value) != canonical_json(added[name])
    }


def is_trial_id(trial_id: str, task: str, version: int, params: Mapping[str, Any], names: Iterable[Set[str]]) -> bool:
    """Return whether an id is the hash of a trial by its task, version and parameters, for any of some sets of their names."""
    return any(TrialMaker(task, version, of).make(params).trial_id == trial_id for of in names)


class CanonicalWriter:
    """Encodes many mappings as canonical JSON, reusing the parts that equal those of the previous mapping."""

    def __init__(self, names: Iterable[str], omitted: Mapping[str, Any] = MappingProxyType({})):
        """Encode the entries in `names`, except entries equal to their value in `omitted`."""
        self._last: dict[str, Any] = {name: _NOTHING for name in sorted(names)}
        self._keys = {name: canonical_json(name) + ":" for name in self._last}
        self._omitted = {
            name: self._keys[name] + canonical_json(omitted[name]) for name in self._last if name in omitted
        }
        self._parts = dict(self._keys)
        self._once = OncePerObject(canonical_json)

    def write(self, values: Mapping[str, Any]) -> str:
        """Return `canonical_json` of the named entries of `values`."""
        return "{" + ",".join(filter(None, self.parts(values).values())) + "}"

    def parts(self, values: Mapping[str, Any]) -> Mapping[str, str]:
        """Return name -> canonical JSON of each named entry with its key, in order. An omitted entry is empty."""
        # Compare by identity: 1, 1.0 and True are equal but have different JSON. Trials of a sweep share their values.
        for name in [name for name, last in self._last.items() if values[name] is not last]:
            value = values[name]
            fixed = isinstance(value, _FIXED)  # lists are mutable, so their JSON is not cached
            part = self._keys[name] + (self._once(value) if fixed else canonical_json(value))
            self._parts[name] = "" if part == self._omitted.get(name) else part
            self._last[name] = value if fixed else _NOTHING
        return self._parts


class TrialMaker:
    """Makes many trials of one task.

    An id is the first 16 hex digits of sha256 over the canonical JSON of task, version and parameters. Parameters that the task
    gained later are omitted if they have their value in `added`, so that the ids of earlier trials remain valid.
    """

    def __init__(
        self, task: str, task_version: int, names: Iterable[str], added: Mapping[str, Any] = MappingProxyType({})
    ):
        """Prepare for a task with the parameters `names`. `added`: see `ParameterSchema.added_later`."""
        self._task, self._task_version = task, task_version
        self._params = CanonicalWriter(names, omitted=added)
        self._tail = f',"task":{canonical_json(task)},"task_version":{canonical_json(task_version)}}}'

    def make(self, params: Mapping[str, Any]) -> Trial:
        """Make a trial with these parameters."""
        identity = f'{{"params":{self._params.write(params)}{self._tail}'
        trial_id = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return Trial(trial_id, self._task, self._task_version, params)

    def ids(self, params: Mapping[str, Any], name: str, values: Sequence[int]) -> list[str]:
        """Return the ids of trials that differ in one int parameter. The part before it is hashed only once."""
        parts = [(part_name, part) for part_name, part in self._params.parts(params).items() if part]
        before = "".join(f"{part}," for part_name, part in parts if part_name < name)
        after = "".join(f",{part}" for part_name, part in parts if part_name > name)
        start = hashlib.sha256(f'{{"params":{{{before}{canonical_json(name)}:'.encode())
        tail, ids = f"{after}}}{self._tail}", []
        for value in values:
            identity = start.copy()
            identity.update(f"{value}{tail}".encode())
            ids.append(identity.hexdigest()[:16])
        return ids


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


@dataclass(frozen=True, slots=True)
class _Template:
    """Trials that differ in one parameter."""

    start: int
    """Index of the first trial."""
    first: Trial
    name: str | None = None
    """Parameter that differs between the trials, or None for a single trial."""
    values: Sequence[int] = (0,)

    def trial(self, trial_id: str, value: int) -> Trial:
        """Make a trial. Its lists are copies, since a task may change them."""
        first = self.first
        if self.name is None:
            return first
        params = {name: [*value] if isinstance(value, list) else value for name, value in first.params.items()}
        return Trial(trial_id, first.task, first.task_version, params | {self.name: value})


class Trials(Sequence[Trial]):
    """Distinct trials, made when they are accessed, since a sweep may have a million trials that differ little."""

    def __init__(self, trials: Iterable[Trial] = ()):
        """Start with some trials."""
        self.ids: list[str] = []
        """Trial ids, in order."""
        self._seen: set[str] = set()
        self._templates: list[_Template] = []
        for trial in trials:
            self.add([trial.trial_id], trial)

    def add(self, ids: Sequence[str], first: Trial, name: str | None = None, values: Sequence[int] = (0,)) -> None:
        """Add trials that differ from the first in one parameter, except trials that are already contained."""
        if not self._seen.isdisjoint(ids) or len(set(ids)) < len(ids):
            new = {i: value for i, value in zip(ids, values, strict=True) if i not in self._seen}
            ids, values = list(new), list(new.values())
        if ids:
            self._templates.append(_Template(len(self.ids), first, name, values))
            self.ids += ids
            self._seen.update(ids)

    def representatives(self) -> list[Trial]:
        """Return one trial of each group of trials that differ only in the seed."""
        return [template.trial(self.ids[template.start], template.values[0]) for template in self._templates]

    def without(self, ids: Set[str]) -> list[Trial]:
        return [self[index] for index, trial_id in enumerate(self.ids) if trial_id not in ids]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Trial: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trial]: ...

    def __getitem__(self, index: int | slice) -> Trial | list[Trial]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        template = self._templates[bisect_right(self._templates, number, key=lambda template: template.start) - 1]
        return template.trial(self.ids[number], template.values[number - template.start])

    def __iter__(self) -> Iterator[Trial]:
        for template in self._templates:
            ids = self.ids[template.start : template.start + len(template.values)]
            yield from map(template.trial, ids, template.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)
