"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

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
