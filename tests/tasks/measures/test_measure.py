"""Collapse metrics of whole features, of batches and of a module equal those of the built-in tasks."""

import resource
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import depthrate
from depthrate.tasks.measures.token_classes import ClassMoments
from depthrate.tasks.networks.network import Layer
from depthrate.tasks.supervised.targets.classes_training import layer_measurements
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.trainer import FusedTrainer
from tests.support import own_models
from tests.support.own_data import dataset_of
from tests.support.training_context import Context, ids_of, training_on

RNG = np.random.default_rng(0)
LABELS = np.array(["cat", "ant", "dog"])[RNG.integers(0, 3, 90)]
FEATURES = RNG.normal(size=(90, 5, 4)) + 3 * np.unique(LABELS, return_inverse=True)[1][:, None, None]
WEIGHT = RNG.normal(size=(3, 20))


def same(actual, expected, rtol):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(actual[name], float), np.asarray(value, float), rtol=rtol, err_msg=name)


def test_measure_equals_a_task_layer():
    numbers = np.unique(LABELS, return_inverse=True)[1]
    order = np.argsort(numbers, kind="stable")
    h_1ND = torch.from_numpy(FEATURES.reshape(90, -1)[order]).unsqueeze(0)
    built_in = layer_measurements(np.bincount(numbers), 0.01)
    weight_1KD = torch.from_numpy(WEIGHT).unsqueeze(0)
    (row,) = built_in.rows(0, [Layer(1, (20,))], [lambda: [h_1ND]], weight_1KD, None)[0]
    expected = {name: row[name] for name in row.keys() - {"step", "split", "layer", "is_last", "relative_position"}}
    metrics = depthrate.measure(FEATURES, numbers, WEIGHT)
    same({**metrics, "class_gram": metrics["class_gram"].astype("float32").flatten()}, expected, 0)
    without = depthrate.measure(torch.from_numpy(FEATURES).float(), LABELS)
    assert without.keys() == metrics.keys() - {"nc2a", "nc2b", "nc3"}
    assert without["nc1"] == pytest.approx(metrics["nc1"], rel=1e-5)


def test_batches_give_the_metrics_of_the_whole():
    numbers = np.unique(LABELS, return_inverse=True)[1]
    for offset in (0.0, 1e6):  # where sums of squares would cancel
        h = FEATURES + offset
        measurer = depthrate.StreamingMetrics(WEIGHT)
        for rows in np.array_split(RNG.permutation(90), 7):
            measurer.update(h[rows], numbers[rows])
        assert measurer.result()["nc1_pinv"] is None
        for rows in np.array_split(np.arange(90), 4):
            measurer.revisit(torch.from_numpy(h[rows]), numbers[rows])
        same(measurer.result(), depthrate.measure(h, numbers, WEIGHT), 1e-10 if offset == 0 else 1e-8)
    named = depthrate.StreamingMetrics()
    for rows in (slice(0, 1), slice(1, 40), slice(40, 90)):
        named.update(FEATURES[rows], LABELS[rows])
    for rows in (slice(0, 50), slice(50, 90)):
        named.revisit(FEATURES[rows], LABELS[rows])
    same(named.result(), depthrate.measure(FEATURES, LABELS), 1e-10)


def test_reading_between_batches_is_harmless():
    measurer = depthrate.StreamingMetrics()
    for start, upto in ((0, 60), (60, 90)):
        measurer.update(FEATURES[start:upto], LABELS[start:upto])
        whole = depthrate.measure(FEATURES[:upto], LABELS[:upto])
        same(measurer.result(), whole | dict.fromkeys(("nc1_pinv", "ncc_accuracy")), 1e-10)


