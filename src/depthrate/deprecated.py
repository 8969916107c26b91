"""Old names that work for one more release, each with a warning: the only place where they are declared.

Imports nothing of depthrate, so that every package may use it.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CLASSES = {"Measure": "FinalRuns", "Measurement": "Metric", "Measurer": "StreamingMetrics", "Served": "Server"}
"""Old -> new names of public classes."""
FUNCTIONS = {"load_sweep": "load"}
"""Names no longer exported by `depthrate` -> the name to use. The old name still returns the old function."""
METHODS = {("Results", "of"): "for_sweep", ("context", "runs_as"): "report_engine"}
"""(Class, old name) -> new name."""
ARGUMENTS = {("load", "given"): "sweep"}
"""(Function, old keyword) -> new keyword."""
LAUNCH_OPTIONS = {
    "accept_code": "keep_results",
    "checkpoint_s": "checkpoint_seconds",
    "code": "code_version",
    "probe": "pilot",
}
"""Old -> new options of `Sweep.run` and attributes of `LaunchOptions`. Stored launches have either."""
COMMANDS = {"accept-code": "trust"}
"""Old -> new commands."""
FLAGS: Mapping[str, Mapping[str, str]] = {
    "compact": {"--grace": "--retain-hours"},
    "nodes": {"--forgive": "--clear"},
    "plan": {"--code": "--code-version"},
    "query": {"--memory": "--memory-gb", "--timeout": "--timeout-seconds"},
    "run": {"--accept-code": "--keep-results", "--code": "--code-version", "--probe": "--pilot"},
    "serve": {"--memory": "--memory-gb", "--timeout": "--timeout-seconds"},
}
"""Command -> its old -> new options."""


def warn_renamed(old: str, new: str, stacklevel: int = 2) -> None:
    """Issue the deprecation warning, attributed to the code that used the old name.

    Args:
        old: Name as the user wrote it.
        new: Name to use instead.
        stacklevel: Number of frames between that code and this function, plus one.
    """
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=stacklevel + 1)


def old_method(owner: str, old: str) -> Callable[..., Any]:
    """Return a method that warns and calls the method that replaced it."""
    new = METHODS[owner, old]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        warn_renamed(f"{owner}.{old}", f"{owner}.{new}")
        return getattr(self, new)(*args, **kwargs)

    return call


def accept_old_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function take the old names of its keyword arguments."""
    names = {old: new for (owner, old), new in ARGUMENTS.items() if owner == function.__name__}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for old in names.keys() & kwargs.keys():
            warn_renamed(f"{function.__name__}({old}=...)", f"{function.__name__}({names[old]}=...)")
            kwargs[names[old]] = kwargs.pop(old)
        return function(*args, **kwargs)

    return call


def rename_launch_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return launch options under their new names."""
    return {LAUNCH_OPTIONS.get(name, name): value for name, value in options.items()}


def rename_flags(command: str, args: Sequence[str]) -> list[str]:
    """Return a command's arguments with new option names, and print one line to stderr per old name."""
    names, renamed, is_positional = FLAGS.get(command, {}), [], False
    for arg in args:
        flag, equals, value = arg.partition("=")
        is_positional = is_positional or arg == "--"
        if flag in names and not is_positional:
            print_renamed(flag, names[flag])
            arg = names[flag] + equals + value
        renamed.append(arg)
    return renamed


def print_renamed(old: str, new: str) -> None:
    """Print the deprecation of a command or flag to stderr."""
    print(f"warning: {old} is deprecated, use {new}", file=sys.stderr)
