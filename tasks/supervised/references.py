"""A user's network and data as a sweep names them: `arch: ./model.py:MLP`, `dataset: ./mine.npz`. Importable without torch.

Workers load the task from one text with absolute paths. A trial's identity has the names without their folders: the files are
told apart by their code and their content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from depthrate.tasks.code.collect import TaskCode, real_path
from depthrate.tasks.code.load import code_of_file, code_of_installed
from depthrate.tasks.interface import TaskError

CUSTOM = "own"
"""The task of trials on classes with a custom network or custom data, as stores have it."""
HOSTS = {"collapse": CUSTOM, CUSTOM: CUSTOM, "regression": "regression", "next_token": "next_token"}
"""Tasks that take a custom network or custom data -> the task of trials with them."""
REFERENCES = ("arch", "dataset")
"""The parameters that name them."""
DATA_FILES = (".npz", ".parquet")
CUSTOM_PATTERNS = {"arch": ":", "dataset": rf"[:/]|({'|'.join(map(re.escape, DATA_FILES))})$"}
"""Regular expressions that match inside the name of a custom network or custom data."""


@dataclass(frozen=True)
class CustomReferences:
    """The custom network and data of a sweep, each by an absolute path; None: built-in."""

    arch: str | None = None
    dataset: str | None = None
    task: str = CUSTOM

    @property
    def text(self) -> str:
        """Both in one text, by which workers load the task."""
        named = {name: value for name in REFERENCES if (value := getattr(self, name)) is not None}
        return f"{self.task}?{urlencode(named)}" if named else self.task

    @property
    def callables(self) -> list[str]:
        """The places of the callables: files or installed modules."""
        return [value.rpartition(":")[0] for value in (self.arch, self.dataset) if value is not None and ":" in value]

    @property
    def code_files(self) -> list[Path]:
        """The files whose code is executed."""
        return [Path(place) for place in self.callables if place.endswith(".py")]

    def code(self) -> TaskCode | None:
        """Return the code that they execute, of files or else of an installed module, without executing it.

        Raises:
            TaskError: a file does not exist or cannot be read.
        """
        if codes := [code_of_file(path) for path in self.code_files]:
            files = {path: text for code in codes for path, text in code.files}
            return replace(codes[0], files=tuple(sorted(files.items())))
        return code_of_installed(self.callables[0]) if self.callables else None


def is_custom_task_text(text: str) -> bool:
    """Return whether `CustomReferences.text` writes a task's text like this."""
    task, separator, _ = text.partition("?")
    return text == CUSTOM or bool(separator and task in HOSTS.values())


def parse_references(text: str) -> CustomReferences:
    """Return the references that `CustomReferences.text` has written."""
    task, _, named = text.partition("?")
    return CustomReferences(**dict(parse_qsl(named)), task=task)


def is_custom(name: str, value: Any) -> bool:
    """Return whether a value of `arch` or `dataset` names a custom network or data."""
    return isinstance(value, str) and re.search(CUSTOM_PATTERNS[name], value) is not None


def absolute_reference(value: str, folder: Path) -> str:
    """Return the reference with a relative path made absolute. A module's name stays."""
    where, separator, name = value.rpartition(":")
    if not separator:
        return str(real_path(folder / value))
    return f"{real_path(folder / where)}:{name}" if where.endswith(".py") else value


def require_no_file_meant(name: str, value: Any, folder: Path) -> None:
    """Check that a built-in name does not mean a file or folder beside the sweep.

    Raises:
        TaskError: one of that name exists, and no published data set has the name.
    """
    if name != "dataset" or not isinstance(value, str) or not re.fullmatch(r"[\w. -]{1,100}", value):
        return
    if is_custom(name, value) or not (folder / value).exists():
        return
    from depthrate.tasks.data.markov import MARKOV
    from depthrate.tasks.data.published import PUBLISHED

    if value not in (*PUBLISHED, MARKOV):
        raise TaskError(
            f"dataset is {value!r}, which is no published data set; for the file or folder of that name give ./{value}"
        )


def short_name(value: str) -> str:
    """Return a reference as a trial has it: `model:MLP`, `mine.npz`."""
    where, separator, name = value.rpartition(":")
    if not separator:
        return Path(value).name
    return f"{Path(where).stem if where.endswith('.py') else where}:{name}"


def find_references(task: str, parts: Iterable[Mapping[str, Any]], folder: Path) -> CustomReferences | None:
    """Return the references in the parts of a sweep (params, grids ...); None without any, or if the task takes none.

    Raises:
        TaskError: they name several networks or several data sets, which may have different parameters.
    """
    if task not in HOSTS:
        return None
    named: dict[str, str | None] = {}
    for name in REFERENCES:
        values = [value for part in parts if name in part for value in _values(part[name])]
        custom = list(dict.fromkeys(absolute_reference(value, folder) for value in values if is_custom(name, value)))
        if len(custom) > 1 or (custom and len(values) > sum(is_custom(name, value) for value in values)):
            raise TaskError(
                f"{name} is {', '.join(map(str, values))}; a sweep takes one {name} of your own, since each has parameters of "
                "its own: give a sweep to each, in one store"
            )
        named[name] = custom[0] if custom else None
    references = CustomReferences(**named, task=HOSTS[task])
    if len({path.parent for path in references.code_files}) > 1:
        raise TaskError(
            f"{' and '.join(map(str, references.code_files))} lie in two folders; put them into one, from which what they "
            "import is found"
        )
    return references if any(named.values()) or task == CUSTOM else None


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
