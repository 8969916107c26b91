"""The executors that packages register in the entry-point group `depthrate.executors`, and the options of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.executors.base import (
    ComputeTarget,
    ExecutorEntry,
    ExecutorError,
    ExecutorRequest,
    Scheduler,
)
from depthrate.orchestrator.executors.options import LaunchOptions, Option
from depthrate.tasks.plugins import load_plugin, load_plugins

if TYPE_CHECKING:  # --help imports this module
    from depthrate.storage.attempts.records import Record
    from depthrate.storage.files.store import Store

GROUP = "depthrate.executors"


@cache
def executors() -> dict[str, ExecutorEntry]:
    """Import all registered executors: name, as --executor has it -> entry. A faulty one is logged and left out."""
    return load_plugins(GROUP, lambda name: load_plugin(GROUP, name, ExecutorEntry))


def executor_names() -> str:
    """Return the names as a sentence has them: local, ray or slurm."""
    *first, last = executors()
    return f"{', '.join(first)} or {last}"


def executor_options() -> list[Option]:
    """Return the options that executors declare, each once."""
    return list({option.name: option for entry in executors().values() for option in entry.options}.values())


def launch_options() -> list[Option]:
    """Return all options of a launch, in the order of --help."""
    options = LaunchOptions.declared(executor_options())
    return [replace(option, doc=option.doc.format(executors=executor_names())) for option in options]


def make_launch_options(sweep: str, given: Mapping[str, Any], **more: Any) -> LaunchOptions:
    """Return the options of a launch: what was given of those that are declared, the others at their default.

    Raises:
        OptionError: a value is not allowed.
    """
    values: dict[str, Any] = {}
    for option in launch_options():
        value = given.get(option.name, option.default)
        option.check(value)
        values[option.name] = tuple(value or ()) if option.is_list else value
    of_executors = {option.name: values.pop(option.name) for option in executor_options()}
    return LaunchOptions(sweep=sweep, executor_options=of_executors, **values, **more)


def schedulers() -> dict[str, Scheduler]:
    """Return executor -> what keeps its jobs, of those whose jobs go on without a launch."""
    return {entry.name: entry.scheduler for entry in executors().values() if entry.scheduler is not None}


def list_unreported_ends(store: Store, sweep: str) -> list[Record]:
    """Return what the schedulers know of a sweep's attempts whose job is over without a word of theirs."""
    seen = [scheduler.poll(store, sweep) for scheduler in schedulers().values()]
    return [record for each in seen if each is not None for record in each.unreported_ends]


def open_executor(request: ExecutorRequest) -> ComputeTarget:
    """Return what `--executor` and its options mean, of which all may be given; nothing is started.

    Raises:
        ValueError: `ExecutorError`, `MachineError` or `SlurmError` for what is unknown, not there, or does not fit.
    """
    executor = request.options.executor
    entry = executors().get(executor)
    if entry is None:
        raise ExecutorError(
            f"executor {executor!r} is not available in this version; allowed: {', '.join(executors())}"
        )
    options = replace(request.options, executor_options=_own_options(entry, request.options.executor_options))
    prune = None if request.sweep.search is None else request.sweep.search.prune
    if prune is not None and prune.rule == "asha" and not entry.compares_running_trials:
        able = " or ".join(executor.name for executor in executors().values() if executor.compares_running_trials)
        raise ExecutorError(
            f"search.prune.rule asha compares trials that run at the same time, which only --executor {able} can; given: "
            f"--executor {executor}; rule halving does nearly the same everywhere"
        )
    machines = entry.open(replace(request, options=options))
    if options.detach and not machines.outlives_driver:
        able = " or ".join(f"--executor {executor.detach}" for executor in executors().values() if executor.detach)
        raise ExecutorError(f"--detach goes with {able}; {executor} workers end with their launch")
    return machines


def _own_options(entry: ExecutorEntry, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an executor's own options; refuse those of others that were given."""
    own = {option.name for option in entry.options}
    for option in executor_options():
        if option.name not in own and given.get(option.name, option.default) != option.default:
            able = " or ".join(executor.name for executor in executors().values() if option in executor.options)
            raise ExecutorError(f"{option.flag} goes with --executor {able}; given: --executor {entry.name}")
    return {option.name: given.get(option.name, option.default) for option in entry.options}
