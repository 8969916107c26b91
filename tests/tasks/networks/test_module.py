"""A user's nn.Module as a network: it trains as if alone, whatever its pack, and as torch trains it."""

import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import depthrate
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.networks.module_layers import layer_names
from depthrate.tasks.networks.module_report import build_module
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training.engines.generated import generation_fault
from depthrate.tasks.training.pack_state import random_stream
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters
from tests.support.native_trials import plan_of
from tests.support.own_models import MLP, Branching, Fails, Mixer, ResNet, WrongClasses

SAMPLES = 60
TOLERANCE = 1e-5
"""Of parameters after ten steps, where a patch embedding is a grouped convolution in a pack: 3e-8 was measured."""


def network(make, **arguments):
    options = {name: arguments.pop(name) for name in ("patterns", "maps", "decayed") if name in arguments}
    data = DataShape(num_samples=SAMPLES, sample_shape=(1, 8, 8), num_classes=10)
    return ModuleNetwork(make=make, name=f"model:{make.__name__}", arguments=arguments, data=data, **options)


def samples():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, 64, generator=generator), torch.arange(SAMPLES) % 10


def trainer(made, seeds, optimizer="sgd", batch_size=20):
    plan = plan_of(optimizer=optimizer, schedule="constant", num_steps=10, batch_size=batch_size, init="")
    given = [Hyperparameters(seed, 0.05, 0.9, {"hidden": 0.01, "last": 0.02}) for seed in seeds]
    return FusedTrainer(made, plan, given, *samples())


def trained(made, seeds, steps=10, **options):
    made_trainer = trainer(made, seeds, **options)
    for _ in range(steps):
        made_trainer.step()
    return made_trainer


