"""Trainers of modules by generated kernels, and modules of a user's file for tasks."""

import torch
from torch import nn

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.training.engines.generated import generated_library
from depthrate.tasks.training.trainer import FusedTrainer

MODELS = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, depth: int = 2, width: int = 12, num_inputs: int = 64, num_classes: int = 10):
        super().__init__()
        self.first = nn.Linear(num_inputs, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)
        self.register_buffer("scale", torch.rand(width) + 0.5)

    def forward(self, x):
        x = self.first(x.flatten(1)) * self.scale
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(self.norm(x))


class Regression(Net):
    def __init__(self, depth: int = 1, num_inputs: int = 6, num_targets: int = 2):
        super().__init__(depth, 12, num_inputs, num_targets)


class Gpt(nn.Module):
    def __init__(self, depth: int = 1, width: int = 8, vocabulary_size: int = 7, context_length: int = 5):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary_size, width), nn.Embedding(context_length, width)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 2, width, 0.0, batch_first=True) for _ in range(depth)]
        )
        self.head = nn.Linear(width, vocabulary_size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context_length))

    def forward(self, x):
        h = self.tokens(x) + self.places.weight
        for block in self.blocks:
            h = block(h, src_mask=self.mask, is_causal=True)
        return self.head(h)
"""
INPUTS, CLASSES = 12, 5


class Buffers(nn.Module):
    """A buffer of numbers that differs from seed to seed, and one of integers that does not, unless `draws_integers`."""

    def __init__(self, width: int = 16, draws_integers: bool = False):
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, width), nn.Linear(width, width)
        self.table, self.norm, self.head = nn.Embedding(7, width), nn.LayerNorm(width), nn.Linear(width, CLASSES)
        self.register_buffer("scale", torch.rand(width) + 0.5)
        rows = torch.randint(7, (3,)) if draws_integers else torch.tensor([5, 0, 5])
        self.register_buffer("rows", rows)

    def forward(self, x):
        x = torch.tanh(self.first(x)) * self.scale + self.table(self.rows).sum(0)
        return self.head(self.norm(x + torch.relu(self.second(x))))


class Mixing(nn.Module):
    """A module whose samples depend on each other."""

    def __init__(self, function):
        super().__init__()
        self.first, self.function, self.head = nn.Linear(INPUTS, 8), function, nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.function(self.first(x)))


def network_of(make=Buffers, samples=70, **arguments):
    data = DataShape(num_samples=samples, sample_shape=(INPUTS,), num_classes=CLASSES)
    return ModuleNetwork(make=make, name="Net", arguments=arguments, data=data, patterns=("first",))


def trainer_of(network, plan, trials, *, native=False):
    """Return a trainer on random samples whose classes are of very different sizes."""
    samples = network.data.num_samples
    generator = torch.Generator().manual_seed(samples)
    x_NI = torch.randn(samples, INPUTS, generator=generator, dtype=torch.float64).to(plan.dtype)
    labels_N = (torch.rand(samples, generator=generator) ** 2 * CLASSES).long().sort()[0]
    trainer = FusedTrainer(network, plan, trials, x_NI, labels_N)
    if native:
        dataset = Dataset(x_NI.numpy(), labels_N.numpy(), labels_N.bincount(minlength=CLASSES).numpy())
        trainer.use_native(generated_library(network, plan, dataset, lambda: False)[0])
    return trainer
