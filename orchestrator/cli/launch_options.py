"""The options of `run` and `plan` on the command line, made from the declarations of `LaunchOptions`."""

from collections.abc import Callable
from typing import Any

import click

from depthrate.orchestrator.attempts.options import Option
from depthrate.orchestrator.cli.options import Number, sweep_argument
from depthrate.orchestrator.executors.registry import launch_options as declared_options
from depthrate.orchestrator.executors.registry import make_launch_options

_BY_SET = "Set a parameter or key of the sweep with --set {0}=VALUE"
SUGGESTIONS = {
    "--dry-run": "To list pending trials without starting them: depthrate plan SWEEP",
    "--resume": "depthrate run SWEEP resumes by itself, from committed trials and checkpoints",
    "--jobs": "Use --workers for the number of processes",
    **dict.fromkeys(("--name", "--seed", "--seeds", "--task"), _BY_SET),
    "": _BY_SET,
}
"""Option of other programs, or "" for any unknown option -> what to type instead."""


def launch_options(*, of_plan: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a launch, and pass it a `LaunchOptions` as its first argument."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = [option for option in declared_options() if option.in_plan or not of_plan]

        def call(sweep: str, **values: Any) -> Any:
            launch = make_launch_options(sweep, {option.name: values.pop(option.name) for option in options})
            return command(launch, **values)

        call.__click_params__ = [  # type: ignore[attr-defined]  # where click collects options, last first
            *getattr(command, "__click_params__", []),
            *map(_click_option, reversed(options)),
        ]
        return sweep_argument("sweep")(call)

    return decorate


def _click_option(option: Option) -> click.Option:
    kind: Any = {"bool": None, "str": str, "int": int, "float": float}[option.kind]
    if option.minimum is not None:
        at_least = option.minimum
        kind = click.IntRange(min=int(at_least)) if kind is int else Number(min=at_least)
    return click.Option(
        [option.flag, option.name],
        type=kind,
        is_flag=option.kind == "bool",
        multiple=option.is_list,
        default=None if option.is_list else option.default,
        metavar=option.metavar,
        help=option.doc,
    )
