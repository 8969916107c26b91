"""Trials in generated kernels: their numbers do not depend on the pack or on interruptions, and are the eager ones."""

import copy
import dataclasses
import logging
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

from depthrate.orchestrator.analysis.open_results import open_results
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.interface import Engine
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.training.engines import generated
from depthrate.tasks.training.engines.generated import generation_fault
from depthrate.tasks.training.pack_state import Divergence
from tests.support.generated_training import MODELS, Mixing, network_of, trainer_of
from tests.support.native_trials import assert_native_pack, error, gradient, plan_of, taken, trials_of
from tests.support.own_data import Folder
from tests.support.training_context import Context, assert_same, ids_of

slow = pytest.mark.slow


@slow
@pytest.mark.parametrize("changes", [{}, {"optimizer": "adam", "clip_norm": 0.5}], ids=["sgd", "adam"])
def test_invariant_to_pack_calls_and_interruption(changes):
    network, plan, trials = network_of(), plan_of(batch_size=20, **changes), trials_of(5)
    together = taken(trainer_of(network, plan, trials, native=True), 25, most=25)
    for members, most in (([0], 1), ([4], 7), ([3, 1], 25), ([4, 3, 2, 1, 0], 3)):
        apart = trainer_of(network, plan, [trials[member] for member in members], native=True)
        assert torch.equal(taken(apart, 25, most), together[members]), (members, most)
    first = trainer_of(network, plan, trials, native=True)
    taken(first, 11, most=4)
    state = copy.deepcopy(first.state())
    taken(first, 13, most=1)
    second = trainer_of(network, plan, [trials[2], trials[0]], native=True)
    second.load_state(state, [2, 0])
    assert torch.equal(taken(second, 25, most=25), together[[2, 0]])


@slow
def test_a_diverging_trial_leaves_the_others_alone():
    trials = trials_of(4)
    trials[1] = dataclasses.replace(trials[1], lr=1e30)
    network, plan = network_of(), plan_of(batch_size=20, schedule="constant")

    def finish(trials):
        trainer = trainer_of(network, plan, trials, native=True)
        divergence = Divergence(len(trials), trainer.device)
        while trainer.step_count < 40:
            trainer._steps.pace.steps_per_call = 7
            trainer.advance(40, divergence)
        return trainer.theta_TP, divergence.diverged_steps()

    together, diverged = finish(trials)
    assert diverged == {1: 9} and not together[1].isfinite().all()
    for member in (0, 2, 3):
        assert torch.equal(finish([trials[member]])[0][0], together[member])


@slow
@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": None},
        {"batch_size": 20, "optimizer": "adam", "schedule": "step"},
        {"batch_size": 20, "clip_norm": 0.05},
        {"batch_size": 20, "optimizer": "adam", "clip_norm": 0.05},
        {"batch_size": 1},
        {"batch_size": 67, "loss": "mse"},
        {"batch_size": 20, "label_smoothing": 0.1},
    ],
    ids=str,
)
def test_a_few_steps_are_the_eager_ones(changes):
    """The optimiser, weight decay of groups, clipping, tiles that are not full, and evaluation."""
    network, plan = network_of(), plan_of(dtype=torch.float64, **changes)
    eager, native = (trainer_of(network, plan, trials_of(3), native=native) for native in (False, True))
    for number in range(20):
        assert error(native.step(), eager.step()) < 1e-11
        assert number or error(gradient(native), gradient(eager)) < 1e-11
    assert error(native.theta_TP, eager.theta_TP) < 1e-10
    for name, column_T in eager.evaluate().items():
        torch.testing.assert_close(native.evaluate()[name], column_T, rtol=1e-10, atol=0)


@slow
def test_float32_evaluation_is_the_eager_one():
    network, plan = network_of(), plan_of(batch_size=20)
    eager, native = (trainer_of(network, plan, trials_of(3), native=native) for native in (False, True))
    native.theta_TP.copy_(eager.theta_TP)
    found, expected = native.evaluate(), eager.evaluate()
    assert torch.equal(found["accuracy"], expected["accuracy"])
    for name in ("loss", "objective", "grad_norm"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: nn.BatchNorm1d(8), "a step changes its buffer"),
        (lambda: nn.BatchNorm1d(8, track_running_stats=False), "depends on the other samples"),
        (lambda: lambda x: x - x.mean(0), "depends on the other samples"),
        (lambda: lambda x: x + x.roll(1, 0), "depends on the other samples"),
        (lambda: lambda x: (x @ x.t()).softmax(1) @ x, "depends on the other samples"),
        (lambda: nn.Dropout(0.1), "draws random numbers"),
    ],
    ids=["BatchNorm", "without statistics", "mean", "roll", "attention", "dropout"],
)
def test_modules_whose_samples_mix_are_refused(function, words):
    network = network_of(lambda: Mixing(function()))
    assert words in generation_fault(network, network.data, "float32")


