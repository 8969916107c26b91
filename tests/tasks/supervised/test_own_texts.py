"""A network of the user's on a published set of texts: it reads tokens, and is told how many and of how many kinds."""

import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.data import reviews
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.supervised.parameters import DEFAULT_CONTEXT_LENGTH, DEFAULT_VOCABULARY_SIZE
from tests.support.own_data import Folder
from tests.support.training_context import Context, ids_of

MODEL = """
import torch
from torch import nn

class Told(nn.Module):
    def __init__(self, depth: int, vocabulary_size, context_length, num_classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, 6)
        self.position = nn.Parameter(torch.zeros(context_length, 6))
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(depth)])
        self.head = nn.Linear(6, num_classes)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x.mean(1))

class Fixed(Told):
    def __init__(self, depth: int):
        super().__init__(depth, 12, 5, 2)

class Plain(nn.Module):
    def __init__(self, num_inputs, num_classes):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(num_inputs, num_inputs)])
        self.head = nn.Linear(num_inputs, num_classes)

    def forward(self, x):
        return self.head(self.blocks[0](x.flatten(1)))

class Image(nn.Module):
    def __init__(self, num_inputs, num_classes, context_length: int = 3):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(num_inputs, num_inputs) for _ in range(context_length)])
        self.head = nn.Linear(num_inputs, num_classes)

    def forward(self, x):
        x = x.flatten(1)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)
"""
WORDS = ["a", "fine", "bad", "film", "it", "is", "not", "great", "dull", "and", "so", "on"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Hold an archive of 40 reviews, and expect no more."""
    monkeypatch.setitem(PUBLISHED, "imdb", replace(PUBLISHED["imdb"], num_samples=40, smallest_class=20))
    monkeypatch.setattr(reviews, "REVIEWS_PER_CLASS", 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as archive:
        for number in range(20):
            for label, own in (("pos", "great"), ("neg", "bad")):
                text = " ".join([*rng.choice(WORDS, size=6), own]).encode()
                info = tarfile.TarInfo(f"aclImdb/train/{label}/{number}_{9 if label == 'pos' else 1}.txt")
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text))
    return tmp_path


def sweep_in(folder, name, **params):
    given = {"arch": f"./model.py:{name}", "dataset": "imdb", "steps": 12, "lr": 0.1, **params}
    return sweep_of_spec({"name": "s", "task": "collapse", "params": given, "seeds": 2}, folder)


def run(sweep, folder, only=None):
    task = sweep.load_task()
    trials = [trial.params for trial in expand(sweep, task)][only or slice(None)]
    return list(task.run(trials, Context(ids_of(trials), data=Folder(str(folder)))))


def test_network_learns_the_vocabulary(folder):
    sweep = sweep_in(folder, "Told", depth=2, context_length=5, vocabulary_size=12)
    task = sweep.load_task()
    params = expand(sweep, task)[0].params
    assert (params["context_length"], params["vocabulary_size"], params["num_classes"]) == (5, 12, 2)
    assert "trains fused" in " ".join(task.remarks([params]))
    together, alone = run(sweep, folder), run(sweep, folder, slice(1, 2))
    assert [row["layer"] for row in together[1].tables["metrics"] if row["step"] == 12] == [1, 2, 3]
    for one, other in zip(together[1].tables["curves"], alone[0].tables["curves"], strict=True):
        assert one == other
    curves = together[0].tables["curves"]
    assert curves[-1]["loss"] < curves[0]["loss"]


def test_argumentless_network_reads_the_sweep(folder):
    sweep = sweep_in(folder, "Fixed", depth=1, context_length=5, vocabulary_size=12)
    assert run(sweep, folder)[0].tables["metrics"]
    with pytest.raises(SweepError, match=r"does not accept samples of shape \[64\] \(tokens"):
        expand(sweep_in(folder, "Fixed", depth=1))


def test_default_texts_read_as_built_in(folder):
    params = expand(sweep_in(folder, "Told", depth=1))[0].params
    assert (params["context_length"], params["vocabulary_size"]) == (DEFAULT_CONTEXT_LENGTH, DEFAULT_VOCABULARY_SIZE)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("Told", {"depth": 1, "context_length": 0}, "context_length is 0, expected an int >= 1 for 'imdb'"),
        ("Fixed", {"depth": 1, "vocabulary_size": 2}, "vocabulary_size"),
        ("Fixed", {"depth": 1, "dataset": "digits", "vocabulary_size": 9}, "'digits' is not text"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(folder, name, params, words):
    with pytest.raises(SweepError, match=words):
        expand(sweep_in(folder, name, **params))


def test_image_arguments_stay_the_network_s(folder):
    sweep = sweep_in(folder, "Image", dataset="digits")
    params = expand(sweep)[0].params
    assert params["context_length"] == 3 and "vocabulary_size" in params
    assert len(sweep.load_task().remarks([params])) == 3, "and the last linear map"


def test_trials_of_before_keep_their_names(folder):
    names = [trial.trial_id for trial in expand(sweep_in(folder, "Plain", dataset="digits", num_inputs=64))]
    assert names == ["28e69ee257fdc4e4", "be67396abd1e058b"]  # as of 2026-11-22, before such networks read texts


TOKENS = np.random.default_rng(1).integers(0, 12, size=(60, 5))
NEXT = TOKENS[:, -1] % 3


def save_tokens(folder, **changes):
    np.savez(folder / "tokens.npz", **{"x": TOKENS, "y": NEXT, "vocabulary_size": 12, **changes})


def test_custom_tokens_on_any_network(folder):
    save_tokens(folder, x=TOKENS[:40], y=NEXT[:40], x_test=TOKENS[40:], y_test=NEXT[40:])
    for arch, more in (("t11", {"width": 8}), ("./model.py:Told", {})):
        sweep = sweep_in(folder, "", arch=arch, dataset="./tokens.npz", depth=2, **more)
        task = sweep.load_task()
        params = expand(sweep, task)[0].params
        if "Told" in arch:
            assert (params["context_length"], params["vocabulary_size"], params["num_classes"]) == (5, 12, 3)
        trial = task.read(params)
        dataset = task.load(trial, Folder("."))
        assert dataset.x_NI.dtype == np.int64 and dataset.test.x_NI.dtype == np.int64
        assert dataset.shape.vocabulary_size == 12 == task.data_shape(trial).vocabulary_size
        order = np.argsort(NEXT[:40], kind="stable")
        np.testing.assert_array_equal(dataset.x_NI, TOKENS[:40][order], "as they come: tokens are not normalised")
        for result in run(sweep, folder):
            curves = [row["loss"] for row in result.tables["curves"] if row["split"] == "train"]
            assert curves[-1] < curves[0] and {row["split"] for row in result.tables["metrics"]} == {"train", "test"}


def test_what_are_no_tokens_is_said(folder):
    for changes, words in (
        ({"x": TOKENS + 1}, r"with vocabulary_size 12, .* from 1 to 12\. Use int 0 to 11 as \[N, tokens\]"),
        ({"x": TOKENS * 0.5}, "they are float64"),
        ({"vocabulary_size": 2.5}, r"vocabulary_size is 2\.5, expected an int"),
        ({"vocabulary_size": [12, 12]}, "expected an int"),
    ):
        save_tokens(folder, **changes)
        with pytest.raises(SweepError, match=words):
            expand(sweep_in(folder, "", arch="t11", dataset="./tokens.npz", depth=1))
    save_tokens(folder)
    with pytest.raises(SweepError, match="'rn1', but 'tokens.npz' is text. Set arch to t11, t12, t21, t22"):
        expand(sweep_in(folder, "", arch="rn1", dataset="./tokens.npz", depth=2))
    np.savez(folder / "numbers.npz", x=TOKENS, y=NEXT)
    with pytest.raises(SweepError, match="For custom tokens, add vocabulary_size"):
        expand(sweep_in(folder, "Fixed", dataset="./numbers.npz", depth=1))
    spec = {"name": "s", "task": "regression", "params": {"arch": "mlp", "depth": 1, "dataset": "./tokens.npz"}}
    with pytest.raises(SweepError, match="regression reads numbers"):
        expand(sweep_of_spec(spec, folder))
