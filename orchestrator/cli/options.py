"""Arguments that several commands share, and what `run` and `plan` are both given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from depthrate.orchestrator.cli.command_options import with_options
from depthrate.orchestrator.executors.registry import DEFAULT_EXECUTOR, executor_names, executor_options

SweepArgument = Annotated[str, typer.Argument(help="A sweep file, or the name of a shipped or launched sweep.")]
TrialArgument = Annotated[str, typer.Argument(help="A trial_id, or its beginning.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="Any fsspec URL; else DEPTHRATE_STORE, else ./results.")
]
WideOption = Annotated[bool, typer.Option("--wide", help="All columns, however wide the table gets.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def print_version(wanted: bool) -> None:
    """Print the version and end, where that is what is wanted."""
    if wanted:
        from importlib.metadata import version

        print(version("depthrate"))
        raise typer.Exit


@with_options(executor_options())
def launch_arguments(
    sweep: SweepArgument,
    store: StoreOption = None,
    executor: Annotated[
        str, typer.Option("--executor", help=f"Where packs run: {executor_names()}.")
    ] = DEFAULT_EXECUTOR,
    options: Mapping[str, Any] = {},
    workers: Annotated[
        int | None, typer.Option("--workers", help="Worker processes; default: one a GPU, else one a core.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto (GPUs if there are any), cpu or cuda.")] = "auto",
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="How trials train: auto, native, compiled or eager; else as the sweep says."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a parameter; a list makes it an axis of the grid."),
    ] = None,
    code: Annotated[
        str | None, typer.Option("--code", help="Run this kept version of the task's code (its hash), not its file.")
    ] = None,
) -> Any:
    """Return what `run` and `plan` are both given."""
    from depthrate.orchestrator.cli.launch_arguments import LaunchArguments

    return LaunchArguments(
        sweep=sweep,
        store=store,
        overrides=(*(set_ or ()), *([] if engine is None else [f"engine={engine}"])),
        executor=executor,
        workers=workers,
        device=device,
        options=options,
        code=code,
    )
