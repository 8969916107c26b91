"""Labels that are no classes are refused by a sentence wherever they enter, and classes of every type are taken."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
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
    "missing integer": (pd.Series([0, 1, 2] * 3 + [0, 1, None], dtype="Int64"), "the label of sample 11 is"),
    "missing text": (pd.Series(["a", "b"] * 5 + ["a", None], dtype="string"), "the label of sample 11 is <NA>"),
    "no date": (pd.to_datetime(["2020-01-01", "2021-01-01"] * 5 + ["2020-01-01", None]), "label of sample 11 is NaT"),
    "nan among texts": (["a", "b"] * 5 + ["a", float("nan")], r"several types \(int, str\)"),
    "mixed": ([0, "a"] * 6, r"several types \(int, str\)"),
    "bool and int": ([True, 0, 2] * 4, r"several types \(bool, int\)"),
    "masked": (np.ma.array(CLASSES, mask=CLASSES == 2), "masked"),
    "sparse": (torch.tensor(CLASSES).to_sparse(), "sparse"),
    "bfloat16": (torch.tensor(CLASSES).bfloat16(), r"x\.float\(\)"),
    "marked": (CLASSES - 1, r"-1 is the only negative label.*x\[y >= 0\].*return_inverse"),
    "ignored": (np.where(CLASSES == 2, -100, CLASSES).astype(float), "-100.* is the only negative label"),
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
def test_invalid_classes_are_refused(kind, entry):
    y, words = NO_CLASSES[kind]
    if entry == "items" and kind in ("fewer", "a column", "masked", "sparse", "bfloat16", "missing text"):
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
    [
        *(CLASSES, CLASSES.astype(float), CLASSES.tolist(), CLASSES > 0, np.array(list("abc"))[CLASSES]),
        *(list("abc" * 4), np.where(CLASSES > 0, 1, -1), CLASSES - 2, np.ma.array(CLASSES)),
    ],
    ids=["int", "whole", "list", "bool", "text", "texts", "signs", "negative", "unmasked"],
)
def test_classes_of_every_type_are_taken(y, entry):
    if entry in ("mapping", "test split") and (np.asarray(y).dtype.kind in "bU" or np.min(y) < 0):
        pytest.skip("the other split's classes are numbers")
    ENTRY_POINTS[entry](y)


SPARSE = scipy.sparse.csr_matrix(X)


@pytest.mark.parametrize("x", [SPARSE, torch.tensor(X).to_sparse(), np.ma.array(X, mask=X > 1)], ids=str)
def test_masked_and_sparse_samples_are_refused(x):
    for read in (
        lambda: depthrate.measure(x, CLASSES),
        lambda: depthrate.probe(nn.Sequential(nn.Linear(4, 5)), (x, CLASSES)),
        lambda: data_of_function(lambda: (x, CLASSES)).read({}),
    ):
        with pytest.raises((depthrate.FeaturesError, DatasetError), match="masked, sparse or nested"):
            read()


def test_a_table_and_a_column_are_arrays():
    frame, column = pd.DataFrame(X), pd.Series(CLASSES)
    expected = data_of_function(lambda: (X, CLASSES, X, CLASSES)).read({}).content_hash
    assert data_of_function(lambda: (frame, column, frame, column)).read({}).content_hash == expected
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    rows = [depthrate.probe(model, data, layers="0") for data in ((frame, column), (X, CLASSES))]
    assert rows[0][-1]["nc1"] == pytest.approx(rows[1][-1]["nc1"], rel=1e-5)
    with pytest.raises(DatasetError, match="returns DataFrame, expected"):
        data_of_function(lambda: frame).read({})


def test_two_columns_of_labels_are_refused(tmp_path):
    frame = pd.DataFrame({"f": X[:, 0], "y": CLASSES, "label": CLASSES})
    frame.to_parquet(tmp_path / "two.parquet")
    np.savez(tmp_path / "two.npz", x=X, y=CLASSES, label=CLASSES)
    for name in ("two.parquet", "two.npz"):
        with pytest.raises(DatasetError, match=r"label, .*expected"):
            CustomData(tmp_path / name, TARGETS["own"]).read({})
    for name in ("y", "label"):
        frame.drop(columns=name).to_parquet(tmp_path / f"{name}.parquet")
        data = CustomData(tmp_path / f"{name}.parquet", TARGETS["own"]).read({})
        assert data.x_NI.shape == (12, 1) and data.class_counts_K.tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([[0, 1, 0], ["a", "b", "a"]], r"several types \(int, str\)"),
        ([[0, 1, 0], [True, False, True]], r"several types \(bool, int\)"),
        ([[b"a", b"b", b"a"], ["a", "b", "a"]], r"several types \(bytes, str\)"),
        ([[-1, -1, -1], [0, 1, 0]], "-1 is the only negative label"),
    ],
)
def test_batches_are_checked_together(batches, words):
    def stream():
        metrics = depthrate.StreamingMetrics()
        for labels in batches:
            metrics.update(X[:3], labels)
        return metrics.result()

    loader = [(torch.tensor(X[:3]), labels) for labels in batches]
    for read in (stream, lambda: depthrate.probe(nn.Sequential(nn.Linear(4, 5)), loader)):
        with pytest.raises(depthrate.FeaturesError, match=words):
            read()


@pytest.mark.slow
def test_language_models_need_token_rows():
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
