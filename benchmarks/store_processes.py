"""Processes of a benchmark: their output, wall time and peak memory; and the state of the machine they run on."""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ended:
    """A process that ran."""

    output: str
    seconds: float
    peak_mb: float


def run_depthrate(arguments: Sequence[str], environment: Mapping[str, str]) -> Ended:
    return run_process([sys.executable, "-m", "depthrate", *arguments], environment)


def run_module(name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Ended:
    return run_process([sys.executable, "-m", f"benchmarks.{name}", *arguments], environment)


def run_process(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Ended:
    """Run a process to its end.

    Its peak memory counts ours at the moment it is born: this process must stay small.

    Raises:
        subprocess.CalledProcessError: it failed; its last words are in the error.
    """
    python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": python_path, **(environment or {})}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=variables)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            error = subprocess.CalledProcessError(process.returncode, command, output.read(), errors.read())
            error.add_note(error.stderr[-2000:])
            raise error
        return Ended(output.read(), seconds, usage.ru_maxrss * _maxrss_bytes() / 1e6)


def _maxrss_bytes() -> int:
    return 1 if sys.platform == "darwin" else 1024


def drop_from_page_cache(folder: Path) -> None:
    os.sync()  # only clean pages can be dropped
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def machine() -> dict[str, Any]:
    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "git_sha": git("rev-parse", "HEAD"),
        "git_dirty": bool(git("status", "--porcelain")),
    }
