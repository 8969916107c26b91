"""The task `own`, put together for the user's network and data that a sweep names. Importable without torch.

It is `collapse` in all but what is trained and on what: the same trainer, measurements and parameters of training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from depthrate.tasks.collapse.measurements import MEASUREMENTS
from depthrate.tasks.collapse.schema import CollapseParameters, data_shape
from depthrate.tasks.collapse.task import check_draw
from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.measures import named_columns
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.networks.network import Layer, Network
from depthrate.tasks.own.arrays import Arrays
from depthrate.tasks.own.data import dataset_of, prepared, shape_of
from depthrate.tasks.own.reading import OwnData
from depthrate.tasks.own.references import OWN, code_of_files, references_of_text, short_name
from depthrate.tasks.own.schema import FROM_DATA, OF_TEXTS, OwnParameters, own_schema, parameters_of_callable, patterns
from depthrate.tasks.own.streamed import Streamed, StreamedClasses
from depthrate.tasks.parameters import ParameterError, ParameterSchema
from depthrate.tasks.task import Params, TaskError
from depthrate.tasks.task_code import TaskCode
from depthrate.tasks.training.fused_task import NetworkTask
from depthrate.tasks.training.parameters import check_training
from depthrate.tasks.user_code import load_user_module, require_trust

if TYPE_CHECKING:
    from depthrate.tasks.training.training import NetworkTraining


@dataclass(frozen=True, kw_only=True, eq=False)
class Own(NetworkTask[OwnParameters]):
    """A network or data of the user's."""

    name: str = OWN
    version: int = 1
    doc: str = "Train a network of your own, or on data of your own, and measure neural collapse layer by layer."
    schema: ParameterSchema = field()
    make: Callable[..., Any] | None
    """Returns the user's network; null: one of ours."""
    network_arguments: tuple[str, ...]
    data: OwnData | None
    """The user's; null: a published set."""
    data_arguments: tuple[str, ...]
    code: TaskCode | None
    defined_at: str
    distinguished_by: str
    _networks: dict[str, Network] = field(default_factory=dict)
    """Networks made before, by all that they depend on."""
    parameters = OwnParameters
    measurements = MEASUREMENTS
    from_data: ClassVar[tuple[str, ...]] = FROM_DATA
    """Arguments of a network that the data tells."""
    streamed_of: ClassVar[type[Streamed]] = StreamedClasses
    """Makes what is streamed of the user's data."""

    @staticmethod
    def dataset_of(arrays: Arrays, name: str) -> Dataset:
        """Return the user's arrays as a data set.

        Raises:
            DatasetError: they are not what training takes.
        """
        return dataset_of(arrays, name)

    def read(self, params: Params) -> OwnParameters:
        """Return the parameters of a trial as attributes, those of the user's callables in `arguments`."""
        others = {*self.network_arguments, *self.data_arguments}.difference(OF_TEXTS)
        ours = {name: value for name, value in params.items() if name not in others}
        return self.parameters.of({**ours, "arguments": params})

    def whole(self, trial: OwnParameters) -> Dataset | Streamed:
        """Return the user's data as it comes.

        Raises:
            DatasetError: it cannot be read, or is not what training takes.
        """
        assert self.data is not None
        return self.data.read(self._arguments_of_data(trial), trial.stream)

    def _arguments_of_data(self, trial: OwnParameters) -> dict[str, Any]:
        return {name: trial.arguments[name] for name in self.data_arguments}

    def complete(self, params: dict[str, Any]) -> None:
        """Fill in the content's hash, how it is streamed, and what the data tells a network.

        Raises:
            ParameterError: the data cannot be read, so that trials cannot be told from those of before.
        """
        try:
            if self.data is not None:
                trial = self.read(params)
                whole = self.whole(trial)
                params["dataset_hash"] = whole.content_hash[:16]
                params["stream"] = self.data.settled(self._arguments_of_data(trial), trial.stream)
                if isinstance(whole, Streamed):
                    params["measure_samples"] = whole.num_measured(trial.measure_samples)
        except DatasetError as error:
            raise ParameterError(str(error)) from error
        if self.make is None:
            return
        told = _told(self.data_shape(self.read(params)))
        for name in (*self.from_data, *OF_TEXTS):
            if name in self.network_arguments and params[name] is None:
                params[name] = told.get(name)

    def published_sets(self, trial: OwnParameters) -> Sequence[str]:
        """Return the data set that it trains on, where it is not the user's."""
        return (trial.dataset,) if self.data is None else ()

    def data_shape(self, trial: OwnParameters) -> DataShape:
        """Return the shape of the training set."""
        if self.data is None:
            return self.published_shape(trial)
        whole = self.whole(trial)
        if isinstance(whole, Streamed):
            return whole.shape(trial.measure_samples, trial.dtype)
        return self.held_shape(whole, trial)

    def published_shape(self, trial: OwnParameters) -> DataShape:
        """Return the shape of a training set of ours."""
        return data_shape(trial)

    def held_shape(self, whole: Dataset, trial: OwnParameters) -> DataShape:
        """Return the shape of a training set of the user's data in memory."""
        return shape_of(whole, trial.samples_per_class, trial.dtype)

    def network(self, trial: OwnParameters, data: DataShape) -> Network:
        """Return the trial's network.

        Raises:
            ParameterError: it cannot be made of these arguments, or does not read this data.
        """
        if self.make is None:
            if data.vocabulary_size is not None and not ARCHITECTURES[trial.arch].reads_tokens:
                readers = ", ".join(name for name, each in ARCHITECTURES.items() if each.reads_tokens)
                raise ParameterError(
                    f"arch is {trial.arch!r}, but {trial.dataset!r} is text; give {readers}, or your own"
                )
            try:
                return ARCHITECTURES[trial.arch].make(trial, data)
            except ValueError as error:
                raise ParameterError(f"arch {trial.arch!r}: {error}") from error
        arguments = {name: trial.arguments[name] for name in self.network_arguments}
        key = repr((arguments, data.sample_shape, data.num_classes, data.vocabulary_size))
        key += repr([trial.layers, trial.maps, trial.flat_inputs, trial.decayed])
        if key not in self._networks:
            seen = replace(data, sample_shape=(data.num_inputs,)) if trial.flat_inputs else data
            self._networks[key] = ModuleNetwork(
                make=self.make,
                name=trial.arch,
                arguments=arguments,
                data=seen,
                patterns=patterns(trial.layers),
                maps=trial.maps,
                decayed=patterns(trial.decayed),
            )
        return self._networks[key]

    def load(self, trial: OwnParameters, source: DataSource) -> Dataset:
        """Return what a trial trains on, with its test split where that is wanted.

        Raises:
            DatasetError: it is missing, damaged, or not what it was when the trial was planned.
        """
        if self.data is None:
            return self.load_published(trial, source)
        whole = self.planned(trial)
        if isinstance(whole, Streamed):
            return whole.prepared(
                measure_samples=trial.measure_samples,
                data_seed=trial.data_seed,
                normalize=trial.normalize,
                standardize=trial.standardize,
                dtype=trial.dtype,
                test=trial.test,
            )
        return self.prepare_held(whole, trial)

    def load_published(self, trial: OwnParameters, source: DataSource) -> Dataset:
        """Return what a trial on a data set of ours trains on.

        Raises:
            DatasetError: it is missing or damaged.
        """
        from depthrate.tasks.collapse.pack import loaded

        return loaded(trial, source)

    def prepare_held(self, whole: Dataset, trial: OwnParameters) -> Dataset:
        """Return what a trial on the user's data in memory trains on."""
        assert self.data is not None
        return prepared(
            whole,
            self.data.name,
            samples_per_class=trial.samples_per_class,
            data_seed=trial.data_seed,
            normalize=trial.normalize,
            dtype=trial.dtype,
            test=trial.test,
        )

    def planned(self, trial: OwnParameters) -> Dataset | Streamed:
        """Return the user's data as it comes, and as it was planned.

        Raises:
            DatasetError: it is not what it was.
        """
        assert self.data is not None
        whole = self.whole(trial)
        if whole.content_hash[:16] != trial.dataset_hash:
            raise DatasetError(
                f"{self.data.name} has changed since the trial was planned (content {whole.content_hash[:16]}, planned "
                f"{trial.dataset_hash}); start the sweep again: what has other content is another trial. A function "
                "must give the same data at each call: give what it draws a fixed seed"
            )
        return whole

    def training(self, trials: Sequence[OwnParameters], source: DataSource) -> NetworkTraining:
        """Return what a pack of trials does.

        Raises:
            DatasetError: what they train on is missing, damaged, or not what it was when the trials were planned.
        """
        dataset = self.load(trials[0], source)
        return self.training_on(dataset, trials, self.network(trials[0], dataset.shape))

    @staticmethod
    def training_on(dataset: Dataset, trials: Sequence[OwnParameters], network: Network) -> NetworkTraining:
        """Return what a pack of trials does with a data set."""
        from depthrate.tasks.own.pack import training

        return training(trials, dataset, network)

    def check(self, trial: OwnParameters) -> None:
        """Refuse combinations that cannot run; this builds a user's network and runs it once.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """
        check_texts(self, trial, is_text=self.data is None and PUBLISHED[trial.dataset].is_text)
        data = self.data_shape(trial)
        check_training(trial, data.num_samples)
        named_columns.asked(trial.measure)
        whole = None if self.data is None else self.whole(trial)
        check_streaming(trial, whole, samples_per_class=trial.samples_per_class)
        if whole is None:
            check_draw(trial, PUBLISHED[trial.dataset].smallest_class)
        elif isinstance(whole, Dataset):
            check_draw(trial, min(whole.class_counts_K))
        self.network(trial, data).layers()

    def remarks(self, trials: Sequence[Params]) -> Sequence[str]:
        """Say which data are streamed, which layers of the largest network are measured, and whether trials train fused."""
        read = [self.read(params) for params in trials]
        return [*self._remarks_on_data(read), *self._remarks_on_network(read)]

    def _remarks_on_data(self, read: Sequence[OwnParameters]) -> Sequence[str]:
        if self.data is None:
            return []
        said: dict[str, None] = {}  # of one sentence once: trials differ in more than their data
        for trial in read:
            if self.data.is_from_loader(self._arguments_of_data(trial)):
                said[
                    f"{self.data.name} returns torch's DataLoader: its data set is taken; batches and their order are the "
                    "sweep's (batch_size, seed), its sampler and collate_fn are not used"
                ] = None
            if isinstance(whole := self.whole(trial), Streamed):
                said[whole.remark(trial.measure_samples)] = None
        return list(said)

    def _remarks_on_network(self, read: Sequence[OwnParameters]) -> Sequence[str]:
        if self.make is None or not read:
            return []
        networks = {id(network): network for network in (self.network(t, self.data_shape(t)) for t in read)}
        name = read[0].arch
        reasons: dict[str | None, int] = {}
        for network in networks.values():
            reasons[network.unfused_reason] = reasons.get(network.unfused_reason, 0) + 1
        sentences = [
            f"{name}: {'trains fused' if reason is None else f'trials train one by one, because {reason}'}"
            + (f" ({count} of {len(networks)} shapes)" if len(reasons) > 1 else "")
            for reason, count in reasons.items()
        ]
        largest = max(networks.values(), key=lambda network: network.num_parameters)
        layers = [f"{layer.number} {layer.name} [{self.measured_width(layer)}]" for layer in largest.measured_layers()]
        shown = layers if len(layers) <= 8 else [*layers[:5], "...", *layers[-2:]]
        measured = f"{name}: measured layers {', '.join(shown)}; {largest.num_parameters:,} parameters are trained"
        return [*sentences, measured]

    @staticmethod
    def measured_width(layer: Layer) -> int:
        """Return the numbers of what counts as one sample of a layer."""
        return layer.width


