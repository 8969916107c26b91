"""The first hour on a GPU: checks and measurements in their order, each ended by its time limit.

    python -m benchmarks.first_hour                      # on the GPU, 60 minutes at most; results in first_hour.json
    python -m benchmarks.first_hour --device cpu         # the same parts in small sizes, about two minutes
    python -m benchmarks.first_hour --again steps,knee   # repeat two parts

Every part runs in a separate process and writes its values to the JSON file when it ends. An interrupted command
resumes with the parts that have no result. A part that fails or exceeds its time is recorded as such, and the next one runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASE = {"dataset": "digits", "samples_per_class": 20, "lr": 0.1, "weight_decay": 0.005}


@dataclass(frozen=True)
class Part:
    """A check or measurement: its question, its time limit and the function that answers it."""

    question: str
    minutes: float
    run: Callable[[str, Path], dict[str, Any]]


def main() -> None:
    """Run the parts that have no result yet, then print all results as a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", "-o", type=Path, default=Path("first_hour.json"), help="JSON file of the results")
    parser.add_argument("--again", default="", help=f"parts to repeat: {', '.join(PARTS)}")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(PARTS[arguments.part].run(arguments.device, Path(folder))))
        return
    results: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    if unknown := set(filter(None, arguments.again.split(","))) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}. Allowed: {', '.join(PARTS)}")
    for name, part in PARTS.items():
        if name in results and name not in arguments.again.split(","):
            continue
        print(f"{name}: {part.question} (at most {part.minutes:g} minutes)", flush=True)
        results[name] = _run(name, part, arguments.device)
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\n{'part':12s} {'state':9s} {'s':>5s}  finding")
    for name, result in results.items():
        print(f"{name:12s} {result['state']:9s} {result['seconds']:5.0f}  {result['finding']}")


def _run(name: str, part: Part, device: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.first_hour", "--device", device, "--part", name]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    started = time.monotonic()
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, env=environment, timeout=60 * part.minutes)
    except subprocess.TimeoutExpired:
        return {"state": "timed out", "seconds": time.monotonic() - started, "finding": "no result within its time"}
    seconds = time.monotonic() - started
    if ended.returncode:
        return {"state": "failed", "seconds": seconds, "finding": f"exit code {ended.returncode}, see its output above"}
    values = json.loads(ended.stdout.decode().splitlines()[-1])
    return {"state": values.pop("state", "measured"), "seconds": seconds, "device": device, **values}


def _machine(device: str, folder: Path) -> dict[str, Any]:
    """Record the device, its memory and the versions."""
    import torch

    if device == "cpu":
        return {"finding": f"cpu, torch {torch.__version__}"}
    properties = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,mig.mode.current", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    memory_gb = properties.total_memory / 1e9
    finding = f"{properties.name}, {memory_gb:.0f} GB, torch {torch.__version__}, CUDA {torch.version.cuda}"
    return {"finding": finding, "nvidia_smi": listed, "capability": [properties.major, properties.minor]}


def _trained(
    folder: Path,
    device: str,
    params: dict[str, Any],
    seeds: Any,
    grid: dict[str, list[Any]] | None = None,
    **options: Any,
) -> Any:
    """Train a small sweep eagerly in a new store, by default with one worker, and return its results."""
    import contextlib

    import depthrate

    sweep = depthrate.Sweep(name="first", task="collapse", params={**BASE, **params}, grid=grid, seeds=seeds)
    with contextlib.redirect_stdout(sys.stderr):
        sweep.run(store=str(folder), device=device, engine="eager", **{"workers": 1, **options})
    return depthrate.open(str(folder))


def _last_metrics(results: Any) -> dict[tuple[str, int], tuple[float, ...]]:
    """Return the metrics of the last layer, by network and seed."""
    rows = results.sql("select arch, seed, last_loss, nc1, nc2a, nc3 from results").fetchall()
    return {(arch, seed): tuple(values) for arch, seed, *values in rows}


