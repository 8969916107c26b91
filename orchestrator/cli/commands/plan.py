"""`depthrate plan`: list pending and committed trials with estimated cost. Starts nothing."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from rich.console import Console

from depthrate.orchestrator.api.planning import (
    PlannedSweep,
    estimates_on,
    load_launch,
    plan_on,
    plan_sweep,
    resume_command,
)
from depthrate.orchestrator.attempts.options import LaunchOptions
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
from depthrate.orchestrator.executors.base import Executor, ExecutorRequest, usable_engine
from depthrate.orchestrator.executors.registry import open_executor
from depthrate.orchestrator.launch.code_changes import find_launch_mismatch, mismatch_message
from depthrate.orchestrator.launch.estimates import Estimates
from depthrate.orchestrator.launch.launch_plan import Plan, check_data, thin_fit_remarks
from depthrate.orchestrator.search.search_view import with_search
from depthrate.storage.files.data_folder import DataFolder, open_data_folder
from depthrate.storage.files.store import Store, open_store
from depthrate.sweeps.load import sweeps_in_folder
from depthrate.sweeps.packing import Pack, why_alone
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
                "engine": _engine(p, plan, target),
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


def _engine(pack: Pack, plan: Plan, target: Executor) -> Engine | None:
    """Return the engine that would train a pack, or None if the task has only one engine."""
    requested, _ = usable_engine(target, plan.checked.sweep.engine)
    return plan.checked.task.engine(pack.trials[0].params, requested, target.device)


def _print_engines(console: Console, plan: Plan, target: Executor) -> None:
    """Print the number of packs per engine, unless the task has only one engine."""
    engines = Counter(_engine(pack, plan, target) for pack in plan.packs)
    for engine, text in _ENGINE_TEXT.items():
        if engines[engine]:
            count = "all" if engines[engine] == len(plan.packs) else f"{engines[engine]} of {len(plan.packs)}"
            reason = _eager_reason(plan, target) if engine is Engine.EAGER else None
            console.print(
                f"{count} packs train {text}{'' if reason is None else f', because {reason}'}", soft_wrap=True
            )


def _eager_reason(plan: Plan, target: Executor) -> str | None:
    """Return why packs train eagerly although no engine is requested: the first pack's reason."""
    requested, _ = usable_engine(target, plan.checked.sweep.engine)
    if requested is not Engine.AUTO:
        return None
    reasons = (plan.checked.task.eager_reason(pack.trials[0].params, target.device) for pack in plan.packs)
    return next((reason for reason in reasons if reason is not None), None)


def _print_packs(console: Console, plan: Plan, target: Executor, estimates: Estimates, *, wide: bool) -> None:
    varying = varying_parameters(plan.checked.trials)
    rows = []
    for pack in plan.packs[:MAX_PACKS_SHOWN]:
        seconds = estimates(pack)
        estimated_s = None if seconds is None else float(f"{seconds:.2g}")
        peak = peak_gb(pack, plan, target)
        rows.append(
            [
                pack.pack_id,
                len(pack.trials),
                estimated_s,
                None if peak is None else round(peak, 2),
                *pack_values(pack, varying),
            ]
        )
    print_rows(console, ["pack", "trials", f"est. {estimates.unit}-s", "peak GB", *varying], rows, wide=wide)
    if len(plan.packs) > MAX_PACKS_SHOWN:
        console.print(f"and {counted(len(plan.packs) - MAX_PACKS_SHOWN, 'more pack')}")


@declared(__doc__, SUGGESTIONS)
@launch_options(of_plan=True)
@json_option
@wide_option
def command(options: LaunchOptions, json: bool, wide: bool) -> None:
    if names := sweeps_in_folder(options.sweep):
        _show_folder(options, names, open_data_folder(), json, wide=wide)
        return
    with slow_notice():
        planned = plan_sweep(options)
    plan, target, estimates = planned.plan, planned.target, planned.estimates
    target.check(plan.packs, estimates)
    details = target.details(plan.packs, estimates.allocated_s)
    if json:
        print_json(_as_json(planned, details))
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
        _print_engines(console, plan, target)
        for line in cost_lines(plan, target, estimates, details):
            console.print(line, soft_wrap=True)
