"""A user's callable: a network or data set, with its arguments as parameters, or a metric. Importable without torch."""

import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from depthrate.tasks.code.load import load_user_module
from depthrate.tasks.interface import TaskCode, TaskError
from depthrate.tasks.measures.named_columns import PARAMETER
from depthrate.tasks.parameters import REQUIRED, Kind, Parameter, ParameterError, kind_of_hint
from depthrate.tasks.supervised.references import short_name


@dataclass(frozen=True, kw_only=True, eq=False)
class UserCallable:
    """A class or function in a user's file or installed module."""

    make: Callable[..., Any]
    name: str
    """Name in a trial's parameters, such as `model:MLP`."""
    arguments: tuple[Parameter, ...] = ()
    code: TaskCode | None = None
    defined_at: str = ""

    def imported_again(self) -> Callable[..., Any]:
        """Return it from its file executed again, as another process has it, with the seeds that the file sets."""
        with suppress(Exception):  # some files can be executed only once, and some callables have none
            module = sys.modules[self.make.__module__]
            assert module.__spec__ is not None and module.__spec__.loader is not None
            again = importlib.util.module_from_spec(module.__spec__)
            again.__file__ = module.__file__
            module.__spec__.loader.exec_module(again)
            return getattr(again, self.name.rpartition(":")[2])
        return self.make

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Select the values of its arguments from a trial's."""
        return {argument.name: arguments[argument.name] for argument in self.arguments}


def load_callable(reference: str | None, parameter: str, files: Mapping[str, bytes] | None) -> UserCallable | None:
    """Load the callable named by a parameter, or return None for other references. `files` replace files on disk.

    Raises:
        TaskError: The file or module cannot be imported, or lacks the callable.
        ParameterError: The callable takes an argument that no sweep can set.
    """
    location, separator, name = (reference or "").rpartition(":")
    if reference is None or not separator:
        return None
    module, code = load_user_module(location, None, files if location.endswith(".py") else None)
    make = getattr(module, name, None)
    if not callable(make):
        state = "does not define" if make is None else "does not define a class or function"
        defined = [
            key for key, value in vars(module).items() if callable(value) and value.__module__ == module.__name__
        ]
        raise TaskError(f"{parameter}: {location} {state} {name!r}. It defines: {', '.join(defined) or 'nothing'}.")
    short = short_name(reference)
    arguments = () if parameter == PARAMETER else tuple(read_arguments(make, short))
    return UserCallable(
        make=make, name=short, arguments=arguments, code=code, defined_at=f"{Path(location).name}, {name}"
    )


def read_arguments(function: Callable[..., Any], name: str) -> list[Parameter]:
    """Read the arguments of any callable as parameters. Annotations are optional.

    Without an annotation, the default determines the type. If there is no default either, any scalar is accepted. Arguments
    that no sweep can set (a class, a function) retain their defaults, as do *args and **kwargs.

    Raises:
        ParameterError: An argument without a default has a type that no sweep can set.
    """
    inner = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(inner)
    except Exception:  # annotations that only the author's type checker can resolve
        hints = {}
    parameters = []
    for argument in inspect.signature(function).parameters.values():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        kind, nullable, choices = _argument_kind(hints.get(argument.name), argument)
        if kind is not None:
            default = REQUIRED if argument.default is argument.empty else argument.default
            parameter = Parameter(
                name=argument.name, kind=kind, nullable=nullable, choices=choices, doc=f"argument of {name}"
            )
            parameters.append(
                parameter if default is REQUIRED else replace(parameter, default=parameter.check(default))
            )
        elif argument.default is argument.empty:
            raise ParameterError(
                f"{name} needs {argument.name!r} of type {hints.get(argument.name)!r}, which no sweep can give. Use a "
                "function that takes int, float, str and bool and creates the rest."
            )
    return parameters


def _argument_kind(hint: Any, argument: inspect.Parameter) -> tuple[Kind | None, bool, tuple[Any, ...] | None]:
    """Return (kind, nullable, choices) of an argument. The kind is None if a sweep cannot set the argument."""
    default = argument.default
    if hint is not None:
        try:
            kind, nullable, choices = kind_of_hint(hint, argument.name, "")
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
