"""Where packs run: what `--executor` and its options stand for, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from depthrate.orchestrator.executors.executor import Executor
from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.orchestrator.executors.machine import USABLE_SHARE, Machine, MachineError, choose_machine
from depthrate.sweeps.packing import Pack
from depthrate.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from depthrate.orchestrator.executors.ray_executor import Session
    from depthrate.orchestrator.executors.slurm_executor import SlurmExecutor
    from depthrate.orchestrator.plan import Plan
    from depthrate.slurm.limits import Limits
    from depthrate.slurm.profile import Profile
    from depthrate.storage.store import Store

EXECUTORS = ("local", "ray", "slurm")
Estimate = Callable[[Pack], float | None]


class PlaceError(ValueError):
    """The executor that was asked for is unknown, or its options do not fit it."""


class Place(Protocol):
    """Machines that run packs."""

    @property
    def device(self) -> str:
        """What packs compute on: cpu or cuda."""
        ...

    @property
    def workers(self) -> int:
        """Packs that may run at once."""
        ...

    @property
    def memory_bytes(self) -> float | None:
        """Memory that one pack may use, if that is known."""
        ...

    @property
    def submitted(self) -> Mapping[str, tuple[str, list[str]]]:
        """Attempt -> (pack, trials) of what earlier launches submitted and is still on its way."""
        ...

    def executor(self, plan: Plan) -> Executor:
        """Return what runs the plan's packs."""
        ...

    def check(self, plan: Plan, estimate_s: Estimate) -> None:
        """Refuse a plan that this place would not run; nothing is started.

        Raises:
            ValueError: naming the limit.
        """
        ...

    def sentence(self) -> str:
        """Say where packs run."""
        ...

    def details(self, plan: Plan, estimate_s: Estimate) -> dict[str, Any]:
        """Return what `depthrate plan` adds about this place: name -> text or number."""
        ...


@dataclass
class LocalPlace:
    """This machine."""

    machine: Machine
    submitted: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """What workers compute on."""
        return self.machine.device

    @property
    def workers(self) -> int:
        """Worker processes."""
        return self.machine.workers

    @property
    def memory_bytes(self) -> float | None:
        """Memory of one worker."""
        return self.machine.memory_bytes

    def executor(self, plan: Plan) -> Executor:
        """Return worker processes, no more than there are packs; a search will have more of them."""
        most = self.machine.workers if plan.checked.sweep.search else len(plan.packs)
        return LocalExecutor(min(self.machine.workers, most), self.machine.gpus)

    def check(self, plan: Plan, estimate_s: Estimate) -> None:
        """Accept everything: this machine has no limits that we know."""

    def sentence(self) -> str:
        """Say how many workers there are."""
        return f"{self.workers} worker processes on {self.device}"

    def details(self, plan: Plan, estimate_s: Estimate) -> dict[str, Any]:
        """Return nothing more."""
        return {}


