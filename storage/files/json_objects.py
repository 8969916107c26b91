"""Objects of JSON that a store holds, read so that nothing in them is more than a wrong value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def read_object(content: bytes, *, surrogates: bool = False) -> dict[str, Any]:
    """Return the object that a file holds; with `surrogates` halves of pairs may stand in its texts.

    Raises:
        ValueError: it holds none, or text that no file can hold.
    """
    try:
        found = json.loads(content)
        if not surrogates:
            json.dumps(found, ensure_ascii=False).encode()  # half of a pair could be neither printed nor stored
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"is a {type(found).__name__}, not an object")
    return found


def parse_object(text: object) -> dict[str, Any]:
    """Return the object in a text that a table of a store holds; an empty one where it holds none, which `verify` names."""
    try:
        return read_object(text.encode()) if isinstance(text, str) else {}
    except ValueError:
        return {}


def with_digest(fields: Mapping[str, Any]) -> bytes:
    """Return an object as a file that says by its digest whether it is as it was written."""
    return json.dumps({**fields, "sha256": _digest(fields)}).encode()


def read_with_digest(content: bytes) -> dict[str, Any]:
    """Return the object that a file holds, without its digest; files of older versions have none.

    Raises:
        ValueError: it holds none, or was changed after it was written.
    """
    fields = read_object(content)
    digest = fields.pop("sha256", None)
    if digest not in (None, _digest(fields)):
        raise ValueError("was changed after it was written")
    return fields


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
