"""The supervised tasks: a target, with a built-in or custom network on built-in or custom data. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthrate.tasks.code.collect import TaskCode
from depthrate.tasks.code.load import require_trust
from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.markov import MARKOV
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.interface import Params, TaskContext, TaskError, TrialResult
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.networks.network import Network
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.data import CustomData
from depthrate.tasks.supervised.parameters import OF_TEXTS, SupervisedParameters
from depthrate.tasks.supervised.references import CUSTOM, parse_references
from depthrate.tasks.supervised.streaming import Streamed
from depthrate.tasks.supervised.targets.classes import Classes
from depthrate.tasks.supervised.targets.collapse import Collapse
from depthrate.tasks.supervised.targets.next_token import NextToken
from depthrate.tasks.supervised.targets.numbers import Numbers
from depthrate.tasks.supervised.targets.target import Target
from depthrate.tasks.supervised.user_callable import UserCallable, load_callable
from depthrate.tasks.training.fused_task import NetworkTask
from depthrate.tasks.training.parameters import check_training

if TYPE_CHECKING:
    from depthrate.tasks.training.training import NetworkTraining


class Supervised(NetworkTask[SupervisedParameters]):
    """Networks that are trained on a target and measured layer by layer."""

    parameters = SupervisedParameters

    def __init__(
        self,
        target: Target,
        network: UserCallable | None = None,
        data: CustomData | None = None,
        code: TaskCode | None = None,
    ):
        """Put a task together of a custom network, or of custom data, or of both; None: built-in.

        Raises:
            ParameterError: a callable takes arguments with the names of parameters.
        """
        self.target, self.custom_network, self.data, self.code = target, network, data, code
        self.name, self.version, self.doc = target.name, target.version, target.doc
        self.measurements, self.panels = target.metrics, target.panels
        self.has_engines = target.name == "collapse"  # type: ignore[misc]
        of_network, of_data = () if network is None else network.arguments, () if data is None else data.arguments
        self.schema = target.schema(
            None if network is None else network.name, None if data is None else data.name, of_network, of_data
        )
        self._network_arguments = {argument.name for argument in of_network}
        self._arguments = {argument.name for argument in (*of_network, *of_data)}
        executed = network if network is not None or data is None else data.function
        self.defined_at = "" if executed is None else executed.defined_at
        self.distinguished_by = "" if executed is None else f"give {executed.name} another name ({executed.defined_at})"
        self._networks: dict[str, Network] = {}

    def read(self, params: Params) -> SupervisedParameters:
        """Return the parameters of a trial as attributes, those of the user's callables in `arguments`."""
        if self.custom_network is None and self.data is None:
            return self.parameters.from_params({**self.target.fixed, **params})
        others = self._arguments.difference(OF_TEXTS)
        declared = {name: value for name, value in params.items() if name not in others}
        return self.parameters.from_params({**self.target.fixed, **declared, "arguments": params})

    def whole(self, trial: SupervisedParameters) -> Dataset | Streamed | None:
        """Return the user's data as they come; None: the data are built-in.

        Raises:
            DatasetError: they cannot be read, or are not what training takes.
        """
        return None if self.data is None else self.data.read(trial.arguments, trial.stream)

    def complete(self, params: dict[str, Any]) -> None:
        """Fill in the content's hash, how the data are streamed, and the numbers of the data that a network takes.

        Raises:
            ParameterError: the data cannot be read, so that trials on them cannot be identified.
        """
        try:
            if self.data is not None:
                trial = self.read(params)
                whole = self.data.read(trial.arguments, trial.stream)
                params["dataset_hash"] = whole.content_hash[:16]
                params["stream"] = self.data.settled(trial.arguments, trial.stream)
                if isinstance(whole, Streamed):
                    params["measure_samples"] = whole.num_measured(trial.measure_samples)
        except DatasetError as error:
            raise ParameterError(str(error)) from error
        if self.custom_network is None:
            return
        told = _numbers_of(self.data_shape(self.read(params)))
        for name in self._network_arguments.intersection((*self.target.from_data, *OF_TEXTS)):
            if params[name] is None:
                params[name] = told.get(name)

    def published_sets(self, trial: SupervisedParameters) -> Sequence[str]:
        """Return the data set that is read from files, unless it is the user's."""
        return () if self.data is not None or trial.dataset == MARKOV else (trial.dataset,)

    def check_data(self, trials: Sequence[Params], source: DataSource) -> None:
        """Refuse trials whose data set, or a test split with files of its own, does not exist."""
        if not self.target.has_test_files:
            trials = [{**params, "test": False} for params in trials]
        super().check_data(trials, source)

    def check_contents(self, trials: Sequence[Params], source: DataSource) -> None:
        """Refuse trials whose data set is damaged, or in which nothing can be measured."""
        super().check_contents(trials, source)
        if not self.target.measurable_by:
            return
        decisive = {*self.target.measurable_by, *(() if self.data is None else (a.name for a in self.data.arguments))}
        names = [name for name in self.schema if name in decisive]
        for params in {repr([params[name] for name in names]): params for params in trials}.values():
            trial = self.read(params)
            self.target.check_measurable(self.load(trial, source), trial)

    def data_shape(self, trial: SupervisedParameters) -> DataShape:
        """Return the shape of the training set."""
        whole = self.whole(trial)
        if whole is None:
            return self.target.published_shape(trial)
        if isinstance(whole, Streamed):
            return whole.shape(trial.measure_samples, trial.dtype)
        return self.target.held_shape(whole, trial)

    def network(self, trial: SupervisedParameters, data: DataShape) -> Network:
        """Return the trial's network.

        Raises:
            ParameterError: it cannot be made of these parameters, or does not read this data.
        """
        if self.custom_network is None:
            architecture = ARCHITECTURES[trial.arch]
            if data.vocabulary_size is not None and not architecture.reads_tokens:
                readers = ", ".join(name for name, other in ARCHITECTURES.items() if other.reads_tokens)
                raise ParameterError(
                    f"arch is {trial.arch!r}, but {trial.dataset!r} is text; give {readers}, or your own"
                )
            try:
                return architecture.make(trial, data)
            except ValueError as error:
                raise ParameterError(f"arch {trial.arch!r}: {error}") from error
        arguments = self.custom_network.values(trial.arguments)
        key = repr((arguments, data.sample_shape, data.num_classes, data.vocabulary_size))
        key += repr([trial.layers, trial.maps, trial.flat_inputs, trial.decayed])
        if key not in self._networks:
            self._networks[key] = ModuleNetwork(
                make=self.custom_network.make,
                name=trial.arch,
                arguments=arguments,
                data=replace(data, sample_shape=(data.num_inputs,)) if trial.flat_inputs else data,
                patterns=_patterns(trial.layers),
                maps=trial.maps,
                decayed=_patterns(trial.decayed),
            )
        return self._networks[key]

    def load(self, trial: SupervisedParameters, source: DataSource) -> Dataset:
        """Return a trial's data set, with its test split where that is wanted.

        Raises:
            DatasetError: it is missing, damaged, or has changed since the trial was planned.
        """
        whole = self.whole(trial)
        if whole is None:
            return self.target.load(trial, source)
        if whole.content_hash[:16] != trial.dataset_hash:
            raise DatasetError(
                f"{trial.dataset} has changed since the trial was planned (content {whole.content_hash[:16]}, planned "
                f"{trial.dataset_hash}); start the sweep again: what has other content is another trial. A function "
                "must give the same data at each call: give what it draws a fixed seed"
            )
        return whole.prepared(trial) if isinstance(whole, Streamed) else self.target.prepare(whole, trial)

    def training(self, trials: Sequence[SupervisedParameters], source: DataSource) -> NetworkTraining:
        """Return the training of a pack of trials."""
        return self.training_on(trials, self.load(trials[0], source))

    def training_on(self, trials: Sequence[SupervisedParameters], dataset: Dataset) -> NetworkTraining:
        """Return the training of a pack of trials on a data set."""
        return self.target.training(trials, dataset, self.network(trials[0], dataset.shape))

    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Train and measure a pack of trials of one shape, or of one chain of depths."""
        read = [self.read(params) for params in trials]
        if not read[0].continuation:
            yield from super().run(trials, context)
            return
        from depthrate.tasks.training.polish.continuation import run_chain

        dataset = self.load(read[0], context.data)
        yield from run_chain(read, lambda at_one_depth: self.training_on(at_one_depth, dataset), context)

    def check(self, trial: SupervisedParameters) -> None:
        """Refuse combinations that cannot run. This builds a user's network and runs it once."""
        whole = self.whole(trial)
        self._check_texts(trial)
        if isinstance(whole, Streamed):
            whole.check(trial, self.target.draw)
        elif whole is not None and trial.measure_samples is not None:
            raise ParameterError(
                f"measure_samples is {trial.measure_samples}, but {trial.dataset!r} is held in memory, and all of it measured; "
                "give null, or stream: true"
            )
        self.target.check(trial, whole)
        data = self.data_shape(trial)
        check_training(trial, data.num_samples)
        self.target.check_network(trial, self.network(trial, data), data)

    def _check_texts(self, trial: SupervisedParameters) -> None:
        """Refuse parameters of texts where there are none, so that no two trials differ in name only."""
        is_text = self.data is None and (trial.dataset == MARKOV or PUBLISHED[trial.dataset].is_text)
        for name in OF_TEXTS:
            value, minimum = getattr(trial, name, None), self.parameters.schema[name].minimum or 0
            if value is None:
                continue
            if is_text and (not isinstance(value, int) or value < minimum):
                raise ParameterError(
                    f"{name} is {value!r}; for {trial.dataset!r} give a whole number of at least {minimum:g}"
                )
            if not is_text and name not in self._network_arguments:
                raise ParameterError(f"{name} is {value}, but {trial.dataset!r} is no text; give null")

    def remarks(self, trials: Sequence[Params]) -> Sequence[str]:
        """Return sentences on streamed data, on measured layers of the largest network, and on whether trials train fused."""
        read = [self.read(params) for params in trials]
        return [*self._remarks_on_data(read), *self._remarks_on_network(read)]

    def _remarks_on_data(self, read: Sequence[SupervisedParameters]) -> Sequence[str]:
        if self.data is None:
            return []
        remarks: dict[str, None] = {}  # each once: trials differ in more than their data
        for trial in read:
            if self.data.is_from_loader(trial.arguments):
                remarks[
                    f"{self.data.name} returns torch's DataLoader: its data set is taken; batches and their order are the "
                    "sweep's (batch_size, seed), its sampler and collate_fn are not used"
                ] = None
            if isinstance(whole := self.whole(trial), Streamed):
                remarks[whole.remark(trial.measure_samples)] = None
        return list(remarks)

    def _remarks_on_network(self, read: Sequence[SupervisedParameters]) -> Sequence[str]:
        if self.custom_network is None or not read:
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
        layers = [
            f"{layer.number} {layer.name} [{self.target.measured_width(layer)}]" for layer in largest.measured_layers()
        ]
        listed = layers if len(layers) <= 8 else [*layers[:5], "...", *layers[-2:]]
        measured = f"{name}: measured layers {', '.join(listed)}; {largest.num_parameters:,} parameters are trained"
        return [*sentences, measured]