@pytest.fixture
def fresh_tables(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    generated._table.cache_clear()
    yield
    generated._table.cache_clear()


@slow
def test_different_integer_buffers_are_refused(fresh_tables):
    network, plan = network_of(draws_integers=True), plan_of(batch_size=20)
    with pytest.raises(EngineError, match="trials have different integer buffers"):
        trainer_of(network, plan, trials_of(3), native=True)


# ---- Tasks with a user's file ----


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(MODELS)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 6)).astype(np.float32)
    np.savez(tmp_path / "targets.npz", x=x, y=np.tanh(x @ rng.normal(size=(6, 2))))
    return tmp_path


COLLAPSE = {"arch": "./model.py:Net", "dataset": "digits", "samples_per_class": 4, "batch_size": 16}
REGRESSION = {"arch": "./model.py:Regression", "dataset": "./targets.npz", "batch_size": 16}
NEXT_TOKEN = {"arch": "./model.py:Gpt", "vocabulary_size": 7, "context_length": 5, "samples": 40, "min_class_count": 5}


def pack_of(folder, task="collapse", seeds=5, **params):
    """Return a task and its trials."""
    spec = {"name": "s", "task": task, "params": {"steps": 30, "lr": 0.05, **params}, "seeds": seeds}
    sweep = sweep_of_spec(spec, folder)
    task = sweep.load_task()
    return task, [trial.params for trial in expand(sweep, task)]


@slow
def test_pack_of_five_is_its_trials_alone_and_resumed(folder):
    task, trials = pack_of(folder, **COLLAPSE)
    assert_native_pack(task, trials)


@slow
@pytest.mark.parametrize(
    ("task", "params"),
    [
        ("regression", REGRESSION),
        ("next_token", {**NEXT_TOKEN, "batch_size": 16}),
        ("next_token", {**NEXT_TOKEN, "batch_size": None}),
        ("collapse", {**COLLAPSE, "label_smoothing": 0.1, "weight_decay": 0.01}),
        ("regression", {**REGRESSION, "arch": "rn2", "depth": 3, "width": 12, "weight_decay": 0.01}),
        ("next_token", {**NEXT_TOKEN, "arch": "t12", "depth": 2, "width": 9, "weight_decay": 0.01}),
        (
            "collapse",
            {**COLLAPSE, "arch": "rn1", "depth": 3, "width": 10, "label_smoothing": 0.1, "train_embedding": False},
        ),
        ("collapse", {**COLLAPSE, "arch": "t21", "depth": 2, "width": 10, "optimizer": "adam", "clip_norm": 0.1}),
        ("collapse", {**COLLAPSE, "arch": "t11", "depth": 2, "width": 10, "train_embedding": False, "norm": "pre"}),
    ],
    ids=[
        *("regression", "next token", "next token, one batch", "smoothed"),
        *("rn2 regression", "t12 next token", "rn1 smoothed", "t21", "t11 with a fixed embedding"),
    ],
)
def test_tasks_train_natively_as_eagerly(folder, task, params):
    loaded, trials = pack_of(folder, task, seeds=2, dtype="float64", **params)
    training = loaded.training([loaded.read(trial) for trial in trials], Folder(str(folder)))
    assert training.engine(Engine.AUTO, "cpu") is Engine.NATIVE
    eager, native = training.begin(), training.begin()
    native.use_native(training.native_library(lambda: False)[0])
    for _ in range(20):
        assert error(native.step(), eager.step()) < 1e-10
    assert error(native.theta_TP, eager.theta_TP) < 1e-9
    for name, column_T in eager.evaluate().items():  # of which the accuracy of tokens is rounded to float32
        torch.testing.assert_close(native.evaluate()[name], column_T, rtol=1e-6, atol=0, equal_nan=True)


