"""Polish: after training, bring each trial of a pack towards a stationary point in float64.

The solver is L-BFGS, optionally followed by Newton's method. Evaluations are fused over trials, but searches are independent.
ReLU's kinks bound the gradient norm from below, because minimisers lie on them. They are therefore smoothed over a width that
shrinks in stages. Metrics use the true ReLU.

A trial ends at the lowest objective seen, or, if the plan requests stationary points, where its gradient is small: at a
stationary point of a smooth function that differs from the objective by less than the last width.
Shapes: T trials, P parameters of one trial.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.networks.flat_parameters import leaves_of, split_parameters
from depthrate.tasks.networks.smooth_relu import KinkSlopes
from depthrate.tasks.training.polish.lbfgs import Lbfgs
from depthrate.tasks.training.polish.newton_cg import NewtonCg
from depthrate.tasks.training.polish.smoothed_objective import Objective, SmoothedObjective
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import PolishPlan

OBJECTIVE_RTOL = 1e-10
"""Upper bound on the objective's relative rounding error. 1e-12 was observed."""


@dataclass
class _Trial:
    """Polish state of one trial: its search, and the index `stage` of its smoothing width."""

    search: Lbfgs | NewtonCg
    best_P: Tensor
    """Lowest point compared, with objective `lowest` and gradient norm `best_gradient_norm`."""
    lowest: float = math.inf
    best_gradient_norm: float = math.nan
    is_stationary: bool = False
    """Whether the trial reached the tolerance at the last width."""
    stage: int = 0
    finished_at: int | None = None
    """Number of evaluations at the trial's end, or None before the end."""


class Polisher:
    """Brings T trials towards stationary points. Finished trials leave the fused evaluations without affecting others."""

    def __init__(self, plan: PolishPlan, trainer: FusedTrainer):
        """Start at the parameters of a float64 trainer."""
        self.plan, self._trainer = plan, trainer
        self.objective: Objective = SmoothedObjective(trainer, plan)
        """Objective, eager unless it is replaced."""
        self._rounding = OBJECTIVE_RTOL if plan.to_stationary else 0.0
        self._trials = [_Trial(self._lbfgs(start_P), start_P) for start_P in trainer.theta_TP]
        self.num_evaluations = 0
        self.compare(range(len(self._trials)))  # so that no trial ends above its start

    def _lbfgs(self, start_P: Tensor) -> Lbfgs:
        return Lbfgs(start_P, self.plan.memory, rounding=self._rounding)

    @property
    def active(self) -> list[int]:
        """Positions of the unfinished trials."""
        return [position for position, trial in enumerate(self._trials) if trial.finished_at is None]

    @property
    def theta_TP(self) -> Tensor:
        """Current parameters: each trial's iterate, or its lowest point once it has finished."""
        return torch.stack(
            [trial.search.iterate_P if trial.finished_at is None else trial.best_P for trial in self._trials]
        )

    @property
    def finished_at(self) -> list[int | None]:
        """Number of evaluations of each finished trial, and None for unfinished trials."""
        return [trial.finished_at for trial in self._trials]

    @property
    def gradient_norms(self) -> list[float]:
        """Gradient norm of the smoothed objective with barrier at each trial's current parameters."""
        return [
            trial.search.gradient_norm if trial.finished_at is None else trial.best_gradient_norm
            for trial in self._trials
        ]

    def compare(self, trials: Iterable[int]) -> dict[str, Tensor]:
        """Record iterates with the lowest true objective so far, and evaluate the trainer at `theta_TP`.

        Unless the plan requests stationary points, a trial ends at its lowest point and not at its last one: the smoothed
        objective may fall where the true one rises, for example near a LayerNorm's singularity or where a unit lies in the
        smoothed part of its kink for all samples.
        """
        self._trainer.theta_TP = torch.stack([trial.search.iterate_P for trial in self._trials])
        evaluation = self._trainer.evaluate()
        objective_T = evaluation["objective"].tolist()
        for trial, objective in ((self._trials[position], objective_T[position]) for position in trials):
            if objective < trial.lowest or self.plan.to_stationary:
                trial.best_P, trial.lowest = trial.search.iterate_P, objective
                trial.best_gradient_norm = trial.search.gradient_norm
        if any(trial.finished_at is not None for trial in self._trials):  # otherwise the trainer is at theta_TP already
            self._trainer.theta_TP = self.theta_TP
            evaluation = self._trainer.evaluate()
        return evaluation

    def step(self) -> None:
        """Evaluate each active trial at its requested point, and update its search."""
        positions = self.active
        trials = [self._trials[position] for position in positions]
        point_TP = torch.stack([trial.search.point_P for trial in trials])
        value_T, gradient_TP = self.objective(positions, point_TP, [self.plan.smoothing[t.stage] for t in trials])
        self.num_evaluations += 1
        for trial, value, gradient_P in zip(trials, value_T.tolist(), gradient_TP, strict=True):
            trial.search.update(value, gradient_P.clone())
            self._advance_stage(trial)

    def _advance_stage(self, trial: _Trial) -> None:
        """Move to the next width once this one has converged or used its share. After the last, finish the trial."""
        plan, search, stages = self.plan, trial.search, len(self.plan.smoothing)
        is_last = trial.stage + 1 == stages
        if plan.to_stationary:
            loose = math.sqrt(plan.tolerance)  # earlier widths need less accuracy
            has_converged = search.gradient_norm <= (plan.tolerance if is_last else loose) * abs(search.value)
            is_over = self.num_evaluations >= plan.num_evaluations
        else:
            has_converged = search.gradient_norm <= plan.tolerance
            is_over = self.num_evaluations * stages >= (trial.stage + 1) * plan.num_evaluations
        if not (has_converged or search.is_stalled or is_over):
            is_near = plan.newton and is_last and search.gradient_norm <= loose * abs(search.value)
            if is_near and isinstance(search, Lbfgs):
                trial.search = NewtonCg(search.iterate_P, search.value, search.gradient_P, rounding=self._rounding)
            return
        if not is_last and isinstance(search, Lbfgs) and self.num_evaluations < plan.num_evaluations:
            trial.stage += 1
            search.forget_value()
        else:
            trial.finished_at, trial.is_stationary = self.num_evaluations, has_converged and is_last

    def final_columns(self, position: int) -> dict[str, float]:
        """Return a finished trial's extra columns, which exist only if the plan requests stationary points."""
        trial = self._trials[position]
        if not self.plan.to_stationary or trial.finished_at is None:
            return {}
        norm = min_subgradient_norm(self._trainer, position, trial.best_P, self.plan.smoothing[-1])
        return {"stationary": float(trial.is_stationary), "subgradient_norm": norm}

    def state(self) -> dict[str, Any]:
        """Return the state for `load_state`, as tensors and numbers."""
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
        """Resume from the `state` of these trials, in this order."""
        self.num_evaluations = state["num_evaluations"]
        for trial, index in zip(self._trials, trials, strict=True):
            search_state, trial.stage, trial.finished_at, best = state["trials"][index]
            device = trial.search.iterate_P.device
            if "newton" in search_state:
                trial.search = NewtonCg.from_state(search_state, device, rounding=self._rounding)
            else:
                trial.search = self._lbfgs(trial.search.iterate_P)
                trial.search.load_state(search_state)
            trial.best_P, trial.lowest, trial.best_gradient_norm, trial.is_stationary = best
            trial.best_P = trial.best_P.to(trial.search.iterate_P.device)


