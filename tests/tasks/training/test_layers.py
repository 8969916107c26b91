"""Trials measured together have bitwise the same rows as trials measured alone."""

import numpy as np
import pytest
import torch

from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training import layers
from tests.support.own_data import dataset_of
from tests.support.training_context import training_on

SHAPES = [
    {"arch": "rn1", "width": 19},
    {"arch": "rn2", "width": 64, "norm": "pre", "loss": "mse"},
    {"arch": "rn1", "width": 33, "dtype": "float64", "geodesic": True},
]


def measured(training, trainer, positions):
    found = training.measure(trainer, positions, 0)
    return [[{name: as_bits(value) for name, value in row.items()} for row in rows] for rows in found]


def as_bits(value):
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("samples", [[6] * 4, [5, 1, 9, 30]], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_together_is_alone_however_many_at_once(shape, samples, monkeypatch):
    rng = np.random.default_rng(0)
    labels_N = np.repeat(np.arange(len(samples)), samples)
    data = dataset_of(rng.normal(size=(len(labels_N), 19)).astype(shape.get("dtype", "float32")), labels_N)
    trials = [COLLAPSE.schema.fill({"depth": 4, "steps": 9, **shape, "seed": seed}) for seed in range(5)]
    training = training_on(trials, data)
    trainer = training.begin()
    for _ in range(3):
        trainer.step()
    alone = [measured(training, trainer, [position])[0] for position in range(5)]
    assert len({str(rows) for rows in alone}) == 5
    for at_once in (1, 2, 5):
        monkeypatch.setattr(layers, "trials_per_measurement", lambda *sizes, at_once=at_once: at_once)
        assert measured(training, trainer, range(5)) == alone
        assert measured(training, trainer, [3, 1]) == [alone[3], alone[1]]
    assert torch.is_grad_enabled()
    assert trainer.step().isfinite().all()
