"""Launch options, declared once here or with their executor. Commands and notebooks derive from them.

To add an option, add a field to `LaunchOptions`, or an `Option` to an `ExecutorEntry` if only one executor has it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from depthrate.errors import InputError
from depthrate.tasks.interface import Engine
from depthrate.tasks.parameters import Parameter, ParameterError, text_fault


class OptionError(InputError):
    """A launch option is unknown or has an invalid value."""


@dataclass(frozen=True, kw_only=True)
class Option(Parameter):
    """Declaration of an option: `packs_per_gpu` is --packs-per-gpu, and packs_per_gpu=4 in a notebook."""

    default: Any = None
    metavar: str | None = None
    is_list: bool = False
    """True if the option may be repeated."""
    in_plan: bool = True
    """True if `depthrate plan` has the option too."""

    @property
    def flag(self) -> str:
        """Flag on the command line."""
        return f"--{self.name.rstrip('_').replace('_', '-')}"

    def check(self, value: Any) -> Any:
        """Return the value in its canonical type.

        Raises:
            OptionError: The value has the wrong type or is too small.
        """
        if self.is_list or (value is None and self.default is None):
            return value
        try:
            return super().check(value)
        except ParameterError:
            raise OptionError(f"{self.name} is {value!r}, expected {self.allowed}{text_fault(value)}") from None


def _option(kind: type, doc: str, default: Any = None, **more: Any) -> Any:
    return field(default=default, metadata={"kind": kind.__name__, "doc": doc, "default": default} | more)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of one launch, from a command line or a notebook."""

    sweep: str = ""
    """Sweep file, or name of a shipped or launched sweep."""
    store: str | None = _option(str, "Store (any fsspec URL). Default: DEPTHRATE_STORE, else ./results.")
    executor: str = _option(str, "Backend: {executors}.", "local")
    executor_options: Mapping[str, Any] = field(default_factory=dict)
    """Options declared by executors: name -> value or default."""
    workers: int | None = _option(int, "Worker processes. Default: one per GPU, else one per core.")
    device: str = _option(str, "auto (GPUs if available), cpu or cuda.", "auto")
    engine: str | None = _option(str, "auto, native or eager. Default: the sweep's engine.")
    set_: Sequence[str] = _option(
        str, "Replace a parameter. A list becomes a grid axis.", (), metavar="KEY=VALUE", is_list=True
    )
    code_version: str | None = _option(str, "Hash of a stored version of the task's code to run.", metavar="HASH")
    detach: bool = _option(bool, "Submit and exit. The jobs keep running.", False, in_plan=False)
    checkpoint_seconds: float = _option(
        float, "Seconds of training between checkpoints.", 30.0, minimum=0.0, in_plan=False
    )
    stall_minutes: float | None = _option(
        float, "Minutes without progress before a pack is retried. Default: never.", minimum=0.0, in_plan=False
    )
    rerun: bool = _option(bool, "If the task's code changed, rerun existing trials.", False, in_plan=False)
    keep_results: bool = _option(bool, "If the task's code changed, keep existing results.", False, in_plan=False)
    notify: str | None = _option(str, "Command or URL to call on first failure and on completion.", in_plan=False)
    report: bool = _option(bool, "Write the report, report.html, at the end.", False, in_plan=False)
    quiet: bool = _option(bool, "Print only errors, on stderr. Check the exit code.", False, in_plan=False)
    pilot: bool = _option(bool, "Run one pack per shape and estimate the cost of the rest.", False, in_plan=False)

    @classmethod
    def declared(cls, of_executors: Sequence[Option]) -> list[Option]:
        """Return all options in the order of --help, including executors' options."""
        options: list[Option] = []
        for declared in fields(cls):
            own = [Option(name=declared.name, **declared.metadata)] if declared.metadata else []
            options += of_executors if declared.name == "executor_options" else own
        return options


@dataclass(frozen=True, kw_only=True)
class JobOptions(LaunchOptions):
    """Options of all jobs of a launch: the resolved launch options, and values derived from them."""

    store: str = field()
    data: str
    """Folder of the data sets."""
    device: str = field()
    """Device of the packs: cpu or cuda."""
    engine: str = Engine.AUTO
    """Engine of the training (`tasks.interface.Engine`)."""
    code_version: str | None = None
    """Stored version of the task's code that workers run. None for a task that ships with depthrate."""
    accepted_codes: Sequence[str] = ()
    """Code versions that count as equal, so that trials resume from their checkpoints."""
    shares_libraries: bool = False
    """True if workers put compiled kernels into the store, for remote nodes without a compiler."""
    git_sha: str | None
    git_dirty: bool | None
    gpu_share: float = 1.0
    """Share of a GPU per pack, if packs run on a GPU."""
    beat_s: float | None = None
    """Seconds between heartbeats of an attempt. None means the interval of workers on the launch's machine."""
