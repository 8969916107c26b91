"""The task `collapse` run through a fake context: what a trial reports is the same however its pack runs."""

import numpy as np
import pytest

from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.parameters import measured_steps
from tests.support.collapse_packs import DIVERGING, STEPS, pack_of, params_of, run, with_diverging
from tests.support.training_context import assert_same

SHAPES = [
    {},
    {"batch_size": 7, "schedule": "step"},
    {"optimizer": "adam", "lr": 0.01, "arch": "rn2"},
    {"loss": "mse", "norm": "pre", "lr": 0.01},
    {"depth": 1, "width": 64, "dtype": "float64"},
    {"arch": "t11", "depth": 2, "lr": 0.01},
    {"arch": "t22", "norm": "pre", "optimizer": "adam", "lr": 0.01, "patch_size": 4, "batch_size": 9, "loss": "mse"},
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@every_shape
@pytest.mark.slow
def test_fused_is_alone(shape):
    trials = pack_of(shape)
    assert_same(run(trials), [result for params in trials for result in run([params])])


@every_shape
@pytest.mark.slow
def test_a_diverged_mate_changes_nothing(shape):
    healthy = [params for params in with_diverging(shape) if params["lr"] < 1]
    first, diverged, third = run(with_diverging(shape))
    assert diverged.status == "diverged"
    assert_same([first, third], run(healthy))


def test_diverged_rows_end_there():
    _, diverged, _ = run(with_diverging({"measure_steps": [0, 1, 20]}))
    assert 0 < diverged.num_steps < STEPS and "features" not in diverged.tables
    for table in ("metrics", "curves"):
        steps = [row["step"] for row in diverged.tables[table]]
        assert steps[0] == 0 and max(steps) <= diverged.num_steps
    results = run([params_of(**DIVERGING), params_of(lr=1e30, seed=6)])
    assert [result.status for result in results] == ["diverged", "diverged"]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_every_measured_step_has_every_layer(depth):
    params = params_of(depth=depth, measure_steps=[3, 17])
    (result,) = run([params])
    rows = [(row["step"], row["layer"], row["is_last"]) for row in result.tables["metrics"]]
    expected = [(step, layer, layer == depth) for step in (3, 17, STEPS) for layer in range(depth + 1)]
    assert rows == expected and measured_steps(COLLAPSE.read(params), STEPS) == [3, 17, STEPS]
    positions = [row.get("relative_position") for row in result.tables["metrics"] if row["step"] == STEPS]
    if depth > 1:
        assert positions[0] is None and positions[-1] == 1 and positions[1:] == sorted(positions[1:])


def test_transformer_layer_0_is_its_embedding():
    (result,) = run([params_of(arch="t11", depth=2, features="class_means")])
    rows = [row for row in result.tables["metrics"] if row["step"] == STEPS]
    assert [(row["layer"], row["is_last"]) for row in rows] == [(0, False), (1, False), (2, True)]
    assert [row["relative_position"] for row in rows][::2] == [0, 1] and rows[0]["nc3"] is not None
    features = result.tables["features"]
    assert sorted(set(features["layer"])) == [0, 1, 2] and features["feature"].shape == (30, 19)


def test_default_steps_include_last_quarters():
    (result,) = run([params_of(measure_steps=None, schedule="cosine", record="all")])
    spent = 18  # by the cosine three quarters of the learning rate
    expected = {0, 1, 2, 5, 10, 20, spent, 3 * STEPS // 4, STEPS}
    assert {row["step"] for row in result.tables["metrics"]} == expected
    assert expected <= {row["step"] for row in result.tables["curves"]}


@pytest.mark.parametrize("width", [19, 64])
def test_weights_compare_with_their_layers(width):
    (result,) = run([params_of(width=width)])
    for row in result.tables["metrics"]:  # the input is no layer of a residual network, even where it is as wide
        assert (row.get("nc3") is not None) == (row["layer"] > 0)


def features_of(kind, **changes):
    (result,) = run([params_of(features=kind, **changes)])
    columns = result.tables["features"]
    assert {len(column) for column in columns.values()} == {len(columns["layer"])}
    last = {row["layer"]: row for row in result.tables["metrics"] if row["step"] == STEPS}
    return {name: np.asarray(column) for name, column in columns.items()}, last


@pytest.mark.parametrize(
    ("kind", "rows_a_layer", "dtype"),
    [("class_means", 10, "float16"), ("sample:3", 30, "float32"), ("sample:99", 40, "float32"), ("all", 40, "float32")],
)
def test_kept_features_have_their_shape(kind, rows_a_layer, dtype):
    columns, _ = features_of(kind, feature_dtype=dtype)
    assert columns["feature"].shape == (3 * rows_a_layer, 19) and columns["feature"].dtype == dtype
    assert np.unique(columns["layer"], return_counts=True)[1].tolist() == [rows_a_layer] * 3
    assert set(columns["layer"]) == {1, 2, 3} and set(columns["step"]) == {STEPS}
    assert set(columns["kind"]) == {"class_mean" if kind == "class_means" else "sample"}


def test_kept_features_reproduce_what_was_measured():
    columns, last = features_of("class_means")
    for layer in (1, 2, 3):
        means_KD = columns["feature"][columns["layer"] == layer].astype(float)
        assert np.linalg.svd(means_KD)[1] == pytest.approx(last[layer]["singular_values"], abs=1e-5)
        assert (means_KD @ means_KD.T).flatten() == pytest.approx(last[layer]["class_gram"], abs=1e-5)
    columns, last = features_of("all")
    for layer in (1, 2, 3):
        at = columns["layer"] == layer
        h_ND, labels_N = columns["feature"][at].astype(float), columns["label"][at]
        means_KD = np.array([h_ND[labels_N == label].mean(0) for label in range(10)])
        within = ((h_ND - means_KD[labels_N]) ** 2).sum(1).mean()
        between = ((means_KD - means_KD.mean(0)) ** 2).sum(1).mean()
        assert within / between == pytest.approx(last[layer]["nc1"], rel=1e-9)


def test_kept_samples_are_rows_of_all():
    some, _ = features_of("sample:2")
    everything, _ = features_of("all")
    columns = (everything[name] for name in ("layer", "sample_index", "feature"))
    rows = {(layer, index): row for layer, index, row in zip(*columns, strict=True)}
    for layer, index, row in zip(some["layer"], some["sample_index"], some["feature"], strict=True):
        assert np.array_equal(rows[layer, index], row)
    assert np.unique(some["label"], return_counts=True)[1].tolist() == [6] * 10


@pytest.mark.parametrize(("loss", "limit"), [("ce", 0.02275937), ("mse", 3.90320e-4)])
def test_the_gap_is_the_objective_above_its_limit(loss, limit):
    (result,) = run([params_of(loss=loss, width=64, lr=0.02)])
    for row in result.tables["curves"]:
        assert row["objective"] - row["objective_gap"] == pytest.approx(limit, abs=1e-8)
        assert row["objective_gap"] > 0


@pytest.mark.parametrize(
    "changes", [{"samples_per_class": None}, {"width": 8}], ids=["unbalanced", "classes do not fit"]
)
def test_gap_without_a_limit_is_null(changes):
    (result,) = run([params_of(**changes)])
    assert {row["objective_gap"] for row in result.tables["curves"]} == {None}


@pytest.mark.parametrize(("schedule", "end"), [("constant", 0.05), ("step", 0.0005), ("cosine", 0.0)])
def test_the_learning_rate_is_recorded(schedule, end):
    (result,) = run([params_of(schedule=schedule)])
    curves = result.tables["curves"]
    assert curves[0]["lr"] == 0.05 and curves[-1]["lr"] == pytest.approx(end, abs=1e-15)
    assert all(row["objective"] > row["loss"] > 0 for row in curves)
    assert curves[-1]["objective"] < curves[0]["objective"]


def test_subnormal_numbers_are_restored():
    run([params_of()])
    assert float(np.float64(2.2250738585072014e-308) / np.float64(2)) > 0
