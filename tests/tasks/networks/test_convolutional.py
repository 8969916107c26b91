"""ResNet20 with an MLP head against a plain nn.Module, fused and alone; trained on images; stopped and gone on with."""

import os

import numpy as np
import pytest
import torch
from torch import nn

from depthrate.storage.files.data_folder import DataFolder
from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.published import check_dataset
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.networks.flat_parameters import initial_parameters, initial_state, split_parameters
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.pack_state import random_stream
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_pack import run_training
from tests.support.training_context import Context, assert_same, ids_of, run_resumed, training_on

BASE = {"arch": "resnet20_mlp", "depth": 4, "width": 64, "dataset": "cifar10", "loss": "mse", "lr": 0.05}


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )
        self.norm_one, self.norm_two, self.missing = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs), outputs - inputs

    def forward(self, x):
        out = self.norm_two(self.two(self.norm_one(self.one(x)).relu()))
        if self.missing:
            half = self.missing // 2
            x = torch.cat([p := x.new_zeros(len(x), half, *out.shape[2:]), x[:, :, ::2, ::2], p], 1)
        return (out + x).relu()


class Plain(nn.Module):
    """ResNet20 as it is usually written, without the last layer, and a head of linear layers."""

    def __init__(self, channels, depth, width, classes, last_bias):
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        sizes = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.blocks = nn.ModuleList(Block(*size) for size in sizes)
        widths = [64] + [width] * (depth - 1)
        self.head = nn.ModuleList(nn.Linear(i, width, bias=False) for i in widths[:-1])
        self.last = nn.Linear(widths[-1], classes, bias=last_bias)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        for block in self.blocks:
            x = block(x)
        x = x.mean((2, 3))
        for layer in self.head:
            x = layer(x).relu()
        return self.last(x)


def network(shape=(3, 32, 32), **params):
    filled = COLLAPSE.schema.fill({**BASE, **params})
    return COLLAPSE.network(COLLAPSE.read(filled), DataShape(num_samples=40, sample_shape=shape, num_classes=10))


def load(plain, parameters, trial):
    """Copy one trial's parameters into the plain network: both hold them in the order of the forward pass."""
    norms = [plain.norm, *(n for b in plain.blocks for n in (b.norm_one, b.norm_two))]
    convs = [plain.first, *(c for b in plain.blocks for c in (b.one, b.two))]
    values = iter(parameters.values())
    with torch.no_grad():
        for conv, norm in zip(convs, norms, strict=True):
            for target in (conv.weight, norm.weight, norm.bias):
                target.copy_(next(values)[trial])
        for target in (*(layer.weight for layer in plain.head), *plain.last.parameters()):
            target.copy_(next(values)[trial])
    assert next(values, None) is None
    return norms


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("shape", "loss", "depth"), [((3, 32, 32), "mse", 4), ((1, 28, 28), "ce", 5)])
def test_it_is_the_plain_network(shape, loss, depth, fused):
    made, trials = network(shape, loss=loss, depth=depth), 2
    specs, dtype = made.parameter_specs(), torch.float32
    theta = torch.stack(
        [initial_parameters(specs, "uniform", random_stream(seed, "init"), dtype) for seed in range(trials)]
    )
    theta += 0.05 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
    parameters = split_parameters(theta, specs)
    state = initial_state(made.state_specs(), trials, dtype, torch.device("cpu"))
    x = torch.randn(trials, 6, int(np.prod(shape)), generator=torch.Generator().manual_seed(1))
    backbone = made._grouped_backbone if fused else made._backbone
    object.__setattr__(made, "_backbone", backbone)
    for _ in range(2):  # the second time the running statistics have moved
        logits, state = made.training_logits(parameters, x, state)
    evaluated = made.logits(parameters, x, state)
    for trial in range(trials):
        plain = Plain(shape[0], depth, 64, 10, last_bias=loss == "ce")
        assert sum(p.numel() for p in plain.parameters()) == made.num_parameters
        norms = load(plain, parameters, trial)
        plain.train()
        for _ in range(2):
            expected = plain(x[trial].view(-1, *shape))
        torch.testing.assert_close(logits[trial], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state["var_0"][trial], norms[0].running_var, rtol=1e-5, atol=1e-6)
        plain.eval()
        torch.testing.assert_close(evaluated[trial], plain(x[trial].view(-1, *shape)), rtol=1e-5, atol=1e-5)


