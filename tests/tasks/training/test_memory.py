"""Predicted memory: the number of parameters exactly, the peak of a real process within a quarter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.memory import tensor_bytes
from tests.support.training_context import Context, ids_of

PACKS_ON_THE_CPU = {
    "deep": ({"arch": "rn2", "depth": 21, "width": 128, "samples_per_class": 60, "optimizer": "adam"}, 6),
    "transformer": ({"arch": "t11", "depth": 6, "samples_per_class": 30, "batch_size": 200}, 6),
    "wide": ({"arch": "rn1", "depth": 3, "width": 700, "samples_per_class": 10, "dtype": "float64"}, 6),
}
PROCESS = """
import json, os, sys
import depthrate.orchestrator.worker.__main__  # what a worker has loaded before it trains
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.interface import Engine

class Context:
    engine = Engine.EAGER
    report_engine = lambda self, *words, **more: None
    device, data = "cpu", None
    def progress(self, step, num_steps): pass
    def report(self, step, values): return set()
    def show_curves(self, curves): pass
    def should_stop(self): return False
    def checkpoint_due(self): return False
    def load_checkpoint(self): return None

params, num_trials = json.loads(sys.argv[1])
params |= {"steps": 2, "measure_steps": [0]}
trials = [COLLAPSE.schema.fill({**params, "seed": seed}) for seed in range(num_trials)]
Context.trial_ids = [str(seed) for seed in range(num_trials)]
list(COLLAPSE.run(trials, Context()))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def trials_of(changes, num_trials):
    return [COLLAPSE.schema.fill({**changes, "seed": seed}) for seed in range(num_trials)]


def params_of(**changes):
    return COLLAPSE.schema.fill({"arch": "rn1", "depth": 3, **changes})


def shapes():
    for arch in ("rn1", "rn2", "t11", "t12", "t21", "t22"):
        for dataset in ("digits", "cifar100", "imdb"):
            if arch.startswith("t") or dataset != "imdb":
                yield {"arch": arch, "dataset": dataset}
                yield {"arch": arch, "dataset": dataset, "depth": 5, "width": 16, "loss": "mse", "norm": "pre"}


def parameters_by_formula(params):
    """The matrices and biases of the definitions (science page, section 1), counted by hand."""
    info, width = PUBLISHED[params["dataset"]], params["width"]
    last = info.num_classes * width + (info.num_classes if params["loss"] == "ce" else 0)
    inputs = 0 if info.image_shape is None else int(np.prod(info.image_shape))
    if params["arch"] in ("rn1", "rn2"):
        return (inputs + 1) * width + (params["depth"] - 1) * int(params["arch"][2]) * (width + 1) * width + last
    attention, mlp = (int(digit) for digit in params["arch"][1:])
    positions, columns = (64, 5000) if info.image_shape is None else (16, inputs // 16)
    block = 2 * attention * width**2 + mlp * (width + 1) * width
    return (columns + positions) * width + params["depth"] * block + last


@pytest.mark.parametrize("shape", list(shapes()), ids=str)
def test_parameter_count(shape):
    params = params_of(**shape)
    assert COLLAPSE.pack_shape(COLLAPSE.read(params)).network.num_parameters == parameters_by_formula(params)


@pytest.fixture(scope="module")
def peaks_of_processes():
    """Measure the peak memory of each pack in a separate process, in bytes."""
    peaks = {}
    for name, pack in PACKS_ON_THE_CPU.items():
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, "-c", PROCESS, json.dumps(pack)]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert run.returncode == 0, run.stderr
        peaks[name] = int(run.stdout.split()[1]) * 1024
    return peaks


@pytest.mark.parametrize("pack", PACKS_ON_THE_CPU)
@pytest.mark.slow
def test_process_peak_within_a_quarter(pack, peaks_of_processes):
    changes, num_trials = PACKS_ON_THE_CPU[pack]
    predicted = COLLAPSE.memory_bytes(params_of(**changes), num_trials, "cpu")
    assert predicted == pytest.approx(peaks_of_processes[pack], rel=0.25)


SHAPES_OF_TENSORS = [
    ({"arch": "rn2", "depth": 8, "samples_per_class": 30}, 4),
    ({"arch": "rn1", "depth": 3, "width": 400, "samples_per_class": 10, "optimizer": "adam"}, 4),
    ({"arch": "rn1", "depth": 3, "width": 300, "samples_per_class": 10, "dtype": "float64"}, 4),
    ({"arch": "t11", "depth": 4, "samples_per_class": 20, "batch_size": 50, "norm": "pre"}, 4),
    ({"arch": "t22", "depth": 5, "samples_per_class": 30}, 3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "num_trials"), SHAPES_OF_TENSORS, ids=str)
def test_what_tensors_hold_is_predicted_within_a_quarter(changes, num_trials):
    """Count torch's allocations, and the training set allocated by numpy."""
    trials = trials_of({**changes, "steps": 1, "measure_steps": [1]}, num_trials)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        list(COLLAPSE.run(trials, Context(ids_of(trials))))
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes_in_order = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    measured = int(np.cumsum(changes_in_order).max())
    assert tensor_bytes(COLLAPSE.pack_shape(COLLAPSE.read(trials[0])), num_trials) == pytest.approx(measured, rel=0.25)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize(
    ("changes", "num_trials"),
    [
        ({"arch": "rn1", "depth": 34, "optimizer": "adam"}, 64),
        ({"arch": "rn2", "depth": 13, "width": 1000, "samples_per_class": 20}, 8),
        ({"arch": "t22", "depth": 8, "samples_per_class": 100}, 16),
    ],
    ids=str,
)
def test_gpu_peak_within_a_quarter(changes, num_trials):
    trials = trials_of({**changes, "steps": 2, "measure_steps": [0]}, num_trials)
    results = list(COLLAPSE.run(trials, Context(ids_of(trials), device="cuda")))
    assert COLLAPSE.memory_bytes(trials[0], num_trials, "cuda") == pytest.approx(
        results[0].peak_memory_gb * 1e9, rel=0.25
    )


def test_gpu_holds_only_tensors():
    params = params_of(dataset="mnist")
    on_gpu, on_cpu = (COLLAPSE.memory_bytes(params, 1, device) for device in ("cuda", "cpu"))
    assert on_cpu > on_gpu > 60_000 * 784 * 4
    assert COLLAPSE.memory_bytes(params, 2, "cuda") > on_gpu
