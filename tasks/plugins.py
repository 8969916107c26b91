"""Objects registered by entry points: tasks, executors and exporters, built-in and of other packages.

A package registers one in its `pyproject.toml`, as in

    [project.entry-points."depthrate.tasks"]
    pendulum = "depthrate_pendulum:PENDULUM"
"""

import importlib.metadata
import logging
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypeVar

from depthrate.errors import InputError

PROJECT_FILE = Path(__file__).resolve().parents[1] / "pyproject.toml"
"""Declaration of this package in a source tree. An installed package has metadata instead."""

Plugin = TypeVar("Plugin")


class PluginError(InputError):
    """A registered object cannot be found, imported or used."""


def registered_names(group: str, *, builtin: bool = False) -> tuple[str, ...]:
    """Return the names registered in a group, built-in ones first.

    Args:
        group: An entry-point group, as in `depthrate.tasks`.
        builtin: Whether to return built-in names only.
    Raises:
        PluginError: Two packages registered the same name, or this copy of depthrate has no metadata.
    """
    return tuple(name for name, entry in _entry_points(group).items() if is_builtin(entry) or not builtin)


def load_plugin(group: str, name: str, kind: type[Plugin]) -> Plugin:
    """Import a registered object.

    Args:
        group: An entry-point group.
        name: A name registered in it.
        kind: Expected class of the object.
    Raises:
        PluginError: Its module cannot be imported, or the object has another class or name.
    """
    entry = _entry_points(group)[name]
    try:
        plugin = entry.load()
    except Exception as error:
        raise PluginError(
            f"{group} {name!r} cannot be imported from {entry.value} ({type(error).__name__}: {error}). "
            "Repair or uninstall the package that provides it."
        ) from error
    plugin_name = getattr(plugin, "name", name)
    if not isinstance(plugin, kind) or plugin_name != name:
        description = type(plugin).__name__ + ("" if plugin_name == name else f" named {plugin_name!r}")
        raise PluginError(
            f"{group} {name!r} = {entry.value} is a {description}, expected a {kind.__name__} of the registered name"
        )
    return plugin


def load_plugins(group: str, load: Callable[[str], Plugin]) -> dict[str, Plugin]:
    """Import all registered objects of a group: name -> object. Faulty objects of other packages are logged and skipped.

    Args:
        group: An entry-point group.
        load: Function that imports an object by name, like `load_plugin`.
    Raises:
        PluginError: A built-in object is faulty, or a case of `registered_names`.
    """
    plugins = {}
    for name, entry in _entry_points(group).items():
        try:
            plugins[name] = load(name)
        except PluginError as error:
            if is_builtin(entry):
                raise
            logging.getLogger("depthrate").warning("%s", error)
    return plugins


def is_builtin(entry: EntryPoint) -> bool:
    """Return whether an entry point belongs to this package."""
    return entry.value.startswith("depthrate.")


@cache
def _entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Return name -> entry point of a group, built-in ones first."""
    installed = _installed().select(group=group)
    builtin = [entry for entry in installed if is_builtin(entry)] if _source_tree_entries() is None else []
    builtin += [EntryPoint(name, value, group) for name, value in (_source_tree_entries() or {}).get(group, {}).items()]
    if not builtin:
        raise PluginError(
            f"the copy of depthrate in {PROJECT_FILE.parent} has neither metadata nor a pyproject.toml to list its tasks, "
            "executors and exporters. Install it: pip install depthrate, or pip install -e . in a clone."
        )
    by_name: dict[str, EntryPoint] = {}
    for entry in (*builtin, *(entry for entry in installed if not is_builtin(entry))):
        if (other := by_name.setdefault(entry.name, entry)).value != entry.value:
            raise PluginError(
                f"{group} {entry.name!r} is registered twice, as {other.value} and as {entry.value}. Uninstall one of the "
                "packages."
            )
    return by_name


_installed = cache(importlib.metadata.entry_points)
"""Read the entry points of all installed packages, once per process."""


@cache
def _source_tree_entries() -> Mapping[str, Mapping[str, str]] | None:
    """Return the entry points declared in a source tree: group -> name -> value, or None in an installed package.

    They take precedence over the metadata, which may be absent or older than the tree.
    """
    if not PROJECT_FILE.exists():
        return None
    project = tomllib.loads(PROJECT_FILE.read_text(encoding="utf-8"))["project"]
    return dict(project["entry-points"])
