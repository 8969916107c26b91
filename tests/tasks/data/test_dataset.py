"""A data set made of arrays: sorted by class, refused where it makes no sense, and trained on as a published one."""

import dataclasses

import numpy as np
import pytest

from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.training_pack import run_training
from tests.support.own_data import dataset_of
from tests.support.training_context import Context, assert_same, ids_of, training_on


def arrays(samples=30, classes=3, shape=(2, 4, 4)):
    rng = np.random.default_rng(0)
    labels_N = rng.permutation(np.arange(samples) % classes)
    return rng.normal(size=(samples, *shape)) + labels_N.reshape(-1, *[1] * len(shape)), labels_N


def params_of(**changes):
    base = {"arch": "rn1", "depth": 2, "width": 8, "steps": 30, "lr": 0.05, "measure_steps": [30], "dtype": "float64"}
    return COLLAPSE.schema.fill({**base, **changes})


def test_samples_are_stably_sorted_by_class():
    x, labels_N = arrays()
    found = dataset_of(x, labels_N)
    assert found.labels_N.tolist() == sorted(labels_N) and found.class_counts_K.tolist() == [10, 10, 10]
    for label in range(3):
        np.testing.assert_array_equal(found.x_NI[found.labels_N == label], x[labels_N == label].reshape(10, -1))
    assert found.shape.sample_shape == (2, 4, 4) and found.shape.num_inputs == 32 and found.is_balanced


@pytest.mark.parametrize("seed", range(6))
def test_closest_samples_and_duplicates(seed):
    x_NI = np.random.default_rng(seed).normal(size=(12, 784))
    unit_NI = x_NI / np.linalg.norm(x_NI, axis=1, keepdims=True)
    pairs = [np.linalg.norm(unit_NI[i] - unit_NI[j]) for i in range(12) for j in range(i)]
    assert dataset_of(x_NI, np.arange(12) % 2).closest_samples == pytest.approx(min(pairs), rel=1e-12)
    doubled = dataset_of(np.concatenate([x_NI, 3 * x_NI]), np.arange(24) % 2)
    assert doubled.closest_samples == 0.0


def test_content_hash_covers_everything():
    x, labels_N = arrays()
    first = dataset_of(x, labels_N)
    others = [dataset_of(given, labels_N) for given in (x + 1e-12, x.reshape(30, 32), x.astype(np.float32))]
    others += [dataclasses.replace(first, labels_N=first.labels_N[::-1]), dataclasses.replace(first, test=first)]
    assert len({first.content_hash, *(other.content_hash for other in others)}) == 6
    assert dataset_of(x.copy(), labels_N.copy()).content_hash == first.content_hash


@pytest.mark.parametrize("arch", ["rn2", "t11"])
def test_a_pack_trains_on_arrays(arch):
    """In the dtype of the trial, and with the classes, the inputs and the patches of these arrays."""
    trials = [params_of(arch=arch, dtype="float32", seed=seed, features="class_means") for seed in (0, 1)]
    training = training_on(trials, dataset_of(*arrays()))
    results = list(run_training(training, Context(ids_of(trials))))
    for result in results:
        curves = result.tables["curves"]
        assert curves[-1]["loss"] < curves[0]["loss"] and curves[-1]["objective_gap"] is not None
        assert result.tables["features"]["feature"].shape == (3 * (3 if arch == "t11" else 2), 8)
    rows = results[0].tables["metrics"]
    assert len(rows) == 3 and len(rows[-1]["singular_values"]) == 3


def test_published_arrays_train_alike():
    options = {"samples_per_class": 4, "data_seed": 0, "normalize": "global", "dtype": "float64"}
    digits = load_dataset("digits", None, **options)
    order = np.random.default_rng(1).permutation(10).repeat(4) * 4 + np.tile(
        np.arange(4), 10
    )  # classes in another order
    again = dataset_of(digits.x_NI[order].reshape(-1, 1, 8, 8), digits.labels_N[order])
    trials = [params_of(samples_per_class=4)]
    found = run_training(training_on(trials, again), Context(ids_of(trials)))
    assert_same(list(found), list(COLLAPSE.run(trials, Context(ids_of(trials)))))
