"""Compiled steps: a trial's numbers do not depend on its pack, follow the eager ones, and survive an interruption."""

import dataclasses
import fcntl
import functools
import itertools
import threading
import time

import pytest
import torch

from depthrate.tasks.code.private_cache import private_cache
from depthrate.tasks.interface import Engine, Interrupted
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.networks.mlp import Mlp
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training import training_pack
from depthrate.tasks.training.engines import compiled as compiled_module
from depthrate.tasks.training.engines.choice import select_engine
from depthrate.tasks.training.engines.compiled import compile_steps, compiled_program, program_key
from depthrate.tasks.training.engines.step_program import StepProgram
from depthrate.tasks.training.pack_state import Steps
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining
from tests.support.native_trials import network_of, plan_of, transformer_of, trials_of
from tests.support.training_context import Context, assert_same, ids_of

INPUTS, CLASSES, SAMPLES, TRIALS = 12, 5, 43, 5
PLAN = plan_of()
RESIDUAL = network_of(9, depth=2, inputs=INPUTS, classes=CLASSES)
PATCHES = transformer_of(1, 2, True, patch=3, depth=1, classes=CLASSES, last_bias=False)
TEXT = dataclasses.replace(
    PATCHES, attention_layers=2, pre_norm=False, positions=INPUTS, patch_dimensions=None, vocabulary_size=20
)
TOLERANCE = {torch.float32: 2e-6, torch.float64: 2e-14}
"""Largest difference of a weight between the engines after ten steps at small rates. With Adam: of the norm of all weights."""


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def never():
    return False


def trainer_of(network, plan, trials):
    generator = torch.Generator().manual_seed(0)
    if network is TEXT:
        x_NI = torch.randint(0, 20, (SAMPLES, INPUTS), generator=generator)
    else:
        x_NI = torch.randn(SAMPLES, INPUTS, generator=generator, dtype=torch.float64).to(plan.dtype)
    return FusedTrainer(network, plan, trials, x_NI, torch.arange(SAMPLES) % CLASSES)


def trained(network, plan, trials, num_steps, *, size=None, eager=False):
    """Return the parameters and last losses of these trials, one row per trial, in groups of `size` or of the chosen size."""
    trainer = trainer_of(network, plan, trials)
    if not eager:
        trainer.use(functools.partial(compile_steps(trainer, never)[0], size=size))
    for _ in range(num_steps):
        loss_T = trainer.step()
    return torch.cat([trainer.theta_TP, loss_T.unsqueeze(1)], dim=1)


@pytest.mark.slow
def test_library_is_kept_or_recompiled(monkeypatch):
    trainer = trainer_of(RESIDUAL, PLAN, trials_of(1))
    compile_steps(trainer, never)
    monkeypatch.setenv("PATH", "")
    compile_steps(trainer, never)
    path = compiled_program(StepProgram.from_trainer(trainer), never)
    content = path.read_bytes()
    path.write_bytes(content[:1000])
    with pytest.raises(EngineError, match="is not on PATH"):
        compile_steps(trainer, never)
    assert not path.exists()
    path.write_bytes(content)  # the next tests need it, and compiling takes half a minute of a processor


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "changes"),
    [
        (RESIDUAL, {}),
        (
            dataclasses.replace(RESIDUAL, width=64),
            {"batch_size": 32, "optimizer": "adam", "loss": "mse", "clip_norm": 0.5},
        ),
        (
            dataclasses.replace(RESIDUAL, linear_layers=2, pre_norm=True, width=33, depth=4),
            {"dtype": torch.float64, "clip_norm": 0.1, "batch_size": 16},
        ),
        (PATCHES, {"batch_size": 16}),
        (TEXT, {"loss": "mse", "optimizer": "adam"}),
        (Mlp(depth=2, width=9, input_dimensions=INPUTS, num_classes=CLASSES, last_bias=True), {}),
    ],
    ids=["sgd", "adam-mse-even-batches-clipped", "rn2-pre-wide-float64-clipped", "patches", "text", "mlp"],
)
@pytest.mark.timeout(900)
def test_invariant_to_packs_and_near_eager(network, changes):
    plan = dataclasses.replace(PLAN, **changes)
    trials = trials_of(TRIALS)
    together = trained(network, plan, trials, 25)
    for members in ([0], [4], [3, 1], [2, 0, 4], [4, 3, 2, 1, 0]):
        apart = trained(network, plan, [trials[member] for member in members], 25)
        assert torch.equal(apart, together[members]), members
    for size in (1, 2, 3, TRIALS):
        assert torch.equal(trained(network, plan, trials, 25, size=size), together), size
    eager = trained(network, plan, trials, 10, eager=True)
    difference = trained(network, plan, trials, 10) - eager
    if plan.optimizer == "adam":  # divides by a gradient's own size, so rounding near zero grows, by processor
        difference = difference.norm(dim=1) / eager.norm(dim=1)
    assert difference.abs().max() < TOLERANCE[plan.dtype]


