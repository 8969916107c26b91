"""Training of the task `dufm`: a pack's model, and metrics of every layer at log-spaced steps.

Shapes: T trials, N samples sorted by class, D = width, K classes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.data.dataset import numbered_samples
from depthrate.tasks.measures.class_means import class_collapse, class_means
from depthrate.tasks.measures.spectra import spectrum
from depthrate.tasks.papers.unconstrained.closed_forms import best_known, dnc_loss, srg_loss
from depthrate.tasks.papers.unconstrained.deep_descent import DufmDescent
from depthrate.tasks.papers.unconstrained.deep_metrics import RANK_TOLERANCES
from depthrate.tasks.papers.unconstrained.deep_network import FEATURES, UnconstrainedFeatures
from depthrate.tasks.papers.unconstrained.deep_parameters import (
    DufmParameters,
    has_closed_forms,
    problem_of,
    weight_decays,
)
from depthrate.tasks.papers.unconstrained.deep_solutions import Solution
from depthrate.tasks.papers.unconstrained.deep_starts import start
from depthrate.tasks.papers.unconstrained.solution_kind import GEOMETRY_TOLERANCE, classify
from depthrate.tasks.papers.unconstrained.strongly_regular import graph_order
from depthrate.tasks.papers.unconstrained.theory import DufmProblem
from depthrate.tasks.training.trainer import FusedTrainer, random_stream
from depthrate.tasks.training.training import ExtraCurves, NetworkTraining, Row, make_training
from depthrate.tasks.training.training_plan import Hyperparameters


def training(trials: Sequence[DufmParameters], network: UnconstrainedFeatures) -> NetworkTraining:
    """Build the training of a pack of trials."""
    problems = [problem_of(trial) for trial in trials]
    starts = [
        start(
            network,
            problem,
            init=trial.init,
            scale=trial.init_scale,
            noise=trial.init_noise,
            generator=random_stream(trial.seed, "init"),
        )
        for trial, problem in zip(trials, problems, strict=True)
    ]
    return make_training(
        trials,
        network,
        numbered_samples(network.num_classes, network.num_samples),
        [weight_decays(trial) for trial in trials],
        measure=_LayerMeasurements(network, trials[0].rank_tol),
        extra_curves=_ratios(problems, relu=network.relu),
        trainer=functools.partial(DufmDescent, start_TP=torch.stack(starts)),
        init="normal",  # overridden: the trainer uses start_TP
    )


def _ratios(problems: Sequence[DufmProblem], *, relu: bool) -> ExtraCurves:
    """Return a function that adds the objective over the closed forms to a curve row, or None where they are undefined."""

    def ratios(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
        problem = problems[index]
        if not has_closed_forms(problem):
            return {"loss_over_dnc": None, "loss_over_srg": None, "best_known": None}
        graph = srg_loss(problem) if relu else None
        return {
            "loss_over_dnc": row["objective"] / dnc_loss(problem),
            "loss_over_srg": None if graph is None else row["objective"] / graph,
            "best_known": best_known(problem, relu=relu),
        }

    return ratios


class _LayerMeasurements:
    """Metrics of one trial at a time, layer by layer, before and after the ReLU, and the kind of its solution."""

    def __init__(self, network: UnconstrainedFeatures, rank_tol: float):
        self._network, self._rank_tol = network, rank_tol
        self._counts_K = torch.from_numpy(numbered_samples(network.num_classes, network.num_samples).class_counts_K)

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return one row per layer for each trial. The last row holds the kind of solution.

        Computed in float64 on the CPU: the matrices are small, and ranks use tolerances down to 1e-6.
        """
        return [self._of_trial(trainer, position, step) for position in positions]

    def _of_trial(self, trainer: FusedTrainer, position: int, step: int) -> list[dict[str, Any]]:
        own = slice(position, position + 1)
        parameters = {name: values[own].cpu().double() for name, values in trainer.parameters().items()}
        rows = []
        stages = self._network.stages(parameters, trainer.x_NI.cpu().unsqueeze(0))
        for layer, weight, (before_TND, h_TND) in zip(
            self._network.layers(), self._network.weight_names(), stages, strict=True
        ):
            row: dict[str, Any] = {"step": step, "split": "train", "layer": layer.number, "is_last": False}
            row |= self._of_layer(h_TND, parameters[weight])
            if before_TND is not None:
                row |= {f"{name}_pre": value for name, value in self._of_values(before_TND).items()}
            rows.append({name: _as_row(value) if isinstance(value, Tensor) else value for name, value in row.items()})
        problem = _problem(trainer.hyperparameters[position], self._network)
        assert isinstance(trainer, DufmDescent)
        rows[-1] |= {"is_last": True, "solution": self._solution(problem, parameters, trainer.drift(position))}
        return rows

    def _of_layer(self, h_TND: Tensor, weight_TMD: Tensor) -> dict[str, Tensor]:
        means_TKD = class_means(h_TND, self._counts_K)
        measured = spectrum(means_TKD, self._rank_tol)
        sizes_TS = measured["singular_values"]
        order = graph_order(measured["class_gram"][0].numpy(), GEOMETRY_TOLERANCE)
        tolerances = torch.tensor(RANK_TOLERANCES, dtype=torch.float64)
        above = sizes_TS.unsqueeze(1) > tolerances.view(1, -1, 1) * sizes_TS[:, :1].unsqueeze(1)
        return {
            **self._of_values(h_TND),
            "nc1": class_collapse(h_TND, self._counts_K, means_TKD)["nc1"],
            "stable_rank": measured["stable_rank"],
            "ranks": above.double().sum(-1),
            "dnc3": _distance_to_means(weight_TMD, means_TKD),
            **({} if order is None else {"class_order": torch.tensor([order], dtype=torch.float64)}),
        }

    def _of_values(self, h_TND: Tensor) -> dict[str, Tensor]:
        """Compute the metrics defined both before and after a ReLU."""
        means_TKD = class_means(h_TND, self._counts_K)
        measured = spectrum(means_TKD, self._rank_tol)
        collapse = class_collapse(h_TND, self._counts_K, means_TKD, pinv_tolerance=self._rank_tol**2)
        return {
            "dnc1": collapse["nc1_pinv"],
            "dnc2": measured["condition_number"],
            **{name: measured[name] for name in ("rank", "singular_values", "class_gram")},
        }

    def _solution(self, problem: DufmProblem, parameters: Mapping[str, Tensor], drift: float) -> str:
        reached = Solution(
            parameters[FEATURES][0].numpy(), [parameters[name][0].numpy() for name in self._network.weight_names()]
        )
        return str(classify(problem, reached, drift=drift, relu=self._network.relu, rank_tol=self._rank_tol))


