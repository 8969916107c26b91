"""Compiled steps: a trial's numbers do not depend on its pack, follow the eager ones, and survive an interruption."""

import copy
import dataclasses
import fcntl
import functools
import itertools
import threading
import time

import pytest
import torch

from depthrate.tasks.interface import Engine, Interrupted
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.networks.transformer import Transformer
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training import training_pack
from depthrate.tasks.training.engines import compiled_step as compiled_step_module
from depthrate.tasks.training.engines import step_cache
from depthrate.tasks.training.engines.choice import EngineError, select_engine
from depthrate.tasks.training.engines.replayed_step import ReplayedStep
from depthrate.tasks.training.engines.step_cache import compiled_program, compiled_step, program_key
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining
from depthrate.tasks.training.training_plan import Hyperparameters, TrainingPlan
from tests.support.training_context import Context, assert_same, ids_of

INPUTS, CLASSES, SAMPLES, TRIALS = 12, 5, 43, 5
PLAN = TrainingPlan(
    loss="ce",
    optimizer="sgd",
    schedule="cosine",
    num_steps=60,
    batch_size=None,
    init="uniform",
    clip_norm=None,
    dtype=torch.float32,
)
RESIDUAL = ResidualNetwork(
    linear_layers=1, pre_norm=False, depth=2, width=9, input_dimensions=INPUTS, num_classes=CLASSES, last_bias=True
)
PATCHES = Transformer(
    attention_layers=1,
    mlp_layers=2,
    pre_norm=True,
    depth=1,
    width=7,
    positions=4,
    patch_dimensions=3,
    vocabulary_size=None,
    num_classes=CLASSES,
    last_bias=False,
)
TEXT = dataclasses.replace(
    PATCHES, attention_layers=2, pre_norm=False, positions=INPUTS, patch_dimensions=None, vocabulary_size=20
)
TOLERANCE = {torch.float32: 2e-6, torch.float64: 2e-14}
"""Largest difference of a weight between the engines after ten steps at small rates."""


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def never():
    return False


def trials_of(count=TRIALS):
    return [
        Hyperparameters(
            seed, 0.02 / (1 + seed), 0.9 - 0.1 * seed, {"hidden": 0.005 * (1 + seed), "last": 0.01 / (1 + seed)}
        )
        for seed in range(count)
    ]


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
        compiled, _ = compiled_step(trainer.program(), never)
        compiled.size = size
        trainer.use(compiled)
    for _ in range(num_steps):
        loss_T = trainer.step()
    return torch.cat([trainer.theta_TP, loss_T.unsqueeze(1)], dim=1)


def check_exactness(network, plan, num_steps=25):
    """Results are bitwise equal alone, in any pack, position and group size, and equal eager ones up to rounding."""
    trials = trials_of()
    together = trained(network, plan, trials, num_steps)
    for members in ([0], [4], [3, 1], [2, 0, 4], [4, 3, 2, 1, 0]):
        apart = trained(network, plan, [trials[member] for member in members], num_steps)
        assert torch.equal(apart, together[members]), members
    for size in (1, 2, 3, TRIALS):
        assert torch.equal(trained(network, plan, trials, num_steps, size=size), together), size
    difference = trained(network, plan, trials, 10) - trained(network, plan, trials, 10, eager=True)
    assert difference.abs().max() < TOLERANCE[plan.dtype]


@pytest.mark.slow
def test_a_trial_compiled_is_the_same_in_every_pack_and_nearly_the_same_as_eagerly(monkeypatch):
    check_exactness(RESIDUAL, PLAN)
    monkeypatch.setenv("PATH", "")  # what is compiled needs no compiler
    trainer = trainer_of(RESIDUAL, PLAN, trials_of(1))
    compiled_step(trainer.program(), never)
    monkeypatch.undo()
    path, _ = compiled_program(trainer.program(), never)
    path.write_bytes(path.read_bytes()[:1000])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineError, match="is not on PATH"):  # a corrupt file is deleted and compiled again
        compiled_step(trainer.program(), never)
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "changes"),
    [
        (RESIDUAL, {"batch_size": 8, "optimizer": "adam", "loss": "mse", "clip_norm": 0.5}),
        (RESIDUAL, {"dtype": torch.float64, "clip_norm": 0.1, "batch_size": 16}),
        (dataclasses.replace(RESIDUAL, linear_layers=2, pre_norm=True, width=33, depth=4), {"optimizer": "adam"}),
        (dataclasses.replace(RESIDUAL, width=64), {"batch_size": 32}),
        (PATCHES, {"batch_size": 16}),
        (TEXT, {"loss": "mse", "optimizer": "adam"}),
    ],
    ids=["adam-mse-batches-clipped", "float64-clipped", "rn2-pre-wide", "even-sizes", "patches", "text"],
)
@pytest.mark.timeout(900)
def test_so_is_every_kind_of_step(network, changes):
    check_exactness(network, dataclasses.replace(PLAN, **changes))


