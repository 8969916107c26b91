"""What tests in several folders use: a small sweep, the command line, a free port, whether permissions bind, waits."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app

TINY: dict[str, Any] = {
    "name": "tiny",
    "task": "collapse",
    "grid": {"depth": [2, 3]},
    "seeds": 2,
    "params": {"arch": "rn1", "samples_per_class": 5, "steps": 40, "width": 16},
    "fit": [{"metric": "nc1"}, {"metric": "objective_gap"}],
}


def invoke(*words: object) -> tuple[int, str]:
    """Call the command line in this process and return its exit code and output."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return result.exit_code, result.output


def printed(*words: object, code: int = 0) -> str:
    """Call the command line in this process, check its exit code and return its output."""
    actual, output = invoke(*words)
    assert actual == code, output
    return output


def answer(*words: object) -> Any:
    """Call the command line in this process with --json, and return what it answers."""
    result = CliRunner().invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*words: object) -> str:
    """Call the command line in this process, check that it refuses its input, and return its message."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 2 and not result.stdout, result.output
    return result.stderr


def is_root() -> bool:
    """Return whether permissions do not bind this process."""
    return os.geteuid() == 0


def free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def await_that(is_so: Callable[[], object], longest_s: float) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if is_so():
                return
        time.sleep(0.1)
    raise AssertionError(f"not so within {longest_s} s")