def _problem(hyperparameters: Hyperparameters, network: UnconstrainedFeatures) -> DufmProblem:
    features, *weights = hyperparameters.weight_decays.values()
    return DufmProblem(network.num_classes, network.num_samples // network.num_classes, tuple(weights), features)


def _distance_to_means(weight_TMD: Tensor, means_TKD: Tensor) -> Tensor:
    """Return the mean sine of the angle between a row and the class mean nearest to its line, weighted by the rows' norms."""
    norms_TM, lengths_TK = weight_TMD.norm(dim=-1), means_TKD.norm(dim=-1)
    cosines_TMK = (weight_TMD @ means_TKD.mT) / (norms_TM.unsqueeze(2) * lengths_TK.unsqueeze(1))
    nearest_TM = cosines_TMK.nan_to_num(0.0).abs().amax(-1).clamp(max=1.0)
    return (norms_TM * (1 - nearest_TM.square()).sqrt()).sum(-1) / norms_TM.sum(-1)


def _as_row(value: Tensor) -> Any:
    """Return one measurement of the only trial: a number, a list of numbers, or a matrix row by row."""
    if value.ndim == 1:
        number = value.item()
        return number if math.isfinite(number) else None
    return value[0].tolist() if value.ndim == 2 else value[0].flatten().float()
