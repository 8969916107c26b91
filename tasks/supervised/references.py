"""References to a user's network, data and metrics: `arch: ./model.py:MLP`, `dataset: ./mine.npz`, `measure: ./m.py:f`.

Importable without torch. Workers load the task from a single string with absolute paths. A trial's identity contains the names
without folders, since code and content identify the files.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from depthrate.tasks.code.collect import real_path
from depthrate.tasks.code.load import code_of_file, code_of_installed
from depthrate.tasks.interface import CUSTOM, TaskCode, TaskError
from depthrate.tasks.measures.named_columns import PARAMETER, split_measure

HOSTS = {"collapse": CUSTOM, CUSTOM: CUSTOM, "regression": "regression", "next_token": "next_token"}
"""Tasks that take a custom network or data -> the task of the resulting trials."""
REFERENCES = ("arch", "dataset")
"""Parameters that name a custom network or data."""
DATA_FILES = (".npz", ".parquet")
CUSTOM_PATTERNS = {"arch": ":", PARAMETER: ":", "dataset": rf"[:/]|({'|'.join(map(re.escape, DATA_FILES))})$"}
"""Regular expressions that match inside the name of a custom network, custom data or a custom metric."""


@dataclass(frozen=True)
class CustomReferences:
    """Custom network, data and metrics of a sweep, with absolute paths. None stands for a built-in network or data."""

    arch: str | None = None
    dataset: str | None = None
    task: str = CUSTOM
    measure: str | None = None
    """Custom metrics, separated by commas."""

    @property
    def text(self) -> str:
        """String with all references, from which workers load the task."""
        references = {name: value for name in (*REFERENCES, PARAMETER) if (value := getattr(self, name)) is not None}
        return f"{self.task}?{urlencode(references)}" if references else self.task

    @property
    def callables(self) -> list[str]:
        """Locations of the callables: files or installed modules."""
        values = (self.arch, self.dataset, *split_measure(self.measure))
        return [value.rpartition(":")[0] for value in values if value is not None and ":" in value]

    @property
    def code_files(self) -> list[Path]:
        """Files whose code is executed."""
        return [Path(location) for location in self.callables if location.endswith(".py")]

    def code(self) -> TaskCode | None:
        """Read the code that they execute, from files or else from an installed module, without executing it.

        Raises:
            TaskError: A file does not exist or cannot be read.
        """
        if codes := [code_of_file(path) for path in self.code_files]:
            files = {path: text for code in codes for path, text in code.files}
            return replace(codes[0], files=tuple(sorted(files.items())))
        return code_of_installed(self.callables[0]) if self.callables else None


def is_custom_task_text(text: str) -> bool:
    """Return whether a string has the form of `CustomReferences.text`."""
    task, separator, _ = text.partition("?")
    return text == CUSTOM or bool(separator and task in HOSTS)


def parse_references(text: str) -> CustomReferences:
    """Parse `CustomReferences.text`."""
    task, _, query = text.partition("?")
    return CustomReferences(**dict(parse_qsl(query)), task=task)


def is_custom(name: str, value: Any) -> bool:
    """Return whether a value of `arch`, `dataset` or `measure` names a custom network, data or metric."""
    return isinstance(value, str) and re.search(CUSTOM_PATTERNS[name], value) is not None


def absolute_reference(value: str, folder: Path) -> str:
    """Make a relative path in a reference absolute. The name of a module is unchanged."""
    location, separator, name = value.rpartition(":")
    if not separator:
        return str(real_path(folder / value))
    return f"{real_path(folder / location)}:{name}" if location.endswith(".py") else value


def replace_references(name: str, value: str, change: Callable[[str], str]) -> str:
    """Change the reference in a parameter's value, or each one in `measure`."""
    parts = split_measure(value) if name == PARAMETER else [value]
    return ", ".join(change(part) if is_custom(name, part) else part for part in parts)


def require_no_file_meant(name: str, value: Any, folder: Path) -> None:
    """Check that an unknown built-in name is not a file or folder next to the sweep.

    Raises:
        TaskError: A file or folder has the name, and no published data set does.
    """
    if name != "dataset" or not isinstance(value, str) or not re.fullmatch(r"[\w. -]{1,100}", value):
        return
    if is_custom(name, value) or not (folder / value).exists():
        return
    from depthrate.tasks.data.markov import MARKOV
    from depthrate.tasks.data.published import PUBLISHED

    if value not in (*PUBLISHED, MARKOV):
        raise TaskError(
            f"dataset is {value!r}, which is not a published data set. For the file or folder, write ./{value}."
        )


def short_name(value: str) -> str:
    """Shorten a reference to its form in a trial: `model:MLP`, `mine.npz`."""
    location, separator, name = value.rpartition(":")
    if not separator:
        return Path(value).name
    return f"{Path(location).stem if location.endswith('.py') else location}:{name}"


def find_references(task: str, parts: Iterable[Mapping[str, Any]], folder: Path) -> CustomReferences | None:
    """Find the references in the parts of a sweep (params, grids ...). Return None if there are none or the task takes none.

    Raises:
        TaskError: They name several networks or data sets, which may have different parameters.
    """
    if task not in HOSTS:
        return None
    references: dict[str, str | None] = {}
    for name in REFERENCES:
        values = [value for part in parts if name in part for value in _values(part[name])]
        custom = list(dict.fromkeys(absolute_reference(value, folder) for value in values if is_custom(name, value)))
        if len(custom) > 1 or (custom and len(values) > sum(is_custom(name, value) for value in values)):
            raise TaskError(
                f"{name} is {', '.join(map(str, values))}, but a sweep takes one custom {name}, since each has its own "
                "parameters. Write one sweep for each, in one store."
            )
        references[name] = custom[0] if custom else None
    values = [value for part in parts if PARAMETER in part for value in _values(part[PARAMETER])]
    metrics = [name for value in values if is_custom(PARAMETER, value) for name in split_measure(value) if ":" in name]
    if metrics:
        references[PARAMETER] = ",".join(dict.fromkeys(absolute_reference(name, folder) for name in metrics))
    is_built_in = not any(references[name] for name in REFERENCES)
    result = CustomReferences(**references, task=task if is_built_in else HOSTS[task])
    if len({path.parent for path in result.code_files}) > 1:
        raise TaskError(
            f"{' and '.join(map(str, result.code_files))} are in two folders. Move them to one folder, so that their imports "
            "are found."
        )
    return result if any(references.values()) or task == CUSTOM else None


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
