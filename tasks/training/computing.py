"""How torch computes while trials train and are measured."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from depthrate.tasks.training.engines.choice import check_precision


@functools.cache
def make_products_reproducible() -> None:
    """Have MKL form each matrix of a batched product as it forms it alone; to be called before the process's first product.

    On Intel's processors it does so by itself. On others it picks its way by the size of the batch unless told otherwise:
    of 4,500 batches of random shapes 194 came out in other bits than matrix by matrix, and with this none but those of one
    column (AMD EPYC, MKL 2024.2).
    """
    try:
        is_intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return
    if not is_intel:
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


@contextlib.contextmanager
def computing(device: str, matmul_precision: str = "full") -> Iterator[None]:
    """Set up torch for results that are the same to the last bit however often and with whom a trial runs.

    Raises:
        EngineError: the device does not have that precision of matrix products.
        RuntimeError: there is no GPU.
    """
    check_precision(matmul_precision, device)
    make_products_reproducible()
    torch.set_num_threads(1)  # bitwise results need one thread, and packs run one a core anyway
    if device == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("device is cuda, but torch sees no GPU; run with --device cpu")
        torch.cuda.reset_peak_memory_stats()
        # TF32 is asked for by a trial's matmul_precision; convolutions would use it unasked
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with _flush_denormals():
        yield


@contextlib.contextmanager
def _flush_denormals() -> Iterator[None]:
    """Take numbers too small for a normal float for zero: they make matrix products up to 180 times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)  # the processor's mode is the whole thread's, and others rely on it
