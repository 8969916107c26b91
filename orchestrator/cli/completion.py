"""Completion of commands and options in bash, zsh and fish."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from depthrate.orchestrator.console.errors import UsageError

SHELLS = {
    "bash": (".bash_completions/depthrate.sh", ".bashrc", "source ~/.bash_completions/depthrate.sh"),
    "zsh": (".zfunc/_depthrate", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/depthrate.fish", None, ""),
}
"""Shell -> where its script lies, the file that it reads at its start, and the line there that finds the script."""


def _shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise UsageError(f"SHELL is {shell!r}; completion is there for {', '.join(SHELLS)}: set SHELL to one of them")
    return shell


def script(app: click.Command) -> str:
    """Return the script for the shell that SHELL names.

    Raises:
        UsageError: there is none for it.
    """
    make = get_completion_class(_shell())
    assert make is not None
    return make(app, {}, "depthrate", "_DEPTHRATE_COMPLETE").source()


def install(app: click.Command) -> str:
    """Write the script where the shell finds it, once, and say where.

    Raises:
        UsageError: there is none for it.
    """
    text = script(app)
    place, start, line = SHELLS[_shell()]
    path = Path.home() / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if start is not None:
        start_file = Path.home() / start
        before = start_file.read_text() if start_file.exists() else ""
        if line not in before:
            start_file.write_text(f"{before.rstrip()}\n{line}\n".lstrip())
    return f"{_shell()} completion installed in {path}; it takes effect in a new shell"
