"""The command line: the table of its commands, of which only the one that is asked for is imported."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from depthrate import deprecated
from depthrate.orchestrator.cli.exit_codes import exits
from depthrate.orchestrator.cli.options import SETTINGS, help_of
from depthrate.tasks.importing import gc_paused

COMMANDS = (
    *(
        "init",
        "schema",
        "show",
        "run",
        "plan",
        "status",
        "serve",
        "nodes",
        "cancel",
        "logs",
        "debug",
        "diff",
        "query",
        "compare",
    ),
    *(
        "compact",
        "verify",
        "upgrade",
        "fit",
        "report",
        "export",
        "tasks",
        "trust",
        "data",
        "sweeps",
        "trials",
        "atlas",
    ),
)
"""Commands in the order of --help. Each is `command` in the module of its name."""


class Commands(click.Group):
    """The commands by name; what they do is read from their files, which are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None for what is none."""
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
        """Return the command that the arguments name; a mistyped name is answered with the nearest one."""
        name = args[0]
        if (new := deprecated.COMMANDS.get(name)) is not None:
            deprecated.print_renamed(name, new)
            args = [new, *args[1:]]
        elif name not in COMMANDS and not name.startswith("-"):
            from depthrate.tasks.parameters import nearest

            ctx.fail(f"No such command {name!r}{nearest(name, COMMANDS)}; depthrate --help lists them")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(name)) for name in COMMANDS])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin so."""
        names = [CompletionItem(name, help=summary(name)) for name in COMMANDS if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def summary(name: str) -> str:
    """Return what a command does, in one sentence, from its file."""
    import ast

    text = (Path(__file__).parent / "commands" / f"{name}.py").read_text(encoding="utf-8")
    return help_of(ast.literal_eval(text[: text.index('"""', 3) + 3])).partition(". ")[0].rstrip(".")


def _print_version(context: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(version("depthrate"))
        context.exit()


def _install_completion(context: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from depthrate.orchestrator.cli.completion import install

        exits(lambda: print(install(app)))()
        context.exit()


def _show_completion(context: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from depthrate.orchestrator.cli.completion import script

        exits(lambda: print(script(app)))()
        context.exit()


def _asks(flag: str, answer: Callable[..., None], doc: str) -> Callable[..., Any]:
    return click.option(flag, is_flag=True, is_eager=True, expose_value=False, callback=answer, help=doc)


@click.command(
    cls=Commands,
    name="depthrate",
    help="Launch depth x width x weight-decay x seed grids of small networks, measure their features, fit the rates.",
    context_settings=SETTINGS,
)
@_asks("--version", _print_version, "Print the version and exit.")
@_asks("--install-completion", _install_completion, "Teach the current shell the commands and options.")
@_asks("--show-completion", _show_completion, "Print what --install-completion writes.")
def app() -> None:
    """Do nothing: each command does what it does."""


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="depthrate")
    finally:
        if "duckdb" not in sys.modules:  # which reports what the last collections have not freed
            gc.freeze()  # those would walk through all that is loaded, a fifth of a short command's time
