"""`depthrate plan`: list pending and committed trials with engine, speed and cost. Starts nothing."""

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from depthrate.orchestrator.api.planning import (
    PlannedSweep,
    estimates_on,
    load_launch,
    measure_shapes,
    plan_on,
    plan_sweep,
    resume_command,
)
from depthrate.orchestrator.attempts.options import LaunchOptions, OptionError
from depthrate.orchestrator.cli.launch_options import SUGGESTIONS, launch_options
from depthrate.orchestrator.cli.launch_output import cost_lines, pack_values, peak_gb, plan_summary, slow_notice
from depthrate.orchestrator.cli.options import declared, json_option, wide_option
from depthrate.orchestrator.console.tables import (
    counted,
    make_console,
    print_json,
    print_line,
    print_rows,
    print_warnings,
)
from depthrate.orchestrator.executors.base import Executor, ExecutorRequest
from depthrate.orchestrator.executors.registry import open_executor
from depthrate.orchestrator.launch.code_changes import find_launch_mismatch, mismatch_message
from depthrate.orchestrator.launch.estimates import Estimates
from depthrate.orchestrator.launch.launch_plan import Plan, check_data, thin_fit_remarks
from depthrate.orchestrator.search.search_view import with_search
from depthrate.storage.files.data_folder import DataFolder, open_data_folder
from depthrate.storage.files.store import Store, open_store
from depthrate.sweeps.load import sweeps_in_folder
from depthrate.sweeps.packing import why_alone
from depthrate.sweeps.trial import varying_parameters
from depthrate.tasks.interface import Engine

MAX_PACKS_SHOWN = 40
"""Maximum number of packs printed. --json prints all."""
_ENGINE_TEXT = {
    Engine.NATIVE: "natively (kernels are built once per machine and width, in seconds)",
    Engine.EAGER: "eagerly",
}


def _show_folder(options: LaunchOptions, names: list[str], data: DataFolder, as_json: bool, *, wide: bool) -> None:
    """Print one row per sweep: pending work, its estimated cost, and whether something is missing."""
    store = open_store(options.store)
    store.check_location()
    rows = [_costs(replace(options, sweep=name), store, data) for name in names]
    if as_json:
        print_json(rows)
        return
    console = make_console()
    missing = Counter(re.split("[:;,.] ", row["lacks"])[0] for row in rows if row["lacks"])
    columns = [name for name in rows[0] if name != "lacks"]
    cells = [[row[name] for name in columns] + ["missing" if row["lacks"] else ""] for row in rows]
    print_rows(console, [*columns, ""], cells, wide=wide)
    for problem, count in missing.most_common():
        console.print(f"missing in {counted(count, 'sweep')}: {problem}")
    estimated = [hours for row in rows if (hours := row["hours"]) is not None]
    unknown = f", {len(rows) - len(estimated)} unknown" if len(estimated) < len(rows) else ""
    console.print(f"{counted(len(rows), 'sweep')}: {sum(estimated):.2g} hours on one worker{unknown}")
    console.print("details: depthrate plan SWEEP")


def _costs(options: LaunchOptions, store: Store, data: DataFolder) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("sweep", "trials", "done", "packs", "hours", "lacks"))
    row["sweep"] = options.sweep
    try:
        checked, _ = with_search(load_launch(options), store)
        row["trials"] = len(checked.trials)
        target = open_executor(ExecutorRequest(sweep=checked.sweep, store=store, options=options))
        plan = plan_on(target, checked, store)
        row["done"], row["packs"] = len(plan.done), len(plan.packs)
        hours = estimates_on(target, plan, store).hours(plan.packs, target.workers)
        row["hours"] = None if hours is None else float(f"{hours:.2g}")
        check_data(checked, data)
    except ValueError as error:
        row["lacks"] = str(error)
    return row


def _as_json(planned: PlannedSweep, details: dict[str, Any]) -> dict[str, Any]:
    plan, target, estimates = planned.plan, planned.target, planned.estimates
    return {
        "sweep": plan.checked.sweep.name,
        "num_trials": len(plan.checked.trials),
        "num_done": len(plan.done),
        "num_pending": plan.num_pending,
        "packs": [
            {
                "pack_id": p.pack_id,
                "trial_ids": p.trial_ids,
                "predicted_memory_gb": peak_gb(p, plan, target),
                "engine": estimates.engine(p),
                "estimated_steps_per_s": estimates.steps_per_s(p),
                "estimated_core_s": estimates(p),
            }
            for p in plan.packs
        ],
        "worker_memory_gb": None if target.memory_bytes is None else target.memory_bytes / 1e9,
        "workers": target.workers,
        "device": target.device,
        "estimated_core_hours": estimates.hours(plan.packs, target.workers),
        "estimate_rests_on_packs": len(estimates.measured),
        "data": _data(plan),
        "remarks": _remarks(plan),
        **details,
        **({} if planned.view is None else {"search": planned.view.to_json()}),
        "problems": [str(problem) for problem in plan.snapshot.problems],
    }


def _remarks(plan: Plan) -> list[str]:
    """Return remarks on the pending trials, and on fits with too few points to test their model."""
    pending = [trial.params for pack in plan.packs for trial in pack.trials]
    return [*(plan.checked.task.remarks(pending) if pending else ()), *thin_fit_remarks(plan.checked)]


def _data(plan: Plan) -> list[str]:
    """Return a line on each data set of the sweep."""
    return [*plan.checked.task.describe_data([trial.params for trial in plan.checked.trials.representatives()])]


