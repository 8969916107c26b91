"""Networks of many forms: each layer has the nc1 of a computation that shares nothing with the product, or is refused."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import depthrate
from depthrate.tasks.training.pack_state import random_stream
from tests.support import network_forms as forms
from tests.support.here import invoke, printed
from tests.support.network_forms import Form, by_layout

pytestmark = pytest.mark.slow

STEPS = 4
SETTINGS = {
    "dataset": "./mine.npz",
    "normalize": "none",
    "steps": STEPS,
    "measure_steps": [0],
    "lr": 0.2,
    "momentum": 0.0,
    "optimizer": "sgd",
    "schedule": "constant",
    "weight_decay": 0.0,
    "weight_decay_last": 0.0,
}
MAPS, LAST, TOKENS, TIME = "NCHW", "NHWC", "NTC", "TNC"


def convnext(width, pixels):
    inner = {"depthwise": MAPS, "norm": LAST, "grow": LAST, "shrink": LAST}
    layouts = {"stem": MAPS, "blocks.0": MAPS, "blocks.1": MAPS, **{f"blocks.1.{k}": v for k, v in inner.items()}}
    return partial(forms.ConvNeXt, width), (3, 2 * pixels, 2 * pixels), layouts


def conv_gru(width, steps):
    return partial(forms.ConvGru, width), (2, steps), {"conv": "NCT", "norm": "NCT", "pool": "NCT", "gru": TOKENS}


def crnn(width, rows, columns):
    return partial(forms.Crnn, width, rows), (1, rows, columns), {"conv": MAPS, "gru": TIME, "norm": TIME}


def u_net(width, pixels):
    names = ("down", "down.0", "pool", "bottom", "up", "up.grow", "fuse")
    return partial(forms.UNet, width), (2, pixels, pixels), dict.fromkeys(names, MAPS)


def mixer(tokens, width, residual=True):
    layouts = {"embed": TOKENS, "blocks.0": TOKENS, "blocks.1": TOKENS, "blocks.1.channels": TOKENS}
    return partial(forms.Mixer, tokens, width, residual), (tokens, 4), layouts


def encoder_decoder(tokens, queries, width):
    names = ("embed", "transformer.encoder.layers.0", "transformer.encoder.layers.1", "transformer.encoder")
    names += ("transformer.decoder.layers.0", "transformer.decoder.layers.1", "transformer")
    names += ("transformer.decoder.layers.0.multihead_attn", "transformer.encoder.layers.1.linear1")
    return partial(forms.EncoderDecoder, width, queries), (tokens, 4), dict.fromkeys(names, TIME)


def squeeze_excite(width, pixels):
    layouts = {"stem": MAPS, "blocks.0": MAPS, "blocks.0.2": MAPS, "blocks.0.2.maps": "NC", "blocks.1": MAPS}
    return partial(forms.SqueezeExcite, width), (3, pixels, pixels), layouts


def vit(patches, width):
    side = round(2 * patches**0.5)
    layouts = {"embed": MAPS, "blocks.0": TOKENS, "blocks.1": TOKENS, "blocks.1.attend": TIME, "norm": TOKENS}
    return partial(forms.Vit, patches, width), (3, side, side), {**layouts, "blocks.0.mlp": TOKENS}


def dense_net(growth, pixels):
    layouts = dict.fromkeys(("blocks.0", "blocks.1", "transition", "blocks.0.norm"), MAPS)
    return partial(forms.DenseNet, growth), (2, pixels, pixels), layouts


def graph(nodes, width):
    return (
        partial(forms.Graph, nodes, width),
        (nodes, 4),
        {"layers.0": "NVC", "layers.0.linear": "NVC", "layers.1": "NVC"},
    )


def tcn(width, steps):
    layouts = dict.fromkeys(("embed", "blocks.0", "blocks.1", "blocks.0.conv"), "NCT")
    return partial(forms.Tcn, width), (2, steps), layouts


def bidirectional(batch_first, steps, width):
    layouts = dict.fromkeys(("first", "second", "second.rnn"), TOKENS if batch_first else TIME)
    return partial(forms.Bidirectional, batch_first, width), (steps, 4), layouts


def cells(width, steps):
    return partial(forms.CellByCell, width), (steps, 4), {"cell": "NC"}


def volume(width, pixels):
    layouts = dict.fromkeys(("conv", "norm", "pool", "second"), "NCDHW")
    return partial(forms.Volume, width), (1, pixels, pixels, pixels), layouts


def attention(steps, width):
    return partial(forms.TimeFirstAttention, width), (steps, 4), {"embed": TIME, "attend": TIME, "norm": TIME}


def separable(width, pixels):
    names = ("depthwise", "pointwise", "instance", "group", "average")
    return partial(forms.Separable, width), (3, pixels, pixels), dict.fromkeys(names, MAPS)


def perceiver(tokens, latents, width):
    layouts = {"embed": TOKENS, "read": TOKENS, "think": TIME}
    return partial(forms.Perceiver, latents, width), (tokens, 4), layouts


def f_net(tokens, width):
    return partial(forms.FNet, width), (tokens, 4), dict.fromkeys(("embed", "mix", "norm", "mlp", "mlp.0"), TOKENS)


def hyper_mlp(groups, width):
    return partial(forms.HyperMlp, groups, width), (4,), {"embed": "NC", "grouped": "NGC", "shared": "NGC"}


def speech(tokens, width):
    layouts = {"embed": TOKENS, "blocks.0": TOKENS, "blocks.1": TOKENS, "blocks.1.conv": "NCT", "blocks.1.norm": "NCT"}
    return partial(forms.Speech, width), (tokens,), layouts


def windows(width, pixels):
    layouts = {"embed": MAPS, "norm": LAST, "mlp": LAST}
    return partial(forms.Windows, width), (3, pixels, pixels), layouts


def frames(steps, width):
    return partial(forms.Frames, width), (steps, 5, 5), {"rnn": TIME}


def columns(width):
    return partial(forms.Columns, width), (4,), {"first": "NC", "blocks.0": "CN", "blocks.1": "CN"}


def own_convs(tokens, width):
    layouts = {"functional": "NCT", "products": "NCT", "move": TOKENS, "grow": "NCT"}
    return partial(forms.OwnConvs, width), (tokens, 4), layouts


def patches(width, pixels):
    layouts = {"0": MAPS, "1": MAPS, "2": "NCT", "3": TOKENS, "4": TOKENS, "5": TIME, "6": TIME, "7": TOKENS}
    return partial(forms.Patches, width), (3, pixels, pixels), layouts


def merged_windows(width, pixels):
    return partial(forms.Windows, width), (3, pixels, pixels), {"attend": "(NW)TC"}


def merged_frames(steps, width):
    return partial(forms.Frames, width), (steps, 5, 5), {"conv": "(WN)CHW"}


def no_samples(length, width):
    return partial(forms.Placed, length, width), (length, 4), {"places": ""}


SWEPT = ("Conv1d and GRU, C = T", "LSTM time first, T = N", "vision transformer, T = C", "FNet")
N = 24
FORMS = [
    Form("ConvNeXt", *convnext(5, 4)),
    Form("ConvNeXt, C = H = W", *convnext(6, 6)),
    Form("ConvNeXt, C = H = W = N", *convnext(6, 6), num_samples=6),
    Form("Conv1d and GRU", *conv_gru(5, 14)),
    Form("Conv1d and GRU, C = T", *conv_gru(8, 8)),
    Form("Conv1d and GRU, C = T / 2 = N", *conv_gru(6, 12), num_samples=6),
    Form("CRNN", *crnn(4, 3, 9)),
    Form("CRNN, T = N", *crnn(4, 3, N)),
    Form("CRNN, T = C = N", *crnn(4, 3, 6), num_samples=6),
    Form("U-Net", *u_net(3, 8)),
    Form("U-Net, C = H = W", *u_net(4, 8)),
    Form("Mixer", *mixer(7, 5)),
    Form("Mixer, T = C", *mixer(6, 6)),
    Form("Mixer, T = N", *mixer(N, 5)),
    Form("tokens mixed last", *mixer(7, 5, False)),
    Form("tokens mixed last, T = C", *mixer(6, 6, False)),
    Form("encoder-decoder", *encoder_decoder(7, 3, 8)),
    Form("encoder-decoder, T = M = N", *encoder_decoder(N, N, 8)),
    Form("encoder-decoder, T = M = C = N", *encoder_decoder(6, 6, 6), num_samples=6),
    Form("squeeze and excitation", *squeeze_excite(5, 6)),
    Form("squeeze and excitation, C = H = W", *squeeze_excite(6, 6)),
    Form("vision transformer", *vit(9, 6)),
    Form("vision transformer, T = C", *vit(9, 10)),
    Form("vision transformer, T = C = N", *vit(9, 10), num_samples=10),
    Form("DenseNet", *dense_net(2, 6)),
    Form("DenseNet, C = H = W", *dense_net(4, 10)),
    Form("graph", *graph(7, 5)),
    Form("graph, V = C", *graph(6, 6)),
    Form("graph, V = N", *graph(N, 5)),
    Form("causal convolutions", *tcn(4, 9)),
    Form("causal convolutions, C = T", *tcn(6, 6)),
    Form("causal convolutions, C = T = N", *tcn(6, 6), num_samples=6),
    Form("LSTM batch first", *bidirectional(True, 7, 3)),
    Form("LSTM batch first, T = C = N", *bidirectional(True, 6, 3), num_samples=6),
    Form("LSTM time first", *bidirectional(False, 7, 3)),
    Form("LSTM time first, T = N", *bidirectional(False, N, 3)),
    Form("LSTM time first, T = C = N", *bidirectional(False, 6, 3), num_samples=6),
    Form("LSTM time first, T = 2", *bidirectional(False, 2, 3)),
    Form("LSTM time first, T = 3", *bidirectional(False, 3, 3)),
    Form("LSTM time first, T = 1", *bidirectional(False, 1, 3)),
    Form("LSTM cell", *cells(5, 4)),
    Form("Conv3d", *volume(4, 6)),
    Form("Conv3d, all axes equal", *volume(6, 6), num_samples=6),
    Form("attention time first", *attention(7, 6)),
    Form("attention time first, T = N", *attention(N, 6)),
    Form("attention time first, T = C = N", *attention(6, 6), num_samples=6),
    Form("depthwise separable", *separable(8, 5)),
    Form("depthwise separable, C = H = W", *separable(6, 6)),
    Form("Perceiver", *perceiver(7, 3, 6)),
    Form("Perceiver, M = N", *perceiver(7, N, 6)),
    Form("Perceiver, M = C = N", *perceiver(7, 6, 6), num_samples=6),
    Form("FNet", *f_net(7, 5)),
    Form("FNet, T = C", *f_net(6, 6)),
    Form("grouped MLP", *hyper_mlp(3, 5)),
    Form("grouped MLP, G = C", *hyper_mlp(5, 5)),
    Form("grouped MLP, G = C = N", *hyper_mlp(6, 6), num_samples=6),
    Form("speech", *speech(7, 5), num_ids=9),
    Form("speech, T = C", *speech(6, 6), num_ids=9),
    Form("windows", *windows(4, 6)),
    Form("windows, C = H = W", *windows(4, 4)),
    Form("frames", *frames(7, 4)),
    Form("frames, T = N", *frames(N, 4)),
    Form("samples as columns", *columns(5)),
    Form("samples as columns, C = N", *columns(N)),
    Form("own convolutions", *own_convs(7, 5)),
    Form("own convolutions, C = T", *own_convs(6, 6)),
    Form("modules that move axes", *patches(5, 6)),
    Form("modules that move axes, T = C = N", *patches(9, 6), num_samples=9),
    Form("nodes as samples", partial(forms.Nodes, N), (4,), {"layer": "NC"}),
    Form("maps normalised whole", partial(forms.NormedMaps, 4, 5), (2, 5, 5), {"conv": MAPS, "norm": MAPS}),
    Form("maps normalised whole, C = H = W", partial(forms.NormedMaps, 5, 5), (2, 5, 5), {"conv": MAPS, "norm": MAPS}),
    Form("bins normalised", partial(forms.BinsNormed, 5, 7), (1, 7, 4), {"conv": MAPS, "norm": MAPS, "gru": TOKENS}),
    Form("windows beside samples", *merged_windows(4, 6)),
    Form("frames beside samples", *merged_frames(7, 4)),
    Form("no sample axis", *no_samples(7, 5)),
    Form("no sample axis, T = N", *no_samples(N, 5)),
]


def samples_of(one):
    """Return x and y [N] of a form: noise with a shift per class."""
    rng, labels = np.random.default_rng(5), np.arange(one.num_samples) % forms.K
    if one.num_ids:
        ids = rng.integers(0, one.num_ids, (one.num_samples, *one.sample_shape))
        ids[:, ::2] = (ids[:, ::2] + labels[:, None]) % 3 + 3 * (labels[:, None] == 1)
        return torch.from_numpy(ids), labels
    shift = rng.normal(size=(forms.K, *one.sample_shape))
    return torch.from_numpy(shift[labels] + rng.normal(size=(one.num_samples, *one.sample_shape))).float(), labels


def raw_outputs(net, names, x):
    """Return the output of each module, call by call, and the input of the head, from plain hooks of torch."""
    outputs, calls, handles = {}, Counter(), []

    def keep(name, tensor):
        calls[name] += 1
        outputs[name if calls[name] == 1 else f"{name} (call {calls[name]})"] = tensor.detach().clone()

    for name in names:

        def hook(module, inputs, output, name=name):
            keep(name, output[0] if isinstance(output, tuple) else output)

        handles.append(net.get_submodule(name).register_forward_hook(hook))
    handles.append(net.head.register_forward_hook(lambda module, inputs, output: keep("head input", inputs[0])))
    net(x)
    for handle in handles:
        handle.remove()
    return outputs


def collapse(features_NC, labels_N):
    """Return nc1 = tr Sigma_W / tr Sigma_B, and tr(Sigma_W pinv(Sigma_B)) / K, from their definitions."""
    h, classes = np.asarray(features_NC), np.unique(labels_N)
    means = np.stack([h[labels_N == k].mean(0) for k in classes])
    within = h - means[np.searchsorted(classes, labels_N)]
    between = means - means.mean(0)
    sigma_w, sigma_b = within.T @ within / len(h), between.T @ between / len(classes)
    pinv = np.linalg.pinv(sigma_b, rcond=1e-6, hermitian=True)
    return np.trace(sigma_w) / np.trace(sigma_b), np.trace(sigma_w @ pinv) / len(classes)


def expected_of(one, net, x, labels):
    """Return layer -> (nc1, nc1_pinv) by the layouts that the form documents."""
    outputs = raw_outputs(net.eval(), list(one.layouts), x)
    layouts = {name: one.layouts.get(name.split(" (")[0], "NC") for name in outputs}
    return {name: collapse(by_layout(h, layouts[name], len(x)), labels) for name, h in outputs.items()}


def wrong_values(rows, expected):
    """Return layer -> measured and expected nc1, where a row's nc1 or nc1_pinv is not the expected one."""
    measured = {row["name"]: (row["nc1"], row["nc1_pinv"]) for row in rows}
    return {
        name: f"nc1 {measured[name][0]:.4g}, expected {values[0]:.4g}" if name in measured else "missing"
        for name, values in expected.items()
        if name not in measured or not np.allclose(measured[name], values, rtol=2e-3, atol=1e-6)
    }


