"""Make the plan of a launch from its options, for `depthrate run`, `depthrate plan` and notebooks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from depthrate.orchestrator.api.find_sweep import sweep_to_launch
from depthrate.orchestrator.attempts.options import LaunchOptions, OptionError
from depthrate.orchestrator.code.permission import check_stored_code
from depthrate.orchestrator.console.errors import next_call
from depthrate.orchestrator.executors.base import Executor, ExecutorRequest, usable_engine
from depthrate.orchestrator.executors.registry import executor_options, open_executor
from depthrate.orchestrator.launch.estimates import Estimates, make_estimates
from depthrate.orchestrator.launch.launch_plan import (
    CheckedSweep,
    Plan,
    check_contents,
    check_data,
    check_fit_points,
    check_sweep,
    make_plan,
)
from depthrate.orchestrator.search.checks import check_search
from depthrate.orchestrator.search.search_view import SearchView, with_search
from depthrate.storage.catalog.code import find_code
from depthrate.storage.files.data_folder import DataFolder, open_data_folder
from depthrate.storage.files.paths import code_index_path
from depthrate.storage.files.store import Store, existing_store, open_store
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import changed_sweep, parse_yaml
from depthrate.sweeps.packing import Pack, one_of_each_shape
from depthrate.sweeps.spec import SweepSpec
from depthrate.tasks.interface import Engine

SIDE_S = 1.5
"""CPU seconds of steps per shape with the engine, and as many with the plain loop."""
MAX_START_S = 18.0
"""Seconds after which no further shape is started, so that all of them take half a minute with kernels that build for 5 s."""


def load_launch(options: LaunchOptions, loaded: SweepSpec | None = None) -> CheckedSweep:
    """Load the sweep, unless it is `loaded`, and check it without the store's results and without data.

    Raises:
        ValueError: `SweepError`, `TaskError` or `ParameterError`: the sweep cannot run.
    """
    overrides = overrides_of(_overrides(options))
    sweep = (
        sweep_to_launch(options.sweep, overrides, options.store) if loaded is None else changed_sweep(loaded, overrides)
    )
    files = None
    if options.code_version is not None:
        store = existing_store(options.store)
        code_hash, files = find_code(store, options.code_version)
        check_stored_code(options.code_version, code_hash, code_index_path(code_hash), store)
    return check_sweep(sweep, files)


def check_launch(options: LaunchOptions, data: DataFolder, loaded: SweepSpec | None = None) -> CheckedSweep:
    """Load the sweep, unless it is `loaded`, and check it with its data, but without the store's results.

    Raises:
        ValueError: `SweepError`, `TaskError`, `ParameterError` or `DatasetError`: the sweep cannot run.
    """
    checked = load_launch(options, loaded)
    check_data(checked, data)
    check_fit_points(checked)
    check_search(checked, data)
    return checked


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep with its plan on a compute target."""

    store: Store
    target: Executor
    plan: Plan
    view: SearchView | None
    estimates: Estimates


def plan_sweep(options: LaunchOptions, loaded: SweepSpec | None = None) -> PlannedSweep:
    """Plan a sweep without starting anything. The options name the sweep unless it is `loaded`.

    Raises:
        ValueError: The sweep cannot run, or its data is corrupt.
    """
    data = open_data_folder()
    checked = check_launch(options, data, loaded)
    store = open_store(options.store)
    store.check_location()
    checked, view = with_search(checked, store)
    target = open_executor(ExecutorRequest(sweep=checked.sweep, store=store, options=options))
    plan = plan_on(target, checked, store)
    check_contents(plan, data)
    return PlannedSweep(store, target, plan, view, estimates_on(target, plan, store))


def resume_command(options: LaunchOptions) -> str:
    """Return the command that resumes a launch."""
    words = ["--executor", options.executor] if options.executor != LaunchOptions.executor else []
    for option in executor_options():
        if (value := options.executor_options.get(option.name, option.default)) != option.default:
            words += [option.flag, str(value)]
    words += [part for text in _overrides(options) for part in ("--set", text)]
    words += [] if options.code_version is None else ["--code-version", options.code_version]
    return next_call("run", options.sweep, options.store, *words)


def _overrides(options: LaunchOptions) -> list[str]:
    return [*options.set_, *([] if options.engine is None else [f"engine={options.engine}"])]


def overrides_of(texts: Sequence[str]) -> dict[str, object]:
    """Parse --set options.

    Raises:
        SweepError: An option is not of the form KEY=VALUE.
    """
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise SweepError(f"--set is {text!r}, expected KEY=VALUE, as in --set depth=[2,3] or --set width=32")
        overrides[key.strip()] = parse_yaml(value)
    return overrides


def plan_on(target: Executor, checked: CheckedSweep, store: Store) -> Plan:
    """Plan the pending trials of a sweep as packs for this executor."""
    return make_plan(
        checked,
        store,
        device=target.device,
        workers=target.workers,
        submitted=target.submitted(),
        memory_bytes=target.memory_bytes,
    )


def estimates_on(target: Executor, plan: Plan, store: Store) -> Estimates:
    """Return estimates of the seconds per pack on this executor."""
    return make_estimates(plan, store, target.device, usable_engine(target, plan.checked.sweep.engine)[0])


def measure_shapes(planned: PlannedSweep) -> tuple[list[tuple[Pack, Engine, float, float]], int]:
    """Measure one pack of each shape, or of the fastest, the middle and the slowest shape. Nothing is written to the store.

    Returns:
        The measured packs, each with the result of `Task.measure_speed`, and the number of shapes.
    Raises:
        ValueError: They do not run on a CPU of this machine, or cannot be measured.
    """
    task, packs, target, estimates = planned.plan.checked.task, planned.plan.packs, planned.target, planned.estimates
    if target.device != "cpu" or not target.is_local:
        raise OptionError(
            f"--measure takes steps on a CPU core of this machine, but the sweep would run elsewhere ({target.summary()}). Add "
            "--executor local --device cpu, or run one pack there: depthrate run SWEEP --pilot"
        )
    shapes = sorted(one_of_each_shape(packs, task), key=lambda pack: -(estimates.steps_per_s(pack) or 0.0))
    started, data = time.monotonic(), open_data_folder()
    measured: list[tuple[Pack, Engine, float, float]] = []
    for pack in (shapes[index] for index in sorted({0, len(shapes) // 2, len(shapes) - 1})):
        if not measured or time.monotonic() < started + MAX_START_S:
            params, engine = [trial.params for trial in pack.trials], estimates.requested_engine
            measured.append((pack, *task.measure_speed(params, engine, data, SIDE_S)))
    return measured, len(shapes)
