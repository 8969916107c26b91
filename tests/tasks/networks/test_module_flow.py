"""Outputs with several tensors, and last linear maps in the ways in which people write them."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import depthrate
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.flat_parameters import split_parameters
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.parameters import ParameterError

D, K, N = 6, 3, 7
PAIR = namedtuple("PAIR", "hidden scores")


@dataclass
class Outputs:
    loss: torch.Tensor | None
    logits: torch.Tensor


def network(make, width=D, tokens=None, **options):
    data = DataShape(num_samples=N, sample_shape=(5,), num_classes=K, vocabulary_size=tokens)
    return ModuleNetwork(make=make, name="Net", arguments={}, data=data, dtype="float64", **options)


def samples(tokens=None):
    generator = torch.Generator().manual_seed(3)
    if tokens:
        return torch.randint(tokens, (N, 5), generator=generator)
    return torch.randn(N, 5, generator=generator, dtype=torch.float64)


class Headed(nn.Module):
    """Two blocks, and a head given by its parts and a function of module and features."""

    def __init__(self, make_head, apply):
        super().__init__()
        self.first, self.blocks = nn.Linear(5, D), nn.ModuleList([nn.Linear(D, D), nn.Linear(D, D)])
        self.norm, self.scale, self.apply_head = nn.LayerNorm(D), nn.Parameter(torch.tensor([2.0])), apply
        self.register_buffer("shift", torch.ones(K))
        for name, part in make_head().items():
            setattr(self, name, part)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.apply_head(self, self.norm(x))


def frozen():
    return {"head": nn.Linear(D, K, bias=False).requires_grad_(False)}


def linear(bias=True):
    return {"head": nn.Linear(D, K, bias=bias)}


def matrix(*shape):
    return {"matrix": nn.Parameter(torch.randn(*shape))}


def normed():
    return {"head": parametrizations.weight_norm(nn.Linear(D, K))}


def normed_as_before():
    with pytest.warns(FutureWarning):
        return {"head": nn.utils.weight_norm(nn.Linear(D, K))}


def conv(kind, axes):
    ones = [1] * axes
    return {"head": kind(D, K, 1)}, lambda m, h: m.head(h.reshape(*h.shape, *ones)).flatten(1)


def unit(x):
    return functional.normalize(x, dim=-1)


HEADS = {
    "linear": (linear, lambda m, h: m.head(h), lambda m: m.head.weight),
    "no bias": (lambda: linear(False), lambda m, h: m.head(h), lambda m: m.head.weight),
    "frozen": (frozen, lambda m, h: m.head(h), lambda m: m.head.weight),
    "buffer": (dict, lambda m, h: h @ m.etf.T, lambda m: m.etf),
    "weight norm": (normed, lambda m, h: m.head(h), lambda m: m.head.weight),
    "old weight norm": (
        normed_as_before,
        lambda m, h: m.head(h),
        lambda m: torch._weight_norm(m.head.weight_v, m.head.weight_g),
    ),
    "orthogonal": (
        lambda: {"head": parametrizations.orthogonal(nn.Linear(D, K))},
        lambda m, h: m.head(h),
        lambda m: m.head.weight,
    ),
    "temperature": (linear, lambda m, h: m.head(h) / 0.5, lambda m: m.head.weight),
    "learned temperature": (linear, lambda m, h: m.scale.exp() * m.head(h), lambda m: m.head.weight),
    "log_softmax": (linear, lambda m, h: torch.log_softmax(m.head(h), 1), lambda m: m.head.weight),
    "LogSoftmax": (
        lambda: linear() | {"end": nn.LogSoftmax(-1)},
        lambda m, h: m.end(m.head(h)),
        lambda m: m.head.weight,
    ),
    "softmax of a scaled one": (linear, lambda m, h: (m.head(h) * m.scale).softmax(-1), lambda m: m.head.weight),
    "shifted": (linear, lambda m, h: m.head(h) - m.shift, lambda m: m.head.weight),
    "functional": (lambda: matrix(K, D), lambda m, h: functional.linear(h, m.matrix), lambda m: m.matrix),
    "x @ W.T": (lambda: matrix(K, D), lambda m, h: h @ m.matrix.T, lambda m: m.matrix),
    "x @ W": (lambda: matrix(D, K), lambda m, h: h @ m.matrix, lambda m: m.matrix.T),
    "mm": (lambda: matrix(D, K), lambda m, h: torch.mm(h, m.matrix) + m.shift, lambda m: m.matrix.T),
    "addmm": (lambda: matrix(D, K), lambda m, h: torch.addmm(m.shift, h, m.matrix), lambda m: m.matrix.T),
    "cosine": (lambda: matrix(K, D), lambda m, h: 4 * (unit(h) @ unit(m.matrix).T), lambda m: unit(m.matrix)),
    "Conv1d": (
        lambda: {"head": nn.Conv1d(D, K, 1)},
        lambda m, h: m.head(h[:, :, None]).squeeze(-1),
        lambda m: m.head.weight[..., 0],
    ),
    "Conv2d": (
        lambda: {"head": nn.Conv2d(D, K, 1), "pool": nn.AdaptiveAvgPool2d(1)},
        lambda m, h: m.pool(m.head(h[:, :, None, None])).flatten(1),
        lambda m: m.head.weight[..., 0, 0],
    ),
    "positions averaged": (
        linear,
        lambda m, h: m.head(torch.stack([h, 3 * h], 1)).permute(0, 2, 1).mean(-1),
        lambda m: m.head.weight,
    ),
}


def made_of(name):
    make_head, apply, weight_of = HEADS[name]

    def make():
        module = Headed(make_head, apply)
        module.register_buffer("etf", torch.eye(K, D) - 1 / K)
        return module

    return make, weight_of


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", HEADS)
def test_last_map_is_found(name):
    make, weight_of = made_of(name)
    made = network(make, patterns=("blocks.*",))
    starts = [made.start(seed, torch.float64) for seed in (0, 1)]
    parameters = split_parameters(torch.stack([theta for theta, _ in starts]), made.parameter_specs())
    state = {key: torch.stack([state[key] for _, state in starts]) for key in starts[0][1]}
    *_, head_TND = made.features(parameters, samples().expand(2, -1, -1), state)
    weights = made.last_weights(parameters, state, samples())
    assert [layer.name for layer in made.layers()] == ["blocks.0", "blocks.1", "head input"]
    for trial in (0, 1):
        module = make().double()
        module.load_state_dict({key: t[trial] for key, t in {**parameters, **state}.items()}, strict=False)
        inputs = []
        module.apply_head = lambda m, h: inputs.append(h) or HEADS[name][1](m, h)
        output = module.eval()(samples())
        assert output.shape == (N, K)
        torch.testing.assert_close(weights[trial], weight_of(module).detach())
        expected = {"cosine": unit, "positions averaged": lambda h: 2 * h}.get(name, lambda h: h)(inputs[0])
        torch.testing.assert_close(head_TND[trial], expected.detach())
    decayed = {spec.name for spec in made.parameter_specs() if spec.decay == "last"}
    assert decayed == {n for n in made.report.head.sources if n in parameters and parameters[n][0].ndim > 1}
    assert "head" in made.remarks()[-1] or "matrix" in made.remarks()[-1] or "etf" in made.remarks()[-1]


UNFOUND = {
    "two maps": lambda m, h: m.head(h) + m.blocks[0](h)[:, :K],
    "other features": lambda m, h: m.head(h) + h[:, :K],
    "distances": lambda m, h: -(h[:, None] - m.head.weight).square().sum(-1),
    "of a wider map": lambda m, h: m.blocks[1](h)[:, :K],
    "one position": lambda m, h: m.head(torch.stack([h, 2 * h], 1))[:, -1],
    "negative": lambda m, h: -m.head(h),
}


@pytest.mark.parametrize("name", UNFOUND)
def test_what_is_no_map_of_features_is_not_measured_and_plan_says_so(name):
    made = network(lambda: Headed(linear, UNFOUND[name]), patterns=("blocks.0", "blocks.1"))
    assert made.report.head is None and {layer.name for layer in made.layers()} >= {"blocks.0", "blocks.1"}
    assert "no last linear map was found" in made.remarks()[-1]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(K, D), nn.ModuleList([nn.Linear(D, D)])

    def forward(self, ids):
        return torch.tanh(self.blocks[0](self.embed(ids).mean(1))) @ self.embed.weight.T


def test_a_tied_embedding_is_the_last_weight():
    made = network(Tied, tokens=K)
    theta, state = made.start(0, torch.float64)
    parameters = split_parameters(theta[None], made.parameter_specs())
    assert torch.equal(made.last_weights(parameters, state, samples(K)), parameters["embed.weight"])


class Returning(nn.Module):
    """Two blocks whose results are packed by a function, and an output that is packed by another one."""

    def __init__(self, pack=None, pick=None, output=None, width=D):
        super().__init__()
        self.first, self.head, self.output = nn.Linear(5, width), nn.Linear(width, K), output
        self.blocks = nn.ModuleList([Packing(width, pack) for _ in range(2)])
        self.pick = pick or (lambda packed: packed)

    def forward(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = self.pick(block(h))
        return self.head(h) if self.output is None else self.output(self, h, self.head(h))


class Packing(nn.Module):
    def __init__(self, width, pack):
        super().__init__()
        self.lin, self.pack = nn.Linear(width, width), pack or (lambda h, number: h)

    def forward(self, x):
        h = x + torch.tanh(self.lin(x))
        return self.pack(h, h.square().sum(1, keepdim=True))


OUTPUTS = {
    "logits first": (lambda m, h, y: (y, h), D, "0"),
    "features first": (lambda m, h, y: (h, y), D, "1"),
    "loss first": (lambda m, h, y: (y.square().mean(), y), D, "1"),
    "list": (lambda m, h, y: [y, None], D, ""),
    "nested": (lambda m, h, y: ((h, None), {"of": y}), D, "1.of"),
    "mapping": (lambda m, h, y: {"hidden": h, "scores": y}, D, "scores"),
    "named": (lambda m, h, y: {"features": h, "logits": y}, K, "logits"),
    "dataclass": (lambda m, h, y: Outputs(None, y), D, ""),
    "namedtuple": (lambda m, h, y: PAIR(h, y), D, "scores"),
    "classes": (lambda m, h, y: (y.argmax(1), y), D, "1"),
    "in training": (lambda m, h, y: (h, y) if m.training else y, D, "1"),
    "ambiguous": (lambda m, h, y: (h, y), K, None),
    "ambiguous mapping": (lambda m, h, y: {"hidden": h, "scores": y}, K, None),
    "ambiguous in training": (lambda m, h, y: (h, y) if m.training else y, K, None),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_trained_output_is_named_or_asked_for(name):
    output, width, place = OUTPUTS[name]
    make = lambda: Returning(output=output, width=width)  # noqa: E731
    made = network(make)
    if place is None:
        place = "scores" if "mapping" in name else "1"
        with pytest.raises(ParameterError, match=rf"returns the tensors .*output_tensors: .'arch': {place}"):
            made.layers()
        made = network(make, output_tensors=f"arch: {place}")
    parameters = split_parameters(made.start(0, torch.float64)[0][None], made.parameter_specs())
    module = make().double()
    module.load_state_dict({key: t[0] for key, t in parameters.items()})
    module.output = None
    for found in (made.logits(parameters, samples()[None]), made.training_logits(parameters, samples()[None], {})[0]):
        torch.testing.assert_close(found[0], module(samples()))
    said = [remark for remark in made.remarks() if remark.startswith(f"trains {place!r} of its outputs")]
    assert len(said) == bool(place) and made.report.head is not None


BLOCKS = {
    "number first": (lambda h, n: (n, h), lambda p: p[1], "1"),
    "features first": (lambda h, n: (h, n), lambda p: p[0], "0"),
    "mapping": (lambda h, n: {"number": n, "hidden": h}, lambda p: p["hidden"], "hidden"),
    "nested": (lambda h, n: (None, [n, {"h": h}]), lambda p: p[1][1]["h"], "1.1.h"),
    "namedtuple": (lambda h, n: PAIR(n, h), lambda p: p.scores, "scores"),
    "single": (lambda h, n: [h], lambda p: p[0], None),
    "gate of equal width": (lambda h, n: (h.sigmoid(), h), lambda p: p[1], "1"),
    "both used": (lambda h, n: (n, h), lambda p: p[1] * p[0].sigmoid(), "ask 1"),
    "gate used": (lambda h, n: (h.sigmoid(), h), lambda p: p[1] * p[0], "ask 1"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_measured_tensor_of_a_layer_is_named_or_asked_for(name):
    pack, pick, place = BLOCKS[name]
    stated, model = None, Returning(pack, pick).double()
    if place is not None and place.startswith("ask "):
        place = place.removeprefix("ask ")
        stated = {"blocks.*": int(place)}
        for refused in (
            lambda: network(lambda: Returning(pack, pick)).layers(),
            lambda: depthrate.probe(model, (samples(), torch.arange(N) % K)),
        ):
            with pytest.raises(ParameterError, match=rf"layer blocks.0 returns .*output_tensors: .'blocks.0': {place}"):
                refused()
    made = network(lambda: Returning(pack, pick), output_tensors=None if stated is None else f"blocks.*: {place}")
    shown = f"[{D}]" if place is None else f"[{D}] (output {place} of "
    assert [layer.shape for layer in made.layers()][:2] == [(D,)] * 2
    assert all(layer.output.startswith(shown) for layer in made.layers()[:2])
    _, features = depthrate.probe(model, (samples(), torch.arange(N) % K), features=True, output_tensors=stated)
    h = model.first(samples())
    for number in range(2):
        expected = h + torch.tanh(model.blocks[number].lin(h))
        torch.testing.assert_close(features[f"blocks.{number}"], expected.detach())
        h = pick(pack(expected, expected.square().sum(1, keepdim=True)))


def test_probe_finds_the_last_map_of_networks_with_several_outputs():
    plain, packed = Returning().double(), Returning(output=lambda m, h, y: (h, y.log_softmax(1))).double()
    packed.load_state_dict(plain.state_dict())
    rows, of_packed = (depthrate.probe(one, (samples(), torch.arange(N) % K)) for one in (plain, packed))
    assert rows[-1]["nc3"] is not None
    for row, of_same in zip(rows, of_packed, strict=True):
        np.testing.assert_equal(of_same, row)


@pytest.mark.parametrize("stated", ["arch: 1", "block.*: 1", "blocks.*: 5", "blocks.*: hidden"])
def test_a_place_that_is_not_there_is_refused(stated):
    with pytest.raises(ParameterError, match="output_tensors has"):
        network(lambda: Returning(lambda h, n: (n, h), lambda p: p[1]), output_tensors=stated).layers()
