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
from depthrate.tasks.own.task import Own, check_drawn, check_streaming
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

    def published_shape(self, trial: OwnParameters) -> DataShape:
        """Return the shape of images with a teacher's targets."""
        assert isinstance(trial, RegressionParameters)
        shape = PUBLISHED[trial.dataset].shape(
            samples_per_class=None, context_length=0, vocabulary_size=0, dtype=trial.dtype
        )
        return _of_drawn(replace(shape, num_classes=trial.targets, has_targets=True), trial)

    def held_shape(self, whole: Dataset, trial: OwnParameters) -> DataShape:
        """Return the shape of a training set of the user's data in memory."""
        assert isinstance(trial, RegressionParameters)
        return _of_drawn(replace(whole.shape, reading_bytes=4 * whole.shape.reading_bytes), trial)

    def load_published(self, trial: OwnParameters, source: DataSource) -> Dataset:
        """Return images with a teacher's targets.

        Raises:
            DatasetError: they are missing or damaged.
        """
        assert isinstance(trial, RegressionParameters)
        images = load_dataset(
            trial.dataset,
            source,
            samples_per_class=None,
            data_seed=0,
            normalize=trial.normalize,
            dtype=trial.dtype,
            test=trial.test,
        )
        return _drawn(taught(images, trial.targets, trial.data_seed), trial, "none")

    def prepare_held(self, whole: Dataset, trial: OwnParameters) -> Dataset:
        """Return what a trial on the user's data in memory trains on."""
        assert isinstance(trial, RegressionParameters)
        return _drawn(whole, trial, trial.normalize)

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
        check_drawn(trial, trial.samples, num_all)
        data = self.data_shape(trial)
        check_training(trial, data.num_samples)
        self.network(trial, data).layers()


def _of_drawn(shape: DataShape, trial: RegressionParameters) -> DataShape:
    return shape if trial.samples is None else replace(shape, num_samples=trial.samples)


def _drawn(whole: Dataset, trial: RegressionParameters, normalize: str) -> Dataset:
    return drawn_and_scaled(
        whole,
        samples=trial.samples,
        data_seed=trial.data_seed,
        normalize=normalize,
        standardize=trial.standardize,
        dtype=trial.dtype,
        test=trial.test,
    )


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
