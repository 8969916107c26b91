"""Steps on a GPU: correctness, speed compared with other implementations, time per statement. A run takes at most 4 minutes.

    python -m benchmarks.gpu                      # on the GPU, all parts
    python -m benchmarks.gpu --parts check,steps  # some parts
    python -m benchmarks.gpu --quick              # on a CPU: the same sources by g++ in tiny sizes; rates say nothing

Every part runs in a separate process with a time limit and appends each result to gpu.jsonl (in the folder $OUT if it is set)
when it has it, so a fault costs one part, and a part that exceeds its time keeps the results until then. A part for which too
little of the four minutes is left is skipped. Nothing is resumed: parts that are named run again, and all results of the file
are printed at the end. On a CPU the parts `timed` and `race` do nothing. `jax` needs JAX, and `race` compute-sanitizer.
Steps are measured with L-RN1 of width 64, 64 inputs and 10 classes, cross-entropy, SGD with momentum, one process, medians of
three calls of about .1 s. Not checked: several workers on one GPU, and packs larger than its memory.
"""

import argparse
import ctypes
import dataclasses
import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.generated import Convolutional, Encoder, Residual
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.native.codegen.cuda_emit import CudaSource
from depthrate.tasks.native.codegen.cuda_plan import Tuning
from depthrate.tasks.native.compiler import compiler
from depthrate.tasks.native.cuda import CudaLibrary, compile_cubin
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.networks.network import Network
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.networks.transformer import Transformer
from depthrate.tasks.training.engines.generated import cuda_source
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters, TrainingPlan

LIMIT_S = 232
CLASSES, INPUTS, WIDTH = 10, 64, 64
ONE_BLOCK = Tuning(blocks=1, shared_bytes=227 << 10)
TUNINGS = {
    "256x2": Tuning(),
    "256x1": ONE_BLOCK,
    "256x2 not ahead": Tuning(copies_ahead=False),
    "256x1 not ahead": dataclasses.replace(ONE_BLOCK, copies_ahead=False),
    "256x2 16": Tuning(unrolled=16),
    "256x1 16": dataclasses.replace(ONE_BLOCK, unrolled=16),
    "512x1 4x4": dataclasses.replace(ONE_BLOCK, threads=512, largest_tile=16),
    "256x1 256 rows": dataclasses.replace(ONE_BLOCK, tile_rows=256, largest_tile=64),
}
"""Threads x blocks on a multiprocessor, and what else differs."""
VARIANTS = {
    f"{tuning} {name}": (tuning, f"#define {text}\n")
    for tuning in ("256x1", "256x2")
    for name, text in (
        ("tiles in rows", "TILES_IN_ROWS 1"),
        ("steps 1", "UNROLLED_STEPS 1"),
        ("update 4", "UPDATED_AT_ONCE 4"),
    )
}
"""Name -> tuning, and text in front of the source."""
ONE_PART = ", 1 part"
"""End of the name of a tuning whose batches are not divided among blocks."""
OUT = Path(os.environ.get("OUT", "."))


# ---- Networks and trainers ----


class Generated(ResidualNetwork):
    """L-RN1 with generated kernels, as on a GPU, on a CPU too."""

    def kernels(self) -> None:
        return None


def residual(depth: int, width: int = WIDTH, **changes: Any) -> ResidualNetwork:
    """Return L-RN1."""
    shape = {"linear_layers": 1, "pre_norm": False, "input_dimensions": INPUTS, "num_classes": CLASSES} | changes
    return Generated(depth=depth, width=width, last_bias=True, **shape)


def module(make: Callable[..., nn.Module], samples: int, **arguments: Any) -> ModuleNetwork:
    """Return a module as a network."""
    data = DataShape(num_samples=samples, sample_shape=(INPUTS,), num_classes=CLASSES)
    return ModuleNetwork(make=make, name=make.__name__, arguments=arguments, data=data)


class Mlp(nn.Module):
    """A plain perceptron of odd sizes."""

    def __init__(self, width: int = 50):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(x))