@pytest.mark.slow
def test_trials_that_leave_change_nothing_for_the_others():
    trials = trials_of()
    trials[2] = dataclasses.replace(trials[2], lr=1e30)
    together = trained(RESIDUAL, PLAN, trials, 30)
    trainer = trainer_of(RESIDUAL, PLAN, trials)
    trainer.use(compiled_step(trainer.program(), never)[0])
    for _ in range(10):
        loss_T = trainer.step()
    assert not torch.isfinite(loss_T[2])
    trainer.select([0, 1, 3, 4])
    for _ in range(20):
        trainer.step()
    assert torch.equal(trainer.theta_TP, together[[0, 1, 3, 4], :-1])


def replayed(trainer):
    """Record a step on a CPU; replaying runs it again into the same tensor, as on a GPU."""

    def record(run):
        loss_T = torch.empty(trainer.num_trials, dtype=trainer.plan.dtype)
        return loss_T, lambda: loss_T.copy_(run())

    return functools.partial(ReplayedStep, record=record)


def check_replay(plan, monkeypatch):
    """Steps that are replayed as on a GPU are the very steps, also after trials left and another state was loaded."""
    trainers = [trainer_of(RESIDUAL, plan, trials_of()) for _ in range(2)]
    for trainer in trainers:
        trainer.use(compiled_step(trainer.program(), never)[0])
    plain, other = trainers
    monkeypatch.setattr(compiled_step_module, "ReplayedStep", replayed(other))
    other._compiled._replays = True

    def same_steps(count):
        for _ in range(count):
            assert torch.equal(plain.step(), other.step())
        assert torch.equal(plain.theta_TP, other.theta_TP)

    same_steps(20)
    assert other._compiled._replayed is not None and plain._compiled._replayed is None
    state = copy.deepcopy(plain.state())
    for trainer in trainers:
        trainer.select([0, 3])
    same_steps(10)
    for trainer in trainers:
        trainer.load_state(state, [1, 2])
    same_steps(10)


@pytest.mark.slow
def test_a_step_that_is_replayed_is_the_step(monkeypatch):
    check_replay(PLAN, monkeypatch)


@pytest.mark.slow
def test_so_it_is_with_batches_and_adam(monkeypatch):
    batches = {"batch_size": 8, "optimizer": "adam", "loss": "mse", "clip_norm": 0.5}
    check_replay(dataclasses.replace(PLAN, **batches), monkeypatch)


@pytest.mark.slow
def test_a_step_is_recorded_and_replayed_beside_a_trial_that_has_diverged(monkeypatch):
    """On a GPU a diverged trial leaves the pack only at a measurement. Until then its NaNs are replayed with the others."""
    trials = trials_of()
    trials[2] = dataclasses.replace(trials[2], lr=1e30)
    trainer = trainer_of(RESIDUAL, PLAN, trials)
    trainer.use(compiled_step(trainer.program(), never)[0])
    trainer._compiled._replays, trainer._compiled.size = True, TRIALS
    monkeypatch.setattr(compiled_step_module, "ReplayedStep", replayed(trainer))
    for _ in range(10):
        trainer.step()
    trainer._compiled._replayed = None  # recorded anew, beside what is no number by now
    assert trainer.theta_TP[2].isnan().any()
    for _ in range(10):
        trainer.step()
    assert trainer._compiled._replayed is not None
    others = [0, 1, 3, 4]
    assert torch.equal(trainer.theta_TP[others], trained(RESIDUAL, PLAN, trials_of(), 20)[others, :-1])


@pytest.mark.slow
def test_a_step_that_cannot_be_recorded_is_taken_as_it_is(monkeypatch, caplog):
    def refuse(run):
        raise RuntimeError("no stream is capturing")

    trainer = trainer_of(RESIDUAL, PLAN, trials_of())
    trainer.use(compiled_step(trainer.program(), never)[0])
    trainer._compiled._replays = True
    monkeypatch.setattr(compiled_step_module, "ReplayedStep", functools.partial(ReplayedStep, record=refuse))
    for _ in range(20):
        trainer.step()
    assert [record.getMessage() for record in caplog.records] == [
        "steps are not replayed, because a step cannot be recorded: no stream is capturing"
    ]
    assert torch.equal(trainer.theta_TP, trained(RESIDUAL, PLAN, trials_of(), 20)[:, :-1])


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
    monkeypatch.setattr(training_pack, "compiled_step", _no_compiler)
    third = Context(ids_of(trials), checkpoint=first.checkpoint)
    eagerly, _ = run_as(Engine.EAGER, trials)
    assert_same(list(COLLAPSE.run(trials, third)), eagerly)  # anew: half of each would be neither
    assert third.steps_seen[0] == 1 and third.ran_as[-1] == (Engine.EAGER, None)


