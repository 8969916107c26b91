"""Packs on a stand-in for a GPU: no operation mixes devices, results agree with a CPU, launches and waits are counted."""

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.gpu import by_gcc
from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.interface import Engine, ResultStatus
from depthrate.tasks.native import cuda
from depthrate.tasks.native.build import NUMBERS
from depthrate.tasks.native.codegen.cuda_plan import Tuning
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.registry import registered_task
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training import training as training_module
from depthrate.tasks.training import training_plan
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.engines import eager
from depthrate.tasks.training.engines.generated import cuda_source
from depthrate.tasks.training.engines.native import NativeSteps
from depthrate.tasks.training.measuring_thread import MeasuringThread
from depthrate.tasks.training.pack_state import permutations
from depthrate.tasks.training.training_pack import TrainingPack, run_training
from tests.support.collapse_packs import params_of
from tests.support.stand_in_gpu import StandInGpu, stand_in_gpu
from tests.support.training_context import Context, assert_same, ids_of, run_resumed, training_on

pytestmark = pytest.mark.slow

SHORT = {"steps": 12, "measure_steps": [0], "width": 6, "samples_per_class": 2, "depth": 2}
OPTIMIZERS = [{"optimizer": name, "batch_size": 4, "clip_norm": 1.0} for name in ("sgd", "adam", "adamw", "rmsprop")]
NETWORKS = [
    {"arch": "rn2", "norm": "pre", "geodesic": True},
    {"arch": "t22", "batch_size": 4},
    {"arch": "mlp", "measure": "effective_rank, linear_probe, cka_last"},
    {"arch": "mlp", "measure": "hessian_max, hessian_trace, product_alignment"},
    {"arch": "resnet_conv", "stages": "4x8x8*2"},
    {"arch": "resnet_dense"},
]
OTHER_TASKS = [
    ("next_token", {"arch": "t11", "samples": 12, "min_class_count": 1, "width": 6, "depth": 1}),
    ("regression", {"arch": "rn1", "samples": 12, "targets": 2, "width": 6, "depth": 2}),
    ("words", {"concepts": 2, "vocabulary_size": 6, "sentence_length": 2, "sequences": 2, "width": 3, "batch_size": 2}),
    ("dufm", {"num_classes": 3, "samples_per_class": 2, "width": 4, "depth": 2}),
]


@pytest.fixture
def gpu() -> Iterator[StandInGpu]:
    with stand_in_gpu() as device:
        yield device


def trials_of(shape, seeds=(0, 1)):
    return [params_of(**{**SHORT, "seed": seed, "features": "all", **shape}) for seed in seeds]


def run(trials, task=COLLAPSE, **context):
    """Run a pack and read its tables, features included."""
    results = list(task.run(trials, Context(ids_of(trials), **context)))
    for result in results:
        if "features" in result.tables:
            result.tables["features"] = dict(result.tables["features"])
    return results


def on_gpu(trials, context):
    context.device = "cuda"
    return COLLAPSE.run(trials, context)


def training_pack(trials, device="cuda"):
    training = COLLAPSE.training([COLLAPSE.read(params) for params in trials], None)
    return TrainingPack(training, Context(ids_of(trials), device=device))


