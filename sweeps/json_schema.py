"""Build the JSON schema of sweep files, which editors use, from the typed sections and the parameters of tasks."""

import ast
import inspect
import itertools
import json
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.json import schema_components

from depthrate.sweeps.search_space import SearchedParameter
from depthrate.sweeps.spec import FinalRuns, FitRequest, Grid, Prune, Search, SweepSpec
from depthrate.tasks.code.parse import parse_source
from depthrate.tasks.figure_request import FIGURE_KEYS, FigureRequest
from depthrate.tasks.interface import CUSTOM, Task
from depthrate.tasks.metric import scalars
from depthrate.tasks.parameters import Parameter
from depthrate.tasks.supervised.parameters import TEXT_PARAMETERS
from depthrate.tasks.supervised.references import CUSTOM_PATTERNS, HOSTS, REFERENCES
from depthrate.tasks.supervised.task import TARGETS

Schema = dict[str, Any]
_PARTS: tuple[type, ...] = (*(SweepSpec, Grid, Search, SearchedParameter, Prune, FinalRuns, FitRequest, FigureRequest),)
_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}


def sweep_schema(tasks: Mapping[str, Task]) -> Schema:
    """Build the JSON schema (2020-12) of a sweep file, with rules for the parameters of these tasks."""
    _, parts = schema_components(_PARTS, ref_template="#/$defs/{name}")
    for part in _PARTS:
        _describe(parts[part.__name__], part)
    parts["Prune"]["required"] = ["metric"]
    sweep = parts.pop("SweepSpec")
    sweep["properties"]["task"]["anyOf"] = [{"enum": sorted({*tasks, CUSTOM})}, {"pattern": ":"}]
    sweep["required"] = ["name"]
    sweep["anyOf"] = [{"required": ["task"]}, {"required": ["base"]}]
    sweep["properties"]["grids"]["items"] = {"$ref": "#/$defs/Grid"}
    sweep["properties"]["figures"]["items"] = {"anyOf": [_figure(kind) for kind in FIGURE_KEYS]}
    definitions: dict[str, Schema] = {f"names own {name}": _names_custom(name) for name in REFERENCES}
    rules = []
    for task in tasks.values():
        definitions[f"{task.name}.names"] = {"enum": sorted(task.schema)}
        definitions[f"{task.name}.metrics"] = {"examples": sorted(scalars(task.measurements))}
        definitions |= _parameters(task.name, {name: _value(parameter) for name, parameter in task.schema.items()})
        rules.append(_rule(task.name, task.name, None if task.name not in HOSTS else ()))
        if task.name in HOSTS:
            more, custom_rules = _custom_parts(task, definitions[f"{task.name}.params"]["properties"])
            definitions |= more
            rules += custom_rules
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **sweep,
        "title": "a sweep of depthrate",
        "allOf": rules,
        "$defs": parts | definitions,
    }
    return json.loads(json.dumps(schema))  # JSON has lists where Python has tuples


def _custom_parts(task: Task, of_host: Schema) -> tuple[dict[str, Schema], list[Schema]]:
    """Build definitions and rules for sweeps with custom networks or data, and allow these in the task's values."""
    for name in REFERENCES:
        custom = {"type": "string", "pattern": CUSTOM_PATTERNS[name]}
        of_host[name] = {"anyOf": [of_host[name], custom], "description": of_host[name].pop("description")}
    host = task.name
    network = TARGETS[HOSTS[host]].schema(network=":", data=":")
    definitions = _parameters(
        f"{host} network",
        {
            name: {"$ref": f"#/$defs/{host}.params/properties/{name}"} if name in of_host else _value(parameter)
            for name, parameter in network.items()
            if name not in TEXT_PARAMETERS  # arguments of the network may have these names
        },
    )
    return definitions, [_rule(host, f"{host} network", REFERENCES[:1]), _rule(host, host, REFERENCES[1:])]