def plan_of(batch: int | None, **changes: Any) -> TrainingPlan:
    """Return a plan of endless training."""
    given: dict[str, Any] = {"loss": "ce", "optimizer": "sgd", "schedule": "constant", "num_steps": 10**7}
    given |= {"batch_size": batch, "init": "normal", "clip_norm": None, "dtype": torch.float32} | changes
    return TrainingPlan(**given)


def trainer_of(network: Network, plan: TrainingPlan, trials: list[int], samples: int, device: str) -> FusedTrainer:
    """Return a trainer of these trials on random samples."""
    generator = torch.Generator().manual_seed(0)
    x_NI = torch.randn(samples, INPUTS, generator=generator, dtype=torch.float64).to(plan.dtype)
    labels_N = torch.randint(CLASSES, (samples,), generator=generator)
    groups = {spec.decay for spec in network.parameter_specs() if spec.decay is not None}
    hyperparameters = [
        Hyperparameters(seed, 0.02 / (1 + seed % 5), 0.9 - 0.01 * (seed % 7), dict.fromkeys(groups, 5e-3))
        for seed in trials
    ]
    return FusedTrainer(network, plan, hyperparameters, x_NI.to(device), labels_N.to(device))


SOURCES = Path(tempfile.gettempdir()) / "depthrate-gpu-sources"


def source_of(network: Network, plan: TrainingPlan, samples: int, tuning: Tuning | str) -> CudaSource:
    """Return the source of a network's steps with a tuning or variant, which the first part has generated for all parts."""
    if isinstance(tuning, str):
        if tuning.endswith(ONE_PART):
            source = source_of(network, plan, samples, tuning.removesuffix(ONE_PART))
            return dataclasses.replace(source, num_parts=1)
        name, text = VARIANTS.get(tuning, (tuning, ""))
        source = source_of(network, plan, samples, TUNINGS[name])
        return dataclasses.replace(source, text=text + source.text)
    key = hashlib.sha256(repr((network, plan, samples, tuning)).encode()).hexdigest()[:24]
    path = SOURCES / f"{key}.pickle"
    if path.exists():
        return pickle.loads(path.read_bytes())
    SOURCES.mkdir(exist_ok=True)
    source = _generated(network, plan, samples, tuning)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(source))
    part.replace(path)
    return source


def _generated(network: Network, plan: TrainingPlan, samples: int, tuning: Tuning) -> CudaSource:
    data = DataShape(num_samples=samples, sample_shape=(INPUTS,), num_classes=CLASSES)
    return cuda_source(network, plan, data, tuning)


def library_of(network: Network, plan: TrainingPlan, samples: int, tuning: Tuning | str, device: str) -> Library:
    """Return a network's kernels, on a CPU compiled by g++."""
    source = source_of(network, plan, samples, tuning)
    number = "double" if plan.dtype == torch.float64 else "float"
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return CudaLibrary(source, cubin_of(source, number, f"sm_{major}{minor}"))
    return by_gcc(source, number)


def cubin_of(source: CudaSource, number: str, architecture: str) -> bytes:
    """Return compiled kernels, which the first part has compiled for all parts."""
    digest = hashlib.sha256(repr((source, number, architecture)).encode()).hexdigest()[:24]
    path = SOURCES / f"{digest}.cubin"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(compile_cubin(source, number, architecture))
        part.replace(path)
    return path.read_bytes()


def by_gcc(source: CudaSource, number: str, *more_flags: str) -> Library:
    """Build a source with g++, the threads of a block as contexts that take turns."""
    folder = Path(tempfile.mkdtemp())
    headers = Path(sys.modules[CudaLibrary.__module__].__file__ or "").parent
    (folder / "steps.cpp").write_text(source.text)
    constants = [f"-DNUMBER={number}", f"-DTHREADS={source.threads}", f"-DBLOCKS={source.blocks}"]
    constants += [f"-DPARTS={source.num_parts}"]
    flags = ["-std=c++17", "-O1", "-march=native", "-fPIC", "-w", f"-I{headers}", *more_flags, *constants]
    for command in ([*flags, "-c", "steps.cpp", "-o", "steps.o"], ["-shared", "steps.o", "-o", "steps.so"]):
        subprocess.run([compiler(), *command], check=True, cwd=folder)
    return Library(ctypes.CDLL(str(folder / "steps.so")))


