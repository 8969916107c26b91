"""A user's metric on built-in and custom networks: its columns, values per layer, identity, code and errors."""

import shutil

import numpy as np
import pytest
import torch

from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.interface import TaskError
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from tests.support import own_models
from tests.support.own_data import dataset_of
from tests.support.training_context import training_on

METRICS = """
import helper
import torch

def spread(features, labels, weight):
    size = features.abs().max()
    features.zero_()  # a copy
    return size * helper.scale

def several(features, labels, weight):
    first = features[labels == 0].mean(0) if labels.ndim == 1 else features[labels[:, 0] > 0].mean(0)
    values = {"first": float(first.norm()), "draw": torch.rand(()), "empty": None, "nan": float("nan")}
    return values if weight is None else values | {"aligned": (weight @ first)[0]}

def word(features, labels, weight): return "small"
def list_of(features, labels, weight): return {"entries": [1.0, 2.0]}
def huge(features, labels, weight): return 10**400
def two(features, labels): return 1.0
def narrow(features, labels, weight): return features[:, 40].mean()
def strict(features, labels, weight): return weight.norm()
def by_class(features, labels, weight): return {f"class {int(k)}": features[labels == k].mean() for k in labels.unique()}
def nc1(features, labels, weight): return 1.0
def Depth(features, labels, weight): return 1.0
def layer(features, labels, weight): return 1.0
def quoted(features, labels, weight): return {'a"b': 1.0}
def cased(features, labels, weight): return {"A": 1.0, "a": 2.0}
def numbered(features, labels, weight): return {1: 1.0}
def nothing(features, labels, weight): return None
"""
DATA = dataset_of(np.random.default_rng(0).normal(size=(75, 12)).astype("float32"), np.repeat(np.arange(3), 25))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_metrics.py").write_text(METRICS)
    (tmp_path / "helper.py").write_text("scale = 2.0")
    shutil.copy(own_models.__file__, tmp_path / "model.py")
    return tmp_path


def sweep_in(folder, measure, task="collapse", fit=(), **params):
    params = {"arch": "rn1", "width": 9, "steps": 3, "measure": measure, **params}
    fits = [{"metric": metric} for metric in fit]
    return sweep_of_spec({"name": "s", "task": task, "params": params, "grid": {"depth": [2, 3]}, "fit": fits}, folder)


def checked(folder, function, **params):
    return check_sweep(sweep_in(folder, f"./my_metrics.py:{function}", **params))


def test_rows_hold_the_function_of_each_layer(folder):
    measure = "effective_rank, ./my_metrics.py:spread, ./my_metrics.py:several"
    task, trials = (planned := check_sweep(sweep_in(folder, measure, fit=["spread", "first"]))).task, planned.trials
    assert trials[0].params["measure"] == "effective_rank, my_metrics:spread, my_metrics:several"
    assert "my_metrics:several: measured per layer as first, draw, empty, nan, aligned" in task.remarks([])
    training = task.training_on([task.read(trial.params) for trial in trials][:1], DATA)
    trainer = training.begin()
    (rows,) = training.measure(trainer, [0], 0)
    weight_KD = trainer.parameters()[trainer.network.last_weight][0]
    layers = [DATA.x_NI, *(h[0].flatten(1).numpy() for h in trainer.features(0))]
    assert len(rows) == len(layers) == 3
    for row, h_ND in zip(rows, layers, strict=True):
        first = h_ND[:25].mean(0)
        assert row["spread"] == pytest.approx(2 * np.abs(h_ND).max())
        assert row["first"] == pytest.approx(np.linalg.norm(first), rel=1e-5)
        assert row["empty"] is None and row["nan"] is None and row["effective_rank"] > 1
        assert row["draw"] == rows[0]["draw"]
        aligned = None if h_ND.shape[1] != 9 else pytest.approx(float(weight_KD.numpy()[0] @ first), rel=1e-4)
        assert row["aligned"] == aligned
    plain = training_on([COLLAPSE.schema.fill({"arch": "rn1", "depth": 2, "width": 9, "steps": 3})], DATA)
    (others,) = plain.measure(plain.begin(), [0], 0)
    assert [row["nc1"] for row in rows] == [row["nc1"] for row in others], "the function's features are copies"


