"""`depthrate debug`: run one trial here, commit nothing, print its last metrics."""

from __future__ import annotations

import pdb
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from depthrate.orchestrator.analysis.columns import columns_of
from depthrate.orchestrator.api.find_sweep import launched_sweep
from depthrate.orchestrator.cli.options import declared, store_option, trial_argument
from depthrate.orchestrator.console.tables import make_console, print_table
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.orchestrator.monitor.status import find_params
from depthrate.storage.catalog.specs import newest_specs
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.data_folder import DataFolder, open_data_folder
from depthrate.storage.files.store import StoreError, existing_store, open_store
from depthrate.storage.tables.from_task import task_table
from depthrate.storage.tables.schema import TRIALS
from depthrate.sweeps.load import load_sweep
from depthrate.tasks.interface import Engine
from depthrate.tasks.manual_training import ManualTraining


@dataclass
class _DebugContext(ManualTraining):
    """A task context that stores nothing and never stops (`tasks.interface.TaskContext`)."""

    device: str
    data: DataFolder
    trial_ids: Sequence[str]

    @property
    def engine(self) -> Engine:
        return Engine.EAGER

    @property
    def libraries(self) -> None:
        return None

    def _ignore(self, *_: Any, **__: Any) -> None:
        return None

    report_engine = progress = show_curves = save_checkpoint = load_checkpoint = _ignore

    def _never(self) -> bool:
        return False

    should_stop = checkpoint_due = _never

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        return set()

    def for_trial(self, index: int) -> _DebugContext:
        return self


@declared(__doc__)
@trial_argument("trial")
@click.option("--sweep", help="Sweep of the trial. Default: any in the store.")
@store_option
@click.option("--device", default="cpu", help="cpu or cuda.")
@click.option("--pdb", "post_mortem", is_flag=True, help="Open the debugger at an exception.")
def command(trial: str, sweep: str | None, store: str | None, device: str, post_mortem: bool) -> None:
    opened = existing_store(store) if sweep is None else open_store(store)
    console, data = make_console(), open_data_folder()
    sweeps = [load_sweep(sweep)] if sweep else [launched_sweep(spec, opened) for spec in newest_specs(opened).values()]
    checked = [check_sweep(loaded) for loaded in sweeps]
    sweep_of_task = {entry.task.name: entry.sweep for entry in checked}
    snapshot = take_snapshot(opened, cache=SnapshotCache(columns=TRIALS.names))
    matches = find_params([planned for entry in checked for planned in entry.trials], snapshot, trial)
    if len(matches) != 1 or matches[0][1] not in sweep_of_task:
        raise StoreError(
            f"{len(matches)} trials of {opened.url} start with {trial!r}"
            + (": " + ", ".join(trial_id for trial_id, _, _ in matches[:5]) if matches else "")
            + '. Name the sweep with --sweep, or list the trials: depthrate query "select trial_id from trials"'
        )
    trial_id, task_name, params = matches[0]
    task = sweep_of_task[task_name].load_task()  # reloaded: run-time imports need the files next to it
    params = task.schema.completed(params)
    console.print(f"trial {trial_id} of {task_name}: {params}")
    try:
        results = list(task.run([params], _DebugContext(device, data, [trial_id])))
    except Exception:
        if post_mortem:
            pdb.post_mortem()
        raise
    metrics, declared = results[0].tables["metrics"], columns_of(task)
    rows = task_table("metrics", metrics, declared, trial_id=trial_id, attempt_id="debug").to_pylist()
    last = [row for row in rows if row.get("step") == rows[-1].get("step")]
    columns = [name for name in last[-1] if any(isinstance(row[name], int | float) for row in last)] if last else []
    print_table(console, columns, [[row.get(name) for name in columns] for row in last])