def run_steps(trainer: FusedTrainer, count: int, at_once: int | None = None) -> None:
    """Take steps, so many in one launch."""
    divergence, until = Divergence(trainer.num_trials, trainer.device), trainer.step_count + count
    while trainer.step_count < until:
        pace = getattr(trainer._steps, "pace", None)
        if pace is not None:
            pace.steps_per_call = at_once or count
        trainer.advance(until, divergence)


def use(trainer: FusedTrainer, library: Library) -> FusedTrainer:
    """Give kernels to a trainer without comparing its first step, so that this benchmark does."""
    from functools import partial

    from depthrate.tasks.training.engines.native import NativeEvaluation, NativeSteps

    trainer._steps = partial(NativeSteps, library=library)(trainer)
    trainer._native_evaluation = NativeEvaluation(
        library, trainer.kernels, trainer.plan, trainer.x_NI, trainer.labels_N
    )
    return trainer


def wait(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


# ---- Parts ----

Report = Callable[..., None]
"""Writes a result."""


def machine(device: str, report: Report) -> None:
    """Which device this is, and the kernels of all tunings: seconds to compile, registers, spilled bytes, blocks."""
    if device != "cuda":
        report(device=device)
        return
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit",
        "--format=csv,noheader",
    ]
    listed = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    report(device=listed, torch=torch.__version__)
    wanted: dict[str, tuple[Network, TrainingPlan, int, Tuning | str]] = {
        name: (network, plan, samples, Tuning()) for name, network, plan, samples in checked()
    }
    for name, (depth, rows, batch, _) in step_cases():
        wanted[f"{name}, {depth}:{batch or rows} of {rows}"] = residual(depth), plan_of(batch), rows, name
    for make, arguments, batch in MODULES:
        for name in MODULE_TUNINGS:
            wanted[f"{make.__name__}, {name}"] = module(make, 1437, **arguments), plan_of(batch), 1437, name
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    capability = subprocess.run(query, capture_output=True, text=True).stdout.split()[0]
    architecture = f"sm_{capability.replace('.', '')}"
    with ProcessPoolExecutor(14, multiprocessing.get_context("fork")) as processes:
        futures = {name: processes.submit(prepare, *given, architecture) for name, given in wanted.items()}
        for name, future in futures.items():
            if (error := future.exception()) is not None:
                report(kernel=name, error=f"{type(error).__name__}: {error}"[:500])
                del wanted[name]
    for name, future in futures.items():
        if name not in wanted:
            continue
        try:
            library = CudaLibrary(source_of(*wanted[name]), future.result()[1])
            report(
                kernel=name,
                compile_s=future.result()[0],
                **library.resources(library.programs[0]),
                arena=library.source.arena_bytes,
            )
        except Exception as error:
            report(kernel=name, error=f"{type(error).__name__}: {error}"[:500])


def prepare(
    network: Network, plan: TrainingPlan, samples: int, tuning: Tuning | str, architecture: str
) -> tuple[float, bytes]:
    """Generate and compile steps, which other parts then find. Return seconds of a compilation, and the result."""
    source, started = source_of(network, plan, samples, tuning), time.perf_counter()
    cubin = cubin_of(source, "double" if plan.dtype == torch.float64 else "float", architecture)
    return round(time.perf_counter() - started, 1), cubin


