"""Usage errors, and the next command to suggest."""

import shlex

from depthrate.errors import InputError


class UsageError(InputError):
    """Options are mutually exclusive, or an object does not exist."""


def next_call(verb: str, what: str, store: str | None, *options: str) -> str:
    """Return the next command to run on the same store."""
    return shlex.join(["depthrate", verb, what, *(["--store", store] if store else []), *options])
