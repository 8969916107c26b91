"""From a sweep file, a Python file or a spec to a sweep, with `--set` overrides."""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
import runpy
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from depthrate.sweeps.atlas import PREFIX, sweep_of_figure
from depthrate.sweeps.errors import NoSweepFileError, SweepError, kind_of, require_keys
from depthrate.sweeps.spec import KEYS, NAME, Search, SweepSpec, figure_request, fit_request
from depthrate.sweeps.trial import canonical_json
from depthrate.tasks.code.collect import real_path
from depthrate.tasks.code.load import code_of_file, require_trust
from depthrate.tasks.loading import absolute_task_name
from depthrate.tasks.parameters import format_value
from depthrate.tasks.supervised.references import (
    HOSTS,
    REFERENCES,
    absolute_reference,
    is_custom,
    require_no_file_meant,
)

MAX_SWEEP_FILE_BYTES = 2**26
"""Of a sweep file: a million trials written out have less."""
SHIPPED = Path(__file__).parent
_ORDER = "in the print Figure 2 is over epochs, and Figure 5 over lambda"
RENAMED = {
    "converged": ("polished", "none of its trials is at an optimum; depthrate run optimum has such trials"),
    **{
        f"papers/pfc/figure2{rest}": (f"papers/pfc/figure5{rest}", _ORDER)
        for rest in ("", "-small", "-descent", "-descent-small")
    },
}
"""Shipped sweeps by the names they had -> the name now, and why. Trials are the same, whatever their sweep is called."""
_OF_TRIALS = ("params", "grid", "zip", "grids", "include", "exclude")
"""Where a sweep gives parameters their values."""
_OVERRIDDEN = ("params", "grid", "zip", "grids", "include", "derive")
"""Where --set takes out what the file says of a parameter."""
_BY_PARAMETER = ("params", "grid", "zip", "derive")
"""Where a file that has a base says of single parameters what is otherwise."""
_SAME_TRIALS = ("name", "max_trials", "engine")
"""What --set may change of a sweep that stays the same sweep."""
MAX_VARIANT_LENGTH = 40
"""Letters that --set adds to a sweep's name."""


class SweepRenamedWarning(UserWarning):
    """A shipped sweep was asked for by a name that it had once."""


def parse_yaml(text: str) -> Any:
    """Read YAML the way sweep files are read.

    Raises:
        SweepError: the text is not YAML, a key stands twice, or its aliases stand for more than memory should hold.
    """
    from depthrate.sweeps.yaml_file import read_yaml  # half of this module's start-up, and most commands read no YAML

    return read_yaml(text)


def find_sweep_file(given: str) -> Path:
    """Return the sweep file: a path, or the name of one that comes with depthrate.

    Raises:
        NoSweepFileError: there is no such file; the message says which are shipped.
        SweepError: it is a folder.
    """
    path = Path(given)
    if path.is_file():
        return path
    shipped = _shipped()
    if given.startswith(PREFIX):
        given = sweep_of_figure(given.removeprefix(PREFIX)) or given
    if given in RENAMED:
        name, why = RENAMED[given]
        warnings.warn(f"the sweep {given} is called {name} now: {why}", SweepRenamedWarning, stacklevel=2)
        given = name
    if given in shipped:
        return shipped[given]
    if inside := sweeps_in_folder(given):
        raise SweepError(
            f"{given} is a folder of sweeps (depthrate plan {given} costs them); give one of: {', '.join(inside)}"
        )
    if given and path.is_dir():
        raise SweepError(f"{given} is a folder without sweep files; give a sweep file")
    folders = Counter(name.rpartition("/")[0] for name in shipped)
    top = [name for name in shipped if "/" not in name]
    below = [f"{count} below {folder}/" for folder, count in folders.items() if folder]
    hint = nearest_file(given, [*shipped, *map(str, path.parent.glob("*.yaml"))])
    raise NoSweepFileError(
        f"sweep file {given!r} does not exist (looked in {Path.cwd()}){hint}; "
        f"shipped sweeps: {', '.join(sorted(top) + sorted(below))} (depthrate plan papers/ names these)"
    )


def nearest_file(name: str, known: Iterable[str]) -> str:
    """Return a hint as `nearest` does, comparing the names without their common ending."""
    stems = {candidate.removesuffix(".yaml"): candidate for candidate in known}
    matches = difflib.get_close_matches(name.removesuffix(".yaml"), stems, n=1, cutoff=0.6)
    return f"; did you mean {stems[matches[0]]!r}?" if matches else ""


def sweeps_in_folder(given: str) -> list[str]:
    """Return the names, for `load_sweep`, of the sweeps in a folder of the user's or of the shipped ones."""
    if not given:
        return []
    if (folder := Path(given)).is_dir():
        return sorted(str(file) for file in folder.glob("*.yaml"))
    below = SHIPPED / given
    return sorted(_shipped(below)) if below.is_dir() else []


