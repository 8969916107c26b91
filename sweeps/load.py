"""Load a sweep from a sweep file, a Python file or a spec, with `--set` overrides."""

import ast
import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from depthrate.sweeps.atlas import PREFIX, sweep_of_figure
from depthrate.sweeps.errors import NoSweepFileError, SweepError, kind_of, require_keys
from depthrate.sweeps.part import read_section
from depthrate.sweeps.spec import KEYS, NAME, Search, StoredSweep, SweepSpec, figure_request, fit_request, with_code
from depthrate.sweeps.trial import canonical_json
from depthrate.tasks.code.load import load_user_module
from depthrate.tasks.code.parse import parse_source
from depthrate.tasks.loading import absolute_task_name
from depthrate.tasks.measures.named_columns import PARAMETER
from depthrate.tasks.parameters import format_value
from depthrate.tasks.supervised.references import (
    HOSTS,
    REFERENCES,
    absolute_reference,
    is_custom,
    replace_references,
    require_no_file_meant,
)

ASSIGNING_KEYS = ("params", "grid", "zip", "grids", "include", "derive")
"""Keys of a sweep file that assign a parameter. A new value replaces it in all of them."""
_SAME_TRIALS = ("name", "max_trials", "engine")
"""Keys that --set may change without renaming the sweep."""
_TOP_LEVEL = ("seeds", *_SAME_TRIALS)
"""Keys of a sweep file that --set replaces. Other names are parameters."""
MAX_VARIANT_LENGTH = 40
"""Maximum number of characters that --set adds to a sweep's name."""


def override(content: Any, overrides: Mapping[str, Any]) -> Any:
    """Apply --set: a list becomes an axis of the grid, and any other value a fixed parameter. Entries in the file are replaced.

    A sweep with different trials is a different sweep: its name gets a suffix unless --set names it.
    """
    if not overrides or not isinstance(content, Mapping):
        return content
    content = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    for name, value in overrides.items():
        if name in _TOP_LEVEL:
            content[name] = value
            continue
        key = name.removeprefix("search.")
        if key != name and isinstance(content.get("search"), Mapping):
            content["search"] = {**content["search"], key: value}
            continue
        content = {key: without(name, part) if key in ASSIGNING_KEYS else part for key, part in content.items()}
        if isinstance(content.get("search"), Mapping):
            content["search"] = {**content["search"], "params": without(name, content["search"].get("params"))}
        place = "grid" if isinstance(value, list | Mapping) else "params"
        if isinstance(content.get(place) or {}, Mapping):
            content[place] = {**(content.get(place) or {}), name: value}
    if "name" not in overrides and isinstance(content.get("name"), str):
        content["name"] += _variant({name: value for name, value in overrides.items() if name not in _SAME_TRIALS})
    return content


