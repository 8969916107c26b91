"""The task `dufm`: checks and the task object. Importable without torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.interface import Params, TaskContext, TrialResult
from depthrate.tasks.papers.unconstrained.closed_forms import best_known
from depthrate.tasks.papers.unconstrained.deep_metrics import MEASUREMENTS
from depthrate.tasks.papers.unconstrained.deep_network import UnconstrainedFeatures
from depthrate.tasks.papers.unconstrained.deep_parameters import DufmParameters, has_closed_forms, problem_of
from depthrate.tasks.papers.unconstrained.theory import ZERO_LOSS, triangular_classes, triangular_root
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training.fused_task import NetworkTask
from depthrate.tasks.training.parameters import check_training

if TYPE_CHECKING:
    from depthrate.tasks.training.training import NetworkTraining

_WIDE = ("balanced", "dnc", "srg")
"""Initialisations that need one dimension per class."""


class Dufm(NetworkTask[DufmParameters]):
    """Deep unconstrained features model, with all matrices trained."""

    name = "dufm"
    version = 1
    doc = "Train the deep unconstrained features model, and compare the solution it finds with two closed forms."
    parameters = DufmParameters
    measurements = MEASUREMENTS
    has_engines = True

    def data_shape(self, trial: DufmParameters) -> DataShape:
        """Return the data shape: each sample is its own index."""
        classes = trial.num_classes
        return DataShape(num_samples=classes * trial.samples_per_class, sample_shape=(1,), num_classes=classes)

    def network(self, trial: DufmParameters, data: DataShape) -> UnconstrainedFeatures:
        """Return the model of one trial."""
        return UnconstrainedFeatures(
            depth=trial.depth,
            width=trial.width,
            num_samples=data.num_samples,
            num_classes=data.num_classes,
            relu=trial.relu,
        )

    def check(self, trial: DufmParameters) -> None:
        """Reject parameter combinations that cannot run.

        Raises:
            ParameterError: parameters conflict (named in the message).
        """
        given, depth, classes, init = trial.weight_decays, trial.depth, trial.num_classes, trial.init
        if given is not None and len(given) != depth:
            raise ParameterError(f"weight_decays has {len(given)} numbers, depth is {depth}; give one for each matrix")
        check_training(trial, trial.num_classes * trial.samples_per_class)
        if init in _WIDE and trial.width < classes:
            raise ParameterError(
                f"init is {init!r} and width is {trial.width}; with {classes} classes give a width of at least {classes}"
            )
        if init in ("dnc", "srg") and not has_closed_forms(problem_of(trial)):
            raise ParameterError(f"init is {init!r}, which needs weight decays above 0; there is one of 0")
        if init == "srg":
            _check_graph(trial)

    def training(self, trials: Sequence[DufmParameters], source: DataSource) -> NetworkTraining:
        """Build the training of a pack of trials."""
        from depthrate.tasks.papers.unconstrained.deep_training import training

        return training(trials, self.network(trials[0], self.data_shape(trials[0])))

    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Train and measure a pack of trials of one shape. Warn first if the zero solution is the best closed form.

        Raises:
            Interrupted: a stop was requested and a checkpoint saved.
        """
        for trial_id, params in zip(context.trial_ids, trials, strict=True):
            _warn_of_zero(trial_id, self.read(params))
        yield from super().run(trials, context)


def _check_graph(trial: DufmParameters) -> None:
    classes, depth = trial.num_classes, trial.depth
    if triangular_root(classes) is None:
        raise ParameterError(
            f"init is 'srg' and num_classes is {classes}; the strongly regular graph exists for r(r-1)/2 classes from 6 on: "
            f"{triangular_classes(classes)}, ..."
        )
    if depth < 3 or trial.activation == "none":
        raise ParameterError(
            f"init is 'srg', depth is {depth} and activation is {trial.activation!r}; the strongly regular graph's "
            "solution needs a depth of at least 3 and activation relu"
        )


def _warn_of_zero(trial_id: str, trial: DufmParameters) -> None:
    """Warn if no closed form is better than zero: strong regularisation may drive all matrices to zero."""
    problem = problem_of(trial)
    if not has_closed_forms(problem) or best_known(problem, relu=trial.relu) < ZERO_LOSS * (1 - 1e-9):
        return
    logging.getLogger(__name__).warning(
        "trial %s: with the weight decays %s of W_1 to W_L and %g of H_1, and %d samples a class, the zero solution "
        "(objective %g) is the best closed form; give smaller ones to see another",
        trial_id,
        list(problem.weight_decays),
        problem.weight_decay_features,
        problem.samples_per_class,
        ZERO_LOSS,
    )


DUFM = Dufm()
