"""Options that several commands share, and those that executors declare, given to commands as parameters that typer reads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from depthrate.orchestrator.executors.base import Option

P = ParamSpec("P")
T = TypeVar("T")
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


def takes(make: Callable[..., Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the parameters of `make`, and in the place of its own first parameter what `make` returns for them."""
    shared = _parameters(make)

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def call(**given: Any) -> T:
            made = make(**{parameter.name: given.pop(parameter.name) for parameter in shared})
            return command(made, **given)

        return _with_parameters(call, [*shared, *_parameters(command)[1:]])

    return decorate


def with_options(declared: Sequence[Option]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a function declared options as parameters, in the place of its parameter `options`, which gets their values."""

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def call(**given: Any) -> T:
            options = {option.name: given.pop(option.name) for option in declared}
            return function(**given, options=options)

        parameters: list[inspect.Parameter] = []
        for parameter in _parameters(function):
            own = [parameter]
            parameters += [_parameter_of(option) for option in declared] if parameter.name == "options" else own
        return _with_parameters(call, parameters)

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [*inspect.signature(function, eval_str=True).parameters.values()]


def _with_parameters(function: Callable[..., T], parameters: Sequence[inspect.Parameter]) -> Callable[..., T]:
    keywords = [parameter.replace(kind=_KEYWORD_ONLY) for parameter in parameters]
    function.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]  # both are what typer reads
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return function


def _parameter_of(option: Option) -> inspect.Parameter:
    kind = option.type if option.default is not None else option.type | None
    annotation: Any = Annotated[kind, typer.Option(option.flag, min=option.minimum, help=option.doc)]
    return inspect.Parameter(option.name, _KEYWORD_ONLY, default=option.default, annotation=annotation)