@pytest.fixture
def broken_kernels(monkeypatch, fresh_tables):
    """Kernels whose first sample has twice its weight."""

    def generate(*arguments, **named):
        table = correct(*arguments, **named)
        kernels = [kernel._replace(body=kernel.body.replace("p2);", "p2);\n  p2[0] *= 2;")) for kernel in table.kernels]
        assert sum(kernel not in table.kernels for kernel in kernels) == 1
        return dataclasses.replace(table, kernels=kernels)

    correct = generated.generate
    monkeypatch.setattr(generated, "generate", generate)


@slow
def test_a_broken_kernel_is_an_error_or_a_warning(folder, broken_kernels, caplog):
    task, trials = pack_of(folder, seeds=2, **COLLAPSE)

    def run(engine):
        context = Context(ids_of(trials), engine=engine, data=Folder(str(folder)))
        return list(task.run(trials, context)), context.ran_as[-1][0]

    with pytest.raises(EngineError, match=r"the native step of ModuleNetwork has loss .*--engine eager"):
        run(Engine.NATIVE)
    with caplog.at_level(logging.WARNING):
        found, engine = run(Engine.AUTO)
    assert engine is Engine.EAGER and "training runs eagerly, because the native step of ModuleNetwork" in caplog.text
    assert_same(found, run(Engine.EAGER)[0])


SCALED = """
import os
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, 10))

    def forward(self, x):
        return super().forward(x) * float(os.environ["SCALE"])
"""


@slow
def test_a_cached_table_that_no_longer_fits_is_generated_again(tmp_path, monkeypatch, fresh_tables):
    (tmp_path / "model.py").write_text(SCALED)
    made, generate = [], generated.generate
    monkeypatch.setattr(
        generated, "generate", lambda *given, **named: made.append(generate(*given, **named)) or made[-1]
    )

    def run(scale, engine):
        monkeypatch.setenv("SCALE", scale)
        generated._table.cache_clear()
        task, trials = pack_of(tmp_path, seeds=1, **COLLAPSE)
        context = Context(ids_of(trials), engine=engine, data=Folder(str(tmp_path)))
        return next(iter(task.run(trials, context))).tables["curves"][-1]["loss"]

    first, again, other = (run(scale, Engine.NATIVE) for scale in ("1", "1", "2"))
    assert len(made) == 2 and made[0] != made[1] and first == again != other
    assert other == pytest.approx(run("2", Engine.EAGER), rel=1e-4)
    (tmp_path / "model.py").write_text(SCALED.replace("super().forward(x)", "super().forward(x + 1)"))
    run("2", Engine.NATIVE)
    assert len(made) == 3


# ---- Processes ----

SWEEP = """
name: s
task: collapse
params: {{arch: ./model.py:Net, dataset: digits, samples_per_class: 4, batch_size: 16, steps: 30, width: {width}}}
seeds: 2
engine: native
"""


def launch(folder, store, **environment):
    command = [sys.executable, "-m", "depthrate", "run", "s.yaml", "--store", store, "--workers", "1"]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def rows_in(folder, store):
    query = "select * exclude (attempt_id) from curves order by trial_id, step"
    return open_results(str(folder / store)).sql(query).fetchall()


def libraries(folder):
    return list((folder / "cache" / "depthrate" / "native").glob("kernels-*.so"))


@slow
def test_two_processes_build_one_kernel_and_a_killed_one_resumes(folder, tmp_path):
    (folder / "s.yaml").write_text(SWEEP.format(width=11))
    both = [launch(folder, store) for store in ("first", "second")]
    for process in both:
        output = process.communicate(timeout=250)[0]
        assert process.returncode == 0, output
    assert len(libraries(folder)) == 1
    expected = rows_in(folder, "first")
    assert expected and rows_in(folder, "second") == expected
    libraries(folder)[0].unlink()
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\n[ "$1" = -v ] || sleep 60\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    killed = launch(folder, "third", CXX=str(compiler))
    while not list((folder / "cache" / "depthrate" / "native").glob("building-*")):
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    resumed = launch(folder, "third")
    output = resumed.communicate(timeout=250)[0]
    assert resumed.returncode == 0, output
    assert len(libraries(folder)) == 1 and rows_in(folder, "third") == expected
