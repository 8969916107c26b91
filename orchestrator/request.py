"""What any command may need: the refusal of what was asked for, where the data is, and the line to call next."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from storage.files import DataFolder


class RequestError(ValueError):
    """Options that contradict each other, or something that is not there."""


def data_folder() -> DataFolder:
    """Return where the data sets are: DEPTHRATE_DATA, else ~/.cache/depthrate."""
    return DataFolder(os.environ.get("DEPTHRATE_DATA") or str(Path.home() / ".cache" / "depthrate"))


def command_line(verb: str, what: str, store: str | None, *options: str) -> str:
    """Return a line to call next, with the same store."""
    return shlex.join(["depthrate", verb, what, *(["--store", store] if store else []), *options])