class RayPlace:
    """A Ray of our own on this machine, or a cluster's."""

    submitted: Mapping[str, tuple[str, list[str]]] = {}

    def __init__(self, address: str | None, device: str, workers: int | None, packs_per_gpu: int):
        """Look at what is there; nothing is started on this machine yet.

        Raises:
            ValueError: `RayError` or `MachineError` for what cannot be reached or does not fit.
        """
        self._address = address
        self._session: Session | None = None
        self.differences: list[str] = []
        self.memory_bytes: float | None = None
        if address is None:
            machine = choose_machine(device, workers)
            self.device, self._gpus = machine.device, len(machine.gpus)
            cpus = machine.workers
            if machine.memory_bytes is not None:
                self.memory_bytes = machine.memory_bytes / (packs_per_gpu if machine.gpus else 1)
        else:
            from depthrate.orchestrator.executors.ray_executor import Session, check_versions

            self._session = Session(address=address)
            self.differences = check_versions()
            resources = self._session.resources()
            self._gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
            memory_bytes = self._session.memory_per_cpu()
            if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not self._gpus):
                raise MachineError(
                    f"device {device!r}: the Ray cluster has {self._gpus} GPUs; allowed: auto, cpu, cuda"
                )
            self.device = "cuda" if self._gpus and device != "cpu" else "cpu"
            if self.device == "cpu" and memory_bytes is not None:
                self.memory_bytes = USABLE_SHARE * memory_bytes
        self._gpu_share = 1 / packs_per_gpu if self.device == "cuda" else 0.0
        at_once = self._gpus * packs_per_gpu if self.device == "cuda" else cpus
        self.workers = max(1, min(at_once, workers or at_once))

    def executor(self, plan: Plan) -> Executor:
        """Return a Tune run, started with its Ray if that is ours."""
        from depthrate.orchestrator.executors.ray_executor import RayExecutor, Session

        if self._session is None:
            self._session = Session(address=None, workers=self.workers, gpus=self._gpus)
        return RayExecutor(self._session, workers=self.workers, gpu_share=self._gpu_share)

    def check(self, plan: Plan, estimate_s: Estimate) -> None:
        """Accept everything: what does not fit now waits."""

    def sentence(self) -> str:
        """Say which Ray, and in what its nodes differ from this machine."""
        where = "Ray on this machine" if self._address is None else f"Ray cluster at {self._address}"
        return "; ".join([f"{where}, {self.workers} packs at once on {self.device}", *self.differences[:5]])

    def details(self, plan: Plan, estimate_s: Estimate) -> dict[str, Any]:
        """Return in what the nodes differ from this machine."""
        return {"version_differences": "\n".join(self.differences)} if self.differences else {}


