"""Every pair of a task's options runs from start to end, or `plan` refuses it with a ParameterError or EngineError."""

import dataclasses
import itertools
import json
import os
import struct
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthrate.orchestrator.analysis.columns import columns_of
from depthrate.storage.files.data_folder import open_data_folder
from depthrate.storage.tables.from_task import layer_parts, task_table
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.interface import Engine, Interrupted, ResultStatus, Task
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.registry import registered_task
from tests.support.option_pairs import OptionPairs, Row
from tests.support.training_context import Context, ids_of

REVIEWS = Path(os.environ.get("DEPTHRATE_DATA", "missing")) / "aclImdb_v1.tar.gz"
READABLE = {"digits", "gaussian", "markov", "mnist"} | ({"imdb"} if REVIEWS.exists() else set())
HOW = {"engine": ("eager", "auto"), "num_trials": (1, 2), "stop_at": (None, 1, 5)}
"""Options of the launch: the engine, trials in a pack, the step at which a pack is stopped before it is resumed."""
VALUES: dict[str, tuple[Any, ...]] = {
    "base_depth": (2, 3),
    "base_width": (64, 8, 2),
    "batch_size": (None, 1, 4),
    "block_scale": (1.0, 0.5),
    "clip_norm": (None, 0.1),
    "concepts": (3, 2),
    "context_length": (None, 1, 8),
    "continuation": ([], [1, 2], [1, 2, 3], [2, 3]),
    "data_seed": (0, 1),
    "depth": (2, 1, 3),
    "dimension": (6, 2, 10),
    "embedding_seed": (0, 1),
    "epochs": (None, 1, 8),
    "epsilon": (0.01, 0.0, 1.0),
    "features": ("none", "class_means", "all", "sample:1"),
    "init_noise": (0.0, 0.1),
    "init_scale": (1.0, 1e-3),
    "label_smoothing": (0.0, 0.1),
    "layer_norm_eps": (1e-5, 0.0),
    "ln_eps": (1e-12, 0.0, 1e-5),
    "lr": (0.01, 1e-3, 1e30),
    "measure": (None, "effective_rank", "intrinsic_dimension, linear_probe", "cka_last, cka_input"),
    "measure_epochs": (None, 1, 3),
    "measure_steps": (None, [], [0, 1], [7]),
    "milestones": (None, [], [1]),
    "min_class_count": (10, 1, 1000),
    "momentum": (0.9, 0.0, 1.0),
    "num_classes": (6, 2, 3),
    "order": (1, 3),
    "patch_size": (None, 1, 4),
    "polish": (0, 1, 12),
    "polish_barrier": (1e-6, 0.0, 1.0),
    "polish_memory": (12, 1),
    "polish_smoothing": ([0.1, 0.03, 0.01], [0.01]),
    "polish_tolerance": (1e-6, 0.0, 1e6),
    "proximity": (0.001, 1.0),
    "rank_tol": (0.01, 0.0, 1.0),
    "samples": (8, 4, 1),
    "samples_per_class": (2, 1, 3),
    "samples_per_sequence": (2, 1),
    "seed": (0, 3),
    "sentence_length": (3, 1),
    "sequences": (6, 2),
    "sharpness": (2.0, 0.0),
    "stages": (None, "4x8x8*2", "4x8x8*1 6x4x4*1"),
    "steps": (7, 1, None),
    "targets": (3, 1),
    "test_samples_per_sequence": (2, 1),
    "vocabulary_size": (None, 3, 12),
    "weight_decay": (0.005, 0.0),
    "weight_decay_biases": (None, 0.0, 0.01),
    "weight_decay_embedding": (None, 0.0, 0.01),
    "weight_decay_features": (None, 0.01),
    "weight_decay_last": (None, 0.0, 0.01),
    "weight_decays": (None, [0.01], [0.01, 0.0], [0.01, 0.02, 0.03]),
    "width": (8, 2, 64),
    "zipf": (0.0, 1.0),
}
"""Parameter -> values to try, tiny ones and the edges; where there are choices, each of them is tried."""
OF_TASK: dict[str, dict[str, tuple[Any, ...]]] = {
    "collapse": {"matmul_precision": ("full", "bf16")},
    "regression": {
        "matmul_precision": ("full", "bf16"),
        "measure": (None, "effective_rank, hessian_max, hessian_trace", "product_alignment"),
        "samples": (8, 4),
        "width": (8, 2),
    },
    "next_token": {
        "context_length": (None, 2, 8),
        "dataset": ("markov",),
        "matmul_precision": ("full", "bf16"),
        "min_class_count": (1, 3, 1000),
        "samples": (20, 4),
        "width": (8, 2),
    },
    "words": {"data_seed": (None, 0), "vocabulary_size": (12, 6), "batch_size": (4, None, 1), "width": (6, 2, 3)},
    "dufm": {
        "measure": (None, "hessian_max, hessian_trace, subspace_alignment"),
        "steps": (7, 1),
        "lr": (0.5, 1e30),
        "width": (8, 2),
    },
    "ufm": {"lr": (0.1, 1e30), "steps": (None, 7, 1), "weight_decay_features": (0.001, 1.0)},
    "mufm": {"lr": (0.1, 1e30), "steps": (None, 7, 1)},
}
"""Values that are a task's own; tf32 is for GPUs alone."""
TASKS = tuple(OF_TASK)


