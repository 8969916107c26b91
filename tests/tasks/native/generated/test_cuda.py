"""Steps generated for a GPU, built by g++ with the threads of a block as loops: those of autograd, in any pack and order."""

import dataclasses

import pytest
import torch

from benchmarks.gpu import by_gcc, checked, error_of, run_steps, trainer_of, use
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.native.build import NUMBERS
from depthrate.tasks.native.cuda import NvrtcMissingError, compile_cubin, nvrtc_version
from depthrate.tasks.native.generated.cuda_plan import Tuning
from depthrate.tasks.training.engines import generated
from depthrate.tasks.training.engines.generated import cuda_source
from depthrate.tasks.training.pack_state import Divergence
from tests.support.generated_steps import GeneratedStep, fault_of, problem_of
from tests.support.surveyed_modules import SURVEY

pytestmark = pytest.mark.slow
NAMES = ("normed weight", "causal block", "language model", "MaxPool2d", "GroupNorm", "LSTM", "Conv2d", "Softmax")
MODULES = [case for case in SURVEY if case.name in NAMES and not case.refusal]
BUILT_IN = checked()


def source_of(network, plan, samples, tuning):
    data = DataShape(num_samples=samples, sample_shape=(64,), num_classes=10)
    return cuda_source(network, plan, data, tuning)


def library_of(network, plan, samples, tuning=Tuning(), *flags):  # noqa: B008
    return by_gcc(source_of(network, plan, samples, tuning), NUMBERS[plan.dtype_name], *flags)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in MODULES])
def test_modules_train_as_by_autograd(case):
    assert len(MODULES) >= 4
    problem = problem_of(case)
    assert fault_of(GeneratedStep(problem, by_gcc(problem.cuda_source(Tuning()), "float"))) is None


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


@pytest.mark.parametrize("number", [1, 3, 6])
def test_order_of_threads_and_blocks_per_multiprocessor_do_not_matter(number):
    """A missing barrier would make numbers depend on the order of threads."""
    _, network, plan, samples = BUILT_IN[number]
    one_block = dataclasses.replace(Tuning(), blocks=1, shared_bytes=227 << 10)
    small = dataclasses.replace(Tuning(), shared_bytes=99 << 10)
    trained = []
    for tuning, flags in ((Tuning(), ()), (Tuning(), ("-DREVERSED",)), (one_block, ()), (small, ())):
        trainer = use(
            trainer_of(network, plan, [0, 1], samples, "cpu"), library_of(network, plan, samples, tuning, *flags)
        )
        run_steps(trainer, 5)
        trained.append(trainer.theta_TP)
    assert all(torch.equal(theta_TP, trained[0]) for theta_TP in trained)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nvrtc_compiles(architecture):
    try:
        nvrtc_version()
    except NvrtcMissingError as error:
        pytest.skip(str(error))
    _, network, plan, samples = BUILT_IN[0]
    assert compile_cubin(source_of(network, plan, samples, Tuning()), "float", architecture)[:4] == b"\x7fELF"
