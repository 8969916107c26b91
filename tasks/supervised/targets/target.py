"""Contract of a target: the prediction per sample, the preparation of data for it, its checks and its metrics.

To add a target, write a subclass of `Target`, and add its parameters to `TARGET_PARAMETERS` (`parameters.py`), its metrics to
`metrics.py`, and an entry to `TARGETS` (`task.py`). Importable without torch.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.figure_request import FigureRequest
from depthrate.tasks.measures.named_columns import PARAMETER
from depthrate.tasks.metric import Metric
from depthrate.tasks.networks.network import Layer, Network
from depthrate.tasks.parameters import REQUIRED, Parameter, ParameterError, ParameterSchema
from depthrate.tasks.supervised.arrays import Splits
from depthrate.tasks.supervised.parameters import (
    TEXT_PARAMETERS,
    SupervisedParameters,
    absent_parameters,
    weight_decays,
)
from depthrate.tasks.supervised.references import is_custom, replace_references, short_name
from depthrate.tasks.supervised.streaming import Streamed

if TYPE_CHECKING:
    from depthrate.tasks.supervised.custom_metric import CustomMetric
    from depthrate.tasks.training.layers import Measure
    from depthrate.tasks.training.training import NetworkTraining

Fields = Mapping[str, Any]
"""Fields of a parameter's declaration, by name."""
_TEST_DOC = "whether the test split, if it exists, is measured too"


