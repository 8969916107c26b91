"""Training of the tasks `ufm` and `mufm`: a pack's inputs, its solver or gradient descent, and metrics of every layer.

The exact solver is gradient descent that starts at the optimum and takes no step, so metrics, stored features and figures
are the same. Each trial of a pack has separate inputs. Shapes: T trials, N samples sorted by class, D = dimension, K classes.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.data.dataset import numbered_samples
from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.measures.alignment import feature_alignment, weight_alignment
from depthrate.tasks.measures.geodesic import monotonicity
from depthrate.tasks.measures.neural_collapse import class_collapse, class_moments
from depthrate.tasks.papers.unconstrained.held_optimum import (
    Array,
    ExactSolution,
    UnconstrainedProblem,
    solve,
    ufm_optimum,
)
from depthrate.tasks.papers.unconstrained.network import INPUTS, WEIGHT, UnconstrainedLayers
from depthrate.tasks.papers.unconstrained.parameters import EXACT, GAUSSIAN, INPUT, UnconstrainedParameters
from depthrate.tasks.training.engines.hand_gradient import HandGradientTrainer
from depthrate.tasks.training.layers import Columns, LayerMeasurements
from depthrate.tasks.training.pack_state import random_stream
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining, Row, make_training

PROXIMITY = "proximity"
"""Key of a trial's lambda in its weight decays."""