def assert_near(results, expected):
    """Compare everything that two packs returned."""
    for result, other in zip(results, expected, strict=True):
        assert (result.status, result.num_steps) == (other.status, other.num_steps)
        for name in ("metrics", "curves"):
            for row, other_row in zip(result.tables[name], other.tables[name], strict=True):
                assert row.keys() == other_row.keys()
                for column, value in row.items():
                    if value is None or isinstance(value, str):
                        assert value == other_row[column], column
                    else:
                        np.testing.assert_allclose(value, other_row[column], rtol=1e-3, atol=1e-5, err_msg=column)
        features, other_features = (
            tables.get("features", {}).get("feature", []) for tables in (result.tables, other.tables)
        )
        np.testing.assert_allclose(features, other_features, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("orders_of_cpu")
@pytest.mark.parametrize(
    "shape",
    [*OPTIMIZERS, *NETWORKS[:2], *(pytest.param(shape, marks=pytest.mark.slow) for shape in NETWORKS[2:])],
    ids=str,
)
def test_equals_training_on_a_cpu(shape):
    expected = run(trials_of(shape))
    with stand_in_gpu():
        results = run(trials_of(shape), device="cuda")
    assert_near(results, expected)


@pytest.mark.usefixtures("orders_of_cpu")
@pytest.mark.parametrize(("name", "params"), OTHER_TASKS, ids=str)
def test_other_tasks_run_as_on_a_cpu(name, params):
    task = registered_task(name)
    trials = [task.schema.fill({"steps": 6, "seed": seed, **params}) for seed in (0, 1)]
    for trial in trials:
        task.complete(trial)
    expected = run(trials, task)
    with stand_in_gpu():
        results = run(trials, task, device="cuda")
    assert_near(results, expected)


def test_everything_of_a_pack_is_on_its_device(gpu):
    pack = training_pack(trials_of({"optimizer": "adam", "batch_size": 4}))
    trainer = pack.trainer
    trainer.step()
    state = [*trainer.state().values(), *vars(trainer).values(), *vars(trainer.rates).values(), pack._divergence.step_T]
    tensors = [value for value in state if isinstance(value, torch.Tensor) and value is not trainer.rates._lr_T]
    assert len(tensors) > 10 and all(tensor.device.type == "cuda" for tensor in tensors)


@pytest.mark.parametrize("shape", OPTIMIZERS[1:2] + NETWORKS[3:4], ids=str)
def test_gpu_checkpoint_resumes_anywhere(shape, gpu):
    trials = trials_of({**shape, "features": "none"})
    resumed, steps = run_resumed(on_gpu, trials, 7)
    assert steps[0] == 8
    assert_same(resumed, run(trials, device="cuda"))
    moved, steps = run_resumed(lambda t, c: on_gpu(t, c) if c.stop_at else COLLAPSE.run(t, c), trials, 7)
    assert steps[0] == 8 and all(result.status is ResultStatus.OK for result in moved)


def moved_from_cpu(trials, stop_at):
    """Interrupt a native pack on a CPU and resume it on the GPU. Return its results and the steps taken there."""

    def run_on_both(trials, context):
        context.device, context.engine = ("cpu", Engine.NATIVE) if context.stop_at else ("cuda", Engine.AUTO)
        return COLLAPSE.run(trials, context)

    return run_resumed(run_on_both, trials, stop_at)


def test_cpu_checkpoint_restarts_on_gpu(gpu, caplog):
    trials = trials_of({"features": "none", "record": "all"})  # native steps stop at recorded ones
    restarted, steps = moved_from_cpu(trials, 7)
    assert steps[0] == 1
    assert_same(restarted, run(trials, device="cuda"))
    assert "training restarts eagerly, because the CUDA driver is missing" in caplog.text


@pytest.fixture
def kernels(monkeypatch):
    """Let g++ compile the kernels of the stand-in. Return the libraries' sources' freshness, one per call."""
    loaded = []

    def load(network, plan, dataset, num_trials, should_stop, *, is_fresh=False):
        source = cuda_source(network, plan, dataset.shape, Tuning(), is_fresh=is_fresh)
        library = by_gcc(source, NUMBERS[plan.dtype_name])
        library.device = "cuda"
        loaded.append(is_fresh)
        return library, 0.5

    monkeypatch.setattr(training_module, "generated_cuda_library", load)
    return loaded


@pytest.mark.usefixtures("orders_of_cpu")
@pytest.mark.parametrize(
    "shape", [{}, OPTIMIZERS[1], {"arch": "t22", "batch_size": 4}, {"arch": "mlp", "record": "all"}], ids=str
)
def test_auto_trains_in_generated_kernels(shape, gpu, kernels, caplog):
    trials, context = trials_of(shape), Context(device="cuda", engine=Engine.AUTO)
    context.trial_ids = ids_of(trials)
    results = list(COLLAPSE.run(trials, context))
    assert context.ran_as == [(Engine.NATIVE, None), (Engine.NATIVE, 0.5)] and kernels == [False]
    assert "eagerly" not in caplog.text
    assert_near(results, run(trials))


def test_deep_unconstrained_features_train_in_generated_kernels(gpu, kernels):
    task = registered_task("dufm")
    given = {"num_classes": 3, "samples_per_class": 2, "width": 4, "depth": 2, "steps": 6, "loss": "ce"}
    trials = [task.schema.fill({**given, "seed": seed, "dtype": "float32"}) for seed in (0, 1)]
    context = Context(ids_of(trials), device="cuda", engine=Engine.AUTO)
    results = list(task.run(trials, context))
    assert context.ran_as[-1] == (Engine.NATIVE, 0.5)
    assert_near(results, list(task.run(trials, Context(ids_of(trials)))))


def test_native_checkpoint_of_a_cpu_resumes_in_kernels_of_a_gpu(gpu, kernels, caplog):
    trials = trials_of({"features": "none", "record": "all"})
    resumed, steps = moved_from_cpu(trials, 7)
    assert steps[0] == 8 and "restarts" not in caplog.text
    assert_near(resumed, run(trials))


@pytest.mark.parametrize("fault", ["driver", "step"])
def test_without_kernels_auto_is_eager_and_says_so_once(fault, gpu, kernels, monkeypatch, caplog):
    """Kernels that differ from the eager step are generated again before they are given up."""
    trials, context = trials_of({"features": "none"}), Context(device="cuda", engine=Engine.AUTO)
    context.trial_ids = ids_of(trials)
    if fault == "driver":
        monkeypatch.undo()

        def missing():
            raise EngineError("the CUDA driver is missing")

        monkeypatch.setattr(cuda, "_driver", missing)
        reason = "the CUDA driver is missing"
    else:
        monkeypatch.setattr(NativeSteps, "step", lambda steps, max_steps, divergence: steps.loss_T.zero_())
        reason = "the native step of ResidualNetwork has loss 0"
    results = list(COLLAPSE.run(trials, context))
    assert context.ran_as == [(Engine.NATIVE, None), (Engine.EAGER, None)]
    assert kernels == ([] if fault == "driver" else [False, True])
    assert caplog.text.count("eagerly") == 1 and f"training runs eagerly, because {reason}" in caplog.text
    assert_same(results, run(trials, device="cuda"))
    context.engine, context.ran_as = Engine.NATIVE, []
    with pytest.raises(EngineError, match=reason):
        list(COLLAPSE.run(trials, context))


MEASURED = {"steps": 12, "record": "all", "measure_steps": [0, 1, 2, 3, 5, 8]}


def native_training(measure=None, **shape):
    """Return what a pack with test split does in kernels, with another measurement if one is given."""
    trials = trials_of({**MEASURED, "features": "none", **shape}, seeds=(0, 1, 2))
    draw = partial(load_dataset, "digits", None, samples_per_class=2, normalize="global", dtype="float32")
    training = training_on(trials, replace(draw(data_seed=0), test=draw(data_seed=1)))
    context = Context(ids_of(trials), device="cuda", engine=Engine.NATIVE)
    return training if measure is None else replace(training, measure=partial(measure, training)), context


def test_measurements_run_while_steps_go_on(gpu, kernels, monkeypatch):
    trainers, overtaken = [], []
    advance = NativeSteps.advance
    monkeypatch.setattr(NativeSteps, "advance", lambda *args: (trainers.append(args[0].trainer), advance(*args))[1])

    def measure(training, trainer, positions, step):
        time.sleep(0.05)  # until a step has overwritten the parameters
        overtaken.append(trainers[-1].step_count > trainer.step_count)
        return training.measure(trainer, positions, step)

    training, context = native_training(measure)
    results = list(run_training(training, context))
    assert any(overtaken) and all(thread.name[:12] != "measurements" for thread in threading.enumerate())
    monkeypatch.setattr(MeasuringThread, "start", lambda thread, measure: measure())
    assert_same(results, list(run_training(*native_training())))
    assert {row["split"] for row in results[0].tables["metrics"]} == {"train", "test"}


def test_a_measurement_that_fails_ends_the_pack(gpu, kernels):
    def measure(training, trainer, positions, step):
        if step == 3:
            raise torch.OutOfMemoryError("no memory is left")
        return training.measure(trainer, positions, step)

    training, context = native_training(measure)
    with pytest.raises(torch.OutOfMemoryError, match="no memory is left"):
        list(run_training(training, context))
    assert context.steps_seen[-1] < 8 and all(thread.name[:12] != "measurements" for thread in threading.enumerate())


def test_a_checkpoint_has_the_measurement_that_is_running(gpu, kernels):
    def measure(training, trainer, positions, step):
        time.sleep(0.02)
        return training.measure(trainer, positions, step)

    def run_natively(trials, context):
        training, native = native_training(measure)
        context.device, context.engine, context.trial_ids = "cuda", Engine.NATIVE, native.trial_ids
        return run_training(training, context)

    resumed, steps = run_resumed(run_natively, [{}, {}, {}], 5)
    assert steps[0] == 6
    assert_same(resumed, list(run_training(*native_training())))


def test_a_native_record_waits_for_its_curve_rows_only(gpu, kernels):
    """They decide which trials go on: once for divergence, once for the rows."""
    training, context = native_training()
    pack = TrainingPack(training, context)
    pack.use_native()
    pack.engine = Engine.NATIVE
    gpu.reset()
    pack._record(0)
    assert sum(gpu.synchronisations.values()) == 2
    pack._finish_measurement()
    assert len(pack.metrics[0]) > 2
    pack.close()


def test_trained_pack_is_only_measured(gpu, caplog):
    trials = trials_of({"features": "none"})
    measured, steps = moved_from_cpu(trials, SHORT["steps"])
    assert steps == [] and "restarts" not in caplog.text
    assert_near(measured, run(trials, engine=Engine.NATIVE))


def test_pruned_and_diverged_trials_leave_the_others_unchanged(gpu):
    trials = trials_of({"batch_size": 4, "optimizer": "adamw", "features": "none"}, seeds=(0, 1, 2, 3))
    alone = run(trials[3:], device="cuda")
    context = Context(ids_of(trials), device="cuda")
    context.report = lambda step, values: {0} if step > 1 else set()
    trials[1]["lr"] = 1e30
    pruned, diverged, _, last = COLLAPSE.run(trials, context)
    assert (pruned.status, diverged.status) == (ResultStatus.PRUNED, ResultStatus.DIVERGED)
    assert_near([last], alone)


@pytest.mark.parametrize(("arch", "launches"), [("rn1", 109), ("t11", 187)])
def test_synchronisations_per_row_and_layer(arch, launches, gpu):
    depth = {"rn1": 8, "t11": 4}[arch]
    pack = training_pack(trials_of({"arch": arch, "depth": depth, "batch_size": 8, "steps": 40}, seeds=range(4)))
    pack.trainer.step()
    gpu.reset()
    pack.trainer.step()
    assert sum(gpu.launches.values()) <= launches
    for _ in range(20):  # over several epochs
        pack.trainer.advance(40, pack._divergence)
    assert not gpu.synchronisations
    pack._record(max(pack.curve_steps - {40}))
    assert sum(gpu.synchronisations.values()) == 2
    gpu.reset()
    pack.training.measure(pack.trainer, range(4), 21)
    assert sum(gpu.synchronisations.values()) <= len(pack.trainer.network.measured_layers())


@pytest.mark.parametrize("arch", ["rn1", "t11", "resnet_dense"])
def test_trials_measured_together_are_the_trials_measured_alone(arch, gpu, monkeypatch):
    pack = training_pack(trials_of({"arch": arch}, seeds=range(5)))
    positions = [0, 1, 3, 4]
    together = pack.training.measure(pack.trainer, positions, 0)
    alone = [pack.training.measure(pack.trainer, [position], 0)[0] for position in positions]
    for rows, other_rows in zip(together, alone, strict=True):
        for row, other in zip(rows, other_rows, strict=True):
            assert row.keys() == other.keys()
            for name, value in row.items():
                if value is None or isinstance(value, str):
                    assert value == other[name], name
                else:
                    pair = (v.tolist() if isinstance(v, torch.Tensor) else v for v in (value, other[name]))
                    np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-12, err_msg=name)
    gpu.reset()
    pack.training.measure(pack.trainer, range(5), 0)
    at_once = sum(gpu.launches.values())
    monkeypatch.setattr(training_plan, "GPU_FEATURE_NUMBERS", 1)
    gpu.reset()
    pack.training.measure(pack.trainer, range(5), 0)
    assert at_once < sum(gpu.launches.values()) / 2


