"""The task `collapse`, stopped and resumed: as if it had never been stopped, or anew with a warning."""

import ast
import functools
import hashlib
import io
import logging
import os
import random

import pytest
import torch

from depthrate.tasks.interface import Interrupted
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.training_pack import TrainingPack
from tests.support.collapse_packs import STEPS, pack_of, params_of, run, with_diverging
from tests.support.training_context import Context, assert_same, ids_of, run_resumed

SHAPES = [{"batch_size": 7, "schedule": "step"}, {"optimizer": "adam", "lr": 0.01, "arch": "rn2"}]


def uninterrupted(trials):
    """As `run`, remembering what it gave before."""
    return _remembered(repr(trials))


@functools.cache
def _remembered(trials_text):
    return run(ast.literal_eval(trials_text))


@pytest.mark.parametrize("stop_at", [1, *random.Random(0).sample(range(2, STEPS), 2), STEPS])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_interrupted_and_resumed_is_uninterrupted(shape, stop_at):
    trials = pack_of(shape)
    found, steps = run_resumed(COLLAPSE.run, trials, stop_at)
    assert steps == list(range(stop_at + 1, STEPS + 1))
    assert_same(found, uninterrupted(trials))


@pytest.mark.parametrize("stop_at", [3, 10, 25])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_resuming_after_a_divergence_is_exact(shape, stop_at):
    trials = with_diverging(shape)
    assert_same(run_resumed(COLLAPSE.run, trials, stop_at)[0], uninterrupted(trials))


@pytest.mark.parametrize("chosen", [[0], [1], [2, 0], [1, 2]], ids=str)
@pytest.mark.parametrize("stop_at", [7, 25])
def test_part_of_a_pack_resumes(chosen, stop_at):
    """As after a pack ran out of memory and was halved; trial 1 diverges."""
    trials = with_diverging({"batch_size": 7})
    part = [trials[index] for index in chosen]
    found, steps = run_resumed(COLLAPSE.run, trials, stop_at, part)
    assert_same(found, uninterrupted(part))
    assert not steps or steps[0] == stop_at + 1


def test_due_checkpoint_changes_nothing():
    trials = pack_of({})
    context = Context(ids_of(trials), save_every=15)
    assert_same(list(COLLAPSE.run(trials, context)), uninterrupted(trials))
    resumed = Context(ids_of(trials), checkpoint=context.checkpoint)
    assert_same(list(COLLAPSE.run(trials, resumed)), uninterrupted(trials))
    assert resumed.steps_seen[0] == 31


def test_a_checkpoint_of_other_trials_is_not_used():
    other = Context(["someone else's"], stop_at=20)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run([params_of(seed=8)], other))
    assert_same(run([params_of()], checkpoint=other.checkpoint), uninterrupted([params_of()]))


@functools.cache
def checkpoint_bytes():
    trials = [params_of()]
    context = Context(ids_of(trials), stop_at=20)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run(trials, context))
    return context.checkpoint


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue()


def with_changed_weight(good):
    """One flipped bit in the middle of the parameters, as a failing disk leaves it."""
    theta = torch.load(io.BytesIO(good[32:]), weights_only=True)["trainer"]["theta_TP"]
    place = good.index(theta.numpy().tobytes()) + 4 * (theta.numel() // 2) + 2
    return good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :]


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda good: random.Random(1).randbytes(1000),
        lambda good: b"",
        lambda good: good[: len(good) // 2],
        lambda good: good[:-1],
        lambda good: good[:200] + random.Random(2).randbytes(500) + good[700:],
        lambda good: with_changed_weight(good),
        lambda good: saved({"format": 99}),
    ],
    ids=["random", "empty", "half", "last byte lost", "overwritten inside", "one weight changed", "something else"],
)
def test_a_corrupt_checkpoint_is_ignored_with_a_warning(corrupt, caplog):
    with caplog.at_level(logging.WARNING):
        found = run([params_of()], checkpoint=corrupt(checkpoint_bytes()))
    assert_same(found, uninterrupted([params_of()]))
    assert "checkpoint" in caplog.text


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


def test_executable_checkpoint_is_refused(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        found = run([params_of()], checkpoint=saved({"format": 1, "trainer": Trap(tmp_path / "ran")}))
    assert_same(found, uninterrupted([params_of()]))
    assert "checkpoint" in caplog.text and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("stop_at", [None, 10, 25])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_diverged_trials_may_leave_late(shape, stop_at, monkeypatch):
    """As on a GPU, which is not waited for between measurements."""
    trials = with_diverging(shape)
    expected = uninterrupted(trials)
    asked = []
    found = Divergence.diverged_steps
    monkeypatch.setattr(Divergence, "diverged_steps", lambda self: asked.append(found(self)) or found(self))
    run(trials)
    at_once = len(asked)
    monkeypatch.setattr(TrainingPack, "_on_gpu", True)
    asked.clear()
    seldom = run(trials) if stop_at is None else run_resumed(COLLAPSE.run, trials, stop_at)[0]
    assert_same(seldom, expected)
    assert len(asked) < at_once or stop_at is not None