def _shipped(below: Path = SHIPPED) -> dict[str, Path]:
    return {file.relative_to(SHIPPED).with_suffix("").as_posix(): file for file in below.rglob("*.yaml")}


def load_sweep(given: str, overrides: Mapping[str, Any] | None = None) -> SweepSpec:
    """Read a sweep file, or call `file.py:function` for a Sweep, and apply `--set` overrides.

    Raises:
        SweepError: the file is missing, is not YAML, or does not describe a sweep.
    """
    path_text, _, function = given.partition(".py:")
    path = find_sweep_file(path_text + ".py" if function else given)
    if not function and path.suffix == ".py":
        raise SweepError(_which_function(path))
    try:
        content = _spec_of_function(path, function) if function else _upon_base(parse_yaml(_text_of(path)), path)
        return sweep_of_spec(_override(content, overrides or {}), folder=path.parent)
    except (SweepError, UnicodeDecodeError) as error:
        raise SweepError(f"{path}: {error}") from None


def _upon_base(content: Any, path: Path, above: tuple[Path, ...] = ()) -> Any:
    """Return what a file holds, with what its base holds where it says nothing else.

    A parameter of the file stands in place of all that the base says of it, wherever in the base that is; of the other keys
    that of the file replaces the base's, and null takes it away. Paths of the base are relative to the base.

    Raises:
        SweepError: the base is no sweep, or rests on the file itself.
        NoSweepFileError: there is no such base.
    """
    if not isinstance(content, Mapping) or content.get("base") is None:
        return content
    given = content["base"]
    if not isinstance(given, str):
        raise SweepError(f"base is {kind_of(given)}; give another sweep, a file or the name of a shipped one")
    if not isinstance(content.get("name"), str):
        raise SweepError(
            f"base is {given}, and there is no name; what has other trials is another sweep, give it a name"
        )
    beside = path.parent / given
    base = beside if beside.is_file() else find_sweep_file(given)
    files = (*above, path.resolve())
    if base.resolve() in files:
        raise SweepError(f"base is {given}, which rests on this file itself; give another sweep")
    try:
        inner = _upon_base(parse_yaml(_text_of(base)), base, files)
        held = sweep_of_spec(inner, folder=base.parent).spec()
    except (SweepError, UnicodeDecodeError) as error:
        raise SweepError(f"base {base}: {error}") from None
    own = {key: value for key, value in content.items() if key != "base"}
    parts = [key for key in _BY_PARAMETER if isinstance(own.get(key), Mapping)]
    for name in [name for key in parts for name in own[key]]:
        held = {key: _without(name, part) if key in _OVERRIDDEN else part for key, part in held.items()}
    return {**held, **own, **{key: {**(held.get(key) or {}), **own[key]} for key in parts}}


def changed_sweep(sweep: SweepSpec, overrides: Mapping[str, Any]) -> SweepSpec:
    """Return a sweep with `--set` overrides.

    Raises:
        SweepError: it is none any more.
    """
    return sweep_of_spec(_override(sweep.spec(), overrides)) if overrides else sweep


def _text_of(path: Path) -> str:
    """Return the text of a file.

    Raises:
        SweepError: it is larger than a sweep file can be.
        UnicodeDecodeError: it is no text.
    """
    with path.open("rb") as file:
        content = file.read(MAX_SWEEP_FILE_BYTES + 1)
    if len(content) > MAX_SWEEP_FILE_BYTES:
        raise SweepError(f"more than {MAX_SWEEP_FILE_BYTES >> 20} MB, which no sweep file has")
    return content.decode()


