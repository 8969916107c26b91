"""How a command ends: 0 all done, 1 something failed, 2 bad input, 130 interrupted, and one message for an error."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import click

P = ParamSpec("P")
OUTPUT_CLOSED = 141
"""What a shell makes of a program that wrote to a closed pipe."""


def exits(command: Callable[P, int | None]) -> Callable[P, None]:
    """Let a command end the process with the code that it returns (None: 0), or that its error stands for."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        if code := exit_code(functools.partial(command, *args, **kwargs)):
            raise click.exceptions.Exit(code)

    return call


def exit_code(command: Callable[[], int | None]) -> int:
    """Return the code that a command returns (None: 0), or that its error stands for, which is printed."""
    try:
        return command() or 0
    except ValueError as error:
        if type(error).__module__.partition(".")[0] != "depthrate":
            raise  # not what a user gave, but what we got wrong
        _print_error(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # whoever read our output has seen enough, as `| head` does; nothing more may be written, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    except OSError as error:
        again = "what is committed is not touched; run the same command again when that is mended"
        reason = f"{type(error).__name__}: {error}"
        if error.filename and error.strerror:
            reason = f"cannot read or write {error.filename}: {error.strerror}"
        _print_error(f"{reason}; {again}")
        return 1


def _print_error(text: str) -> None:
    from depthrate.orchestrator.console.tables import print_line  # imports rich, which only an error needs here

    print_line(f"depthrate: {text}", stderr=True)