def test_parameters_of_resnet20():
    """269,722 with its linear layer on 64 features, as is known of the CIFAR form."""
    assert network(depth=1, loss="ce").num_parameters == 269_722
    assert [layer.width for layer in network(depth=4, width=48).layers()] == [64, 48, 48, 48]
    groups = {
        spec.decay for spec in network(regularise="head_and_features", weight_decay_features=1e-3).parameter_specs()
    }
    assert groups == {None, "hidden", "last"} and None not in {
        spec.decay for spec in network(loss="mse").parameter_specs()
    }


def images(num_samples=20):
    rng = np.random.default_rng(0)
    return Dataset.from_arrays(rng.normal(size=(num_samples, 1, 8, 8)).astype(np.float32), np.arange(num_samples) % 2)


def trial(**params):
    return COLLAPSE.schema.fill(
        {**BASE, "depth": 3, "width": 6, "steps": 4, "batch_size": 8, "measure_steps": [], **params}
    )


def run_on_images(trials, context):
    return list(run_training(training_on(trials, images()), context))


@pytest.mark.slow
def test_it_resumes_and_is_independent_of_its_pack():
    trials = [trial(seed=0), trial(seed=1, lr=0.02, weight_decay=0.1)]
    together = run_on_images(trials, Context(ids_of(trials)))
    resumed, _ = run_resumed(run_on_images, trials, stop_at=2)
    assert_same(resumed, together)
    assert_same(run_on_images(trials[:1], Context(ids_of(trials[:1]))), together[:1])
    rows = [row for row in together[0].tables["metrics"] if row["step"] == 4]
    assert [row["layer"] for row in rows] == [1, 2, 3] and all(row["rank"] is not None for row in rows)


def test_the_features_decay_is_the_gradient_of_their_norm():
    params = trial(
        regularise="head_and_features", weight_decay_features=0.3, weight_decay=0.0, batch_size=None, dtype="float64"
    )
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
        return made._grouped_backbone(leaves, inputs, running, {}, training=True)

    found = gradient(loss_of(made.training_logits(leaves, inputs, running)[0]))
    plain = gradient(loss_of(made._output(leaves, backbone())))
    wanted = plain + gradient(0.3 / 2 * backbone().square().sum())
    assert not torch.allclose(found, plain)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_it_trains_on_images_of_cifar10():
    root = os.environ.get("DEPTHRATE_DATA")
    source = DataFolder(root) if root else None
    try:
        check_dataset("cifar10_batch1", source)
    except (DatasetError, AttributeError):
        pytest.skip("DEPTHRATE_DATA is not set, or holds no CIFAR-10 batch")
    params = trial(dataset="cifar10_batch1", samples_per_class=2, steps=25, batch_size=10, loss="ce", lr=0.05)
    COLLAPSE.check_trial(params)
    (result,) = COLLAPSE.run([params], Context(ids_of([params]), data=source))
    first, last = result.tables["curves"][0], result.tables["curves"][-1]
    assert result.status == "ok" and last["loss"] < first["loss"]
    assert [row["layer"] for row in result.tables["metrics"]][-3:] == [1, 2, 3]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"arch": "rn1", "regularise": "head_and_features"}, "'rn1' has no backbone"),
        ({"weight_decay_features": 0.1}, "leave it null if regularise is 'all'"),
        ({"regularise": "head_and_features"}, "weight_decay_features is"),
        ({"dataset": "imdb"}, "'imdb' is text"),
    ],
)
def test_bad_input(params, words):
    with pytest.raises(ParameterError, match=words):
        COLLAPSE.check_trial(trial(**{"batch_size": None, **params}))
