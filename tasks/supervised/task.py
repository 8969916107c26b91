"""The supervised tasks: a target, with a built-in or custom network on built-in or custom data. Importable without torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthrate.tasks.code.load import require_trust
from depthrate.tasks.data.dataset import Dataset, DataShape, shortened
from depthrate.tasks.data.markov import MARKOV
from depthrate.tasks.data.preparation import describe_hidden
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.interface import CUSTOM, Engine, Params, TaskCode, TaskContext, TaskError, TrialResult
from depthrate.tasks.measures.named_columns import ALIGNMENT_NAMES, HESSIAN_NAMES, split_measure
from depthrate.tasks.networks.builtin import ARCHITECTURES, check_parametrisation
from depthrate.tasks.networks.network import Network
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised import theory
from depthrate.tasks.supervised.data import CustomData
from depthrate.tasks.supervised.parameters import CUSTOM_NETWORK_PARAMETERS, TEXT_PARAMETERS, SupervisedParameters
from depthrate.tasks.supervised.references import parse_references
from depthrate.tasks.supervised.streaming import Streamed
from depthrate.tasks.supervised.targets.classes import Classes
from depthrate.tasks.supervised.targets.collapse import Collapse
from depthrate.tasks.supervised.targets.next_token import NextToken
from depthrate.tasks.supervised.targets.numbers import Numbers
from depthrate.tasks.supervised.targets.target import Target
from depthrate.tasks.supervised.user_callable import UserCallable, load_callable
from depthrate.tasks.training.fused_task import NetworkTask
from depthrate.tasks.training.parameters import check_training
from depthrate.tasks.training.recording import requested_cost

if TYPE_CHECKING:
    from depthrate.tasks.training.training import NetworkTraining


MAX_REQUESTED_COST = 1 / 3
"""Maximum cost of requested measurements without a remark, as a multiple of the training steps."""
MAX_LAYERS_SHOWN = 8
"""Maximum number of layers in a remark. Of more, consecutive ones of one shape are shown as first to last."""


class Supervised(NetworkTask[SupervisedParameters]):
    """Networks trained on a target and measured layer by layer."""

    parameters = SupervisedParameters

    def __init__(
        self,
        target: Target,
        network: UserCallable | None = None,
        data: CustomData | None = None,
        code: TaskCode | None = None,
    ):
        """Build a task from a custom network, custom data, or both. None stands for a built-in one. A target has the metrics.

        Raises:
            ParameterError: A callable takes arguments with the names of parameters.
        """
        self.target, self.custom_network, self.data, self.code = target, network, data, code
        self.name, self.version, self.doc = target.name, target.version, target.doc
        self.measurements, self.figures = target.metrics, target.figures
        network_arguments = () if network is None else network.arguments
        data_arguments = () if data is None else data.arguments
        names = (None if network is None else network.name, None if data is None else data.name)
        self.schema = target.schema(*names, network_arguments, data_arguments)
        self._network_arguments = {argument.name for argument in network_arguments}
        self._arguments = {argument.name for argument in (*network_arguments, *data_arguments)}
        executed = network if network is not None or data is None else data.function
        executed = executed or next((metric.function for metric in target.custom.values()), None)
        self.defined_at = "" if executed is None else executed.defined_at
        self.distinguished_by = "" if executed is None else f"rename {executed.name} ({executed.defined_at})"
        self._networks: dict[str, Network] = {}

    def read(self, params: Params) -> SupervisedParameters:
        if self.custom_network is None and self.data is None:
            return self.parameters.from_params({**self.target.fixed, **params})
        others = self._arguments.difference(TEXT_PARAMETERS)
        declared = {name: value for name, value in params.items() if name not in others}
        return self.parameters.from_params({**self.target.fixed, **declared, "arguments": params})

    def read_custom_data(self, trial: SupervisedParameters) -> Dataset | Streamed | None:
        """Read the user's data before any preparation, or return None for built-in data.

        Raises:
            DatasetError: The data cannot be read, or training cannot use them.
        """
        return None if self.data is None else self.data.read(trial.arguments, trial.stream)

    def complete(self, params: dict[str, Any]) -> None:
        """Fill in the data's hash, whether they are streamed, and the sizes of the data that a network takes as arguments."""
        try:
            if self.data is not None:
                trial = self.read(params)
                opened = self.data.opened(trial.arguments, is_compared=True)
                data = opened.read(trial.stream)
                params["dataset_hash"] = data.content_hash[:16]
                params["stream"] = False if opened.is_large else None  # None: in memory by default
                if isinstance(data, Streamed):
                    params["stream"], params["measure_samples"] = True, data.num_measured(trial.measure_samples)
        except DatasetError as error:
            raise ParameterError(str(error)) from error
        if self.custom_network is None:
            return
        trial = self.read(params)
        sizes = _sizes(_as_signals(self.data_shape(trial), trial))
        for name in self._network_arguments.intersection((*self.target.from_data, *TEXT_PARAMETERS)):
            if params[name] is None:
                params[name] = sizes.get(name)

    def published_sets(self, trial: SupervisedParameters) -> Sequence[str]:
        return () if self.data is not None or trial.dataset == MARKOV else (trial.dataset,)

    def check_data(self, trials: Sequence[Params], source: DataSource) -> None:
        if not self.target.has_test_files:
            trials = [{**params, "test": False} for params in trials]
        super().check_data(trials, source)

    def check_contents(self, trials: Sequence[Params], source: DataSource) -> None:
        super().check_contents(trials, source)
        if not self.target.measurable_by:
            return
        decisive = {*self.target.measurable_by, *(() if self.data is None else (a.name for a in self.data.arguments))}
        names = [name for name in self.schema if name in decisive]
        for params in {repr([params[name] for name in names]): params for params in trials}.values():
            trial = self.read(params)
            self.target.check_measurable(self.load(trial, source), trial)

    def data_shape(self, trial: SupervisedParameters) -> DataShape:
        data = self.read_custom_data(trial)
        if data is None:
            return self.target.published_shape(trial)
        if isinstance(data, Streamed):
            return data.shape(trial.measure_samples, trial.dtype)
        return self.target.held_shape(data, trial)

    def network(self, trial: SupervisedParameters, data: DataShape) -> Network:
        if self.custom_network is None:
            architecture = ARCHITECTURES[trial.arch]
            if data.vocabulary_size is not None and not architecture.reads_tokens:
                readers = ", ".join(name for name, other in ARCHITECTURES.items() if other.reads_tokens)
                raise ParameterError(
                    f"arch is {trial.arch!r}, but {trial.dataset!r} is text. Set arch to {readers}, or to your own network."
                )
            try:
                return architecture.make(trial, data)
            except ValueError as error:
                raise ParameterError(f"arch {trial.arch!r}: {error}") from error
        data = _as_signals(data, trial)
        arguments = self.custom_network.values(trial.arguments)
        key = repr((arguments, data.sample_shape, data.num_classes, data.vocabulary_size))
        key += repr([getattr(trial, name) for name in (*CUSTOM_NETWORK_PARAMETERS, "dtype")])
        if key not in self._networks:
            from depthrate.tasks.networks.module import ModuleNetwork  # imports torch

            self._networks[key] = ModuleNetwork(
                make=self.custom_network.make,
                name=trial.arch,
                arguments=arguments,
                data=replace(data, sample_shape=(data.num_inputs,)) if trial.flat_inputs else data,
                patterns=_patterns(trial.layers),
                maps=trial.maps,
                layer_axes=trial.layer_axes,
                output_tensors=trial.output_tensors,
                dtype=trial.dtype,
                decayed=_patterns(trial.decayed),
            )
        return self._networks[key]

    def load(self, trial: SupervisedParameters, source: DataSource) -> Dataset:
        """Load a trial's data set, with its test split if requested.

        Raises:
            DatasetError: The data are missing, corrupt, or changed since the trial was planned.
        """
        data = self.read_custom_data(trial)
        if data is None:
            return self.target.load(trial, source)
        if data.content_hash[:16] != trial.dataset_hash:
            raise DatasetError(
                f"{trial.dataset} has changed since the trial was planned (content {data.content_hash[:16]}, planned "
                f"{trial.dataset_hash}). Start the sweep again: other data make other trials. A function must return the same "
                "data at each call, so give its random numbers a fixed seed."
            )
        return data.prepared(trial) if isinstance(data, Streamed) else self.target.prepare(data, trial)

    def training(self, trials: Sequence[SupervisedParameters], source: DataSource) -> NetworkTraining:
        return self.training_on(trials, self.load(trials[0], source))

    def training_on(self, trials: Sequence[SupervisedParameters], dataset: Dataset) -> NetworkTraining:
        """Create the training of a pack of trials on a data set."""
        return self.target.training(trials, dataset, self.network(trials[0], dataset.shape))

    def measure_speed(
        self, trials: Sequence[Params], engine: Engine, source: DataSource, seconds: float
    ) -> tuple[Engine, float, float]:
        parsed = [self.read(params) for params in trials]
        if parsed[0].continuation:  # only the smallest depth has training steps
            return super().measure_speed(trials, engine, source, seconds)
        from depthrate.tasks.training.speed import measure_speed  # imports torch

        return measure_speed(self.training(parsed, source), engine, seconds)

    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Train and measure a pack of trials of one shape, or of one chain of depths."""
        parsed = [self.read(params) for params in trials]
        if not parsed[0].continuation:
            yield from super().run(trials, context)
            return
        from depthrate.tasks.training.polish.continuation import run_chain

        dataset = self.load(parsed[0], context.data)
        yield from run_chain(parsed, lambda at_one_depth: self.training_on(at_one_depth, dataset), context)

    def check(self, trial: SupervisedParameters) -> None:
        """Reject combinations that cannot run. This builds a user's network and runs it once."""
        custom_data = self.read_custom_data(trial)
        self._check_texts(trial)
        if isinstance(custom_data, Streamed):
            custom_data.check(trial, self.target.draw)
        elif custom_data is not None and trial.measure_samples is not None:
            raise ParameterError(
                f"measure_samples is {trial.measure_samples}, but {trial.dataset!r} is held in memory and measured in full. "
                "Set it to null, or set stream: true."
            )
        self.target.check(trial, custom_data)
        if self.custom_network is None:
            check_parametrisation(trial)
        data = self.data_shape(trial)
        check_training(trial, data.num_samples)
        network = self.network(trial, data)
        self.target.check_network(trial, network, data)
        names = {*split_measure(trial.measure)}
        if not network.has_weight_pairs and (requested := sorted(names.intersection(ALIGNMENT_NAMES))):
            raise ParameterError(
                f"measure has {requested[0]!r}, but the layers of {trial.arch!r} are not between two matrices. Use arch mlp, "
                "rn1 or rn2, or the task dufm."
            )
        if self.custom_network is not None and not names.isdisjoint(HESSIAN_NAMES):
            import torch

            from depthrate.tasks.training.weight_metrics import check_products

            check_products(network, data, getattr(torch, trial.dtype))
        _ = network.unfused_reason  # tries a user's steps
        for metric in self.target.custom.values():
            metric.check([layer.width for layer in network.measured_layers()], data.num_classes, trial.dtype)

    def _check_texts(self, trial: SupervisedParameters) -> None:
        """Reject parameters of text data for other data, so that no two trials differ in name only."""
        is_text = self.data is None and (trial.dataset == MARKOV or PUBLISHED[trial.dataset].is_text)
        for name in TEXT_PARAMETERS:
            value, minimum = getattr(trial, name, None), self.parameters.schema[name].minimum or 0
            if value is None:
                continue
            if is_text and (not isinstance(value, int) or value < minimum):
                raise ParameterError(f"{name} is {value!r}, expected an int >= {minimum:g} for {trial.dataset!r}")
            if not is_text and name not in self._network_arguments:
                raise ParameterError(f"{name} is {value}, but {trial.dataset!r} is not text. Set it to null.")

    def remarks(self, trials: Sequence[Params]) -> Sequence[str]:
        """Return remarks on streamed data, on costly measurements, on the largest network's layers, and on whether trials train
        fused."""
        parsed = [self.read(params) for params in trials]
        remarks: list[str] = []
        for trial in parsed:
            if self.data is not None and self.data.opened(trial.arguments).is_from_loader:
                remarks.append(
                    f"{self.data.name} returns a torch DataLoader. Only its data set is used: batches and their order come "
                    "from batch_size and seed, not from its sampler and collate_fn."
                )
            if isinstance(data := self.read_custom_data(trial), Streamed):
                remarks.append(data.remark(trial.measure_samples))
        remarks += [f"{metric.name}: measured per layer as {metric.columns}" for metric in self.target.custom.values()]
        costs = [cost for trial in parsed if (cost := requested_cost(trial, self.data_shape(trial))) is not None]
        if max(costs, default=0.0) > MAX_REQUESTED_COST:
            remarks.append(
                f"the requested measurements cost up to {max(costs):.2g} times the training steps (counted in samples)"
            )
        return [*dict.fromkeys(remarks), *self._remarks_on_network(parsed)]

    def describe_data(self, trials: Sequence[Params]) -> Sequence[str]:
        """Describe each data set of the trials: samples, form, range, classes with counts and, for custom data, its hash."""
        names = ("dataset", "dataset_hash", "samples_per_class", "normalize")
        distinct = {tuple(map(p.get, names)): p for p in trials}.values()
        return list(dict.fromkeys(self._describe(self.read(params)) for params in distinct))

    def _describe(self, trial: SupervisedParameters) -> str:
        drawn = getattr(trial, "samples_per_class", None)
        if self.data is not None:
            opened = self.data.opened(trial.arguments)
            data, columns = opened.read(trial.stream), opened.columns
            text = f"{trial.dataset}: {data.describe()}{', columns ' if columns else ''}{shortened(columns)}"
            text += f", hash {data.content_hash[:16]}{'' if drawn is None else f'. Used: {drawn} of each class'}"
            is_scaled = self.data_shape(trial).vocabulary_size is None
            return text + describe_hidden(data.x_NI, columns, trial.normalize) if is_scaled else text
        shape = self.data_shape(trial)
        spread = "equal" if theory.has_equal_classes([vars(trial)]) else "unequal"
        classes = f", {shape.num_classes} classes ({spread})" if isinstance(self.target, Classes) else ""
        return f"{trial.dataset}: {shape.num_samples:,} training samples {list(shape.sample_shape)}{classes}"

    def _remarks_on_network(self, trials: Sequence[SupervisedParameters]) -> Sequence[str]:
        if self.custom_network is None or not trials:
            return []
        networks = {id(network): network for network in (self.network(t, self.data_shape(t)) for t in trials)}
        name = trials[0].arch
        reasons = Counter(network.unfused_reason for network in networks.values())
        remarks = [
            f"{name}: {'trains fused' if reason is None else f'trials train one by one, because {reason}'}"
            + (f" ({count} of {len(networks)} shapes)" if len(reasons) > 1 else "")
            for reason, count in reasons.items()
        ]
        largest = max(networks.values(), key=lambda network: network.num_parameters)
        measured = largest.measured_layers()
        shown = groupby(measured, lambda layer: layer.output or f"[{self.target.measured_width(layer)}]")
        runs = [(shape, [f"{layer.number} {layer.name}" for layer in equal]) for shape, equal in shown]
        if len(measured) > MAX_LAYERS_SHOWN:
            runs = [(shape, [" to ".join(dict.fromkeys([equal[0], equal[-1]]))]) for shape, equal in runs]
        layers = [f"{layer} {shape}" for shape, equal in runs for layer in equal]
        count = f"{largest.num_parameters:,} trained parameters in {trials[0].dtype}"
        remarks.append(f"{name}: {count}, measured layers {', '.join(layers)}")
        return [*remarks, *(f"{name}: {remark}" for remark in largest.remarks())]