def test_dropped_steps_are_freed(gpu):
    """A recording refers to memory that a cycle would keep until a garbage collection."""
    pack = training_pack(trials_of({}))
    pack.trainer.step()
    steps = weakref.ref(pack.trainer._steps)
    gc.disable()
    try:
        del pack
        assert steps() is None
    finally:
        gc.enable()


def test_replay_uses_current_arguments(gpu):
    taken = []
    replayed = eager.ReplayedStep()
    for number in range(2 * eager.WARM_UP_STEPS):
        losses = replayed(lambda x: taken.append(x.clone()) or x * 2, [torch.full((2,), float(number)).to("cuda")])
        assert losses.tolist() == [2.0 * number] * 2
    assert [x.tolist()[0] for x in taken] == list(range(2 * eager.WARM_UP_STEPS))


@pytest.mark.parametrize(("error", "is_raised"), [(torch.OutOfMemoryError, True), (RuntimeError, False)])
def test_unrecordable_step_runs_eagerly(error, is_raised, gpu, monkeypatch, caplog):
    def fails(stream, function):
        raise error("no")

    monkeypatch.setattr(eager.SideStream, "record", fails)
    replayed, one = eager.ReplayedStep(), torch.ones(1).to("cuda")
    for _ in range(eager.WARM_UP_STEPS):
        replayed(torch.square, [one])
    with pytest.raises(error) if is_raised else contextlib.nullcontext():
        for _ in range(3):
            assert replayed(torch.square, [one]).tolist() == [1.0]
    assert caplog.text.count("cannot be recorded: no") == (not is_raised)


