"""Data that are not held: what is read of them, that they train as held ones do, and the sentences of what cannot be."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.supervised import items
from depthrate.tasks.supervised.arrays import read_file
from depthrate.tasks.supervised.items import NUM_EXAMINED, examined_indices
from depthrate.tasks.supervised.streaming import Streamed
from tests.support import own_data
from tests.support.own_data import Folder, data_of_function
from tests.support.training_context import Context, assert_same, ids_of, run_pack, run_resumed

pytestmark = pytest.mark.slow

ITEMS = """
import numpy as np
import torch

READ = []


class Items(torch.utils.data.Dataset):
    def __init__(self, count, targets=True):
        self.y = np.arange(count) * 4 // count
        self.x = np.eye(6)[self.y] + 0.5 * np.random.default_rng(count).normal(size=(count, 6))
        if targets:
            self.targets = self.y.tolist()
        else:
            self.num_classes = 4

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        READ.append(index)
        return torch.from_numpy(self.x[index]), int(self.y[index])


def make(count=200, targets=True):
    return Items(count, targets)


def both(count=200):
    return Items(count), Items(100)


class Numbers(Items):
    def __getitem__(self, index):
        return self.x[index], self.x[index, :2] ** 2


def numbers(count=200):
    return Numbers(count)


def images(count=200):
    whole = Items(count)
    return np.random.default_rng(0).normal(size=(count, 2, 8, 8)) + whole.x[:, :1, None, None], whole.y


def tokens(count=200):
    y = np.arange(count) * 4 // count
    return {"x": np.stack([y, np.arange(count) % 5, 4 - y], 1), "y": y, "vocabulary_size": 5}


class Net(torch.nn.Module):
    def __init__(self, depth, num_inputs, num_classes):
        super().__init__()
        layers = [torch.nn.Linear(num_inputs, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.1)]
        self.blocks = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.blocks(x))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data.py").write_text(ITEMS)
    return tmp_path


def sweep_in(folder, dataset="./data.py:make", task="collapse", **params):
    grid = {"weight_decay": [0.001, 0.01]}
    base = {"arch": "rn1", "dataset": dataset, "depth": 2, "width": 8, "steps": 25, "batch_size": 16, "lr": 0.1}
    given = {name: value for name, value in {**base, **params}.items() if (name, value) != ("width", None)}
    spec = {"name": "s", "task": task, "grid": grid, "seeds": given.pop("seeds", 2), "params": given}
    sweep = sweep_of_spec(spec, folder)
    task = sweep.load_task()
    return task, [trial.params for trial in expand(sweep, task)]


def read_of(task):
    """What the items of a task's data file were read as, in this process."""
    return task.data.source.make.__globals__["READ"]


@pytest.mark.parametrize(
    ("dataset", "task", "params"),
    [
        ("./data.py:make", "collapse", {}),
        ("./data.py:both", "collapse", {"normalize": "per_feature"}),
        ("./data.py:make", "collapse", {"optimizer": "adamw", "epochs": 3, "steps": None, "dtype": "float64"}),
        ("./data.py:numbers", "regression", {}),
        pytest.param("./data.py:images", "collapse", {"arch": "t12", "patch_size": 4}, marks=pytest.mark.slow),
        pytest.param("./data.py:tokens", "collapse", {"arch": "t11"}, marks=pytest.mark.slow),
        ("./data.py:make", "collapse", {"arch": "./data.py:Net", "width": None, "layers": "blocks.*"}),
    ],
)
def test_streamed_equals_held_bitwise(folder, dataset, task, params):
    own, held = sweep_in(folder, dataset, task, **params)
    _, streamed = sweep_in(folder, dataset, task, stream=True, measure_samples=500, **params)
    assert (held[0]["stream"], held[0]["measure_samples"]) == (None, None)
    assert (streamed[0]["stream"], streamed[0]["measure_samples"]) == (True, 200)
    assert held[0]["dataset_hash"] != streamed[0]["dataset_hash"]
    expected = run_pack(own, held)
    assert expected[0].tables["curves"][-1]["loss"] < 0.8 * expected[0].tables["curves"][0]["loss"]
    assert_same(run_pack(own, streamed), expected)


def test_unstreamed_identity_is_unchanged(folder):
    def ids(**params):
        params = {"arch": "rn1", "depth": 2, "dataset": "./data.py:make", **params}
        spec = {"name": "s", "task": "collapse", "params": params}
        return [trial.trial_id for trial in expand(sweep_of_spec(spec, folder))]

    assert ids() == ids(stream=False) == ["b09781b46f496122"]
    assert ids(stream=True, batch_size=16) != ids(batch_size=16)


