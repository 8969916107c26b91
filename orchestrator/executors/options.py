"""The options of a launch: each declared once, here or with its executor; commands, notebooks and jobs follow from that.

To add one: a field of `LaunchOptions` (an `Option` of an `ExecutorEntry` where one executor alone has it), and its use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, Self

from depthrate.deprecated import LAUNCH_OPTIONS, rename_launch_options, warn_renamed
from depthrate.tasks.interface import Engine


class OptionError(ValueError):
    """An option of a launch is unknown or has a value that is not allowed."""


@dataclass(frozen=True)
class Option:
    """An option, as it is declared: `packs_per_gpu` is --packs-per-gpu, and packs_per_gpu=4 in a notebook."""

    name: str
    type: type
    doc: str
    default: Any = None
    minimum: float | None = None
    metavar: str | None = None
    is_list: bool = False
    """Whether it is given any number of times."""
    of_plan: bool = True
    """Whether `depthrate plan` has it too."""

    @property
    def flag(self) -> str:
        """How it is written on the command line."""
        return f"--{self.name.rstrip('_').replace('_', '-')}"

    def check(self, value: Any) -> None:
        """Refuse a value that the command line would refuse.

        Raises:
            OptionError: naming what is allowed.
        """
        if self.is_list or (value is None and self.default is None):
            return
        allowed = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[self.type]
        kinds = (int, float) if self.type is float else (self.type,)
        is_type = isinstance(value, kinds) and (self.type is bool or not isinstance(value, bool))
        if not is_type or (self.minimum is not None and not value >= self.minimum):
            least = "" if self.minimum is None else f" >= {self.minimum:g}"
            raise OptionError(f"{self.name} is {value!r}; allowed: {allowed}{least}")


def _option(kind: type, doc: str, default: Any = None, **more: Any) -> Any:
    return field(default=default, metadata={"option": {"type": kind, "doc": doc, "default": default} | more})


def _declared(declared: Field[Any]) -> Option | None:
    found = declared.metadata.get("option")
    return None if found is None else Option(declared.name, **found)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What a launch was asked for: built once, from a command line or a notebook, passed on whole, and as JSON into jobs."""

    sweep: str = ""
    """A sweep file, or the name of a shipped or launched sweep."""
    store: str | None = _option(str, "Store: a folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.")
    executor: str = _option(str, "Backend: {executors}.", "local")
    executor_options: Mapping[str, Any] = field(default_factory=dict)
    """The options that executors declare: name -> value or default."""
    workers: int | None = _option(int, "Worker processes. Default: one per GPU, else one per core.")
    device: str = _option(str, "auto (GPUs if available), cpu or cuda.", "auto")
    engine: str | None = _option(str, "Training engine: auto, native, compiled or eager. Default: the sweep's.")
    set_: Sequence[str] = _option(
        str, "Override a parameter. A list makes it an axis of the grid.", (), metavar="KEY=VALUE", is_list=True
    )
    code_version: str | None = _option(str, "Hash of a stored version of the task's code to run.", metavar="HASH")
    detach: bool = _option(bool, "Submit the jobs and exit.", False, of_plan=False)
    checkpoint_seconds: float = _option(
        float, "Seconds of training between checkpoints.", 30.0, minimum=0.0, of_plan=False
    )
    stall_minutes: float | None = _option(
        float, "Minutes without progress before a pack is retried. Default: never.", minimum=0.0, of_plan=False
    )
    rerun: bool = _option(bool, "If the task's code changed, rerun existing trials.", False, of_plan=False)
    keep_results: bool = _option(bool, "If the task's code changed, keep existing results.", False, of_plan=False)
    notify: str | None = _option(str, "Command or URL to call on first failure and on completion.", of_plan=False)
    quiet: bool = _option(bool, "Print only errors, to stderr.", False, of_plan=False)
    pilot: bool = _option(bool, "Run one pack per shape and estimate the cost of the rest.", False, of_plan=False)
    data: str | None = None
    """Where data sets are; null: where this process finds them (DEPTHRATE_DATA)."""

    def __getattr__(self, name: str) -> Any:
        if name not in LAUNCH_OPTIONS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        new = LAUNCH_OPTIONS[name]
        warn_renamed(f"LaunchOptions.{name}", f"LaunchOptions.{new}")
        return getattr(self, new)

    @classmethod
    def declared(cls, of_executors: Sequence[Option]) -> list[Option]:
        """Return all options in the order of --help, those of executors in their place."""
        options: list[Option] = []
        for each in fields(cls):
            options += of_executors if each.name == "executor_options" else filter(None, [_declared(each)])
        return options

    def to_json(self) -> str:
        """Return them as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        return cls(**rename_launch_options(json.loads(text)))


@dataclass(frozen=True, kw_only=True)
class JobOptions(LaunchOptions):
    """What all jobs of a launch share: its options, what they left open decided, and what follows for its jobs."""

    store: str = field()
    data: str = field()
    device: str = field()
    """What packs compute on: cpu or cuda."""
    engine: str = Engine.AUTO
    """How trials train (`tasks.task.Engine`)."""
    code_version: str | None = None
    """The version of the task's source that workers run, as the store keeps it; null for a task that comes with depthrate."""
    accepted_codes: Sequence[str] = ()
    """Other versions that count as this one, so that their checkpoints are gone on from."""
    shares_libraries: bool = False
    """Whether workers leave kernels in the store for nodes without a compiler: where packs run on other machines."""
    git_sha: str | None
    git_dirty: bool | None
    gpu_share: float = 1.0
    """Part of a GPU that a pack has, where it computes on one."""
    beat_s: float | None = None
    """Seconds between two signs of life of an attempt, the longer the more of them run; null: as for one alone."""
