"""Steps generated for a GPU, built by g++ with the threads of a block as contexts: those of autograd, in any pack and order."""

import ctypes
import dataclasses
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import by_gcc, checked, error_of, run_steps, trainer_of, use
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.native import cuda
from depthrate.tasks.native.build import NUMBERS, SOURCES
from depthrate.tasks.native.codegen import cuda_emit, cuda_plan
from depthrate.tasks.native.codegen.cuda_plan import Tuning
from depthrate.tasks.native.cuda import NvrtcMissingError, compile_cubin, needed_bytes, nvrtc_version
from depthrate.tasks.training.engines import generated
from depthrate.tasks.training.engines.generated import cuda_source
from depthrate.tasks.training.pack_state import Divergence
from tests.support.generated_steps import GeneratedStep, fault_of, problem_of
from tests.support.surveyed_modules import SURVEY

pytestmark = pytest.mark.slow
NAMES = (
    *("normed weight", "causal block", "language model", "next ids", "MaxPool2d", "GroupNorm", "LSTM", "Conv2d"),
    "Softmax",
)
MODULES = [case for case in SURVEY if case.name in NAMES and not case.refusal]
BUILT_IN = checked()
RACES = Path(__file__).parents[3] / "support" / "races.h"
TRACED = ("-fsanitize=thread", f'-DRACES="{RACES}"')
"""Flags of libraries that count races."""
TUNINGS = (Tuning(), Tuning(blocks=1, shared_bytes=227 << 10), Tuning(shared_bytes=24 << 10))
TIMINGS = ((0, False), (1, False), (2, True), (3, True))
"""Seeds of the order of threads between barriers (0: that of their numbers), and whether copies run when waited for."""


def source_of(network, plan, samples, tuning):
    data = DataShape(num_samples=samples, sample_shape=(64,), num_classes=10)
    return cuda_source(network, plan, data, tuning)


def library_of(network, plan, samples, tuning=Tuning(), *flags):  # noqa: B008
    return by_gcc(source_of(network, plan, samples, tuning), NUMBERS[plan.dtype_name], *flags)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in MODULES])
def test_modules_train_as_by_autograd(case):
    assert len(MODULES) >= 4
    problem = problem_of(case)
    library = by_gcc(problem.cuda_source(Tuning()), "float", *TRACED)
    library._library.set_timing(ctypes.c_int64(1), ctypes.c_int64(1))
    assert fault_of(GeneratedStep(problem, library)) is None and races_in(library) == 0


@pytest.mark.parametrize("network", [pytest.param(given[1:], id=given[0]) for given in BUILT_IN])
def test_first_gradient_matches_float64_and_packs_do_not_matter(network):
    network, plan, samples = network
    library = library_of(network, plan, samples)
    trials = [0, 1, 2]
    native, eager, alone, again, frozen = (
        trainer_of(network, plan, chosen, samples, "cpu") for chosen in (trials, trials, trials[1:2], trials, trials)
    )
    exact = eager.to_float64()
    for trainer in (native, alone, again, frozen):
        use(trainer, library)
    found, expected = native.evaluate(), exact.evaluate()
    least = 1e-6 if plan.dtype == torch.float32 else 1e-12
    assert error_of(found["loss"], expected["loss"]) < least and torch.equal(found["accuracy"], expected["accuracy"])
    run_steps(native, 1)
    eager.step(), exact.step()
    assert error_of(native.moment_TP, exact.moment_TP) <= 2 * error_of(eager.moment_TP, exact.moment_TP) + least
    run_steps(native, 9)
    run_steps(again, 10, 4)
    run_steps(alone, 10)
    assert torch.equal(again.theta_TP, native.theta_TP) and torch.equal(alone.theta_TP[0], native.theta_TP[1])
    start_TP, divergence = frozen.theta_TP.clone(), Divergence(3, frozen.device)
    divergence.step_T[0] = 0
    frozen._steps.advance(1, divergence)
    call, source = frozen._steps._call.fields, source_of(network, plan, samples, Tuning())
    assert needed_bytes(source, call, 1) == library.scratch_bytes(call)
    assert torch.equal(frozen.theta_TP[0], start_TP[0]) and not torch.equal(frozen.theta_TP[1], start_TP[1])


def test_sources_are_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, network, plan, samples = BUILT_IN[0]
    first = source_of(network, plan, samples, Tuning())
    monkeypatch.setattr(generated, "generate_cuda", lambda *_, **__: dataclasses.replace(first, text="another"))
    assert source_of(network, plan, samples, Tuning()) == first
    assert source_of(network, plan, samples, Tuning(blocks=1)).text == "another"
    data = DataShape(num_samples=samples, sample_shape=(64,), num_classes=10)
    assert cuda_source(network, plan, data, Tuning(), is_fresh=True).text == "another"


