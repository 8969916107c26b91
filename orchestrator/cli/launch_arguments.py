"""What `depthrate run` and `depthrate plan` were given, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.cli.find_sweep import sweep_to_launch
from depthrate.orchestrator.console.errors import next_call
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import ExecutorRequest, Machines
from depthrate.orchestrator.executors.registry import DEFAULT_EXECUTOR, executor_options, open_machines
from depthrate.orchestrator.launch.plan import CheckedSweep, Plan, check_data, check_sweep, make_plan
from depthrate.orchestrator.launch.stored_code import check_kept_code
from depthrate.orchestrator.search.checks import check_search
from depthrate.storage.catalog.code import find_code
from depthrate.storage.files.data_folder import DataFolder
from depthrate.storage.files.paths import code_index_path
from depthrate.storage.files.store import Store, existing_store
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import parse_yaml
from depthrate.sweeps.spec import SweepSpec


@dataclass(frozen=True, kw_only=True)
class LaunchArguments:
    """What `depthrate run` and `depthrate plan` were given."""

    sweep: str
    store: str | None
    overrides: Sequence[str]
    """What --set gave: KEY=VALUE."""
    executor: str
    workers: int | None
    device: str
    options: Mapping[str, Any]
    """Of all executors' options (`executors.builtin.executor_options`), the value or the default."""
    code: str | None = None
    """A version of the task's code that the store keeps, to be used in place of its file: its hash or the hash's beginning."""
    loaded: SweepSpec | None = None
    """The sweep itself, where it is no file's."""

    def check(self, data: DataFolder) -> CheckedSweep:
        """Load the sweep and check all that needs no store.

        Raises:
            ValueError: `SweepError`, `TaskError`, `ParameterError` or `DatasetError` for what cannot run.
        """
        sweep = self.loaded or sweep_to_launch(self.sweep, _overrides(self.overrides), self.store)
        checked = check_sweep(sweep, None if self.code is None else self._kept_code(self.code))
        check_data(checked, data)
        check_search(checked, data)
        return checked

    def _kept_code(self, given: str) -> Mapping[str, bytes]:
        store = existing_store(self.store)
        code_hash, files = find_code(store, given)
        check_kept_code(given, code_hash, code_index_path(code_hash), store)
        return files

    def open_machines(self, sweep: SweepSpec, store: Store, *, detach: bool = False) -> Machines:
        """Return the machines where its packs run.

        Raises:
            ValueError: see `orchestrator.executors.registry.open_machines`.
        """
        request = ExecutorRequest(
            sweep=sweep, store=store, device=self.device, workers=self.workers, options=self.options
        )
        return open_machines(self.executor, request, detach=detach)

    def again(self) -> str:
        """Return the command line that goes on from here."""
        words = ["--executor", self.executor] if self.executor != DEFAULT_EXECUTOR else []
        for option in executor_options():
            if (value := self.options.get(option.name, option.default)) != option.default:
                words += [option.flag, str(value)]
        words += [part for text in self.overrides for part in ("--set", text)]
        words += [] if self.code is None else ["--code", self.code]
        return next_call("run", self.sweep, self.store, *words)


def _overrides(texts: Sequence[str]) -> dict[str, object]:
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise SweepError(f"--set {text!r}: give KEY=VALUE, as in --set depth=[2,3] or --set width=32")
        overrides[key.strip()] = parse_yaml(value)
    return overrides


def plan_on(machines: Machines, checked: CheckedSweep, store: Store) -> Plan:
    """Compare the sweep with the store, its packs cut for these machines."""
    return make_plan(
        checked,
        store,
        device=machines.device,
        workers=machines.workers,
        submitted=machines.submitted,
        memory_bytes=machines.memory_bytes,
    )


def plan_sentence(plan: Plan) -> str:
    """Say how much of a sweep is done and what is to do."""
    checked = plan.checked
    text = f"{checked.sweep.name}: {counted(len(checked.trials), 'trial')}, {len(plan.done)} done"
    return text + (f", {plan.num_pending} to run in {counted(len(plan.packs), 'pack')}" if plan.packs else "")