def test_large_data_streams_by_default(folder, monkeypatch):
    monkeypatch.setattr(items, "STREAMED_ITEMS", 199)
    task, trials = sweep_in(folder)
    assert trials[0]["stream"] is True and isinstance(task.read_custom_data(task.read(trials[0])), Streamed)
    (remark,) = task.remarks(trials)
    assert "200 samples are streamed" in remark and f"all labels and {len(examined_indices(200))} samples" in remark
    held, of_held = sweep_in(folder, stream=False)
    assert of_held[0]["stream"] is False and not held.remarks(of_held)
    assert run_pack(held, of_held)[0].tables["metrics"]


def test_fused_streaming_reads_once(folder):
    task, trials = sweep_in(folder, stream=True, measure_samples=40)
    read = read_of(task)
    assert len(read) <= 3 * NUM_EXAMINED + 2, "for the comparison of two calls, and twice for the form"
    del read[:]
    together = run_pack(task, trials)
    assert len(read) == 40 + 25 * 16 * 2, "of four trials two have a seed"
    for trial, expected in zip(trials, together, strict=True):
        (alone,) = run_pack(task, [trial])
        assert alone.tables["curves"] == expected.tables["curves"]
        np.testing.assert_equal(alone.tables["metrics"], expected.tables["metrics"])


@pytest.mark.parametrize("stop_at", [5, 12, 13, 24])
def test_resume_within_a_pass(folder, stop_at):
    task, trials = sweep_in(folder, stream=True, measure_samples=40)
    expected = run_pack(task, trials)
    found, steps = run_resumed(task.run, trials, stop_at)
    assert steps[0] == stop_at + 1
    assert_same(found, expected)


def test_trials_that_leave_disturb_no_other(folder):
    task, trials = sweep_in(folder, stream=True, measure_samples=40, seeds=3, record="all")
    expected = run_pack(task, trials)

    class Leaving(Context):
        def report(self, step, values):
            return {0, 3} if step == 5 else set()

    found = list(task.run(trials, Leaving(ids_of(trials), data=Folder("."))))
    assert [result.status for result in found].count("pruned") == 2
    assert_same([found[i] for i in (1, 2, 4, 5)], [expected[i] for i in (1, 2, 4, 5)])


def test_sample_is_balanced_and_follows_data_seed(folder):
    task, trials = sweep_in(folder, stream=True, measure_samples=40)
    trial = task.read(trials[0])
    dataset = task.load(trial, Folder("."))
    assert dataset.class_counts_K.tolist() == [10] * 4 and dataset.num_samples == 200
    other, others = sweep_in(folder, stream=True, measure_samples=40, data_seed=1)
    assert not np.array_equal(other.load(other.read(others[0]), Folder(".")).x_NI, dataset.x_NI)
    unknown, drawn = sweep_in(folder, stream=True, measure_samples=40, targets=False)
    counts = unknown.load(unknown.read(drawn[0]), Folder(".")).class_counts_K
    assert counts.sum() == 40 and len(counts) == 4 and set(counts.tolist()) != {10}
    both, of_both = sweep_in(folder, "./data.py:both", stream=True, measure_samples=40)
    assert both.load(both.read(of_both[0]), Folder(".")).test.class_counts_K.tolist() == [10] * 4


def test_labels_of_composed_torch_data():
    from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split

    written = {}
    exec(ITEMS, written)
    whole = written["Items"](200)
    parts = random_split(whole, [150, 50])
    for given in (parts[0], Subset(whole, range(0, 200, 2)), ConcatDataset([whole, parts[1]])):
        found = data_of_function(lambda given=given: given).read({}, stream=True)
        assert isinstance(found, Streamed) and found.labels_held == len(given) and found.num_outputs == 4
    import torch

    tensors = TensorDataset(torch.randn(30, 3), torch.arange(30) % 3)
    assert data_of_function(lambda: tensors).read({}, stream=True).num_outputs == 3


