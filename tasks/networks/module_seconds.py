"""How long a training step of a user's `nn.Module` takes on one core: run and timed, as nothing else tells what it does.

A step's time is a fixed part and a part for each sample; both come from two runs with different numbers of samples.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from depthrate.tasks.data.dataset import DataShape

FEW, MANY = 2, 16
"""Samples of the two runs."""
REPEATS = 3
LONG_S = 0.5
"""A run that takes so long is not repeated, and stands for runs with more samples too."""


def step_seconds(module: nn.Module, data: DataShape) -> tuple[float, float]:
    """Return the processor seconds of a step on one core: the fixed part, and that of each sample."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    was_training = module.training
    try:
        with torch.random.fork_rng(devices=[]):
            few_s = _seconds(module, samples(data, FEW))
            if few_s > LONG_S:
                return 0.0, few_s / FEW
            many_s = _seconds(module, samples(data, MANY))
    finally:
        torch.set_num_threads(threads)
        module.train(was_training)
        for name, value in module.named_buffers():  # running statistics, which training mode changes
            value.copy_(buffers[name])
    each_s = max(0.0, many_s - few_s) / (MANY - FEW)
    return max(0.0, few_s - FEW * each_s), each_s


def samples(data: DataShape, number: int) -> Tensor:
    """Return so many drawn samples [N, *shape] of the data's shape: tokens or numbers."""
    generator = torch.Generator().manual_seed(0)
    shape = (number, *data.sample_shape)
    if data.vocabulary_size is not None:
        return torch.randint(data.vocabulary_size, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _seconds(module: nn.Module, x: Tensor) -> float:
    """Return the least processor seconds of a forward and backward pass, after one that warms up."""
    module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    took = []
    for _ in range(1 + REPEATS):
        started = time.process_time()
        torch.autograd.grad(module(x).sum(), parameters, allow_unused=True)
        took.append(time.process_time() - started)
        if took[-1] > LONG_S:
            break
    return min(took)
