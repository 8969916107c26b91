"""A pack on a GPU gives results close to those of a CPU with every precision and engine, replayed steps give those of eager
ones, and a trial's native steps have the same bits in any pack."""

import gc

import pytest
import torch

from depthrate.tasks.interface import Engine
from depthrate.tasks.registry import registered_task
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.engines import eager
from depthrate.tasks.training.engines.eager import EagerSteps
from depthrate.tasks.training.pack_state import Divergence
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


# ---- Native steps ----

NATIVE_SHAPES = [*SHAPES[:3], {"arch": "mlp", "depth": 2, "lr": 0.02, "batch_size": 32}]
every_native_shape = pytest.mark.parametrize("shape", NATIVE_SHAPES, ids=str)


def run_natively(trials, context):
    context.device, context.engine = "cuda", Engine.NATIVE
    return list(COLLAPSE.run(trials, context))


def losses(results):
    return torch.tensor([[row["loss"] for row in result.tables["curves"]] for result in results])


def trained(trials, steps, steps_per_call=None):
    """Return the parameters after steps in one call, or in calls of so many."""
    training = COLLAPSE.training([COLLAPSE.read(params) for params in trials], None)
    trainer = training.begin("cuda")
    divergence = Divergence(len(trials), trainer.device)
    trainer.use_native(training.native_library(lambda: False, None, "cuda")[0])
    while trainer.step_count < steps:
        trainer._steps.pace.steps_per_call = steps_per_call or steps
        trainer.advance(steps, divergence)
    return trainer.theta_TP.cpu()


@every_native_shape
def test_native_steps_are_near_eager_ones(shape):
    trials = trials_of(shape)
    context = Context(ids_of(trials))
    native = run_natively(trials, context)
    assert context.ran_as[-1][0] is Engine.NATIVE
    torch.testing.assert_close(curves(native), curves(run(trials)), rtol=2e-2, atol=2e-3)


@every_native_shape
def test_native_trial_has_its_bits_in_any_pack_and_call(shape):
    trials = trials_of(shape)
    together = trained(trials, 40)
    assert torch.equal(trained(trials, 40, 7), together)
    for number, params in enumerate(trials):
        assert torch.equal(trained([params], 40)[0], together[number])


def test_native_trials_beyond_all_blocks_have_their_bits():
    """A block takes several trials one after another, and a multiprocessor runs two blocks."""
    count = 2 * torch.cuda.get_device_properties(0).multi_processor_count + 5
    trials = trials_of({"width": 8, "depth": 2, "samples_per_class": 2}, count)
    together = trained(trials, 20)
    for number in (0, count // 2, count - 1):
        assert torch.equal(trained([trials[number]], 20)[0], together[number])


def test_interrupted_native_pack_has_the_losses_of_an_uninterrupted_one():
    trials = trials_of({"batch_size": 64})
    expected = run_natively(trials, Context(ids_of(trials)))
    recorded = [row["step"] for row in expected[0].tables["curves"]]  # where calls end
    stop_at = recorded[len(recorded) // 2]
    resumed, steps = run_resumed(run_natively, trials, stop_at)
    assert 0 < stop_at < steps[0]
    assert torch.equal(losses(resumed), losses(expected))


def test_diverged_native_trial_leaves_the_others_their_bits():
    trials = trials_of({})
    expected = trained(trials, 40)
    trials[1] = {**trials[1], "lr": 1e30}
    found = trained(trials, 40)
    assert not found[1].isfinite().all()
    assert all(torch.equal(found[number], expected[number]) for number in (0, 2, 3))
