"""What a running pack asks of the outside, in memory, and the comparison of two packs' results."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from depthrate.tasks.interface import Engine, Interrupted
from tests.support.own_data import Folder


@dataclass
class Context:
    """Keeps the last checkpoint in memory; asks to stop at one step, wants checkpoints at others."""

    trial_ids: list = field(default_factory=list)
    stop_at: int | None = None
    checkpoint: bytes | None = None
    save_every: int | None = None
    device: str = "cpu"
    data: object = None
    steps_seen: list = field(default_factory=list)
    engine: Engine = Engine.EAGER
    ran_as: list = field(default_factory=list)
    shown: list = field(default_factory=list)
    libraries: object = None

    def report_engine(self, engine, compile_s=None):
        self.ran_as.append((engine, compile_s))

    def progress(self, step, num_steps):
        assert 0 < step <= num_steps
        self.steps_seen.append(step)

    def should_stop(self):
        return bool(self.steps_seen) and self.steps_seen[-1] == self.stop_at

    def for_trial(self, index):
        return self

    def show_curves(self, curves):
        self.shown.append(curves)

    def report(self, step, values):
        return set()

    def checkpoint_due(self):
        return self.save_every is not None and self.steps_seen[-1] % self.save_every == 0

    def save_checkpoint(self, content):
        self.checkpoint = content

    def load_checkpoint(self):
        return self.checkpoint


def run_pack(task, trials, folder="."):
    """Run a pack of any task on the data in a folder."""
    return list(task.run(trials, Context(ids_of(trials), data=Folder(str(folder)))))


def training_on(trials, dataset):
    """Return what a pack of the task `collapse` does with a data set of the test's own."""
    from depthrate.tasks.supervised.task import COLLAPSE

    return COLLAPSE.training_on([COLLAPSE.read(params) for params in trials], dataset)


def ids_of(trials):
    return [repr(sorted(params.items())) for params in trials]


def run_resumed(run, trials, stop_at, resumed=None):
    """Interrupt the pack, then go on with a new one made from the checkpoint alone; return results and steps taken."""
    first = Context(ids_of(trials), stop_at=stop_at)
    with pytest.raises(Interrupted):
        list(run(trials, first))
    second = Context(ids_of(resumed or trials), checkpoint=first.checkpoint)
    return list(run(resumed or trials, second)), second.steps_seen


def assert_same(found, expected):
    """Every table, row and number, and the status."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.status, one.num_steps) == (other.status, other.num_steps)
        assert one.tables.keys() == other.tables.keys()
        for table in ("metrics", "curves"):
            np.testing.assert_equal(one.tables[table], other.tables[table])
        for name, column in one.tables.get("features", {}).items():
            assert np.array_equal(column, other.tables["features"][name]), name
