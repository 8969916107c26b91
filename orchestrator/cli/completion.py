"""Completion of commands and options in bash, zsh and fish."""

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
"""Shell -> path of its completion script, start file of the shell or None, and the line there that loads the script."""


def _shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise UsageError(
            f"SHELL is {shell!r}, expected {', '.join(SHELLS)}. Set SHELL to one of them to get completion."
        )
    return shell


def script(app: click.Command) -> str:
    """Return the completion script of the shell in SHELL.

    Raises:
        UsageError: The shell is not supported.
    """
    make = get_completion_class(_shell())
    assert make is not None
    return make(app, {}, "depthrate", "_DEPTHRATE_COMPLETE").source()


def install(app: click.Command) -> str:
    """Install the completion script and return a message with its path.

    Raises:
        UsageError: The shell is not supported.
    """
    text = script(app)
    location, start, line = SHELLS[_shell()]
    path = Path.home() / location
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if start is not None:
        start_file = Path.home() / start
        content = start_file.read_text() if start_file.exists() else ""
        if line not in content:
            start_file.write_text(f"{content.rstrip()}\n{line}\n".lstrip())
    return f"{_shell()} completion installed in {path}. Start a new shell to use it."
