"""A cluster's profile: what a job asks for, from a TOML file, checked before anything is submitted."""

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

from depthrate.slurm.command import SlurmError

KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Where S3 tools look for keys before they look into a file."""
MAX_PROFILE_BYTES = 2**20
"""Of a cluster file."""
CHECKPOINT_GRACE_S = 90.0
"""How long after a job is over what it wrote may still be on its way: a shared file system shows it late."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What each job asks SLURM for (slurm/example.toml explains each key)."""

    partition: str | None = None
    """One, or several with commas between them, of which SLURM takes the one that starts first."""
    account: str | None = None
    """One, or several with commas between them, tried in turn; so is `qos`."""
    qos: str | None = None
    constraint: str | None = None
    exclude: tuple[str, ...] = ()
    exclusive: bool = False
    gpus: int = 0
    gpu_type: str | None = None
    """From `gpus = "<type>:<count>"`; a MIG profile is a type like any other."""
    packs_per_gpu: int = 1
    gres: str | None = None
    cpus: int = 1
    mem_gb: float | None = 4.0
    """None: what the partition gives by default, or `mem_per_cpu_gb`."""
    mem_per_cpu_gb: float | None = None
    gpu_mem_gb: float | None = None
    """What a GPU of these nodes has; SLURM does not say it."""
    walltime_min: int = 60
    nodes: int = 1
    """Only for a Ray cluster inside one allocation; a job of packs takes one node."""
    array_parallelism: int | None = None
    max_submitted: int | None = None
    """Jobs of the user, waiting and running together, that the cluster takes; None: as it says itself, or refuses."""
    supervisor: bool = True
    """Whether a detached launch may leave a job of one CPU that submits what there was no room for."""
    supervisor_partition: str | None = None
    job_min: float = 30.0
    signal_s: int | None = None
    poll_s: float | None = None
    """Least seconds between two looks of a launch at the queue; None: 15, and sooner twice a minute where there is reason."""
    grace_s: float = CHECKPOINT_GRACE_S
    folder: str | None = None
    python: str | None = None
    container: str | None = None
    """An image in which our program runs; SLURM's commands need not be in it."""
    container_runtime: str = "apptainer"
    container_binds: tuple[str, ...] = ()
    """What is seen in it under the same path, or `outside:inside`."""
    scratch: str | None = None
    """A folder on each node, of which each job gets a part of its own as TMPDIR; bash fills in variables."""
    data_cache: str | None = None
    """A folder on each node into which data sets are copied once; bash fills in variables."""
    credentials: str | None = None
    """A file of keys as S3 tools read it, read when a job starts; keys in the environment then stay behind."""
    setup: tuple[str, ...] = ()
    failed_start_s: int = 20
    """Seconds that a job lasts at least where it fails: a broken node would take one after the other."""
    extra: dict[str, str | bool] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Packs that run at once in a job: `packs_per_gpu` on each GPU if it has any, else one a CPU."""
        return self.gpus * self.packs_per_gpu or self.cpus

    def worker_mem_gb(self, device: str) -> float | None:
        """Return the memory of one pack: its share of its GPU's, if that is known, or of the job's."""
        if device == "cuda":
            return None if self.gpu_mem_gb is None else self.gpu_mem_gb / self.packs_per_gpu
        return None if self.job_mem_gb is None else self.job_mem_gb / self.slots

    @property
    def job_mem_gb(self) -> float | None:
        """Memory of a job on each of its nodes; None where the partition decides."""
        return self.mem_gb if self.mem_per_cpu_gb is None else self.mem_per_cpu_gb * self.cpus

    @property
    def partitions(self) -> list[str]:
        """The partitions that jobs may go to; none: the cluster's default."""
        return _split_commas(self.partition)

    def alternatives(self) -> list[Profile]:
        """Return this profile with each account and QOS alone, in the order in which they are tried."""
        pairs = itertools.product(_split_commas(self.account) or [""], _split_commas(self.qos) or [""])
        return [replace(self, account=account or None, qos=qos or None) for account, qos in pairs]

    def resources_text(self) -> str:
        """Say what a job gets on each of its nodes."""
        words = (
            [f"{self.gpus} {self.gpu_type or ''} GPU{'s' if self.gpus != 1 else ''}".replace("  ", " ")]
            if self.gpus
            else []
        )
        words.append("whole nodes" if self.exclusive else f"{self.cpus} CPU{'s' if self.cpus != 1 else ''}")
        return ", ".join(words + ([] if self.job_mem_gb is None else [f"{self.job_mem_gb:g} GB"]))

    @property
    def warning_s(self) -> int:
        """Seconds before the time limit at which a job is told to save its state."""
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
    "nodes": (1, 10_000),
    "array_parallelism": (1, 100_000),
    "max_submitted": (1, 1_000_000),
    "job_min": (0.0, 525_600),
    "signal_s": (5, 86_400),
    "poll_s": (1.0, 3_600.0),
    "grace_s": (0.0, 3_600.0),
    "failed_start_s": (0, 600),
}
_TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_OWNED = frozenset(
    [
        *("array", "job-name", "output", "error", "open-mode", "requeue", "no-requeue", "signal", "parsable", "wrap"),
        *("nodes", "ntasks", "ntasks-per-node", "time", "partition", "account", "qos", "constraint", "exclude"),
        *("gpus-per-node", "cpus-per-task", "mem", "mem-per-cpu"),
    ]
)
"""sbatch options that have a key of their own or that the submission needs as it sets them."""
_WITH_COMMAS = ("partition", "account", "qos", "gres")
"""Keys that take a text or a list of texts, which is that text with commas."""
_CHOICES = {"container_runtime": ("apptainer", "singularity", "pyxis")}
_GPUS = re.compile(r"([\w.-]+):(\d+)")
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?")


