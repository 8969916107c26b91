"""Random numbers drawn by a user's module, from torch, numpy and Python."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def seeded(seed: int, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Seed all random numbers while the block runs, then restore their states."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def random_states() -> tuple[Any, ...]:
    """Return the states of all random numbers, for comparison."""
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()