def checked() -> list[tuple[str, Network, TrainingPlan, int]]:
    """Return the networks whose steps are compared with eager ones: name, network, plan, samples."""
    adam = {"optimizer": "adam", "clip_norm": 0.05}
    transformer = Transformer(
        depth=2, width=16, attention_layers=1, mlp_layers=1, positions=4, patch_dimensions=16, vocabulary_size=None,
        pre_norm=True, num_classes=CLASSES, last_bias=True,
    )  # fmt: skip
    return [
        ("rn1 3 x 20", residual(3, 20), plan_of(None), 70),
        ("rn1 8 x 64", residual(8), plan_of(None), 128),
        ("rn1 8 x 64, 3 tiles, adam, clipped", residual(8), plan_of(None, **adam), 300),
        ("rn2 pre-LN, batches", residual(3, 19, linear_layers=2, pre_norm=True), plan_of(33, loss="mse"), 100),
        ("rn1 float64", residual(3, 20), plan_of(None, dtype=torch.float64, **adam), 270),
        ("rn1 3 x 20, 4 parts, adam, clipped", residual(3, 20), plan_of(None, **adam), 450),
        ("rn1 float64, 5 tiles in 4 parts, batches", residual(3, 20), plan_of(600, dtype=torch.float64), 700),
        ("mlp", module(Mlp, 150), plan_of(64), 150),
        ("transformer", transformer, plan_of(None), 50),
        ("encoder", module(Encoder, 60, depth=1, width=16), plan_of(32), 60),
        ("conv", module(Convolutional, 40, depth=1, width=8), plan_of(20), 40),
    ]


def error_of(found: Tensor, exact: Tensor) -> float:
    """Return the relative distance."""
    return float((found.double() - exact).norm() / exact.norm())


def check(device: str, report: Report) -> None:
    """Whether steps are the eager ones in float64, a trial's bits depend on its pack, and frozen trials stay."""
    for name, network, plan, samples in checked():
        try:
            started = time.perf_counter()
            library = library_of(network, plan, samples, Tuning(), device)
            trials = [0, 1, 2]
            native, eager = (trainer_of(network, plan, trials, samples, device) for _ in range(2))
            use(native, library)
            exact = eager.to_float64()
            evaluated, expected = native.evaluate(), exact.evaluate()
            loss = error_of(evaluated["loss"], expected["loss"])
            same_accuracy = torch.equal(evaluated["accuracy"], expected["accuracy"])
            run_steps(native, 1)
            eager.step(), exact.step()
            ratio = error_of(native.moment_TP, exact.moment_TP) / max(error_of(eager.moment_TP, exact.moment_TP), 1e-30)
            first = error_of(native.moment_TP, exact.moment_TP)
            run_steps(native, 9)
            for _ in range(9):
                eager.step(), exact.step()
            after = error_of(native.theta_TP, exact.theta_TP), error_of(eager.theta_TP, exact.theta_TP)
            again, alone, frozen = (
                use(trainer_of(network, plan, chosen, samples, device), library)
                for chosen in (trials, trials[1:2], trials)
            )
            run_steps(again, 10, 4)
            run_steps(alone, 10)
            start_TP, divergence = frozen.theta_TP.clone(), Divergence(3, frozen.device)
            divergence.step_T[0] = 0
            frozen._steps.advance(1, divergence)
            report(
                network=name,
                loss=loss,
                gradient=first,
                gradient_over_eager=round(ratio, 2),
                after_10=after[0],
                eager_after_10=after[1],
                same_accuracy=same_accuracy,
                repeat_equal=torch.equal(again.theta_TP, native.theta_TP),
                alone_equal=torch.equal(alone.theta_TP[0], native.theta_TP[1]),
                frozen_equal=torch.equal(frozen.theta_TP[0], start_TP[0])
                and not torch.equal(frozen.theta_TP[1], start_TP[1]),
                seconds=round(time.perf_counter() - started, 1),
            )
        except Exception as error:
            report(network=name, error=f"{type(error).__name__}: {error}"[:500])
    if device == "cuda":
        bits = {}
        for name, tuning in TUNINGS.items():
            try:
                trainer = trainer_of(residual(8), plan_of(None), [0, 1], 128, device)
                use(trainer, library_of(residual(8), plan_of(None), 128, tuning, device))
                run_steps(trainer, 10)
                bits[name] = trainer.theta_TP.clone()
                exact = trainer_of(residual(8), plan_of(None), [0, 1], 128, device).to_float64()
                for _ in range(10):
                    exact.step()
                report(
                    tuning=name,
                    after_10=error_of(bits[name], exact.theta_TP),
                    as_first=torch.equal(bits[name], next(iter(bits.values()))),
                )
            except Exception as error:
                report(tuning=name, error=f"{type(error).__name__}: {error}"[:500])


