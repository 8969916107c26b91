"""The user's network and data in a sweep: parameters, identity, checks, and what a pack of it measures."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.interface import Engine, TaskError
from depthrate.tasks.parameters import ParameterError
from tests.support import own_models
from tests.support.own_data import data_of_function
from tests.support.training_context import run_pack

X = np.random.default_rng(0).normal(size=(80, 1, 8, 8)).astype(np.float32)
Y = np.arange(80) % 4


@pytest.fixture
def folder(tmp_path):
    shutil.copy(own_models.__file__, tmp_path / "model.py")
    np.savez(tmp_path / "mine.npz", x=X[:60], y=Y[:60], x_test=X[60:], y_test=Y[60:])
    return tmp_path


def sweep_in(folder, arch="./model.py:MLP", grid=None, **params):
    given = {"arch": arch, "dataset": "digits", "steps": 5, "batch_size": 20, **params}
    given = {name: value for name, value in given.items() if value is not None}
    spec = {"name": "s", "task": "collapse", "params": given, "grid": grid or {"depth": [1, 2]}, "seeds": 2}
    return sweep_of_spec(spec, folder)


def run(sweep):
    task = sweep.load_task()
    trials = [trial.params for trial in expand(sweep, task)]
    depths = dict.fromkeys(trial["depth"] for trial in trials)
    packs = [[trial for trial in trials if trial["depth"] == depth] for depth in depths]
    return [result for pack in packs for result in run_pack(task, pack)]


def test_relative_folder_is_refused(folder):
    (folder / "imgs").mkdir()
    with pytest.raises(TaskError, match=r"dataset is 'imgs', .* \./imgs\.$"):
        sweep_in(folder, dataset="imgs")
    (folder / "digits").mkdir()
    assert sweep_in(folder, dataset="digits").params["dataset"] == "digits", "ours, as it was before"


@pytest.mark.slow
def test_callable_arguments_are_parameters(folder):
    sweep = sweep_in(folder, grid={"depth": [1, 2], "width": [8, 16]}, dropout=0.1)
    task = sweep.load_task()
    trials = expand(sweep, task)
    assert len(trials) == 8 and task.name == "own" and "norm" not in task.schema
    params = trials[0].params
    assert (params["arch"], params["depth"], params["dropout"]) == ("model:MLP", 1, 0.1)
    assert (params["num_classes"], params["num_inputs"]) == (10, 64)  # as the data has it
    for wrong, words in (({"widht": 3}, "mean 'width'"), ({"width": "wide"}, "an int"), ({"width": 0.5}, "an int")):
        with pytest.raises(SweepError, match=words):
            expand(sweep_in(folder, **wrong))


def test_identity_follows_content_not_path(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("model.py", "mine.npz"):
        shutil.copy(folder / name, elsewhere / name)
    ids = [trial.trial_id for trial in expand(sweep_in(folder, dataset="mine.npz"))]
    assert [trial.trial_id for trial in expand(sweep_in(elsewhere, dataset="./mine.npz"))] == ids
    changed = X[:60].copy()
    changed[0, 0, 0, 0] += 1
    np.savez(elsewhere / "mine.npz", x=changed, y=Y[:60], x_test=X[60:], y_test=Y[60:])
    others = expand(sweep_in(elsewhere, dataset="./mine.npz"))
    assert not {trial.trial_id for trial in others} & set(ids)
    assert others[0].params["dataset"] == "mine.npz" and len(others[0].params["dataset_hash"]) == 16


@pytest.mark.slow
def test_files_give_the_code(folder):
    (folder / "helper.py").write_text("SCALE = 2\n")
    (folder / "data.py").write_text(
        "import numpy as np\nfrom helper import SCALE\n\n"
        "def make(samples: int = 40, noise=0.5):\n"
        "    rng = np.random.default_rng(0)\n"
        "    y = np.arange(samples) % 4\n"
        "    return SCALE * np.eye(64)[y] + noise * rng.normal(size=(samples, 64)), y\n"
    )
    sweep = sweep_in(
        folder, dataset="./data.py:make", grid={"depth": [1], "noise": [0.1, 0.2]}, samples=60, normalize="none"
    )
    task = sweep.load_task()
    assert set(task.code.contents) == {"model.py", "data.py", "helper.py"}
    trials = expand(sweep, task)
    assert len({trial.params["dataset_hash"] for trial in trials}) == 2
    kept = dict(task.code.contents)
    (folder / "data.py").write_text("raise RuntimeError('edited')\n")
    again = sweep.load_task(kept)
    assert [trial.trial_id for trial in expand(sweep, again)] == [trial.trial_id for trial in trials]
    with pytest.raises(TaskError, match=r"data\.py, line 1.*edited"):
        sweep.load_task()


def test_test_split_is_measured_beside_the_training_split(folder):
    results = run(sweep_in(folder, dataset="mine.npz", batch_size=None))
    assert len(results) == 4
    for result in results:
        metrics, curves = result.tables["metrics"], result.tables["curves"]
        by_split = {split: [row for row in metrics if row["split"] == split] for split in ("train", "test")}
        assert len(by_split["train"]) == len(by_split["test"]) > 0
        assert [(row["step"], row["layer"], row["is_last"]) for row in by_split["train"]] == [
            (row["step"], row["layer"], row["is_last"]) for row in by_split["test"]
        ]
        last_train, last_test = by_split["train"][-1], by_split["test"][-1]
        assert last_train["nc1"] != last_test["nc1"] and last_test["nc3"] is not None
        tested = [row for row in curves if row["split"] == "test"]
        assert len(tested) == len(curves) / 2 and tested[-1]["loss"] > 0 and 0 <= tested[-1]["accuracy"] <= 1
    plain = run(sweep_in(folder, dataset="mine.npz", batch_size=None, test=False))
    assert {row["split"] for row in plain[0].tables["metrics"]} == {"train"}
    trained = [row for row in results[0].tables["metrics"] if row["split"] == "train"]
    np.testing.assert_equal(plain[0].tables["metrics"], trained)


def test_what_cannot_run_is_said_before_anything_trains(folder):
    (folder / "broken.py").write_text("import torch\nimport nowhere_to_be_found\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "data.py").write_text("def make():\n    pass\n")
    np.savez(folder / "short.npz", x=X[:60], y=Y[:59])
    np.savez(folder / "nan.npz", x=np.where(np.arange(60)[:, None] == 7, np.nan, 1.0), y=Y[:60])
    np.savez(folder / "gap.npz", x=X[:60], y=Y[:60], x_test=X[60:62], y_test=Y[60:62])
    np.savez(folder / "other.npz", a=X)
    (folder / "torn.npz").write_bytes(b"PK\x03\x04")
    for given, words in (
        ({"arch": "./broken.py:Net"}, ["broken.py, line 2", "nowhere_to_be_found", "Searched", sys.executable]),
        ({"arch": "./missing.py:Net"}, ["missing.py does not exist"]),
        ({"arch": "./model.py:Nett"}, ["does not define 'Nett'", "MLP"]),
        ({"arch": "./model.py:WrongClasses"}, ["returns [2, 7]"]),
        ({"arch": "./model.py:Collides"}, ["'lr'", "Rename the argument"]),
        ({"arch": "./model.py:NeedsClass"}, ["'norm'", "no sweep can give"]),
        ({"layers": "stages.*"}, ["matches no module", "blocks.0"]),
        ({"dataset": "short.npz"}, ["60 samples", "[59]"]),
        ({"dataset": "nan.npz"}, ["sample 7", "NaN"]),
        ({"dataset": "gap.npz"}, ["in one split only"]),
        ({"dataset": "other.npz"}, ["has the arrays a", "expected x and y"]),
        ({"dataset": "torn.npz"}, ["cannot be read"]),
        ({"dataset": "none.npz"}, ["does not exist"]),
        ({"dataset": "./sub/data.py:make"}, ["two folders"]),
    ):
        with pytest.raises((SweepError, TaskError, ParameterError)) as refused:
            expand(sweep_in(folder, **given))
        assert all(word in str(refused.value) for word in words), refused.value
    with pytest.raises(TaskError, match="a sweep takes one custom arch"):
        sweep_in(folder, arch=None, grid={"arch": ["./model.py:MLP", "rn1"], "depth": [2]}).load_task()


TIME_FIRST = """
from torch import nn

