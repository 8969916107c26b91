"""Declarations of commands (`declared`, `declared_group`) and the arguments and options that several commands share."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from depthrate.orchestrator.cli.exit_codes import exits

SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


class Number(click.FloatRange):
    """A number in a range. NaN is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


NOT_NEGATIVE = Number(min=0.0)


class _File(click.Path):
    """A path that need not exist."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if "\0" in str(value):
            self.fail(f"{str(value)!r} is not a path", param, ctx)
        return Path(value)


FILE = _File()
store_option = click.option("--store", help="Store: a folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.")
json_option = click.option("--json", is_flag=True, help="Print JSON.")
wide_option = click.option("--wide", is_flag=True, help="Print all columns.")
yes_option = click.option("--yes", is_flag=True, help="Remove. Without it, only list what would be removed.")
launched_argument = click.argument("sweep", help="Name of a launched sweep.")


def sweep_argument(name: str) -> Callable[..., Any]:
    """Return the argument SWEEP."""
    return click.argument(name, help="A sweep file, or the name of a shipped or launched sweep.")


def trial_argument(name: str) -> Callable[..., Any]:
    """Return the argument TRIAL."""
    return click.argument(name, help="A trial_id, or a prefix of one.")


def help_of(module_doc: str | None) -> str:
    """Return a command's help text: the docstring of its module without the command's name."""
    _, _, text = " ".join((module_doc or "").split()).partition(": ")
    return text[:1].upper() + text[1:]


class _Command(click.Command):
    """A command whose error for an unknown option can suggest something other than a similar name."""

    suggestions: Mapping[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name, possibilities = error.option_name, error.possibilities
            if not (suggestion := self.suggestions.get(name) or self.suggestions.get("")):
                raise
            message = f"No such option {name!r}. {suggestion.format(name.lstrip('-'))}."
            raise click.NoSuchOption(name, message, None if name in self.suggestions else possibilities, ctx) from None


def declared(
    module_doc: str | None, suggestions: Mapping[str, str] | None = None
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a function the command of its module, with the module's docstring as help and the exit codes of `exits`.

    Args:
        module_doc: Docstring of the module.
        suggestions: Unknown option -> what to type instead. The key "" is for all other unknown options.
    """

    def make(function: Callable[..., int | None]) -> click.Command:
        command = click.command(cls=_Command, help=help_of(module_doc), context_settings=SETTINGS)(exits(function))
        command.suggestions = suggestions or {}
        return command

    return make


class DeclaredGroup(click.Group):
    """A command with subcommands, in one module."""

    def declared(self, name: str) -> Callable[[Callable[..., int | None]], click.Command]:
        """Make a function a subcommand, with its docstring as help."""
        return lambda function: self.command(name, context_settings=SETTINGS)(exits(function))


def declared_group(module_doc: str | None) -> DeclaredGroup:
    """Return the command of a module that has subcommands."""
    return DeclaredGroup(help=help_of(module_doc), context_settings=SETTINGS)
