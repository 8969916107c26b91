"""Objects that packages register by entry points: tasks, executors and exporters, those of depthrate included.

A package registers one in its `pyproject.toml`, as in

    [project.entry-points."depthrate.tasks"]
    pendulum = "depthrate_pendulum:PENDULUM"
"""

from __future__ import annotations

import importlib.metadata
import logging
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypeVar

PROJECT_FILE = Path(__file__).resolve().parents[1] / "pyproject.toml"
"""The declaration of this package in a source tree. An installed package has its metadata instead."""

Plugin = TypeVar("Plugin")


class PluginError(ValueError):
    """A registered object cannot be found, imported or used."""


def registered_names(group: str, *, builtin: bool = False) -> tuple[str, ...]:
    """Return the names that packages registered in a group, those of depthrate first.

    Args:
        group: An entry-point group, as in `depthrate.tasks`.
        builtin: Whether to leave out the names of other packages.
    Raises:
        PluginError: Two packages registered one name, or this copy of depthrate has no metadata.
    """
    return tuple(name for name, entry in _entry_points(group).items() if is_builtin(entry) or not builtin)


def load_plugin(group: str, name: str, kind: type[Plugin]) -> Plugin:
    """Import a registered object.

    Args:
        group: An entry-point group.
        name: A name registered in it.
        kind: Class that the object is an instance of.
    Raises:
        PluginError: Its module cannot be imported, or the object is of another class or has another name.
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
        given = type(plugin).__name__ + ("" if plugin_name == name else f" of the name {plugin_name!r}")
        raise PluginError(
            f"{group} {name!r} = {entry.value} is a {given}, expected a {kind.__name__} of the registered name"
        )
    return plugin


def load_plugins(group: str, load: Callable[[str], Plugin]) -> dict[str, Plugin]:
    """Import all registered objects of a group: name -> object. A faulty one of another package is logged and left out.

    Args:
        group: An entry-point group.
        load: Imports one by its name, as `load_plugin` does.
    Raises:
        PluginError: One of depthrate's own is faulty, or as `registered_names`.
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
    """Return whether an object is part of this package."""
    return entry.value.startswith("depthrate.")


@cache
def _entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Return name -> entry point of a group, those of depthrate first."""
    installed = _installed().select(group=group)
    own = [entry for entry in installed if is_builtin(entry)] if _of_source_tree() is None else []
    own += [EntryPoint(name, value, group) for name, value in (_of_source_tree() or {}).get(group, {}).items()]
    if not own:
        raise PluginError(
            f"the copy of depthrate in {PROJECT_FILE.parent} has neither metadata nor a pyproject.toml, which list its tasks, "
            "executors and exporters. Install it: pip install depthrate, or pip install -e . in a clone."
        )
    by_name: dict[str, EntryPoint] = {}
    for entry in (*own, *(entry for entry in installed if not is_builtin(entry))):
        if (other := by_name.setdefault(entry.name, entry)).value != entry.value:
            raise PluginError(
                f"{group} {entry.name!r} is registered twice, as {other.value} and as {entry.value}. Uninstall one of the "
                "packages."
            )
    return by_name


_installed = cache(importlib.metadata.entry_points)
"""Reads the entry points of all installed packages, once per process."""


@cache
def _of_source_tree() -> Mapping[str, Mapping[str, str]] | None:
    """Return the entry points that a source tree declares: group -> name -> value; None in an installed package.

    They go before the metadata, which may be absent, or lack what the tree has gained since it was installed.
    """
    if not PROJECT_FILE.exists():
        return None
    project = tomllib.loads(PROJECT_FILE.read_text(encoding="utf-8"))["project"]
    return dict(project["entry-points"])