class Attending(nn.Module):
    """What torch warns of where it runs over a trial axis: an operation that it takes one trial after the other."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)])
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x):
        return self.head(self.blocks[0](x.flatten(1, 2)).flatten(1))


class Nested(nn.Module):
    """A module whose output holds its tensor in a tuple or in an attribute."""

    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(64, 10), kind

    def forward(self, pixel_values):
        y = self.linear(pixel_values.flatten(1))
        return (y, pixel_values) if self.kind == "tuple" else SimpleNamespace(**{self.kind: y})


@pytest.mark.parametrize("kind", ["tuple", "logits", "last_hidden_state"])
def test_outputs_are_unwrapped(kind):
    made = network(Nested, kind=kind, patterns=("linear",))
    assert made.report.head.sources == {"linear.weight"} and trainer(made, [0, 1]).step().shape == (2,)
    assert generation_fault(made, made.data, "float32") is None


def scales(x):
    return x * x.max().item()


def branches(x):
    return x if x.sum() > 0 else -x


def selects(x):
    return x * len(x[x > 0])


def checks_positions(x):
    return x if bool((torch.arange(64) < 64).all()) else -x


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(64, 10), function

    def forward(self, x):
        return self.linear(self.function(x.flatten(1)))


@pytest.mark.parametrize("function", [scales, branches, selects, checks_positions])
def test_steps_that_read_numbers_are_not_generated(function):
    made = network(Applied, function=function, patterns=("linear",))
    fault = generation_fault(made, made.data, "float32")
    assert (fault is None) == (function is checks_positions) and (fault is None or "data-dependent" in fault)


@pytest.mark.slow
def test_unfusable_module_trains_alone_silently():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # as a user has them, not errors as here
        reason = network(Attending, patterns=("blocks.*",)).unfused_reason
    assert not said and reason is not None
    assert reason.startswith("torch cannot batch an operation in it over a trial axis (_scaled_dot_product")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "arguments", "reason"),
    [
        (MLP, {"depth": 2}, None),
        (Mixer, {"depth": 2, "width": 8}, None),
        (MLP, {"depth": 2, "dropout": 0.2}, "dropout"),
        (ResNet, {}, "running statistics"),
        (Branching, {}, "does not run over a trial axis"),
    ],
)
def test_a_trial_is_as_if_alone(make, arguments, reason):
    made = network(make, **arguments)
    assert (made.unfused_reason is None) == (reason is None) and (reason or "") in (made.unfused_reason or "")
    pack, alone = trained(made, [0, 1, 2, 3]), trained(made, [2])
    if make is Mixer:
        torch.testing.assert_close(pack.theta_TP[2], alone.theta_TP[0], atol=TOLERANCE, rtol=0)
    else:
        assert torch.equal(pack.theta_TP[2], alone.theta_TP[0])
    for name, state in alone.untrained.items():
        assert torch.equal(pack.untrained[name][2], state[0])


@pytest.mark.parametrize("make", [MLP, ResNet])
def test_it_trains_as_torch_trains_it(make):
    made = network(make, depth=2, decayed=("*.weight",))
    found = trained(made, [5], steps=6, batch_size=None)
    with torch.random.fork_rng():
        torch.manual_seed(random_stream(5, "init").initial_seed())
        module = make(depth=2)
    groups = [
        {"params": [p for name, p in module.named_parameters() if not name.endswith(".weight")], "weight_decay": 0.0},
        {
            "params": [
                p
                for name, p in module.named_parameters()
                if name.endswith(".weight") and name not in made.report.head.sources
            ],
            "weight_decay": 0.01,
        },
        {"params": [dict(module.named_parameters())[name] for name in made.report.head.sources], "weight_decay": 0.02},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    x, labels = samples()
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module.train()(x.view(-1, 1, 8, 8)), labels).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in module.parameters()])
    torch.testing.assert_close(found.theta_TP[0], expected, atol=1e-5, rtol=1e-4)
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(found.untrained[name][0], buffer)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module.eval()(x.view(-1, 1, 8, 8)), labels)
    torch.testing.assert_close(found.evaluate()["loss"][0].float(), loss, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("arguments", [{"make": MLP, "depth": 1, "dropout": 0.3}, {"make": ResNet}])
def test_module_resumes_bitwise(arguments):
    made = network(**arguments)
    whole, first = trained(made, [0, 1]), trained(made, [0, 1], steps=4)
    second = trainer(made, [1])
    second.load_state(first.state(), [1])
    for _ in range(6):
        second.step()
    assert torch.equal(whole.theta_TP[1], second.theta_TP[0])


def test_layers_are_found_numbered_and_pooled():
    names = [layer.name for layer in network(Mixer, depth=2, width=8).measured_layers()]
    assert names == ["input", "blocks.0", "blocks.1", "head input"]
    assert [(layer.name, layer.shape) for layer in network(ResNet, maps="flatten").layers()] == [
        *(("layers.0", (4, 8, 8)), ("layers.1", (4, 8, 8)), ("head input", (4,)))
    ]
    chosen = network(ResNet, patterns=("layers.*", "stem"))
    assert [(layer.name, layer.shape) for layer in chosen.layers()] == [
        *(("stem", (4,)), ("layers.0", (4,)), ("layers.1", (4,)), ("head input", (4,)))
    ]
    features = list(trainer(chosen, [0]).features(0))
    assert [tuple(feature.shape) for feature in features] == [(1, SAMPLES, 4)] * 4
    assert torch.equal(features[-1], features[-2])  # the head reads the mean over pixels


class Shared(nn.Module):
    """One block, applied several times."""

    def __init__(self, depth=3, norm=True):
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.norm, self.depth = nn.LayerNorm(8) if norm else nn.Identity(), depth

    def forward(self, x):
        x = self.stem(x.flatten(1))
        for _ in range(self.depth):
            x = x + self.block(x).relu()
        return self.head(self.norm(x))


def test_repeated_block_is_several_layers():
    made = network(Shared, patterns=("head", "block", "stem"))
    names = ["stem", "block", "block (call 2)", "block (call 3)", "head input", "head"]
    assert [layer.name for layer in made.layers()] == names
    pack = trainer(made, [0, 1])
    features = list(pack.features(1))
    assert [feature.shape[-1] for feature in features] == [8, 8, 8, 8, 8, 10]
    x, labels = samples()
    module = Shared()
    rows, seen = depthrate.probe(module, (x, labels), layers="stem,block,head", features=True)
    assert [row["name"] for row in rows] == ["input", *names]
    assert [row["name"] for row in rows if row["is_last"]] == ["head input"], "logits are no features"
    with torch.no_grad():
        h = module.stem(x.flatten(1))
        for call in range(3):
            torch.testing.assert_close(seen[names[1 + call]], module.block(h))
            h = h + module.block(h).relu()
        torch.testing.assert_close(seen["head input"], module.norm(h))
        torch.testing.assert_close(seen["head"], module.head(module.norm(h)))
    without = depthrate.probe(module, (x, labels), layers="stem,block")
    last, expected = rows[-2], without[-1]
    assert last["nc3"] == expected["nc3"] and last["relative_position"] == expected["relative_position"] == 1


class InPlace(nn.Module):
    """What a block gives is overwritten by the ReLU behind it."""

    def __init__(self, inplace: bool):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(64, 8), nn.Linear(8, 8)])
        self.relu, self.head = nn.ReLU(inplace=inplace), nn.Linear(8, 10)

    def forward(self, x):
        x = x.flatten(1)
        for block in self.blocks:
            x = self.relu(block(x))
        return self.head(x)


def test_overwritten_features_keep_their_values():
    plain, overwritten = (network(InPlace, inplace=inplace) for inplace in (False, True))
    assert [layer.name for layer in overwritten.layers()] == ["blocks.0", "blocks.1", "head input"]
    features = [list(trainer(made, [0, 1]).features(1)) for made in (plain, overwritten)]
    assert all(torch.equal(one, other) for one, other in zip(*features, strict=True)) and (features[1][0] < 0).any()
    rows = [depthrate.probe(InPlace(inplace), samples()) for inplace in (False, True)]
    assert [[row["name"] for row in item] for item in rows] == [["input", "blocks.0", "blocks.1", "head input"]] * 2


class Counting(nn.Module):
    """Its output depends on how often it has run."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Linear(64, 8)]), nn.Linear(8, 10)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x):
        self.runs += 1
        return self.head(self.layers[0](x.flatten(1))) * self.runs.clone()