def check_streaming(trial: OwnParameters, whole: Dataset | Streamed | None, **drawn: int | None) -> None:
    """Refuse what streamed samples cannot do, and what says something of them alone where there are none.

    drawn: the parameter by which some samples are drawn.

    Raises:
        ParameterError: naming what was given and what to give.
    """
    if not isinstance(whole, Streamed):
        if whole is not None and trial.measure_samples is not None:
            raise ParameterError(
                f"measure_samples is {trial.measure_samples}, but {trial.dataset!r} is held in memory, and all of it measured; "
                "give null, or stream: true"
            )
        return
    count = whole.num_samples
    if trial.batch_size is None or trial.batch_size >= count:
        given = "null, full batch" if trial.batch_size is None else f"{trial.batch_size}, all samples"
        raise ParameterError(
            f"batch_size is {given}, but the {count:,} samples of {trial.dataset!r} are streamed, and a step would read all of "
            "them; give a batch_size, or stream: false to hold them in memory"
        )
    for name, value in drawn.items():
        if value is not None:
            raise ParameterError(
                f"{name} is {value}, but {trial.dataset!r} is streamed, and no part of it is drawn; give null and return the "
                "part, torch.utils.data.Subset(...), or stream: false to hold all in memory"
            )
    measured = whole.num_measured(trial.measure_samples)
    if measured < min(whole.least_measured, count):
        raise ParameterError(
            f"measure_samples is {trial.measure_samples}, but {trial.dataset!r} has {whole.num_outputs} outputs; give at least "
            f"{whole.least_measured}"
        )


