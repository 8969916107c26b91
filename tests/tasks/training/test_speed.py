"""Measured steps: the plain loop trains the trial that the engine trains, and what cannot be measured says so."""

import itertools
from pathlib import Path

import pytest
import torch

from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.files.data_folder import open_data_folder
from depthrate.sweeps.load import load_sweep
from depthrate.tasks.interface import Engine, Task, TaskError
from depthrate.tasks.papers.unconstrained.task import UFM
from depthrate.tasks.papers.words.task import WORDS
from depthrate.tasks.supervised.task import COLLAPSE, NEXT_TOKEN, REGRESSION, Supervised
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.speed import measure_speed, plain_losses
from depthrate.tasks.training.training import NetworkTraining

STEPS = 25
COMMON = {"depth": 2, "width": 8, "lr": 0.05, "steps": STEPS}
CLASSES = {"dataset": "digits", "samples_per_class": 6}
CASES = {
    "sgd": (COLLAPSE, {"arch": "rn1", "batch_size": 16, "weight_decay": 0.1, "weight_decay_last": 0.3}),
    "full batch": (COLLAPSE, {"arch": "mlp", "loss": "mse", "schedule": "cosine"}),
    "adam": (COLLAPSE, {"arch": "t11", "optimizer": "adam", "lr": 0.003, "weight_decay": 0.1, "dtype": "float64"}),
    "adamw": (COLLAPSE, {"arch": "rn1", "optimizer": "adamw", "lr": 0.003, "weight_decay": 0.3}),
    "rmsprop": (COLLAPSE, {"arch": "rn1", "optimizer": "rmsprop", "lr": 0.001, "label_smoothing": 0.2}),
    "clipping": (COLLAPSE, {"arch": "rn1", "clip_norm": 0.3, "weight_decay": 0.0, "batch_size": 50}),
    "running statistics": (
        COLLAPSE,
        {"arch": "resnet_conv", "depth": 3, "stages": "4x4x4*1 6x2x2*2", "batch_size": 30},
    ),
    "next tokens": (NEXT_TOKEN, {"arch": "t11", "samples": 64, "batch_size": 16}),
    "numbers": (REGRESSION, {"arch": "mlp", "samples": 64, "batch_size": 16}),
}


def training_of(task: Supervised, **params: object) -> NetworkTraining:
    trials = [task.schema.fill({**params, "seed": seed}) for seed in (3, 4)]
    return task.training([task.read(trial) for trial in trials], open_data_folder())


def agree(training: NetworkTraining) -> bool:
    with computing("cpu"):
        plain = torch.stack(list(itertools.islice(plain_losses(training), STEPS)))
        trainer = training.begin()
        expected = torch.stack([trainer.step()[0] for _ in range(STEPS)])
    assert expected[-1] < expected[0], "it learns"
    return torch.allclose(plain, expected, rtol=2e-3)


@pytest.mark.parametrize("name", CASES)
def test_the_plain_loop_trains_the_first_trial(name: str) -> None:
    task, params = CASES[name]
    assert agree(training_of(task, **{**COMMON, **(CLASSES if task is COLLAPSE else {}), **params}))


SWEEP = """
name: s
task: collapse
params: {arch: MODELS:Mixer, dataset: digits, samples_per_class: 6, width: 8, lr: 0.05, steps: 30, batch_size: 16}
grid: {depth: [1, 2]}
seeds: 2
"""


def custom_sweep(folder: Path) -> Path:
    """Write a sweep of a user's network."""
    models = Path(__file__).parents[2] / "support" / "own_models.py"
    (folder / "s.yaml").write_text(SWEEP.replace("MODELS", str(models)))
    return folder / "s.yaml"


def test_the_plain_loop_trains_a_users_module(tmp_path: Path) -> None:
    checked = check_sweep(load_sweep(str(custom_sweep(tmp_path))))
    task, params = checked.task, [trial.params for trial in checked.trials][:2]
    assert isinstance(task, Supervised)
    training = task.training([task.read(trial) for trial in params], open_data_folder())
    assert agree(training)
    engine, rate, plain_rate = measure_speed(training, Engine.AUTO, 0.01)
    assert engine is Engine.NATIVE and rate > 0 and plain_rate > 0
    assert measure_speed(training, Engine.EAGER, 0.01)[0] is Engine.EAGER


@pytest.mark.parametrize(
    ("task", "params"),
    [(WORDS, {}), (UFM, {}), (COLLAPSE, {"arch": "rn1", "depth": 2, "polish": 50, "continuation": [1, 2]})],
)
def test_what_cannot_be_measured_says_so(task: Task, params: dict[str, object]) -> None:
    with pytest.raises(TaskError, match=rf"task {task.name} cannot be measured\. .*depthrate run SWEEP --pilot"):
        task.measure_speed([task.schema.fill(params)], Engine.AUTO, open_data_folder(), 0.01)