def test_measuring_keeps_module_state():
    made = trainer(network(Counting), [0, 1])
    made.evaluate(), list(made.features(1))
    assert made.untrained["runs"].tolist() == [0, 0]
    made.step()
    assert made.untrained["runs"].tolist() == [1, 1]


def test_wrong_modules_are_refused_with_their_line():
    for make, arguments, words in (
        (WrongClasses, {}, ["returns [2, 7]", "10 classes"]),
        (Fails, {}, ["does not accept samples of shape [1, 8, 8]", "own_models.py, line", "flat_inputs"]),
        (MLP, {"depth": 1, "width": -1}, ["MLP(depth=1, width=-1) fails"]),
        (ResNet, {"patterns": ("stages.*",)}, ["'stages.*'", "matches no module", "layers.0", "stem"]),
        (nn.Linear, {"in_features": 64, "out_features": 10}, ["layers is null", "Set a pattern"]),
    ):
        with pytest.raises(ParameterError) as refused:
            network(make, **arguments).layers()
        assert all(word in str(refused.value) for word in words), refused.value


def test_blocks_of_torchs_transformers_are_found():
    module = nn.Sequential()
    module.add_module("first", nn.Linear(8, 8))
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    holder = nn.Module()
    holder.enc = nn.TransformerEncoder(layer, 2)
    assert layer_names(holder, None) == ("enc.layers.0", "enc.layers.1")
    holder.stem = module  # linear maps in a list come first, as before there were such blocks
    assert layer_names(holder, None) == ("stem.first",)