def test_arrays_mapped_from_files_are_streamed(folder):
    written = {}
    exec(ITEMS, written)
    whole = written["Items"](200)
    (folder / "mine").mkdir()
    np.save(folder / "mine" / "x.npy", whole.x)
    with pytest.raises(SweepError, match=r"has x\.npy, but no y\.npy"):
        sweep_in(folder, "./mine")
    np.save(folder / "mine" / "y.npy", np.array(list("abcd"))[whole.y])
    for streaming in ({}, {"stream": True, "measure_samples": 40}):
        task, trials = sweep_in(folder, **streaming)
        expected = run_pack(task, trials)
        task, trials = sweep_in(folder, "./mine", **streaming)
        assert_same(run_pack(task, trials), expected)
    assert isinstance(read_file(folder / "mine", "mine").training.x.base, np.memmap)
    np.savez(folder / "mine.npz", x=whole.x, y=whole.y)
    with pytest.raises(SweepError, match=r"mine\.npz can only be read in full.* folder with x\.npy"):
        sweep_in(folder, "mine.npz", stream=True)


MAPPED = """
import sys
import numpy as np
from depthrate.tasks.supervised.items import ArrayItems

def peak_mb():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024

x = np.asarray(np.load("x.npy", mmap_mode="r"))
items = ArrayItems(x, np.zeros(len(x), int), "x")
before, rng = peak_mb(), np.random.default_rng(0)
for _ in range(200):
    read = x[rng.integers(len(x), size=64)] if "plain" in sys.argv else items.read(rng.integers(len(x), size=64))[0]
print(peak_mb() - before)
"""


def test_mapped_files_leave_memory(tmp_path):
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (1_000_000, 250)).flush()  # 1 GB of holes

    def grown_mb(*how):
        done = subprocess.run([sys.executable, "-c", MAPPED, *how], capture_output=True, text=True, cwd=tmp_path)
        return float(done.stdout) if not done.returncode else done.stderr

    assert grown_mb() < 30 < grown_mb("plain")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"batch_size": None}, "batch_size is null, full batch, but the 200 samples .* stream: false to hold them"),
        ({"batch_size": 200}, "batch_size is 200, all samples"),
        ({"samples_per_class": 9}, "samples_per_class is 9, .*Subset"),
        ({"measure_samples": 5}, "measure_samples is 5, .* at least 8"),
        ({"stream": None, "measure_samples": 50}, "measure_samples is 50, .* held in memory"),
    ],
)
def test_unsupported_options_are_refused(folder, params, words):
    with pytest.raises(SweepError, match=words):
        sweep_in(folder, **{"stream": True, **params})


BAD_ITEMS = {
    "return self.x[index], int(self.y[index]), 1": "item 0 is a tuple of 3, expected a pair",
    "return {'image': self.x[index], 'label': 1}": "item 0 is a dict of image, label, expected a pair",
    "return self.x[index]": "item 0 is a ndarray, expected a pair",
    "return self.x[index][: 3 + index // 60], 1": r"item \d+ has shape \[\d\], item 0 \[3\]",
    "return self.x[index], 0.5": "labels are float64 such as 0.5, targets of a regression",
    "return self.x[index], [0, 1]": r"several labels per sample|one-hot",
    "return self.x[index], 7": "item 0 has label 7, but its targets are 0 to 3",
    "return self.x[index], 'a'": "item 0 has label a, but its targets are 0 to 3",
    "return self.x[index] + np.nan, 0": "item 0 has a number that is NaN|sample 0 .* NaN",
    "return 'text', 0": "samples are <U4",
    "return np.random.normal(size=6), 0": "different numbers for item 0 .*default_rng",
    "return self.x[index], self.lables[index]": r"item 0 cannot be read: data\.py, line \d+: `return .*lables.*Attribute",
}


@pytest.mark.parametrize("line", BAD_ITEMS)
def test_invalid_items_are_refused_early(folder, line):
    text = ITEMS.replace("return torch.from_numpy(self.x[index]), int(self.y[index])", line)
    assert text != ITEMS
    (folder / "data.py").write_text(text)
    with pytest.raises(SweepError, match=BAD_ITEMS[line]):
        sweep_in(folder, stream=True)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("1 / 0", r"item (4|5) cannot be read: data\.py, line \d+: `.*`: ZeroDivisionError: division by zero"),
        ("(torch.zeros(7, dtype=torch.float64), 0)", "has shape|shape .7"),
        ("(torch.from_numpy(self.x[index]), 9)", r"item (4|5) has label 9, but its targets are 0 to 3"),
        ("(torch.full((6,), torch.nan, dtype=torch.float64), 0)", r"item (4|5) has a number that is NaN"),
    ],
)
def test_late_invalid_item_is_named(folder, condition, words):
    assert not {4, 5} & set(examined_indices(200).tolist())
    line = "return torch.from_numpy(self.x[index]), int(self.y[index])"
    text = ITEMS.replace(line, f"if index in (4, 5):\n            return {condition}\n        {line}")
    (folder / "data.py").write_text(text)
    task, trials = sweep_in(folder, stream=True, measure_samples=40)
    with pytest.raises(DatasetError, match=words):
        run_pack(task, trials)