def layers_of(one, expected):
    """Return the expected values without the head's input, which may be the output of the last layer."""
    return {name: values for name, values in expected.items() if name.split(" (")[0] in one.layouts}


def net_of(one):
    torch.manual_seed(1)
    return one.make()


def refusal_of(one, names, **options):
    """Return the rows of these layers, and the message if they are refused."""
    try:
        return depthrate.probe(net_of(one), samples_of(one), layers=names, **options), None
    except ValueError as refusal:
        return [], str(refusal)


def refused_layers(one):
    """Return the layers that are refused. Each other layer, measured alone, has the right values."""
    expected, refused, wrong = expected_of(one, net_of(one), *samples_of(one)), [], {}
    for name in one.layouts:
        rows, refusal = refusal_of(one, [name])
        if refusal is None:
            wrong |= wrong_values(rows, {call: v for call, v in expected.items() if call.split(" (")[0] == name})
        else:
            assert name in refusal and ("layer_axes" in refusal or one.layouts[name].startswith("(")), refusal
            refused.append(name)
    assert not wrong, wrong
    return refused


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("one", FORMS, ids=lambda one: one.name)
def test_form_is_measured_right_or_refused(one):
    names = list(one.layouts)
    if not all(one.layouts.values()):
        assert refusal_of(one, names)[1]
        return
    refused = refused_layers(one)
    if refused and any(layout.startswith("(") for layout in one.layouts.values()):
        return
    rows, refusal = refusal_of(one, names, **cure(one, refused))
    assert refusal is None, refusal
    expected = expected_of(one, net_of(one), *samples_of(one))
    assert not wrong_values(rows, layers_of(one, expected))