def _which_function(path: Path) -> str:
    """Say how the sweep is named that a Python file makes, without running the file."""
    try:
        tree = ast.parse(_text_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{path} cannot be read as Python: {error}"
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    there = f"its functions: {', '.join(names)}" if names else "it has none"
    call = f"{path}:{(names or ['wd'])[0]}"
    return f"{path} is Python; name the function in it that returns a depthrate.Sweep, as in {call} ({there})"


def sweep_of_spec(content: Any, folder: Path | None = None) -> SweepSpec:
    """Build a sweep from the mapping a sweep file holds; a task file is looked up in `folder`.

    Raises:
        SweepError: a key is unknown or has the wrong form.
    """
    if not isinstance(content, Mapping):
        raise SweepError(f"a sweep is a mapping with the keys {', '.join(KEYS)}; this is {kind_of(content)}")
    require_keys(content, KEYS, "the sweep")
    for key in ("name", "task"):
        if not isinstance(content.get(key), str):
            raise SweepError(f"key {key!r} is {kind_of(content.get(key))}; a sweep needs a text there")
    if not re.fullmatch(NAME, content["name"]):
        raise SweepError(
            f"name {format_value(content['name'])} cannot name a folder; allowed: letters, digits, '_', '-', '.', at most 100"
        )
    given = {key: value for key, value in content.items() if value is not None}
    if given.get("base"):
        raise SweepError(
            "base is for sweep files, which say beside which file it lies; in Python change what load returns"
        )
    entries: dict[str, Callable[[Mapping[str, Any]], Any]] = {"fit": fit_request, "figures": figure_request}
    for key, read in entries.items():
        if isinstance(given.get(key), list | tuple):
            given[key] = [read(entry) if isinstance(entry, Mapping) else entry for entry in given[key]]
    if "search" in given:
        given["search"] = Search.read(given["search"], "search", "search.")
    folder = folder or Path.cwd()
    sweep = SweepSpec.read(given, "the sweep")
    changes = _absolute_references(sweep, folder) if sweep.task in HOSTS else {}
    return sweep.replace(task=absolute_task_name(sweep.task, folder), **changes)


def _absolute_references(sweep: SweepSpec, folder: Path) -> dict[str, Any]:
    """Return the parts of a sweep in which the paths of the user's network and data are absolute."""

    def absolute(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(name, item) for item in value]
        require_no_file_meant(name, value, folder)
        return absolute_reference(value, folder) if is_custom(name, value) else value

    def changed(part: Any) -> Any:
        if isinstance(part, list | tuple):
            return type(part)(map(changed, part))
        if not isinstance(part, Mapping):
            return part
        return {name: absolute(name, value) if name in REFERENCES else value for name, value in part.items()}

    return {key: changed(getattr(sweep, key)) for key in _OF_TRIALS}


def _spec_of_function(path: Path, name: str) -> dict[str, Any]:
    """Call a function in a Python file that returns a Sweep, and return its spec."""
    require_trust(code_of_file(real_path(path)), path)
    try:
        function = runpy.run_path(str(path)).get(name)
        if hasattr(function, "__depthrate_task__"):
            raise SweepError(f"{name!r} is a task, no sweep; name it in a sweep file: task: ./{path.name}:{name}")
        made: Any = function() if callable(function) else None
    except SweepError:
        raise
    except Exception as error:
        raise SweepError(f"{type(error).__name__}: {error}") from error
    if not (isinstance(made, SweepSpec) or type(made).__module__.startswith("depthrate.")):
        raise SweepError(f"{name!r} is not a function that returns a depthrate.Sweep")
    return made.spec()


def _override(content: Any, overrides: Mapping[str, Any]) -> Any:
    """Apply --set: a list becomes an axis of the grid, anything else a fixed parameter; it replaces what the file says.

    What has other trials is another sweep: without a name of its own it is called after what was set.
    """
    if not overrides or not isinstance(content, Mapping):
        return content
    content = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    for name, value in overrides.items():
        if name in ("name", "seeds", "max_trials", "engine"):
            content[name] = value
            continue
        key = name.removeprefix("search.")
        if key != name and isinstance(content.get("search"), Mapping):
            content["search"] = {**content["search"], key: value}
            continue
        content = {key: _without(name, part) if key in _OVERRIDDEN else part for key, part in content.items()}
        if isinstance(content.get("search"), Mapping):
            content["search"] = {**content["search"], "params": _without(name, content["search"].get("params"))}
        place = "grid" if isinstance(value, list | Mapping) else "params"
        if isinstance(content.get(place) or {}, Mapping):
            content[place] = {**(content.get(place) or {}), name: value}
    if "name" not in overrides and isinstance(content.get("name"), str):
        content["name"] += _variant({name: value for name, value in overrides.items() if name not in _SAME_TRIALS})
    return content


def _variant(changes: Mapping[str, Any]) -> str:
    """Return what is added to the name of a sweep for parameters that were set, as in `.steps-60`."""
    changes = {name: value for name, value in changes.items() if not name.startswith("search.")}
    texts = [f"{name}-{canonical_json(value)}" for name, value in changes.items()]
    added = "".join("." + re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-") for text in texts)
    digest = hashlib.sha256(canonical_json(dict(changes)).encode()).hexdigest()[:8]
    return added if len(added) <= MAX_VARIANT_LENGTH else f".{'-'.join(changes)[:MAX_VARIANT_LENGTH]}-{digest}"


def _without(name: str, part: Any) -> Any:
    """Return a part of a sweep file without what it says of one parameter, at any depth."""
    if isinstance(part, Mapping):
        return {key: _without(name, value) for key, value in part.items() if key != name}
    return [_without(name, value) for value in part] if isinstance(part, list) else part