class Net(nn.Module):
    def __init__(self, depth, num_classes):
        super().__init__()
        self.rnns = nn.ModuleList([nn.RNN(8, 8) for _ in range(depth)])
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        x = x.flatten(1, 2).transpose(0, 1)
        for rnn in self.rnns:
            x = rnn(x)[0]
        return self.head(x[-1])
"""


def test_plan_shows_and_takes_the_axes_of_layers(folder):
    (folder / "rnn.py").write_text(TIME_FIRST)
    sweep = sweep_in(folder, arch="./rnn.py:Net", layers="rnns.*", dataset="mine.npz")
    task = sweep.load_task()
    trials = expand(sweep, task)
    assert "1 rnns.0 [8 averaged, N, 8]" in " ".join(task.remarks([trial.params for trial in trials]))
    stated = expand(
        sweep_in(folder, arch="./rnn.py:Net", layers="rnns.*", dataset="mine.npz", layer_axes={"rnns.*": "CNT"})
    )
    assert stated[0].params["layer_axes"] == "rnns.*: CNT" and stated[0].trial_id != trials[0].trial_id
    assert "1 rnns.0 [8, N, 8 averaged]" in " ".join(task.remarks([trial.params for trial in stated]))
    with pytest.raises(SweepError, match="one entry per sample"):
        expand(sweep_in(folder, arch="./rnn.py:Net", layers="rnns.*", dataset="mine.npz", layer_axes={"rnns.*": "NTC"}))
    assert task.engine(trials[0].params, Engine.NATIVE, "cpu") is Engine.NATIVE


def test_batch_iterables_are_refused():
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    class Stream(IterableDataset):
        def __iter__(self):
            yield X[0], 0

    class Endless:
        def __getitem__(self, index):
            return X[index], 0

    whole = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    for given, words in (
        (Stream(), r"returns Stream, .*map-style data set.*depthrate\.task"),
        (DataLoader(Stream(), 8), r"returns Stream, .*map-style data set"),
        (((x, y) for x, y in zip(X, Y, strict=True)), "returns generator"),
        (Endless(), r"returns Endless without __len__"),
    ):
        with pytest.raises(DatasetError, match=words):
            data_of_function(lambda given=given: given).read({})
    loader = DataLoader(whole, 8, shuffle=True)
    held = data_of_function(lambda: whole).read({})
    for given in (loader, (loader, DataLoader(whole, 4))):  # its data set is taken
        data = data_of_function(lambda given=given: given)
        assert data.opened({}).is_from_loader and len(data.read({}).x_NI) == len(X)
        np.testing.assert_array_equal(data.read({}).x_NI, held.x_NI)


CHANGING = """
import random