def _differences(first: Any, second: Any) -> dict[str, float]:
    """Return the largest relative difference between the metrics of the same trials in two stores, by network."""
    expected, differences = _last_metrics(first), dict.fromkeys(NETWORKS, 0.0)
    for (arch, seed), values in _last_metrics(second).items():
        for a, b in zip(expected[arch, seed], values, strict=True):
            relative = abs(a - b) / max(abs(a), abs(b), 1e-300) if a != b else 0.0
            differences[arch] = max(differences[arch], relative)
    return differences


def _correctness(device: str, folder: Path) -> dict[str, Any]:
    """Compare ten steps on the device with ten on the CPU, in float64 to separate errors from rounding."""
    params = {**NETWORK, "steps": 10, "dtype": "float64"}
    stores = {place: _trained(folder / place, place, params, 2, {"arch": NETWORKS}) for place in {"cpu", device}}
    differences = _differences(stores["cpu"], stores[device])
    worst = max(differences, key=lambda arch: differences[arch])
    state = "passed" if differences[worst] < 1e-6 else "differs"
    finding = f"largest relative difference from the CPU after 10 steps: {differences[worst]:.1e} ({worst})"
    return {"state": state, "finding": finding, "differences": differences}


def _bits(device: str, folder: Path) -> dict[str, Any]:
    """Compare the second trial of every pack with the same trial alone, bit by bit, which only a CPU promises."""
    params = {**NETWORK, "steps": 50}
    fused, alone = (_trained(folder / str(seeds), device, params, seeds, {"arch": NETWORKS}) for seeds in (2, [1]))
    differences = _differences(fused, alone)
    unequal = [arch for arch, difference in differences.items() if difference]
    finding = f"not bitwise equal: {', '.join(unequal)}" if unequal else f"bitwise equal: {', '.join(differences)}"
    finding += f", largest relative difference {max(differences.values()):.1e}"
    state = "measured" if device == "cuda" else "differs" if unequal else "passed"
    return {"state": state, "finding": finding, "differences": differences}


def _steps(device: str, folder: Path) -> dict[str, Any]:
    """Run the benchmark of fused steps against plain PyTorch and vmap."""
    options = ["--sides", "plain,vmap,eager", "--rounds", "3"]
    if device == "cpu":
        options = ["--sides", "plain,eager", "--rounds", "1", "--only", "3:32", "--processes", "1"]
    command = [sys.executable, "-m", "benchmarks.fused", "--device", device, *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = ended.stdout.splitlines()
    return {"finding": f"{len(lines) - 3} rows in the JSON file, last: {' '.join(lines[-1].split())}", "table": lines}


def _knee(device: str, folder: Path) -> dict[str, Any]:
    """Double the trials of a pack until a trial-step costs no less or memory ends."""
    import torch

    from benchmarks.fused import Setting, make_trainer

    rates: dict[int, float] = {}
    for trials in (2**exponent for exponent in range(5 if device == "cpu" else 13)):
        try:
            trainer = make_trainer(Setting(8, 128, trials, 0), device, trials)
            rates[trials] = trials * _steps_per_second(trainer.step, device)
        except torch.OutOfMemoryError:
            break
    best = max(rates, key=lambda trials: rates[trials])
    knee = min(trials for trials, rate in rates.items() if rate >= 0.9 * rates[best])
    finding = f"90 % of the highest rate from {knee} trials per pack, {rates[best]:,.0f} trial-steps/s at {best}"
    return {"finding": finding, "trial_steps_per_second": rates, "knee": knee}


def _steps_per_second(step: Callable[[], Any], device: str, seconds: float = 1.0) -> float:
    import torch

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    wait()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for _ in range(10):
            step()
        wait()
        count += 10
    return count / (time.perf_counter() - started)


def _memory(device: str, folder: Path) -> dict[str, Any]:
    """Compare the predicted peak memory of packs with the measured one."""
    ratios = {}
    sizes = [(8, 64, 16), (34, 64, 16), (8, 512, 64), (34, 512, 64)]
    for depth, width, seeds in sizes[:1] if device == "cpu" else sizes:
        place = folder / f"{depth}-{width}-{seeds}"
        params = {**BASE, "arch": "rn1", "steps": 20, "depth": depth, "width": width}
        sweep = folder / f"{place.name}.yaml"
        sweep.write_text(json.dumps({"name": "first", "task": "collapse", "params": params, "seeds": seeds}))
        command = [
            _depthrate(),
            "plan",
            str(sweep),
            "--store",
            str(place),
            "--engine",
            "eager",
            "--device",
            device,
            "--workers",
            "1",
        ]
        planned = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, check=True)
        predicted = max(pack["predicted_memory_gb"] for pack in json.loads(planned.stdout)["packs"])
        results = _trained(place, device, params, seeds)
        ((measured,),) = results.sql("select max(peak_memory_gb) from trials").fetchall()
        ratios[place.name] = measured / predicted
    exceeded = [name for name, ratio in ratios.items() if ratio > 1.25]
    span = f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f}"
    return {"state": "exceeded" if exceeded else "passed", "finding": f"measured / predicted: {span}", "ratios": ratios}


