"""The options of a launch on the command line, of `run` and `plan`: each as it is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from depthrate.orchestrator.cli.options import Number, sweep_argument
from depthrate.orchestrator.executors.options import Option
from depthrate.orchestrator.executors.registry import launch_options as declared_options
from depthrate.orchestrator.executors.registry import make_launch_options

_BY_SET = "a parameter or key of the sweep is set by --set {0}=VALUE"
INSTEAD = {
    "--dry-run": "depthrate plan SWEEP shows what would run, and starts nothing",
    "--resume": "depthrate run SWEEP goes on by itself, from what is committed and from checkpoints",
    "--jobs": "--workers is the number of processes",
    **dict.fromkeys(("--name", "--seed", "--seeds", "--task"), _BY_SET),
    "": _BY_SET,
}
"""Options of other programs, and of none: what to type for them."""


def launch_options(*, of_plan: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a launch, and as its first parameter the `LaunchOptions` made of them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = [option for option in declared_options() if option.in_plan or not of_plan]

        def call(sweep: str, **given: Any) -> Any:
            launch = make_launch_options(sweep, {option.name: given.pop(option.name) for option in options})
            return command(launch, **given)

        call.__click_params__ = [  # type: ignore[attr-defined]  # where click collects them, the last first
            *getattr(command, "__click_params__", []),
            *map(_click_option, reversed(options)),
        ]
        return sweep_argument("sweep")(call)

    return decorate


def _click_option(option: Option) -> click.Option:
    kind: Any = {bool: None, str: str, int: int, float: float}[option.type]
    if option.minimum is not None:
        at_least = option.minimum
        kind = click.IntRange(min=int(at_least)) if option.type is int else Number(min=at_least)
    return click.Option(
        [option.flag, option.name],
        type=kind,
        is_flag=option.type is bool,
        multiple=option.is_list,
        default=None if option.is_list else option.default,
        metavar=option.metavar,
        help=option.doc,
    )
