"""Training of the task `dufm`: starts, gradient descent, a pack's model, and metrics of every layer.

Shapes: T trials, N samples sorted by class, D = width, K classes, P parameters of one trial.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.data.dataset import numbered_samples
from depthrate.tasks.measures.neural_collapse import class_collapse, class_moments, spectrum
from depthrate.tasks.papers.unconstrained.deep_solutions import (
    GEOMETRY_TOLERANCE,
    Solution,
    bipartite_start,
    classify,
    dnc_solution,
    repeated,
    srg_solution,
)
from depthrate.tasks.papers.unconstrained.metrics import RANK_TOLERANCES
from depthrate.tasks.papers.unconstrained.network import FEATURES, UnconstrainedFeatures
from depthrate.tasks.papers.unconstrained.parameters import DufmParameters, has_closed_forms, problem_of, weight_decays
from depthrate.tasks.papers.unconstrained.strongly_regular import graph_order
from depthrate.tasks.papers.unconstrained.theory import DufmProblem, best_known, dnc_loss, srg_loss
from depthrate.tasks.training.engines.hand_gradient import HandGradientTrainer
from depthrate.tasks.training.pack_state import random_stream
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining, Row, make_training

DRIFT_STEPS = 200
"""Steps of the mean gradient: enough to average out oscillations across a ReLU's kink."""


class DufmDescent(HandGradientTrainer):
    """Plain gradient descent on H_1 and all weights at once, from given starts, with gradients in reused buffers."""

    network: UnconstrainedFeatures

    def drift(self, position: int) -> float:
        """Return one trial's distance from rest: 0 at a stationary point, about 1 if nothing balances the weight decay.
        Without any weight decay it is infinite.

        This is the norm of the mean gradient over the next steps, taken on a copy, over the norm of lambda times the matrices.
        """
        alone, hyperparameters = slice(position, position + 1), self.hyperparameters[position]
        pull_P = self.decay_TP[alone] * self.theta_TP[alone]
        if not pull_P.any():
            return math.inf
        # on the CPU, where another thread may compute this while a GPU takes steps
        samples, start_1P = (self.x_NI.cpu(), self.labels_N.cpu()), self.theta_TP[alone].cpu().clone()
        ahead = DufmDescent(self.network, self.plan, [hyperparameters], *samples, start_TP=start_1P)
        for _ in range(DRIFT_STEPS):
            ahead.step()
        moved_P = (start_1P - ahead.theta_TP) / (DRIFT_STEPS * hyperparameters.lr)
        return float(moved_P.double().norm() / pull_P.double().norm())

    def _lay_out(self, parameters: dict[str, Tensor]) -> None:
        names = self.network.weight_names()
        self._h0_TND, self._weights = parameters[FEATURES], [parameters[name] for name in names]
        self._h = [torch.empty_like(self._h0_TND) for _ in names[1:]]
        self._deltas = [torch.empty_like(self._h0_TND) for _ in range(2)]
        self._output_TNK = self._h0_TND.new_empty(*self._h0_TND.shape[:2], self.network.num_classes)
        decays = [[h.weight_decays[name] for h in self.hyperparameters] for name in (FEATURES, *names)]
        self._decays_MT = torch.tensor(decays, dtype=torch.float64)

    def rate_factors(self, rates: Sequence[float]) -> Sequence[Tensor]:
        """Return the rate per sample and each matrix's factor of weight decay, [T, 1, 1], from float64 and rounded once."""
        rate_T = torch.tensor(rates, dtype=torch.float64)
        columns = [rate_T / len(self._targets_NK), *(1 - rate_T * self._decays_MT)]
        return [column_T.view(-1, 1, 1).to(self.theta_TP) for column_T in columns]

    def descend(self, *factors: Tensor) -> Tensor:
        logits_TNK = self._forward()
        if self.plan.loss == "ce":
            log_p_TNK = logits_TNK.log_softmax(-1)
            loss_T = -(log_p_TNK * self._targets_NK).sum(-1).mean(1)
            error_TNK = log_p_TNK.exp_().sub_(self._targets_NK)
        else:
            error_TNK = logits_TNK.sub_(self._targets_NK)
            loss_T = error_TNK.square().sum(-1).mean(1) / 2
        self._backward(error_TNK, *factors)
        return loss_T

    def _forward(self) -> Tensor:
        """Return the output, [T, N, K]."""
        h_TND = self._h0_TND
        for weight_TDD, out_TND in zip(self._weights[:-1], self._h, strict=True):
            h_TND = torch.bmm(h_TND, weight_TDD.mT, out=out_TND)
            if self.network.relu:
                h_TND.relu_()
        return torch.bmm(h_TND, self._weights[-1].mT, out=self._output_TNK)

    def _backward(self, error_TNK: Tensor, rate_T11: Tensor, shrink_features: Tensor, *shrinks: Tensor) -> None:
        """Update every matrix. The error includes the learning rate, so that products are steps."""
        delta = error_TNK.mul_(rate_T11)
        inputs = [self._h0_TND, *self._h]
        for layer in reversed(range(len(self._weights))):
            weight, h_TND = self._weights[layer], inputs[layer]
            next_TND = torch.bmm(delta, weight, out=self._deltas[layer % 2])  # before the weight changes
            weight.mul_(shrinks[layer]).baddbmm_(delta.mT, h_TND, alpha=-1)
            if layer and self.network.relu:
                torch.ops.aten.threshold_backward.grad_input(next_TND, h_TND, 0, grad_input=next_TND)
            delta = next_TND
        self._h0_TND.mul_(shrink_features).sub_(delta)