def _workers(device: str, folder: Path) -> dict[str, Any]:
    """Compare the time of four packs with one and with two workers on the device."""
    params, depths = {"arch": "rn1", "width": 64, "steps": 3000}, [7, 8, 9, 10]
    if device == "cpu":
        params, depths = {"arch": "rn1", "width": 32, "steps": 50}, [2, 3]
    seconds = {}
    for workers in (1, 2):
        started = time.monotonic()
        _trained(folder / str(workers), device, params, 8, {"depth": depths}, workers=workers)
        seconds[workers] = time.monotonic() - started
    finding = f"two workers take {seconds[2] / seconds[1]:.2f} of the time of one ({seconds[1]:.0f} s)"
    return {"finding": finding, "seconds_by_workers": seconds}


def _halving(device: str, folder: Path) -> dict[str, Any]:
    """Occupy nearly all memory of the GPU, and check that a pack is split until its parts fit."""
    if device == "cpu":
        return {"state": "skipped", "finding": "needs a GPU: memory of a CPU is not exhausted on purpose"}
    import torch

    free, _ = torch.cuda.mem_get_info()
    occupied = torch.empty(max(0, free - 2_000_000_000), dtype=torch.uint8, device="cuda")
    params = {"arch": "rn1", "depth": 34, "width": 512, "steps": 20}
    results = _trained(folder, device, params, 64)
    del occupied
    kinds = dict(results.sql("select coalesce(error_kind, state), count(*) from attempts group by 1").fetchall())
    ((done,),) = results.sql("select count(*) from trials").fetchall()
    state = "passed" if done == 64 and kinds.get("out_of_memory") else "differs"
    return {"state": state, "finding": f"{done} of 64 trials committed, attempts: {kinds}", "attempts": kinds}


def _depthrate() -> str:
    return str(Path(sys.executable).with_name("depthrate"))


NETWORKS = ["rn1", "rn2", "t11", "mlp"]
NETWORK = {"depth": 3, "width": 32}
"""Networks of the checks, and their size."""

PARTS: dict[str, Part] = {
    "machine": Part("which device is this?", 1, _machine),
    "correctness": Part("does the device compute the same as the CPU?", 8, _correctness),
    "bits": Part("is a trial in a pack bitwise the trial alone?", 10, _bits),
    "steps": Part("how fast are fused steps against plain PyTorch and vmap?", 15, _steps),
    "knee": Part("from how many trials per pack does speed stop rising?", 6, _knee),
    "memory": Part("is the predicted memory of packs right?", 6, _memory),
    "workers": Part("do two workers use a device better than one?", 6, _workers),
    "halving": Part("is a pack that does not fit into memory split?", 6, _halving),
}
"""The parts by name, in their order. Together they take at most an hour."""


if __name__ == "__main__":
    main()
