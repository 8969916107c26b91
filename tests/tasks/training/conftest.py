"""Fixtures for the tests of training."""

import pytest
import torch

from depthrate.tasks.training.pack_state import PackState


@pytest.fixture
def orders_of_cpu(monkeypatch):
    """Let a pack on the GPU follow the orders of one on the CPU, which it otherwise draws itself."""

    def draw(trainer, num_samples):
        orders = [torch.randperm(num_samples, generator=generator) for generator in trainer._generators]
        return torch.stack(orders).to(trainer.device)

    monkeypatch.setattr(PackState, "_draw_orders", draw)