def _search_end(search: Lbfgs | NewtonCg) -> dict[str, Any]:
    """Return a search's iterate with value and gradient norm, the only state of a finished search."""
    return {"iterate_P": search.iterate_P, "ends": [search.value, search.gradient_norm]}


MAX_EVALUATIONS = 40
"""Maximum number of evaluations of the norm and its gradient."""


def min_subgradient_norm(trainer: FusedTrainer, position: int, theta_P: Tensor, width: float) -> float:
    """Minimise the norm of one trial's gradient over the slopes at ReLU's kinks, each between 0 and 1.

    ReLU's value is the true one. Units with |z| small compared with the last smoothing width are at a kink. Their slopes start
    at polish's values, and the squared norm is minimised over them. All samples are processed at once.

    Returns:
        The smallest norm found.
    """
    kinks = KinkSlopes(width)
    network = trainer.network.with_relu(kinks)
    leaves = leaves_of(split_parameters(theta_P.unsqueeze(0), trainer.specs), network.fixed_parameters)
    trained = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    decay_P = trainer.decay_TP[position]
    decayed = split_parameters((decay_P * theta_P).unsqueeze(0), trainer.specs)
    state = {name: tensor[position : position + 1] for name, tensor in trainer.untrained.items()}
    x_1NI, labels_1N = trainer.x_NI.unsqueeze(0), trainer.labels_N.unsqueeze(0)

    def square(slopes: list[Tensor] | None, *, differentiable: bool) -> Tensor:
        kinks.begin(slopes)
        loss = losses(trainer.plan.loss, network.logits(leaves, x_1NI, state), labels_1N).sum()
        pieces = torch.autograd.grad(loss, list(trained.values()), create_graph=differentiable)
        terms = [(piece + decayed[name]).square().sum() for name, piece in zip(trained, pieces, strict=True)]
        return torch.stack(terms).sum()

    # imported late, since the import takes half a second and most packs have no polish
    from scipy.optimize import minimize

    first = square(None, differentiable=False).item()
    start = torch.cat(kinks.starts) if kinks.starts else theta_P.new_zeros(0)
    if not len(start):
        return float(np.sqrt(first))
    sizes, scale = [len(part) for part in kinks.starts], max(first, 1e-300)

    def scaled(flat: np.ndarray) -> tuple[float, np.ndarray]:
        slopes = torch.from_numpy(flat.copy()).to(theta_P).requires_grad_()
        value = square(list(torch.split(slopes, sizes)), differentiable=True) / scale
        (gradient,) = torch.autograd.grad(value, slopes)
        return value.item(), gradient.numpy(force=True).astype(float)

    options = {"maxfun": MAX_EVALUATIONS, "maxiter": MAX_EVALUATIONS, "ftol": 0.0, "gtol": 1e-12}
    result = minimize(
        scaled, start.numpy(force=True), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(start), options=options
    )
    return float(np.sqrt(min(result.fun * scale, first)))
