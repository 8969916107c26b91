"""From the options of a launch to its plan: what `depthrate run`, `depthrate plan` and a notebook do first."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from depthrate.orchestrator.api.find_sweep import sweep_to_launch
from depthrate.orchestrator.code.permission import check_kept_code
from depthrate.orchestrator.console.errors import next_call
from depthrate.orchestrator.console.tables import counted, print_line
from depthrate.orchestrator.executors.base import ComputeTarget, ExecutorRequest
from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.executors.registry import executor_options, open_machines
from depthrate.orchestrator.launch.estimates import Estimates, make_estimates
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, Plan, check_data, check_sweep, make_plan
from depthrate.orchestrator.search.checks import check_search
from depthrate.storage.catalog.code import find_code
from depthrate.storage.files.data_folder import DataFolder
from depthrate.storage.files.paths import code_index_path
from depthrate.storage.files.store import Store, existing_store
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import changed_sweep, parse_yaml
from depthrate.sweeps.packing import Pack, gigabytes, predicted_bytes
from depthrate.sweeps.spec import SweepSpec

READING_PHASES = (
    "reading the sweep, its code and its data: data of your own that are not streamed are read whole, so that what has other "
    "content is another trial"
)
"""Said where that takes a while."""
PILOT = "depthrate run SWEEP --pilot"
SLOW_NOTICE_AFTER_S = 5.0
"""How long a command may be silent."""


def load_launch(options: LaunchOptions, loaded: SweepSpec | None = None) -> CheckedSweep:
    """Load the sweep, where it is not `loaded`, and check all that needs neither store nor data.

    Raises:
        ValueError: `SweepError`, `TaskError` or `ParameterError` for what cannot run.
    """
    overrides = overrides_of(_overrides(options))
    sweep = (
        sweep_to_launch(options.sweep, overrides, options.store) if loaded is None else changed_sweep(loaded, overrides)
    )
    files = None if options.code_version is None else _kept_code(options.code_version, existing_store(options.store))
    return check_sweep(sweep, files)


def check_launch(options: LaunchOptions, data: DataFolder, loaded: SweepSpec | None = None) -> CheckedSweep:
    """Load the sweep, where it is not `loaded`, and check all that needs no store.

    Raises:
        ValueError: `SweepError`, `TaskError`, `ParameterError` or `DatasetError` for what cannot run.
    """
    with _announce_if_slow(READING_PHASES):
        checked = load_launch(options, loaded)
        check_data(checked, data)
        check_search(checked, data)
    return checked


@contextmanager
def _announce_if_slow(sentence: str) -> Iterator[None]:
    """Say what is being done if it is not over by then, where a terminal waits: a script's stderr is for what is wrong."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(SLOW_NOTICE_AFTER_S, print_line, (sentence,), {"stderr": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _kept_code(given: str, store: Store) -> Mapping[str, bytes]:
    code_hash, files = find_code(store, given)
    check_kept_code(given, code_hash, code_index_path(code_hash), store)
    return files


def machines_of(options: LaunchOptions, sweep: SweepSpec, store: Store) -> ComputeTarget:
    """Return the machines where a sweep's packs run.

    Raises:
        ValueError: see `orchestrator.executors.registry.open_machines`.
    """
    return open_machines(ExecutorRequest(sweep=sweep, store=store, options=options))


def resume_command(options: LaunchOptions) -> str:
    """Return the command line that goes on from here."""
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
    """Return what --set was given, by parameter.

    Raises:
        SweepError: it is no KEY=VALUE.
    """
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise SweepError(f"--set {text!r}: give KEY=VALUE, as in --set depth=[2,3] or --set width=32")
        overrides[key.strip()] = parse_yaml(value)
    return overrides


def plan_on(machines: ComputeTarget, checked: CheckedSweep, store: Store) -> Plan:
    """Compare the sweep with the store, its packs cut for these machines."""
    return make_plan(
        checked,
        store,
        device=machines.device,
        workers=machines.workers,
        submitted=machines.submitted,
        memory_bytes=machines.memory_bytes,
    )


def estimates_on(machines: ComputeTarget, plan: Plan, store: Store) -> Estimates:
    """Return what gives a pack's rough seconds on these machines."""
    return make_estimates(plan, store, machines.device, machines.engine(plan.checked.sweep.engine)[0])


def plan_sentence(plan: Plan) -> str:
    """Say how much of a sweep is done and what is to do."""
    checked = plan.checked
    text = f"{checked.sweep.name}: {counted(len(checked.trials), 'trial')}, {len(plan.done)} done"
    text += f", {plan.num_pending} to run in {counted(len(plan.packs), 'pack')}" if plan.packs else ""
    return text + (f", {plan.num_resumed} of which from a checkpoint" if plan.num_resumed else "")


def peak_gb(pack: Pack, plan: Plan, machines: ComputeTarget) -> float | None:
    """Return the predicted peak memory of a pack in GB, or None where the task predicts none."""
    peak_bytes = predicted_bytes(pack, plan.checked.task, machines.device)
    return None if peak_bytes is None else peak_bytes / 1e9


def cost_lines(plan: Plan, machines: ComputeTarget, estimates: Estimates, details: Mapping[str, Any]) -> list[str]:
    """Return the expected cost of a plan, one line each: hours, memory of a worker, details of the executor."""
    lines = []
    hours = estimates.hours(plan.packs, machines.workers)
    if hours is not None:
        wall = hours / min(machines.workers, len(plan.packs))
        text = f"about {hours:.2g} {estimates.unit}-hours, {wall:.2g} h with {machines.workers} workers on {machines.device}"
        reckoned = f"reckoned for how they train, not measured: {PILOT} makes it sure"
        lines.append(f"{text}; {estimates.remark or reckoned}")
    else:
        lines.append(f"hours: unknown: run one pack first ({PILOT})")
    if machines.memory_bytes is not None and any(peak_gb(pack, plan, machines) is not None for pack in plan.packs):
        lines.append(f"a worker may use {gigabytes(machines.memory_bytes)} of memory")
    if details:
        lines.append(machines.summary())
    for name, value in details.items():
        text = f"{value:.2g}" if isinstance(value, float) else str(value)
        if value is not None:
            lines.append(f"{name.replace('_', ' ')}:" + (f"\n{text}" if "\n" in text else f" {text}"))
    return lines