def _describe(schema: Schema, part: type) -> None:
    """Add each field's docstring as its description. The description of an optional section is the section's docstring."""
    for value in schema["properties"].values():
        inner = [kind for kind in value.get("anyOf", ()) if "$ref" in kind]
        if inner:
            value.clear()
            value |= inner[0]
    (definition,) = parse_source(inspect.getsource(part)).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in itertools.pairwise(definition.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                if name in schema["properties"]:
                    schema["properties"][name]["description"] = " ".join(words.split())


def _figure(kind: str) -> Schema:
    needed, more = FIGURE_KEYS[kind]
    keys = {name: {"$ref": f"#/$defs/FigureRequest/properties/{name}"} for name in (*needed, *more)}
    return {
        "properties": {"kind": {"const": kind}, **keys},
        "required": ["kind", *needed],
        "additionalProperties": False,
    }


def _names_custom(parameter: str) -> Schema:
    """Build the condition that a parameter names a custom network or data, in any key of the sweep."""
    value = {"type": "string", "pattern": CUSTOM_PATTERNS[parameter]}
    fixed, axis = _has(parameter, value), _has(parameter, {"type": "array", "contains": value})
    in_grid = [_has("params", fixed), _has("grid", axis), _has("zip", axis)]
    several = {"grids": {"anyOf": in_grid}, "include": fixed}
    return {"anyOf": in_grid + [_has(key, {"type": "array", "contains": value}) for key, value in several.items()]}


def _has(key: str, value: Schema) -> Schema:
    return {"type": "object", "properties": {key: value}, "required": [key]}


def _rule(task: str, parameters: str, custom: Collection[str] | None) -> Schema:
    """Build the rule for sweeps of a task with exactly these custom references. `custom` is None for tasks without references.

    Sweeps with custom references have parameters outside the schema: the arguments of their callables.
    """
    names_task = [name for name, target in HOSTS.items() if custom is not None and target == HOSTS[task]] or [task]
    conditions = [_has("task", {"enum": names_task})]
    if custom is not None:
        first = next(iter(custom), REFERENCES[-1])
        for parameter in REFERENCES[: REFERENCES.index(first) + 1]:  # a custom network takes any data
            condition = {"$ref": f"#/$defs/names own {parameter}"}
            conditions.append(condition if parameter in custom else {"not": condition})
    names: Schema = {} if custom else {"propertyNames": {"$ref": f"#/$defs/{task}.names"}}
    values, axes = ({"$ref": f"#/$defs/{parameters}.{what}", **names} for what in ("params", "axes"))
    grid = {"params": values, "grid": axes, "zip": axes}
    holds = {
        **grid,
        "grids": _list_of({"properties": grid}),
        **dict.fromkeys(("include", "exclude"), _list_of(values)),
        "derive": names,
        "search": {"properties": {"params": names, "measure": {"properties": {"params": values}}}},
        "fit": _list_of({"properties": {"metric": {"$ref": f"#/$defs/{task}.metrics"}}}),
    }
    return {"if": {"allOf": conditions}, "then": {"properties": holds}}


def _parameters(name: str, values: Mapping[str, Schema]) -> dict[str, Schema]:
    """Define each parameter once as a fixed value and once as an axis, since a sweep file has parameters in seven places."""
    axes = {key: {"items": {"$ref": f"#/$defs/{name}.params/properties/{key}"}} for key in values}
    return {f"{name}.params": {"properties": dict(values)}, f"{name}.axes": {"properties": axes}}


def _value(parameter: Parameter) -> Schema:
    kind, is_list = parameter.kind, parameter.kind.startswith("list")
    value: Schema = {"type": _TYPES[kind[5:-1] if is_list else kind]}
    if parameter.choices is not None:
        value = {"enum": list(parameter.choices)}
    if parameter.minimum is not None:
        value["exclusiveMinimum" if parameter.exclusive_minimum else "minimum"] = parameter.minimum
    if parameter.maximum is not None:
        value["maximum"] = parameter.maximum
    if parameter.pattern is not None and parameter.choices is None:
        value["pattern"] = f"^(?:{parameter.pattern})$"
    value = _list_of(value) if is_list else value
    if parameter.nullable:
        value = {"anyOf": [value, {"type": "null"}]}
    return value | {"description": f"{parameter.doc} ({parameter.allowed})"}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}
