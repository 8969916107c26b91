"""A pack on a GPU gives results close to those of a CPU with every precision, and replayed steps give those of eager ones."""

import gc

import pytest
import torch

from depthrate.tasks.registry import registered_task
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.engines import eager
from depthrate.tasks.training.engines.eager import EagerSteps
from tests.support.training_context import Context, ids_of, run_resumed

has_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), has_gpu]
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


def run(trials, device="cuda"):
    return list(COLLAPSE.run(trials, Context(ids_of(trials), device=device)))


def curves(results):
    return torch.tensor([[row["objective"] for row in result.tables["curves"]] for result in results])


@every_shape
@pytest.mark.usefixtures("orders_of_cpu")
def test_it_trains_as_a_cpu_does(shape):
    trials = trials_of(shape)
    torch.testing.assert_close(curves(run(trials)), curves(run(trials, "cpu")), rtol=2e-2, atol=2e-3)


@every_shape
def test_fused_is_alone(shape):
    trials = trials_of(shape)
    alone = [result for params in trials for result in run([params])]
    torch.testing.assert_close(curves(run(trials)), curves(alone), rtol=2e-2, atol=2e-3)


@pytest.fixture
def unreplayed(monkeypatch):
    """Launch the operations of steps one by one."""
    monkeypatch.setattr(eager, "WARM_UP_STEPS", 10**9)


@every_shape
def test_a_replayed_step_is_the_eager_one(shape, request):
    """To the bit, except with convolutions, whose backward pass cuDNN may compute in another order."""
    replayed = curves(run(trials_of(shape)))
    request.getfixturevalue("unreplayed")
    rtol = 1e-3 if shape.get("arch") == "resnet_conv" else 0
    torch.testing.assert_close(replayed, curves(run(trials_of(shape))), rtol=rtol, atol=0)


def test_a_pack_leaves_no_memory_behind():
    list(run(trials_of({})))  # libraries keep workspaces
    before = torch.cuda.memory_allocated()
    gc.disable()
    try:
        list(run(trials_of({"width": 512})))
        assert torch.cuda.memory_allocated() <= before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("task", "params"),
    [
        ("dufm", {"num_classes": 3, "samples_per_class": 10, "width": 8, "depth": 3, "schedule": "cosine"}),
        ("mufm", {"num_classes": 3, "samples_per_class": 10, "dimension": 8, "depth": 3}),
    ],
)
def test_a_handwritten_step_is_replayed_to_the_bit(task, params, request):
    task = registered_task(task)
    trials = [task.schema.fill({**params, "steps": 60, "seed": seed}) for seed in range(3)]
    for trial in trials:
        task.complete(trial)

    def objectives():
        return curves(list(task.run(trials, Context(ids_of(trials), device="cuda"))))

    replayed = objectives()
    request.getfixturevalue("unreplayed")
    assert torch.equal(replayed, objectives())


def test_step_reading_numbers_is_not_replayed(caplog, monkeypatch):
    """Without the recording, and with a later pack of the same process unharmed."""
    take = EagerSteps.take

    def reads(steps, *inputs):
        loss_T = take(steps, *inputs)
        assert loss_T.sum().item() > 0
        return loss_T

    expected = curves(run(trials_of({})))
    with monkeypatch.context() as patch:
        patch.setattr(EagerSteps, "take", reads)
        assert torch.equal(curves(run(trials_of({}))), expected)
    assert "cannot be recorded" in caplog.text
    caplog.clear()
    assert torch.equal(curves(run(trials_of({}))), expected) and not caplog.text


def test_divergence_matches_the_cpu():
    trials = trials_of({})
    trials[1] = {**trials[1], "lr": 1e30}
    found, expected = run(trials), run(trials, "cpu")
    assert [(r.status, r.num_steps) for r in found] == [(r.status, r.num_steps) for r in expected]


def test_interrupted_and_resumed_is_uninterrupted():
    def on_gpu(trials, context):
        context.device = "cuda"
        return COLLAPSE.run(trials, context)

    trials = trials_of({"batch_size": 64})
    resumed, _ = run_resumed(on_gpu, trials, 31)
    torch.testing.assert_close(curves(resumed), curves(run(trials)), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lowered_products_stay_near(precision):
    lowered, full = (curves(run(trials_of({}, matmul_precision=choice))) for choice in (precision, "full"))
    assert not torch.equal(lowered, full)
    torch.testing.assert_close(lowered, full, rtol=0.1, atol=0.1)
