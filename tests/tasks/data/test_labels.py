"""Labels that are no classes are refused by a sentence wherever they enter, and classes of every type are taken."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import depthrate
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.data import CustomData
from depthrate.tasks.supervised.task import TARGETS
from tests.support.own_data import data_of_function

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype(np.float32)
CLASSES = np.arange(12) % 3
NO_CLASSES = {
    "continuous": (RNG.normal(size=12), "targets of a regression.*np.digitize"),
    "single precision": (torch.linspace(0, 1, 12), "targets of a regression"),
    "several targets": (RNG.normal(size=(12, 2)), "2 numbers per sample, targets of a regression"),
    "one-hot": (np.eye(3)[CLASSES], r"one-hot rows.*y\.argmax\(1\)"),
    "multi-label": (np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]] * 4), "multi-label"),
    "ragged": ([[0], [1, 2], [2]] * 4, "multi-label"),
    "tokens": (np.arange(12 * 5).reshape(12, 5) % 7, r"a label per token.*h_NTD\.flatten\(0, 1\)"),
    "a column": (CLASSES[:, None].astype(float), r"y\[:, 0\]"),
    "nan": (np.where(np.arange(12) == 5, np.nan, CLASSES), "the label of sample 5 is nan"),
    "none": (np.array([None, *"ab" * 5, "a"], dtype=object), "the label of sample 0 is None"),
    "fewer": (CLASSES[:-1], r"one (label )?per sample"),
}


class Items:
    """A map-style data set as people write them."""

    def __init__(self, y):
        self.y = y

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], self.y[index]


ENTRY_POINTS = {
    "measure": lambda y: depthrate.measure(X, y),
    "StreamingMetrics": lambda y: depthrate.StreamingMetrics().update(X, y),
    "probe": lambda y: depthrate.probe(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), (X, y), layers="0"),
    "loader": lambda y: depthrate.probe(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), [(X, y)], layers="0"),
    "function": lambda y: data_of_function(lambda: (X, y)).read({}),
    "mapping": lambda y: data_of_function(lambda: {"x": X, "y": y, "x_test": X, "y_test": CLASSES}).read({}),
    "test split": lambda y: data_of_function(lambda: (X, CLASSES, X, y)).read({}),
    "items": lambda y: data_of_function(lambda: Items(y)).read({}),
}


@pytest.mark.parametrize("entry", ENTRY_POINTS)
@pytest.mark.parametrize("kind", NO_CLASSES)
def test_what_is_no_class_is_refused_wherever_it_enters(kind, entry):
    y, words = NO_CLASSES[kind]
    if entry == "items" and kind in ("fewer", "a column"):
        pytest.skip("an item has its label, and one number in a list is one label")
    with pytest.raises((depthrate.FeaturesError, DatasetError), match=words):
        ENTRY_POINTS[entry](y)


@pytest.mark.parametrize("kind", ["continuous", "several targets", "nan", "a column"])
def test_files_with_them_are_refused(kind, tmp_path):
    y, words = NO_CLASSES[kind]
    np.savez(tmp_path / "d.npz", x=X, y=y)
    pd.DataFrame({"x": list(X), "y": list(y) if y.ndim == 2 else y}).to_parquet(tmp_path / "d.parquet")
    for name in ("d.npz", "d.parquet"):
        with pytest.raises(DatasetError, match=words if name == "d.npz" or y.ndim == 1 else "multi-label"):
            CustomData(tmp_path / name, TARGETS["own"]).read({})


@pytest.mark.parametrize("entry", ENTRY_POINTS)
@pytest.mark.parametrize(
    "y",
    [CLASSES, CLASSES.astype(float), CLASSES.tolist(), CLASSES > 0, np.array(list("abc"))[CLASSES], list("abc" * 4)],
    ids=["int", "whole", "list", "bool", "text", "texts"],
)
def test_classes_of_every_type_are_taken(y, entry):
    if entry in ("mapping", "test split") and np.asarray(y).dtype.kind in "bU":
        pytest.skip("the other split's classes are numbers")
    ENTRY_POINTS[entry](y)


@pytest.mark.slow
def test_language_models_are_told_what_a_row_a_sample_is():
    class Language(nn.Module):
        def __init__(self, as_rows=False):
            super().__init__()
            self.embedding = nn.Embedding(7, 6)
            self.blocks = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
            self.head = nn.Linear(6, 3)
            self.as_rows = as_rows

        def forward(self, tokens):
            h = self.blocks(self.embedding(tokens))
            return self.head(h[:, -1] if self.as_rows else h)

    data = DataShape(num_samples=12, sample_shape=(5,), num_classes=3, vocabulary_size=7)
    make = partial(ModuleNetwork, name="m:Language", arguments={}, patterns=None)
    with pytest.raises(ParameterError, match=r"\[2, 5, 3\] for 2 samples, one row per token.*h\[:, -1\]"):
        make(make=Language, data=data).layers()
    assert len(make(make=partial(Language, True), data=data).layers()) == 3
    numbers = DataShape(num_samples=12, sample_shape=(5,), num_classes=3)
    with pytest.raises(ParameterError, match=r"embeds tokens.*add vocabulary_size"):
        make(make=partial(Language, True), data=numbers).layers()