def idx(array: np.ndarray) -> bytes:
    """Return bytes as a file of MNIST holds them."""
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small data sets in place of the published ones."""
    put_small_data(tmp_path, monkeypatch)


def put_small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put thirty images of 12 x 12 in place of MNIST, and twenty for its test split; link the reviews where they are."""
    rng = np.random.default_rng(0)
    (tmp_path / "mnist").mkdir()
    for stem, count in (("train", 30), ("t10k", 20)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 256, (count, 12, 12))
        (tmp_path / "mnist" / f"{stem}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / "mnist" / f"{stem}-labels-idx1-ubyte").write_bytes(idx(labels))
    real = PUBLISHED["mnist"]
    sizes = {"num_samples": 30, "smallest_class": 3, "image_shape": (1, 12, 12)}
    small = dataclasses.replace(real, **sizes, test=(20, real.test[1]))
    monkeypatch.setitem(PUBLISHED, "mnist", small)
    if REVIEWS.exists():
        (tmp_path / REVIEWS.name).symlink_to(REVIEWS)
    monkeypatch.setenv("DEPTHRATE_DATA", str(tmp_path))


def options_of(task: Task) -> dict[str, tuple[Any, ...]]:
    """Return the values to try of each parameter of a task, and of a launch."""
    options: dict[str, tuple[Any, ...]] = {}
    for name, parameter in task.schema.items():
        if name in OF_TASK[task.name]:
            values = OF_TASK[task.name][name]
        elif parameter.choices or parameter.kind == "bool":
            choices = (*([None] if parameter.nullable else []), *(parameter.choices or (False, True)))
            readable = [value for value in choices if name not in ("dataset", "data") or value in READABLE]
            values = tuple(sorted(readable, key=lambda value, first=parameter.default: value != first))
        else:
            values = VALUES[name]
        options[name] = values
    return {**options, **HOW}


def params_of(task: Task, row: Row) -> dict[str, Any]:
    """Return a trial's parameters.

    Raises:
        ParameterError: `plan` refuses them.
    """
    params = task.schema.fill({name: value for name, value in row.items() if name not in HOW})
    task.complete(params)
    task.check_trial(params)
    return params


def refusal_of(task: Task, row: Row) -> str | None:
    """Return the message with which `plan` refuses a row, and which costs too much here; None where it is accepted."""
    if row.get("steps", 1) is None and row.get("epochs") is None and row.get("solver") != "exact":
        return "too costly for a test: steps and epochs are null, or solver is gradient"
    source = open_data_folder()
    try:
        params = params_of(task, row)
        engine = task.engine(params, Engine(row["engine"]), "cpu")
        task.check_data([params], source)
        if task.name == "next_token":
            task.check_contents([params], source)
    except (ParameterError, EngineError, DatasetError) as error:
        return str(error)
    assert task.max_pack_size(params, "cpu") >= 1 and (task.memory_bytes(params, 1, "cpu") or 1) > 0
    task.estimate_s(params, engine or Engine.EAGER)
    return None


def run(task: Task, row: Row) -> None:
    """Train, measure and polish a row's pack, with a stop and a resume where asked; form its tables, and compare the steps."""
    first = params_of(task, row)
    trials = [first]
    if row["num_trials"] == 2:
        trials.append(params_of(task, {**row, "seed": row["seed"] + 1}))
    how = {"engine": Engine(row["engine"]), "data": open_data_folder()}
    stopped = Context(ids_of(trials), stop_at=row["stop_at"], **how)
    try:
        results = list(task.run(trials, stopped))
    except Interrupted:
        resumed = Context(ids_of(trials), checkpoint=stopped.checkpoint, **how)
        results = list(task.run(trials, resumed))
    assert sorted(result.index for result in results) == list(range(len(trials)))
    for result in results:
        check_result(task, trials[result.index], result)


def check_result(task: Task, params: Row, result: Any) -> None:
    """Check that a result can be committed and is measured where the task says."""
    columns = columns_of(task)
    how = {"trial_id": "t", "attempt_id": "a"}
    assert result.status in (ResultStatus.OK, ResultStatus.DIVERGED)
    tables = dict(result.tables)
    for part in layer_parts(tables.pop("features", None)):
        task_table("features", part, columns, **how)
    curves = task_table("curves", tables.pop("curves", []), columns, **how)
    metrics = task_table("metrics", tables.pop("metrics", []), columns, **how).to_pylist()
    assert not tables
    if result.status is ResultStatus.OK:  # what diverges has no further depths of a chain
        assert curves.num_rows
        rows = sorted((row["step"], row["layer"]) for row in metrics if row["split"] == "train")
        assert rows == sorted(itertools.product(*task.measured(params, result.num_steps)))


def pairs_of(task: Task, seed: int = 0) -> OptionPairs:
    """Return the pairs of a task's options."""
    return OptionPairs(options_of(task), lambda row: refusal_of(task, row), seed=seed)


def crashes(task: Task, rows: list[Row]) -> list[str]:
    """Run rows; return each that crashed with where and how."""
    found = []
    for row in rows:
        try:
            run(task, row)
        except Exception:
            found.append(f"{json.dumps(row)}\n{traceback.format_exc()}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two minutes alone
@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize("name", TASKS)
def test_pairs_run_or_are_refused(name):
    task = registered_task(name)
    pairs = pairs_of(task)
    rows = pairs.covering_rows()
    print(f"{name}: {len(pairs.pairs)} pairs, {len(pairs.refused)} refused at plan, {len(rows)} rows run")
    assert not crashes(task, rows)
