"""What a cluster allows, asked of the cluster itself, and the refusal of what exceeds it."""

from __future__ import annotations

import getpass
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from depthrate.slurm.command import SlurmError, parse_fields, run_command
from depthrate.slurm.profile import Profile

ACCOUNTING_TIMEOUT_S = 10.0
"""Where the accounting is slow to answer, its limits are learnt from refusals."""
_BETWEEN_FEATURES = re.compile(r"[&|,\[\]()]|\*\d+")


@dataclass(frozen=True)
class Partition:
    """A partition and the largest node in it."""

    name: str
    is_default: bool
    is_up: bool
    max_min: float | None
    """Longest time limit in minutes; None: no limit."""
    cpus: int
    mem_gb: float
    gpus: int
    nodes: int
    gpu_types: dict[str, int] = field(default_factory=dict)
    """Type -> most of them in a node."""
    features: frozenset[str] = frozenset()
    """What `constraint` may name."""


@dataclass(frozen=True)
class Limits:
    """What a cluster allows."""

    cluster: str
    max_array_size: int
    max_jobs: int
    partitions: dict[str, Partition]

    @property
    def array_size(self) -> int:
        """Most jobs that one array may have."""
        return max(1, min(self.max_array_size - 1, self.max_jobs))

    def partition_of(self, profile: Profile) -> Partition:
        """Return the partition that jobs of this profile go to, the first of several.

        Raises:
            SlurmError: there is no such partition, or no default one.
        """
        return self._partitions_of(profile)[0]

    def _partitions_of(self, profile: Profile) -> list[Partition]:
        if not profile.partitions:
            found = next((p for p in self.partitions.values() if p.is_default), None)
            if found is None:
                raise SlurmError(f"this cluster has no default partition; set partition to one of {self._names()}")
            return [found]
        for name in profile.partitions:
            if name not in self.partitions:
                raise SlurmError(f"partition {name!r} is unknown here; this cluster has {self._names()}")
        return [self.partitions[name] for name in profile.partitions]

    def _names(self) -> str:
        return ", ".join(sorted(self.partitions))

    def check(self, profile: Profile, num_jobs: int, nodes: int = 1) -> None:
        """Refuse what this cluster would not run: so many jobs, each of so many nodes. One of several partitions is enough.

        Raises:
            SlurmError: naming the limit and what was asked.
        """
        refusals = [_refusal_reason(profile, partition, nodes) for partition in self._partitions_of(profile)]
        if all(refusals):
            raise SlurmError("; ".join(text for text in refusals if text))
        if num_jobs > self.max_jobs:
            raise SlurmError(
                f"{num_jobs} jobs are more than this cluster holds at once (MaxJobCount={self.max_jobs}); raise job_min"
            )


def _refusal_reason(profile: Profile, partition: Partition, nodes: int) -> str | None:
    """Say why a partition would not run a job of this profile; None if it would."""
    where = f"partition {partition.name}"
    if not partition.is_up:
        return f"{where} is not up; jobs would wait there until an administrator changes that"
    if partition.max_min is not None and profile.walltime_min > partition.max_min:
        return f"walltime_min is {profile.walltime_min}; {where} allows {partition.max_min:g} minutes"
    memory = "mem_gb" if profile.mem_per_cpu_gb is None else "mem_per_cpu_gb times cpus"
    for key, asked, largest in (
        ("gpus", profile.gpus, partition.gpus),
        ("cpus", profile.cpus, partition.cpus),
        (memory, profile.job_mem_gb or 0.0, partition.mem_gb),
    ):
        if asked > largest:
            return f"{key} is {asked:g}; the largest node of {where} has {largest:g}"
    if profile.gpu_type and profile.gpus > partition.gpu_types.get(profile.gpu_type, 0):
        there = (
            ", ".join(f"{name}:{count}" for name, count in sorted(partition.gpu_types.items())) or "GPUs without a type"
        )
        return f"gpus is {profile.gpu_type}:{profile.gpus}; the nodes of {where} have {there}"
    named = {name.strip() for name in _BETWEEN_FEATURES.split(profile.constraint or "")} - {""}
    if unknown := sorted(named - partition.features):
        there = ", ".join(sorted(partition.features)) or "none"
        return f"constraint names {unknown[0]!r}; the nodes of {where} have these features: {there}"
    if nodes > partition.nodes:
        return f"nodes is {nodes}; {where} has {partition.nodes}"
    return None


def read_limits() -> Limits:
    """Ask the cluster what it allows.

    Raises:
        SlurmError: its controller does not answer.
    """
    config = dict(
        (key.strip(), value.strip())
        for key, separator, value in (
            line.partition("=") for line in run_command(["scontrol", "show", "config"]).splitlines()
        )
        if separator
    )
    nodes = [parse_fields(line) for line in run_command(["scontrol", "--oneliner", "show", "node"]).splitlines()]
    partitions = {}
    for line in run_command(["scontrol", "--oneliner", "show", "partition"]).splitlines():
        fields = parse_fields(line)
        name = fields["PartitionName"]
        members = [node for node in nodes if name in node.get("Partitions", "").split(",")]
        partitions[name] = Partition(
            name=name,
            is_default=fields.get("Default") == "YES",
            is_up=fields.get("State") == "UP",
            max_min=parse_minutes(fields.get("MaxTime", "UNLIMITED")),
            cpus=max((int(node.get("CPUTot", 0)) for node in members), default=0),
            mem_gb=max((int(node.get("RealMemory", 0)) / 1024 for node in members), default=0.0),
            gpus=max((_count_gpus(node.get("Gres", "")) for node in members), default=0),
            nodes=len(members),
            gpu_types=_max_counts(_count_gpu_types(node.get("Gres", "")) for node in members),
            features=frozenset(name for node in members for name in _parse_features(node)),
        )
    array_size = int(config["MaxArraySize"])
    if found := re.search(r"max_array_tasks=(\d+)", config.get("SchedulerParameters", "")):
        array_size = min(array_size, int(found[1]) + 1)
    return Limits(config["ClusterName"], array_size, int(config["MaxJobCount"]), partitions)


