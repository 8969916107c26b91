"""The parameter schema of a user's task, read off its function's keyword arguments. Importable without torch."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from depthrate.tasks.schema import REQUIRED, Kind, Parameter, ParameterError, ParameterSchema


def schema_of_function(
    function: Callable[..., Any], fusible: Iterable[str] = ("seed",), added: Iterable[str] = ()
) -> ParameterSchema:
    """Read a parameter schema off the keyword arguments of a user's task function.

    Annotations may be int, float, str, bool, list[int], list[float], Literal[...] and any of these `| None`.

    Raises:
        ParameterError: an argument has no annotation or one that is not understood, or an added one has no default.
    """
    hints = typing.get_type_hints(function)
    fusible, added = set(fusible), set(added)
    parameters = []
    for argument in inspect.signature(function).parameters.values():
        if argument.name == "context":
            continue
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            raise ParameterError(
                f"task {function.__name__!r} takes *{argument.name}; every parameter needs a name and a type, "
                "as in `depth: int`"
            )
        kind, nullable, choices = _kind_of_hint(hints.get(argument.name), argument.name, function.__name__)
        parameter = Parameter(
            name=argument.name,
            kind=kind,
            nullable=nullable,
            choices=choices,
            fusible=argument.name in fusible,
        )
        default = REQUIRED if argument.default is argument.empty else parameter.check(argument.default)
        parameters.append(replace(parameter, default=default, added=argument.name in added))
    return ParameterSchema(parameters)


def parameters_of_callable(function: Callable[..., Any], name: str) -> list[Parameter]:
    """Read parameters off a callable that was not written for sweeps: arguments need no annotation.

    Where there is none, the default's type holds; without a default any scalar is taken. What no sweep can give (a class, a
    function) keeps its default, as do *args and **kwargs.

    Raises:
        ParameterError: an argument without a default takes something that no sweep can give.
    """
    inner = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(inner)
    except Exception:  # of names that only its author's type checker can resolve
        hints = {}
    parameters = []
    for argument in inspect.signature(function).parameters.values():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        kind, nullable, choices = _kind_of_argument(hints.get(argument.name), argument)
        if kind is not None:
            default = REQUIRED if argument.default is argument.empty else argument.default
            made = Parameter(
                name=argument.name, kind=kind, nullable=nullable, choices=choices, doc=f"argument of {name}"
            )
            parameters.append(made if default is REQUIRED else replace(made, default=made.check(default)))
        elif argument.default is argument.empty:
            raise ParameterError(
                f"{name} needs {argument.name!r}, which is {hints.get(argument.name)!r}: no sweep can give that; name a "
                "function that takes numbers, texts and truth values and makes the rest itself"
            )
    return parameters


def _kind_of_argument(hint: Any, argument: inspect.Parameter) -> tuple[Kind | None, bool, tuple[Any, ...] | None]:
    """Return (kind, nullable, choices) of an argument; no kind where a sweep cannot give it."""
    default = argument.default
    if hint is not None:
        try:
            kind, nullable, choices = _kind_of_hint(hint, argument.name, "")
            return kind, nullable or default is None, choices
        except ParameterError:
            if default is argument.empty or not isinstance(default, int | float | str | tuple | list):
                return None, False, None
    if default is argument.empty or default is None:
        return "scalar", default is None, None
    if isinstance(default, tuple | list):
        for kind, one in (("list[int]", int), ("list[float]", int | float)):
            if default and all(isinstance(item, one) and not isinstance(item, bool) for item in default):
                return kind, False, None
        return None, False, None
    name = type(default).__name__
    return (typing.cast(Kind, name), False, None) if name in ("bool", "int", "float", "str") else (None, False, None)


def _kind_of_hint(hint: Any, name: str, function_name: str) -> tuple[Kind, bool, tuple[Any, ...] | None]:
    nullable = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        nullable = len(options) < len(typing.get_args(hint))
        hint = options[0] if len(options) == 1 else hint
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        kinds = {type(choice).__name__ for choice in choices}
        if len(kinds) == 1 and kinds <= {"int", "float", "str", "bool"}:
            return typing.cast(Kind, kinds.pop()), nullable, choices
    for kind, python_type in _PYTHON_TYPES.items():
        if hint == python_type:
            return kind, nullable, None
    raise ParameterError(
        f"task {function_name!r}: argument {name!r} is annotated {hint!r}; allowed: int, float, str, bool, "
        "list[int], list[float], Literal[...], each also '| None'"
    )


_PYTHON_TYPES: dict[Kind, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list[int]": list[int],
    "list[float]": list[float],
}
