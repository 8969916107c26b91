"""A cluster's profile: what a job asks for, from a TOML file, checked before anything is submitted."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from depthrate.slurm.command import SlurmError

GRACE_S = 90.0
"""How long after a job is over what it wrote may still be on its way: a shared file system shows it late."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What each job asks SLURM for (slurm/example.toml explains each key)."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: tuple[str, ...] = ()
    gpus: int = 0
    cpus: int = 1
    mem_gb: float = 4.0
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
    grace_s: float = GRACE_S
    folder: str | None = None
    python: str | None = None
    setup: tuple[str, ...] = ()
    extra: dict[str, str | bool] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Packs that run at once in a job: one a GPU if it has any, else one a CPU."""
        return self.gpus or self.cpus

    def worker_mem_gb(self, device: str) -> float | None:
        """Return the memory of one pack: its GPU's, if that is known, or its share of the job's."""
        return self.gpu_mem_gb if device == "cuda" else self.mem_gb / self.slots

    @property
    def warning_s(self) -> int:
        """Seconds before the time limit at which a job is told to save its state."""
        if self.signal_s is not None:
            return self.signal_s
        return max(15, min(120, self.walltime_min * 15))


_ALLOWED: dict[str, tuple[float, float]] = {
    "gpus": (0, 64),
    "cpus": (1, 1024),
    "mem_gb": (0.1, 100_000),
    "gpu_mem_gb": (0.1, 10_000),
    "walltime_min": (1, 525_600),
    "nodes": (1, 10_000),
    "array_parallelism": (1, 100_000),
    "max_submitted": (1, 1_000_000),
    "job_min": (0.0, 525_600),
    "signal_s": (5, 86_400),
    "grace_s": (0.0, 3_600.0),
}
_IN_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_OWNED = frozenset(
    [
        *("array", "job-name", "output", "error", "open-mode", "requeue", "no-requeue", "signal", "parsable", "wrap"),
        *("nodes", "ntasks", "ntasks-per-node", "time", "partition", "account", "qos", "constraint", "exclude"),
        *("gpus-per-node", "cpus-per-task", "mem"),
    ]
)
"""sbatch options that have a key of their own or that the submission needs as it sets them."""
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?")


def load_profile(path: str | None) -> Profile:
    """Read a cluster file; without one, ask for one CPU, 4 GB and an hour on the cluster's default partition.

    Raises:
        SlurmError: the file is missing or no TOML, or a key or value is not allowed.
    """
    if path is None:
        return Profile()
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SlurmError(f"cluster file {path}: {error.strerror}; slurm/example.toml is one to copy") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SlurmError(f"cluster file {path} is not TOML: {error}") from None
    return make_profile(content, path)


def make_profile(content: dict[str, Any], where: str) -> Profile:
    """Check the keys and values of a cluster file.

    Raises:
        SlurmError: naming the key, what was given and what is allowed.
    """
    hints = typing.get_type_hints(Profile)
    known = [each.name for each in dataclasses.fields(Profile)]
    fields: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise SlurmError(f"{where}: unknown key {key!r}{meant}; allowed: {', '.join(known)}")
        fields[key] = _extra(value, where) if key == "extra" else _checked(key, value, hints[key], where)
    return Profile(**fields)


def _checked(key: str, value: Any, hint: Any, where: str) -> Any:
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
        raise SlurmError(f"{where}: {key} is {value!r}; give {_IN_WORDS[kinds[0]]}")
    if isinstance(value, str) and not value.strip():
        raise SlurmError(f"{where}: {key} is empty; give a text or leave the key out")
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
