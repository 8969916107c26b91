"""Matrix products of training steps in bfloat16 or TF32 change the training, but not the precision of metrics."""

import pytest
import torch

from depthrate.tasks.interface import Engine
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.registry import registered_task
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.step import lowered_precision
from tests.support.training_context import Context, assert_same, ids_of, run_resumed

SHAPES = [
    {},
    {"batch_size": 7, "optimizer": "adam", "lr": 0.01, "arch": "rn2"},
    {"arch": "t11", "depth": 2, "lr": 0.01, "loss": "mse"},
    {"arch": "resnet_dense", "depth": 4, "width": 12},
]
DIFFERS_WITH_AMX = {"arch": "resnet_dense", "depth": 4, "width": 21, "measure_steps": []}
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def params_of(**changes):
    base = {"arch": "rn1", "depth": 3, "width": 19, "samples_per_class": 4, "steps": 30, "lr": 0.05}
    return COLLAPSE.schema.fill({**base, "measure_steps": [5], "matmul_precision": "bf16", **changes})


def run(trials):
    return list(COLLAPSE.run(trials, Context(ids_of(trials))))


def curve(result, name):
    return torch.tensor([row[name] for row in result.tables["curves"]])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*SHAPES, DIFFERS_WITH_AMX], ids=str)
def test_fused_is_alone(shape):
    trials = [params_of(**shape, seed=seed) for seed in range(3)]
    assert_same(run(trials), [result for params in trials for result in run([params])])


@pytest.mark.slow
@every_shape
def test_bf16_goes_another_way_near_that_of_float32(shape):
    ((lower,), (full,)) = (run([params_of(**shape, matmul_precision=precision)]) for precision in ("bf16", "full"))
    loss, expected = curve(lower, "loss"), curve(full, "loss")
    assert loss[0] == expected[0]  # before the first step there is nothing to be less exact
    assert not torch.equal(loss, expected)
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.05)


def test_what_is_measured_is_as_exact_as_ever():
    """With a negligible learning rate, every number equals that of float32."""
    ((lower,), (full,)) = (run([params_of(lr=1e-30, matmul_precision=precision)]) for precision in ("bf16", "full"))
    assert_same([lower], [full])


def test_interrupted_and_resumed_is_uninterrupted():
    trials = [params_of(seed=seed, batch_size=7) for seed in range(2)]
    assert_same(run_resumed(COLLAPSE.run, trials, 13)[0], run(trials))


def test_full_precision_is_unchanged():
    with_it, without = params_of(matmul_precision="full"), params_of()
    added = COLLAPSE.schema.added_later
    assert added["matmul_precision"] == "full" and with_it != without


def test_float64_and_cpus_without_tf32_are_refused():
    with pytest.raises(ParameterError, match="matmul_precision is bf16 and dtype is float64"):
        COLLAPSE.check_trial(params_of(dtype="float64"))
    with pytest.raises(EngineError, match="tf32, which cpu does not support"):
        run([params_of(matmul_precision="tf32")])


@pytest.mark.parametrize("name", ["collapse", "regression"])
def test_unavailable_precision_is_refused(name):
    """Regression test: packs used to fail at their start."""
    task = registered_task(name)
    params = task.schema.fill({"arch": "mlp", "depth": 2, "matmul_precision": "tf32"})
    with pytest.raises(EngineError, match="tf32, which cpu does not support"):
        task.engine(params, Engine.EAGER, "cpu")
    task.engine(params, Engine.EAGER, "cuda")


def test_tf32_lasts_one_step():
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        with lowered_precision("tf32", "cuda"):
            assert all(backend.allow_tf32 for backend in backends)
        assert not any(backend.allow_tf32 for backend in backends)
        with pytest.raises(KeyError), lowered_precision("tf32", "cuda"):
            raise KeyError
        assert not any(backend.allow_tf32 for backend in backends)
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def test_nothing_is_lowered_outside_of_steps():
    with computing("cpu", "bf16"), lowered_precision("bf16", "cpu"):
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_bf16_steps_run_eagerly():
    lower, full = (params_of(steps=10**6, matmul_precision=precision) for precision in ("bf16", "full"))
    assert COLLAPSE.engine(lower, Engine.AUTO, "cpu") is Engine.EAGER
    assert COLLAPSE.engine(full, Engine.AUTO, "cpu") is Engine.NATIVE
