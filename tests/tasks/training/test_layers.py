"""Trials measured together have bitwise the same rows as trials measured alone."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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
    for layers_together in (2, 9):
        monkeypatch.setattr(layers, "layers_per_reduction", lambda *sizes, count=layers_together: count)
        monkeypatch.setattr(
            layers, "runs_of_trials", lambda trainer, positions: [(position, 1) for position in positions]
        )
        assert measured(training, trainer, range(5)) == alone
    assert torch.is_grad_enabled()
    assert trainer.step().isfinite().all()


class Operations(TorchDispatchMode):
    """Counts operations that compute something, each of which is a launch on a GPU."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        inputs = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, torch.Tensor)}
        is_view = isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() in inputs
        self.count += not is_view and not function.name().startswith("aten::empty")
        return found


def test_layers_of_one_width_are_reduced_together_on_a_gpu(monkeypatch):
    """The launches per measurement do not grow with depth, except for the network's own."""
    rng = np.random.default_rng(0)
    data = dataset_of(rng.normal(size=(40, 16)).astype("float32"), np.repeat(np.arange(4), 10))
    counts = {}
    for together in (1, 100):
        monkeypatch.setattr(layers, "layers_per_reduction", lambda *sizes, count=together: count)
        for depth in (4, 12):
            trials = [
                COLLAPSE.schema.fill({"arch": "rn1", "depth": depth, "steps": 9, "width": 16, "seed": seed})
                for seed in range(2)
            ]
            training = training_on(trials, data)
            trainer = training.begin()
            with Operations() as operations:
                training.measure(trainer, range(2), 0)
            counts[together, depth] = operations.count
    apart, stacked = (counts[together, 12] - counts[together, 4] for together in (1, 100))
    assert stacked < 0.4 * apart
