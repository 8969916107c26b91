"""Several processes per GPU: through NVIDIA's multi-process service (MPS) if it is installed, and otherwise by time slicing."""

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

log = logging.getLogger("depthrate")
CONTROL = "nvidia-cuda-mps-control"
MPS_TIMEOUT_S = 30.0
"""Time limit for a command of MPS, in seconds."""


def has_service(gpus: Sequence[str], packs_per_gpu: int) -> bool:
    """Return whether MPS can be started for packs that share these GPUs. Every MIG instance would need its own service."""
    is_shared = packs_per_gpu > 1 and bool(gpus)
    return is_shared and shutil.which(CONTROL) is not None and not any(name.startswith("MIG") for name in gpus)


@contextlib.contextmanager
def shared_gpus(gpus: Sequence[str], packs_per_gpu: int) -> Iterator[list[str]]:
    """Run MPS for GPUs, named as in CUDA_VISIBLE_DEVICES, and yield the names for the processes that share them.

    The service belongs to this job, or to a launch on the local machine, and ends with it.
    """
    if not has_service(gpus, packs_per_gpu):
        yield list(gpus)
        return
    # Not in TMPDIR, because the path of a socket may have at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="dr-mps-", dir="/tmp")
    variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    try:
        if not _run_control(variables, "-d", stdin=""):
            yield list(gpus)
            return
        os.environ.update(variables)  # for the workers
        log.info("%d processes share each GPU through %s", packs_per_gpu, CONTROL)
        try:
            # The service numbers its visible GPUs from 0. UUIDs stay valid.
            yield [name if name.startswith("GPU") else str(index) for index, name in enumerate(gpus)]
        finally:
            for name in variables:
                os.environ.pop(name, None)
            _run_control(variables, stdin="quit\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_control(variables: dict[str, str], *arguments: str, stdin: str) -> bool:
    """Run the control program of MPS and return whether it succeeded."""
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(
            [CONTROL, *arguments],
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MPS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s failed: %s. Processes on a GPU take turns.", CONTROL, error)
        return False
    if done.returncode:
        output = (done.stderr or done.stdout).strip()[-200:]
        log.warning("%s exited with code %d: %s. Processes on a GPU take turns.", CONTROL, done.returncode, output)
    return done.returncode == 0
