"""Read a cluster's limits from SLURM, and refuse jobs that exceed them."""

import functools
import getpass
import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from depthrate.slurm import answers
from depthrate.slurm.command import run_command
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.profile import Profile, parse_gpu_gres

ACCOUNTING_TIMEOUT_S = 10.0
"""Timeout of sacctmgr in seconds. If the accounting is slower, only a refused submission shows that a limit is reached."""
_BETWEEN_FEATURES = re.compile(r"[&|,\[\]()]|\*\d+")


@dataclass(frozen=True)
class Partition:
    """A partition and its largest node."""

    name: str
    is_default: bool
    is_up: bool
    max_min: float | None
    """Maximum time limit in minutes. None: no limit."""
    cpus: int
    mem_gb: float
    gpus: int
    nodes: int
    gpu_types: dict[str, int] = field(default_factory=dict)
    """GPU type -> maximum number per node."""
    features: frozenset[str] = frozenset()
    """Node features that the profile's `constraint` may name."""
    members: tuple["Partition", ...] = ()
    """Its nodes that SLURM lists, each like a partition with one node."""
    unlisted: int = 0
    """Number of its nodes that SLURM does not list: cloud nodes that are powered down. Their sizes are unknown."""
    qos: str | None = None
    """QOS whose limits apply to all jobs of the partition, whatever QOS they request."""

    def num_usable(self, profile: Profile) -> int:
        """Return the number of nodes that meet all keys of this profile together, if the nodes are known."""
        if not self.members:
            return self.nodes
        rest = replace(profile, constraint=None)
        nodes = [node for node in self.members if _refusal_reason(rest, node, "") is None]
        nodes = [n for n in nodes if _may_meet(profile.constraint or "", n.features) and n.name not in profile.exclude]
        return self.unlisted + len(nodes)


def _may_meet(constraint: str, features: frozenset[str]) -> bool:
    """Return whether a node may meet a constraint, whose brackets are ignored. `a*2&b*1` lists features of different nodes."""
    choices = (constraint.replace("&", "|") if "*" in constraint else constraint).split("|")
    names = (re.split(r"[&,\[\]()\s]|\*\d+", choice) for choice in choices)
    return any(features.issuperset(filter(None, choice)) for choice in names)


@dataclass(frozen=True)
class Limits:
    """Limits of a cluster."""

    cluster: str
    max_array_size: int
    max_jobs: int
    partitions: dict[str, Partition]

    @property
    def array_size(self) -> int:
        """Maximum number of jobs per array."""
        return max(1, min(self.max_array_size - 1, self.max_jobs))

    def partition_of(self, profile: Profile) -> Partition:
        """Return the partition of this profile's jobs. If it has several, return the first.

        Raises:
            SlurmError: If the partition does not exist, or the profile has none and the cluster has no default.
        """
        return self.partitions_of(profile)[0]

    def partitions_of(self, profile: Profile) -> list[Partition]:
        """Return the partitions of this profile's jobs, all if the site's plugin chooses. Raises as `partition_of`."""
        names = f"{', '.join(sorted(self.partitions))}. If the site's plugin chooses it, set partition_by_plugin = true"
        if profile.partition_by_plugin:
            return list(self.partitions.values())
        if not profile.partitions:
            default = next((p for p in self.partitions.values() if p.is_default), None)
            if default is None:
                raise SlurmError(f"this cluster has no default partition. Set partition to one of {names}.")
            return [default]
        for name in profile.partitions:
            if name not in self.partitions:
                raise SlurmError(f"partition is {name!r}, which this cluster does not have. Set it to one of {names}.")
        return [self.partitions[name] for name in profile.partitions]

    def check(self, profile: Profile, num_jobs: int) -> None:
        """Check that the cluster can run `num_jobs` jobs in at least one of the profile's partitions.

        Raises:
            SlurmError: If it cannot. The message names the limit and the requested value.
        """
        refusals = [_refusal_reason(profile, part, self.cluster) for part in self.partitions_of(profile)]
        if all(refusals):
            raise SlurmError(", and ".join(text for text in refusals if text))
        if num_jobs > self.max_jobs:
            raise SlurmError(
                f"{num_jobs} jobs exceed the cluster's limit (MaxJobCount={self.max_jobs}). Raise job_min."
            )


