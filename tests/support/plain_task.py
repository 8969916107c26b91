"""A task that is said in a test: what it is and does, by name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from depthrate.tasks.interface import Task
from depthrate.tasks.parameters import ParameterSchema


@dataclass(frozen=True, kw_only=True, eq=False)
class PlainTask(Task):
    """Trials of it run, and give nothing."""

    name: str
    version: int = 1
    schema: ParameterSchema
    fused: bool = True
    measurements: tuple[Any, ...] = ()
    does: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Put what is given in `does` before the methods of these names."""
        vars(self).update(self.does)

    def run(self, trials: Any, context: Any) -> Iterator[Any]:
        """Give nothing."""
        return iter(())
