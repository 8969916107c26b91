"""Make the plan of a launch from its options, for `depthrate run`, `depthrate plan` and notebooks."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from depthrate.orchestrator.api.find_sweep import sweep_to_launch
from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.code.permission import check_stored_code
from depthrate.orchestrator.console.errors import next_call
from depthrate.orchestrator.console.tables import counted, print_line
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
from depthrate.storage.files.delayed_call import call_after
from depthrate.storage.files.paths import code_index_path
from depthrate.storage.files.store import Store, existing_store, open_store
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import changed_sweep, parse_yaml
from depthrate.sweeps.packing import Pack, gigabytes, predicted_bytes
from depthrate.sweeps.spec import SweepSpec

READING_NOTICE = "reading the sweep, its code and its data (custom data is hashed, unless it is streamed)"
"""Notice printed if reading takes long."""
PILOT = "depthrate run SWEEP --pilot"
MAX_VALUES_SHOWN = 6
"""Maximum number of values of a parameter printed per pack."""
SLOW_NOTICE_AFTER_S = 5.0
"""Seconds until the notice is printed."""


def load_launch(options: LaunchOptions, loaded: SweepSpec | None = None) -> CheckedSweep:
    """Load the sweep, unless it is `loaded`, and check it without the store's results and without data.

    Raises:
        ValueError: `SweepError`, `TaskError` or `ParameterError`: the sweep cannot run.
    """
    overrides = overrides_of(_overrides(options))
    sweep = (
        sweep_to_launch(options.sweep, overrides, options.store) if loaded is None else changed_sweep(loaded, overrides)
    )
    files = None if options.code_version is None else _stored_code(options.code_version, existing_store(options.store))
    return check_sweep(sweep, files)


def check_launch(options: LaunchOptions, data: DataFolder, loaded: SweepSpec | None = None) -> CheckedSweep:
    """Load the sweep, unless it is `loaded`, and check it with its data, but without the store's results.

    Raises:
        ValueError: `SweepError`, `TaskError`, `ParameterError` or `DatasetError`: the sweep cannot run.
    """
    after_s = SLOW_NOTICE_AFTER_S if sys.stderr.isatty() else None  # stderr of a script is for errors
    with call_after(after_s, partial(print_line, READING_NOTICE, stderr=True)):
        checked = load_launch(options, loaded)
        check_data(checked, data)
        check_fit_points(checked)
        check_search(checked, data)
    return checked


def _stored_code(prefix: str, store: Store) -> Mapping[str, bytes]:
    code_hash, files = find_code(store, prefix)
    check_stored_code(prefix, code_hash, code_index_path(code_hash), store)
    return files


def open_compute_target(options: LaunchOptions, sweep: SweepSpec, store: Store) -> Executor:
    """Open the executor that runs the packs of a sweep.

    Raises:
        ValueError: See `orchestrator.executors.registry.open_machines`.
    """
    return open_executor(ExecutorRequest(sweep=sweep, store=store, options=options))


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
    target = open_compute_target(options, checked.sweep, store)
    plan = plan_on(target, checked, store)
    check_contents(plan, data)
    return PlannedSweep(store, target, plan, view, estimates_on(target, plan, store))


def pack_values(pack: Pack, names: Sequence[str]) -> list[str]:
    """Return the first values of some parameters in a pack, as one string per parameter."""
    texts = []
    for name in names:  # distinct by text, since lists are not hashable
        values = list(dict.fromkeys(str(trial.params[name]) for trial in pack.trials))
        texts.append(", ".join(values[:MAX_VALUES_SHOWN]) + (", ..." if len(values) > MAX_VALUES_SHOWN else ""))
    return texts


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


def plan_summary(plan: Plan) -> str:
    """Return a sentence about the committed and pending trials of a plan."""
    checked = plan.checked
    text = f"{checked.sweep.name}: {counted(len(checked.trials), 'trial')}, {len(plan.done)} done"
    text += f", {plan.num_pending} to run in {counted(len(plan.packs), 'pack')}" if plan.packs else ""
    return text + (f", {plan.num_resumed} of them from a checkpoint" if plan.num_resumed else "")


def peak_gb(pack: Pack, plan: Plan, target: Executor) -> float | None:
    """Return the predicted peak memory of a pack in GB, or None if the task does not predict it."""
    peak_bytes = predicted_bytes(pack, plan.checked.task, target.device)
    return None if peak_bytes is None else peak_bytes / 1e9


def cost_lines(plan: Plan, target: Executor, estimates: Estimates, details: Mapping[str, Any]) -> list[str]:
    """Return the expected cost of a plan, one line per item: hours, memory per worker, details of the executor."""
    lines = []
    hours = estimates.hours(plan.packs, target.workers)
    if hours is not None:
        wall = hours / min(target.workers, len(plan.packs))
        text = (
            f"about {hours:.2g} {estimates.unit}-hours, {wall:.2g} h with "
            f"{counted(target.workers, 'worker')} on {target.device}"
        )
        lines.append(
            f"{text}, {estimates.remark}"
            if estimates.remark
            else f"{text}. Calculated, not measured. To measure: {PILOT}"
        )
    else:
        lines.append(f"hours: unknown. To measure them on one pack: {PILOT}")
    if target.memory_bytes is not None and any(peak_gb(pack, plan, target) is not None for pack in plan.packs):
        lines.append(f"a worker may use {gigabytes(target.memory_bytes)} of memory")
    if details:
        lines.append(target.summary())
    for name, value in details.items():
        text = f"{value:.2g}" if isinstance(value, float) else str(value)
        if value is not None:
            lines.append(f"{name.replace('_', ' ')}:" + (f"\n{text}" if "\n" in text else f" {text}"))
    return lines