def _no_compiler(program, should_stop):
    raise EngineError("there is no compiler")


def test_an_eager_pack_that_resumes_stays_eager_whatever_is_asked():
    trials = [params_of(0)]
    first = Context(ids_of(trials), engine=Engine.EAGER, stop_at=17)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run(trials, first))
    second = Context(ids_of(trials), engine=Engine.COMPILED, checkpoint=first.checkpoint)
    assert_same(list(COLLAPSE.run(trials, second)), list(COLLAPSE.run(trials, Context(ids_of(trials)))))
    assert second.ran_as == [(Engine.EAGER, None)]


def test_without_a_compiler_auto_is_eager_and_compiled_says_what_is_missing(monkeypatch, caplog):
    trials = [params_of(0, width=8)]
    eagerly, _ = run_as(Engine.EAGER, trials)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(NetworkTraining, "engine", lambda training, requested, device: Engine.COMPILED)
    found, context = run_as(Engine.AUTO, trials)
    assert context.ran_as[-1] == (Engine.EAGER, None) and "no-such-compiler" in caplog.text
    assert_same(found, eagerly)
    with pytest.raises(EngineError, match=r"'no-such-compiler' is not on PATH.*install g\+\+.*--engine eager"):
        run_as(Engine.COMPILED, trials)


def test_a_step_that_does_something_else_is_refused(monkeypatch):
    class Wrong:
        is_bound, size = True, None

        def __call__(self, rate_T1, correction, x, labels):
            return torch.full((1,), 7.0)

        def release(self):
            pass

    trainer = trainer_of(RESIDUAL, PLAN, trials_of(2))
    with pytest.raises(EngineError, match=r"of ResidualNetwork has loss 7 and the eager step 1\.\d+.*--engine eager"):
        trainer.use(Wrong())
    assert torch.equal(trainer.step(), trainer_of(RESIDUAL, PLAN, trials_of(2)).step())


@pytest.mark.slow
def test_what_does_not_compile_is_said_with_the_compilers_words(monkeypatch):
    monkeypatch.setattr(step_cache, "pickle", _Broken)
    program = trainer_of(RESIDUAL, dataclasses.replace(PLAN, adam_eps=1e-7), trials_of(1)).program()
    with pytest.raises(EngineError, match=r"(?s)compiling the step failed with exit code 1.*UnpicklingError"):
        compiled_program(program, never)
    assert list(step_cache.cache_folder().glob("*.compiling")) == []


class _Broken:
    """A pickle that cannot be read."""

    PicklingError = TypeError

    @staticmethod
    def dumps(value):
        return b"\x00"


def test_a_stop_ends_the_compiling_and_the_waiting_for_who_compiles():
    program = trainer_of(RESIDUAL, dataclasses.replace(PLAN, adam_eps=1e-6), trials_of(1)).program()
    requested = itertools.count()
    with pytest.raises(Interrupted):
        compiled_program(program, lambda: next(requested) == 2)
    folder = step_cache.cache_folder()
    assert list(folder.glob("*.compiling")) == []
    with (folder / f"{program_key(program)}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Interrupted):
            compiled_program(program, lambda: next(requested) > 5)


def test_who_waited_takes_what_the_other_compiled(monkeypatch):
    program = trainer_of(RESIDUAL, dataclasses.replace(PLAN, adam_eps=1e-5), trials_of(1)).program()
    compiled = []

    def slowly(program, path, should_stop):
        time.sleep(0.5)
        compiled.append(path)
        path.write_bytes(b"made")

    monkeypatch.setattr(step_cache, "_compile", slowly)
    threads = [threading.Thread(target=compiled_program, args=(program, never)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


def test_the_key_tells_apart_what_compiles_to_different_programs():
    base = trainer_of(RESIDUAL, PLAN, trials_of(1)).program()
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
        trainer_of(RESIDUAL, PLAN, trials_of(4)).program(),
    ]
    assert {program_key(program) for program in same} == {program_key(base)}


def test_auto_compiles_where_a_single_trial_repays_it_and_never_asks_about_the_pack():
    def choice(requested=Engine.AUTO, device="cpu", **given):
        params = COLLAPSE.schema.fill({"arch": "resnet_dense", "dataset": "digits", **given})
        shape = COLLAPSE.pack_shape(COLLAPSE.read(params))
        return select_engine(requested, shape, device)

    assert choice(depth=2, steps=200, samples_per_class=20) is Engine.EAGER
    assert choice(depth=8, steps=100_000) is Engine.COMPILED
    assert choice(depth=8, steps=1, arch="rn1") is Engine.NATIVE  # whatever its steps
    assert choice(depth=8, steps=100_000, device="cuda") is Engine.EAGER
    assert choice(Engine.COMPILED, depth=2, steps=1) is Engine.COMPILED
    assert choice(Engine.EAGER, depth=8, steps=100_000) is Engine.EAGER