class Looping(nn.Module):
    """Does by hand what no hook sees, `times` times."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.times, self.norm, self.last = times, nn.BatchNorm1d(64), nn.Linear(64, 10)
        self.weight = nn.Parameter(torch.eye(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        for _ in range(self.times):
            h = torch.tanh(h @ self.weight)
        return self.last(h)


def test_timing_keeps_module_state() -> None:
    data = DataShape(num_samples=100, sample_shape=(64,), num_classes=10)
    shape = {"make": Looping, "name": "Looping", "data": data, "patterns": ("norm",)}
    networks = [ModuleNetwork(arguments={"times": times}, **shape) for times in (1, 400)]
    short_s, long_s = (network.step_s(32) for network in networks)
    assert 0 < 5 * short_s < long_s, "the work that hooks do not see counts"
    assert networks[0].step_cost().products == networks[1].step_cost().products
    norm = networks[0].report.module.norm
    assert norm.num_batches_tracked == 0 and bool((norm.running_mean == 0).all())


class Skipping(MLP):
    """Stochastic depth: a step skips blocks at random."""

    def forward(self, x):
        x = self.first(x.flatten(1))
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.5:
                x = x + torch.tanh(block(x))
        return self.head(x)


class Checkpointed(MLP):
    """Recomputes its blocks in the backward pass, from the parameters that it then has."""

    def forward(self, x):
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = torch.tanh(checkpoint(block, x, use_reentrant=False))
        return self.head(x)


class SharingBlocks(MLP):
    def __init__(self, depth=3, **options):
        super().__init__(1, **options)
        self.blocks = nn.ModuleList([self.blocks[0]] * depth)
        self.classifier = self.head


class Lazy(MLP):
    def __init__(self, depth=2):
        super().__init__(depth)
        self.first = nn.LazyLinear(16)


class DrawingElsewhere(MLP):
    """Weights and noise are drawn by numpy and Python."""

    def __init__(self, depth=2):
        super().__init__(depth)
        self.first.weight.data = torch.tensor(np.random.randn(16, 64) / 8, dtype=torch.float32)

    def forward(self, x):
        return super().forward(x * (1 + 0.1 * np.random.rand() + 0.1 * random.random()))


class CachingInEvaluation(MLP):
    """Computes in its change of mode what evaluation reads, as LeViT its attention biases."""

    def train(self, mode=True):
        self.cache = None if mode else self.head.bias.detach() / 2
        return super().train(mode)

    def forward(self, x):
        return super().forward(x) + (self.head.bias / 2 if self.training else self.cache)


class Padded(nn.Module):
    """torch gives the padding no gradient, and over a trial axis it does."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Embedding(9, 8, padding_idx=0)]), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.layers[0]((x.flatten(1) > 0).long()).mean(1))


class Extended(MLP):
    """An MLP with further tensors, whose output a function changes."""

    def __init__(self, change, depth=2, **tensors):
        super().__init__(depth)
        self.change = change
        for name, make in tensors.items():
            (self.register_buffer if name.startswith("own") else self.register_parameter)(name, make())

    def forward(self, x):
        return self.change(self, x.flatten(1))

    def plain(self, x):
        return super().forward(x)


def scalar():
    return nn.Parameter(torch.tensor(2.0))


def normalises(self, x):
    self.head.weight.data = nn.functional.normalize(self.head.weight.data, dim=1)
    return 4 * self.plain(x)


def normalises_in_place(self, x):
    with torch.no_grad():
        self.head.weight.copy_(nn.functional.normalize(self.head.weight, dim=1))
    return 4 * self.plain(x)


def shrinks(self, x):
    self.head.weight.data.div_(1.1)
    return self.plain(x)


def embeds(self, x):
    return self.plain(x + nn.functional.embedding((x[:, 0] > 0).long(), self.table, max_norm=0.5))


def counts(self, x):
    if self.training:
        self.own_count = self.own_count + 1
    return self.plain(x) * (1 + self.own_count / 10)


def teaches(self, x):
    if self.training:
        self.teacher.data.mul_(0.9).add_(self.head.weight.detach(), alpha=0.1)
    return self.plain(x) + x[:, :16] @ self.teacher.t()


def rotates(self, x):
    turned = torch.view_as_complex(x.unflatten(1, (-1, 2)).contiguous()) * self.own_turn
    return self.plain(torch.view_as_real(turned).flatten(1))