@pytest.mark.parametrize(
    "case", [{"task": "regression", "arch": "mlp"}, {"arch": "./model.py:MLP", "dataset": "digits"}]
)
def test_regression_and_custom_networks_take_it(folder, case):
    width = {} if case["arch"] == "mlp" else {"width": 9}
    planned = checked(folder, "several", **{**case, **width})
    names = [metric.name for metric in planned.task.measurements][-5:]
    assert sorted(names) == ["aligned", "draw", "empty", "first", "nan"]
    assert set(planned.task.code.contents) >= {"my_metrics.py", "helper.py"}


def test_identity_has_no_path_and_code_has_imports(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for name in ("my_metrics.py", "helper.py"):
        shutil.copy(folder / name, other / name)
    first, second = (checked(place, "spread") for place in (folder, other))
    assert first.trials.ids == second.trials.ids and first.task.name == "collapse"
    assert first.task.code.content_hash == second.task.code.content_hash
    plain = expand(sweep_of_spec({**sweep_in(folder, None).spec(), "name": "p"}))
    assert not {*first.trials.ids} & {*plain.ids}
    (other / "helper.py").write_text("scale = 3.0")
    assert checked(other, "spread").task.code.content_hash != first.task.code.content_hash
    stored = dict(first.task.code.contents)
    (folder / "my_metrics.py").unlink()
    assert check_sweep(first.sweep, stored).trials.ids == first.trials.ids, "workers load the stored code"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("word", r"my_metrics:word returned 'small' \(str\) for 'word', expected .* number"),
        ("list_of", r"my_metrics:list_of returned \[1.0, 2.0\] \(list\) for 'entries'"),
        ("huge", r"returned 1000.* \(int\) for 'huge'"),
        ("two", r"two failed .* takes 2 positional arguments but 3 were given"),
        ("narrow", r"narrow failed on .* \[200, 9\], \[200\], .*my_metrics.py, line \d+: .def narrow.*IndexError"),
        ("strict", r"None: my_metrics.py, line \d+: .*'NoneType'"),
        ("nc1", "'nc1', a parameter or other metric. Rename it"),
        ("Depth", "'Depth', a parameter or other metric"),
        ("layer", "column 'layer' exists in every table. Rename the metric"),
        ("quoted", "'a\"b' has a quotation mark"),
        ("cased", "'A', a parameter or other metric"),
        ("numbered", "metric name is 1, expected"),
        ("absent", "does not define 'absent'. It defines: spread, several"),
        ("spread, ./my_metrics.py:spread", "'my_metrics:spread' twice"),
        ("spread, effective_rnk", "did you mean 'effective_rank'"),
    ],
)
def test_wrong_metrics_are_refused_at_plan(folder, function, message):
    with pytest.raises(ValueError, match=message):
        checked(folder, function)


def test_other_names_than_the_example_are_refused(folder):
    with pytest.raises(TaskError, match=r"by_class returned the name 'class 99', but only class 0, .* for an example"):
        checked(folder, "by_class", arch="t11", dataset="cifar100")


def test_features_that_are_not_finite_give_null(folder):
    (metric,) = checked(folder, "nothing").task.target.custom.values()
    assert list(metric(torch.ones(4, 2), torch.zeros(4), None)) == ["nothing"]
    (metric,) = checked(folder, "spread").task.target.custom.values()
    assert np.isnan(metric(torch.full((4, 2), torch.inf), torch.zeros(4), None)["spread"])


def test_tasks_without_measure_refuse_it(folder):
    with pytest.raises((ParameterError, ValueError), match="unknown parameter 'measure'"):
        check_sweep(sweep_in(folder, "./my_metrics.py:spread", task="next_token", dataset="markov", arch="t11"))
