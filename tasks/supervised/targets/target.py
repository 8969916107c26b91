"""The contract of a target: what a network predicts for a sample, how data become it, its checks and its measurements.

A further one is a class below `Target`, its parameters in `OF_TARGETS` (`parameters.py`), its metrics in `metrics.py`, and an
entry in `TARGETS` (`task.py`). Importable without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.metric import Metric
from depthrate.tasks.networks.network import Layer, Network
from depthrate.tasks.panel import Panel
from depthrate.tasks.parameters import REQUIRED, Parameter, ParameterError, ParameterSchema
from depthrate.tasks.supervised.arrays import Splits
from depthrate.tasks.supervised.parameters import (
    OF_BUILTIN_NETWORKS,
    OF_CUSTOM_DATA,
    OF_CUSTOM_NETWORKS,
    OF_TARGETS,
    OF_TEXTS,
    SupervisedParameters,
    weight_decays,
)
from depthrate.tasks.supervised.references import is_custom, short_name
from depthrate.tasks.supervised.streaming import Streamed

if TYPE_CHECKING:
    from depthrate.tasks.training.held_out import Measure
    from depthrate.tasks.training.training import NetworkTraining

Fields = Mapping[str, Any]
"""Fields of a parameter's declaration, by name."""
_TEST_DOC = "whether the test split is measured beside the training split, if there is one"