def steps_per_second(run: Callable[[int], None], device: str, most: int = 1000) -> float:
    """Return the median rate of calls of about .1 s."""
    run(1)
    wait(device)
    count, took = 1, 0.0
    while True:
        started = time.perf_counter()
        run(count)
        wait(device)
        took = time.perf_counter() - started
        if took > 0.02 or device == "cpu" or count == most:
            break
        count = min(most, 4 * count)
    count = max(1, min(most, round(count * 0.1 / took))) if device == "cuda" else 1
    rates = []
    for _ in range(3 if device == "cuda" else 1):
        started = time.perf_counter()
        run(count)
        wait(device)
        rates.append(count / (time.perf_counter() - started))
    return statistics.median(rates)


def flops(depth: int, rows: int) -> int:
    """Return the operations of a step's products of L-RN1."""
    products = INPUTS * WIDTH + (depth - 1) * WIDTH**2 + CLASSES * WIDTH
    return 2 * rows * (3 * products - INPUTS * WIDTH)


def step_cases() -> list[tuple[str, tuple[int, int, int | None, int]]]:
    """Return tunings with settings: depth, samples, batch (None: all), trials."""
    common = [(8, 128, None, 132), (8, 128, None, 528), (8, 512, None, 132)]
    more = [
        (8, 1437, None, 64),
        (8, 128, None, 16),
        (8, 128, None, 64),
        (8, 128, None, 264),
        (8, 1437, 128, 132),
        (34, 128, None, 132),
    ]
    cases: list[Any] = [(name, setting) for name in TUNINGS for setting in common]
    cases += [(name, common["x2" in name]) for name in VARIANTS]
    cases += [
        (f"256x1{ONE_PART}", (8, 1437, None, 64)),
        (f"256x2{ONE_PART}", (8, 1437, None, 528)),
        ("256x2", (8, 1437, None, 528)),
    ]
    return [*cases, *((name, setting) for name in ("256x2", "256x1") for setting in more)]


def steps(device: str, report: Report) -> None:
    """Trial-steps per second of L-RN1 with all tunings."""
    cases = step_cases() if device == "cuda" else [("256x2", (2, 20, None, 2))]
    libraries: dict[Any, Library] = {}
    for name, (depth, rows, batch, trials) in cases:
        try:
            network, plan, key = residual(depth), plan_of(batch), (name, depth, min(batch or rows, 512))
            if key not in libraries:
                libraries[key] = library_of(network, plan, rows, name, device)
            trainer = use(trainer_of(network, plan, list(range(trials)), rows, device), libraries[key])
            rate = trials * steps_per_second(lambda count, trainer=trainer: run_steps(trainer, count), device)  # type: ignore[misc]
            report(
                side="native",
                tuning=name,
                setting=f"{depth}:{batch or rows} of {rows}, {trials} trials",
                trial_steps_per_s=round(rate),
                tflops=round(rate * flops(depth, batch or rows) / 1e12, 2),
            )
        except Exception as error:
            report(tuning=name, setting=[depth, rows, batch, trials], error=f"{type(error).__name__}: {error}"[:500])


def timed(device: str, report: Report) -> None:
    """Cycles of each statement of a step, of one block, with 132 and 264 trials of 8:128."""
    if device != "cuda":
        return
    for name, trials in (
        ("256x1", 132),
        ("256x2", 264),
        ("256x1 not ahead", 132),
        ("256x2 not ahead", 264),
        ("encoder", 132),
    ):
        try:
            network: Network = residual(8)
            plan, samples = plan_of(None), 128
            if name == "encoder":
                network, plan, samples = module(Encoder, 1437, depth=2, width=32), plan_of(32), 1437
            source = source_of(network, plan, samples, "256x1" if name == "encoder" else name)
            major, minor = torch.cuda.get_device_capability()
            library = CudaLibrary(source, compile_cubin(source, "float", f"sm_{major}{minor}", "-DTIMED_STEPS"))
            trainer = use(trainer_of(network, plan, list(range(trials)), samples, device), library)
            run_steps(trainer, 20)
            before = library.statement_cycles()
            started = time.perf_counter()
            run_steps(trainer, 50)
            took = time.perf_counter() - started
            cycles = [(after - first) / 50 for first, after in zip(before, library.statement_cycles(), strict=True)]
            labels = ("samples", "targets", "loss", "update", "step", *source.labels)
            groups: dict[str, list[float]] = {}
            for label, count in zip(labels, cycles, strict=True):
                groups.setdefault(label, []).append(round(count))
            report(
                tuning=name,
                trials=trials,
                cycles=round(sum(cycles) - cycles[4]),
                microseconds=round(took / 50 * 1e6, 1),
            )
            for label, counts in sorted(groups.items(), key=lambda item: -sum(item[1])):
                report(tuning=name, trials=trials, statement=label, cycles=sum(counts), each=sorted(counts))
        except Exception as error:
            report(tuning=name, error=f"{type(error).__name__}: {error}"[:500])


