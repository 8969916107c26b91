"""Modules of all kinds train in generated kernels as by autograd, or are refused with the reason."""

import platform

import pytest
import torch

from depthrate.tasks.native.codegen.errors import CannotGenerateError
from tests.support.generated_steps import QUICK, GeneratedStep, build_together, fault_of, problem_of
from tests.support.surveyed_modules import SURVEY

RIGHT = [case for case in SURVEY if not case.refusal]
ROUNDED_CONSTANTS = ("Hardsigmoid()",)
"""Modules in which torch itself multiplies float64 numbers by a constant of float32, 1/6."""
LONG = ("Bilinear", "BatchNorm2d", "mean over the batch", "roll over the batch", "attention over the batch")
"""Cases that need not be tried at each change."""
REFUSED = [case for case in SURVEY if case.refusal]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case.name in LONG)) for case in REFUSED],
)
def test_refusals_name_the_reason(case):
    with pytest.raises(CannotGenerateError, match=case.refusal):
        problem_of(case).table()


def test_a_block_trains_as_by_autograd(tmp_path):
    (case,) = [case for case in RIGHT if case.name == "causal block"]
    problem = problem_of(case)
    (library,) = build_together([problem.table()], torch.float32, tmp_path)
    assert fault_of(GeneratedStep(problem, library)) is None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("part", range(4))
def test_steps_are_those_of_autograd(part, dtype, tmp_path):
    cases = [case for case in RIGHT[part::4] if dtype == torch.float32 or case.name not in ROUNDED_CONSTANTS]
    tables = [problem_of(case, dtype=dtype).table() for case in cases]
    libraries = build_together(tables, dtype, tmp_path)
    faults = {}
    for case, library in zip(cases, libraries, strict=True):
        if found := _repeated_fault(case, dtype, library):
            faults[case.name] = found
    assert not faults


def _repeated_fault(case, dtype, library):
    """Return the faults of two draws of three, of one in float64, or None. Rounding may decide a ReLU's side in one."""
    draws, faults = (1, []) if dtype == torch.float64 else (3, [])
    for seed in range(draws):
        fault = fault_of(GeneratedStep(problem_of(case, seed, dtype=dtype), library))
        faults += [fault] if fault else []
        if len(faults) == (draws + 1) // 2:
            return faults
        if seed + 1 - len(faults) == (draws + 1) // 2:
            return None
    raise AssertionError("one of both has been reached")


TILES = [(1, 1), (70, 1), (70, 2), (70, 5), (3, 3), (70, 50), (66, 65), (150, 67), (150, 130)]
"""Samples and samples of a batch: below a tile, not a multiple of four, tiles that are not full, several of them."""


@pytest.mark.slow
def test_batches_of_all_sizes(tmp_path):
    cases = [case for case in RIGHT if case.name in ("normed weight", "causal block", "language model", "MaxPool2d")]
    problems = [problem_of(case, 0, samples, batch, dtype=torch.float64) for case in cases for samples, batch in TILES]
    assert len(problems) == 4 * len(TILES)
    libraries = build_together([problem.table() for problem in problems], torch.float64, tmp_path)
    for problem, library in zip(problems, libraries, strict=True):
        assert fault_of(GeneratedStep(problem, library)) is None, (problem.name, len(problem.x_NI), problem.batch)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("flags", [("-mavx2", "-mno-avx512f"), ("-mno-avx",)], ids=["AVX2", "SSE"])
def test_vectors_of_other_processors(flags, dtype, tmp_path):
    if platform.machine() != "x86_64":
        pytest.skip("the flags are those of x86")
    cases = [case for case in RIGHT if case.name not in ROUNDED_CONSTANTS][:: 4 if dtype == torch.float32 else 9]
    libraries = build_together(
        [problem_of(case, dtype=dtype).table() for case in cases], dtype, tmp_path, (*QUICK, *flags)
    )
    faults = {}
    for case, library in zip(cases, libraries, strict=True):
        if found := _repeated_fault(case, dtype, library):
            faults[case.name] = found
    assert not faults
