"""Evaluation by kernels: as near to float64 as evaluation in torch, of each trial alone, and of parameters it leaves alone."""

import pytest
import torch

from depthrate.tasks.training.engines import native as engine
from tests.support.native_trials import native_trainer, network_of, plan_of, trainer_of, trials_of

FAMILIES = [(1, False), (1, True), (2, False), (2, True)]


def trainers(linear_layers, pre_norm, loss="ce", samples=150, width=19):
    """Return one that evaluates with kernels, one that does with torch, and one that does in float64."""
    network = network_of(width, linear_layers=linear_layers, pre_norm=pre_norm, depth=4)
    plan = plan_of(loss=loss, batch_size=32)
    native = native_trainer(network, plan, trials_of(3), samples)
    for _ in range(20):
        native.step()
    eager = trainer_of(network, plan, trials_of(3), samples)
    eager.theta_TP = native.theta_TP.clone()
    return native, eager, eager.to_float64()


def off(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.slow
@pytest.mark.parametrize(("linear_layers", "pre_norm"), FAMILIES)
@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_it_is_as_near_to_float64_as_torch(linear_layers, pre_norm, loss):
    native, eager, exact = trainers(linear_layers, pre_norm, loss)
    before = native.theta_TP.clone(), native.moment_TP.clone()
    found, of_torch, true = (trainer.evaluate() for trainer in (native, eager, exact))
    assert torch.equal(found["accuracy"], true["accuracy"])
    for name in ("loss", "objective", "grad_norm"):
        here, there, value = (result[name] for result in (found, of_torch, true))
        assert off(here, value) <= 2 * off(there, value) + 1e-6, name
    assert torch.equal(native.theta_TP, before[0]) and torch.equal(native.moment_TP, before[1])
    for trial in range(3):
        layers = [list(trainer.features(trial)) for trainer in (native, exact)]
        assert len(layers[0]) == len(layers[1]) == 4
        for here, value in zip(*layers, strict=True):
            assert here.shape == value.shape and off(here, value) < 1e-6


@pytest.mark.parametrize("pre_norm", [False, True])
def test_tiles_are_independent(pre_norm):
    """Regression test: their memory was laid out in two ways, so that one's numbers were the other's padding."""
    native, _, exact = trainers(2, pre_norm, samples=30, width=36)
    layers = list(native.features(0))
    found, true = native.evaluate(), exact.evaluate()
    for name in ("loss", "objective", "grad_norm"):
        assert off(found[name], true[name]) < 1e-5, name
    assert all(torch.equal(one, other) for one, other in zip(layers, native.features(0), strict=True))


@pytest.mark.parametrize(("linear_layers", "pre_norm"), FAMILIES)
def test_smallest_variance_of_layer_norm_inputs(linear_layers, pre_norm, monkeypatch):
    native, eager, exact = trainers(linear_layers, pre_norm)
    for trial in range(3):
        alone = {name: weight[trial : trial + 1] for name, weight in exact.parameters().items()}
        read = exact.network.norm_inputs(alone, exact.x_NI.unsqueeze(0))
        smallest = min(rows_TND.var(-1, correction=0).min().item() for rows_TND in read)
        assert native.smallest_variance(trial) == pytest.approx(smallest, rel=1e-6)
    assert eager.smallest_variance(0) is None
    alone = native.smallest_variance(0)
    assert len(list(native.features(0))) == len(list(native.features(1))) == 4
    monkeypatch.setattr(engine.NativeEvaluation, "_run", None)
    assert native.smallest_variance(0) == alone  # known from the pass that gave the layers
    monkeypatch.undo()
    assert len(list(native.features(0))) == 4
    native.theta_TP *= 1e-9  # eps hides what is that small
    assert native.smallest_variance(0) is None


def test_evaluation_is_per_trial():
    together, *_ = trainers(1, False)
    found, layers = together.evaluate(), list(together.features(1))
    together.select([1])
    alone = together.evaluate()
    assert torch.equal(alone["loss"][0], found["loss"][1]) and torch.equal(alone["grad_norm"][0], found["grad_norm"][1])
    assert all(torch.equal(one, other) for one, other in zip(together.features(0), layers, strict=True))


def test_unsupported_evaluations_use_torch(monkeypatch):
    native, eager, _ = trainers(1, False)
    elsewhere = [trainer.on_samples(trainer.x_NI[:7], trainer.labels_N[:7]) for trainer in (native, eager)]
    assert all(
        torch.equal(one, other)
        for one, other in zip(*(list(trainer.features(0)) for trainer in elsewhere), strict=True)
    )
    assert torch.equal(elsewhere[0].evaluate()["grad_norm"], elsewhere[1].evaluate()["grad_norm"])
    monkeypatch.setattr(engine, "MAX_BUFFER_BYTES", 1000)
    assert all(
        torch.equal(one, other) for one, other in zip(list(native.features(0)), list(eager.features(0)), strict=True)
    )