def replayed(device: str, report: Report) -> None:
    """Trial-steps per second of L-RN1 by replayed graphs of eager steps."""
    settings = [
        (8, 128, None, 132),
        (8, 128, None, 528),
        (8, 512, None, 132),
        (8, 1437, 128, 132),
        (34, 128, None, 132),
    ]
    for depth, rows, batch, trials in settings if device == "cuda" else [(2, 20, None, 2)]:
        trainer = trainer_of(residual(depth), plan_of(batch), list(range(trials)), rows, device)

        def run(count: int, trainer: FusedTrainer = trainer) -> None:
            for _ in range(count):
                trainer.step()

        run(5)
        rate = trials * steps_per_second(run, device)
        report(
            side="replayed",
            setting=f"{depth}:{batch or rows} of {rows}, {trials} trials",
            trial_steps_per_s=round(rate),
        )


MODULES: list[tuple[Callable[..., nn.Module], dict[str, int], int]] = [
    (Residual, {"depth": 8, "width": 64}, 128),
    (Mlp, {"width": 256}, 128),
    (Encoder, {"depth": 2, "width": 32}, 32),
    (Convolutional, {"depth": 2, "width": 16}, 128),
]
MODULE_TUNINGS = ("256x2", "256x1", "256x1 not ahead", "256x1 16")


def modules(device: str, report: Report) -> None:
    """Trial-steps per second of generated steps of a user's modules."""
    cases, samples, trials = MODULES, 1437, 132
    if device == "cpu":
        cases, samples, trials = [(Residual, {"depth": 1, "width": 8}, 20)], 40, 2
    for make, arguments, batch in cases:
        for tuning in MODULE_TUNINGS if device == "cuda" else MODULE_TUNINGS[:1]:
            try:
                network, plan = module(make, samples, **arguments), plan_of(batch)
                library = library_of(network, plan, samples, tuning, device)
                trainer = use(trainer_of(network, plan, list(range(trials)), samples, device), library)
                rate = trials * steps_per_second(lambda count, trainer=trainer: run_steps(trainer, count), device)  # type: ignore[misc]
                report(side="native", tuning=tuning, module=make.__name__, trial_steps_per_s=round(rate))
            except Exception as error:
                report(module=make.__name__, error=f"{type(error).__name__}: {error}"[:500])


