"""The command line: its table of commands. Only the module of the invoked command is imported."""

import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from depthrate.orchestrator.cli.exit_codes import INTERRUPTED
from depthrate.orchestrator.cli.options import SETTINGS, help_of
from depthrate.tasks.importing import gc_paused

GROUPS = {
    "Start": ["init", "tasks", "data", "show", "schema", "trust"],
    "Run": ["plan", "run", "status", "logs", "cancel", "debug"],
    "Look": ["fit", "report", "serve", "query", "compare", "tag"],
    "Store": ["sweeps", "trials", "export", "verify", "compact"],
    "Cluster": ["nodes"],
    "Papers": ["atlas"],
}
"""Commands in the order of --help, by what they are for. Each is `command` in the module of its name."""
COMMANDS = [name for names in GROUPS.values() for name in names]


class Commands(click.Group):
    """The commands. A command's module is imported when it is invoked. For --help, only docstrings are read from the files."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or return None if it does not exist."""
        if cmd_name not in COMMANDS:
            return None
        with gc_paused():
            command = importlib.import_module(f"{__package__}.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        command.name = cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name. The error for an unknown name suggests the nearest one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from depthrate.tasks.parameters import nearest

            ctx.fail(f"No such command {name!r}{nearest(name, COMMANDS)}. List all: depthrate --help")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Its import can be interrupted too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per command, by group, without empty lines between groups, so that the help fits a screen."""
        formatter.write_paragraph()
        width = max(map(len, COMMANDS))
        for group, names in GROUPS.items():
            formatter.write_heading(group)
            with formatter.indentation():
                formatter.write_dl([(name.ljust(width), summary(name)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that start with `incomplete`."""
        names = [CompletionItem(name, help=summary(name)) for name in COMMANDS if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def summary(name: str) -> str:
    """Return the first sentence of a command's docstring, read from its file."""
    import ast

    text = (Path(__file__).parent / "commands" / f"{name}.py").read_text(encoding="utf-8")
    return help_of(ast.literal_eval(text[: text.index('"""', 3) + 3])).partition(". ")[0].rstrip(".")


@click.command(
    cls=Commands,
    name="depthrate",
    help="Run grids of small networks over depth, width, weight decay and seed, measure their features and fit the rates.",
    context_settings=SETTINGS,
)
@click.version_option(package_name="depthrate", message="%(version)s", help="Print the version and exit.")
def app() -> None:
    """Group the commands."""


def main() -> None:
    """Run the command line."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as in `depthrate status >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    gc.set_threshold(100_000, 10, 10)  # at the default of 700, lists of a large store start hundreds of collections
    try:
        app(prog_name="depthrate")
    finally:
        if "duckdb" not in sys.modules:  # duckdb reports objects that the last collections have not freed
            gc.freeze()  # skips the last collections, which take a fifth of a short command's time