def descends(self, x):
    with torch.enable_grad():
        h = x if x.requires_grad else x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.softplus(self.plain(h)).sum(), h, create_graph=True)
    return self.plain(x - gradient)


def descends_functionally(self, x):
    return self.plain(x - torch.func.grad(lambda h: nn.functional.softplus(self.plain(h)).sum())(x))


def short_numbers(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        return self.plain(x).float()


def halves_gradients(self, x):
    h = self.first(x)
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient / 2)
    return self.head(torch.relu(h)) + self.plain(x)


def extended(change, **tensors):
    def make(depth):
        return Extended(change, depth, **tensors)

    return make


def turn():
    return torch.polar(torch.ones(32), torch.arange(32) / 3.0)


EXTENDED = [
    (extended(lambda self, x: self.plain(x) * self.scale, scale=scalar), True),
    (extended(lambda self, x: self.plain(x) * self.own_scale, own_scale=lambda: torch.tensor(2.0)), True),
    (extended(normalises), False),
    (extended(normalises_in_place), False),
    (extended(shrinks), False),
    (extended(embeds, table=lambda: nn.Parameter(torch.ones(2, 64))), False),
    (extended(counts, own_count=lambda: torch.zeros(())), False),
    (extended(teaches, teacher=lambda: nn.Parameter(torch.zeros(10, 16), requires_grad=False)), False),
    (extended(rotates, own_turn=turn), True),
    (extended(descends), False),
    (extended(descends_functionally), True),
    (extended(short_numbers), False),
    (extended(halves_gradients), False),
]
"""Functions that make modules, and whether trials train fused."""


@pytest.mark.parametrize(("make", "is_fused"), EXTENDED)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tensors_and_gradients_of_all_kinds_train_as_torch_trains_them(make, is_fused, optimizer):
    made = network(make, depth=2)
    assert (made.unfused_reason is None) == is_fused
    pack, again = (trained(made, seeds, 4, batch_size=None, optimizer=optimizer) for seeds in ([0, 1], [1]))
    torch.testing.assert_close(pack.theta_TP[1], again.theta_TP[0])
    module = build_module(make, made.arguments, random_stream(1, "init").initial_seed(), "", made.data)
    named, specs = dict(module.named_parameters()), {spec.name: spec.decay for spec in made.parameter_specs()}
    decayed = {"last": 0.02, "hidden": 0.01, None: 0.0}
    groups = [{"params": [named[name]], "weight_decay": decayed[decay]} for name, decay in specs.items()]
    torch_optimizer = torch.optim.SGD(groups, 0.05, 0.9) if optimizer == "sgd" else torch.optim.Adam(groups, 0.05)
    x, labels = samples()
    for _ in range(4):
        torch_optimizer.zero_grad()
        nn.functional.cross_entropy(module(x.view(-1, 1, 8, 8)), labels).backward()
        torch_optimizer.step()
    expected = torch.cat([named[name].detach().flatten() for name in specs])
    torch.testing.assert_close(again.theta_TP[0], expected, atol=1e-5, rtol=1e-4)
    theta_TP = again.theta_TP.clone()
    loss = nn.functional.cross_entropy(module.eval()(x.view(-1, 1, 8, 8)), labels)
    torch.testing.assert_close(again.evaluate()["loss"][0].float(), loss.detach(), atol=1e-5, rtol=1e-4)
    assert torch.equal(again.theta_TP, theta_TP), "a measurement leaves the weights as they are"