class UnconstrainedDescent(HandGradientTrainer):
    """Plain gradient descent on all features and W at once, from given starts, with hand-written gradients."""

    network: UnconstrainedLayers

    def __init__(self, *arguments: Any, trial: UnconstrainedParameters, inputs_TND: Tensor, start_TP: Tensor):
        super().__init__(*arguments, start_TP=start_TP)
        self._trial = trial  # the fields that are read are the same for all trials
        self.untrained = {INPUTS: inputs_TND.to(self.theta_TP)}

    def options(self, trials: slice) -> dict[str, Any]:
        return {**super().options(trials), "trial": self._trial, "inputs_TND": self.untrained[INPUTS][trials]}

    def _lay_out(self, parameters: dict[str, Tensor]) -> None:
        self._features = [parameters[name] for name in self.network.feature_names()]
        self._weight_TKD = parameters[WEIGHT]
        first = self.untrained[INPUTS] if self._trial.is_anchored else torch.zeros_like(self._features[0])
        self._before = [first, *self._features[:-1]]

    @property
    def _step_factors(self) -> tuple[int, int]:
        """Factors on the learning rate for features and for W: with `scaled_steps` they cancel the objective's 1/N and 1/K."""
        return (len(self.x_NI), self.network.num_classes) if self._trial.scaled_steps else (1, 1)

    def native_inputs(self) -> Tensor:
        """Return the target of H_1's regulariser, [T, N, D]."""
        inputs_TND = self.untrained[INPUTS]
        return inputs_TND if self._trial.is_anchored else torch.zeros_like(inputs_TND)

    def native_decays(self) -> Tensor:
        """Return lambda_W / K, lambda / N, and the learning rate factors for W and for features, [4, T]."""
        decay_T11, proximity_T11 = self._factors()
        of_features, of_weight = (torch.full_like(decay_T11, factor) for factor in self._step_factors)
        return torch.stack([decay_T11, proximity_T11, of_weight, of_features]).view(4, -1)

    def rate_factors(self, rates: Sequence[float]) -> Sequence[Tensor]:
        """Return the factors on pull, weight, and the gradients of features and weight, [T, 1, 1] each."""
        samples, (of_features, of_weight) = len(self.x_NI), self._step_factors
        rate_T11 = self._column(rates).unsqueeze(2)
        decay_T11, proximity_T11 = self._factors()
        pull_T11, shrink_T11 = of_features * rate_T11 * proximity_T11, 1 - of_weight * rate_T11 * decay_T11
        return pull_T11, shrink_T11, of_features * rate_T11 / samples, of_weight * rate_T11 / samples

    def descend(self, *factors: Tensor) -> Tensor:
        """Update features and weight at once, from their values before the step."""
        factor_T11, shrink_T11, rate_of_features_T11, rate_of_weight_T11 = factors
        loss_T, error_TNK = self._errors(self._features[-1].bmm(self._weight_TKD.mT))
        changes = self._changes()
        of_weight_TKD = error_TNK.mT.bmm(self._features[-1])
        self._features[-1].sub_(error_TNK.bmm(self._weight_TKD).mul_(rate_of_features_T11))
        for change_TND, before, after in zip(changes, [None, *self._features[:-1]], self._features, strict=True):
            pull_TND = change_TND.mul_(factor_T11)
            after.sub_(pull_TND)
            if before is not None:
                before.add_(pull_TND)
        self._weight_TKD.mul_(shrink_T11).sub_(of_weight_TKD.mul_(rate_of_weight_T11))
        return loss_T

    def _errors(self, logits_TNK: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss [T], and N times its gradient at the output."""
        if self.plan.loss == "mse":
            error_TNK = logits_TNK.sub_(self._targets_NK)
            return error_TNK.square().sum((1, 2)) / (2 * len(self._targets_NK)), error_TNK
        loss_T = losses("ce", logits_TNK, self.labels_N.expand(len(logits_TNK), -1))
        return loss_T, logits_TNK.softmax(-1).sub_(self._targets_NK)

    def evaluate(self) -> dict[str, Tensor]:
        named, (loss_T, gradients) = self.parameters(), self._gradients()
        logits_TNK = named[self.network.feature_names()[-1]].bmm(named[WEIGHT].mT)
        correct_T = (logits_TNK.argmax(-1) == self.labels_N).double().mean(1)
        decay_T11, proximity_T11 = self._factors()
        objective_T = loss_T.double() + (decay_T11 * named[WEIGHT].square()).sum((1, 2)).double() / 2
        for change_TND in self._changes():
            objective_T = objective_T + (proximity_T11 * change_TND.square()).sum((1, 2)).double() / 2
        squares_T = sum(gradient.double().square().sum((1, 2)) for gradient in gradients.values())
        assert isinstance(squares_T, Tensor)
        names = "loss", "objective", "accuracy", "grad_norm"
        return dict(zip(names, (loss_T.double(), objective_T, correct_T, squares_T.sqrt()), strict=True))

    def _gradients(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss [T] and the objective's gradient by parameter."""
        self.bind_parameters()
        h_TND, weight_TKD = self._features[-1], self._weight_TKD
        loss_T, error_TNK = self._errors(h_TND.bmm(weight_TKD.mT))
        error_TNK = error_TNK / len(self.x_NI)
        decay_T11, proximity_T11 = self._factors()
        pulls = [proximity_T11 * change_TND for change_TND in self._changes()]
        gradients = {WEIGHT: error_TNK.mT.bmm(h_TND) + decay_T11 * weight_TKD}
        for name, pull_TND, after_TND in zip(self.network.feature_names(), pulls, [*pulls[1:], None], strict=True):
            gradients[name] = pull_TND if after_TND is None else pull_TND - after_TND
        gradients[self.network.feature_names()[-1]] += error_TNK.bmm(weight_TKD)
        return loss_T, gradients

    def _changes(self) -> list[Tensor]:
        """Return the change of features in each block, [T, N, D]."""
        return [after - before for before, after in zip(self._before, self._features, strict=True)]

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return lambda_W / K and lambda / N of each trial, [T, 1, 1]."""
        decay = [h.weight_decays[WEIGHT] / self.network.num_classes for h in self.hyperparameters]
        proximity = [h.weight_decays[PROXIMITY] / len(self.x_NI) for h in self.hyperparameters]
        return self._column(decay).unsqueeze(2), self._column(proximity).unsqueeze(2)


def inputs(trial: UnconstrainedParameters, source: DataSource) -> Array:
    """Return X [N, D] of one trial.

    Gaussian: x ~ N(mu_k, I) with mu_k uniform on the unit sphere (P3, section V). A data set: the first classes, sampled
    with data_seed, projected on their first principal components and scaled to mean square 1 per coordinate.

    Raises:
        DatasetError: A file of the data set is missing or corrupt.
    """
    classes, per_class, dimension = trial.num_classes, trial.samples_per_class, trial.dimension
    if trial.data == GAUSSIAN:
        generator = np.random.default_rng([trial.data_seed, classes, dimension])
        means_KD = generator.normal(size=(classes, dimension))
        means_KD /= np.linalg.norm(means_KD, axis=1, keepdims=True)
        return np.repeat(means_KD, per_class, axis=0) + generator.normal(size=(classes * per_class, dimension))
    dataset = load_dataset(
        trial.data, source, samples_per_class=per_class, data_seed=trial.data_seed, normalize="global"
    )
    x_NI = dataset.x_NI[dataset.labels_N < classes]
    x_NI = x_NI - x_NI.mean(0)
    _, _, directions = np.linalg.svd(x_NI, full_matrices=False)
    x_ND = x_NI @ directions[:dimension].T
    return np.asarray(x_ND / np.sqrt((x_ND**2).mean()))


def training(
    trials: Sequence[UnconstrainedParameters], network: UnconstrainedLayers, inputs_of_trials: Sequence[Array]
) -> NetworkTraining:
    """Build the training of a pack of trials from their inputs, each [N, D]."""
    optima = [_optimum(trial, x_ND) for trial, x_ND in zip(trials, inputs_of_trials, strict=True)]
    starts = [_start(network, *of_trial) for of_trial in zip(trials, inputs_of_trials, optima, strict=True)]
    dataset = numbered_samples(network.num_classes, network.num_samples)

    def gaps(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
        """Return the lowest objective (UFM: in closed form) and the distance of a curve row from it."""
        trial = trials[index]
        lowest = (
            optima[index].objective
            if trial.is_anchored
            else ufm_optimum(
                trial.loss,
                num_classes=trial.num_classes,
                weight_decay=trial.weight_decay,
                weight_decay_features=trial.weight_decay_features,
            )
        )
        return {"objective_gap": row["objective"] - lowest, "optimum": lowest}

    return make_training(
        trials,
        network,
        dataset,
        [{WEIGHT: trial.weight_decay, PROXIMITY: trial.proximity} for trial in trials],
        measure=_PathMeasurements(dataset.class_counts_K),
        extra_curves=gaps,
        trainer=functools.partial(
            UnconstrainedDescent,
            trial=trials[0],
            inputs_TND=torch.from_numpy(np.stack(inputs_of_trials)),
            start_TP=torch.stack(starts),
        ),
    )


def _optimum(trial: UnconstrainedParameters, x_ND: Array) -> ExactSolution:
    """Solve one block with lambda / L, whose optimum equals L blocks' (P3, Theorem 3, corrected).

    For fixed first and last features, the blocks between them split the distance evenly: L steps of 1/L of the distance
    cost 1/L of its square.
    """
    problem = UnconstrainedProblem(
        target_ND=x_ND if trial.is_anchored else np.zeros_like(x_ND),
        labels_N=np.repeat(np.arange(trial.num_classes), trial.samples_per_class),
        num_classes=trial.num_classes,
        weight_decay=trial.weight_decay,
        proximity=trial.proximity / trial.depth,
    )
    return solve(problem, trial.loss, np.random.default_rng(trial.seed))


def _start(network: UnconstrainedLayers, trial: UnconstrainedParameters, x_ND: Array, optimum: ExactSolution) -> Tensor:
    """Return the flat start of a trial.

    The exact solver starts at the optimum, with features evenly spaced between X and H. Descent starts at H = X or at random.
    """
    if trial.solver == EXACT:
        shares = [layer / network.depth for layer in range(1, network.depth + 1)]
        features = [x_ND + share * (optimum.h_ND - x_ND) for share in shares]
        return torch.from_numpy(np.concatenate([array.ravel() for array in (*features, optimum.weight_KD)]))
    generator, shape = random_stream(trial.seed, "init"), (network.num_classes, network.dimension)
    random_KD = torch.randn(shape, generator=generator, dtype=torch.float64)
    if trial.start != INPUT:
        features_P = torch.randn(network.depth * x_ND.size, generator=generator, dtype=torch.float64)
        return trial.init_scale * torch.cat([features_P, random_KD.flatten()])
    weight_KD = trial.init_scale / network.dimension**0.5 * random_KD
    return torch.cat([*[torch.from_numpy(x_ND).flatten()] * network.depth, weight_KD.flatten()])


class _PathMeasurements:
    """Metrics of a pack's trials, layer by layer from X, with the monotonicity of the metrics."""

    def __init__(self, class_counts_K: np.ndarray):
        counts_K = torch.from_numpy(class_counts_K)

        def reduce(h_TND: Tensor, weight_TKD: Tensor | None) -> dict[str, Tensor]:
            alignment = {} if weight_TKD is None else feature_alignment(h_TND, counts_K, weight_TKD)
            return class_moments(h_TND, counts_K) | alignment

        def finish(moments: Columns, weight_TKD: Tensor | None, dtype: torch.dtype) -> dict[str, Tensor]:
            return class_collapse(moments) | ({} if weight_TKD is None else weight_alignment(weight_TKD))

        self._of_layers = LayerMeasurements(reduce, finish, num_classes=len(counts_K))

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return one row per layer for each trial. The last row holds the monotonicity of the metrics over layers."""
        rows_of_trials = self._of_layers(trainer, positions, step)
        for position, rows in zip(positions, rows_of_trials, strict=True):
            x_1ND = _unit(trainer.untrained[INPUTS][position : position + 1].double())
            for row, h_1ND in zip(rows, trainer.features(position), strict=True):
                row["alignment"] = (_unit(h_1ND.double()) - x_1ND).norm().item()
            rows[-1] |= monotonicity(rows)
        return rows_of_trials


def _unit(h_TND: Tensor) -> Tensor:
    return h_TND / h_TND.norm()
