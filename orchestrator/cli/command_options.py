"""The options of a launch as parameters that typer reads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from depthrate.orchestrator.cli.options import SweepArgument
from depthrate.orchestrator.executors.options import Option
from depthrate.orchestrator.executors.registry import launch_options, make_launch_options

T = TypeVar("T")
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


def takes_launch(*, of_plan: bool) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the options of a launch, and as its first parameter the `LaunchOptions` made of them."""

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        options = [option for option in launch_options() if option.of_plan or not of_plan]

        @functools.wraps(command)
        def call(sweep: str, **given: Any) -> T:
            launch = make_launch_options(sweep, {option.name: given.pop(option.name) for option in options})
            return command(launch, **given)

        sweep = inspect.Parameter("sweep", _KEYWORD_ONLY, annotation=SweepArgument)
        own = [*inspect.signature(command, eval_str=True).parameters.values()][1:]
        parameters = [sweep, *map(_parameter_of, options), *(each.replace(kind=_KEYWORD_ONLY) for each in own)]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # both are what typer reads
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _parameter_of(option: Option) -> inspect.Parameter:
    kind: Any = list[str] if option.is_list else option.type
    kind = kind if option.default not in (None, ()) else kind | None
    given = typer.Option(option.flag, min=option.minimum, help=option.doc, metavar=option.metavar)
    default = option.default if option.default != () else None
    return inspect.Parameter(option.name, _KEYWORD_ONLY, default=default, annotation=Annotated[kind, given])
