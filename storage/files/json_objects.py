"""JSON objects of a store, read so that foreign content causes at worst a wrong value."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def read_object(content: bytes, *, surrogates: bool = False) -> dict[str, Any]:
    """Parse the JSON object in a file.

    Args:
        surrogates: Whether strings may contain halves of surrogate pairs.

    Raises:
        ValueError: The content is not a JSON object, or a string in it cannot be encoded.
    """
    try:
        value = json.loads(content)
        if not surrogates:
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair can be neither printed nor stored
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"is a {type(value).__name__}, not an object")
    return value


def parse_object(text: object) -> dict[str, Any]:
    """Parse the JSON object in a table's string. Return {} if it is not a JSON object, which `verify` reports."""
    try:
        return read_object(text.encode()) if isinstance(text, str) else {}
    except ValueError:
        return {}


def with_digest(fields: Mapping[str, Any]) -> bytes:
    """Encode an object as JSON with a digest, so that readers can detect changes."""
    return json.dumps({**fields, "sha256": _digest(fields)}).encode()


def read_with_digest(content: bytes) -> dict[str, Any]:
    """Parse an object, verify its digest and remove it.

    Raises:
        ValueError: The content is not a JSON object, or was changed after it was written.
    """
    fields = read_object(content)
    if fields.pop("sha256", None) != _digest(fields):
        raise ValueError("was changed after it was written")
    return fields


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