def training(trials: Sequence[DufmParameters], network: UnconstrainedFeatures) -> NetworkTraining:
    """Build the training of a pack of trials."""
    problems, relu = [problem_of(trial) for trial in trials], network.relu
    starts = [_start(network, trial, random_stream(trial.seed, "init")) for trial in trials]

    def ratios(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
        """Return the objective of a curve row over the closed forms, or None where they are undefined."""
        problem = problems[index]
        if not has_closed_forms(trials[index]):
            return {"loss_over_dnc": None, "loss_over_srg": None, "best_known": None}
        graph = srg_loss(problem) if relu else None
        return {
            "loss_over_dnc": row["objective"] / dnc_loss(problem),
            "loss_over_srg": None if graph is None else row["objective"] / graph,
            "best_known": best_known(problem, relu=relu),
        }

    return make_training(
        trials,
        network,
        numbered_samples(network.num_classes, network.num_samples),
        [weight_decays(trial) for trial in trials],
        measure=_LayerMeasurements(network, trials[0].rank_tol),
        extra_curves=ratios,
        trainer=functools.partial(DufmDescent, start_TP=torch.stack(starts)),
        init="normal",  # overridden: the trainer uses start_TP
    )


GRAM_CLASSES = 200
"""Largest number of classes K with stored Gram matrices: K^2 numbers per layer and measurement."""


class _LayerMeasurements:
    """Metrics of one trial at a time, layer by layer, before and after the ReLU, and the kind of its solution."""

    def __init__(self, network: UnconstrainedFeatures, rank_tol: float):
        self._network, self._rank_tol = network, rank_tol
        self._of_spectrum = ["rank", "singular_values"]
        self._of_spectrum += ["class_gram"] if network.num_classes <= GRAM_CLASSES else []
        self._counts_K = torch.from_numpy(numbered_samples(network.num_classes, network.num_samples).class_counts_K)

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return one row per layer for each trial. With squared loss, the last row holds the kind of solution.

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
        rows[-1]["is_last"] = True
        if trainer.plan.loss != "mse":
            return rows
        assert isinstance(trainer, DufmDescent)
        network, (of_features, *of_weights) = self._network, trainer.hyperparameters[position].weight_decays.values()
        per_class = network.num_samples // network.num_classes
        problem = DufmProblem(network.num_classes, per_class, tuple(of_weights), of_features)
        weights = [parameters[name][0].numpy() for name in network.weight_names()]
        solution, drift = Solution(parameters[FEATURES][0].numpy(), weights), trainer.drift(position)
        kind = classify(problem, solution, drift=drift, relu=network.relu, rank_tol=self._rank_tol)
        rows[-1]["solution"] = str(kind)
        return rows

    def _of_layer(self, h_TND: Tensor, weight_TMD: Tensor) -> dict[str, Tensor]:
        moments = class_moments(h_TND, self._counts_K)
        measured = spectrum(moments["means"], self._rank_tol)
        sizes_TS = measured["singular_values"]
        order = graph_order(measured["class_gram"][0].numpy(), GEOMETRY_TOLERANCE)
        tolerances = torch.tensor(RANK_TOLERANCES, dtype=torch.float64)
        above = sizes_TS.unsqueeze(1) > tolerances.view(1, -1, 1) * sizes_TS[:, :1].unsqueeze(1)
        return {
            **self._of_values(h_TND),
            "nc1": class_collapse(moments)["nc1"],
            "stable_rank": measured["stable_rank"],
            "ranks": above.double().sum(-1),
            "dnc3": _distance_to_means(weight_TMD, moments["means"]),
            **({} if order is None else {"class_order": torch.tensor([order], dtype=torch.float64)}),
        }

    def _of_values(self, h_TND: Tensor) -> dict[str, Tensor]:
        """Compute the metrics defined both before and after a ReLU."""
        moments = class_moments(h_TND, self._counts_K)
        measured = spectrum(moments["means"], self._rank_tol)
        collapse = class_collapse(moments, pinv_tolerance=self._rank_tol**2)
        return {
            "dnc1": collapse["nc1_pinv"],
            "dnc2": measured["condition_number"],
            **{name: measured[name] for name in self._of_spectrum},
        }


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


def _start(network: UnconstrainedFeatures, trial: DufmParameters, generator: torch.Generator) -> Tensor:
    """Return one trial's start [P] in float64, flat in the network's order.

    normal: W ~ N(0, 1/width), uniform: U(-1, 1)/sqrt(width), as torch.nn.Linear, he: N(0, 2/width), all three with
    H_1 ~ N(0, 1). balanced: all matrices have the same singular values, K of them, taken from a K x D matrix of N(0, 1/width),
    on random bases. dnc, srg: the closed form's solution. bipartite: `bipartite_start` with random signs. All are multiplied
    by init_scale. Then to each matrix is added normal noise of init_noise times its root mean square.
    """

    def bipartite(problem: DufmProblem, width: int) -> Solution:
        return bipartite_start(problem, torch.randn(width, width, generator=generator).sign().double().numpy())

    explicit = {"dnc": dnc_solution, "srg": srg_solution, "bipartite": bipartite}.get(trial.init)
    if explicit is not None:
        problem = problem_of(trial)
        solution = repeated(explicit(problem, network.width), problem.samples_per_class)
        pieces = [torch.from_numpy(matrix) for matrix in (solution.h_ND, *solution.weights)]
    elif trial.init == "balanced":
        pieces = _balanced(network, generator)
    else:
        pieces = [torch.empty(spec.shape, dtype=torch.float64) for spec in network.parameter_specs()]
        pieces[0].normal_(generator=generator)
        for weight in pieces[1:]:
            if trial.init == "uniform":
                bound = 1 / math.sqrt(network.width)
                weight.uniform_(-bound, bound, generator=generator)
            else:
                weight.normal_(0, math.sqrt((2 if trial.init == "he" else 1) / network.width), generator=generator)
    pieces = [trial.init_scale * piece for piece in pieces]
    if trial.init_noise:
        pieces = [
            piece
            + trial.init_noise * piece.square().mean().sqrt() * torch.empty_like(piece).normal_(generator=generator)
            for piece in pieces
        ]
    return torch.cat([piece.flatten() for piece in pieces])


def _balanced(network: UnconstrainedFeatures, generator: torch.Generator) -> list[Tensor]:
    """Return matrices with W_{l+1}^T W_{l+1} = W_l W_l^T for all l, and W_1^T W_1 = H_1^T H_1."""
    width, classes = network.width, network.num_classes

    def basis(rows: int) -> Tensor:
        """Return K random orthonormal columns of this length."""
        return torch.linalg.qr(torch.empty(rows, classes, dtype=torch.float64).normal_(generator=generator))[0]

    random_KD = torch.empty(classes, width, dtype=torch.float64).normal_(0, 1 / math.sqrt(width), generator=generator)
    sizes_K = torch.linalg.svdvals(random_KD)
    bases = [basis(network.num_samples), *(basis(width) for _ in range(network.depth)), basis(classes)]
    first, *others = [left * sizes_K @ right.mT for right, left in itertools.pairwise(bases)]
    return [first.mT, *others]