import numpy as np
import torch

Y = np.arange(90) % 3
X = np.eye(3)[Y] + np.random.default_rng(0).normal(size=(90, 3))
{setup}


class Items(torch.utils.data.Dataset):
    targets = Y.tolist()
    reads = 0

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 90

    def __getitem__(self, index):
        self.reads += 1
        return {item}


def make():
    {first}
    return {result}
"""
SETS = {
    "X[index] * np.random.choice([-1, 1]), Y[index]": "numpy's generator",
    "torch.from_numpy(X[index]) + 0.1 * torch.randn(3), Y[index]": "torch's generator",
    "X[index] if random.random() < 0.8 else X[index][::-1].copy(), Y[index]": "Python's generator",
    "X[index] + self.rng.normal(size=3), Y[index]": "a generator of the set",
    "X[index] + self.reads // 90, Y[index]": "each pass over the data",
    "X[index], np.random.randint(3)": "the label",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("item", SETS)
def test_items_that_change_are_refused_at_plan(folder, item, stream):
    if stream and "reads" in item:
        pytest.skip("a pass is not read")
    (folder / "data.py").write_text(CHANGING.format(setup="", item=item, first="pass", result="Items()"))
    with pytest.raises(
        SweepError, match=r"data:make gives different numbers for item \d+ at each read.*default_rng\(index\)"
    ):
        expand(sweep_in(folder, dataset="./data.py:make", stream=stream))


FUNCTIONS = {
    "X + np.random.normal(size=X.shape), Y": True,
    "X + np.random.default_rng().normal(size=X.shape), Y": True,
    "X, np.random.permutation(Y)": True,
    "X + torch.rand(90, 3).numpy(), Y, X, Y": True,
    "X, Y, X[np.random.permutation(90)], Y": True,
    "X + np.random.default_rng(0).normal(size=X.shape), Y": False,
    "np.where(X > 0, X, np.pi), Y": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("result", FUNCTIONS)
@pytest.mark.parametrize("seeded", ["", "function", "file"])
def test_functions_without_a_seed_are_refused_at_plan(folder, result, seeded):
    """Seeds that the file sets give each process the same data, as those of the function do."""
    seed = "np.random.seed(0), torch.manual_seed(0)"
    parts = {"setup": seed if seeded == "file" else "", "first": seed if seeded == "function" else "pass"}
    (folder / "data.py").write_text(CHANGING.format(item="X[index], Y[index]", result=result, **parts))
    sweep = sweep_in(folder, dataset="./data.py:make")
    if FUNCTIONS[result] and (not seeded or "default_rng()" in result):
        with pytest.raises(SweepError, match="data:make gives different numbers for item .* a fixed seed"):
            expand(sweep)
    else:
        task = sweep.load_task()
        trials = [trial.params for trial in expand(sweep, task)][:1]
        fresh = [sys.executable, "-c", HASH, str(folder)]
        printed = subprocess.run(fresh, capture_output=True, text=True, check=True).stdout
        assert printed.strip() == trials[0]["dataset_hash"], "another process reads the same"


HASH = """
import sys
from depthrate.tasks.supervised.task import load_custom_task
print(load_custom_task(f"own?dataset={sys.argv[1]}/data.py:make").data.read({}).content_hash[:16])
"""


SIGNALS = """
import numpy as np
from torch import nn