def rivals(device: str, report: Report) -> None:
    """Trial-steps per second of a user's modules by a plain PyTorch loop over one trial, and by replayed graphs."""
    cases, samples, trials = MODULES, 1437, 132
    if device == "cpu":
        cases, samples, trials = [(Residual, {"depth": 1, "width": 8}, 20)], 40, 2
    for make, arguments, batch in cases:
        try:
            plain = make(**arguments).to(device)
            optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
            x_NI = torch.randn(samples, INPUTS, device=device)
            labels_N = torch.randint(CLASSES, (samples,), device=device)

            def run(count: int) -> None:
                for _ in range(count):
                    rows = torch.randperm(samples, device=device)[:batch]
                    optimizer.zero_grad()
                    F.cross_entropy(plain(x_NI[rows]), labels_N[rows]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()

            report(side="plain", module=make.__name__, trial_steps_per_s=round(steps_per_second(run, device)))
            trainer = trainer_of(
                module(make, samples, **arguments), plan_of(batch), list(range(trials)), samples, device
            )

            def replay(count: int, trainer: FusedTrainer = trainer) -> None:
                for _ in range(count):
                    trainer.step()

            replay(5)
            report(
                side="replayed",
                module=make.__name__,
                trial_steps_per_s=round(trials * steps_per_second(replay, device)),
            )
        except Exception as error:
            report(module=make.__name__, error=f"{type(error).__name__}: {error}"[:500])


def pack(device: str, report: Report) -> None:
    """Seconds and memory of whole packs of the task collapse: depth 8, 1,000 steps with defaults, 64 trials twice, and 528."""
    from depthrate.tasks.interface import Engine
    from depthrate.tasks.supervised.task import COLLAPSE

    params = {
        "arch": "rn1",
        "depth": 8,
        "width": 64,
        "dataset": "digits",
        "steps": 1000,
        "lr": 0.1,
        "weight_decay": 0.005,
    }
    sides = [(Engine.AUTO, 64), (Engine.AUTO, 64), (Engine.EAGER, 64), (Engine.AUTO, 528)]
    if device == "cpu":
        params |= {"depth": 2, "width": 8, "samples_per_class": 2, "steps": 5}
        sides = [(Engine.AUTO, 1)]
    logging.basicConfig(level=logging.WARNING)
    for engine, count in sides:
        trials = [COLLAPSE.schema.fill({**params, "seed": seed}) for seed in range(count)]
        for trial in trials:
            COLLAPSE.complete(trial)
        engines: list[Any] = []
        context: Any = SimpleNamespace(
            trial_ids=[str(number) for number in range(len(trials))],
            device=device,
            engine=engine,
            libraries=None,
            data=None,
            report_engine=lambda engine, seconds=None: engines.append((str(engine), seconds)),
            progress=lambda step, num_steps: None,
            should_stop=lambda: False,
            for_trial=lambda index: context,
            show_curves=lambda curves: None,
            report=lambda step, values: set(),
            checkpoint_due=lambda: False,
            save_checkpoint=lambda content: None,
            load_checkpoint=lambda: None,
        )
        started = time.perf_counter()
        results = list(COLLAPSE.run(trials, context))
        seconds = round(time.perf_counter() - started, 2)
        report(
            engine=str(engine),
            trials=count,
            seconds=seconds,
            engines=engines,
            results=len(results),
            peak_gb=results[0].peak_memory_gb,
            predicted_gb=round((COLLAPSE.memory_bytes(trials[0], count, device) or 0) / 1e9, 3),
        )


def race(device: str, report: Report) -> None:
    """Whether compute-sanitizer finds races of shared memory in a few steps."""
    if device != "cuda":
        return
    for tool in ("racecheck",):
        command = ["compute-sanitizer", "--tool", tool, sys.executable, "-m", "benchmarks.gpu", "--inner", "raced"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=50)
        lines = [line for line in ended.stdout.splitlines() if "=====" in line]
        report(tool=tool, last=lines[-1:], first=lines[:12], code=ended.returncode, tail=ended.stderr[-300:])


def raced(device: str, report: Report) -> None:
    """Take two steps with the networks of `checked`."""
    raced_networks = [(*case[1:], "256x2") for case in checked()[::5]]
    for network, plan, samples, tuning in [*raced_networks, (*checked()[0][1:], "256x1")]:
        trainer = trainer_of(network, plan, [0, 1], samples, device)
        use(trainer, library_of(network, plan, samples, tuning, device))
        run_steps(trainer, 2)


def jax(device: str, report: Report) -> None:
    """Trial-steps per second of L-RN1 in JAX: jit of vmap of a scan over steps, in full float32."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax  # type: ignore[import-not-found]
    import jax.numpy as jnp  # type: ignore[import-not-found]

    jax.config.update("jax_default_matmul_precision", "highest")

    def normalise(h: Any) -> Any:
        h = h - h.mean(-1, keepdims=True)
        return h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-12)

    for depth, rows, trials in [(8, 128, 132), (8, 128, 528), (8, 512, 132)] if device == "cuda" else [(2, 20, 2)]:
        generator = torch.Generator().manual_seed(0)
        x = jnp.asarray(torch.randn(rows, INPUTS, generator=generator).numpy())
        labels = jnp.asarray((torch.arange(rows) % CLASSES).numpy())

        def loss(weights: Any, x: Any = x, labels: Any = labels) -> Any:
            (w, b), *blocks, (last, last_bias) = weights
            h = normalise(x @ w + b)
            for w, b in blocks:
                h = normalise(h + jax.nn.relu(h @ w + b))
            return -jnp.take_along_axis(jax.nn.log_softmax(h @ last + last_bias), labels[:, None], 1).mean()

        def step(state: Any, _: Any, loss: Any = loss) -> Any:
            weights, momenta = state
            slopes = jax.grad(loss)(weights)
            decayed = [
                (g + (0.005 if n else 0) * w, g_b)
                for n, ((g, g_b), (w, _)) in enumerate(zip(slopes, weights, strict=True))
            ]
            momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, decayed)
            return (jax.tree.map(lambda w, m: w - 0.05 * m, weights, momenta), momenta), None

        sizes = list(itertools.pairwise([INPUTS, *[WIDTH] * depth, CLASSES]))
        keys = jax.random.split(jax.random.key(0), len(sizes))
        weights = [
            (jax.random.normal(k, (trials, i, o)) / i**0.5, jnp.zeros((trials, o)))
            for k, (i, o) in zip(keys, sizes, strict=True)
        ]
        state = [(weights, jax.tree.map(jnp.zeros_like, weights))]
        block = 100 if device == "cuda" else 1
        take = jax.jit(jax.vmap(lambda s, step=step, block=block: jax.lax.scan(step, s, length=block)[0]))

        def run(count: int, state: Any = state, take: Any = take) -> None:
            for _ in range(count):
                state[0] = take(state[0])
            jax.block_until_ready(state[0])

        rate = trials * block * steps_per_second(run, device)
        report(side="jax", setting=f"{depth}:{rows} of {rows}, {trials} trials", trial_steps_per_s=round(rate))


PARTS: dict[str, tuple[Callable[[str, Report], None], float]] = {
    "machine": (machine, 70),
    "check": (check, 40),
    "steps": (steps, 60),
    "pack": (pack, 40),
    "race": (race, 50),
    "modules": (modules, 30),
    "timed": (timed, 30),
    "replayed": (replayed, 25),
    "rivals": (rivals, 45),
    "jax": (jax, 75),
}
"""Name -> the part, and its maximum seconds."""


def main() -> None:
    """Run parts one after another, then print all results of the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="on a CPU, through g++")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--inner", choices=[*PARTS, "raced"], help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds")
    arguments = parser.parse_args()
    device, path = "cpu" if arguments.quick else "cuda", OUT / "gpu.jsonl"

    def report(**values: Any) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"part": arguments.inner, **values}) + "\n")
        print(json.dumps(values), flush=True)

    if arguments.inner:
        torch.set_num_threads(1)
        (raced if arguments.inner == "raced" else PARTS[arguments.inner][0])(device, report)
        return
    began = time.monotonic()
    for name in arguments.parts.split(","):
        left = min(PARTS[name][1], arguments.limit - (time.monotonic() - began))
        if left < 5:
            print(f"{name}: no time is left")
            continue
        print(f"== {name}, after {time.monotonic() - began:.0f} s", flush=True)
        command = [sys.executable, "-m", "benchmarks.gpu", "--inner", name, *(["--quick"] if arguments.quick else [])]
        try:
            ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=left)
            if ended.returncode:
                print(f"{name}: exit code {ended.returncode}: {ended.stderr[-1500:]}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"{name}: not finished after {left:.0f} s", flush=True)
    print_results(path)


def print_results(path: Path) -> None:
    """Print each result as a line."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    order = ["timed", "machine"]  # long parts first: what matters is at the end
    for row in sorted(rows, key=lambda row: order.index(row["part"]) if row["part"] in order else len(order)):
        print(row.pop("part"), " ".join(f"{name}={_short(value)}" for name, value in row.items()))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    main()