TARGETS: dict[str, Target] = {target.name: target for target in (Collapse(), Classes(), Numbers(), NextToken())}
COLLAPSE = Supervised(TARGETS["collapse"])
REGRESSION = Supervised(TARGETS["regression"])
NEXT_TOKEN = Supervised(TARGETS["next_token"])


def load_custom_task(text: str, files: Mapping[str, bytes] | None = None) -> Supervised:
    """Return the task for the custom network and data in a text, with their code as in `files` or as it is on disk.

    Raises:
        TaskError: a file does not import, has no such callable, or can be changed by other users.
        ParameterError: a callable takes arguments that no sweep can give, or that have names of parameters.
    """
    references = parse_references(text)
    if references.arch is None and references.dataset is None:
        raise TaskError(
            f"task {CUSTOM!r} is collapse on a network or data of yours: give arch: ./model.py:Net, or dataset: ./mine.npz, or "
            "both"
        )
    code = references.code() if files is None and references.code_files else None
    if code is not None:
        require_trust(code, references.code_files[0])
        files = code.contents
    target = TARGETS[references.task]
    network = load_callable(references.arch, "arch", files)
    source = load_callable(references.dataset, "dataset", files)
    data = None
    if references.dataset is not None:
        data = CustomData(source or Path(references.dataset), target)
    executed = network or source
    executed_code = None if executed is None else executed.code
    if executed_code is not None and files is not None:
        executed_code = replace(executed_code, files=tuple(sorted(files.items())))
    return Supervised(target, network, data, executed_code)


@lru_cache(maxsize=64)
def _numbers_of(data: DataShape) -> dict[str, int]:
    """Return the numbers of a data set that arguments of networks may take."""
    told = {
        "num_classes": data.num_classes,
        "num_targets": data.num_classes,
        "num_inputs": math.prod(data.sample_shape),
    }
    if data.vocabulary_size is not None:
        told |= {"context_length": data.num_inputs, "vocabulary_size": data.vocabulary_size}
    if len(data.sample_shape) == 3:
        told |= {"in_channels": data.sample_shape[0], "image_size": data.sample_shape[-1]}
    return told


def _patterns(text: str | None) -> tuple[str, ...] | None:
    """Return the comma-separated patterns of a parameter, None for None."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