def streamed(features, labels):
    metrics = depthrate.StreamingMetrics()
    metrics.update(features, labels)
    metrics.revisit(features, labels)
    return metrics.result()


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-8, 1e6])
@pytest.mark.parametrize("kind", ["constant", "zero", "permuted", "shifted"])
def test_equal_means_have_no_nearest_one(scale, kind):
    """Sums of different lengths and orders round differently, which must not decide."""
    labels, rng = np.repeat([0, 1, 2], [3, 7, 30]), np.random.default_rng(0)
    x = np.full((40, 5), 0 if kind == "zero" else scale)
    if kind in ("permuted", "shifted"):
        noise = rng.normal(size=(10, 5))
        x = scale * np.concatenate([noise, rng.permutation(noise), rng.permutation(noise)]) + (kind == "shifted")
        labels = np.repeat([0, 1, 2], 10)
    order = np.argsort(rng.normal(size=len(x)))
    for measure in (depthrate.measure, streamed):
        assert measure(x[order], labels[order])["ncc_accuracy"] is None
    rows = depthrate.along_geodesic(lambda: [x, x + np.eye(5)[labels], x], labels)
    assert [row["ncc_accuracy"] is None for row in rows] == [True, False, True]
    assert rows[-1]["effective_depth"] is rows[-1]["monotone"] is None
    tokens = ClassMoments(torch.bincount(torch.tensor(labels)), 5)
    tokens.add(torch.tensor(x), torch.tensor(labels))
    tokens.revisit(torch.tensor(x), torch.tensor(labels), torch.tensor(labels))
    assert np.isnan([tokens.result()[name] for name in ("ncc_accuracy", "nc4")]).all()


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-10])
def test_close_means_keep_their_nearest_one(distance):
    x, labels = np.ones((40, 5)), np.arange(40) % 2
    x[:, 0] += distance * labels
    for measure in (depthrate.measure, streamed):
        assert measure(x, labels)["ncc_accuracy"] == 1


STREAM = """
import numpy as np, torch
torch.set_num_threads(1)
from depthrate import StreamingMetrics
def batches():
    rng = np.random.default_rng(1)
    means = rng.normal(size=(100, 512)).astype(np.float32)
    for _ in range(100):
        labels = rng.integers(0, 100, 2000)
        yield means[labels] + rng.normal(size=(2000, 512)).astype(np.float32), labels
measurer = StreamingMetrics()
for h, labels in batches(): measurer.update(h, labels)
for h, labels in batches(): measurer.revisit(h, labels)
found = measurer.result()
status = open("/proc/self/status").read()  # getrusage counts what the process was before it became this one
print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
print(found["nc1"].hex(), found["nc1_pinv"].hex(), found["ncc_accuracy"].hex(), found["pfc2"].hex(), found["stable_rank"].hex())
"""


