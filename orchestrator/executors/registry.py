"""Executors from the entry-point group `depthrate.executors`, and all options of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.attempts.options import LaunchOptions, Option
from depthrate.orchestrator.executors.base import Answers, Executor, ExecutorEntry, ExecutorRequest, Scheduler
from depthrate.orchestrator.executors.errors import ExecutorError
from depthrate.tasks.plugins import load_plugin, load_plugins

if TYPE_CHECKING:  # --help imports this module
    from depthrate.storage.attempts.records import Record
    from depthrate.storage.files.store import Store

GROUP = "depthrate.executors"


@cache
def executors() -> dict[str, ExecutorEntry]:
    """Import all registered executors: value of --executor -> entry. A faulty executor is logged and omitted."""
    return load_plugins(GROUP, lambda name: load_plugin(GROUP, name, ExecutorEntry))


def executor_names() -> str:
    """Return a string of the names: local, ray or slurm."""
    *first, last = executors()
    return f"{', '.join(first)} or {last}"


def executor_options() -> list[Option]:
    """Return the options that executors declare, without duplicates."""
    return list({option.name: option for entry in executors().values() for option in entry.options}.values())


def launch_options() -> list[Option]:
    """Return all options of a launch, in the order of --help."""
    options = LaunchOptions.declared(executor_options())
    return [replace(option, doc=option.doc.format(executors=executor_names())) for option in options]


def make_launch_options(sweep: str, values: Mapping[str, Any], **more: Any) -> LaunchOptions:
    """Return the options of a launch: `values` of declared options, and defaults for all other options.

    Raises:
        OptionError: A value is invalid.
    """
    fields: dict[str, Any] = {}
    for option in launch_options():
        value = option.check(values.get(option.name, option.default))
        fields[option.name] = tuple(value or ()) if option.is_list else value
    of_executors = {option.name: fields.pop(option.name) for option in executor_options()}
    return LaunchOptions(sweep=sweep, executor_options=of_executors, **fields, **more)


def schedulers() -> dict[str, Scheduler]:
    """Map executors whose jobs outlive their launch to their schedulers."""
    return {entry.name: entry.scheduler for entry in executors().values() if entry.scheduler is not None}


def poll_schedulers(store: Store, sweep: str) -> Answers:
    """Query all schedulers once about a sweep's jobs."""
    return {executor: scheduler.poll(store, sweep) for executor, scheduler in schedulers().items()}


def unreported_ends(answers: Answers) -> list[Record]:
    """Return the records of attempts whose jobs ended without writing a record."""
    return [record for answer in answers.values() if answer is not None for record in answer.unreported_ends]


def open_executor(request: ExecutorRequest) -> Executor:
    """Return the compute target of `--executor` and its options, without starting anything.

    Raises:
        ValueError: `ExecutorError`, `MachineError` or `SlurmError` if an option or a machine is unknown or unsuitable.
    """
    executor = request.options.executor
    entry = executors().get(executor)
    if entry is None:
        raise ExecutorError(f"executor is {executor!r}, expected {executor_names()}")
    names, values = {option.name for option in entry.options}, request.options.executor_options
    for option in executor_options():
        if option.name not in names and values.get(option.name, option.default) != option.default:
            able = " or ".join(other.name for other in executors().values() if option in other.options)
            raise ExecutorError(f"{option.flag} needs --executor {able}, but --executor is {entry.name}")
    selected = {option.name: values.get(option.name, option.default) for option in entry.options}
    options = replace(request.options, executor_options=selected)
    prune = None if request.sweep.search is None else request.sweep.search.prune
    if prune is not None and prune.rule == "asha" and not entry.compares_running_trials:
        able = " or ".join(executor.name for executor in executors().values() if executor.compares_running_trials)
        raise ExecutorError(
            f"search.prune.rule asha needs --executor {able}, because it compares trials that run at the same time, but "
            f"--executor is {executor}. Rule halving is a close substitute for every executor."
        )
    target = entry.open(replace(request, options=options))
    if options.detach and not target.outlives_driver:
        able = " or ".join(f"--executor {name}" for name in schedulers())
        raise ExecutorError(f"--detach needs {able}, because {executor} workers end with their launch")
    return target