def load_profile(path: str | None) -> Profile:
    """Read a cluster file; without one, ask for one CPU, 4 GB and an hour on the cluster's default partition.

    Raises:
        SlurmError: the file is missing or no TOML, or a key or value is not allowed.
    """
    if path is None:
        return Profile()
    try:
        # a pipe of the shell's has no name below /dev/fd, and somebody who writes; of a named one nobody knows
        if Path(path).is_fifo() and Path(os.path.realpath(path)).exists():
            raise SlurmError(f"cluster file {path} is a named pipe; slurm/example.toml is one to copy")
        with Path(path).open("rb") as file:  # perhaps a device without an end
            text = file.read(MAX_PROFILE_BYTES + 1)
        if len(text) > MAX_PROFILE_BYTES:
            raise SlurmError(
                f"cluster file {path} has more than {MAX_PROFILE_BYTES >> 10} kB; slurm/example.toml is one to copy"
            )
        content = tomllib.loads(text.decode())
    except OSError as error:
        raise SlurmError(f"cluster file {path}: {error.strerror}; slurm/example.toml is one to copy") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SlurmError(f"cluster file {path} is not TOML: {error}") from None
    except RecursionError:
        raise SlurmError(f"cluster file {path} is not TOML that is read: nested too deeply") from None
    return make_profile(content, path)


def make_profile(content: dict[str, Any], where: str) -> Profile:
    """Check the keys and values of a cluster file.

    Raises:
        SlurmError: naming the key, what was given and what is allowed.
    """
    hints = typing.get_type_hints(Profile)
    known = [field.name for field in dataclasses.fields(Profile) if field.name != "gpu_type"]
    content, fields = _normalized(content, where)
    for key, value in content.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise SlurmError(f"{where}: unknown key {key!r}{meant}; allowed: {', '.join(known)}")
        fields[key] = _extra(value, where) if key == "extra" else _checked_value(key, value, hints[key], where)
    return Profile(**fields)