def _refusal_reason(profile: Profile, partition: Partition, cluster: str) -> str | None:
    """Describe why a partition of the cluster would refuse a job of this profile, or return None."""
    where = f"partition {partition.name}"
    if not partition.is_up:
        return f"{where} is not up, so jobs would wait until an administrator changes that"
    if partition.max_min is not None and profile.walltime_min > partition.max_min:
        if profile.walltime_min > (allowed := _read_qos_minutes(profile, cluster) or partition.max_min):
            return f"walltime_min is {profile.walltime_min}, but {where} allows {allowed:g} minutes"
    if partition.unlisted:
        return None  # SLURM refuses what none of its nodes has
    memory = "mem_gb" if profile.mem_per_cpu_gb is None else "mem_per_cpu_gb times cpus"
    for key, requested, largest in (
        ("gpus", profile.gpus, partition.gpus),
        ("cpus", profile.cpus, partition.cpus),
        (memory, profile.job_mem_gb or 0.0, partition.mem_gb),
    ):
        if requested > largest:
            return f"{key} is {requested:g}, but the largest node of {where} has {largest:g}"
    if profile.gpu_type and profile.gpus > partition.gpu_types.get(profile.gpu_type, 0):
        types = ", ".join(f"{name}:{count}" for name, count in sorted(partition.gpu_types.items()))
        available = types or "GPUs without a type"
        return f"gpus is {profile.gpu_type}:{profile.gpus}, but the nodes of {where} have {available}"
    requested_features = {name.strip() for name in _BETWEEN_FEATURES.split(profile.constraint or "")} - {""}
    if unknown := sorted(requested_features - partition.features):
        features = ", ".join(sorted(partition.features)) or "none"
        return f"constraint names {unknown[0]!r}, but the features of nodes in {where} are: {features}"
    if not partition.num_usable(profile):
        keys = f"{profile.resources_text()}, constraint {profile.constraint} and exclude {','.join(profile.exclude) or None}"
        return f"none of the {partition.nodes} nodes of {where} meets {keys} together (see sinfo -N -l)"
    return None


def read_limits() -> Limits:
    """Read the cluster's limits.

    Raises:
        SlurmError: If the controller does not answer.
    """
    config = answers.parse_settings(run_command(["scontrol", "show", "config"]))
    show = ["scontrol", "--all", "--oneliner", "show"]  # also hidden partitions, to which jobs can be submitted
    answer = run_command([*show, "node"])
    nodes = [(f.get("Partitions", "").split(","), _parse_node(f)) for f in answers.parse_records(answer, "NodeName")]
    partitions = {}
    for fields in answers.parse_records(run_command([*show, "partition"]), "PartitionName"):
        name = fields["PartitionName"]
        members = [node for names, node in nodes if name in names]
        num_nodes = answers.parse_integer(fields.get("TotalNodes", "")) or len(members)
        max_counts: Counter[str] = functools.reduce(operator.or_, (Counter(n.gpu_types) for n in members), Counter())
        partitions[name] = Partition(
            name=name,
            is_default=fields.get("Default") == "YES",
            is_up=fields.get("State") == "UP",
            max_min=parse_minutes(fields.get("MaxTime", "UNLIMITED")),
            cpus=max((node.cpus for node in members), default=0),
            mem_gb=max((node.mem_gb for node in members), default=0.0),
            gpus=max((node.gpus for node in members), default=0),
            nodes=num_nodes,
            gpu_types=dict(max_counts),
            features=frozenset().union(*(node.features for node in members)),
            members=tuple(members),
            unlisted=max(0, num_nodes - len(members)),
            qos=fields.get("QoS"),
        )
    array_size, max_jobs = (answers.read_integer(config, key) for key in ("MaxArraySize", "MaxJobCount"))
    if match := re.search(r"max_array_tasks=([0-9]{1,18})", config.get("SchedulerParameters", "")):
        array_size = min(array_size, int(match[1]) + 1)
    return Limits(config.get("ClusterName", ""), array_size, max_jobs, partitions)


