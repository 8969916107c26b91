"""What one core (or a GPU) can do at most, measured, and how much of it a training step uses.

Two floors of a step's time: its arithmetic at the speed of multiply-adds in registers (on a GPU of a large matrix product), and
its traffic at the speed of a copy in main memory. The traffic counts as if nothing stayed in a cache, neither between steps nor
between the passes of one, so that a share of it above 1 says that caches hold some; of the arithmetic no share can be above 1.
"""

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from depthrate.tasks.native.build import FLAGS
from depthrate.tasks.native.compiler import compiler
from depthrate.tasks.networks.network import Network

BYTES, REPEATS, FMA_ROUNDS = 4, 5, 10**7
MATRIX, COPIED_BYTES = 8192, {"cpu": 2**27, "cuda": 2**31}


@dataclass(frozen=True)
class Speeds:
    """What was measured of a device, of one core of a CPU: processor seconds there, seconds on a GPU."""

    flops: float
    """A second, in float32: on a CPU of fused multiply-adds in registers, on a GPU of a product of two large matrices."""
    bytes: float
    """A second, read and written, of a copy too large for the caches."""

    def __str__(self) -> str:
        return f"peak {self.flops / 1e9:.0f} GFLOP/s, {self.bytes / 1e9:.1f} GB/s (copy), one process"


@dataclass(frozen=True)
class StepWork:
    """What one training step of one trial cannot do without."""

    flops: float
    """Products: forward, gradient of the inputs (but the first's), gradient of the weights."""
    bytes: float
    """Parameters and momentum read and written, the pack's share of the samples read, activations written and read."""

    def shares(self, steps_per_s: float, speeds: Speeds) -> tuple[float, float]:
        """Return the shares of the peak and of the bandwidth that so many trial-steps a second use."""
        return self.flops * steps_per_s / speeds.flops, self.bytes * steps_per_s / speeds.bytes


def step_work(network: Network, rows: int, inputs: int, width: int, trials: int, *, is_dense: bool) -> StepWork:
    """Return the work of a step over so many samples, whose first layer has no gradient of its inputs to compute.

    is_dense: each matrix is multiplied with each sample once; else the network's own rough count of products is taken.
    """
    cost, all_rows = network.step_cost(), rows * network.rows_per_sample
    matrices = sum(spec.size for spec in network.parameter_specs() if len(spec.shape) == 2)
    products = 3 * all_rows * (matrices if is_dense else cost.multiply_adds) - rows * inputs * width
    numbers = 4 * network.num_parameters + rows * inputs / trials + 2 * all_rows * cost.kept
    return StepWork(2 * products, BYTES * numbers)


def measured_speeds(device: str) -> Speeds:
    """Return the best of some runs: other work on the machine only ever slows them down."""
    import torch

    torch.set_num_threads(1)
    clock = time.process_time if device == "cpu" else time.perf_counter

    def best_s(work: Callable[[], object]) -> float:
        took = []
        for _ in range(1 + REPEATS):
            started = clock()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            took.append(clock() - started)
        return min(took)

    length = COPIED_BYTES[device] // BYTES
    source, target = torch.ones(length, device=device), torch.zeros(length, device=device)
    bytes_per_s = 2 * COPIED_BYTES[device] / best_s(lambda: target.copy_(source))
    if device == "cpu":
        return Speeds(_fma_flops(best_s), bytes_per_s)
    a, b = torch.randn(MATRIX, MATRIX, device=device), torch.randn(MATRIX, MATRIX, device=device)
    product = torch.empty_like(a)
    return Speeds(2 * MATRIX**3 / best_s(lambda: torch.mm(a, b, out=product)), bytes_per_s)


def _fma_flops(best_s: Callable[[Callable[[], object]], float]) -> float:
    """Return the operations a second of multiply-adds in registers: no library's product is faster."""
    source, result = Path(__file__).with_name("fma_peak.cpp"), ctypes.c_double(1e-3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fma_peak.so"
        subprocess.run([compiler(), *FLAGS, "-DNUMBER=float", str(source), "-o", str(path)], check=True)
        run = ctypes.CDLL(str(path)).fma_rounds
    run.restype = ctypes.c_double
    flops = float(run(ctypes.c_long(FMA_ROUNDS), ctypes.byref(result)))
    return flops / best_s(lambda: run(ctypes.c_long(FMA_ROUNDS), ctypes.byref(result)))
