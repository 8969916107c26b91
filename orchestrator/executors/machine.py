"""Devices and memory of the local machine, detected without importing torch."""

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from depthrate.orchestrator.executors.errors import MachineError

USABLE_SHARE = 0.8
"""Usable share of the memory. The rest is reserved for the system, the driver and errors of the memory estimate."""


@dataclass(frozen=True)
class Machine:
    """Device, workers and memory of the local machine."""

    device: str
    workers: int
    gpus: tuple[str, ...] = ()
    """GPU names as in CUDA_VISIBLE_DEVICES."""
    memory_bytes: float | None = None
    """Usable bytes per worker: 80 % of its share of the main memory or of its GPU. None if unknown."""


def check_request(device: str, workers: int | None) -> None:
    """Reject values of the options `device` and `workers` that are invalid on every machine.

    Raises:
        MachineError: The device is unknown, or `workers` is below 1.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise MachineError(f"device is {device!r}, expected auto, cpu or cuda")
    if workers is not None and workers < 1:
        raise MachineError(f"workers is {workers}, expected an int >= 1")


def choose_machine(device: str, workers: int | None) -> Machine:
    """Return the device and the number of workers, by default one worker per GPU or, without GPUs, one per core.

    Raises:
        MachineError: The device is unknown or missing, or `workers` is below 1.
    """
    check_request(device, workers)
    gpu_bytes = {} if device == "cpu" else visible_gpus()
    gpus = tuple(gpu_bytes)
    if device == "cuda" and not gpus:
        raise MachineError(
            "device is cuda, but there is no GPU that torch can use. Check nvidia-smi and the torch build."
        )
    if gpus:
        workers = workers or len(gpus)
        total = min(gpu_bytes.values()) if all(gpu_bytes.values()) else None
        sharing = -(-workers // len(gpus))
        return Machine("cuda", workers, gpus, None if total is None else USABLE_SHARE * total / sharing)
    workers = workers or len(os.sched_getaffinity(0))
    total = main_memory_bytes()
    return Machine("cpu", workers, memory_bytes=None if total is None else USABLE_SHARE * total / workers)


def main_memory_bytes(limit_file: str = "/sys/fs/cgroup/memory.max") -> float | None:
    """Return the bytes of this machine, or of our control group if that is less. None if both are unknown."""
    limits = []
    with contextlib.suppress(ValueError, OSError):  # some systems lack these names
        limits.append(float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(ValueError, OSError):  # the file is missing, or contains `max`
        limits.append(float(Path(limit_file).read_text()))
    return min(limits, default=None)


def _nvidia_smi(*arguments: str) -> list[str]:
    """Return the lines that nvidia-smi prints, or an empty result if it fails."""
    command = ["nvidia-smi", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return []


def visible_gpus() -> dict[str, float]:
    """Return the memory in bytes of the local GPUs that torch can use, 0 if unknown, by name as in CUDA_VISIBLE_DEVICES.

    A GPU in MIG mode is replaced by its instances, named by UUID, with the memory in the name of their profile.
    """
    if shutil.which("nvidia-smi") is None:  # checked first, because reading the version of torch takes longer
        return {}
    import importlib.metadata

    if "+cpu" in importlib.metadata.version("torch"):
        return {}
    totals = dict(
        line.split(", ") for line in _nvidia_smi("--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits")
    )
    gpus: dict[str, float] = {}
    bytes_by_uuid: dict[str, float] = {}
    for line in _nvidia_smi("-L"):
        if gpu := re.match(r"GPU (\d+): .*\(UUID: (.+)\)", line):
            index, uuid = gpu.groups()
            total = totals.get(uuid, "")
            gpus[index] = bytes_by_uuid[uuid] = float(total) * 2**20 if total.isdigit() else 0.0
        elif instance := re.match(r" +MIG \S*?(\d+)gb.*\(UUID: (.+)\)", line):
            gpus.pop(index, None)
            gpus[instance[2]] = 1e9 * float(instance[1])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    names = [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    return {name: (bytes_by_uuid | gpus).get(name, 0.0) for name in names}
