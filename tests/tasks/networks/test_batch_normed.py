"""Networks with BatchNorm against plain nn.Modules, fused and alone: dense, staged, ResNet20 with an MLP head; schedules."""

import os

import numpy as np
import pytest
import torch
from torch import nn

from depthrate.storage.files.data_folder import DataFolder
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import check_dataset
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.networks.batch_normed import ForwardPass
from depthrate.tasks.networks.flat_parameters import draw_parameters, initial_state, split_parameters
from depthrate.tasks.networks.operations import last, linear
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.pack_state import random_stream
from depthrate.tasks.training.parameters import measured_steps, milestone_steps
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_pack import run_training
from depthrate.tasks.training.training_plan import learning_rate_factor
from tests.support.own_data import dataset_of
from tests.support.training_context import Context, assert_same, ids_of, run_resumed, training_on

DENSE = {"arch": "resnet_dense", "depth": 3, "width": 10, "dataset": "mnist"}
STAGES = "4x4x4*1 6x2x2*2"
CONV = {"arch": "resnet_conv", "depth": 3, "stages": STAGES, "dataset": "digits"}
RESNET20 = {"arch": "resnet20_mlp", "depth": 4, "width": 64, "dataset": "cifar10", "loss": "mse"}
SMALL_RESNET20 = {**RESNET20, "depth": 3, "width": 6}


def _pairs(block):
    return (block.one, block.norm_one), (block.two, block.norm_two)


class DenseBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm1d(width), nn.BatchNorm1d(width)

    def forward(self, x):
        return (x + self.norm_two(self.two(self.norm_one(self.one(x)).relu()))).relu()


class PlainDense(nn.Module):
    def __init__(self, inputs, width, depth, classes):
        super().__init__()
        self.first, self.norm = nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width)
        self.blocks = nn.ModuleList(DenseBlock(width) for _ in range(depth))
        self.last, self.head = nn.Linear(width, classes), []

    def pairs(self):
        return [(self.first, self.norm), *(pair for block in self.blocks for pair in _pairs(block))]

    def forward(self, x):
        layers = [self.norm(self.first(x)).relu()]
        for block in self.blocks:
            layers.append(block(layers[-1]))
        return self.last(layers[-1]), layers


class ConvBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, 1, 1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return (x + self.norm_two(self.two(self.norm_one(self.one(x)).relu()))).relu()


class PlainConv(nn.Module):
    """Two stages; the features of the second are given too."""

    def __init__(self, channels, shape, strides, blocks, classes):
        super().__init__()
        widths = (shape[0], *channels)
        pairs = zip(widths, widths[1:], strides, strict=False)
        self.leads = nn.ModuleList(nn.Conv2d(a, b, 3, stride, 1, bias=False) for a, b, stride in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in channels)
        stages = zip(channels, blocks, strict=True)
        self.stages = nn.ModuleList(nn.ModuleList(ConvBlock(width) for _ in range(count)) for width, count in stages)
        self.shape, self.last, self.head = shape, nn.Linear(channels[-1], classes), []

    def pairs(self):
        stages = zip(self.leads, self.norms, self.stages, strict=True)
        return [p for lead, norm, blocks in stages for p in ((lead, norm), *(p for b in blocks for p in _pairs(b)))]

    def forward(self, x):
        x = x.view(-1, *self.shape)
        for lead, norm, blocks in zip(self.leads, self.norms, self.stages, strict=True):
            layers = [x := norm(lead(x)).relu()]
            for block in blocks:
                layers.append(x := block(x))
        return self.last(x.mean((2, 3))), layers


class PaddedBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two, self.missing = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs), outputs - inputs

    def forward(self, x):
        out = self.norm_two(self.two(self.norm_one(self.one(x)).relu()))
        if self.missing:
            half = self.missing // 2
            x = torch.cat([p := x.new_zeros(len(x), half, *out.shape[2:]), x[:, :, ::2, ::2], p], 1)
        return (out + x).relu()