def _variant(changes: Mapping[str, Any]) -> str:
    """Return the suffix of a sweep's name for the parameters that were set, such as `.steps-60`."""
    changes = {name: value for name, value in changes.items() if not name.startswith("search.")}
    texts = [f"{name}-{_text(value)}" for name, value in changes.items()]
    added = "".join("." + re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-") for text in texts)
    digest = hashlib.sha256(_text(dict(changes)).encode()).hexdigest()[:8]
    return added if len(added) <= MAX_VARIANT_LENGTH else f".{'-'.join(changes)[:MAX_VARIANT_LENGTH]}-{digest}"


def _text(value: Any) -> str:
    try:
        return canonical_json(value)
    except (TypeError, ValueError):
        return repr(value)  # refused by the parameter's check


def without(name: str, part: Any) -> Any:
    """Return a part of a sweep file without one parameter, at any depth."""
    if isinstance(part, Mapping):
        return {key: without(name, value) for key, value in part.items() if key != name}
    return [without(name, value) for value in part] if isinstance(part, list) else part


MAX_SWEEP_FILE_BYTES = 2**26
"""Maximum size of a sweep file. A sweep file that lists a million trials is smaller."""
SHIPPED = Path(__file__).parent
_OF_TRIALS = ("params", "grid", "zip", "grids", "include", "exclude")
"""Keys that assign values to parameters."""
_BY_PARAMETER = ("params", "grid", "zip", "derive")
"""Keys that, in a file with a base, override the base per parameter."""


def parse_yaml(text: str) -> Any:
    """Parse YAML with the rules of sweep files.

    Raises:
        SweepError: The file is not YAML, a key is repeated, or its aliases expand to too many values.
    """
    from depthrate.sweeps.yaml_file import read_yaml  # takes half of the import time, and most commands read no YAML

    return read_yaml(text)


def find_sweep_file(sweep_ref: str) -> Path:
    """Find a sweep file by its path or by the name of a shipped sweep.

    Raises:
        NoSweepFileError: The file does not exist. The message lists the shipped sweeps.
        SweepError: The path is a folder.
    """
    path = Path(sweep_ref)
    if path.is_file():
        return path
    shipped = _shipped()
    if sweep_ref.startswith(PREFIX):
        sweep_ref = sweep_of_figure(sweep_ref.removeprefix(PREFIX)) or sweep_ref
    if sweep_ref in shipped:
        return shipped[sweep_ref]
    if inside := sweeps_in_folder(sweep_ref):
        raise SweepError(
            f"{sweep_ref} is a folder of sweeps. Give one of {', '.join(inside)}, or see depthrate plan {sweep_ref}."
        )
    if sweep_ref and path.is_dir():
        raise SweepError(f"{sweep_ref} is a folder without sweep files. Give a sweep file.")
    folders = Counter(name.rpartition("/")[0] for name in shipped)
    top = [name for name in shipped if "/" not in name]
    below = [f"{count} below {folder}/" for folder, count in folders.items() if folder]
    stems = {name.removesuffix(".yaml"): name for name in (*shipped, *map(str, path.parent.glob("*.yaml")))}
    matches = difflib.get_close_matches(sweep_ref.removesuffix(".yaml"), stems, n=1, cutoff=0.6)
    hint = f" (did you mean {stems[matches[0]]!r}?)" if matches else ""
    raise NoSweepFileError(
        f"sweep file {sweep_ref!r} does not exist in {Path.cwd()}{hint}. "
        f"Shipped sweeps: {', '.join(sorted(top) + sorted(below))} (list them: depthrate plan papers/)"
    )


def sweeps_in_folder(folder_ref: str) -> list[str]:
    """List the names, as for `load_sweep`, of the sweeps in a user's folder or in a folder of shipped sweeps."""
    if not folder_ref:
        return []
    if (folder := Path(folder_ref)).is_dir():
        return sorted(str(file) for file in folder.glob("*.yaml"))
    below = SHIPPED / folder_ref
    return sorted(_shipped(below)) if below.is_dir() else []


def _shipped(below: Path = SHIPPED) -> dict[str, Path]:
    return {file.relative_to(SHIPPED).with_suffix("").as_posix(): file for file in below.rglob("*.yaml")}


def load_sweep(sweep_ref: str, overrides: Mapping[str, Any] | None = None) -> SweepSpec:
    """Read a sweep file, or call `file.py:function` for a Sweep, and apply `--set` overrides.

    Raises:
        SweepError: The file is missing, is not YAML, or does not describe a sweep.
    """
    path_text, _, function = sweep_ref.partition(".py:")
    path = find_sweep_file(path_text + ".py" if function else sweep_ref)
    if not function and path.suffix == ".py":
        raise SweepError(_which_function(path))
    try:
        written = _spec_of_function(path, function) if function else parse_yaml(_text_of(path))
        is_whole = isinstance(written, Mapping) and written.get("base") is None  # else null removes a key of the base
        if (is_whole and written.get("seeds", 0) is None) or (overrides or {}).get("seeds", 0) is None:
            raise SweepError(
                "seeds is empty, expected a count or a list of ints. Without the key, the task's seed is used."
            )
        content = written if function else _upon_base(written, path)
        return sweep_of_spec(override(content, overrides or {}), folder=path.parent)
    except (SweepError, UnicodeDecodeError) as error:
        raise SweepError(f"{path}: {error}") from None


def _upon_base(content: Any, path: Path, above: tuple[Path, ...] = ()) -> Any:
    """Merge the content of a file with its base.

    A parameter in the file replaces every entry for that parameter in the base. Any other key in the file replaces the base's
    key, and a value of None removes it. Paths in the base are relative to the base.

    Raises:
        SweepError: The base is not a sweep, or it depends on the file itself.
        NoSweepFileError: The base does not exist.
    """
    if not isinstance(content, Mapping) or content.get("base") is None:
        return content
    base_ref = content["base"]
    if not isinstance(base_ref, str):
        raise SweepError(f"base is {kind_of(base_ref)}, expected a sweep file or the name of a shipped sweep")
    if not isinstance(content.get("name"), str):
        raise SweepError(f"the sweep has base {base_ref} and no name. Other trials make another sweep: give it a name.")
    sibling = path.parent / base_ref
    base = sibling if sibling.is_file() else find_sweep_file(base_ref)
    files = (*above, path.resolve())
    if base.resolve() in files:
        raise SweepError(f"base is {base_ref}, which depends on this file itself. Give another sweep.")
    try:
        inner = _upon_base(parse_yaml(_text_of(base)), base, files)
        base_spec = sweep_of_spec(inner, folder=base.parent).spec()
    except (SweepError, UnicodeDecodeError) as error:
        raise SweepError(f"base {base}: {error}") from None
    changes = {key: value for key, value in content.items() if key != "base"}
    parts = [key for key in _BY_PARAMETER if isinstance(changes.get(key), Mapping)]
    for name in [name for key in parts for name in changes[key]]:
        base_spec = {key: without(name, part) if key in ASSIGNING_KEYS else part for key, part in base_spec.items()}
    return {**base_spec, **changes, **{key: {**(base_spec.get(key) or {}), **changes[key]} for key in parts}}


def changed_sweep(sweep: SweepSpec, overrides: Mapping[str, Any]) -> SweepSpec:
    """Apply `--set` overrides to a sweep.

    Raises:
        SweepError: The result is not a valid sweep.
    """
    changed = sweep_of_spec(override(sweep.spec(), overrides)) if overrides else sweep
    if isinstance(sweep, StoredSweep) and changed.loaded_task == sweep.loaded_task:
        return with_code(changed, sweep.files)
    return changed


def _text_of(path: Path) -> str:
    """Read a file as a string.

    Raises:
        SweepError: The file exceeds `MAX_SWEEP_FILE_BYTES`.
        UnicodeDecodeError: The file is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(MAX_SWEEP_FILE_BYTES + 1)
    if len(content) > MAX_SWEEP_FILE_BYTES:
        raise SweepError(f"the file is larger than {MAX_SWEEP_FILE_BYTES >> 20} MB, the limit for sweep files")
    return content.decode()


def _which_function(path: Path) -> str:
    """Explain how to name the sweep in a Python file, without running the file."""
    try:
        tree = parse_source(_text_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{path} cannot be read as Python: {error}"
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    functions = f"its functions: {', '.join(names)}" if names else "it has no functions"
    call = f"{path}:{(names or ['wd'])[0]}"
    return f"{path} is a Python file. Name its function that returns a depthrate.Sweep, as in {call} ({functions})."


def sweep_of_spec(content: Any, folder: Path | None = None) -> SweepSpec:
    """Build a sweep from the mapping in a sweep file. Task files are relative to `folder`.

    Raises:
        SweepError: A key is unknown or has an invalid value.
    """
    if not isinstance(content, Mapping):
        raise SweepError(f"the sweep is {kind_of(content)}, expected a mapping with the keys {', '.join(KEYS)}")
    require_keys(content, KEYS, "the sweep")
    for key in ("name", "task"):
        if not isinstance(content.get(key), str):
            raise SweepError(f"key {key!r} is {kind_of(content.get(key))}, expected a string")
    if not re.fullmatch(NAME, content["name"]):
        raise SweepError(
            f"name is {format_value(content['name'])}, expected at most 100 letters, digits, '_', '-' or '.'"
        )
    spec = {key: value for key, value in content.items() if value is not None}
    if spec.get("base"):
        raise SweepError("base works in sweep files only. In Python, load the base and change the sweep.")
    entries: dict[str, Callable[[Mapping[str, Any]], Any]] = {"fit": fit_request, "figures": figure_request}
    for key, read in entries.items():
        if isinstance(spec.get(key), list | tuple):
            spec[key] = [read(entry) if isinstance(entry, Mapping) else entry for entry in spec[key]]
    if "search" in spec:
        spec["search"] = read_section(Search, spec["search"], "search", "search.")
    folder = folder or Path.cwd()
    sweep = read_section(SweepSpec, spec, "the sweep")
    changes = _absolute_references(sweep, folder) if sweep.task in HOSTS else {}
    return sweep.replace(task=absolute_task_name(sweep.task, folder), **changes)


def _absolute_references(sweep: SweepSpec, folder: Path) -> dict[str, Any]:
    """Make the paths of custom networks, data and metrics absolute, and return the changed keys."""

    def absolute(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(name, item) for item in value]
        require_no_file_meant(name, value, folder)
        if not is_custom(name, value):
            return value
        return replace_references(name, value, lambda reference: absolute_reference(reference, folder))

    def changed(part: Any) -> Any:
        if isinstance(part, list | tuple):
            return type(part)(map(changed, part))
        if not isinstance(part, Mapping):
            return part
        names = (*REFERENCES, PARAMETER)
        return {name: absolute(name, value) if name in names else value for name, value in part.items()}

    return {key: changed(getattr(sweep, key)) for key in _OF_TRIALS}


def _spec_of_function(path: Path, name: str) -> dict[str, Any]:
    """Call the function of a Python file that makes a Sweep, and return the spec."""
    module, _ = load_user_module(str(path))
    try:
        function = getattr(module, name, None)
        if hasattr(function, "__depthrate_task__"):
            raise SweepError(f"{name!r} is a task, not a sweep. Name it in a sweep file: task: ./{path.name}:{name}")
        sweep: Any = function() if callable(function) else None
    except SweepError:
        raise
    except Exception as error:
        raise SweepError(f"{type(error).__name__}: {error}") from error
    if not (isinstance(sweep, SweepSpec) or type(sweep).__module__.startswith("depthrate.")):
        raise SweepError(f"{name!r} is not a function that returns a depthrate.Sweep")
    return sweep.spec()