@pytest.mark.slow
def test_trials_that_leave_change_nothing_for_the_others():
    trials = trials_of(TRIALS)
    trials[2] = dataclasses.replace(trials[2], lr=1e30)
    together = trained(RESIDUAL, PLAN, trials, 30)
    trainer = trainer_of(RESIDUAL, PLAN, trials)
    trainer.use(compile_steps(trainer, never)[0])
    for _ in range(10):
        loss_T = trainer.step()
    assert not torch.isfinite(loss_T[2])
    trainer.select([0, 1, 3, 4])
    for _ in range(20):
        trainer.step()
    assert torch.equal(trainer.theta_TP, together[[0, 1, 3, 4], :-1])


def params_of(seed, **changes):
    given = {"arch": "rn1", "depth": 2, "width": 9, "samples_per_class": 4, "steps": 40, "seed": seed, **changes}
    return COLLAPSE.schema.fill(given)


def run_as(engine, trials):
    made = Context(ids_of(trials), engine=engine)
    return list(COLLAPSE.run(trials, made)), made


@pytest.mark.slow
def test_a_resumed_pack_keeps_its_engine(monkeypatch):
    trials = [params_of(seed, batch_size=8) for seed in range(3)]
    whole, context = run_as(Engine.COMPILED, trials)
    assert [engine for engine, _ in context.ran_as] == [Engine.COMPILED] * 2 and context.ran_as[-1][1] is not None
    first = Context(ids_of(trials), engine=Engine.COMPILED, stop_at=17)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run(trials, first))
    for requested in (Engine.EAGER, Engine.AUTO):
        second = Context(ids_of(trials), engine=requested, checkpoint=first.checkpoint)
        assert_same(list(COLLAPSE.run(trials, second)), whole)
        assert second.ran_as[-1][0] is Engine.COMPILED and second.steps_seen[0] == 18
    monkeypatch.setattr(training_pack, "compile_steps", _no_compiler)
    third = Context(ids_of(trials), checkpoint=first.checkpoint)
    eagerly, _ = run_as(Engine.EAGER, trials)
    assert_same(list(COLLAPSE.run(trials, third)), eagerly)  # anew: half of each would be neither
    assert third.steps_seen[0] == 1 and third.ran_as[-1] == (Engine.EAGER, None)


def _no_compiler(trainer, should_stop):
    raise EngineError("there is no compiler")


def test_resumed_eager_pack_stays_eager():
    trials = [params_of(0)]
    first = Context(ids_of(trials), engine=Engine.EAGER, stop_at=17)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run(trials, first))
    for requested in (Engine.COMPILED, Engine.NATIVE):
        second = Context(ids_of(trials), engine=requested, checkpoint=first.checkpoint)
        assert_same(list(COLLAPSE.run(trials, second)), list(COLLAPSE.run(trials, Context(ids_of(trials)))))
        assert second.ran_as == [(Engine.EAGER, None)]


def test_no_compiler_falls_back_or_refuses(monkeypatch, caplog):
    trials = [params_of(0, width=8)]
    eagerly, _ = run_as(Engine.EAGER, trials)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(NetworkTraining, "engine", lambda training, requested, device: Engine.COMPILED)
    found, context = run_as(Engine.AUTO, trials)
    assert context.ran_as[-1] == (Engine.EAGER, None) and "no-such-compiler" in caplog.text
    assert_same(found, eagerly)
    with pytest.raises(EngineError, match=r"'no-such-compiler' is not on PATH.*install g\+\+.*--engine eager"):
        run_as(Engine.COMPILED, trials)