class Target(ABC):
    """Kind of answer that a network learns."""

    name: str
    """Task name of its trials, as stored."""
    version = 1
    doc: str
    metrics: tuple[Metric, ...]
    figures: tuple[FigureRequest, ...] = ()
    declares: ClassVar[Mapping[str, Fields]] = {}
    """Parameters -> fields of their declaration that differ from `SupervisedParameters`."""
    fixed: ClassVar[Mapping[str, Any]] = {}
    """Values that training uses for parameters determined by the target."""
    published_only: tuple[str, ...] = ()
    """Parameters that apply only to built-in data."""
    from_data: tuple[str, ...] = ("num_classes", "num_inputs", "in_channels", "image_size")
    """Arguments of a custom network that default to sizes of the data, as do `TEXT_PARAMETERS` without a default."""
    draw = "samples"
    """Parameter that limits the number of samples."""
    has_test_files = True
    """Whether the test split of a published data set has separate files."""
    measurable_by: tuple[str, ...] = ()
    """Parameters that, besides the arguments of the user's function, determine whether data can be measured."""
    streamed: type[Streamed]
    """Class that streams data that are too large for memory."""
    custom: Mapping[str, CustomMetric] = MappingProxyType({})
    """The user's metrics by their names in `measure`."""

    def with_custom(self, custom: Sequence[CustomMetric]) -> Self:
        """Return this target with the user's metrics.

        Raises:
            ParameterError: A column has the name of a parameter or of another metric.
        """
        target = copy.copy(self)
        target.custom = {metric.name: metric for metric in custom}
        columns = [column for metric in custom for column in metric.metrics]
        target.metrics = (*self.metrics, *columns)
        names = [*(metric.name.casefold() for metric in target.metrics), *SupervisedParameters.schema]
        if repeated := next((column for column in columns if names.count(column.name.casefold()) > 1), None):
            raise ParameterError(
                f"measure: {repeated.doc} returns {repeated.name!r}, a parameter or other metric. Rename it."
            )
        return target

    def schema(
        self,
        network: str | None = None,
        data: str | None = None,
        network_arguments: Sequence[Parameter] = (),
        data_arguments: Sequence[Parameter] = (),
    ) -> ParameterSchema:
        """Return the parameters of trials with a custom network or custom data of these names. None stands for a built-in one.

        Raises:
            ParameterError: An argument has the name of a parameter or of another argument.
        """
        absent = absent_parameters(self.name, network=network is not None, data=data is not None)
        absent.update(() if data is None else self.published_only)
        declared = {
            name: replace(parameter, **self.declares.get(name, {}))
            for name, parameter in SupervisedParameters.schema.items()
            if name not in absent
        }
        for name, value in self.fixed.items():
            for key, parameter in declared.items():
                declared[key] = replace(parameter, null=re.sub(rf"\b{name}\b", repr(value), parameter.null))
        if network is not None:
            declared["arch"] = _CustomName(name="arch", kind="str", choices=(network,), doc="custom network")
            decay, last = declared["weight_decay"], declared["weight_decay_last"]
            doc = "lambda of (lambda/2)||theta||^2 on the parameters selected by `decayed`"
            declared["weight_decay"] = replace(decay, doc=doc)
            declared["weight_decay_last"] = replace(
                last, doc="lambda of the last linear map's weight (null: weight_decay)"
            )
            for name in set(TEXT_PARAMETERS).intersection(declared):
                declared[name] = replace(declared[name], added_later=True)
            for argument in network_arguments:
                if argument.name in TEXT_PARAMETERS:
                    declared.pop(argument.name, None)
        if data is not None:
            declared["dataset"] = _CustomName(name="dataset", kind="str", choices=(data,), doc="custom data")
            declared["test"] = replace(declared["test"], default=True, doc=_TEST_DOC)
        if self.custom and PARAMETER in declared:
            declared[PARAMETER] = _CustomName(**vars(declared[PARAMETER]))
        if network is None and data is None:
            return ParameterSchema(declared.values())
        arguments = self._check_arguments((*network_arguments, *data_arguments), declared)
        names = [declared.pop(name) for name in ("arch", "dataset")]
        return ParameterSchema([*names, *arguments, *declared.values()])

    def _check_arguments(self, arguments: Sequence[Parameter], declared: Mapping[str, Parameter]) -> list[Parameter]:
        """Check arguments and return them as parameters. They are nullable if the data provide their values."""
        checked: dict[str, Parameter] = {}
        for argument in arguments:
            name, owner = argument.name, argument.doc.removeprefix("argument of ")
            if name in declared:
                raise ParameterError(
                    f"{owner} has an argument {name!r}, which is also a parameter of training "
                    f"({declared[name].doc}). Rename the argument, or wrap the callable in a function with other names."
                )
            if name in checked:
                raise ParameterError(
                    f"{owner} and {checked[name].doc.removeprefix('argument of ')} both "
                    f"have an argument {name!r}. Rename one of them."
                )
            is_from_data = name in self.from_data and not argument.nullable
            if is_from_data or (name in TEXT_PARAMETERS and argument.default is REQUIRED):
                argument = replace(argument, nullable=True, default=None, doc=f"{argument.doc} (null: from the data)")
            checked[name] = argument
        return list(checked.values())

    def dataset(self, splits: Splits, name: str) -> Dataset:
        """Build a data set in memory from a user's samples, after checking that training on them is meaningful.

        Raises:
            DatasetError: Lengths differ, labels are of another kind, a number is not finite, or the splits differ in form.
        """
        training, answers = self.split(*splits.training.whole(), splits.vocabulary_size, name, "training")
        if splits.test is None:
            return training
        test, test_answers = self.split(*splits.test.whole(), splits.vocabulary_size, name, "test")
        if test.sample_shape != training.sample_shape:
            raise DatasetError(
                f"{name}: samples of the test split have shape {test.sample_shape}, expected {training.sample_shape}"
            )
        self.check_alike(answers, test_answers, name)
        return replace(training, test=test)

    @abstractmethod
    def split(
        self, x: np.ndarray, y: np.ndarray, vocabulary_size: int | None, name: str, split: str
    ) -> tuple[Dataset, Any]:
        """Build a data set from one split of a user's arrays. Return it with its answers, which `check_alike` compares.

        Raises:
            DatasetError: The arrays cannot be trained on.
        """

    def check_alike(self, answers: Any, test_answers: Any, name: str) -> None:
        """Reject a test split with other answers than the training split.

        Raises:
            DatasetError: Names the difference.
        """
        return None

    def held_shape(self, whole: Dataset, trial: SupervisedParameters) -> DataShape:
        """Return the shape of a training set of custom data in memory."""
        shape = whole.shape
        return replace(shape, num_samples=trial.samples or shape.num_samples, reading_bytes=4 * shape.reading_bytes)

    @abstractmethod
    def prepare(self, whole: Dataset, trial: SupervisedParameters) -> Dataset:
        """Build a trial's data set from custom data in memory: select and scale samples.

        Raises:
            DatasetError: There are too few samples.
        """

    @abstractmethod
    def published_shape(self, trial: SupervisedParameters) -> DataShape:
        """Return the shape of a training set of built-in data."""

    @abstractmethod
    def load(self, trial: SupervisedParameters, source: DataSource) -> Dataset:
        """Load a trial's data set of built-in data.

        Raises:
            DatasetError: A file is missing or corrupt, or there are too few samples.
        """

    def check(self, trial: SupervisedParameters, whole: Dataset | Streamed | None) -> None:
        """Reject combinations that cannot run. `whole` is the custom data.

        Raises:
            ParameterError: Names the parameters that are mutually exclusive.
        """
        return None

    def check_measurable(self, dataset: Dataset, trial: SupervisedParameters) -> None:
        """Reject a data set of a trial that contains nothing to measure.

        Raises:
            DatasetError: Names the split.
        """
        return None

    def check_network(self, trial: SupervisedParameters, network: Network, data: DataShape) -> None:
        """Reject a network whose layers cannot be measured. This builds a user's module and runs it once.

        Raises:
            ParameterError: Names the layer or parameter.
        """
        network.layers()

    def measured_width(self, layer: Layer) -> int:
        """Return the number of values per measured sample of a layer."""
        return layer.width

    def training(self, trials: Sequence[SupervisedParameters], dataset: Dataset, network: Network) -> NetworkTraining:
        """Create the training of a pack of trials on a data set."""
        from depthrate.tasks.training.training import make_training

        shared, test = trials[0], dataset.test
        return make_training(
            trials,
            network,
            dataset,
            [weight_decays(trial) for trial in trials],
            measure=self.measure(dataset, shared, "train"),
            measure_test=None if test is None else self.measure(test, shared, "test"),
            **self.training_options(trials, dataset),
        )

    @abstractmethod
    def measure(self, dataset: Dataset, trial: SupervisedParameters, split: str) -> Measure:
        """Return the function that measures trials on a split."""

    def training_options(self, trials: Sequence[SupervisedParameters], dataset: Dataset) -> dict[str, Any]:
        """Return additional options of `make_training` for this target."""
        return {}


def check_drawn(trial: SupervisedParameters, num_all: int) -> None:
    """Reject more samples than the data have.

    Raises:
        ParameterError: Names both numbers.
    """
    if trial.samples is not None and trial.samples > num_all:
        raise ParameterError(
            f"samples is {trial.samples}, but {trial.dataset!r} has {num_all}. Set at most that, or null for all."
        )


@dataclass(frozen=True, kw_only=True)
class _CustomName(Parameter):
    """`arch`, `dataset` or `measure` with a custom value."""

    def check(self, value: Any) -> Any:
        """Return the value with names without their folders."""
        custom = is_custom(self.name, value)
        return super().check(replace_references(self.name, value, short_name) if custom else value)
