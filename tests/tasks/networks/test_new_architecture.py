"""A further architecture is a class and an entry in the table: it is planned, trained, measured and resumed as any other."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from depthrate.tasks.networks.builtin import ARCHITECTURES, Architecture
from depthrate.tasks.networks.network import NO_STATE, Layer, Network, ParameterSpec, StateSpec, StepCost
from depthrate.tasks.networks.operations import linear
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from tests.support.training_context import Context, assert_same, ids_of, run_resumed

STEPS, MOMENTUM = 40, 0.2


@dataclass(frozen=True, kw_only=True)
class Funnel(Network):
    """A plain network of two widths: twice as wide in its first layer, no LayerNorm, running means subtracted before ReLU."""

    depth: int
    width: int
    inputs: int
    classes: int
    centred: bool
    last_weight = "W_L"

    @property
    def widths(self):
        return [2 * self.width] + [self.width] * (self.depth - 1)

    def parameter_specs(self):
        fan_ins = [self.inputs, *self.widths]
        shapes = list(zip([*self.widths, self.classes], fan_ins, strict=True))
        names = [*map(str, range(1, self.depth + 1)), "L"]
        groups = ["hidden"] * self.depth + ["last"]
        return [ParameterSpec(f"W_{n}", s, s[1], group) for n, s, group in zip(names, shapes, groups, strict=True)]

    def layers(self):
        return [Layer(n, (w,), f"funnel {n}") for n, w in enumerate(self.widths, start=1)]

    def state_specs(self):
        return [StateSpec(f"mean_{layer.number}", layer.shape, 0.0) for layer in self.layers()] if self.centred else []

    def step_cost(self):
        return StepCost(self.depth + 1, self.num_parameters, kept=2 * sum(self.widths))

    def _stream(self, parameters, x_TNI, state, moved=None):
        h_TND = x_TNI
        for layer in range(1, self.depth + 1):
            h_TND = linear(parameters, f"{layer}", h_TND)
            if self.centred:
                mean_TD = state[f"mean_{layer}"]
                if moved is not None:
                    batch_TD = h_TND.mean(1)
                    moved[f"mean_{layer}"] = mean_TD + MOMENTUM * (batch_TD.detach() - mean_TD)
                    mean_TD = batch_TD
                h_TND = h_TND - mean_TD.unsqueeze(1)
            h_TND = h_TND.relu()
            yield h_TND

    def features(self, parameters, x_TNI, state=NO_STATE):
        yield from self._stream(parameters, x_TNI, state)

    def logits(self, parameters, x_TNI, state=NO_STATE):
        *_, h_TND = self._stream(parameters, x_TNI, state)
        return linear(parameters, "L", h_TND)

    def training_logits(self, parameters, x_TNI, state):
        moved = {}
        *_, h_TND = self._stream(parameters, x_TNI, state, moved)
        return linear(parameters, "L", h_TND), moved


@pytest.fixture(autouse=True, params=[False, True], ids=["stateless", "running means"])
def funnel(request, monkeypatch):
    def make(trial, data):
        shape = {"inputs": data.num_inputs, "classes": data.num_classes}
        return Funnel(depth=trial.depth, width=trial.width, centred=request.param, **shape)

    monkeypatch.setitem(ARCHITECTURES, "funnel", Architecture(make=make))
    return request.param


def params_of(**changes):
    base = {
        "arch": "funnel",
        "depth": 3,
        "width": 9,
        "samples_per_class": 4,
        "steps": STEPS,
        "lr": 0.02,
        "batch_size": 7,
    }
    return COLLAPSE.schema.fill({**base, "measure_steps": [5], "features": "all", **changes})


def trials():
    return [params_of(seed=0), params_of(seed=1, lr=0.01, weight_decay=0.02), params_of(seed=2, weight_decay_last=0.1)]


def run(pack):
    return list(COLLAPSE.run(pack, Context(ids_of(pack))))


def test_it_is_planned_from_what_it_reports():
    params = params_of()
    COLLAPSE.check_trial(params)
    trial = COLLAPSE.read(params)
    network = COLLAPSE.network(trial, COLLAPSE.data_shape(trial))
    assert network.num_parameters == 18 * 64 + 9 * 18 + 9 * 9 + 10 * 9
    assert COLLAPSE.measured(params, STEPS) == ([5, STEPS], [1, 2, 3])
    assert 0 < COLLAPSE.memory_bytes(params, 1, "cuda") < COLLAPSE.memory_bytes(params, 9, "cuda")
    assert 0 < COLLAPSE.estimate_s(params) < COLLAPSE.estimate_s(params_of(depth=9))
    assert COLLAPSE.max_pack_size(params, "cpu") == 16


def test_unreadable_network_is_refused_silently():
    with pytest.raises(ParameterError, match="arch is 'funnel', but 'imdb' is text. Set arch to t11"):
        COLLAPSE.check_trial(params_of(dataset="imdb"))
    with pytest.raises(ParameterError, match="'funnel' on 'digits' reads no patches"):
        COLLAPSE.check_trial(params_of(patch_size=4))


def test_it_trains_and_every_layer_is_measured():
    (result, *_) = run(trials())
    assert result.status == "ok" and result.tables["curves"][-1]["loss"] < result.tables["curves"][0]["loss"]
    rows = [row for row in result.tables["metrics"] if row["step"] == STEPS]
    assert [(row["layer"], row["is_last"]) for row in rows] == [(1, False), (2, False), (3, True)]
    assert all(row["nc1"] > 0 for row in rows)


def test_other_widths_have_no_path_or_features():
    (result,) = run([params_of(depth=4)])
    rows = [row for row in result.tables["metrics"] if row["step"] == STEPS]
    assert [row.get("nc2a") is None for row in rows] == [True, False, False, False]
    first, second, third, last = (row.get("relative_position") for row in rows)
    assert first is None and second == 0 < third < last == 1
    features = result.tables["features"]
    assert features["feature"].shape == (3 * 40, 9) and set(features["layer"]) == {2, 3, 4}


def test_fused_is_alone():
    assert_same(run(trials()), [result for params in trials() for result in run([params])])


@pytest.mark.parametrize("stop_at", [1, 17])
def test_interrupted_and_resumed_is_uninterrupted(stop_at):
    found, steps = run_resumed(COLLAPSE.run, trials(), stop_at)
    assert steps[0] == stop_at + 1
    assert_same(found, run(trials()))


def test_part_of_a_pack_resumes():
    found, _ = run_resumed(COLLAPSE.run, trials(), 17, [trials()[2], trials()[0]])
    assert_same(found, run([trials()[2], trials()[0]]))


def test_diverged_trial_takes_its_state():
    first, second, third = trials()
    results = run([first, {**second, "lr": 1e30}, third])
    assert [result.status for result in results] == ["ok", "diverged", "ok"]
    assert_same(results[::2], run([first, third]))


def test_running_means_serve_evaluation(funnel):
    """In evaluation a sample's features do not depend on the others; the running means have left their start."""
    if not funnel:
        pytest.skip("has none")
    params = params_of()
    trial = COLLAPSE.read(params)
    network = COLLAPSE.network(trial, COLLAPSE.data_shape(trial))
    generator = torch.Generator().manual_seed(0)
    theta = {s.name: torch.randn(2, *s.shape, generator=generator) for s in network.parameter_specs()}
    start = {s.name: torch.zeros(2, *s.shape) for s in network.state_specs()}
    x_TNI = torch.randn(2, 6, 64, generator=generator)
    trained, moved = network.training_logits(theta, x_TNI, start)
    assert all((moved[name] != 0).any() for name in start)
    assert not torch.equal(trained, network.logits(theta, x_TNI, moved))
    torch.testing.assert_close(network.logits(theta, x_TNI, moved)[:, :2], network.logits(theta, x_TNI[:, :2], moved))
    np.testing.assert_array_equal(start["mean_1"], 0)