def _parse_node(fields: Mapping[str, str]) -> Partition:
    """Return a node as a partition."""
    counts: Counter[str | None] = Counter()
    for gpu_type, count in parse_gpu_gres(fields.get("Gres")):
        counts[gpu_type] += count
    cpus = answers.read_integer(fields, "CPUEfctv" if "CPUEfctv" in fields else "CPUTot")
    mem_gb = answers.read_integer(fields, "RealMemory") / 1024
    types = {name: count for name, count in counts.items() if name}
    features = frozenset(fields.get("AvailableFeatures", "").split(",")) - {"", "(null)"}
    return Partition(fields["NodeName"], False, True, None, cpus, mem_gb, counts.total(), 1, types, features)


@dataclass(frozen=True)
class JobGroup:
    """The jobs that count toward a limit, of one user or of all users."""

    account: str | None = None
    """Account, or None for any."""
    partition: str | None = None
    """Partition, or None for any."""
    qos: str | None = None
    """QOS, or None for any."""
    is_shared: bool = False
    """True if the jobs of all users count toward the limit."""
    subaccounts: tuple[str, ...] = ()
    """Accounts below `account`, whose jobs count too."""

    def __str__(self) -> str:
        names = {"QOS": self.qos, "account": self.account, "partition": self.partition}
        return ", ".join(f"{kind} {name}" for kind, name in names.items() if name) or "the cluster"

    def count(self) -> Counter[str]:
        """Return user -> number of waiting and running jobs in this group.

        Raises:
            SlurmError: If the controller does not answer.
        """
        accounts = ",".join([self.account, *self.subaccounts]) if self.account else None
        names = {"--account": accounts, "--partition": self.partition, "--qos": self.qos}
        options = [f"{option}={name}" for option, name in names.items() if name] + ([] if self.is_shared else ["--me"])
        printed = run_command(["squeue", "--noheader", "--array", *options, "--format=%u"])
        return Counter(re.findall(r"^(\S+)[ \r]*$", printed, re.MULTILINE))


@dataclass(frozen=True)
class SubmitLimits:
    """Maximum numbers of waiting and running jobs, as far as known before a submission is refused."""

    max_jobs: Mapping[JobGroup, int] = field(default_factory=dict)
    """Group of jobs -> limit, in decreasing order of the limit."""
    qos: str | None = None
    """QOS of the profile's jobs, or None if unknown."""


