"""Continuation in depth: a chain of depths, each polished from the previous solution with neutral blocks inserted.

A neutral block does not change the output, so a depth starts with the objective at which the previous depth ended. A trial's
result depends on its whole chain but not on its pack. Trials of a pack that differ only in depth share a lane: their chain runs
once, and each depth that belongs to a trial gives that trial's result.

Shapes: T lanes, P and Q parameters of a lane at one depth and at the next.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.interface import Engine, ResultStatus, TaskContext, TrialResult
from depthrate.tasks.networks.flat_parameters import join_rows, split_parameters
from depthrate.tasks.networks.network import Network
from depthrate.tasks.parameters import changed
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.parameters import TrainingParameters
from depthrate.tasks.training.polish.polish_parameters import chain
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining
from depthrate.tasks.training.training_pack import prepare_pack

MakeTraining = Callable[[Sequence[Any]], NetworkTraining]
"""Builds the training of trials of one depth from their parameters."""


def run_chain(trials: Sequence[TrainingParameters], make: MakeTraining, context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure the lanes of a pack depth by depth. Results are yielded as depths finish.

    Raises:
        Interrupted: A stop was requested, and a checkpoint has been saved.
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
    """The lanes of a pack, processed depth by depth."""

    def __init__(
        self,
        lanes: Mapping[str, TrainingParameters],
        wanted: Mapping[tuple[str, int], int],
        make: MakeTraining,
        context: TaskContext,
    ):
        """Plan each lane down to its deepest trial. `wanted` maps (lane, depth) to the trial's index in the pack."""
        self._lanes, self._wanted, self._make, self.context = lanes, wanted, make, context
        self._depths = chain(max(lanes.values(), key=lambda trial: trial.depth))
        self.saved = _split_checkpoints(context.load_checkpoint())
        """Checkpoints of the depths that have one."""
        self.steps_before = 0
        self.all_steps = sum(_budget(self._training(depth, list(lanes))) for depth in self._depths)

    def results(self) -> Iterator[TrialResult]:
        """Process the depths, and yield each trial's result once its depth has finished."""
        ends: dict[str, Tensor] = {}
        network: Network | None = None
        for stage, depth in enumerate(self._depths):
            reached = [lane for lane, trial in self._lanes.items() if trial.depth >= depth]
            running = [lane for lane in reached if stage == 0 or lane in ends]
            for lane in reached:
                if lane not in running and (lane, depth) in self._wanted:  # the lane diverged at its first depth
                    yield TrialResult(self._wanted[lane, depth], {}, status=ResultStatus.DIVERGED, num_steps=0)
            if not running:
                continue
            training = self._training(depth, running)
            if network is not None:
                start_TP = deepen(network, training.network, torch.stack([ends[lane] for lane in running]))
                plan = dataclasses.replace(training.plan, dtype=start_TP.dtype)
                training = dataclasses.replace(training, plan=plan, start_TP=start_TP)
            pack = prepare_pack(training, StageContext(self, stage, running))
            pack.train()
            network, self.steps_before = training.network, self.steps_before + _budget(training)
            self.saved[stage:] = [pack.dump_checkpoint(), *self.saved[stage + 1 :]]
            assert isinstance(pack.trainer, FusedTrainer)
            ends = {running[index]: pack.trainer.theta_TP[position] for position, index in enumerate(pack.alive)}
            for result in pack.results():
                if (running[result.index], depth) in self._wanted:
                    yield dataclasses.replace(result, index=self._wanted[running[result.index], depth])

    def trial_at(self, lane: str, stage: int) -> str | None:
        """Return the id of the trial at a lane's depth, or None."""
        index = self._wanted.get((lane, self._depths[stage]))
        return None if index is None else self.context.trial_ids[index]

    def _training(self, depth: int, lanes: Sequence[str]) -> NetworkTraining:
        return self._make([changed(self._lanes[lane], depth=depth) for lane in lanes])


