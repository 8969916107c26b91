"""The tasks `ufm` and `mufm`: checks and the task objects. Importable without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.interface import Engine, Params
from depthrate.tasks.papers.unconstrained.metrics import MEASUREMENTS, PANELS
from depthrate.tasks.papers.unconstrained.network import UnconstrainedLayers
from depthrate.tasks.papers.unconstrained.parameters import (
    EXACT,
    GAUSSIAN,
    MufmParameters,
    UfmParameters,
    UnconstrainedParameters,
)
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.fused_task import NetworkTask
from depthrate.tasks.training.parameters import check_training

if TYPE_CHECKING:
    from depthrate.tasks.training.training import NetworkTraining

_OF_DESCENT = ("lr", "scaled_steps", "schedule", "steps", "start", "init_scale", "measure_steps")
_EXACT_STEPS = 1000
"""Approximate cost of the exact solver, in gradient descent steps."""


class Unconstrained(NetworkTask[UnconstrainedParameters]):
    """Unconstrained features, regularised towards their input or towards zero."""

    version = 1
    has_engines = True
    measurements = MEASUREMENTS
    panels = PANELS

    def __init__(self, name: str, parameters: type[UnconstrainedParameters], doc: str):
        self.name, self.parameters, self.schema, self.doc = name, parameters, parameters.schema, doc

    def published_sets(self, trial: UnconstrainedParameters) -> Sequence[str]:
        """Return the data set that X is computed from, if any."""
        return () if trial.data == GAUSSIAN else (trial.data,)

    def data_shape(self, trial: UnconstrainedParameters) -> DataShape:
        """Return the data shape: each sample is its own index."""
        classes = trial.num_classes
        return DataShape(num_samples=classes * trial.samples_per_class, sample_shape=(1,), num_classes=classes)

    def network(self, trial: UnconstrainedParameters, data: DataShape) -> UnconstrainedLayers:
        """Return the model of one trial."""
        return UnconstrainedLayers(
            depth=trial.depth,
            dimension=trial.dimension,
            num_samples=data.num_samples,
            num_classes=data.num_classes,
        )

    def engine(self, params: Params, asked: Engine, device: str) -> Engine | None:
        """Return the engine that runs the steps of a trial, or None for the exact solver, which takes no steps.

        Raises:
            EngineError: native steps were requested on a device other than a CPU.
        """
        return None if self.read(params).solver == EXACT else super().engine(params, asked, device)

    def pack_shape(self, trial: UnconstrainedParameters) -> PackShape:
        """Return the quantities that determine memory and time of a pack."""
        shape = super().pack_shape(trial)
        return dataclasses.replace(shape, num_steps=shape.num_steps or _EXACT_STEPS)

    def check(self, trial: UnconstrainedParameters) -> None:
        """Reject parameter combinations that cannot run.

        Raises:
            ParameterError: parameters conflict (named in the message).
        """
        if trial.solver == EXACT:
            for name in _OF_DESCENT:
                given, default = getattr(trial, name), trial.schema[name].default
                if given != default:
                    raise ParameterError(
                        f"{name} is {given} and solver is 'exact', which takes no steps; leave {name} at {default}, or "
                        "give solver: gradient"
                    )
        check_training(trial, trial.num_classes * trial.samples_per_class)
        if trial.dimension < trial.num_classes:
            raise ParameterError(
                f"dimension is {trial.dimension} and num_classes is {trial.num_classes}; the features of so many classes "
                f"need a dimension of at least {trial.num_classes}"
            )
        if trial.data != GAUSSIAN:
            _check_data_set(trial)

    def training(self, trials: Sequence[UnconstrainedParameters], source: DataSource) -> NetworkTraining:
        """Build the training of a pack of trials.

        Raises:
            DatasetError: a file of the data set is missing or corrupt.
        """
        from depthrate.tasks.papers.unconstrained.held_inputs import inputs
        from depthrate.tasks.papers.unconstrained.training import training

        network = self.network(trials[0], self.data_shape(trials[0]))
        return training(trials, network, [inputs(trial, source) for trial in trials])


def _check_data_set(trial: UnconstrainedParameters) -> None:
    info = PUBLISHED[trial.data]
    shape = info.shape(samples_per_class=None, context_length=0, vocabulary_size=0, dtype="float64")
    most_dimensions = min(shape.num_inputs, trial.num_classes * trial.samples_per_class)
    for name, most in (
        ("num_classes", info.num_classes),
        ("samples_per_class", info.smallest_class),
        ("dimension", most_dimensions),
    ):
        if getattr(trial, name) > most:
            raise ParameterError(
                f"{name} is {getattr(trial, name)}, but {trial.data!r} has {most} of them; give at most that"
            )


UFM = Unconstrained("ufm", UfmParameters, "Solve the unconstrained features model, exactly or by gradient descent.")
MUFM = Unconstrained(
    "mufm",
    MufmParameters,
    "Solve the multilayer unconstrained features model, whose features are held to their input.",
)