def test_a_step_that_does_something_else_is_refused():
    class Wrong(Steps):
        engine = Engine.COMPILED

        def prepare(self):
            pass

        def step(self, max_steps, divergence):
            return torch.full((1,), 7.0)

    trainer = trainer_of(RESIDUAL, PLAN, trials_of(2))
    with pytest.raises(EngineError, match=r"of ResidualNetwork has loss 7 and the eager step 1\.\d+.*--engine eager"):
        trainer.use(Wrong)
    assert torch.equal(trainer.step(), trainer_of(RESIDUAL, PLAN, trials_of(2)).step())


@pytest.mark.slow
def test_compiler_errors_are_shown(monkeypatch):
    monkeypatch.setattr(compiled_module, "pickle", _Broken)
    program = StepProgram.from_trainer(trainer_of(RESIDUAL, dataclasses.replace(PLAN, adam_eps=1e-7), trials_of(1)))
    with pytest.raises(EngineError, match=r"(?s)compiling the step failed with exit code 1.*UnpicklingError"):
        compiled_program(program, never)
    assert list(private_cache("steps").glob("*.compiling")) == []


class _Broken:
    """A pickle that cannot be read."""

    PicklingError = TypeError

    @staticmethod
    def dumps(value):
        return b"\x00"


def test_stop_ends_compiling_and_waiting():
    program = StepProgram.from_trainer(trainer_of(RESIDUAL, dataclasses.replace(PLAN, adam_eps=1e-6), trials_of(1)))
    requested = itertools.count()
    with pytest.raises(Interrupted):
        compiled_program(program, lambda: next(requested) == 2)
    folder = private_cache("steps")
    assert list(folder.glob("*.compiling")) == []
    with (folder / f"{program_key(program)}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Interrupted):
            compiled_program(program, lambda: next(requested) > 5)


def test_who_waited_takes_what_the_other_compiled(monkeypatch):
    program = StepProgram.from_trainer(trainer_of(RESIDUAL, dataclasses.replace(PLAN, adam_eps=1e-5), trials_of(1)))
    compiled = []

    def slowly(program, path, should_stop):
        time.sleep(0.5)
        compiled.append(path)
        path.write_bytes(b"made")

    monkeypatch.setattr(compiled_module, "_compile", slowly)
    threads = [threading.Thread(target=compiled_program, args=(program, never)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


def test_key_separates_programs():
    base = StepProgram.from_trainer(trainer_of(RESIDUAL, PLAN, trials_of(1)))
    others = [
        dataclasses.replace(base, network=dataclasses.replace(RESIDUAL, depth=3)),
        dataclasses.replace(base, plan=dataclasses.replace(PLAN, optimizer="adam")),
        dataclasses.replace(base, plan=dataclasses.replace(PLAN, clip_norm=1.0)),
        dataclasses.replace(base, batch_shape=(7, INPUTS)),
        dataclasses.replace(base, shares_batches=False),
    ]
    assert len({program_key(program) for program in (base, *others)}) == 1 + len(others)
    same = [
        dataclasses.replace(base, plan=dataclasses.replace(PLAN, num_steps=7, schedule="constant", init="he")),
        StepProgram.from_trainer(trainer_of(RESIDUAL, PLAN, trials_of(4))),
    ]
    assert {program_key(program) for program in same} == {program_key(base)}


def test_auto_compiles_where_one_trial_repays():
    def choice(requested=Engine.AUTO, device="cpu", **given):
        params = COLLAPSE.schema.fill({"arch": "mlp", "dataset": "digits", **given})
        shape = COLLAPSE.pack_shape(COLLAPSE.read(params))
        return select_engine(requested, shape, device)

    assert choice(depth=2, steps=200, samples_per_class=20) is Engine.EAGER
    assert choice(depth=8, steps=100_000) is Engine.COMPILED
    assert choice(depth=8, steps=1, arch="rn1") is Engine.NATIVE  # whatever its steps
    assert choice(depth=8, steps=100_000, device="cuda") is Engine.EAGER
    with pytest.raises(EngineError, match="compiled steps run on CPUs only, and the device is cuda"):
        choice(Engine.COMPILED, depth=8, device="cuda")
    assert choice(Engine.COMPILED, depth=2, steps=1) is Engine.COMPILED
    assert choice(Engine.EAGER, depth=8, steps=100_000) is Engine.EAGER
    assert choice(depth=8, steps=100_000, arch="resnet_dense") is Engine.EAGER  # its trials run one by one
    with pytest.raises(EngineError, match="DenseResNet is not compiled"):
        choice(Engine.COMPILED, depth=8, arch="resnet_dense")
