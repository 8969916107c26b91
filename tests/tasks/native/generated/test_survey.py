"""Modules of all kinds train in generated kernels as by autograd, or are refused with the reason."""

import pytest
import torch

from depthrate.tasks.native.generated.errors import CannotGenerateError
from tests.support.generated_steps import GeneratedStep, build_together, fault_of, problem_of
from tests.support.surveyed_modules import SURVEY

RIGHT = [case for case in SURVEY if not case.refusal]
ROUNDED_CONSTANTS = ("Hardsigmoid()",)
"""Modules in which torch itself multiplies float64 numbers by a constant of float32, 1/6."""
REFUSED = [case for case in SURVEY if case.refusal]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refusals_name_the_reason(case):
    with pytest.raises(CannotGenerateError, match=case.refusal):
        problem_of(case).source()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("part", range(4))
def test_steps_are_those_of_autograd(part, dtype, tmp_path):
    cases = [case for case in RIGHT[part::4] if dtype == torch.float32 or case.name not in ROUNDED_CONSTANTS]
    sources = [problem_of(case, dtype=dtype).source() for case in cases]
    libraries = build_together(sources, dtype, tmp_path)
    faults = {}
    for case, library in zip(cases, libraries, strict=True):
        draws = [fault_of(GeneratedStep(problem_of(case, seed, dtype=dtype), library)) for seed in range(3)]
        if sum(fault is not None for fault in draws) > (dtype == torch.float32):
            faults[case.name] = draws
    assert not faults
