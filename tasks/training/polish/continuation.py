"""Continuation in depth: a chain of depths, each polished from the solution of the one before, blocks inserted in between.

An inserted block changes nothing, so that what a depth begins with is as good as what the depth before it ended with. Every
trial stands for its whole chain and is the same whoever shares its pack; in a pack the trials that differ in nothing but their
depth share one lane: their chains are gone through once, and each depth that a trial asks for gives that trial's result.

Shapes: T lanes, P and Q parameters of a lane at a depth and at the next.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.interface import Engine, ResultStatus, SharedLibraries, TaskContext, TrialResult
from depthrate.tasks.networks.flat_parameters import split_parameters
from depthrate.tasks.networks.network import Network
from depthrate.tasks.parameters import changed
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.parameters import TrainingParameters
from depthrate.tasks.training.polish.polish_parameters import chain
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining
from depthrate.tasks.training.training_pack import prepare_pack

MakeTraining = Callable[[Sequence[Any]], NetworkTraining]
"""From the parameters of trials of one depth to what they train on and how."""


def run_chain(trials: Sequence[TrainingParameters], make: MakeTraining, context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure the lanes of a pack depth by depth; results come as depths are done.

    Raises:
        Interrupted: it was asked to stop and has saved a checkpoint.
    """
    wanted: dict[tuple[str, int], int] = {}
    lanes: dict[str, TrainingParameters] = {}
    for index, trial in enumerate(trials):
        lane = json.dumps({name: value for name, value in vars(trial).items() if name != "depth"}, sort_keys=True)
        wanted[lane, trial.depth] = index
        if lane not in lanes or lanes[lane].depth < trial.depth:
            lanes[lane] = trial
    with computing(context.device, trials[0].matmul_precision):
        yield from _Chain(lanes, wanted, make, context).results()


class _Chain:
    """The lanes of a pack on their way from depth to depth."""

    def __init__(
        self,
        lanes: Mapping[str, TrainingParameters],
        wanted: Mapping[tuple[str, int], int],
        make: MakeTraining,
        context: TaskContext,
    ):
        """Go as deep in each lane as its deepest trial; `wanted` is (lane, depth) -> the trial's index in the pack."""
        self._lanes, self._wanted, self._make, self.context = lanes, wanted, make, context
        self._depths = chain(max(lanes.values(), key=lambda trial: trial.depth))
        self.saved = _split_checkpoints(context.load_checkpoint())
        """The checkpoint of each depth that has one."""
        self.steps_before = 0
        self.all_steps = sum(_budget(self._training(depth, list(lanes))) for depth in self._depths)

    def results(self) -> Iterator[TrialResult]:
        """Go through the depths and yield each trial's result once its depth is done."""
        ends: dict[str, Tensor] = {}
        network: Network | None = None
        for stage, depth in enumerate(self._depths):
            reached = [lane for lane, trial in self._lanes.items() if trial.depth >= depth]
            going = [lane for lane in reached if stage == 0 or lane in ends]
            for lane in reached:
                if lane not in going and (lane, depth) in self._wanted:  # it diverged while its first depth trained
                    yield TrialResult(self._wanted[lane, depth], {}, status=ResultStatus.DIVERGED, num_steps=0)
            if not going:
                continue
            training = self._training(depth, going)
            if network is not None:
                start_TP = deepen(network, training.network, torch.stack([ends[lane] for lane in going]))
                plan = dataclasses.replace(training.plan, dtype=start_TP.dtype)
                training = dataclasses.replace(training, plan=plan, start_TP=start_TP)
            pack = prepare_pack(training, StageContext(self, stage, going))
            pack.train()
            network, self.steps_before = training.network, self.steps_before + _budget(training)
            self.saved[stage:] = [pack.dump_checkpoint(), *self.saved[stage + 1 :]]
            assert isinstance(pack.trainer, FusedTrainer)
            ends = {going[index]: pack.trainer.theta_TP[position] for position, index in enumerate(pack.alive)}
            for result in pack.results():
                if (going[result.index], depth) in self._wanted:
                    yield dataclasses.replace(result, index=self._wanted[going[result.index], depth])

    def trial_at(self, lane: str, stage: int) -> str | None:
        """Return the trial that a lane's depth stands for; null where none asks for it."""
        index = self._wanted.get((lane, self._depths[stage]))
        return None if index is None else self.context.trial_ids[index]

    def _training(self, depth: int, lanes: Sequence[str]) -> NetworkTraining:
        return self._make([changed(self._lanes[lane], depth=depth) for lane in lanes])


