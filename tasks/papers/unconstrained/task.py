"""The tasks `ufm` and `mufm`: their checks, and all of them put together. Importable without torch."""

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
"""The exact solver takes as long as so many steps or so."""


class Unconstrained(NetworkTask[UnconstrainedParameters]):
    """Unconstrained features, held to their input or to zero."""

    version = 1
    has_engines = True
    measurements = MEASUREMENTS
    panels = PANELS

    def __init__(self, name: str, parameters: type[UnconstrainedParameters], doc: str):
        self.name, self.parameters, self.schema, self.doc = name, parameters, parameters.schema, doc

    def published_sets(self, trial: UnconstrainedParameters) -> Sequence[str]:
        """Return the data set that X is made of."""
        return () if trial.data == GAUSSIAN else (trial.data,)

    def data_shape(self, trial: UnconstrainedParameters) -> DataShape:
        """Return the shape of samples that are their own numbers."""
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
        """Return how the steps of such a trial run; null for the exact solver, which takes none.

        Raises:
            EngineError: native steps were asked for on another device than a CPU.
        """
        return None if self.read(params).solver == EXACT else super().engine(params, asked, device)

    def pack_shape(self, trial: UnconstrainedParameters) -> PackShape:
        """Return what the memory and the time of a pack of such trials depend on."""
        shape = super().pack_shape(trial)
        return dataclasses.replace(shape, num_steps=shape.num_steps or _EXACT_STEPS)

    def check(self, trial: UnconstrainedParameters) -> None:
        """Refuse combinations that cannot run.

        Raises:
            ParameterError: naming the parameters that do not go together.
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
        """Return what a pack of trials does.

        Raises:
            DatasetError: a file of the data set is missing or damaged.
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
