"""Time of a training step of a user's `nn.Module` on one core, found by running it.

A step's time has a fixed part and a part per sample, determined by two runs with different numbers of samples.
"""

import time

import torch
from torch import Tensor, nn

from depthrate.tasks.data.dataset import DataShape

FEW, MANY = 2, 16
"""Samples in the two runs."""
REPEATS = 3
LONG_S = 0.5
"""Duration from which a run is not repeated, and is also used for runs with more samples."""


def step_seconds(module: nn.Module, data: DataShape) -> tuple[float, float]:
    """Measure the CPU seconds of a step on one core, and return the fixed part and the part per sample."""
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
        for name, value in module.named_buffers():  # restores running statistics, which training mode changes
            value.copy_(buffers[name])
    per_sample_s = max(0.0, many_s - few_s) / (MANY - FEW)
    return max(0.0, few_s - FEW * per_sample_s), per_sample_s


def samples(data: DataShape, number: int) -> Tensor:
    """Draw samples [number, *shape] of the data's shape: tokens or numbers."""
    generator = torch.Generator().manual_seed(0)
    shape = (number, *data.sample_shape)
    if data.vocabulary_size is not None:
        return torch.randint(data.vocabulary_size, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _seconds(module: nn.Module, x: Tensor) -> float:
    """Return the minimal CPU seconds of a forward and backward pass, including a warm-up pass."""
    module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    durations_s = []
    for _ in range(1 + REPEATS):
        started = time.process_time()
        torch.autograd.grad(module(x).sum(), parameters, allow_unused=True)
        durations_s.append(time.process_time() - started)
        if durations_s[-1] > LONG_S:
            break
    return min(durations_s)
