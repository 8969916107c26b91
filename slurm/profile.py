"""A cluster's profile: the resources of a job, read from a TOML file and checked before submission."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import os
import re
import tomllib
import types
import typing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from depthrate.slurm.answers import parse_integer
from depthrate.slurm.errors import SlurmError

KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Variables from which S3 tools read keys before they read a file."""
MAX_PROFILE_BYTES = 2**20
"""Maximum size of a cluster file."""
CHECKPOINT_GRACE_S = 90.0
"""Seconds after a job's end in which a shared file system may not show its last files yet."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Resources and settings of each SLURM job (slurm/example.toml explains each key)."""

    partition: str | None = None
    """Comma-separated partitions. SLURM uses the one that starts the job first."""
    partition_by_plugin: bool = False
    """The site's job_submit plugin chooses the partition, so `partition` may be None or a name that only the plugin knows."""
    job_name: str | None = None
    """Name of the jobs, with `{id}` and possibly `{sweep}`. None: `depthrate-{sweep}-TIME_{id}`."""
    account: str | None = None
    """Comma-separated accounts, tried in turn."""
    qos: str | None = None
    """Comma-separated QOS, tried in turn."""
    constraint: str | None = None
    exclude: tuple[str, ...] = ()
    exclusive: bool = False
    gpus: int = 0
    gpu_type: str | None = None
    """GPU type of `gpus = "<type>:<count>"`, which may be a MIG profile."""
    packs_per_gpu: int = 1
    gres: str | None = None
    cpus: int = 1
    mem_gb: float | None = 4.0
    """Memory per job in GB. None: the partition's default, or `mem_per_cpu_gb`."""
    mem_per_cpu_gb: float | None = None
    gpu_mem_gb: float | None = None
    """Memory of one GPU in GB, which SLURM does not report."""
    walltime_min: int = 60
    array_parallelism: int | None = None
    max_submitted: int | None = None
    """Limit on the user's waiting and running jobs. None: read from the accounting."""
    job_min: float = 30.0
    signal_s: int | None = None
    poll_s: float | None = None
    """Minimum seconds between two polls of the queue. None: 15, or less up to twice per minute if an event requires it."""
    grace_s: float = CHECKPOINT_GRACE_S
    folder: str | None = None
    python: str | None = None
    container: str | None = None
    """Image that contains depthrate's program. It need not contain SLURM's commands."""
    container_runtime: str = "apptainer"
    container_binds: tuple[str, ...] = ()
    """Paths mounted in the container, as `path` or `outside:inside`."""
    scratch: str | None = None
    """Folder on each node for the jobs' TMPDIR, one subfolder per job. Bash expands variables."""
    data_cache: str | None = None
    """Folder on each node into which data sets are copied once. Bash expands variables."""
    credentials: str | None = None
    """File of S3 keys that jobs read when they start. Keys in the environment are then not passed to jobs."""
    setup: tuple[str, ...] = ()
    failed_start_s: int = 20
    """Minimum duration in seconds of a job that fails, so that a broken node does not fail one job after another in quick
    succession."""
    extra: dict[str, str | bool] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Number of packs that run at the same time in a job: `packs_per_gpu` per GPU if it has GPUs, otherwise one per CPU."""
        return self.gpus * self.packs_per_gpu or self.cpus

    def worker_mem_gb(self, device: str) -> float | None:
        """Return the memory of one pack in GB: its share of the GPU's or the job's memory, or None if unknown."""
        if device == "cuda":
            return None if self.gpu_mem_gb is None else self.gpu_mem_gb / self.packs_per_gpu
        return None if self.job_mem_gb is None else self.job_mem_gb / self.slots

    @property
    def job_mem_gb(self) -> float | None:
        """Memory of a job per node in GB, or None for the partition's default."""
        return self.mem_gb if self.mem_per_cpu_gb is None else self.mem_per_cpu_gb * self.cpus

    def job_name_of(self, submission: str, sweep: str) -> str:
        """Return the name in SLURM of a submission's jobs. The submission's own name ends with an underscore and its ID."""
        return (self.job_name or submission).replace("{sweep}", sweep).replace("{id}", submission.rpartition("_")[2])

    @property
    def partitions(self) -> list[str]:
        """Partitions of the jobs. Empty for the cluster's default."""
        return _split_commas(self.partition)

    def alternatives(self) -> list[Profile]:
        """Return one profile per pair of account and QOS, in the order of the attempts."""
        pairs = itertools.product(_split_commas(self.account) or [""], _split_commas(self.qos) or [""])
        return [replace(self, account=account or None, qos=qos or None) for account, qos in pairs]

    def resources_text(self) -> str:
        """Describe the resources of a job per node, such as "2 a100 GPUs, 16 CPUs, 64 GB"."""
        gpu_type = f"{self.gpu_type} " if self.gpu_type else ""
        parts = [f"{self.gpus} {gpu_type}GPU{'s' if self.gpus != 1 else ''}"] if self.gpus else []
        parts.append("whole nodes" if self.exclusive else f"{self.cpus} CPU{'s' if self.cpus != 1 else ''}")
        return ", ".join(parts + ([] if self.job_mem_gb is None else [f"{self.job_mem_gb:g} GB"]))

    @property
    def warning_s(self) -> int:
        """Seconds before the time limit at which a job is signalled to save a checkpoint."""
        if self.signal_s is not None:
            return self.signal_s
        return max(15, min(120, self.walltime_min * 15))