def check_drawn(trial: OwnParameters, samples: int | None, num_all: int) -> None:
    """Refuse more samples than there are.

    Raises:
        ParameterError: naming both numbers.
    """
    if samples is not None and samples > num_all:
        raise ParameterError(
            f"samples is {samples}, but {trial.dataset!r} has {num_all}; give at most that, or null for all"
        )


@lru_cache(maxsize=64)
def _told(data: DataShape) -> dict[str, int]:
    """Return the arguments that the data's shape answers."""
    given = data.num_classes
    told = {"num_classes": given, "num_targets": given, "num_inputs": math.prod(data.sample_shape)}
    if data.vocabulary_size is not None:
        told |= {"context_length": data.num_inputs, "vocabulary_size": data.vocabulary_size}
    if len(data.sample_shape) == 3:
        told |= {"in_channels": data.sample_shape[0], "image_size": data.sample_shape[-1]}
    return told


def own_task(text: str, files: Mapping[str, bytes] | None = None, kind: type[Own] = Own) -> Own:
    """Return the task, of this kind, for the references that a text has, whose code is what `files` has, or what the files
    hold now.

    Raises:
        TaskError: a file does not import or has no such callable, or others decide what it holds.
        ParameterError: a callable takes arguments that no sweep can give, or that have names of ours.
    """
    references = references_of_text(text)
    if references.arch is None and references.dataset is None:
        raise TaskError(
            "task 'own' is collapse on a network or data of yours: give arch: ./model.py:Net, or dataset: ./mine.npz, or both"
        )
    code = code_of_files(references) if files is None else None
    if code is not None:
        require_trust(code, references.code_files[0])
    content = files if code is None else code.contents
    network = _callable(references.arch, "arch", content)
    make_data = _callable(references.dataset, "dataset", content) if ":" in (references.dataset or "") else None
    network_arguments = [] if network is None else parameters_of_callable(network.make, network.name)
    data_arguments = [] if make_data is None else parameters_of_callable(make_data.make, make_data.name)
    data = None
    if references.dataset is not None:
        path = None if make_data is not None else Path(references.dataset)
        make = None if make_data is None else make_data.make
        data = OwnData(short_name(references.dataset), path, make, kind.dataset_of, kind.streamed_of)
    executed = network or make_data
    whole = None if executed is None else executed.code
    if whole is not None and content is not None:
        whole = replace(whole, files=tuple(sorted(content.items())))
    return kind(
        schema=own_schema(references, network_arguments, data_arguments, kind.parameters, kind.from_data),
        make=None if network is None else network.make,
        network_arguments=tuple(argument.name for argument in network_arguments),
        data=data,
        data_arguments=tuple(argument.name for argument in data_arguments),
        code=whole,
        defined_at="" if executed is None else executed.defined_at,
        distinguished_by="" if executed is None else f"give {executed.name} another name ({executed.defined_at})",
    )