def read_submit_limits(profile: Profile, cluster: str, partition: Partition | None = None) -> SubmitLimits:
    """Read the submit limits that apply to this profile's jobs from the accounting. `partition`: their only one, if known.

    Returns:
        The limits. There are none if the accounting does not answer or the profile has several accounts or QOS.
    Raises:
        SlurmError: If a limit is 0, so that no job is ever accepted.
    """
    if len(profile.alternatives()) > 1:
        return SubmitLimits()  # each alternative has different limits
    columns = "defaultaccount,account,partition,maxsubmitjobs,grpsubmitjobs,defaultqos"
    account, qos = ((name or "").lower() for name in (profile.account, profile.qos))  # as the accounting stores them
    texts_by_group: list[tuple[JobGroup, str]] = []
    try:
        user = ["user", "where", f"user={getpass.getuser()}", f"cluster={cluster}", "withassoc"]
        for default, name, user_partition, user_limit, group_limit, default_qos in _sacctmgr(columns, *user):
            account = account or default
            if name == account and user_partition in ("", *profile.partitions):
                qos = qos or default_qos or "normal"
                group = JobGroup(account, user_partition or None)
                texts_by_group += [(group, user_limit), (group, group_limit)]
        columns = "name,flags,maxsubmitjobsperuser,maxsubmitjobsperaccount,grpsubmitjobs"
        qualities = {name: texts for name, *texts in _sacctmgr(columns, "qos")}
        flags, *limits = qualities.get(qos, [""] * 4)
        _, *outer_limits = qualities.get((partition and partition.qos) or "", [""] * 4)
        groups = [JobGroup(qos=qos), JobGroup(account, qos=qos, is_shared=True), JobGroup(qos=qos, is_shared=True)]
        for group, limit, outer_limit in zip(groups, limits, outer_limits, strict=True):
            if partition and outer_limit and not (limit and "OverPartQOS" in flags):  # a partition's QOS has precedence
                group, limit = replace(group, partition=partition.name, qos=None), outer_limit
            texts_by_group.append((group, limit))
        texts_by_group += _account_limits(account, cluster)
    except (SlurmError, KeyError):
        if not texts_by_group:
            return SubmitLimits(qos=profile.qos)
    numbers = [(group, number) for group, text in texts_by_group if (number := answers.parse_integer(text)) is not None]
    if closed := [group for group, number in numbers if number == 0]:
        raise SlurmError(
            f"{closed[0]} accepts no jobs: its limit is 0 (sacctmgr show assoc, qos). Set another account or qos."
        )
    return SubmitLimits(dict(sorted(numbers, key=lambda entry: -entry[1])), qos or None)


def _account_limits(account: str, cluster: str) -> Iterator[tuple[JobGroup, str]]:
    """Yield (group, limit) of an account and of the accounts above it. The jobs of all accounts below count toward a limit."""
    rows = _sacctmgr("account,user,parentname,grpsubmitjobs", "assoc", "where", f"cluster={cluster}", "user=")
    accounts = {name: (parent, limit) for name, user, parent, limit in rows if not user}

    def path(name: str) -> list[str]:
        names = list[str]()
        while name in accounts and name not in names:  # a damaged answer may name an account as its own parent
            names.append(name)
            name = accounts[name][0]
        return names

    for name in path(account):
        below = sorted(other for other in accounts if other != name and name in path(other))
        yield JobGroup(name, is_shared=True, subaccounts=tuple(below)), accounts[name][1]


def _read_qos_minutes(profile: Profile, cluster: str) -> float:
    """Return the minutes that the profile's QOS allow in spite of a partition's limit. 0: none does, or unknown."""
    names = {choice.qos or read_submit_limits(choice, cluster).qos for choice in profile.alternatives()}
    try:
        rows = _sacctmgr("name,flags,maxwall", "qos")
        lifting = [wall for name, flags, wall in rows if name in names and "PartitionTimeLimit" in flags.split(",")]
        return max((parse_minutes(wall or "UNLIMITED") or float("inf") for wall in lifting), default=0.0)
    except SlurmError:
        return 0.0


def _sacctmgr(columns: str, *words: str) -> list[list[str]]:
    command = ["sacctmgr", "--noheader", "--parsable2", "show", *words, f"format={columns}"]
    table = answers.parse_table(run_command(command, ACCOUNTING_TIMEOUT_S), columns.split(","), "sacctmgr")
    return [list(row.values()) for row in table]


def parse_minutes(text: str) -> float | None:
    """Parse SLURM's `[days-]hours:minutes:seconds` to minutes. Return None for no limit.

    Raises:
        SlurmError: If the text is not a duration.
    """
    if text in ("UNLIMITED", "INFINITE", "NOT_SET", "None", "n/a"):
        return None
    if (match := re.fullmatch(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", text)) is None:
        raise answers.unexpected_answer("scontrol show partition", text)
    days, *parts = (int(part or 0) for part in match.groups())
    hours, minutes, seconds = parts if match[1] or match[4] else [0, *parts[:2]]  # minutes[:seconds]
    return days * 1440 + hours * 60 + minutes + seconds / 60
