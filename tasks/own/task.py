"""The task `own`, put together for the user's network and data that a sweep names. Importable without torch.

It is `collapse` in all but what is trained and on what: the same trainer, measurements and parameters of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from depthrate.tasks.collapse.measurements import MEASUREMENTS
from depthrate.tasks.collapse.schema import SCHEMA as COLLAPSE_SCHEMA
from depthrate.tasks.data import published
from depthrate.tasks.data.published import PUBLISHED, check_dataset, check_test
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.networks.network import Network
from depthrate.tasks.own.data import OwnData
from depthrate.tasks.own.references import OWN, code_of_files, references_of_text, short_name
from depthrate.tasks.own.schema import OF_TEXTS, own_schema
from depthrate.tasks.own.trial import OwnTrials
from depthrate.tasks.schema import ParameterError
from depthrate.tasks.signature import parameters_of_callable
from depthrate.tasks.task import Params, Task, TaskContext, TaskError, TrialResult
from depthrate.tasks.task_code import TaskCode
from depthrate.tasks.training.cost import estimate_s, max_pack_size
from depthrate.tasks.training.memory import memory_bytes
from depthrate.tasks.training.parameters import check_training
from depthrate.tasks.user_code import load_user_module, require_trust

VERSION = 1


def own_task(text: str, files: Mapping[str, bytes] | None = None) -> Task:
    """Return the task for the references that a text has, whose code is what `files` has, or what the files hold now.

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
    schema = own_schema(references, network_arguments, data_arguments)
    data = None
    if references.dataset is not None:
        path = None if make_data is not None else Path(references.dataset)
        data = OwnData(short_name(references.dataset), path, None if make_data is None else make_data.make)
    trials = OwnTrials(
        schema=schema,
        make=None if network is None else network.make,
        network_arguments=tuple(each.name for each in network_arguments),
        data=data,
        data_arguments=tuple(each.name for each in data_arguments),
    )
    executed = next((each for each in (network, make_data) if each is not None), None)
    made = _task_of(trials)
    if executed is None:
        return made
    whole = (
        executed.code
        if content is None or executed.code is None
        else replace(executed.code, files=tuple(sorted(content.items())))
    )
    told_apart = f"give {executed.name} another name ({executed.defined_at})"
    return replace(made, code=whole, defined_at=executed.defined_at, told_apart=told_apart)


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
    found = getattr(module, name, None)
    if not callable(found):
        state = "has nothing called" if found is None else "has something that is no class or function called"
        known = [key for key, value in vars(module).items() if callable(value) and value.__module__ == module.__name__]
        raise TaskError(f"{parameter}: {where} {state} {name!r}; what it defines: {', '.join(known) or 'nothing'}")
    return _Callable(found, short_name(reference), code, f"{Path(where).name}, {name}")


def _task_of(own: OwnTrials) -> Task:
    """Return the task of such trials."""

    def check_trial(params: Params) -> None:
        _check_texts(own, params)
        data = own.shape(params)
        check_training(params, data.num_samples)
        _check_draw(own, params)
        own.network(params, data).layers()  # which builds a user's network and runs it once

    def check_data(trials: Sequence[Params], source: DataSource) -> None:
        if own.data is None:
            for name in dict.fromkeys(params["dataset"] for params in trials):
                check_dataset(name, source)
            for name in dict.fromkeys(params["dataset"] for params in trials if params["test"]):
                check_test(name, source)

    def check_contents(trials: Sequence[Params], source: DataSource) -> None:
        if own.data is None:
            for name in dict.fromkeys(params["dataset"] for params in trials):
                published.check_contents(name, source)

    def run(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        from depthrate.tasks.own.pack import run_pack

        yield from run_pack(own, trials, context)

    def largest_pack(params: Params, device: str) -> int:
        shape = own.pack_shape(params)
        return 1 if shape.network.alone_because is not None else max_pack_size(shape, device)

    return Task(
        name=OWN,
        version=VERSION,
        schema=own.schema,
        run=run,
        fused=True,
        doc="Train a network of your own, or on data of your own, and measure neural collapse layer by layer.",
        measurements=MEASUREMENTS,
        complete=own.complete,
        check_trial=check_trial,
        check_data=check_data,
        check_contents=check_contents,
        remarks=lambda trials: _remarks(own, trials),
        max_pack_size=largest_pack,
        memory_bytes=lambda params, num_trials, device: memory_bytes(own.pack_shape(params), num_trials, device),
        estimate_s=lambda params: estimate_s(own.pack_shape(params)),
    )


def _check_texts(own: OwnTrials, params: Params) -> None:
    """Refuse what says how texts are read where there is none, so that no two trials differ in name only."""
    is_text = own.data is None and PUBLISHED[params["dataset"]].is_text
    for name in OF_TEXTS:
        value, least = params.get(name), COLLAPSE_SCHEMA[name].minimum or 0
        if is_text and value is not None and (not isinstance(value, int) or value < least):
            raise ParameterError(
                f"{name} is {value!r}; for {params['dataset']!r} give a whole number of at least {least:g}"
            )
        if value is not None and not is_text and name not in own.network_arguments:
            raise ParameterError(f"{name} is {value}, but {params['dataset']!r} is no text; give null")


def _check_draw(own: OwnTrials, params: Params) -> None:
    most = min(own.whole(params).class_counts_K) if own.data else PUBLISHED[params["dataset"]].smallest_class
    if params["samples_per_class"] is not None and params["samples_per_class"] > most:
        raise ParameterError(
            f"samples_per_class is {params['samples_per_class']}, but the smallest class of {params['dataset']!r} has "
            f"{most} samples; give at most that, or null for all"
        )


def _remarks(own: OwnTrials, trials: Sequence[Params]) -> list[str]:
    """Say which layers of the largest network are measured, and whether trials train fused."""
    if own.make is None or not trials:
        return []
    networks = {id(network): network for network in (own.network(params, own.shape(params)) for params in trials)}
    name = trials[0]["arch"]
    reasons: dict[str | None, int] = {}
    for network in networks.values():
        reasons[network.alone_because] = reasons.get(network.alone_because, 0) + 1
    sentences = [
        f"{name}: {'trains fused' if reason is None else f'trials train one by one, because {reason}'}"
        + (f" ({count} of {len(networks)} shapes)" if len(reasons) > 1 else "")
        for reason, count in reasons.items()
    ]
    largest = max(networks.values(), key=lambda network: network.num_parameters)
    return [*sentences, _layers_sentence(name, largest)]


def _layers_sentence(name: str, network: Network) -> str:
    layers = [f"{layer.number} {layer.name} [{layer.width}]" for layer in network.measured_layers()]
    shown = layers if len(layers) <= 8 else [*layers[:5], "...", *layers[-2:]]
    return f"{name}: measured layers {', '.join(shown)}; {network.num_parameters:,} parameters are trained"