@pytest.mark.slow
def test_large_streams_equal_the_whole():
    done = subprocess.run([sys.executable, "-c", STREAM], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    peak_mb, values = done.stdout.splitlines()
    assert float(peak_mb) < 500
    rng = np.random.default_rng(1)
    means = rng.normal(size=(100, 512)).astype(np.float32)
    parts = []
    for _ in range(100):
        labels = rng.integers(0, 100, 2000)
        parts.append((means[labels] + rng.normal(size=(2000, 512)).astype(np.float32), labels))
    whole = depthrate.measure(np.concatenate([h for h, _ in parts]), np.concatenate([y for _, y in parts]))
    for name, value in zip(("nc1", "nc1_pinv", "ncc_accuracy", "pfc2", "stable_rank"), values.split(), strict=True):
        assert float.fromhex(value) == pytest.approx(whole[name], rel=1e-10), name
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 > 500  # the whole does need more


@pytest.mark.filterwarnings("error")
def test_frames_and_reversed_arrays_are_measured_as_arrays():
    flat = FEATURES.reshape(len(FEATURES), -1)
    expected = depthrate.measure(flat, LABELS)["nc1"]
    assert depthrate.measure(pd.DataFrame(flat), pd.Series(LABELS))["nc1"] == expected
    assert depthrate.measure(flat[::-1], LABELS[::-1])["nc1"] == pytest.approx(expected)


def test_invalid_features_raise():
    numbers = np.unique(LABELS, return_inverse=True)[1]
    bad = FEATURES.copy()
    bad[7, 0, 0] = np.nan
    for call, words in (
        (lambda: depthrate.measure(FEATURES, LABELS[:-1]), "one label per sample"),
        (lambda: depthrate.measure(bad, LABELS), "sample 7"),
        (lambda: depthrate.measure(FEATURES, np.zeros(90)), "one class"),
        (lambda: depthrate.measure(FEATURES, numbers, WEIGHT[:2]), "2 rows"),
        (lambda: depthrate.measure(FEATURES, np.array(list("abc"))[numbers], WEIGHT), "from a to c.*row numbers"),
        (lambda: depthrate.measure(FEATURES, numbers, np.vstack([WEIGHT, WEIGHT[:1]])), "no sample of class 3"),
        (lambda: depthrate.measure(FEATURES, numbers, WEIGHT[:, :5]), "width 20"),
        (lambda: depthrate.measure(FEATURES[:, 0, 0], numbers), "one row per sample"),
        (lambda: depthrate.measure(FEATURES.astype(object), numbers), "type object, expected numbers"),
        (lambda: depthrate.StreamingMetrics(WEIGHT).update(FEATURES, LABELS), "row numbers, 0 to 2"),
    ):
        with pytest.raises(depthrate.FeaturesError, match=words):
            call()
    short = depthrate.StreamingMetrics()
    short.update(FEATURES, LABELS)
    short.revisit(FEATURES[:50], LABELS[:50])
    with pytest.raises(depthrate.FeaturesError, match="50 samples, the first 90"):
        short.result()


@pytest.mark.slow
@pytest.mark.parametrize("make", [own_models.Mixer, own_models.ResNet])
def test_probed_module_has_metric_rows(make):
    from depthrate.tasks.data.dataset import DataShape
    from depthrate.tasks.networks.module import ModuleNetwork
    from depthrate.tasks.training.training_plan import Hyperparameters
    from tests.support.native_trials import plan_of

    arguments = {"depth": 2, "width": 8}
    x = torch.randn(60, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) // 6
    data = DataShape(num_samples=60, sample_shape=(1, 8, 8), num_classes=10)
    network = ModuleNetwork(make=make, name="m", arguments=arguments, data=data)
    plan = plan_of(optimizer="adam", schedule="constant", num_steps=3, batch_size=30, init="")
    trainer = FusedTrainer(network, plan, [Hyperparameters(0, 0.01, 0.9, {"hidden": 0.0, "last": 0.0})], x, labels)
    for _ in range(3):
        trainer.step()
    expected = layer_measurements(np.full(10, 6), 0.01)(trainer, [0], 3)[0]
    model = make(**arguments)
    state = {name: p[0] for name, p in {**trainer.parameters(), **trainer.untrained}.items()}
    model.load_state_dict(state)
    order = torch.randperm(60)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x.view(-1, 1, 8, 8)[order], labels[order]), 16)
    rows, features = depthrate.probe(model, loader, features=True, step=3)
    assert model.training and list(features)[-1] == "head input"
    assert [row.pop("name") for row in rows] == ["input", *(layer.name for layer in network.layers())]
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            if isinstance(value, str | bool) or value is None or name in ("rank", "ncc_accuracy"):
                assert row[name] == value, name
            elif name != "condition_number" or value < 1e6:
                np.testing.assert_allclose(row[name], value, rtol=2e-3, atol=1e-5, err_msg=f"{name} {row['layer']}")
    with pytest.raises(ValueError, match="matches no module"):
        depthrate.probe(model, loader, layers="stages.*")


def test_built_in_rows_are_unchanged():
    """The rows that a pack commits come from the function that probe calls."""
    params = COLLAPSE.schema.fill({"arch": "rn1", "depth": 2, "width": 8, "steps": 2})
    x = np.random.default_rng(0).normal(size=(20, 6))
    training = training_on([params], dataset_of(x, np.arange(20) % 2))
    from depthrate.tasks.training.training_pack import run_training

    result = next(iter(run_training(training, Context(ids_of([params])))))
    assert {row["split"] for row in result.tables["metrics"]} == {"train"}
    assert [row["layer"] for row in result.tables["metrics"][:3]] == [0, 1, 2]