@pytest.mark.parametrize("config", [None, ":4096:8"])
def test_deterministic_algorithms_on_request(config, gpu, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    for device, expected in (("cuda", config is not None), ("cpu", False)):
        with computing(device):
            assert torch.are_deterministic_algorithms_enabled() is expected
        assert not torch.are_deterministic_algorithms_enabled()


def test_orders_depend_on_seed_and_epoch(gpu):
    pack, other = (training_pack(trials_of({"batch_size": 4}, seeds=seeds)) for seeds in ((0, 1, 2), (2,)))
    orders = []
    for _ in range(2):
        order_TN = pack.trainer.next_order()
        assert torch.equal(order_TN[2:], other.trainer.next_order())
        orders += order_TN.tolist()
        for trainer in (pack.trainer, other.trainer):
            for _ in range(5):  # 20 samples
                trainer.step()
    assert len({tuple(order) for order in orders}) == 6
    assert all(sorted(order) == list(range(20)) for order in orders)


def test_permutations_sort_the_numbers_of_splitmix64():
    def number(seed: int, position: int) -> int:
        value = (seed + position * 0x9E3779B97F4A7C15) % 2**64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        value ^= value >> 31
        return value - 2**64 if value >= 2**63 else value  # torch compares them as signed

    seeds = [0, 1, 2**62 + 5]
    expected = [sorted(range(50), key=lambda position, seed=seed: number(seed, position)) for seed in seeds]
    assert permutations(torch.tensor(seeds), 50).tolist() == expected


def test_the_stand_in_refuses_what_a_gpu_refuses(gpu):
    here, there = torch.ones(3), torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="tensors on both devices"):
        here + there
    with pytest.raises(TypeError, match="on a GPU"):
        there.numpy()
    gpu.reset()
    assert (there * 2).sum().item() == 6 and there[[0, 2]].tolist() == [1, 1] and there[there > 0].shape == (3,)
    assert gpu.synchronisations.total() == 4 and gpu.launches["aten.mul.Tensor"] == 1
