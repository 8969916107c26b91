"""Exit codes of commands (0 done, 1 something failed, 2 wrong input, 130 interrupted), and one message per error."""

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import click

from depthrate.errors import InputError

P = ParamSpec("P")
INTERRUPTED = 130
OUTPUT_CLOSED = 141
"""Exit code that shells report for a program killed by SIGPIPE."""


def exits(command: Callable[P, int | None]) -> Callable[P, None]:
    """Make a command exit with the code that it returns (None: 0), or with the code of its error."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        if code := exit_code(functools.partial(command, *args, **kwargs)):
            raise click.exceptions.Exit(code)

    return call


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code (None: 0). Wrong input and errors of the system are printed."""
    try:
        return command() or 0
    except InputError as error:
        _print_error(str(error))
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the reader has closed the pipe, as `| head` does: redirect, so that the flush at exit does not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    except OSError as error:
        advice = "Committed trials are not affected. Fix the cause and run the same command again."
        reason = f"{type(error).__name__}: {error}"
        if error.filename and error.strerror:
            reason = f"cannot read or write {error.filename}: {error.strerror}"
        _print_error(f"{reason}. {advice}")
        return 1


def _print_error(text: str) -> None:
    from depthrate.orchestrator.console.tables import print_line  # imports rich, which only errors need

    print_line(f"depthrate: {text}", stderr=True)
