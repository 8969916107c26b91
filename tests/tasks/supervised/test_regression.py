"""Regression: what a trial trains on, that its step and loss are those of torch, what is measured, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import depthrate
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.loading import load_task
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import REGRESSION
from tests.support.own_data import Folder
from tests.support.training_context import assert_same, run_pack, run_resumed

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)).astype(np.float32)
Y = np.tanh(X @ RNG.normal(size=(6, 2))) * [3, 0.1] + [7, 0]
NC = {"nc1", "nc1_pinv", "nc2a", "nc3", "pfc2", "ncc_accuracy", "rank", "singular_values", "class_gram"}
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, depth, width, num_inputs, num_targets):
        super().__init__()
        self.first = nn.Linear(num_inputs, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, num_targets)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(NET)
    np.savez(tmp_path / "mine.npz", x=X[:40], y=Y[:40], x_test=X[40:], y_test=Y[40:])
    return tmp_path


def sweep_in(folder, grid=None, **params):
    given = {"arch": "mlp", "dataset": "./mine.npz", "width": 8, "steps": 20, "lr": 0.05, **params}
    spec = {"name": "s", "task": "regression", "params": given, "grid": grid or {"depth": [2]}, "seeds": 2}
    return sweep_of_spec(spec, folder)


def run(sweep):
    task, pack = pack_of(sweep)
    return task, run_pack(task, pack)


def pack_of(sweep):
    task = sweep.load_task()
    return task, [trial.params for trial in expand(sweep, task)]


def trainer_of(task, pack, source="."):
    training = task.training([task.read(params) for params in pack], Folder(source))
    return training, training.begin()


@pytest.mark.parametrize("batch_size", [None, 8])
def test_loss_and_steps_are_those_of_torch(folder, batch_size):
    task, pack = pack_of(sweep_in(folder, dtype="float64", batch_size=batch_size, weight_decay=0.01, steps=3))
    _, trainer = trainer_of(task, pack[:1])
    x = torch.as_tensor((X[:40] - X[:40].mean(dtype=np.float64)) / X[:40].std(dtype=np.float64))
    y = torch.as_tensor((Y[:40] - Y[:40].mean(0)) / Y[:40].std(0))
    torch.testing.assert_close(trainer.x_NI, x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(trainer.labels_N, y)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        for own, ours in zip(module.parameters(), trainer.parameters().values(), strict=True):
            own.copy_(ours[0])
    weights = [p for p in module.parameters() if p.ndim == 2]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": [p for p in module.parameters() if p.ndim == 1]}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    found = trainer.evaluate()
    assert found["loss"].item() == pytest.approx((module(trainer.x_NI) - y).square().sum(1).mean().item() / 2)
    errors, spread = (module(trainer.x_NI) - y).square().sum(), (y - y.mean(0)).square().sum()
    assert found["r_squared"].item() == pytest.approx(1 - (errors / spread).item())
    assert torch.isnan(found["accuracy"]).all()
    order = trainer.next_order()[0] if batch_size else torch.arange(40)
    for step in range(3):
        rows = order[step * 8 : step * 8 + 8] if batch_size else order
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = trainer.lr_at(step)[0]
        optimizer.zero_grad()
        ((module(trainer.x_NI[rows]) - y[rows]).square().sum(1).mean() / 2).backward()
        optimizer.step()
        trainer.step()
    for own, ours in zip(module.parameters(), trainer.parameters().values(), strict=True):
        torch.testing.assert_close(ours[0], own.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("arch", ["mlp", "rn1", "./model.py:Net"])
def test_layers_have_nrc_and_no_classes(folder, arch):
    more = "effective_rank, linear_probe, cka_last"
    task, results = run(sweep_in(folder, arch=arch, measure=more))
    assert task.name == "regression" and not NC & {item.name for item in task.measurements}
    for result in results:
        metrics, curves = result.tables["metrics"], result.tables["curves"]
        assert not NC & set().union(*metrics) and {row["split"] for row in metrics} == {"train", "test"}
        ended = [row for row in metrics if row["step"] == 20 and row["split"] == "train"]
        assert all(0 <= row["nrc1"] <= 1 and row["effective_rank"] >= 1 for row in ended)
        assert ended[-1]["is_last"] and 0 <= ended[-1]["nrc2"] <= 1 and ended[-1]["nrc3"] >= 0
        assert ended[0].get("nrc2") is None, "the input has another width than the last weight"
        last = {row["split"]: row for row in curves if row["step"] == 20}
        first = next(row for row in curves if row["split"] == "train")
        assert last["train"]["accuracy"] is None and last["train"]["r_squared"] > first["r_squared"]
        assert last["test"]["r_squared"] < 1 and "accuracy" not in last["test"]


def test_rows_equal_functions_in_any_pack(folder):
    task, pack = pack_of(sweep_in(folder, test=False))
    training, trainer = trainer_of(task, pack)
    trainer.step()
    together = training.measure(trainer, [0, 1], 1)
    assert together == [training.measure(trainer, [position], 1)[0] for position in (0, 1)]
    features, weight = [h[0] for h in trainer.features(1)], trainer.parameters()["W_L"][1]
    for row, h_ND in zip(together[1][1:], features, strict=True):
        found = {name: row[name] for name in ("nrc1", "nrc2", "nrc3")}
        assert found == pytest.approx(depthrate.regression_collapse(h_ND, trainer.labels_N, weight))
        assert row["linear_probe"] == pytest.approx(depthrate.probe_r2(h_ND, trainer.labels_N))


def test_a_resumed_trial_is_the_uninterrupted_one(folder):
    task, pack = pack_of(sweep_in(folder, batch_size=8))
    whole = run_pack(task, pack)
    resumed, _ = run_resumed(task.run, pack, 7)
    assert_same(resumed, whole)


def test_published_images_have_a_teachers_outputs():
    def dataset(**params):
        return REGRESSION.load(
            REGRESSION.read(REGRESSION.schema.fill({"arch": "mlp", "depth": 1, **params})), Folder(".")
        )

    three = dataset(samples=100, targets=3)
    assert three.labels_N.shape == (100, 3) and three.shape.num_classes == 3 and three.has_targets
    np.testing.assert_allclose(three.labels_N.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(three.labels_N.std(0), 1, rtol=1e-5)
    again, other = dataset(samples=100, targets=3), dataset(samples=100, targets=3, data_seed=1)
    assert again.content_hash == three.content_hash != other.content_hash
    raw = dataset(samples=100, targets=3, standardize=False)
    assert abs(np.corrcoef(raw.labels_N[:, 0], three.labels_N[:, 0])[0, 1]) == pytest.approx(1, abs=1e-5)
    shape = REGRESSION.data_shape(REGRESSION.read(REGRESSION.schema.fill({"arch": "mlp", "depth": 1})))
    assert len(dataset().x_NI) == shape.num_samples


def test_tables_and_columns_of_numbers_are_targets(folder):
    pd.DataFrame({"x": list(X), "y": list(Y)}).to_parquet(folder / "mine.parquet")
    np.savez(folder / "one.npz", x=X, y=np.arange(60))
    for name, width in (("mine.parquet", 2), ("one.npz", 1)):
        task, (params, *_) = pack_of(sweep_in(folder, dataset=f"./{name}"))
        assert "targets" not in task.schema and len(params["dataset_hash"]) == 16
        assert task.data_shape(task.read(params)).num_classes == width


def test_invalid_targets_are_refused(folder):
    wrong = {
        "text": (np.array(list("abc"))[np.arange(60) % 3], r"targets are <U1 .*task: collapse"),
        "bool": (np.arange(60) % 2 == 0, r"targets are bool .*task: collapse"),
        "nan": (np.where(np.arange(60) == 7, np.nan, 1.5 * np.arange(60)), "target of sample 7 is NaN"),
        "constant": (np.stack([np.arange(60), np.ones(60)], 1), "number 1 of the targets is the same"),
        "short": (Y[:50], "60 samples have 50 targets"),
        "cube": (np.ones((60, 2, 2)), r"shape \[60, 2, 2\]"),
    }
    for name, (y, words) in wrong.items():
        np.savez(folder / f"{name}.npz", x=X, y=y)
        with pytest.raises((ParameterError, ValueError), match=words):
            expand(sweep_in(folder, dataset=f"./{name}.npz"))
    np.savez(folder / "split.npz", x=X[:40], y=Y[:40], x_test=X[40:], y_test=Y[40:, 0])
    with pytest.raises(ValueError, match=r"targets have 2 numbers, but the test split has 1"):
        expand(sweep_in(folder, dataset="./split.npz"))
    unknown = [({name: value}, f"unknown parameter '{name}'") for name, value in (("loss", "ce"), ("targets", 2))]
    samples = ({"samples": 41}, "samples is 41, but 'mine.npz' has 40")
    for params, words in (samples, *unknown, ({"measure": "nc1"}, "measure has 'nc1'")):
        with pytest.raises(ValueError, match=words):
            expand(sweep_in(folder, **params))


def test_task_loads_by_name_and_text(folder):
    assert load_task("regression") is REGRESSION
    text = sweep_in(folder).loaded_task
    assert text.startswith("regression?dataset=") and load_task(text).name == "regression"


def test_probe_measures_a_trained_module_against_targets():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x = torch.as_tensor(X).double()
    batches = [(x[:30], Y[:30]), (x[30:], Y[30:])]
    rows, layers = depthrate.probe(model, batches, layers="0", regression=True, measure="linear_probe", features=True)
    assert [row["name"] for row in rows] == ["input", "0", "head input"] and not NC & set().union(*rows)
    expected = depthrate.regression_collapse(layers["head input"], Y, model[2].weight)
    assert {name: rows[-1][name] for name in expected} == pytest.approx(expected)
    assert rows[0]["linear_probe"] == pytest.approx(depthrate.probe_r2(x, Y))
    for y, words in (
        (Y[:50], "60 samples have 50"),
        (np.ones(60), "does not vary"),
        (np.full(60, np.nan), "NaN"),
    ):
        with pytest.raises(depthrate.FeaturesError, match=words):
            depthrate.probe(model, (x, y), layers="0", regression=True)
