"""The task `regression`, with networks and data of ours or of the user's. Importable without torch.

It is `own` in all but what a sample has: targets in place of a class, in the loss and in what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.published import PUBLISHED, load_dataset
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.measures import named_columns
from depthrate.tasks.own.arrays import Arrays
from depthrate.tasks.own.references import REGRESSION as NAME
from depthrate.tasks.own.references import OwnReferences
from depthrate.tasks.own.schema import FROM_DATA, OwnParameters, own_schema
from depthrate.tasks.own.streamed import Streamed
from depthrate.tasks.own.task import Own, check_streaming
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.regression.data import drawn_and_scaled, regression_of, taught
from depthrate.tasks.regression.measurements import MEASUREMENTS
from depthrate.tasks.regression.schema import RegressionParameters
from depthrate.tasks.regression.streamed import StreamedTargets
from depthrate.tasks.training.parameters import check_training

if TYPE_CHECKING:
    from depthrate.tasks.networks.network import Network
    from depthrate.tasks.training.training import NetworkTraining


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression(Own):
    """Networks on targets that are numbers."""

    name: str = NAME
    doc: str = "Train networks on targets that are numbers, and measure neural regression collapse layer by layer."
    parameters = RegressionParameters
    measurements = MEASUREMENTS
    from_data = (*FROM_DATA, "num_targets")
    streamed_of = StreamedTargets

    @staticmethod
    def dataset_of(arrays: Arrays, name: str) -> Dataset:
        """Return the user's arrays as samples with targets.

        Raises:
            DatasetError: they are not what training takes.
        """
        return regression_of(arrays, name)

    def data_shape(self, trial: OwnParameters) -> DataShape:
        """Return the shape of the training set."""
        assert isinstance(trial, RegressionParameters)
        if self.data is not None:
            whole = self.whole(trial)
            if isinstance(whole, Streamed):
                return replace(whole.shape(trial.measure_samples, trial.dtype), has_targets=True)
            shape = replace(whole.shape, reading_bytes=4 * whole.shape.reading_bytes)
        else:
            published = PUBLISHED[trial.dataset].shape(
                samples_per_class=None, context_length=0, vocabulary_size=0, dtype=trial.dtype
            )
            shape = replace(published, num_classes=trial.targets, has_targets=True)
        return shape if trial.samples is None else replace(shape, num_samples=trial.samples)

    def load(self, trial: OwnParameters, source: DataSource) -> Dataset:
        """Return what a trial trains on, with its test split where that is wanted.

        Raises:
            DatasetError: it is missing, damaged, or not what it was when the trial was planned.
        """
        assert isinstance(trial, RegressionParameters)
        normalize: str = trial.normalize
        if self.data is not None:
            whole = self.planned(trial)
            if isinstance(whole, Streamed):
                return whole.prepared(
                    measure_samples=trial.measure_samples,
                    data_seed=trial.data_seed,
                    normalize=normalize,
                    standardize=trial.standardize,
                    dtype=trial.dtype,
                    test=trial.test,
                )
        else:
            images = load_dataset(
                trial.dataset,
                source,
                samples_per_class=None,
                data_seed=0,
                normalize=normalize,
                dtype=trial.dtype,
                test=trial.test,
            )
            whole, normalize = taught(images, trial.targets, trial.data_seed), "none"
        return drawn_and_scaled(
            whole,
            samples=trial.samples,
            data_seed=trial.data_seed,
            normalize=normalize,
            standardize=trial.standardize,
            dtype=trial.dtype,
            test=trial.test,
        )

    @staticmethod
    def training_on(dataset: Dataset, trials: Sequence[OwnParameters], network: Network) -> NetworkTraining:
        """Return what a pack of trials does with a data set."""
        from depthrate.tasks.regression.pack import training

        return training(trials, dataset, network)

    def check(self, trial: OwnParameters) -> None:
        """Refuse combinations that cannot run; this builds a user's network and runs it once.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """
        assert isinstance(trial, RegressionParameters)
        named_columns.asked(trial.measure)
        whole = None if self.data is None else self.whole(trial)
        check_streaming(trial, whole, samples=trial.samples)
        num_all = PUBLISHED[trial.dataset].num_samples if whole is None else whole.num_samples
        if trial.samples is not None and trial.samples > num_all:
            raise ParameterError(
                f"samples is {trial.samples}, but {trial.dataset!r} has {num_all}; give at most that, or null for all"
            )
        data = self.data_shape(trial)
        check_training(trial, data.num_samples)
        self.network(trial, data).layers()


REGRESSION = Regression(
    schema=own_schema(OwnReferences(task=NAME), (), (), RegressionParameters),
    make=None,
    network_arguments=(),
    data=None,
    data_arguments=(),
    code=None,
    defined_at="",
    distinguished_by="",
)