@dataclass(frozen=True)
class StageContext:
    """What one depth of a chain asks of the outside: the pack's context, with the checkpoints of earlier depths kept beside."""

    chain: _Chain
    stage: int
    trial_ids: Sequence[str]
    """Of the lanes."""

    @property
    def device(self) -> str:
        """Where to compute."""
        return self.chain.context.device

    @property
    def data(self) -> DataSource:
        """Where data sets are read from."""
        return self.chain.context.data

    @property
    def engine(self) -> Engine:
        """How the launch wants steps to be run."""
        return self.chain.context.engine

    @property
    def libraries(self) -> SharedLibraries | None:
        """Where kernels are left for machines that cannot build them."""
        return self.chain.context.libraries

    def report_engine(self, engine: Engine, compile_s: float | None = None) -> None:
        """Tell how the first depth's steps are run: the others have none but polish's."""
        if self.stage == 0:
            self.chain.context.report_engine(engine, compile_s)

    def should_stop(self) -> bool:
        """Whether to save a checkpoint now and raise `Interrupted`."""
        return self.chain.context.should_stop()

    def progress(self, step: int, num_steps: int) -> None:
        """Tell how far the whole chain has come."""
        self.chain.context.progress(self.chain.steps_before + step, self.chain.all_steps)

    def show_curves(self, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Show the curves of those lanes that a trial asks for at this depth."""
        shown = {self.chain.trial_at(lane, self.stage): rows for lane, rows in curves.items()}
        self.chain.context.show_curves({trial_id: rows for trial_id, rows in shown.items() if trial_id is not None})

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Leave out none: a search cannot compare the steps of one depth with those of another."""
        return set()

    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is old enough for a new one."""
        return self.chain.context.checkpoint_due()

    def save_checkpoint(self, content: bytes) -> None:
        """Keep the ends of the depths before, and where this one is."""
        self.chain.context.save_checkpoint(_join_checkpoints([*self.chain.saved[: self.stage], content]))

    def load_checkpoint(self) -> bytes | None:
        """Return what this depth saved, or None."""
        return self.chain.saved[self.stage] if self.stage < len(self.chain.saved) else None

    def for_trial(self, index: int) -> TaskContext:
        """Return itself: a depth's trials have one checkpoint."""
        return self


def _budget(training: NetworkTraining) -> int:
    """Return the most steps that a depth takes."""
    return training.plan.num_steps + (0 if training.polish is None else training.polish.num_evaluations)


def _join_checkpoints(parts: Sequence[bytes]) -> bytes:
    """Return the checkpoints of several depths as one: each with its length in front."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _split_checkpoints(content: bytes | None) -> list[bytes]:
    """Return what `_joined` joined; what is cut off at the end is found out by the checksum of its part."""
    parts, rest = [], content or b""
    while rest:
        length = int.from_bytes(rest[:8], "big")
        parts.append(rest[8 : 8 + length])
        rest = rest[8 + length :]
    return parts


def deepen(shallow: Network, deep: Network, theta_TP: Tensor) -> Tensor:
    """Return the parameters [T, Q] with which the deeper network computes what the shallower one does with [T, P].

    The blocks there are stand evenly among the new ones, each before those that follow it. Both are networks of one kind that
    say what a block is that changes nothing.
    """
    neutral = deep.neutral_block()
    assert neutral is not None, "the trial's check lets no other network through"
    given = split_parameters(theta_TP, shallow.parameter_specs())
    num_trials = len(theta_TP)
    first, *_ = neutral
    old, new = _blocks(shallow, first), _blocks(deep, first)
    source = {new[position * len(new) // len(old)]: block for position, block in enumerate(old)}
    made: dict[str, Tensor] = {}
    for block in new:
        for template, value in neutral.items():
            name = template.format(block)
            if block in source:
                made[name] = given[template.format(source[block])]
            else:
                spec = next(spec for spec in deep.parameter_specs() if spec.name == name)
                made[name] = theta_TP.new_full((num_trials, *spec.shape), value)
    pieces = [made[spec.name] if spec.name in made else given[spec.name] for spec in deep.parameter_specs()]
    return torch.cat([piece.flatten(1) for piece in pieces], dim=1)


def _blocks(network: Network, template: str) -> list[int]:
    """Return the numbers of a network's blocks, in order."""
    names = {spec.name for spec in network.parameter_specs()}
    return [block for block in range(len(names) + 1) if block > 0 and template.format(block) in names]