_ALLOWED: dict[str, tuple[float, float]] = {
    "gpus": (0, 64),
    "packs_per_gpu": (1, 64),
    "cpus": (1, 1024),
    "mem_gb": (0.1, 100_000),
    "mem_per_cpu_gb": (0.1, 10_000),
    "gpu_mem_gb": (0.1, 10_000),
    "walltime_min": (1, 525_600),
    "array_parallelism": (1, 100_000),
    "max_submitted": (1, 1_000_000),
    "job_min": (0.0, 525_600),
    "signal_s": (5, 86_400),
    "poll_s": (1.0, 3_600.0),
    "grace_s": (0.0, 3_600.0),
    "failed_start_s": (0, 600),
}
_TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
_OWNED = frozenset(
    [
        *("array", "job-name", "output", "error", "open-mode", "requeue", "no-requeue", "signal", "parsable", "wrap"),
        *("nodes", "ntasks", "ntasks-per-node", "time", "partition", "account", "qos", "constraint", "exclude"),
        *("gpus-per-node", "cpus-per-task", "mem", "mem-per-cpu"),
    ]
)
"""sbatch options that have a separate key in the profile or that the submission sets itself."""
_WITH_COMMAS = ("partition", "account", "qos", "gres")
"""Keys that take a comma-separated string or a list of strings."""
_JOB_NAME = re.compile(r"(?=.*\{id\})([\w.:=+@-]|\{id\}|\{sweep\}){4,64}")
_CHOICES = {"container_runtime": ("apptainer", "singularity", "pyxis")}
_GPUS = re.compile(r"([\w.-]+):(\d+)")
_EXAMPLE_HINT = "Copy slurm/example.toml for a valid one."
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?")


