"""How a command declares itself: `declared`, or `declared_group`, and the arguments and options that several share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from depthrate.deprecated import rename_flags
from depthrate.orchestrator.cli.exit_codes import exits

SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
GRACE_NOTE = "the first compaction an hour or more from now"


class Number(click.FloatRange):
    """A number of a range, which no `nan` is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


NOT_NEGATIVE = Number(min=0.0)


class _File(click.Path):
    """A path that may not be there yet."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if "\0" in str(value):
            self.fail(f"{str(value)!r} is no path", param, ctx)
        return Path(value)


FILE = _File()
store_option = click.option("--store", help="Any fsspec URL; else DEPTHRATE_STORE, else ./results.")
json_option = click.option("--json", is_flag=True, help="Print JSON for programs.")
wide_option = click.option("--wide", is_flag=True, help="All columns, however wide the table gets.")
yes_option = click.option("--yes", is_flag=True, help="Do it; without it this only shows what would go.")
launched_argument = click.argument("sweep", help="A sweep that was launched.")


def sweep_argument(name: str) -> Callable[..., Any]:
    """Return an argument that is a sweep."""
    return click.argument(name, help="A sweep file, or the name of a shipped or launched sweep.")


def trial_argument(name: str) -> Callable[..., Any]:
    """Return an argument that is a trial."""
    return click.argument(name, help="A trial_id, or its beginning.")


def help_of(module_doc: str | None) -> str:
    """Return what a command's module says that it does, after its name."""
    _, _, text = " ".join((module_doc or "").split()).partition(": ")
    return text[:1].upper() + text[1:]


class _Command(click.Command):
    """A command that says of an option it has not what to type for it, where that is another thing than a similar name."""

    instead: Mapping[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # as shell completion parses
            args = rename_flags(self.name or "", args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name, possibilities = error.option_name, error.possibilities
            if not (way_on := self.instead.get(name) or self.instead.get("")):
                raise
            said = f"No such option {name!r}: {way_on.format(name.lstrip('-'))}."
            raise click.NoSuchOption(name, said, None if name in self.instead else possibilities, ctx) from None


def declared(
    module_doc: str | None, instead: Mapping[str, str] | None = None
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a function the command of its module, whose docstring says what it does; it ends as `exits` says.

    `instead` says of options that the command has not what to type for them, and by "" of all others.
    """

    def make(function: Callable[..., int | None]) -> click.Command:
        command = click.command(cls=_Command, help=help_of(module_doc), context_settings=SETTINGS)(exits(function))
        command.instead = instead or {}
        return command

    return make


class DeclaredGroup(click.Group):
    """Several verbs about one thing, in one module."""

    def declared(self, name: str) -> Callable[[Callable[..., int | None]], click.Command]:
        """Make a function one of the verbs; its docstring says what it does."""
        return lambda function: self.command(name, context_settings=SETTINGS)(exits(function))


def declared_group(module_doc: str | None) -> DeclaredGroup:
    """Return the command of a module that has several verbs."""
    return DeclaredGroup(help=help_of(module_doc), context_settings=SETTINGS)
