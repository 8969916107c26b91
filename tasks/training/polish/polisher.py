"""Polish: after training, each trial of a pack is brought towards a stationary point in float64, all of them together.

By L-BFGS, or by it and, near the end, Newton's method. The evaluations are fused; the searches are each trial's own. ReLU's
kinks floor the gradient (minimisers lie on them), so they are rounded off over a width that shrinks in stages; what is
reported is measured with the true ReLU.

A trial ends with the lowest objective it saw, or, if the plan wants stationary points, where its gradient is small: the least
point of a smooth function that differs from the objective by less than the last width.
Shapes: T trials, P parameters of one trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.training.polish.lbfgs import Lbfgs
from depthrate.tasks.training.polish.newton_cg import NewtonCg
from depthrate.tasks.training.polish.smoothed_objective import Objective, SmoothedObjective
from depthrate.tasks.training.polish.subgradient import min_subgradient_norm
from depthrate.tasks.training.trainer import Evaluation, FusedTrainer
from depthrate.tasks.training.training_plan import PolishPlan

OBJECTIVE_RTOL = 1e-10
"""What share of the objective rounding makes of it, at most: 1e-12 was seen."""


@dataclass
class _Trial:
    """One trial on its way: its search, and which of the smoothing widths it is at."""

    search: Lbfgs | NewtonCg
    best_P: Tensor
    """The lowest of the points compared, with its objective `lowest` and its gradient norm."""
    lowest: float = math.inf
    best_gradient_norm: float = math.nan
    is_stationary: bool = False
    """Whether it reached the tolerance at the last width."""
    stage: int = 0
    finished_at: int | None = None
    """Evaluations it took; null while it goes on."""


class Polisher:
    """Brings T trials towards stationary points; a trial that is done leaves the fused evaluations and disturbs nobody."""

    def __init__(self, plan: PolishPlan, trainer: FusedTrainer):
        """Start where a trainer is that computes in float64."""
        self.plan, self._trainer = plan, trainer
        self.objective: Objective = SmoothedObjective(trainer, plan)
        """Formed eagerly; whoever has another way puts it here."""
        self._rounding = OBJECTIVE_RTOL if plan.to_stationary else 0.0
        self._trials = [_Trial(self._lbfgs(start_P), start_P) for start_P in trainer.theta_TP]
        self.num_evaluations = 0
        self.compare(range(len(self._trials)))  # no trial ends above where it began

    def _lbfgs(self, start_P: Tensor) -> Lbfgs:
        return Lbfgs(start_P, self.plan.memory, rounding=self._rounding)

    @property
    def active(self) -> list[int]:
        """Positions of the trials that are not done."""
        return [position for position, trial in enumerate(self._trials) if trial.finished_at is None]

    @property
    def theta_TP(self) -> Tensor:
        """Where each trial is: its iterate, and once it is done the lowest point seen."""
        return torch.stack(
            [trial.search.iterate_P if trial.finished_at is None else trial.best_P for trial in self._trials]
        )

    @property
    def finished_at(self) -> list[int | None]:
        """How many evaluations each trial took; null for those that go on."""
        return [trial.finished_at for trial in self._trials]

    @property
    def gradient_norms(self) -> list[float]:
        """The norm of each trial's gradient there, of the smoothed objective with its barrier."""
        return [
            trial.search.gradient_norm if trial.finished_at is None else trial.best_gradient_norm
            for trial in self._trials
        ]

    def compare(self, trials: Iterable[int]) -> Evaluation:
        """Keep those iterates that have the lowest true objective so far; put the trainer at `theta_TP` and evaluate it there.

        A trial ends with its lowest, not its last, unless it is to be stationary: the smoothed objective may fall where the
        true one rises, near a LayerNorm's singularity and where a unit lies on the rounded kink for all samples, which is a
        parabola there.
        """
        self._trainer.theta_TP = torch.stack([trial.search.iterate_P for trial in self._trials])
        evaluation = self._trainer.evaluate()
        objective_T = evaluation.objective.tolist()
        for trial, objective in ((self._trials[position], objective_T[position]) for position in trials):
            if objective < trial.lowest or self.plan.to_stationary:
                trial.best_P, trial.lowest = trial.search.iterate_P, objective
                trial.best_gradient_norm = trial.search.gradient_norm
        if any(trial.finished_at is not None for trial in self._trials):  # else that is where it is
            self._trainer.theta_TP = self.theta_TP
            evaluation = self._trainer.evaluate()
        return evaluation

    def step(self) -> None:
        """Evaluate each active trial at the point it asks for, and let it choose the next."""
        positions = self.active
        trials = [self._trials[position] for position in positions]
        point_TP = torch.stack([trial.search.point_P for trial in trials])
        value_T, gradient_TP = self.objective(positions, point_TP, [self.plan.smoothing[t.stage] for t in trials])
        self.num_evaluations += 1
        for trial, value, gradient_P in zip(trials, value_T.tolist(), gradient_TP, strict=True):
            trial.search.update(value, gradient_P.clone())
            self._advance_stage(trial)

    def _advance_stage(self, trial: _Trial) -> None:
        """Go on to the next width where this one is done with, or has had its share; after the last the trial is done."""
        plan, search, stages = self.plan, trial.search, len(self.plan.smoothing)
        is_last = trial.stage + 1 == stages
        if plan.to_stationary:
            near = math.sqrt(plan.tolerance)  # earlier widths only lead there
            is_reached = search.gradient_norm <= (plan.tolerance if is_last else near) * abs(search.value)
            is_over = self.num_evaluations >= plan.num_evaluations
        else:
            is_reached = search.gradient_norm <= plan.tolerance
            is_over = self.num_evaluations * stages >= (trial.stage + 1) * plan.num_evaluations
        if not (is_reached or search.is_stalled or is_over):
            if (
                plan.newton
                and is_last
                and isinstance(search, Lbfgs)
                and search.gradient_norm <= near * abs(search.value)
            ):
                trial.search = NewtonCg(search.iterate_P, search.value, search.gradient_P, rounding=self._rounding)
            return
        if not is_last and isinstance(search, Lbfgs) and self.num_evaluations < plan.num_evaluations:
            trial.stage += 1
            search.forget_value()
        else:
            trial.finished_at, trial.is_stationary = self.num_evaluations, is_reached and is_last

    def final_columns(self, position: int) -> dict[str, float]:
        """Return what is said of a trial that is done, where the plan wants stationary points."""
        trial = self._trials[position]
        if not self.plan.to_stationary or trial.finished_at is None:
            return {}
        least = min_subgradient_norm(self._trainer, position, trial.best_P, self.plan.smoothing[-1])
        return {"stationary": float(trial.is_stationary), "subgradient_norm": least}

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, as tensors and numbers."""
        trials = [
            [
                _search_end(trial.search) | (trial.search.state() if trial.finished_at is None else {}),
                trial.stage,
                trial.finished_at,
                [trial.best_P, trial.lowest, trial.best_gradient_norm, trial.is_stationary],
            ]
            for trial in self._trials
        ]
        return {"num_evaluations": self.num_evaluations, "trials": trials}

    def load_state(self, state: Mapping[str, Any], trials: Sequence[int]) -> None:
        """Go on from what `state` gave: of these trials of it, in this order."""
        self.num_evaluations = state["num_evaluations"]
        for trial, index in zip(self._trials, trials, strict=True):
            search_state, trial.stage, trial.finished_at, best = state["trials"][index]
            device = trial.search.iterate_P.device
            if "newton" in search_state:
                trial.search = NewtonCg.from_state(search_state, device, rounding=self._rounding)
            else:
                trial.search = self._lbfgs(trial.search.iterate_P)
                trial.search.load_state(search_state)
            trial.best_P, trial.lowest, trial.best_gradient_norm, *said = best
            trial.is_stationary = any(said)  # checkpoints of older versions do not say
            trial.best_P = trial.best_P.to(trial.search.iterate_P.device)


def _search_end(search: Lbfgs | NewtonCg) -> dict[str, Any]:
    """Return where a search is: all that is kept of one that is over."""
    return {"iterate_P": search.iterate_P, "ends": [search.value, search.gradient_norm]}
