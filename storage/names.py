"""Names that nobody else gives: of compactions, removals, tags."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def new_name() -> str:
    """Return a name that nothing else has and that sorts by time."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}_{now:%f}{secrets.token_hex(3)}"