def _print_engines(console: Console, plan: Plan, estimates: Estimates) -> None:
    """Print the packs and their rates per engine and reason for it, unless the task has only one engine."""
    rates_of: dict[str, list[float | None]] = defaultdict(list)
    is_auto = estimates.requested_engine is Engine.AUTO
    for pack in plan.packs:
        if (engine := estimates.engine(pack)) is not None:
            is_replaced = is_auto and engine is Engine.EAGER
            reason = plan.checked.task.eager_reason(pack.trials[0].params, estimates.device) if is_replaced else None
            text = _ENGINE_TEXT[engine] + ("" if reason is None else f", because {reason}")
            rates_of[text].append(estimates.steps_per_s(pack))
    for text, rates in rates_of.items():
        count = "all" if len(rates) == len(plan.packs) else f"{len(rates)} of {len(plan.packs)}"
        console.print(f"{count} packs train {text}{_rates(rates, estimates.unit)}", soft_wrap=True)


def _rates(rates: list[float | None], unit: str) -> str:
    """Return the range of estimated rates as the end of a sentence."""
    known = [rate for rate in map(_two_digits, rates) if rate is not None]
    ends = dict.fromkeys(f"{rate:,g}" for rate in (min(known), max(known))) if known else ()
    return f": about {' to '.join(ends)} trial-steps/s on one {unit}" if known else ""


def _measure(planned: PlannedSweep) -> tuple[dict[str, Any], Estimates]:
    """Measure the steps of the sweep's shapes. Return the result for --json, and the estimates based on it."""
    with slow_notice("measuring steps, for about half a minute"):
        measured, num_shapes = measure_shapes(planned)
    plan = planned.plan
    names = [name for name in varying_parameters(plan.checked.trials) if name not in plan.checked.task.schema.fusible]
    rows = [
        {"pack": pack.pack_id, "engine": engine.value, "steps_per_s": float(f"{rate:.3g}")}
        | {"plain_loop": float(f"{plain_rate:.3g}"), "ratio": float(f"{rate / plain_rate:.2g}")}
        | dict(zip(names, pack_values(pack, names), strict=True))
        for pack, engine, rate, plain_rate in measured
    ]
    estimates = planned.estimates.with_measured_steps([(pack, rate) for pack, _, rate, _ in measured])
    hours = estimates.hours(plan.packs, planned.target.workers)
    return {"measured": rows, "num_shapes": num_shapes, "measured_core_hours": hours}, estimates


def _print_measured(console: Console, planned: PlannedSweep, *, wide: bool) -> None:
    found, estimates = _measure(planned)
    rows = found["measured"]
    console.print("measured trial-steps per second of one core, and those of a plain PyTorch loop:")
    print_rows(console, [*rows[0]], [[*row.values()] for row in rows], wide=wide)
    if len(rows) < found["num_shapes"]:
        console.print(f"measured: {len(rows)} of {found['num_shapes']} shapes, fastest first")
    console.print(cost_lines(planned.plan, planned.target, estimates, {})[0], soft_wrap=True)


def _two_digits(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.2g}")


def _print_packs(console: Console, plan: Plan, target: Executor, estimates: Estimates, *, wide: bool) -> None:
    varying = varying_parameters(plan.checked.trials)
    rows = []
    for pack in plan.packs[:MAX_PACKS_SHOWN]:
        estimated, peak = map(_two_digits, (estimates(pack), estimates.steps_per_s(pack))), peak_gb(pack, plan, target)
        peaks = [None if peak is None else round(peak, 2)]
        rows.append([pack.pack_id, len(pack.trials), *estimated, *peaks, *pack_values(pack, varying)])
    print_rows(console, ["pack", "trials", f"est. {estimates.unit}-s", "steps/s", "peak GB", *varying], rows, wide=wide)
    if len(plan.packs) > MAX_PACKS_SHOWN:
        console.print(f"and {counted(len(plan.packs) - MAX_PACKS_SHOWN, 'more pack')}")


@declared(__doc__, SUGGESTIONS)
@launch_options(of_plan=True)
@click.option(
    "--measure", is_flag=True, help="Also measure steps on one core, next to a plain PyTorch loop, for half a minute."
)
@json_option
@wide_option
def command(options: LaunchOptions, measure: bool, json: bool, wide: bool) -> None:
    if names := sweeps_in_folder(options.sweep):
        if measure:
            raise OptionError(f"--measure takes one sweep, and {options.sweep} is a folder. Name one sweep.")
        _show_folder(options, names, open_data_folder(), json, wide=wide)
        return
    with slow_notice():
        planned = plan_sweep(options)
    plan, target, estimates = planned.plan, planned.target, planned.estimates
    target.check(plan.packs, estimates)
    details = target.details(plan.packs, estimates.allocated_s)
    if json:
        print_json({**_as_json(planned, details), **(_measure(planned)[0] if measure and plan.packs else {})})
        return
    print_warnings(plan.snapshot.problems)
    mismatch = find_launch_mismatch(plan, planned.store, target.submitted())
    if mismatch is not None and mismatch.versions:
        print_line(
            f"warning: {mismatch_message(mismatch, plan.checked, planned.store, resume_command(options), 'run would stop')}",
            stderr=True,
        )
    console = make_console()
    console.print(plan_summary(plan))
    if planned.view is not None:
        console.print(planned.view.summary())
    for remark in (*_data(plan), *_remarks(plan)):
        console.print(remark)
    if plan.packs:
        alone = why_alone(plan.packs, plan.checked.task, device=target.device, workers=target.workers)
        if alone is not None:
            console.print(alone)
        _print_packs(console, plan, target, estimates, wide=wide)
        _print_engines(console, plan, estimates)
        for line in cost_lines(plan, target, estimates, details):
            console.print(line, soft_wrap=True)
        if measure:
            _print_measured(console, planned, wide=wide)
    elif measure:
        console.print("nothing was measured, because no trial is pending")