class SlurmPlace:
    """A SLURM cluster, and the jobs of earlier launches that it still has."""

    def __init__(self, profile: Profile, limits: Limits, device: str, sweep: Sweep, store: Store):
        from depthrate.orchestrator.executors.slurm_executor import GUESSED_PARALLEL, SlurmExecutor

        self.profile, self.limits, self.device = profile, limits, device
        self.workers = (profile.array_parallelism or GUESSED_PARALLEL) * profile.slots
        worker_gb = profile.worker_mem_gb(device)
        self.memory_bytes = None if worker_gb is None else USABLE_SHARE * worker_gb * 2**30
        self._files, self._sweep = store, sweep.name
        self._executor: SlurmExecutor = SlurmExecutor(profile, limits, store, sweep.name)
        from depthrate.orchestrator.executors.submissions import jobs_of_sweep

        submissions, states = jobs_of_sweep(store, sweep.name, limits.cluster)
        self.submitted = self._executor.adopt(submissions, states)

    def executor(self, plan: Plan) -> Executor:
        """Return what submits jobs and watches them."""
        return self._executor

    def check(self, plan: Plan, estimate_s: Estimate) -> None:
        """Refuse what exceeds a limit of the cluster.

        Raises:
            SlurmError: naming the limit.
        """
        self.limits.check(self.profile, len(self._bundles(plan, estimate_s)))

    def sentence(self) -> str:
        """Say which cluster and what each job asks for."""
        profile, partition = self.profile, self.limits.partition_of(self.profile)
        asked = f"{profile.gpus} GPUs, " if profile.gpus else ""
        asked += f"{profile.cpus} CPUs, {profile.mem_gb:g} GB, {profile.walltime_min} min"
        text = f"SLURM cluster {self.limits.cluster}, partition {partition.name}; each job: {asked}; packs on {self.device}"
        return text + (f"; {len(self.submitted)} packs are already there" if self.submitted else "")

    def details(self, plan: Plan, estimate_s: Estimate) -> dict[str, Any]:
        """Return the jobs, the cost in job-hours, and the batch script."""
        from depthrate.orchestrator.executors.slurm_executor import jobs_folder
        from depthrate.slurm.submit import batch_script

        bundles = self._bundles(plan, estimate_s)
        seconds = [estimate_s(pack) for pack in plan.packs]
        hours = None if None in seconds else sum(s for s in seconds if s) / 3600 / self.profile.slots
        per_array = min(len(bundles), self.limits.array_size)
        folder = jobs_folder(self.profile, self._files, self._sweep)
        return {
            "jobs": len(bundles),
            "arrays": -(-len(bundles) // self.limits.array_size),
            "already_submitted": len(self.submitted),
            "estimated_job_hours": hours,
            "gpu_hours": None if hours is None else hours * self.profile.gpus,
            "batch_script": batch_script(self.profile, f"depthrate-{self._sweep}", per_array, folder)
            if bundles
            else "",
        }

    def _bundles(self, plan: Plan, estimate_s: Estimate) -> list[list[Pack]]:
        from depthrate.orchestrator.executors.slurm_executor import bundle

        return bundle(plan.packs, [estimate_s(pack) for pack in plan.packs], self.profile)


def open_place(
    executor: str,
    *,
    device: str,
    workers: int | None,
    cluster: str | None,
    sweep: Sweep,
    store: Store,
    address: str | None = None,
    packs_per_gpu: int = 1,
) -> Place:
    """Return the place that `--executor` and its options mean.

    Raises:
        ValueError: `PlaceError`, `MachineError` or `SlurmError` for what is unknown, not there, or does not fit.
    """
    if executor not in EXECUTORS:
        raise PlaceError(f"executor {executor!r} is not available in this version; allowed: {', '.join(EXECUTORS)}")
    if executor != "ray" and (address is not None or packs_per_gpu != 1):
        raise PlaceError(f"--address and --packs-per-gpu go with --executor ray; given: --executor {executor}")
    if sweep.search is not None and sweep.search.prune is not None and sweep.search.prune.rule == "asha":
        if executor != "ray":
            raise PlaceError(
                f"search.prune.rule asha compares trials that run at the same time, which only --executor ray can; given: "
                f"--executor {executor}; rule halving does nearly the same everywhere"
            )
    if executor == "ray":
        if address is not None and address.startswith("ray://"):
            raise PlaceError(
                f"address {address!r} is Ray's client, which Ray Tune cannot feed; run on a node, with auto"
            )
        if cluster is not None and address is not None:
            raise PlaceError(
                "--address is a Ray cluster that is there, --cluster has one started by SLURM; give one of them"
            )
        try:
            import depthrate.orchestrator.executors.ray_executor  # noqa: F401
        except ImportError as error:
            raise PlaceError(f"--executor ray needs Ray ({error}); install it: pip install 'depthrate[ray]'") from None
        if cluster is None:
            return RayPlace(address, device, workers, packs_per_gpu)
    if executor == "local":
        if cluster is not None:
            raise PlaceError("--cluster goes with --executor slurm; the local executor needs none")
        return LocalPlace(choose_machine(device, workers))
    from depthrate.slurm.limits import read_limits
    from depthrate.slurm.profile import load_profile

    profile = load_profile(cluster)
    if workers is not None:
        if workers < 1:
            raise MachineError(f"workers is {workers}; give at least 1")
        profile = replace(profile, array_parallelism=workers)
    if device not in ("auto", "cpu", "cuda"):
        raise MachineError(f"device {device!r} is unknown; allowed: auto, cpu, cuda")
    if device == "cuda" and not profile.gpus:
        raise PlaceError("device is cuda, but the cluster file asks for no GPU; set gpus = 1 in it")
    chosen = "cuda" if profile.gpus and device != "cpu" else "cpu"
    limits = read_limits()
    if executor == "ray":
        from depthrate.orchestrator.executors.ray_allocation import AllocationPlace

        limits.check(profile, 1, profile.nodes)
        return AllocationPlace(profile, limits, chosen, packs_per_gpu, sweep, store, submitted={})
    limits.check(profile, 0)
    return SlurmPlace(profile, limits, chosen, sweep, store)
