"""What this machine computes on, found without importing torch."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from dataclasses import dataclass


class MachineError(ValueError):
    """The device or the number of workers that was asked for cannot be had."""


@dataclass(frozen=True)
class Machine:
    """What this machine's workers compute on."""

    device: str
    workers: int
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them."""


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
        return Machine("cuda", workers or len(gpus), gpus)
    return Machine("cpu", workers or len(os.sched_getaffinity(0)))


def gpu_names() -> list[str]:
    """Return the GPUs that torch can use here, as CUDA_VISIBLE_DEVICES names them, found without importing torch."""
    if shutil.which("nvidia-smi") is None or "+cpu" in importlib.metadata.version("torch"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(index) for index in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]
