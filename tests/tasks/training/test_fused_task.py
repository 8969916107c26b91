"""A class of parameters and a subclass suffice for a fused task; plans, checks and packs are inherited."""

import subprocess
import sys

import numpy as np
import pytest

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.interface import Engine
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.papers.unconstrained.task import DUFM, MUFM
from depthrate.tasks.papers.words.task import WORDS
from depthrate.tasks.parameters import parameter
from depthrate.tasks.supervised.targets.classes_training import layer_measurements
from depthrate.tasks.training.fused_task import NetworkTask
from depthrate.tasks.training.parameters import BatchSize, Seed, TrainingParameters, check_training
from depthrate.tasks.training.training import make_training
from tests.support.own_data import dataset_of
from tests.support.training_context import Context, assert_same, ids_of, run_resumed

SAMPLES, CLASSES = 40, 4


class BlobParameters(TrainingParameters):
    depth: int = parameter(minimum=1, doc="blocks")
    lr: float = parameter(0.05, above=0, fusible=True, doc="learning rate")
    steps: int = parameter(15, minimum=1, doc="training steps")
    weight_decay: float = parameter(0.01, minimum=0, fusible=True, doc="lambda")
    batch_size: BatchSize
    seed: Seed


class Blobs(NetworkTask[BlobParameters]):
    name, version, parameters = "blobs", 1, BlobParameters

    def data_shape(self, trial):
        return DataShape(num_samples=SAMPLES, sample_shape=(6,), num_classes=CLASSES)

    def network(self, trial, data):
        return ResidualNetwork(
            linear_layers=1,
            pre_norm=False,
            depth=trial.depth,
            width=8,
            input_dimensions=data.num_inputs,
            num_classes=data.num_classes,
            last_bias=True,
            ln_eps=1e-5,
        )

    def check(self, trial):
        check_training(trial, SAMPLES)

    def training(self, trials, source):
        x = np.random.default_rng(0).normal(size=(SAMPLES, 6)).astype(np.float32)
        dataset = dataset_of(x, np.arange(SAMPLES) % CLASSES)
        decays = [{"hidden": trial.weight_decay, "last": trial.weight_decay} for trial in trials]
        network = self.network(trials[0], dataset.shape)
        return make_training(trials, network, dataset, decays, measure=layer_measurements(dataset.class_counts_K, 0.01))


def trials_of(**params):
    return [Blobs().schema.fill({"depth": 3, "seed": seed, "lr": 0.05 / (1 + seed), **params}) for seed in range(3)]


def test_what_plans_ask_follows_from_the_network():
    task, (params, *_) = Blobs(), trials_of(batch_size=10)
    assert list(task.schema) == ["depth", "lr", "steps", "weight_decay", "batch_size", "seed"]
    assert task.max_pack_size(params, "cpu") == 16 and task.estimate_s(params) > 0
    assert 3e8 < task.memory_bytes(params, 2, "cpu") < 4e8
    assert task.chain_parameter(params) is None and task.engine(params, Engine.AUTO, "cpu") is Engine.NATIVE
    with pytest.raises(ValueError, match="batch_size is 50, but the training set has 40 samples"):
        task.check_trial({**params, "batch_size": 50})


def test_fused_is_alone_and_resumed():
    task, trials = Blobs(), trials_of(batch_size=10)
    together = list(task.run(trials, Context(ids_of(trials))))
    assert_same([result for p in trials for result in task.run([p], Context(ids_of([p])))], together)
    resumed, _ = run_resumed(task.run, trials, 7)
    assert_same(resumed, together)
    steps, layers = task.measured(trials[0], 15)
    places = [(row["step"], row["layer"]) for row in together[0].tables["metrics"]]
    assert places == [(step, layer) for step in steps for layer in layers]


SMALL = {"num_classes": 3, "samples_per_class": 4}
WORDS_SMALL = {"vocabulary_size": 30, "sentence_length": 4, "sequences": 12, "width": 7, "batch_size": 20, "steps": 90}


@pytest.mark.parametrize(
    ("task", "params"),
    [
        (DUFM, {**SMALL, "depth": 3, "width": 6, "steps": 300, "lr": 1e9}),
        (MUFM, {**SMALL, "dimension": 4, "solver": "gradient", "steps": 300, "lr": 1e9, "scaled_steps": False}),
        (WORDS, {**WORDS_SMALL, "lr": 1e6, "init_scale": 1e6, "weight_decay": 0.0}),
    ],
    ids=["dufm", "mufm", "words"],
)
def test_diverged_trial_keeps_its_measurements(task, params):
    """It is measured at the full trial's steps up to its end, not at the steps of a trial with that many steps."""
    params = task.schema.fill(params)
    (result,) = task.run([params], Context(ids_of([params])))
    steps, layers = task.measured(params, result.num_steps)
    rows = {(row["step"], row["layer"]) for row in result.tables["metrics"]}
    assert result.status == "diverged" and rows <= {(step, layer) for step in steps for layer in layers}


@pytest.mark.slow
def test_cpu_training_imports_no_dynamo():
    code = (
        "import sys\n"
        "from depthrate.tasks.training.computing import computing\n"
        "with computing('cpu'):\n"
        "    pass\n"
        "assert 'torch' in sys.modules and 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
