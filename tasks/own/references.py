"""What a sweep names of the user's own: a network's callable, a data set. Importable without torch.

A sweep file says `task: collapse` and `arch: ./model.py:MLP`; workers are told both, with absolute paths, in one text. A
trial's identity has the names without their folders: what is in the files is told apart by their code and their content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from depthrate.tasks.task import TaskError
from depthrate.tasks.task_code import TaskCode, real_path
from depthrate.tasks.user_code import code_of_file, code_of_installed

OWN, REGRESSION, NEXT_TOKEN = "own", "regression", "next_token"
HOSTS = {"collapse": OWN, OWN: OWN, REGRESSION: REGRESSION, NEXT_TOKEN: NEXT_TOKEN}
"""Tasks that take a network or data of the user's, and the task that such trials are of."""
NAMED = ("arch", "dataset")
DATA_FILES = (".npz", ".parquet")
OWN_PATTERNS = {"arch": ":", "dataset": rf"[:/]|({'|'.join(map(re.escape, DATA_FILES))})$"}
"""What the name of something of the user's has in it, as a regular expression."""


@dataclass(frozen=True)
class OwnReferences:
    """The user's network and data of a sweep, each by an absolute path, or none."""

    arch: str | None = None
    dataset: str | None = None
    task: str = OWN

    @property
    def text(self) -> str:
        """Both in one text, as a worker is told the task."""
        given = {name: value for name in NAMED if (value := getattr(self, name)) is not None}
        return f"{self.task}?{urlencode(given)}" if given else self.task

    @property
    def code_files(self) -> list[Path]:
        """The files whose code is executed."""
        places = [value.rpartition(":")[0] for value in (self.arch, self.dataset) if value is not None and ":" in value]
        return [Path(place) for place in places if place.endswith(".py")]


def code_of_files(references: OwnReferences) -> TaskCode | None:
    """Return the code of the user's files together, which is not executed; null where there are none.

    Raises:
        TaskError: a file is not there, or cannot be read.
    """
    codes = [code_of_file(path) for path in references.code_files]
    if not codes:
        return None
    return replace(codes[0], files=tuple(sorted({path: text for code in codes for path, text in code.files}.items())))


def code_of_references(references: OwnReferences) -> TaskCode | None:
    """Return the code that the references execute, without executing it: of files, or else of an installed module.

    Raises:
        TaskError: a file is not there, or cannot be read.
    """
    if (code := code_of_files(references)) is not None:
        return code
    named = [value for value in (references.arch, references.dataset) if value is not None and ":" in value]
    return code_of_installed(named[0].rpartition(":")[0]) if named else None


def names_own(text: str) -> bool:
    """Whether a task's text is one that `OwnReferences.text` writes."""
    task, separator, _ = text.partition("?")
    return text == OWN or bool(separator and task in HOSTS.values())


def references_of_text(text: str) -> OwnReferences:
    """Return what `OwnReferences.text` has written."""
    task, _, named = text.partition("?")
    return OwnReferences(**dict(parse_qsl(named)), task=task)


def is_own(name: str, value: Any) -> bool:
    """Whether a value of `arch` or `dataset` names something of the user's, not one of ours."""
    return isinstance(value, str) and re.search(OWN_PATTERNS[name], value) is not None


def absolute_reference(value: str, folder: Path) -> str:
    """Return it with a relative path made absolute; a module's name stays."""
    where, separator, name = value.rpartition(":")
    if not separator:
        return str(real_path(folder / value))
    return f"{real_path(folder / where)}:{name}" if where.endswith(".py") else value


def require_no_file_meant(name: str, value: Any, folder: Path) -> None:
    """Check that a value which names nothing of the user's is not meant to: a file or folder beside the sweep.

    Raises:
        TaskError: there is one of that name, and nothing of ours.
    """
    if name != "dataset" or not isinstance(value, str) or not re.fullmatch(r"[\w. -]{1,100}", value):
        return
    if is_own(name, value) or not (folder / value).exists():
        return
    from depthrate.tasks.data.markov import MARKOV
    from depthrate.tasks.data.published import PUBLISHED

    if value not in (*PUBLISHED, MARKOV):
        raise TaskError(
            f"dataset is {value!r}, which is no published data set; for the file or folder of that name give ./{value}"
        )


def short_name(value: str) -> str:
    """Return the name that a trial has it by: `model:MLP`, `mine.npz`."""
    where, separator, name = value.rpartition(":")
    if not separator:
        return Path(value).name
    return f"{Path(where).stem if where.endswith('.py') else where}:{name}"


def references_of_sweep(task: str, parts: Iterable[Mapping[str, Any]], folder: Path) -> OwnReferences | None:
    """Return what the parts of a sweep (params, grids ...) name of the user's; null where it is none or the task takes none.

    Raises:
        TaskError: they name several networks or several data sets, which may have different parameters.
    """
    if task not in HOSTS:
        return None
    named: dict[str, str | None] = {}
    for name in NAMED:
        values = [value for part in parts if name in part for value in _values(part[name])]
        own = list(dict.fromkeys(absolute_reference(value, folder) for value in values if is_own(name, value)))
        if len(own) > 1 or (own and len(values) > sum(is_own(name, value) for value in values)):
            raise TaskError(
                f"{name} is {', '.join(map(str, values))}; a sweep takes one {name} of your own, since each has parameters of "
                "its own: give a sweep to each, in one store"
            )
        named[name] = own[0] if own else None
    references = OwnReferences(**named, task=HOSTS[task])
    if len({path.parent for path in references.code_files}) > 1:
        raise TaskError(
            f"{' and '.join(map(str, references.code_files))} lie in two folders; put them into one, from which what they "
            "import is found"
        )
    return references if any(named.values()) or task == OWN else None


def _values(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]