class Target(ABC):
    """The kind of answer that a network learns."""

    name: str
    """The task of its trials, as stores have it."""
    version = 1
    doc: str
    metrics: tuple[Metric, ...]
    panels: tuple[Panel, ...] = ()
    declares: ClassVar[Mapping[str, Fields]] = {}
    """Parameters -> the fields of their declaration that differ from `SupervisedParameters`."""
    fixed: ClassVar[Mapping[str, Any]] = {}
    """Values that training reads of parameters which the target leaves no choice of."""
    published_only: tuple[str, ...] = ()
    """Parameters of built-in data alone."""
    from_data: tuple[str, ...] = ("num_classes", "num_inputs", "in_channels", "image_size")
    """Arguments of a custom network that default to the data's numbers, as do those of `OF_TEXTS` without a default."""
    draw = "samples"
    """The parameter by which some of the samples are drawn."""
    has_test_files = True
    """Whether the test split of a published set lies in files of its own."""
    measurable_by: tuple[str, ...] = ()
    """Parameters that decide whether data can be measured, beside the arguments of the user's function."""
    streamed: type[Streamed]
    """Makes the stream of data that are too large to hold."""

    def schema(
        self,
        network: str | None = None,
        data: str | None = None,
        network_arguments: Sequence[Parameter] = (),
        data_arguments: Sequence[Parameter] = (),
    ) -> ParameterSchema:
        """Return the parameters of trials with a custom network, or custom data, of these names; None: built-in.

        Raises:
            ParameterError: an argument has the name of a parameter, or of another argument.
        """
        absent = {name for names in OF_TARGETS.values() for name in names}.difference(OF_TARGETS[self.name])
        absent.update(OF_CUSTOM_NETWORKS if network is None else OF_BUILTIN_NETWORKS)
        absent.update(OF_CUSTOM_DATA if data is None else self.published_only)
        declared = {
            name: replace(parameter, **self.declares.get(name, {}))
            for name, parameter in SupervisedParameters.schema.items()
            if name not in absent
        }
        if network is not None:
            declared["arch"] = _CustomName(name="arch", kind="str", choices=(network,), doc="your network")
            decay, last = declared["weight_decay"], declared["weight_decay_last"]
            doc = "weight decay lambda, of (lambda/2)||theta||^2 on the parameters that `decayed` chooses"
            declared["weight_decay"] = replace(decay, doc=doc)
            declared["weight_decay_last"] = replace(
                last, doc="the same of the last linear map's weight; null: weight_decay"
            )
            for name in set(OF_TEXTS).intersection(declared):
                declared[name] = replace(declared[name], added_later=True)
            for argument in network_arguments:
                if argument.name in OF_TEXTS:
                    declared.pop(argument.name, None)
        if data is not None:
            declared["dataset"] = _CustomName(name="dataset", kind="str", choices=(data,), doc="your data")
            declared["test"] = replace(declared["test"], default=True, doc=_TEST_DOC)
        if network is None and data is None:
            return ParameterSchema(declared.values())
        arguments = self._checked((*network_arguments, *data_arguments), declared)
        first = [declared.pop(name) for name in ("arch", "dataset")]
        return ParameterSchema([*first, *arguments, *declared.values()])

    def _checked(self, arguments: Sequence[Parameter], declared: Mapping[str, Parameter]) -> list[Parameter]:
        """Return arguments as parameters, nullable where the data tell them."""
        checked: dict[str, Parameter] = {}
        for argument in arguments:
            name, owner = argument.name, argument.doc.removeprefix("argument of ")
            if name in declared:
                raise ParameterError(
                    f"{owner} has an argument {name!r}, which is a parameter of training "
                    f"here ({declared[name].doc}); rename the argument, or wrap the callable in a function of other names"
                )
            if name in checked:
                raise ParameterError(
                    f"{owner} and {checked[name].doc.removeprefix('argument of ')} both "
                    f"have an argument {name!r}; rename one of them"
                )
            is_told = name in self.from_data and not argument.nullable
            if is_told or (name in OF_TEXTS and argument.default is REQUIRED):
                argument = replace(
                    argument, nullable=True, default=None, doc=f"{argument.doc}; null: as the data has it"
                )
            checked[name] = argument
        return list(checked.values())

    def dataset(self, splits: Splits, name: str) -> Dataset:
        """Return a user's samples as a data set in memory, after checks that training on them is meaningful.

        Raises:
            DatasetError: lengths differ, labels are of another kind, a number is not finite, or the splits differ in form.
        """
        whole, answers = self.split(*splits.training.whole(), splits.vocabulary_size, name, "training")
        if splits.test is None:
            return whole
        test, test_answers = self.split(*splits.test.whole(), splits.vocabulary_size, name, "test")
        if test.sample_shape != whole.sample_shape:
            raise DatasetError(f"{name}: samples are {whole.sample_shape}, those of the test split {test.sample_shape}")
        self.check_alike(answers, test_answers, name)
        return replace(whole, test=test)

    @abstractmethod
    def split(
        self, x: np.ndarray, y: np.ndarray, vocabulary_size: int | None, name: str, split: str
    ) -> tuple[Dataset, Any]:
        """Return one split of a user's arrays as a data set, and what its answers are, to compare splits by.

        Raises:
            DatasetError: the arrays are not what training takes.
        """

    def check_alike(self, answers: Any, test_answers: Any, name: str) -> None:
        """Refuse a test split with other answers than the training split.

        Raises:
            DatasetError: naming the difference.
        """
        return None

    def held_shape(self, whole: Dataset, trial: SupervisedParameters) -> DataShape:
        """Return the shape of a training set of the user's data in memory."""
        shape = whole.shape
        return replace(shape, num_samples=trial.samples or shape.num_samples, reading_bytes=4 * shape.reading_bytes)

    @abstractmethod
    def prepare(self, whole: Dataset, trial: SupervisedParameters) -> Dataset:
        """Return a trial's data set, drawn and scaled, of the user's data in memory.

        Raises:
            DatasetError: there are too few samples.
        """

    @abstractmethod
    def published_shape(self, trial: SupervisedParameters) -> DataShape:
        """Return the shape of a training set of built-in data."""

    @abstractmethod
    def load(self, trial: SupervisedParameters, source: DataSource) -> Dataset:
        """Return a trial's data set of built-in data.

        Raises:
            DatasetError: a file is missing or damaged, or there are too few samples.
        """

    def check(self, trial: SupervisedParameters, whole: Dataset | Streamed | None) -> None:
        """Refuse combinations that cannot run; `whole` is the user's data.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """
        return None

    def check_measurable(self, dataset: Dataset, trial: SupervisedParameters) -> None:
        """Refuse a trial's data set in which nothing can be measured.

        Raises:
            DatasetError: naming the split.
        """
        return None

    def check_network(self, trial: SupervisedParameters, network: Network, data: DataShape) -> None:
        """Refuse a network whose layers cannot be measured. This builds a user's module and runs it once.

        Raises:
            ParameterError: naming the layer or parameter.
        """
        network.layers()

    def measured_width(self, layer: Layer) -> int:
        """Return the numbers of what counts as one sample of a layer."""
        return layer.width

    def training(self, trials: Sequence[SupervisedParameters], dataset: Dataset, network: Network) -> NetworkTraining:
        """Return the training of a pack of trials on a data set."""
        from depthrate.tasks.training.training import training_of

        shared, test = trials[0], dataset.test
        return training_of(
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
        """Return what else `training_of` takes for this target."""
        return {}


def check_drawn(trial: SupervisedParameters, num_all: int) -> None:
    """Refuse more samples than there are.

    Raises:
        ParameterError: naming both numbers.
    """
    if trial.samples is not None and trial.samples > num_all:
        raise ParameterError(
            f"samples is {trial.samples}, but {trial.dataset!r} has {num_all}; give at most that, or null for all"
        )


@dataclass(frozen=True, kw_only=True)
class _CustomName(Parameter):
    """`arch` or `dataset`, where it is custom."""

    def check(self, value: Any) -> Any:
        """Return the name without its folder.

        Raises:
            ParameterError: it is another one.
        """
        return super().check(short_name(value) if is_custom(self.name, value) else value)
