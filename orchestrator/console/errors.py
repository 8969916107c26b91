"""How a command is called: the refusal of a call that makes no sense, and the call to make next."""

from __future__ import annotations

import shlex


class UsageError(ValueError):
    """Options that contradict each other, or something that is not there."""


def next_call(verb: str, what: str, store: str | None, *options: str) -> str:
    """Return a line to call next, with the same store."""
    return shlex.join(["depthrate", verb, what, *(["--store", store] if store else []), *options])
