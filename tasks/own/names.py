"""Parameters whose value names something of the user's: written as a path, known by a name without the folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from depthrate.tasks.own.references import is_own, short_name
from depthrate.tasks.schema import Parameter


@dataclass(frozen=True, kw_only=True)
class OwnName(Parameter):
    """`arch` or `dataset`, where it is the user's."""

    def check(self, value: Any) -> Any:
        """Return the name without the folder.

        Raises:
            ParameterError: it is another one.
        """
        return super().check(short_name(value) if is_own(self.name, value) else value)
