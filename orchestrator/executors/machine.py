"""What this machine computes on, found without importing torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

USABLE_SHARE = 0.8
"""Of the memory: the rest is for the system, the driver, and what a prediction is off by."""


class MachineError(ValueError):
    """The device or the number of workers that was asked for cannot be had."""


@dataclass(frozen=True)
class Machine:
    """What this machine's workers compute on."""

    device: str
    workers: int
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them."""
    memory_bytes: float | None = None
    """What one worker may use: its share of the memory, or its GPU's, less a fifth; null where it cannot be found."""


def choose_machine(device: str, workers: int | None) -> Machine:
    """Return the device and the number of workers: one a GPU if there are any, else one a core.

    Raises:
        MachineError: the device is unknown or not there, or the number of workers is below 1.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise MachineError(f"device {device!r} is unknown; allowed: auto, cpu, cuda")
    if workers is not None and workers < 1:
        raise MachineError(f"workers is {workers}; give at least 1")
    gpus = () if device == "cpu" else tuple(gpu_names())
    if device == "cuda" and not gpus:
        raise MachineError(
            "device is cuda, but there is no GPU that torch can use; check nvidia-smi and the torch build"
        )
    if gpus:
        workers = workers or len(gpus)
        total = gpu_memory_bytes()
        sharing = -(-workers // len(gpus))
        return Machine("cuda", workers, gpus, None if total is None else USABLE_SHARE * total / sharing)
    workers = workers or len(os.sched_getaffinity(0))
    total = main_memory_bytes()
    return Machine("cpu", workers, memory_bytes=None if total is None else USABLE_SHARE * total / workers)


def main_memory_bytes(limit_file: str = "/sys/fs/cgroup/memory.max") -> float | None:
    """Return the memory of this machine, or of the control group we are in where that is less; null if neither is known."""
    known = []
    with contextlib.suppress(ValueError, OSError):  # no such name on some systems
        known.append(float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(ValueError, OSError):  # no such file, or `max`
        known.append(float(Path(limit_file).read_text()))
    return min(known, default=None)


def gpu_memory_bytes() -> float | None:
    """Return the memory of the smallest GPU here; null if nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
        return min((float(line) * 2**20 for line in printed.splitlines()), default=None)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def gpu_names() -> list[str]:
    """Return the GPUs that torch can use here, as CUDA_VISIBLE_DEVICES names them, found without importing torch."""
    if shutil.which("nvidia-smi") is None:  # first: what is installed takes a while to find out
        return []
    import importlib.metadata

    if "+cpu" in importlib.metadata.version("torch"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(index) for index in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]
