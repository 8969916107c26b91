"""A pack on a GPU gives results close to those of a CPU, with every engine and precision. Not run yet."""

import pytest
import torch

from depthrate.tasks.interface import Engine
from depthrate.tasks.supervised.task import COLLAPSE
from tests.support.training_context import Context, ids_of, run_resumed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]
SHAPES = [
    {},
    {"batch_size": 64, "optimizer": "adam", "lr": 0.005},
    {"arch": "t11", "depth": 2, "lr": 0.01, "batch_size": 32},
    {"arch": "resnet_conv", "stages": "8x8x8*2", "depth": 2, "lr": 0.02},
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def trials_of(shape, count=4, **changes):
    base = {"arch": "rn1", "depth": 3, "width": 32, "samples_per_class": 20, "steps": 60, "lr": 0.05}
    return [COLLAPSE.schema.fill({**base, **shape, "measure_steps": [0], "seed": s, **changes}) for s in range(count)]


def run(trials, device="cuda", engine=Engine.EAGER):
    return list(COLLAPSE.run(trials, Context(ids_of(trials), device=device, engine=engine)))


def curves(results):
    return torch.tensor([[row["objective"] for row in result.tables["curves"]] for result in results])


@every_shape
@pytest.mark.usefixtures("orders_of_cpu")
def test_it_trains_as_a_cpu_does(shape):
    trials = trials_of(shape)
    torch.testing.assert_close(curves(run(trials)), curves(run(trials, "cpu")), rtol=2e-2, atol=2e-3)


@every_shape
def test_a_trial_in_a_pack_is_the_trial_alone(shape):
    trials = trials_of(shape)
    alone = [result for params in trials for result in run([params])]
    torch.testing.assert_close(curves(run(trials)), curves(alone), rtol=2e-2, atol=2e-3)


@every_shape
def test_a_compiled_step_gives_what_an_eager_one_gives(shape):
    trials = trials_of(shape)
    torch.testing.assert_close(curves(run(trials, engine=Engine.COMPILED)), curves(run(trials)), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("engine", [Engine.EAGER, Engine.COMPILED])
def test_a_diverging_trial_leaves_the_record_that_it_leaves_on_a_cpu(engine):
    trials = trials_of({})
    trials[1] = {**trials[1], "lr": 1e30}
    found, expected = run(trials, engine=engine), run(trials, "cpu")
    assert [(result.status, result.num_steps) for result in found] == [
        (result.status, result.num_steps) for result in expected
    ]


def test_interrupted_and_resumed_is_uninterrupted():
    def on_gpu(trials, context):
        context.device = "cuda"
        return COLLAPSE.run(trials, context)

    trials = trials_of({"batch_size": 64})
    resumed, _ = run_resumed(on_gpu, trials, 31)
    torch.testing.assert_close(curves(resumed), curves(run(trials)), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lowered_products_give_another_training_near_the_full_one(precision):
    lowered, full = (curves(run(trials_of({}, matmul_precision=choice))) for choice in (precision, "full"))
    assert not torch.equal(lowered, full)
    torch.testing.assert_close(lowered, full, rtol=0.1, atol=0.1)
