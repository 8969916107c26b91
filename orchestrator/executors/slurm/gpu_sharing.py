"""Several processes on one GPU: through NVIDIA's multi-process service where that is installed, else taking turns."""

from __future__ import annotations

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


@contextlib.contextmanager
def shared_gpus(gpus: Sequence[str], packs_per_gpu: int) -> Iterator[list[str]]:
    """Share GPUs, given as CUDA_VISIBLE_DEVICES names them, while this lasts; yield their names for the processes that do.

    The service belongs to this job alone and ends with it. Parts of a GPU (MIG) would need one each, and go without.
    """
    if packs_per_gpu < 2 or not gpus or shutil.which(CONTROL) is None or any(name.startswith("MIG") for name in gpus):
        yield list(gpus)
        return
    # not TMPDIR: the path of a socket may have 107 bytes
    folder = tempfile.mkdtemp(prefix="dr-mps-", dir="/tmp")
    given = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    try:
        if not _run_control(given, "-d", said=""):
            yield list(gpus)
            return
        os.environ.update(given)  # for the workers
        log.info("%d processes share each GPU through %s", packs_per_gpu, CONTROL)
        try:
            # the service counts the GPUs it sees from 0; only names that say which GPU they mean stay
            yield [name if name.startswith("GPU") else str(place) for place, name in enumerate(gpus)]
        finally:
            for name in given:
                os.environ.pop(name, None)
            _run_control(given, said="quit\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_control(variables: dict[str, str], *words: str, said: str) -> bool:
    """Call the service's program, and return whether it did what it was asked."""
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(
            [CONTROL, *words],
            input=said,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MPS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s; processes on a GPU take turns", CONTROL, error)
        return False
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-200:]
        log.warning("%s ended with code %d: %s; processes on a GPU take turns", CONTROL, done.returncode, said)
    return done.returncode == 0
