"""Apply `--set key=value` to a sweep: replace a parameter or turn it into an axis, and rename the changed sweep."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from depthrate.sweeps.trial import canonical_json

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
