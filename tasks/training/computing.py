"""torch settings for reproducible results while trials train and are measured."""

import contextlib
import functools
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from depthrate.tasks.training.engines.choice import check_precision


@functools.cache
def make_products_reproducible() -> None:
    """Make each matrix of a batched product be computed as it would be alone. Call before the process's first product.

    oneDNN, which computes products in bfloat16, does so without AMX. With AMX, 5 of 60 random packs differed in bits from their
    trials alone, without it none (Intel Xeon).
    MKL does so by default on Intel processors. On other processors its algorithm depends on the batch size: of 4,500 batches of
    random shapes, 194 differed in bits from matrix-by-matrix products. With this setting only single-column products differed
    (AMD EPYC, MKL 2024.2).
    """
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    try:
        is_intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return
    if not is_intel:
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


@contextlib.contextmanager
def computing(device: str, matmul_precision: str = "full") -> Iterator[None]:
    """Configure torch so that a trial's results are bitwise reproducible and, on a CPU, independent of its pack.

    On a GPU they are reproducible only if `CUBLAS_WORKSPACE_CONFIG` is set, which torch requires for its deterministic
    algorithms. They are slower.

    Raises:
        EngineError: The device does not support this precision of matrix products.
        RuntimeError: torch sees no GPU.
    """
    check_precision(matmul_precision, device)
    make_products_reproducible()
    # without it, free memory between tensors of a pack that was split could not be used by its parts
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    torch.set_num_threads(1)  # bitwise results need one thread, and each core runs one pack anyway
    if device == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("device is cuda, but torch sees no GPU. Run with --device cpu.")
        gc.collect()  # the exception of a pack that failed may keep its tensors
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        # only a trial's matmul_precision enables TF32; convolutions would use it by default
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    is_requested = device == "cuda" and "CUBLAS_WORKSPACE_CONFIG" in os.environ
    with _flush_denormals(), _deterministic() if is_requested else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Use torch's deterministic algorithms. Operations without one warn. Either call imports all of torch's compiler."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextlib.contextmanager
def _flush_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero, because they make matrix products up to 180 times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)  # the mode applies to the whole thread, and other code relies on it