class PlainResNet20(nn.Module):
    """ResNet20 as it is usually written, without the last layer, and a head of linear layers."""

    def __init__(self, shape, depth, last_bias, width=64, classes=10):
        super().__init__()
        channels, *self.size = shape
        self.first, self.norm = nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        sizes = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.blocks = nn.ModuleList(PaddedBlock(*size) for size in sizes)
        widths = [64] + [width] * (depth - 1)
        self.head = nn.ModuleList(nn.Linear(i, width, bias=False) for i in widths[:-1])
        self.last = nn.Linear(widths[-1], classes, bias=last_bias)

    def pairs(self):
        return [(self.first, self.norm), *(pair for block in self.blocks for pair in _pairs(block))]

    def forward(self, x):
        x = self.norm(self.first(x.view(len(x), self.first.in_channels, -1).unflatten(2, self.size))).relu()
        for block in self.blocks:
            x = block(x)
        layers = [x.mean((2, 3))]
        for layer in self.head:
            layers.append(layer(layers[-1]).relu())
        return self.last(layers[-1]), layers


def network(shape, **params):
    filled = COLLAPSE.schema.fill(params)
    return COLLAPSE.network(COLLAPSE.read(filled), DataShape(num_samples=40, sample_shape=shape, num_classes=10))


def load(plain, parameters, trial):
    """Copy one trial's parameters into the plain network: both hold them in the order of the forward pass."""
    targets = [t for layer, norm in plain.pairs() for t in (layer.weight, norm.weight, norm.bias)]
    targets += [*(layer.weight for layer in plain.head), *plain.last.parameters()]
    with torch.no_grad():
        for target, values in zip(targets, parameters.values(), strict=True):
            target.copy_(values[trial])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("params", "shape", "make"),
    [
        (DENSE, (1, 28, 28), lambda: PlainDense(28 * 28, 10, 3, 10)),
        (CONV, (3, 8, 8), lambda: PlainConv((4, 6), (3, 8, 8), (2, 2), (1, 2), 10)),
        pytest.param(RESNET20, (3, 32, 32), lambda: PlainResNet20((3, 32, 32), 4, False), marks=pytest.mark.slow),
        pytest.param(
            {**RESNET20, "loss": "ce", "depth": 5},
            (1, 28, 28),
            lambda: PlainResNet20((1, 28, 28), 5, True),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_equals_the_plain_network(params, shape, make, fused):
    made, trials, dtype = network(shape, **params), 2, torch.float64
    specs = made.parameter_specs()
    theta = torch.empty(trials, made.num_parameters, dtype=dtype)
    for seed, theta_P in enumerate(theta):
        draw_parameters(theta_P, specs, "uniform", random_stream(seed, "init"))
    theta += 0.05 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    parameters = split_parameters(theta, specs)
    state = initial_state(made.state_specs(), trials, dtype, torch.device("cpu"))
    x = torch.randn(trials, 6, int(np.prod(shape)), generator=torch.Generator().manual_seed(1), dtype=dtype)
    if fused:  # as on a GPU: all trials as groups of channels
        object.__setattr__(made, "_layers", made._stream)
    for _ in range(2):  # the second time the running statistics have moved
        logits, state = made.training_logits(parameters, x, state)
    evaluated, features = made.logits(parameters, x, state), list(made.features(parameters, x, state))
    for trial in range(trials):
        plain = make().double()
        assert sum(p.numel() for p in plain.parameters()) == made.num_parameters
        load(plain, parameters, trial)
        plain.train()
        for _ in range(2):
            expected, _ = plain(x[trial])
        torch.testing.assert_close(logits[trial], expected, rtol=1e-11, atol=1e-11)
        running = [values for _, norm in plain.pairs() for values in (norm.running_mean, norm.running_var)]
        for found, wanted in zip(state.values(), running, strict=True):
            torch.testing.assert_close(found[trial], wanted, rtol=1e-11, atol=1e-12)
        plain.eval()
        expected, layers = plain(x[trial])
        torch.testing.assert_close(evaluated[trial], expected, rtol=1e-11, atol=1e-11)
        for layer, found, wanted in zip(made.layers(), features, layers, strict=True):
            torch.testing.assert_close(found[trial], wanted, rtol=1e-11, atol=1e-11)
            assert found.shape[2:] == layer.shape


def test_layers_are_the_last_stages():
    assert [layer.number for layer in network((1, 28, 28), **DENSE).layers()] == [0, 1, 2, 3]
    made = network((3, 32, 32), arch="resnet_conv", depth=9, dataset="cifar10")
    assert [(layer.number, layer.shape) for layer in made.layers()] == [(n, (256, 4, 4)) for n in range(5, 10)]
    stl = network((3, 96, 96), arch="resnet_conv", depth=20, dataset="stl10")
    assert [(layer.number, layer.shape) for layer in stl.layers()] == [(n, (512, 6, 6)) for n in range(15, 21)]
    hundred = network((3, 32, 32), arch="resnet_conv", depth=14, dataset="cifar100")
    assert [layer.shape for layer in hundred.layers()] == [(512, 4, 4)] * 5 and hundred.maps()[0].stride == 1
    fashion = network((1, 28, 28), arch="resnet_conv", depth=9, dataset="fashion_mnist")
    assert [layer.shape for layer in fashion.layers()] == [(64, 7, 7)] * 5
    x = torch.zeros(1, 2, 28 * 28)
    parameters = split_parameters(torch.zeros(1, fashion.num_parameters), fashion.parameter_specs())
    state = initial_state(fashion.state_specs(), 1, torch.float32, torch.device("cpu"))
    assert [tuple(h.shape) for h in fashion.features(parameters, x, state)] == [(1, 2, 64, 7, 7)] * 5


def test_parameters_of_resnet20():
    """269,722 with its linear layer on 64 features, as is known of the CIFAR form."""
    assert network((3, 32, 32), **{**RESNET20, "depth": 1, "loss": "ce"}).num_parameters == 269_722
    assert [layer.width for layer in network((3, 32, 32), **{**RESNET20, "width": 48}).layers()] == [64, 48, 48, 48]
    free = {"regularise": "head_and_features", "weight_decay_features": 1e-3}
    for params, expected in ((free, {None, "hidden", "last"}), ({}, {"hidden", "last"})):
        specs = network((3, 32, 32), **RESNET20, **params).parameter_specs()
        assert {spec.decay for spec in specs} == expected


def images(num_samples=20):
    rng = np.random.default_rng(0)
    return dataset_of(rng.normal(size=(num_samples, 1, 8, 8)).astype(np.float32), np.arange(num_samples) % 2)


def trial(**params):
    base = {"steps": 4, "batch_size": 8, "measure_steps": [], "lr": 0.05, "geodesic": True, "features": "all"}
    return COLLAPSE.schema.fill({**base, **params})


def run_on_images(trials, context):
    return list(run_training(training_on(trials, images()), context))


@pytest.mark.parametrize(
    "params", [{**DENSE, "dataset": "digits"}, CONV, pytest.param(SMALL_RESNET20, marks=pytest.mark.slow)]
)
def test_it_resumes_and_is_independent_of_its_pack(params):
    trials = [trial(**params, seed=0), trial(**params, seed=1, lr=0.02, weight_decay=0.1)]
    together = run_on_images(trials, Context(ids_of(trials)))
    resumed, _ = run_resumed(run_on_images, trials, stop_at=2)
    assert_same(resumed, together)
    assert_same(run_on_images(trials[:1], Context(ids_of(trials[:1]))), together[:1])
    rows = [row for row in together[0].tables["metrics"] if row["step"] == 4]
    assert rows[-1]["relative_position"] == 1 and rows[-1]["layer"] == 3
    if "resnet20" in params["arch"]:
        assert [row["layer"] for row in rows] == [1, 2, 3] and all(row["rank"] is not None for row in rows)
        return
    assert rows[0]["relative_position"] == 0
    for row in (rows[0], rows[-1]):
        for name in ("nc1", "nc1_pinv", "pfc2", "ncc_accuracy"):
            assert row[f"{name}_geodesic"] == pytest.approx(row[name], rel=1e-9)
    assert together[0].tables["curves"][-1]["objective_gap"] is None


def test_epochs_set_measurement_and_decay():
    epochs = {"epochs": 350, "batch_size": 128, "schedule": "step", "milestones": [117, 233], "measure_epochs": 50}
    params = COLLAPSE.schema.fill({**DENSE, **epochs})
    COLLAPSE.check_trial(params)
    per_epoch = 60_000 // 128
    steps = milestone_steps(COLLAPSE.read(params), 60_000)
    assert steps == (117 * per_epoch, 233 * per_epoch)
    last = 350 * per_epoch
    factors = [learning_rate_factor("step", step, last, steps) for step in (0, steps[0] - 1, steps[0], steps[1], last)]
    assert factors == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    assert measured_steps(COLLAPSE.read(params), last) == [epoch * per_epoch for epoch in range(0, 351, 50)]


@pytest.mark.parametrize(
    ("name", "own", "layers"),
    [("cifar10_batch1", {"arch": "resnet_conv", "depth": 3, "stages": "8x16x16*1 8x8x8*2"}, [1, 2, 3]),
     pytest.param("cifar10_batch1", {**SMALL_RESNET20, "loss": "ce"}, [1, 2, 3], marks=pytest.mark.slow),
     ("mnist", {"arch": "resnet_dense", "depth": 2, "width": 16}, [0, 1, 2])],
)  # fmt: skip
def test_it_trains_on_images(name, own, layers):
    root = os.environ.get("DEPTHRATE_DATA")
    source = DataFolder(root) if root else None
    try:
        check_dataset(name, source)
    except (DatasetError, AttributeError):
        pytest.skip(f"DEPTHRATE_DATA is not set, or holds no {name}")
    params = trial(**{**own, "dataset": name}, samples_per_class=2, steps=25, batch_size=10, features="none")
    COLLAPSE.check_trial(params)
    (result,) = COLLAPSE.run([params], Context(ids_of([params]), data=source))
    first, last = result.tables["curves"][0], result.tables["curves"][-1]
    assert result.status == "ok" and last["loss"] < first["loss"]
    assert [row["layer"] for row in result.tables["metrics"]][-3:] == layers


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({**DENSE, "stages": STAGES}, "'resnet_dense' has none"),
        ({**CONV, "stages": None}, "Table I has no stages for 'digits'"),
        ({**CONV, "depth": 4}, "depth is 4.*depth to 3"),
        ({**CONV, "width": 32}, "width is 32.*leave width at 64"),
        ({**CONV, "stages": "4x3x3*1 6x5x5*2"}, "maps of 5 rows after 3"),
        ({**CONV, "stages": "4x4*3"}, "stages.*matching"),
        ({**CONV, "dataset": "imdb"}, "'imdb' is text"),
        ({**DENSE, "batch_size": 1}, "batch_size is 1, with one sample per step"),
        ({**CONV, "batch_size": 1, "stages": "4x4x4*1 6x1x1*2"}, "batch_size is 1, with one sample per step"),
        ({**DENSE, "measure_epochs": 2}, "measure_epochs is 2 and epochs is null"),
        ({**DENSE, "milestones": [2]}, "milestones is .2. and epochs is null"),
        ({**DENSE, "milestones": [2], "steps": None, "epochs": 3}, "expected 'step'"),
        ({**DENSE, "measure_epochs": 2, "steps": None, "epochs": 3, "measure_steps": [1]}, "measure_epochs is 2"),
        ({"arch": "rn1", "depth": 3, "regularise": "head_and_features"}, "'rn1' has no backbone"),
        ({**SMALL_RESNET20, "weight_decay_features": 0.1}, "leave it null if regularise is 'all'"),
        ({**SMALL_RESNET20, "regularise": "head_and_features"}, "weight_decay_features is"),
        ({**SMALL_RESNET20, "dataset": "imdb"}, "'imdb' is text"),
    ],
)
def test_bad_input(params, words):
    COLLAPSE.check_trial(trial(**CONV, batch_size=1))  # its maps have several pixels
    with pytest.raises(ParameterError, match=words):
        COLLAPSE.check_trial(trial(**{"batch_size": None, **params}))


def test_feature_decay_gradient():
    regularised = {"regularise": "head_and_features", "weight_decay_features": 0.3, "weight_decay": 0.0}
    params = trial(**SMALL_RESNET20, **regularised, geodesic=False, batch_size=None, dtype="float64")
    data = images()
    training = training_on([params], data)
    x, labels = torch.tensor(data.x_NI).double(), torch.tensor(data.labels_N)
    trainer = FusedTrainer(training.network, training.plan, training.hyperparameters, x, labels)
    leaves = {name: p.detach().requires_grad_() for name, p in trainer.parameters().items()}
    made, inputs, running = training.network, x.unsqueeze(0), trainer.untrained

    def gradient(value):
        return torch.autograd.grad(value, leaves["C_0"])[0]

    def loss_of(logits):
        return losses(training.plan.loss, logits, labels.unsqueeze(0)).sum()

    def backbone():
        return next(made._layers(ForwardPass(leaves, running, training=True), inputs))

    found = gradient(loss_of(made.training_logits(leaves, inputs, running)[0]))
    plain = gradient(loss_of(linear(leaves, "L", last(made._head(leaves, backbone())))))
    wanted = plain + gradient(0.3 / 2 * backbone().square().sum())
    assert not torch.allclose(found, plain)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
