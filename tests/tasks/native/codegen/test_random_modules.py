"""Steps of random modules are those of autograd."""

import random

import pytest
import torch

from depthrate.tasks.native.codegen.errors import CannotGenerateError
from tests.support.generated_steps import GeneratedStep, Problem, build_together, fault_of
from tests.support.random_modules import RandomModule

pytestmark = pytest.mark.slow
CHUNKS, CHUNK = 10, 50
MAX_REFUSED = 0.1
"""Share of a chunk's modules that may be refused."""


def problem_of(seed: int) -> Problem:
    """Draw a module, samples, and how it is trained."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    module = RandomModule(seed)
    samples, outputs = rng.choice([1, 3, 9, 64, 70, 130]), module.head.out_features
    loss = rng.choice(["ce", "ce", "mse", "targets"])
    labels_N = torch.randn(samples, outputs) if loss == "targets" else torch.randint(outputs, (samples,))
    problem = Problem(
        module.text,
        module,
        (module.length, module.width),
        torch.randn(samples, module.length * module.width),
        labels_N,
        batch=rng.randint(1, samples),
        loss="ce" if loss == "ce" else "mse",
        smoothing=rng.choice([0.0, 0.1]) if loss == "ce" else 0.0,
        dtype=torch.float64 if seed // CHUNK % 2 else torch.float32,
    )
    problem.rate = 0.02 / (1 + float(problem.by_autograd(torch.float64)[1].norm()))  # no step leads far away
    return problem


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_modules_train_as_by_autograd(chunk, tmp_path):
    problems, tables, refusals = [], [], []
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        problem = problem_of(seed)
        try:
            tables.append(problem.table())
        except CannotGenerateError as error:
            refusals.append(f"{problem.name}: {error}")
        else:
            problems.append(problem)
    faults = {}
    for problem, library in zip(problems, build_together(tables, problems[0].dtype, tmp_path), strict=True):
        fault = fault_of(GeneratedStep(problem, library))
        if fault is not None:
            faults[problem.name] = fault
    assert not faults
    assert len(refusals) <= MAX_REFUSED * CHUNK, refusals