TARGETS: dict[str, Target] = {target.name: target for target in (Collapse(), Classes(), Numbers(), NextToken())}
COLLAPSE = Supervised(TARGETS["collapse"])
REGRESSION = Supervised(TARGETS["regression"])
NEXT_TOKEN = Supervised(TARGETS["next_token"])


def load_custom_task(text: str, files: Mapping[str, bytes] | None = None) -> Supervised:
    """Build the task for the custom network, data and metrics named in a string, with their code from `files` or from disk.

    Raises:
        TaskError: A file cannot be imported, lacks the callable, or can be changed by other users.
        ParameterError: A callable takes arguments that no sweep can give, or that have names of parameters.
    """
    references = parse_references(text)
    if references.task == CUSTOM and references.arch is None and references.dataset is None:
        raise TaskError(
            f"task {CUSTOM!r} needs a custom network or data set. Set arch: ./model.py:Net, or dataset: ./mine.npz, or both."
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
    functions = [load_callable(reference, "measure", files) for reference in split_measure(references.measure)]
    if functions:
        from depthrate.tasks.supervised.custom_metric import CustomMetric

        target = target.with_custom([CustomMetric(one, target.streamed.has_targets) for one in functions if one])
    codes = [one.code for one in (network, source, *functions) if one is not None and one.code is not None]
    executed_code = min(codes, key=lambda code: files is not None and code.main not in files, default=None)
    if executed_code is not None and files is not None:
        executed_code = replace(executed_code, files=tuple(sorted(files.items())))
    return Supervised(target, network, data, executed_code)


def _as_signals(data: DataShape, trial: SupervisedParameters) -> DataShape:
    """Return the shape of samples as a custom network gets them: grey images as signals [channels, positions] if requested."""
    if not trial.signal_inputs:
        return data
    if len(data.sample_shape) != 3 or data.sample_shape[0] != 1:
        shape = list(data.sample_shape)
        raise ParameterError(
            f"signal_inputs is true, but samples have the shape {shape}, not two axes. Set it to false."
        )
    return replace(data, sample_shape=data.sample_shape[1:])


@lru_cache(maxsize=64)
def _sizes(data: DataShape) -> dict[str, int]:
    """Return the sizes of a data set that networks may take as arguments."""
    sizes = {
        "num_classes": data.num_classes,
        "num_targets": data.num_classes,
        "num_inputs": math.prod(data.sample_shape),
    }
    if data.vocabulary_size is not None:
        sizes |= {"context_length": data.num_inputs, "vocabulary_size": data.vocabulary_size}
    if len(data.sample_shape) in (2, 3):
        sizes |= {"in_channels": data.sample_shape[0], "image_size": data.sample_shape[-1]}
    return sizes


def _patterns(text: str | None) -> tuple[str, ...] | None:
    """Split the comma-separated patterns of a parameter. Return None for None."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