def _normalized(content: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is left to be checked, and the fields that follow from what may be written in several ways."""
    content, fields = dict(content), {}
    for key in _WITH_COMMAS:
        if isinstance(texts := content.get(key), list) and texts and all(isinstance(text, str) for text in texts):
            content[key] = ",".join(texts)
    if isinstance(gpus := content.get("gpus"), str):
        if (found := _GPUS.fullmatch(gpus)) is None:
            raise SlurmError(f"{where}: gpus is {gpus!r}; give a whole number, or a type and a number, as in 'a100:2'")
        fields["gpu_type"], content["gpus"] = found[1], int(found[2])
    if content.get("mem_gb") == "default" or "mem_per_cpu_gb" in content:
        if content.pop("mem_gb", "default") != "default":
            raise SlurmError(f"{where}: mem_gb and mem_per_cpu_gb exclude each other; give one of them")
        fields["mem_gb"] = None
    if isinstance(gres := content.get("gres"), str) and (named := parse_gpu_gres(gres)):
        if "gpus" in content:
            raise SlurmError(f"{where}: gres asks for GPUs and so does gpus; give one of them")
        fields["gpus"] = sum(count for _, count in named)
        fields["gpu_type"] = named[0][0]
    return content, fields


def expiring_keys_message(profile: Profile) -> str:
    """Say that keys which expire go with the jobs, where they do; empty if not."""
    name = KEY_VARIABLES[-1]
    if profile.credentials is not None or name not in os.environ:
        return ""
    return f"{name} goes with the jobs and may expire while they wait: credentials in the cluster file names a file instead"


def parse_gpu_gres(gres: str | None) -> list[tuple[str | None, int]]:
    """Return (type, number) of the GPUs that generic resources as sbatch writes them ask for."""
    found: list[tuple[str | None, int]] = []
    for part in _split_commas(gres):
        name, *words = part.removeprefix("gres/").split(":")
        if name == "gpu":
            count = int(words.pop()) if words and words[-1].isdigit() else 1
            found.append((words[0] if words else None, count))
    return found


def _split_commas(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _checked_value(key: str, value: Any, hint: Any, where: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if typing.get_origin(hint) is tuple:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise SlurmError(f"{where}: {key} is {value!r}; give a list of texts")
        return tuple(texts)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    allowed = tuple(kind for kind in kinds if kind is not types.NoneType)
    if isinstance(value, bool) != (bool in allowed) or not isinstance(value, allowed):
        raise SlurmError(f"{where}: {key} is {value!r}; give {_TYPE_NAMES[kinds[0]]}")
    if isinstance(value, str) and not value.strip():
        raise SlurmError(f"{where}: {key} is empty; give a text or leave the key out")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise SlurmError(f"{where}: {key} is {value!r}; allowed: {', '.join(_CHOICES[key])}")
    low, high = _ALLOWED.get(key, (-math.inf, math.inf))
    if isinstance(value, int | float) and not low <= value <= high:
        raise SlurmError(f"{where}: {key} is {value}; allowed: {low} to {high}")
    return value


def _extra(value: Any, where: str) -> dict[str, str | bool]:
    """Return sbatch options given as a table or as a list of `--option=value`."""
    options: dict[str, str | bool] = {}
    if isinstance(value, dict):
        options = {str(key).lstrip("-").replace("_", "-"): v if v is True else str(v) for key, v in value.items()}
    elif isinstance(value, list):
        for text in value:
            found = _OPTION.fullmatch(text) if isinstance(text, str) else None
            if found is None:
                raise SlurmError(f"{where}: extra has {text!r}; write sbatch's long options, such as --mail-type=FAIL")
            options[found[1]] = True if found[2] is None else found[2]
    else:
        raise SlurmError(f"{where}: extra is {value!r}; give a list such as ['--mail-type=FAIL'] or a table")
    if owned := sorted(_OWNED.intersection(options)):
        raise SlurmError(f"{where}: extra sets --{owned[0]}, which depthrate sets itself; use the key for it")
    return options