def races_in(library):
    library._library.count_races.restype = ctypes.c_int64
    return library._library.count_races()


def trained_by(library, network, plan, samples, timings=TIMINGS):
    """Return parameters, loss and gradient after a few steps with each timing."""
    for seed, are_copies_late in timings:
        library._library.set_timing(ctypes.c_int64(seed), ctypes.c_int64(are_copies_late))
        trainer = use(trainer_of(network, plan, [1], samples, "cpu"), library)
        run_steps(trainer, 2)
        yield torch.cat([value.flatten() for value in (trainer.theta_TP, *trainer.evaluate().values())])


@pytest.mark.parametrize(
    "network", [pytest.param(given[1:], id=given[0]) for given in BUILT_IN if given != BUILT_IN[2]]
)
def test_no_race_and_any_timing_of_threads_and_copies_has_equal_bits(network):
    """The third network takes a third of the time of all, and its tiles and its optimiser are those of others."""
    network, plan, samples = network
    trained = []
    for tuning in TUNINGS:
        library = library_of(network, plan, samples, tuning, *TRACED)
        trained += trained_by(library, network, plan, samples, TIMINGS if tuning == Tuning() else TIMINGS[-1:])
        assert races_in(library) == 0
    assert all(torch.equal(result, trained[0]) for result in trained)


COPIED, PUT = "          copied();\n        END\n", "m + rows, n + columns);\n      END\n"
FAULTS = {
    "no wait for copies": (COPIED, "        END\n"),
    "no barrier behind copies": (COPIED, COPIED.replace("END", "PHASE_END")),
    "no barrier behind products": (PUT, PUT.replace("END", "PHASE_END")),
}
"""Name -> text of the header, and what replaces it."""


def copies_always_ahead(monkeypatch):
    is_possible = lambda emitter, _: emitter.time in emitter.plan.ahead  # noqa: E731
    monkeypatch.setattr(cuda_emit._Emitter, "_copies_ahead", is_possible)


def copies_to_places_in_use(monkeypatch):
    gap = cuda_plan._largest_gap
    only_at_product = lambda *given: gap(*given[:3], given[3][-1:], given[4])  # noqa: E731
    monkeypatch.setattr(cuda_plan, "_largest_gap", only_at_product)


@pytest.mark.parametrize("fault", [*FAULTS, copies_always_ahead, copies_to_places_in_use])
def test_faults_are_found(fault, monkeypatch, tmp_path):
    """A missing wait, a missing barrier, or a copy that begins one step too early makes the test above fail."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if callable(fault):
        fault(monkeypatch)
    _, network, plan, samples = BUILT_IN[0]
    source = source_of(network, plan, samples, TUNINGS[2])
    if not callable(fault):
        header = (SOURCES / "cuda.h").read_text()
        assert header.count(FAULTS[fault][0]) == 1
        text = source.text.replace('#include "cuda.h"', header.replace(*FAULTS[fault]).replace("#pragma once", ""))
        source = dataclasses.replace(source, text=text)
    library = by_gcc(source, "float", *TRACED)
    first, *others = trained_by(library, network, plan, samples)
    assert races_in(library) > 0 and not all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nvrtc_compiles(architecture):
    try:
        nvrtc_version()
    except NvrtcMissingError as error:
        pytest.skip(str(error))
    for _, network, plan, samples in (BUILT_IN[0], BUILT_IN[5]):  # in one part, and in several
        assert compile_cubin(source_of(network, plan, samples, Tuning()), "float", architecture)[:4] == b"\x7fELF"


def test_nothing_is_read_through_the_cache_that_is_not_coherent(monkeypatch):
    """A kernel must not read what it has written in this way, which a compiler may choose for pointers to constants."""
    try:
        nvrtc = cuda._nvrtc()
    except NvrtcMissingError as error:
        pytest.skip(str(error))

    class Ptx:
        def __getattr__(self, name):
            return getattr(nvrtc, name.replace("CUBIN", "PTX"))

    monkeypatch.setattr(cuda, "_nvrtc", Ptx)
    for _, network, plan, samples in BUILT_IN[:4]:
        text = compile_cubin(source_of(network, plan, samples, Tuning()), "float", "compute_90")
        assert b"cp.async" in text and b"ld.global" in text and b"ld.global.nc" not in text
