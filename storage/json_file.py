"""Objects of JSON that a store holds, read so that nothing in them is more than a wrong value."""

from __future__ import annotations

import json
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