def test_missing_classes_are_requested(folder):
    (folder / "data.py").write_text(ITEMS.replace("self.num_classes = 4", "pass"))
    with pytest.raises(SweepError, match="classes are unknown.* targets"):
        sweep_in(folder, stream=True, targets=False)
    (folder / "data.py").write_text(ITEMS.replace("self.num_classes = 4", "self.num_classes = 60"))
    task, trials = sweep_in(folder, stream=True, targets=False, measure_samples=120)
    with pytest.raises(DatasetError, match="class 4 is not among the 120 .* Raise measure_samples"):
        run_pack(task, trials)


def test_batched_access_is_used(folder):
    text = ITEMS + (
        "\n\nclass Offers(Items):\n"
        "    def __getitems__(self, indices):\n"
        "        return [Items.__getitem__(self, i) for i in indices]\n\n"
        "    def __getitem__(self, index):\n"
        "        raise RuntimeError('one by one')\n\n\n"
        "def offers():\n    return Offers(200)\n\n\n"
        "class Torn(Items):\n"
        "    def __getitems__(self, indices):\n"
        "        return [self[i] for i in indices if i != 5]\n\n\n"
        "def torn():\n    return Torn(200)\n"
    )
    (folder / "data.py").write_text(text)
    task, trials = sweep_in(folder, stream=True, measure_samples=40)
    other, others = sweep_in(folder, "./data.py:offers", stream=True, measure_samples=40)
    assert_same(run_pack(other, others), run_pack(task, trials))
    torn, of_torn = sweep_in(folder, "./data.py:torn", stream=True, measure_samples=40)
    with pytest.raises(DatasetError, match="__getitems__ of 16 indices returns 15 items"):
        run_pack(torn, of_torn)


VAST = """
import os

import numpy as np


class Vast:
    num_classes = 5

    def __len__(self):
        return 5_000_000

    def __getitem__(self, index):
        with open(os.environ["COUNTED"], "ab") as file:
            file.write(b".")
        x = np.random.default_rng(index).normal(size=10)
        return x, int(x[:5].argmax())


def make():
    return Vast()
"""

TRAINED = """
import os
from pathlib import Path

from tests.support.own_data import Folder, data_of_function
from tests.support.training_context import Context, ids_of

from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec

spec = {"name": "v", "task": "collapse", "seeds": 2, "grid": {"depth": [2]}, "params": {
    "arch": "rn1", "width": 16, "dataset": "./vast.py:make", "batch_size": 64, "steps": 300, "measure_samples": 1000}}
sweep = sweep_of_spec(spec, Path.cwd())
task = sweep.load_task()
trials = [trial.params for trial in expand(sweep, task)]
predicted = task.memory_bytes(trials[0], len(trials), "cpu")
(result, _) = task.run(trials, Context(ids_of(trials), data=Folder(".")))
losses = [row["loss"] for row in result.tables["curves"]]
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(losses[0], losses[-1], peak / 1e6, predicted / 1e6)
"""


def test_five_million_items_stay_unread(tmp_path, monkeypatch):
    """Held they would take 400 MB as they come and 200 MB in float32."""
    from click.testing import CliRunner

    from depthrate.orchestrator.cli.app import app

    counted = tmp_path / "counted"
    monkeypatch.setenv("COUNTED", str(counted))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vast.py").write_text(VAST)
    (tmp_path / "v.yaml").write_text(
        "name: v\ntask: collapse\nparams: {arch: rn1, width: 16, dataset: './vast.py:make', batch_size: 64, steps: 300}\n"
        "grid: {depth: [2, 3]}\n"
    )
    planned = CliRunner().invoke(app, ["plan", "v.yaml"])
    assert planned.exit_code == 0, planned.output
    assert "5,000,000 samples are streamed" in planned.output and "a change elsewhere goes unseen" in planned.output
    assert counted.stat().st_size < 150
    counted.unlink()
    monkeypatch.setenv("PYTHONPATH", str(Path(own_data.__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", TRAINED], capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, last, peak_mb, predicted_mb = map(float, done.stdout.split())
    looked = counted.stat().st_size - (2 * 300 * 64 + 1000)
    assert 0 < looked < 150
    assert last < 0.5 * first
    assert peak_mb < 500 and peak_mb < 1.1 * predicted_mb, (peak_mb, predicted_mb)