@dataclass(frozen=True)
class _Callable:
    make: Callable[..., Any]
    name: str
    code: TaskCode | None
    defined_at: str


def _callable(reference: str | None, parameter: str, files: Mapping[str, bytes] | None) -> _Callable | None:
    if reference is None:
        return None
    where, _, name = reference.rpartition(":")
    module, code = load_user_module(where, None, files if where.endswith(".py") else None)
    named = getattr(module, name, None)
    if not callable(named):
        state = "has nothing called" if named is None else "has something that is no class or function called"
        known = [key for key, value in vars(module).items() if callable(value) and value.__module__ == module.__name__]
        raise TaskError(f"{parameter}: {where} {state} {name!r}; what it defines: {', '.join(known) or 'nothing'}")
    return _Callable(named, short_name(reference), code, f"{Path(where).name}, {name}")


def check_texts(own: Own, trial: OwnParameters, *, is_text: bool) -> None:
    """Refuse what says how texts are read where there is none, so that no two trials differ in name only.

    Raises:
        ParameterError: naming it.
    """
    for name in OF_TEXTS:
        value, least = getattr(trial, name, None), CollapseParameters.schema[name].minimum or 0
        if is_text and value is not None and (not isinstance(value, int) or value < least):
            raise ParameterError(
                f"{name} is {value!r}; for {trial.dataset!r} give a whole number of at least {least:g}"
            )
        if value is not None and not is_text and name not in own.network_arguments:
            raise ParameterError(f"{name} is {value}, but {trial.dataset!r} is no text; give null")