def cure(one, refused):
    """Return the option that gives the layouts of the refused layers, if any."""
    return {"layer_axes": {name: one.layouts[name] for name in refused}} if refused else {}


def form_named(name):
    (one,) = (one for one in FORMS if one.name == name)
    return one


@pytest.mark.parametrize("name", ["LSTM time first, T = 3", "CRNN", "attention time first, T = C = N"])
def test_batches_of_unequal_size_change_nothing(name):
    one = form_named(name)
    net, (x, labels) = net_of(one), samples_of(one)
    batches = [(x[start : start + 5], labels[start : start + 5]) for start in range(0, len(x), 5)]
    rows = depthrate.probe(net, batches, layers=list(one.layouts), **cure(one, refused_layers(one)))
    assert not wrong_values(rows, layers_of(one, expected_of(one, net, x, labels)))


@pytest.mark.parametrize("name", ["LSTM time first", "LSTM time first, T = N", "samples as columns"])
def test_flattened_features_have_one_row_per_sample(name):
    one = form_named(name)
    net, (x, labels), names = net_of(one), samples_of(one), list(one.layouts)
    rows = depthrate.probe(net, (x, labels), layers=names, maps="flatten", **cure(one, refused_layers(one)))
    outputs = layers_of(one, raw_outputs(net.eval(), names, x))
    features = {name: h.double().movedim(one.layouts[name].index("N"), 0).flatten(1) for name, h in outputs.items()}
    assert not wrong_values(rows, {name: collapse(h, labels) for name, h in features.items()})