@pytest.mark.parametrize(
    ("make", "is_fused"),
    [
        *((SharingBlocks, True), (Lazy, True), (Padded, False), (Checkpointed, False), (CachingInEvaluation, False)),
        *((Skipping, False), (DrawingElsewhere, False)),
    ],
)
def test_unusual_modules_train_as_torch_trains_them(make, is_fused):
    made = network(make, **({"depth": 2} if issubclass(make, MLP) else {"patterns": ("layers.*",)}))
    assert (made.unfused_reason is None) == is_fused
    pack, again = (trained(made, seeds, 4, batch_size=None) for seeds in ([0, 1], [1]))
    if make is not Checkpointed:  # several trials at once are no case of a launch
        assert torch.equal(pack.theta_TP[1], again.theta_TP[0])
    if make in (Skipping, DrawingElsewhere):
        assert len(made.report.training.trained) == 8
        return
    module = build_module(make, made.arguments, random_stream(1, "init").initial_seed(), "", made.data)
    named = dict(module.named_parameters())
    decayed = {"last": 0.02, "hidden": 0.01, None: 0.0}
    specs = {spec.name: spec.decay for spec in made.parameter_specs()}
    groups = [{"params": [p], "weight_decay": decayed[specs[name]]} for name, p in named.items() if name in specs]
    optimizer = torch.optim.SGD(groups, 0.05, 0.9)
    x, labels = samples()
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x.view(-1, 1, 8, 8)), labels).backward()
        optimizer.step()
    expected = torch.cat([named[name].detach().flatten() for name in specs])
    torch.testing.assert_close(again.theta_TP[0], expected, atol=1e-5, rtol=1e-4)
    loss = nn.functional.cross_entropy(module.eval()(x.view(-1, 1, 8, 8)), labels)
    torch.testing.assert_close(again.evaluate()["loss"][0].float(), loss.detach(), atol=1e-5, rtol=1e-4)


def scripted(depth):
    return torch.jit.script(MLP(depth))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripted_modules_are_refused():
    with pytest.raises(ParameterError, match="TorchScript"):
        _ = network(scripted, depth=1).report


class Refused(MLP):
    """Computes what has no gradient, in one of several ways."""

    def __init__(self, how, depth=1):
        super().__init__(depth)
        self.how, self.kept = how, 0.0
        weight = self.head.weight
        if how == "gradient hook":
            weight.register_hook(lambda gradient: gradient / 2)
        if how == "hook after gradients":
            weight.register_post_accumulate_grad_hook(lambda parameter: None)
        if how in ("bfloat16", "float16", "complex64"):
            self.head.weight = nn.Parameter(weight.detach().to(getattr(torch, how)))
        if how == "sparse":
            self.table = nn.Embedding(2, 64, sparse=True)
        if how == "own generator":
            self.first.weight.data = torch.tensor(np.random.default_rng().normal(size=(16, 64)), dtype=torch.float32)

    def forward(self, x):
        if self.how == "sparse":
            x = x.flatten(1) + self.table((x.flatten(1)[:, 0] > 0).long())
        output = super().forward(x)
        if self.how == "in place":
            h = torch.tanh(output)
            h += output
            g = torch.tanh(h)
            g += h
            return g
        if self.how == "kept graph":
            output = output + self.kept
            self.kept = output.mean()
        if self.how == "kept numbers":
            output = output + self.kept
            self.kept = self.kept + output.mean().detach()
        if self.how == "reentrant":
            return checkpoint(self.head, torch.relu(self.first(x.flatten(1))), use_reentrant=True)
        changes = {"detached": output.detach, "integers": output.long, "complex": lambda: output + 0j}
        return changes.get(self.how, lambda: output)()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        *(
            ("in place", "modified by an inplace operation"),
            ("detached", "does not require grad"),
            ("integers", "grad"),
        ),
        *(("complex", "real scalar"), ("kept graph", "changes kept in its calls")),
        ("gradient hook", r"'head.weight' of model:Refused has a hook \(register_hook\)"),
        ("hook after gradients", "'head.weight' .*register_post_accumulate_grad_hook"),
        *((how, f"'head.weight' .* is torch.{how}") for how in ("bfloat16", "float16", "complex64")),
        ("sparse", "'table.weight' .* sparse=False"),
        *(
            ("kept numbers", "changes kept in its calls"),
            ("reentrant", "use_reentrant=False"),
            ("own generator", "one seed"),
        ),
    ],
)
def test_what_cannot_train_is_refused_at_plan(how, words):
    with pytest.raises(ParameterError, match=words):
        _ = network(Refused, how=how).unfused_reason