class Net(nn.Module):
    def __init__(self, depth, width, in_channels, image_size, num_classes):
        super().__init__()
        assert (in_channels, image_size) == (4, 20)
        self.first = nn.Conv1d(in_channels, width, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.ReLU()) for _ in range(depth)])
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(-1))


def make():
    y = np.arange(60) % 3
    return np.random.default_rng(0).normal(size=(60, 4, 20)) + y[:, None, None], y
"""


def test_signals_have_a_way_in(folder):
    given = {"dataset": "./model.py:make", "layers": "blocks.*", "width": 8, "arch": "./model.py:Net"}
    (folder / "model.py").write_text(SIGNALS.replace("== (4, 20)", "== (1, 20)"))
    with pytest.raises(
        SweepError, match=r"samples of shape \[1, 4, 20\] \(numbers, or with signal_inputs: true \[4, 20\]"
    ):
        expand(sweep_in(folder, **given))
    (folder / "model.py").write_text(SIGNALS)
    sweep = sweep_in(folder, signal_inputs=True, grid={"depth": [1]}, **given)
    trial = expand(sweep)[0].params
    assert (trial["in_channels"], trial["image_size"]) == (4, 20)
    assert all(np.isfinite(row["nc1"]) for result in run(sweep) for row in result.tables["metrics"])
    colour = SIGNALS.replace("(60, 4, 20)", "(60, 3, 4, 20)").replace("y[:, None, None]", "y[:, None, None, None]")
    (folder / "model.py").write_text(colour)
    with pytest.raises(SweepError, match=r"signal_inputs is true, but samples have the shape \[3, 4, 20\]"):
        expand(sweep_in(folder, signal_inputs=True, **given))


def test_first_sample_is_checked():
    class Vast:
        read = 0

        def __len__(self):
            return 5_000_000

        def __getitem__(self, index):
            self.read += 1
            return np.zeros((3, 500, 500), np.float32), 0

    vast = Vast()
    with pytest.raises(DatasetError, match=r"takes 15000\.0 GB unpacked"):
        data_of_function(lambda: vast).read({}, stream=False)
    assert vast.read == 1
    huge = np.lib.stride_tricks.as_strided(np.zeros(1), (5_000_000, 750_000), (0, 0))  # pretends, and takes nothing
    with pytest.raises(DatasetError, match=r"takes 30000\.0 GB"):
        data_of_function(lambda: (huge, np.zeros(len(huge), int))).read({}, stream=False)


def test_oversized_data_is_refused_unread(folder, monkeypatch):
    from PIL import Image

    for name in ("a", "b"):
        (folder / "images" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "images" / name / "0.png")
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    for given in ("mine.npz", "./images"):
        with pytest.raises(SweepError, match=r"of memory.*stream: true with a folder"):
            expand(sweep_in(folder, dataset=given))


def test_worker_refuses_changed_data(folder):
    sweep = sweep_in(folder, dataset="mine.npz")
    task = sweep.load_task()
    trials = [trial.params for trial in expand(sweep, task)][:1]
    np.savez(folder / "mine.npz", x=X[:60] + 1, y=Y[:60])
    with pytest.raises(ValueError, match="has changed since the trial was planned"):
        run_pack(task, trials)


def test_forms_of_data_give_the_same_samples(folder):
    import pandas as pd
    from PIL import Image

    images = (np.abs(X[:40, 0]) * 60).clip(0, 255).astype(np.uint8)
    names = np.array(["ant", "bee", "cat", "dog"])[Y[:40]]
    for number, (image, name) in enumerate(zip(images, names, strict=True)):
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "images" / name / f"{number:03}.png")
    pd.DataFrame({"x": list(images.reshape(40, -1)), "label": names}).to_parquet(folder / "mine.parquet")
    (folder / "made.py").write_text(
        "import numpy as np\n"
        "class Items:\n"
        "    def __init__(self, x, y): self.x, self.y = x, y\n"
        "    def __len__(self): return len(self.x)\n"
        "    def __getitem__(self, index): return self.x[index][None], int(self.y[index])\n"
        "def make():\n"
        f"    content = np.load({str(folder / 'raw.npz')!r})\n"
        "    return Items(content['x'], content['y'])\n"
    )
    np.savez(folder / "raw.npz", x=images, y=Y[:40])
    found = {}
    for dataset in ("raw.npz", "./images", "./made.py:make", "mine.parquet"):
        results = run(sweep_in(folder, dataset=dataset, batch_size=None, steps=2))
        found[dataset] = [row["nc1"] for row in results[0].tables["metrics"]]
    for dataset, values in found.items():
        np.testing.assert_allclose(values, found["raw.npz"], rtol=1e-12, err_msg=dataset)
