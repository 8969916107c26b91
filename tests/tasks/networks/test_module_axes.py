"""Axes of layers: each layer's nc1 is that of its output averaged by hand, or the layer is refused with the cure."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import depthrate
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.parameters import ParameterError

N = 48
LABELS = torch.arange(N) % 3


def samples(*shape, axis=0):
    """Return samples [N, *shape] whose class shifts the numbers along one axis."""
    generator = torch.Generator().manual_seed(0)
    size = [shape[i] if i == axis else 1 for i in range(len(shape))]
    shift = torch.randn(3, shape[axis], generator=generator)[LABELS].view(N, *size)
    return torch.randn(N, *shape, generator=generator) + shift


class Layers(nn.Module):
    """Runs a function over named modules."""

    def __init__(self, run, **modules):
        super().__init__()
        self.run, self.end = run, nn.Identity()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.run(self, x)


def conv_gru(m, x):
    return m.gru(m.pool(m.norm(m.conv(x)).relu()).transpose(1, 2))[0][:, -1]


def u_net(m, x):
    down = m.a(x)
    return m.end(torch.cat([m.up(m.b(m.pool(down))), down], 1)).amax((2, 3))


def mixer(m, x):
    x = m.embed(x)
    x = x + m.tokens(m.norm(x).transpose(1, 2)).transpose(1, 2)
    return m.end(x + m.channels(x)).mean(1)


def squeezed(m, x):
    x = m.conv(x)
    return m.end(x * m.gate(x.mean((2, 3))).sigmoid()[:, :, None, None]).mean((2, 3))


def vit(m, x):
    x = m.patch(x).flatten(2).transpose(1, 2)
    return m.block(m.end(torch.cat([torch.ones(len(x), 1, 8), x], 1) + torch.arange(5)[:, None]))[:, 0]


def graph(m, x):
    sent = m.send(x)[:, [0, 2, 3, 1, 1]]
    return m.end(m.keep(x) + torch.zeros(len(x), 6, 8).index_add(1, torch.tensor([5, 4, 1, 0, 2]), sent)).mean(1)


def convnext(m, x):
    x = m.stem(x)
    return (x + m.end(m.mlp(m.norm(m.deep(x).permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)).mean((2, 3))


def wavenet(m, x):
    a, b = m.conv(F.pad(x, (2, 0))).chunk(2, 1)
    return m.end(x + a.tanh() * b.sigmoid())[..., -1]


def cells(m, x):
    h, states = torch.zeros(len(x), 8), []
    for t in range(x.shape[1]):
        states.append(h := m.cell(x[:, t], h))
    return m.end(torch.stack(states))[-1]


def written(m, x):
    x, out = m.conv(x), torch.zeros(len(x), 6, 4)
    for t in range(6):
        out[:, t] = x[:, :, t]
    return m.end(out).mean(1)


def time_first(m, x):
    x = x.transpose(0, 1)
    return m.rnn(x)[0][-1] + m.attend(x, x, x)[0][-1]


def unflattened(m, x):
    return m.conv(m.line(x).view(-1, 4, 2, 2)).flatten(1)


SEQUENCE, IMAGE, TOKENS = samples(4, 6), samples(3, 8, 8), samples(6, 4, axis=1)
CASES = {
    "conv_gru": (
        lambda: Layers(
            conv_gru,
            conv=nn.Conv1d(4, 8, 3),
            norm=nn.BatchNorm1d(8),
            pool=nn.MaxPool1d(2),
            gru=nn.GRU(8, 5, batch_first=True),
        ),
        *(SEQUENCE, {"conv": "NCL", "norm": "NCL", "pool": "NCL", "gru": "NTC"}),
    ),
    "u_net": (
        lambda: Layers(
            u_net,
            a=nn.Conv2d(3, 8, 1),
            pool=nn.AvgPool2d(2),
            b=nn.Conv2d(8, 8, 3, padding=1),
            up=nn.Upsample(scale_factor=2),
        ),
        *(IMAGE, {"a": "NCHW", "pool": "NCHW", "up": "NCHW", "end": "NCHW"}),
    ),
    "mixer": (
        lambda: Layers(
            mixer,
            embed=nn.Linear(4, 6),
            norm=nn.LayerNorm(6),
            tokens=nn.Linear(6, 6, bias=False),
            channels=nn.Linear(6, 6),
        ),
        *(TOKENS, {"embed": "NTC", "norm": "NTC", "tokens": "refused", "end": "NTC"}),
    ),
    "squeezed": (
        lambda: Layers(squeezed, conv=nn.Conv2d(3, 8, 3), gate=nn.Linear(8, 8)),
        *(IMAGE, {"conv": "NCHW", "gate": "NC", "end": "NCHW"}),
    ),
    "vit": (
        lambda: Layers(
            vit,
            patch=nn.Conv2d(3, 8, 4, stride=4),
            block=nn.TransformerEncoderLayer(8, 2, 8, norm_first=True, batch_first=True),
        ),
        *(IMAGE, {"patch": "NCHW", "end": "NTC", "block": "NTC"}),
    ),
    "graph": (
        lambda: Layers(graph, send=nn.Linear(4, 8), keep=nn.Linear(4, 8)),
        *(TOKENS, {"send": "NVC", "end": "NVC"}),
    ),
    "convnext": (
        lambda: Layers(
            convnext,
            stem=nn.Conv2d(3, 8, 1),
            deep=nn.Conv2d(8, 8, 3, padding=1, groups=8),
            norm=nn.LayerNorm(8),
            mlp=nn.Linear(8, 8),
        ),
        *(IMAGE, {"stem": "NCHW", "norm": "NHWC", "mlp": "NHWC", "end": "NHWC"}),
    ),
    "wavenet": (
        lambda: Layers(wavenet, conv=nn.Conv1d(4, 8, 2, dilation=2)),
        *(SEQUENCE, {"conv": "NCL", "end": "NCL"}),
    ),
    "cells": (lambda: Layers(cells, cell=nn.GRUCell(4, 8)), TOKENS, {"end": "TNC"}),
    "written": (lambda: Layers(written, conv=nn.Conv1d(4, 4, 1)), SEQUENCE, {"conv": "NCL", "end": "NTC"}),
    "time_first": (
        lambda: Layers(time_first, rnn=nn.LSTM(4, 4), attend=nn.MultiheadAttention(4, 2)),
        *(samples(N, 4, axis=1), {"rnn": "TNC", "attend": "TNC"}),
    ),
    "unflattened": (
        lambda: Layers(unflattened, line=nn.Linear(5, 16), conv=nn.Conv2d(4, 1, 1)),
        *(samples(5), {"line": "NC", "conv": "NCHW"}),
    ),
    "raw": (lambda: Layers(lambda m, x: m.end(x.permute(0, 2, 1)).mean(1)), SEQUENCE, {"end": "refused"}),
}


def outputs_of(module, x, names):
    found = {}

    def keep(name):
        def hook(_, inputs, output):
            found.setdefault(name, (output[0] if isinstance(output, tuple) else output).clone())

        return hook

    handles = [getattr(module, name).register_forward_hook(keep(name)) for name in names]
    with torch.no_grad():
        module.eval()(x)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("case", CASES)
def test_layers_are_averaged_over_their_positions(case):
    torch.manual_seed(0)
    make, x, expected = CASES[case]
    module = make()
    for name, output in outputs_of(module, x, expected).items():
        if expected[name] == "refused":
            with pytest.raises(ParameterError, match=r"State its axes.*layer_axes: {"):
                depthrate.probe(module, (x, LABELS), layers=name)
            continue
        letters = expected[name]
        positions = [i for i, letter in enumerate(letters) if letter not in "NC"]
        features = output.mean(positions) if positions else output
        right = depthrate.measure(features, LABELS)["nc1"]
        rows = depthrate.probe(module, (x, LABELS), layers=name)
        assert next(row["nc1"] for row in rows if row["name"] == name) == pytest.approx(right, rel=1e-4), name


def test_stated_axes_decide_and_must_fit():
    module = Layers(lambda m, x: m.end(x.permute(2, 0, 1)).mean(0))
    rows = depthrate.probe(module, (SEQUENCE, LABELS), layers="end", layer_axes={"end": "LNC"})
    assert rows[-1]["nc1"] == pytest.approx(depthrate.measure(SEQUENCE.mean(2), LABELS)["nc1"], rel=1e-4)
    for stated, words in (
        ({"end": "NLC"}, "one entry per sample"),
        ({"end": "NC"}, "3 letters"),
        ({"end": "LN"}, "expected one letter per axis"),
        ({"other": "LNC"}, "none of the measured layers"),
    ):
        with pytest.raises(ParameterError, match=words):
            depthrate.probe(module, (SEQUENCE, LABELS), layers="end", layer_axes=stated)


def test_samples_folded_into_positions_are_refused():
    module = Layers(lambda m, x: m.end(m.line(x).flatten(0, 1)).view(len(x), -1), line=nn.Linear(4, 3))
    with pytest.raises(ParameterError, match="one axis with one entry per sample"):
        depthrate.probe(module, (TOKENS, LABELS), layers="end")


def test_causal_convolutions_are_measured_per_token():
    """With as many channels as tokens, their features were taken for tokens."""

    def run(m, x):
        return m.head(m.conv(F.pad(m.embed(x).transpose(1, 2), (1, 0))).transpose(1, 2))

    def make():
        return Layers(run, embed=nn.Embedding(7, 5), conv=nn.Conv1d(5, 5, 2), head=nn.Linear(5, 7))

    data = DataShape(num_samples=9, sample_shape=(5,), num_classes=7, vocabulary_size=7, labels_tokens=True)
    network = ModuleNetwork(make=make, name="m", arguments={}, data=data, patterns=("conv",))
    (x, parameters) = torch.randint(7, (1, 9, 5)), {}
    for name, parameter in network.report.module.named_parameters():
        parameters[name] = parameter.detach().unsqueeze(0)
    feature = next(iter(network.features(parameters, x)))
    module = network.report.module
    padded = F.pad(module.embed(x[0]).transpose(1, 2), (1, 0))
    torch.testing.assert_close(feature[0], module.conv(padded).transpose(1, 2).detach())