@dataclass(frozen=True)
class JobGroup:
    """The jobs that count toward a limit: of the user alone, or of all users."""

    account: str | None = None
    """None: of any; so are the next two."""
    partition: str | None = None
    qos: str | None = None
    is_shared: bool = False

    def __str__(self) -> str:
        named = {"QOS": self.qos, "account": self.account, "partition": self.partition}
        return ", ".join(f"{kind} {name}" for kind, name in named.items() if name) or "the cluster"

    def count(self) -> Counter[str]:
        """Return user -> jobs that wait or run.

        Raises:
            SlurmError: the controller does not answer.
        """
        named = {"--account": self.account, "--partition": self.partition, "--qos": self.qos}
        options = [f"{option}={name}" for option, name in named.items() if name] + ([] if self.is_shared else ["--me"])
        return Counter(run_command(["squeue", "--noheader", "--array", *options, "--format=%u"]).split())


@dataclass(frozen=True)
class SubmitLimits:
    """How many jobs may wait and run together, as far as that is known before any is refused."""

    max_jobs: Mapping[JobGroup, int] = field(default_factory=dict)
    account: str | None = None
    """To which jobs of the profile go; None where that is not known; so is `qos`."""
    qos: str | None = None

    def refused_group(self, refusal: str) -> JobGroup:
        """Return the jobs that fill a limit, by what sbatch printed: `QOSMaxSubmitJobPerUserLimit` and the like."""
        if "PerAccount" in refusal and self.account:
            return JobGroup(self.account, qos=self.qos, is_shared=True)
        limit = re.search(r"\b(Assoc|QOS)(Grp|Max)", refusal)  # the same text ends with "accounting/QOS policy"
        if limit is None:
            return JobGroup()
        group = JobGroup(self.account) if limit[1] == "Assoc" else JobGroup(qos=self.qos)
        return replace(group, is_shared=limit[2] == "Grp" and group != JobGroup())


def read_submit_limits(profile: Profile, cluster: str) -> SubmitLimits:
    """Return what the accounting allows jobs of this profile; no limits where it does not answer, or accounts are tried."""
    if len(profile.alternatives()) > 1:
        return SubmitLimits()  # each has limits of its own
    columns = "format=defaultaccount,account,partition,maxsubmitjobs,grpsubmitjobs,defaultqos"
    try:
        user = ["user", "where", f"user={getpass.getuser()}", f"cluster={cluster}", "withassoc", columns]
        associations = [line.split("|") for line in _sacctmgr(*user)]
        columns = "format=name,maxsubmitjobsperuser,maxsubmitjobsperaccount,grpsubmitjobs"
        qualities = {name: texts for name, *texts in (line.split("|") for line in _sacctmgr("qos", columns))}
    except (SlurmError, KeyError):
        return SubmitLimits(account=profile.account, qos=profile.qos)
    account, qos = profile.account, profile.qos
    found: list[tuple[JobGroup, str]] = []
    for default, name, partition, of_user, of_group, default_qos in associations:
        account = account or default
        if name == account and partition in ("", *profile.partitions):
            qos = qos or default_qos or "normal"
            group = JobGroup(account, partition or None)
            found += [(group, of_user), (group, of_group)]
    if qos in qualities:
        groups = [JobGroup(qos=qos), JobGroup(account, qos=qos, is_shared=True), JobGroup(qos=qos, is_shared=True)]
        found += zip(groups, qualities[qos], strict=True)
    known = sorted(((int(text), group) for group, text in found if text.isdigit()), key=lambda limit: -limit[0])
    return SubmitLimits({group: most for most, group in known}, account, qos)


def _sacctmgr(*words: str) -> list[str]:
    return run_command(["sacctmgr", "--noheader", "--parsable2", "show", *words], ACCOUNTING_TIMEOUT_S).splitlines()


def parse_minutes(text: str) -> float | None:
    """Return the minutes in SLURM's `[days-]hours:minutes:seconds`; None for no limit."""
    if text in ("UNLIMITED", "INFINITE", "NOT_SET", "None", "n/a"):
        return None
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if days:
        parts += [0] * (3 - len(parts))  # days-hours[:minutes[:seconds]]
    elif len(parts) < 3:
        parts = [0, *parts, *[0] * (2 - len(parts))]  # minutes[:seconds]
    hours, minutes, seconds = parts
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def _count_gpus(gres: str) -> int:
    """Return the GPUs in a node's `gpu[:type]:count(...)[,...]`."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)", gres))


def _count_gpu_types(gres: str) -> dict[str, int]:
    """Return type -> GPUs of a node, from what `_gpus_of` reads."""
    counts: Counter[str] = Counter()
    for name, count in re.findall(r"(?:^|,)gpu:([^:,(]+):(\d+)", gres):
        counts[name] += int(count)
    return dict(counts)


def _max_counts(nodes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the largest count of each name over the nodes."""
    found: dict[str, int] = {}
    for counts in nodes:
        found |= {name: max(count, found.get(name, 0)) for name, count in counts.items()}
    return found


def _parse_features(node: Mapping[str, str]) -> list[str]:
    text = node.get("AvailableFeatures", "(null)")
    return [] if text == "(null)" else text.split(",")
