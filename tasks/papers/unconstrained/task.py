"""The tasks `ufm`, `mufm` and `dufm`: checks and the task objects. Importable without torch."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.interface import Engine, Params, TaskContext, TrialResult
from depthrate.tasks.measures.named_columns import WEIGHT_NAMES, parse_measure
from depthrate.tasks.measures.path_columns import MONOTONE_VERDICT
from depthrate.tasks.papers.unconstrained.metrics import DUFM_METRICS, PROXIMITY_FIGURES, UFM_METRICS
from depthrate.tasks.papers.unconstrained.network import UnconstrainedFeatures, UnconstrainedLayers
from depthrate.tasks.papers.unconstrained.parameters import (
    EXACT,
    GAUSSIAN,
    DufmParameters,
    MufmParameters,
    UfmParameters,
    UnconstrainedParameters,
    has_closed_forms,
    problem_of,
)
from depthrate.tasks.papers.unconstrained.strongly_regular import bipartite_sides, triangular_classes, triangular_root
from depthrate.tasks.papers.unconstrained.theory import ZERO_LOSS, best_known
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.fused_task import NetworkTask
from depthrate.tasks.training.parameters import check_training

if TYPE_CHECKING:
    from depthrate.tasks.training.training import NetworkTraining

Trial = TypeVar("Trial", UnconstrainedParameters, DufmParameters)
_OF_DESCENT = ("lr", "scaled_steps", "schedule", "steps", "start", "init_scale", "measure_steps")
_EXACT_STEPS = 1000
"""Approximate cost of the exact solver, in gradient descent steps."""
_WIDE = ("balanced", "dnc", "srg", "bipartite")
"""Initialisations of `dufm` that need one dimension per class."""


class _FreeFeatures(NetworkTask[Trial]):
    """A model whose features are parameters: each sample is its own index."""

    version = 1

    def data_shape(self, trial: Trial) -> DataShape:
        classes, samples = trial.num_classes, trial.num_classes * trial.samples_per_class
        return DataShape(num_samples=samples, sample_shape=(1,), num_classes=classes, vocabulary_size=samples)


class Unconstrained(_FreeFeatures[UnconstrainedParameters]):
    """Unconstrained features, regularised towards their input or towards zero."""

    measurements = UFM_METRICS

    def __init__(self, name: str, parameters: type[UnconstrainedParameters], doc: str):
        self.name, self.parameters, self.schema, self.doc = name, parameters, parameters.schema, doc
        self.figures = (MONOTONE_VERDICT, *(PROXIMITY_FIGURES if "proximity" in self.schema else ()))

    def published_sets(self, trial: UnconstrainedParameters) -> Sequence[str]:
        return () if trial.data == GAUSSIAN else (trial.data,)

    def network(self, trial: UnconstrainedParameters, data: DataShape) -> UnconstrainedLayers:
        return UnconstrainedLayers(
            depth=trial.depth, dimension=trial.dimension, num_samples=data.num_samples, num_classes=data.num_classes
        )

    def engine(self, params: Params, requested: Engine, device: str) -> Engine | None:
        """Return the engine that runs the steps of a trial, or None for the exact solver, which takes no steps."""
        return None if self.read(params).solver == EXACT else super().engine(params, requested, device)

    def pack_shape(self, trial: UnconstrainedParameters) -> PackShape:
        shape = super().pack_shape(trial)
        return dataclasses.replace(shape, num_steps=shape.num_steps or _EXACT_STEPS)

    def check(self, trial: UnconstrainedParameters) -> None:
        if trial.solver == EXACT:
            for name in _OF_DESCENT:
                value, default = getattr(trial, name), trial.schema[name].default
                if value != default:
                    raise ParameterError(
                        f"{name} is {value} and solver is 'exact', which takes no steps. Leave {name} at {default}, or set "
                        "solver: gradient."
                    )
        check_training(trial, trial.num_classes * trial.samples_per_class)
        if trial.dimension < trial.num_classes:
            raise ParameterError(
                f"dimension is {trial.dimension} and num_classes is {trial.num_classes}, expected a dimension of at least "
                f"{trial.num_classes}."
            )
        if trial.data == GAUSSIAN:
            return
        info = PUBLISHED[trial.data]
        max_dimension = min(info.shape().num_inputs, trial.num_classes * trial.samples_per_class)
        limits = {"num_classes": info.num_classes, "samples_per_class": info.smallest_class, "dimension": max_dimension}
        for name, most in limits.items():
            if getattr(trial, name) > most:
                raise ParameterError(f"{name} is {getattr(trial, name)}, expected at most {most} with {trial.data!r}.")

    def training(self, trials: Sequence[UnconstrainedParameters], source: DataSource) -> NetworkTraining:
        from depthrate.tasks.papers.unconstrained.training import inputs, training

        network = self.network(trials[0], self.data_shape(trials[0]))
        return training(trials, network, [inputs(trial, source) for trial in trials])


class Dufm(_FreeFeatures[DufmParameters]):
    """Deep unconstrained features model, with all matrices trained."""

    name = "dufm"
    doc = "Train the deep unconstrained features model, and compare the solution it finds with two closed forms."
    parameters = DufmParameters
    measurements = DUFM_METRICS

    def network(self, trial: DufmParameters, data: DataShape) -> UnconstrainedFeatures:
        return UnconstrainedFeatures(
            depth=trial.depth,
            width=trial.width,
            num_samples=data.num_samples,
            num_classes=data.num_classes,
            relu=trial.relu,
        )

    def check(self, trial: DufmParameters) -> None:
        decays, depth, classes, init = trial.weight_decays, trial.depth, trial.num_classes, trial.init
        if decays is not None and len(decays) != depth:
            raise ParameterError(f"weight_decays has {len(decays)} numbers, depth is {depth}. Give one per matrix.")
        check_training(trial, classes * trial.samples_per_class)
        parse_measure(trial.measure, built_in=WEIGHT_NAMES)
        if init in _WIDE and trial.width < classes:
            raise ParameterError(
                f"init is {init!r} and width is {trial.width}, expected a width of at least {classes} for {classes} classes."
            )
        if init in ("dnc", "srg", "bipartite") and not has_closed_forms(trial):
            conflict = "a weight decay is 0" if trial.loss == "mse" else f"loss is {trial.loss!r}"
            raise ParameterError(f"init is {init!r} and {conflict}, expected loss mse and weight decays above 0.")
        if init == "srg" and triangular_root(classes) is None:
            raise ParameterError(
                f"init is 'srg' and num_classes is {classes}. The strongly regular graph exists for r(r-1)/2 classes from 6 "
                f"on: {triangular_classes(classes)}, ..."
            )
        if init == "bipartite" and bipartite_sides(classes)[0] == 1:
            raise ParameterError(
                f"init is 'bipartite' and num_classes is {classes}, expected a product of two numbers above 1: the edges of a "
                "complete bipartite graph. Set num_classes to 4, 6, 8, 9, 10, ..."
            )
        if init in ("srg", "bipartite") and (depth < 3 or trial.activation == "none"):
            raise ParameterError(
                f"init is {init!r}, depth is {depth} and activation is {trial.activation!r}. A low-rank solution on a graph "
                "needs a depth of at least 3 and activation relu."
            )

    def training(self, trials: Sequence[DufmParameters], source: DataSource) -> NetworkTraining:
        from depthrate.tasks.papers.unconstrained.deep_training import training

        return training(trials, self.network(trials[0], self.data_shape(trials[0])))

    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Train and measure a pack of trials of one shape. Warn first if the zero solution is the best closed form."""
        for trial_id, params in zip(context.trial_ids, trials, strict=True):
            trial = self.read(params)
            problem = problem_of(trial)
            if has_closed_forms(trial) and best_known(problem, relu=trial.relu) >= ZERO_LOSS * (1 - 1e-9):
                logging.getLogger(__name__).warning(
                    "trial %s: with weight decays %s of W_1 to W_L and %g of H_1, and %d samples per class, the zero "
                    "solution (objective %g) is the best closed form. Set smaller weight decays for another solution.",
                    trial_id,
                    list(problem.weight_decays),
                    problem.weight_decay_features,
                    problem.samples_per_class,
                    ZERO_LOSS,
                )
        yield from super().run(trials, context)


UFM = Unconstrained("ufm", UfmParameters, "Solve the unconstrained features model, exactly or by gradient descent.")
MUFM = Unconstrained(
    "mufm", MufmParameters, "Solve the multilayer unconstrained features model, whose features are held to their input."
)
DUFM = Dufm()
