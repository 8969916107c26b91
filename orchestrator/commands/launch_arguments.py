"""What `depthrate run` and `depthrate plan` were given, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from depthrate.orchestrator.executors.place import Place, open_place
from depthrate.orchestrator.plan import CheckedSweep, Plan, check_data, check_sweep, make_plan
from depthrate.orchestrator.search.proposals import check_search
from depthrate.orchestrator.usage import next_call
from depthrate.storage.data_folder import DataFolder
from depthrate.storage.store import Store
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.sweep import Sweep
from depthrate.sweeps.sweep_file import load_sweep, parse_yaml


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What `depthrate run` and `depthrate plan` were given."""

    sweep: str
    store: str | None
    overrides: Sequence[str]
    """What --set gave: KEY=VALUE."""
    executor: str
    cluster: str | None
    address: str | None
    packs_per_gpu: int
    workers: int | None
    device: str

    def check(self, data: DataFolder) -> CheckedSweep:
        """Load the sweep and check all that needs no store.

        Raises:
            ValueError: `SweepError`, `TaskError`, `ParameterError` or `DatasetError` for what cannot run.
        """
        checked = check_sweep(load_sweep(self.sweep, _overrides(self.overrides)))
        check_data(checked, data)
        check_search(checked, data)
        return checked

    def open_place(self, sweep: Sweep, store: Store) -> Place:
        """Return the place where its packs run.

        Raises:
            ValueError: see `orchestrator.executors.place.open_place`.
        """
        return open_place(
            self.executor,
            device=self.device,
            workers=self.workers,
            cluster=self.cluster,
            sweep=sweep,
            store=store,
            address=self.address,
            packs_per_gpu=self.packs_per_gpu,
        )

    @property
    def is_allocation(self) -> bool:
        """Whether the launch goes into a SLURM job of its own, with a Ray cluster in it."""
        return self.executor == "ray" and self.cluster is not None

    def words_inside(self, checkpoint_s: float) -> list[str]:
        """Return the options of the launch inside an allocation."""
        words = ["--device", self.device, "--packs-per-gpu", str(self.packs_per_gpu)]
        words += ["--checkpoint-seconds", str(checkpoint_s)]
        return words + (["--workers", str(self.workers)] if self.workers is not None else [])

    def again(self) -> str:
        """Return the command line that goes on from here."""
        words = ["--executor", self.executor] if self.executor != "local" else []
        words += ["--cluster", self.cluster] if self.cluster else []
        words += ["--address", self.address] if self.address else []
        words += [part for text in self.overrides for part in ("--set", text)]
        return next_call("run", self.sweep, self.store, *words)


def _overrides(texts: Sequence[str]) -> dict[str, object]:
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise SweepError(f"--set {text!r}: give KEY=VALUE, as in --set depth=[2,3] or --set width=32")
        overrides[key.strip()] = parse_yaml(value)
    return overrides


def plan_at(place: Place, checked: CheckedSweep, store: Store) -> Plan:
    """Compare the sweep with the store, its packs cut for this place."""
    return make_plan(
        checked,
        store,
        device=place.device,
        workers=place.workers,
        submitted=place.submitted,
        memory_bytes=place.memory_bytes,
    )


def plan_sentence(plan: Plan) -> str:
    """Say how much of a sweep is done and what is to do."""
    checked = plan.checked
    text = f"{checked.sweep.name}: {len(checked.trials)} trials, {len(plan.done)} done"
    return text + (f", {plan.num_pending} to run in {len(plan.packs)} packs" if plan.packs else "")
