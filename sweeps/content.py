"""What a part of a sweep file holds: checks of its form, and what it is called in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from depthrate.sweeps.errors import SweepError
from depthrate.tasks.schema import nearest, shown


def require_keys(content: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    """Check that a mapping has no other keys than these.

    Raises:
        SweepError: it has, with the nearest allowed one.
    """
    for key in content:
        if key not in allowed:
            raise SweepError(f"unknown key {key!r} in {where}{nearest(key, allowed)} (known: {', '.join(allowed)})")


def mapping_of(value: Any, where: str) -> dict[str, Any]:
    """Return a mapping, which null leaves empty.

    Raises:
        SweepError: it is none.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SweepError(f"{where} is {kind_of(value)}; give a mapping from parameter to value")
    return dict(value)


def keyed_mapping(value: Any, where: str, allowed: Sequence[str]) -> dict[str, Any]:
    """Return a mapping that has no other keys than these.

    Raises:
        SweepError: it is none, or has another key.
    """
    if not isinstance(value, Mapping):
        raise SweepError(f"{where} is {shown(value)}; give a mapping with some of the keys {', '.join(allowed)}")
    require_keys(value, allowed, where)
    return dict(value)


def mappings_of(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    """Return a list of mappings, which null leaves empty.

    Raises:
        SweepError: it is none.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise SweepError(f"{where} is {kind_of(value)}; give a list of mappings")
    for index, part in enumerate(value):
        if not isinstance(part, Mapping):
            raise SweepError(f"{where}[{index}] is {kind_of(part)}; give a mapping")
    return tuple(dict(part) for part in value)


def kind_of(value: Any) -> str:
    """Return what a value is, in words."""
    names: dict[type, str] = {dict: "a mapping", list: "a list", bool: "a truth value"}
    if value is None:
        return "missing"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    return names.get(type(value)) or f"the value {shown(value)}"