def load_profile(path: str | None) -> Profile:
    """Read a cluster file. The default is one CPU, 4 GB and one hour on the cluster's default partition.

    Raises:
        SlurmError: If the file is missing or not TOML, or a key or value is not allowed.
    """
    if path is None:
        return Profile()
    try:
        # A named pipe may have no writer. The shell's pipes below /dev/fd have a writer and no name.
        if Path(path).is_fifo() and Path(os.path.realpath(path)).exists():
            raise SlurmError(f"cluster file {path} is a named pipe. {_EXAMPLE_HINT}")
        with Path(path).open("rb") as file:  # the file may be an endless device
            text = file.read(MAX_PROFILE_BYTES + 1)
        if len(text) > MAX_PROFILE_BYTES:
            raise SlurmError(f"cluster file {path} has more than {MAX_PROFILE_BYTES >> 10} kB. {_EXAMPLE_HINT}")
        content = tomllib.loads(text.decode())
    except OSError as error:
        raise SlurmError(f"cluster file {path}: {error.strerror}. {_EXAMPLE_HINT}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SlurmError(f"cluster file {path} is not TOML: {error}") from None
    except RecursionError:
        raise SlurmError(f"cluster file {path} is nested too deeply") from None
    return make_profile(content, path)


def make_profile(content: dict[str, Any], where: str) -> Profile:
    """Check the keys and values of a cluster file and make a profile.

    Raises:
        SlurmError: If a key or value is not allowed. The message has the key, the value and the allowed values.
    """
    hints = typing.get_type_hints(Profile)
    allowed = [field.name for field in dataclasses.fields(Profile) if field.name != "gpu_type"]
    content, fields = _normalized(content, where)
    for key, value in content.items():
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise SlurmError(f"{where}: unknown key {key!r}.{hint} Allowed keys: {', '.join(allowed)}.")
        fields[key] = _extra(value, where) if key == "extra" else _checked_value(key, value, hints[key], where)
    profile = Profile(**fields)
    for key in ("signal_s", "failed_start_s"):
        if (getattr(profile, key) or 0) >= 60 * profile.walltime_min:
            raise SlurmError(
                f"{where}: {key} is {getattr(profile, key)}, expected less than walltime_min, which is "
                f"{profile.walltime_min} min ({60 * profile.walltime_min} s). Lower {key} or raise walltime_min."
            )
    return profile


def _normalized(content: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content to be checked and the fields set by keys that have several notations."""
    content, fields = dict(content), {}
    for key in _WITH_COMMAS:
        if isinstance(texts := content.get(key), list) and texts and all(isinstance(text, str) for text in texts):
            content[key] = ",".join(texts)
    if isinstance(gpus := content.get("gpus"), str):
        if (match := _GPUS.fullmatch(gpus)) is None:
            raise SlurmError(
                f"{where}: gpus is {gpus!r}, expected an integer, or a type and a number such as 'a100:2'."
            )
        fields["gpu_type"], content["gpus"] = match[1], int(match[2])
    if content.get("mem_gb") == "default" or "mem_per_cpu_gb" in content:
        if content.pop("mem_gb", "default") != "default":
            raise SlurmError(f"{where}: mem_gb and mem_per_cpu_gb are mutually exclusive. Set one of them.")
        fields["mem_gb"] = None
    if isinstance(gres := content.get("gres"), str) and (gpu_counts := parse_gpu_gres(gres)):
        if "gpus" in content:
            raise SlurmError(f"{where}: gres and gpus both request GPUs. Set one of them.")
        fields["gpus"] = sum(count for _, count in gpu_counts)
        fields["gpu_type"] = gpu_counts[0][0]
    return content, fields


def expiring_keys_message(profile: Profile) -> str:
    """Return a warning if keys that expire are passed to the jobs in the environment, otherwise ""."""
    name = KEY_VARIABLES[-1]
    if profile.credentials is not None or name not in os.environ:
        return ""
    return (
        f"jobs receive {name}, which may expire while they wait. Set credentials in the cluster file to a file of keys."
    )


def parse_gpu_gres(gres: str | None) -> list[tuple[str | None, int]]:
    """Return (type, number) of the GPUs in SLURM's notation for generic resources, of a job or a node."""
    gpu_counts: list[tuple[str | None, int]] = []
    for part in _split_commas(re.sub(r"\([^)]*\)", "", gres or "")):  # the sockets of a node's GPUs
        name, *words = part.removeprefix("gres/").split(":")
        if name == "gpu":
            words = [word for word in words if word != "no_consume"] or ["1"]
            count = parse_integer(words[-1])
            gpu_types = words if count is None else words[:-1]
            gpu_counts.append((gpu_types[0] if gpu_types else None, 1 if count is None else count))
    return gpu_counts


def _split_commas(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _checked_value(key: str, value: Any, hint: Any, where: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if typing.get_origin(hint) is tuple:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise SlurmError(f"{where}: {key} is {value!r}, expected a list of strings.")
        return tuple(texts)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    allowed = tuple(kind for kind in kinds if kind is not types.NoneType)
    if isinstance(value, bool) != (bool in allowed) or not isinstance(value, allowed):
        raise SlurmError(f"{where}: {key} is {value!r}, expected {_TYPE_NAMES[kinds[0]]}.")
    if isinstance(value, str) and not (value.strip() and value.isprintable()):
        raise SlurmError(f"{where}: {key} is {value!r}, expected printable characters. Set a string or remove the key.")
    if isinstance(value, str) and value.startswith("~") and os.path.expanduser(value).startswith("~"):
        raise SlurmError(f"{where}: {key} is {value!r}, which names an unknown user. Set an absolute path.")
    if key in ("scratch", "data_cache") and not (value := os.path.expanduser(value)).startswith(("/", "$")):
        raise SlurmError(
            f"{where}: {key} is {value!r}, expected an absolute path. It may start with a variable like $TMPDIR."
        )
    if key == "job_name" and not _JOB_NAME.fullmatch(value):
        raise SlurmError(
            f"{where}: job_name is {value!r}, expected letters, digits and .:=+@_- with {{id}}, which makes each name unique, "
            "and possibly {sweep}, such as 'p42-{sweep}-{id}'."
        )
    if key in _CHOICES and value not in _CHOICES[key]:
        raise SlurmError(f"{where}: {key} is {value!r}, expected one of {', '.join(_CHOICES[key])}.")
    low, high = _ALLOWED.get(key, (-math.inf, math.inf))
    if isinstance(value, int | float) and not low <= value <= high:
        raise SlurmError(f"{where}: {key} is {value}, expected {low} to {high}.")
    return value


def _extra(value: Any, where: str) -> dict[str, str | bool]:
    """Parse sbatch options, given as a table or as a list of `--option=value`."""
    options: dict[str, str | bool] = {}
    if isinstance(value, dict):
        options = {str(key).lstrip("-").replace("_", "-"): v if v is True else str(v) for key, v in value.items()}
    elif isinstance(value, list):
        for text in value:
            match = _OPTION.fullmatch(text) if isinstance(text, str) else None
            if match is None:
                raise SlurmError(
                    f"{where}: extra has {text!r}, expected a long option of sbatch, such as --mail-type=FAIL."
                )
            options[match[1]] = True if match[2] is None else match[2]
    else:
        raise SlurmError(f"{where}: extra is {value!r}, expected a list such as ['--mail-type=FAIL'] or a table.")
    if owned := sorted(_OWNED.intersection(options)):
        raise SlurmError(f"{where}: extra sets --{owned[0]}, which depthrate sets itself. Remove it or set its key.")
    return options