class StageContext:
    """The context of one depth of a chain: the pack's context, with checkpoints that include earlier depths."""

    def __init__(self, chain: _Chain, stage: int, lanes: Sequence[str]):
        """Use the lanes as ids of the trials."""
        self.chain, self.stage, self.trial_ids, context = chain, stage, lanes, chain.context
        self.device, self.data = context.device, context.data
        self.engine, self.libraries = context.engine, context.libraries
        self.should_stop, self.checkpoint_due = context.should_stop, context.checkpoint_due

    def report_engine(self, engine: Engine, compile_s: float | None = None) -> None:
        """Report the engine of the first depth, the only one with training steps."""
        if self.stage == 0:
            self.chain.context.report_engine(engine, compile_s)

    def progress(self, step: int, num_steps: int) -> None:
        """Report the progress of the whole chain."""
        self.chain.context.progress(self.chain.steps_before + step, self.chain.all_steps)

    def show_curves(self, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Publish the live curves of lanes with a trial at this depth."""
        by_trial = {self.chain.trial_at(lane, self.stage): rows for lane, rows in curves.items()}
        self.chain.context.show_curves({trial_id: rows for trial_id, rows in by_trial.items() if trial_id is not None})

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Do not prune any trial, because a search cannot compare steps of different depths."""
        return set()

    def save_checkpoint(self, content: bytes) -> None:
        """Save this depth's checkpoint together with earlier depths' checkpoints."""
        parts = [*self.chain.saved[: self.stage], content]
        self.chain.context.save_checkpoint(b"".join(len(part).to_bytes(8, "big") + part for part in parts))

    def load_checkpoint(self) -> bytes | None:
        """Return this depth's checkpoint, or None."""
        return self.chain.saved[self.stage] if self.stage < len(self.chain.saved) else None

    def for_trial(self, index: int) -> TaskContext:
        """Return this context, because a depth's trials share one checkpoint."""
        return self


def _budget(training: NetworkTraining) -> int:
    """Return the maximum number of steps of a depth, including polish."""
    return training.plan.num_steps + (0 if training.polish is None else training.polish.num_evaluations)


def _split_checkpoints(content: bytes | None) -> list[bytes]:
    """Split joined checkpoints, each preceded by its length. A truncated last part is detected later by its checksum."""
    parts, rest = [], content or b""
    while rest:
        length = int.from_bytes(rest[:8], "big")
        parts.append(rest[8 : 8 + length])
        rest = rest[8 + length :]
    return parts


def deepen(shallow: Network, deep: Network, theta_TP: Tensor) -> Tensor:
    """Build parameters [T, Q] with which the deeper network computes the same function as the shallower one with [T, P].

    The existing blocks are spread evenly among the new ones, in their order. Both networks are of the same kind, which has a
    neutral block.
    """
    neutral = deep.neutral_block()
    assert neutral is not None, "check_polish rejects other networks"
    shallow_parameters = split_parameters(theta_TP, shallow.parameter_specs())
    num_trials = len(theta_TP)
    first, *_ = neutral
    old, new = _blocks(shallow, first), _blocks(deep, first)
    source = {new[position * len(new) // len(old)]: block for position, block in enumerate(old)}
    blocks: dict[str, Tensor] = {}
    for block in new:
        for template, value in neutral.items():
            name = template.format(block)
            if block in source:
                blocks[name] = shallow_parameters[template.format(source[block])]
            else:
                spec = next(spec for spec in deep.parameter_specs() if spec.name == name)
                blocks[name] = theta_TP.new_full((num_trials, *spec.shape), value)
    parameters = shallow_parameters | blocks
    return join_rows(parameters[spec.name] for spec in deep.parameter_specs())


def _blocks(network: Network, template: str) -> list[int]:
    """List the numbers of a network's blocks, in order."""
    names = {spec.name for spec in network.parameter_specs()}
    return [block for block in range(len(names) + 1) if block > 0 and template.format(block) in names]
