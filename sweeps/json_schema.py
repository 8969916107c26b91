"""The JSON schema of sweep files, for editors: made from what sweeps, fits, figures and tasks declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from depthrate.sweeps.figure_requests import ALLOWED, NEEDED
from depthrate.sweeps.fit_requests import WORDS, FitRequest
from depthrate.sweeps.search import DIRECTIONS, SAMPLERS
from depthrate.sweeps.search import KEYS as SEARCH_KEYS
from depthrate.sweeps.sweep_file import KEYS
from depthrate.tasks.measurement import scalars
from depthrate.tasks.schema import Parameter
from depthrate.tasks.task import Engine, Task

Schema = dict[str, Any]
_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
_DOCS = {
    "name": "names the sweep: letters, digits, '_', '-', '.'",
    "task": "a task's name, or ./file.py:function of your own",
    "params": "fixed parameters",
    "grid": "axes: every combination of their values is run",
    "zip": "axes that move together, all of one length",
    "grids": "several grids, one after the other",
    "include": "combinations to add",
    "exclude": "combinations to drop: those that match",
    "derive": "parameters computed from others, by arithmetic",
    "seeds": "a count n for seeds 0 to n - 1, or a list",
    "search": "parameters that Optuna searches, beside or instead of a grid",
    "fit": "which rates are fitted",
    "figures": "figures of your own in the report",
    "max_trials": "more trials are refused",
    "engine": "how steps are run; no parameter",
}
"""Key of a sweep file -> what it is, which an editor shows."""


def sweep_schema(tasks: Mapping[str, Task]) -> Schema:
    """Return the JSON schema (2020-12) of a sweep file; the parameters of these tasks are checked by their own schemas."""
    anything: Schema = {"type": "object"}
    listed: Schema = {"type": "array", "items": {"type": "object"}}
    parts: dict[str, Schema] = dict.fromkeys(("params", "grid", "zip"), anything) | dict.fromkeys(
        ("grids", "include", "exclude"), listed
    )
    parts |= {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"},
        "task": {"anyOf": [{"enum": sorted(tasks)}, {"type": "string", "pattern": ":"}]},
        "derive": {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
        "seeds": {"anyOf": [{"type": "integer", "minimum": 1}, _list_of({"type": "integer"}), anything]},
        "search": {**anything, "properties": _search(), "additionalProperties": False},
        "fit": _list_of(_fit()),
        "figures": _list_of({"anyOf": [_figure(kind) for kind in NEEDED]}),
        "max_trials": {"type": "integer", "minimum": 1},
        "engine": {"enum": [engine.value for engine in Engine]},
    }
    properties = {key: parts[key] | {"description": _DOCS[key]} for key in KEYS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a sweep of depthrate",
        "type": "object",
        "properties": properties,
        "required": ["name", "task"],
        "additionalProperties": False,
        "allOf": [_of_task(task) for task in tasks.values()],
        "$defs": {name: schema for task in tasks.values() for name, schema in _parameters_of(task).items()},
    }


def _parameters_of(task: Task) -> dict[str, Schema]:
    """Return a task's parameters as fixed ones and as axes, once each: a sweep file has them in seven places."""
    values = {name: _value(parameter) for name, parameter in task.schema.items()}
    ranges: Schema = {"type": "object", "description": "range, linspace or logspace"}
    of = {name: {"$ref": f"#/$defs/{task.name}.params/properties/{name}"} for name in values}
    axes = {name: {"anyOf": [_list_of(value), ranges]} for name, value in of.items()}
    return {f"{task.name}.params": _only(values), f"{task.name}.axes": _only(axes)}


def _of_task(task: Task) -> Schema:
    """Return what holds for the sweeps of a task: which parameters there are, and which metrics can be fitted."""
    values, axes = ({"$ref": f"#/$defs/{task.name}.{what}"} for what in ("params", "axes"))
    metrics = sorted(scalars(task.measurements))
    metric: Schema = {"examples": metrics} if metrics else {}
    grid = {"params": values, "grid": axes, "zip": axes}
    then = {
        **grid,
        "grids": _list_of(_only(grid)),
        "include": _list_of(values),
        "derive": {"propertyNames": {"enum": sorted(task.schema)}},
        "fit": _list_of({"properties": {"metric": metric}}),
    }
    is_it: Schema = {"properties": {"task": {"const": task.name}}, "required": ["task"]}
    return {"if": is_it, "then": {"properties": then}}


def _value(parameter: Parameter) -> Schema:
    kind, is_list = parameter.kind, parameter.kind.startswith("list")
    found: Schema = {"type": _TYPES[kind[5:-1] if is_list else kind]}
    if parameter.choices is not None:
        found = {"enum": list(parameter.choices)}
    if parameter.minimum is not None:
        found["exclusiveMinimum" if parameter.exclusive_minimum else "minimum"] = parameter.minimum
    if parameter.maximum is not None:
        found["maximum"] = parameter.maximum
    if parameter.pattern is not None and parameter.choices is None:
        found["pattern"] = f"^(?:{parameter.pattern})$"
    found = _list_of(found) if is_list else found
    if parameter.nullable:
        found = {"anyOf": [found, {"type": "null"}]}
    return found | {"description": f"{parameter.doc} ({parameter.allowed})"}


def _fit() -> Schema:
    kinds: dict[str, Schema] = {
        "by": _list_of({"type": "string"}),
        "layer": {"type": "integer"},
        "x_min": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "auto"}]},
        "target": {"type": "number", "exclusiveMinimum": 0},
    }
    kinds |= {name: {"enum": list(words)} for name, words in WORDS.items()}
    return _only({each.name: kinds.get(each.name, {"type": "string"}) for each in fields(FitRequest)}) | {
        "required": ["metric"]
    }


def _figure(kind: str) -> Schema:
    names: dict[str, Schema] = {name: {} for name in (*NEEDED[kind], *ALLOWED[kind])}
    return _only({"kind": {"const": kind}, **names}) | {"required": ["kind", *NEEDED[kind]]}


def _search() -> dict[str, Schema]:
    known: dict[str, Schema] = {
        "sampler": {"enum": list(SAMPLERS)},
        "trials": {"type": "integer", "minimum": 1},
        "direction": {"anyOf": [{"enum": list(DIRECTIONS)}, _list_of({"enum": list(DIRECTIONS)})]},
    }
    return {key: known.get(key, {}) for key in SEARCH_KEYS}


def _only(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}