@pytest.mark.parametrize("name", SWEPT)
def test_sweep_commits_nc1_of_the_trained_features(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = form_named(name)
    x, labels = samples_of(one)
    np.savez("mine.npz", x=x.numpy(), y=labels)
    params = {"layers": ", ".join(one.layouts), "features": "all", **SETTINGS}
    write_sweep(one, params)
    code, planned = invoke("plan", "s.yaml")
    if code:
        assert code == 2 and "layer_axes" in planned, planned
        write_sweep(one, {**params, **cure(one, one.layouts)})
        planned = printed("plan", "s.yaml")
    assert "1 trial, 0 done" in planned
    printed("run", "s.yaml", "--workers", "1")
    results = depthrate.open("results")
    rows = results.sql(
        "select step, layer, nc1, nc1_pinv, trial_id from metrics where layer > 0 order by all"
    ).fetchall()
    expected = [v for net in trained_by_torch(one, x, labels) for v in expected_of(one, net, x, labels).values()]
    assert [row[:2] for row in rows] == [(step, i + 1) for step in (0, STEPS) for i in range(len(expected) // 2)]
    np.testing.assert_allclose([row[2:4] for row in rows], expected, rtol=5e-3)
    for _, layer, *values, trial_id in rows[len(expected) // 2 :]:
        stored_labels, features = results.features(trial_id, layer=layer)
        np.testing.assert_allclose(collapse(features.astype(float), stored_labels), values, rtol=5e-3)


@pytest.mark.parametrize("name", ["no sample axis", "no sample axis, T = N", "frames beside samples"])
def test_plan_refuses_what_has_no_sample_axis(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = form_named(name)
    x, labels = samples_of(one)
    np.savez("mine.npz", x=x.numpy(), y=labels)
    write_sweep(one, {"layers": ", ".join(one.layouts), **SETTINGS})
    assert next(iter(one.layouts)) in printed("plan", "s.yaml", code=2)


def write_sweep(one, params):
    """Write s.yaml, and m.py with the form's network as `Net`, which gives samples their shape."""
    base, arguments = one.make.func.__name__, one.make.args
    Path("m.py").write_text(
        f"{Path(forms.__file__).read_text()}\n\nclass Net({base}):\n"
        f"    def __init__(self):\n        super().__init__(*{arguments})\n\n"
        f"    def forward(self, x):\n        return super().forward(x.reshape(-1, *{one.sample_shape}))\n"
    )
    spec = {"name": "s", "task": "collapse", "params": {"arch": "./m.py:Net", **params}, "seeds": [3]}
    Path("s.yaml").write_text(yaml.safe_dump(spec))


def trained_by_torch(one, x, labels):
    """Yield the network as the sweep's trial begins, and after its steps of gradient descent by torch."""
    torch.manual_seed(random_stream(3, "init").initial_seed())
    net = one.make()
    yield net
    optimizer = torch.optim.SGD(net.train().parameters(), lr=SETTINGS["lr"])
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), torch.from_numpy(labels)).backward()
        optimizer.step()
    yield net
